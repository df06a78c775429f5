//! Changes to the table of a running thread: how the control thread sends it a new queue or a
//! loaded model and gets the old one back. Two rings, one each way, connect the [`ChangeSender`]
//! and the [`ChangeReceiver`]. The values are made and freed by the control thread; the other one
//! swaps them into its table. So a change costs that thread no allocation and no lock, and while
//! there is none, a comparison a duty cycle.

use crate::runtime::full_ring::AlwaysRoom;
use rtrb::{Consumer, Producer, RingBuffer};
use symphony_transport::Nanos;

/// The most changes to one thread that are under way.
const MAX_UNDER_WAY: usize = 4;

/// The interval at which a thread polls for changes.
const POLL_INTERVAL: Nanos = Nanos::from_millis(1);

/// A new value for an entry of a table; on its way back, the old value.
pub(crate) struct Change<T> {
    pub(crate) index: usize,
    pub(crate) value: T,
}

/// The control thread's end.
pub(crate) struct ChangeSender<T> {
    out: Producer<Change<T>>,
    back: Consumer<Change<T>>,
    under_way: usize,
}

/// The end of the thread that owns the table.
pub struct ChangeReceiver<T> {
    changes: Consumer<Change<T>>,
    done: Producer<Change<T>>,
    poll_at: Nanos,
}

/// Makes both ends, with no change under way.
pub(crate) fn changes<T>() -> (ChangeSender<T>, ChangeReceiver<T>) {
    let (out, changes) = RingBuffer::new(MAX_UNDER_WAY);
    let (done, back) = RingBuffer::new(MAX_UNDER_WAY);
    (ChangeSender { out, back, under_way: 0 }, ChangeReceiver { changes, done, poll_at: Nanos::ZERO })
}

impl<T> ChangeSender<T> {
    /// Sends `value` for the entry at `index`; returns it if too many changes are under way.
    pub(crate) fn send(&mut self, index: usize, value: T) -> Result<(), T> {
        if self.under_way == MAX_UNDER_WAY {
            return Err(value);
        }
        match self.out.push(Change { index, value }) {
            Ok(()) => {
                self.under_way += 1;
                Ok(())
            }
            Err(rtrb::PushError::Full(change)) => Err(change.value),
        }
    }

    /// Returns the old value of a change that was applied.
    pub(crate) fn take_old(&mut self) -> Option<Change<T>> {
        let change = self.back.pop().ok()?;
        self.under_way -= 1;
        Some(change)
    }

    /// Returns true if the other thread has ended and applies no more changes.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.out.is_abandoned()
    }
}

impl<T> ChangeReceiver<T> {
    /// The most changes that are applied at once.
    pub(crate) const MOST: usize = MAX_UNDER_WAY;

    /// Returns true if it is time to poll.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        now >= self.poll_at
    }

    /// Calls `swap` for each change that has come, which must swap its value with that in the
    /// table. Polls once per [`POLL_INTERVAL`] only. Returns the number of changes.
    #[inline]
    pub(crate) fn take(&mut self, now: Nanos, swap: impl FnMut(&mut Change<T>)) -> usize {
        if now < self.poll_at {
            return 0;
        }
        self.poll(now, swap)
    }

    #[cold]
    fn poll(&mut self, now: Nanos, mut swap: impl FnMut(&mut Change<T>)) -> usize {
        self.poll_at = now + POLL_INTERVAL;
        let mut taken = 0;
        while let Ok(mut change) = self.changes.pop() {
            swap(&mut change);
            self.done.push(change).always_has_room("an old value: no more come back than were sent");
            taken += 1;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_comes_back_and_no_more_is_under_way_than_fits() {
        let (mut sender, mut receiver) = changes();
        let mut table = vec![Box::new(0); 8];
        for index in 0..MAX_UNDER_WAY {
            sender.send(index, Box::new(index + 10)).unwrap();
        }
        assert_eq!(sender.send(7, Box::new(17)), Err(Box::new(17)));
        let swap =
            |change: &mut Change<Box<usize>>| std::mem::swap(&mut table[change.index], &mut change.value);
        assert_eq!(receiver.take(Nanos(1), swap), MAX_UNDER_WAY);
        assert_eq!(sender.take_old().map(|change| (change.index, *change.value)), Some((0, 0)));
        sender.send(7, Box::new(17)).unwrap();
        let mut swap =
            |change: &mut Change<Box<usize>>| std::mem::swap(&mut table[change.index], &mut change.value);
        assert_eq!(receiver.take(Nanos(2), &mut swap), 0, "it has just polled");
        assert_eq!(receiver.take(Nanos(1) + POLL_INTERVAL, &mut swap), 1);
        assert_eq!(table.iter().map(|value| **value).collect::<Vec<_>>(), [10, 11, 12, 13, 0, 0, 0, 17]);
        drop(receiver);
        assert!(sender.is_abandoned());
    }
}
