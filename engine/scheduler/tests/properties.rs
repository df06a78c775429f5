//! Invariants of the scheduler over random workloads, watched event by event in the simulator: they
//! hold for every policy with every option, whatever the models, the load and the network.
//! [`MAY_BE_LATE`] lists the exceptions.

use proptest::prelude::*;
use std::collections::HashMap;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::clockwork::{BatchSizes, ClockworkOptions};
use symphony_scheduler::policy::triton::TritonOptions;
use symphony_scheduler::policy::{Options, POLICIES, Policy, when};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::{Fault, Observer, simulate_observed};
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Class, Ending, Request};

/// The policies that do not promise that a batch finishes by its first deadline, and why. Any other
/// does, unless its drop rule is fcfs.
const MAY_BE_LATE: [(&str, &str); 2] = [
    ("clipper", "it learns from late batches how large they may be"),
    ("triton", "it starts whatever has not waited for longer than its timeout"),
];

/// What a policy with these options promises.
#[derive(Clone, Copy)]
struct Promise {
    in_time: bool,
    drops_nothing: bool,
}

impl Promise {
    fn of(policy: &dyn Policy, options: &Options) -> Promise {
        let drops_nothing = policy.options().contains(&"drop") && options.drop == Some(DropRule::Fcfs);
        let may_be_late = MAY_BE_LATE.iter().any(|&(name, _)| name == policy.name());
        Promise { in_time: !drops_nothing && !may_be_late, drops_nothing }
    }
}

/// How a request ended, and everything that was seen of batches.
struct Watch {
    network: Network,
    promise: Promise,
    faults: bool,
    /// Requests go straight to a GPU, each as it comes; else a batch fetches its inputs when it is
    /// put together.
    pushed: bool,
    profiles: Vec<Profile>,
    endings: HashMap<u64, u32>,
    arrived: u64,
    gpu_free_at: Vec<Nanos>,
    gpu_busy: Vec<Nanos>,
    /// When each batch was to finish.
    finishes: HashMap<u64, Nanos>,
    decisions: Vec<(Nanos, u64, u32, Nanos, usize)>,
}

impl Watch {
    fn new(workload: &Workload, policy: &dyn Policy, promise: Promise, fault: Fault) -> Watch {
        Watch {
            network: workload.network,
            promise,
            faults: fault.slowdown > 0.0,
            pushed: policy.name() == "nexus",
            profiles: workload.models.iter().map(|model| model.profile.clone()).collect(),
            endings: HashMap::new(),
            arrived: 0,
            gpu_free_at: vec![Nanos::ZERO; workload.gpus],
            gpu_busy: vec![Nanos::ZERO; workload.gpus],
            finishes: HashMap::new(),
            decisions: Vec::new(),
        }
    }

    fn end(&mut self, request: &Request) {
        *self.endings.entry(request.id).or_default() += 1;
    }

    fn check_batch(&self, now: Nanos, batch: &BatchHeader, all: &[Request]) {
        let size = all.len();
        assert_eq!(size, batch.size as usize);
        assert!(size >= 1, "an empty batch was sent");
        assert!(
            all.iter().all(|request| request.queue.only_model() == batch.model),
            "models are mixed in a batch"
        );
        assert_eq!(batch.duration, self.profiles[batch.model.0 as usize].latency(size));
        let inputs_there = match self.pushed {
            true => all.iter().map(|request| request.arrival + self.network.delay(1)).max(),
            false => Some(now + self.network.delay(size)),
        };
        assert!(Some(batch.exec_at) >= inputs_there, "it starts before its inputs can be there");
        assert!(all.iter().all(|request| request.arrival <= now), "it holds a request that has not come yet");
    }
}

impl Observer for Watch {
    fn arrived(&mut self, _request: &Request) {
        self.arrived += 1;
    }

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        let all: Vec<Request> = requests.0.iter().chain(requests.1).copied().collect();
        self.check_batch(now, batch, &all);
        all.iter().for_each(|request| self.end(request));
        self.decisions.push((now, batch.batch, batch.gpu.0, batch.exec_at, all.len()));
        let Some(started) = started else {
            assert!(self.faults, "a batch is cancelled only where a GPU was late");
            return;
        };
        let gpu = batch.gpu.0 as usize;
        assert!(started >= self.gpu_free_at[gpu], "it starts on a GPU that is busy");
        self.gpu_free_at[gpu] = finished;
        self.gpu_busy[gpu] += finished - started;
        self.finishes.insert(batch.batch, finished);
        if self.faults {
            return;
        }
        assert_eq!(started, batch.exec_at, "without faults a batch starts when it was told to");
        assert_eq!(finished - started, batch.duration);
        if self.promise.in_time {
            let first = all.iter().map(|request| request.deadline).min().unwrap();
            assert!(finished <= first, "a batch finishes after its first deadline");
        }
    }

    fn preempted(&mut self, batch: &BatchHeader, requests: &[Request], stopped: Nanos) {
        let gpu = batch.gpu.0 as usize;
        self.gpu_free_at[gpu] = stopped;
        self.gpu_busy[gpu] = self.gpu_busy[gpu] - (self.finishes[&batch.batch] - stopped);
        requests.iter().for_each(|request| *self.endings.entry(request.id).or_default() -= 1);
    }

    fn ended(&mut self, request: &Request, ending: Ending, _now: Nanos) {
        assert!(
            !self.promise.drops_nothing || ending == Ending::Overloaded,
            "rule fcfs drops nothing but what does not fit"
        );
        self.end(request);
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
        },
    )
}

