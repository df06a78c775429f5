//! Symphony's scheduler as pure state machines: a [`model::ModelQueue`] for each model, a
//! [`rank::RankState`] for each pool of GPUs, whole schedulers to compare them with ([`policy`]),
//! and a simulator that drives any of them in virtual time ([`sim`]).
//!
//! Every function takes the time as an argument, and decisions go into a sink. The crate is
//! `no_std`, so the compiler refuses a clock, a file, a socket or a thread in it; the pinned
//! threads of the crate `symphony` and the simulator here are two drivers of the same code.
//!
//! # First steps
//!
//! Describe a workload, run a policy on it in virtual time, and read the report. The audit checks
//! what must hold for any policy:
//!
//! ```
//! use symphony_scheduler::policy::{self, PolicyOptions};
//! use symphony_scheduler::profile::Profile;
//! use symphony_scheduler::sim::{Audit, Fault, simulate_observed};
//! use symphony_scheduler::workload::{Workload, WorkloadModel};
//! use symphony_transport::Nanos;
//!
//! // l(b) = 1 ms * b + 5 ms, an SLO of 25 ms, 4000 requests/s on 8 GPUs.
//! let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 64)?;
//! let model = WorkloadModel::new("resnet50", profile, Nanos::from_millis(25));
//! let workload = Workload::of_models(8, 4_000.0, vec![model]);
//!
//! let (policy, options) = (policy::POLICIES[0], PolicyOptions::default());
//! let mut audit = Audit::new(&workload);
//! let report = simulate_observed(&workload, policy, &options, Fault::default(), &mut audit)?;
//! audit.check()?;
//! println!("{:.2} % bad, {:.1} requests/batch", 100.0 * report.bad_rate, report.mean_batch);
//! assert!(report.bad_rate < 0.01);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Then write a policy: `examples/custom_policy.rs` in the repository is one of 30 lines, compared
//! with the default. Most policies are a [`deferral::Deferral`], a rule for how long a batch is
//! held back, inside a [`policy::DeferralPolicy`]; one that decides more implements
//! [`policy::Scheduler`] and [`policy::Policy`].
//!
//! # Order of modules
//!
//! Modules look down only: `sim` → `policy` → `model` → `rank` → `deferral`, `drop_rule` →
//! `rule_setting`, `workload` → `run_time`, `query` → `profile` → `limits`. `rolling_profile`,
//! above `profile`, and `actions`, which uses none, are used by drivers only.
#![cfg_attr(not(test), no_std)]

#[macro_use]
extern crate alloc;

pub mod actions;
pub mod deferral;
pub mod drop_rule;
pub mod gaps;
pub mod limits;
pub mod load_phases;
pub mod model;
pub mod policy;
pub mod profile;
pub mod query;
pub mod rank;
pub mod rolling_profile;
pub mod rule_setting;
pub mod run_time;
pub mod sim;
pub mod step_costs;
pub mod workload;
