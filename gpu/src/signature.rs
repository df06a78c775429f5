//! The inputs and outputs of a model: names, element types and shapes, and the layout of one row's
//! tensors in a flat byte buffer. The API fills such buffers and reads them; executors copy rows
//! out of them and into them. The layout does not depend on the device that runs the model.

use std::fmt;
use std::ops::Range;

/// The alignment of every tensor in a row, in bytes: the size of the largest element.
pub const ALIGNMENT: usize = 8;

/// The size of the length in front of an element of BYTES, in bytes.
pub const LENGTH_BYTES: usize = 4;

/// The type of a tensor's elements: those of the KServe v2 protocol. Every element of a type takes
/// the same room in a row, those of BYTES too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned, 1 byte.
    Uint8,
    /// Unsigned, 2 bytes.
    Uint16,
    /// Unsigned, 4 bytes.
    Uint32,
    /// Unsigned, 8 bytes.
    Uint64,
    /// Signed, 1 byte.
    Int8,
    /// Signed, 2 bytes.
    Int16,
    /// Signed, 4 bytes.
    Int32,
    /// Signed, 8 bytes.
    Int64,
    /// IEEE 754 half precision, 2 bytes.
    Fp16,
    /// The upper half of an FP32, 2 bytes.
    Bf16,
    /// IEEE 754 single precision, 4 bytes.
    Fp32,
    /// IEEE 754 double precision, 8 bytes.
    Fp64,
    /// A byte string of at most this length. In a row an element is its length as a little-endian
    /// `u32`, its bytes, and padding up to the largest length.
    Bytes(u32),
}

impl DataType {
    /// Every type of fixed-size elements, in the protocol's order.
    pub const ALL: [DataType; 13] = [
        DataType::Bool,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp16,
        DataType::Bf16,
        DataType::Fp32,
        DataType::Fp64,
    ];

    /// Returns the protocol's name, for example `FP32`.
    pub const fn name(self) -> &'static str {
        match self {
            DataType::Bool => "BOOL",
            DataType::Uint8 => "UINT8",
            DataType::Uint16 => "UINT16",
            DataType::Uint32 => "UINT32",
            DataType::Uint64 => "UINT64",
            DataType::Int8 => "INT8",
            DataType::Int16 => "INT16",
            DataType::Int32 => "INT32",
            DataType::Int64 => "INT64",
            DataType::Fp16 => "FP16",
            DataType::Bf16 => "BF16",
            DataType::Fp32 => "FP32",
            DataType::Fp64 => "FP64",
            DataType::Bytes(_) => "BYTES",
        }
    }

    /// Returns the type of fixed-size elements with this name, as [`DataType::name`] spells it;
    /// `None` where there is none.
    pub fn parse(name: &str) -> Option<DataType> {
        DataType::ALL.into_iter().find(|datatype| datatype.name() == name)
    }

    /// Returns the size of one element in a row, in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => 1,
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => 2,
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => 4,
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => 8,
            DataType::Bytes(most) => LENGTH_BYTES + most as usize,
        }
    }

    /// Returns the whole number that an element is, of a type of whole numbers or BOOL; `None` for
    /// other types, or where `element` is not [`size_bytes`](DataType::size_bytes) long.
    ///
    /// ```
    /// use symphony_gpu::DataType;
    /// assert_eq!(DataType::Int8.whole_number(&[255]), Some(-1));
    /// assert_eq!(DataType::Bool.whole_number(&[1]), Some(1));
    /// assert_eq!(DataType::Fp32.whole_number(&[0; 4]), None);
    /// ```
    pub fn whole_number(self, element: &[u8]) -> Option<i128> {
        fn read<const N: usize, T: Into<i128>>(element: &[u8], from: fn([u8; N]) -> T) -> Option<i128> {
            Some(from(element.try_into().ok()?).into())
        }
        match self {
            DataType::Bool | DataType::Uint8 => read(element, u8::from_le_bytes),
            DataType::Uint16 => read(element, u16::from_le_bytes),
            DataType::Uint32 => read(element, u32::from_le_bytes),
            DataType::Uint64 => read(element, u64::from_le_bytes),
            DataType::Int8 => read(element, i8::from_le_bytes),
            DataType::Int16 => read(element, i16::from_le_bytes),
            DataType::Int32 => read(element, i32::from_le_bytes),
            DataType::Int64 => read(element, i64::from_le_bytes),
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 | DataType::Bytes(_) => None,
        }
    }

    /// Returns an element of this value in a row's layout; `None` where the type has no such value.
    ///
    /// ```
    /// use symphony_gpu::DataType;
    /// assert_eq!(DataType::Int64.element(16_000.0), Some(16_000_i64.to_le_bytes().to_vec()));
    /// assert_eq!(DataType::Uint8.element(256.0), None);
    /// ```
    pub fn element(self, value: f64) -> Option<Vec<u8>> {
        /// Returns a whole number as the bytes of a type.
        fn whole<T: TryFrom<i128>, const N: usize>(value: f64, bytes: fn(T) -> [u8; N]) -> Option<Vec<u8>> {
            let whole = value as i128;
            (whole as f64 == value).then_some(())?;
            T::try_from(whole).ok().map(|value| bytes(value).to_vec())
        }
        match self {
            DataType::Bool => (value == 0.0 || value == 1.0).then(|| vec![value as u8]),
            DataType::Uint8 => whole(value, u8::to_le_bytes),
            DataType::Uint16 => whole(value, u16::to_le_bytes),
            DataType::Uint32 => whole(value, u32::to_le_bytes),
            DataType::Uint64 => whole(value, u64::to_le_bytes),
            DataType::Int8 => whole(value, i8::to_le_bytes),
            DataType::Int16 => whole(value, i16::to_le_bytes),
            DataType::Int32 => whole(value, i32::to_le_bytes),
            DataType::Int64 => whole(value, i64::to_le_bytes),
            DataType::Fp16 => Some(half::f16::from_f64(value).to_le_bytes().to_vec()),
            DataType::Bf16 => Some(half::bf16::from_f64(value).to_le_bytes().to_vec()),
            DataType::Fp32 => Some((value as f32).to_le_bytes().to_vec()),
            DataType::Fp64 => Some(value.to_le_bytes().to_vec()),
            DataType::Bytes(_) => None,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One input or output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// The tensor's name in the model.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// The shape of one row: the batch dimension, which comes first in the model, is left out where
    /// there is one. Empty where a row is a single element.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Returns the number of elements of a row; `usize::MAX` where the product does not fit.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |product: usize, &dimension| product.saturating_mul(dimension))
    }

    /// Returns the number of bytes of a row; `usize::MAX` where the product does not fit.
    pub fn bytes(&self) -> usize {
        self.elements().saturating_mul(self.datatype.size_bytes())
    }
}

