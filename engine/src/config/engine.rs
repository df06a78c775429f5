//! CONFIG as a whole: [`Config`], with one field for each section of the file.

use super::api::AccessConfig;
use super::cores::Cores;
use super::discovery::DiscoveryConfig;
use super::executors::{ExecutorGroup, ExecutorKind};
use super::faults::FaultConfig;
use super::hosts::{HostConfig, LinkConfig};
use super::http::HttpLimits;
use super::log::LogConfig;
use super::models::ModelConfig;
use super::queries::QueryConfig;
use super::repository::{RepositoryConfig, RepositoryControl};
use super::shutdown::ShutdownConfig;
use super::slab_size::MemoryConfig;
use super::trace::TraceConfig;
use std::collections::BTreeSet;
use std::path::PathBuf;
use symphony_gpu::OnnxRuntimeOptions;
use symphony_gpu::cuda::PageOptions;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::when::When;
use symphony_scheduler::policy::{self, Policy};
use symphony_scheduler::rule_setting::Prefer;
use symphony_scheduler::workload::Network;

/// The configuration of `symphony serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// The TOML file that it was read from.
    pub file: PathBuf,
    /// The scheduling policy, one of [`policy::served`].
    pub policy: &'static str,
    /// The rule for holding batches back, instead of the policy's own.
    pub when: Option<&'static When>,
    /// The rule for dropping requests that stand in the way of a good batch.
    pub drop: DropRule,
    /// Whether the default rule is tuned while it serves, and what is preferred among settings that
    /// serve as much.
    pub tuning: Option<Prefer>,
    /// The file in which rolling profiles stay over a restart.
    pub learned_profiles: Option<PathBuf>,
    /// Delays that the scheduler allows for beyond what the engine measures itself.
    pub network: Network,
    /// The threads and their cores.
    pub cores: Cores,
    /// Limits of the HTTP server.
    pub http: HttpLimits,
    /// The memory that requests may take.
    pub memory: MemoryConfig,
    /// Access control of the API.
    pub access: AccessConfig,
    /// The bounds on what a fault may cost.
    pub faults: FaultConfig,
    /// The format and the level of log lines.
    pub log: LogConfig,
    /// The tracing of requests.
    pub trace: TraceConfig,
    /// The bounds on a shutdown, and on a thread that does not move.
    pub shutdown: ShutdownConfig,
    /// The options of executors of kind `onnxruntime`.
    pub onnxruntime: OnnxRuntimeOptions,
    /// The hosts that the engine can be spread over, in the order of their numbers; none where it
    /// is one process only.
    pub hosts: Vec<HostConfig>,
    /// What holds for the links between hosts.
    pub links: LinkConfig,
    /// How the hosts find each other.
    pub discovery: DiscoveryConfig,
    /// The executors, which run batches.
    pub executors: Vec<ExecutorGroup>,
    /// The models to serve from the start: CONFIG's, then the repository's, each version by itself.
    /// No two have the same name and version, but the size classes of a model, which follow one
    /// another. A model's id is its index here. Empty only with a repository.
    pub models: Vec<ModelConfig>,
    /// The queries, which clients call as models. No two have the same name, nor that of a model.
    pub queries: Vec<QueryConfig>,
    /// The repository of models, some of which may be loaded later.
    pub repository: Option<RepositoryConfig>,
}

impl Config {
    /// Returns the number of executors of a kind.
    pub fn executors_of(&self, kind: ExecutorKind) -> usize {
        self.executors.iter().filter(|e| e.kind == kind).map(|e| e.count).sum()
    }

    /// Returns the policy, where it schedules all models and GPUs as a whole, on a thread of its
    /// own.
    pub fn whole_policy(&self) -> Option<&'static dyn Policy> {
        policy::by_name(self.policy).filter(|policy| policy.deferral().is_none() && !policy.preempts())
    }

    /// Returns how the memory of each GPU of kind `cuda` is taken, in their order.
    pub fn gpu_pages(&self) -> Vec<PageOptions> {
        let gpus = self.executors.iter().filter(|group| group.kind == ExecutorKind::Cuda);
        gpus.flat_map(|group| std::iter::repeat_n(group.pages, group.count)).collect()
    }

    /// Returns the kinds of executors that there are, in their order.
    pub fn kinds(&self) -> BTreeSet<ExecutorKind> {
        self.executors.iter().map(|executor| executor.kind).collect()
    }

    /// Returns the kind of executor of each model slot: first those of the models served from the
    /// start, then those kept for models that are loaded later.
    pub fn model_slots(&self) -> Vec<ExecutorKind> {
        let mut slots: Vec<ExecutorKind> = self.models.iter().map(|model| model.source.kind()).collect();
        let Some(repository) =
            self.repository.as_ref().filter(|from| from.control != RepositoryControl::None)
        else {
            return slots;
        };
        for kind in self.kinds() {
            let taken = slots.iter().filter(|slot| **slot == kind).count();
            let kept = repository.max_versions.saturating_sub(taken);
            slots.extend(std::iter::repeat_n(kind, kept));
        }
        slots
    }

    /// Returns the number of models that executors of a kind can serve at once.
    pub fn models_of(&self, kind: ExecutorKind) -> usize {
        self.model_slots().into_iter().filter(|slot| *slot == kind).count()
    }

    /// Returns the most sub-clusters that can be formed: each has executors of one kind, and beyond
    /// the first of a kind each has an executor and a model of its own.
    pub fn most_sub_clusters(&self) -> usize {
        let of_a_kind = |kind| self.executors_of(kind).min(self.models_of(kind)).max(1);
        self.kinds().into_iter().map(of_a_kind).sum()
    }

    /// Returns the configuration of one CPU executor for the models of the repository at `path`.
    pub(super) fn for_repository(path: PathBuf) -> Config {
        Config {
            file: path.join("symphony.toml"),
            policy: policy::POLICIES[0].name(),
            when: None,
            drop: policy::POLICIES[0].drop(),
            tuning: None,
            learned_profiles: None,
            network: Network::default(),
            cores: Cores::default(),
            http: HttpLimits::default(),
            memory: MemoryConfig::default(),
            access: AccessConfig::default(),
            faults: FaultConfig::default(),
            log: LogConfig::default(),
            trace: TraceConfig::default(),
            shutdown: ShutdownConfig::default(),
            onnxruntime: OnnxRuntimeOptions::default(),
            hosts: Vec::new(),
            links: LinkConfig::default(),
            discovery: DiscoveryConfig::default(),
            executors: vec![ExecutorGroup {
                kind: ExecutorKind::Cpu,
                count: 1,
                cores: Vec::new(),
                pages: PageOptions::default(),
                host: None,
            }],
            models: Vec::new(),
            queries: Vec::new(),
            repository: None,
        }
    }
}
