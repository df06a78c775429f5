//! `work-conserving`: a batch is schedulable as soon as it has a request, so no GPU idles while work waits
//! (Symphony, section 4.3, the first of its two extreme options).

use super::deferred::Deferred;
use super::{Deferral, Moment, Policy, Scheduler};
use crate::clock::Nanos;
use crate::model::selection::DropRule;
use crate::workload::Workload;

/// The policy.
#[derive(Debug)]
pub(super) struct WorkConserving;

impl Policy for WorkConserving {
    fn name(&self) -> &'static str {
        "work-conserving"
    }

    fn about(&self) -> &'static str {
        "run what there is as soon as a GPU is free (Symphony, section 4.3)"
    }

    fn scheduler(&self, workload: &Workload, drop: DropRule) -> Box<dyn Scheduler> {
        Box::new(Deferred::new(workload, drop, &WorkConserving))
    }

    fn deferral(&self) -> Option<&'static dyn Deferral> {
        Some(&WorkConserving)
    }
}

impl Deferral for WorkConserving {
    fn when(&self, moment: &Moment<'_>) -> Nanos {
        moment.earliest
    }
}
