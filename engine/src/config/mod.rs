//! Reading what users write: workload files and the engine's CONFIG, both TOML. Every diagnostic in
//! a file is found and named with its line in one go, so that a user mends a file once. The
//! commands call this at start-up; later only `control` does, for the models of a repository.

mod access;
mod diagnostics;
mod engine_config;
mod linear;
pub mod pbtxt;
mod reader;
mod repository;
mod traces;
mod triton;
mod workload_file;
mod zoo;

pub use access::{AccessConfig, read_tokens};
pub use diagnostics::{Diagnostic, Diagnostics, Location};
pub use engine_config::{
    Config, Cores, Executor, ExecutorKind, HttpLimits, ModelConfig, ModelLocations, ModelSource,
    ProfileSource, RepositoryFlags, parse_config, read_config, read_config_with,
};
pub use repository::{Control, RepositoryConfig, RepositoryModel, Stamp};
pub use traces::{ArrivalSource, TraceError, read_functions, read_minutes, read_trace};
pub use triton::{Declared, DeclaredTensor, check_pbtxt};
pub use workload_file::{parse_arrival, read_workload};

#[cfg(test)]
mod tests;
