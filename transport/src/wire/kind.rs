//! The kinds of frames, and what bounds all of them.

use std::fmt;

/// The version of the protocol. It rises with any change of a frame, which
/// `transport/tests/protocol.rs` finds out.
pub const VERSION: u16 = 2;

/// The most bytes after a header. All models of an engine fit in one `Hello`.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;

/// The kind of a frame: what its payload is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum FrameKind {
    /// Says who the sender is: the first frame of each side.
    Hello = 1,
    /// The sender accepts the peer.
    Accepted = 2,
    /// The last frame: why the sender closes the connection.
    Closing = 3,
    /// Requests for a ModelThread.
    Requests = 4,
    /// Ends of requests.
    Responses = 5,
    /// A batch for a GPU.
    Batch = 6,
    /// Batches that have left GPUs.
    Completions = 7,
    /// GPUs that have come, go or are lost.
    Gpus = 8,
    /// A heartbeat.
    Alive = 9,
    /// A reading of the sender's clock.
    TimeProbe = 10,
    /// The answer to one.
    TimeAnswer = 11,
    /// How many records the peer may have sent.
    Credit = 12,
    /// An order to read from a slot.
    TensorRead = 13,
    /// What was read.
    TensorData = 14,
    /// Bytes for a slot.
    TensorWrite = 15,
    /// An end of an RDMA connection.
    Rdma = 16,
    /// What the sender has measured of the network.
    Delays = 17,
}

impl FrameKind {
    /// Every kind, in the order of the codes.
    pub const ALL: [FrameKind; 17] = {
        use FrameKind::*;
        [
            Hello,
            Accepted,
            Closing,
            Requests,
            Responses,
            Batch,
            Completions,
            Gpus,
            Alive,
            TimeProbe,
            TimeAnswer,
            Credit,
            TensorRead,
            TensorData,
            TensorWrite,
            Rdma,
            Delays,
        ]
    };

    /// Returns the kind with this code, `None` where there is none.
    pub fn from_code(code: u16) -> Option<FrameKind> {
        FrameKind::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
