//! Reading what users write: workload files and the engine's CONFIG, both TOML. Every mistake in a file is
//! found and named with its line in one go, so that a user mends a file once. The commands call this at
//! start-up; nothing here runs later.

mod engine_config;
mod linear;
mod mistakes;
mod reader;
mod workload_file;
mod zoo;

pub use engine_config::{
    Config, Cores, Executor, ExecutorKind, HttpLimits, ModelConfig, ModelPlaces, ModelSource, ProfileSource,
    read_config,
};
pub use mistakes::{Mistake, Mistakes, Place};
pub use workload_file::{parse_arrival, read_workload};

#[cfg(test)]
mod tests;
