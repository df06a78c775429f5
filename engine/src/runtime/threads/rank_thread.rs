//! The RankThread: pumps a [`RankState`] per sub-cluster, the matching of its GPUs to its models'
//! candidates (Symphony, section 4.5). Candidates and reports come from ModelThreads, completions
//! from backends; grants go out.

use super::agent::Agent;
use crate::recorder::RankRecorder;
use crate::runtime::counters::{Board, Counting, RankTally, raise};
use crate::runtime::threads::messages::{GrantMessage, RankMessage};
use std::sync::Arc;
use symphony_scheduler::rank::{GpuReport, Grant, RankInput, RankState};
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, GpuId};
use symphony_transport::ring::{Consumer, Producer};

/// Messages taken from one ring in one turn, so that every ring and the timer are seen to in
/// between.
const MESSAGES_PER_TURN: usize = 256;

/// Where completions come from: a backend's ring, or GPUs that are played on the RankThread's own
/// core.
pub trait Completions {
    /// The next completion that has come.
    fn next(&mut self) -> Option<Completion>;
    /// How many wait to be taken, where that is known.
    fn waiting(&mut self) -> usize {
        0
    }
    /// The RankThread hears that a batch was sent to a GPU.
    fn sent(&mut self, _report: &GpuReport) {}
}

impl Completions for Consumer<Completion> {
    #[inline]
    fn next(&mut self) -> Option<Completion> {
        self.pop()
    }

    fn waiting(&mut self) -> usize {
        self.len()
    }
}

/// What a RankThread counts of itself, and where it is recorded.
pub struct RankWatch {
    pub(crate) counting: Counting<RankTally>,
    pub(crate) recorder: Option<RankRecorder>,
}

impl RankWatch {
    /// Counts that are published and that nobody reads, and what is recorded.
    pub fn new(recorder: Option<RankRecorder>) -> RankWatch {
        RankWatch { counting: Counting::new(Board::new()), recorder }
    }

    /// Counts that are not even published, and no recorder.
    pub fn unseen() -> RankWatch {
        RankWatch { counting: Counting::unseen(), recorder: None }
    }
}

/// See the module's description.
pub struct RankThread<C> {
    /// The sub-clusters.
    pub clusters: Vec<SubCluster>,
    /// For each model of the engine, its sub-cluster's place in `clusters`, where it is one of
    /// these.
    pub cluster_of: Arc<[u32]>,
    /// One ring per ModelThread.
    pub words: Vec<Consumer<RankMessage>>,
    /// One per backend thread that plays GPUs of these sub-clusters.
    pub completions: Vec<C>,
    /// To the ModelThreads.
    pub grants: Grants,
    /// Whether ModelThreads foretell their models' batches.
    pub foretold: Foretold,
    /// What is counted and recorded of all this.
    pub watch: RankWatch,
}

/// Whether ModelThreads foretell their models' batches, which lower classes wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Foretold {
    /// No request of a lower class has come.
    #[default]
    No,
    /// One has, and so many ModelThreads have yet to tell of all of theirs.
    Missing(usize),
    /// All do.
    Yes,
}

/// GPUs that can each run the same models.
pub struct SubCluster {
    /// The matching, of GPUs numbered from 0.
    state: RankState,
    /// The engine's number of the first of them.
    first_gpu: u32,
    /// It was told something that it was not yet matched for.
    has_news: bool,
}

impl SubCluster {
    /// The sub-cluster of a matching whose first GPU has this number.
    pub fn new(state: RankState, first_gpu: u32) -> SubCluster {
        SubCluster { state, first_gpu, has_news: false }
    }
}

/// The sending ends of a RankThread's rings.
pub struct Grants {
    /// For each model of the engine, which ModelThread owns it.
    pub thread_of: Arc<[u32]>,
    /// To each ModelThread. Each holds a grant for each of its models, and a model has at most one,
    /// so it is never full.
    pub threads: Vec<Producer<GrantMessage>>,
}

