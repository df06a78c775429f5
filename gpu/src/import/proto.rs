//! The fields of a protocol buffer message as they lie in its bytes: read, changed and written
//! again, with those that nobody here knows.

use std::borrow::Cow;

/// The content of a field.
enum ProtoValue<'a> {
    Varint(u64),
    Fixed64(&'a [u8]),
    Bytes(Cow<'a, [u8]>),
    Fixed32(&'a [u8]),
}

/// A message as its fields, in the order of its bytes.
#[derive(Default)]
pub(super) struct ProtoMessage<'a> {
    fields: Vec<(u64, ProtoValue<'a>)>,
}

impl<'a> ProtoMessage<'a> {
    /// Reads the fields; `None` where the bytes are no whole message.
    pub(super) fn parse(mut bytes: &'a [u8]) -> Option<ProtoMessage<'a>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let value = match tag & 7 {
                0 => ProtoValue::Varint(varint(&mut bytes)?),
                1 => ProtoValue::Fixed64(bytes.split_off(..8)?),
                2 => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    ProtoValue::Bytes(Cow::Borrowed(bytes.split_off(..length)?))
                }
                5 => ProtoValue::Fixed32(bytes.split_off(..4)?),
                _ => return None,
            };
            fields.push((tag >> 3, value));
        }
        Some(ProtoMessage { fields })
    }

    /// Writes the fields.
    pub(super) fn encode(&self) -> Vec<u8> {
        let content =
            |value: &ProtoValue<'_>| if let ProtoValue::Bytes(bytes) = value { bytes.len() } else { 0 };
        let mut out = Vec::with_capacity(self.fields.iter().map(|(_, value)| content(value) + 12).sum());
        for (number, value) in &self.fields {
            let (kind, rest): (u64, &[u8]) = match value {
                ProtoValue::Varint(_) => (0, &[]),
                ProtoValue::Fixed64(bytes) => (1, bytes),
                ProtoValue::Bytes(bytes) => (2, bytes),
                ProtoValue::Fixed32(bytes) => (5, bytes),
            };
            put_varint(number << 3 | kind, &mut out);
            match value {
                ProtoValue::Varint(value) => put_varint(*value, &mut out),
                ProtoValue::Bytes(bytes) => put_varint(bytes.len() as u64, &mut out),
                _ => {}
            }
            out.extend_from_slice(rest);
        }
        out
    }

    /// Returns the contents of the fields of this number that have bytes.
    pub(super) fn contents(&self, number: u64) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().filter_map(move |(of, value)| match value {
            ProtoValue::Bytes(bytes) if *of == number => Some(&**bytes),
            _ => None,
        })
    }

    /// Iterates over the fields that have bytes, with their numbers.
    pub(super) fn all_contents(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.fields.iter().filter_map(|(number, value)| match value {
            ProtoValue::Bytes(bytes) => Some((*number, &**bytes)),
            _ => None,
        })
    }

    /// Returns true if the bytes are numbers of variable length, one after another.
    pub(super) fn is_varints(mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if varint(&mut bytes).is_none() {
                return false;
            }
        }
        true
    }

    /// Changes the message that is the `at`th content of a field; `None` where there is none.
    pub(super) fn change<R>(
        &mut self,
        number: u64,
        at: usize,
        change: impl FnOnce(&mut ProtoMessage<'_>) -> Option<R>,
    ) -> Option<R> {
        let content = self.content_mut(number, at)?;
        let mut message = ProtoMessage::parse(content)?;
        let changed = change(&mut message)?;
        let encoded = message.encode();
        *content = Cow::Owned(encoded);
        Some(changed)
    }

    /// Changes the message that is the only content of a field; `None` where there are none or
    /// several.
    pub(super) fn change_only<R>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut ProtoMessage<'_>) -> Option<R>,
    ) -> Option<R> {
        if self.contents(number).count() == 1 { self.change(number, 0, change) } else { None }
    }

    /// Replaces the `at`th content of a field.
    pub(super) fn replace(&mut self, number: u64, at: usize, bytes: Vec<u8>) -> Option<()> {
        *self.content_mut(number, at)? = Cow::Owned(bytes);
        Some(())
    }

    /// Puts these contents in the place of the `at`th of a field; `None` where there is none.
    pub(super) fn splice(&mut self, number: u64, at: usize, contents: Vec<Vec<u8>>) -> Option<()> {
        let is_content =
            |(of, value): &(u64, ProtoValue<'_>)| *of == number && matches!(value, ProtoValue::Bytes(_));
        let (place, _) = self.fields.iter().enumerate().filter(|(_, field)| is_content(field)).nth(at)?;
        let new = contents.into_iter().map(|bytes| (number, ProtoValue::Bytes(Cow::Owned(bytes))));
        drop(self.fields.splice(place..=place, new));
        Some(())
    }

    /// Puts these contents of a field in front of all fields.
    pub(super) fn put_in_front(&mut self, number: u64, contents: Vec<Vec<u8>>) {
        let new = contents.into_iter().map(|bytes| (number, ProtoValue::Bytes(Cow::Owned(bytes))));
        drop(self.fields.splice(..0, new));
    }

    /// Keeps of a field the contents for whose index `keep` is true.
    pub(super) fn retain(&mut self, number: u64, keep: impl Fn(usize) -> bool) {
        let mut at = 0..;
        self.fields.retain(|(of, _)| *of != number || at.next().is_some_and(&keep));
    }

    /// Sets a field to this number, whatever it was, and puts it in front.
    pub(super) fn set_number(&mut self, number: u64, value: u64) {
        self.retain(number, |_| false);
        self.fields.insert(0, (number, ProtoValue::Varint(value)));
    }

    /// Adds a field of a number.
    pub(super) fn push_number(&mut self, number: u64, value: u64) {
        self.fields.push((number, ProtoValue::Varint(value)));
    }

    /// Adds a field of bytes: a text or a message.
    pub(super) fn push(&mut self, number: u64, bytes: Vec<u8>) {
        self.fields.push((number, ProtoValue::Bytes(Cow::Owned(bytes))));
    }

    fn content_mut(&mut self, number: u64, at: usize) -> Option<&mut Cow<'a, [u8]>> {
        let mut contents = self.fields.iter_mut().filter_map(|(of, value)| match value {
            ProtoValue::Bytes(bytes) if *of == number => Some(bytes),
            _ => None,
        });
        contents.nth(at)
    }
}

