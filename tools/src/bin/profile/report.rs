//! What `profile` prints: the table, the fitted line and the memory, as text or as JSON.

use serde::Serialize;
use symphony_gpu::cuda::LibraryUse;
use symphony_gpu::device_profile::{GpuMemory, GpuProfile, GpuProfileRow};
use symphony_gpu::measure::Percentiles;
use symphony_gpu::{HostModel, ProfileTable};

/// The report of a run. JSON has its fields.
#[derive(Serialize)]
pub(super) struct ProfileReport {
    model: String,
    device: String,
    alpha_ms: f64,
    beta_ms: f64,
    /// Relative, at the batch size where the line is furthest off.
    fit_worst_error: f64,
    fit_worst_batch: usize,
    weights_bytes: u64,
    /// The growth of the process's peak resident memory while loading and running the largest
    /// batch.
    memory_bytes: Option<u64>,
    table: Vec<ReportRow>,
    /// What only a GPU has.
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuReport>,
}

#[derive(Serialize)]
struct ReportRow {
    batch: usize,
    p50_ms: f64,
    p99_ms: f64,
}

/// The card, the model's memory there, and the parts of each batch's time.
#[derive(Serialize)]
struct GpuReport {
    name: String,
    /// F, S and D of Symphony's Table 1.
    file_bytes: u64,
    static_bytes: u64,
    dynamic_bytes: u64,
    /// What the card had less of once the model was loaded: with kernels, graphs and all lanes.
    taken_bytes: u64,
    /// The products and convolutions of the largest batch, by what computes them.
    launches: LibraryUse,
    libraries: Vec<String>,
    parts: Vec<PartsRow>,
}

#[derive(Serialize)]
struct PartsRow {
    batch: usize,
    runs: usize,
    copy_in_ms: PartMs,
    launch_ms: PartMs,
    execution_ms: PartMs,
    copy_out_ms: PartMs,
    dynamic_bytes: u64,
}

#[derive(Clone, Copy, Serialize)]
struct PartMs {
    p50: f64,
    p99: f64,
}

impl From<Percentiles> for PartMs {
    fn from(Percentiles { p50, p99 }: Percentiles) -> PartMs {
        PartMs { p50: p50.as_millis_f64(), p99: p99.as_millis_f64() }
    }
}

impl From<&GpuProfileRow> for PartsRow {
    fn from(row: &GpuProfileRow) -> PartsRow {
        let [copy_in_ms, launch_ms, execution_ms, copy_out_ms] = row.parts.map(PartMs::from);
        let &GpuProfileRow { batch, runs, dynamic_bytes, .. } = row;
        PartsRow { batch, runs, copy_in_ms, launch_ms, execution_ms, copy_out_ms, dynamic_bytes }
    }
}

impl ProfileReport {
    pub(super) fn new(
        (model, device): (String, String),
        table: &ProfileTable,
        loaded: &dyn HostModel,
        memory_bytes: Option<u64>,
    ) -> ProfileReport {
        let fit = table.fit();
        let row = |row: &symphony_gpu::ProfileRow| ReportRow {
            batch: row.batch,
            p50_ms: row.p50.as_millis_f64(),
            p99_ms: row.p99.as_millis_f64(),
        };
        ProfileReport {
            model,
            device,
            alpha_ms: fit.alpha_ns / 1e6,
            beta_ms: fit.beta_ns / 1e6,
            fit_worst_error: fit.worst_error,
            fit_worst_batch: fit.worst_batch,
            weights_bytes: loaded.weights_bytes(),
            memory_bytes,
            table: table.rows().iter().map(row).collect(),
            gpu: None,
        }
    }

    /// Adds what was measured on a card.
    pub(super) fn on_gpu(self, profile: &GpuProfile, taken_bytes: u64) -> ProfileReport {
        let GpuMemory { file_bytes, static_bytes, dynamic_bytes } = profile.memory;
        let parts = profile.rows.iter().map(PartsRow::from).collect();
        let (name, launches, libraries) =
            (profile.device.clone(), profile.launches, profile.libraries.clone());
        let gpu = GpuReport {
            name,
            file_bytes,
            static_bytes,
            dynamic_bytes,
            taken_bytes,
            launches,
            libraries,
            parts,
        };
        ProfileReport { gpu: Some(gpu), ..self }
    }

    /// Prints the report as text.
    pub(super) fn print(&self) {
        println!("{} on {}", self.model, self.device);
        println!("{:>7} {:>12} {:>12} {:>14}", "batch", "p50 (ms)", "p99 (ms)", "requests/s");
        for ReportRow { batch, p50_ms, p99_ms } in &self.table {
            println!("{batch:>7} {p50_ms:>12.3} {p99_ms:>12.3} {:>14.1}", *batch as f64 / p50_ms * 1e3);
        }
        if let Some(gpu) = &self.gpu {
            gpu.print();
        }
        println!("alpha {:.4} ms, beta {:.4} ms (fitted to p99 at b >= 2)", self.alpha_ms, self.beta_ms);
        let (worst, batch) = (self.fit_worst_error * 100.0, self.fit_worst_batch);
        println!("the line is off by {worst:.1} % at worst, at b = {batch}");
        let memory =
            self.memory_bytes.map_or("not measured".to_owned(), |bytes| format!("{:.1} MiB", mib(bytes)));
        println!(
            "weights {:.1} MiB in the file; memory at the largest batch: {memory}",
            mib(self.weights_bytes)
        );
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl GpuReport {
    fn print(&self) {
        println!("products and convolutions: {}; {}", self.launches, self.libraries.join(", "));
        println!("parts on {}, median and p99 (ms)", self.name);
        println!(
            "{:>7} {:>17} {:>17} {:>17} {:>17}",
            "batch", "copy in", "host's calls", "execution", "copy out"
        );
        for row in &self.parts {
            let two = |of: PartMs| format!("{:.4} {:.4}", of.p50, of.p99);
            let parts = [row.copy_in_ms, row.launch_ms, row.execution_ms, row.copy_out_ms].map(two);
            let [copy_in, launch, execution, copy_out] = parts;
            println!("{:>7} {copy_in:>17} {launch:>17} {execution:>17} {copy_out:>17}", row.batch);
        }
        println!(
            "memory (MiB): file {:.1}, static {:.1}, dynamic {:.1}; the card has {:.1} less",
            mib(self.file_bytes),
            mib(self.static_bytes),
            mib(self.dynamic_bytes),
            mib(self.taken_bytes)
        );
    }
}
