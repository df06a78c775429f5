//! Tensors between hosts by RDMA verbs: a backend reads inputs out of a frontend's slots by
//! one-sided READ, and writes outputs by WRITE. The thread of the links owns an `RdmaEnd` for
//! each connection between a backend and a host with frontends; what both ends must have of each
//! other, an [`RdmaOffer`](crate::wire::RdmaOffer), goes over the TCP connection of the link, and a
//! pair of queues lives as long as that connection does.
//!
//! ```text
//! host with frontends                                      backend
//! slots, states of slots  ◀──── READ bytes, then state ──── claimed local slot
//! landing                 ◀──── WRITE outputs ───────────── claimed local slot
//! receives                ◀──── SEND LandedAnswer ───────── after its WRITE
//! receives                ───── SEND LandedAnswer ────────▶ how many places are free again
//! ```
//!
//! What makes it safe, though the two ends do not ask each other:
//!
//! - **A slot is read without a claim.** The reader reads its state behind its bytes, and uses the
//!   bytes only if the state is that of the id that it has ([`SlotId::is_current`]). The frontend
//!   may free the slot whenever it likes.
//! - **No slot is written from elsewhere.** A peer may write to the *landing* of its connection
//!   only, whose places it leases until they are given back, and the frontend copies from there
//!   into slots whose rows have not ended. A late WRITE finds the place of its own lease.
//! - **A connection that is over is fenced.** Its pair of queues is destroyed, after which no
//!   device touches memory in its name, before the landing or a claimed slot is used again.
//!
//! The layout of slots and the leases of places are plain data, and always here; what calls a
//! device is behind the cargo feature `rdma`. The library libibverbs is opened when a device is, so
//! that a program with the feature starts without it too.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `exported_slots` | where a peer's slots lie: from an id to addresses |
//! | `landing` | the leases of the places in a peer's landing |
//! | `library` | libibverbs, opened by name |
//! | `device` | a device, its port, its protection domain |
//! | `region` | memory that a device may reach |
//! | `queue_pair` | a reliable connection: what is posted, what has completed |
//! | `end` | one end of a connection: reads, answers, time-outs |
//! | `event` | what an end tells its owner |
//!
//! [`SlotId::is_current`]: crate::slab::SlotId::is_current

#[cfg(feature = "rdma")]
mod device;
#[cfg(feature = "rdma")]
mod end;
mod event;
mod exported_slots;
mod landing;
#[cfg(feature = "rdma")]
mod library;
#[cfg(feature = "rdma")]
mod queue_pair;
#[cfg(feature = "rdma")]
mod region;

#[cfg(feature = "rdma")]
pub use device::{RdmaDevice, RdmaError};
#[cfg(feature = "rdma")]
pub use end::{RdmaEnd, RdmaFault, RdmaSide};
pub use event::{RdmaCounters, RdmaEvent};
pub use exported_slots::{ExportedSlots, RemoteSlot};
pub use landing::LandingLeases;
#[cfg(feature = "rdma")]
pub use region::RegisteredSlab;

/// True if this crate was built with the feature `rdma`.
pub const IS_BUILT: bool = cfg!(feature = "rdma");
