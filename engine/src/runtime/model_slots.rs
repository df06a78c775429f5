//! The control thread's end of the engine: model slots, which it fills and frees while the engine
//! runs. A slot belongs to one ModelThread and one sub-cluster permanently, so that every table of
//! the dataplane stays as it was made at start-up; only the slot's queues, its models on the
//! backends, and the model table change. `control` owns [`ModelSlots`]; its module describes a
//! whole change.

use super::frontend::{Class, ModelInfo, QueryTable, SizeClasses, SlotState};
use super::model_setup::{
    ServableModel, check_model, kept_of, output_range, platform, queue_of_class, size_classes,
};
use crate::config::{Diagnostics, ExecutorKind, ModelConfig};
use crate::runtime::backends::executors::{self, LoadReport};
use crate::runtime::backends::libraries::Libraries;
use crate::runtime::backends::model_faults::ModelFaults;
use crate::runtime::callbacks::{Progress, no_progress};
use crate::runtime::clock::Clock;
use crate::runtime::frontend::model_table::{InFlightCounts, ModelTable};
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::changes::ChangeSender;
use crate::runtime::threads::model_thread::SlotQueues;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use symphony_gpu::{ComputeThread, HostModel, MeasureOptions, MeasuredBy, Signature};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, QueueId};

/// The time after which a thread that has not applied a change never will: it applies one within a
/// millisecond, or when the batch that it runs is over.
const CHANGE_TIMEOUT: Nanos = Nanos::from_millis(60_000);

/// The time that requests of lower classes get to find a GPU once their model is draining; they
/// might otherwise wait for ever.
const LOWER_CLASS_TIMEOUT: Nanos = Nanos::from_millis(5_000);

/// The pause between two checks whether a thread has applied a change.
const POLL_INTERVAL: Duration = Duration::from_micros(500);

/// The reason why a model got no slot.
#[derive(Debug, thiserror::Error)]
pub enum ModelSlotError {
    /// Every slot for its kind of executor is taken.
    #[error(
        "all {0} slots for models on \"{1}\" executors are taken; unload one, or set max_versions in [repository] to \
         more and start again"
    )]
    Full(usize, &'static str),
    /// No slab slot is large enough for a request of the model.
    #[error(
        "one request takes {0} bytes, inputs and outputs together, and the largest slots of this engine hold {1}; set \
         max_row_kb in [repository] to {need} and start again",
        need = .0.div_ceil(1 << 10)
    )]
    Row(usize, usize),
    /// The model itself is at fault.
    #[error("{0}")]
    Model(#[from] Diagnostics),
    /// A thread of the engine does not answer.
    #[error("the engine does not answer: it is stopping, or a thread of it has died")]
    Silent,
}

/// A model that was loaded for the executors, one copy for each.
pub struct LoadedModel {
    /// The model's configuration.
    pub config: ModelConfig,
    /// The report of the model's load; `None` for an emulated one.
    pub(crate) found: Option<LoadReport>,
    /// A copy for each CPU executor; none for an emulated one.
    pub(crate) copies: Vec<Box<dyn HostModel>>,
}

impl LoadedModel {
    /// Loads a copy of a model for each of `executors` executors, on `compute`, and measures it if
    /// its configuration asks for that: by that thread's CPU time, since other threads may have its
    /// core meanwhile, unless several threads, or a GPU, compute a batch. Returns when all of that
    /// is done.
    ///
    /// Errors: the model can't be loaded.
    pub fn load(
        config: ModelConfig,
        libraries: &Libraries,
        executors: usize,
        compute: &ComputeThread,
        progress: &Progress,
    ) -> Result<LoadedModel, Diagnostics> {
        let mut loaded = LoadedModel::emulated(config);
        if loaded.config.source.kind() == ExecutorKind::Emulated {
            return Ok(loaded);
        }
        let kind = loaded.config.source.kind();
        let on_one_thread = match kind {
            ExecutorKind::OnnxRuntime => libraries.onnxruntime.threads == 1,
            other => other == ExecutorKind::Cpu,
        };
        for at in 0..executors {
            let by = if on_one_thread { MeasuredBy::CpuTime } else { MeasuredBy::WallTime };
            let options = MeasureOptions { by, ..MeasureOptions::default() };
            let measuring = (at == 0).then_some(options);
            let place = (libraries, at as u32);
            let one = compute.run(|| executors::load(&loaded.config, compute, place, measuring, progress));
            if let Some((copy, found)) = one.map_err(|diagnostic| Diagnostics(vec![diagnostic]))? {
                loaded.copies.push(copy);
                loaded.found.get_or_insert(found);
            }
        }
        Ok(loaded)
    }

