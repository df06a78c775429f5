//! The control thread's end of the engine: the places for models, taken and given back while it
//! runs. Each place is of one ModelThread and one sub-cluster for good, so that every table of the
//! dataplane stays as it was made at start-up; what changes is the queue at that place, what
//! backends run there, and what the model_table says. `control` owns [`ModelSlots`] and says when;
//! docs of that module tell the whole way of a change.

use super::frontend::{Class, ModelInfo, SlotState};
use super::model_setup::{Known, output_range, platform, queue_of_class, settle};
use crate::config::{Diagnostics, ExecutorKind, ModelConfig};
use crate::runtime::backends::executors::{self, Found};
use crate::runtime::callbacks::Progress;
use crate::runtime::clock::Clock;
use crate::runtime::frontend::model_table::{Held, ModelTable};
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::changes::Giver;
use crate::runtime::threads::model_thread::SlotQueues;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony_gpu::{ComputeThread, CpuModel, MeasureOptions, MeasuredBy, Signature};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// A running thread takes a change within a millisecond, or when the batch that it runs is over:
/// one that has not after this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests of lower classes get so long to find a GPU once their model has left; they might wait
/// for ever.
const PATIENCE_WITH_LOWER: Duration = Duration::from_secs(5);

/// Between two looks at whether it has.
const LOOK: Duration = Duration::from_micros(500);

/// Why a model has no place.
#[derive(Debug, thiserror::Error)]
pub enum ModelSlotError {
    /// Every place for its kind of executor is taken.
    #[error(
        "all {0} places for models on \"{1}\" executors are taken; unload one, or set max_versions in [repository] to \
         more and start again"
    )]
    Full(usize, &'static str),
    /// No slot holds a request of it.
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
    /// Its words.
    pub config: ModelConfig,
    /// What was found out as it was loaded, `None` for an emulated one.
    pub(crate) found: Option<Found>,
    /// A copy for each CPU executor; none for an emulated one.
    pub(crate) copies: Vec<CpuModel>,
}

impl LoadedModel {
    /// Loads a copy of a CPU model for each of so many executors, on `compute`, and measures it if
    /// its words ask for it: by that thread's CPU time, since other threads may have its core
    /// meanwhile. Takes as long as it takes.
    ///
    /// Errors: the model can't be loaded.
    pub fn load(
        config: ModelConfig,
        executors: usize,
        compute: &ComputeThread,
        say: &Progress,
    ) -> Result<LoadedModel, Diagnostics> {
        let mut loaded = LoadedModel::emulated(config);
        if loaded.config.source.kind() == ExecutorKind::Emulated {
            return Ok(loaded);
        }
        for at in 0..executors {
            let options = MeasureOptions { by: MeasuredBy::CpuTime, ..MeasureOptions::default() };
            let measuring = (at == 0).then_some(options);
            let one = compute.run(|| executors::load(&loaded.config, compute, measuring, say));
            if let Some((copy, found)) = one.map_err(|mistake| Diagnostics(vec![mistake]))? {
                loaded.copies.push(copy);
                loaded.found.get_or_insert(found);
            }
        }
        Ok(loaded)
    }

    /// An emulated model: there is nothing to load.
    pub fn emulated(config: ModelConfig) -> LoadedModel {
        LoadedModel { config, found: None, copies: Vec::new() }
    }
}

/// What is fixed for all models of an engine.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    /// The terms of a lane of a model with this SLO and profile.
    pub(crate) terms: Box<dyn Fn(ModelId, Nanos, Profile) -> QueueConfig + Send>,
    pub(crate) lanes: QueueIds,
    /// The largest row that the slots hold.
    pub(crate) largest_row: usize,
}

/// The ways to the threads that have tables of models.
pub(crate) struct Ways {
    /// By ModelThread.
    pub(crate) queues: Vec<Giver<Box<SlotQueues>>>,
    /// By CPU executor.
    pub(crate) executors: Vec<Giver<Option<Box<CpuModel>>>>,
    /// To the emulated GPUs.
    pub(crate) emulated: Option<Giver<Range<usize>>>,
}

/// See the module's description.
pub struct ModelSlots {
    model_table: Arc<ModelTable>,
    /// What the current table says.
    models: Vec<ModelInfo>,
    kinds: Vec<ExecutorKind>,
    /// Of each place, its number on its ModelThread.
    on_thread: Vec<usize>,
    held: Vec<Held>,
    ways: Ways,
    common: Common,
    /// Tables that somebody may still hold, oldest first, each with its number.
    old: Vec<(u64, Arc<[ModelInfo]>)>,
    /// Models on their way out.
    leaving: Vec<Leaving>,
}

