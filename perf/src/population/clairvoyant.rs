//! The limit for one GPU and one model: the highest rate at which a scheduler that knew all
//! arrivals in advance could serve all but 1 % of the requests in time. No scheduler does better,
//! and none that does not know the future does as well.
//!
//! Requests of one model have one SLO, so there is a best schedule that serves them in order, and
//! drops a request only when all before it are served or dropped: a batch that leaves out a request
//! and takes an earlier one can take the later of the two instead, whose deadline is later, and
//! neither ends later. So f(i, d), the least time at which the first i requests are over with at
//! most d of them dropped, says all about the past, and follows from
//!
//! ```text
//! f(0, d)     = the start
//! f(i + 1, d) = f(i, d - 1)                                   request i + 1 is dropped
//! f(i + k, d) = max(f(i, d), arrival of i + k) + l(k)         the next k are one batch,
//!               if that is at most the deadline of i + 1      for every k
//! ```
//!
//! each the least of what applies. The requests before the time that counts are left out, as a
//! scheduler could drop them all. A state that no further drop has made better is not followed
//! again.

use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::arrivals::{ArrivalError, Arrivals};
use symphony_scheduler::sim::goodput::ALLOWED_BAD_RATE;
use symphony_scheduler::workload::{Network, Workload};
use symphony_transport::Nanos;
use symphony_transport::message::NO_DEADLINE;

/// Returns true if the limit can be computed for the workload: one GPU, one model with an SLO and
/// without a rate of its own, and no network, whose delays overlap with batches.
pub fn applies_to(workload: &Workload) -> bool {
    let [model] = &workload.models[..] else { return false };
    let alone = workload.gpus == 1 && workload.network == Network::default();
    alone && model.slo < NO_DEADLINE && !model.arrival.has_own_rate()
}

/// Returns the rate that the workload really offers if all but 1 % of its requests could be served
/// in time. The workload is one that [`applies_to`] permits.
///
/// Errors: an arrival process that can't be sampled.
pub fn passes(workload: &Workload) -> Result<Option<f64>, ArrivalError> {
    let model = &workload.models[0];
    let end = workload.warmup + workload.duration;
    let arrivals: Vec<Nanos> =
        Arrivals::of(workload, 0)?.take_while(|&at| at < end).filter(|&at| at >= workload.warmup).collect();
    let allowed = (arrivals.len() as f64 * ALLOWED_BAD_RATE) as usize;
    let offered = arrivals.len() as f64 / workload.duration.as_secs_f64();
    Ok(can_serve(&arrivals, &model.profile, model.slo, allowed).then_some(offered))
}

/// Returns true if all but `allowed` of the requests that arrive at these times can be served, each
/// in `slo`, by batches one after the other.
fn can_serve(arrivals: &[Nanos], profile: &Profile, slo: Nanos, allowed: usize) -> bool {
    let len = arrivals.len();
    let mut over = vec![Nanos::MAX; len + 1];
    over[0] = Nanos::ZERO;
    let mut before = vec![Nanos::MAX; len + 1];
    for dropped in 0..=allowed.min(len) {
        for at in 0..len {
            if dropped > 0 {
                // `before` is the row of one drop less.
                over[at + 1] = over[at + 1].min(before[at]);
            }
            if over[at] < before[at] {
                run_batches(&mut over, at, arrivals, profile, slo);
            }
        }
        if over[len] < Nanos::MAX {
            return true;
        }
        before.copy_from_slice(&over);
    }
    false
}

/// Runs the next requests after the first `at` as one batch, of every size that is in time.
fn run_batches(over: &mut [Nanos], at: usize, arrivals: &[Nanos], profile: &Profile, slo: Nanos) {
    let deadline = arrivals[at] + slo;
    for size in 1..=profile.max_batch().min(arrivals.len() - at) {
        let finished = over[at].max(arrivals[at + size - 1]) + profile.latency(size);
        if finished > deadline {
            break;
        }
        over[at + size] = over[at + size].min(finished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use symphony_scheduler::policy::{self, PolicyOptions};
    use symphony_scheduler::sim::goodput::ideal_rate;
    use symphony_scheduler::sim::simulate;
    use symphony_scheduler::workload::WorkloadModel;

    /// The least number of requests that have to be dropped, by trying every set of batches: each
    /// request is in none, or in one of those before it that have not started.
    fn least_dropped(waiting: &[Nanos], free: Nanos, profile: &Profile, slo: Nanos) -> usize {
        let mut least = waiting.len();
        for batch in 1_u32..1 << waiting.len() {
            let of = |taken: bool| {
                let chosen = move |at: &usize| (batch >> at & 1 == 1) == taken;
                (0..waiting.len()).filter(chosen).map(|at| waiting[at]).collect::<Vec<Nanos>>()
            };
            let (taken, rest) = (of(true), of(false));
            let finished = free.max(taken[taken.len() - 1]) + profile.latency(taken.len());
            if taken.len() <= profile.max_batch() && finished <= taken[0] + slo {
                least = least.min(least_dropped(&rest, finished, profile, slo));
            }
        }
        least
    }

    #[test]
    fn it_is_the_best_of_all_schedules() {
        let mut rng = Pcg64Mcg::seed_from_u64(12);
        let mut dropped = 0;
        for _ in 0..60 {
            let profile = Profile::linear(
                Nanos(rng.random_range(1..4)),
                Nanos(rng.random_range(1..8)),
                rng.random_range(1..5),
            )
            .unwrap();
            let slo = Nanos(rng.random_range(5..25));
            let mut arrivals: Vec<Nanos> = (0..6).map(|_| Nanos(rng.random_range(0..40))).collect();
            arrivals.sort_unstable();
            let least = least_dropped(&arrivals, Nanos::ZERO, &profile, slo);
            assert!(can_serve(&arrivals, &profile, slo, least), "{arrivals:?}");
            assert!(least == 0 || !can_serve(&arrivals, &profile, slo, least - 1), "{arrivals:?}");
            dropped += least;
        }
        assert!(dropped > 30, "{dropped} in all: too few for the test to mean anything");
    }

    #[test]
    fn no_policy_serves_what_it_can_not() {
        let profile = Profile::linear(Nanos(1_053_000), Nanos(5_072_000), 18).unwrap();
        let model = WorkloadModel::new("ResNet50", profile, Nanos::from_millis(25));
        let mut workload =
            Workload { duration: Nanos::from_secs(5), ..Workload::of_models(1, 1.0, vec![model]) };
        let ideal = ideal_rate(&workload);
        let mut beaten = 0;
        for share in 50..100 {
            workload.rate_rps = ideal * f64::from(share) / 100.0;
            let limit = passes(&workload).unwrap().is_some();
            for policy in ["symphony", "work-conserving"].map(|name| policy::by_name(name).unwrap()) {
                let report = simulate(&workload, policy, &PolicyOptions::default()).unwrap();
                let served = report.worst_bad_rate <= ALLOWED_BAD_RATE;
                assert!(limit || !served, "{} at {share} %", policy.name());
                beaten += usize::from(limit && !served);
            }
        }
        assert!(beaten > 3, "the limit is above them at {beaten} of 100 points");
    }
}
