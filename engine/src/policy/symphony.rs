//! `symphony`, the default: a batch waits until frontrun, the last moment at which one more request could still join
//! it (Symphony, section 4.3).

use super::deferring::Deferring;
use super::when::FRONTRUN;

/// The policy.
pub(super) static SYMPHONY: Deferring = Deferring {
    name: "symphony",
    about: "the default: hold a batch back while one more request could join",
    options: &["drop"],
    deferral: &FRONTRUN,
};
