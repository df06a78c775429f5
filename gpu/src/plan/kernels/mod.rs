//! Kernels: each operation of a plan on a processor, simple and right. What a plan knows already is
//! folded with them, and the interpreter runs a plan by them. Types were checked before:
//! `Operation::result` refuses what a kernel does not take.

mod attention;
mod elements;
mod half;
mod image;
mod layout;
mod matrix;
mod movement;
mod operand;
mod reduction;
mod walk;

use super::element::PlanType;
use super::operation::{Operation, UnaryFunction};
use bytemuck::cast_slice_mut;

pub(super) use operand::{KernelInput, KernelOutput};

/// Computes an operation, and an activation of its result. Halves are computed in single precision,
/// and rounded once, when the result is written.
///
/// Errors: an index is out of range.
pub(super) fn run(
    operation: &Operation,
    activation: Option<UnaryFunction>,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) -> Result<(), String> {
    if output.bytes.is_empty() {
        return Ok(());
    }
    let halves = inputs.iter().any(|input| input.of.element.is_half()) || output.of.element.is_half();
    if halves && !only_moves(operation) {
        return half::with_single(inputs, output, |inputs, output| {
            run_single(operation, activation, inputs, output)
        });
    }
    run_single(operation, activation, inputs, output)
}

/// Returns true if elements stay what they are.
fn only_moves(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Select
            | Operation::Concat { .. }
            | Operation::Gather { .. }
            | Operation::StridedCopy { .. }
            | Operation::Pad { .. }
    )
}

/// Computes an operation whose floats are of single precision, or that only moves them, and an
/// activation of them.
fn run_single(
    operation: &Operation,
    activation: Option<UnaryFunction>,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) -> Result<(), String> {
    match operation {
        Operation::Unary(function) => elements::unary(*function, inputs[0], output),
        Operation::Cast { .. } => elements::cast(inputs[0], output),
        Operation::Binary(function) => elements::binary(*function, inputs[0], inputs[1], output)?,
        Operation::Select => elements::select(inputs[0], inputs[1], inputs[2], output),
        Operation::Affine { axis } => elements::affine(*axis, inputs[0], inputs[1], inputs[2], output),
        Operation::Convolution { layout, window, groups } => {
            layout::with_channels_first(*layout, inputs, output, |inputs, output| {
                image::convolution(window, *groups, inputs, output);
            });
        }
        Operation::MatrixProduct { transposed, alpha } => {
            matrix::products(*transposed, *alpha, inputs, output);
        }
        Operation::Pool { layout, function, size, window } => {
            layout::with_channels_first(*layout, inputs, output, |inputs, output| {
                image::pool(*function, *size, window, inputs[0], output);
            });
        }
        Operation::Reduce { function, axes } => reduction::reduce(*function, axes, inputs[0], output),
        Operation::Softmax { axis, logarithm } => {
            reduction::softmax(*axis, *logarithm, inputs[0], output);
        }
        Operation::LayerNorm { axis, epsilon, adds } => {
            reduction::layer_norm(*axis, *epsilon, *adds, inputs, output);
        }
        Operation::Attention { heads, scale, packed } => {
            attention::attention(*heads, *scale, *packed, inputs, output);
        }
        Operation::LocalResponseNorm { axis, size, alpha, beta, bias } => {
            reduction::local_response_norm([*axis, *size], [*alpha, *beta, *bias], inputs[0], output);
        }
        Operation::Concat { axis } => movement::concat(*axis, inputs, output),
        Operation::Gather { axis } => movement::gather(*axis, inputs[0], inputs[1], output)?,
        Operation::StridedCopy { walked, strides, offset, .. } => {
            movement::strided_copy(walked, strides, *offset, inputs[0], output);
        }
        Operation::Pad { begins, fill, .. } => movement::pad(begins, *fill, inputs[0], output),
        Operation::Resize { layout, scales, interpolation, coordinates, .. } => {
            layout::with_channels_first(*layout, inputs, output, |inputs, output| {
                image::resize(*scales, *interpolation, *coordinates, inputs[0], output);
            });
        }
    }
    if let Some(function) = activation {
        activate(function, output.bytes);
    }
    Ok(())
}

/// Changes floats by an activation.
fn activate(function: UnaryFunction, bytes: &mut [u8]) {
    cast_slice_mut::<u8, f32>(bytes).iter_mut().for_each(|x| *x = elements::of_float(function, *x));
}

/// Computes one operation on a processor, as the interpreter does: what a driver without a device
/// has in place of kernels.
///
/// # Errors
/// The operation does not take these types, a tensor has not the bytes of its type, or the
/// computation fails: an index is out of range, a whole number is divided by 0.
pub fn compute(
    operation: &Operation,
    activation: Option<UnaryFunction>,
    inputs: &[(&PlanType, &[u8])],
    (of, bytes): (&PlanType, &mut [u8]),
) -> Result<(), String> {
    let types: Vec<&PlanType> = inputs.iter().map(|(of, _)| *of).collect();
    let result = operation.result(&types)?;
    let activated = operation.takes_activation() && of.element.is_float();
    if result != *of || (activation.is_some() && !activated) {
        return Err(format!("{} computes {result}, and its output is {of}", operation.name()));
    }
    let sized = |of: &PlanType, bytes: &[u8]| of.bytes() == Some(bytes.len());
    if !sized(of, bytes) || !inputs.iter().all(|(of, bytes)| sized(of, bytes)) {
        return Err(format!("a tensor of {} has not the bytes of its type", operation.name()));
    }
    let inputs: Vec<KernelInput<'_>> = inputs.iter().map(|&(of, bytes)| KernelInput { of, bytes }).collect();
    run(operation, activation, &inputs, &mut KernelOutput { of, bytes })
}
