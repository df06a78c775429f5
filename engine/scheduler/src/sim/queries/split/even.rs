//! `even`: each stage has the same part of the SLO, that of the longest path: the baseline of
//! Nexus's sections 7.2 and 7.5. A stage's time counts from its item's arrival; what an earlier
//! stage leaves is not carried over.

use super::splitter::{ArrivingItem, Splitter};
use crate::query::{QueryGraph, longest_after};
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The splitter.
pub(super) struct EvenSplit {
    budgets: Vec<Vec<Nanos>>,
}

impl EvenSplit {
    /// Makes the splitter of a workload's queries.
    pub(super) fn new(workload: &Workload) -> EvenSplit {
        EvenSplit { budgets: workload.queries.iter().map(|query| even_split(&query.graph)).collect() }
    }
}

impl Splitter for EvenSplit {
    fn budgets(&self, graph: usize) -> &[Nanos] {
        &self.budgets[graph]
    }

    fn deadline(&mut self, item: ArrivingItem) -> Nanos {
        (item.now + self.budgets[item.graph][item.stage]).min(item.query_deadline)
    }
}

/// Returns the same part of the SLO for each stage: as many as the longest path has stages.
pub(super) fn even_split(graph: &QueryGraph) -> Vec<Nanos> {
    let ones = vec![Nanos(1); graph.stages.len()];
    let longest = 1 + longest_after(&graph.outputs(), &ones)[0].0;
    vec![Nanos(graph.slo.0 / longest); graph.stages.len()]
}
