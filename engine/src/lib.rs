//! Symphony's scheduler and engine: see ARCHITECTURE.md for the way of a request through it.

pub mod api;
pub mod clock;
pub mod commands;
pub mod config;
pub mod control;
pub mod count;
pub mod limits;
pub mod log;
pub mod model;
pub mod observe;
pub mod otlp;
pub mod policy;
pub mod profile;
pub mod rank;
pub mod recorder;
pub mod runtime;
pub mod sim;
pub mod top;
pub mod workload;
