//! The parts of a run: the ModelThreads and RankThreads of a [`Plan`], each with its links, models
//! and GPUs. The run pins them to cores; `operations::both_threads` polls them on one.

use super::arrivals::{ArrivalStream, ArrivalTally};
use super::instant_gpus::{BatchTally, InstantCompletions, InstantGpus};
use super::recovery::RequestTimes;
use super::stopwatch::{Disturbance, Interruptions, Measurable, Window};
use crate::scale::plan::{Plan, Watch};
use std::io;
use std::path::Path;
use symphony::recorder::{ClusterConfig, ModelRecorder, RankRecorder, RecordConfig};
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{
    Agenda, BackfillPhase, Grants, ModelLinks, ModelMonitor, ModelThread, Outbox, RankLinks, RankMonitor,
    RankThread, ReservationProgress, SubCluster, measures_from,
};
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::policy;
use symphony_scheduler::rank::RankState;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId};

/// The results of a ModelThread.
#[derive(Debug)]
pub struct ModelTally {
    /// The arrivals that it took up.
    pub taken: ArrivalTally,
    /// The batches that it sent.
    pub ran: BatchTally,
    /// Requests that it ended, by time.
    pub times: RequestTimes,
}

/// The state that the threads of a run have in common.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) slack: Slack,
    /// The time at which arrivals begin.
    pub(crate) start: Nanos,
    pub(crate) window: Window,
    pub(crate) clock: Clock,
    /// The disturbances of each RankThread.
    pub(crate) disturbances: Vec<Disturbance>,
}

impl World {
    /// Returns the GPUs of the RankThread numbered `at` and the constants of its matching.
    fn cluster(&self, at: usize) -> ClusterConfig {
        let Plan { rank_threads, gpus, .. } = self.plan;
        // GPUs are split as evenly as they go: the first `gpus % rank_threads` sub-clusters have
        // one more.
        ClusterConfig {
            gpus: gpus / rank_threads + usize::from(at < gpus % rank_threads),
            keep_late: false,
            completion_delay: Nanos::ZERO,
            ahead: Nanos::ZERO,
            first_gpu: (at * (gpus / rank_threads) + at.min(gpus % rank_threads)) as u32,
        }
    }

    /// Makes the watch of the RankThread numbered `at`.
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

    /// Makes the watch of the ModelThread numbered `at`.
    ///
    /// Errors: its recording can't be made.
    pub(crate) fn model_watch(&self, at: usize) -> io::Result<ModelMonitor> {
        let Watch::Recorder(folder) = &self.plan.watch else {
            let published = self.plan.watch == Watch::Counters;
            return Ok(if published { ModelMonitor::new(None) } else { ModelMonitor::unpublished() });
        };
        let queue_config: Vec<QueueConfig> = self
            .models_of(at)
            .into_iter()
            .map(|model| QueueConfig { queue: model.only_queue(), ..self.queue_config() })
            .collect();
        let named = queue_config.iter().map(|queue_config| ("a model", Class::HIGHEST, queue_config));
        ModelRecorder::create(
            &recording(folder),
            &format!("model-{at}"),
            named,
            Outbox::<InstantGpus>::first_batch(at),
        )
        .map(|recorder| ModelMonitor::new(Some(recorder)))
        .map_err(io::Error::other)
    }

    /// Returns the models of the ModelThread numbered `at`.
    fn models_of(&self, at: usize) -> Vec<ModelId> {
        let Plan { model_threads, models, .. } = self.plan;
        (at..models).step_by(model_threads).map(|model| ModelId(model as u32)).collect()
    }

    /// Makes the RankThread numbered `at`.
    pub(crate) fn rank_thread(
        &self,
        at: usize,
        links: RankLinks,
        watch: RankMonitor,
    ) -> RankThread<InstantCompletions> {
        let Plan { model_threads, models, .. } = self.plan;
        let ClusterConfig { gpus, keep_late, completion_delay, first_gpu, .. } = self.cluster(at);
        let state = RankState::new(gpus, models, keep_late, completion_delay);
        RankThread {
            monitor: watch,
            clusters: vec![SubCluster::new(state, first_gpu)],
            cluster_of: vec![0; models].into(),
            backfill: BackfillPhase::default(),
            messages: links.messages,
            completions: vec![InstantCompletions::default()],
            presence: None,
            delays: None,
            grants: Grants {
                thread_of: (0..models).map(|model| (model % model_threads) as u32).collect(),
                threads: links.grants,
            },
        }
    }

    /// Makes the ModelThread numbered `at`.
    pub(crate) fn model_thread(
        &self,
        at: usize,
        links: ModelLinks,
        watch: ModelMonitor,
    ) -> ModelThread<ArrivalStream, InstantGpus> {
        let World { start, window, .. } = *self;
        let Plan { model_threads, rank_threads, models, rate, slo, seed, .. } = self.plan;
        let own = self.models_of(at);
        let share = rate * own.len() as f64 / models as f64;
        let queue_config = self.queue_config();
        let mut index_of = vec![None; models];
        own.iter().zip(0..).for_each(|(model, own)| index_of[model.0 as usize] = Some(own));
        let queue = |(index, &model): (usize, &ModelId)| {
            ModelQueue::new(
                QueueConfig { queue: model.only_queue(), ..queue_config.clone() },
                measures_from(start, index, own.len()),
            )
        };
        // Neighbouring models of one thread belong to different sub-clusters, and so do its
        // batches.
        let rank_of = (0..models).map(|model| (model / model_threads % rank_threads) as u32).collect();
        let largest = queue_config.profile.max_batch();
        let gpus = InstantGpus::new(self.clock.clone(), window, largest, self.disturbances.clone());
        ModelThread {
            monitor: watch,
            queues: own.iter().enumerate().map(queue).collect(),
            index_of,
            agenda: Agenda::new(own.len()),
            requests: vec![ArrivalStream::new(share, &own, slo, start, window, seed ^ (at as u64) << 32)],
            grants: links.grants,
            outbox: Outbox::new(at, rank_of, links.messages, gpus),
            changes: None,
            reservations: ReservationProgress::new(own.len(), rank_threads),
            profiles: None,
            tuning: None,
            delays: None,
        }
    }

    fn queue_config(&self) -> QueueConfig {
        // The results under perf/results/ are of this rule; the default adds early offers to it.
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

pub(super) fn recording(folder: &Path) -> RecordConfig {
    RecordConfig { folder: folder.to_owned(), mib: RecordConfig::DEFAULT_MIB }
}

impl Measurable for ModelThread<ArrivalStream, InstantGpus> {
    type Tally = ModelTally;

    #[inline]
    fn book(&mut self, interruptions: Interruptions) {
        self.requests[0].book(interruptions.taken);
        self.outbox.outlets_mut().book(interruptions);
    }

    fn tally(&self) -> ModelTally {
        let gpus = self.outbox.outlets();
        ModelTally {
            taken: self.requests[0].taken().clone(),
            ran: gpus.ran().clone(),
            times: gpus.times().clone(),
        }
    }
}

impl Measurable for RankThread<InstantCompletions> {
    type Tally = ();

    #[inline]
    fn book(&mut self, _interruptions: Interruptions) {}

    fn tally(&self) {}
}
