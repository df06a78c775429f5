//! Tensors that two machines compute in another order: how far apart they may be.

use half::{bf16, f16};
use symphony_gpu::plan::PlanElement;

/// Returns the floats of a tensor; `None` if its elements are others.
fn floats(element: PlanElement, bytes: &[u8]) -> Option<Vec<f32>> {
    let halves = || bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
    Some(match element {
        PlanElement::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
        PlanElement::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        PlanElement::Bf16 => halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        _ => return None,
    })
}

/// Returns the first element that differs by more than `tolerance` of itself and of the largest.
pub(crate) fn difference(
    element: PlanElement,
    found: &[u8],
    expected: &[u8],
    tolerance: f32,
) -> Option<String> {
    let (Some(found), Some(expected)) = (floats(element, found), floats(element, expected)) else {
        return (found != expected).then(|| format!("{found:?} for {expected:?}"));
    };
    let largest = expected.iter().filter(|x| x.is_finite()).fold(0f32, |most, x| most.max(x.abs()));
    let differs = |(_, (found, expected)): &(usize, (&f32, &f32))| {
        let near = (**found - **expected).abs() <= tolerance * (expected.abs() + largest / 64.0);
        !(near || found == expected || found.is_nan() && expected.is_nan())
    };
    let first = found.iter().zip(&expected).enumerate().find(differs);
    first.map(|(at, (found, expected))| {
        format!("{found} for {expected} at {at}, and the largest is {largest}")
    })
}

/// The difference that sums in another order, and so another rounding, may make.
pub(crate) fn tolerance(element: PlanElement) -> f32 {
    match element {
        PlanElement::F16 => 2.0 / 1024.0,
        PlanElement::Bf16 => 2.0 / 128.0,
        _ => 2e-5,
    }
}
