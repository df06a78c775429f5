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
        // A timer whose time has passed when it is set is due at once.
        let timer = scheduler.next_timer().max(gpus.now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Decisions, Scheduler};
    use crate::profile::Profile;
    use crate::workload::WorkloadModel;
    use alloc::boxed::Box;
    use symphony_transport::message::{Completion, Ending, Request};

    /// Drops each request by a timer that had to be set earlier.
    #[derive(Default)]
    struct Belated {
        waiting: Vec<Request>,
        last: Nanos,
    }

    impl Scheduler for Belated {
        fn on_request(&mut self, now: Nanos, request: Request, _: &mut dyn Decisions) {
            self.last = now;
            self.waiting.push(request);
        }

        fn on_completion(&mut self, _: Nanos, _: Completion, _: &mut dyn Decisions) {}

        fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
            assert!(now >= self.last, "{now:?} after {:?}", self.last);
            self.waiting.drain(..).for_each(|request| out.end(&request, Ending::DroppedInQueue, now));
        }

        fn next_timer(&self) -> Nanos {
            if self.waiting.is_empty() { Nanos::MAX } else { Nanos(self.last.0 / 2) }
        }
    }

    #[derive(Debug)]
    struct BelatedPolicy;

    impl Policy for BelatedPolicy {
        fn name(&self) -> &'static str {
            "belated"
        }

        fn about(&self) -> &'static str {
            "sets its timers too late"
        }

        fn options(&self) -> &'static [&'static str] {
            &[]
        }

        fn scheduler(&self, _: &Workload, _: &PolicyOptions) -> Box<dyn Scheduler> {
            Box::new(Belated::default())
        }
    }

    #[test]
    fn a_timer_whose_time_has_passed_is_due_at_once() {
        let profile = Profile::linear(Nanos(1), Nanos(9), 4).unwrap();
        let workload = Workload::of_models(1, 100.0, vec![WorkloadModel::new("m", profile, Nanos(100))]);
        let workload = Workload { duration: Nanos::from_secs(1), ..workload };
        let report = simulate(&workload, &BelatedPolicy, &PolicyOptions::default()).unwrap();
        let model = &report.models[0];
        assert!(model.dropped > 50 && model.dropped == model.offered, "{model:?}");
    }
}
