//! The RankThread: pumps a [`RankState`] per sub-cluster, the matching of its GPUs to its models'
//! candidates (Symphony, section 4.5). Candidates and reports come from ModelThreads, completions
//! from backends; grants go out.

use super::agent::Agent;
use crate::recorder::RankRecorder;
use crate::runtime::counters::{Board, Counting, RankTally, raise};
use crate::runtime::full_ring::AlwaysRoom;
use crate::runtime::threads::changes::ChangeReceiver;
use crate::runtime::threads::messages::{GrantMessage, RankMessage};
use std::sync::Arc;
use symphony_scheduler::rank::{GpuReport, Grant, RankInput, RankState};
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, GpuId};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::wire::{GpuPresence, Presence};

/// The most messages taken from one ring in one duty cycle, so that every ring and the timer are
/// polled in between.
const MESSAGES_PER_CYCLE: usize = 256;

/// A source of completions: a backend's ring, or GPUs that are emulated on the RankThread's own
/// core.
pub trait Completions {
    /// Returns the next completion that has come.
    fn next(&mut self) -> Option<Completion>;
    /// Returns the number of waiting completions, where that is known.
    fn waiting(&mut self) -> usize {
        0
    }
    /// Notes that a batch was sent to a GPU.
    fn sent(&mut self, _report: &GpuReport) {}
    /// Finds completions that should have come and have not, and counts them; called in each duty
    /// cycle once no more have come.
    fn look(&mut self, _now: Nanos, _tally: &mut RankTally) {}
}

/// Counts and records the inputs and decisions of a RankThread.
pub struct RankMonitor {
    pub(crate) counting: Counting<RankTally>,
    pub(crate) recorder: Option<RankRecorder>,
}

impl RankMonitor {
    /// Makes a monitor whose counters are published.
    pub fn new(recorder: Option<RankRecorder>) -> RankMonitor {
        RankMonitor { counting: Counting::new(Board::new()), recorder }
    }

    /// Makes a monitor whose counters are not published, without a recorder.
    pub fn unpublished() -> RankMonitor {
        RankMonitor { counting: Counting::unpublished(), recorder: None }
    }
}

/// The agent of a RankThread. See the module's description.
///
/// One duty cycle polls its inputs in this order: completions, presences of GPUs, measured delays,
/// messages of ModelThreads. Then it matches each sub-cluster that has had inputs or whose time has
/// come, once, and publishes the grants.
pub struct RankThread<C> {
    /// The sub-clusters.
    pub clusters: Vec<SubCluster>,
    /// The index in `clusters` of each queue's sub-cluster, where it is one of these.
    pub cluster_of: Arc<[u32]>,
    /// The ring of messages from each ModelThread.
    pub messages: Vec<Consumer<RankMessage>>,
    /// The source of completions of each backend thread that has GPUs of these sub-clusters.
    pub completions: Vec<C>,
    /// The ring of GPUs that come and go, where they are on other hosts. A GPU that goes is
    /// written there before the completions of its batches are, so that it is not granted between
    /// the two.
    pub presence: Option<Consumer<GpuPresence>>,
    /// The delay of completions that was measured, where hosts are linked.
    pub delays: Option<ChangeReceiver<Nanos>>,
    /// The rings of grants to the ModelThreads.
    pub grants: Grants,
    /// The phase of backfilling.
    pub backfill: BackfillPhase,
    /// The counters and the recorder.
    pub monitor: RankMonitor,
}

/// The phase of backfilling, which waits for the reservations of the highest class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BackfillPhase {
    /// No request of a lower class has come.
    #[default]
    Off,
    /// A request has come, and this number of ModelThreads have not sent all of their reservations.
    Collecting(usize),
    /// All reservations are known.
    On,
}

/// A set of GPUs that can each run the same models.
pub struct SubCluster {
    /// The matching, of GPUs numbered from 0.
    state: RankState,
    /// The engine's number of the first of them.
    first_gpu: u32,
    /// True if it has inputs that it was not yet matched for.
    has_news: bool,
}

