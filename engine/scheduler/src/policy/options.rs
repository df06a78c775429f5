//! The options of all policies beyond the workload. `simulate` fills them from its flags; a policy
//! names those that apply to it ([`super::Policy::options`]).

use super::when::When;
use crate::drop_rule::DropRule;
use crate::rule_setting::{Prefer, RuleSetting};
use alloc::boxed::Box;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The options of all policies, each with the project's default.
#[derive(Clone, Debug)]
pub struct PolicyOptions {
    /// The drop rule, instead of the policy's own (flag `drop`).
    pub drop: Option<DropRule>,
    /// The rule for how long a batch is held back, instead of the policy's own (flag `when`).
    pub when: Option<&'static When>,
    /// The setting of the default rule (flag `setting`).
    pub setting: RuleSetting,
    /// What the default rule's setting is tuned for while it runs (flags `tuning` and `prefer`);
    /// `None` for a setting that stays. It starts with `setting`.
    pub tuning: Option<Prefer>,
    /// Frontends that route requests independently of each other, at least 1 (flag `frontends`).
    pub frontends: usize,
    /// The placement of sessions by `nexus` (flag `nexus-packing`).
    pub nexus_packing: NexusPacking,
    /// The factor by which a batch must be larger than a running one to preempt it, at least 1
    /// (flag `shepherd-preempt`).
    pub preempt: f64,
    /// b of `orloj`: the rate of the exponential distribution of the delay that priorities
    /// anticipate, in 1/ms, above 0 (flag `orloj-delay-rate`).
    pub orloj_delay_rate: f64,
    /// The options of `clockwork` (flags `clockwork-batches` and `clockwork-ahead-ms`).
    pub clockwork: ClockworkOptions,
    /// The options of `triton` (flags `triton-queue-delay-ms`, `triton-preferred` and
    /// `triton-timeout-ms`).
    pub triton: TritonOptions,
}

impl Default for PolicyOptions {
    fn default() -> PolicyOptions {
        PolicyOptions {
            drop: None,
            when: None,
            setting: RuleSetting::default(),
            tuning: None,
            frontends: 1,
            nexus_packing: NexusPacking::Squishy,
            preempt: 3.03,
            orloj_delay_rate: 1e-4,
            clockwork: ClockworkOptions::default(),
            triton: TritonOptions::default(),
        }
    }
}

impl From<DropRule> for PolicyOptions {
    fn from(drop: DropRule) -> PolicyOptions {
        PolicyOptions { drop: Some(drop), ..PolicyOptions::default() }
    }
}

/// The options of `clockwork`; by default those of Clockwork, section 5.3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockworkOptions {
    /// The sizes that batches may have.
    pub batches: BatchSizes,
    /// The outstanding work below which a GPU is given more; above zero.
    pub ahead: Nanos,
}

impl Default for ClockworkOptions {
    fn default() -> ClockworkOptions {
        ClockworkOptions { batches: BatchSizes::PowersOfTwo, ahead: Nanos::from_millis(5) }
    }
}

/// The sizes that a batch of `clockwork` may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchSizes {
    /// 1, 2, 4, 8 …: the sizes that Clockwork compiles its models for.
    PowersOfTwo,
    /// Any size, as Symphony's comparison added to Clockwork.
    Any,
}

impl BatchSizes {
    /// Both variants with their names, for help texts.
    pub const ALL: [(BatchSizes, &str); 2] = [(BatchSizes::PowersOfTwo, "pow2"), (BatchSizes::Any, "any")];

    /// Returns the variant of this name.
    pub fn parse(name: &str) -> Option<BatchSizes> {
        BatchSizes::ALL.iter().find(|sizes| sizes.1 == name).map(|sizes| sizes.0)
    }

    /// Returns the sizes from 1 to `largest`, rising.
    pub(super) fn up_to(self, largest: usize) -> Box<[usize]> {
        match self {
            BatchSizes::PowersOfTwo => {
                (0..usize::BITS).map(|n| 1 << n).take_while(|&b| b <= largest).collect()
            }
            BatchSizes::Any => (1..=largest).collect(),
        }
    }
}

/// How `nexus` places sessions on GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NexusPacking {
    /// Squishy bin packing (Nexus, section 6.1).
    Squishy,
    /// Each session gets a part of the GPUs in proportion to its rate over its highest throughput,
    /// whatever batches then fit in the SLOs: the baseline of Nexus, section 7.2.
    Oblivious,
}

impl NexusPacking {
    /// Both variants with their names, for help texts.
    pub const ALL: [(NexusPacking, &str); 2] =
        [(NexusPacking::Squishy, "squishy"), (NexusPacking::Oblivious, "oblivious")];

    /// Returns the variant of this name.
    pub fn parse(name: &str) -> Option<NexusPacking> {
        NexusPacking::ALL.iter().find(|packing| packing.1 == name).map(|packing| packing.0)
    }
}

/// The options of `triton`, named as in a model's configuration for Triton.
#[derive(Clone, Debug, Default)]
pub struct TritonOptions {
    /// `max_queue_delay`; `None` for the part of the SLO that is left when a batch of the largest
    /// size waits for another.
    pub max_queue_delay: Option<Nanos>,
    /// `preferred_batch_size`, rising; empty for the largest batch alone.
    pub preferred: Vec<usize>,
    /// `default_timeout_microseconds`: a request that has waited for longer is rejected; `None` for
    /// the time after which the largest batch would be late.
    pub timeout: Option<Nanos>,
}
