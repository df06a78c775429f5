//! The profile of a model on a GPU, with the parts of a batch's time apart and the memory that it
//! takes; written as a table that all readers of profiles take. `profile --device cuda:N` makes it.

use crate::cuda::{BatchTimes, CudaModel, LibraryUse};
use crate::host::{HostModel, RunError};
use crate::measure::{Percentiles, RandomRows, percentiles};
use crate::table::{HEADER, PARTS, ProfileRow, ProfileTable, TableError, millis};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;

/// The share by which the times of a card whose clock has settled differ at most.
const SETTLED: f64 = 0.01;

/// The pieces of the warm-up whose medians are compared.
const WARM_UP_PIECE: Duration = Duration::from_millis(100);

/// Options of [`measure_on_gpu`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuMeasureOptions {
    /// The batch sizes, rising.
    pub sizes: Vec<usize>,
    /// The least number of runs of each size.
    pub least_runs: usize,
    /// The greatest number of runs of each size.
    pub most_runs: usize,
    /// The time for all sizes together, without the warm-up; a slow model takes longer.
    pub budget: Duration,
    /// The least and the most time of the warm-up, which ends when times differ no more: a card
    /// that has idled needs a while to raise its clock.
    pub warm_up: [Duration; 2],
    /// The seed of the random inputs.
    pub seed: u64,
    /// F of Symphony's Table 1, to be noted: the size of the model's file, bytes.
    pub file_bytes: u64,
}

/// The times of the batches of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuProfileRow {
    /// The size.
    pub batch: usize,
    /// The number of runs.
    pub runs: usize,
    /// The time from the host's calls until the outputs are on the host: l(b).
    pub whole: Percentiles,
    /// The parts, in the order of the file's columns: the copy of the inputs, the host's calls, the
    /// execution, the copy of the outputs.
    pub parts: [Percentiles; 4],
    /// The memory that a batch of this size uses besides the weights, bytes: workspace, inputs and
    /// outputs.
    pub dynamic_bytes: u64,
}

/// The memory of a model, after Symphony's Table 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuMemory {
    /// F: the model's file, bytes.
    pub file_bytes: u64,
    /// S: the weights on the device, bytes.
    pub static_bytes: u64,
    /// D: what the largest batch uses besides, bytes.
    pub dynamic_bytes: u64,
}

/// The profile of a model on a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuProfile {
    /// The device's name.
    pub device: String,
    /// The sizes, rising.
    pub rows: Vec<GpuProfileRow>,
    /// The memory.
    pub memory: GpuMemory,
    /// The products and convolutions of the largest batch, by what computes them.
    pub launches: LibraryUse,
    /// The libraries of the device, or why one is not used.
    pub libraries: Vec<String>,
}

/// Measures a model on its GPU, whose batches are run one after another on random inputs, round by
/// round through all sizes.
///
/// `progress` is called with the number of runs that are done and their total, which may shrink.
///
/// # Errors
/// The model fails on such inputs, or the device does.
pub fn measure_on_gpu(
    model: &mut CudaModel,
    options: &GpuMeasureOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<GpuProfile, RunError> {
    let mut runs = TimedRuns::new(model, options.seed);
    let largest = options.sizes.last().copied().unwrap_or(1);
    runs.warm_up(largest, options.warm_up)?;
    let (sizes, most) = (options.sizes.len(), options.most_runs.max(options.least_runs).max(1));
    let mut times = vec![Vec::new(); sizes];
    let began = Instant::now();
    for done in 0..most {
        if done >= options.least_runs.max(1) && began.elapsed() >= options.budget {
            break;
        }
        for (at, (&size, times)) in options.sizes.iter().zip(&mut times).enumerate() {
            times.push(runs.time(size)?);
            progress(done * sizes + at + 1, most * sizes);
        }
    }
    let rows: Vec<GpuProfileRow> =
        options.sizes.iter().zip(times).map(|(&size, times)| row(runs.model, size, &times)).collect();
    let memory = GpuMemory {
        file_bytes: options.file_bytes,
        static_bytes: runs.model.weights().bytes() as u64,
        dynamic_bytes: rows.iter().map(|row| row.dynamic_bytes).max().unwrap_or(0),
    };
    let (of, launches) = (runs.model.device(), runs.model.library_use());
    let libraries = of.libraries.iter().map(ToString::to_string).collect();
    Ok(GpuProfile { device: of.open.calls().facts().name.clone(), rows, memory, launches, libraries })
}

/// A model whose batches are timed on random rows.
pub struct TimedRuns<'a> {
    model: &'a mut CudaModel,
    rows: RandomRows,
}