/// A model on its way out.
struct Leaving {
    id: ModelId,
    /// The number of the first table that does not list it.
    number: u64,
    since: Instant,
    /// What waits of lower classes is still given time.
    patient: bool,
}

impl ModelSlots {
    pub(crate) fn new(
        model_table: Arc<ModelTable>,
        kinds: Vec<ExecutorKind>,
        held: Vec<Held>,
        ways: Ways,
        common: Common,
    ) -> ModelSlots {
        let models = model_table.read().1.to_vec();
        let mut counts = vec![0; ways.queues.len()];
        let on_thread = models.iter().map(|model| {
            let count = &mut counts[model.thread];
            *count += 1;
            *count - 1
        });
        let on_thread = on_thread.collect();
        let (old, leaving) = (Vec::new(), Vec::new());
        ModelSlots { model_table, models, kinds, on_thread, held, ways, common, old, leaving }
    }

    /// Every place, by id: what is served there.
    pub fn models(&self) -> &[ModelInfo] {
        &self.models
    }

    /// How many CPU executors there are: a loaded model needs a copy for each.
    pub fn cpu_executors(&self) -> usize {
        self.ways.executors.len()
    }

    /// Gives a model a place, its queue and what runs it. Nobody can send requests to it before it
    /// is in a table: see [`ModelSlots::switch`].
    ///
    /// Errors: [`ModelSlotError`]; nothing has changed then, unless the engine stops.
    pub fn prepare(&mut self, loaded: LoadedModel) -> Result<ModelInfo, ModelSlotError> {
        let LoadedModel { config, found, copies } = loaded;
        let Known { signature, profile } = settle(&config, found)?;
        let row = signature.input_bytes() + signature.output_bytes();
        if row > self.common.largest_row {
            return Err(ModelSlotError::Row(row, self.common.largest_row));
        }
        let kind = config.source.kind();
        let vacant = |at: &usize| self.kinds[*at] == kind && self.models[*at].state == SlotState::Vacant;
        let at = (0..self.models.len()).find(vacant).ok_or_else(|| {
            ModelSlotError::Full(self.kinds.iter().filter(|of| **of == kind).count(), kind.name())
        })?;
        let id = self.models[at].id;
        self.set_backends(at, &signature, copies)?;
        let now = self.common.clock.now();
        let own = Class::new(config.priority).unwrap_or(Class::LOWEST);
        let queues = self.queues_of(id, |class, lane| {
            let terms = (self.common.terms)(lane, config.slo, profile.clone());
            Some(queue_of_class(terms, class, own, now))
        });
        self.set_queues(at, queues)?;
        // Taken, so that the next one gets another place.
        self.models[at] = ModelInfo {
            name: config.name.clone(),
            version: config.version,
            platform: platform(&config.source).to_owned(),
            signature,
            slo: config.slo,
            max_batch: profile.max_batch(),
            class: own,
            state: SlotState::Draining,
            ..self.models[at].clone()
        };
        Ok(self.models[at].clone())
    }

    /// Posts a table: the models of `add`, which were prepared, are in it, and those of `remove`
    /// are not. Requests that were accepted go on to their ends; who has looked a model of `remove`
    /// up before may still send some.
    pub fn switch(&mut self, add: &[ModelId], remove: &[ModelId]) {
        add.iter().for_each(|id| self.models[id.0 as usize].state = SlotState::Serving);
        remove.iter().for_each(|id| self.models[id.0 as usize].state = SlotState::Draining);
        self.post();
        let number = self.model_table.number();
        let since = Instant::now();
        self.leaving.extend(remove.iter().map(|&id| Leaving { id, number, since, patient: true }));
    }

    fn post(&mut self) {
        let before = self.model_table.number();
        let old = self.model_table.post(self.models.as_slice().into());
        self.old.push((before, old));
    }

