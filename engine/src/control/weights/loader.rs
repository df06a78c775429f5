//! The loader of one GPU: a thread that decides which action is next, and one that calls the
//! driver, which may hang there. See the room's description.

use super::pending::{DoneChange, PendingChange, WeightsChange, WeightsError};
use crate::runtime::Progress;
use crate::runtime::clock::Clock;
use crate::runtime::frontend::{ModelInfo, ModelTable};
use crate::runtime::gpu_memory::ServedGpu;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use symphony_gpu::counted::{are, counted};
use symphony_gpu::cuda::{DeviceWeights, WeightsState};
use symphony_scheduler::actions::{ActionQueue, ActionStep, ActionTimes, ActionWindow, MAX_WAITING_ACTIONS};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The longest time between two looks at a GPU that has something to do: its backend's thread may
/// have given it up.
const LOOK_EVERY: Nanos = Nanos::from_millis(100);

/// What a loader is made of.
pub(super) struct LoaderPlan {
    pub(super) gpu: Arc<ServedGpu>,
    pub(super) model_table: Arc<ModelTable>,
    pub(super) clock: Clock,
    /// The least time that an action may take before the GPU counts as hung.
    pub(super) hung_after: Nanos,
    pub(super) progress: Progress,
}

/// An action of a GPU.
pub(super) struct GpuAction {
    pub(super) change: WeightsChange,
    pub(super) info: ModelInfo,
    pub(super) weights: Arc<DeviceWeights>,
    pub(super) pending: PendingChange,
}

/// What a loader's thread is told.
enum LoaderEvent {
    Add(ActionWindow, Box<GpuAction>),
    /// The worker has ended what it was given: the pages, or why not.
    Ended(Result<u32, String>),
    Stop,
}

/// What a worker is given.
struct DriverWork {
    change: WeightsChange,
    weights: Arc<DeviceWeights>,
    patience: Duration,
}

impl DriverWork {
    fn run(&self) -> Result<u32, String> {
        match self.change {
            WeightsChange::Load => self.weights.load_within(self.patience).map(|load| load.pages),
            WeightsChange::Unload => self.weights.unload_within(self.patience),
        }
    }
}

