//! One run: puts ModelThreads and RankThreads together as a [`Plan`] says, lets them work for its
//! duration, and collects what each saw.

use super::gpus::{Gpus, Instant, Ran};
use super::lags::Lags;
use super::machine::{longest_gap, stolen};
use super::measured::{Disturbance, DutyCycles, Measurable, Measured, Window};
use super::options::{Plan, Watch};
use super::stream::{Stream, Taken};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use symphony::recorder::{ClusterTerms, ModelRecorder, RankRecorder, RecordConfig};
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{
    Agenda, Agent, BackfillPhase, Grants, Intake, ModelLinks, ModelMonitor, ModelThread, Outbox, RankLinks,
    RankMonitor, RankThread, ReservationProgress, SubCluster, link, measure_lateness, measures_from,
    slack_for, spawn,
};
use symphony::runtime::{Idle, Placement};
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::policy;
use symphony_scheduler::rank::RankState;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId};

/// Threads start and rates settle before the window.
const WARM_UP: Nanos = Nanos::from_millis(500);

/// A run fails if an arrival was taken up later than this.
pub const LATEST_TAKE_UP: Nanos = Nanos::from_millis(2);

/// A run fails if a greater share of requests was bad.
pub const WORST_BAD_RATE: f64 = 0.01;

/// What a ModelThread of a run has to tell.
pub(super) type ModelTally = (Taken, Ran);

/// What a run came to, within its window.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was asked for.
    pub plan: Plan,
    /// Each ModelThread's turns.
    pub model_turns: Vec<DutyCycles>,
    /// Each RankThread's turns.
    pub rank_turns: Vec<DutyCycles>,
    /// Requests taken up, by all.
    pub requests: u64,
    /// How late they were taken up.
    pub arrival: Lags,
    /// What became of them.
    pub ran: Ran,
    /// Cores that the threads shared: less than a core each, so no figure is that of a thread
    /// alone.
    pub shared: bool,
    /// Cores used.
    pub cores: Vec<usize>,
    /// What the host took from this machine's cores during the run.
    pub stolen: Option<Nanos>,
    /// The longest gap that a thread saw which only looked at the clock; `None` where no core was
    /// left for it.
    pub longest_gap: Option<Nanos>,
}

impl Outcome {
    /// Requests that were dropped or late, as a share of those taken up.
    pub fn bad_rate(&self) -> f64 {
        (self.ran.dropped + self.ran.late) as f64 / self.requests.max(1) as f64
    }

    /// Why the run did not pass, `None` if it did.
    pub fn failure(&self) -> Option<String> {
        let late = self.arrival.max();
        if late > LATEST_TAKE_UP {
            let (late, limit) = (late.as_millis_f64(), LATEST_TAKE_UP.as_millis_f64());
            return Some(format!("an arrival was taken up {late:.2} ms late; the limit is {limit} ms"));
        }
        let bad = self.bad_rate();
        (bad > WORST_BAD_RATE).then(|| format!("{:.2} % of requests were bad; the limit is 1 %", bad * 100.0))
    }
}

/// The placements of all threads, RankThreads first.
struct Seats {
    placements: Vec<Placement>,
    shared: bool,
    /// A core that no thread has.
    spare: Option<usize>,
}

impl Seats {
    fn new(roles: usize, cores: &[usize]) -> Seats {
        let shared = roles > cores.len();
        let idle = if shared { Idle::Nap } else { Idle::Spin };
        let core = |at: usize| (!cores.is_empty()).then(|| cores[at % cores.len()]);
        let placements = (0..roles).map(|at| Placement { core: core(at), idle }).collect();
        Seats { placements, shared, spare: cores.get(roles).copied() }
    }
}

