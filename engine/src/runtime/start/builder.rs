//! The state of an engine's start-up, and the values that follow from the configuration alone.

use super::error::StartError;
use super::host_plan::HostPlan;
use super::identity::check_spreadable;
use super::layout::Layout;
use super::options::Options;
use super::sub_clusters::SubClusters;
use crate::config::{Config, RepositoryControl};
use crate::runtime::backends::libraries::Libraries;
use crate::runtime::callbacks::Progress;
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use crate::runtime::frontend::FirstIds;
use crate::runtime::gpu_memory::ServedGpus;
use crate::runtime::links::{OpenMemory, open_memory};
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::slack_for;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_scheduler::deferral::{Deferral, QueueConfig};
use symphony_scheduler::limits;
use symphony_scheduler::policy;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;
use symphony_transport::message::QueueId;

/// The inverse of the largest part of an SLO for which lateness is allowed: on a busier machine,
/// allowing for it would leave no time to wait for a batch to grow.
const LATENESS_IN_SLO: u64 = 50;

/// Returns the part of the measured lateness that is allowed for under an SLO.
pub(super) fn allowed_lateness(lateness: Nanos, slo: Nanos) -> Nanos {
    lateness.min(Nanos(slo.0 / LATENESS_IN_SLO))
}

/// Checks that a policy that schedules as a whole is not asked for what only ModelThreads do.
///
/// Errors: [`StartError::WholePolicy`].
fn check_whole_policy(config: &Config, options: &Options) -> Result<(), StartError> {
    let control = config.repository.as_ref().map(|repository| repository.control);
    let wrong = match control {
        _ if config.whole_policy().is_none() => return Ok(()),
        _ if options.record.is_some() => {
            "can't be recorded: recordings are of ModelThreads; serve without --record"
        }
        Some(RepositoryControl::Explicit | RepositoryControl::Poll) => {
            "knows the models that it starts with only: serve with --model-control-mode none"
        }
        Some(RepositoryControl::None) | None => return Ok(()),
    };
    Err(StartError::WholePolicy(config.policy.to_owned(), wrong))
}

/// The state of an engine's start-up.
pub(super) struct EngineBuilder {
    pub(super) config: Arc<Config>,
    pub(super) layout: Layout,
    pub(super) clock: Clock,
    /// The doorbells of the threads, where all of them sleep: one that spins rings none, since that
    /// may be a system call.
    pub(super) bells: Doorbells,
    pub(super) progress: Progress,
    pub(super) sub_clusters: SubClusters,
    pub(super) deferral: &'static dyn Deferral,
    /// The lateness of this machine's threads, where it is given and not measured.
    pub(super) lateness: Option<Nanos>,
    pub(super) options: Options,
    pub(super) libraries: Libraries,
    /// The GPUs, which their backend threads add.
    pub(super) gpu_memory: Arc<ServedGpus>,
    /// What opens the device that moves tensors, if CONFIG asks for one.
    pub(super) open_memory: OpenMemory,
    /// The engine's number of the first frontend of this process.
    pub(super) first_frontend: u32,
    /// Where the ids of their requests and slots begin.
    pub(super) first_ids: FirstIds,
    /// The flag that is cleared when the engine accepts no more requests.
    pub(super) accepting: Arc<AtomicBool>,
    /// The latch for faults that the engine can't survive.
    pub(super) faults: FaultLatch,
}

