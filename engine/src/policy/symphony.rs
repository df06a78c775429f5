//! `symphony`: a batch waits until frontrun, the last moment at which one more request could still join it
//! (Symphony, section 4.3, the second of its two extreme options, which its evaluation uses).

use super::deferred::Deferred;
use super::{Deferral, Moment, Policy, Scheduler};
use crate::clock::Nanos;
use crate::model::selection::DropRule;
use crate::workload::Workload;

/// The policy.
#[derive(Debug)]
pub(super) struct Symphony;

impl Policy for Symphony {
    fn name(&self) -> &'static str {
        "symphony"
    }

    fn about(&self) -> &'static str {
        "hold each batch back until the last moment at which it can still grow (Symphony, section 4.3)"
    }

    fn scheduler(&self, workload: &Workload, drop: DropRule) -> Box<dyn Scheduler> {
        Box::new(Deferred::new(workload, drop, &Symphony))
    }

    fn deferral(&self) -> Option<&'static dyn Deferral> {
        Some(&Symphony)
    }
}

impl Deferral for Symphony {
    fn when(&self, moment: &Moment<'_>) -> Nanos {
        moment.frontrun
    }
}
