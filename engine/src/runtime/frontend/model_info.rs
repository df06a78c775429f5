//! What a frontend knows of each model slot: the model that it holds and the state that it is in.

use symphony_gpu::signature::Signature;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId};

/// The state of a model slot: whether requests may be sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotState {
    /// Its model is served.
    Serving,
    /// New requests no longer find its model; those sent before go on to their ends.
    Draining,
    /// It holds no model.
    Vacant,
}

/// A model that requests may be sent to, or a vacant model slot.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// The index of its model slot.
    pub id: ModelId,
    /// Its name in the configuration.
    pub name: String,
    /// Its version among models of that name.
    pub version: u64,
    /// The name that the API has for what runs it: `onnx_rten` or `emulated`.
    pub platform: String,
    /// Its tensors, of one row each.
    pub signature: Signature,
    /// The latency promised, from arrival to answer.
    pub slo: Nanos,
    /// The largest batch it runs.
    pub max_batch: usize,
    /// The class of requests that name none.
    pub class: Class,
    /// The ModelThread that owns it.
    pub thread: usize,
    /// The state of its model slot.
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
