//! The actions of one GPU beside its batches: LOADs and UNLOADs of weights, each with a window in
//! which it may begin (Clockwork, section 4.4). One is under way at a time, the one with the
//! earliest `earliest` first. One that can't begin in its window any more is cancelled, also while
//! another is under way: nothing queues behind an action that takes longer than it was to.
//!
//! A pure state machine: whoever has the GPU's loader thread passes the time in and does what comes
//! out.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The most actions that wait for a GPU.
pub const MAX_WAITING_ACTIONS: usize = 64;

/// The durations from which the next one is predicted: as many as Clockwork's workers look back.
const REMEMBERED: usize = 10;

/// The multiple of its prediction that an action may take before its GPU counts as hung.
const SLOWER_THAN_PREDICTED: u64 = 10;

/// The window in which an action may begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActionWindow {
    /// The time from which it may begin.
    pub earliest: Nanos,
    /// The time after which it is not to begin any more.
    pub latest: Nanos,
}

/// What is to be done next with the actions of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ActionStep<A> {
    /// An action begins; [`ActionQueue::ended`] is owed once it is over.
    Begin(A),
    /// An action has missed its window.
    Cancel(A),
    /// Nothing before this time, unless one ends or is added; [`Nanos::MAX`] if nothing waits.
    Wait(Nanos),
}

/// The actions that wait for a GPU, and the one that is under way. See the module's description.
#[derive(Debug)]
pub struct ActionQueue<A> {
    /// The waiting ones by `earliest`, and among equals in the order in which they came.
    waiting: BTreeMap<(Nanos, u64), (Nanos, A)>,
    came: u64,
    is_busy: bool,
}

impl<A> Default for ActionQueue<A> {
    fn default() -> ActionQueue<A> {
        ActionQueue { waiting: BTreeMap::new(), came: 0, is_busy: false }
    }
}

impl<A> ActionQueue<A> {
    /// Adds an action, which begins within its window or is cancelled.
    ///
    /// # Errors
    /// The action, if [`MAX_WAITING_ACTIONS`] wait already.
    pub fn add(&mut self, window: ActionWindow, action: A) -> Result<(), A> {
        if self.waiting.len() >= MAX_WAITING_ACTIONS {
            return Err(action);
        }
        self.came += 1;
        self.waiting.insert((window.earliest, self.came), (window.latest, action));
        Ok(())
    }

    /// Returns what is to be done at `now`. Call it until it says to wait.
    pub fn step(&mut self, now: Nanos) -> ActionStep<A> {
        let is_late = |(_, (latest, _)): &(&(Nanos, u64), &(Nanos, A))| *latest < now;
        let late = self.waiting.iter().find(is_late).map(|(key, _)| *key);
        if let Some((_, action)) = late.and_then(|key| self.waiting.remove(&key)) {
            return ActionStep::Cancel(action);
        }
        let may_begin = |(key, _): &(&(Nanos, u64), &(Nanos, A))| key.0 <= now && !self.is_busy;
        let first = self.waiting.first_key_value().filter(may_begin).map(|(key, _)| *key);
        if let Some((_, action)) = first.and_then(|key| self.waiting.remove(&key)) {
            self.is_busy = true;
            return ActionStep::Begin(action);
        }
        // The first moment at which a window is over, or, for an idle GPU, at which one opens.
        let over = self.waiting.values().map(|(latest, _)| Nanos(latest.0.saturating_add(1))).min();
        let opens = self.waiting.keys().next().map(|key| key.0).filter(|_| !self.is_busy);
        ActionStep::Wait(over.into_iter().chain(opens).min().unwrap_or(Nanos::MAX))
    }

    /// Notes that the action that was under way is over.
    pub fn ended(&mut self) {
        self.is_busy = false;
    }

    /// Takes every action out that waits: the GPU does none any more.
    pub fn drain(&mut self) -> Vec<A> {
        core::mem::take(&mut self.waiting).into_values().map(|(_, action)| action).collect()
    }

    /// Returns the number of actions that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// The last durations of an action, from which the next one is predicted.
#[derive(Clone, Debug, Default)]
pub struct ActionTimes(VecDeque<Nanos>);

impl ActionTimes {
    /// Notes how long the action has taken.
    pub fn observe(&mut self, duration: Nanos) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(duration);
    }

    /// Returns the duration that is expected of the next one: the longest of the last ten; `None`
    /// before the first.
    pub fn predicted(&self) -> Option<Nanos> {
        self.0.iter().max().copied()
    }

