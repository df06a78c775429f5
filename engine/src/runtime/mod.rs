//! The real driver: threads pinned to cores that pump the state machines of
//! [`symphony_scheduler::model`] and [`symphony_scheduler::rank`], and the rings between them. An
//! [`Engine`] is all of them; `start.rs` puts it together, this file stops it.
//!
//! ```text
//!  Frontend ──Request──▶ ModelThread ──Frame──▶ backend thread (a CPU executor, or all emulated GPUs)
//!     ▲  ▲                 │    ▲                  │     │
//!     │  └────Response─────┘    │Grant             │     │
//!     │                   words ▼                  │     │
//!     │                    RankThread ◀─Completion─┘     │
//!     └──────────────────────Response────────────────────┘
//! ```
//!
//! Every arrow is a ring with one writer and one reader; each RankThread matches sub-clusters of
//! its own, and a model speaks to that of its sub-cluster only. What a ring can hold is what can be
//! under way: answers as many as a frontend has slots, grants one per model, completions what a GPU
//! may be given. Only requests and batches can meet a full ring; they then wait where they are, and
//! a frontend whose ring is full refuses.

pub mod backends;
pub mod clock;
pub mod counters;
pub mod frontend;
mod model_slots;
mod queue_ids;
mod start;
pub mod threads;

pub use backends::executors::Progress;
pub use frontend::Frontend;
pub use model_slots::{LoadedModel, ModelSlotError, ModelSlots};
pub use start::layout::{Layout, rank_role};
pub use threads::agent::{Idle, Placement};

use crate::config::{Config, Diagnostics};
use crate::recorder::{RecordConfig, RecordError};
use crate::runtime::clock::Clock;
use counters::Counters;
use frontend::{ModelInfo, ModelTable};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::slab::SlabError;
use threads::agent::{Agent, Member, StopSignal};

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is at fault, its models included.
    #[error("{0}")]
    Config(#[from] Diagnostics),
    /// A limit of the engine would be exceeded.
    #[error("{what}: {asked} asked for; the limit is {limit}")]
    Limit {
        /// What there would be too many of.
        what: &'static str,
        /// How many.
        asked: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The policy needs more than the pinned threads have.
    #[error("policy {0} runs in `simulate` only; serve with one of: {1}")]
    Policy(String, String),
    /// The machine did not give memory for requests in flight.
    #[error("{0}")]
    Slab(#[from] SlabError),
    /// The machine did not give a thread.
    #[error("the system gave no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The flight recorder's files can't be had.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// A thread died while it loaded its models.
    #[error("executor {0} died while it loaded its models; its last words are above")]
    Died(usize),
}

impl StartError {
    /// Whether so many are within the limit.
    fn at_most(what: &'static str, asked: usize, limit: usize) -> Result<(), StartError> {
        if asked <= limit { Ok(()) } else { Err(StartError::Limit { what, asked, limit }) }
    }
}

/// Told by a thread of its role, on that thread; of its roles with a `+` between them where they
/// share it.
pub type ThreadHook = Arc<dyn Fn(&str) + Send + Sync>;

/// How an engine is started, besides its configuration. The default: no recorder, the rest as the
/// machine asks.
#[derive(Clone, Default)]
pub struct Options {
    /// Where each ModelThread and RankThread keeps its flight recorder's file; `None` for no
    /// recorder.
    pub record: Option<RecordConfig>,
    /// Called by each thread of ModelThreads, of RankThreads and of the emulated GPUs, once it has
    /// its core and before its first turn: where a thread is to be watched, limited or given
    /// priority from outside.
    pub on_thread_start: Option<ThreadHook>,
    /// What ModelThreads and RankThreads do in turns without work, whatever the layout says.
    pub idle: Option<Idle>,
}

/// A running engine. Its frontends are given to the threads that own them; dropping it stops its
/// threads.
pub struct Engine {
    models: Arc<[ModelInfo]>,
    model_table: Arc<ModelTable>,
    profiles: Vec<Profile>,
    layout: Layout,
    clock: Clock,
    lateness: Nanos,
    accepting: Arc<AtomicBool>,
    counters: Counters,
    model_slots: Option<ModelSlots>,
    /// ModelThreads, RankThreads and the emulated GPUs, to be stopped in this order; the CPU
    /// executors come after.
    stages: [Stage; 3],
    stop_executors: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Roles that stop together, before those of the next stage.
#[derive(Default)]
struct Stage {
    endings: Vec<Arc<StopSignal>>,
}

impl Stage {
    /// A member of this stage.
    fn member(&mut self, role: String, agent: impl Agent + Send + 'static) -> Member {
        let ending = Arc::new(StopSignal::default());
        self.endings.push(Arc::clone(&ending));
        Member { role, agent: Box::new(agent), ending }
    }

    /// Asks its members to end and waits until they have.
    fn end(&self) {
        self.endings.iter().for_each(|ending| ending.asked.store(true, Ordering::Relaxed));
        while !self.endings.iter().all(|ending| ending.done.load(Ordering::Acquire)) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Engine {
    /// Loads the models, measures what has to be, and starts every thread, with `frontends`
    /// frontends.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start(
        config: Config,
        frontends: usize,
        say: Progress,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        Engine::start_with(config, frontends, say, Options::default())
    }

    /// As [`Engine::start`], with these options.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start_with(
        config: Config,
        frontends: usize,
        say: Progress,
        options: Options,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        let cores: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let mut layout = Layout::new(&config, frontends, &cores);
        if let Some(idle) = options.idle {
            layout.ranks.iter_mut().chain(&mut layout.models).for_each(|placement| placement.idle = idle);
        }
        start::Builder::new(config, layout, say, options)?.build(frontends)
    }

    /// What its threads count, readable at any time.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The places for models, to load and unload them while the engine runs; `None` where they were
    /// taken already, where CONFIG has no repository from which models could be loaded later, and
    /// where a flight recorder is on. Who has them must let go of them, or use them no more, before
    /// the engine is stopped.
    pub fn take_model_slots(&mut self) -> Option<ModelSlots> {
        self.model_slots.take()
    }

    /// What is served at any moment.
    pub fn model_table(&self) -> &Arc<ModelTable> {
        &self.model_table
    }

    /// Every place for a model, by id, as it was at start-up.
    pub fn models(&self) -> &Arc<[ModelInfo]> {
        &self.models
    }

    /// How long each model's batches take, by id.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// Its time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Cleared when it accepts no more requests.
    pub fn accepting(&self) -> &Arc<AtomicBool> {
        &self.accepting
    }

    /// Where its threads run.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// How late this machine's threads see that a time has come, as measured at start-up.
    pub fn lateness(&self) -> Nanos {
        self.lateness
    }

    /// Accepts no more requests. Those accepted go on to their ends: see [`Frontend::in_flight`].
    pub fn drain(&self) {
        self.accepting.store(false, Ordering::Relaxed);
    }

    /// The name of a thread that has died, which only a defect makes happen.
    pub fn dead(&self) -> Option<String> {
        self.threads
            .iter()
            .find(|thread| thread.is_finished())
            .map(|thread| thread.thread().name().unwrap_or("a thread").to_owned())
    }

    /// Stops every thread, in the order in which requests pass through them. Requests still under
    /// way end as [`Ending::Stopped`](symphony_transport::message::Ending::Stopped).
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.drain();
        self.stages.iter().for_each(Stage::end);
        self.stop_executors.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so, and Engine::dead has told.
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}