/// Runs `plan` on the machine's `cores`.
///
/// Errors: the system gives no thread, one of them died, or a recording can't be made.
pub fn run(plan: &Plan, cores: &[usize]) -> io::Result<Outcome> {
    let roles = plan.rank_threads + plan.model_threads;
    let placements = Seats::new(roles, cores);
    let clock = Clock::start();
    let slack = slack_for(measure_lateness(placements.placements[0], &clock));
    // Queues take a while to be made: arrivals start once they are there.
    let start = clock.now() + Nanos::from_millis(100 + plan.models as u64 / 10);
    let window = Window { from: start + WARM_UP, until: start + WARM_UP + plan.duration };
    if let Watch::Recorder(folder) = &plan.watch {
        recording(folder).prepare().map_err(io::Error::other)?;
    }
    let disturbances = (0..plan.rank_threads).map(|_| Disturbance::default()).collect();
    let world = World { plan: plan.clone(), slack, start, window, clock, disturbances };
    let mut run = Run { world, stop: Arc::default(), threads: Vec::new() };
    let models_of = |at: usize| (at..plan.models).step_by(plan.model_threads).len();
    let models_of: Vec<usize> = (0..plan.model_threads).map(models_of).collect();
    let (model_links, rank_links) = link(&models_of, plan.rank_threads);
    let (rank_results, ranks_done) = channel();
    let (model_results, models_done) = channel();
    let (rank_seats, model_seats) = placements.placements.split_at(plan.rank_threads);
    for (at, (links, &placement)) in rank_links.into_iter().zip(rank_seats).enumerate() {
        run.start_rank(at, links, placement, rank_results.clone())?;
    }
    for (at, (links, &placement)) in model_links.into_iter().zip(model_seats).enumerate() {
        run.start_models(at, links, placement, model_results.clone())?;
    }
    drop((rank_results, model_results));
    let gap = placements.spare.map(|core| run.start_gap(core));
    sleep_until(&run.world.clock, window.from);
    let stolen_before = stolen();
    sleep_until(&run.world.clock, window.until + Nanos::from_millis(5));
    let stolen = stolen_before.zip(stolen()).map(|(before, after)| after - before);
    run.stop()?;
    let (model_turns, tallies) = collect(&models_done);
    let (rank_turns, _) = collect::<()>(&ranks_done);
    Ok(Outcome {
        longest_gap: gap.map(|gap| gap.join().unwrap_or(Nanos::MAX)),
        cores: cores.iter().copied().take(roles).collect(),
        shared: placements.shared,
        stolen,
        ..gather(plan, model_turns, rank_turns, &tallies)
    })
}

/// What the threads have to tell, together.
pub(super) fn gather(
    plan: &Plan,
    model_turns: Vec<DutyCycles>,
    rank_turns: Vec<DutyCycles>,
    tallies: &[ModelTally],
) -> Outcome {
    let mut outcome = Outcome {
        plan: plan.clone(),
        model_turns,
        rank_turns,
        requests: 0,
        arrival: Lags::default(),
        ran: Ran::default(),
        shared: false,
        cores: Vec::new(),
        stolen: None,
        longest_gap: None,
    };
    for (taken, ran) in tallies {
        outcome.requests += taken.requests;
        outcome.arrival.merge(&taken.lags);
        outcome.ran.merge(ran);
    }
    outcome
}

fn sleep_until(clock: &Clock, when: Nanos) {
    std::thread::sleep(std::time::Duration::from_nanos((when - clock.now()).0));
}

fn collect<R>(results: &Receiver<(DutyCycles, R)>) -> (Vec<DutyCycles>, Vec<R>) {
    results.iter().unzip()
}

/// What the threads of a run have in common.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) slack: Slack,
    /// Arrivals begin.
    pub(crate) start: Nanos,
    pub(crate) window: Window,
    pub(crate) clock: Clock,
    /// Of each RankThread.
    pub(crate) disturbances: Vec<Disturbance>,
}

impl World {
    /// The GPUs of the RankThread numbered `at`, and what is fixed about its matching.
    fn cluster(&self, at: usize) -> ClusterTerms {
        let Plan { rank_threads, gpus, .. } = self.plan;
        // GPUs are split as evenly as they go: the first `gpus % rank_threads` sub-clusters have
        // one more.
        ClusterTerms {
            gpus: gpus / rank_threads + usize::from(at < gpus % rank_threads),
            keep_late: false,
            completion_delay: Nanos::ZERO,
            first_gpu: (at * (gpus / rank_threads) + at.min(gpus % rank_threads)) as u32,
        }
    }

