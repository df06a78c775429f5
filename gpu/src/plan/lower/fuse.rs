//! Fusion: an operation that only changes each element of what one before it has computed becomes a
//! part of that one, so that the elements cross memory once.

use super::super::element::{ConstantTensor, PlanElement, PlanType};
use super::super::operation::{BinaryFunction, Operation};
use super::builder::{ComputedTensor, LoweredStep, PlanBuilder, PlanValue};
use std::collections::HashMap;

/// The steps as they are fused.
struct FusedSteps {
    steps: Vec<Option<LoweredStep>>,
    /// The step that computes a buffer.
    makers: HashMap<usize, usize>,
    /// How often a buffer is read, by steps and as an output of the model.
    uses: HashMap<usize, usize>,
}

/// Fuses the steps of a builder, and leaves out those that no output needs.
///
/// Errors: a constant can't be computed.
pub(super) fn fuse(builder: &mut PlanBuilder<'_>, outputs: &[PlanValue]) -> Result<(), String> {
    let steps: Vec<LoweredStep> = std::mem::take(&mut builder.steps);
    let needed = needed(steps, outputs);
    let mut uses: HashMap<usize, usize> = HashMap::new();
    let read = needed.iter().flat_map(|step| &step.inputs).chain(outputs);
    read.filter_map(PlanValue::buffer).for_each(|buffer| *uses.entry(buffer).or_default() += 1);
    let mut fused = FusedSteps { steps: Vec::new(), makers: HashMap::new(), uses };
    for step in needed {
        let step = as_affine(step, builder);
        let step = fused.absorb(step, builder)?;
        fused.makers.insert(step.output.buffer, fused.steps.len());
        fused.steps.push(Some(step));
    }
    builder.steps = fused.steps.into_iter().flatten().collect();
    Ok(())
}

/// Returns the steps that outputs need.
pub(super) fn needed(steps: Vec<LoweredStep>, outputs: &[PlanValue]) -> Vec<LoweredStep> {
    let mut buffers: std::collections::HashSet<usize> =
        outputs.iter().filter_map(PlanValue::buffer).collect();
    let mut kept = Vec::new();
    for step in steps.into_iter().rev() {
        if buffers.contains(&step.output.buffer) {
            buffers.extend(step.inputs.iter().filter_map(PlanValue::buffer));
            kept.push(step);
        }
    }
    kept.reverse();
    kept
}

/// Returns a product or a sum with one constant for each channel as an affine function of these.
fn as_affine(step: LoweredStep, builder: &mut PlanBuilder<'_>) -> LoweredStep {
    let Operation::Binary(function @ (BinaryFunction::Mul | BinaryFunction::Add)) = step.operation else {
        return step;
    };
    let (x, constant) = match &step.inputs[..] {
        [x @ PlanValue::Computed(_), PlanValue::Constant(constant)]
        | [PlanValue::Constant(constant), x @ PlanValue::Computed(_)] => (x.clone(), constant),
        _ => return step,
    };
    let shape = x.shape();
    let channels = channels(&constant.of.shape, shape).filter(|_| shape == step.output.of.shape);
    let (Some(channels), PlanElement::F32) = (channels, constant.of.element) else { return step };
    let given =
        ConstantTensor { of: PlanType::new(PlanElement::F32, [channels]), data: constant.data.clone() };
    let (scale, shift) = match function {
        BinaryFunction::Mul => (given, builder.filled(channels, 0.0)),
        _ => (builder.filled(channels, 1.0), given),
    };
    let inputs = vec![x, PlanValue::Constant(scale), PlanValue::Constant(shift)];
    LoweredStep { operation: Operation::Affine { axis: 1 }, inputs, ..step }
}

/// Returns the number of channels if a shape has one element for each of an image's.
fn channels(shape: &[usize], image: &[usize]) -> Option<usize> {
    let (&channels, rank) = (image.get(1)?, image.len());
    let at = (shape.len() + 1).checked_sub(rank)?;
    let alone = shape.iter().enumerate().all(|(index, &size)| index == at || size == 1);
    (rank > 2 && at < 2 && shape.get(at) == Some(&channels) && alone).then_some(channels)
}

