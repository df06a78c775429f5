//! One run: starts the ModelThreads and RankThreads of a [`Plan`], lets them work for its duration,
//! and collects their measurements.

pub mod arrivals;
pub mod delay_histogram;
pub mod instant_gpus;
pub mod recovery;
pub mod stopwatch;
pub mod world;

use super::machine::{longest_gap, stolen};
use super::plan::{Plan, Watch};
use delay_histogram::DelayHistogram;
use instant_gpus::BatchTally;
use recovery::RecoveryTimes;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use stopwatch::{Disturbance, DutyCycles, Stopwatch, ThreadResults, Window};
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{Agent, ModelLinks, RankLinks, link, measure_lateness, slack_for, spawn};
use symphony::runtime::{Idle, Placement};
use symphony_transport::Nanos;
use world::{ModelTally, World, recording};

/// The time before the window, in which threads start and rates settle.
const WARM_UP: Nanos = Nanos::from_millis(500);

/// The limit of an arrival's delay that the machine's stalls do not explain, above which a run
/// fails.
pub const LATEST_TAKE_UP: Nanos = Nanos::from_millis(2);

/// The share of arrivals that must keep to that limit. A thread that is too slow falls ever further
/// behind, so that soon none does; a stall of which the system has no trace delays few.
pub const IN_TIME: f64 = 0.95;

/// The limit of the share of bad requests, above which a run fails.
pub const WORST_BAD_RATE: f64 = 0.01;

/// The measurements of a run within its window.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's parameters.
    pub plan: Plan,
    /// The duty cycles of each ModelThread.
    pub model_cycles: Vec<DutyCycles>,
    /// The duty cycles of each RankThread.
    pub rank_cycles: Vec<DutyCycles>,
    /// The number of requests taken up by all ModelThreads.
    pub requests: u64,
    /// The delays with which they were taken up.
    pub arrival: DelayHistogram,
    /// The same delays, less the time that the machine took from their threads.
    pub arrival_unexplained: DelayHistogram,
    /// The batches that were sent.
    pub ran: BatchTally,
    /// The number of requests, batched or dropped, while neither their ModelThread nor a RankThread
    /// recovered from a stall of the machine.
    pub undisturbed_requests: u64,
    /// The number of those that were late or dropped.
    pub undisturbed_bad: u64,
    /// True if threads shared cores: no figure is then that of a thread on a core of its own.
    pub shared: bool,
    /// The cores used.
    pub cores: Vec<usize>,
    /// The time that the host took from this machine's cores during the run.
    pub stolen: Option<Nanos>,
    /// The longest gap between two readings of the clock on a core of its own; `None` where no core
    /// was left for it.
    pub longest_gap: Option<Nanos>,
}

impl Outcome {
    /// Returns the requests that were dropped or late, as a share of those taken up.
    pub fn bad_rate(&self) -> f64 {
        (self.ran.dropped + self.ran.late) as f64 / self.requests.max(1) as f64
    }

    /// Returns the same share without the requests while a thread recovered from a stall of the
    /// machine; `None` where less than a tenth is left.
    pub fn bad_rate_without_stalls(&self) -> Option<f64> {
        let (all, left) = (self.ran.requests + self.ran.dropped, self.undisturbed_requests);
        (left > 0 && 10 * left >= all).then(|| self.undisturbed_bad as f64 / left as f64)
    }

    /// Returns the reason for which the run failed, `None` if it passed. What a stall of the
    /// machine explains does not fail it.
    pub fn failure(&self) -> Option<String> {
        let late = self.arrival_unexplained.quantile(IN_TIME);
        if late > LATEST_TAKE_UP {
            let (late, limit) = (late.as_millis_f64(), LATEST_TAKE_UP.as_millis_f64());
            return Some(format!(
                "one arrival in twenty was taken up over {late:.2} ms late, the machine's stalls aside; the limit is \
                 {limit} ms"
            ));
        }
        let (bad, aside) = match self.bad_rate_without_stalls() {
            Some(bad) => (bad, ", the machine's stalls aside"),
            None => (self.bad_rate(), ""),
        };
        (bad > WORST_BAD_RATE)
            .then(|| format!("{:.2} % of requests were bad{aside}; the limit is 1 %", bad * 100.0))
    }