impl Grants {
    /// Written, not yet seen by the ModelThread.
    fn write(&mut self, grant: Grant, first_gpu: u32) {
        let thread = self.thread_of[grant.model.0 as usize];
        let message = GrantMessage::from(Grant { gpu: GpuId(grant.gpu.0 + first_gpu), ..grant });
        let written = self.threads[thread as usize].write(message);
        debug_assert!(written.is_ok(), "a ModelThread's ring holds a grant for each of its models");
    }

    /// The wish that each ModelThread's models foretell, written, not yet seen. A ring has room for
    /// it once.
    fn write_foretell(&mut self) {
        for thread in &mut self.threads {
            let written = thread.write(GrantMessage::foretell());
            debug_assert!(written.is_ok(), "a ModelThread's ring holds one besides its grants");
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
            raise(&mut self.watch.counting.tally.completion_ring_high, self.completions[at].waiting());
            for _ in 0..MESSAGES_PER_TURN {
                let Some(mut completion) = self.completions[at].next() else { break };
                let cluster = self.cluster_of[completion.model.0 as usize] as usize;
                completion.gpu.0 -= self.clusters[cluster].first_gpu;
                self.hear(now, cluster, RankInput::Completion(completion));
                taken += 1;
            }
        }
        self.watch.counting.tally.completions += taken as u64;
        taken
    }

    fn take_words(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.words.len() {
            raise(&mut self.watch.counting.tally.word_ring_high, self.words[at].len());
            for _ in 0..MESSAGES_PER_TURN {
                let Some(message) = self.words[at].pop() else { break };
                let cluster = self.cluster_of[message.model().0 as usize] as usize;
                let mut input = message.input();
                taken += 1;
                match &mut input {
                    RankInput::Report(report) => {
                        self.completions.iter_mut().for_each(|gpus| gpus.sent(report));
                        report.gpu.0 -= self.clusters[cluster].first_gpu;
                    }
                    RankInput::Bounds { .. } => self.have_foretold(),
                    RankInput::AllReserved => {
                        self.hear_foretold(now);
                        continue;
                    }
                    _ => {}
                }
                self.hear(now, cluster, input);
            }
        }
        self.watch.counting.tally.words += taken as u64;
        taken
    }

    /// A model has its first request of a lower class: unless they do already, ModelThreads are to
    /// foretell.
    #[cold]
    fn have_foretold(&mut self) {
        if self.foretold == Foretold::No {
            self.foretold = Foretold::Missing(self.words.len());
            self.grants.write_foretell();
        }
    }

    /// A ModelThread has told of all of its models.
    #[cold]
    fn hear_foretold(&mut self, now: Nanos) {
        let Foretold::Missing(missing) = self.foretold else { return };
        if missing > 1 {
            self.foretold = Foretold::Missing(missing - 1);
            return;
        }
        self.foretold = Foretold::Yes;
        for cluster in 0..self.clusters.len() {
            self.hear(now, cluster, RankInput::AllReserved);
        }
    }

    /// Lets a sub-cluster know.
    #[inline]
    fn hear(&mut self, now: Nanos, cluster: usize, input: RankInput) {
        if let Some(recorder) = &mut self.watch.recorder {
            recorder.input(now, cluster, input, self.clusters.iter().map(|cluster| &cluster.state));
        }
        let cluster = &mut self.clusters[cluster];
        cluster.state.hear(input);
        cluster.has_news = true;
    }

    /// Matches the sub-clusters that have news, or whose time has come: once a turn, whatever came.
    /// Says how many only had their time.
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
        self.watch.counting.tally.timers += timers as u64;
        timers
    }

    fn match_cluster(&mut self, now: Nanos, at: usize) {
        let RankThread { clusters, grants, watch: RankWatch { counting, recorder }, .. } = self;
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
        self.watch.counting.turn_begins(now);
        let work = self.take_completions(now) + self.take_words(now) + self.match_waiting(now);
        if work > 0 {
            self.grants.publish();
            self.watch.counting.tally.gpus_busy =
                self.clusters.iter().map(|cluster| cluster.state.busy_gpus() as u64).sum();
            self.watch.recorder.iter_mut().for_each(RankRecorder::publish);
        }
        self.watch.counting.turn_ends(now, work);
        work
    }

    fn stop(&mut self, _now: Nanos) {
        self.watch.counting.publish();
    }
}
