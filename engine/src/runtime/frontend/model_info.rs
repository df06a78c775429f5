//! The description of a model slot, as frontends read it: its model and its state.

use std::sync::Arc;
use symphony_gpu::signature::Signature;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId};

/// The state of a model slot: whether requests may be sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// The slot's model is served.
    Serving,
    /// New requests no longer find its model; those sent before go on to their ends.
    Draining,
    /// The slot holds no model.
    Vacant,
}

/// A model that requests may be sent to, or a vacant model slot.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The index of its model slot.
    pub id: ModelId,
    /// The model's name in the configuration.
    pub name: String,
    /// The model's version among models of that name.
    pub version: u64,
    /// The name in the API of the executor's kind: `onnx_rten` or `emulated`.
    pub platform: String,
    /// The model's tensors, of one row each.
    pub signature: Signature,
    /// The latency promised, from arrival to answer.
    pub slo: Nanos,
    /// The largest batch of the model.
    pub max_batch: usize,
    /// How long the model's batches take.
    pub profile: Arc<Profile>,
    /// The class of requests that name none.
    pub class: Class,
    /// The ModelThread that owns the model.
    pub thread: usize,
    /// The state of the model slot.
    pub state: SlotState,
}

impl ModelInfo {
    /// Returns a vacant model slot of that ModelThread.
    pub(crate) fn vacant(id: ModelId, thread: usize) -> ModelInfo {
        ModelInfo {
            id,
            name: String::new(),
            version: 0,
            platform: String::new(),
            signature: Signature::default(),
            slo: Nanos::ZERO,
            max_batch: 0,
            profile: Arc::new(Profile::of_nothing()),
            class: Class::HIGHEST,
            thread,
            state: SlotState::Vacant,
        }
    }

    /// Returns those of `models` that are served.
    pub fn served(models: &[ModelInfo]) -> impl Iterator<Item = &ModelInfo> + Clone {
        models.iter().filter(|model| model.state == SlotState::Serving)
    }

    /// Returns the served model of that name: of that version, or the newest.
    pub fn find<'m>(models: &'m [ModelInfo], name: &str, version: Option<u64>) -> Option<&'m ModelInfo> {
        let named = ModelInfo::served(models).filter(|model| model.name == name);
        match version {
            None => named.max_by_key(|model| model.version),
            Some(version) => named.into_iter().find(|model| model.version == version),
        }
    }
}

/// Returns the bytes of one row of a model, input and output.
pub(super) fn row_bytes(info: &ModelInfo) -> usize {
    info.signature.input_bytes() + info.signature.output_bytes()
}