/// Takes a number of variable length from the front of the bytes.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_can_be_read_is_written_as_it_was(
            fields in prop::collection::vec((1u64..1 << 29, 0usize..4, any::<u64>(), any::<Vec<u8>>()), 0..8)
        ) {
            let eight = [1; 8];
            let fields = fields.into_iter().map(|(number, kind, value, bytes)| match kind {
                0 => (number, ProtoValue::Varint(value)),
                1 => (number, ProtoValue::Fixed64(&eight)),
                2 => (number, ProtoValue::Bytes(Cow::Owned(bytes))),
                _ => (number, ProtoValue::Fixed32(&eight[..4])),
            });
            let bytes = ProtoMessage { fields: fields.collect() }.encode();
            prop_assert_eq!(ProtoMessage::parse(&bytes).unwrap().encode(), bytes);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = ProtoMessage::parse(&bytes);
        }
    }

    #[test]
    fn a_message_within_is_changed_and_its_neighbours_are_kept() {
        let mut message = ProtoMessage::default();
        message.push(1, vec![8, 1]);
        message.push(2, b"unknown".to_vec());
        message.push(1, vec![8, 2]);
        message
            .change(1, 1, |within| {
                within.set_number(1, 300);
                Some(())
            })
            .unwrap();
        let contents: Vec<&[u8]> = message.contents(1).collect();
        assert_eq!(contents, [&[8, 1][..], &[8, 0xAC, 2]]);
        assert!(message.change(1, 2, |_| Some(())).is_none(), "there are two");
        message.retain(1, |at| at == 1);
        assert_eq!(message.contents(1).count(), 1);
        assert_eq!(message.contents(2).next(), Some(&b"unknown"[..]));
    }
}
