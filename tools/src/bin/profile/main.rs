//! `profile`: measures how long a model takes by batch size on a device, as the engine does at
//! load, and prints the table, the line fitted to it and the memory taken. On a GPU the parts of a
//! batch's time are measured apart.

mod report;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use report::ProfileReport;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use symphony::cli::{end_quietly_on_closed_pipe, read_default_flag, read_precision, read_size_flag};
use symphony_gpu::cuda::{CudaDevices, DriverError};
use symphony_gpu::import::{DimensionSizes, InputDefaults, SizedFile};
use symphony_gpu::memory::Watermark;
use symphony_gpu::plan::{CompileOptions, PlanPrecision};
use symphony_gpu::{
    ComputeThread, CpuModel, CudaModel, GpuMeasureOptions, HostModel, LoadError, MeasureOptions,
    OnnxRuntimeModel, OnnxRuntimeOptions, RunError, measure, measure_on_gpu,
};

/// The least and the most time of the warm-up of a GPU, for a measurement of more than a second.
const WARM_UP: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// The least number of runs of each batch size on a GPU: a p99 of fewer is a matter of luck.
const RUNS_ON_GPU: usize = 200;

/// Measure how long an ONNX model takes by batch size
///
/// Prints l(b) as the median and the 99th percentile of many runs, and the line alpha * b + beta
/// that fits best for b of 2 and more, with its worst error. The engine schedules by the p99
/// column, and judges by the median which batches are worthwhile; the line is a summary. On a GPU,
/// the copies each way, the execution and the host's calls are measured apart too, and l(b) is from
/// the launch until the outputs are on the host.
#[derive(Parser)]
#[command(name = "profile", version, after_help = AFTER_HELP)]
struct ProfileCommandLine {
    /// The ONNX file; a first dimension of its inputs and outputs that is dynamic or 1 is the batch
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// The device to run it on: cpu; onnxruntime, whose library is found as `symphony serve` finds
    /// it; onnxruntime-cuda:N, that library's CUDA provider; or cuda:N, the driver's GPU N, by a
    /// plan. (Emulated GPUs take what their profile says)
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A size for a dynamic dimension beyond the batch; may be given several times
    #[arg(long = "size", value_name = "NAME=N", value_parser = read_size_flag)]
    sizes: Vec<(String, NonZeroU32)>,
    /// The value of an input that is not to be random; may be given several times
    #[arg(long = "default", value_name = "INPUT=VALUE", value_parser = read_default_flag)]
    defaults: Vec<(String, f64)>,
    /// The largest batch
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    max_batch: u32,
    /// The batch sizes to measure on a GPU, as 1-16,24,32 (default: every size)
    #[arg(long, value_name = "LIST", value_parser = read_batches)]
    batches: Option<Batches>,
    /// The precision on a GPU, of weights and of what passes between launches
    #[arg(long, value_name = "P", default_value = "fp32", value_parser = read_precision)]
    precision: PlanPrecision,
    /// Seconds to measure for, all batch sizes together
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// The least number of runs of each batch size, whatever they take: at most 1000 (default: 5,
    /// on a GPU 200)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: Option<u32>,
    /// Write the table as CSV too, for a model's `profile = FILE` in CONFIG or in a workload file
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str =
    "Exit codes: 0 done; 1 the model failed; 2 bad usage or model file; 3 the machine lacks the device.";

/// Batch sizes, rising.
#[derive(Clone)]
struct Batches(Vec<usize>);

/// Reads batch sizes, like `1-16,24,32`.
///
/// Errors: what it must be.
fn read_batches(text: &str) -> Result<Batches, String> {
    let wrong = || format!("{text:?} is no list of batch sizes; give them rising, like 1-16,24,32");
    let mut sizes: Vec<usize> = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first <= sizes.last().copied().unwrap_or(0) || last < first || last > 1_024 {
            return Err(wrong());
        }
        sizes.extend(first..=last);
    }
    Ok(Batches(sizes))
}

