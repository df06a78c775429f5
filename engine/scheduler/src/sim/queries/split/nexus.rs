//! `nexus`: the latency split that needs the fewest GPUs, by the dynamic programme of Nexus's
//! section 6.2 over profiles and rates. These are the expected ones at first, then those measured
//! in the epoch before. A stage's time counts from its item's arrival.

use super::even::even_split;
use super::splitter::{ArrivingItem, Splitter, profiles};
use crate::profile::Profile;
use crate::query::QueryGraph;
use crate::workload::{Workload, WorkloadQuery};
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The time after which the split is computed anew. Nexus's epochs are of 30 to 60 s (section 5);
/// a shorter one is to the split's advantage.
const EPOCH: Nanos = Nanos::from_secs(10);

/// The segments of the SLO between which the programme divides it: L / epsilon.
const SEGMENTS: usize = 100;

/// The splitter.
pub(super) struct NexusSplit {
    queries: Vec<PlannedQuery>,
    epoch_began: Nanos,
}

/// A query, its split, and its items of this epoch.
struct PlannedQuery {
    graph: QueryGraph,
    profiles: Vec<Profile>,
    counts: Vec<u64>,
    budgets: Vec<Nanos>,
}

impl PlannedQuery {
    fn plan(&mut self, items: &[f64]) {
        self.budgets = fewest_gpus(&self.graph, &self.profiles, items, SEGMENTS);
    }

    /// Plans by the counts of an epoch, if there were queries, and counts from zero.
    fn plan_by_counts(&mut self) {
        // Only the ratio of rates matters. A stage without items keeps a little weight.
        let items: Vec<f64> = self.counts.iter().map(|&count| (count as f64).max(0.5)).collect();
        if self.counts[0] > 0 {
            self.plan(&items);
        }
        self.counts.fill(0);
    }
}

impl NexusSplit {
    /// Makes the splitter of a workload's queries, planned for the expected rates.
    pub(super) fn new(workload: &Workload) -> NexusSplit {
        let planned = |WorkloadQuery { graph, .. }: &WorkloadQuery| {
            let profiles = profiles(workload, graph).into_iter().cloned().collect();
            let counts = vec![0; graph.stages.len()];
            let mut query = PlannedQuery { graph: graph.clone(), profiles, counts, budgets: Vec::new() };
            query.plan(&graph.expected_items());
            query
        };
        NexusSplit { queries: workload.queries.iter().map(planned).collect(), epoch_began: Nanos::ZERO }
    }

    /// Counts an item. Returns true where that begins an epoch, with a new split.
    pub(super) fn count(&mut self, item: &ArrivingItem) -> bool {
        let begins = item.now - self.epoch_began >= EPOCH;
        if begins {
            self.queries.iter_mut().for_each(PlannedQuery::plan_by_counts);
            self.epoch_began = item.now;
        }
        self.queries[item.graph].counts[item.stage] += 1;
        begins
    }
}

impl Splitter for NexusSplit {
    fn budgets(&self, graph: usize) -> &[Nanos] {
        &self.queries[graph].budgets
    }

    fn deadline(&mut self, item: ArrivingItem) -> Nanos {
        self.count(&item);
        (item.now + self.queries[item.graph].budgets[item.stage]).min(item.query_deadline)
    }
}

/// A node of the tree that the programme divides time over: a stage. A graph with joins is no tree;
/// its nodes are the stages of one depth together, in a chain.
struct SplitNode {
    stages: Vec<usize>,
    children: Vec<usize>,
}

/// Returns the nodes of a graph, children behind their parents.
fn nodes(graph: &QueryGraph) -> Vec<SplitNode> {
    let stages = &graph.stages;
    if !stages.iter().any(|stage| stage.inputs().len() > 1) {
        let outputs = graph.outputs().into_iter().enumerate();
        return outputs.map(|(at, children)| SplitNode { stages: vec![at], children }).collect();
    }
    let mut depths: Vec<usize> = Vec::new();
    for stage in stages {
        depths.push(stage.inputs().iter().map(|&input| depths[input] + 1).max().unwrap_or(0));
    }
    let deepest = depths.iter().max().copied().unwrap_or(0);
    let of_depth = |depth: usize| SplitNode {
        stages: (0..stages.len()).filter(|&at| depths[at] == depth).collect(),
        children: if depth < deepest { vec![depth + 1] } else { Vec::new() },
    };
    (0..=deepest).map(of_depth).collect()
}

