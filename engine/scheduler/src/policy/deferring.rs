//! The policies that differ only in how long they hold a batch back: a name around a [`Deferral`].
//! In the simulator [`Deferred`] puts the queues and the matching around it, elsewhere the pinned
//! threads do.

use super::deferred::Deferred;
use super::{Options, Policy, Scheduler};
use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::workload::Workload;
use alloc::boxed::Box;

/// Such a policy.
#[derive(Debug)]
pub(super) struct Deferring {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) options: &'static [&'static str],
    pub(super) drop: DropRule,
    pub(super) deferral: &'static dyn Deferral,
}

impl Policy for Deferring {
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

    fn scheduler(&self, workload: &Workload, options: &Options) -> Box<dyn Scheduler> {
        let deferral = options.when.map_or(self.deferral, |rule| rule);
        Box::new(Deferred::new(workload, options.drop.unwrap_or(self.drop), deferral))
    }

    fn deferral(&self) -> Option<&'static dyn Deferral> {
        Some(self.deferral)
    }
}
