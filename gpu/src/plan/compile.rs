//! Compilation: an ONNX file becomes a plan. Lowered steps get places in memory, constants a place
//! among the weights.

use super::element::PlanType;
use super::lower::{GraphLowering, LoweredGraph, LoweredStep, PlanValue};
use super::memory::{PlacedBuffer, place};
use super::program::{
    BatchPlan, Launch, MAX_PLAN_BATCH, Operand, Plan, PlanPort, PlanPrecision, PlanRegion, aligned,
};
use super::weights::WeightsBlob;
use crate::host::LoadError;
use crate::import::{self, OnnxSource, SizedFile};
use std::collections::HashMap;

/// A plan, and what became of the model's nodes.
pub struct CompiledPlan {
    /// The plan.
    pub plan: Plan,
    /// The number of nodes in the model.
    pub nodes: usize,
    /// The nodes whose results are known, by their names, or by the first output of one without.
    pub folded: Vec<String>,
    /// The nodes that only give elements another shape: no launch is of them.
    pub reshaped: Vec<String>,
    /// What the import says of the model's batch, if there is something to say.
    pub note: Option<String>,
}

/// What an ONNX file is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompileOptions {
    /// The largest batch.
    pub max_batch: usize,
    /// The precision of the plan.
    pub precision: PlanPrecision,
}

/// Makes options for this largest batch, in single precision.
impl From<usize> for CompileOptions {
    fn from(max_batch: usize) -> CompileOptions {
        CompileOptions { max_batch, precision: PlanPrecision::Fp32 }
    }
}

/// Compiles an ONNX file for batches of at most `max_batch` rows, without running it. A batch that
/// the file fixes to 1 is made dynamic where the import's rules allow it.
///
/// # Errors
/// If the file cannot be read or is no ONNX model, if a dynamic dimension beyond the batch has no
/// size, or if it has an operator, or a form of one, that plans lack: the error names the node.
pub fn compile<'a>(
    file: impl Into<SizedFile<'a>>,
    options: impl Into<CompileOptions>,
) -> Result<CompiledPlan, LoadError> {
    let CompileOptions { max_batch, precision } = options.into();
    let compile = |source, max_batch| compile_source(source, CompileOptions { max_batch, precision });
    let (mut compiled, note) = import::load_by_rules(file.into(), max_batch, compile)?;
    compiled.note = note;
    Ok(compiled)
}

/// Compiles a file that the import has prepared.
pub(super) fn compile_source(
    source: OnnxSource,
    options: impl Into<CompileOptions>,
) -> Result<CompiledPlan, LoadError> {
    let CompileOptions { max_batch, precision } = options.into();
    let model = source.model()?;
    let path = source.path.clone();
    let lowering = GraphLowering::new(&model, source.batch, source.folder(), precision);
    let compiled =
        lowering.and_then(|lowering| compile_graph(lowering, max_batch.min(MAX_PLAN_BATCH), precision));
    compiled.map_err(|reason| LoadError::Lowering { path, reason })
}

fn compile_graph(
    mut lowering: GraphLowering<'_>,
    max_batch: usize,
    precision: PlanPrecision,
) -> Result<CompiledPlan, String> {
    let first = lowering.lower(1)?;
    let row = |value: &PlanValue| PlanType::new(value.of().element, &value.shape()[1..]);
    let rows_of = |values: &[(String, PlanValue)]| -> Vec<(String, PlanType)> {
        values.iter().map(|(name, value)| (name.clone(), row(value))).collect()
    };
    let (input_rows, output_rows) = (rows_of(&first.inputs), rows_of(&first.outputs));
    let (inputs, input_bytes) = ports(&input_rows, max_batch)?;
    let (outputs, output_bytes) = ports(&output_rows, max_batch)?;
    let (folded, reshaped) = (first.folded.clone(), first.reshaped.clone());
    let mut weights = WeightsBlob::default();
    let mut batches = vec![batch_plan(1, &first, [&inputs, &outputs], &mut weights)?];
    for rows in 2..=max_batch {
        let graph = lowering.lower(rows)?;
        if rows_of(&graph.outputs) != output_rows {
            return Err(format!("its outputs have other shapes in a batch of {rows}"));
        }
        batches.push(batch_plan(rows, &graph, [&inputs, &outputs], &mut weights)?);
    }
    let plan = Plan {
        precision,
        inputs,
        outputs,
        input_bytes,
        output_bytes,
        batches,
        weights: weights.finish(),
        kernels: Vec::new(),
    };
    plan.check()?;
    Ok(CompiledPlan { plan, nodes: lowering.nodes(), folded, reshaped, note: None })
}

