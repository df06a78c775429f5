//! gzip and deflate, of requests and of answers, in both protocols. The unpacked size is bounded
//! and counted while it grows, so that a small body can't become a large one, and a large one is
//! unpacked in slices, between which other requests are served.

use super::large_buffers::{self, LARGE};
use super::memory::{MemoryLease, ReadBounds};
use super::slices::Slices;
use crate::api::problem::{Problem, quoted};
use bytes::Bytes;
use flate2::write::{GzDecoder, GzEncoder, ZlibEncoder};
use flate2::{Compression, Decompress, FlushDecompress, Status};
use hyper::StatusCode;
use std::io::Write;

/// The most packed bytes that are unpacked at a time.
const PIECE: usize = 32 << 10;

/// The bytes that are packed at a time: packing takes many times longer than unpacking.
const PACKED_PIECE: usize = 4 << 10;

/// The most members of a gzip file. Each costs some memory and time of its own, however small.
pub(in crate::api) const MAX_MEMBERS: usize = 16_384;

/// The work of starting a member, in bytes of unpacking.
const MEMBER_WORK: usize = 4_096;

/// A supported form of compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, which both protocols call deflate.
    Deflate,
}

impl Coding {
    /// Returns the coding that a header names, in any case; `None` for no compression.
    ///
    /// Errors: 415 for any other name.
    pub(in crate::api) fn named(name: &[u8]) -> Result<Option<Coding>, Problem> {
        match name.trim_ascii().to_ascii_lowercase().as_slice() {
            b"" | b"identity" => Ok(None),
            b"gzip" | b"x-gzip" => Ok(Some(Coding::Gzip)),
            b"deflate" => Ok(Some(Coding::Deflate)),
            _ => {
                let is = quoted(&String::from_utf8_lossy(name));
                let message = format!("the body is compressed as {is}; gzip, deflate and identity are read");
                Err(Problem::invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
            }
        }
    }

    /// Returns the coding for an answer, out of those that a client lists as acceptable: gzip
    /// first.
    pub(in crate::api) fn acceptable(list: &str) -> Option<Coding> {
        let accepts = |name: &str| {
            list.split(',').any(|item| {
                let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
                let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
                coding.trim().eq_ignore_ascii_case(name) && !refused
            })
        };
        if accepts("gzip") {
            return Some(Coding::Gzip);
        }
        accepts("deflate").then_some(Coding::Deflate)
    }

    /// Returns its name in headers.
    pub(in crate::api) const fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }

    /// Compresses a few bytes.
    pub(in crate::api) fn pack(self, bytes: &[u8]) -> Vec<u8> {
        let mut packer = Packer::new(self, Vec::new());
        packer.write(bytes);
        packer.finish()
    }

    /// Compresses bytes in slices, and appends the result to `to`.
    pub(in crate::api) async fn pack_in_slices(self, to: Vec<u8>, bytes: &[u8], slices: &Slices) -> Vec<u8> {
        let mut packer = Packer::new(self, to);
        for piece in bytes.chunks(PACKED_PIECE) {
            // No piece becomes much longer, but the packer may have kept others back.
            slices.reserve(packer.packed(), 2 * PIECE).await;
            packer.write(piece);
            slices.did(piece.len()).await;
        }
        packer.finish()
    }

    /// Decompresses `packed` within `bounds`. Its memory, which counts `packed`, grows before more
    /// is allocated, and in the end counts the result instead.
    ///
    /// Errors: 400 if it is not of this form, 413 if the result is too large, 429.
    pub(in crate::api) async fn unpack(
        self,
        packed: Bytes,
        bounds: &mut ReadBounds,
    ) -> Result<Bytes, Problem> {
        let ReadBounds { limit, memory, slices } = bounds;
        let unpacked = UnpackedBytes { bytes: Vec::new(), limit: *limit, memory, refused: None };
        let bytes = match self {
            Coding::Gzip => gunzip(&packed, unpacked, slices).await,
            Coding::Deflate => inflate(&packed, unpacked, slices).await,
        };
        let bytes = bytes.map_err(|error| match error {
            UnpackError::Refused(problem) => problem,
            UnpackError::Invalid(what) => {
                Problem::bad(format!("the body is not valid {}: {what}", self.name()))
            }
        })?;
        memory.shrink(packed.len());
        Ok(large_buffers::shared(bytes))
    }
}

/// The bytes that a body unpacks to, bounded while they come.
struct UnpackedBytes<'a> {
    bytes: Vec<u8>,
    limit: usize,
    memory: &'a mut MemoryLease,
    /// The reason for which a write failed.
    refused: Option<Problem>,
}

