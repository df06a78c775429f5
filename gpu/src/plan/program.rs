//! A plan as data: launches for each batch size, at fixed places of four regions of memory, and the
//! check that a plan keeps what those who run it rely on.

use super::element::{AlignedBytes, PlanElement, PlanType};
use super::operation::{Operation, UnaryFunction};
use crate::signature::{Signature, TensorSpec};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// The alignment of every tensor in its region, bytes: what cards read in one piece.
pub const PLAN_ALIGNMENT: usize = 256;

/// The most bytes of a region.
const MAX_REGION: usize = 1 << 38;

/// The most rows of a batch.
pub const MAX_PLAN_BATCH: usize = 1_024;

/// What an ONNX model becomes: everything that a device needs to run it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The precision of weights and of what is computed.
    pub precision: PlanPrecision,
    /// The inputs, at the same place for each batch size.
    pub inputs: Vec<PlanPort>,
    /// The outputs, at the same place for each batch size.
    pub outputs: Vec<PlanPort>,
    /// The size of the region of inputs, for the largest batch, bytes.
    pub input_bytes: usize,
    /// The size of the region of outputs, for the largest batch, bytes.
    pub output_bytes: usize,
    /// What is launched for a batch of one row, of two, and so on.
    pub batches: Vec<BatchPlan>,
    /// The constants that launches read.
    #[serde(skip)]
    pub weights: AlignedBytes,
    /// Kernels that were compiled ahead, for the architectures that were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<KernelImage>,
}

/// The kernels of a plan, compiled for cards of an architecture.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelImage {
    /// The compute capability: 9, 0 for `sm_90`.
    pub capability: [u32; 2],
    /// What tells their source from others.
    pub source: u64,
    /// The size of the code, bytes.
    pub bytes: usize,
    /// The machine code.
    #[serde(skip)]
    pub code: Vec<u8>,
}

/// The precision of a plan's weights and of what passes between its launches. Sums are kept in
/// single precision whatever it is, and clients see the types of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanPrecision {
    /// IEEE 754 single precision.
    #[default]
    Fp32,
    /// IEEE 754 half precision: 11 binary digits, up to 65,504.
    Fp16,
    /// The upper half of a single-precision float: 8 binary digits, the same range.
    Bf16,
}

impl PlanPrecision {
    /// All of them.
    pub const ALL: [PlanPrecision; 3] = [PlanPrecision::Fp32, PlanPrecision::Fp16, PlanPrecision::Bf16];

    /// Returns the name, such as `fp16`.
    pub const fn name(self) -> &'static str {
        match self {
            PlanPrecision::Fp32 => "fp32",
            PlanPrecision::Fp16 => "fp16",
            PlanPrecision::Bf16 => "bf16",
        }
    }

    /// Returns the precision of a name.
    pub fn of_name(name: &str) -> Option<PlanPrecision> {
        PlanPrecision::ALL.into_iter().find(|of| of.name() == name)
    }

    /// Returns the type of a float.
    pub const fn element(self) -> PlanElement {
        match self {
            PlanPrecision::Fp32 => PlanElement::F32,
            PlanPrecision::Fp16 => PlanElement::F16,
            PlanPrecision::Bf16 => PlanElement::Bf16,
        }
    }
}

impl fmt::Display for PlanPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An input or an output of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanPort {
    /// The tensor's name in the model.
    pub name: String,
    /// The type of a row, without the batch.
    pub row: PlanType,
    /// The place of the first row in its region, bytes.
    pub offset: usize,
}

/// What is launched for one batch size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BatchPlan {
    /// The rows.
    pub rows: usize,
    /// The memory that is needed between launches, bytes.
    pub workspace_bytes: usize,
    /// The launches, in order.
    pub launches: Vec<Launch>,
}

/// One operation on tensors at fixed places.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Launch {
    /// What is computed.
    pub operation: Operation,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it writes, every element of it.
    pub output: Operand,
    /// A function of each element of the result, before it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activation: Option<UnaryFunction>,
    /// The model's nodes that it computes, by their first output.
    pub nodes: Vec<String>,
}

