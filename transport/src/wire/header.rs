//! The 16 bytes in front of each frame. They stay as they are in every version of the protocol, so
//! that hosts of different versions can say so to each other.

use super::fault::WireFault;
use super::kind::{FrameKind, MAX_PAYLOAD_BYTES, VERSION};
use bytemuck::{Pod, Zeroable};

/// The first bytes of each frame.
const MAGIC: [u8; 4] = *b"SYMF";

/// Bytes of a header.
pub const HEADER_BYTES: usize = size_of::<FrameHeader>();

/// What stands in front of each payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct FrameHeader {
    /// The bytes `SYMF`.
    pub magic: [u8; 4],
    /// The protocol's version.
    pub version: u16,
    /// The code of a [`FrameKind`].
    pub kind: u16,
    /// Bytes of the payload.
    pub length: u32,
    /// Zero.
    pub reserved: u32,
}

impl FrameHeader {
    /// Makes the header of a payload of `length` bytes.
    pub(super) fn new(kind: FrameKind, length: u32) -> FrameHeader {
        FrameHeader { magic: MAGIC, version: VERSION, kind: kind as u16, length, reserved: 0 }
    }

    /// Checks the header: its kind, and the bytes of payload that follow.
    pub(super) fn check(&self) -> Result<(FrameKind, usize), WireFault> {
        if self.magic != MAGIC {
            return Err(WireFault::Magic(self.magic));
        }
        let kind = FrameKind::from_code(self.kind);
        // The reason for which a host of another version closes can be read in this one.
        if self.version != VERSION && kind != Some(FrameKind::Closing) {
            return Err(WireFault::Version(self.version));
        }
        let kind = kind.ok_or(WireFault::Kind(self.kind))?;
        if self.length as usize > MAX_PAYLOAD_BYTES {
            return Err(WireFault::TooLong { kind, bytes: self.length });
        }
        if self.reserved != 0 {
            let (field, value, right) = ("reserved", u64::from(self.reserved), "0");
            return Err(WireFault::Field { kind, record: 0, field, value, right });
        }
        Ok((kind, self.length as usize))
    }
}
