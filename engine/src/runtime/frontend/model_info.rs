//! The description of a model slot, as frontends read it: its model and its state.

use super::size_classes::SizeClasses;
use crate::config::ServedApplication;
use std::borrow::Cow;
use std::sync::Arc;
use symphony_gpu::signature::Signature;
use symphony_scheduler::limits;
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

/// A model's place among several that are run as one, over the layers that they share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variant {
    /// The slot of the first of them, whose queues all their requests go to.
    pub slot: ModelId,
    /// The number by which a row says that it is for this model.
    pub number: u32,
}

/// A model that requests may be sent to, or a class of one, or a vacant model slot; or a query,
/// which is in no slot. The classes of a model are those of its sizes and applications.
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
    /// The elements of each input where a client leaves it out, in the signature's order; `None`
    /// for one that must be given.
    pub defaults: Arc<[Option<Vec<u8>>]>,
    /// The size classes of the model, of which this slot is one.
    pub sizes: Option<Arc<SizeClasses>>,
    /// The application whose requests this slot is for, of a model that has several.
    pub application: Option<ServedApplication>,
    /// The model's place among those that it is run as one with.
    pub variant: Option<Variant>,
    /// The latency promised, from arrival to answer.
    pub slo: Nanos,
    /// The largest batch of the model.
    pub max_batch: usize,
    /// How long the model's batches take, as given or measured when it was loaded.
    pub profile: Arc<Profile>,
    /// True if the model is scheduled by its rolling profile, once there is one.
    pub rolls: bool,
    /// The class of requests that name none.
    pub class: Class,
    /// The ModelThread that owns the model.
    pub thread: usize,
    /// The state of the model slot.
    pub state: SlotState,
}

impl ModelInfo {
    /// Returns a vacant model slot of that ModelThread.
    pub fn vacant(id: ModelId, thread: usize) -> ModelInfo {
        ModelInfo {
            id,
            name: String::new(),
            version: 0,
            platform: String::new(),
            signature: Signature::default(),
            defaults: Arc::default(),
            sizes: None,
            application: None,
            variant: None,
            slo: Nanos::ZERO,
            max_batch: 0,
            profile: Arc::new(Profile::of_nothing()),
            rolls: false,
            class: Class::HIGHEST,
            thread,
            state: SlotState::Vacant,
        }
    }

    /// Returns the description of the query at `at` among a server's queries. Its id is that of no
    /// model slot, for counts only.
    pub fn of_query(at: usize, name: &str, slo: Nanos) -> ModelInfo {
        ModelInfo {
            name: name.to_owned(),
            version: 1,
            platform: "ensemble".to_owned(),
            slo,
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId((limits::MAX_MODELS + at) as u32), 0)
        }
    }

    /// Returns the slot whose queues its requests go to, and whose batches run them.
    pub fn queue_slot(&self) -> ModelId {
        self.variant.map_or(self.id, |variant| variant.slot)
    }

    /// Returns the shortest SLO of the models whose requests go to the queues of this slot of
    /// `models`, its table, and the highest of their classes: what the queues are planned for.
    pub(crate) fn planned_for(models: &[ModelInfo], slot: ModelId) -> (Nanos, Class) {
        let of_slot = || ModelInfo::served(models).filter(|model| model.queue_slot() == slot);
        let own = &models[slot.0 as usize];
        let slo = of_slot().map(|model| model.slo).min().unwrap_or(own.slo);
        (slo, of_slot().map(|model| model.class).min().unwrap_or(own.class))
    }

    /// Returns true if it describes a query.
    pub fn is_query(&self) -> bool {
        self.id.0 as usize >= limits::MAX_MODELS
    }

    /// Returns those of `models` that are served.
    pub fn served(models: &[ModelInfo]) -> impl Iterator<Item = &ModelInfo> + Clone {
        models.iter().filter(|model| model.state == SlotState::Serving)
    }

    /// Returns those of `models` that are served, of a model in classes only the one in the last
    /// slot.
    pub fn served_once(models: &[ModelInfo]) -> impl Iterator<Item = &ModelInfo> {
        ModelInfo::served(models)
            .filter(|model| !model.has_classes() || model.classes(models).all(|of| of.id <= model.id))
    }

    /// Returns true if the model is served in several slots, of which this is one.
    pub fn has_classes(&self) -> bool {
        self.sizes.is_some() || self.application.is_some()
    }

    /// Returns the served model of that name: of that version, or the newest. Of a model in classes
    /// it is the one in the last slot.
    pub fn find<'m>(models: &'m [ModelInfo], name: &str, version: Option<u64>) -> Option<&'m ModelInfo> {
        let named = ModelInfo::served(models).filter(|model| model.name == name);
        let wanted = named.filter(|model| version.is_none_or(|version| model.version == version));
        wanted.max_by_key(|model| (model.version, model.id))
    }

    /// Returns the classes of the model that `models`, its table, serves; itself alone where it has
    /// none.
    pub fn classes<'m>(&'m self, models: &'m [ModelInfo]) -> impl Iterator<Item = &'m ModelInfo> {
        let is_class = |of: &&ModelInfo| match self.has_classes() {
            false => of.id == self.id,
            true => (&of.name, of.version) == (&self.name, self.version),
        };
        ModelInfo::served(models).filter(is_class)
    }

    /// Returns the application of this name of the model that `models`, its table, serves; the
    /// first where none is named. `None` where there is no such application.
    pub fn application_named<'m>(
        &'m self,
        models: &'m [ModelInfo],
        name: Option<&str>,
    ) -> Option<&'m ServedApplication> {
        let mut served = self.classes(models).filter_map(|of| of.application.as_ref());
        match name {
            Some(name) => served.find(|of| *of.name == *name),
            None => served.min_by_key(|of| of.at),
        }
    }

    /// Returns the class of `models`, its table, that a request of these sizes and of this
    /// application goes to: of those that hold it and are served the smallest. `None` where there
    /// is none; itself where it has no classes.
    pub fn class_for<'m>(
        &'m self,
        models: &'m [ModelInfo],
        sizes: &[usize],
        application: Option<&ServedApplication>,
    ) -> Option<&'m ModelInfo> {
        let is_of = |model: &&ModelInfo| {
            model.application.as_ref().map(|of| of.at) == application.map(|application| application.at)
        };
        match &self.sizes {
            None => self.classes(models).find(is_of),
            Some(classes) => {
                let mut slots = classes.holding(sizes).filter_map(|slot| models.get(slot.0 as usize));
                slots.find(|model| model.state == SlotState::Serving && is_of(model))
            }
        }
    }

    /// Returns the name, with what makes it a class if it is one: `encoder (sequence=128, chat)`.
    pub fn label(&self) -> Cow<'_, str> {
        let sizes = self.sizes.as_ref().map(|sizes| sizes.text(self.id));
        let application = self.application.as_ref().map(|of| of.name.to_string());
        let of_class: Vec<String> = sizes.into_iter().chain(application).collect();
        match of_class.is_empty() {
            true => Cow::Borrowed(&self.name),
            false => format!("{} ({})", self.name, of_class.join(", ")).into(),
        }
    }
}

/// Returns the bytes of one row of a model, input and output.
pub(super) fn row_bytes(info: &ModelInfo) -> usize {
    info.signature.input_bytes() + info.signature.output_bytes()
}
