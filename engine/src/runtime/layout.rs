//! Which role runs on which core. The configuration says it or the machine decides: every role on a core of its
//! own where there are enough, else CPU executors keep theirs and the light roles share what is left.

use super::agent::{Idle, Seat};
use crate::config::{Config, ExecutorKind};
use crate::limits;

/// The role of the RankThread numbered `at`: in its thread's name, its metrics and its recording.
pub fn rank_role(at: usize) -> String {
    if at == 0 { "rank".to_owned() } else { format!("rank-{at}") }
}

/// The seats of every thread of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of each RankThread.
    pub ranks: Vec<Seat>,
    /// Of each ModelThread.
    pub models: Vec<Seat>,
    /// Of each CPU executor.
    pub executors: Vec<Seat>,
    /// Of the emulated GPUs' thread, if there are any.
    pub emulated: Option<Seat>,
    /// Of each frontend's thread: API cores, or load generators.
    pub frontends: Vec<Seat>,
    /// Whether some role has to share its core.
    pub shared: bool,
}

impl Layout {
    /// Seats for `config` and so many frontends on a machine that has `cores`.
    pub fn new(config: &Config, frontends: usize, cores: &[usize]) -> Layout {
        let executors = config.executors_of(ExecutorKind::Cpu);
        let emulated = usize::from(config.executors_of(ExecutorKind::Emulated) > 0);
        let ranks = config.cores.rank_threads.max(1);
        let others = ranks + frontends + executors + emulated;
        let model_threads = config
            .cores
            .model_threads
            .unwrap_or_else(|| cores.len().saturating_sub(others).min(limits::MAX_MODEL_THREADS))
            .clamp(1, config.places().len().max(1));
        let given = Given::of(config);
        let wanted = others + model_threads;
        let mut dealer = Dealer::new(cores, wanted, executors);
        let ranks = (0..ranks).map(|at| dealer.light(given.rank(at))).collect();
        let models = (0..model_threads).map(|at| dealer.light(given.model(at))).collect();
        let emulated = (emulated > 0).then(|| dealer.light(given.emulated));
        let frontends = (0..frontends).map(|at| dealer.light(given.api(at))).collect();
        let executors = (0..executors).map(|at| dealer.heavy(given.executor(at))).collect();
        let mut layout = Layout { ranks, models, executors, emulated, frontends, shared: false };
        layout.mark_shared(cores.len() < wanted);
        layout
    }

    /// The cores that threads are pinned to.
    pub fn cores(&self) -> Vec<usize> {
        let alone = self.emulated.iter();
        let others = [&self.ranks, &self.models, &self.executors, &self.frontends];
        others.into_iter().flatten().chain(alone).filter_map(|seat| seat.core).collect()
    }

    /// Threads whose core another thread has too take naps; so do all where no core is known.
    fn mark_shared(&mut self, too_few: bool) {
        let mut users = std::collections::HashMap::<usize, usize>::new();
        for seat in self.seats() {
            if let Some(core) = seat.core {
                *users.entry(core).or_default() += 1;
            }
        }
        let mut shared = false;
        for seat in self.seats() {
            let alone = seat.core.is_some_and(|core| users[&core] == 1) && !too_few;
            seat.idle = if alone { Idle::Spin } else { Idle::Nap };
            shared |= !alone;
        }
        self.shared = shared;
    }

    fn seats(&mut self) -> impl Iterator<Item = &mut Seat> {
        self.ranks
            .iter_mut()
            .chain(&mut self.models)
            .chain(&mut self.executors)
            .chain(&mut self.emulated)
            .chain(&mut self.frontends)
    }
}

/// The cores that the configuration names.
struct Given<'a> {
    config: &'a Config,
    emulated: Option<usize>,
    executors: Vec<usize>,
}

impl Given<'_> {
    fn of(config: &Config) -> Given<'_> {
        let executors = config
            .executors
            .iter()
            .filter(|executor| executor.kind == ExecutorKind::Cpu)
            .flat_map(|executor| executor.cores.iter().copied())
            .collect();
        Given { config, emulated: config.cores.emulated, executors }
    }

    fn rank(&self, at: usize) -> Option<usize> {
        self.config.cores.rank.get(at).copied()
    }

    fn model(&self, at: usize) -> Option<usize> {
        self.config.cores.model.get(at).copied()
    }

    fn api(&self, at: usize) -> Option<usize> {
        self.config.cores.api.get(at).copied()
    }

    fn executor(&self, at: usize) -> Option<usize> {
        self.executors.get(at).copied()
    }
}

/// Deals cores out: light roles from the front, CPU executors from the back.
struct Dealer<'a> {
    cores: &'a [usize],
    light_cores: usize,
    next_light: usize,
    next_heavy: usize,
}

impl Dealer<'_> {
    fn new(cores: &[usize], wanted: usize, executors: usize) -> Dealer<'_> {
        let light_cores = if wanted <= cores.len() {
            wanted - executors
        } else {
            cores.len().saturating_sub(executors).max(1).min(cores.len())
        };
        Dealer { cores, light_cores, next_light: 0, next_heavy: 0 }
    }

    fn light(&mut self, given: Option<usize>) -> Seat {
        let dealt = (self.light_cores > 0).then(|| self.cores[self.next_light % self.light_cores]);
        self.next_light += usize::from(given.is_none());
        Seat { core: given.or(dealt), idle: Idle::Nap }
    }

    fn heavy(&mut self, given: Option<usize>) -> Seat {
        let count = self.cores.len();
        let dealt = (count > 0).then(|| self.cores[count - 1 - self.next_heavy % count]);
        self.next_heavy += usize::from(given.is_none());
        Seat { core: given.or(dealt), idle: Idle::Nap }
    }
}
