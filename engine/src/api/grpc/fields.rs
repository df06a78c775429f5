//! The fields of a protobuf message, found without copying or allocating anything: a message is
//! walked, and what it would become is bounded, before any of it is decoded.

use crate::api::problem::Problem;
use std::ops::Range;

/// The longest varint, in bytes.
const MAX_VARINT: usize = 10;

/// One field of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Field {
    /// The field's number.
    pub(super) number: u32,
    /// The field's value.
    pub(super) value: FieldValue,
    /// The place of the whole field in the message.
    pub(super) whole: Range<usize>,
}

/// The value of a field as the wire has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FieldValue {
    /// A number of variable length.
    Varint(u64),
    /// Four or eight bytes, at this place.
    Fixed(Range<usize>),
    /// A string, bytes, a message or a list of numbers, at this place.
    Bytes(Range<usize>),
}

/// Iterates over the fields of a message.
pub(super) struct Fields<'a> {
    message: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Fields<'a> {
    /// Returns the fields of the message at this place. Places in the fields are those in
    /// `message`.
    pub(super) fn within(message: &'a [u8], place: Range<usize>) -> Fields<'a> {
        Fields { message, at: place.start, end: place.end }
    }

    fn varint(&mut self) -> Option<u64> {
        let (value, length) = varint(&self.message[self.at..self.end])?;
        self.at += length;
        Some(value)
    }

    fn bytes(&mut self, length: u64) -> Option<Range<usize>> {
        let end = self.at.checked_add(usize::try_from(length).ok()?).filter(|&end| end <= self.end)?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }

    fn field(&mut self) -> Result<Field, &'static str> {
        const CUT: &str = "a field is cut off";
        let start = self.at;
        let key = self.varint().ok_or(CUT)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or("a field has a number that none can have")?;
        let value = match key & 7 {
            0 => self.varint().map(FieldValue::Varint),
            1 => self.bytes(8).map(FieldValue::Fixed),
            2 => self.varint().and_then(|length| self.bytes(length)).map(FieldValue::Bytes),
            5 => self.bytes(4).map(FieldValue::Fixed),
            _ => return Err("a field is of a type that this service does not have"),
        };
        Ok(Field { number, value: value.ok_or(CUT)?, whole: start..self.at })
    }
}

impl Iterator for Fields<'_> {
    type Item = Result<Field, Problem>;

    fn next(&mut self) -> Option<Result<Field, Problem>> {
        if self.at == self.end {
            return None;
        }
        Some(self.field().map_err(|what| {
            self.at = self.end;
            Problem::bad(format!("the call's message can't be read: {what}"))
        }))
    }
}

/// Returns the varint that `bytes` start with, and its length.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(MAX_VARINT).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            // Of the tenth byte a u64 has room for one bit.
            return (at + 1 < MAX_VARINT || byte < 2).then_some((value, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(message: &[u8]) -> Result<Vec<Field>, String> {
        Fields::within(message, 0..message.len()).collect::<Result<_, _>>().map_err(|problem| problem.message)
    }

    #[test]
    fn fields_are_found_where_they_lie() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4];
        let found = fields(&message).unwrap();
        let expected = [
            (1, FieldValue::Varint(150), 0..3),
            (2, FieldValue::Bytes(5..7), 3..7),
            (3, FieldValue::Fixed(8..12), 7..12),
        ];
        assert_eq!(found, expected.map(|(number, value, whole)| Field { number, value, whole }));
    }

    #[test]
    fn what_is_no_message_is_refused_with_the_reason() {
        for (message, reason) in [
            (&[0x12, 5, 1][..], "cut off"),
            (&[0x08], "cut off"),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], "cut off"),
            (&[0x00, 1], "number"),
            (&[0x0b], "type"),
            (&[0x1d, 1, 2, 3], "cut off"),
        ] {
            let error = fields(message).unwrap_err();
            assert!(error.contains(reason), "{message:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_to_their_end_without_a_panic(
            message in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            if let Ok(found) = fields(&message) {
                prop_assert_eq!(found.iter().map(|field| field.whole.len()).sum::<usize>(), message.len());
            }
        }

        #[test]
        fn numbers_are_read_as_they_were_written(value: u64) {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(value, &mut bytes);
            prop_assert_eq!(varint(&bytes), Some((value, bytes.len())));
        }
    }
}
