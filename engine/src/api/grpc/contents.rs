//! The elements in an input's `contents`, turned into the protocol's binary form. The elements are
//! counted first, so that the memory for them is taken once, and both passes run in slices. Numbers
//! of fixed length already have the binary form, and are not copied if they come in one piece.

use super::fields::{Field, FieldValue, Fields, varint};
use crate::api::inference::bounds::InputFault;
use crate::api::net::large_buffers::shared;
use crate::api::net::memory::ReadBounds;
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, quoted};
use bytes::Bytes;
use hyper::StatusCode;
use std::ops::Range;
use symphony_gpu::signature::LENGTH_BYTES;

/// The bytes that are worked on between two looks at the clock of [`Slices`].
const PIECE: usize = 4_096;

/// The work of one field, in bytes.
const FIELD_WORK: usize = 16;

/// The way in which `InferTensorContents` has the elements of a type.
#[derive(Clone, Copy)]
enum ElementForm {
    /// Varints, of which an element keeps this many bytes if it fits in them.
    Varints(usize, fn(u64) -> Option<u64>),
    /// The bytes of the binary form.
    Fixed,
    /// Strings of bytes.
    Texts,
}

/// Returns the field that has the elements of a type, and their form.
fn field_of(datatype: &str) -> Option<(u32, ElementForm)> {
    Some(match datatype {
        "BOOL" => (1, ElementForm::Varints(1, |bits| Some(u64::from(bits != 0)))),
        "INT8" => (2, ElementForm::Varints(1, |bits| Some(i8::try_from(bits as i32).ok()? as u64))),
        "INT16" => (2, ElementForm::Varints(2, |bits| Some(i16::try_from(bits as i32).ok()? as u64))),
        "INT32" => (2, ElementForm::Varints(4, Some)),
        "INT64" => (3, ElementForm::Varints(8, Some)),
        "UINT8" => (4, ElementForm::Varints(1, |bits| Some(u8::try_from(bits as u32).ok()?.into()))),
        "UINT16" => (4, ElementForm::Varints(2, |bits| Some(u16::try_from(bits as u32).ok()?.into()))),
        "UINT32" => (4, ElementForm::Varints(4, Some)),
        "UINT64" => (5, ElementForm::Varints(8, Some)),
        "FP32" => (6, ElementForm::Fixed),
        "FP64" => (7, ElementForm::Fixed),
        "BYTES" => (8, ElementForm::Texts),
        _ => return None,
    })
}

/// Returns the elements of type `datatype` in the `InferTensorContents` at `place` of `message`, in
/// at most `limit` bytes, which are counted in `bounds`.
///
/// Errors: they are no such message, do not fit in the type or the limit, or there is no memory.
pub(super) async fn elements(
    message: &Bytes,
    place: Range<usize>,
    datatype: &str,
    limit: usize,
    bounds: &mut ReadBounds,
) -> Result<Bytes, InputFault> {
    let Some((number, form)) = field_of(datatype) else {
        let other = quoted(datatype);
        let what = format!("elements of type {other} have no field in contents; use raw_input_contents");
        return Err(InputFault::Invalid(what));
    };
    let ReadBounds { memory, slices, .. } = bounds;
    let reading = ContentsReader { message, place, number, form, slices };
    let size = reading.size().await?;
    if size.bytes > limit {
        let message = format!("the elements in contents take {} bytes; the limit is {limit}", size.bytes);
        return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message).into());
    }
    if let (ElementForm::Fixed, Some(whole)) = (form, size.whole) {
        return Ok(message.slice(whole));
    }
    memory.grow(size.bytes)?;
    let mut wire = Vec::with_capacity(size.bytes);
    match reading.write(&mut wire).await? {
        true => Ok(shared(wire)),
        false => Err(InputFault::Invalid(format!("an element in contents does not fit in {datatype}"))),
    }
}

/// The size of elements in the binary form.
#[derive(Default)]
struct ContentsSize {
    bytes: usize,
    /// The place of the elements, if they lie in one piece.
    whole: Option<Range<usize>>,
}

