//! The division of an engine's executors and models into sub-clusters (Symphony, section 4.7), and
//! of sub-clusters among RankThreads. Decided once, at start-up, from the configuration alone.

use super::error::StartError;
use crate::config::{Config, ExecutorKind};
use std::ops::Range;
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_transport::message::ModelId;

/// GPUs, or other executors of one kind, that can each run the same models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubClusterSpec {
    pub(crate) kind: ExecutorKind,
    /// The engine's numbers of its GPUs.
    pub(crate) gpus: Range<u32>,
    /// The RankThread that matches them.
    pub(crate) rank: usize,
}

/// A backend thread: the executor that it drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackendSpec {
    pub(crate) kind: ExecutorKind,
    /// The engine's numbers of its GPUs.
    pub(crate) gpus: Range<u32>,
}

impl BackendSpec {
    /// Returns its role: the name of its thread and in metrics.
    pub(crate) fn role(&self) -> String {
        match self.kind.has_own_thread() {
            true => format!("{}-{}", self.kind.name(), self.gpus.start),
            false => self.kind.name().to_owned(),
        }
    }
}

/// All sub-clusters of an engine. Each model belongs to one.
#[derive(Clone, Debug)]
pub(crate) struct SubClusters {
    pub(crate) groups: Vec<SubClusterSpec>,
    /// The index of each model's sub-cluster in `groups`.
    group_of: Vec<usize>,
}

/// The executors of one kind, before they are divided into groups.
struct ExecutorPool {
    kind: ExecutorKind,
    gpus: usize,
    models: usize,
    parts: usize,
}

impl ExecutorPool {
    fn of(config: &Config, kind: ExecutorKind) -> ExecutorPool {
        let (gpus, models) = (config.executors_of(kind), config.models_of(kind));
        ExecutorPool { kind, gpus, models, parts: 1 }
    }

    /// Returns true if one more part would still have a GPU and a model.
    fn can_be_split(&self) -> bool {
        self.parts < self.gpus.min(self.models)
    }
}

impl SubClusters {
    /// Returns the number of model slots.
    pub(crate) fn model_slots(&self) -> usize {
        self.group_of.len()
    }

    /// Returns the backend threads, each with its GPUs: one for each executor of a kind that has
    /// threads of its own, one for all of another kind.
    pub(crate) fn backends(&self) -> Vec<BackendSpec> {
        let mut backends: Vec<BackendSpec> = Vec::new();
        for group in &self.groups {
            let kind = group.kind;
            match backends.last_mut().filter(|last| last.kind == kind && !kind.has_own_thread()) {
                Some(shared) => shared.gpus.end = group.gpus.end,
                None if kind.has_own_thread() => {
                    backends.extend(group.gpus.clone().map(|gpu| BackendSpec { kind, gpus: gpu..gpu + 1 }));
                }
                None => backends.push(BackendSpec { kind, gpus: group.gpus.clone() }),
            }
        }
        backends
    }

    /// Returns the number of GPUs of the sub-cluster that a model belongs to.
    pub(crate) fn gpus_for(&self, model: usize) -> usize {
        self.groups[self.group_of[model]].gpus.len()
    }

    /// Returns a model of the sub-cluster that a GPU belongs to.
    pub(crate) fn model_of(&self, gpu: u32) -> ModelId {
        let is_own = |&group: &usize| self.groups[group].gpus.contains(&gpu);
        ModelId(self.group_of.iter().position(is_own).unwrap_or_default() as u32)
    }

    /// Divides the GPUs among `ranks` RankThreads. Each kind of executor is a sub-cluster; if there
    /// are more RankThreads than kinds, the pools with the most GPUs a part are split, as evenly as
    /// possible, until each RankThread has a sub-cluster. A pool's models are distributed over its
    /// parts in their order.
    ///
    /// Errors: more RankThreads than sub-clusters that could be made, or than the limit.
    pub(crate) fn new(config: &Config, ranks: usize) -> Result<SubClusters, StartError> {
        let mut pools: Vec<ExecutorPool> =
            config.kinds().into_iter().map(|kind| ExecutorPool::of(config, kind)).collect();
        StartError::at_most("RankThreads", ranks, limits::MAX_RANK_THREADS)?;
        let what = "RankThreads that each have an executor and a model of their own";
        StartError::at_most(what, ranks, config.most_sub_clusters())?;
        for _ in pools.len()..ranks {
            let splittable = pools.iter_mut().filter(|pool| pool.can_be_split());
            let largest = splittable.max_by_key(|pool| pool.gpus / pool.parts);
            largest.expect("most_sub_clusters has counted one").parts += 1;
        }
        let mut groups = Vec::new();
        for pool in &pools {
            for part in 0..pool.parts {
                let first = groups.last().map_or(0, |before: &SubClusterSpec| before.gpus.end);
                let gpus = pool.gpus / pool.parts + usize::from(part < pool.gpus % pool.parts);
                let rank = groups.len() % ranks;
                groups.push(SubClusterSpec { kind: pool.kind, gpus: first..first + gpus as u32, rank });
            }
        }
        Ok(SubClusters { group_of: deal(config, &groups), groups })
    }

    /// Returns the sub-cluster of each model: an index in `groups`.
    pub(crate) fn group_of(&self) -> Arc<[u32]> {
        self.group_of.iter().map(|&group| group as u32).collect()
    }

