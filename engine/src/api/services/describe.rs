//! Descriptions of the server and of its models, without a protocol's form.

use super::models::FoundModel;
use crate::config::{QueryConfig, TensorLink};
use crate::control::{IndexEntry, State};
use crate::runtime::frontend::{ModelInfo, TensorDimension};
use std::collections::BTreeMap;
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

/// A tensor of a model as its metadata describes it.
pub(in crate::api) struct DescribedTensor<'m> {
    /// The name and type.
    pub(in crate::api) spec: &'m TensorSpec,
    /// The shape without the batch dimension; -1 where requests differ.
    pub(in crate::api) dimensions: Vec<i64>,
    /// True if the model has a batch dimension.
    has_batch: bool,
}

impl DescribedTensor<'_> {
    /// Returns the shape with the batch dimension, which is -1, where there is one.
    pub(in crate::api) fn whole_shape(&self) -> Vec<i64> {
        self.has_batch.then_some(-1).into_iter().chain(self.dimensions.iter().copied()).collect()
    }
}

/// Returns the largest batch in Triton's terms, in which a model without a batch dimension has 0.
pub(in crate::api) fn max_batch_size(model: &ModelInfo) -> usize {
    if model.signature.has_batch { model.max_batch } else { 0 }
}

/// Returns the inputs of a model.
pub(in crate::api) fn inputs(model: &ModelInfo) -> Vec<DescribedTensor<'_>> {
    let dimensions =
        |at: usize| model.sizes.as_ref().map(|classes| classes.inputs()[at].dimensions.as_slice());
    described(&model.signature.inputs, model.signature.has_batch, dimensions)
}

/// Returns the outputs of a model.
pub(in crate::api) fn outputs(model: &ModelInfo) -> Vec<DescribedTensor<'_>> {
    let dimensions = |at: usize| model.sizes.as_ref().map(|classes| classes.outputs()[at].as_slice());
    described(&model.signature.outputs, model.signature.has_batch, dimensions)
}

fn described<'m>(
    specs: &'m [TensorSpec],
    has_batch: bool,
    dimensions: impl Fn(usize) -> Option<&'m [TensorDimension]>,
) -> Vec<DescribedTensor<'m>> {
    let size = |of: &TensorDimension| match *of {
        TensorDimension::Fixed(size) => size as i64,
        TensorDimension::Follows { .. } | TensorDimension::OfClass => -1,
    };
    let tensor = |(at, spec): (usize, &'m TensorSpec)| DescribedTensor {
        spec,
        has_batch,
        dimensions: match dimensions(at) {
            // As Triton has it, a whole tensor of a single element is a list of one.
            None if !has_batch && spec.shape.is_empty() => vec![1],
            None => spec.shape.iter().map(|&size| size as i64).collect(),
            Some(dimensions) => dimensions.iter().map(size).collect(),
        },
    };
    specs.iter().enumerate().map(tensor).collect()
}

/// Returns the type's name in a model's configuration.
pub(in crate::api) fn config_type(spec: &TensorSpec) -> String {
    match spec.datatype.name() {
        "BYTES" => "TYPE_STRING".to_owned(),
        name => format!("TYPE_{name}"),
    }
}

/// Returns the parameters of a model's configuration that Triton has no fields for.
pub(in crate::api) fn parameters(model: &FoundModel) -> Vec<(&'static str, String)> {
    // Triton counts priorities from 1.
    let priority = model.class.number() + 1;
    let mut parameters =
        vec![("slo_ms", model.slo.as_millis_f64().to_string()), ("priority", priority.to_string())];
    if let Some(classes) = &model.sizes {
        let text = |sizes: &[usize]| {
            let sizes = classes.dimensions().iter().zip(sizes);
            sizes.map(|(name, size)| format!("{name}={size}")).collect::<Vec<_>>().join(",")
        };
        parameters.push(("size_classes", classes.sizes().map(text).collect::<Vec<_>>().join("; ")));
    }
    let applications = model.applications();
    if !applications.is_empty() {
        let names = applications.into_iter().map(|of| &*of.name);
        parameters.push(("applications", names.collect::<Vec<_>>().join(",")));
    }
    parameters
}

/// A stage of a query in Triton's terms: a step of its `ensemble_scheduling`.
pub(in crate::api) struct EnsembleStep<'q> {
    /// The name of the model.
    pub(in crate::api) model: &'q str,
    /// The model's version; -1 for the newest.
    pub(in crate::api) version: i64,
    /// The tensors of the query by the model's inputs.
    pub(in crate::api) input_map: BTreeMap<&'q str, &'q str>,
    /// The tensors of the query by the model's outputs.
    pub(in crate::api) output_map: BTreeMap<&'q str, &'q str>,
}

/// Returns the steps of a query.
pub(in crate::api) fn steps(query: &QueryConfig) -> impl Iterator<Item = EnsembleStep<'_>> {
    fn map(links: &[TensorLink]) -> BTreeMap<&str, &str> {
        links.iter().map(|link| (link.of_model.as_str(), link.tensor.as_str())).collect()
    }
    query.stages.iter().map(|stage| EnsembleStep {
        model: &stage.model,
        version: stage.version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX)),
        input_map: map(&stage.inputs),
        output_map: map(&stage.outputs),
    })
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