    /// Makes the model of another application of what was loaded: copies with buffers of their own,
    /// which share the weights.
    ///
    /// Errors: the library refuses what it has accepted before.
    pub(crate) fn for_application(
        &self,
        config: ModelConfig,
        compute: &ComputeThread,
    ) -> Result<LoadedModel, Diagnostics> {
        let copy = |graph| {
            let copy = compute.run(|| executors::share(&config, graph, compute));
            copy.map_err(|diagnostic| Diagnostics(vec![diagnostic]))
        };
        let copies = self.copies.iter().map(|of| copy(of.graph())).collect::<Result<_, _>>()?;
        Ok(LoadedModel { config, found: self.found.clone(), copies })
    }

    /// Returns an emulated model, of which there is nothing to load.
    pub fn emulated(config: ModelConfig) -> LoadedModel {
        LoadedModel { config, found: None, copies: Vec::new() }
    }
}

/// The parts that are fixed for all models of an engine.
pub(crate) struct SlotContext {
    pub(crate) clock: Clock,
    /// The function that makes the configuration of a per-class queue of a model with this SLO and
    /// profile.
    pub(crate) queue_config: Box<dyn Fn(QueueId, Nanos, Profile) -> QueueConfig + Send>,
    pub(crate) queue_ids: QueueIds,
    pub(crate) faults: Arc<ModelFaults>,
    pub(crate) libraries: Libraries,
    /// The bytes of the largest row that the slab slots hold.
    pub(crate) largest_row: usize,
    /// What passes the time between two checks whether a thread has applied a change.
    pub(crate) pause: Box<dyn FnMut() + Send>,
}

/// Sleeps for as long as a thread may well take to apply a change.
pub(crate) fn sleep_for_a_change() {
    std::thread::sleep(POLL_INTERVAL);
}

/// The sending end of models for a CPU executor.
type HostModelSender = ChangeSender<Option<Box<dyn HostModel>>>;

/// The channels to the threads that have tables of models.
pub(crate) struct ChangeChannels {
    /// The channel to each ModelThread.
    pub(crate) queues: Vec<ChangeSender<Box<SlotQueues>>>,
    /// The channel to each CPU executor, with its kind.
    pub(crate) executors: Vec<(ExecutorKind, HostModelSender)>,
    /// The channel to the emulated GPUs.
    pub(crate) emulated: Option<ChangeSender<Option<Range<usize>>>>,
}

/// The model slots of an engine. See the module's description.
pub struct ModelSlots {
    model_table: Arc<ModelTable>,
    /// The models of the current table.
    models: Vec<ModelInfo>,
    kinds: Vec<ExecutorKind>,
    /// The index of each slot on its ModelThread.
    on_thread: Vec<usize>,
    held: Vec<InFlightCounts>,
    channels: ChangeChannels,
    context: SlotContext,
    /// The tables that a frontend or a request may still hold, oldest first, each with its number.
    superseded: Vec<(u64, Arc<[ModelInfo]>)>,
    /// The models that are draining.
    draining: Vec<DrainingModel>,
}

/// A model that is draining.
struct DrainingModel {
    id: ModelId,
    /// The number of the first table that does not list it.
    number: u64,
    since: Nanos,
    /// True while the waiting requests of lower classes are given time.
    spares_lower: bool,
}