impl FusedSteps {
    /// Returns the step together with the one before it, where they can be one, else as it is.
    fn absorb(&mut self, step: LoweredStep, builder: &mut PlanBuilder<'_>) -> Result<LoweredStep, String> {
        let Some((at, before)) = self.maker(&step) else { return Ok(step) };
        let merged = match &step.operation {
            Operation::Unary(function) if can_activate(&before) => {
                let nodes = [&before.nodes[..], &step.nodes].concat();
                Some(LoweredStep { activation: Some(*function), nodes, ..before })
            }
            Operation::Affine { axis: 1 } => with_affine(before, &step, builder)?,
            Operation::Binary(BinaryFunction::Add) => with_bias(before, &step),
            Operation::Binary(BinaryFunction::Mul | BinaryFunction::Div) => with_factor(before, &step),
            Operation::LayerNorm { adds: false, .. } => with_sum(&before, &step),
            _ => None,
        };
        let Some(merged) = merged else { return Ok(step) };
        self.steps[at] = None;
        let of = merged.output.of.clone();
        // The result lies where the later one's did.
        Ok(LoweredStep { output: ComputedTensor { buffer: step.output.buffer, of }, ..merged })
    }

    /// Returns the step whose result is read by this one alone, if it has no activation yet.
    fn maker(&self, step: &LoweredStep) -> Option<(usize, LoweredStep)> {
        let buffer = step.inputs.iter().find_map(PlanValue::buffer)?;
        let at = *self.makers.get(&buffer)?;
        let before = self.steps[at].clone()?;
        let alone = self.uses.get(&buffer) == Some(&1) && before.activation.is_none();
        alone.then_some((at, before))
    }
}

/// Returns true if a function of each element can be applied as the step writes its result.
fn can_activate(step: &LoweredStep) -> bool {
    step.operation.takes_activation() && step.output.of.element == PlanElement::F32
}

/// Returns a convolution, or an affine function, with the constants of an affine function behind it
/// in its own.
fn with_affine(
    before: LoweredStep,
    step: &LoweredStep,
    builder: &mut PlanBuilder<'_>,
) -> Result<Option<LoweredStep>, String> {
    let [x, PlanValue::Constant(scale), PlanValue::Constant(shift)] = &step.inputs[..] else {
        return Ok(None);
    };
    if *x.of() != before.output.of {
        return Ok(None);
    }
    let constants: Option<Vec<ConstantTensor>> =
        before.inputs[1..].iter().map(|input| input.constant().cloned()).collect();
    let Some(constants) = constants else { return Ok(None) };
    let inputs = match (&before.operation, &constants[..]) {
        (Operation::Convolution { .. }, [kernels, bias @ ..]) => {
            let by_kernel = vec![scale.of.shape[0], 1, 1, 1];
            let factor = ConstantTensor { of: PlanType::new(PlanElement::F32, by_kernel), ..scale.clone() };
            let kernels = pair(builder, BinaryFunction::Mul, kernels, &factor)?;
            let bias = match bias.first() {
                Some(bias) => moved(builder, bias, scale, shift)?,
                None => shift.clone(),
            };
            [kernels, bias]
        }
        (Operation::Affine { axis: 1 }, [first, second]) => {
            [pair(builder, BinaryFunction::Mul, first, scale)?, moved(builder, second, scale, shift)?]
        }
        _ => return Ok(None),
    };
    let inputs = before.inputs[..1].iter().cloned().chain(inputs.map(PlanValue::Constant)).collect();
    let nodes = [&before.nodes[..], &step.nodes].concat();
    Ok(Some(LoweredStep { inputs, nodes, ..before }))
}

/// Computes a function of two constants.
fn pair(
    builder: &mut PlanBuilder<'_>,
    function: BinaryFunction,
    left: &ConstantTensor,
    right: &ConstantTensor,
) -> Result<ConstantTensor, String> {
    let operation = Operation::Binary(function);
    let of = operation.result(&[&left.of, &right.of])?;
    builder.fold(&operation, &[left, right], of)
}

