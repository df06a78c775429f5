//! What two hosts exchange so that one may reach the other's memory by RDMA: in the frame `Rdma`
//! over the link, and in the messages of the RDMA connection itself.

use super::checks::{CheckedRecord, WrongField, demand};
use crate::message::Response;
use bytemuck::{Pod, Zeroable};

/// The bits of the number of a pair of queues, and of a packet.
const NUMBER_BITS: u32 = 24;

/// One end of an RDMA connection: what its peer connects to. An [`ExportedClass`] for each class of
/// slots follows that the peer may read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct RdmaOffer {
    /// The port's global identifier.
    pub gid: [u8; 16],
    /// The address of the landing, where the peer may write; zero where there is none.
    pub landing: u64,
    /// Bytes of the landing.
    pub landing_bytes: u32,
    /// The key of the landing.
    pub landing_key: u32,
    /// The number of the pair of queues.
    pub queue_pair: u32,
    /// The number of the first packet that this end sends.
    pub packet: u32,
    /// The port's local identifier; zero on Ethernet.
    pub lid: u32,
    /// The most bytes of a packet.
    pub mtu: u32,
    /// The READs that this end answers at a time.
    pub reads: u32,
    /// Zero.
    pub reserved: u32,
}

impl CheckedRecord for RdmaOffer {
    fn check(&self) -> Result<(), WrongField> {
        demand(self.queue_pair >> NUMBER_BITS == 0, "queue_pair", self.queue_pair, "below 2^24")?;
        demand(self.packet >> NUMBER_BITS == 0, "packet", self.packet, "below 2^24")?;
        demand(self.lid >> 16 == 0, "lid", self.lid, "below 2^16")?;
        let is_mtu = [256, 512, 1_024, 2_048, 4_096].contains(&self.mtu);
        demand(is_mtu, "mtu", self.mtu, "256, 512, 1024, 2048 or 4096")?;
        demand((1..=255).contains(&self.reads), "reads", self.reads, "1 to 255")?;
        demand(self.reserved == 0, "reserved", self.reserved, "0")
    }
}

/// The slots of one class of a frontend, for a peer that reads them by address.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct ExportedClass {
    /// The address of the first slot.
    pub slots: u64,
    /// The address of the first slot's state, of four bytes; the next is 64 bytes further.
    pub states: u64,
    /// Bytes of a slot; the next follows without a gap.
    pub slot_bytes: u32,
    /// The number of slots.
    pub count: u32,
    /// The frontend that has them.
    pub frontend: u32,
    /// The number of the class in the ids of its slots.
    pub number: u32,
    /// The key of the slots.
    pub slots_key: u32,
    /// The key of the states.
    pub states_key: u32,
}

impl CheckedRecord for ExportedClass {}

/// A message of the RDMA connection: to a frontend, an answer whose outputs lie in its landing; to
/// a backend, how many places it may use again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct LandedAnswer {
    /// The answer; all zero in a message to a backend.
    pub response: Response,
    /// Where in the landing the outputs lie.
    pub at: u32,
    /// How many bytes they have.
    pub bytes: u32,
    /// Where in the row's slot they belong.
    pub offset: u32,
    /// The places that the sender has emptied since its last message.
    pub given_back: u32,
    /// Zero.
    pub reserved: [u32; 12],
}

impl LandedAnswer {
    /// Reads a message.
    ///
    /// # Errors
    ///
    /// A sentence that names the field that is wrong.
    pub fn read(bytes: &[u8; size_of::<LandedAnswer>()]) -> Result<LandedAnswer, String> {
        let message: LandedAnswer = bytemuck::pod_read_unaligned(bytes);
        match message.response.check() {
            Ok(()) => Ok(message),
            Err(WrongField { field, value, right }) => {
                Err(format!("LandedAnswer: {field} is {value}, where it should be {right}"))
            }
        }
    }
}
