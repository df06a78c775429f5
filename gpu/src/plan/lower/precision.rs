//! Half precision: once the steps are fused, every float between them becomes a half, and so do the
//! constants. Inputs and outputs keep the types that clients see: they are cast at the edges.

use super::super::element::{ConstantTensor, PlanElement, PlanType};
use super::super::operation::Operation;
use super::builder::{ComputedTensor, LoweredStep, PlanBuilder, PlanValue};
use half::{bf16, f16};
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

/// Returns a constant's floats as halves. What is finite stays finite, and what is not 0 stays so:
/// exporters write the least float for what is to be left out, and tiny ones to keep divisors
/// above 0.
pub(super) fn rounded(tensor: &ConstantTensor, element: PlanElement) -> ConstantTensor {
    let bits = |x: f32, [least, most]: [f32; 2], round: fn(f32) -> u16| {
        let sound = if x.is_finite() && x != 0.0 { x.abs().clamp(least, most).copysign(x) } else { x };
        round(sound)
    };
    let halves = tensor.floats().unwrap_or_default().iter().map(|&x| match element {
        PlanElement::Bf16 => {
            let range = [bf16::MIN_POSITIVE_SUBNORMAL.to_f32(), bf16::MAX.to_f32()];
            bits(x, range, |x| bf16::from_f32(x).to_bits())
        }
        _ => {
            let range = [f16::MIN_POSITIVE_SUBNORMAL.to_f32(), f16::MAX.to_f32()];
            bits(x, range, |x| f16::from_f32(x).to_bits())
        }
    });
    let halves: Vec<u16> = halves.collect();
    let of = PlanType { element, ..tensor.of.clone() };
    ConstantTensor::of_bytes(of, bytemuck::cast_slice(&halves))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stay_finite_and_do_not_become_zero() {
        let values = [f32::MIN, 1e-12, -1e-40, 0.0, f32::NEG_INFINITY, f32::NAN, 1.0 + 1.0 / 4096.0];
        let halves = |element| -> Vec<f32> {
            let found = rounded(&ConstantTensor::of_f32(&[values.len()], &values), element);
            let bits: &[u16] = bytemuck::cast_slice(found.data.as_bytes());
            let wide = |&bits: &u16| match element {
                PlanElement::Bf16 => bf16::from_bits(bits).to_f32(),
                _ => f16::from_bits(bits).to_f32(),
            };
            bits.iter().map(wide).collect()
        };
        let f16s = halves(PlanElement::F16);
        assert_eq!(f16s[..4], [-65504.0, 2f32.powi(-24), -(2f32.powi(-24)), 0.0]);
        assert!(f16s[4] == f32::NEG_INFINITY && f16s[5].is_nan() && f16s[6] == 1.0);
        let bf16s = halves(PlanElement::Bf16);
        assert!(bf16s[0] == bf16::MIN.to_f32() && (bf16s[1] - 1e-12).abs() < 1e-14 && bf16s[2] < 0.0);
    }
}
