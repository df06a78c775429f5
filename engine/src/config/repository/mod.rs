//! A repository of models in Triton's layout, read from its folder; docs/repository.md is for
//! users.
//!
//! ```text
//! REPOSITORY/
//!   shapes/                the model's name
//!     config.pbtxt         Triton's configuration of it, optional (`triton.rs`)
//!     model.toml           our own: SLO, executor, priority, profile
//!     1/model.onnx         its versions
//!     2/model.onnx
//!     2/model.toml         optional: instead of the one above, for this version
//! ```
//!
//! An ensemble's folder has a `config.pbtxt` with its steps (`ensemble.rs`), and an SLO.
//!
//! `warmup/` in a model's folder has the data by which `config.pbtxt` warms the model up.
//!
//! The commands read one at start-up, with CONFIG; `control` reads a model again whenever it is
//! loaded. Nothing here remembers anything.

mod ensemble;
mod folder;
mod json_config;
mod model;
pub mod pbtxt;
mod section;
pub(super) mod triton;
mod warmup_samples;

pub use folder::FileStamp;
pub use model::RepositoryModel;
pub use section::{RepositoryConfig, RepositoryControl, RepositoryFlags};
pub use triton::check_pbtxt;