impl SubCluster {
    /// Makes the sub-cluster of a matching whose first GPU has this number.
    pub fn new(state: RankState, first_gpu: u32) -> SubCluster {
        SubCluster { state, first_gpu, has_news: false }
    }
}

/// The sending ends of a RankThread's rings.
pub struct Grants {
    /// The ModelThread of each queue of the engine.
    pub thread_of: Arc<[u32]>,
    /// The ring to each ModelThread. Each holds a grant for each of its models, and a model has at
    /// most one, so it is never full.
    pub threads: Vec<Producer<GrantMessage>>,
}

impl Grants {
    /// Writes a grant to its ModelThread, which does not see it yet.
    fn write(&mut self, grant: Grant, first_gpu: u32) {
        let thread = self.thread_of[grant.queue.0 as usize];
        let message = GrantMessage::from(Grant { gpu: GpuId(grant.gpu.0 + first_gpu), ..grant });
        self.threads[thread as usize]
            .write(message)
            .always_has_room("a grant: a ModelThread's ring holds one for each of its models");
    }

    /// Writes the order to send reservations to each ModelThread, which does not see it yet. A ring
    /// has room for it once.
    fn write_start_reserving(&mut self) {
        for thread in &mut self.threads {
            thread
                .write(GrantMessage::start_reserving())
                .always_has_room("the order to reserve: a ModelThread's ring holds one besides its grants");
        }
    }

    fn publish(&mut self) {
        self.threads.iter_mut().for_each(Producer::publish);
    }
}

impl<C: Completions> RankThread<C> {
    fn take_completions(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.completions.len() {
            raise(&mut self.monitor.counting.tally.completion_ring_high, self.completions[at].waiting());
            for _ in 0..MESSAGES_PER_CYCLE {
                let Some(mut completion) = self.completions[at].next() else {
                    self.completions[at].look(now, &mut self.monitor.counting.tally);
                    break;
                };
                let cluster = self.cluster_of[completion.model.0 as usize] as usize;
                completion.gpu.0 -= self.clusters[cluster].first_gpu;
                self.apply(now, cluster, RankInput::Completion(completion));
                taken += 1;
            }
        }
        self.monitor.counting.tally.completions += taken as u64;
        taken
    }

    /// Takes the GPUs that have come or gone.
    #[inline]
    fn take_presence(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while let Some(GpuPresence { gpu, presence, .. }) = self.presence.as_mut().and_then(Consumer::pop) {
            let is_of = |cluster: &SubCluster| cluster.first_gpu <= gpu.0;
            let Some(cluster) = self.clusters.iter().rposition(is_of) else { continue };
            let gpu = GpuId(gpu.0 - self.clusters[cluster].first_gpu);
            self.apply(now, cluster, RankInput::Presence { gpu, is_up: presence == Presence::Up as u32 });
            taken += 1;
        }
        taken
    }

    /// Takes over the delay of completions, if another was measured.
    #[inline]
    fn take_delays(&mut self, now: Nanos) -> usize {
        match &self.delays {
            Some(delays) if delays.is_due(now) => self.apply_delays(now),
            _ => 0,
        }
    }

    #[cold]
    fn apply_delays(&mut self, now: Nanos) -> usize {
        let mut measured = None;
        let Some(delays) = &mut self.delays else { return 0 };
        let taken = delays.take(now, |change| measured = Some(change.value));
        if let Some(delay) = measured {
            (0..self.clusters.len()).for_each(|at| self.apply(now, at, RankInput::CompletionDelay(delay)));
        }
        taken
    }

