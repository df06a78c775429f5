//! `carried`, the default: a stage may take what the query's deadline leaves, less what the stages
//! after it are going to need. For each of these that is a high percentile of its recent times, at
//! least its profile's shortest and at most its part of Nexus's split. So a stage inherits what the
//! ones before it have left, and the first stage drops what the last can't save.

use super::nexus::NexusSplit;
use super::splitter::{ArrivingItem, Splitter, longest_after, profiles};
use crate::profile::Profile;
use crate::workload::{Workload, WorkloadQuery};
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The percentile of recent times that is kept free for a stage.
const PERCENTILE: usize = 95;

/// The number of recent times.
const RECENT: usize = 512;

/// The number of times after which the percentile is taken anew.
const REFRESH: usize = 64;

/// The splitter.
pub(super) struct CarriedSplit {
    nexus: NexusSplit,
    queries: Vec<CarriedQuery>,
}

/// The state of a query's stages.
struct CarriedQuery {
    outputs: Vec<Vec<usize>>,
    stages: Vec<StageTimes>,
    /// What the stages after each one need, along the longest path.
    after: Vec<Nanos>,
}

/// The recent times of a stage.
struct StageTimes {
    recent: Vec<Nanos>,
    next: usize,
    /// l(1).
    shortest: Nanos,
    /// The percentile of the recent times, once there are some.
    percentile: Option<Nanos>,
}

impl StageTimes {
    /// Adds a time. Returns true if the percentile was taken anew.
    fn add(&mut self, time: Nanos) -> bool {
        match self.recent.get_mut(self.next) {
            Some(slot) => *slot = time,
            None => self.recent.push(time),
        }
        self.next = (self.next + 1) % RECENT;
        let due = self.next.is_multiple_of(REFRESH);
        if due {
            let mut sorted = self.recent.clone();
            let at = (sorted.len() - 1) * PERCENTILE / 100;
            self.percentile = Some(*sorted.select_nth_unstable(at).1);
        }
        due
    }

    /// Returns the time to keep free for the stage, of which `budget` is planned.
    fn reserve(&self, budget: Nanos) -> Nanos {
        self.percentile.unwrap_or(budget).min(budget).max(self.shortest)
    }
}

impl CarriedQuery {
    fn refresh(&mut self, budgets: &[Nanos]) {
        let both = self.stages.iter().zip(budgets);
        let reserves: Vec<Nanos> = both.map(|(stage, &budget)| stage.reserve(budget)).collect();
        self.after = longest_after(&self.outputs, &reserves);
    }
}

impl CarriedSplit {
    /// Makes the splitter of a workload's queries.
    pub(super) fn new(workload: &Workload) -> CarriedSplit {
        let nexus = NexusSplit::new(workload);
        let of = |(at, WorkloadQuery { graph, .. }): (usize, &WorkloadQuery)| {
            let times = |profile: &Profile| StageTimes {
                recent: Vec::new(),
                next: 0,
                shortest: profile.latency(1),
                percentile: None,
            };
            let stages = profiles(workload, graph).into_iter().map(times).collect();
            let mut query = CarriedQuery { outputs: graph.outputs(), stages, after: Vec::new() };
            query.refresh(nexus.budgets(at));
            query
        };
        let queries = workload.queries.iter().enumerate().map(of).collect();
        CarriedSplit { nexus, queries }
    }
}

impl Splitter for CarriedSplit {
    fn budgets(&self, graph: usize) -> &[Nanos] {
        self.nexus.budgets(graph)
    }

    fn deadline(&mut self, item: ArrivingItem) -> Nanos {
        if self.nexus.count(&item) {
            for (at, query) in self.queries.iter_mut().enumerate() {
                query.refresh(self.nexus.budgets(at));
            }
        }
        item.query_deadline - self.queries[item.graph].after[item.stage]
    }

    fn took(&mut self, graph: usize, stage: usize, time: Nanos) {
        let query = &mut self.queries[graph];
        if query.stages[stage].add(time) {
            query.refresh(self.nexus.budgets(graph));
        }
    }
}
