//! A wire: two rings in place of one, between whose inner ends the simulation carries the messages,
//! at once or late, and some of them twice or never. What was published together stays together and
//! in its order, as in a ring.

use super::passage::Passage;
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
impl WireMessage for crate::runtime::threads::completions::NumberedCompletion {}
impl WireMessage for crate::runtime::threads::RankMessage {}
impl WireMessage for crate::runtime::threads::GrantMessage {}

/// The two inner ends. See the module's description.
pub(super) struct Wire<T: WireMessage> {
    pub(super) from: Consumer<T>,
    pub(super) to: Producer<T>,
    /// The time before which nothing is carried.
    pub(super) held_until: Nanos,
    /// The messages that arrive later, with their times, and whether they arrive for a second time.
    kept: Vec<(Nanos, bool, T)>,
    /// The number of messages that have arrived for a second time.
    pub(super) copies: u64,
}

impl<T: WireMessage> Wire<T> {
    /// Puts a wire before the receiving end of a ring.
    pub(super) fn before(end: &mut Consumer<T>) -> Wire<T> {
        let (to, received) = ring(end.capacity());
        Wire::between(std::mem::replace(end, received), to)
    }

    /// Puts a wire behind the sending end of a ring.
    pub(super) fn behind(end: &mut Producer<T>) -> Wire<T> {
        let (sent, from) = ring(end.capacity());
        Wire::between(from, std::mem::replace(end, sent))
    }

    /// Puts a wire in place of a ring, and gives either half of it this capacity.
    pub(super) fn in_place_of(
        sender: &mut Producer<T>,
        receiver: &mut Consumer<T>,
        capacity: usize,
    ) -> Wire<T> {
        let ((sent, from), (to, received)) = (ring(capacity), ring(capacity));
        (*sender, *receiver) = (sent, received);
        Wire::between(from, to)
    }

    fn between(from: Consumer<T>, to: Producer<T>) -> Wire<T> {
        Wire { from, to, held_until: Nanos::ZERO, kept: Vec::new(), copies: 0 }
    }

    /// Carries what has come and there is room for, unless it is held.
    #[inline]
    pub(super) fn carry(&mut self, now: Nanos) {
        self.carry_each(now, |_| Passage::Once);
    }

    /// Carries as [`Wire::carry`] does; `pass` says what becomes of each message.
    #[inline]
    pub(super) fn carry_each(&mut self, now: Nanos, mut pass: impl FnMut(&mut T) -> Passage) {
        if now < self.held_until {
            return;
        }
        if !self.kept.is_empty() {
            self.carry_kept(now);
        }
        while let Some(first) = self.from.peek() {
            let together = first.together();
            if !self.to.has_room(together) {
                break;
            }
            for _ in 0..together {
                let Some(mut message) = self.from.pop() else { break };
                let passage = pass(&mut message);
                if matches!(passage, Passage::Once | Passage::Twice(_)) {
                    // Room was checked.
                    let _ = self.to.write(message);
                }
                match passage {
                    Passage::Twice(at) => self.kept.push((at, true, message)),
                    Passage::Later(at) => self.kept.push((at, false, message)),
                    Passage::Once | Passage::Never => {}
                }
            }
        }
        self.to.publish();
    }

    /// Carries what was kept and whose time has come, in its order, as far as there is room.
    #[cold]
    fn carry_kept(&mut self, now: Nanos) {
        let Wire { kept, to, copies, .. } = self;
        kept.retain(|&(at, again, message)| {
            let stays = at > now || to.write(message).is_err();
            *copies += u64::from(again && !stays);
            stays
        });
    }
}
