//! One tensor of a batch as ONNX Runtime takes and gives it. The elements are those of the
//! protocol, so a row is one copy.

use crate::signature::{DataType, LENGTH_BYTES, Signature, TensorSpec};
use bytemuck::{AnyBitPattern, NoUninit};
use half::{bf16, f16};
use ort::session::SessionInputValue;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor, TensorElementType, TensorRef};
use std::ops::Range;

const _: () = assert!(cfg!(target_endian = "little"), "rows are little endian and are copied as they are");

/// Returns the protocol's type of these elements; `None` where there is none that is supported.
/// Strings have room for `text_bytes`.
pub(super) fn datatype(element: TensorElementType, text_bytes: u32) -> Option<DataType> {
    let datatype = match element {
        TensorElementType::String => DataType::Bytes(text_bytes),
        TensorElementType::Bool => DataType::Bool,
        TensorElementType::Uint8 => DataType::Uint8,
        TensorElementType::Uint16 => DataType::Uint16,
        TensorElementType::Uint32 => DataType::Uint32,
        TensorElementType::Uint64 => DataType::Uint64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Float16 => DataType::Fp16,
        TensorElementType::Bfloat16 => DataType::Bf16,
        TensorElementType::Float32 => DataType::Fp32,
        TensorElementType::Float64 => DataType::Fp64,
        _ => return None,
    };
    Some(datatype)
}

/// Returns the library's type of these elements; `None` for strings, which are no plain memory.
pub(super) fn element_type(datatype: DataType) -> Option<TensorElementType> {
    let element = match datatype {
        DataType::Bytes(_) => return None,
        DataType::Bool => TensorElementType::Bool,
        DataType::Uint8 => TensorElementType::Uint8,
        DataType::Uint16 => TensorElementType::Uint16,
        DataType::Uint32 => TensorElementType::Uint32,
        DataType::Uint64 => TensorElementType::Uint64,
        DataType::Int8 => TensorElementType::Int8,
        DataType::Int16 => TensorElementType::Int16,
        DataType::Int32 => TensorElementType::Int32,
        DataType::Int64 => TensorElementType::Int64,
        DataType::Fp16 => TensorElementType::Float16,
        DataType::Bf16 => TensorElementType::Bfloat16,
        DataType::Fp32 => TensorElementType::Float32,
        DataType::Fp64 => TensorElementType::Float64,
    };
    Some(element)
}

/// The rows of one tensor of a full batch.
pub(super) struct RowBuffer {
    /// Aligned for every element.
    words: Vec<u64>,
    row_bytes: usize,
    datatype: DataType,
    /// The shape, of which each run sets the first dimension where that is the batch's.
    shape: Vec<i64>,
    has_batch: bool,
}

impl RowBuffer {
    /// Makes `max_batch` rows of `spec`, a tensor of `signature`, all zero.
    pub(super) fn new(spec: &TensorSpec, signature: &Signature, max_batch: usize) -> RowBuffer {
        let row_bytes = spec.bytes();
        let words = vec![0; (row_bytes * max_batch).div_ceil(size_of::<u64>())];
        let shape = signature.batch_shape(spec, 1).into_iter().map(|size| size as i64).collect();
        RowBuffer { words, row_bytes, datatype: spec.datatype, shape, has_batch: signature.has_batch }
    }

    /// Returns a row's bytes.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[row * self.row_bytes..][..self.row_bytes]
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.words.as_slice())
    }

    /// Fills a row.
    pub(super) fn stage(&mut self, row: usize, from: &[u8]) {
        let to = &mut bytemuck::cast_slice_mut(&mut self.words)[row * self.row_bytes..][..self.row_bytes];
        if self.datatype == DataType::Bool {
            to.iter_mut().zip(from).for_each(|(to, &from)| *to = u8::from(from != 0));
        } else {
            to.copy_from_slice(from);
        }
    }

    /// Returns the first `rows` rows as an input of a run.
    pub(super) fn input(&mut self, rows: usize) -> ort::Result<SessionInputValue<'_>> {
        if self.has_batch {
            self.shape[0] = rows as i64;
        }
        let bytes = &bytemuck::cast_slice::<u64, u8>(&self.words)[..rows * self.row_bytes];
        match self.datatype {
            DataType::Bool => {
                // `stage` writes nothing else than 0 and 1.
                let elements: &[bool] = bytemuck::checked::try_cast_slice(bytes).unwrap_or_default();
                Ok(TensorRef::from_array_view((self.shape.clone(), elements))?.into())
            }
            DataType::Bytes(most) => {
                let rooms = bytes.chunks_exact(LENGTH_BYTES + most as usize);
                let elements = rooms.map(|room| text(room).map(str::to_owned));
                let elements = elements.collect::<ort::Result<Vec<String>>>()?;
                Ok(Tensor::from_string_array((self.shape.clone(), elements.as_slice()))?.into())
            }
            DataType::Uint8 => view::<u8>(&self.shape, bytes),
            DataType::Uint16 => view::<u16>(&self.shape, bytes),
            DataType::Uint32 => view::<u32>(&self.shape, bytes),
            DataType::Uint64 => view::<u64>(&self.shape, bytes),
            DataType::Int8 => view::<i8>(&self.shape, bytes),
            DataType::Int16 => view::<i16>(&self.shape, bytes),
            DataType::Int32 => view::<i32>(&self.shape, bytes),
            DataType::Int64 => view::<i64>(&self.shape, bytes),
            DataType::Fp16 => view::<f16>(&self.shape, bytes),
            DataType::Bf16 => view::<bf16>(&self.shape, bytes),
            DataType::Fp32 => view::<f32>(&self.shape, bytes),
            DataType::Fp64 => view::<f64>(&self.shape, bytes),
        }
    }

    /// Copies the first `rows` rows of an output of a run.
    pub(super) fn take(&mut self, rows: usize, from: &DynValue) -> ort::Result<()> {
        let to = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut self.words)[..rows * self.row_bytes];
        match self.datatype {
            DataType::Bool => {
                let (_, elements) = from.try_extract_tensor::<bool>()?;
                to.iter_mut().zip(elements).for_each(|(to, &from)| *to = u8::from(from));
                Ok(())
            }
            DataType::Bytes(most) => {
                let (_, texts) = from.try_extract_strings()?;
                let rooms = to.chunks_exact_mut(LENGTH_BYTES + most as usize);
                rooms.zip(&texts).try_for_each(|(room, text)| put_text(room, text, most))
            }
            DataType::Uint8 => copy::<u8>(from, to),
            DataType::Uint16 => copy::<u16>(from, to),
            DataType::Uint32 => copy::<u32>(from, to),
            DataType::Uint64 => copy::<u64>(from, to),
            DataType::Int8 => copy::<i8>(from, to),
            DataType::Int16 => copy::<i16>(from, to),
            DataType::Int32 => copy::<i32>(from, to),
            DataType::Int64 => copy::<i64>(from, to),
            DataType::Fp16 => copy::<f16>(from, to),
            DataType::Bf16 => copy::<bf16>(from, to),
            DataType::Fp32 => copy::<f32>(from, to),
            DataType::Fp64 => copy::<f64>(from, to),
        }
    }
}

