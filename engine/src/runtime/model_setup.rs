//! The parts that a model needs before it can be served, at start-up and later: its signature, its
//! profile and its queues.

use super::backends::executors::LoadReport;
use super::callbacks::Progress;
use super::frontend::{Class, LoadedClass, SizeClasses, kept_classes};
use crate::config::{Diagnostics, ExecutorKind, ModelConfig, ModelSource, ProfileSource};
use std::ops::Range;
use std::sync::Arc;
use symphony_gpu::{Signature, TensorSpec};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The parts of a model that can be served.
#[derive(Clone)]
pub(crate) struct ServableModel {
    pub(crate) signature: Signature,
    /// The elements of each input where a client leaves it out.
    pub(crate) defaults: Arc<[Option<Vec<u8>>]>,
    pub(crate) profile: Profile,
}

/// Checks a model against its configuration and the report of its load.
pub(crate) fn check_model(
    model: &ModelConfig,
    found: Option<LoadReport>,
) -> Result<ServableModel, Diagnostics> {
    let measured = found.as_ref().and_then(|found| found.measured.as_ref());
    let profile = match (&model.profile, measured) {
        (ProfileSource::Given(profile), _) => match &found {
            Some(found) => profile.truncated(found.max_batch),
            None => profile.clone(),
        },
        (ProfileSource::Measure, Some(table)) => model.profile_by(table).map_err(|error| {
            Diagnostics(vec![model.locations.max_batch.diagnostic(error, "lower max_batch")])
        })?,
        (ProfileSource::Measure, None) => unreachable!("the first executor measures what has to be"),
    };
    let alone = profile.latency(1);
    if alone > model.slo {
        let wrong = format!(
            "{:.3} ms is less than one request of {} takes, {:.3} ms",
            model.slo.as_millis_f64(),
            model.label(),
            alone.as_millis_f64()
        );
        let right = "give the time that a batch of a few takes, and as much again for waiting";
        return Err(Diagnostics(vec![model.locations.slo.diagnostic(wrong, right)]));
    }
    let signature = match (&model.source, found) {
        (ModelSource::Emulated { signature }, _) => signature.clone(),
        (ModelSource::File { .. }, Some(found)) => found.signature,
        (ModelSource::File { .. }, None) => unreachable!("an executor has loaded every file"),
    };
    let undeclared = model.undeclared(&signature);
    if !undeclared.is_empty() {
        return Err(Diagnostics(undeclared));
    }
    let defaults = default_elements(&model.source, &signature);
    Ok(ServableModel { signature, defaults, profile })
}

/// Returns the elements of each input where a client leaves it out: the load has checked that the
/// types have them.
pub(crate) fn default_elements(source: &ModelSource, signature: &Signature) -> Arc<[Option<Vec<u8>>]> {
    let ModelSource::File { contents, .. } = source else { return Arc::default() };
    let element = |spec: &TensorSpec| spec.datatype.element(*contents.defaults.get(&spec.name)?);
    signature.inputs.iter().map(element).collect()
}

/// Returns the indices of the classes of a model that are kept: of each application those of the
/// sizes that are; all where the model has no size classes.
pub(crate) fn kept_of(models: &[ModelConfig], servable: &[ServableModel], progress: &Progress) -> Vec<usize> {
    let Some(variable) = models.first().and_then(|model| model.variable.as_ref()) else {
        return (0..models.len()).collect();
    };
    let sizes: Vec<Vec<usize>> = models.iter().map(ModelConfig::class_sizes).collect();
    let classes = loaded_classes(&sizes, servable);
    let applications = models.iter().filter(|model| model.class_sizes() == sizes[0]).count();
    let of_application = |application: usize| {
        let own: Vec<usize> = (application..models.len()).step_by(applications).collect();
        let its_classes: Vec<LoadedClass<'_>> = own.iter().map(|&at| classes[at]).collect();
        kept_classes(&its_classes, variable.max_waste).into_iter().map(|at| own[at]).collect::<Vec<_>>()
    };
    let mut kept: Vec<usize> = (0..applications).flat_map(of_application).collect();
    kept.sort_unstable();
    for (_, model) in models.iter().enumerate().filter(|(at, _)| !kept.contains(at)) {
        progress(&format!(
            "{} is no class of its own: in a larger one its requests waste at most {} of a batch's time",
            model.label(),
            variable.max_waste
        ));
    }
    kept
}

/// Returns the size classes of a model, of which those of `kept` are served, each in its slot;
/// `None` where `models` are none.
///
/// Errors: the key `padding` does not go with the model.
pub(crate) fn size_classes(
    models: &[ModelConfig],
    servable: &[ServableModel],
    kept: &[(usize, ModelId)],
    progress: &Progress,
) -> Result<Option<Arc<SizeClasses>>, Diagnostics> {
    let Some(model) = models.first() else { return Ok(None) };
    let Some(variable) = &model.variable else { return Ok(None) };
    let sizes: Vec<Vec<usize>> = models.iter().map(ModelConfig::class_sizes).collect();
    let classes = SizeClasses::new(variable, &loaded_classes(&sizes, servable), kept);
    let classes = classes.map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
    classes.notes().iter().for_each(|note| progress(&format!("{}: {note}", model.name)));
    Ok(Some(Arc::new(classes)))
}

fn loaded_classes<'a>(sizes: &'a [Vec<usize>], servable: &'a [ServableModel]) -> Vec<LoadedClass<'a>> {
    let class = |(sizes, servable): (&'a Vec<usize>, &'a ServableModel)| LoadedClass {
        sizes,
        signature: &servable.signature,
        profile: &servable.profile,
    };
    sizes.iter().zip(servable).map(class).collect()
}

/// Returns an empty queue for requests of this class, of a model whose own class is `own`.
pub(crate) fn queue_of_class(config: QueueConfig, class: Class, own: Class, from: Nanos) -> ModelQueue {
    let queue = ModelQueue::new(config, from);
    match class {
        Class::HIGHEST if own == class => queue,
        Class::HIGHEST => queue.unexpected(),
        _ => queue.below_others(),
    }
}

/// Returns the name in the API of the executor's kind that runs a model.
pub(crate) fn platform(source: &ModelSource) -> &'static str {
    match source {
        ModelSource::File { executor: ExecutorKind::OnnxRuntime, .. } => "onnxruntime_onnx",
        ModelSource::File { executor: ExecutorKind::Cuda, .. } => "onnx_cuda",
        ModelSource::File { .. } => "onnx_rten",
        ModelSource::Emulated { .. } => "emulated",
    }
}

/// Returns the range of a row's outputs in its slab slot: behind its inputs.
pub(crate) fn output_range(signature: &Signature) -> Range<usize> {
    signature.input_bytes()..signature.input_bytes() + signature.output_bytes()
}
