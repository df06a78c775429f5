//! The real driver: threads pinned to cores that pump the state machines, and what other threads hold of them.

pub mod frontend;
