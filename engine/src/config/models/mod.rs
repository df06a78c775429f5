//! The tables `[[models]]` of CONFIG. Models of a repository are read by the same functions, from
//! each model's own file.
//!
//! | file | content |
//! | --- | --- |
//! | `model.rs` | a model: its name, SLO, batch limit and priority |
//! | `source.rs` | an ONNX file and what its tensors hold, or the signature of an emulated model |
//! | `sizes.rs` | sizes, or buckets of sizes, of dynamic dimensions in an ONNX file |
//! | `applications.rs` | kinds of requests whose run times differ |
//! | `prefix_member.rs`, `prefix_groups.rs` | models that share their first layers |
//! | `tensors.rs` | the tensors of an emulated model |
//! | `profile.rs` | l(b): measured at load, a CSV file, or linear |
//! | `declared.rs` | the tensors that a `config.pbtxt` declares |
//! | `warmup.rs` | the requests by which a `config.pbtxt` warms the model up |

mod applications;
mod declared;
mod model;
mod prefix_groups;
mod prefix_member;
mod profile;
mod sizes;
mod source;
mod tensors;
mod warmup;

pub use applications::ServedApplication;
pub use declared::{DeclaredTensor, DeclaredTensors};
pub use model::{ModelConfig, ModelLocations};
pub use prefix_groups::MAX_PREFIX_GROUP;
pub use prefix_member::PrefixMember;
pub use profile::ProfileSource;
pub use sizes::{DimensionBuckets, InputPadding, PadWith, VariableDimensions};
pub use source::{FileContents, ModelSource};
pub use warmup::{WarmupData, WarmupInput, WarmupSample};

pub(super) use applications::read_application_name;
pub(super) use model::{is_model_name, read_models};
pub(super) use prefix_groups::check_prefix_groups;
pub(super) use profile::{ClassProfile, limit_batch, read_profiles, read_rolling};
pub(super) use sizes::{Sizes, read_sizes};
pub(super) use source::{emulated_source, read_contents, read_emulated_model};
