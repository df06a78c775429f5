//! The events of a model's queue, as one value: for drivers that apply, count, record and replay
//! them.

use crate::profile::ScaledProfile;
use crate::rank::Grant;
use crate::rule_setting::RuleSetting;
use crate::workload::Network;
use symphony_transport::message::Request;

/// An event of a [`ModelQueue`](super::ModelQueue).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ModelEvent<'a> {
    /// A row of a request arrives. The queue ends it at once if there is no room. The candidate
    /// stays as it was: a [`ModelEvent::Settle`] is owed before the time changes or another event
    /// comes, once for all rows that came.
    Enqueue(&'a Request),
    /// A client cancels the request of this first row: all its rows that wait end. If there were
    /// any, a [`ModelEvent::Settle`] is owed.
    Cancel(&'a Request),
    /// All requests of this instant are enqueued or cancelled: the batch is selected anew.
    Settle,
    /// The time of [`ModelQueue::next_timer`](super::ModelQueue::next_timer) has come.
    Timer,
    /// The RankThread has granted a GPU.
    Grant(Grant),
    /// The rule's setting is another one from now on.
    Set(RuleSetting),
    /// Batches take other times from now on: the profile of the queue's configuration, scaled.
    Rescale(&'a ScaledProfile),
    /// The network has other delays from now on.
    Delays(Network),
    /// A lower class has requests: a queue of the highest class sends reservations from now on.
    StartReserving,
    /// The engine stops: every request that waits ends.
    Stop,
}
