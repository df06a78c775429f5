//! A policy of one's own, compared with the project's in the simulator:
//!
//! ```text
//! cargo run --example custom_policy
//! ```
//!
//! To try another idea:
//!
//! 1. Change [`HalfTarget::when`]: it returns the time until which a batch is held back. `Moment`
//!    lists what it may depend on. The scheduler around it stays the same: queues, drops and the
//!    matching of batches with GPUs.
//! 2. Change [`workload`]: GPUs, models, SLOs, classes and arrival processes.
//! 3. For an idea that is more than a time to wait, implement `Scheduler` and `Policy` instead, and
//!    put that policy into the list in `main`. The audit finds requests that it loses and GPUs that
//!    it gives two batches at a time.
//!
//! An idea that is worth keeping becomes a file of `engine/scheduler/src/policy`, with a line in
//! `registry.rs` there; ARCHITECTURE.md has the recipe.

use symphony_scheduler::deferral::{Deferral, Moment};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::{self, DeferralPolicy, Policy, PolicyOptions};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::sim::goodput::search;
use symphony_scheduler::sim::{Audit, Fault, simulate_observed};
use symphony_scheduler::workload::{Workload, WorkloadModel};
use symphony_transport::Nanos;

/// The rule: a batch waits for more requests until it has half of the target size, the size that
/// the model's rate calls for.
#[derive(Debug)]
struct HalfTarget;

impl Deferral for HalfTarget {
    fn name(&self) -> &'static str {
        "half-target"
    }

    fn when(&self, moment: &Moment<'_>) -> Nanos {
        if 2 * moment.size >= moment.target { moment.earliest } else { moment.frontrun }
    }
}

/// The rule as a policy.
static HALF_TARGET: DeferralPolicy = DeferralPolicy {
    name: "half-target",
    about: "hold a batch back until it has half of the target size",
    options: &["drop"],
    drop: DropRule::Window,
    deferral: &HalfTarget,
    by_application: false,
};

/// Three models with Poisson arrivals at equal rates, 9000 requests/s together, on 16 GPUs.
fn workload() -> Workload {
    let model = |name, alpha_us, beta_us, slo_ms| {
        let (alpha, beta) = (Nanos::from_micros(alpha_us), Nanos::from_micros(beta_us));
        let profile = Profile::linear(alpha, beta, 64).expect("alpha is positive");
        WorkloadModel::new(name, profile, Nanos::from_millis(slo_ms))
    };
    let models = vec![
        model("small", 200, 2_000, 20),
        model("medium", 1_053, 5_072, 25),
        model("large", 2_000, 10_000, 100),
    ];
    let seconds = Nanos::from_secs(5);
    Workload { duration: seconds, ..Workload::of_models(16, 9_000.0, models) }
}

fn main() {
    let (workload, options) = (workload(), PolicyOptions::default());
    let default = policy::POLICIES[0];
    let eager = policy::by_name("work-conserving").expect("it is one of the policies");
    println!("{:<16} {:>10} {:>8} {:>8} {:>8} {:>10}", "", "goodput", "bad", "batch", "GPUs", "p99");
    println!("{:<16} {:>10} {:>8} {:>8} {:>8} {:>10}", "policy", "1/s", "%", "mean", "busy %", "ms");
    for policy in [default, eager, &HALF_TARGET as &dyn Policy] {
        let mut audit = Audit::new(&workload);
        let report = simulate_observed(&workload, policy, &options, Fault::default(), &mut audit)
            .expect("the arrival processes are valid");
        audit.check().expect("a policy ends each request once and runs one batch at a time on a GPU");
        let best = search(&workload, policy, &options, &mut |_| ()).expect("the arrival processes are valid");
        println!(
            "{:<16} {:>10.0} {:>8.2} {:>8.1} {:>8.1} {:>10.1}",
            policy.name(),
            best.goodput_rps.unwrap_or_default(),
            100.0 * report.bad_rate,
            report.mean_batch,
            100.0 * report.gpu_utilization,
            report.latency_ms.p99,
        );
    }
}

#[test]
fn the_example_runs() {
    main();
}
