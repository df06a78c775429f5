//! Everything that moves bytes: single-producer single-consumer rings and slabs between threads,
//! the messages that travel in them, and the instants and timers that both ends share.
//!
//! `engine` and `gpu` stand on this crate; it knows neither. Each lock-free structure is one small
//! file with its memory orderings explained and a loom test; the only `unsafe` of the crate is in
//! those files.

pub mod message;
pub mod ring;
pub mod slab;
mod sync;
pub mod time;
pub mod wheel;

pub use time::Nanos;
