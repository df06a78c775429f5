//! `symphony compile`: what an ONNX file becomes on a device, printed and written to a file.

use super::failure::CommandFailure;
use super::file_flags::{read_precision, read_size_flag};
use clap::Args;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use symphony_gpu::cuda::prebuilt_kernels;
use symphony_gpu::import::{DimensionSizes, SizedFile};
use symphony_gpu::plan::{
    self, BatchPlan, CompileOptions, CompiledPlan, KernelImage, Launch, MAX_PLAN_BATCH, Operand, Plan,
    PlanPort, PlanPrecision,
};

/// The arguments of `compile`.
#[derive(Args)]
pub(super) struct CompileArguments {
    /// The ONNX file
    model: PathBuf,
    /// The largest batch; there are launches for each size up to it
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=MAX_PLAN_BATCH as i64))]
    max_batch: u32,
    /// The precision of weights and of what passes between launches; sums are of fp32 in any case
    #[arg(long, value_name = "P", default_value = "fp32", value_parser = read_precision)]
    precision: PlanPrecision,
    /// Compile the plan's kernels for this architecture of cards too, such as sm_90, so that
    /// serving it needs no compiler; may be given several times. Needs libnvrtc.so, and no GPU
    #[arg(long = "arch", value_name = "SM", value_parser = read_architecture)]
    architectures: Vec<[u32; 2]>,
    /// A size for a dynamic dimension beyond the batch; may be given several times
    #[arg(long = "size", value_name = "NAME=N", value_parser = read_size_flag)]
    sizes: Vec<(String, NonZeroU32)>,
    /// Write the plan to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print each launch for the largest batch, with the nodes that it computes
    #[arg(long)]
    launches: bool,
}

/// Compiles an ONNX file, prints what it became and perhaps writes the plan.
///
/// Errors: the file can't be read or can't become a plan, exit code 2; the plan can't be written,
/// exit code 3.
pub(super) fn compile(arguments: CompileArguments) -> Result<(), CommandFailure> {
    let CompileArguments { model, max_batch, precision, architectures, sizes, output, launches } = arguments;
    let sizes: DimensionSizes = sizes.into_iter().collect();
    let file = SizedFile { sizes: &sizes, ..SizedFile::from(&model) };
    let options = CompileOptions { max_batch: max_batch as usize, precision };
    let mut compiled =
        plan::compile(file, options).map_err(|error| CommandFailure::Input(error.to_string()))?;
    for capability in architectures {
        let image = prebuilt_kernels(&compiled.plan, capability);
        compiled.plan.kernels.push(image.map_err(|error| CommandFailure::Machine(error.to_string()))?);
    }
    println!("{}: {}", model.display(), summary(&compiled));
    if let Some(note) = &compiled.note {
        println!("batch: {note}");
    }
    print_plan(&compiled.plan, launches);
    if let Some(output) = output {
        compiled.plan.write(&output).map_err(|error| CommandFailure::Machine(error.to_string()))?;
        eprintln!("{}: written", output.display());
    }
    Ok(())
}

/// Reads an architecture, such as `sm_90`: the last digit is the capability's second number.
fn read_architecture(name: &str) -> Result<[u32; 2], String> {
    let number = name.strip_prefix("sm_").and_then(|digits| digits.parse::<u32>().ok());
    let known = number.filter(|number| (80..1_000).contains(number));
    known
        .map(|number| [number / 10, number % 10])
        .ok_or_else(|| "it must be an architecture from sm_80 on, such as sm_80, sm_90 or sm_100".to_owned())
}

/// Returns the line about what became of the nodes.
fn summary(compiled: &CompiledPlan) -> String {
    let CompiledPlan { plan, nodes, folded, reshaped, .. } = compiled;
    let launches = plan.batches.last().map_or(&[][..], |batch| &batch.launches);
    let fused: usize = launches.iter().map(|launch| launch.nodes.len().saturating_sub(1)).sum();
    format!(
        "{nodes} nodes become {} launches: {} are folded into constants, {} only reshape, {fused} are fused \
         into others",
        launches.len(),
        folded.len(),
        reshaped.len(),
    )
}

fn print_plan(plan: &Plan, launches: bool) {
    for (title, ports) in [("inputs", &plan.inputs), ("outputs", &plan.outputs)] {
        println!("{title}");
        ports.iter().for_each(|port| println!("  {}", port_line(port)));
    }
    let precision = plan.precision.name().to_uppercase();
    println!("weights: {} of {precision}", megabytes(plan.weights.as_bytes().len()));
    for KernelImage { capability: [major, minor], bytes, .. } in &plan.kernels {
        println!("kernels: {} for sm_{major}{minor}", megabytes(*bytes));
    }
    println!("batches");
    for BatchPlan { rows, workspace_bytes, launches } in &plan.batches {
        println!("  {rows}: {} launches, {} of workspace", launches.len(), megabytes(*workspace_bytes));
    }
    let Some(largest) = plan.batches.last() else { return };
    println!("operations of the largest batch: {}", operations(largest));
    if launches {
        println!("launches of the largest batch");
        largest.launches.iter().for_each(|launch| println!("  {}", launch_line(launch)));
    }
}

fn port_line(PlanPort { name, row, offset }: &PlanPort) -> String {
    format!("{name}: {row} a row, at {offset}")
}

/// Returns the kinds of operations with their numbers, the most frequent first.
fn operations(batch: &BatchPlan) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    batch.launches.iter().for_each(|launch| *counts.entry(launch.operation.name()).or_default() += 1);
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}

fn launch_line(launch: &Launch) -> String {
    let Launch { operation, inputs, output, activation, nodes } = launch;
    let place = |operand: &Operand| format!("{} at {} {}", operand.of, operand.region, operand.offset);
    let inputs = inputs.iter().map(place).collect::<Vec<_>>().join(", ");
    let activation = activation.map_or_else(String::new, |function| format!(" then {function:?}"));
    let (name, nodes) = (operation.name(), nodes.join(", "));
    format!("{name}{activation} of {inputs}: {}; nodes {nodes}", place(output))
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