struct ContentsReader<'a> {
    message: &'a [u8],
    place: Range<usize>,
    number: u32,
    form: ElementForm,
    slices: &'a Slices,
}

impl ContentsReader<'_> {
    /// Iterates over the fields with elements; others are passed over.
    fn fields(&self) -> impl Iterator<Item = Result<Field, Problem>> {
        let fields = Fields::within(self.message, self.place.clone());
        fields.filter(|field| field.as_ref().map_or(true, |field| field.number == self.number))
    }

    async fn size(&self) -> Result<ContentsSize, Problem> {
        let mut size = ContentsSize::default();
        for field in self.fields() {
            self.slices.did(FIELD_WORK).await;
            let before = size.bytes;
            let value = field?.value;
            size.bytes += match (self.form, &value) {
                (ElementForm::Varints(width, _), FieldValue::Varint(_)) => width,
                (ElementForm::Varints(width, _), FieldValue::Bytes(place)) => {
                    width * self.count(place.clone()).await
                }
                (ElementForm::Fixed, FieldValue::Fixed(place) | FieldValue::Bytes(place)) => place.len(),
                (ElementForm::Texts, FieldValue::Bytes(place)) => LENGTH_BYTES + place.len(),
                _ => return Err(mistyped(self.number)),
            };
            size.whole = match value {
                FieldValue::Bytes(place) | FieldValue::Fixed(place) if before == 0 => Some(place),
                _ => None,
            };
        }
        Ok(size)
    }

    /// Returns the number of varints at `place`: each has one byte without the highest bit.
    async fn count(&self, place: Range<usize>) -> usize {
        let mut count = 0;
        for piece in self.message[place].chunks(PIECE) {
            count += piece.iter().filter(|&&byte| byte < 0x80).count();
            self.slices.did(piece.len() / 8).await;
        }
        count
    }

    /// Appends all elements; returns false if one does not fit.
    async fn write(&self, wire: &mut Vec<u8>) -> Result<bool, Problem> {
        for field in self.fields() {
            self.slices.did(FIELD_WORK).await;
            match (self.form, field?.value) {
                (ElementForm::Varints(width, fit), FieldValue::Varint(bits)) => {
                    let Some(bits) = fit(bits) else { return Ok(false) };
                    wire.extend_from_slice(&bits.to_le_bytes()[..width]);
                }
                (ElementForm::Varints(width, fit), FieldValue::Bytes(place)) => {
                    if !self.varints(place, width, fit, wire).await? {
                        return Ok(false);
                    }
                }
                (ElementForm::Fixed, FieldValue::Fixed(place) | FieldValue::Bytes(place)) => {
                    self.copy(place, wire).await;
                }
                (ElementForm::Texts, FieldValue::Bytes(place)) => {
                    // A field is shorter than its message, whose length has 32 bits.
                    wire.extend_from_slice(&(place.len() as u32).to_le_bytes());
                    self.copy(place, wire).await;
                }
                _ => return Err(mistyped(self.number)),
            }
        }
        Ok(true)
    }

    async fn varints(
        &self,
        place: Range<usize>,
        width: usize,
        fit: fn(u64) -> Option<u64>,
        wire: &mut Vec<u8>,
    ) -> Result<bool, Problem> {
        let (mut at, mut reported) = (place.start, place.start);
        while at < place.end {
            let cut = || Problem::bad("the call's message can't be read: a number in contents is cut off");
            let (bits, length) = varint(&self.message[at..place.end]).ok_or_else(cut)?;
            let Some(bits) = fit(bits) else { return Ok(false) };
            wire.extend_from_slice(&bits.to_le_bytes()[..width]);
            at += length;
            if at - reported >= PIECE {
                self.slices.did(at - reported).await;
                reported = at;
            }
        }
        Ok(true)
    }

    async fn copy(&self, place: Range<usize>, wire: &mut Vec<u8>) {
        for piece in self.message[place].chunks(16 * PIECE) {
            wire.extend_from_slice(piece);
            self.slices.did(piece.len() / 16).await;
        }
    }
}

fn mistyped(number: u32) -> Problem {
    Problem::bad(format!("the call's message can't be read: field {number} of contents has another type"))
}
