//! Operations on halves: elements are widened, computed in single precision as any others, and the
//! result is rounded once, to nearest, ties to even.

use super::super::element::{AlignedBytes, PlanElement, PlanType};
use super::operand::{KernelInput, KernelOutput};
use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Calls `compute` with floats of single precision in place of halves among the inputs or as the
/// output.
///
/// Errors: those of `compute`.
pub(super) fn with_single(
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
    compute: impl FnOnce(&[KernelInput<'_>], &mut KernelOutput<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let single = |of: &PlanType| match of.element.is_half() {
        true => PlanType::new(PlanElement::F32, of.shape.clone()),
        false => of.clone(),
    };
    let types: Vec<PlanType> = inputs.iter().map(|input| single(input.of)).collect();
    let wide: Vec<Option<AlignedBytes>> =
        inputs.iter().map(|input| input.of.element.is_half().then(|| widened(*input))).collect();
    let read = inputs.iter().zip(&types).zip(&wide).map(|((input, of), wide)| KernelInput {
        of,
        bytes: wide.as_ref().map_or(input.bytes, AlignedBytes::as_bytes),
    });
    let read: Vec<KernelInput<'_>> = read.collect();
    let of = single(output.of);
    if !output.of.element.is_half() {
        return compute(&read, output);
    }
    let mut result = AlignedBytes::zeroed(of.bytes().unwrap_or(0));
    compute(&read, &mut KernelOutput { of: &of, bytes: result.as_bytes_mut() })?;
    round(cast_slice(result.as_bytes()), output.of.element, output.bytes);
    Ok(())
}

fn widened(input: KernelInput<'_>) -> AlignedBytes {
    let mut wide = AlignedBytes::zeroed(2 * input.bytes.len());
    let to: &mut [f32] = cast_slice_mut(wide.as_bytes_mut());
    match input.of.element {
        PlanElement::Bf16 => cast_slice::<u8, bf16>(input.bytes).convert_to_f32_slice(to),
        _ => cast_slice::<u8, f16>(input.bytes).convert_to_f32_slice(to),
    }
    wide
}

/// Rounds floats to halves of this type.
fn round(from: &[f32], element: PlanElement, to: &mut [u8]) {
    match element {
        PlanElement::Bf16 => cast_slice_mut::<u8, bf16>(to).convert_from_f32_slice(from),
        _ => cast_slice_mut::<u8, f16>(to).convert_from_f32_slice(from),
    }
}
