//! Everything that moves bytes: single-producer single-consumer rings and slabs between threads,
//! the messages that travel in them, the frames and links that carry these between hosts, the bells
//! that wake those who wait for messages on a shared core, and the instants and timers that both
//! ends share.
//!
//! `engine` and `gpu` depend on this crate; it depends on neither. Each lock-free structure is one
//! file with a runnable example, its memory orderings and loom tests. `unsafe` is in
//! those files, and in those that call the kernel or a device (ARCHITECTURE.md lists them).

pub mod doorbell;
pub mod link;
pub mod message;
pub mod rdma;
pub mod ring;
pub mod slab;
mod slot_memory;
mod sync;
pub mod tcp;
pub mod time;
pub mod wheel;
pub mod wire;

pub use time::Nanos;