/// The inputs and outputs of a model, in the model's order.
///
/// A row, the input or output of one request, lies in a flat buffer: its tensors in order,
/// row-major, little endian, each starting at a multiple of [`ALIGNMENT`] bytes. A row's length is
/// a multiple of it too, so rows may be put one after another. The bytes between tensors mean
/// nothing.
///
/// ```
/// use symphony_gpu::{DataType, Signature, TensorSpec};
/// let input = |name: &str, shape: &[usize]| TensorSpec {
///     name: name.to_string(),
///     datatype: DataType::Fp32,
///     shape: shape.to_vec(),
/// };
/// let inputs = vec![input("left", &[3]), input("right", &[2, 2])];
/// let signature = Signature::of_rows(inputs, vec![]);
/// assert_eq!(signature.input_range(0), 0..12);
/// assert_eq!(signature.input_range(1), 16..32);
/// assert_eq!(signature.input_bytes(), 32);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// The tensors of a request.
    pub inputs: Vec<TensorSpec>,
    /// The tensors of its answer.
    pub outputs: Vec<TensorSpec>,
    /// False if the model has no batch dimension: then a request is all that a run takes, and the
    /// shapes are those of whole tensors.
    pub has_batch: bool,
    /// True if the model is one of several that are run as one, of which each row says which it is
    /// for: its inputs end with a number, [`Signature::variant_range`].
    pub has_variant: bool,
}

impl Default for Signature {
    /// Returns the signature of a model without tensors.
    fn default() -> Signature {
        Signature::of_rows(Vec::new(), Vec::new())
    }
}

impl Signature {
    /// Returns the signature of a model whose tensors have rows of these specs behind a batch
    /// dimension.
    pub const fn of_rows(inputs: Vec<TensorSpec>, outputs: Vec<TensorSpec>) -> Signature {
        Signature { inputs, outputs, has_batch: true, has_variant: false }
    }

    /// Returns the shape of a tensor with `rows` rows as a run takes or gives it.
    pub fn batch_shape(&self, spec: &TensorSpec, rows: usize) -> Vec<usize> {
        self.has_batch.then_some(rows).into_iter().chain(spec.shape.iter().copied()).collect()
    }

    /// Returns the length of a row of inputs in bytes, with the number of its variant if it has
    /// one.
    pub fn input_bytes(&self) -> usize {
        row_bytes(&self.inputs).saturating_add(if self.has_variant { ALIGNMENT } else { 0 })
    }

