//! The conversion of a batch's rows between the protocol's bytes and rten's tensors. Where both
//! have the same elements a row is one copy; elsewhere each element is converted.

use crate::signature::{DataType, TensorSpec};
use half::f16;
use rten::{Value, ValueType, ValueView};
use rten_tensor::TensorView;
use std::ops::Range;

const _: () = assert!(cfg!(target_endian = "little"), "rows are little endian and are copied as they are");

/// The types that rten computes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Carrier {
    F32,
    I32,
    I8,
    U8,
}

impl Carrier {
    /// Returns the carrier of elements of this type; `None` where there is none.
    pub(super) fn for_datatype(datatype: DataType) -> Option<Carrier> {
        match datatype {
            DataType::Fp32 | DataType::Fp64 | DataType::Fp16 => Some(Carrier::F32),
            DataType::Int32 | DataType::Int64 | DataType::Bool => Some(Carrier::I32),
            DataType::Int8 => Some(Carrier::I8),
            DataType::Uint8 => Some(Carrier::U8),
            _ => None,
        }
    }

    /// Returns the carrier of an rten value; `None` for sequences.
    pub(super) fn of(value: ValueType) -> Option<Carrier> {
        match value {
            ValueType::Tensor(rten::DataType::Float) => Some(Carrier::F32),
            ValueType::Tensor(rten::DataType::Int32) => Some(Carrier::I32),
            ValueType::Tensor(rten::DataType::Int8) => Some(Carrier::I8),
            ValueType::Tensor(rten::DataType::UInt8) => Some(Carrier::U8),
            _ => None,
        }
    }

    /// Returns the type whose elements need no conversion.
    pub(super) fn own_datatype(self) -> DataType {
        match self {
            Carrier::F32 => DataType::Fp32,
            Carrier::I32 => DataType::Int32,
            Carrier::I8 => DataType::Int8,
            Carrier::U8 => DataType::Uint8,
        }
    }

    /// Lists the types that have a carrier, for error messages.
    pub(super) fn supported() -> String {
        let carried = DataType::ALL.into_iter().filter(|&datatype| Carrier::for_datatype(datatype).is_some());
        carried.map(DataType::name).collect::<Vec<_>>().join(", ")
    }
}

/// One input of a full batch, row after row.
pub(super) enum InputBuffer {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I8(Vec<i8>),
    U8(Vec<u8>),
}

impl InputBuffer {
    /// Makes `max_batch` rows of `spec`, all zero. Its type must have a carrier.
    pub(super) fn new(spec: &TensorSpec, max_batch: usize) -> InputBuffer {
        let len = spec.elements() * max_batch;
        match Carrier::for_datatype(spec.datatype) {
            Some(Carrier::F32) => InputBuffer::F32(vec![0.0; len]),
            Some(Carrier::I32) => InputBuffer::I32(vec![0; len]),
            Some(Carrier::I8) => InputBuffer::I8(vec![0; len]),
            Some(Carrier::U8) => InputBuffer::U8(vec![0; len]),
            None => unreachable!("loading refuses {}", spec.datatype),
        }
    }

    /// Fills row `row` from the bytes of one tensor.
    pub(super) fn stage(&mut self, row: usize, spec: &TensorSpec, from: &[u8]) {
        let elements = spec.elements();
        let range = row * elements..(row + 1) * elements;
        match (self, spec.datatype) {
            (InputBuffer::F32(to), DataType::Fp64) => {
                read_each(&mut to[range], from, |bytes| f64::from_le_bytes(bytes) as f32);
            }
            (InputBuffer::F32(to), DataType::Fp16) => {
                read_each(&mut to[range], from, |bytes| f16::from_le_bytes(bytes).to_f32());
            }
            (InputBuffer::I32(to), DataType::Int64) => read_each(&mut to[range], from, saturated),
            (InputBuffer::I32(to), DataType::Bool) => {
                read_each(&mut to[range], from, |[byte]: [u8; 1]| i32::from(byte != 0));
            }
            (InputBuffer::F32(to), _) => bytemuck::cast_slice_mut(&mut to[range]).copy_from_slice(from),
            (InputBuffer::I32(to), _) => bytemuck::cast_slice_mut(&mut to[range]).copy_from_slice(from),
            (InputBuffer::I8(to), _) => bytemuck::cast_slice_mut(&mut to[range]).copy_from_slice(from),
            (InputBuffer::U8(to), _) => to[range].copy_from_slice(from),
        }
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            InputBuffer::F32(buffer) => size_of_val(buffer.as_slice()),
            InputBuffer::I32(buffer) => size_of_val(buffer.as_slice()),
            InputBuffer::I8(buffer) => buffer.len(),
            InputBuffer::U8(buffer) => buffer.len(),
        }
    }

    /// Returns the first rows as a tensor of `shape`, whose first dimension is at most
    /// `max_batch`.
    pub(super) fn view(&self, shape: &[usize]) -> ValueView<'_> {
        match self {
            InputBuffer::F32(buffer) => tensor(shape, buffer).into(),
            InputBuffer::I32(buffer) => tensor(shape, buffer).into(),
            InputBuffer::I8(buffer) => tensor(shape, buffer).into(),
            InputBuffer::U8(buffer) => tensor(shape, buffer).into(),
        }
    }
}