/// The reason that a body can't be unpacked.
enum UnpackError {
    Refused(Problem),
    Invalid(String),
}

impl UnpackedBytes<'_> {
    /// Makes room for `more` bytes.
    fn reserve(&mut self, more: usize) -> Result<(), Problem> {
        let needed = self.bytes.len() + more;
        if needed > self.limit {
            let message = format!("the body unpacks to more than {} bytes, which is the limit", self.limit);
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        if needed > self.bytes.capacity() {
            let capacity = needed.max(2 * self.bytes.capacity()).min(self.limit);
            self.memory.grow(capacity - self.bytes.capacity())?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        Ok(())
    }

    /// Makes room for what a piece unpacks to at least, in slices, as far as the limits permit:
    /// what they do not is found by the write.
    async fn make_room(&mut self, slices: &Slices) {
        let (length, capacity) = (self.bytes.len(), self.bytes.capacity());
        let larger = (2 * capacity).min(self.limit);
        let is_short = length >= LARGE && capacity - length < 2 * PIECE && capacity < larger;
        if is_short && self.memory.grow(larger - capacity).is_ok() {
            slices.grow_to(&mut self.bytes, larger).await;
        }
    }

    /// Returns the reason that `error` stands for.
    fn failure(&mut self, error: &std::io::Error) -> UnpackError {
        self.refused.take().map_or_else(|| UnpackError::Invalid(error.to_string()), UnpackError::Refused)
    }
}

impl Write for UnpackedBytes<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Err(problem) = self.reserve(bytes.len()) {
            self.refused = Some(problem);
            return Err(std::io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Unpacks the members of a gzip file, one after another.
async fn gunzip(packed: &[u8], unpacked: UnpackedBytes<'_>, slices: &Slices) -> Result<Vec<u8>, UnpackError> {
    let (mut rest, mut members) = (packed, 1);
    let mut member = GzDecoder::new(unpacked);
    while !rest.is_empty() {
        member.get_mut().make_room(slices).await;
        let before = member.get_ref().bytes.len();
        // A write unpacks what its buffer holds, 32 KiB, and no more.
        let taken = match member.write(&rest[..rest.len().min(PIECE)]) {
            Ok(taken) => taken,
            Err(error) => return Err(member.get_mut().failure(&error)),
        };
        if taken == 0 {
            if members == MAX_MEMBERS {
                return Err(UnpackError::Invalid(format!("it has more than {MAX_MEMBERS} members")));
            }
            members += 1;
            if let Err(error) = member.try_finish() {
                return Err(member.get_mut().failure(&error));
            }
            let unpacked = member.finish().map_err(|error| UnpackError::Invalid(error.to_string()))?;
            member = GzDecoder::new(unpacked);
            slices.did(MEMBER_WORK).await;
            continue;
        }
        rest = &rest[taken..];
        slices.did(taken + member.get_ref().bytes.len() - before).await;
    }
    if let Err(error) = member.try_finish() {
        return Err(member.get_mut().failure(&error));
    }
    let unpacked = member.finish().map_err(|error| UnpackError::Invalid(error.to_string()))?;
    Ok(unpacked.bytes)
}

/// Unpacks a zlib stream.
async fn inflate(
    packed: &[u8],
    mut unpacked: UnpackedBytes<'_>,
    slices: &Slices,
) -> Result<Vec<u8>, UnpackError> {
    let mut stream = Decompress::new(true);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let (taken, given) = (stream.total_in(), stream.total_out());
        let input = &packed[at..packed.len().min(at + PIECE)];
        let status = stream
            .decompress(input, &mut piece, FlushDecompress::None)
            .map_err(|error| UnpackError::Invalid(error.to_string()))?;
        at += (stream.total_in() - taken) as usize;
        let given = (stream.total_out() - given) as usize;
        unpacked.make_room(slices).await;
        if let Err(error) = unpacked.write_all(&piece[..given]) {
            return Err(unpacked.failure(&error));
        }
        if status == Status::StreamEnd {
            break;
        }
        if given == 0 && stream.total_in() == taken {
            return Err(UnpackError::Invalid("it ends too early".to_owned()));
        }
        slices.did(input.len().min(at) + given).await;
    }
    if at < packed.len() {
        return Err(UnpackError::Invalid(format!("{} bytes follow its end", packed.len() - at)));
    }
    Ok(unpacked.bytes)
}

/// A compressor of either form.
enum Packer {
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
}

impl Packer {
    fn new(coding: Coding, to: Vec<u8>) -> Packer {
        match coding {
            Coding::Gzip => Packer::Gzip(GzEncoder::new(to, Compression::fast())),
            Coding::Deflate => Packer::Deflate(ZlibEncoder::new(to, Compression::fast())),
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        let written = match self {
            Packer::Gzip(packer) => packer.write_all(bytes),
            Packer::Deflate(packer) => packer.write_all(bytes),
        };
        written.expect("memory takes every byte");
    }

    /// Returns what has been packed so far.
    fn packed(&mut self) -> &mut Vec<u8> {
        match self {
            Packer::Gzip(packer) => packer.get_mut(),
            Packer::Deflate(packer) => packer.get_mut(),
        }
    }

    fn finish(self) -> Vec<u8> {
        let packed = match self {
            Packer::Gzip(packer) => packer.finish(),
            Packer::Deflate(packer) => packer.finish(),
        };
        packed.expect("memory takes every byte")
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::CoreMemory;
    use super::super::slices::{SLICE_BYTES, ready_now};
    use super::*;
    use std::rc::Rc;

    const MEMORY: usize = 32 << 20;

    fn unpack(coding: Coding, packed: &[u8], limit: usize) -> Result<Bytes, Problem> {
        let mut memory = CoreMemory::new(MEMORY, MEMORY).lease(&Rc::default());
        memory.grow(packed.len()).unwrap();
        let mut bounds = ReadBounds { limit, memory, slices: Slices::alone() };
        let result = ready_now(coding.unpack(Bytes::copy_from_slice(packed), &mut bounds));
        let ReadBounds { memory, slices, .. } = &bounds;
        assert!(slices.largest() <= 2 * SLICE_BYTES, "{}", slices.largest());
        if let Ok(bytes) = &result {
            assert!((bytes.len()..=limit).contains(&memory.held()), "{} are held", memory.held());
        }
        result
    }

    #[test]
    fn bytes_survive_both_forms_within_the_limit() {
        for size in [0, 1, 100_000, 5_000_000] {
            let bytes: Vec<u8> = (0..size).map(|at: usize| (at / 1_000) as u8).collect();
            for coding in [Coding::Gzip, Coding::Deflate] {
                let packed = coding.pack(&bytes);
                assert_eq!(unpack(coding, &packed, size).unwrap(), bytes);
                if size == 0 {
                    continue;
                }
                let bomb = unpack(coding, &packed, size - 1).unwrap_err();
                assert_eq!(bomb.status, StatusCode::PAYLOAD_TOO_LARGE);
                for cut in [packed.len() / 2, packed.len() - 1] {
                    let cut = unpack(coding, &packed[..cut], size).unwrap_err();
                    assert!(cut.message.contains(coding.name()), "{}", cut.message);
                }
                let more = unpack(coding, &[&packed[..], b"more"].concat(), size).unwrap_err();
                assert_eq!(more.status, StatusCode::BAD_REQUEST);
            }
        }
    }

    #[test]
    fn gzip_of_several_members_is_unpacked_whole() {
        let members =
            [Coding::Gzip.pack(b"one, "), Coding::Gzip.pack(b""), Coding::Gzip.pack(b"two")].concat();
        assert_eq!(unpack(Coding::Gzip, &members, 8).unwrap(), b"one, two"[..]);
        assert_eq!(unpack(Coding::Gzip, &members, 7).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        let many = Coding::Gzip.pack(b"").repeat(MAX_MEMBERS + 1);
        let refused = unpack(Coding::Gzip, &many, 1 << 20).unwrap_err();
        assert!(refused.message.contains("more than 16384 members"), "{}", refused.message);
    }

    #[test]
    fn unpacking_stops_where_the_memory_ends() {
        let bomb = Coding::Gzip.pack(&vec![0; 2 * MEMORY]);
        let refused = unpack(Coding::Gzip, &bomb, 4 * MEMORY).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    }

    #[test]
    fn a_client_gets_what_it_lists_and_nothing_that_it_refuses() {
        assert_eq!(Coding::acceptable("deflate, gzip"), Some(Coding::Gzip));
        assert_eq!(Coding::acceptable("gzip;q=0, Deflate;q=0.5"), Some(Coding::Deflate));
        assert_eq!(Coding::acceptable("br, identity"), None);
        assert_eq!(Coding::named(b"br").unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(Coding::named(b" GZip").unwrap(), Some(Coding::Gzip));
        assert_eq!(Coding::named(b"Identity").unwrap(), None);
    }
}
