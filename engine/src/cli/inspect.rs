//! `symphony inspect`: what is in an ONNX file, what each executor makes of it, and a `model.toml`
//! to start from.

mod proposal;

use super::failure::CommandFailure;
use super::file_flags::{read_default_flag, read_size_flag};
use crate::runtime::panics::catch;
use clap::Args;
use proposal::{model_toml, tried};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use symphony_gpu::import::{
    DimensionSizes, InputDefaults, OnnxSummary, SizedFile, TensorSummary, put_defaults, summarise,
};
use symphony_gpu::{
    ComputeThread, CpuModel, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions, RunError,
};

/// The runs of which the shortest counts.
const RUNS: usize = 3;

/// The arguments of `inspect`.
#[derive(Args)]
pub(super) struct InspectArguments {
    /// The ONNX file
    model: PathBuf,
    /// The largest batch to load it for
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    max_batch: u32,
    /// A size for a dynamic dimension beyond the batch; may be given several times. Without it some
    /// sizes are tried
    #[arg(long = "size", value_name = "NAME=N", value_parser = read_size_flag)]
    sizes: Vec<(String, NonZeroU32)>,
    /// The value of an input that is not to be 0 in the trial; may be given several times
    #[arg(long = "default", value_name = "INPUT=VALUE", value_parser = read_default_flag)]
    defaults: Vec<(String, f64)>,
    /// The file of libonnxruntime.so; by default it is looked for as `serve` does
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
}

/// What one executor says about a model.
struct Trial {
    executor: &'static str,
    result: Result<TrialResult, TrialFailure>,
}

/// A failure of a model on one executor.
struct TrialFailure {
    why: String,
    /// True if it may run at other sizes of its dynamic dimensions.
    depends_on_sizes: bool,
}

impl From<LoadError> for TrialFailure {
    fn from(error: LoadError) -> TrialFailure {
        let depends_on_sizes = matches!(
            error,
            LoadError::BatchDimension { .. }
                | LoadError::Corrupt { .. }
                | LoadError::Panicked { .. }
                | LoadError::Refused { .. }
                | LoadError::TooLarge { .. }
                | LoadError::Trial { .. }
        );
        TrialFailure { why: error.to_string(), depends_on_sizes }
    }
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
    let InspectArguments { model, max_batch, sizes, defaults, library } = arguments;
    let summary = summarise(&model).map_err(|error| CommandFailure::Input(error.to_string()))?;
    print_summary(&model, &summary);
    let (sizes, defaults): (DimensionSizes, InputDefaults) =
        (sizes.into_iter().collect(), defaults.into_iter().collect());
    let missing = summary.without_size.into_iter().filter(|name| !sizes.contains_key(name)).collect();
    let (max_batch, compute) = (max_batch as usize, ComputeThread::new());
    let options = OnnxRuntimeOptions { library, ..OnnxRuntimeOptions::default() };
    let attempt = |executor: &'static str, sizes: &DimensionSizes| {
        let file = SizedFile { sizes, defaults: &defaults, ..SizedFile::from(&model) };
        let result = match executor {
            "cpu" => attempt(&compute, || CpuModel::load_on(&compute, file, max_batch)),
            _ => attempt(&compute, || OnnxRuntimeModel::load(file, max_batch, &options)),
        };
        Trial { executor, result }
    };
    let both = |sizes: &DimensionSizes| ["cpu", "onnxruntime"].map(|name| attempt(name, sizes)).into();
    let (trials, used) = tried(&sizes, &missing, both);
    match used.size {
        None => println!("executors"),
        Some(size) => println!("executors, with {}", missing_at(&missing, size)),
    }
    trials.iter().for_each(|trial| println!("  {}", line(trial)));
    let runs = trials.iter().filter_map(|trial| Some((trial.executor, trial.result.as_ref().ok()?)));
    match runs.min_by_key(|(_, result)| result.alone) {
        Some((executor, result)) => {
            let runs = |sizes: &DimensionSizes| attempt(executor, sizes).result.is_ok();
            println!("model.toml\n{}", model_toml(executor, result, &used, &defaults, runs));
            Ok(())
        }
        None => Err(CommandFailure::Input(format!("{}: no executor runs it, see above", model.display()))),
    }
}

/// Returns the sizes that dimensions were tried with.
fn missing_at(missing: &BTreeSet<String>, size: NonZeroU32) -> String {
    missing.iter().map(|name| format!("{name} = {size}")).collect::<Vec<_>>().join(", ")
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

/// Loads a model on a thread that computes, and runs one row of zeros and of defaults.
fn attempt<M: HostModel>(
    compute: &ComputeThread,
    load: impl FnOnce() -> Result<M, LoadError> + Send,
) -> Result<TrialResult, TrialFailure> {
    let run = || {
        let mut model = load()?;
        let mut row = vec![0; model.signature().input_bytes()];
        put_defaults(model.defaults(), model.signature(), &mut row);
        model.stage(0, &row);
        let timed = |_| {
            let began = Instant::now();
            model.run(1).map(|()| began.elapsed())
        };
        let times = (0..RUNS).map(timed).collect::<Result<Vec<Duration>, RunError>>();
        let failed = |error: RunError| TrialFailure { why: error.to_string(), depends_on_sizes: true };
        let times = times.map_err(failed)?;
        Ok(TrialResult {
            max_batch: model.max_batch(),
            note: model.import_note().map(str::to_owned),
            memory_bytes: model.memory_bytes(),
            alone: times.into_iter().min().unwrap_or_default(),
        })
    };
    // A library's panic is a line of the output and nothing else.
    let panicked = |why| Err(TrialFailure { why, depends_on_sizes: true });
    compute.run(|| catch(run).unwrap_or_else(panicked))
}

fn line(trial: &Trial) -> String {
    match &trial.result {
        Err(TrialFailure { why, .. }) => format!("{}: does not run it: {why}", trial.executor),
        Ok(TrialResult { max_batch, note, memory_bytes, alone }) => format!(
            "{}: runs batches of up to {max_batch}; one request alone takes {:.3} ms here; {} of memory{}",
            trial.executor,
            alone.as_secs_f64() * 1e3,
            megabytes(*memory_bytes),
            note.as_ref().map_or_else(String::new, |note| format!("; {note}"))
        ),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