fn policies() -> impl Strategy<Value = &'static dyn Policy> {
    prop::sample::select(POLICIES.to_vec())
}

/// Options of every kind at once: a policy heeds its own.
fn options() -> impl Strategy<Value = Options> {
    let drop = prop::sample::select(DropRule::ALL.map(|rule| rule.0).to_vec());
    let when = prop::option::of(prop::sample::select(when::RULES.to_vec()));
    let clockwork = (prop::sample::select(BatchSizes::ALL.map(|sizes| sizes.0).to_vec()), 0.1f64..20.0);
    let ms = |range| prop::option::of(range).prop_map(|ms: Option<f64>| ms.map(Nanos::from_millis_f64));
    let triton = (ms(0.0..20.0), prop::collection::btree_set(1usize..40, 0..4), ms(0.1..40.0));
    let preempt = prop_oneof![1.0f64..5.0, Just(f64::INFINITY)];
    (drop, when, 1usize..5, preempt, clockwork, triton).prop_map(
        |(drop, when, frontends, preempt, (batches, ahead), triton)| {
            let (max_queue_delay, preferred, timeout) = triton;
            let preferred = preferred.into_iter().collect();
            let mut options = Options::from(drop);
            options.when = when;
            options.frontends = frontends;
            options.preempt = preempt;
            options.clockwork = ClockworkOptions { batches, ahead: Nanos::from_millis_f64(ahead) };
            options.triton = TritonOptions { max_queue_delay, preferred, timeout };
            options
        },
    )
}

fn watch(workload: &Workload, policy: &dyn Policy, options: &Options, fault: Fault) -> (Watch, Report) {
    let mut watch = Watch::new(workload, policy, Promise::of(policy, options), fault);
    let report = simulate_observed(workload, policy, options, fault, &mut watch).unwrap();
    (watch, report)
}

/// The report without what the wall's clock says.
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
        let (watch, report) = watch(&workload, policy, &options, Fault::default());
        prop_assert_eq!(watch.endings.len() as u64, watch.arrived);
        prop_assert!(watch.endings.values().all(|&ended| ended == 1));
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
        let (watch, _) = watch(&workload, policy, &options, Fault { slowdown });
        prop_assert_eq!(watch.endings.len() as u64, watch.arrived);
        prop_assert!(watch.endings.values().all(|&ended| ended == 1));
    }

    #[test]
    fn busy_time_is_the_sum_of_batches(
        workload in workloads(), policy in policies(), options in options(),
    ) {
        let whole = Workload { warmup: Nanos::ZERO, duration: Nanos::from_secs(1), ..workload };
        let (watch, report) = watch(&whole, policy, &options, Fault::default());
        let batches: u64 = report.batch_histogram.iter().sum();
        prop_assert!(batches <= watch.decisions.len() as u64);
        for (gpu, share) in report.gpu_busy.iter().enumerate() {
            let within = watch.gpu_busy[gpu] - (watch.gpu_free_at[gpu] - Nanos::from_secs(1));
            // All but what runs past the window's end; a queue of fcfs may go on for several
            // batches there.
            if watch.gpu_free_at[gpu] <= Nanos::from_secs(1) {
                prop_assert!((share - watch.gpu_busy[gpu].as_secs_f64()).abs() < 1e-9);
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
        let (first, one) = watch(&workload, policy, &options, Fault { slowdown });
        let (second, two) = watch(&workload, policy, &options, Fault { slowdown });
        prop_assert_eq!(first.decisions, second.decisions);
        prop_assert_eq!(bytes(one), bytes(two));
    }
}

#[test]
fn only_policies_that_exist_may_be_late() {
    for (name, _) in MAY_BE_LATE {
        assert!(POLICIES.iter().any(|policy| policy.name() == name), "{name} is no policy");
    }
}
