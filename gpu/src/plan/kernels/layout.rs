//! Images whose channels come last: they are turned around, computed with the channels first, and
//! the result is turned back.

use super::super::element::{AlignedBytes, PlanType};
use super::super::operation::ImageLayout;
use super::movement::strided_copy;
use super::operand::{KernelInput, KernelOutput};

/// Calls `compute` with images in ONNX's order. Inputs of other than 4 dimensions stay as they are.
pub(super) fn with_channels_first(
    layout: ImageLayout,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
    compute: impl FnOnce(&[KernelInput<'_>], &mut KernelOutput<'_>),
) {
    if layout == ImageLayout::ChannelsFirst {
        return compute(inputs, output);
    }
    let turned: Vec<Option<(PlanType, AlignedBytes)>> = inputs.iter().map(|input| first(*input)).collect();
    let read = inputs.iter().zip(&turned).map(|(input, turned)| match turned {
        Some((of, bytes)) => KernelInput { of, bytes: bytes.as_bytes() },
        None => *input,
    });
    let read: Vec<KernelInput<'_>> = read.collect();
    let Ok([n, h, w, c]) = <[usize; 4]>::try_from(&output.of.shape[..]) else { return };
    let of = PlanType::new(output.of.element, [n, c, h, w]);
    let mut result = AlignedBytes::zeroed(output.bytes.len());
    compute(&read, &mut KernelOutput { of: &of, bytes: result.as_bytes_mut() });
    let strides = [c * h * w, w, 1, h * w].map(|stride| stride as i64);
    let computed = KernelInput { of: &of, bytes: result.as_bytes() };
    strided_copy(&[n, h, w, c], &strides, 0, computed, output);
}

/// Returns an image with its channels first; `None` if it is none.
fn first(input: KernelInput<'_>) -> Option<(PlanType, AlignedBytes)> {
    let [n, h, w, c] = <[usize; 4]>::try_from(input.shape()).ok()?;
    let of = PlanType::new(input.of.element, [n, c, h, w]);
    let mut bytes = AlignedBytes::zeroed(input.bytes.len());
    let strides = [h * w * c, 1, w * c, c].map(|stride| stride as i64);
    let mut output = KernelOutput { of: &of, bytes: bytes.as_bytes_mut() };
    strided_copy(&[n, c, h, w], &strides, 0, input, &mut output);
    Some((of, bytes))
}