/// Returns the places of inputs or outputs, one behind another with room for the largest batch, and
/// the size of their region.
fn ports(rows: &[(String, PlanType)], max_batch: usize) -> Result<(Vec<PlanPort>, usize), String> {
    let mut end = 0;
    let mut ports = Vec::new();
    for (name, row) in rows {
        let port = PlanPort { name: name.clone(), row: row.clone(), offset: aligned(end) };
        end = port.range(max_batch).ok_or_else(|| format!("{max_batch} rows of `{name}` are too large"))?.end;
        ports.push(port);
    }
    Ok((ports, end))
}

/// Gives each tensor of a lowered graph its place.
fn batch_plan(
    rows: usize,
    graph: &LoweredGraph,
    [inputs, outputs]: [&[PlanPort]; 2],
    weights: &mut WeightsBlob,
) -> Result<BatchPlan, String> {
    let mut places: HashMap<usize, (PlanRegion, usize)> = HashMap::new();
    for (region, values, ports) in
        [(PlanRegion::Inputs, &graph.inputs, inputs), (PlanRegion::Outputs, &graph.outputs, outputs)]
    {
        let buffers = values.iter().filter_map(|(_, value)| value.buffer());
        places.extend(buffers.zip(ports).map(|(buffer, port)| (buffer, (region, port.offset))));
    }
    let workspace_bytes = place_workspace(graph, &mut places)?;
    let mut operand = |value: &PlanValue| -> Result<Operand, String> {
        match value {
            PlanValue::Constant(tensor) => {
                let offset = weights.place(&tensor.data);
                Ok(Operand { region: PlanRegion::Weights, offset, of: tensor.of.clone() })
            }
            PlanValue::Computed(tensor) => {
                let &(region, offset) =
                    places.get(&tensor.buffer).ok_or_else(|| format!("{} is never written", tensor.of))?;
                Ok(Operand { region, offset, of: tensor.of.clone() })
            }
        }
    };
    let launch = |step: &LoweredStep| -> Result<Launch, String> {
        Ok(Launch {
            operation: step.operation.clone(),
            inputs: step.inputs.iter().map(&mut operand).collect::<Result<_, _>>()?,
            output: operand(&PlanValue::Computed(step.output.clone()))?,
            activation: step.activation,
            nodes: step.nodes.clone(),
        })
    };
    let launches = graph.steps.iter().map(launch).collect::<Result<_, _>>()?;
    Ok(BatchPlan { rows, workspace_bytes, launches })
}

/// Places the buffers that are neither inputs nor outputs; returns the size of the workspace.
fn place_workspace(
    graph: &LoweredGraph,
    places: &mut HashMap<usize, (PlanRegion, usize)>,
) -> Result<usize, String> {
    let mut numbers: HashMap<usize, usize> = HashMap::new();
    let mut placed: Vec<PlacedBuffer> = Vec::new();
    for (at, step) in graph.steps.iter().enumerate() {
        for buffer in step.inputs.iter().filter_map(PlanValue::buffer) {
            if let Some(&number) = numbers.get(&buffer) {
                placed[number].last = at;
            }
        }
        if !places.contains_key(&step.output.buffer) {
            let bytes = step.output.of.bytes().ok_or_else(|| format!("{} is too large", step.output.of))?;
            numbers.insert(step.output.buffer, placed.len());
            placed.push(PlacedBuffer { bytes, first: at, last: at });
        }
    }
    let (offsets, end) = place(&placed);
    let found = numbers.into_iter().map(|(buffer, at)| (buffer, (PlanRegion::Workspace, offsets[at])));
    places.extend(found);
    Ok(end)
}
