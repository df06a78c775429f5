//! One GPU of a Nexus cluster. Its duty cycle runs a batch of each of its sessions in turn, as soon
//! as the GPU is free (Nexus, section 6.3). Owned by [`super::Nexus`]'s scheduler, which queues the
//! requests and sends the batches that are selected.

use super::super::queue::{DeadlineQueue, last_that};
use super::packing::Share;
use crate::drop_rule::DropRule;
use crate::model::selection::Selection;
use crate::profile::Profile;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// A GPU and the queues of the sessions that it hosts.
#[derive(Debug, Default)]
pub(super) struct NexusNode {
    pub(super) sessions: Vec<HostedSession>,
    /// Index of the session whose batch is next in the duty cycle.
    next: usize,
    /// True while a batch runs.
    pub(super) busy: bool,
}

/// A session in a node's duty cycle.
#[derive(Debug)]
pub(super) struct HostedSession {
    pub(super) model: usize,
    /// The largest batch, by the epoch's schedule.
    batch: usize,
    pub(super) queue: DeadlineQueue,
}

impl NexusNode {
    /// Takes the schedule of a new epoch. Returns the sessions of the last one, with the requests
    /// in their queues.
    pub(super) fn reschedule(&mut self, shares: &[Share]) -> Vec<HostedSession> {
        let session = |share: &Share| HostedSession {
            model: share.session,
            batch: share.batch,
            queue: DeadlineQueue::default(),
        };
        self.next = 0;
        core::mem::replace(&mut self.sessions, shares.iter().map(session).collect())
    }

    /// Advances the duty cycle to the next session that has a batch to run. Returns the session's
    /// index and the batch's size; `None` if no request waits. Requests that are given up go to
    /// `drop`. The batch stays in the queue, for the caller to take.
    pub(super) fn next_batch<'a>(
        &mut self,
        now: Nanos,
        rule: DropRule,
        profile: impl Fn(usize) -> &'a Profile,
        mut drop: impl FnMut(Request),
    ) -> Option<(usize, usize)> {
        for _ in 0..self.sessions.len() {
            let at = self.next;
            self.next = (at + 1) % self.sessions.len();
            let session = &mut self.sessions[at];
            if session.queue.len() == 0 {
                continue;
            }
            let Selection { dropped, size } = session.select(now, rule, profile(session.model));
            (0..dropped).filter_map(|_| session.queue.pop()).for_each(&mut drop);
            if size > 0 {
                return Some((at, size));
            }
        }
        None
    }
}

impl HostedSession {
    /// Selects the requests to drop from the front of the queue, and the size of the batch behind
    /// them.
    fn select(&self, now: Nanos, rule: DropRule, profile: &Profile) -> Selection {
        let len = self.queue.len();
        let most = len.min(self.batch);
        let in_time = |at: usize, size: usize| {
            self.queue.deadline(at).is_some_and(|deadline| now + profile.latency(size) <= deadline)
        };
        // Early drop: the window slides until its first request can be in time in all of it.
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
            DropRule::Exchange => early().if_worth(lazy(), 1.0),
            DropRule::Fcfs => Selection { dropped: 0, size: most },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(batches: &[usize]) -> NexusNode {
        let mut node = NexusNode::default();
        let shares: Vec<_> =
            batches.iter().enumerate().map(|(session, &batch)| Share { session, batch, rate: 1.0 }).collect();
        node.reschedule(&shares);
        node
    }

    fn queue(node: &mut NexusNode, session: usize, deadlines: &[u64]) {
        for &deadline in deadlines {
            let request = Request { deadline: Nanos(deadline), ..Request::default() };
            node.sessions[session].queue.push(request).unwrap();
        }
    }

    /// Runs the next batch under l(b) = 10 b + 20; returns it and the count of dropped requests.
    fn run(node: &mut NexusNode, now: u64, rule: DropRule) -> (Option<(usize, usize)>, usize) {
        let profile = Profile::linear(Nanos(10), Nanos(20), 8).unwrap();
        let mut dropped = 0;
        let found = node.next_batch(Nanos(now), rule, |_| &profile, |_| dropped += 1);
        if let Some((at, size)) = found {
            node.sessions[at].queue.remove(size);
        }
        (found, dropped)
    }

    #[test]
    fn the_duty_cycle_skips_a_session_without_requests() {
        let mut node = node(&[2, 2, 2]);
        queue(&mut node, 0, &[900, 900, 900]);
        queue(&mut node, 2, &[900]);
        assert_eq!(run(&mut node, 0, DropRule::Window).0, Some((0, 2)));
        assert_eq!(run(&mut node, 0, DropRule::Window).0, Some((2, 1)));
        assert_eq!(run(&mut node, 0, DropRule::Window).0, Some((0, 1)));
        assert_eq!(run(&mut node, 0, DropRule::Window).0, None);
    }

    #[test]
    fn early_drop_gives_up_requests_that_would_make_the_batch_small() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[35, 45, 60, 60, 60, 60]);
        assert_eq!(run(&mut node, 0, DropRule::Window), (Some((0, 4)), 2));
    }

    #[test]
    fn lazy_drop_serves_the_first_request_that_can_still_run() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[25, 45, 60, 60, 60, 60]);
        assert_eq!(run(&mut node, 0, DropRule::Timeout), (Some((0, 2)), 1));
    }

    #[test]
    fn without_drops_late_requests_run_in_full_batches() {
        let mut node = node(&[4]);
        queue(&mut node, 0, &[1, 2, 3, 4, 5]);
        assert_eq!(run(&mut node, 10, DropRule::Fcfs), (Some((0, 4)), 0));
    }
}
