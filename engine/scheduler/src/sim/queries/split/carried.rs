//! `carried`, the default: a stage may take what the query's deadline leaves, less what the stages
//! after it are going to need. For each of these that is a high percentile of its recent times, at
//! least its profile's shortest and at most its part of Nexus's split. So a stage inherits what the
//! ones before it have left, and the first stage drops what the last can't save. A stage that
//! others come after is to be over some time before its deadline, and is tried again until then.

use super::nexus::NexusSplit;
use super::splitter::{ArrivingItem, Splitter, profiles};
use crate::query::StageReserves;
use crate::workload::{Workload, WorkloadQuery};
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The splitter.
pub(super) struct CarriedSplit {
    nexus: NexusSplit,
    queries: Vec<StageReserves>,
}

impl CarriedSplit {
    /// Makes the splitter of a workload's queries.
    pub(super) fn new(workload: &Workload) -> CarriedSplit {
        let nexus = NexusSplit::new(workload);
        let of = |(at, WorkloadQuery { graph, .. }): (usize, &WorkloadQuery)| {
            let shortest: Vec<Nanos> =
                profiles(workload, graph).into_iter().map(|profile| profile.latency(1)).collect();
            StageReserves::new(graph.outputs(), &shortest, nexus.budgets(at).to_vec())
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
                query.plan(self.nexus.budgets(at));
            }
        }
        self.queries[item.graph].deadline(item.stage, item.query_deadline)
    }

    fn goal(&self, item: ArrivingItem, deadline: Nanos) -> Nanos {
        self.queries[item.graph].goal(item.stage, item.now, deadline)
    }

    fn took(&mut self, graph: usize, stage: usize, time: Nanos) {
        self.queries[graph].took(stage, time);
    }
}
