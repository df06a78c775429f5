//! Elements and tensors of a plan: the types that kernels know, shapes, and bytes that are aligned
//! for any of them.

use crate::signature::DataType;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The most elements of one tensor: its offsets then fit any machine's integers.
const MAX_ELEMENTS: usize = 1 << 40;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanElement {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision, 2 bytes: computed in single precision, rounded when it is written.
    F16,
    /// The upper half of a single-precision float, 2 bytes: computed as [`PlanElement::F16`] is.
    Bf16,
    /// Signed, 8 bytes: indices and shapes.
    I64,
    /// Signed, 4 bytes.
    I32,
    /// One byte, 0 or 1: what comparisons give.
    Bool,
}

impl PlanElement {
    /// Returns the size of an element, bytes.
    pub const fn bytes(self) -> usize {
        match self {
            PlanElement::Bool => 1,
            PlanElement::F16 | PlanElement::Bf16 => 2,
            PlanElement::F32 | PlanElement::I32 => 4,
            PlanElement::I64 => 8,
        }
    }

    /// Returns true if the elements are floats, of any precision.
    pub const fn is_float(self) -> bool {
        matches!(self, PlanElement::F32 | PlanElement::F16 | PlanElement::Bf16)
    }

    /// Returns true if the elements are floats of 2 bytes.
    pub const fn is_half(self) -> bool {
        matches!(self, PlanElement::F16 | PlanElement::Bf16)
    }

    /// Returns the bits of a number as an element.
    pub fn bits(self, value: f32) -> u64 {
        match self {
            PlanElement::F32 => u64::from(value.to_bits()),
            PlanElement::F16 => u64::from(f16::from_f32(value).to_bits()),
            PlanElement::Bf16 => u64::from(bf16::from_f32(value).to_bits()),
            PlanElement::I32 => u64::from((value as i32).cast_unsigned()),
            PlanElement::I64 => (value as i64).cast_unsigned(),
            PlanElement::Bool => u64::from(value != 0.0),
        }
    }

    /// Returns the type that clients see.
    pub const fn datatype(self) -> DataType {
        match self {
            PlanElement::F32 => DataType::Fp32,
            PlanElement::F16 => DataType::Fp16,
            PlanElement::Bf16 => DataType::Bf16,
            PlanElement::I64 => DataType::Int64,
            PlanElement::I32 => DataType::Int32,
            PlanElement::Bool => DataType::Bool,
        }
    }

    /// Returns the type that has ONNX's number for element types; `None` if kernels do not know it.
    pub(super) fn of_onnx(datatype: rten_onnx::onnx::DataType) -> Option<PlanElement> {
        use rten_onnx::onnx::DataType as Onnx;
        Some(match datatype {
            Onnx::FLOAT => PlanElement::F32,
            Onnx::INT64 => PlanElement::I64,
            Onnx::INT32 => PlanElement::I32,
            Onnx::BOOL => PlanElement::Bool,
            _ => return None,
        })
    }
}

impl fmt::Display for PlanElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PlanElement::F32 => "f32",
            PlanElement::F16 => "f16",
            PlanElement::Bf16 => "bf16",
            PlanElement::I64 => "i64",
            PlanElement::I32 => "i32",
            PlanElement::Bool => "bool",
        })
    }
}

/// The type of a tensor: that of its elements, and its shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PlanType {
    /// The elements' type.
    pub element: PlanElement,
    /// The sizes of the dimensions; the last one's elements lie side by side.
    pub shape: Vec<usize>,
}

impl PlanType {
    pub(super) fn new(element: PlanElement, shape: impl Into<Vec<usize>>) -> PlanType {
        PlanType { element, shape: shape.into() }
    }

    /// Returns the number of elements; `None` where it passes what a plan may have.
    pub fn elements(&self) -> Option<usize> {
        let elements = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
        (elements <= MAX_ELEMENTS).then_some(elements)
    }

