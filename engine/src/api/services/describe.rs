//! Descriptions of the server and of its models, without a protocol's form.

use crate::control::{IndexEntry, State};
use crate::runtime::frontend::ModelInfo;
use symphony_gpu::TensorSpec;

/// The server's name.
pub(in crate::api) const NAME: &str = "symphony";

/// The server's version.
pub(in crate::api) const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The supported extensions of the Open Inference Protocol, by Triton's names.
pub(in crate::api) const EXTENSIONS: [&str; 10] = [
    "binary_tensor_data",
    "bytes_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
    "trace",
];

/// Returns a tensor's shape for metadata: -1 is the batch dimension.
pub(in crate::api) fn batched_shape(spec: &TensorSpec) -> impl Iterator<Item = i64> {
    std::iter::once(-1).chain(dimensions(spec))
}

/// Returns a tensor's shape without the batch dimension.
pub(in crate::api) fn dimensions(spec: &TensorSpec) -> impl Iterator<Item = i64> {
    spec.shape.iter().map(|&dimension| dimension as i64)
}

/// Returns the type's name in a model's configuration.
pub(in crate::api) fn config_type(spec: &TensorSpec) -> String {
    match spec.datatype.name() {
        "BYTES" => "TYPE_STRING".to_owned(),
        name => format!("TYPE_{name}"),
    }
}

/// Returns the parameters of a model's configuration that Triton has no fields for.
pub(in crate::api) fn parameters(model: &ModelInfo) -> [(&'static str, String); 2] {
    // Triton counts priorities from 1.
    let priority = model.class.number() + 1;
    [("slo_ms", model.slo.as_millis_f64().to_string()), ("priority", priority.to_string())]
}

/// Returns the version, empty for none, and the state of a model in the repository, in Triton's
/// terms.
pub(in crate::api) fn index_terms(entry: &IndexEntry) -> (String, &'static str) {
    let state = match entry.state {
        State::Ready => "READY",
        State::Loading => "LOADING",
        State::Unloading => "UNLOADING",
        State::Unavailable => "UNAVAILABLE",
    };
    (entry.version.map_or(String::new(), |version| version.to_string()), state)
}
