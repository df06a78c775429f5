//! `symphony inspect`: what is in an ONNX file, what each executor makes of it, and a `model.toml`
//! to start from.

use super::failure::CommandFailure;
use super::size_flag::read_size_flag;
use clap::Args;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use symphony_gpu::import::{DimensionSizes, OnnxSummary, SizedFile, TensorSummary, put_defaults, summarise};
use symphony_gpu::{
    ComputeThread, CpuModel, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions, RunError,
};

/// The runs of which the shortest counts.
const RUNS: usize = 3;

/// The SLO that is proposed, in times of one request alone: it leaves room to wait and to batch.
const SLO_RUNS: f64 = 10.0;

/// The arguments of `inspect`.
#[derive(Args)]
pub(super) struct InspectArguments {
    /// The ONNX file
    model: PathBuf,
    /// The largest batch to load it for
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    max_batch: u32,
    /// A size for a dynamic dimension beyond the batch; may be given several times
    #[arg(long = "size", value_name = "NAME=N", value_parser = read_size_flag)]
    sizes: Vec<(String, NonZeroU32)>,
    /// The file of libonnxruntime.so; by default it is looked for as `serve` does
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// What one executor says about a model.
struct Trial {
    executor: &'static str,
    result: Result<TrialResult, String>,
}

/// What one executor found out about a model that it runs.
struct TrialResult {
    max_batch: usize,
    note: Option<String>,
    memory_bytes: u64,
    alone: Duration,
}

/// Prints what is in an ONNX file and what each executor makes of it.
///
/// Errors: the file can't be read or no executor runs it, exit code 2.
pub(super) fn inspect(arguments: InspectArguments) -> Result<(), CommandFailure> {
    let InspectArguments { model, max_batch, sizes, library } = arguments;
    let summary = summarise(&model).map_err(|error| CommandFailure::Input(error.to_string()))?;
    print_summary(&model, &summary);
    let sizes: DimensionSizes = sizes.into_iter().collect();
    let file = SizedFile { sizes: &sizes, ..SizedFile::from(&model) };
    let (max_batch, compute) = (max_batch as usize, ComputeThread::new());
    let options = OnnxRuntimeOptions { library, ..OnnxRuntimeOptions::default() };
    let trials = [
        Trial { executor: "cpu", result: attempt(&compute, || CpuModel::load_on(&compute, file, max_batch)) },
        Trial {
            executor: "onnxruntime",
            result: attempt(&compute, || OnnxRuntimeModel::load(file, max_batch, &options)),
        },
    ];
    println!("executors");
    trials.iter().for_each(|trial| println!("  {}", line(trial)));
    let runs = trials.iter().filter_map(|trial| Some((trial.executor, trial.result.as_ref().ok()?)));
    match runs.min_by_key(|(_, result)| result.alone) {
        Some((executor, result)) => {
            println!("model.toml\n{}", proposal(executor, result, &sizes));
            Ok(())
        }
        None => Err(CommandFailure::Input(format!("{}: no executor runs it, see above", model.display()))),
    }
}

fn print_summary(path: &Path, summary: &OnnxSummary) {
    let domain = |domain: &str| if domain.is_empty() { "opset".to_owned() } else { domain.to_owned() };
    let opsets = summary.opsets.iter().map(|(name, version)| format!("{} {version}", domain(name)));
    let opsets = opsets.collect::<Vec<_>>().join(", ");
    let producer = if summary.producer.is_empty() { "an unnamed program" } else { &summary.producer };
    println!("{}: {opsets}, made by {producer}", path.display());
    for (title, tensors) in [("inputs", &summary.inputs), ("outputs", &summary.outputs)] {
        println!("{title}");
        tensors.iter().for_each(|tensor| println!("  {}", tensor_line(tensor)));
    }
    let operators = summary.operators.iter().map(|of| format!("{} {}", of.operator, of.nodes));
    println!("operators: {}", operators.collect::<Vec<_>>().join(", "));
    let files = match &summary.weight_files[..] {
        [] => "all in this file".to_owned(),
        files => format!("with the weights in {}", files.join(", ")),
    };
    println!("size: {}, {files}", megabytes(summary.weights_bytes));
}

fn tensor_line(tensor: &TensorSummary) -> String {
    let TensorSummary { name, datatype, shape, dynamic } = tensor;
    let shape = shape.as_ref().map_or("of any shape".to_owned(), |shape| format!("[{}]", shape.join(", ")));
    let dynamic = match &dynamic[..] {
        [] => String::new(),
        [one] => format!(", dimension {one} is dynamic"),
        many => format!(", dimensions {many:?} are dynamic"),
    };
    format!("{name}: {datatype} {shape}{dynamic}")
}

/// Loads a model on a thread that computes, and runs one row of zeros.
fn attempt<M: HostModel>(
    compute: &ComputeThread,
    load: impl FnOnce() -> Result<M, LoadError> + Send,
) -> Result<TrialResult, String> {
    let run = || {
        let mut model = load().map_err(|error| error.to_string())?;
        let mut row = vec![0; model.signature().input_bytes()];
        put_defaults(model.defaults(), model.signature(), &mut row);
        model.stage(0, &row);
        let timed = |_| {
            let began = Instant::now();
            model.run(1).map(|()| began.elapsed())
        };
        let times = (0..RUNS).map(timed).collect::<Result<Vec<Duration>, RunError>>();
        let times = times.map_err(|error| error.to_string())?;
        Ok(TrialResult {
            max_batch: model.max_batch(),
            note: model.import_note().map(str::to_owned),
            memory_bytes: model.memory_bytes(),
            alone: times.into_iter().min().unwrap_or_default(),
        })
    };
    compute.run(run)
}

fn line(trial: &Trial) -> String {
    match &trial.result {
        Err(error) => format!("{}: does not run it: {error}", trial.executor),
        Ok(TrialResult { max_batch, note, memory_bytes, alone }) => format!(
            "{}: runs batches of up to {max_batch}; one request alone takes {:.3} ms here; {} of memory{}",
            trial.executor,
            alone.as_secs_f64() * 1e3,
            megabytes(*memory_bytes),
            note.as_ref().map_or_else(String::new, |note| format!("; {note}"))
        ),
    }
}

/// Returns a `model.toml` for the fastest executor.
fn proposal(executor: &str, result: &TrialResult, sizes: &DimensionSizes) -> String {
    let slo = (result.alone.as_secs_f64() * 1e3 * SLO_RUNS).ceil().max(1.0);
    let sizes = sizes.iter().map(|(name, size)| format!("{{ dimension = {name:?}, size = {size} }}"));
    let sizes = match sizes.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        sizes => format!("\n  sizes = [{sizes}]"),
    };
    format!(
        "  executor = \"{executor}\"\n  slo_ms = {slo}        # {SLO_RUNS} times one request alone on this \
         machine\n  max_batch = {}{sizes}",
        result.max_batch
    )
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