    /// What watches the RankThread numbered `at`.
    ///
    /// Errors: its recording can't be made.
    pub(crate) fn rank_watch(&self, at: usize) -> io::Result<RankMonitor> {
        let Watch::Recorder(folder) = &self.plan.watch else {
            let published = self.plan.watch == Watch::Counters;
            return Ok(if published { RankMonitor::new(None) } else { RankMonitor::unpublished() });
        };
        let clusters = [self.cluster(at)];
        RankRecorder::create(
            &recording(folder),
            &symphony::runtime::rank_role(at),
            self.plan.models,
            &[],
            &clusters,
        )
        .map(|recorder| RankMonitor::new(Some(recorder)))
        .map_err(io::Error::other)
    }

    /// What watches the ModelThread numbered `at`.
    ///
    /// Errors: its recording can't be made.
    pub(crate) fn model_watch(&self, at: usize) -> io::Result<ModelMonitor> {
        let Watch::Recorder(folder) = &self.plan.watch else {
            let published = self.plan.watch == Watch::Counters;
            return Ok(if published { ModelMonitor::new(None) } else { ModelMonitor::unpublished() });
        };
        let terms: Vec<QueueConfig> = self
            .models_of(at)
            .into_iter()
            .map(|model| QueueConfig { queue: model.only_queue(), ..self.terms() })
            .collect();
        let named = terms.iter().map(|terms| ("a model", Class::HIGHEST, terms));
        ModelRecorder::create(
            &recording(folder),
            &format!("model-{at}"),
            named,
            Outbox::<Gpus>::first_batch(at),
        )
        .map(|recorder| ModelMonitor::new(Some(recorder)))
        .map_err(io::Error::other)
    }

    /// The models of the ModelThread numbered `at`.
    fn models_of(&self, at: usize) -> Vec<ModelId> {
        let Plan { model_threads, models, .. } = self.plan;
        (at..models).step_by(model_threads).map(|model| ModelId(model as u32)).collect()
    }

    /// The RankThread numbered `at`.
    pub(crate) fn rank_thread(&self, at: usize, links: RankLinks, watch: RankMonitor) -> RankThread<Instant> {
        let Plan { model_threads, models, .. } = self.plan;
        let ClusterTerms { gpus, keep_late, completion_delay, first_gpu } = self.cluster(at);
        let state = RankState::new(gpus, models, keep_late, completion_delay);
        RankThread {
            monitor: watch,
            clusters: vec![SubCluster::new(state, first_gpu)],
            cluster_of: vec![0; models].into(),
            backfill: BackfillPhase::default(),
            messages: links.messages,
            completions: vec![Instant::default()],
            grants: Grants {
                thread_of: (0..models).map(|model| (model % model_threads) as u32).collect(),
                threads: links.grants,
            },
        }
    }

    /// The ModelThread numbered `at`.
    pub(crate) fn model_thread(
        &self,
        at: usize,
        links: ModelLinks,
        watch: ModelMonitor,
    ) -> ModelThread<Stream, Gpus> {
        let World { start, window, .. } = *self;
        let Plan { model_threads, rank_threads, models, rate, slo, seed, .. } = self.plan;
        let own = self.models_of(at);
        let share = rate * own.len() as f64 / models as f64;
        let terms = self.terms();
        let mut place = vec![None; models];
        own.iter().zip(0..).for_each(|(model, own)| place[model.0 as usize] = Some(own));
        let queue = |(place, &model): (usize, &ModelId)| {
            ModelQueue::new(
                QueueConfig { queue: model.only_queue(), ..terms.clone() },
                measures_from(start, place, own.len()),
            )
        };
        // Next to each other, models of one thread belong to different sub-clusters, and so do its
        // batches.
        let rank_of = (0..models).map(|model| (model / model_threads % rank_threads) as u32).collect();
        let largest = terms.profile.max_batch();
        let gpus = Gpus::new(self.clock.clone(), window, largest, self.disturbances.clone());
        ModelThread {
            monitor: watch,
            queues: own.iter().enumerate().map(queue).collect(),
            place,
            agenda: Agenda::new(own.len()),
            requests: vec![Stream::new(share, &own, slo, start, window, seed ^ (at as u64) << 32)],
            grants: links.grants,
            outbox: Outbox::new(at, rank_of, links.messages, gpus),
            changes: None,
            reservations: ReservationProgress::new(own.len(), rank_threads),
        }
    }