/// A device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProfiledDevice {
    Cpu,
    /// ONNX Runtime, on a core or on a GPU.
    OnnxRuntime(Option<u32>),
    Cuda(u32),
}

/// An error with its exit code.
type Failure = (u8, String);

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    match run(&ProfileCommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

fn run(line: &ProfileCommandLine) -> Result<(), Failure> {
    let device = device(&line.device)?;
    if !(line.seconds > 0.0 && line.seconds <= 86_400.0) {
        return Err((2, "--seconds: give a number above 0, at most 86400".to_owned()));
    }
    let report = match device {
        ProfiledDevice::Cuda(ordinal) => profile_on_gpu(line, ordinal)?,
        _ if line.batches.is_some() || line.precision != PlanPrecision::Fp32 => {
            let wrong = "--batches and --precision are for a GPU; give --device cuda:N, or leave them out";
            return Err((2, wrong.to_owned()));
        }
        _ => profile_on_host(line, device)?,
    };
    if line.json {
        println!("{}", serde_json::to_string(&report).expect("plain numbers and names"));
    } else {
        report.print();
    }
    Ok(())
}

fn device(text: &str) -> Result<ProfiledDevice, Failure> {
    let right = "give cpu, onnxruntime, onnxruntime-cuda:N or cuda:N";
    let numbered = |prefix| text.strip_prefix(prefix).and_then(|ordinal| ordinal.parse().ok());
    match text {
        "cpu" => Ok(ProfiledDevice::Cpu),
        "onnxruntime" => Ok(ProfiledDevice::OnnxRuntime(None)),
        "cuda" => Ok(ProfiledDevice::Cuda(0)),
        "emulated" => {
            let wrong = "--device emulated: an emulated GPU takes exactly what its profile says";
            Err((2, format!("{wrong}; {right}")))
        }
        other => {
            let of_library = numbered("onnxruntime-cuda:").map(|gpu| ProfiledDevice::OnnxRuntime(Some(gpu)));
            let found = of_library.or_else(|| numbered("cuda:").map(ProfiledDevice::Cuda));
            found.ok_or_else(|| (2, format!("--device: {other:?} is no device; {right}")))
        }
    }
}

/// Measures on a thread of this process.
fn profile_on_host(line: &ProfileCommandLine, device: ProfiledDevice) -> Result<ProfileReport, Failure> {
    let memory = Watermark::start().ok();
    let compute = ComputeThread::new();
    let mut model = load(line, device, &compute).map_err(load_failure)?;
    let mut options =
        MeasureOptions { budget: Duration::from_secs_f64(line.seconds), ..MeasureOptions::default() };
    options.least_runs = line.runs.map_or(options.least_runs, |runs| runs as usize);
    let table =
        with_progress(|progress| compute.run(|| measure(&mut *model, &options, progress))).map_err(ran)?;
    let memory = memory.and_then(|memory| memory.peak_growth().ok());
    if let Some(path) = &line.csv {
        table.write(path).map_err(|error| (2, error.to_string()))?;
    }
    Ok(ProfileReport::new(names(line), &table, &*model, memory))
}

/// Measures on a GPU.
fn profile_on_gpu(line: &ProfileCommandLine, ordinal: u32) -> Result<ProfileReport, Failure> {
    let memory = Watermark::start().ok();
    let lacking = |error: DriverError| (3, format!("--device {}: {error}", line.device));
    let device = CudaDevices::new(None).get(ordinal).map_err(lacking)?;
    // Weights and rows are in pages, which were taken when the card was opened; graphs are not.
    let free = || {
        let (pages, rest) = (device.pages(), device.open.calls().free_memory());
        let in_pages = u64::from(pages.free) * pages.page_bytes as u64;
        rest.map(|rest| in_pages + rest).map_err(|error| (1, error.to_string()))
    };
    let (sizes, defaults) = file_options(line);
    let before = free()?;
    let compile = CompileOptions { max_batch: largest(line), precision: line.precision };
    let mut model =
        CudaModel::load(sized(line, &sizes, &defaults), compile, &device).map_err(load_failure)?;
    let taken = before.saturating_sub(free()?);
    let asked = line.batches.as_ref().map_or_else(|| (1..=model.max_batch()).collect(), |of| of.0.clone());
    let budget = Duration::from_secs_f64(line.seconds);
    let options = GpuMeasureOptions {
        // A file whose batch is fixed runs one row.
        sizes: asked.into_iter().filter(|&size| size <= model.max_batch()).collect(),
        least_runs: line.runs.map_or(RUNS_ON_GPU, |runs| runs as usize),
        most_runs: MeasureOptions::default().most_runs,
        budget,
        // One that is only tried needs no card that runs at its highest clock.
        warm_up: WARM_UP.map(|time| time.min(budget)),
        seed: MeasureOptions::default().seed,
        file_bytes: std::fs::metadata(&line.model).map_or(0, |file| file.len()),
    };
    let profile = with_progress(|progress| measure_on_gpu(&mut model, &options, progress)).map_err(ran)?;
    let table = profile.table().map_err(|error| (2, error.to_string()))?;
    if let Some(path) = &line.csv {
        profile.write(path).map_err(|error| (2, error.to_string()))?;
    }
    let memory = memory.and_then(|memory| memory.peak_growth().ok());
    Ok(ProfileReport::new(names(line), &table, &model, memory).on_gpu(&profile, taken))
}

fn names(line: &ProfileCommandLine) -> (String, String) {
    (line.model.display().to_string(), line.device.clone())
}

fn ran(error: RunError) -> Failure {
    (1, error.to_string())
}

fn load_failure(error: LoadError) -> Failure {
    match error {
        LoadError::Library { .. } => (3, error.to_string()),
        LoadError::Device { .. } => (1, error.to_string()),
        _ => (2, error.to_string()),
    }
}

fn file_options(line: &ProfileCommandLine) -> (DimensionSizes, InputDefaults) {
    (line.sizes.iter().cloned().collect(), line.defaults.iter().cloned().collect())
}

fn sized<'a>(
    line: &'a ProfileCommandLine,
    sizes: &'a DimensionSizes,
    defaults: &'a InputDefaults,
) -> SizedFile<'a> {
    SizedFile { sizes, defaults, ..SizedFile::from(&line.model) }
}

