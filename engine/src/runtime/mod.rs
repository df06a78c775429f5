//! The real driver: threads pinned to cores that pump the state machines of [`crate::model`] and [`crate::rank`],
//! the rings between them, start-up and shutdown.
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
//! Every arrow is a ring with one writer and one reader. What a ring can hold is what can be under way: answers as
//! many as a frontend has slots, grants one per model, completions what a GPU may be given. Only requests and
//! batches can meet a full ring; they then wait where they are, and a frontend whose ring is full refuses.

mod agent;
mod batches;
pub mod counters;
mod cpu_backend;
mod emulated_backend;
mod executors;
pub mod frontend;
mod layout;
mod model_thread;
mod rank_thread;
mod reserve;
pub mod threads;
mod watch;
mod wire;

pub use agent::{Idle, Seat};
pub use executors::Say;
pub use frontend::Frontend;
pub use layout::Layout;

use crate::clock::{Clock, Nanos};
use crate::config::{Config, ExecutorKind, Mistakes, ModelConfig, ModelSource, ProfileSource};
use crate::limits;
use crate::model::{ModelQueue, Terms};
use crate::policy;
use crate::profile::Profile;
use crate::rank::RankState;
use crate::recorder::{ClusterTerms, ModelRecorder, RankRecorder, RecordConfig, RecordError};
use crate::workload::Network;
use agent::{Agent, Crew, Ending, Member, measure_lateness};
use batches::{Answers, Inbox};
use counters::Counters;
use emulated_backend::EmulatedBackend;
use executors::{Found, Loading, Setup, Wiring};
use frontend::{FrontendPeer, FrontendSetup, ModelInfo};
use model_thread::{ModelThread, Outbox, RingOutlets};
use rank_thread::{Grants, RankThread, RankWatch, SubCluster};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_gpu::Signature;
use symphony_transport::message::{BatchHeader, Completion, ModelId, Request};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::{SlabError, SlabView};
use symphony_transport::wheel::Wheel;
use threads::{ModelLinks, RankLinks, link, slack_for};
use watch::ModelWatch;

/// A lateness above this part of an SLO is not allowed for: on a machine as busy as that, allowing for it would leave
/// no time to wait for a batch to grow.
const LATENESS_IN_SLO: u64 = 50;

