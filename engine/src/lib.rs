//! Symphony's engine: see ARCHITECTURE.md for the way of a request through it.

pub mod api;
pub mod cli;
pub mod config;
pub mod control;
pub mod recorder;
pub mod runtime;
pub mod telemetry;
pub mod top;
