//! A hierarchical timing wheel with one timer per key: a ModelThread's frontrun and latest timers,
//! the RankThread's busy GPUs, an emulated device's running batches. It is owned by one
//! thread and driven by [`Wheel::pop_expired`] with the `now` of the caller's duty cycle; it never
//! reads a clock.
//!
//! ```
//! use symphony_transport::{Nanos, wheel::Wheel};
//!
//! let mut wheel = Wheel::new(3, Nanos::ZERO);
//! wheel.set(0, Nanos::from_millis(5));
//! wheel.set(1, Nanos::from_millis(2));
//! wheel.set(2, Nanos::from_millis(1));
//! wheel.cancel(2);
//! assert_eq!(wheel.pop_expired(Nanos::from_millis(1)), None);
//!
//! let now = Nanos::from_millis(9);
//! while let Some((key, at)) = wheel.pop_expired(now) {
//!     if key == 1 && at == Nanos::from_millis(2) {
//!         wheel.set(1, now + Nanos::from_millis(2)); // a timer may be set between two pops
//!     }
//! }
//! assert_eq!(wheel.next(), Some(Nanos::from_millis(11)));
//! ```
//!
//! # Guarantees
//!
//! - A timer is returned by the first [`Wheel::pop_expired`] loop whose `now` is not before its
//!   time: never early, and late only by as much as the caller is.
//! - The timers that one `now` has expired are returned in order of (time, key), whatever the order
//!   in which they were set.
//! - `set` and `cancel` take constant time; `cancel` of a timer that is due within the current tick
//!   takes amortised logarithmic time. Time without timers costs nothing to pass, however long.
//!   Nothing allocates after `new`.
//!
//! # Algorithm
//!
//! An instant is cut into ticks of 1,024 ns, a tick's number into nine digits of six bits. A timer
//! lies on the level of the highest digit in which its tick differs from the current tick, in the
//! slot that this digit names (Varghese and Lauck's scheme 7, with the digits compared instead of
//! the distance). So all of a level is earlier than all of the next, and the first occupied slot of
//! the lowest occupied level holds the earliest timer. Slots are doubly linked lists through the
//! timers. Timers whose tick has come leave the slots for a pairing heap, which gives them in exact
//! order; it is as small as what falls due in a tick.

use crate::Nanos;

/// A tick is 2^10 ns: about a microsecond.
const TICK_BITS: u32 = 10;
/// A level has 2^6 slots, so that the bits of one `u64` show which are occupied.
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Enough digits for every tick of a u64 of nanoseconds.
const LEVELS: usize = (u64::BITS - TICK_BITS).div_ceil(DIGIT_BITS) as usize;

/// No key: the end of a list.
const NONE: u32 = u32::MAX;
/// The timer is not armed.
const NOT_ARMED: u32 = u32::MAX;
/// The timer is in the heap.
const DUE: u32 = u32::MAX - 1;

#[derive(Clone, Copy)]
struct Timer {
    at: Nanos,
    /// The list that it is in: `level * SLOTS + slot`, [`DUE`] or [`NOT_ARMED`].
    list: u32,
    /// The next of the slot's list; in the heap, the next sibling.
    next: u32,
    /// The previous of the slot's list; in the heap, the previous sibling, or the parent of a first
    /// child.
    prev: u32,
    /// The first child in the heap.
    child: u32,
}

#[derive(Clone, Copy)]
struct WheelSlot {
    /// The first timer of its list.
    first: u32,
    /// A lower bound of the list's times: the earliest timer's, unless that one was cancelled.
    earliest: Nanos,
}

/// A set of timers, one per key below a fixed number of keys. The [module](self) states its
/// guarantees.
pub struct Wheel {
    timers: Box<[Timer]>,
    slots: Box<[WheelSlot]>,
    /// The occupied slots of each level, as bits.
    occupied: [u64; LEVELS],
    /// The levels with an occupied slot, as bits.
    levels: u32,
    /// The tick up to which slots have been emptied.
    tick: u64,
    /// The heap's root: the earliest of the timers whose tick has come.
    due: u32,
}

