//! The shared state of all API cores: the counts of each of them, the health of the engine's
//! threads, and the last seconds' history.

use super::advice;
use super::health::{NotReady, ThreadHealth};
use super::history::{HISTORY_MODELS, HistorySample, LoadHistory, OutcomeTotals};
use super::metrics::{CoreCounts, CoreTurns, Metrics, ModelRequests};
use super::otlp::TraceCounts;
use super::outcome::InferOutcome;
use crate::runtime::Engine;
use crate::runtime::clock::Clock;
use crate::runtime::counters::Counters;
use crate::runtime::discovery::DiscoveryView;
use crate::runtime::frontend::{Frontend, ModelInfo, ModelTable, ServedQuery, SlotState};
use crate::runtime::gpu_memory::ServedGpus;
use crate::runtime::links::{LinkBoard, LinkView};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::run_time::RunTimeHistogram;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The telemetry of a server, shared by all of its API cores.
#[derive(Debug)]
pub struct Telemetry {
    clock: Clock,
    model_table: Arc<ModelTable>,
    counters: Counters,
    gpu_memory: Arc<ServedGpus>,
    accepting: Arc<AtomicBool>,
    cores: Mutex<Vec<Arc<CoreCounts>>>,
    health: Mutex<ThreadHealth>,
    history: Mutex<LoadHistory>,
    traces: Option<Arc<TraceCounts>>,
    links: Option<Arc<LinkBoard>>,
}

impl Telemetry {
    /// Returns the telemetry of `engine`.
    pub fn of(engine: &Engine) -> Telemetry {
        Telemetry {
            clock: engine.clock().clone(),
            model_table: Arc::clone(engine.model_table()),
            counters: engine.counters().clone(),
            gpu_memory: Arc::clone(engine.gpu_memory()),
            accepting: Arc::clone(engine.accepting()),
            cores: Mutex::default(),
            health: Mutex::new(ThreadHealth::new(engine.profiles())),
            history: Mutex::default(),
            traces: None,
            links: engine.links().cloned(),
        }
    }

    /// Returns the telemetry of one frontend, where there is no engine at hand: requests only.
    pub fn through(frontend: &Frontend) -> Telemetry {
        Telemetry {
            clock: frontend.clock().clone(),
            model_table: Arc::clone(frontend.model_table()),
            counters: Counters::default().with_frontends(std::iter::once(Arc::clone(frontend.counts()))),
            gpu_memory: Arc::default(),
            accepting: Arc::clone(frontend.accepting_flag()),
            cores: Mutex::default(),
            health: Mutex::new(ThreadHealth::new(&[])),
            history: Mutex::default(),
            traces: None,
            links: None,
        }
    }

    /// Adds the counts of traces, if there are any.
    pub fn with_traces(self, traces: Option<Arc<TraceCounts>>) -> Telemetry {
        Telemetry { traces, ..self }
    }

    /// Returns the queries that are served at the moment, by id. They must not be held for long.
    pub fn queries(&self) -> Vec<Arc<ServedQuery>> {
        self.model_table.queries().served()
    }

    /// Adds the API core whose thread has this name, and returns the metrics that it counts with.
    pub fn add_core(&self, thread: &str) -> Metrics {
        let counts = Arc::new(CoreCounts::new(thread));
        lock(&self.cores).push(Arc::clone(&counts));
        Metrics::new(counts)
    }

    /// Returns every model slot at the moment, by id. The table must not be held for long.
    pub fn models(&self) -> Arc<[ModelInfo]> {
        self.model_table.models()
    }

    /// Returns the profile of the model that a slot has at the moment; `None` if it has none.
    pub fn profile(&self, model: ModelId) -> Option<Arc<Profile>> {
        let models = self.models();
        let model = models.get(model.0 as usize).filter(|model| model.state != SlotState::Vacant)?;
        Some(Arc::clone(&model.profile))
    }

    /// Returns the counters of the engine's threads.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the memory of the process's GPUs.
    pub fn gpu_memory(&self) -> &ServedGpus {
        &self.gpu_memory
    }

    /// Returns the engine's time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns what all cores have counted of a model; `None` if it never got a request.
    pub fn requests(&self, model: ModelId) -> Option<ModelRequests> {
        let mut sum = ModelRequests::default();
        let read = lock(&self.cores).iter().filter(|core| core.read_model(model, &mut sum)).count();
        (read > 0).then_some(sum)
    }

    /// Returns the models and the queries that have got a request, by id, and the models of which
    /// batches ran for a query.
    pub fn models_asked_for(&self) -> Vec<ModelId> {
        let cores = lock(&self.cores);
        let (models, queries) = (self.models(), self.queries());
        let ids = models.iter().chain(queries.iter().map(|query| &query.info)).map(|model| model.id);
        let executions = self.counters.executions();
        let is_asked_for = |&model: &ModelId| {
            cores.iter().any(|core| core.was_asked_for(model)) || executions.of_model(model).batches > 0
        };
        ids.filter(is_asked_for).collect()
    }

