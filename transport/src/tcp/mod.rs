//! The TCP connections of one pinned thread: [`Sockets`] listens, connects, receives and sends
//! without ever blocking the thread's duty cycle. The threads that drive links to other hosts own
//! one each; bytes go from here to a [`HostLink`](crate::link::HostLink) and back.
//!
//! ```text
//!                    next(now)
//! kernel ─▶ driver ────────────▶ accepted, connected, received, closed
//!
//!        reserve, commit                                        flush()
//! bytes ────────────────▶ one half of the socket's memory ───────────────▶ driver ─▶ kernel
//!                         (the other is being sent)     one send per turn
//! ```
//!
//! A driver stands between the sockets and the kernel: `SocketDriver` (`driver.rs`). It
//! owns the descriptors and all memory that the kernel reads or writes, and reports what has
//! completed. Which connection is open, closing or gone, and when it must be, is decided above it,
//! once for all drivers.
//!
//! A duty cycle takes the events of its turn, queues what is to be sent, and flushes:
//!
//! ```
//! use symphony_transport::Nanos;
//! use symphony_transport::tcp::{SocketEvent, SocketOptions, Sockets};
//!
//! let mut sockets = Sockets::new(SocketOptions::default()).unwrap();
//! let listener = sockets.listen("127.0.0.1:0".parse().unwrap()).unwrap();
//! let address = sockets.address(listener);
//! let now = Nanos::from_secs(1);
//! let dialled = sockets.connect(now, address).unwrap();
//! let mut received = Vec::new();
//! while received != b"hello" {
//!     while let Some(event) = sockets.next(now) {
//!         match event {
//!             SocketEvent::Connected { socket, .. } => {
//!                 assert_eq!(socket, dialled);
//!                 sockets.send(socket, b"hello").unwrap();
//!             }
//!             SocketEvent::Received { bytes, .. } => received.extend_from_slice(bytes),
//!             SocketEvent::Accepted { .. } => {}
//!             other => panic!("{other:?}"),
//!         }
//!     }
//!     sockets.flush();
//! }
//! ```
//!
//! # Bounds
//!
//! | what | bound |
//! | --- | --- |
//! | sockets, those that are being closed included | [`SocketOptions::sockets`]; more are closed as they come, and counted |
//! | bytes that wait to be sent by a socket | two halves of [`SocketOptions::outgoing_bytes`]: one is under way, one is filled |
//! | a send in a turn | one for each socket, of all that was queued until the flush |
//! | events in a turn | [`EVENTS_PER_TURN`] |
//! | received bytes that are held | none behind the event: its consumer takes them or leaves them |
//! | a connection attempt | [`SocketOptions::connect_within`] |
//! | from [`Sockets::close`] to the end of the connection | [`SocketOptions::close_within`] |
//!
//! With [`Sockets::protect`] a [`TlsChannel`] lies between the received bytes and the event, and
//! between the queue and the send; without, connections are refused beyond loopback.
//!
//! In clear, all memory is taken by [`Sockets::new`]; `next`, `reserve`, `commit` and `flush` take
//! none, as long as nothing fails.

mod driver;
mod poll_driver;
mod ring_driver;
mod sockets;
mod tls;
mod uring;

pub use driver::SocketWaker;
pub use sockets::{
    DriverChoice, EVENTS_PER_TURN, ListenerId, SendRefused, SocketCounters, SocketEnd, SocketEvent, SocketId,
    SocketOptions, Sockets,
};
pub use tls::{LinkTls, LinkTlsError, TlsChannel};