    fn take_messages(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.messages.len() {
            raise(&mut self.monitor.counting.tally.message_ring_high, self.messages[at].len());
            for _ in 0..MESSAGES_PER_CYCLE {
                let Some(message) = self.messages[at].pop() else { break };
                let cluster = self.cluster_of[message.queue().0 as usize] as usize;
                let mut input = message.input();
                taken += 1;
                match &mut input {
                    RankInput::Report(report) => {
                        self.completions.iter_mut().for_each(|gpus| gpus.sent(report));
                        report.gpu.0 -= self.clusters[cluster].first_gpu;
                    }
                    RankInput::Bounds { .. } => self.order_reservations(),
                    RankInput::AllReserved => {
                        self.count_reserved(now);
                        continue;
                    }
                    _ => {}
                }
                self.apply(now, cluster, input);
            }
        }
        self.monitor.counting.tally.messages += taken as u64;
        taken
    }

    /// Orders reservations from the ModelThreads, at the first request of a lower class.
    #[cold]
    fn order_reservations(&mut self) {
        if self.backfill == BackfillPhase::Off {
            self.backfill = BackfillPhase::Collecting(self.messages.len());
            self.grants.write_start_reserving();
        }
    }

    /// Counts a ModelThread that has sent all of its reservations; the last one starts backfilling.
    #[cold]
    fn count_reserved(&mut self, now: Nanos) {
        let BackfillPhase::Collecting(missing) = self.backfill else { return };
        if missing > 1 {
            self.backfill = BackfillPhase::Collecting(missing - 1);
            return;
        }
        self.backfill = BackfillPhase::On;
        for cluster in 0..self.clusters.len() {
            self.apply(now, cluster, RankInput::AllReserved);
        }
    }

    /// Records an input of a sub-cluster and applies it.
    #[inline]
    fn apply(&mut self, now: Nanos, cluster: usize, input: RankInput) {
        if let Some(recorder) = &mut self.monitor.recorder {
            recorder.input(now, cluster, input, self.clusters.iter().map(|cluster| &cluster.state));
        }
        let cluster = &mut self.clusters[cluster];
        cluster.state.handle(input);
        cluster.has_news = true;
    }

    /// Matches the sub-clusters that have new inputs, or whose time has come: once a duty cycle,
    /// whatever came. Returns the number of those whose time alone had come.
    fn match_waiting(&mut self, now: Nanos) -> usize {
        let mut timers = 0;
        for at in 0..self.clusters.len() {
            let cluster = &mut self.clusters[at];
            let has_news = std::mem::take(&mut cluster.has_news);
            if !has_news && cluster.state.next_timer() > now {
                continue;
            }
            timers += usize::from(!has_news);
            self.match_cluster(now, at);
        }
        self.monitor.counting.tally.timers += timers as u64;
        timers
    }

    fn match_cluster(&mut self, now: Nanos, at: usize) {
        let RankThread { clusters, grants, monitor: RankMonitor { counting, recorder }, .. } = self;
        if let Some(recorder) = recorder {
            recorder.matching(now, at, clusters.iter().map(|cluster| &cluster.state));
        }
        let SubCluster { state, first_gpu, .. } = &mut clusters[at];
        state.on_timer(now, &mut |grant| {
            counting.tally.grants += 1;
            if let Some(recorder) = recorder {
                recorder.granted(at, grant);
            }
            grants.write(grant, *first_gpu);
        });
    }
}

impl<C: Completions> Agent for RankThread<C> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.monitor.counting.cycle_begins(now);
        let mut work = self.take_completions(now) + self.take_presence(now) + self.take_delays(now);
        work += self.take_messages(now) + self.match_waiting(now);
        if work > 0 {
            self.grants.publish();
            self.monitor.counting.tally.gpus_busy =
                self.clusters.iter().map(|cluster| cluster.state.busy_gpus() as u64).sum();
            self.monitor.recorder.iter_mut().for_each(RankRecorder::publish);
        }
        self.monitor.counting.cycle_ends(now, work);
        work
    }

    fn next_due(&self) -> Nanos {
        self.clusters.iter().map(|cluster| cluster.state.next_timer()).min().unwrap_or(Nanos::MAX)
    }

    fn stop(&mut self, _now: Nanos) {
        self.monitor.counting.publish();
    }
}