    /// Returns the counts of traces, if there are any.
    pub fn traces(&self) -> Option<&TraceCounts> {
        self.traces.as_deref()
    }

    /// Returns the links to other hosts; none where the engine is one process.
    pub fn links(&self) -> Vec<LinkView> {
        self.links.as_ref().map_or(Vec::new(), |board| board.links())
    }

    /// Returns the state of discovery; `None` where CONFIG says where all hosts are.
    pub fn discovery(&self) -> Option<DiscoveryView> {
        self.links.as_ref().and_then(|board| board.discovery())
    }

    /// Returns the HTTP responses of all cores by status.
    pub fn responses(&self) -> BTreeMap<u16, u64> {
        let mut sum = BTreeMap::new();
        for core in lock(&self.cores).iter() {
            core.responses().for_each(|(status, count)| *sum.entry(status).or_default() += count);
        }
        sum
    }

    /// Returns the connections ever opened to any core, and those open now.
    pub fn connections(&self) -> (u64, u64) {
        let cores = lock(&self.cores);
        let all = cores.iter().map(|core| core.connections());
        all.fold((0, 0), |sum, core| (sum.0 + core.0, sum.1 + core.1))
    }

    /// Returns the number of panics of the handlers of requests, on all cores.
    pub fn handler_panics(&self) -> u64 {
        lock(&self.cores).iter().map(|core| core.panics()).sum()
    }

    /// Returns the turns of the tasks of each core.
    pub fn turns(&self) -> Vec<CoreTurns> {
        lock(&self.cores).iter().map(|core| core.turns()).collect()
    }

    /// Returns `Ok` if requests can be served.
    ///
    /// Errors: every reason why not.
    pub fn readiness(&self) -> Result<(), Vec<NotReady>> {
        let mut reasons = Vec::new();
        if !self.accepting.load(Ordering::Relaxed) {
            reasons.push(NotReady::Draining);
        }
        if ModelInfo::served(&self.models()).next().is_none() {
            reasons.push(NotReady::NoModel);
        }
        reasons.extend(lock(&self.health).trouble());
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    /// Returns the share of the last seconds in which each GPU ran batches, 0 to 1; empty before
    /// [`Telemetry::observe`] was called.
    pub fn utilization(&self) -> Vec<f64> {
        self.history(LoadHistory::utilization)
    }

    /// Returns the number of GPUs that would serve the load of the last seconds, as
    /// docs/dashboard.md describes; `None` before there was a second.
    pub fn advised_gpus(&self) -> Option<usize> {
        self.history(LoadHistory::load).map(|load| advice::advised_gpus(&load))
    }

    /// Returns the largest ratio of a model's rolling profile to its profile, over all batch sizes;
    /// `None` before enough batches of a size have run.
    pub fn profile_drift(&self, model: ModelId) -> Option<f64> {
        self.counters.rolling_profiles().drift(model)
    }

    /// Returns the run times of an application's requests, where the policy learns them.
    pub fn run_times(&self, model: ModelId) -> Option<RunTimeHistogram> {
        self.counters.run_times().of(model)
    }

    /// Returns a model's rolling profile; `None` before enough batches of a size have run.
    pub fn rolling_profile(&self, model: ModelId) -> Option<Profile> {
        self.counters.rolling_profiles().profile(model)
    }

    /// Samples the progress of the engine's threads and the load of its GPUs.
    /// It must be called several times a second. `dead` is the name of a thread that has died.
    pub fn observe(&self, dead: Option<&str>) {
        let now = self.now();
        lock(&self.health).observe(now, &self.counters, dead);
        if self.history(|history| history.is_due(now)) {
            let (second, busy) = self.sample(now);
            lock(&self.history).add(second, busy);
        }
    }

    /// Returns the counts up to now, and the time that each GPU was busy.
    fn sample(&self, now: Nanos) -> (HistorySample, Vec<Nanos>) {
        let mut second = HistorySample { at: now, ..HistorySample::default() };
        for model in self.models_asked_for() {
            let mut outcomes = [0; InferOutcome::COUNT];
            lock(&self.cores).iter().for_each(|core| core.read_outcomes(model, &mut outcomes));
            second.outcomes.iter_mut().zip(outcomes).for_each(|(sum, count)| *sum += count);
            if second.models.len() < HISTORY_MODELS {
                second.models.push((model, OutcomeTotals::of(&outcomes)));
            }
        }
        (second, self.counters.executions().of_gpus().map(|gpu| gpu.busy).collect())
    }

    /// Reads the history.
    pub(super) fn history<T>(&self, read: impl FnOnce(&LoadHistory) -> T) -> T {
        read(&lock(&self.history))
    }
}

/// Locks a mutex, even after a panic: no change of the data behind these leaves it inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