fn tensor<'a, T>(shape: &[usize], buffer: &'a [T]) -> TensorView<'a, T> {
    let len = shape.iter().product();
    TensorView::from_data(shape, &buffer[..len])
}

/// Returns some rows of an output that [`contiguous`] has returned, as a tensor of `shape`, whose
/// first dimension is their number.
pub(super) fn rows_of<'a>(value: &'a Value, range: Range<usize>, shape: &[usize]) -> ValueView<'a> {
    let elements = shape.iter().skip(1).product::<usize>();
    let range = range.start * elements..range.end * elements;
    match value.as_view() {
        ValueView::FloatTensor(from) => tensor(shape, &rows(&from)[range]).into(),
        ValueView::Int32Tensor(from) => tensor(shape, &rows(&from)[range]).into(),
        ValueView::Int8Tensor(from) => tensor(shape, &rows(&from)[range]).into(),
        ValueView::UInt8Tensor(from) => tensor(shape, &rows(&from)[range]).into(),
        other => unreachable!("a run refuses outputs of type {}", other.dtype()),
    }
}

/// Copies row `row` of an output that [`contiguous`] has returned into the bytes of one tensor.
pub(super) fn unstage(value: &Value, row: usize, spec: &TensorSpec, to: &mut [u8]) {
    let elements = spec.elements();
    let range = row * elements..(row + 1) * elements;
    match (value.as_view(), spec.datatype) {
        (ValueView::FloatTensor(from), DataType::Fp64) => {
            write_each(&rows(&from)[range], to, |x: f32| f64::from(x).to_le_bytes());
        }
        (ValueView::FloatTensor(from), DataType::Fp16) => {
            write_each(&rows(&from)[range], to, |x| f16::from_f32(x).to_le_bytes());
        }
        (ValueView::Int32Tensor(from), DataType::Int64) => {
            write_each(&rows(&from)[range], to, |x: i32| i64::from(x).to_le_bytes());
        }
        (ValueView::Int32Tensor(from), DataType::Bool) => {
            write_each(&rows(&from)[range], to, |x| [u8::from(x != 0)]);
        }
        (ValueView::FloatTensor(from), _) => to.copy_from_slice(bytemuck::cast_slice(&rows(&from)[range])),
        (ValueView::Int32Tensor(from), _) => to.copy_from_slice(bytemuck::cast_slice(&rows(&from)[range])),
        (ValueView::Int8Tensor(from), _) => to.copy_from_slice(bytemuck::cast_slice(&rows(&from)[range])),
        (ValueView::UInt8Tensor(from), _) => to.copy_from_slice(&rows(&from)[range]),
        (other, _) => unreachable!("a run refuses outputs of type {}", other.dtype()),
    }
}

/// Returns the value with its elements in row-major order: an operator that only transposes does
/// not move them.
pub(super) fn contiguous(value: Value) -> Value {
    match value {
        Value::FloatTensor(mut tensor) => {
            tensor.make_contiguous();
            tensor.into()
        }
        Value::Int32Tensor(mut tensor) => {
            tensor.make_contiguous();
            tensor.into()
        }
        Value::Int8Tensor(mut tensor) => {
            tensor.make_contiguous();
            tensor.into()
        }
        Value::UInt8Tensor(mut tensor) => {
            tensor.make_contiguous();
            tensor.into()
        }
        other => other,
    }
}

fn rows<'a, T>(tensor: &TensorView<'a, T>) -> &'a [T] {
    tensor.data().expect("outputs are made contiguous after each run")
}

fn read_each<T, const SIZE: usize>(to: &mut [T], from: &[u8], convert: impl Fn([u8; SIZE]) -> T) {
    let (chunks, rest) = from.as_chunks::<SIZE>();
    assert!(rest.is_empty() && chunks.len() == to.len(), "a row of another length than its tensor");
    for (element, &bytes) in to.iter_mut().zip(chunks) {
        *element = convert(bytes);
    }
}

fn write_each<T: Copy, const SIZE: usize>(from: &[T], to: &mut [u8], convert: impl Fn(T) -> [u8; SIZE]) {
    let (chunks, rest) = to.as_chunks_mut::<SIZE>();
    assert!(rest.is_empty() && chunks.len() == from.len(), "a row of another length than its tensor");
    for (bytes, &element) in chunks.iter_mut().zip(from) {
        *bytes = convert(element);
    }
}

fn saturated(bytes: [u8; 8]) -> i32 {
    i64::from_le_bytes(bytes).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32
}
