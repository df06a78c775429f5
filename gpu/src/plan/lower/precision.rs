//! Half precision: once the steps are fused, every float between them becomes a half, and so do the
//! constants. Inputs and outputs keep the types that clients see: they are cast at the edges.

use super::super::element::{PlanElement, PlanType};
use super::super::operation::Operation;
use super::builder::{ComputedTensor, LoweredStep, PlanBuilder, PlanValue};
use std::collections::{HashMap, HashSet};

/// Makes the floats of a builder's steps halves of this type.
pub(super) fn apply(
    builder: &mut PlanBuilder<'_>,
    inputs: &[(String, PlanValue)],
    outputs: &[(String, PlanValue)],
    element: PlanElement,
) {
    let steps = std::mem::take(&mut builder.steps);
    let edges: HashSet<usize> = outputs.iter().filter_map(|(_, value)| value.buffer()).collect();
    let read: HashSet<usize> =
        steps.iter().flat_map(|step| &step.inputs).filter_map(PlanValue::buffer).collect();
    let mut halves = Halves { element, buffers: HashMap::new() };
    for (name, value) in inputs {
        let PlanValue::Computed(input) = value else { continue };
        if input.of.element == PlanElement::F32 && read.contains(&input.buffer) {
            name.clone_into(&mut builder.node);
            let of = PlanType { element, ..input.of.clone() };
            let half = builder.push(Operation::Cast { to: element }, &[value], of);
            halves.buffers.extend(half.buffer().map(|half| (input.buffer, half)));
        }
    }
    for step in steps {
        let output = step.output.clone();
        let step = halves.step(step, builder, &edges);
        let (half, nodes) = (PlanValue::Computed(step.output.clone()), step.nodes.clone());
        let is_edge = half.buffer() != Some(output.buffer);
        builder.steps.push(step);
        if is_edge {
            let (operation, inputs) = (Operation::Cast { to: output.of.element }, vec![half]);
            builder.steps.push(LoweredStep { operation, inputs, output, activation: None, nodes });
        }
    }
}

/// The buffers of halves.
struct Halves {
    element: PlanElement,
    /// The buffer of halves by that of the floats of an input or an output.
    buffers: HashMap<usize, usize>,
}

impl Halves {
    /// Returns a step on halves. One that writes an output of the model gets another buffer.
    fn step(
        &mut self,
        step: LoweredStep,
        builder: &mut PlanBuilder<'_>,
        edges: &HashSet<usize>,
    ) -> LoweredStep {
        let inputs = step.inputs.iter().map(|input| self.value(input, builder)).collect();
        let operation = match step.operation {
            Operation::Cast { to: PlanElement::F32 } => Operation::Cast { to: self.element },
            other => other,
        };
        let mut output = step.output;
        if output.of.element == PlanElement::F32 {
            output.of.element = self.element;
            if edges.contains(&output.buffer) {
                let half = builder.computed(output.of.clone());
                self.buffers.insert(output.buffer, half.buffer);
                output = half;
            }
        }
        LoweredStep { operation, inputs, output, ..step }
    }

    fn value(&self, value: &PlanValue, builder: &mut PlanBuilder<'_>) -> PlanValue {
        match value {
            value if value.of().element != PlanElement::F32 => value.clone(),
            PlanValue::Constant(tensor) => PlanValue::Constant(builder.rounded(tensor, self.element)),
            PlanValue::Computed(ComputedTensor { buffer, of }) => PlanValue::Computed(ComputedTensor {
                buffer: self.buffers.get(buffer).copied().unwrap_or(*buffer),
                of: PlanType { element: self.element, ..of.clone() },
            }),
        }
    }
}
