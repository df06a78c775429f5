//! Back-pressure by credits: what a receiver has room for is granted as a total since the
//! handshake, so that a repeated or a late grant changes nothing.

use crate::wire::Payload;

/// Returns the credits that a frame takes: one for each record that the receiver has to keep.
pub(super) fn price(payload: &Payload<'_>) -> u64 {
    let records = match payload {
        Payload::Requests(records) => records.len(),
        Payload::Responses(records) => records.len(),
        Payload::Completions(records) => records.len(),
        Payload::Gpus(records) => records.len(),
        Payload::Batch(_, entries) => entries.len(),
        Payload::TensorRead(_) | Payload::TensorData(..) | Payload::TensorWrite(..) => 1,
        _ => 0,
    };
    records as u64
}

/// The credits that the peer has granted to this side.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct SendCredits {
    total: u64,
    sent: u64,
}

impl SendCredits {
    /// Begins with the credits of the peer's `Hello`.
    pub(super) fn new(first: u32) -> SendCredits {
        SendCredits { total: first.into(), sent: 0 }
    }

    pub(super) fn on_grant(&mut self, total: u64) {
        self.total = self.total.max(total);
    }

    pub(super) fn left(&self) -> u64 {
        self.total - self.sent
    }

    /// Takes credits, if there are as many.
    pub(super) fn take(&mut self, credits: u64) -> bool {
        let has = credits <= self.left();
        self.sent += if has { credits } else { 0 };
        has
    }
}

/// The credits that this side has granted to the peer.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct ReceiveCredits {
    /// Records for which there is room at a time.
    window: u64,
    received: u64,
    consumed: u64,
    /// The total that the peer was told.
    granted: u64,
}

impl ReceiveCredits {
    pub(super) fn new(window: u32) -> ReceiveCredits {
        let window = window.into();
        ReceiveCredits { window, granted: window, ..ReceiveCredits::default() }
    }

    /// Notes that records came. False if they are more than were granted.
    pub(super) fn receive(&mut self, records: u64) -> bool {
        let may = records <= self.granted - self.received;
        self.received += if may { records } else { 0 };
        may
    }

    /// Notes that the consumer has room again for so many of the records that came.
    pub(super) fn consume(&mut self, records: u64) {
        self.consumed = (self.consumed + records).min(self.received);
    }

    /// Returns the total to tell the peer, once that is worth a frame: half of the window. So once
    /// all that came is consumed, the peer has credits for more than the other half.
    pub(super) fn due(&self) -> Option<u64> {
        let total = self.consumed + self.window;
        (total - self.granted >= self.window.div_ceil(2).max(1)).then_some(total)
    }

    pub(super) fn told(&mut self, total: u64) {
        self.granted = total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_half_the_window_finds_credits_whenever_all_is_consumed() {
        for window in 2..40_u32 {
            let (mut sender, mut receiver) = (SendCredits::new(window), ReceiveCredits::new(window));
            for sent in (0..200_u64).map(|at| 1 + at * at % u64::from(window / 2)) {
                assert!(sender.left() >= u64::from(window / 2), "window {window}: {sender:?}");
                assert!(sender.take(sent) && receiver.receive(sent));
                receiver.consume(sent);
                if let Some(total) = receiver.due() {
                    receiver.told(total);
                    sender.on_grant(total);
                }
            }
        }
    }

    #[test]
    fn a_repeated_or_late_grant_changes_nothing() {
        let mut sender = SendCredits::new(4);
        assert!(sender.take(4) && !sender.take(1));
        [6, 6, 5].into_iter().for_each(|total| sender.on_grant(total));
        assert_eq!(sender.left(), 2);
    }
}