impl EngineBuilder {
    /// Makes the builder of an engine with this configuration.
    ///
    /// Errors: a limit would be exceeded, or the policy does not run on pinned threads.
    pub(super) fn new(
        config: Config,
        layout: Layout,
        progress: Progress,
        options: Options,
    ) -> Result<EngineBuilder, StartError> {
        let gpus: usize = config.executors.iter().map(|executor| executor.count).sum();
        StartError::at_most("GPUs and other executors", gpus, limits::MAX_GPUS)?;
        StartError::at_most("models", config.model_slots().len(), limits::MAX_MODELS)?;
        StartError::at_most("ModelThreads", layout.models.len(), limits::MAX_MODEL_THREADS)?;
        let own = policy::by_name(config.policy).and_then(policy::Policy::deferral);
        let default = policy::POLICIES[0].deferral();
        // A policy that schedules as a whole has no queues that defer.
        let own = own.or_else(|| config.whole_policy().and(default));
        let own =
            own.ok_or_else(|| StartError::Policy(config.policy.to_owned(), policy::served().join(", ")))?;
        let deferral = config.when.map_or(own, |rule| rule);
        let sub_clusters = SubClusters::new(&config, layout.ranks.len().max(1))?;
        check_whole_policy(&config, &options)?;
        let accepting = Arc::new(AtomicBool::new(true));
        let libraries = Libraries::of(&config, options.cuda.clone());
        Ok(EngineBuilder {
            config: Arc::new(config),
            bells: if layout.all_nap() { Doorbells::new() } else { Doorbells::none() },
            layout,
            clock: Clock::start(),
            progress,
            sub_clusters,
            deferral,
            lateness: None,
            libraries,
            gpu_memory: Arc::default(),
            open_memory: Box::new(open_memory),
            first_frontend: 0,
            first_ids: FirstIds::default(),
            options,
            faults: FaultLatch::new(Arc::clone(&accepting)),
            accepting,
        })
    }

    /// Makes the builder of one host of an engine.
    ///
    /// Errors: as [`EngineBuilder::new`], or models may be loaded later.
    pub(super) fn of_host(
        plan: &HostPlan,
        cores: &[usize],
        progress: Progress,
        options: Options,
    ) -> Result<EngineBuilder, StartError> {
        check_spreadable(&plan.whole)?;
        let (layout, own) = (plan.layout(cores), plan.identity.own_part(&plan.whole));
        let first_frontend = plan.identity.frontends(&plan.whole).start;
        let first_ids = FirstIds::of_process(plan.incarnation);
        let builder = EngineBuilder::new(own, layout, progress, options)?;
        Ok(EngineBuilder { first_frontend, first_ids, ..builder })
    }

    /// Returns the number of ModelThreads, or of what stands in their place: at least one.
    pub(super) fn model_threads(&self) -> usize {
        self.layout.models.len().max(1)
    }

    /// Returns true if models may be loaded later. A recording describes its models once, at its
    /// beginning, so models do not change while a flight recorder is on.
    pub(super) fn changes_later(&self) -> bool {
        let repository = self.config.repository.as_ref();
        self.options.record.is_none()
            && repository.is_some_and(|from| from.control != RepositoryControl::None)
    }

    /// Returns the most bytes that a row of a model that is loaded later may have.
    pub(super) fn later_row(&self) -> usize {
        let repository = self.config.repository.as_ref().filter(|_| self.changes_later());
        repository.map_or(0, |repository| repository.max_row_bytes)
    }

    pub(super) fn queue_ids(&self) -> QueueIds {
        QueueIds::new(self.sub_clusters.model_slots())
    }

    /// Returns a function that makes the configuration of a per-class queue: from its id, the
    /// model's SLO and profile, and the lateness of the machine.
    pub(super) fn queue_config(
        &self,
    ) -> impl Fn(QueueId, Nanos, Profile, Nanos) -> QueueConfig + Send + 'static {
        let (network, drop, deferral) = (self.config.network, self.config.drop, self.deferral);
        let (sub_clusters, queue_ids) = (self.sub_clusters.clone(), self.queue_ids());
        move |queue, slo, profile, lateness: Nanos| QueueConfig {
            queue,
            profile,
            slo,
            network,
            drop,
            deferral,
            slack: slack_for(allowed_lateness(lateness, slo)),
            gpus: sub_clusters.gpus_for(queue_ids.model(queue).0 as usize),
        }
    }
}
