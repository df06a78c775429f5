//! CONFIG as a whole: [`Config`], with one field for each section of the file.

use super::api::AccessConfig;
use super::cores::Cores;
use super::executors::{ExecutorGroup, ExecutorKind};
use super::http::HttpLimits;
use super::log::LogConfig;
use super::models::ModelConfig;
use super::repository::{RepositoryConfig, RepositoryControl};
use super::trace::TraceConfig;
use std::path::PathBuf;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy;
use symphony_scheduler::policy::when::When;
use symphony_scheduler::workload::Network;

/// What `symphony serve` runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The TOML file that it was read from.
    pub file: PathBuf,
    /// The scheduling policy, one of [`policy::served`].
    pub policy: &'static str,
    /// How long a batch is held back, instead of the policy's own rule.
    pub when: Option<&'static When>,
    /// What becomes of requests that stand in the way of a good batch.
    pub drop: DropRule,
    /// Delays that the scheduler allows for beyond what the engine measures itself.
    pub network: Network,
    /// Which thread runs where.
    pub cores: Cores,
    /// Limits of the HTTP server.
    pub http: HttpLimits,
    /// Who may ask for what, and where.
    pub access: AccessConfig,
    /// What is logged, and how.
    pub log: LogConfig,
    /// What is traced, and where traces go.
    pub trace: TraceConfig,
    /// What runs batches.
    pub executors: Vec<ExecutorGroup>,
    /// The models to serve from the start: CONFIG's, then the repository's, each version by itself.
    /// No two have one name and version. A model's id is its location here. At least one, unless
    /// there is a repository.
    pub models: Vec<ModelConfig>,
    /// Where other models are, which may be loaded later.
    pub repository: Option<RepositoryConfig>,
}

impl Config {
    /// How many executors there are of a kind.
    pub fn executors_of(&self, kind: ExecutorKind) -> usize {
        self.executors.iter().filter(|e| e.kind == kind).map(|e| e.count).sum()
    }

    /// What runs the model of each id: that of each model to serve from the start, then of the ids
    /// that are kept for models which are loaded later.
    pub fn model_slots(&self) -> Vec<ExecutorKind> {
        let mut locations: Vec<ExecutorKind> = self.models.iter().map(|model| model.source.kind()).collect();
        let Some(repository) =
            self.repository.as_ref().filter(|from| from.control != RepositoryControl::None)
        else {
            return locations;
        };
        for kind in [ExecutorKind::Cpu, ExecutorKind::Emulated] {
            if self.executors_of(kind) > 0 {
                let taken = locations.iter().filter(|location| **location == kind).count();
                let kept = repository.max_versions.saturating_sub(taken);
                locations.extend(std::iter::repeat_n(kind, kept));
            }
        }
        locations
    }

    /// How many models can be served at once by executors of a kind.
    pub fn models_of(&self, kind: ExecutorKind) -> usize {
        self.model_slots().into_iter().filter(|location| *location == kind).count()
    }

    /// The most sub-clusters that can be made: executors of different kinds are never in one, and
    /// beyond one a kind each has an executor and a model.
    pub fn most_sub_clusters(&self) -> usize {
        let of_a_kind = |kind| match self.executors_of(kind) {
            0 => 0,
            executors => executors.min(self.models_of(kind)).max(1),
        };
        [ExecutorKind::Cpu, ExecutorKind::Emulated].into_iter().map(of_a_kind).sum()
    }

    /// One CPU executor for the models of the repository at `path`.
    pub(super) fn for_repository(path: PathBuf) -> Config {
        Config {
            file: path.join("symphony.toml"),
            policy: policy::POLICIES[0].name(),
            when: None,
            drop: policy::POLICIES[0].drop(),
            network: Network::default(),
            cores: Cores::default(),
            http: HttpLimits::default(),
            access: AccessConfig::default(),
            log: LogConfig::default(),
            trace: TraceConfig::default(),
            executors: vec![ExecutorGroup { kind: ExecutorKind::Cpu, count: 1, cores: Vec::new() }],
            models: Vec::new(),
            repository: None,
        }
    }
}
