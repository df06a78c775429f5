//! LOADs and UNLOADs of models' weights on the process's GPUs, as clients order them: each is an
//! action of one GPU with a window in which it may begin and a predicted time. It needs no model
//! repository: what comes and goes are weights, and the model stays served.
//!
//! # The way of an order
//!
//! ```text
//! POST /v2/gpus/models/NAME/load         (`symphony ctl load NAME`)
//!   which GPUs, which weights            GpuLoaders::order: one action for each
//!   the window, from now on              ActionQueue of the GPU, by `earliest`
//! the loader's thread of the GPU: the window is over ─▶ cancelled
//!   its turn has come: do the pages suffice? is it loaded already? ─▶ refused
//!   its worker's thread: pages are mapped, weights copied, on a stream of their own
//!   it ends, or takes ten times its prediction: the GPU is given up
//! each action is answered once; the order, once all of its actions are
//! ```
//!
//! # Threads
//!
//! Each GPU has two. The loader's thread decides, and never calls the driver; the worker's thread
//! calls it, and may hang there. Batches are the backend's thread's, which takes none for weights
//! that are not there, and from which an UNLOAD waits for those under way.
//!
//! # Bounds
//!
//! Actions that wait for a GPU:
//! [`MAX_WAITING_ACTIONS`](symphony_scheduler::actions::MAX_WAITING_ACTIONS). One more is refused.

mod loader;
mod pending;

pub use pending::{DoneChange, WeightsChange, WeightsDone, WeightsEnd, WeightsError};

use crate::runtime::clock::Clock;
use crate::runtime::frontend::{ModelInfo, ModelTable, SlotState};
use crate::runtime::gpu_memory::{ServedGpu, ServedGpus};
use crate::runtime::{Engine, Progress};
use loader::{GpuAction, LoaderEnd, LoaderPlan};
use pending::Gathering;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use symphony_gpu::cuda::DeviceWeights;
use symphony_scheduler::actions::ActionWindow;
use symphony_transport::Nanos;

/// The time within which an action begins that is given no limit.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// An order of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightsOrder {
    /// What is to be done.
    pub change: WeightsChange,
    /// The model's name.
    pub model: String,
    /// The version; all of them if none is given.
    pub version: Option<u64>,
    /// The engine's number of the GPU; all GPUs of the model if none is given.
    pub gpu: Option<u32>,
    /// The time from now on after which it may begin.
    pub after: Duration,
    /// The time from then on within which it has to begin; a minute if none is given.
    pub within: Option<Duration>,
}

/// The loaders of the process's GPUs. Dropping it ends their threads; what is loaded stays loaded.
pub struct GpuLoaders {
    loaders: Vec<(Arc<ServedGpu>, LoaderEnd)>,
    model_table: Arc<ModelTable>,
    clock: Clock,
}

impl fmt::Debug for GpuLoaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuLoaders").field("gpus", &self.loaders.len()).finish_non_exhaustive()
    }
}

/// Weights on a GPU that an order is about.
struct WeightsTarget {
    at: usize,
    info: ModelInfo,
    weights: Arc<DeviceWeights>,
}

impl GpuLoaders {
    /// Starts a loader for each GPU of an engine. An action of which nothing is known yet may take
    /// `hung_after` before its GPU counts as hung. `progress` gets, in a line each, what they do.
    ///
    /// Errors: the system gives no thread.
    pub fn start(engine: &Engine, hung_after: Nanos, progress: &Progress) -> std::io::Result<GpuLoaders> {
        let memory: &ServedGpus = engine.gpu_memory();
        let (clock, model_table) = (engine.clock().clone(), Arc::clone(engine.model_table()));
        let start = |gpu: Arc<ServedGpu>| {
            let (clock, progress) = (clock.clone(), Arc::clone(progress));
            let model_table = Arc::clone(&model_table);
            let plan = LoaderPlan { gpu: Arc::clone(&gpu), model_table, clock, hung_after, progress };
            Ok((gpu, plan.start()?))
        };
        let loaders = memory.gpus().into_iter().map(start).collect::<std::io::Result<_>>()?;
        Ok(GpuLoaders { loaders, clock: engine.clock().clone(), model_table })
    }

