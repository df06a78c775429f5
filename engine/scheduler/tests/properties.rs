//! Invariants of the scheduler over random workloads, audited event by event in the simulator: they
//! hold for every policy with every option, for all models, loads and networks. [`MAY_BE_LATE`]
//! lists the exceptions.

use proptest::prelude::*;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::options::{BatchSizes, ClockworkOptions, TritonOptions};
use symphony_scheduler::policy::{POLICIES, Policy, PolicyOptions, when};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::query::DeadlineSplit;
use symphony_scheduler::rule_setting::{Prefer, RuleSetting};
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::{Audit, Fault, Observer, simulate_observed};
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Class, Ending, Request};

/// The policies that do not promise that a batch finishes by its first deadline, and why. Any other
/// does, unless its drop rule is fcfs.
const MAY_BE_LATE: [(&str, &str); 2] = [
    ("clipper", "it adapts its batch limit by late batches"),
    ("triton", "it starts every request that has not waited for longer than its timeout"),
];

/// The promises of a policy with certain options.
#[derive(Clone, Copy)]
struct Promise {
    in_time: bool,
    drops_nothing: bool,
}

impl Promise {
    fn of(policy: &dyn Policy, options: &PolicyOptions) -> Promise {
        let drops_nothing = policy.options().contains(&"drop") && options.drop == Some(DropRule::Fcfs);
        let may_be_late = MAY_BE_LATE.iter().any(|&(name, _)| name == policy.name());
        Promise { in_time: !drops_nothing && !may_be_late, drops_nothing }
    }
}

/// The audit of a simulation, and the promises of its policy.
struct PromiseAudit {
    audit: Audit,
    network: Network,
    promise: Promise,
    faults: bool,
    /// True if a request goes straight to a GPU when it arrives; else a batch fetches its inputs
    /// when it is formed.
    pushed: bool,
}

impl PromiseAudit {
    fn new(workload: &Workload, policy: &dyn Policy, promise: Promise, fault: Fault) -> PromiseAudit {
        PromiseAudit {
            audit: Audit::new(workload),
            network: workload.network,
            promise,
            faults: fault.slowdown > 0.0,
            pushed: policy.name() == "nexus",
        }
    }
}

impl Observer for PromiseAudit {
    fn arrived(&mut self, request: &Request) {
        self.audit.arrived(request);
    }

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        self.audit.ran(now, batch, requests, started, finished);
        let all = || requests.0.iter().chain(requests.1);
        let inputs_there = match self.pushed {
            true => all().map(|request| request.arrival + self.network.delay(1)).max(),
            false => Some(now + self.network.delay(all().count())),
        };
        assert!(Some(batch.exec_at) >= inputs_there, "a batch starts before its inputs can be there");
        if self.faults {
            return;
        }
        assert_eq!(started, Some(batch.exec_at), "without faults a batch starts at exec_at");
        assert_eq!(finished, batch.exec_at + batch.duration);
        if self.promise.in_time {
            let first = all().map(|request| request.deadline).min().unwrap();
            assert!(finished <= first, "a batch finishes after its first deadline");
        }
    }

    fn preempted(&mut self, batch: &BatchHeader, requests: &[Request], stopped: Nanos) {
        self.audit.preempted(batch, requests, stopped);
    }

    fn ended(&mut self, request: &Request, ending: Ending, now: Nanos) {
        assert!(
            !self.promise.drops_nothing || ending == Ending::Overloaded,
            "rule fcfs drops only requests that do not fit into the queue"
        );
        self.audit.ended(request, ending, now);
    }
}

fn models() -> impl Strategy<Value = Vec<WorkloadModel>> {
    let arrival =
        prop_oneof![Just(Arrival::Poisson), Just(Arrival::Uniform), (0.05f64..1.0).prop_map(Arrival::Gamma),];
    let model = (0.0f64..4.0, 0.1f64..12.0, 1.0f64..6.0, 1usize..80, 0.05f64..1.0, arrival);
    prop::collection::vec(model, 1..6).prop_map(|models| {
        let total: f64 = models.iter().map(|model| model.4).sum();
        let named = models.into_iter().enumerate();
        named
            .map(|(index, (alpha, beta, slack, max_batch, share, arrival))| WorkloadModel {
                name: format!("model-{index}"),
                profile: Profile::linear(
                    Nanos::from_millis_f64(alpha),
                    Nanos::from_millis_f64(beta),
                    max_batch,
                )
                .unwrap(),
                slo: Nanos::from_millis_f64((alpha + beta) * slack + 1.0),
                class: Class::HIGHEST,
                share: share / total,
                arrival,
                varying: None,
            })
            .collect()
    })
}

fn workloads() -> impl Strategy<Value = Workload> {
    let network = prop_oneof![
        2 => Just((0, 0, 0)),
        1 => (0u64..1_000, 0u64..200, 0u64..2_000),
    ];
    (models(), network, 1usize..12, any::<u64>(), 1.0f64..4_000.0).prop_map(
        |(models, (control, data, result), gpus, seed, rate_rps)| Workload {
            name: "random".to_owned(),
            gpus,
            seed,
            warmup: Nanos::from_millis(200),
            duration: Nanos::from_millis(800),
            rate_rps,
            network: Network {
                control: Nanos::from_micros(control),
                data_per_request: Nanos::from_micros(data),
                result: Nanos::from_micros(result),
            },
            models,
            queries: Vec::new(),
            split: DeadlineSplit::default(),
        },
    )
}

fn policies() -> impl Strategy<Value = &'static dyn Policy> {
    prop::sample::select(POLICIES.to_vec())
}

