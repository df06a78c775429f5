//! The placement of roles on cores. The configuration decides, or the machine does: every role gets
//! a core of its own where there are enough, else CPU executors keep theirs and the light roles
//! share the rest.

use crate::config::{Config, Cores, ExecutorKind, Role};
use crate::runtime::threads::agent::{Idle, Placement};
use std::collections::HashMap;
use symphony_scheduler::limits;

/// Returns the role of the RankThread numbered `at`: the name of its thread, in metrics and of its
/// recording.
pub fn rank_role(at: usize) -> String {
    if at == 0 { "rank".to_owned() } else { format!("rank-{at}") }
}

/// The placements of every thread of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The placement of each RankThread.
    pub ranks: Vec<Placement>,
    /// The placement of each ModelThread.
    pub models: Vec<Placement>,
    /// The placement of each CPU executor.
    pub executors: Vec<Placement>,
    /// The placement of the emulated GPUs' thread, if there are any.
    pub emulated: Option<Placement>,
    /// The placement of each frontend's thread: API cores, or load generators.
    pub frontends: Vec<Placement>,
    /// The placement of the thread of the links to other hosts, where there are any.
    pub links: Option<Placement>,
    /// True if some role has to share its core.
    pub shared: bool,
}

impl Layout {
    /// Places the roles of `config` and `frontends` frontends on a machine that has `cores`.
    pub fn new(config: &Config, frontends: usize, cores: &[usize]) -> Layout {
        let (executors, emulated) = executor_threads(config);
        let ranks = config.cores.rank_threads.max(1);
        Layout::place(
            config,
            RoleCounts { ranks, frontends, executors, emulated, ..RoleCounts::default() },
            cores,
        )
    }

    /// Places the threads of one host: its role's, and that of its links. `config` has the
    /// executors of that host only.
    pub(super) fn of_host(config: &Config, role: Role, frontends: usize, cores: &[usize]) -> Layout {
        let (executors, emulated) = executor_threads(config);
        let counts = match role {
            Role::Frontend => RoleCounts { frontends, ..RoleCounts::default() },
            Role::Scheduler => {
                RoleCounts { ranks: config.cores.rank_threads.max(1), ..RoleCounts::default() }
            }
            Role::Backend => RoleCounts { executors, emulated, ..RoleCounts::default() },
        };
        Layout::place(config, RoleCounts { links: 1, ..counts }, cores)
    }

    fn place(config: &Config, counts: RoleCounts, cores: &[usize]) -> Layout {
        let RoleCounts { ranks, frontends, executors, emulated, links } = counts;
        let others = ranks + frontends + executors + emulated + links;
        // Where there is no RankThread there is no ModelThread.
        let asked = if config.whole_policy().is_some() { Some(1) } else { config.cores.model_threads };
        let model_threads = asked
            .unwrap_or_else(|| cores.len().saturating_sub(others).min(limits::MAX_MODEL_THREADS))
            .clamp(1, config.model_slots().len().max(1))
            .min(if ranks > 0 { usize::MAX } else { 0 });
        let given = NamedCores::of(config);
        let wanted = others + model_threads;
        let mut allocator = CoreAllocator::new(cores, wanted, executors);
        let ranks = (0..ranks).map(|at| allocator.light(given.rank(at))).collect();
        let models = (0..model_threads).map(|at| allocator.light(given.model(at))).collect();
        let emulated = (emulated > 0).then(|| allocator.light(given.emulated));
        let links = (links > 0).then(|| allocator.light(given.links));
        let frontends = (0..frontends).map(|at| allocator.light(given.api(at))).collect();
        let executors = (0..executors).map(|at| allocator.heavy(given.executor(at))).collect();
        let mut layout = Layout { ranks, models, executors, emulated, frontends, links, shared: false };
        layout.mark_shared(cores.len() < wanted, &allocator.named);
        layout
    }

    /// Returns true if no thread spins.
    pub(super) fn all_nap(&self) -> bool {
        let others = [&self.ranks, &self.models, &self.executors, &self.frontends];
        others
            .into_iter()
            .flatten()
            .chain(&self.emulated)
            .chain(&self.links)
            .all(|placement| placement.idle == Idle::Nap)
    }

    /// Returns the cores that threads are pinned to.
    pub fn cores(&self) -> Vec<usize> {
        let alone = self.emulated.iter().chain(&self.links);
        let others = [&self.ranks, &self.models, &self.executors, &self.frontends];
        others.into_iter().flatten().chain(alone).filter_map(|placement| placement.core).collect()
    }

    /// Decides which threads nap: those that share their core with another thread, and all where no
    /// core is known. Where there are too few cores for all, a thread spins only on a core that the
    /// configuration names for each of its roles (`named`): other programs need the remaining
    /// cores. The roles of a composite agent are one thread.
    fn mark_shared(&mut self, too_few: bool, named: &HashMap<usize, usize>) {
        let mut roles = HashMap::<usize, usize>::new();
        let mut composite_roles = HashMap::<usize, usize>::new();
        for core in self.placements().filter_map(|placement| placement.core) {
            *roles.entry(core).or_default() += 1;
        }
        for core in self.composite_placements().filter_map(|placement| placement.core) {
            *composite_roles.entry(core).or_default() += 1;
        }
        let mut shared = false;
        for placement in self.placements() {
            let is_alone = placement.core.is_some_and(|core| {
                let all = roles[&core];
                let is_one_thread = all == 1 || composite_roles.get(&core) == Some(&all);
                is_one_thread && named.get(&core) == Some(&all) || all == 1 && !too_few
            });
            placement.idle = if is_alone { Idle::Spin } else { Idle::Nap };
            shared |= !is_alone;
        }
        self.shared = shared;
    }

