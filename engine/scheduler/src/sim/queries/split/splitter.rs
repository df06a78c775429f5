//! The interface of a splitter, and what several need: the profiles of a query's stages.

use crate::profile::Profile;
use crate::query::QueryGraph;
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// An item of a query's stage at its arrival.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim::queries) struct ArrivingItem {
    /// The index of the query's graph.
    pub(in crate::sim::queries) graph: usize,
    /// The index of the stage.
    pub(in crate::sim::queries) stage: usize,
    /// The time of the item's arrival.
    pub(in crate::sim::queries) now: Nanos,
    /// The time by which the whole query must be over.
    pub(in crate::sim::queries) query_deadline: Nanos,
}

/// A rule for the deadlines of stages.
pub(in crate::sim::queries) trait Splitter {
    /// Returns the part of the SLO that each stage of a query is planned to take. Along no path is
    /// their sum above the SLO.
    fn budgets(&self, graph: usize) -> &[Nanos];
    /// Counts an item that arrives and returns its deadline, at most its query's.
    fn deadline(&mut self, item: ArrivingItem) -> Nanos;
    /// Returns the time by which an item of this deadline is to be over. One that is dropped for it
    /// is tried again until its deadline.
    fn goal(&self, _item: ArrivingItem, deadline: Nanos) -> Nanos {
        deadline
    }
    /// Counts an item of this stage, which took this time from its arrival to its end.
    fn took(&mut self, _graph: usize, _stage: usize, _time: Nanos) {}
}

/// Returns the profiles of a query's stages.
pub(super) fn profiles<'a>(workload: &'a Workload, graph: &QueryGraph) -> Vec<&'a Profile> {
    graph.stages.iter().map(|stage| &workload.models[stage.model.0 as usize].profile).collect()
}