impl Wheel {
    /// Makes a wheel for the keys `0..keys`, none of them armed, that starts at `now`.
    ///
    /// # Panics
    ///
    /// Where `keys` is 2^32 - 1 or more.
    pub fn new(keys: usize, now: Nanos) -> Wheel {
        assert!(keys < NONE as usize, "a wheel has fewer than 2^32 - 1 keys, not {keys}");
        let idle = Timer { at: Nanos::MAX, list: NOT_ARMED, next: NONE, prev: NONE, child: NONE };
        let empty = WheelSlot { first: NONE, earliest: Nanos::MAX };
        Wheel {
            timers: vec![idle; keys].into_boxed_slice(),
            slots: vec![empty; LEVELS * SLOTS].into_boxed_slice(),
            occupied: [0; LEVELS],
            levels: 0,
            tick: tick_of(now),
            due: NONE,
        }
    }

    /// Arms `key`'s timer for `at`, instead of the time it was armed for. An `at` in the past
    /// expires at the next [`pop_expired`](Wheel::pop_expired); [`Nanos::MAX`] cancels.
    ///
    /// # Panics
    ///
    /// Where `key` is not below the wheel's number of keys.
    #[inline]
    pub fn set(&mut self, key: usize, at: Nanos) {
        if at == Nanos::MAX {
            return self.cancel(key);
        }
        let old = self.timers[key].list;
        let new = self.list_of(at);
        if old == new && old != DUE {
            // Re-armed within its slot, as timers pushed on by a little mostly are: it can stay in
            // its list.
            self.timers[key].at = at;
            let slot = &mut self.slots[new as usize];
            slot.earliest = slot.earliest.min(at);
            return;
        }
        self.unlink(key as u32);
        self.timers[key].at = at;
        self.link(key as u32, new);
    }

    /// Disarms `key`'s timer, if it is armed.
    ///
    /// # Panics
    ///
    /// Where `key` is not below the wheel's number of keys.
    #[inline]
    pub fn cancel(&mut self, key: usize) {
        self.unlink(key as u32);
    }

    /// Returns the time at which `key`'s timer expires; `None` where it is not armed.
    ///
    /// # Panics
    ///
    /// Where `key` is not below the wheel's number of keys.
    pub fn armed(&self, key: usize) -> Option<Nanos> {
        let timer = &self.timers[key];
        (timer.list != NOT_ARMED).then_some(timer.at)
    }

    /// Disarms the earliest timer whose time is not after `now`, the lowest key first among equals,
    /// and returns its key and time; `None` when there is none left. Call it until then, in every
    /// duty cycle.
    ///
    /// Timers may be set and cancelled between two calls. One that is set to an instant not after
    /// `now` comes out of the same loop, so a caller that always does that never leaves it.
    #[inline]
    pub fn pop_expired(&mut self, now: Nanos) -> Option<(usize, Nanos)> {
        if tick_of(now) > self.tick {
            self.advance(tick_of(now));
        }
        if self.due == NONE || self.timers[self.due as usize].at > now {
            return None;
        }
        let key = self.due as usize;
        self.unlink(self.due);
        Some((key, self.timers[key].at))
    }

    /// Returns an instant until which the caller may sleep: no armed timer is before it. `None`
    /// where none is armed.
    ///
    /// It is the earliest timer's own time, unless a timer close before that was cancelled or moved
    /// since. A caller that then wakes up too early gets the earliest timer's own time from its
    /// next call.
    #[inline]
    pub fn next(&self) -> Option<Nanos> {
        if self.due != NONE {
            return Some(self.timers[self.due as usize].at);
        }
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let slot = self.occupied[level].trailing_zeros() as usize;
        Some(self.slots[level * SLOTS + slot].earliest)
    }

    /// Returns the list that a timer for `at` belongs to as of the current tick.
    #[inline]
    fn list_of(&self, at: Nanos) -> u32 {
        let tick = tick_of(at);
        if tick <= self.tick {
            return DUE;
        }
        let level = (tick ^ self.tick).ilog2() / DIGIT_BITS;
        level * SLOTS as u32 + digit(tick, level)
    }

    /// Makes `to` the current tick: each timer of a slot that begins by then moves to the heap or
    /// to a lower level, once, however many ticks are passed.
    fn advance(&mut self, to: u64) {
        let from = std::mem::replace(&mut self.tick, to);
        let mut levels = self.levels;
        while levels != 0 {
            let level = levels.trailing_zeros();
            levels &= levels - 1;
            let mut begun = self.occupied[level as usize] & begun(from, to, level);
            if begun == 0 {
                return; // and higher levels begin later still
            }
            while begun != 0 {
                self.empty_slot(level, begun.trailing_zeros());
                begun &= begun - 1;
            }
        }
    }

