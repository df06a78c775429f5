//! gzip and deflate, of requests and of answers, in both protocols. The unpacked size is bounded,
//! so that a small body can't become a large one.

use crate::api::problem::{Problem, quoted};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::{GzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::StatusCode;
use std::io::{Read, Write};

/// A supported form of compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950, which both protocols call deflate.
    Deflate,
}

impl Coding {
    /// Returns the coding that a header names; `None` for no compression.
    ///
    /// Errors: 415 for any other name.
    pub(in crate::api) fn named(name: &[u8]) -> Result<Option<Coding>, Problem> {
        match name {
            b"" | b"identity" => Ok(None),
            b"gzip" => Ok(Some(Coding::Gzip)),
            b"deflate" => Ok(Some(Coding::Deflate)),
            other => {
                let is = quoted(&String::from_utf8_lossy(other));
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

    /// Compresses bytes.
    pub(in crate::api) fn pack(self, bytes: &[u8]) -> Vec<u8> {
        let packed = match self {
            Coding::Gzip => {
                written(GzEncoder::new(Vec::new(), Compression::fast()), bytes, GzEncoder::finish)
            }
            Coding::Deflate => {
                written(ZlibEncoder::new(Vec::new(), Compression::fast()), bytes, ZlibEncoder::finish)
            }
        };
        packed.expect("memory takes every byte")
    }

    /// Decompresses `packed` to at most `limit` bytes.
    ///
    /// Errors: 400 if it is not of this form, 413 if the result is too large.
    pub(in crate::api) fn unpack(self, packed: &[u8], limit: usize) -> Result<Bytes, Problem> {
        let mut bytes = Vec::new();
        let most = limit as u64 + 1;
        let read = match self {
            Coding::Gzip => GzDecoder::new(packed).take(most).read_to_end(&mut bytes),
            Coding::Deflate => ZlibDecoder::new(packed).take(most).read_to_end(&mut bytes),
        };
        read.map_err(|error| Problem::bad(format!("the body is not valid {}: {error}", self.name())))?;
        if bytes.len() > limit {
            let message = format!("the body unpacks to more than {limit} bytes, which is the limit");
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        Ok(bytes.into())
    }
}

fn written<W: Write>(
    mut packer: W,
    bytes: &[u8],
    finish: fn(W) -> std::io::Result<Vec<u8>>,
) -> std::io::Result<Vec<u8>> {
    packer.write_all(bytes)?;
    finish(packer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_both_forms_within_the_limit() {
        let bytes = vec![7; 100_000];
        for coding in [Coding::Gzip, Coding::Deflate] {
            let packed = coding.pack(&bytes);
            assert!(packed.len() < 1_000);
            assert_eq!(coding.unpack(&packed, bytes.len()).unwrap(), bytes);
            let bomb = coding.unpack(&packed, bytes.len() - 1).unwrap_err();
            assert_eq!(bomb.status, StatusCode::PAYLOAD_TOO_LARGE);
            let cut = coding.unpack(&packed[..packed.len() / 2], bytes.len()).unwrap_err();
            assert!(cut.message.contains(coding.name()), "{}", cut.message);
        }
    }

    #[test]
    fn a_client_gets_what_it_lists_and_nothing_that_it_refuses() {
        assert_eq!(Coding::acceptable("deflate, gzip"), Some(Coding::Gzip));
        assert_eq!(Coding::acceptable("gzip;q=0, Deflate;q=0.5"), Some(Coding::Deflate));
        assert_eq!(Coding::acceptable("br, identity"), None);
        assert_eq!(Coding::named(b"br").unwrap_err().status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
