//! Kernels: each operation of a plan on a processor, simple and right. What a plan knows already is
//! folded with them, and the interpreter runs a plan by them. Types were checked before:
//! `Operation::result` refuses what a kernel does not take.

mod elements;
mod image;
mod matrix;
mod movement;
mod reduction;
mod walk;

use super::element::PlanType;
use super::operation::{Operation, UnaryFunction};
use bytemuck::{Pod, cast_slice, cast_slice_mut};

/// An input of a kernel.
#[derive(Clone, Copy)]
pub(super) struct KernelInput<'a> {
    pub(super) of: &'a PlanType,
    pub(super) bytes: &'a [u8],
}

impl<'a> KernelInput<'a> {
    fn elements<T: Pod>(&self) -> &'a [T] {
        cast_slice(self.bytes)
    }

    fn shape(&self) -> &'a [usize] {
        &self.of.shape
    }
}

/// Where a kernel writes.
pub(super) struct KernelOutput<'a> {
    pub(super) of: &'a PlanType,
    pub(super) bytes: &'a mut [u8],
}

impl KernelOutput<'_> {
    fn elements<T: Pod>(&mut self) -> &mut [T] {
        cast_slice_mut(self.bytes)
    }
}

/// Computes an operation.
///
/// Errors: an index is out of range.
pub(super) fn run(
    operation: &Operation,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) -> Result<(), String> {
    if output.bytes.is_empty() {
        return Ok(());
    }
    match operation {
        Operation::Unary(function) => elements::unary(*function, inputs[0], output),
        Operation::Cast { .. } => elements::cast(inputs[0], output),
        Operation::Binary(function) => elements::binary(*function, inputs[0], inputs[1], output)?,
        Operation::Select => elements::select(inputs[0], inputs[1], inputs[2], output),
        Operation::Affine { axis } => elements::affine(*axis, inputs[0], inputs[1], inputs[2], output),
        Operation::Convolution { window, groups } => image::convolution(window, *groups, inputs, output),
        Operation::MatrixProduct { transposed, alpha } => {
            matrix::products(*transposed, *alpha, inputs, output);
        }
        Operation::Pool { function, size, window } => {
            image::pool(*function, *size, window, inputs[0], output);
        }
        Operation::Reduce { function, axes } => reduction::reduce(*function, axes, inputs[0], output),
        Operation::Softmax { axis, logarithm } => {
            reduction::softmax(*axis, *logarithm, inputs[0], output);
        }
        Operation::LayerNorm { axis, epsilon } => reduction::layer_norm(*axis, *epsilon, inputs, output),
        Operation::LocalResponseNorm { size, alpha, beta, bias } => {
            reduction::local_response_norm(*size, [*alpha, *beta, *bias], inputs[0], output);
        }
        Operation::Concat { axis } => movement::concat(*axis, inputs, output),
        Operation::Gather { axis } => movement::gather(*axis, inputs[0], inputs[1], output)?,
        Operation::StridedCopy { walked, strides, offset, .. } => {
            movement::strided_copy(walked, strides, *offset, inputs[0], output);
        }
        Operation::Pad { begins, fill, .. } => movement::pad(begins, *fill, inputs[0], output),
        Operation::Resize { scales, interpolation, coordinates, .. } => {
            image::resize(*scales, *interpolation, *coordinates, inputs[0], output);
        }
    }
    Ok(())
}

/// Changes floats by an activation.
pub(super) fn activate(function: UnaryFunction, bytes: &mut [u8]) {
    cast_slice_mut::<u8, f32>(bytes).iter_mut().for_each(|x| *x = elements::of_float(function, *x));
}

/// Returns the sizes of all dimensions before an axis, of it, and of all behind it.
fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

/// Calls a function on the elements as bytes of their size: for kernels that only move them.
macro_rules! by_size {
    ($element:expr, $call:ident($($argument:expr),*)) => {
        match $element {
            PlanElement::Bool => $call::<u8>($($argument),*),
            PlanElement::F32 | PlanElement::I32 => $call::<u32>($($argument),*),
            PlanElement::I64 => $call::<u64>($($argument),*),
        }
    };
}
use by_size;
