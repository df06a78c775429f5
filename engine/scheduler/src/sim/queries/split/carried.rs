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
        let query = &mut self.queries[item.graph];
        if item.stage == 0 {
            query.came(item.now);
        }
        query.deadline(item.stage, item.query_deadline)
    }

    fn goal(&self, item: ArrivingItem, deadline: Nanos) -> Nanos {
        self.queries[item.graph].goal(item.stage, item.now, deadline)
    }

    fn took(&mut self, graph: usize, stage: usize, time: Nanos) {
        self.queries[graph].took(stage, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::query::{QueryGraph, QueryStage, StageInput};
    use crate::workload::{Arrival, WorkloadModel};
    use alloc::string::ToString;
    use symphony_transport::message::ModelId;

    #[test]
    fn queries_in_bursts_have_later_goals() {
        let stage = |name: &str, input| QueryStage { name: name.to_string(), model: ModelId(0), input };
        let slo = Nanos::from_millis(100);
        let stages = vec![stage("first", StageInput::Root), stage("second", StageInput::each(0, 1.0))];
        let graph = QueryGraph { name: "query".to_string(), slo, stages };
        let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 8).unwrap();
        let mut workload = Workload::of_models(1, 1.0, vec![WorkloadModel::new("model", profile, slo)]);
        workload.queries = vec![WorkloadQuery { graph, share: 1.0, arrival: Arrival::Poisson }];
        // As many queries in as long, ten at a time or by themselves.
        let part = |at_a_time: u64| {
            let mut split = CarriedSplit::new(&workload);
            let mut part = 0.0;
            for query in 0..1_000 {
                let now = Nanos::from_millis(query / at_a_time * at_a_time);
                let item = ArrivingItem { graph: 0, stage: 0, now, query_deadline: now + slo };
                let deadline = split.deadline(item);
                part = (split.goal(item, deadline) - now).as_secs_f64() / (deadline - now).as_secs_f64();
            }
            part
        };
        assert!((part(1) - 0.9).abs() < 1e-6 && part(10) > 0.98, "{} and {}", part(1), part(10));
    }
}