/// Returns the largest batch that is asked for.
fn largest(line: &ProfileCommandLine) -> usize {
    let of_list = line.batches.as_ref().and_then(|Batches(sizes)| sizes.last().copied());
    of_list.unwrap_or(line.max_batch as usize)
}

/// Loads the model for a CPU core.
fn load(
    line: &ProfileCommandLine,
    device: ProfiledDevice,
    compute: &ComputeThread,
) -> Result<Box<dyn HostModel>, LoadError> {
    let (sizes, defaults) = file_options(line);
    let (file, max_batch) = (sized(line, &sizes, &defaults), line.max_batch as usize);
    Ok(match device {
        ProfiledDevice::OnnxRuntime(gpu) => {
            let options = OnnxRuntimeOptions { gpu, ..OnnxRuntimeOptions::default() };
            let load = || OnnxRuntimeModel::load(file, max_batch, &options);
            Box::new(compute.run(load)?)
        }
        _ => Box::new(CpuModel::load_on(compute, file, max_batch)?),
    })
}

/// Measures with a progress bar, which is shown only where standard error is a terminal.
fn with_progress<R>(measure: impl FnOnce(&mut (dyn FnMut(usize, usize) + Send)) -> R) -> R {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("measuring {wide_bar} {percent} %") {
        bar.set_style(style);
    }
    let measured = measure(&mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    measured
}