    fn terms(&self) -> QueueConfig {
        // The rule that the results under perf/results/ are of; the default adds early offers to
        // it.
        let rule = policy::by_name("symphony-published").expect("it is one of the policies");
        QueueConfig {
            queue: ModelId(0).only_queue(),
            profile: self.plan.profile.clone(),
            slo: self.plan.slo,
            network: Network::default(),
            drop: rule.drop(),
            deferral: rule.deferral().expect("it runs on pinned threads"),
            slack: self.slack,
            gpus: self.plan.gpus / self.plan.rank_threads,
        }
    }
}

fn recording(folder: &Path) -> RecordConfig {
    RecordConfig { folder: folder.to_owned(), mib: RecordConfig::DEFAULT_MIB }
}

impl Measurable for ModelThread<Stream, Gpus> {
    type Tally = ModelTally;

    #[inline]
    fn book(&mut self, disturbed_until: Nanos) {
        self.outbox.outlets_mut().book(disturbed_until);
    }

    fn tally(&self) -> ModelTally {
        (self.requests[0].taken().clone(), self.outbox.outlets().ran().clone())
    }
}

impl Measurable for RankThread<Instant> {
    type Tally = ();

    #[inline]
    fn book(&mut self, _disturbed_until: Nanos) {}

    fn tally(&self) {}
}

/// A run under way: its world, its threads and how to stop them.
struct Run {
    world: World,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Run {
    fn start_rank(
        &mut self,
        at: usize,
        links: RankLinks,
        placement: Placement,
        results: Sender<(DutyCycles, ())>,
    ) -> io::Result<()> {
        let (world, watch) = (self.world.clone(), self.world.rank_watch(at)?);
        self.start(format!("rank-{at}"), placement, move || {
            let disturbance = world.disturbances[at].clone();
            Measured::new(world.rank_thread(at, links, watch), world.window, disturbance, results)
        })
    }

    fn start_models(
        &mut self,
        at: usize,
        links: ModelLinks,
        placement: Placement,
        results: Sender<(DutyCycles, ModelTally)>,
    ) -> io::Result<()> {
        let (world, watch) = (self.world.clone(), self.world.model_watch(at)?);
        self.start(format!("model-{at}"), placement, move || {
            let thread = world.model_thread(at, links, watch);
            Measured::new(thread, world.window, Disturbance::default(), results)
        })
    }

    fn start<A: Agent>(
        &mut self,
        role: String,
        placement: Placement,
        make: impl FnOnce() -> A + Send + 'static,
    ) -> io::Result<()> {
        self.threads.push(spawn(role, placement, self.world.clock.clone(), Arc::clone(&self.stop), make)?);
        Ok(())
    }

    /// Stops all threads and waits for their ends.
    fn stop(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            thread.join().map_err(|_| io::Error::other(format!("{name} died; its last words are above")))?;
        }
        Ok(())
    }

    fn start_gap(&self, core: usize) -> JoinHandle<Nanos> {
        let (clock, stop) = (self.world.clock.clone(), Arc::clone(&self.stop));
        let placement = Placement { core: Some(core), idle: Idle::Spin };
        std::thread::spawn(move || longest_gap(placement, &clock, &stop))
    }
}

/// What the stream itself costs a request: taking 2^22 of them, one a call, without a scheduler, in
/// ns.
pub fn cost_of_stream(plan: &Plan) -> f64 {
    const REQUESTS: u32 = 1 << 22;
    let models: Vec<ModelId> = (0..plan.models.div_ceil(plan.model_threads) as u32).map(ModelId).collect();
    let mut stream = Stream::new(1e7, &models, plan.slo, Nanos::ZERO, Window::ALL, plan.seed);
    let clock = Clock::start();
    let before = clock.now();
    for _ in 0..REQUESTS {
        std::hint::black_box(stream.next(Nanos::MAX));
    }
    (clock.now() - before).0 as f64 / f64::from(REQUESTS)
}