    /// Returns the number of bytes; `None` where it passes what a plan may have.
    pub fn bytes(&self) -> Option<usize> {
        Some(self.elements()? * self.element.bytes())
    }
}

impl fmt::Display for PlanType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.element, self.shape)
    }
}

/// Bytes that start where any element may start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AlignedBytes {
    words: Vec<u64>,
    length: usize,
}

impl AlignedBytes {
    /// Makes this many zero bytes.
    pub fn zeroed(length: usize) -> AlignedBytes {
        AlignedBytes { words: vec![0; length.div_ceil(size_of::<u64>())], length }
    }

    /// Copies these bytes.
    pub fn copied(bytes: &[u8]) -> AlignedBytes {
        let mut copy = AlignedBytes::zeroed(bytes.len());
        copy.as_bytes_mut().copy_from_slice(bytes);
        copy
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    /// Returns the bytes, to be changed.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

/// A tensor whose elements are known when the plan is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ConstantTensor {
    pub(super) of: PlanType,
    /// Shared by all tensors that differ in their shape alone.
    pub(super) data: Arc<AlignedBytes>,
}

impl ConstantTensor {
    pub(super) fn of_f32(shape: &[usize], values: &[f32]) -> ConstantTensor {
        let of = PlanType::new(PlanElement::F32, shape);
        ConstantTensor { of, data: Arc::new(AlignedBytes::copied(bytemuck::cast_slice(values))) }
    }

    pub(super) fn of_bytes(of: PlanType, bytes: &[u8]) -> ConstantTensor {
        ConstantTensor { of, data: Arc::new(AlignedBytes::copied(bytes)) }
    }

    pub(super) fn of_i64(shape: &[usize], values: &[i64]) -> ConstantTensor {
        let of = PlanType::new(PlanElement::I64, shape);
        ConstantTensor { of, data: Arc::new(AlignedBytes::copied(bytemuck::cast_slice(values))) }
    }

    /// Returns the elements as whole numbers; `None` where they are floats.
    pub(super) fn whole_numbers(&self) -> Option<Vec<i64>> {
        let bytes = self.data.as_bytes();
        Some(match self.of.element {
            PlanElement::I64 => bytemuck::cast_slice::<u8, i64>(bytes).to_vec(),
            PlanElement::I32 => {
                bytemuck::cast_slice::<u8, i32>(bytes).iter().map(|&x| i64::from(x)).collect()
            }
            PlanElement::Bool => bytes.iter().map(|&x| i64::from(x)).collect(),
            PlanElement::F32 | PlanElement::F16 | PlanElement::Bf16 => return None,
        })
    }

    /// Returns the floats as halves. What is finite stays finite, and what is not 0 stays so:
    /// exporters write the least float for what is to be left out, and tiny ones to keep divisors
    /// above 0.
    pub(super) fn rounded(&self, element: PlanElement) -> ConstantTensor {
        let bits = |x: f32, [least, most]: [f32; 2], round: fn(f32) -> u16| {
            let sound = if x.is_finite() && x != 0.0 { x.abs().clamp(least, most).copysign(x) } else { x };
            round(sound)
        };
        let halves = self.floats().unwrap_or_default().iter().map(|&x| match element {
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
        let of = PlanType { element, ..self.of.clone() };
        ConstantTensor::of_bytes(of, bytemuck::cast_slice(&halves))
    }

    /// Returns the elements if they are floats.
    pub(super) fn floats(&self) -> Option<&[f32]> {
        (self.of.element == PlanElement::F32).then(|| bytemuck::cast_slice(self.data.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stay_finite_and_do_not_become_zero() {
        let values = [f32::MIN, 1e-12, -1e-40, 0.0, f32::NEG_INFINITY, f32::NAN, 1.0 + 1.0 / 4096.0];
        let halves = |element| -> Vec<f32> {
            let found = ConstantTensor::of_f32(&[values.len()], &values).rounded(element);
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