impl ModelSlots {
    pub(crate) fn new(
        model_table: Arc<ModelTable>,
        kinds: Vec<ExecutorKind>,
        held: Vec<InFlightCounts>,
        channels: ChangeChannels,
        context: SlotContext,
    ) -> ModelSlots {
        let models = model_table.read().1.to_vec();
        let mut counts = vec![0; channels.queues.len()];
        let on_thread = models.iter().map(|model| {
            let count = &mut counts[model.thread];
            *count += 1;
            *count - 1
        });
        let on_thread = on_thread.collect();
        let (superseded, draining) = (Vec::new(), Vec::new());
        ModelSlots { model_table, models, kinds, on_thread, held, channels, context, superseded, draining }
    }

    /// Makes the calls that wait for other threads pass the time with `pause`, and not asleep.
    pub(crate) fn pause_by(&mut self, pause: Box<dyn FnMut() + Send>) {
        self.context.pause = pause;
    }

    /// Returns every slot, by id, with the model that is served there.
    pub fn models(&self) -> &[ModelInfo] {
        &self.models
    }

    /// Returns the queries, whose stages are models of the slots.
    pub fn queries(&self) -> &QueryTable {
        self.model_table.queries()
    }

    /// Returns what loads models.
    pub(crate) fn libraries(&self) -> &Libraries {
        &self.context.libraries
    }

    /// Returns the number of executors of a kind that compute: a loaded model needs a copy for
    /// each.
    pub fn copies_for(&self, kind: ExecutorKind) -> usize {
        self.channels.executors.iter().filter(|(of, _)| *of == kind).count()
    }

    /// Gives a model without classes a slot, as [`ModelSlots::prepare_classes`] does.
    ///
    /// Errors: [`ModelSlotError`]; nothing has changed then, unless the engine stops.
    pub fn prepare(&mut self, loaded: LoadedModel) -> Result<ModelId, ModelSlotError> {
        Ok(self.prepare_classes(vec![loaded], &no_progress())?[0])
    }

