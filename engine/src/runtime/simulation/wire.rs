//! A wire: two rings in place of one, between whose inner ends the simulation carries the messages,
//! at once or late. What was published together stays together and in its order, as in a ring.

use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Frame, Request, Response};
use symphony_transport::ring::{Consumer, Producer, ring};

/// A message that wires carry.
pub(super) trait WireMessage: bytemuck::Pod {
    /// Returns the number of messages, this one included, that were published with this one, the
    /// first of them.
    fn together(&self) -> usize {
        1
    }
}

impl WireMessage for Request {
    fn together(&self) -> usize {
        if self.takes_back == 0 { usize::from(self.rows_after) + 1 } else { 1 }
    }
}

impl WireMessage for Frame {
    fn together(&self) -> usize {
        BatchHeader::frames(BatchHeader::from(*self).size as usize)
    }
}

impl WireMessage for Response {}
impl WireMessage for symphony_transport::message::Completion {}
impl WireMessage for crate::runtime::threads::RankMessage {}
impl WireMessage for crate::runtime::threads::GrantMessage {}

/// The two inner ends. See the module's description.
pub(super) struct Wire<T: WireMessage> {
    pub(super) from: Consumer<T>,
    pub(super) to: Producer<T>,
    /// The time before which nothing is carried.
    pub(super) held_until: Nanos,
}

impl<T: WireMessage> Wire<T> {
    /// Puts a wire before the receiving end of a ring.
    pub(super) fn before(end: &mut Consumer<T>) -> Wire<T> {
        let (to, received) = ring(end.capacity());
        Wire { from: std::mem::replace(end, received), to, held_until: Nanos::ZERO }
    }

    /// Puts a wire behind the sending end of a ring.
    pub(super) fn behind(end: &mut Producer<T>) -> Wire<T> {
        let (sent, from) = ring(end.capacity());
        Wire { from, to: std::mem::replace(end, sent), held_until: Nanos::ZERO }
    }

    /// Puts a wire in place of a ring, and gives either half of it this capacity.
    pub(super) fn in_place_of(
        sender: &mut Producer<T>,
        receiver: &mut Consumer<T>,
        capacity: usize,
    ) -> Wire<T> {
        let ((sent, from), (to, received)) = (ring(capacity), ring(capacity));
        (*sender, *receiver) = (sent, received);
        Wire { from, to, held_until: Nanos::ZERO }
    }

    /// Carries what has come and there is room for, unless it is held.
    #[inline]
    pub(super) fn carry(&mut self, now: Nanos) {
        self.carry_each(now, |message, to| {
            // Room was checked.
            let _ = to.write(*message);
        });
    }

    /// Carries as [`Wire::carry`] does; `pass` writes each message.
    #[inline]
    pub(super) fn carry_each(&mut self, now: Nanos, mut pass: impl FnMut(&mut T, &mut Producer<T>)) {
        if now < self.held_until {
            return;
        }
        while let Some(first) = self.from.peek() {
            let together = first.together();
            if !self.to.has_room(together) {
                break;
            }
            for _ in 0..together {
                let Some(mut message) = self.from.pop() else { break };
                pass(&mut message, &mut self.to);
            }
        }
        self.to.publish();
    }
}
