//! Scheduling policies, one file each, and the two interfaces that they meet.
//!
//! A [`Scheduler`] is a whole scheduler: requests, completions and the time come in, batches and
//! drops go out. The simulator drives any of them. Most of ours differ only in one decision, how
//! long a batch is held back: that is a [`Deferral`], which [`deferred::Deferred`] (one thread, for
//! the simulator) and the pinned threads of [`crate::runtime`] put around the same queues and the
//! same matching.
//!
//! To add a policy: write its file, add a line to [`POLICIES`].

mod clipper;
pub mod clockwork;
pub mod deferred;
mod deferring;
mod epoch;
mod nexus;
mod options;
mod pull;
mod queue;
mod shepherd;
pub mod symphony;
mod symphony_published;
pub mod triton;
#[cfg(test)]
mod watched;
pub mod when;
mod work_conserving;

use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::workload::Workload;
use alloc::boxed::Box;
use alloc::vec::Vec;
pub use options::Options;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, Request};

/// A whole scheduler, as the simulator drives it. All times are virtual or all are real: it never
/// asks.
pub trait Scheduler {
    /// A request has come.
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions);
    /// A batch has left its GPU.
    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions);
    /// The time that [`Scheduler::next_timer`] told has come.
    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions);
    /// When it wants to be called next without an event; [`Nanos::MAX`] if never.
    fn next_timer(&self) -> Nanos;
}

/// What a [`Scheduler`] decides.
pub trait Decisions {
    /// Run these requests, `batch.size` in all, as the header says.
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request]));
    /// As [`Decisions::run`], for a batch that [`Decisions::preempt`] may stop. A GPU can be given
    /// the next one when it has completed or was stopped.
    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request]));
    /// Stop the preemptible batch of `gpu`: the word takes d_ctrl, the GPU's time until then is
    /// wasted, no completion comes, and its requests are added to `back`: they are the scheduler's
    /// again. False, and nothing changes, where no such batch runs or it will have ended before the
    /// word is there.
    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool;
    /// This request ends without having run.
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos);
}

/// A policy that can be chosen by name.
pub trait Policy: Sync + core::fmt::Debug {
    /// Its name on the command line.
    fn name(&self) -> &'static str;
    /// What it does and where it is from, in a line.
    fn about(&self) -> &'static str;
    /// Its drop rule, where it heeds that option and is not told another.
    fn drop(&self) -> DropRule {
        DropRule::Window
    }
    /// The flags of the [`Options`] that it heeds.
    fn options(&self) -> &'static [&'static str];
    /// A scheduler of this policy for the models and GPUs of a workload.
    fn scheduler(&self, workload: &Workload, options: &Options) -> Box<dyn Scheduler>;
    /// How it defers, where that is all that sets it apart: such a policy runs on the pinned
    /// threads too.
    fn deferral(&self) -> Option<&'static dyn Deferral> {
        None
    }
}

/// Every policy, the default first.
pub static POLICIES: &[&dyn Policy] = &[
    &symphony::SYMPHONY,
    &symphony_published::SYMPHONY_PUBLISHED,
    &work_conserving::WORK_CONSERVING,
    &nexus::NEXUS,
    &shepherd::SHEPHERD,
    &clockwork::Clockwork,
    &clipper::Clipper,
    &triton::Triton,
];

/// The policy of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

/// Every policy's name, the default's first.
pub fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|policy| policy.name()).collect()
}

/// The names of the policies that heed this flag of the [`Options`].
pub fn taking(flag: &str) -> Vec<&'static str> {
    POLICIES.iter().filter(|policy| policy.options().contains(&flag)).map(|policy| policy.name()).collect()
}

/// The names of the policies that the pinned threads run.
pub fn served() -> Vec<&'static str> {
    POLICIES.iter().filter(|policy| policy.deferral().is_some()).map(|policy| policy.name()).collect()
}

/// The deferral of this name, be it a `when` rule or a policy's own.
pub fn deferral(name: &str) -> Option<&'static dyn Deferral> {
    let own = POLICIES.iter().filter_map(|policy| policy.deferral());
    when::RULES.into_iter().map(|rule| rule as &dyn Deferral).chain(own).find(|rule| rule.name() == name)
}