    /// Moves a slot's timers to the lists that they belong to as of the current tick.
    fn empty_slot(&mut self, level: u32, slot: u32) {
        let index = level as usize * SLOTS + slot as usize;
        let mut key = std::mem::replace(&mut self.slots[index].first, NONE);
        self.clear_occupied(level, slot);
        while key != NONE {
            let timer = self.timers[key as usize];
            self.link(key, self.list_of(timer.at));
            key = timer.next;
        }
    }

    fn clear_occupied(&mut self, level: u32, slot: u32) {
        let occupied = &mut self.occupied[level as usize];
        *occupied &= !(1 << slot);
        if *occupied == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// Puts a timer that is in no list into `list`, which may be the heap.
    #[inline]
    fn link(&mut self, key: u32, list: u32) {
        let timer = &mut self.timers[key as usize];
        timer.list = list;
        timer.prev = NONE;
        timer.next = NONE;
        if list == DUE {
            timer.child = NONE;
            self.due = self.meld(self.due, key);
            return;
        }
        let at = timer.at;
        let slot = &mut self.slots[list as usize];
        let second = std::mem::replace(&mut slot.first, key);
        if second == NONE {
            slot.earliest = at;
            let (level, slot) = (list / SLOTS as u32, list % SLOTS as u32);
            self.occupied[level as usize] |= 1 << slot;
            self.levels |= 1 << level;
        } else {
            slot.earliest = slot.earliest.min(at);
            self.timers[key as usize].next = second;
            self.timers[second as usize].prev = key;
        }
    }

    /// Takes a timer out of its list or the heap, if it is armed.
    #[inline]
    fn unlink(&mut self, key: u32) {
        let timer = &mut self.timers[key as usize];
        let Timer { list, next, prev, .. } = *timer;
        timer.list = NOT_ARMED;
        match list {
            NOT_ARMED => {}
            DUE => self.leave_heap(key),
            slot => {
                if next != NONE {
                    self.timers[next as usize].prev = prev;
                }
                if prev != NONE {
                    self.timers[prev as usize].next = next;
                } else {
                    self.slots[slot as usize].first = next;
                    if next == NONE {
                        self.clear_occupied(slot / SLOTS as u32, slot % SLOTS as u32);
                    }
                }
            }
        }
    }

    /// Takes a timer out of the heap; its children stay in.
    fn leave_heap(&mut self, key: u32) {
        let Timer { next, prev, child, .. } = self.timers[key as usize];
        let orphans = self.meld_siblings(child);
        if key == self.due {
            self.due = orphans;
            return;
        }
        if next != NONE {
            self.timers[next as usize].prev = prev;
        }
        let before = &mut self.timers[prev as usize];
        if before.child == key {
            before.child = next;
        } else {
            before.next = next;
        }
        self.due = self.meld(self.due, orphans);
    }

    /// Makes one heap of two, given and returned by their roots: the earlier root becomes the
    /// other's parent.
    #[inline]
    fn meld(&mut self, a: u32, b: u32) -> u32 {
        if a == NONE {
            return b;
        }
        if b == NONE {
            return a;
        }
        let order = |key: u32| (self.timers[key as usize].at, key);
        let (parent, child) = if order(a) < order(b) { (a, b) } else { (b, a) };
        let sibling = std::mem::replace(&mut self.timers[parent as usize].child, child);
        if sibling != NONE {
            self.timers[sibling as usize].prev = child;
        }
        let node = &mut self.timers[child as usize];
        node.prev = parent;
        node.next = sibling;
        parent
    }

    /// Makes one heap of a list of siblings, in the two passes of Fredman et al., "The pairing
    /// heap": pairs from the left, then all pairs from the right.
    fn meld_siblings(&mut self, mut first: u32) -> u32 {
        let mut pairs = NONE;
        while first != NONE {
            let second = self.cut(first);
            let rest = if second == NONE { NONE } else { self.cut(second) };
            let pair = self.meld(first, second);
            self.timers[pair as usize].next = pairs;
            pairs = pair;
            first = rest;
        }
        let mut root = NONE;
        while pairs != NONE {
            let rest = self.cut(pairs);
            root = self.meld(root, pairs);
            pairs = rest;
        }
        root
    }

    /// Makes a node of a list of siblings a root of its own; returns the rest of the list.
    fn cut(&mut self, key: u32) -> u32 {
        let node = &mut self.timers[key as usize];
        node.prev = NONE;
        std::mem::replace(&mut node.next, NONE)
    }
}

fn tick_of(at: Nanos) -> u64 {
    at.0 >> TICK_BITS
}

fn digit(tick: u64, level: u32) -> u32 {
    (tick >> (level * DIGIT_BITS)) as u32 % SLOTS as u32
}

/// Returns the slots of `level` that, as of tick `from`, lie ahead and have begun by tick `to`.
/// Slots already behind `from` are empty, so their bits may be set too.
fn begun(from: u64, to: u64, level: u32) -> u64 {
    let above = (level + 1) * DIGIT_BITS;
    // A level's slots share the digits above it with `from`: once these have changed, all slots of
    // the level have begun.
    if from >> above != to >> above {
        return u64::MAX;
    }
    u64::MAX >> (SLOTS as u32 - 1 - digit(to, level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn expired(wheel: &mut Wheel, now: Nanos) -> Vec<(usize, Nanos)> {
        std::iter::from_fn(|| wheel.pop_expired(now)).collect()
    }

    #[test]
    fn a_timer_expires_at_its_nanosecond_and_not_before() {
        for at in [0, 1, 1023, 1024, 65_536, 1 << 30, 1 << 62, u64::MAX - 1].map(Nanos) {
            let mut wheel = Wheel::new(1, Nanos::ZERO);
            wheel.set(0, at);
            assert_eq!((wheel.armed(0), wheel.next()), (Some(at), Some(at)));
            if at > Nanos::ZERO {
                assert_eq!(expired(&mut wheel, at - Nanos(1)), []);
            }
            assert_eq!(expired(&mut wheel, at), [(0, at)]);
            assert_eq!((wheel.armed(0), wheel.next()), (None, None));
        }
    }

    #[test]
    fn a_timer_set_in_the_past_expires_at_once() {
        let mut wheel = Wheel::new(2, Nanos::from_secs(1));
        wheel.set(1, Nanos::ZERO);
        wheel.set(0, Nanos::from_millis(999));
        let now = Nanos::from_secs(1);
        assert_eq!(expired(&mut wheel, now), [(1, Nanos::ZERO), (0, Nanos::from_millis(999))]);
    }

    #[test]
    fn equal_times_expire_in_order_of_their_keys() {
        let mut wheel = Wheel::new(100, Nanos::ZERO);
        let at = Nanos::from_millis(3);
        (0..100).rev().for_each(|key| wheel.set(key, at));
        let keys: Vec<_> = expired(&mut wheel, at).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn setting_again_moves_a_timer_both_ways() {
        let mut wheel = Wheel::new(1, Nanos::ZERO);
        wheel.set(0, Nanos::from_millis(5));
        wheel.set(0, Nanos::from_secs(5));
        assert_eq!(expired(&mut wheel, Nanos::from_secs(1)), []);
        wheel.set(0, Nanos::from_secs(2));
        assert_eq!(expired(&mut wheel, Nanos::from_secs(9)), [(0, Nanos::from_secs(2))]);
    }

    #[test]
    fn never_is_cancelled() {
        let mut wheel = Wheel::new(2, Nanos::ZERO);
        wheel.set(0, Nanos(77));
        wheel.set(0, Nanos::MAX);
        wheel.set(1, Nanos::MAX);
        wheel.cancel(1);
        assert_eq!((wheel.armed(0), wheel.armed(1), wheel.next()), (None, None, None));
        assert_eq!(expired(&mut wheel, Nanos::MAX), []);
    }

    #[test]
    fn a_clock_that_steps_back_expires_nothing_early() {
        let mut wheel = Wheel::new(1, Nanos::ZERO);
        assert_eq!(expired(&mut wheel, Nanos::from_secs(1)), []);
        wheel.set(0, Nanos::from_millis(500));
        assert_eq!(expired(&mut wheel, Nanos::from_millis(499)), []);
        assert_eq!(expired(&mut wheel, Nanos::from_millis(500)), [(0, Nanos::from_millis(500))]);
    }

    #[test]
    fn timers_set_between_two_pops_come_in_order() {
        let mut wheel = Wheel::new(3, Nanos::ZERO);
        wheel.set(0, Nanos(10));
        wheel.set(1, Nanos(30));
        let now = Nanos(5_000);
        assert_eq!(wheel.pop_expired(now), Some((0, Nanos(10))));
        wheel.set(2, Nanos(20));
        wheel.set(0, Nanos(6_000));
        assert_eq!(expired(&mut wheel, now), [(2, Nanos(20)), (1, Nanos(30))]);
        assert_eq!(wheel.next(), Some(Nanos(6_000)));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Set(usize, Nanos),
        SetIn(usize, Nanos),
        Cancel(usize),
        Pass(Nanos),
        Pop,
        PassAndPopAll(Nanos),
        SleepUntilNext,
    }

    /// Spans of every magnitude, so that every level is met.
    fn span() -> impl Strategy<Value = Nanos> {
        (any::<u64>(), 0..64u32).prop_map(|(bits, shift)| Nanos(bits >> shift))
    }

    fn short() -> impl Strategy<Value = Nanos> {
        prop_oneof![0..3_000u64, 0..300_000u64, 0..30_000_000u64].prop_map(Nanos)
    }

    fn step(keys: usize) -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => (0..keys, span()).prop_map(|(key, at)| Step::Set(key, at)),
            8 => (0..keys, short()).prop_map(|(key, delay)| Step::SetIn(key, delay)),
            2 => (0..keys, span()).prop_map(|(key, delay)| Step::SetIn(key, delay)),
            3 => (0..keys).prop_map(Step::Cancel),
            2 => short().prop_map(Step::Pass),
            3 => Just(Step::Pop),
            2 => short().prop_map(Step::PassAndPopAll),
            1 => (0..50u32).prop_map(|shift| Step::PassAndPopAll(Nanos(1 << shift))),
            3 => Just(Step::SleepUntilNext),
        ]
    }

    /// The wheel beside a sorted set of what is armed.
    struct Pair {
        wheel: Wheel,
        armed: BTreeSet<(Nanos, usize)>,
        now: Nanos,
    }

    impl Pair {
        fn set(&mut self, key: usize, at: Nanos) {
            self.wheel.set(key, at);
            self.armed.retain(|&(_, other)| other != key);
            if at < Nanos::MAX {
                self.armed.insert((at, key));
            }
        }

        fn pop(&mut self) -> Result<bool, TestCaseError> {
            let expected = self.armed.first().copied().filter(|&(at, _)| at <= self.now);
            prop_assert_eq!(self.wheel.pop_expired(self.now), expected.map(|(at, key)| (key, at)));
            expected.map(|first| self.armed.remove(&first));
            Ok(expected.is_some())
        }

        fn sleep_until_next(&mut self) -> Result<(), TestCaseError> {
            self.now = self.now.max(self.wheel.next().unwrap_or(self.now));
            if !self.pop()? {
                // Woken too early: the next wake-up is exact.
                prop_assert_eq!(self.wheel.next(), self.armed.first().map(|&(at, _)| at));
            }
            Ok(())
        }

        fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
            match step {
                Step::Set(key, at) => self.set(key, at),
                Step::SetIn(key, delay) => self.set(key, self.now + delay),
                Step::Cancel(key) => {
                    self.wheel.cancel(key);
                    self.armed.retain(|&(_, other)| other != key);
                }
                Step::Pass(time) => self.now += time,
                Step::Pop => drop(self.pop()?),
                Step::PassAndPopAll(time) => {
                    self.now += time;
                    while self.pop()? {}
                }
                Step::SleepUntilNext => self.sleep_until_next()?,
            }
            let earliest = self.armed.first().map(|&(at, _)| at);
            prop_assert_eq!(self.wheel.next().is_some(), earliest.is_some());
            prop_assert!(self.wheel.next() <= earliest);
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 2 } else { 2048 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_wheel_does_what_a_sorted_set_does(
            start in span(),
            steps in proptest::collection::vec(step(24), 1..if cfg!(miri) { 20 } else { 300 }),
        ) {
            let mut pair = Pair { wheel: Wheel::new(24, start), armed: BTreeSet::new(), now: start };
            for step in steps {
                pair.step(step)?;
                for key in 0..24 {
                    let at = pair.armed.iter().find(|&&(_, other)| other == key).map(|&(at, _)| at);
                    prop_assert_eq!(pair.wheel.armed(key), at);
                }
            }
            // In the end all of them come out, in order.
            pair.now = Nanos(u64::MAX - 1);
            while pair.pop()? {}
            prop_assert!(pair.armed.is_empty());
        }
    }
}
