//! Squishy bin packing: assigns models to GPUs, with a batch size each, so that each model's rate
//! is served within its SLO (Nexus, section 6.1, algorithm 1). Pure: a function of the rates;
//! [`super::Nexus`] calls it when an epoch begins.

use super::super::queue::last_that;
use crate::profile::Profile;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// A session: the requests of one model under one SLO, as the packing sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session<'a> {
    pub(super) profile: &'a Profile,
    /// The part of the SLO for waiting and execution together.
    pub(super) budget: Nanos,
    /// Requests per second.
    pub(super) rate: f64,
}

/// A session's share of a node's duty cycle.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share {
    /// Index of the session.
    pub(super) session: usize,
    /// The largest batch that the node runs of it.
    pub(super) batch: usize,
    /// Requests per second that are meant for this node.
    pub(super) rate: f64,
}

/// One GPU's part of the schedule: a batch of each share, one after the other, within a duty cycle.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PlannedNode {
    pub(super) shares: Vec<Share>,
    /// The duty cycle, seconds.
    pub(super) cycle: f64,
    /// The part of the duty cycle in which the GPU is busy.
    pub(super) occupancy: f64,
}

/// The number of times that [`fit`] may halve the rates, from what the GPUs could ideally serve,
/// before it gives up.
const FIT_HALVINGS: f64 = 24.0;

/// Steps of [`fit`]'s bisection: the factor's exponent is right to `FIT_HALVINGS` * 2^-24.
const FIT_STEPS: usize = 24;

/// The largest latency, over that of a single request, of the batches of a model that is too slow
/// to wait for another batch.
const LITTLE_MORE: f64 = 1.05;

