//! The loop of a simulation: a policy's scheduler in virtual time, between the traffic and the
//! GPUs.

use super::arrivals::ArrivalError;
use super::gpus::{Fault, VirtualGpus};
use super::observer::Observer;
use super::report::{ModelReport, Report};
use super::traffic::{Arriving, Traffic};
use crate::policy::{Policy, PolicyOptions};
use crate::workload::Workload;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// Runs `workload` under `policy` and reports on the requests that arrived after its warm-up.
///
/// Errors: an arrival process that can't be sampled.
pub fn simulate(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
) -> Result<Report, ArrivalError> {
    simulate_observed(workload, policy, options, Fault::default(), &mut ())
}

/// Runs `workload` under `policy`, on GPUs with a fault, and calls `observer` at every event.
/// Reports on the requests that arrived after the warm-up.
///
/// Errors: an arrival process that can't be sampled.
pub fn simulate_observed(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
    fault: Fault,
    observer: &mut dyn Observer,
) -> Result<Report, ArrivalError> {
    simulate_until(workload, policy, options, fault, observer, |_, _| false)
}

/// Runs `workload` as [`simulate_observed`] does, until `is_over` says so of the counts and what is
/// still to arrive, which it is asked whenever requests have become bad.
///
/// Errors: an arrival process that can't be sampled.
pub(super) fn simulate_until(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
    fault: Fault,
    observer: &mut dyn Observer,
    mut is_over: impl FnMut(&[ModelReport], &Traffic) -> bool,
) -> Result<Report, ArrivalError> {
    let mut traffic = Traffic::new(workload)?;
    let mut gpus = VirtualGpus::new(workload, fault, observer);
    let mut scheduler = match &gpus.queries {
        Some(queries) => policy.scheduler(&queries.scheduled(workload), options),
        None => policy.scheduler(workload, options),
    };
    let mut events = 0u64;
    loop {
        let arrival = traffic.next_at();
        let timer = scheduler.next_timer();
        let completion = gpus.next_completion();
        let now = arrival.min(timer).min(completion);
        if now == Nanos::MAX {
            break;
        }
        events += 1;
        gpus.now = now;
        // Of events at one instant, completions come first, then requests and queries,
        // then timers; and behind each of them the items of queries that arrive by it.
        if completion <= now {
            let done = gpus.take_completion();
            scheduler.on_completion(now, done, &mut gpus);
        } else if arrival <= now {
            match traffic.take(workload) {
                Arriving::Request(request) => {
                    gpus.observer.arrived(&request);
                    gpus.report.arrived(&request);
                    scheduler.on_request(now, request, &mut gpus);
                }
                Arriving::Query(graph, at) => gpus.query_arrived(graph, at),
            }
        } else {
            scheduler.on_timer(now, &mut gpus);
        }
        while let Some(request) = gpus.next_due(workload, &mut traffic) {
            scheduler.on_request(now, request, &mut gpus);
        }
        if gpus.report.more_are_bad().is_some_and(|models| is_over(models, &traffic)) {
            break;
        }
    }
    let drop =
        if policy.options().contains(&"drop") { options.drop.unwrap_or(policy.drop()).name() } else { "own" };
    let queries = gpus.queries.map_or_else(Vec::new, |queries| queries.finish(workload));
    Ok(gpus.report.finish(workload, policy.name(), drop, events, queries))
}
