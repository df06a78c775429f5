//! `symphony inspect`: what is in an ONNX file, what each executor makes of it, and a `model.toml`
//! to start from; and what several files have in common.

mod proposal;
mod trial;

use super::failure::CommandFailure;
use super::file_flags::{read_default_flag, read_size_flag};
use clap::Args;
use proposal::{model_toml, tried};
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use symphony_gpu::import::{
    DimensionSizes, InputDefaults, OnnxSummary, SharingGroup, SizedFile, TensorSummary, sharing_groups,
    size_text, summarise,
};
use symphony_gpu::{ComputeThread, CpuModel, OnnxRuntimeModel, OnnxRuntimeOptions};
use trial::{Trial, TrialFailure, TrialResult, attempt};

/// The arguments of `inspect`.
#[derive(Args)]
pub(super) struct InspectArguments {
    /// The ONNX file; several of them for the groups of them that share their first layers, and so
    /// can be run as one
    #[arg(required = true)]
    models: Vec<PathBuf>,
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

/// Prints what is in an ONNX file and what each executor makes of it.
///
/// Errors: the file can't be read or no executor runs it, exit code 2.
pub(super) fn inspect(arguments: InspectArguments) -> Result<(), CommandFailure> {
    let InspectArguments { mut models, max_batch, sizes, defaults, library } = arguments;
    if models.len() > 1 {
        if !sizes.is_empty() || !defaults.is_empty() || library.is_some() {
            let wrong = "--size, --default and --library are for one file; several are compared, and not run";
            return Err(CommandFailure::Input(wrong.to_owned()));
        }
        let groups = sharing_groups(&models).map_err(|error| CommandFailure::Input(error.to_string()))?;
        print_groups(&models, &groups);
        return Ok(());
    }
    let model = models.remove(0);
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
    println!("size: {}, {files}", size_text(summary.weights_bytes));
}

/// Prints the groups of models that share their first layers, and which models are in none.
fn print_groups(paths: &[PathBuf], groups: &[SharingGroup]) {
    let count = paths.len();
    for SharingGroup { members, shared } in groups {
        let (nodes, weights) = (shared.nodes, shared.weights_bytes);
        let these = match members.len() {
            all if all == count => format!("the {count} models"),
            some => format!("{some} of the {count} models"),
        };
        println!("{these} share their first layers: {}, {} of weights", counted(nodes), size_text(weights));
        for (&at, model) in members.iter().zip(&shared.models) {
            let own = model.weights_bytes.saturating_sub(weights);
            println!(
                "  {}: {} more, {} of weights; after {}",
                paths[at].display(),
                counted(model.nodes.saturating_sub(nodes)),
                size_text(own),
                model.tensors.join(", ")
            );
        }
        let (all, once) = shared.all_weights();
        println!("  weights: {} in all, {} with the shared ones once", size_text(all), size_text(once));
        println!("  to run them as one, give each of their tables [[models]] the same prefix_group");
    }
    let in_none = |at: &usize| groups.iter().all(|group| !group.members.contains(at));
    let others: Vec<String> = (0..count).filter(in_none).map(|at| paths[at].display().to_string()).collect();
    if groups.is_empty() {
        println!(
            "the {count} models share no layer: from their inputs on, no node is the same in two of them"
        );
    } else if !others.is_empty() {
        println!("that share no layer with another: {}", others.join(", "));
    }
}

fn counted(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
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

fn line(trial: &Trial) -> String {
    match &trial.result {
        Err(TrialFailure { why, .. }) => format!("{}: does not run it: {why}", trial.executor),
        Ok(TrialResult { max_batch, note, memory_bytes, alone }) => format!(
            "{}: runs batches of up to {max_batch}; one request alone takes {:.3} ms here; {} of memory{}",
            trial.executor,
            alone.as_secs_f64() * 1e3,
            size_text(*memory_bytes),
            note.as_ref().map_or_else(String::new, |note| format!("; {note}"))
        ),
    }
}