/// Computes `x * scale + shift` of constants.
fn moved(
    builder: &mut PlanBuilder<'_>,
    x: &ConstantTensor,
    scale: &ConstantTensor,
    shift: &ConstantTensor,
) -> Result<ConstantTensor, String> {
    let product = pair(builder, BinaryFunction::Mul, x, scale)?;
    pair(builder, BinaryFunction::Add, &product, shift)
}

/// Returns a product of matrices with a constant for each column as its bias.
fn with_bias(before: LoweredStep, step: &LoweredStep) -> Option<LoweredStep> {
    let Operation::MatrixProduct { .. } = before.operation else { return None };
    let (x, bias) = match &step.inputs[..] {
        [x @ PlanValue::Computed(_), bias @ PlanValue::Constant(_)]
        | [bias @ PlanValue::Constant(_), x @ PlanValue::Computed(_)] => (x, bias),
        _ => return None,
    };
    let columns = before.output.of.shape.last()?;
    let fits =
        *x.of() == before.output.of && step.output.of == before.output.of && bias.shape() == [*columns];
    if !fits || before.inputs.len() != 2 {
        return None;
    }
    let nodes = [&before.nodes[..], &step.nodes].concat();
    let inputs = before.inputs.iter().chain([bias]).cloned().collect();
    Some(LoweredStep { inputs, nodes, ..before })
}

/// Returns the number by which a step multiplies a tensor, with the tensor.
pub(super) fn scaled(step: &LoweredStep) -> Option<(&PlanValue, f32)> {
    let [left, right] = &step.inputs[..] else { return None };
    let number = |value: &PlanValue| match value.constant()?.floats()? {
        [number] => Some(*number),
        _ => None,
    };
    let (x, factor) = match (&step.operation, number(left), number(right)) {
        (Operation::Binary(BinaryFunction::Mul), Some(factor), None) => (right, factor),
        (Operation::Binary(BinaryFunction::Mul), None, Some(factor)) => (left, factor),
        (Operation::Binary(BinaryFunction::Div), None, Some(divisor)) => (left, 1.0 / divisor),
        _ => return None,
    };
    (step.activation.is_none() && *x.of() == step.output.of && factor.is_finite()).then_some((x, factor))
}

/// Returns a product of matrices whose sums are multiplied by a constant too.
fn with_factor(before: LoweredStep, step: &LoweredStep) -> Option<LoweredStep> {
    let (Operation::MatrixProduct { transposed, alpha }, 2) = (&before.operation, before.inputs.len()) else {
        return None;
    };
    let (x, factor) = scaled(step)?;
    if *x.of() != before.output.of {
        return None;
    }
    let operation = Operation::MatrixProduct { transposed: *transposed, alpha: alpha * factor };
    let nodes = [&before.nodes[..], &step.nodes].concat();
    Some(LoweredStep { operation, nodes, ..before })
}

/// Returns a norm of the sum of two tensors of its size.
fn with_sum(before: &LoweredStep, step: &LoweredStep) -> Option<LoweredStep> {
    let (Operation::LayerNorm { axis, epsilon, .. }, Operation::Binary(BinaryFunction::Add)) =
        (&step.operation, &before.operation)
    else {
        return None;
    };
    let [x, scales @ ..] = &step.inputs[..] else { return None };
    let [left, right] = &before.inputs[..] else { return None };
    let fits = x.buffer() == Some(before.output.buffer) && [left, right].iter().all(|of| of.of() == x.of());
    if !fits {
        return None;
    }
    let operation = Operation::LayerNorm { axis: *axis, epsilon: *epsilon, adds: true };
    let inputs = [left].into_iter().chain(scales).chain([right]).cloned().collect();
    let nodes = [&before.nodes[..], &step.nodes].concat();
    Some(LoweredStep { operation, inputs, nodes, ..step.clone() })
}
