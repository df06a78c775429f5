//! Changes to the table of a running thread: how the control thread sends it a new queue or a
//! loaded model and gets the old one back. Two rings, one each way, connect the [`ChangeSender`]
//! and the [`ChangeReceiver`]. The values are made and freed by the control thread; the other one
//! swaps them into its table. So a change costs that thread no allocation and no lock, and while
//! there is none, a comparison a duty cycle.

use rtrb::{Consumer, Producer, RingBuffer};
use symphony_transport::Nanos;

/// The most changes to one thread that are under way.
const UNDER_WAY: usize = 4;

/// The interval at which a thread polls for changes.
const LOOK_EVERY: Nanos = Nanos::from_millis(1);

/// A new value for an entry of a table; on its way back, the old value.
pub(crate) struct Change<T> {
    pub(crate) place: usize,
    pub(crate) thing: T,
}

/// The control thread's end.
pub(crate) struct Giver<T> {
    out: Producer<Change<T>>,
    back: Consumer<Change<T>>,
    under_way: usize,
}

/// The end of the thread that owns the table.
pub struct Taker<T> {
    changes: Consumer<Change<T>>,
    done: Producer<Change<T>>,
    look_at: Nanos,
}

/// Makes both ends, with no change under way.
pub(crate) fn changes<T>() -> (Giver<T>, Taker<T>) {
    let (out, changes) = RingBuffer::new(UNDER_WAY);
    let (done, back) = RingBuffer::new(UNDER_WAY);
    (Giver { out, back, under_way: 0 }, Taker { changes, done, look_at: Nanos::ZERO })
}

impl<T> Giver<T> {
    /// Sends `value` for the entry at `index`; returns it if too many changes are under way.
    pub(crate) fn give(&mut self, place: usize, thing: T) -> Result<(), T> {
        if self.under_way == UNDER_WAY {
            return Err(thing);
        }
        match self.out.push(Change { place, thing }) {
            Ok(()) => {
                self.under_way += 1;
                Ok(())
            }
            Err(rtrb::PushError::Full(change)) => Err(change.thing),
        }
    }

    /// Returns the old value of a change that was applied.
    pub(crate) fn take_back(&mut self) -> Option<Change<T>> {
        let change = self.back.pop().ok()?;
        self.under_way -= 1;
        Some(change)
    }

    /// Returns true if the other thread has ended and applies no more changes.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.out.is_abandoned()
    }
}

impl<T> Taker<T> {
    /// The most changes that are applied at once.
    pub(crate) const MOST: usize = UNDER_WAY;

    /// Calls `swap` for each change that has come, which must swap its value with that in the
    /// table. Polls once per [`POLL_INTERVAL`] only. Returns the number of changes.
    #[inline]
    pub(crate) fn take(&mut self, now: Nanos, swap: impl FnMut(&mut Change<T>)) -> usize {
        if now < self.look_at {
            return 0;
        }
        self.look(now, swap)
    }

    #[cold]
    fn look(&mut self, now: Nanos, mut swap: impl FnMut(&mut Change<T>)) -> usize {
        self.look_at = now + LOOK_EVERY;
        let mut taken = 0;
        while let Ok(mut change) = self.changes.pop() {
            swap(&mut change);
            let sent = self.done.push(change);
            debug_assert!(sent.is_ok(), "as much comes back as was given");
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
        let (mut giver, mut taker) = changes();
        let mut table = vec![Box::new(0); 8];
        for place in 0..UNDER_WAY {
            giver.give(place, Box::new(place + 10)).unwrap();
        }
        assert_eq!(giver.give(7, Box::new(17)), Err(Box::new(17)));
        let swap =
            |change: &mut Change<Box<usize>>| std::mem::swap(&mut table[change.place], &mut change.thing);
        assert_eq!(taker.take(Nanos(1), swap), UNDER_WAY);
        assert_eq!(giver.take_back().map(|change| (change.place, *change.thing)), Some((0, 0)));
        giver.give(7, Box::new(17)).unwrap();
        let mut swap =
            |change: &mut Change<Box<usize>>| std::mem::swap(&mut table[change.place], &mut change.thing);
        assert_eq!(taker.take(Nanos(2), &mut swap), 0, "it has just looked");
        assert_eq!(taker.take(Nanos(1) + LOOK_EVERY, &mut swap), 1);
        assert_eq!(table.iter().map(|thing| **thing).collect::<Vec<_>>(), [10, 11, 12, 13, 0, 0, 0, 17]);
        drop(taker);
        assert!(giver.is_abandoned());
    }
}