    /// Gives each class of a model that is kept, or the model if it has none, a slot, its
    /// queues and its copies on the executors. They get no requests before they are in a table: see
    /// [`ModelSlots::switch`].
    ///
    /// Errors: [`ModelSlotError`]; nothing has changed then, unless the engine stops.
    pub fn prepare_classes(
        &mut self,
        loaded: Vec<LoadedModel>,
        progress: &Progress,
    ) -> Result<Vec<ModelId>, ModelSlotError> {
        let (mut configs, mut servable, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for LoadedModel { config, found, copies: own } in loaded {
            servable.push(check_model(&config, found)?);
            configs.push(config);
            copies.push(Some(own));
        }
        let kept = kept_of(&configs, &servable, progress);
        let rows = kept.iter().map(|&at| {
            let signature = &servable[at].signature;
            signature.input_bytes() + signature.output_bytes()
        });
        if let Some(row) = rows.max().filter(|row| *row > self.context.largest_row) {
            return Err(ModelSlotError::Row(row, self.context.largest_row));
        }
        let Some(kind) = configs.first().map(|config| config.source.kind()) else { return Ok(Vec::new()) };
        let vacant = |at: &usize| self.kinds[*at] == kind && self.models[*at].state == SlotState::Vacant;
        let slots: Vec<usize> = (0..self.models.len()).filter(vacant).take(kept.len()).collect();
        if slots.len() < kept.len() {
            let all = self.kinds.iter().filter(|of| **of == kind).count();
            return Err(ModelSlotError::Full(all, kind.name()));
        }
        let with_ids: Vec<(usize, ModelId)> =
            kept.iter().zip(&slots).map(|(&class, &at)| (class, self.models[at].id)).collect();
        let sizes = size_classes(&configs, &servable, &with_ids, progress)?;
        for (&class, &at) in kept.iter().zip(&slots) {
            let copies = copies[class].take().unwrap_or_default();
            self.fill(at, &configs[class], servable[class].clone(), sizes.clone(), copies)?;
        }
        Ok(with_ids.into_iter().map(|(_, id)| id).collect())
    }

    /// Gives a vacant slot a model: its queues, and its copies on the executors.
    fn fill(
        &mut self,
        at: usize,
        config: &ModelConfig,
        ServableModel { signature, defaults, profile }: ServableModel,
        sizes: Option<Arc<SizeClasses>>,
        copies: Vec<Box<dyn HostModel>>,
    ) -> Result<(), ModelSlotError> {
        let id = self.models[at].id;
        self.set_backends(at, Some(&signature), copies)?;
        self.context.faults.forget(id);
        let now = self.context.clock.now();
        let own = Class::new(config.priority).unwrap_or(Class::LOWEST);
        let queues = self.queues_of(id, |class, queue_id| {
            let queue_config = (self.context.queue_config)(queue_id, config.slo, profile.clone());
            Some(queue_of_class(queue_config, class, own, now))
        });
        self.set_queues(at, queues)?;
        // Marks the slot as taken, so that the next model gets another.
        self.models[at] = ModelInfo {
            name: config.name.clone(),
            version: config.version,
            platform: platform(&config.source).to_owned(),
            signature,
            defaults,
            sizes,
            application: config.application.clone(),
            variant: None,
            slo: config.slo,
            max_batch: profile.max_batch(),
            profile: Arc::new(profile),
            rolls: config.rolls(),
            class: own,
            state: SlotState::Draining,
            ..self.models[at].clone()
        };
        Ok(())
    }

    /// Publishes a table that has the models of `add`, which were prepared, and not those of
    /// `remove`. Requests that were accepted are still answered; the holder of an older table may
    /// still send some to the models of `remove`.
    pub fn switch(&mut self, add: &[ModelId], remove: &[ModelId]) {
        add.iter().for_each(|id| self.models[id.0 as usize].state = SlotState::Serving);
        remove.iter().for_each(|id| self.models[id.0 as usize].state = SlotState::Draining);
        self.publish();
        let number = self.model_table.number();
        let since = self.context.clock.now();
        self.draining.extend(remove.iter().map(|&id| DrainingModel {
            id,
            number,
            since,
            spares_lower: true,
        }));
    }

    fn publish(&mut self) {
        let before = self.model_table.number();
        let old = self.model_table.publish(self.models.as_slice().into());
        self.superseded.push((before, old));
    }

    /// Frees the slots of draining models that can get no request any more and have none left. Ends
    /// the waiting requests of lower classes of a model that has been draining for a while. Returns
    /// the number of models that are still draining.
    ///
    /// Errors: [`ModelSlotError::Silent`].
    pub fn reclaim(&mut self) -> Result<usize, ModelSlotError> {
        // Exclusive access is what shows that no one else holds the table; a count alone would
        // order nothing.
        self.superseded.retain_mut(|(_, table)| Arc::get_mut(table).is_none());
        let oldest = self.superseded.first().map_or(u64::MAX, |(number, _)| *number);
        let draining = std::mem::take(&mut self.draining);
        let (unseen, seen): (Vec<_>, Vec<_>) = draining.into_iter().partition(|model| oldest >= model.number);
        // The requests of models that are run as one are in the queues of the first.
        let holds = |slot: ModelId| self.held.iter().any(|held| held.count(slot.0 as usize) > 0);
        let is_free = |model: &DrainingModel| {
            !holds(model.id) && !self.models.iter().any(|of| of.queue_slot() == model.id && holds(of.id))
        };
        let (gone, mut held): (Vec<_>, Vec<_>) = unseen.into_iter().partition(is_free);
        let now = self.context.clock.now();
        for model in
            held.iter_mut().filter(|model| model.spares_lower && now - model.since > LOWER_CLASS_TIMEOUT)
        {
            model.spares_lower = false;
            self.end_lower(model.id)?;
        }
        self.draining.extend(seen.into_iter().chain(held));
        for model in &gone {
            self.vacate(model.id)?;
        }
        if !gone.is_empty() {
            self.publish();
        }
        Ok(self.draining.len())
    }

    /// Frees a slot that was prepared and is in no table.
    ///
    /// Errors: [`ModelSlotError::Silent`].
    pub fn release(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        self.vacate(id)
    }

    /// Returns the models that were found at fault since the last call and are to be unloaded, with
    /// the reasons.
    pub fn take_condemned(&mut self) -> Vec<(ModelId, String)> {
        self.context.faults.take_condemned()
    }

    /// Returns true while the model is draining.
    pub fn is_draining(&self, id: ModelId) -> bool {
        self.draining.iter().any(|draining| draining.id == id)
    }

    fn vacate(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        let at = id.0 as usize;
        let queues = self.queues_of(id, |_, queue_id| Some(self.queue_of_nothing(queue_id)));
        self.set_queues(at, queues)?;
        self.set_backends(at, None, Vec::new())?;
        self.models[at] = ModelInfo::vacant(id, self.models[at].thread);
        Ok(())
    }

    /// Ends the requests of lower classes that wait for a model, to which no more can be sent.
    fn end_lower(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        let nothing = |class, queue_id| (class > Class::HIGHEST).then(|| self.queue_of_nothing(queue_id));
        let queues = self.queues_of(id, nothing);
        self.set_queues(id.0 as usize, queues)
    }

    fn queue_of_nothing(&self, queue_id: QueueId) -> ModelQueue {
        let queue_config = (self.context.queue_config)(queue_id, Nanos::ZERO, Profile::of_nothing());
        ModelQueue::of_nothing(queue_config, self.context.clock.now())
    }

    /// Returns the queues that `new` makes for the classes of a model.
    fn queues_of(
        &self,
        model: ModelId,
        new: impl Fn(Class, QueueId) -> Option<ModelQueue>,
    ) -> Box<SlotQueues> {
        let mut queues = Box::new(SlotQueues::default());
        for (queue, class) in queues.iter_mut().zip(QueueIds::classes()) {
            *queue = new(class, self.context.queue_ids.of(model, class));
        }
        queues
    }

    fn set_queues(&mut self, at: usize, queues: Box<SlotQueues>) -> Result<(), ModelSlotError> {
        let channel = &mut self.channels.queues[self.models[at].thread];
        exchange(&mut self.context, channel, self.on_thread[at], queues).map(drop)
    }

    /// Gives the backends of a slot its model: a copy for each executor, or nothing.
    fn set_backends(
        &mut self,
        at: usize,
        signature: Option<&Signature>,
        copies: Vec<Box<dyn HostModel>>,
    ) -> Result<(), ModelSlotError> {
        match self.kinds[at] {
            ExecutorKind::Emulated => {
                let channel = self.channels.emulated.as_mut().ok_or(ModelSlotError::Silent)?;
                exchange(&mut self.context, channel, at, signature.map(output_range)).map(drop)
            }
            kind => {
                let mut copies = copies.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
                let own = self.channels.executors.iter_mut().filter(|(of, _)| *of == kind);
                let mut channels = own.zip(&mut copies);
                let context = &mut self.context;
                channels.try_for_each(|((_, channel), copy)| exchange(context, channel, at, copy).map(drop))
            }
        }
    }
}

/// Sends a thread a value for its table, waits until it has applied the change, and returns the
/// value that was there before.
fn exchange<T>(
    context: &mut SlotContext,
    channel: &mut ChangeSender<T>,
    index: usize,
    value: T,
) -> Result<T, ModelSlotError> {
    let began = context.clock.now();
    channel.send(index, value).map_err(|_| ModelSlotError::Silent)?;
    loop {
        if let Some(change) = channel.take_old() {
            return Ok(change.value);
        }
        if channel.is_abandoned() || context.clock.now() - began > CHANGE_TIMEOUT {
            return Err(ModelSlotError::Silent);
        }
        (context.pause)();
    }
}
