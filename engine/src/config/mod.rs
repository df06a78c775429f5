//! Reading what users write: workload files and the engine's CONFIG, both TOML. Every diagnostic in
//! a file is found and named with its line in one go, so that a user mends a file once. The
//! commands call this at start-up; later only `control` does, for the models of a repository.

mod api;
mod diagnostics;
mod engine_config;
mod linear;
mod log;
pub mod pbtxt;
mod reader;
mod repository;
mod tokens;
mod trace;
mod traces;
mod triton;
mod workload_file;
mod zoo;

pub use api::AccessConfig;
pub use diagnostics::{Diagnostic, Diagnostics, Location};
pub use engine_config::{
    Config, Cores, Executor, ExecutorKind, HttpLimits, ModelConfig, ModelLocations, ModelSource,
    ProfileSource, RepositoryFlags, read_config, read_config_with,
};
pub use log::{LEVELS, LogConfig, LogFlags, LogFormat};
pub use repository::{Control, RepositoryConfig, RepositoryModel, Stamp};
pub use tokens::{Fingerprint, TokenGrant, TokenRate, read_tokens};
pub use trace::{Endpoint, TraceConfig, TraceFlags};
pub use traces::{ArrivalSource, TraceError, read_functions, read_minutes, read_trace};
pub use triton::{Declared, DeclaredTensor, check_pbtxt};
pub use workload_file::{parse_arrival, read_workload};

#[cfg(test)]
mod tests;
