//! What the server says of itself and of its models, without a protocol's form.

use crate::api::problem::{Problem, quoted};
use crate::control::{IndexEntry, State};
use crate::runtime::frontend::ModelInfo;
use symphony_gpu::TensorSpec;

/// The server's name.
pub(in crate::api) const NAME: &str = "symphony";

/// The server's version.
pub(in crate::api) const SERVER_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The extensions of the Open Inference Protocol that are spoken here, by Triton's names.
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

/// A tensor's shape for metadata: -1 is the batch dimension.
pub(in crate::api) fn batched_shape(spec: &TensorSpec) -> impl Iterator<Item = i64> {
    std::iter::once(-1).chain(dimensions(spec))
}

/// A tensor's shape without the batch dimension.
pub(in crate::api) fn dimensions(spec: &TensorSpec) -> impl Iterator<Item = i64> {
    spec.shape.iter().map(|&dimension| dimension as i64)
}

/// The type's name in a model's configuration.
pub(in crate::api) fn config_type(spec: &TensorSpec) -> String {
    match spec.datatype.name() {
        "BYTES" => "TYPE_STRING".to_owned(),
        name => format!("TYPE_{name}"),
    }
}

/// What a model's configuration says beyond Triton's fields.
pub(in crate::api) fn parameters(model: &ModelInfo) -> [(&'static str, String); 2] {
    // Triton counts priorities from 1.
    let priority = model.class.number() + 1;
    [("slo_ms", model.slo.as_millis_f64().to_string()), ("priority", priority.to_string())]
}

/// The version, empty for none, and the state of a model in the repository, in Triton's words.
pub(in crate::api) fn index_words(entry: &IndexEntry) -> (String, &'static str) {
    let state = match entry.state {
        State::Ready => "READY",
        State::Loading => "LOADING",
        State::Unloading => "UNLOADING",
        State::Unavailable => "UNAVAILABLE",
    };
    (entry.version.map_or(String::new(), |version| version.to_string()), state)
}

/// Why a parameter of a request to load a model is not taken.
pub(in crate::api) fn no_load_parameter(name: &str) -> Problem {
    Problem::bad(format!(
        "parameter {} is not taken: a model's files and its configuration come from the repository",
        quoted(name)
    ))
}
