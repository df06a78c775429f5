//! The routing of a Nexus frontend, which chooses the GPU for a request: weighted round-robin among
//! those that host the model, with their shares of the model's rate as weights. Frontends share no
//! state: each has its own round-robin, which begins at a random position.

use super::packing::PlannedNode;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use rand::{Rng, RngExt};

/// The destination of a request: the queue of a session on a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct SessionRoute {
    pub(super) node: u32,
    /// Index among the node's sessions.
    pub(super) session: u32,
}

/// The routing table of one frontend.
#[derive(Debug, Default)]
pub(super) struct RoutingTable {
    /// Per model.
    routes: Vec<WeightedRoundRobin>,
}

/// Weighted round-robin: each route is due again after a stride in inverse proportion to its rate.
#[derive(Debug, Default)]
struct WeightedRoundRobin {
    due: BinaryHeap<Reverse<DueSession>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct DueSession {
    at: u64,
    route: SessionRoute,
    stride: u64,
}

/// The stride of a route that takes all of a model's requests.
const WHOLE: f64 = (1u64 << 20) as f64;

impl RoutingTable {
    /// Makes a table for a schedule of `models` models; each round-robin begins at a position from
    /// `random`.
    pub(super) fn new(models: usize, nodes: &[PlannedNode], random: &mut impl Rng) -> RoutingTable {
        let mut rates = vec![0.0; models];
        let shares = || {
            let numbered = nodes.iter().enumerate();
            numbered.flat_map(|(node, shares)| {
                let sessions = shares.shares.iter().enumerate();
                sessions.map(move |(session, share)| {
                    (SessionRoute { node: node as u32, session: session as u32 }, share)
                })
            })
        };
        shares().for_each(|(_, share)| rates[share.session] += share.rate);
        let mut routes: Vec<WeightedRoundRobin> =
            core::iter::repeat_with(WeightedRoundRobin::default).take(models).collect();
        for (route, share) in shares() {
            let stride = (WHOLE * rates[share.session] / share.rate) as u64;
            let at = random.random_range(0..stride);
            routes[share.session].due.push(Reverse(DueSession { at, route, stride }));
        }
        RoutingTable { routes }
    }

    /// Returns the destination of the next request of `model`; `None` if no GPU hosts it.
    pub(super) fn route(&mut self, model: usize) -> Option<SessionRoute> {
        let mut due = self.routes[model].due.peek_mut()?;
        let route = due.0.route;
        due.0.at += due.0.stride;
        Some(route)
    }
}

#[cfg(test)]
mod tests {
    use super::super::packing::Share;
    use super::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    fn table(rates: &[f64], seed: u64) -> RoutingTable {
        let nodes: Vec<_> = rates
            .iter()
            .map(|&rate| PlannedNode {
                shares: vec![Share { session: 0, batch: 1, rate }],
                cycle: 1.0,
                occupancy: 1.0,
            })
            .collect();
        RoutingTable::new(1, &nodes, &mut Pcg64Mcg::seed_from_u64(seed))
    }

    #[test]
    fn equal_shares_are_a_plain_round_robin() {
        let mut table = table(&[5.0; 4], 1);
        let round: Vec<_> = (0..4).map(|_| table.route(0).unwrap().node).collect();
        let mut sorted = round.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
        let next: Vec<_> = (0..4).map(|_| table.route(0).unwrap().node).collect();
        assert_eq!(next, round);
    }

    #[test]
    fn a_gpu_gets_requests_in_proportion_to_its_share() {
        let mut table = table(&[3.0, 1.0], 1);
        let to_first = (0..4_000).filter(|_| table.route(0).unwrap().node == 0).count();
        assert!(to_first.abs_diff(3_000) <= 2, "{to_first}");
    }

    #[test]
    fn round_robins_of_different_seeds_begin_at_different_positions() {
        let round = |seed| {
            let mut table = table(&[1.0; 16], seed);
            (0..16).map(|_| table.route(0).unwrap().node).collect::<Vec<_>>()
        };
        assert_ne!(round(1), round(2));
        assert_eq!(round(1), round(1));
    }
}