    /// Frees the places of models that left and that nobody can have a request for any more. Ends
    /// what waits of lower classes for a model that left a while ago. How many are still leaving.
    ///
    /// Errors: [`ModelSlotError::Silent`].
    pub fn tidy(&mut self) -> Result<usize, ModelSlotError> {
        // Exclusive access is what shows that nobody else holds the table; a count alone would
        // order nothing.
        self.old.retain_mut(|(_, table)| Arc::get_mut(table).is_none());
        let oldest = self.old.first().map_or(u64::MAX, |(number, _)| *number);
        let leaving = std::mem::take(&mut self.leaving);
        let (unseen, seen): (Vec<_>, Vec<_>) = leaving.into_iter().partition(|model| oldest >= model.number);
        let is_free = |model: &Leaving| self.held.iter().all(|held| held.count(model.id.0 as usize) == 0);
        let (gone, mut held): (Vec<_>, Vec<_>) = unseen.into_iter().partition(is_free);
        for model in
            held.iter_mut().filter(|model| model.patient && model.since.elapsed() > PATIENCE_WITH_LOWER)
        {
            model.patient = false;
            self.end_lower(model.id)?;
        }
        self.leaving.extend(seen.into_iter().chain(held));
        for model in &gone {
            self.vacate(model.id)?;
        }
        if !gone.is_empty() {
            self.post();
        }
        Ok(self.leaving.len())
    }

    /// Gives up a place that was prepared and is in no table.
    ///
    /// Errors: [`ModelSlotError::Silent`].
    pub fn give_up(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        self.vacate(id)
    }

    /// Whether the model is still on its way out.
    pub fn is_leaving(&self, id: ModelId) -> bool {
        self.leaving.iter().any(|leaving| leaving.id == id)
    }

    fn vacate(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        let at = id.0 as usize;
        let queues = self.queues_of(id, |_, lane| Some(self.queue_of_nothing(lane)));
        self.set_queues(at, queues)?;
        self.set_backends(at, &Signature::default(), Vec::new())?;
        self.models[at] = ModelInfo::vacant(id, self.models[at].thread);
        Ok(())
    }

    /// Ends the requests of lower classes that wait for a model: nobody can send more.
    fn end_lower(&mut self, id: ModelId) -> Result<(), ModelSlotError> {
        let nothing = |class, lane| (class > Class::HIGHEST).then(|| self.queue_of_nothing(lane));
        let queues = self.queues_of(id, nothing);
        self.set_queues(id.0 as usize, queues)
    }

    fn queue_of_nothing(&self, lane: ModelId) -> ModelQueue {
        let terms = (self.common.terms)(lane, Nanos::ZERO, Profile::of_nothing());
        ModelQueue::of_nothing(terms, self.common.clock.now())
    }

    /// The queues that `new` makes for a model's lanes, for those that it makes one for.
    fn queues_of(
        &self,
        model: ModelId,
        new: impl Fn(Class, ModelId) -> Option<ModelQueue>,
    ) -> Box<SlotQueues> {
        let mut queues = Box::new(SlotQueues::default());
        for (queue, class) in queues.iter_mut().zip(QueueIds::classes()) {
            *queue = new(class, self.common.lanes.of(model, class));
        }
        queues
    }

    fn set_queues(&mut self, at: usize, queues: Box<SlotQueues>) -> Result<(), ModelSlotError> {
        let way = &mut self.ways.queues[self.models[at].thread];
        exchange(way, self.on_thread[at], queues).map(drop)
    }

    /// Gives the backends of a place what they run there: a copy for each executor, or nothing.
    fn set_backends(
        &mut self,
        at: usize,
        signature: &Signature,
        copies: Vec<CpuModel>,
    ) -> Result<(), ModelSlotError> {
        match self.kinds[at] {
            ExecutorKind::Emulated => {
                let way = self.ways.emulated.as_mut().ok_or(ModelSlotError::Silent)?;
                exchange(way, at, output_range(signature)).map(drop)
            }
            ExecutorKind::Cpu => {
                let mut copies = copies
                    .into_iter()
                    .map(|copy| Some(Box::new(copy)))
                    .chain(std::iter::repeat_with(|| None));
                let mut ways = self.ways.executors.iter_mut().zip(&mut copies);
                ways.try_for_each(|(way, copy)| exchange(way, at, copy).map(drop))
            }
        }
    }
}

/// Gives a thread `thing` for its table, and waits until it has taken it; what was there before.
fn exchange<T>(way: &mut Giver<T>, place: usize, thing: T) -> Result<T, ModelSlotError> {
    let began = Instant::now();
    way.give(place, thing).map_err(|_| ModelSlotError::Silent)?;
    loop {
        if let Some(change) = way.take_back() {
            return Ok(change.thing);
        }
        if way.is_abandoned() || began.elapsed() > PATIENCE {
            return Err(ModelSlotError::Silent);
        }
        std::thread::sleep(LOOK);
    }
}