/// Returns each stage's part of the SLO, in whole segments, for which the fewest GPUs are needed:
/// f(u, t) of section 6.2. `items` is in proportion to the stages' rates. An even split where there
/// is no feasible one.
fn fewest_gpus(graph: &QueryGraph, profiles: &[Profile], items: &[f64], segments: usize) -> Vec<Nanos> {
    let nodes = nodes(graph);
    let segment = Nanos(graph.slo.0 / segments as u64);
    let stage_costs: Vec<Vec<f64>> = profiles
        .iter()
        .zip(items)
        .map(|(profile, items)| gpu_times(profile, *items, segment, segments))
        .collect();
    // The least GPU time of a node and what is below it within t segments, and the node's own
    // segments then.
    let mut least = vec![vec![(f64::INFINITY, 0); segments + 1]; nodes.len()];
    for (at, node) in nodes.iter().enumerate().rev() {
        for within in 0..=segments {
            let cost = |own: usize| {
                let stages: f64 = node.stages.iter().map(|&stage| stage_costs[stage][own]).sum();
                stages + node.children.iter().map(|&child| least[child][within - own].0).sum::<f64>()
            };
            // Of equal ones the last: time that no larger batch can use is left to the node.
            let pairs = (0..=within).map(|own| (cost(own), own));
            least[at][within] = pairs.fold((f64::INFINITY, 0), |a, b| if b.0 <= a.0 { b } else { a });
        }
    }
    if least[0][segments].0.is_infinite() {
        return even_split(graph);
    }
    let mut budgets = vec![Nanos::ZERO; profiles.len()];
    let mut within = vec![segments; nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        let own = least[at][within[at]].1;
        node.stages.iter().for_each(|&stage| budgets[stage] = Nanos(segment.0 * own as u64));
        node.children.iter().for_each(|&child| within[child] = within[at] - own);
    }
    budgets
}

/// Returns, for each number of segments, the GPU time of a stage's items in the best batches that
/// take no longer: R l(b) / b.
fn gpu_times(profile: &Profile, items: f64, segment: Nanos, segments: usize) -> Vec<f64> {
    let mut size = 0;
    let mut best = f64::INFINITY;
    (0..=segments)
        .map(|count| {
            while size < profile.max_batch() && profile.latency(size + 1).0 <= segment.0 * count as u64 {
                size += 1;
                best = best.min(profile.latency(size).as_secs_f64() / size as f64);
            }
            items * best
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::{QueryStage, StageInput};
    use alloc::string::ToString;
    use symphony_transport::message::ModelId;

    /// A profile through these batches, (size, ms), which takes just less than the first for
    /// smaller ones.
    fn profile(points: &[(usize, u64)]) -> Profile {
        let latency = |size: usize| {
            let above = points.iter().find(|point| size <= point.0).expect("a point");
            let below = points.iter().rfind(|point| size > point.0);
            match below {
                Some(below) => {
                    let part = (size - below.0) as f64 / (above.0 - below.0) as f64;
                    Nanos::from_millis_f64(below.1 as f64 + part * (above.1 - below.1) as f64)
                }
                None => Nanos::from_millis(above.1) - Nanos((above.0 - size) as u64),
            }
        };
        let largest = points.last().expect("a point").0;
        Profile::measured(&(1..=largest).map(latency).collect::<Vec<_>>()).unwrap()
    }

    /// Nexus's Figures 3 and 4: X and Y with 100 ms for both.
    #[test]
    fn the_example_of_section_4_2_is_split_as_figure_4_says() {
        let x = profile(&[(8, 40), (12, 48), (18, 60)]);
        let y = profile(&[(12, 40), (20, 50), (30, 60)]);
        for (gamma, expected) in [(0.1, [60, 40]), (1.0, [50, 50]), (10.0, [40, 60])] {
            let stage = |name: &str, input| QueryStage { name: name.to_string(), model: ModelId(0), input };
            let graph = QueryGraph {
                name: "query".to_string(),
                slo: Nanos::from_millis(100),
                stages: vec![stage("X", StageInput::Root), stage("Y", StageInput::each(0, gamma))],
            };
            let split = fewest_gpus(&graph, &[x.clone(), y.clone()], &graph.expected_items(), 10);
            assert_eq!(split, expected.map(Nanos::from_millis), "gamma {gamma}");
        }
    }
}