/// Generates the options of all policies at once: each reads its own.
fn options() -> impl Strategy<Value = PolicyOptions> {
    let drop = prop::sample::select(DropRule::ALL.map(|rule| rule.0).to_vec());
    let when = prop::option::of(prop::sample::select(when::RULES.to_vec()));
    let clockwork = (prop::sample::select(BatchSizes::ALL.map(|sizes| sizes.0).to_vec()), 0.1f64..20.0);
    let ms = |range| prop::option::of(range).prop_map(|ms: Option<f64>| ms.map(Nanos::from_millis_f64));
    let triton = (ms(0.0..20.0), prop::collection::btree_set(1usize..40, 0..4), ms(0.1..40.0));
    let factor = || prop_oneof![Just(0.0f32), 0.1f32..10.0, Just(f32::INFINITY)];
    let reserve = || ms(0.0..50.0).prop_map(|ms| ms.unwrap_or(Nanos::MAX));
    let setting = (factor(), factor(), factor(), any::<bool>(), reserve(), any::<bool>()).prop_map(
        |(price, patience, lead, spread, reserve, brief)| RuleSetting {
            price,
            patience,
            lead,
            spread,
            reserve,
            brief,
        },
    );
    let tuning = prop::option::of(prop::sample::select(Prefer::ALL.map(|prefer| prefer.0).to_vec()));
    let preempt = prop_oneof![1.0f64..5.0, Just(f64::INFINITY)];
    ((drop, setting, tuning), when, 1usize..5, preempt, clockwork, triton).prop_map(
        |((drop, setting, tuning), when, frontends, preempt, (batches, ahead), triton)| {
            let (max_queue_delay, preferred, timeout) = triton;
            let preferred = preferred.into_iter().collect();
            let mut options = PolicyOptions::from(drop);
            (options.setting, options.tuning) = (setting, tuning);
            options.when = when;
            options.frontends = frontends;
            options.preempt = preempt;
            options.clockwork = ClockworkOptions { batches, ahead: Nanos::from_millis_f64(ahead) };
            options.triton = TritonOptions { max_queue_delay, preferred, timeout };
            options
        },
    )
}

/// Runs a simulation and checks its audit.
fn audited(
    workload: &Workload,
    policy: &dyn Policy,
    options: &PolicyOptions,
    fault: Fault,
) -> (Audit, Report) {
    let mut observer = PromiseAudit::new(workload, policy, Promise::of(policy, options), fault);
    let report = simulate_observed(workload, policy, options, fault, &mut observer).unwrap();
    assert_eq!(observer.audit.check(), Ok(()));
    (observer.audit, report)
}

/// The report as JSON, without wall-clock time and count of events.
fn bytes(mut report: Report) -> String {
    report.wall_s = 0.0;
    report.events = 0;
    serde_json::to_string(&report).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_request_ends_exactly_once_and_no_batch_breaks_a_promise(
        workload in workloads(), policy in policies(), options in options(),
    ) {
        let (audit, report) = audited(&workload, policy, &options, Fault::default());
        prop_assert!(options.preempt.is_finite() || audit.preemptions() == 0);
        let counted = report.models.iter().map(|m| (m.offered, m.good + m.dropped + m.late + m.rejected));
        for (offered, ended) in counted {
            prop_assert_eq!(offered, ended);
        }
        if Promise::of(policy, &options).in_time {
            prop_assert!(report.models.iter().all(|model| model.late == 0));
        }
    }

    #[test]
    fn gpus_that_are_slower_than_their_profile_lose_no_request(
        workload in workloads(), policy in policies(), options in options(), slowdown in 0.01f64..1.0,
    ) {
        audited(&workload, policy, &options, Fault { slowdown });
    }

    #[test]
    fn busy_time_is_the_sum_of_batches(
        workload in workloads(), policy in policies(), options in options(),
    ) {
        let whole = Workload { warmup: Nanos::ZERO, duration: Nanos::from_secs(1), ..workload };
        let (audit, report) = audited(&whole, policy, &options, Fault::default());
        let batches: u64 = report.batch_histogram.iter().sum();
        prop_assert!(batches <= audit.decisions().len() as u64);
        for (gpu, share) in report.gpu_busy.iter().enumerate() {
            let (busy, free_at) = (audit.gpu_busy()[gpu], audit.gpu_free_at()[gpu]);
            let within = busy - (free_at - Nanos::from_secs(1));
            // The report leaves out what runs past the window's end: under fcfs, several batches.
            if free_at <= Nanos::from_secs(1) {
                prop_assert!((share - busy.as_secs_f64()).abs() < 1e-9);
            } else {
                prop_assert!(*share + 1e-9 >= within.as_secs_f64());
                prop_assert!(*share <= 1.0 + 1e-9);
            }
        }
    }

    #[test]
    fn the_same_events_give_the_same_decisions(
        workload in workloads(), policy in policies(), options in options(), slowdown in prop_oneof![Just(0.0), Just(0.3)],
    ) {
        let (first, one) = audited(&workload, policy, &options, Fault { slowdown });
        let (second, two) = audited(&workload, policy, &options, Fault { slowdown });
        prop_assert_eq!(first.decisions(), second.decisions());
        prop_assert_eq!(first.preemptions(), second.preemptions());
        prop_assert_eq!(bytes(one), bytes(two));
    }
}

#[test]
fn only_policies_that_exist_may_be_late() {
    for (name, _) in MAY_BE_LATE {
        assert!(POLICIES.iter().any(|policy| policy.name() == name), "{name} is no policy");
    }
}
