//! Policies that differ only in how long they hold a batch back: a name and a drop rule around a
//! [`Deferral`]. The simulator runs them as [`Deferred`]; the pinned threads put the same queues
//! and the same matching around the deferral.

use super::by_application::ByApplication;
use super::deferred::Deferred;
use super::interface::{Policy, Scheduler};
use super::options::PolicyOptions;
use super::tuned::Tuned;
use super::tuning::Tuner;
use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::workload::Workload;
use alloc::boxed::Box;

/// A policy that is a [`Deferral`] with a name.
#[derive(Debug)]
pub struct DeferralPolicy {
    /// The policy's name on the command line.
    pub name: &'static str,
    /// A line on what the policy does and where it is from.
    pub about: &'static str,
    /// The flags of the [`PolicyOptions`] that apply: of `drop` and `when`.
    pub options: &'static [&'static str],
    /// The drop rule, unless option `drop` chooses another.
    pub drop: DropRule,
    /// The rule for how long a batch is held back, unless option `when` chooses another.
    pub deferral: &'static dyn Deferral,
    /// True if it serves each group of applications of a model whose requests have run times of
    /// their own as a model by itself.
    pub by_application: bool,
}

impl Policy for DeferralPolicy {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn drop(&self) -> DropRule {
        self.drop
    }

    fn options(&self) -> &'static [&'static str] {
        self.options
    }

    fn scheduler(&self, workload: &Workload, options: &PolicyOptions) -> Box<dyn Scheduler> {
        let deferral = options.when.map_or(self.deferral, |rule| rule);
        let drop = options.drop.unwrap_or(self.drop);
        let make = |workload: &Workload| -> Box<dyn Scheduler> {
            let deferred = Deferred::new(workload, drop, deferral, options.setting);
            match options.tuning.filter(|_| self.options.contains(&"tuning")) {
                Some(prefer) => {
                    let tuner = Tuner::new(workload, drop, deferral, options.setting, prefer);
                    Box::new(Tuned::new(deferred, tuner, workload.models.len()))
                }
                None => Box::new(deferred),
            }
        };
        if self.by_application { ByApplication::around(workload, make) } else { make(workload) }
    }

    fn deferral(&self) -> Option<&'static dyn Deferral> {
        Some(self.deferral)
    }
}