/// Returns some rows of an output of a run as an input of another, of this shape.
///
/// Errors: they are strings, which are no plain memory.
pub(super) fn rows_of<'a>(
    value: &'a DynValue,
    datatype: DataType,
    shape: &[usize],
    rows: Range<usize>,
) -> ort::Result<SessionInputValue<'a>> {
    match datatype {
        DataType::Bool => part::<bool>(value, shape, rows),
        DataType::Uint8 => part::<u8>(value, shape, rows),
        DataType::Uint16 => part::<u16>(value, shape, rows),
        DataType::Uint32 => part::<u32>(value, shape, rows),
        DataType::Uint64 => part::<u64>(value, shape, rows),
        DataType::Int8 => part::<i8>(value, shape, rows),
        DataType::Int16 => part::<i16>(value, shape, rows),
        DataType::Int32 => part::<i32>(value, shape, rows),
        DataType::Int64 => part::<i64>(value, shape, rows),
        DataType::Fp16 => part::<f16>(value, shape, rows),
        DataType::Bf16 => part::<bf16>(value, shape, rows),
        DataType::Fp32 => part::<f32>(value, shape, rows),
        DataType::Fp64 => part::<f64>(value, shape, rows),
        DataType::Bytes(_) => Err(ort::Error::new("the shared layers give strings, which are not shared")),
    }
}

fn part<'a, T>(value: &'a DynValue, shape: &[usize], rows: Range<usize>) -> ort::Result<SessionInputValue<'a>>
where
    T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static,
{
    let (_, elements) = value.try_extract_tensor::<T>()?;
    let row = shape.iter().skip(1).product::<usize>();
    let own = &elements[rows.start * row..rows.end * row];
    Ok(TensorRef::from_array_view((shape.to_vec(), own))?.into())
}

/// Returns the text in an element's room.
///
/// Errors: it is no UTF-8, which ONNX Runtime's strings are.
fn text(room: &[u8]) -> ort::Result<&str> {
    let (length, rest) = room.split_at(LENGTH_BYTES);
    let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
    str::from_utf8(&rest[..length.min(rest.len())])
        .map_err(|error| ort::Error::new(format!("an element of BYTES is no UTF-8: {error}")))
}

/// Writes a text into an element's room, which ends in zeros.
///
/// Errors: the text is longer than `most` bytes.
fn put_text(room: &mut [u8], text: &str, most: u32) -> ort::Result<()> {
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= most).ok_or_else(|| {
        let bytes = text.len();
        ort::Error::new(format!("an element of an output has {bytes} bytes; set max_bytes, which is {most}"))
    })?;
    room.fill(0);
    room[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    room[LENGTH_BYTES..][..text.len()].copy_from_slice(text.as_bytes());
    Ok(())
}

fn view<'a, T>(shape: &[i64], bytes: &'a [u8]) -> ort::Result<SessionInputValue<'a>>
where
    T: PrimitiveTensorElementType + AnyBitPattern + NoUninit + std::fmt::Debug,
{
    let elements: &'a [T] = bytemuck::cast_slice(bytes);
    Ok(TensorRef::from_array_view((shape.to_vec(), elements))?.into())
}

fn copy<T: PrimitiveTensorElementType + NoUninit>(from: &DynValue, to: &mut [u8]) -> ort::Result<()> {
    let (_, elements) = from.try_extract_tensor::<T>()?;
    // The caller has compared the shapes.
    to.copy_from_slice(bytemuck::cast_slice(elements));
    Ok(())
}
