//! Symphony's scheduler and engine: see ARCHITECTURE.md for the way of a request through it.

pub mod api;
pub mod clock;
pub mod commands;
pub mod config;
pub mod control;
pub mod count;
pub mod log;
pub mod observe;
pub mod otlp;
pub mod recorder;
pub mod runtime;
pub mod top;