/// A tensor in memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operand {
    /// The region that it lies in.
    pub region: PlanRegion,
    /// The first byte in the region.
    pub offset: usize,
    /// The tensor's type.
    #[serde(flatten)]
    pub of: PlanType,
}

/// A part of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanRegion {
    /// Constants, the same for each batch size.
    Weights,
    /// The rows of the inputs.
    Inputs,
    /// The rows of the outputs.
    Outputs,
    /// What launches leave for later ones.
    Workspace,
}

impl fmt::Display for PlanRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlanRegion::Weights => "weights",
            PlanRegion::Inputs => "inputs",
            PlanRegion::Outputs => "outputs",
            PlanRegion::Workspace => "workspace",
        })
    }
}

impl Operand {
    /// Returns its bytes in its region; `None` where they pass what a region may have.
    pub fn range(&self) -> Option<Range<usize>> {
        let end = self.offset.checked_add(self.of.bytes()?)?;
        (end <= MAX_REGION).then_some(self.offset..end)
    }
}

impl PlanPort {
    /// Returns the bytes of `rows` rows in the region; `None` where they pass what one may have.
    pub fn range(&self, rows: usize) -> Option<Range<usize>> {
        let end = self.offset.checked_add(self.row.bytes()?.checked_mul(rows)?)?;
        (end <= MAX_REGION).then_some(self.offset..end)
    }
}

/// Returns the next place for a tensor behind these bytes.
pub(super) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(PLAN_ALIGNMENT)
}

impl Plan {
    /// Returns the largest batch.
    pub fn max_batch(&self) -> usize {
        self.batches.len()
    }

    /// Returns the largest workspace of all batch sizes, bytes.
    pub fn workspace_bytes(&self) -> usize {
        self.batches.iter().map(|batch| batch.workspace_bytes).max().unwrap_or(0)
    }

    /// Returns the inputs and outputs as clients see them.
    pub fn signature(&self) -> Signature {
        let spec = |port: &PlanPort| TensorSpec {
            name: port.name.clone(),
            datatype: port.row.element.datatype(),
            shape: port.row.shape.clone(),
        };
        Signature::of_rows(self.inputs.iter().map(spec).collect(), self.outputs.iter().map(spec).collect())
    }

    /// Checks all that those who run a plan rely on: every launch takes its inputs' types, lies
    /// within its regions, and reads only what was written and not overwritten since.
    ///
    /// # Errors
    /// What does not hold, with the batch size and the launch.
    pub fn check(&self) -> Result<(), String> {
        if self.batches.is_empty() || self.batches.len() > MAX_PLAN_BATCH {
            return Err(format!(
                "it is for {} batch sizes; 1 to {MAX_PLAN_BATCH} are taken",
                self.batches.len()
            ));
        }
        let (inputs, outputs) = (self.input_bytes, self.output_bytes);
        for (what, ports, bytes) in [("input", &self.inputs, inputs), ("output", &self.outputs, outputs)] {
            check_ports(ports, self.max_batch(), bytes).map_err(|why| format!("{what} {why}"))?;
        }
        for (at, batch) in self.batches.iter().enumerate() {
            if batch.rows != at + 1 || batch.workspace_bytes > MAX_REGION {
                let BatchPlan { rows, workspace_bytes, .. } = batch;
                let place = at + 1;
                return Err(format!("batch {place} is of {rows} rows and {workspace_bytes} bytes"));
            }
            self.check_batch(batch).map_err(|why| format!("with {} rows, {why}", batch.rows))?;
        }
        Ok(())
    }

