//! Elements of BYTES. On the wire one follows another, each after its length in 4 bytes,
//! little-endian; in a row each has the room of the longest, so that a row has a fixed size. Pure.

use crate::api::net::slices::Slices;
use symphony_gpu::signature::LENGTH_BYTES;

/// The elements that are checked between two reports of work: as quick as so many bytes are parsed.
const ELEMENTS_PER_REPORT: usize = 1_024;

/// The work of copying an element beside that of its bytes, in bytes.
const ELEMENT_WORK: usize = 2;

/// Returns the bytes that an element of at most `most` bytes takes in a row.
const fn element_room(most: u32) -> usize {
    LENGTH_BYTES + most as usize
}

/// Appends one element as the wire has it.
pub(in crate::api) fn put(element: &[u8], wire: &mut Vec<u8>) {
    let length = u32::try_from(element.len()).expect("no element is as long as that");
    wire.extend(length.to_le_bytes());
    wire.extend(element);
}

/// Iterates over texts of ASCII, which lie in `wire` in the protocol's binary form.
pub(in crate::api) fn texts(mut wire: &[u8]) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (length, rest) = wire.split_first_chunk::<LENGTH_BYTES>()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        wire = rest;
        str::from_utf8(text).ok()
    })
}

/// Iterates over the elements in rows whose elements have at most `most` bytes.
pub(in crate::api) fn of(rows: &[u8], most: u32) -> impl Iterator<Item = &[u8]> {
    rows.chunks_exact(element_room(most)).map(|slot| {
        let (length, rest) = slot.split_first_chunk::<LENGTH_BYTES>().expect("an element has a length");
        // A length beyond the element's room, by a faulty executor, is cut.
        &rest[..rest.len().min(u32::from_le_bytes(*length) as usize)]
    })
}

/// Checks that `wire` is exactly `count` elements of at most `most` bytes each.
///
/// Errors: there are more or fewer, one is too long, or the last is cut off.
pub(in crate::api) async fn check(
    wire: &[u8],
    count: usize,
    most: u32,
    slices: &Slices,
) -> Result<(), String> {
    let mut rest = wire;
    for at in 0..count {
        if at % ELEMENTS_PER_REPORT == ELEMENTS_PER_REPORT - 1 {
            slices.did(ELEMENTS_PER_REPORT).await;
        }
        let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(|| {
            format!("has {at} elements in its {} bytes, but its shape needs {count}", wire.len())
        })?;
        let length = u32::from_le_bytes(*length);
        if length > most {
            return Err(format!("element {at} has {length} bytes; this tensor's may have {most}"));
        }
        rest = after.get(length as usize..).ok_or_else(|| {
            format!("element {at} should have {length} bytes, but only {} are left", after.len())
        })?;
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(format!("has {} bytes behind the {count} elements that its shape needs", rest.len()))
    }
}

/// Copies the first elements of `wire`, which [`check`] has passed, into `row`, in slices, and
/// returns the rest of `wire`.
pub(in crate::api) async fn fill<'a>(
    mut wire: &'a [u8],
    row: &mut [u8],
    most: u32,
    slices: &Slices,
) -> &'a [u8] {
    for slot in row.chunks_exact_mut(element_room(most)) {
        let (length, after) = wire.split_first_chunk::<LENGTH_BYTES>().expect("its elements were counted");
        let (element, rest) = after.split_at(u32::from_le_bytes(*length) as usize);
        slot[..LENGTH_BYTES].copy_from_slice(length);
        slices.copy(element, &mut slot[LENGTH_BYTES..][..element.len()]).await;
        slices.did(ELEMENT_WORK).await;
        wire = rest;
    }
    wire
}

/// Appends the elements in rows, which have at most `most` bytes each, as the wire has them, in
/// slices.
pub(in crate::api) async fn put_all(rows: &[u8], most: u32, wire: &mut Vec<u8>, slices: &Slices) {
    for element in of(rows, most) {
        wire.extend((element.len() as u32).to_le_bytes());
        slices.append(element, wire).await;
        slices.did(ELEMENT_WORK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::slices::ready_now;
    use proptest::prelude::*;

    fn checked(wire: &[u8], count: usize, most: u32) -> Result<(), String> {
        ready_now(check(wire, count, most, &Slices::alone()))
    }

    fn to_wire(texts: &[&[u8]]) -> Vec<u8> {
        let mut wire = Vec::new();
        texts.iter().for_each(|text| put(text, &mut wire));
        wire
    }

    proptest! {
        #[test]
        fn elements_survive_their_rows(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..9), 0..6),
        ) {
            let wire = to_wire(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            checked(&wire, texts.len(), 8).unwrap();
            let mut row = vec![7; texts.len() * 12];
            prop_assert!(ready_now(fill(&wire, &mut row, 8, &Slices::alone())).is_empty());
            let mut again = Vec::new();
            ready_now(put_all(&row, 8, &mut again, &Slices::alone()));
            prop_assert_eq!(again, wire);
            prop_assert_eq!(of(&row, 8).map(<[u8]>::to_vec).collect::<Vec<_>>(), texts);
        }

        #[test]
        fn any_wire_is_read_or_refused_without_a_panic(
            wire in proptest::collection::vec(any::<u8>(), 0..40), count in 0usize..8, most in 0u32..20,
        ) {
            if checked(&wire, count, most).is_ok() {
                let mut row = vec![0; count * element_room(most)];
                ready_now(fill(&wire, &mut row, most, &Slices::alone()));
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_wire_is_said() {
        let wire = to_wire(&[b"abc", b"de"]);
        for (wire, count, part) in [
            (&wire[..], 3, "has 2 elements in its 13 bytes"),
            (&wire[..], 1, "has 6 bytes behind the 1 elements"),
            (&wire[..12], 2, "only 1 are left"),
            (&to_wire(&[b"abcd"]), 1, "element 0 has 4 bytes; this tensor's may have 3"),
        ] {
            let error = checked(wire, count, 3).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
