//! A bound for any number of GPUs and models: the rate at which the GPU time that requests take at
//! least is all that there is. No scheduler goes beyond it in the long run, not even one that knows
//! all arrivals.
//!
//! A batch of k requests of a model, whose first came at `a` and whose last at `c`, can start at
//! `c` plus delay(k), and has to be over by `a` + SLO - d_resp. So whatever is batched, a request r
//! is in no larger batch than
//!
//! ```text
//! k(r) = max min(requests from a to c, largest k with delay(k) + l(k) + d_resp <= SLO - (c - a))
//! ```
//!
//! over all a and c around it, and takes at least l(k)/k of GPU time for k = k(r): the batch's
//! time, divided among its requests. Of each model the 1 % that take most may be dropped. The sum
//! of the rest, of all models, is at most the time times the number of GPUs. It says nothing of
//! queueing: GPUs that are never idle and never needed by two at once, so it can't be reached.

use std::collections::VecDeque;
use symphony_scheduler::sim::arrivals::{ArrivalError, Arrivals};
use symphony_scheduler::sim::goodput::ALLOWED_BAD_RATE;
use symphony_scheduler::workload::{Network, Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::NO_DEADLINE;

/// Returns true if the bound can be computed for the workload: models with SLOs, no queries, and no
/// rates of their own.
pub fn applies_to(workload: &Workload) -> bool {
    let plain = |model: &WorkloadModel| model.slo < NO_DEADLINE && !model.arrival.has_own_rate();
    workload.queries.is_empty() && workload.models.iter().all(plain)
}

/// Returns the rate that the workload really offers if the GPUs have the time for all but 1 % of
/// each model's requests. The workload is one that [`applies_to`] permits.
///
/// Errors: an arrival process that can't be sampled.
pub fn passes(workload: &Workload) -> Result<Option<f64>, ArrivalError> {
    let end = workload.warmup + workload.duration;
    let (mut needed, mut offered) = (0.0, 0);
    for (index, model) in workload.models.iter().enumerate() {
        let arrivals: Vec<Nanos> = Arrivals::of(workload, index)?.take_while(|&at| at < end).collect();
        let before = arrivals.partition_point(|&at| at < workload.warmup);
        let mut seconds = least_seconds(&arrivals, model, &workload.network).split_off(before);
        seconds.sort_by(f64::total_cmp);
        let dropped = (seconds.len() as f64 * ALLOWED_BAD_RATE) as usize;
        needed += seconds.iter().take(seconds.len() - dropped).sum::<f64>();
        offered += seconds.len();
    }
    let duration = workload.duration.as_secs_f64();
    Ok((needed <= duration * workload.gpus as f64).then_some(offered as f64 / duration))
}

/// Returns the least GPU time of each of a model's requests, in seconds.
fn least_seconds(arrivals: &[Nanos], model: &WorkloadModel, network: &Network) -> Vec<f64> {
    let run = |size: usize| model.profile.latency(size);
    let sizes: Vec<usize> = (1..=model.profile.max_batch()).collect();
    // The largest batch whose first and last request come `apart` from each other; at least 1.
    let largest = |apart: Nanos| {
        let fits = |size: &usize| network.delay(*size) + run(*size) + network.result + apart <= model.slo;
        sizes.partition_point(fits).max(1)
    };
    // By size: the least of a batch of no more, per request.
    let mut share = vec![f64::INFINITY];
    share.extend(sizes.iter().scan(f64::INFINITY, |least, &size| {
        *least = least.min(run(size).as_secs_f64() / size as f64);
        Some(*least)
    }));
    largest_batches(arrivals, largest).into_iter().map(|size| share[size]).collect()
}

/// Returns k(r) of each request, where `largest` says how many requests a batch can have whose
/// first and last are so far apart: the less, the further they are.
fn largest_batches(arrivals: &[Nanos], largest: impl Fn(Nanos) -> usize) -> Vec<usize> {
    // Full windows, by their first request: the largest that form one batch. They end the later,
    // the later they begin. Only those are kept that no later and larger one makes void.
    let mut windows: VecDeque<(usize, usize)> = VecDeque::new();
    let (mut next, mut end) = (0, 0);
    let mut sizes = Vec::with_capacity(arrivals.len());
    let mut first = 0;
    let ends: Vec<usize> = (0..arrivals.len())
        .map(|from| {
            end = end.max(from + 1);
            while end < arrivals.len() && end - from < largest(arrivals[end] - arrivals[from]) {
                end += 1;
            }
            end
        })
        .collect();
    for at in 0..arrivals.len() {
        while next <= at {
            let size = ends[next] - next;
            while windows.back().is_some_and(|&(_, other)| other <= size) {
                windows.pop_back();
            }
            windows.push_back((next, size));
            next += 1;
        }
        // Those that end before this request.
        while ends[first] <= at {
            first += 1;
        }
        while windows.front().is_some_and(|&(from, _)| from < first) {
            windows.pop_front();
        }
        // Of these, the last could be stretched to it, and be smaller for it.
        let stretched = first.checked_sub(1).map_or(1, |from| largest(arrivals[at] - arrivals[from]));
        sizes.push(windows.front().map_or(1, |&(_, size)| size).max(stretched));
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use symphony_scheduler::policy::{self, PolicyOptions};
    use symphony_scheduler::sim::goodput::ideal_rate;
    use symphony_scheduler::sim::simulate;

    #[test]
    fn the_largest_batches_are_those_of_all_windows() {
        let mut rng = Pcg64Mcg::seed_from_u64(1);
        for _ in 0..500 {
            let (slo, most) = (rng.random_range(1..40_u64), rng.random_range(1..12_usize));
            let widest = rng.random_range(1..9_u64);
            let mut at = 0;
            let arrivals: Vec<Nanos> = (0..rng.random_range(1..40))
                .map(|_| {
                    at += if rng.random_bool(0.3) { 0 } else { rng.random_range(0..widest) };
                    Nanos(at)
                })
                .collect();
            let largest = |apart: Nanos| (slo.saturating_sub(apart.0) as usize / 2).clamp(1, most);
            let by_all = |at: usize| {
                let windows = (0..=at).flat_map(|from| (at..arrivals.len()).map(move |to| (from, to)));
                let size =
                    |(from, to): (usize, usize)| (to - from + 1).min(largest(arrivals[to] - arrivals[from]));
                windows.map(size).max()
            };
            let all: Vec<usize> = (0..arrivals.len()).filter_map(by_all).collect();
            assert_eq!(largest_batches(&arrivals, largest), all);
        }
    }

    #[test]
    fn no_rule_uses_less_gpu_time() {
        for number in [3, 40, 77] {
            let workload = super::super::generator::Half::Tune.workload(number);
            let rate = 0.6 * ideal_rate(&workload);
            let workload = Workload { rate_rps: rate, duration: Nanos::from_secs(3), ..workload };
            let needed: f64 = workload
                .models
                .iter()
                .enumerate()
                .flat_map(|(index, model)| {
                    let arrivals = Arrivals::of(&workload, index).unwrap();
                    let end = workload.warmup + workload.duration;
                    let arrivals: Vec<Nanos> = arrivals.take_while(|&at| at < end).collect();
                    let mut seconds = least_seconds(&arrivals, model, &workload.network);
                    seconds.drain(..arrivals.partition_point(|&at| at < workload.warmup));
                    seconds
                })
                .sum();
            let policy = policy::by_name("symphony-published").unwrap();
            let report = simulate(&workload, policy, &PolicyOptions::default()).unwrap();
            let used: f64 = report.gpu_busy.iter().sum::<f64>() * workload.duration.as_secs_f64();
            assert!(used > (1.0 - report.bad_rate) * needed * 0.95, "{number}: {used} of {needed}");
        }
    }
}