    /// Loads or unloads the weights of a model. `done` is called once it is over, or with the
    /// reason why it was not done.
    pub fn order(&self, order: &WeightsOrder, done: WeightsDone) {
        let now = self.clock.now();
        let earliest = now + order.after.into();
        let latest = earliest + order.within.unwrap_or(BEGINS_WITHIN).into();
        let targets = match self.targets(order) {
            Ok(targets) => targets,
            Err(error) => return done(Err(error)),
        };
        let gathering = Gathering::new(targets.len(), done);
        for WeightsTarget { at, info, weights } in targets {
            let pending = gathering.one();
            let action = GpuAction { change: order.change, info, weights, pending };
            self.loaders[at].1.add(ActionWindow { earliest, latest }, action);
        }
    }

    /// Returns what an order is about: of all GPUs only those on which there is something to do.
    ///
    /// Errors: there is no such GPU or model, the model has no weights there, or there is nothing
    /// to do.
    fn targets(&self, order: &WeightsOrder) -> Result<Vec<WeightsTarget>, WeightsError> {
        let WeightsOrder { change, model, version, gpu, .. } = order;
        let numbers: Vec<String> = self.loaders.iter().map(|(gpu, _)| gpu.number().0.to_string()).collect();
        if numbers.is_empty() {
            return Err(WeightsError::no_gpu());
        }
        if let Some(gpu) = gpu.filter(|gpu| !numbers.contains(&gpu.to_string())) {
            let list = numbers.join(", ");
            return Err(WeightsError::Unknown(format!(
                "there is no GPU {gpu} of kind \"cuda\" here; there are {list}"
            )));
        }
        let table = self.model_table.models();
        let is_meant = |info: &&ModelInfo| {
            info.state == SlotState::Serving
                && info.name == *model
                && version.is_none_or(|of| of == info.version)
        };
        let named: Vec<&ModelInfo> = table.iter().filter(is_meant).collect();
        let Some(first) = named.first() else {
            return Err(WeightsError::Unknown(unknown(model, *version, &table)));
        };
        let mut targets: Vec<WeightsTarget> = Vec::new();
        for (at, (served, _)) in self.loaders.iter().enumerate() {
            if gpu.is_some_and(|of| of != served.number().0) {
                continue;
            }
            for &info in &named {
                let Some(weights) = served.weights_of(info.id) else { continue };
                if targets.iter().all(|of| !Arc::ptr_eq(&of.weights, &weights)) {
                    targets.push(WeightsTarget { at, info: info.clone(), weights });
                }
            }
        }
        if targets.is_empty() {
            let platform = &first.platform;
            return Err(WeightsError::Wrong(format!(
                "model {model:?} has no weights on a GPU: its platform is {platform}"
            )));
        }
        let all = targets.len();
        targets.retain(|of| gpu.is_some() || all == 1 || !change.is_done(of.weights.state()));
        match targets.is_empty() {
            true => Err(WeightsError::Wrong(format!("model {model:?} is {} on every GPU", change.done()))),
            false => Ok(targets),
        }
    }

    /// Ends the loaders' threads, and waits for what they are doing, but for no longer than
    /// `limit`: the driver may hang. Orders that wait end as [`WeightsError::Stopped`].
    pub fn stop_within(&self, limit: Duration) {
        self.loaders.iter().for_each(|(_, loader)| loader.begin_stop());
        let end = std::time::Instant::now() + limit;
        self.loaders.iter().for_each(|(_, loader)| loader.wait_until(end));
    }
}

impl Drop for GpuLoaders {
    fn drop(&mut self) {
        self.loaders.iter().for_each(|(_, loader)| loader.begin_stop());
    }
}

/// Returns that no model of this name is served, with those that are.
fn unknown(model: &str, version: Option<u64>, table: &[ModelInfo]) -> String {
    const LONGEST: usize = 80;
    const LISTED: usize = 10;
    let name: String = model.chars().take(LONGEST).collect();
    let version = version.map_or(String::new(), |of| format!(", version {of},"));
    let mut names: Vec<String> = Vec::new();
    for info in table.iter().filter(|info| info.state == SlotState::Serving) {
        let named = format!("{:?}", info.name);
        if !names.contains(&named) && names.len() < LISTED {
            names.push(named);
        }
    }
    format!("no model {name:?}{version} is served; there are {}", names.join(", "))
}
