//! The clients of a closed loop: which model each asks next, and how long it thinks before. Drawn
//! from the run's seed, one stream a client.

use super::{Pace, Plan};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use symphony_scheduler::sim::arrivals::stream_seed;
use symphony_transport::Nanos;

/// Streams of clients, apart from those of models' arrivals.
const STREAMS: u64 = 1 << 32;

/// One client of a closed loop: an endless sequence of models and pauses.
pub struct ClosedLoopClient {
    rng: Pcg64Mcg,
    /// Sums of the models' weights up to each; the last is the sum of all.
    up_to: Vec<f64>,
    think: Nanos,
}

impl ClosedLoopClient {
    /// Client number `client` of a closed loop.
    pub fn new(plan: &Plan, client: usize) -> ClosedLoopClient {
        let rng = Pcg64Mcg::seed_from_u64(stream_seed(plan.seed, STREAMS + client as u64));
        let mut sum = 0.0;
        let add = |model: &super::PlannedModel| {
            sum += model.rate_rps;
            sum
        };
        let up_to = plan.models.iter().map(add).collect();
        let think = match plan.pace {
            Pace::Closed { think, .. } => think,
            Pace::Open { .. } => Nanos::ZERO,
        };
        ClosedLoopClient { rng, up_to, think }
    }

    /// The model that it asks next, an index into the plan's.
    pub fn model(&mut self) -> usize {
        let [.., total] = self.up_to[..] else { return 0 };
        let drawn = total * self.rng.random::<f64>();
        self.up_to.partition_point(|&up_to| up_to <= drawn).min(self.up_to.len() - 1)
    }

    /// Returns the next pause between an answer and the client's next request.
    pub fn pause(&mut self) -> Nanos {
        let uniform: f64 = self.rng.random();
        Nanos((self.think.0 as f64 * -(1.0 - uniform).ln()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PlannedModel;
    use super::super::tests::open;
    use super::*;

    #[test]
    fn models_are_asked_by_their_weights_and_pauses_have_their_mean() {
        let mut plan = open("a", 1.0, Nanos::from_secs(1));
        plan.models.push(PlannedModel { name: "b".into(), rate_rps: 3.0, ..plan.models[0].clone() });
        plan.pace = Pace::Closed { clients: 1, think: Nanos::from_millis(20) };
        let mut client = ClosedLoopClient::new(&plan, 0);
        let second = (0..10_000).filter(|_| client.model() == 1).count();
        assert!((7_200..7_800).contains(&second), "{second}");
        let mean = (0..10_000).map(|_| client.pause().as_millis_f64()).sum::<f64>() / 10_000.0;
        assert!((18.0..22.0).contains(&mean), "{mean}");
        assert_ne!(ClosedLoopClient::new(&plan, 1).pause(), ClosedLoopClient::new(&plan, 0).pause());
    }
}
