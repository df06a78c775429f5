//! Tuning of the default rule while it serves. A thread of its own, below the priority of all
//! others, samples the arrivals of each sub-cluster, replays them under a few settings
//! ([`symphony_scheduler::policy::tuning`]), and hands the better one to the ModelThreads.
//!
//! ```text
//!                  Sample, Set                          (a ring each way for each ModelThread)
//!   tuner thread ─────────────▶ ModelThread
//!    a Tuner for ◀───────────── the arrivals that are wanted
//!    each sub-cluster          what it drops, as counts
//! ```
//!
//! Bounds: at most [`MOST_REPLAYED`](symphony_scheduler::policy::tuning::MOST_REPLAYED) arrivals a
//! look, each replayed at most twice for each setting; for looks a tenth of a core, by the thread's
//! processor time, and a second of it at once where it was less before. To make a tuner takes no
//! replays. A ModelThread pays two comparisons a request, and a ring's push for one that is wanted.
//! A tuner that hangs or ends leaves the settings as they are.

mod link;
mod processor_budget;
mod tuned_pool;
mod tuner_thread;

pub(crate) use link::AppliedSetting;
pub use link::{LossCounts, TunedLink};
#[cfg(test)]
pub(crate) use link::{TuningOrder, tuning_link};
pub(crate) use tuned_pool::TunedRule;
pub(crate) use tuner_thread::{TunerPlan, TunerThread};
