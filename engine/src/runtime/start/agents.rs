//! The agents of an engine, each made with its ends of the rings, and the threads that they share.

use super::builder::{EngineBuilder, allowed_lateness};
use super::error::StartError;
use super::findings::Findings;
use super::layout::rank_role;
use super::rings::{EngineRings, ModelThreadRings};
use super::sub_clusters::{BackendSpec, SubClusterSpec};
use crate::recorder::{ClusterConfig, ModelRecorder, RankRecorder};
use crate::runtime::backends::backend::Backend;
use crate::runtime::backends::executor_state::{ExecutorState, ModelChangeReceiver};
use crate::runtime::backends::executors::ExecutorRings;
use crate::runtime::backends::lease::ExecutorLease;
use crate::runtime::backends::model_faults::ModelFaults;
use crate::runtime::frontend::{Class, ModelInfo, SlotState};
use crate::runtime::model_setup::{output_range, queue_of_class};
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::agenda::Agenda;
use crate::runtime::threads::agent::{CompositeAgent, Idle, Member, Placement};
use crate::runtime::threads::completions::CheckedCompletions;
use crate::runtime::threads::model_thread::{ModelThread, Outbox, ReservationProgress, RingOutlets};
use crate::runtime::threads::monitor::ModelMonitor;
use crate::runtime::threads::rank_thread::{BackfillPhase, Grants, RankMonitor, RankThread, SubCluster};
use crate::runtime::threads::{ahead_for, measures_from};
use std::ops::Range;
use std::sync::Arc;
use symphony_gpu::{EmulatedExecutor, Executor};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits;
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::RankState;
use symphony_transport::Nanos;
use symphony_transport::message::Request;
use symphony_transport::ring::Consumer;

/// The composite agents of an engine: a thread each.
#[derive(Default)]
pub(super) struct CompositeAgents(pub(super) Vec<(Placement, CompositeAgent)>);

impl CompositeAgents {
    /// Adds a role to the composite agent of its placement if it may share a thread, else to one of
    /// its own.
    pub(super) fn add(&mut self, placement: Placement, member: Member) {
        // Threads that spin must not share a core where none is known.
        let may_share = placement.core.is_some() || placement.idle == Idle::Nap;
        match self.0.iter_mut().find(|(taken, _)| *taken == placement && may_share) {
            Some((_, composite)) => composite.0.push(member),
            None => self.0.push((placement, CompositeAgent(vec![member]))),
        }
    }
}

impl EngineBuilder {
    /// Makes the agent of the emulated GPUs. Nothing of them can hang, so nobody else knows its
    /// lease.
    pub(super) fn emulated_backend<E: Executor<Model = Range<usize>>>(
        &self,
        spec: &BackendSpec,
        models: &[ModelInfo],
        ExecutorRings { inbox, answers }: ExecutorRings,
        changes: Option<ModelChangeReceiver<Range<usize>>>,
        faults: &Arc<ModelFaults>,
        emulate: impl FnOnce(EmulatedExecutor) -> E,
    ) -> Backend<E> {
        let now = self.clock.now();
        // Of models that are run as one, those of the largest: all start at the same place.
        let outputs = |slot: &ModelInfo| {
            let of_slot = models.iter().filter(|model| model.queue_slot() == slot.id);
            let served = of_slot.filter(|model| model.state != SlotState::Vacant);
            served.map(|model| output_range(&model.signature)).max_by_key(|outputs| outputs.end)
        };
        let gpus = spec.gpus.len() as u32;
        let executor = EmulatedExecutor::new(gpus, models.iter().map(outputs).collect(), now);
        let state = ExecutorState::new(inbox, answers, emulate(executor), changes, spec.gpus.start, now);
        Backend {
            state: Some(Box::new(state)),
            lease: Arc::new(ExecutorLease::new()),
            faults: Arc::clone(faults),
            clock: self.clock.clone(),
            role: spec.role(),
            hook: None,
            soon: Nanos::ZERO,
            hung_after: Nanos::MAX,
            log_at: Nanos::ZERO,
        }
    }

    /// Returns how long before a GPU is free it gets its next batch. A configured delay of the
    /// network is time enough.
    fn sent_ahead(&self, Findings { models, lateness, .. }: &Findings) -> Nanos {
        let slo = ModelInfo::served(models).map(|model| model.slo).min().unwrap_or_default();
        match self.config.network.control {
            Nanos::ZERO => ahead_for(allowed_lateness(*lateness, slo)),
            _ => Nanos::ZERO,
        }
    }

