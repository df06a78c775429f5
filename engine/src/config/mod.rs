//! Reading what users write, all of it TOML or CSV: the engine's CONFIG, the repository of models
//! that it names, files of tokens, and workload files. Every diagnostic of a file is collected and
//! located, so that a user corrects the file once. The commands read at start-up; later only
//! `control` does, for the models of a repository, and `serve`, for its tokens.
//!
//! One file holds the plain data of each section and its reader:
//!
//! | section of CONFIG | file |
//! | --- | --- |
//! | `policy`, `when`, `drop`, `tuning`, `prefer`, `learned_profiles` | `scheduling.rs` |
//! | `[network]` | `network.rs` |
//! | `[cores]` | `cores.rs` |
//! | `[http]` | `http.rs` |
//! | `[faults]` | `faults.rs` |
//! | `[api]` | `api.rs`; the file of tokens that it names is `tokens.rs` |
//! | `[memory]` | `slab_size.rs` |
//! | `[log]` | `log.rs` |
//! | `[trace]` | `trace.rs` |
//! | `[onnxruntime]` | `onnxruntime.rs` |
//! | `[[hosts]]`, `[links]` | `hosts.rs` |
//! | `[discovery]` | `discovery.rs` |
//! | `[[executors]]` | `executors.rs` |
//! | `[[models]]` | `models/` |
//! | `[[queries]]` | `queries.rs`; `query_tensors.rs` compares them with their models |
//! | `[repository]` | `repository/`, with Triton's `config.pbtxt` |
//! | all of it | `engine.rs` is the data, `load.rs` the reader |
//!
//! `workload/` reads workload files. Below them all are `toml_reader.rs`, which reads any TOML file
//! field by field, `linear_profile.rs` and `profile_file.rs`, the two forms of a profile, and
//! `diagnostics.rs`.
//!
//! Architecture invariant: a file uses those below it in this order, never one above: `load`,
//! `engine`, `repository`, `models`, `executors`, `cores` and the other sections, `profile_file`,
//! `linear_profile`, `toml_reader`, `diagnostics`. The module uses nothing of the engine but the
//! scheduler's crate, `gpu` and `transport`.

mod api;
mod cores;
mod diagnostics;
mod discovery;
mod engine;
mod executors;
mod faults;
mod hosts;
mod http;
mod linear_profile;
mod load;
mod log;
mod models;
mod network;
mod onnxruntime;
mod profile_file;
mod queries;
mod query_tensors;
mod repository;
mod scheduling;
mod shutdown;
mod slab_size;
mod tokens;
mod toml_reader;
mod trace;
mod workload;

pub use api::{AccessConfig, is_host};
pub use cores::Cores;
pub use diagnostics::{Diagnostic, Diagnostics, Location};
pub use discovery::{DiscoveryConfig, DnsConfig, DnsName, EtcdConfig, EtcdTlsFiles};
pub use engine::Config;
pub use executors::{ExecutorGroup, ExecutorKind};
pub use faults::FaultConfig;
pub use hosts::{HostConfig, LinkConfig, LinkTlsFiles, Role, TensorTransport};
pub use http::HttpLimits;
pub use load::{parse_config, read_config, read_config_with};
pub use log::{LEVELS, LogConfig, LogFlags, LogFormat};
pub use models::ServedApplication;
pub use models::{DeclaredTensor, DeclaredTensors, ModelConfig, ModelLocations, ModelSource, ProfileSource};
pub use models::{DimensionBuckets, FileContents, InputPadding, PadWith, VariableDimensions};
pub use models::{MAX_PREFIX_GROUP, PrefixMember};
pub use models::{WarmupData, WarmupInput, WarmupSample};
pub use queries::{MAX_SERVED_QUERIES, QueryConfig, StageConfig, TensorLink};
pub use query_tensors::{QueryTensors, StageModel, StageTensor, StageTensors, TensorSource};
pub use repository::{
    FileStamp, RepositoryConfig, RepositoryControl, RepositoryFlags, RepositoryModel, check_pbtxt, pbtxt,
};
pub use shutdown::ShutdownConfig;
pub use slab_size::MemoryConfig;
pub use tokens::{Fingerprint, TokenGrant, TokenRate, TokenRole, read_tokens};
pub use trace::{Endpoint, TraceConfig, TraceFlags};
pub use workload::{
    ArrivalFileError, ArrivalSource, parse_arrival, read_functions, read_minutes, read_trace, read_workload,
};

#[cfg(test)]
mod tests;