    /// Returns how long the next one may take before the GPU counts as hung: ten times its
    /// prediction, and at least `least`.
    pub fn patience(&self, least: Nanos) -> Nanos {
        let predicted = self.predicted().unwrap_or_default();
        Nanos(predicted.0.saturating_mul(SLOWER_THAN_PREDICTED)).max(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn window(earliest: u64, latest: u64) -> ActionWindow {
        ActionWindow { earliest: Nanos(earliest), latest: Nanos(latest) }
    }

    #[test]
    fn an_action_waits_for_its_window_and_for_the_one_under_way() {
        let mut queue = ActionQueue::default();
        assert_eq!(queue.step(Nanos(0)), ActionStep::Wait(Nanos::MAX));
        queue.add(window(20, 200), "second").unwrap();
        queue.add(window(10, 200), "first").unwrap();
        assert_eq!(queue.step(Nanos(5)), ActionStep::Wait(Nanos(10)));
        assert_eq!(queue.step(Nanos(10)), ActionStep::Begin("first"));
        assert_eq!(queue.step(Nanos(30)), ActionStep::Wait(Nanos(201)));
        queue.ended();
        assert_eq!(queue.step(Nanos(31)), ActionStep::Begin("second"));
    }

    #[test]
    fn a_late_action_is_cancelled_while_another_is_under_way() {
        let mut queue = ActionQueue::default();
        queue.add(window(0, 100), "long").unwrap();
        queue.add(window(0, 50), "short of time").unwrap();
        assert_eq!(queue.step(Nanos(0)), ActionStep::Begin("long"));
        assert_eq!(queue.step(Nanos(50)), ActionStep::Wait(Nanos(51)));
        assert_eq!(queue.step(Nanos(51)), ActionStep::Cancel("short of time"));
        assert_eq!(queue.step(Nanos(51)), ActionStep::Wait(Nanos::MAX));
    }

    #[test]
    fn the_longest_of_the_last_ten_is_predicted() {
        let mut times = ActionTimes::default();
        assert_eq!((times.predicted(), times.patience(Nanos(7))), (None, Nanos(7)));
        for duration in [90, 5, 6] {
            times.observe(Nanos(duration));
        }
        assert_eq!((times.predicted(), times.patience(Nanos(7))), (Some(Nanos(90)), Nanos(900)));
        (0..10).for_each(|duration| times.observe(Nanos(duration)));
        assert_eq!(times.predicted(), Some(Nanos(9)), "the first is forgotten");
    }

    proptest! {
        /// Drives the queue as a loader thread does, in virtual time: it looks when it was told to,
        /// when an action comes and when one ends, and is sometimes late.
        #[test]
        fn each_action_begins_in_its_window_or_is_cancelled_and_no_two_overlap(
            // Of each action: when it comes, its window from then on, and how long it takes.
            actions in prop::collection::vec((0u64..400, 0u64..50, 0u64..80, 0u64..60), 1..64),
            lateness in 0u64..4,
        ) {
            let mut queue = ActionQueue::default();
            let mut coming: Vec<(u64, usize)> = actions.iter().enumerate().map(|(at, of)| (of.0, at)).collect();
            coming.sort_unstable();
            let mut coming = coming.into_iter().peekable();
            let (mut now, mut ends, mut wait) = (0, None, Nanos::MAX);
            let mut ended = vec![0; actions.len()];
            loop {
                let next = coming.peek().map(|(at, _)| *at).into_iter().chain(ends);
                let told = (wait < Nanos::MAX).then(|| wait.0 + lateness);
                let Some(at) = next.chain(told).min() else { break };
                now = now.max(at);
                while let Some((_, at)) = coming.next_if(|(comes, _)| *comes <= now) {
                    let (comes, after, length, _) = actions[at];
                    queue.add(window(comes + after, comes + after + length), at).unwrap();
                }
                if ends.is_some_and(|end| end <= now) {
                    ends = None;
                    queue.ended();
                }
                wait = loop {
                    match queue.step(Nanos(now)) {
                        ActionStep::Wait(until) => break until,
                        ActionStep::Cancel(at) => {
                            let (comes, after, length, _) = actions[at];
                            prop_assert!(comes + after + length < now, "{at} was not late at {now}");
                            ended[at] += 1;
                        }
                        ActionStep::Begin(at) => {
                            let (comes, after, length, takes) = actions[at];
                            prop_assert!((comes + after..=comes + after + length).contains(&now));
                            prop_assert!(ends.is_none(), "two at once");
                            ends = Some(now + takes);
                            ended[at] += 1;
                        }
                    }
                };
                prop_assert!(wait.0 > now, "it is told to look again at {wait:?}, and it is {now}");
            }
            prop_assert!(ended.iter().all(|times| *times == 1), "{ended:?}");
            prop_assert_eq!(queue.waiting(), 0);
        }
    }
}