    /// Returns the byte range in a row of inputs of the number of its variant, a little-endian
    /// `u32` counted from 0; `None` where the model has no variants.
    pub fn variant_range(&self) -> Option<Range<usize>> {
        let start = row_bytes(&self.inputs);
        self.has_variant.then(|| start..start.saturating_add(size_of::<u32>()))
    }

    /// Returns the variant that a row of inputs is for, 0 where the model has none.
    ///
    /// ```
    /// use symphony_gpu::Signature;
    /// let signature = Signature { has_variant: true, ..Signature::default() };
    /// let mut row = vec![0; signature.input_bytes()];
    /// signature.set_variant(&mut row, 3);
    /// assert_eq!((signature.variant(&row), Signature::default().variant(&row)), (3, 0));
    /// ```
    ///
    /// # Panics
    /// If `input` is shorter than a row of inputs.
    pub fn variant(&self, input: &[u8]) -> u32 {
        let number = self.variant_range().map(|range| input[range].try_into().unwrap_or_default());
        u32::from_le_bytes(number.unwrap_or_default())
    }

    /// Writes the variant that a row of inputs is for, where the model has some.
    ///
    /// # Panics
    /// If `input` is shorter than a row of inputs.
    pub fn set_variant(&self, input: &mut [u8], variant: u32) {
        if let Some(range) = self.variant_range() {
            input[range].copy_from_slice(&variant.to_le_bytes());
        }
    }

    /// Returns the length of a row of outputs in bytes.
    pub fn output_bytes(&self) -> usize {
        row_bytes(&self.outputs)
    }

    /// Returns the byte range of input `index` in a row of inputs.
    ///
    /// # Panics
    /// If there is no such input.
    pub fn input_range(&self, index: usize) -> Range<usize> {
        range(&self.inputs, index)
    }

    /// Returns the byte range of output `index` in a row of outputs.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn output_range(&self, index: usize) -> Range<usize> {
        range(&self.outputs, index)
    }
}

/// Returns the bytes that a tensor takes in a row, the padding after it included.
fn padded(spec: &TensorSpec) -> usize {
    spec.bytes().checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

fn row_bytes(specs: &[TensorSpec]) -> usize {
    specs.iter().fold(0, |total: usize, spec| total.saturating_add(padded(spec)))
}

fn range(specs: &[TensorSpec], index: usize) -> Range<usize> {
    let start = row_bytes(&specs[..index]);
    start..start.saturating_add(specs[index].bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_spec() -> impl Strategy<Value = TensorSpec> {
        let shape = proptest::collection::vec(0usize..6, 0..4);
        (0..DataType::ALL.len(), shape).prop_map(|(datatype, shape)| TensorSpec {
            name: "tensor".to_string(),
            datatype: DataType::ALL[datatype],
            shape,
        })
    }

    proptest! {
        #[test]
        fn tensors_of_a_row_are_aligned_in_order_and_never_overlap(
            specs in proptest::collection::vec(any_spec(), 0..8),
        ) {
            let signature = Signature::of_rows(specs.clone(), specs.clone());
            let mut end = 0;
            for (index, spec) in specs.iter().enumerate() {
                let range = signature.input_range(index);
                prop_assert_eq!(range.start % ALIGNMENT, 0);
                prop_assert!(range.start >= end);
                prop_assert_eq!(range.len(), spec.bytes());
                prop_assert_eq!(&range, &signature.output_range(index));
                end = range.end;
            }
            prop_assert!(signature.input_bytes() >= end && signature.input_bytes() < end + ALIGNMENT);
            prop_assert_eq!(signature.input_bytes() % ALIGNMENT, 0);
            prop_assert_eq!(signature.output_bytes(), signature.input_bytes());
        }
    }

    #[test]
    fn every_type_is_found_by_its_name_and_nothing_else_is() {
        for datatype in DataType::ALL {
            assert_eq!(DataType::parse(datatype.name()), Some(datatype));
            assert!(ALIGNMENT.is_multiple_of(datatype.size_bytes()));
        }
        assert_eq!(DataType::Int64.element(-1.0), Some((-1_i64).to_le_bytes().to_vec()));
        assert_eq!(DataType::Fp16.element(0.5), Some(half::f16::from_f32(0.5).to_le_bytes().to_vec()));
        assert_eq!(DataType::Uint64.element(2_f64.powi(64)), None);
        assert_eq!(DataType::parse("BYTES"), None);
        assert_eq!(DataType::parse("fp32"), None);
    }

    #[test]
    fn a_shape_too_large_to_count_saturates() {
        let spec =
            TensorSpec { name: "huge".to_string(), datatype: DataType::Fp64, shape: vec![usize::MAX, 2] };
        let signature = Signature::of_rows(vec![spec.clone(), spec], vec![]);
        assert_eq!(signature.input_bytes(), usize::MAX);
    }
}
