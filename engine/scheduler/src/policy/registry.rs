//! The list of policies, and searches in it by name. Read by `simulate`, by the CONFIG's reader and
//! by the recorder.

use super::interface::Policy;
use super::{
    clipper, clockwork, nexus, orloj, shepherd, symphony, symphony_published, triton, when, work_conserving,
};
use crate::deferral::Deferral;
use alloc::vec::Vec;

/// Every policy, the default first.
pub static POLICIES: &[&dyn Policy] = &[
    &symphony::SYMPHONY,
    &symphony_published::SYMPHONY_PUBLISHED,
    &work_conserving::WORK_CONSERVING,
    &nexus::Nexus,
    &shepherd::Shepherd,
    &clockwork::Clockwork,
    &clipper::Clipper,
    &triton::Triton,
    &orloj::Orloj,
];

/// Returns the policy of this name.
pub fn by_name(name: &str) -> Option<&'static dyn Policy> {
    POLICIES.iter().copied().find(|policy| policy.name() == name)
}

/// Returns the names of all policies, the default's first.
pub fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|policy| policy.name()).collect()
}

/// Returns the names of the policies that a flag of the [`PolicyOptions`](super::PolicyOptions)
/// applies to.
pub fn taking(flag: &str) -> Vec<&'static str> {
    POLICIES.iter().filter(|policy| policy.options().contains(&flag)).map(|policy| policy.name()).collect()
}

/// Returns the names of the policies that the pinned threads run: all but those that stop batches.
pub fn served() -> Vec<&'static str> {
    POLICIES.iter().filter(|policy| !policy.preempts()).map(|policy| policy.name()).collect()
}

/// Returns the names of the policies that only defer: ModelThreads run these.
pub fn deferring() -> Vec<&'static str> {
    POLICIES.iter().filter(|policy| policy.deferral().is_some()).map(|policy| policy.name()).collect()
}

/// Returns the deferral of this name: a rule of [`when`] or a policy's own.
pub fn deferral(name: &str) -> Option<&'static dyn Deferral> {
    let own = POLICIES.iter().filter_map(|policy| policy.deferral());
    when::RULES.into_iter().map(|rule| rule as &dyn Deferral).chain(own).find(|rule| rule.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deferral_is_found_by_its_name() {
        let of_policies = POLICIES.iter().filter_map(|policy| policy.deferral());
        for rule in when::RULES.into_iter().map(|rule| rule as &dyn Deferral).chain(of_policies) {
            assert_eq!(deferral(rule.name()).unwrap().name(), rule.name());
        }
    }
}
