//! How long a batch is held back: the one decision that most policies differ in, and what it may be
//! decided from. A [`Deferral`] is implemented by a policy and called by
//! [`crate::model::ModelQueue`].

use crate::drop_rule::DropRule;
use crate::profile::Profile;
use crate::rule_setting::RuleSetting;
use crate::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::QueueId;

/// A rule for how long a batch is held back.
pub trait Deferral: Sync + Send + core::fmt::Debug {
    /// The name of the rule, unique among them: [`crate::policy::deferral`] finds it
    /// again, for recordings.
    fn name(&self) -> &'static str;
    /// The time from which the candidate of this moment may start (the `when` of
    /// docs/design/specification.md, "Deferral"). It is never held beyond `latest`, whatever this
    /// says.
    fn when(&self, moment: &Moment<'_>) -> Nanos;
    /// The time from which, before that, the candidate would take a GPU that else idles. `None`:
    /// never. Asked once a rate sample, not at each request.
    fn head_start(&self, _demand: &Demand<'_>) -> Option<HeadStart> {
        None
    }
}

/// What is known of a model's traffic.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The model's request rate; 0 while it is not known.
    pub rate_rps: f64,
    /// The batch size that the rate calls for.
    pub target: usize,
    /// The constants that the rule takes from outside.
    pub setting: RuleSetting,
    /// The model's profile, SLO, delays and GPUs.
    pub terms: &'a QueueConfig,
}

/// How long before its `when` a candidate is offered, for a GPU that idles: from the earlier of the
/// two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadStart {
    /// The time after the start of the model's last batch; zero for at once.
    pub after_last: Nanos,
    /// The time before `when`.
    pub lead: Nanos,
    /// The candidate is due from then on: it may have any GPU.
    pub spread: bool,
}

/// What a [`Deferral`] may look at.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// The time of the decision.
    pub now: Nanos,
    /// The candidate's size, at least 1.
    pub size: usize,
    /// now + delay(b).
    pub earliest: Nanos,
    /// D - l(b+1) - d_data: after it, one more request could not join. Of n rows, where requests
    /// have several.
    pub frontrun: Nanos,
    /// D - l(b): after it, the head would be late.
    pub latest: Nanos,
    /// Requests in the queue, those of the candidate included.
    pub queued: usize,
    /// The model's request rate; 0 while it is not known.
    pub rate_rps: f64,
    /// When the model's last batch started; zero if there was none.
    pub last_start: Nanos,
    /// The batch size that the rate calls for.
    pub target: usize,
    /// The model's profile, SLO and delays.
    pub terms: &'a QueueConfig,
}

/// The parameters of a queue's scheduling.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// The queue's number.
    pub queue: QueueId,
    /// How long its batches take.
    pub profile: Profile,
    /// The latency promised.
    pub slo: Nanos,
    /// The network's delays.
    pub network: Network,
    /// What is dropped.
    pub drop: DropRule,
    /// When a batch is held back no longer.
    pub deferral: &'static dyn Deferral,
    /// What timers and threads add on real clocks; zero in virtual time.
    pub slack: Slack,
    /// GPUs of the model's sub-cluster.
    pub gpus: usize,
}

/// How much earlier than the formulas say things happen, to make up for the lateness of real timers
/// and threads. The first is the larger: a profile may be so flat that frontrun and latest
/// coincide, and a candidate still needs time to be granted a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slack {
    /// Taken off frontrun: the whole way from the timer to the start of the batch.
    pub frontrun: Nanos,
    /// Taken off latest: the way from a grant to the start of the batch.
    pub latest: Nanos,
}
