//! Scheduling policies, one file each, behind one interface.
//!
//! A [`Scheduler`] takes requests, completions and the time, and puts batches and drops into
//! [`Decisions`]. The simulator drives any of them. Most of Symphony's own policies differ in one
//! decision only, how long a batch is held back: that is a
//! [`Deferral`](crate::deferral::Deferral). [`DeferralPolicy`] makes a policy of it, and
//! [`deferred::Deferred`] (one thread, for the simulator) and the pinned threads of the crate
//! `symphony` put the same queues and the same matching around it.
//!
//! To try a policy, implement [`Policy`] or `Deferral` in a program of its own, as
//! `examples/custom_policy.rs` does. To add it to the engine, move it into a file of this folder
//! and add a line to [`POLICIES`].

mod by_application;
mod clipper;
mod clockwork;
pub mod deferral_policy;
pub mod deferred;
mod epoch;
mod grouped;
mod interface;
mod nexus;
pub mod options;
mod orloj;
mod pull;
mod queue;
mod registry;
mod shepherd;
pub mod symphony;
mod symphony_published;
mod triton;
mod tuned;
pub mod tuning;
pub mod when;
mod work_conserving;

pub use deferral_policy::DeferralPolicy;
pub use interface::{Decisions, Policy, Scheduler};
pub use options::PolicyOptions;
pub use registry::{POLICIES, by_name, deferral, deferring, names, served, taking};
