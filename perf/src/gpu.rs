//! A card against the plan's interpreter: the same plan, the same rows, every output; and LOAD
//! against a plain copy of as many bytes. The command `gpu` calls both; `perf/gpu.sh` is the whole
//! measurement of a card.

use crate::MeasureError;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony_gpu::HostModel;
use symphony_gpu::cuda::{CudaDevice, CudaDevices, CudaModel, DriverError, LibraryUse, Owned, PageOptions};
use symphony_gpu::measure::RandomRows;
use symphony_gpu::plan::{CompileOptions, Plan, PlanMemory, PlanPrecision, compile};

/// The seed of the rows.
const SEED: u64 = 1;

/// The comparison of a model's outputs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanAgreement {
    /// The ONNX file.
    pub model: String,
    /// The rows of the batch.
    pub rows: usize,
    /// The largest magnitude of the interpreter's outputs.
    pub largest: f64,
    /// The largest difference of an output.
    pub worst: f64,
    /// `worst` over `largest`.
    pub relative: f64,
    /// The most that `relative` may be.
    pub tolerance: f64,
    /// True if it is not more, and every output is a number.
    pub agrees: bool,
    /// The products and convolutions of the batch, by what computes them.
    pub launches: LibraryUse,
    /// The libraries of the card, or why one is not used.
    pub libraries: Vec<String>,
}

/// The time of LOAD of a model's weights, beside that of a plain copy.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LoadBandwidth {
    /// The ONNX file.
    pub model: String,
    /// The bytes of the weights.
    pub bytes: usize,
    /// The median time of a LOAD, as the host sees it: pages are mapped and all bytes copied.
    pub load_ms: f64,
    /// The median time of the LOAD's copies by the card's clock.
    pub copying_ms: f64,
    /// The median time of as many bytes copied from pinned memory, as the host sees it.
    pub plain_ms: f64,
    /// The bandwidth of LOAD over that of the plain copy.
    pub load_over_plain: f64,
}

/// The memory that is taken of a device: for the weights, workspace and rows of one model.
const TAKEN_BYTES: u64 = 2 << 30;

/// The most bytes that a plain copy has room for; it goes there again and again.
const PLAIN_BYTES: usize = 16 << 20;

/// Measures LOAD of a model's weights, `times` times, in turn with a plain copy.
///
/// # Errors
/// The device is lacking, the file is wrong, or a load or a copy fails.
pub fn load_bandwidth(
    file: &Path,
    ordinal: u32,
    precision: PlanPrecision,
    times: usize,
) -> Result<LoadBandwidth, MeasureError> {
    let failed = |error: String| MeasureError::Failed(format!("{}: {error}", file.display()));
    let device = opened(ordinal)?;
    let options = CompileOptions { max_batch: 1, precision };
    let model = CudaModel::load(file, options, &device).map_err(|error| failed(error.to_string()))?;
    let (weights, mut all) = (model.weights(), [Vec::new(), Vec::new(), Vec::new()]);
    for _ in 0..times {
        weights.unload().map_err(failed)?;
        let began = Instant::now();
        let load = weights.load().map_err(failed)?;
        all[0].push(began.elapsed().as_secs_f64() * 1e3);
        all[1].push(load.copying.as_millis_f64());
        let plain = plain_copy(&device, weights.bytes()).map_err(|error| failed(error.to_string()))?;
        all[2].push(plain.as_secs_f64() * 1e3);
    }
    let [load_ms, copying_ms, plain_ms] = all.map(median);
    let (model, bytes) = (file.display().to_string(), weights.bytes());
    let load_over_plain = if load_ms > 0.0 { plain_ms / load_ms } else { 0.0 };
    Ok(LoadBandwidth { model, bytes, load_ms, copying_ms, plain_ms, load_over_plain })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Copies this many bytes from pinned memory, piece by piece, and returns how long that took.
fn plain_copy(device: &Arc<CudaDevice>, bytes: usize) -> Result<Duration, DriverError> {
    let (open, calls) = (&device.open, device.open.calls());
    let room = bytes.clamp(1, PLAIN_BYTES);
    let from = Owned::new(open, calls.allocate_pinned(room)?);
    let to = Owned::new(open, calls.allocate(room)?);
    let (stream, copied) =
        (Owned::new(open, calls.create_stream()?), Owned::new(open, calls.create_event()?));
    let began = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let piece = left.min(room);
        calls.copy_in(from.get(), 0..piece, to.get(), stream.get())?;
        left -= piece;
    }
    calls.record(copied.get(), stream.get())?;
    while !calls.is_over(copied.get())? {
        std::thread::yield_now();
    }
    Ok(began.elapsed())
}