    /// Returns the placements of the roles that share a thread where they share a core.
    fn composite_placements(&mut self) -> impl Iterator<Item = &mut Placement> {
        self.ranks.iter_mut().chain(&mut self.models).chain(&mut self.emulated)
    }

    fn placements(&mut self) -> impl Iterator<Item = &mut Placement> {
        self.ranks
            .iter_mut()
            .chain(&mut self.models)
            .chain(&mut self.executors)
            .chain(&mut self.emulated)
            .chain(&mut self.frontends)
            .chain(&mut self.links)
    }
}

/// The numbers of the threads to place, ModelThreads aside.
#[derive(Clone, Copy, Default)]
struct RoleCounts {
    ranks: usize,
    frontends: usize,
    executors: usize,
    emulated: usize,
    links: usize,
}

/// Returns the number of executors with threads of their own, and of threads of emulated GPUs.
fn executor_threads(config: &Config) -> (usize, usize) {
    let executors = config.executors.iter().filter(|group| group.kind.has_own_thread());
    let emulated = usize::from(config.executors_of(ExecutorKind::Emulated) > 0);
    (executors.map(|group| group.count).sum(), emulated)
}

/// The cores that the configuration names.
struct NamedCores<'a> {
    config: &'a Config,
    emulated: Option<usize>,
    links: Option<usize>,
    executors: Vec<usize>,
}

impl NamedCores<'_> {
    fn of(config: &Config) -> NamedCores<'_> {
        // Executors are numbered by kind.
        let with_threads = config.kinds().into_iter().filter(|kind| kind.has_own_thread());
        let groups =
            with_threads.flat_map(|kind| config.executors.iter().filter(move |group| group.kind == kind));
        let executors = groups.flat_map(|group| group.cores.iter().copied()).collect();
        let Cores { emulated, links, .. } = config.cores;
        NamedCores { config, emulated, links, executors }
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

/// Assigns cores: light roles from the front, CPU executors from the back.
struct CoreAllocator<'a> {
    cores: &'a [usize],
    light_cores: usize,
    next_light: usize,
    next_heavy: usize,
    /// The number of roles for which the configuration names each core.
    named: HashMap<usize, usize>,
}

impl CoreAllocator<'_> {
    fn new(cores: &[usize], wanted: usize, executors: usize) -> CoreAllocator<'_> {
        let light_cores = if wanted <= cores.len() {
            wanted - executors
        } else {
            cores.len().saturating_sub(executors).max(1).min(cores.len())
        };
        CoreAllocator { cores, light_cores, next_light: 0, next_heavy: 0, named: HashMap::new() }
    }

    fn light(&mut self, given: Option<usize>) -> Placement {
        let allocated = (self.light_cores > 0).then(|| self.cores[self.next_light % self.light_cores]);
        self.next_light += usize::from(given.is_none());
        self.name(given);
        Placement { core: given.or(allocated), idle: Idle::Nap }
    }

    fn heavy(&mut self, given: Option<usize>) -> Placement {
        let count = self.cores.len();
        let allocated = (count > 0).then(|| self.cores[count - 1 - self.next_heavy % count]);
        self.next_heavy += usize::from(given.is_none());
        self.name(given);
        Placement { core: given.or(allocated), idle: Idle::Nap }
    }

    fn name(&mut self, given: Option<usize>) {
        if let Some(core) = given {
            *self.named.entry(core).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_config;

    fn config(cores: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("symphony.toml");
        let rest = "[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 9\n\
                    profile = { alpha_ms = 1, beta_ms = 1 }\n";
        std::fs::write(&file, format!("[cores]\n{cores}\n{rest}")).unwrap();
        read_config(&file).unwrap()
    }

    /// Returns how the API's thread and the ModelThread idle, on a machine with these cores.
    fn idle(cores: &str, machine: &[usize]) -> (Idle, Idle) {
        let layout = Layout::new(&config(cores), 1, machine);
        assert_eq!(layout.shared, layout.ranks[0].idle == Idle::Nap || layout.frontends[0].idle == Idle::Nap);
        (layout.frontends[0].idle, layout.models[0].idle)
    }

    #[test]
    fn a_thread_spins_on_a_core_of_its_own_and_on_one_that_was_named_for_all_its_roles() {
        assert_eq!(idle("", &[0, 1, 2, 3]), (Idle::Spin, Idle::Spin));
        assert_eq!(idle("", &[0, 1]), (Idle::Nap, Idle::Nap));
        let all_named = "api = 0\nmodel = 0\nrank = 0\nemulated = 0";
        assert_eq!(idle(all_named, &[0]), (Idle::Nap, Idle::Nap));
        let cores: Vec<usize> = core_affinity::get_core_ids().unwrap().iter().map(|core| core.id).collect();
        if let [first, second, ..] = cores[..] {
            let named = format!("api = {first}\nmodel = {second}\nrank = {second}\nemulated = {second}");
            assert_eq!(idle(&named, &[first, second]), (Idle::Spin, Idle::Spin));
            let partly = format!("api = {first}\nmodel = {second}\nrank = {second}");
            // The emulated GPUs' thread is put beside the API's.
            assert_eq!(idle(&partly, &[first, second]), (Idle::Nap, Idle::Spin));
        }
    }

    #[test]
    fn the_links_of_a_host_have_the_core_that_is_named_for_them() {
        let Some(last) = core_affinity::get_core_ids().unwrap().last().map(|core| core.id) else { return };
        let config = config(&format!("links = {last}"));
        let layout = Layout::of_host(&config, Role::Frontend, 1, &[last + 1, last + 2, last]);
        assert_eq!(layout.links, Some(Placement { core: Some(last), idle: Idle::Spin }));
        assert_eq!(layout.frontends, [Placement { core: Some(last + 1), idle: Idle::Spin }]);
    }
}
