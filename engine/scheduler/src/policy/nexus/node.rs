//! One GPU of a Nexus cluster: it runs a batch of each of its models in turn, as soon as it is free
//! (Nexus, section 6.3). Owned by [`super::Nexus`]'s scheduler, which brings it requests and
//! carries out what it selects.

use super::super::queue::{DeadlineQueue, last_that};
use super::packing::Share;
use crate::drop_rule::DropRule;
use crate::model::selection::Selection;
use crate::profile::Profile;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// A GPU and the queues of the models that it hosts.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) turns: Vec<Turn>,
    /// Whose turn it is.
    next: usize,
    /// A batch runs.
    pub(super) busy: bool,
}

/// A model's turn in the cycle.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) model: usize,
    /// The largest batch, as the epoch's schedule says.
    batch: usize,
    pub(super) queue: DeadlineQueue,
}

impl Node {
    /// The schedule of a new epoch. What was queued under the last one is returned.
    pub(super) fn reschedule(&mut self, shares: &[Share]) -> Vec<Turn> {
        let turn = |share: &Share| Turn {
            model: share.session,
            batch: share.batch,
            queue: DeadlineQueue::default(),
        };
        self.next = 0;
        core::mem::replace(&mut self.turns, shares.iter().map(turn).collect())
    }

    /// The next turn that has a batch to run, and the batch's size; `None` if nothing waits.
    /// Requests that are given up go to `drop`. The batch stays in the queue, for the caller to
    /// take.
    pub(super) fn take_turn<'a>(
        &mut self,
        now: Nanos,
        rule: DropRule,
        profile: impl Fn(usize) -> &'a Profile,
        mut drop: impl FnMut(Request),
    ) -> Option<(usize, usize)> {
        for _ in 0..self.turns.len() {
            let at = self.next;
            self.next = (at + 1) % self.turns.len();
            let turn = &mut self.turns[at];
            if turn.queue.len() == 0 {
                continue;
            }
            let Selection { dropped, size } = turn.select(now, rule, profile(turn.model));
            (0..dropped).filter_map(|_| turn.queue.pop()).for_each(&mut drop);
            if size > 0 {
                return Some((at, size));
            }
        }
        None
    }
}

impl Turn {
    fn select(&self, now: Nanos, rule: DropRule, profile: &Profile) -> Selection {
        let len = self.queue.len();
        let most = len.min(self.batch);
        let in_time = |at: usize, size: usize| {
            self.queue.deadline(at).is_some_and(|deadline| now + profile.latency(size) <= deadline)
        };
        // Early drop: the window slides until its first request can wait for all of it.
        let early = || {
            let dropped = (0..len).find(|&at| in_time(at, (len - at).min(self.batch))).unwrap_or(len);
            Selection { dropped, size: (len - dropped).min(self.batch) }
        };
        // Lazy drop: the first request that can still run decides how large the batch may be.
        let lazy = || {
            let dropped = (0..len).find(|&at| in_time(at, 1)).unwrap_or(len);
            let most = (len - dropped).min(self.batch);
            Selection { dropped, size: last_that(most, |size| in_time(dropped, size)) }
        };
        match rule {
            DropRule::Window => early(),
            DropRule::Timeout => lazy(),
            DropRule::Exchange => early().if_worth(lazy()),
            DropRule::Fcfs => Selection { dropped: 0, size: most },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(batches: &[usize]) -> Node {
        let mut node = Node::default();
        let shares: Vec<_> =
            batches.iter().enumerate().map(|(session, &batch)| Share { session, batch, rate: 1.0 }).collect();
        node.reschedule(&shares);
        node
    }

    fn queue(node: &mut Node, turn: usize, deadlines: &[u64]) {
        for &deadline in deadlines {
            let request = Request { deadline: Nanos(deadline), ..Request::default() };
            node.turns[turn].queue.push(request).unwrap();
        }
    }

    /// l(b) = 10 b + 20.
    fn turn(node: &mut Node, now: u64, rule: DropRule) -> (Option<(usize, usize)>, usize) {
        let profile = Profile::linear(Nanos(10), Nanos(20), 8).unwrap();
        let mut dropped = 0;
        let found = node.take_turn(Nanos(now), rule, |_| &profile, |_| dropped += 1);
        if let Some((at, size)) = found {
            node.turns[at].queue.remove(size);
        }
        (found, dropped)
    }

    #[test]
    fn models_take_turns_and_one_without_requests_is_skipped() {
        let mut node = node(&[2, 2, 2]);
        queue(&mut node, 0, &[900, 900, 900]);
        queue(&mut node, 2, &[900]);
        assert_eq!(turn(&mut node, 0, DropRule::Window).0, Some((0, 2)));
        assert_eq!(turn(&mut node, 0, DropRule::Window).0, Some((2, 1)));
        assert_eq!(turn(&mut node, 0, DropRule::Window).0, Some((0, 1)));
        assert_eq!(turn(&mut node, 0, DropRule::Window).0, None);
    }

    #[test]
    fn early_drop_gives_up_requests_that_would_make_the_batch_small() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[35, 45, 60, 60, 60, 60]);
        assert_eq!(turn(&mut node, 0, DropRule::Window), (Some((0, 4)), 2));
    }

    #[test]
    fn lazy_drop_serves_the_first_request_that_can_still_run() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[25, 45, 60, 60, 60, 60]);
        assert_eq!(turn(&mut node, 0, DropRule::Timeout), (Some((0, 2)), 1));
    }

    #[test]
    fn without_drops_late_requests_run_in_full_batches() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[1, 2, 3, 4, 5]);
        assert_eq!(turn(&mut node, 10, DropRule::Fcfs), (Some((0, 4)), 0));
    }
}