/// Opens a device. Of one with much memory a part is taken, so that several models are compared
/// side by side.
fn opened(ordinal: u32) -> Result<Arc<CudaDevice>, MeasureError> {
    let open = |memory| {
        let pages = PageOptions { memory, ..PageOptions::default() };
        CudaDevices::new(None).with_pages(vec![pages; ordinal as usize + 1]).get(ordinal)
    };
    let opened = open(Some(TAKEN_BYTES)).or_else(|error| match error {
        DriverError::Memory { .. } => open(None),
        other => Err(other),
    });
    opened.map_err(|error| MeasureError::Machine(error.to_string()))
}

/// Compares a model on a GPU with the interpreter on a batch of random rows.
///
/// # Errors
/// The device is lacking, the file is wrong, or one of the two fails.
pub fn compare(
    file: &Path,
    ordinal: u32,
    (rows, precision): (usize, PlanPrecision),
    tolerance: f64,
) -> Result<PlanAgreement, MeasureError> {
    let failed = |error: String| MeasureError::Failed(format!("{}: {error}", file.display()));
    let device = opened(ordinal)?;
    let options = CompileOptions { max_batch: rows, precision };
    let compiled = compile(file, options).map_err(|error| MeasureError::Usage(error.to_string()))?;
    let plan = compiled.plan;
    let mut model = CudaModel::new(plan.clone(), &device).map_err(failed)?;
    let inputs = RandomRows::new(&model, SEED);
    (0..rows).for_each(|row| model.stage(row, inputs.row(row)));
    // It waits longer than a run does elsewhere, for a device that computes on the host.
    model.run_timed(rows).map_err(|error| failed(error.to_string()))?;
    let (expected, signature) = (interpreted(&plan, &inputs, rows).map_err(failed)?, model.signature());
    let (mut largest, mut worst, mut found) = (0f64, 0f64, vec![0; signature.output_bytes()]);
    for (row, expected) in expected.iter().enumerate() {
        model.unstage(row, &mut found);
        for (found, expected) in floats(&found).zip(floats(expected)) {
            largest = largest.max(f64::from(expected.abs()));
            let off = f64::from((found - expected).abs());
            // What is no number is never right.
            worst = worst.max(if off.is_nan() { f64::INFINITY } else { off });
        }
    }
    let relative = if worst == 0.0 { 0.0 } else { worst / largest };
    let agrees = relative <= tolerance && largest.is_finite() && largest > 0.0;
    let (name, launches) = (file.display().to_string(), model.library_use());
    let libraries = device.libraries.iter().map(ToString::to_string).collect();
    Ok(PlanAgreement { model: name, rows, largest, worst, relative, tolerance, agrees, launches, libraries })
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}

/// Runs rows through the interpreter and returns the outputs of each.
fn interpreted(plan: &Plan, inputs: &RandomRows, rows: usize) -> Result<Vec<Vec<u8>>, String> {
    let signature = plan.signature();
    let mut memory = PlanMemory::new(plan);
    for (at, port) in plan.inputs.iter().enumerate() {
        for row in 0..rows {
            let bytes = &inputs.row(row)[signature.input_range(at)];
            let start = port.offset + row * bytes.len();
            memory.inputs_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }
    memory.run(plan, rows)?;
    let mut outputs = vec![vec![0; signature.output_bytes()]; rows];
    for (at, port) in plan.outputs.iter().enumerate() {
        for (row, output) in outputs.iter_mut().enumerate() {
            let bytes = &mut output[signature.output_range(at)];
            let start = port.offset + row * bytes.len();
            bytes.copy_from_slice(&memory.outputs()[start..start + bytes.len()]);
        }
    }
    Ok(outputs)
}
