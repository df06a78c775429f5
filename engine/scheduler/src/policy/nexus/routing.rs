//! How a Nexus frontend chooses the GPU for a request: in turn among those that host the model,
//! each as often as its share of the model's rate says. Frontends do not know of each other: each
//! goes its own round, from a place of its own.

use super::packing;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use rand::{Rng, RngExt};

/// A model's queue on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    pub(super) node: u32,
    pub(super) turn: u32,
}

/// The routing table of one frontend.
#[derive(Debug, Default)]
pub(super) struct Frontend {
    /// Per model.
    rounds: Vec<Round>,
}

/// Weighted round-robin: each place is due again after a stride in inverse proportion to its rate.
#[derive(Debug, Default)]
struct Round {
    due: BinaryHeap<Reverse<Due>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Due {
    at: u64,
    place: Place,
    stride: u64,
}

/// The stride of a place that takes all of a model's requests.
const WHOLE: f64 = (1u64 << 20) as f64;

impl Frontend {
    /// A table for this schedule of `models` models; `random` says where each round begins.
    pub(super) fn new(models: usize, nodes: &[packing::Node], random: &mut impl Rng) -> Frontend {
        let mut rates = vec![0.0; models];
        let shares = || {
            let numbered = nodes.iter().enumerate();
            numbered.flat_map(|(node, shares)| {
                let turns = shares.shares.iter().enumerate();
                turns.map(move |(turn, share)| (Place { node: node as u32, turn: turn as u32 }, share))
            })
        };
        shares().for_each(|(_, share)| rates[share.session] += share.rate);
        let mut rounds: Vec<Round> = core::iter::repeat_with(Round::default).take(models).collect();
        for (place, share) in shares() {
            let stride = (WHOLE * rates[share.session] / share.rate) as u64;
            let at = random.random_range(0..stride);
            rounds[share.session].due.push(Reverse(Due { at, place, stride }));
        }
        Frontend { rounds }
    }

    /// Where the next request of `model` goes; `None` if no GPU hosts it.
    pub(super) fn route(&mut self, model: usize) -> Option<Place> {
        let mut due = self.rounds[model].due.peek_mut()?;
        let place = due.0.place;
        due.0.at += due.0.stride;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use packing::{Node, Share};
    use rand::SeedableRng;
    use rand_pcg::Pcg64Mcg;

    fn table(rates: &[f64], seed: u64) -> Frontend {
        let nodes: Vec<_> = rates
            .iter()
            .map(|&rate| Node {
                shares: vec![Share { session: 0, batch: 1, rate }],
                cycle: 1.0,
                occupancy: 1.0,
            })
            .collect();
        Frontend::new(1, &nodes, &mut Pcg64Mcg::seed_from_u64(seed))
    }

    #[test]
    fn equal_shares_are_a_plain_round_robin() {
        let mut frontend = table(&[5.0; 4], 1);
        let round: Vec<_> = (0..4).map(|_| frontend.route(0).unwrap().node).collect();
        let mut sorted = round.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 3]);
        let next: Vec<_> = (0..4).map(|_| frontend.route(0).unwrap().node).collect();
        assert_eq!(next, round);
    }

    #[test]
    fn a_gpu_gets_requests_in_proportion_to_its_share() {
        let mut frontend = table(&[3.0, 1.0], 1);
        let to_first = (0..4_000).filter(|_| frontend.route(0).unwrap().node == 0).count();
        assert!(to_first.abs_diff(3_000) <= 2, "{to_first}");
    }

    #[test]
    fn frontends_begin_their_rounds_at_places_of_their_own() {
        let round = |seed| {
            let mut frontend = table(&[1.0; 16], seed);
            (0..16).map(|_| frontend.route(0).unwrap().node).collect::<Vec<_>>()
        };
        assert_ne!(round(1), round(2));
        assert_eq!(round(1), round(1));
    }
}