    fn check_batch(&self, batch: &BatchPlan) -> Result<(), String> {
        let mut written = WrittenRanges::default();
        let mut workspace = 0;
        for (at, launch) in batch.launches.iter().enumerate() {
            let named = |why: String| format!("launch {at} ({}): {why}", launch.nodes.join(", "));
            self.check_launch(launch, batch, &mut written).map_err(named)?;
            if let (PlanRegion::Workspace, Some(range)) = (launch.output.region, launch.output.range()) {
                workspace = workspace.max(aligned(range.end));
            }
        }
        if batch.workspace_bytes != workspace {
            let given = batch.workspace_bytes;
            return Err(format!("its workspace has {given} bytes, of which {workspace} are written"));
        }
        for port in &self.outputs {
            let range = port.range(batch.rows).unwrap_or_default();
            if !written.holds(PlanRegion::Outputs, &range) {
                return Err(format!("output `{}` is not written", port.name));
            }
        }
        Ok(())
    }

    fn check_launch(
        &self,
        launch: &Launch,
        batch: &BatchPlan,
        written: &mut WrittenRanges,
    ) -> Result<(), String> {
        let Launch { operation, inputs, output, activation, .. } = launch;
        let types: Vec<&PlanType> = inputs.iter().map(|input| &input.of).collect();
        let result = operation.result(&types)?;
        if result != output.of {
            return Err(format!("its output is {}, and it computes {result}", output.of));
        }
        if activation.is_some() && !(operation.takes_activation() && output.of.element.is_float()) {
            return Err(format!("no activation follows {} of {}", operation.name(), output.of));
        }
        let to = self.range_in_region(output, batch)?;
        for input in inputs {
            let range = self.range_in_region(input, batch)?;
            let was_written = match input.region {
                PlanRegion::Weights | PlanRegion::Inputs => true,
                region => written.holds(region, &range),
            };
            if !was_written {
                return Err(format!("it reads {range:?} of {}, which is not written", input.region));
            }
            if input.region == output.region && overlap(&range, &to) {
                return Err(format!("it writes {to:?} of {}, which it reads", output.region));
            }
        }
        if matches!(output.region, PlanRegion::Weights | PlanRegion::Inputs) {
            return Err(format!("it writes {to:?} of {}", output.region));
        }
        written.add(output.region, to);
        Ok(())
    }

    fn range_in_region(&self, operand: &Operand, batch: &BatchPlan) -> Result<Range<usize>, String> {
        let bytes = match operand.region {
            PlanRegion::Weights => self.weights.as_bytes().len(),
            PlanRegion::Inputs => self.input_bytes,
            PlanRegion::Outputs => self.output_bytes,
            PlanRegion::Workspace => batch.workspace_bytes,
        };
        let range = operand.range().filter(|range| range.end <= bytes);
        let range = range.filter(|range| range.start.is_multiple_of(PLAN_ALIGNMENT));
        range.ok_or_else(|| {
            let Operand { region, offset, of } = operand;
            format!("{of} does not lie at {offset} of the {bytes} bytes of {region}")
        })
    }
}

fn check_ports(ports: &[PlanPort], rows: usize, bytes: usize) -> Result<(), String> {
    let mut end = 0;
    for port in ports {
        match port.range(rows) {
            Some(range) if range.start == aligned(end) && range.end <= bytes => end = range.end,
            _ => return Err(format!("`{}` does not lie at {} of {bytes} bytes", port.name, port.offset)),
        }
    }
    if ports.is_empty() || bytes != end {
        return Err(format!("tensors take {end} bytes of {bytes}"));
    }
    Ok(())
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// What was written, and not overwritten since.
#[derive(Default)]
struct WrittenRanges {
    workspace: Vec<Range<usize>>,
    outputs: Vec<Range<usize>>,
}

impl WrittenRanges {
    fn of(&mut self, region: PlanRegion) -> &mut Vec<Range<usize>> {
        if region == PlanRegion::Outputs { &mut self.outputs } else { &mut self.workspace }
    }

    fn holds(&mut self, region: PlanRegion, range: &Range<usize>) -> bool {
        let written = self.of(region);
        range.is_empty() || written.iter().any(|by| by.start <= range.start && range.end <= by.end)
    }

    fn add(&mut self, region: PlanRegion, range: Range<usize>) {
        let written = self.of(region);
        written.retain(|other| !overlap(other, &range));
        written.push(range);
    }
}
