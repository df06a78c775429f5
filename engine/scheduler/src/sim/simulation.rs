//! The loop of a simulation: a policy's scheduler in virtual time, between the traffic and the
//! GPUs.

use super::arrivals::ArrivalError;
use super::gpus::{Fault, VirtualGpus};
use super::observer::Observer;
use super::report::Report;
use super::traffic::Traffic;
use crate::policy::{Policy, PolicyOptions};
use crate::workload::Workload;
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
    let mut traffic = Traffic::new(workload)?;
    let mut scheduler = policy.scheduler(workload, options);
    let mut gpus = VirtualGpus::new(workload, fault, observer);
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
        // Of events at one instant, completions come first, then requests, then timers.
        if completion <= now {
            let done = gpus.take_completion();
            scheduler.on_completion(now, done, &mut gpus);
        } else if arrival <= now {
            let request = traffic.take(workload);
            gpus.observer.arrived(&request);
            gpus.report.arrived(&request);
            scheduler.on_request(now, request, &mut gpus);
        } else {
            scheduler.on_timer(now, &mut gpus);
        }
    }
    let drop =
        if policy.options().contains(&"drop") { options.drop.unwrap_or(policy.drop()).name() } else { "own" };
    Ok(gpus.report.finish(workload, policy.name(), drop, events))
}