    /// Returns the RankThread of each model.
    pub(crate) fn rank_of(&self) -> Arc<[u32]> {
        self.group_of.iter().map(|&group| self.groups[group].rank as u32).collect()
    }

    /// Returns the sub-clusters of a RankThread.
    pub(crate) fn of_rank(&self, rank: usize) -> impl Iterator<Item = &SubClusterSpec> {
        self.groups.iter().filter(move |group| group.rank == rank)
    }

    /// Returns, for each model, the index of its sub-cluster among those of its RankThread.
    pub(crate) fn index_on_rank(&self) -> Arc<[u32]> {
        let index = |group: usize| {
            let rank = self.groups[group].rank;
            self.groups[..group].iter().filter(|before| before.rank == rank).count() as u32
        };
        let indices: Vec<u32> = (0..self.groups.len()).map(index).collect();
        self.group_of.iter().map(|&group| indices[group]).collect()
    }
}

/// Returns, for each model, a sub-cluster that can run it: those of its kind in rotation.
fn deal(config: &Config, groups: &[SubClusterSpec]) -> Vec<usize> {
    let slots = config.model_slots();
    let mut group_of = vec![0; slots.len()];
    for kind in config.kinds() {
        let own = (0..groups.len()).filter(|&at| groups[at].kind == kind).cycle();
        let of_kind = slots.iter().zip(&mut group_of).filter(|(slot, _)| **slot == kind);
        for ((_, group), at) in of_kind.zip(own) {
            *group = at;
        }
    }
    group_of
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Cores, ExecutorGroup, ModelSource, read_config};
    use symphony_gpu::cuda::PageOptions;

    /// Returns a configuration with these numbers of executors and models, of each kind.
    fn config(cpu: (usize, usize), emulated: (usize, usize)) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("symphony.toml");
        let text = "[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 50\n\
                    profile = { alpha_ms = 1, beta_ms = 5 }\n";
        std::fs::write(&file, text).unwrap();
        let mut config = read_config(&file).unwrap();
        let emulated_model = config.models.pop().unwrap();
        let mut cpu_model = emulated_model.clone();
        cpu_model.source = ModelSource::File {
            file,
            executor: ExecutorKind::Cpu,
            sizes: Default::default(),
            contents: Default::default(),
        };
        let executors = |kind, count| ExecutorGroup {
            kind,
            count,
            cores: Vec::new(),
            pages: PageOptions::default(),
            host: None,
        };
        config.executors =
            vec![executors(ExecutorKind::Cpu, cpu.0), executors(ExecutorKind::Emulated, emulated.0)];
        config.models = vec![emulated_model; emulated.1];
        config.models.extend(vec![cpu_model; cpu.1]);
        config.cores = Cores::default();
        config
    }

    fn gpus(sub_clusters: &SubClusters) -> Vec<(ExecutorKind, Range<u32>, usize)> {
        sub_clusters.groups.iter().map(|group| (group.kind, group.gpus.clone(), group.rank)).collect()
    }

    #[test]
    fn kinds_of_executors_are_sub_clusters_of_one_rank_thread() {
        let sub_clusters = SubClusters::new(&config((2, 1), (8, 2)), 1).unwrap();
        let expected = [(ExecutorKind::Cpu, 0..2, 0), (ExecutorKind::Emulated, 2..10, 0)];
        assert_eq!(gpus(&sub_clusters), expected);
        assert_eq!(*sub_clusters.rank_of(), [0, 0, 0]);
        assert_eq!(*sub_clusters.index_on_rank(), [1, 1, 0]);
    }

    #[test]
    fn the_largest_pool_is_split_until_each_rank_thread_has_a_sub_cluster() {
        let sub_clusters = SubClusters::new(&config((2, 1), (11, 4)), 4).unwrap();
        let expected = [
            (ExecutorKind::Cpu, 0..2, 0),
            (ExecutorKind::Emulated, 2..6, 1),
            (ExecutorKind::Emulated, 6..10, 2),
            (ExecutorKind::Emulated, 10..13, 3),
        ];
        assert_eq!(gpus(&sub_clusters), expected);
        assert_eq!(*sub_clusters.rank_of(), [1, 2, 3, 1, 0]);
        assert_eq!(*sub_clusters.index_on_rank(), [0; 5]);
        assert!((0..4).all(|rank| sub_clusters.of_rank(rank).count() == 1));
    }

    #[test]
    fn each_cpu_executor_has_a_backend_thread_and_all_emulated_gpus_share_one() {
        let sub_clusters = SubClusters::new(&config((2, 1), (11, 4)), 4).unwrap();
        let backends: Vec<_> =
            sub_clusters.backends().iter().map(|backend| (backend.role(), backend.gpus.clone())).collect();
        let expected = [("cpu-0", 0..1), ("cpu-1", 1..2), ("emulated", 2..13)];
        assert_eq!(backends, expected.map(|(role, gpus)| (role.to_owned(), gpus)));
    }

    #[test]
    fn a_rank_thread_without_an_executor_and_a_model_of_its_own_is_refused() {
        let refusal = |ranks| SubClusters::new(&config((2, 1), (8, 2)), ranks).unwrap_err().to_string();
        assert_eq!(
            refusal(4),
            "RankThreads that each have an executor and a model of their own: 4 asked for; the limit is 3"
        );
        assert_eq!(refusal(17), "RankThreads: 17 asked for; the limit is 16");
    }
}