/// Returns the schedule for a cluster of `gpus`: the rates are scaled by the largest common factor
/// for which the packing needs no more GPUs than there are, so that spare or missing GPUs are
/// shared out in proportion. Where even rates near zero need more, the emptiest nodes share a GPU,
/// and some requests will be dropped. Rates must be positive.
pub(super) fn fit(sessions: &[Session<'_>], gpus: usize) -> Vec<PlannedNode> {
    let scaled = |factor: f64| {
        let sessions: Vec<_> =
            sessions.iter().map(|session| Session { rate: session.rate * factor, ..*session }).collect();
        pack(&sessions)
    };
    // No packing can serve more than every GPU running full batches of one model.
    let needed: f64 = sessions.iter().map(|session| session.rate / session.peak()).sum();
    let most = gpus as f64 / needed;
    let mut best = scaled(most);
    if best.len() > gpus {
        let (mut low, mut high) = (-FIT_HALVINGS, 0.0);
        for _ in 0..FIT_STEPS {
            let middle = (low + high) / 2.0;
            let nodes = scaled(most * 2f64.powf(middle));
            if nodes.len() <= gpus {
                best = nodes;
                low = middle;
            } else {
                high = middle;
            }
        }
    }
    crowd(best, gpus)
}

/// Returns the schedule of the baseline, which does not look at batches (section 7.2): each session
/// has a part of the GPUs in proportion to its rate over the throughput that one GPU has for it
/// alone. Parts are laid out one after the other, so a GPU may have the ends of several; each
/// session runs the batches that it could alone. Rates must be positive.
pub(super) fn oblivious(sessions: &[Session<'_>], gpus: usize) -> Vec<PlannedNode> {
    /// A part of a GPU below which there is none.
    const NOTHING: f64 = 1e-9;
    let needed: f64 = sessions.iter().map(|session| session.rate / session.peak()).sum();
    let mut nodes: Vec<PlannedNode> = Vec::new();
    for (at, session) in sessions.iter().enumerate() {
        let whole = session.rate / session.peak() / needed * gpus as f64;
        let mut left = whole;
        while left > whole * NOTHING {
            if nodes.last().is_none_or(|node| node.occupancy > 1.0 - NOTHING) && nodes.len() < gpus {
                nodes.push(PlannedNode { shares: Vec::new(), cycle: 0.0, occupancy: 0.0 });
            }
            let is_last = nodes.len() == gpus;
            let Some(node) = nodes.last_mut() else { break };
            // Rounding may not leave a session without a GPU.
            let part = if is_last { left } else { left.min(1.0 - node.occupancy) };
            let batch = session.full_batch().max(1);
            node.shares.push(Share { session: at, batch, rate: session.rate * part / whole });
            node.cycle += session.latency(batch);
            node.occupancy += part;
            left -= part;
        }
    }
    nodes
}

/// Merges the shares of the emptiest nodes until there are at most `gpus` nodes.
fn crowd(mut nodes: Vec<PlannedNode>, gpus: usize) -> Vec<PlannedNode> {
    nodes.sort_by(|a, b| b.occupancy.total_cmp(&a.occupancy));
    while nodes.len() > gpus {
        let (Some(last), Some(before)) = (nodes.pop(), nodes.pop()) else { break };
        let crowded = PlannedNode {
            shares: [before.shares, last.shares].concat(),
            cycle: before.cycle.max(last.cycle),
            occupancy: before.occupancy + last.occupancy,
        };
        let at = nodes.partition_point(|node| node.occupancy >= crowded.occupancy);
        nodes.insert(at, crowded);
    }
    nodes
}

/// SquishyBinPacking: returns as many nodes as the rates need.
pub(super) fn pack(sessions: &[Session<'_>]) -> Vec<PlannedNode> {
    let (mut nodes, residues) = schedule_saturate(sessions);
    nodes.extend(schedule_residue(sessions, residues));
    nodes
}

impl Session<'_> {
    fn latency(&self, batch: usize) -> f64 {
        self.profile.latency(batch).as_secs_f64()
    }

    /// Returns B: the largest batch with 2 l(B) <= L, since a request that just missed a batch
    /// waits for a whole one. The paper has no schedule for a model that is too slow for that; here
    /// it is planned for with single requests.
    fn largest_batch(&self) -> usize {
        self.steady_batch().max(1)
    }

    fn steady_batch(&self) -> usize {
        let fits = |batch: usize| self.profile.latency(batch).0.saturating_mul(2) <= self.budget.0;
        last_that(self.profile.max_batch(), fits)
    }

    /// Returns the batch that a full node runs: B; where there is none, the largest that costs
    /// little more than a single request.
    fn full_batch(&self) -> usize {
        let little_more = self.latency(1) * LITTLE_MORE;
        match self.steady_batch() {
            0 => last_that(self.profile.max_batch(), |batch| self.latency(batch) <= little_more),
            batch => batch,
        }
    }

    /// Returns T = B / l(B), requests per second that one GPU can serve.
    fn peak(&self) -> f64 {
        let batch = self.largest_batch();
        batch as f64 / self.latency(batch)
    }

    /// Returns the part of the budget that is left for gathering a batch of this latency, seconds.
    fn gathering(&self, latency: f64) -> f64 {
        self.budget.as_secs_f64() - latency
    }

    /// Returns the node that serves `rate`, less than the peak, alone: the largest b with l(b) +
    /// b/r <= L (equation 2), within a cycle of b/r. A rate too low to gather even one request in
    /// that time gets batches of one, in the longest cycle that the SLO allows; one so near the
    /// peak that such batches could not keep up runs as a full node does.
    fn alone(&self, session: usize, rate: f64) -> PlannedNode {
        let gathers = |batch: usize| batch as f64 / rate <= self.gathering(self.latency(batch));
        let batch = last_that(self.profile.max_batch(), gathers).max(1);
        let cycle = (batch as f64 / rate).min(self.gathering(self.latency(batch)));
        if cycle < self.latency(batch) {
            return self.full(session, rate);
        }
        PlannedNode {
            shares: vec![Share { session, batch, rate }],
            cycle,
            occupancy: self.latency(batch) / cycle,
        }
    }

    /// Returns the node that runs one largest batch after the other.
    fn full(&self, session: usize, rate: f64) -> PlannedNode {
        let share = Share { session, batch: self.full_batch(), rate };
        PlannedNode { shares: vec![share], cycle: self.latency(self.largest_batch()), occupancy: 1.0 }
    }
}

/// ScheduleSaturate: returns whole GPUs for sessions that fill them, and the residual rates.
fn schedule_saturate(sessions: &[Session<'_>]) -> (Vec<PlannedNode>, Vec<(usize, f64)>) {
    /// Rounding may not cost a GPU.
    const ROUNDING: f64 = 1e-9;
    let mut nodes = Vec::new();
    let mut residues = Vec::new();
    for (at, session) in sessions.iter().enumerate() {
        let peak = session.peak();
        let full = (session.rate / peak + ROUNDING).floor();
        nodes.extend(core::iter::repeat_n(session.full(at, peak), full as usize));
        let left = session.rate - full * peak;
        if left > peak * ROUNDING || full == 0.0 {
            residues.push((at, left));
        }
    }
    (nodes, residues)
}

/// ScheduleResidue: returns the nodes of a best-fit packing, the most occupying first.
fn schedule_residue(sessions: &[Session<'_>], residues: Vec<(usize, f64)>) -> Vec<PlannedNode> {
    let mut alone: Vec<PlannedNode> =
        residues.into_iter().map(|(session, rate)| sessions[session].alone(session, rate)).collect();
    alone.sort_by(|a, b| b.occupancy.total_cmp(&a.occupancy));
    let mut nodes: Vec<PlannedNode> = Vec::new();
    for new in alone {
        let fitting = nodes
            .iter()
            .enumerate()
            .filter_map(|(at, node)| Some((at, merged_occupancy(sessions, node, &new)?)));
        match fitting.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((at, occupancy)) => merge(&mut nodes[at], new, occupancy),
            None => nodes.push(new),
        }
    }
    nodes
}

/// Returns the occupancy of both nodes in the shorter of their cycles, with the batches that gather
/// in it;
/// `None` if they do not fit in it. Latencies stay within the SLOs, since neither the cycle nor a
/// batch grows.
fn merged_occupancy(sessions: &[Session<'_>], node: &PlannedNode, new: &PlannedNode) -> Option<f64> {
    let cycle = node.cycle.min(new.cycle);
    let mut busy = 0.0;
    for share in node.shares.iter().chain(&new.shares) {
        busy += sessions[share.session].latency(share.squished(cycle));
        if busy > cycle {
            return None;
        }
    }
    Some(busy / cycle)
}

/// MergeNodes: merges nodes that were found to fit.
fn merge(node: &mut PlannedNode, new: PlannedNode, occupancy: f64) {
    node.cycle = node.cycle.min(new.cycle);
    node.occupancy = occupancy;
    node.shares.extend(new.shares);
    for share in &mut node.shares {
        share.batch = share.squished(node.cycle);
    }
}

impl Share {
    /// Returns the batch that gathers within `cycle`, which is no longer than the share's own.
    fn squished(&self, cycle: f64) -> usize {
        /// Rounding may not cost a batch of one more.
        const ROUNDING: f64 = 1e-9;
        ((self.rate * cycle - ROUNDING).ceil() as usize).clamp(1, self.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a profile through these points (batch, ms), linear between them.
    fn through(points: &[(usize, f64)]) -> Profile {
        let at = |batch: usize| {
            let next = points.iter().position(|point| point.0 >= batch).unwrap();
            let (b1, l1) = points[next];
            let (b0, l0) = if next == 0 { (0, l1) } else { points[next - 1] };
            l0 + (l1 - l0) * (batch - b0) as f64 / (b1 - b0) as f64
        };
        let most = points.last().unwrap().0;
        let table: Vec<_> = (1..=most).map(|batch| Nanos::from_millis_f64(at(batch))).collect();
        Profile::measured(&table).unwrap()
    }

    /// The models of the Nexus paper's example (table 2).
    fn example() -> [(Profile, Nanos); 3] {
        [
            (through(&[(4, 50.0), (8, 75.0), (16, 100.0)]), Nanos::from_millis(200)),
            (through(&[(4, 50.0), (8, 90.0), (16, 125.0)]), Nanos::from_millis(250)),
            (through(&[(4, 60.0), (8, 95.0), (16, 125.0)]), Nanos::from_millis(250)),
        ]
    }

    fn sessions<'a>(models: &'a [(Profile, Nanos)], rates: &[f64]) -> Vec<Session<'a>> {
        let both = models.iter().zip(rates);
        both.map(|((profile, budget), &rate)| Session { profile, budget: *budget, rate }).collect()
    }

    #[test]
    fn high_rates_get_the_gpus_that_the_papers_example_says() {
        let models = example();
        let nodes = pack(&sessions(&models, &[320.0, 256.0, 384.0]));
        let of = |session: usize| nodes.iter().filter(|node| node.shares[0].session == session).count();
        assert_eq!((of(0), of(1), of(2)), (2, 2, 3), "r/160, r/128 and r/128 GPUs");
        assert!(nodes.iter().all(|node| node.shares.len() == 1 && node.shares[0].batch == 16));
    }

    #[test]
    fn low_rates_share_gpus_as_the_papers_example_says() {
        let models = example();
        let nodes = pack(&sessions(&models, &[64.0, 32.0, 32.0]));
        assert_eq!(nodes.len(), 2, "A and B share one, C has its own");
        let shared = nodes.iter().find(|node| node.shares.len() == 2).unwrap();
        assert!((shared.cycle - 0.125).abs() < 1e-9);
        let batches: Vec<_> = shared.shares.iter().map(|share| (share.session, share.batch)).collect();
        assert_eq!(batches, [(0, 8), (1, 4)]);
    }

    #[test]
    fn a_model_at_a_low_rate_gets_the_longest_cycle_that_its_slo_allows() {
        let models = [(through(&[(1, 10.0), (4, 40.0)]), Nanos::from_millis(50))];
        let nodes = pack(&sessions(&models, &[2.0]));
        assert_eq!(nodes[0].shares, [Share { session: 0, batch: 1, rate: 2.0 }]);
        assert!((nodes[0].cycle - 0.040).abs() < 1e-9);
    }

    #[test]
    fn spare_gpus_are_shared_out_in_proportion() {
        let models = example();
        let nodes = fit(&sessions(&models, &[16.0, 12.8, 0.0001]), 21);
        let of = |session: usize| nodes.iter().filter(|node| node.shares[0].session == session).count();
        assert!(nodes.len() <= 21);
        assert!(of(0).abs_diff(10) <= 1 && of(1).abs_diff(10) <= 1, "{} and {} GPUs", of(0), of(1));
    }

    #[test]
    fn oblivious_placement_gives_each_session_gpus_by_its_rate_alone() {
        let models = example();
        // 64 / 160, 32 / 128 and 32 / 128 of a GPU are 4/9, 5/18 and 5/18 of two.
        let nodes = oblivious(&sessions(&models, &[64.0, 32.0, 32.0]), 2);
        let shares: Vec<Vec<usize>> =
            nodes.iter().map(|node| node.shares.iter().map(|share| share.session).collect()).collect();
        assert_eq!(shares, [vec![0, 1], vec![1, 2]]);
        assert!(nodes.iter().flat_map(|node| &node.shares).all(|share| share.batch == 16));
        let rate_of_1 = [nodes[0].shares[1].rate, nodes[1].shares[0].rate];
        assert!(
            (rate_of_1[0] + rate_of_1[1] - 32.0).abs() < 1e-6 && rate_of_1[0] < rate_of_1[1] / 3.9,
            "{rate_of_1:?}"
        );
    }

    #[test]
    fn models_that_need_more_gpus_than_there_are_share_them() {
        let slow = (through(&[(1, 10.0)]), Nanos::from_millis(12));
        let models = vec![slow; 5];
        let nodes = fit(&sessions(&models, &[10.0; 5]), 2);
        assert_eq!(nodes.len(), 2);
        let mut hosted: Vec<_> =
            nodes.iter().flat_map(|node| &node.shares).map(|share| share.session).collect();
        hosted.sort_unstable();
        assert_eq!(hosted, [0, 1, 2, 3, 4]);
    }

    /// The profile and the SLO of models given as alpha and beta in ms, slack and rate.
    fn profiles_and_slos(models: &[(f64, f64, f64, f64)]) -> Vec<(Profile, Nanos)> {
        let profile_and_slo = |&(alpha, beta, slack, _): &(f64, f64, f64, f64)| {
            let linear = Profile::linear(Nanos::from_millis_f64(alpha), Nanos::from_millis_f64(beta), 100);
            (linear.unwrap(), Nanos::from_millis_f64((alpha + beta) * slack))
        };
        models.iter().map(profile_and_slo).collect()
    }

    proptest! {
        #[test]
        fn every_rate_is_served_and_every_cycle_meets_its_slos(
            models in prop::collection::vec((0.1f64..4.0, 0.1f64..12.0, 2.1f64..9.0, 0.1f64..3_000.0), 1..30),
        ) {
            let profiles = profiles_and_slos(&models);
            let rates: Vec<_> = models.iter().map(|model| model.3).collect();
            let sessions = sessions(&profiles, &rates);
            let nodes = pack(&sessions);
            let mut served = vec![0.0; rates.len()];
            for node in &nodes {
                let busy: f64 = node.shares.iter().map(|share| sessions[share.session].latency(share.batch)).sum();
                prop_assert!(busy <= node.cycle + 1e-9);
                for share in &node.shares {
                    let session = &sessions[share.session];
                    prop_assert!(node.cycle + session.latency(share.batch) <= session.budget.as_secs_f64() + 1e-9);
                    prop_assert!(share.batch as f64 / node.cycle >= share.rate * (1.0 - 1e-6));
                    served[share.session] += share.rate;
                }
            }
            for (served, rate) in served.iter().zip(&rates) {
                prop_assert!((served - rate).abs() <= rate * 1e-6);
            }
        }

        #[test]
        fn a_schedule_for_a_cluster_hosts_every_model_on_no_more_nodes_than_gpus(
            models in prop::collection::vec((0.1f64..4.0, 0.1f64..12.0, 1.0f64..9.0, 0.0f64..3_000.0), 1..12),
            gpus in 1usize..20,
        ) {
            let profiles = profiles_and_slos(&models);
            let rates: Vec<_> = models.iter().map(|model| model.3 + 1.0).collect();
            let sessions = sessions(&profiles, &rates);
            for nodes in [fit(&sessions, gpus), oblivious(&sessions, gpus)] {
            prop_assert!(nodes.len() <= gpus);
            for session in 0..rates.len() {
                let rate: f64 = nodes
                    .iter()
                    .flat_map(|node| &node.shares)
                    .filter(|share| share.session == session)
                    .map(|share| share.rate)
                    .sum();
                prop_assert!(rate > 0.0, "model {} has no GPU", session);
            }
            }
        }
    }
}