/// The sending end of a loader.
pub(super) struct LoaderEnd {
    events: Sender<LoaderEvent>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LoaderEnd {
    /// Adds an action.
    pub(super) fn add(&self, window: ActionWindow, action: GpuAction) {
        // A loader that has ended drops the action, which ends it.
        let _ = self.events.send(LoaderEvent::Add(window, Box::new(action)));
    }

    /// Has the loader end.
    pub(super) fn begin_stop(&self) {
        let _ = self.events.send(LoaderEvent::Stop);
    }

    /// Waits until the loader has ended, or until `limit`.
    pub(super) fn wait_until(&self, limit: Instant) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        while !thread.is_finished() {
            if Instant::now() >= limit {
                // Dropping the handle lets the thread go on alone.
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl LoaderPlan {
    /// Starts the loader's threads.
    ///
    /// Errors: the system gives none.
    pub(super) fn start(self) -> std::io::Result<LoaderEnd> {
        let (events, told) = channel();
        let (work, given) = channel::<DriverWork>();
        let (ended, number) = (events.clone(), self.gpu.number().0);
        let spawn = |name: &str| std::thread::Builder::new().name(format!("{name}-{number}"));
        let worker = spawn("loads").spawn(move || {
            for work in given {
                if ended.send(LoaderEvent::Ended(work.run())).is_err() {
                    return;
                }
            }
        })?;
        let loader = Loader {
            plan: self,
            queue: ActionQueue::default(),
            running: None,
            times: BTreeMap::new(),
            is_stopping: false,
            has_given_up: false,
        };
        let thread = spawn("loader").spawn(move || {
            let is_idle = loader.run(&told, &work);
            drop(work);
            if is_idle {
                // A panic's message is on standard error already.
                let _ = worker.join();
            }
        })?;
        Ok(LoaderEnd { events, thread: Mutex::new(Some(thread)) })
    }
}

/// The action that is under way.
struct RunningAction {
    action: GpuAction,
    began: Nanos,
    predicted: Option<Nanos>,
    give_up_at: Nanos,
}

/// The state of a loader's thread.
struct Loader {
    plan: LoaderPlan,
    queue: ActionQueue<GpuAction>,
    running: Option<RunningAction>,
    /// How long the changes of each model took. A slot's times go with its weights.
    times: BTreeMap<(ModelId, WeightsChange), (Weak<DeviceWeights>, ActionTimes)>,
    is_stopping: bool,
    /// True once the worker hangs in the driver.
    has_given_up: bool,
}

impl Loader {
    /// Works until it is told to stop, and what is under way is over. Returns false if the worker
    /// was given up.
    fn run(mut self, events: &Receiver<LoaderEvent>, work: &Sender<DriverWork>) -> bool {
        loop {
            let now = self.plan.clock.now();
            let wait = self.tend(now, work);
            if self.is_stopping && self.running.is_none() {
                return !self.has_given_up;
            }
            let event = match wait {
                Nanos::MAX => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                until => events.recv_timeout((until - now).into()),
            };
            match event {
                Ok(LoaderEvent::Add(window, action)) => self.add(window, *action),
                Ok(LoaderEvent::Ended(result)) => self.ended(result),
                Ok(LoaderEvent::Stop) => {
                    self.is_stopping = true;
                    // Those that wait end as they are dropped.
                    drop(self.queue.drain());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.running.is_none(),
            }
        }
    }

    fn lost(&self) -> Option<WeightsError> {
        let reason = self.plan.gpu.device().open.lost()?;
        Some(WeightsError::Lost(format!("GPU {} is taken out: {reason}", self.plan.gpu.number().0)))
    }

    fn add(&mut self, window: ActionWindow, action: GpuAction) {
        let refused = match self.is_stopping {
            true => Err((action, WeightsError::Stopped)),
            false => self.queue.add(window, action).map_err(|action| {
                let gpu = self.plan.gpu.number().0;
                let busy =
                    format!("{MAX_WAITING_ACTIONS} loads and unloads wait for GPU {gpu}; try again later");
                (action, WeightsError::Busy(busy))
            }),
        };
        if let Err((action, error)) = refused {
            action.pending.end(Err(error));
        }
    }

    /// Does what is due, and returns when to look again.
    fn tend(&mut self, now: Nanos, work: &Sender<DriverWork>) -> Nanos {
        if let Some(RunningAction { action, began, give_up_at, .. }) = &self.running
            && now >= *give_up_at
        {
            let (change, name) = (action.change.name(), &action.info.name);
            let seconds = (now - *began).as_secs_f64();
            let reason = format!("the {change} of {name} has not ended after {seconds:.1} s");
            self.plan.gpu.device().open.give_up(reason);
            self.has_given_up = true;
            self.ended(Err("the GPU hangs".to_owned()));
        }
        if let Some(lost) = self.lost() {
            self.queue.drain().into_iter().for_each(|action| action.pending.end(Err(lost.clone())));
        }
        loop {
            match self.queue.step(now) {
                ActionStep::Begin(action) => self.begin(action, now, work),
                ActionStep::Cancel(action) => self.cancel(action),
                ActionStep::Wait(until) => {
                    let is_idle = self.running.is_none() && self.queue.waiting() == 0;
                    let give_up_at = self.running.as_ref().map_or(Nanos::MAX, |of| of.give_up_at);
                    return if is_idle { Nanos::MAX } else { until.min(give_up_at).min(now + LOOK_EVERY) };
                }
            }
        }
    }

    fn cancel(&self, action: GpuAction) {
        let (change, name, gpu) = (action.change.name(), &action.info.name, self.plan.gpu.number().0);
        let why =
            format!("the {change} of {name} on GPU {gpu} was cancelled: it could not begin in its window");
        action.pending.end(Err(WeightsError::Late(why)));
    }

    /// Begins an action, or refuses it.
    fn begin(&mut self, action: GpuAction, now: Nanos, work: &Sender<DriverWork>) {
        if let Some(error) = self.refusal(&action) {
            self.queue.ended();
            return action.pending.end(Err(error));
        }
        let (hung_after, times) = (self.plan.hung_after, self.times_of(&action));
        let (predicted, patience) = (times.predicted(), times.patience(hung_after));
        // Whatever waits within the call gives up first, and says more.
        let give_up_at = now + patience + patience + hung_after;
        let (change, weights) = (action.change, Arc::clone(&action.weights));
        // The worker lives for as long as this thread.
        let _ = work.send(DriverWork { change, weights, patience: patience.into() });
        self.running = Some(RunningAction { action, began: now, predicted, give_up_at });
    }

    /// Returns how long an action's change took before.
    fn times_of(&mut self, action: &GpuAction) -> &mut ActionTimes {
        let key = (action.info.id, action.change);
        let fresh = || {
            let mut times = ActionTimes::default();
            // The weights were loaded when the model was made.
            if let Some(load) = action.weights.last_load().filter(|_| action.change == WeightsChange::Load) {
                times.observe(load.whole);
            }
            (Arc::downgrade(&action.weights), times)
        };
        let entry = self.times.entry(key).or_insert_with(fresh);
        if entry.0.as_ptr() != Arc::as_ptr(&action.weights) {
            *entry = fresh();
        }
        &mut entry.1
    }

    /// Returns why an action whose turn has come is not done, if it is not.
    fn refusal(&self, action: &GpuAction) -> Option<WeightsError> {
        let (device, gpu) = (self.plan.gpu.device(), self.plan.gpu.number().0);
        let (name, weights) = (&action.info.name, &action.weights);
        let free = device.pages().free;
        match action.change {
            change
                if change.is_done(weights.state()) && weights.held_pages() == expected(change, weights) =>
            {
                Some(WeightsError::Wrong(format!("model {name:?} is {} on GPU {gpu} already", change.done())))
            }
            WeightsChange::Unload if !device.maps_pages() => Some(WeightsError::Wrong(format!(
                "GPU {gpu} can't map pages, so that weights stay where they are"
            ))),
            WeightsChange::Load if weights.pages() > free + weights.held_pages() => {
                Some(WeightsError::Wrong(self.short_of(action, free)))
            }
            _ => None,
        }
    }

    /// Returns that the free pages do not suffice, and what could go instead.
    fn short_of(&self, action: &GpuAction, free: u32) -> String {
        let (name, needed, gpu) = (&action.info.name, action.weights.pages(), self.plan.gpu.number().0);
        let table = self.plan.model_table.models();
        let loaded: Vec<String> = self
            .plan
            .gpu
            .weights()
            .into_iter()
            .filter(|(_, weights)| weights.state() == WeightsState::Loaded)
            .map(|(slot, weights)| format!("{} ({})", table[slot.0 as usize].name, weights.pages()))
            .collect();
        let (pages, verb) = (counted(needed.into(), "page"), are(free.into()));
        let right = match loaded.is_empty() {
            true => "no model is loaded there; give it more memory".to_owned(),
            false => format!("unload one of {}", loaded.join(", ")),
        };
        format!("model {name:?} needs {pages}, {free} {verb} free on GPU {gpu}; {right}")
    }

    /// Ends the action that was under way.
    fn ended(&mut self, result: Result<u32, String>) {
        let now = self.plan.clock.now();
        let lost = self.lost();
        let Some(RunningAction { action, began, predicted, .. }) = self.running.take() else { return };
        self.queue.ended();
        let (took, gpu) = (now - began, self.plan.gpu.number());
        let (change, model, version) = (action.change, action.info.name.clone(), action.info.version);
        let result = match (result, lost) {
            (Ok(pages), _) => {
                self.times_of(&action).observe(took);
                Ok(DoneChange { change, gpu, model, version, pages, took, predicted })
            }
            (Err(_), Some(lost)) => {
                tracing::error!("{lost}");
                Err(lost)
            }
            (Err(why), None) => {
                let change = change.name();
                Err(WeightsError::Failed(format!("the {change} of {model} on GPU {} failed: {why}", gpu.0)))
            }
        };
        match &result {
            Ok(done) => (self.plan.progress)(&done.to_string()),
            Err(error) => (self.plan.progress)(&error.to_string()),
        }
        action.pending.end(result);
    }
}

/// Returns the pages that weights have once a change is done.
fn expected(change: WeightsChange, weights: &DeviceWeights) -> u32 {
    match change {
        WeightsChange::Load => weights.pages(),
        WeightsChange::Unload => 0,
    }
}
