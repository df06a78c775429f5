//! What an end of a connection tells its owner, and what it has done. Plain data, also where there
//! is no device.

use crate::wire::LandedAnswer;

/// What has happened on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RdmaEvent {
    /// The read of this number has ended. The bytes are those of the slot's id if `is_current`.
    Read {
        /// The number that the reader chose.
        number: u64,
        /// Whether the slot was the id's still behind the bytes.
        is_current: bool,
    },
    /// The answer of this number and its outputs are at the frontend: its slot is free.
    Answered(u64),
    /// An answer has come, whose outputs lie in the landing: it is to be copied, and then its
    /// place given back.
    Landed(LandedAnswer),
}

/// What a connection has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RdmaCounters {
    /// One-sided reads of a slot whose bytes were the id's.
    pub reads: u64,
    /// Reads whose slot had another id meanwhile.
    pub stale_reads: u64,
    /// Bytes of the reads whose bytes were the id's.
    pub read_bytes: u64,
    /// One-sided writes of outputs.
    pub writes: u64,
    /// Lists that were posted: the device was told of each once.
    pub doorbells: u64,
}

impl RdmaCounters {
    /// Returns the sums of these and others.
    pub fn plus(self, other: RdmaCounters) -> RdmaCounters {
        RdmaCounters {
            reads: self.reads + other.reads,
            stale_reads: self.stale_reads + other.stale_reads,
            read_bytes: self.read_bytes + other.read_bytes,
            writes: self.writes + other.writes,
            doorbells: self.doorbells + other.doorbells,
        }
    }
}
