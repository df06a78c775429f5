//! The interpreter: runs the launches of a plan one after another on a processor, in memory that is
//! laid out as the plan says. It is the reference for devices, and computes on the calling thread.

use super::element::AlignedBytes;
use super::kernels::{self, KernelInput, KernelOutput};
use super::program::{Launch, Operand, Plan, PlanRegion};
use std::ops::Range;

/// The memory of one batch in flight: all regions but the weights, which stay in the plan.
pub struct PlanMemory {
    inputs: AlignedBytes,
    outputs: AlignedBytes,
    workspace: AlignedBytes,
}

impl PlanMemory {
    /// Makes the memory for a plan's largest batch.
    pub fn new(plan: &Plan) -> PlanMemory {
        PlanMemory {
            inputs: AlignedBytes::zeroed(plan.input_bytes),
            outputs: AlignedBytes::zeroed(plan.output_bytes),
            workspace: AlignedBytes::zeroed(plan.workspace_bytes()),
        }
    }

    /// Returns the region of the inputs, to be filled.
    pub fn inputs_mut(&mut self) -> &mut [u8] {
        self.inputs.as_bytes_mut()
    }

    /// Returns the region of the outputs.
    pub fn outputs(&self) -> &[u8] {
        self.outputs.as_bytes()
    }

    /// Runs the launches of `plan`, for which the memory was made, for a batch of `rows` rows.
    ///
    /// # Errors
    /// If an index is out of range or a whole number is divided by 0; the text names the nodes.
    ///
    /// # Panics
    /// If there is no such batch size, or [`Plan::check`] refuses the plan.
    pub fn run(&mut self, plan: &Plan, rows: usize) -> Result<(), String> {
        for launch in &plan.batches[rows - 1].launches {
            self.launch(launch, plan.weights.as_bytes())
                .map_err(|why| format!("{why}, in node {}", launch.nodes.join(", ")))?;
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch, weights: &[u8]) -> Result<(), String> {
        let Launch { operation, inputs, output, activation, .. } = launch;
        let range = bytes_of(output);
        let (region, other, other_region) = match output.region {
            PlanRegion::Outputs => (&mut self.outputs, &self.workspace, PlanRegion::Workspace),
            _ => (&mut self.workspace, &self.outputs, PlanRegion::Outputs),
        };
        // What is written lies between two parts that may be read.
        let (before, rest) = region.as_bytes_mut().split_at_mut(range.start);
        let (bytes, after) = rest.split_at_mut(range.len());
        let read = |input: &Operand| -> &[u8] {
            let from = bytes_of(input);
            match input.region {
                PlanRegion::Weights => &weights[from],
                PlanRegion::Inputs => &self.inputs.as_bytes()[from],
                region if region == other_region => &other.as_bytes()[from],
                _ if from.end <= range.start => &before[from],
                _ => &after[from.start - range.end..from.end - range.end],
            }
        };
        let inputs: Vec<KernelInput<'_>> =
            inputs.iter().map(|input| KernelInput { of: &input.of, bytes: read(input) }).collect();
        kernels::run(operation, *activation, &inputs, &mut KernelOutput { of: &output.of, bytes })
    }
}

/// Returns the bytes of an operand of a plan that was checked.
fn bytes_of(operand: &Operand) -> Range<usize> {
    operand.range().unwrap_or_default()
}
