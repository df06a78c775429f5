//! `work-conserving`: a batch is schedulable as soon as it has a request, so no GPU idles while
//! work waits (Symphony, section 4.3, the first of its two extreme options).

use super::deferral_policy::DeferralPolicy;
use super::when;
use crate::drop_rule::DropRule;

/// The policy.
pub(super) static WORK_CONSERVING: DeferralPolicy = DeferralPolicy {
    name: "work-conserving",
    about: "run what there is as soon as a GPU is free (Symphony, section 4.3)",
    options: &["drop"],
    drop: DropRule::Window,
    deferral: &when::WORK_CONSERVING,
    by_application: false,
};
