//! `symphony-published`: a batch waits until frontrun, the last moment at which one more request
//! could still join it (Symphony, section 4.3, the second of its two extreme options, which its
//! evaluation uses). The other rules for how long it waits are in [`super::when`]; option `when`
//! chooses one.

use super::deferral_policy::DeferralPolicy;
use super::when::FRONTRUN;
use crate::drop_rule::DropRule;

/// The policy.
pub(super) static SYMPHONY_PUBLISHED: DeferralPolicy = DeferralPolicy {
    name: "symphony-published",
    about: "hold a batch back while one more request could join (Symphony, section 4.3)",
    options: &["drop", "when"],
    drop: DropRule::Window,
    deferral: &FRONTRUN,
    by_application: false,
};
