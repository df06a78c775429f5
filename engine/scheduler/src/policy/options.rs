//! What a policy may be told beyond its workload. `simulate` fills it from its flags; which of them
//! a policy heeds is its own word ([`super::Policy::options`]).

use super::clockwork::ClockworkOptions;
use super::triton::TritonOptions;
use super::when::When;
use crate::drop_rule::DropRule;

/// The options of all policies, each with the project's default.
#[derive(Clone, Debug)]
pub struct Options {
    /// What becomes of requests that stand in the way of a good batch, instead of the policy's own
    /// rule (flag `drop`).
    pub drop: Option<DropRule>,
    /// When a batch is held back no longer, instead of the policy's own rule (flag `when`).
    pub when: Option<&'static When>,
    /// Frontends that route requests without knowing of each other, at least 1 (flag `frontends`).
    pub frontends: usize,
    /// How many times as large as a running batch another must be to preempt it, at least 1 (flag
    /// `shepherd-preempt`).
    pub preempt: f64,
    /// How `clockwork` plans (flags `clockwork-batches` and `clockwork-ahead-ms`).
    pub clockwork: ClockworkOptions,
    /// How `triton` batches (flags `triton-queue-delay-ms` and `triton-preferred`).
    pub triton: TritonOptions,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            drop: None,
            when: None,
            frontends: 1,
            preempt: 3.03,
            clockwork: ClockworkOptions::default(),
            triton: TritonOptions::default(),
        }
    }
}

impl From<DropRule> for Options {
    fn from(drop: DropRule) -> Options {
        Options { drop: Some(drop), ..Options::default() }
    }
}
