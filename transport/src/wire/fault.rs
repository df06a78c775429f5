//! What can be wrong with a frame: with one that came, and with one that is to be written. The
//! sentences are what a host logs and what it sends in a [`Closing`](super::Closing).

use super::kind::{FrameKind, MAX_PAYLOAD_BYTES, VERSION};
use super::records::CloseCode;

/// An error in the bytes that a peer sent. Nothing after it on the connection can be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireFault {
    /// The bytes are no frame.
    #[error("a frame begins with the bytes `SYMF`, not {}: the peer speaks another protocol", .0.escape_ascii())]
    Magic([u8; 4]),
    /// The frame is of another version of the protocol.
    #[error(
        "the peer speaks version {0} of the protocol, this host version {VERSION}: run the same release on both"
    )]
    Version(u16),
    /// The header names no kind.
    #[error("a frame of kind {0}: there are 1 to {last}", last = FrameKind::ALL.len())]
    Kind(u16),
    /// The header announces more than a frame may have.
    #[error("{kind}: {bytes} bytes of payload, the most are {MAX_PAYLOAD_BYTES}")]
    TooLong {
        /// The kind of the frame.
        kind: FrameKind,
        /// The bytes announced.
        bytes: u32,
    },
    /// The length does not fit the kind.
    #[error("{kind}: {bytes} bytes of payload, where there should be {right}")]
    Length {
        /// The kind of the frame.
        kind: FrameKind,
        /// The bytes announced.
        bytes: usize,
        /// The lengths that are right.
        right: LengthRule,
    },
    /// A field has a value that it must not have.
    #[error("{kind}, record {record}: {field} is {value}, where it should be {right}")]
    Field {
        /// The kind of the frame.
        kind: FrameKind,
        /// The record's number in the frame, from 0; 0 for the frame's own fields.
        record: usize,
        /// The name of the field.
        field: &'static str,
        /// The value of the field; of a text or reserved bytes, the first wrong byte.
        value: u64,
        /// The values that are right.
        right: &'static str,
    },
}

impl WireFault {
    /// Returns the code with which the connection is closed: connecting to a host of another
    /// version again is of no use.
    pub fn close_code(&self) -> CloseCode {
        match self {
            WireFault::Version(_) => CloseCode::Mismatch,
            _ => CloseCode::Protocol,
        }
    }
}

/// The lengths that a kind of frame may have: a head, and then records of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthRule {
    /// Bytes of the head.
    pub head: usize,
    /// Bytes of a record; zero where none follow.
    pub record: usize,
    /// The fewest records.
    pub at_least: usize,
}

impl std::fmt::Display for LengthRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LengthRule { head, record: 0, .. } => write!(f, "{head}"),
            LengthRule { head, record, at_least } => {
                write!(f, "{head} and {at_least} or more times {record}")
            }
        }
    }
}

/// An error that keeps a payload from being written as a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeFault {
    /// The buffer is too short for the frame.
    #[error("the frame takes {needed} bytes, the buffer has room for {room}")]
    NoRoom {
        /// Bytes of the frame.
        needed: usize,
        /// Bytes of the buffer.
        room: usize,
    },
    /// The payload is longer than a frame may be.
    #[error("{bytes} bytes of payload, the most are {MAX_PAYLOAD_BYTES}: send it in several frames")]
    TooLong {
        /// Bytes of the payload.
        bytes: usize,
    },
}