    /// Returns the reason for which the run would have failed had the machine's stalls counted, and
    /// every single arrival.
    pub fn failure_with_stalls(&self) -> Option<String> {
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
struct ThreadPlacements {
    placements: Vec<Placement>,
    shared: bool,
    /// A core without a thread.
    spare: Option<usize>,
}

impl ThreadPlacements {
    fn new(roles: usize, cores: &[usize]) -> ThreadPlacements {
        let shared = roles > cores.len();
        let idle = if shared { Idle::Nap } else { Idle::Spin };
        let core = |at: usize| (!cores.is_empty()).then(|| cores[at % cores.len()]);
        let placements = (0..roles).map(|at| Placement { core: core(at), idle }).collect();
        ThreadPlacements { placements, shared, spare: cores.get(roles).copied() }
    }
}

/// Runs `plan` on the machine's `cores`.
///
/// Errors: the system gives no thread, one of them died, or a recording can't be made.
pub fn run(plan: &Plan, cores: &[usize]) -> io::Result<Outcome> {
    let roles = plan.rank_threads + plan.model_threads;
    let placements = ThreadPlacements::new(roles, cores);
    let clock = Clock::start();
    let slack = slack_for(measure_lateness(placements.placements[0], &clock));
    // Making the queues takes a while: arrivals start after it.
    let start = clock.now() + Nanos::from_millis(100 + plan.models as u64 / 10);
    let window = Window { from: start + WARM_UP, until: start + WARM_UP + plan.duration };
    if let Watch::Recorder(folder) = &plan.watch {
        recording(folder).prepare().map_err(io::Error::other)?;
    }
    let disturbances = (0..plan.rank_threads).map(|_| Disturbance::default()).collect();
    let world = World { plan: plan.clone(), slack, start, window, clock, disturbances };
    let mut run = RunningThreads { world, stop: Arc::default(), threads: Vec::new() };
    let models_of = |at: usize| (at..plan.models).step_by(plan.model_threads).len();
    let models_of: Vec<usize> = (0..plan.model_threads).map(models_of).collect();
    let (model_links, rank_links) = link(&models_of, plan.rank_threads);
    let (rank_results, ranks_done) = channel();
    let (model_results, models_done) = channel();
    let (rank_placements, model_placements) = placements.placements.split_at(plan.rank_threads);
    for (at, (links, &placement)) in rank_links.into_iter().zip(rank_placements).enumerate() {
        run.start_rank(at, links, placement, rank_results.clone())?;
    }
    for (at, (links, &placement)) in model_links.into_iter().zip(model_placements).enumerate() {
        run.start_models(at, links, placement, model_results.clone())?;
    }
    drop((rank_results, model_results));
    let gap = placements.spare.map(|core| run.start_gap(core));
    sleep_until(&run.world.clock, window.from);
    let stolen_before = stolen();
    sleep_until(&run.world.clock, window.until + Nanos::from_millis(5));
    let stolen = stolen_before.zip(stolen()).map(|(before, after)| after - before);
    run.stop()?;
    Ok(Outcome {
        longest_gap: gap.map(|gap| gap.join().unwrap_or(Nanos::MAX)),
        cores: cores.iter().copied().take(roles).collect(),
        shared: placements.shared,
        stolen,
        ..gather(plan, window, models_done.iter().collect(), ranks_done.iter().collect())
    })
}

/// Makes an outcome of the threads' results within `window`.
pub(super) fn gather(
    plan: &Plan,
    window: Window,
    models: Vec<ThreadResults<ModelTally>>,
    ranks: Vec<ThreadResults<()>>,
) -> Outcome {
    let mut outcome = Outcome {
        plan: plan.clone(),
        model_cycles: models.iter().map(|model| model.cycles).collect(),
        rank_cycles: ranks.iter().map(|rank| rank.cycles).collect(),
        requests: 0,
        arrival: DelayHistogram::default(),
        arrival_unexplained: DelayHistogram::default(),
        ran: BatchTally::default(),
        undisturbed_requests: 0,
        undisturbed_bad: 0,
        shared: false,
        cores: Vec::new(),
        stolen: None,
        longest_gap: None,
    };
    let mut of_ranks = RecoveryTimes::none(window);
    ranks.iter().for_each(|rank| of_ranks.merge(&rank.recovering));
    for ThreadResults { mut recovering, tally: ModelTally { taken, ran, times }, .. } in models {
        outcome.requests += taken.requests;
        outcome.arrival.merge(&taken.lags);
        outcome.arrival.merge(&taken.disturbed_lags);
        outcome.arrival_unexplained.merge(&taken.lags);
        outcome.arrival_unexplained.merge(&taken.unexplained_lags);
        outcome.ran.merge(&ran);
        recovering.merge(&of_ranks);
        let (requests, bad) = times.without(&recovering);
        outcome.undisturbed_requests += requests;
        outcome.undisturbed_bad += bad;
    }
    outcome
}

fn sleep_until(clock: &Clock, when: Nanos) {
    std::thread::sleep(std::time::Duration::from_nanos((when - clock.now()).0));
}

/// A run under way: its world, its threads and the flag that stops them.
struct RunningThreads {
    world: World,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl RunningThreads {
    fn start_rank(
        &mut self,
        at: usize,
        links: RankLinks,
        placement: Placement,
        results: Sender<ThreadResults<()>>,
    ) -> io::Result<()> {
        let (world, watch) = (self.world.clone(), self.world.rank_watch(at)?);
        self.start(format!("rank-{at}"), placement, move || {
            let disturbance = world.disturbances[at].clone();
            Stopwatch::new(world.rank_thread(at, links, watch), world.window, disturbance, results)
        })
    }

    fn start_models(
        &mut self,
        at: usize,
        links: ModelLinks,
        placement: Placement,
        results: Sender<ThreadResults<ModelTally>>,
    ) -> io::Result<()> {
        let (world, watch) = (self.world.clone(), self.world.model_watch(at)?);
        self.start(format!("model-{at}"), placement, move || {
            let thread = world.model_thread(at, links, watch);
            Stopwatch::new(thread, world.window, Disturbance::default(), results)
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

    /// Stops all threads and waits until they have ended.
    fn stop(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("a thread").to_owned();
            thread
                .join()
                .map_err(|_| io::Error::other(format!("{name} died; its error message is above")))?;
        }
        Ok(())
    }

    fn start_gap(&self, core: usize) -> JoinHandle<Nanos> {
        let (clock, stop) = (self.world.clock.clone(), Arc::clone(&self.stop));
        let placement = Placement { core: Some(core), idle: Idle::Spin };
        std::thread::spawn(move || longest_gap(placement, &clock, &stop))
    }
}