    pub(super) fn rank_thread(
        &self,
        at: usize,
        findings: &Findings,
        rings: &mut EngineRings,
    ) -> Result<RankThread<CheckedCompletions>, StartError> {
        let queue_ids = self.queue_ids();
        let cluster_config = |group: &SubClusterSpec| ClusterConfig {
            gpus: group.gpus.len(),
            keep_late: self.config.drop == DropRule::Fcfs,
            completion_delay: self.config.network.control,
            ahead: self.sent_ahead(findings),
            first_gpu: group.gpus.start,
        };
        let configs: Vec<ClusterConfig> = self.sub_clusters.of_rank(at).map(cluster_config).collect();
        let sub_cluster = |config: &ClusterConfig| {
            let state =
                RankState::new(config.gpus, queue_ids.count(), config.keep_late, config.completion_delay)
                    .sending_ahead(config.ahead);
            SubCluster::new(state.among_classes(queue_ids.class_of_each()), config.first_gpu)
        };
        let classes = queue_ids.class_of_each();
        let create = |to| RankRecorder::create(to, &rank_role(at), queue_ids.count(), &classes, &configs);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        let (links, completions) = rings.rank_thread(at);
        Ok(RankThread {
            monitor: RankMonitor { counting: rings.counters.of_rank(at), recorder },
            clusters: configs.iter().map(sub_cluster).collect(),
            cluster_of: queue_ids.each(&self.sub_clusters.index_on_rank()),
            backfill: BackfillPhase::default(),
            messages: links.messages,
            completions,
            presence: None,
            delays: None,
            grants: Grants { thread_of: Arc::clone(&rings.thread_of), threads: links.grants },
        })
    }

    pub(super) fn model_thread(
        &self,
        at: usize,
        Findings { models, profiles, lateness }: &Findings,
        rings: &mut EngineRings,
    ) -> Result<ModelThread<Consumer<Request>, RingOutlets>, StartError> {
        let (now, queue_ids) = (self.clock.now(), self.queue_ids());
        let own: Vec<&ModelInfo> = models.iter().filter(|model| model.thread == at).collect();
        let mut index_of = vec![None; models.len()];
        let (mut queues, mut names) = (Vec::new(), Vec::new());
        let make_config = self.queue_config();
        for class in QueueIds::classes() {
            for (nth, model) in own.iter().enumerate() {
                let queue_id = queue_ids.of(model.id, class);
                index_of[model.id.0 as usize] = Some(nth as u32);
                names.push((name_of_queue(&model.name, class), class));
                let from = measures_from(now, nth, own.len());
                let config = |slo, profile| make_config(queue_id, slo, profile, *lateness);
                // A size class that is not kept has a profile, and its slot is vacant.
                let profile = profiles.get(model.id.0 as usize);
                queues.push(match profile.filter(|_| model.state != SlotState::Vacant) {
                    Some(profile) => {
                        let (slo, own) = ModelInfo::planned_for(models, model.id);
                        queue_of_class(config(slo, profile.clone()), class, own, from)
                    }
                    None => ModelQueue::of_nothing(config(Nanos::ZERO, Profile::of_nothing()), from),
                });
            }
        }
        let largest_batch = if self.changes_later() { limits::MAX_BATCH } else { 1 };
        let largest_batch = own.iter().map(|model| model.max_batch).fold(largest_batch, usize::max);
        let ModelThreadRings { requests, links, outlets } = rings.model_thread(at, largest_batch);
        let outbox =
            Outbox::new(at, Arc::clone(&rings.rank_of), links.messages, outlets).of_classes(queue_ids);
        let create = |to| {
            let begun_with: Vec<_> = queues.iter().map(ModelQueue::base_config).collect();
            let named = names.iter().zip(&begun_with).map(|((name, class), begun)| (&**name, *class, begun));
            ModelRecorder::create(to, &format!("model-{at}"), named, outbox.next_batch())
        };
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        Ok(ModelThread {
            monitor: ModelMonitor { counting: rings.counters.of_models(at), recorder },
            agenda: Agenda::new(queues.len()),
            queues,
            index_of,
            requests,
            grants: links.grants,
            outbox,
            changes: None,
            reservations: ReservationProgress::new(own.len(), self.layout.ranks.len()),
            profiles: None,
            tuning: None,
            delays: None,
        })
    }
}

/// Returns the name that a recording has for a model's queue of this class.
fn name_of_queue(model: &str, class: Class) -> String {
    match class {
        Class::HIGHEST => model.to_owned(),
        lower => format!("{model} (class {})", lower.number()),
    }
}
