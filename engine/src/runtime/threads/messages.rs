//! The messages between ModelThreads and the RankThread: plain data of half a cache line, made from
//! and turned back into the inputs of [`RankState`](symphony_scheduler::rank::RankState) and
//! [`ModelQueue`](symphony_scheduler::model::ModelQueue).

use crate::recorder::Record;
use bytemuck::{Pod, Zeroable};
use symphony_scheduler::rank::{Grant, RankInput};
use symphony_transport::Nanos;
use symphony_transport::message::{GpuId, QueueId};

/// A message from a ModelThread to the RankThread: an input of its matching, as a recording has it.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct RankMessage(Record);

impl From<RankInput> for RankMessage {
    #[inline(always)]
    fn from(input: RankInput) -> RankMessage {
        RankMessage(input.into())
    }
}

impl RankMessage {
    /// Returns the queue that the message is about, where it is about one.
    #[inline]
    pub(crate) fn queue(self) -> QueueId {
        self.0.queue()
    }

    /// Returns the input that the message was made of.
    #[inline]
    pub(crate) fn input(self) -> RankInput {
        let input = self.0.as_rank_input();
        debug_assert!(input.is_some(), "a message is made of an input");
        input.unwrap_or(RankInput::Withdraw(self.queue()))
    }
}

/// A message from the RankThread to a ModelThread: a [`Grant`], or the order to send reservations
/// from now on.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct GrantMessage {
    queue: QueueId,
    gpu: GpuId,
    free_at: Nanos,
    until: Nanos,
    /// [`Grant::again`], as a number.
    again: u64,
}

impl GrantMessage {
    /// The queue of the order to send reservations, which no queue has.
    const START_RESERVING: QueueId = QueueId(u32::MAX);

    /// Makes the order that the thread's queues of the highest class send reservations.
    pub(crate) fn start_reserving() -> GrantMessage {
        GrantMessage { queue: GrantMessage::START_RESERVING, ..GrantMessage::default() }
    }

    /// Returns true if the message is that order and not a grant.
    #[inline]
    pub(crate) fn is_start_reserving(&self) -> bool {
        self.queue == GrantMessage::START_RESERVING
    }
}

impl From<Grant> for GrantMessage {
    fn from(grant: Grant) -> GrantMessage {
        let Grant { queue, gpu, free_at, until, again } = grant;
        GrantMessage { queue, gpu, free_at, until, again: u64::from(again) }
    }
}

impl From<GrantMessage> for Grant {
    fn from(message: GrantMessage) -> Grant {
        let GrantMessage { queue, gpu, free_at, until, again } = message;
        Grant { queue, gpu, free_at, until, again: again != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::rank::GpuReport;

    #[test]
    fn messages_survive_the_ring() {
        let report = GpuReport { queue: QueueId(7), gpu: GpuId(65_535), exec_at: None, free_at: Nanos(13) };
        assert_eq!(RankMessage::from(RankInput::Report(report)).input(), RankInput::Report(report));
        let grant =
            Grant { queue: QueueId(7), gpu: GpuId(3), free_at: Nanos(11), until: Nanos(13), again: true };
        let message = GrantMessage::from(grant);
        assert!(Grant::from(message) == grant && !message.is_start_reserving());
        assert!(GrantMessage::start_reserving().is_start_reserving());
    }
}