impl TimedRuns<'_> {
    /// Makes the rows of a seed.
    pub fn new(model: &mut CudaModel, seed: u64) -> TimedRuns<'_> {
        let rows = RandomRows::new(model, seed);
        TimedRuns { model, rows }
    }

    /// Runs a batch of this size.
    ///
    /// # Errors
    /// The model fails on such inputs, or the device does.
    pub fn time(&mut self, size: usize) -> Result<BatchTimes, RunError> {
        for at in 0..size {
            self.model.stage(at, self.rows.row(at));
        }
        self.model.run_timed(size)
    }

    /// Runs batches of this size for at least `least`, and until the medians of three pieces differ
    /// by no more than a hundredth, or `most` is over.
    ///
    /// # Errors
    /// Those of [`TimedRuns::time`].
    pub fn warm_up(&mut self, size: usize, [least, most]: [Duration; 2]) -> Result<(), RunError> {
        let (began, mut medians) = (Instant::now(), Vec::new());
        loop {
            let (piece, mut times) = (Instant::now(), Vec::new());
            while times.is_empty() || piece.elapsed() < WARM_UP_PIECE {
                times.push(self.time(size)?.execution);
            }
            medians.push(percentiles(&mut times).p50);
            let passed = began.elapsed();
            if passed >= most || passed >= least && has_settled(&medians) {
                return Ok(());
            }
        }
    }
}

fn has_settled(medians: &[Nanos]) -> bool {
    let Some(last) = medians.last_chunk::<3>() else { return false };
    let (least, most) = (last.iter().min().map_or(0, |x| x.0), last.iter().max().map_or(0, |x| x.0));
    (most - least) as f64 <= SETTLED * most as f64
}

fn row(model: &CudaModel, batch: usize, times: &[BatchTimes]) -> GpuProfileRow {
    let of = |part: fn(&BatchTimes) -> Nanos| percentiles(&mut times.iter().map(part).collect::<Vec<_>>());
    let workspace = model.workspace_bytes(batch);
    let signature = model.signature();
    let rows = batch * (signature.input_bytes() + signature.output_bytes());
    GpuProfileRow {
        batch,
        runs: times.len(),
        whole: of(|times| times.whole),
        parts: [
            of(|times| times.copy_in),
            of(|times| times.launch),
            of(|times| times.execution),
            of(|times| times.copy_out),
        ],
        dynamic_bytes: (workspace + rows) as u64,
    }
}

impl GpuProfile {
    /// Returns l(b) as schedules take it.
    ///
    /// # Errors
    /// There are no rows.
    pub fn table(&self) -> Result<ProfileTable, TableError> {
        let row = |row: &GpuProfileRow| {
            let Percentiles { p50, p99 } = row.whole;
            ProfileRow { batch: row.batch, p50: p50.max(Nanos(1)), p99: p99.max(Nanos(1)) }
        };
        ProfileTable::from_rows(self.rows.iter().map(row).collect())
    }

    /// Writes the profile to the CSV file at `path`: the columns of every profile, and behind them
    /// those of the parts; the memory and the fit are comments.
    ///
    /// # Errors
    /// There are no rows, or the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), TableError> {
        let (table, GpuMemory { file_bytes, static_bytes, dynamic_bytes }) = (self.table()?, self.memory);
        let fit = table.fit();
        let mut text = format!(
            "# device: {}\n# by: {}; {}\n\
             # bytes: file {file_bytes}, static {static_bytes}, dynamic {dynamic_bytes}\n\
             # fit: alpha {:.6} ms, beta {:.6} ms, worst error {:.4} at b = {}\n{},{}\n",
            self.device,
            self.launches,
            self.libraries.join(", "),
            fit.alpha_ns / 1e6,
            fit.beta_ns / 1e6,
            fit.worst_error,
            fit.worst_batch,
            HEADER.join(","),
            PARTS.join(","),
        );
        for (row, l) in self.rows.iter().zip(table.rows()) {
            let _ = write!(text, "{},{},{}", l.batch, millis(l.p50), millis(l.p99));
            for Percentiles { p50, p99 } in row.parts {
                let _ = write!(text, ",{},{}", millis(p50), millis(p99));
            }
            text.push('\n');
        }
        std::fs::write(path, text).map_err(|source| TableError::Unwritable { path: path.into(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_with_its_parts_is_read_as_any_profile() {
        let percentiles = |p50, p99| Percentiles { p50: Nanos(p50), p99: Nanos(p99) };
        let row = |batch: usize| GpuProfileRow {
            batch,
            runs: 200,
            whole: percentiles(1_000_000 * batch as u64, 1_000_001 * batch as u64),
            parts: [percentiles(0, 1), percentiles(2, 3), percentiles(4, 5), percentiles(6, 7)],
            dynamic_bytes: 8,
        };
        let memory = GpuMemory { file_bytes: 1, static_bytes: 2, dynamic_bytes: 8 };
        let (device, rows) = ("a card".to_owned(), vec![row(1), row(4)]);
        let (launches, libraries) = (LibraryUse::default(), vec!["a library 1.2.3".to_owned()]);
        let profile = GpuProfile { device, rows, memory, launches, libraries };
        let file = tempfile::NamedTempFile::new().unwrap();
        profile.write(file.path()).unwrap();
        assert_eq!(ProfileTable::read(file.path()).unwrap(), profile.table().unwrap());
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.contains("\n4,4.000000,4.000004,0.000000,0.000001,0.000002,"), "{text}");
    }

    #[test]
    fn a_warm_up_ends_when_three_pieces_take_the_same_time() {
        let medians = |all: &[u64]| all.iter().map(|&ns| Nanos(ns)).collect::<Vec<_>>();
        assert!(!has_settled(&medians(&[100, 100])));
        assert!(!has_settled(&medians(&[500, 300, 100, 100])));
        assert!(has_settled(&medians(&[500, 300, 100, 100, 101])));
    }
}
