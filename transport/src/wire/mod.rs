//! The wire format between hosts: frames of little-endian plain data behind a checked header. It
//! has no sockets and allocates nothing: [`Payload::encode`] writes into the caller's buffer and
//! [`decode`] reads from it. docs/protocol.md describes each byte for those who write another
//! client.
//!
//! A payload that [`decode`] returns has been checked to its last field (codes, classes, reserved
//! bytes, counts), so its consumer may index by what it says as it may by a message from a ring.
//!
//! ```
//! use symphony_transport::Nanos;
//! use symphony_transport::wire::{Alive, Payload, decode};
//!
//! let sent = Payload::Alive(Alive { number: 7, sent: Nanos::from_millis(3) });
//! let mut buffer = [0; 64];
//! let length = sent.encode(&mut buffer).unwrap();
//! assert_eq!(decode(&buffer[..length - 1]).unwrap(), None); // more bytes are to come
//! assert_eq!(decode(&buffer).unwrap(), Some((sent, length)));
//!
//! buffer[0] = b'H'; // of "HTTP"
//! assert!(decode(&buffer).is_err());
//! ```

mod checks;
mod fault;
mod header;
mod kind;
mod payload;
mod rdma_records;
mod records;
mod text;

pub use fault::{EncodeFault, LengthRule, WireFault};
pub use header::{FrameHeader, HEADER_BYTES};
pub use kind::{FrameKind, MAX_PAYLOAD_BYTES, VERSION};
pub use payload::{Payload, decode};
pub use rdma_records::{ExportedClass, LandedAnswer, RdmaOffer};
pub use records::{
    Accepted, Alive, BackendCompletion, CloseCode, Closing, CreditGrant, GpuPresence, GrantedBatch, Hello,
    HostRole, MeasuredDelays, OfferedModel, Presence, ReadOutcome, RecordList, TensorData, TensorRead,
    TensorWay, TensorWrite, TimeAnswer, TimeProbe,
};
pub use text::Text;

// A big-endian host would have to swap each field.
const _: () = assert!(cfg!(target_endian = "little"), "frames are memory as it is: little-endian hosts only");