/// The largest ring of batches, in frames (4 MiB): enough for 250 batches of 1,024. A grant waits for room.
const MAX_FRAME_RING: usize = 1 << 16;

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is at fault, its models included.
    #[error("{0}")]
    Config(#[from] Mistakes),
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

/// Told by a thread of its role, on that thread; of its roles with a `+` between them where they share it.
pub type Seated = Arc<dyn Fn(&str) + Send + Sync>;

/// How an engine is started, besides its configuration. The default: no recorder, the rest as the machine asks.
#[derive(Clone, Default)]
pub struct Options {
    /// Where each ModelThread and RankThread keeps its flight recorder's file; `None` for no recorder.
    pub record: Option<RecordConfig>,
    /// Called by each thread of ModelThreads, of the RankThread and of the emulated GPUs, once it has its core and before
    /// its first turn: where a thread is to be watched, limited or given priority from outside.
    pub seated: Option<Seated>,
    /// What ModelThreads and RankThreads do in turns without work, whatever the layout says.
    pub idle: Option<Idle>,
}

/// A running engine. Its frontends are given to the threads that own them; dropping it stops its threads.
pub struct Engine {
    models: Arc<[ModelInfo]>,
    profiles: Vec<Profile>,
    layout: Layout,
    lateness: Nanos,
    accepting: Arc<AtomicBool>,
    counters: Counters,
    /// ModelThreads, the RankThread and the emulated GPUs, to be stopped in this order; the CPU executors come after.
    stages: [Stage; 3],
    stop_executors: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Roles that stop together, before those of the next stage.
#[derive(Default)]
struct Stage {
    endings: Vec<Arc<Ending>>,
}

impl Stage {
    /// A member of this stage.
    fn member(&mut self, role: String, agent: impl Agent + Send + 'static) -> Member {
        let ending = Arc::new(Ending::default());
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
    /// Loads the models, measures what has to be, and starts every thread, with `frontends` frontends.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start(config: Config, frontends: usize, say: Say) -> Result<(Engine, Vec<Frontend>), StartError> {
        Engine::start_with(config, frontends, say, Options::default())
    }

    /// As [`Engine::start`], with these options.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start_with(
        config: Config,
        frontends: usize,
        say: Say,
        options: Options,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        let cores: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let mut layout = Layout::new(&config, frontends, &cores);
        if let Some(idle) = options.idle {
            layout.rank.idle = idle;
            layout.models.iter_mut().for_each(|seat| seat.idle = idle);
        }
        Builder::new(config, layout, say, options)?.build(frontends)
    }

    /// What its threads count, readable at any time.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Every model, by id.
    pub fn models(&self) -> &Arc<[ModelInfo]> {
        &self.models
    }

    /// How long each model's batches take, by id.
    pub fn profiles(&self) -> &[Profile] {
        &self.profiles
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

    /// Stops every thread, in the order in which requests pass through them. Requests still under way end as
    /// [`Ending::Stopped`](symphony_transport::message::Ending::Stopped).
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

/// A group of GPUs that can run the same models, and the backend threads that play them.
struct Group {
    kind: ExecutorKind,
    first_gpu: u32,
    gpus: u32,
}

/// The crews of an engine: a thread each.
#[derive(Default)]
struct Crews(Vec<(Seat, Crew)>);

impl Crews {
    /// Adds a role: to the crew of its core if it shares that, else to one of its own.
    fn add(&mut self, seat: Seat, member: Member) {
        match self.0.iter_mut().find(|(taken, _)| *taken == seat && seat.idle == Idle::Nap) {
            Some((_, crew)) => crew.0.push(member),
            None => self.0.push((seat, Crew(vec![member]))),
        }
    }
}

/// What is known while an engine is put together.
struct Builder {
    config: Arc<Config>,
    layout: Layout,
    clock: Clock,
    say: Say,
    groups: Vec<Group>,
    /// The place in `groups` of each model's.
    cluster_of: Arc<[u32]>,
    deferral: &'static dyn policy::Deferral,
    options: Options,
}

impl Builder {
    fn new(config: Config, layout: Layout, say: Say, options: Options) -> Result<Builder, StartError> {
        let at_most = |what, asked, limit| {
            if asked <= limit { Ok(()) } else { Err(StartError::Limit { what, asked, limit }) }
        };
        let gpus: usize = config.executors.iter().map(|executor| executor.count).sum();
        at_most("GPUs and other executors", gpus, limits::MAX_GPUS)?;
        at_most("models", config.models.len(), limits::MAX_MODELS)?;
        at_most("ModelThreads", layout.models.len(), limits::MAX_MODEL_THREADS)?;
        let own = policy::by_name(config.policy).and_then(policy::Policy::deferral);
        let own =
            own.ok_or_else(|| StartError::Policy(config.policy.to_owned(), policy::served().join(", ")))?;
        let deferral = config.when.map_or(own, |rule| rule);
        let mut groups = Vec::new();
        let mut first_gpu = 0;
        for kind in [ExecutorKind::Cpu, ExecutorKind::Emulated] {
            let gpus = config.executors_of(kind) as u32;
            if gpus > 0 {
                groups.push(Group { kind, first_gpu, gpus });
                first_gpu += gpus;
            }
        }
        let cluster_of = config
            .models
            .iter()
            .map(|model| {
                let place = groups.iter().position(|group| group.kind == model.source.kind());
                place.expect("a configuration has executors for each of its models") as u32
            })
            .collect();
        Ok(Builder {
            config: Arc::new(config),
            layout,
            clock: Clock::start(),
            say,
            groups,
            cluster_of,
            deferral,
            options,
        })
    }

    fn build(self, frontends: usize) -> Result<(Engine, Vec<Frontend>), StartError> {
        self.options.record.iter().try_for_each(RecordConfig::prepare)?;
        let stop_executors = Arc::new(AtomicBool::new(false));
        let loading = self.start_executors(&stop_executors)?;
        let (models, profiles) = self.models(&loading)?;
        let lateness = measure_lateness(self.layout.rank, &self.clock);
        let network = self.config.network;
        let accepting = Arc::new(AtomicBool::new(true));
        let backend_threads = loading.len() + usize::from(self.layout.emulated.is_some());
        let mut peers = Vec::new();
        let mut ends = Vec::new();
        for id in 0..frontends {
            let (frontend, peer) = Frontend::new(FrontendSetup {
                id: id as u32,
                clock: self.clock.clone(),
                models: Arc::clone(&models),
                model_threads: self.layout.models.len(),
                answering_threads: self.layout.models.len() + backend_threads,
                capacity: self.config.http.max_in_flight,
                result_delay: network.result,
                lateness,
                accepting: Arc::clone(&accepting),
            })?;
            ends.push(frontend);
            peers.push(peer);
        }
        let roles = (0..loading.len()).map(|at| format!("cpu-{at}"));
        let roles = roles.chain(self.layout.emulated.map(|_| "emulated".to_owned())).collect();
        let counters = Counters::new(self.layout.models.len(), 1, roles);
        let mut plumbing = Plumbing::new(&self, &models, &profiles, peers, backend_threads, counters.clone());
        let mut threads = Vec::new();
        for (at, loading) in loading.into_iter().enumerate() {
            threads.push(loading.wire(plumbing.backend(at)));
        }
        let mut stages: [Stage; 3] = Default::default();
        let mut crews = Crews::default();
        for (at, &seat) in self.layout.models.iter().enumerate() {
            let thread = self.model_thread(at, &models, &profiles, network, lateness, &mut plumbing)?;
            crews.add(seat, stages[0].member(format!("model-{at}"), thread));
        }
        crews.add(self.layout.rank, stages[1].member("rank".to_owned(), self.rank_thread(&mut plumbing)?));
        if let Some(seat) = self.layout.emulated {
            let backend = self.emulated_backend(&models, plumbing.backend(backend_threads - 1));
            crews.add(seat, stages[2].member("emulated".to_owned(), backend));
        }
        for (seat, crew) in crews.0 {
            threads.push(crew.spawn(seat, self.clock.clone(), self.options.seated.clone())?);
        }
        let layout = self.layout;
        let engine = Engine {
            models,
            profiles,
            layout,
            lateness,
            accepting,
            counters,
            stages,
            stop_executors,
            threads,
        };
        Ok((engine, ends))
    }

    fn start_executors(&self, stop: &Arc<AtomicBool>) -> Result<Vec<Loading>, StartError> {
        let setup = Setup {
            config: Arc::clone(&self.config),
            clock: self.clock.clone(),
            stop: Arc::clone(stop),
            say: Arc::clone(&self.say),
        };
        let seats = self.layout.executors.iter().enumerate();
        Ok(seats.map(|(at, &seat)| executors::start(at, seat, setup.clone())).collect::<Result<_, _>>()?)
    }

    /// What there is to know of every model, from the configuration and the executors.
    fn models(&self, loading: &[Loading]) -> Result<(Arc<[ModelInfo]>, Vec<Profile>), StartError> {
        let mut found: Vec<Option<Found>> = self.config.models.iter().map(|_| None).collect();
        for (at, executor) in loading.iter().enumerate().rev() {
            let report = executor.wait().ok_or(StartError::Died(at))?;
            found = report.map_err(|mistake| Mistakes(vec![mistake]))?;
        }
        let mut infos = Vec::new();
        let mut profiles = Vec::new();
        for (at, (model, found)) in self.config.models.iter().zip(found).enumerate() {
            let (signature, profile) = settle(model, found)?;
            infos.push(ModelInfo {
                id: ModelId(at as u32),
                name: model.name.clone(),
                platform: platform(&model.source).to_owned(),
                signature,
                slo: model.slo,
                max_batch: profile.max_batch(),
                thread: at % self.layout.models.len(),
            });
            profiles.push(profile);
        }
        Ok((infos.into(), profiles))
    }

    fn emulated_backend(&self, models: &[ModelInfo], Wiring { inbox, answers }: Wiring) -> EmulatedBackend {
        let group = self.groups.iter().find(|group| group.kind == ExecutorKind::Emulated);
        let (first_gpu, gpus) = group.map_or((0, 0), |group| (group.first_gpu, group.gpus));
        let outputs: Arc<[Range<usize>]> =
            models.iter().map(|model| output_range(&model.signature)).collect();
        EmulatedBackend::new(inbox, answers, first_gpu, gpus, outputs, self.clock.now())
    }

    fn rank_thread(&self, plumbing: &mut Plumbing) -> Result<RankThread<Consumer<Completion>>, StartError> {
        let keep_late = self.config.drop == crate::model::selection::DropRule::Fcfs;
        let models = self.config.models.len();
        let control = self.config.network.control;
        let sub_cluster = |group: &Group| SubCluster {
            state: RankState::new(group.gpus as usize, models, keep_late, control),
            first_gpu: group.first_gpu,
        };
        let terms = |group: &Group| ClusterTerms {
            gpus: group.gpus as usize,
            keep_late,
            completion_delay: control,
            first_gpu: group.first_gpu,
        };
        let terms: Vec<ClusterTerms> = self.groups.iter().map(terms).collect();
        let recorder =
            self.options.record.as_ref().map(|to| RankRecorder::create(to, "rank", models, &terms));
        Ok(RankThread {
            watch: RankWatch { counting: plumbing.counters.of_rank(0), recorder: recorder.transpose()? },
            clusters: self.groups.iter().map(sub_cluster).collect(),
            cluster_of: Arc::clone(&self.cluster_of),
            words: std::mem::take(&mut plumbing.rank_links.words),
            completions: std::mem::take(&mut plumbing.completions_out),
            grants: Grants {
                thread_of: Arc::clone(&plumbing.thread_of),
                threads: std::mem::take(&mut plumbing.rank_links.grants),
            },
        })
    }

    fn model_thread(
        &self,
        at: usize,
        models: &[ModelInfo],
        profiles: &[Profile],
        network: Network,
        lateness: Nanos,
        plumbing: &mut Plumbing,
    ) -> Result<ModelThread<Consumer<Request>, RingOutlets>, StartError> {
        let now = self.clock.now();
        let mut place = vec![None; models.len()];
        let mut queues = Vec::new();
        let mut largest_batch = 1;
        for model in models.iter().filter(|model| model.thread == at) {
            let index = model.id.0 as usize;
            place[index] = Some(queues.len() as u32);
            largest_batch = largest_batch.max(model.max_batch);
            let terms = Terms {
                model: model.id,
                profile: profiles[index].clone(),
                slo: model.slo,
                network,
                drop: self.config.drop,
                deferral: self.deferral,
                slack: slack_for(lateness.min(Nanos(model.slo.0 / LATENESS_IN_SLO))),
            };
            queues.push(ModelQueue::new(terms, now));
        }
        let outlets = RingOutlets {
            backends: std::mem::take(&mut plumbing.frames_in[at]),
            backend_of: Arc::clone(&plumbing.backend_of),
            frontends: std::mem::take(&mut plumbing.model_answers[at]),
            largest_batch_frames: BatchHeader::frames(largest_batch),
        };
        let links = plumbing.model_links[at].take().expect("each ModelThread is wired once");
        let outbox = Outbox::new(at, models.iter().map(|_| 0).collect(), links.words, outlets);
        let names = models.iter().filter(|model| model.thread == at).map(|model| model.name.as_str());
        let named = names.zip(queues.iter().map(ModelQueue::terms));
        let (role, first_batch) = (format!("model-{at}"), outbox.next_batch());
        let create = |to| ModelRecorder::create(to, &role, named, first_batch);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        Ok(ModelThread {
            watch: ModelWatch { counting: plumbing.counters.of_models(at), recorder },
            wheel: Wheel::new(queues.len(), now),
            queues,
            place,
            requests: std::mem::take(&mut plumbing.requests_out[at]),
            grants: links.grants,
            outbox,
        })
    }
}

/// A model's signature and profile, or what is wrong with them.
fn settle(model: &ModelConfig, found: Option<Found>) -> Result<(Signature, Profile), Mistakes> {
    let measured = found.as_ref().and_then(|found| found.measured.as_ref());
    let profile = match (&model.profile, measured) {
        (ProfileSource::Given(profile), _) => profile.clone(),
        (ProfileSource::Measure, Some(table)) => Profile::measured(&table.latencies())
            .map_err(|error| Mistakes(vec![model.places.max_batch.mistake(error, "lower max_batch")]))?,
        (ProfileSource::Measure, None) => unreachable!("the first executor measures what has to be"),
    };
    let alone = profile.latency(1);
    if alone > model.slo {
        let wrong = format!(
            "{:.3} ms is less than one request takes, {:.3} ms",
            model.slo.as_millis_f64(),
            alone.as_millis_f64()
        );
        let right = "give the time that a batch of a few takes, and as much again for waiting";
        return Err(Mistakes(vec![model.places.slo.mistake(wrong, right)]));
    }
    let signature = match (&model.source, found) {
        (ModelSource::Emulated { signature }, _) => signature.clone(),
        (ModelSource::Cpu { .. }, Some(found)) => found.signature,
        (ModelSource::Cpu { .. }, None) => unreachable!("an executor has loaded every CPU model"),
    };
    Ok((signature, profile))
}

fn platform(source: &ModelSource) -> &'static str {
    match source {
        ModelSource::Cpu { .. } => "onnx_rten",
        ModelSource::Emulated { .. } => "emulated",
    }
}

/// Where a row's outputs lie in its slot: behind its inputs.
fn output_range(signature: &Signature) -> Range<usize> {
    signature.input_bytes()..signature.input_bytes() + signature.output_bytes()
}

/// Every ring of the engine, its ends taken by the threads as they start. The first index is the thread's that
/// takes them, the second the other end's.
struct Plumbing {
    requests_out: Vec<Vec<Consumer<symphony_transport::message::Request>>>,
    model_links: Vec<Option<ModelLinks>>,
    rank_links: RankLinks,
    frames_in: Vec<Vec<Producer<symphony_transport::message::Frame>>>,
    frames_out: Vec<Vec<Consumer<symphony_transport::message::Frame>>>,
    completions_in: Vec<Option<Producer<symphony_transport::message::Completion>>>,
    completions_out: Vec<Consumer<symphony_transport::message::Completion>>,
    model_answers: Vec<Vec<Producer<symphony_transport::message::Response>>>,
    backend_answers: Vec<Vec<Producer<symphony_transport::message::Response>>>,
    slabs: Vec<SlabView>,
    counters: Counters,
    /// Which ModelThread owns each model.
    thread_of: Arc<[u32]>,
    /// Which backend thread plays each GPU.
    backend_of: Arc<[u32]>,
}

impl Plumbing {
    fn new(
        builder: &Builder,
        models: &[ModelInfo],
        profiles: &[Profile],
        peers: Vec<FrontendPeer>,
        backend_threads: usize,
        counters: Counters,
    ) -> Plumbing {
        let threads = builder.layout.models.len();
        let mut backend_of = Vec::new();
        for group in &builder.groups {
            for gpu in 0..group.gpus {
                // Each CPU executor is a thread of its own; all emulated GPUs share the last one.
                backend_of.push(if group.kind == ExecutorKind::Cpu {
                    gpu
                } else {
                    backend_threads as u32 - 1
                });
            }
        }
        let gpus_of = |backend: usize| backend_of.iter().filter(|&&b| b as usize == backend).count();
        let batch = profiles.iter().map(Profile::max_batch).max().unwrap_or(1);
        let frames = BatchHeader::frames(batch);
        let (model_links, mut rank_links) = link(threads, 1, models.len());
        let mut plumbing = Plumbing {
            requests_out: (0..threads).map(|_| Vec::new()).collect(),
            model_links: model_links.into_iter().map(Some).collect(),
            rank_links: rank_links.pop().expect("one RankThread"),
            frames_in: (0..threads).map(|_| Vec::new()).collect(),
            frames_out: Vec::new(),
            completions_in: Vec::new(),
            completions_out: Vec::new(),
            model_answers: (0..threads).map(|_| Vec::new()).collect(),
            backend_answers: (0..backend_threads).map(|_| Vec::new()).collect(),
            slabs: Vec::new(),
            counters,
            thread_of: models.iter().map(|model| model.thread as u32).collect(),
            backend_of: Arc::from([]),
        };
        for backend in 0..backend_threads {
            let given = gpus_of(backend) * limits::MAX_OUTSTANDING_BATCHES;
            let (completions_in, completions_out) = ring(given);
            plumbing.completions_in.push(Some(completions_in));
            plumbing.completions_out.push(completions_out);
            let room = (given * frames).min(MAX_FRAME_RING).max(2 * frames);
            let (ins, outs): (Vec<_>, Vec<_>) = (0..threads).map(|_| ring(room)).unzip();
            plumbing.frames_out.push(outs);
            for (at, end) in ins.into_iter().enumerate() {
                plumbing.frames_in[at].push(end);
            }
        }
        for peer in peers {
            plumbing.slabs.push(peer.slab);
            for (at, end) in peer.requests.into_iter().enumerate() {
                plumbing.requests_out[at].push(end);
            }
            for (at, end) in peer.responses.into_iter().enumerate() {
                match at.checked_sub(threads) {
                    None => plumbing.model_answers[at].push(end),
                    Some(backend) => plumbing.backend_answers[backend].push(end),
                }
            }
        }
        plumbing.backend_of = backend_of.into();
        plumbing
    }

    /// The rings of a backend thread.
    fn backend(&mut self, at: usize) -> Wiring {
        let completions = self.completions_in[at].take();
        Wiring {
            inbox: Inbox::new(std::mem::take(&mut self.frames_out[at])),
            answers: Answers {
                slabs: self.slabs.clone(),
                frontends: std::mem::take(&mut self.backend_answers[at]),
                completions: completions.expect("each backend thread is wired once"),
                counting: self.counters.of_backend(at),
            },
        }
    }
}
