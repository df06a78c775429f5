//! A model's state as plain data: what the flight recorder writes at the start of a stretch of
//! history, and what replay goes on from. Called by the flight recorder alone.
//!
//! Only what an event reads before it computes it anew is kept: the candidate and the timer follow
//! from the rest at the next event, the target from the rate.

use super::rate::{RateMeter, RateParts};
use super::recent_service::RecentService;
use super::{ClassRole, LastReservation, ModelQueue, QueueConfig};
use crate::limits;
use crate::profile::ProfileScale;
use crate::rank::Offer;
use crate::rule_setting::RuleSetting;
use crate::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// A model's state, its queue aside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Saved {
    /// The rate meter.
    pub rate: RateParts,
    /// When the model's last batch started.
    pub last_start: Nanos,
    /// What it has lost, and the GPU time that it has had.
    pub recent: RecentService,
    /// The offer that waits at the RankThread.
    pub offer: Option<Offer>,
    /// The last reservation, of a queue of the highest class that sends them.
    pub reservation: Option<LastReservation>,
    /// True if the queue is of a lower class and has sent its bounds.
    pub bounds_sent: bool,
    /// True if the queue is of the highest class, and its model is not.
    pub unexpected: bool,
    /// True if its batches follow each other, as far as its last grant says.
    pub runs_again: bool,
    /// The setting of the rule.
    pub setting: RuleSetting,
    /// The scale of the profile that it has, to the one of its configuration at first.
    pub scale: ProfileScale,
    /// The network's delays that it allows for.
    pub network: Network,
}

/// Why a model's state can't be restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoState {
    /// No queue gets so long.
    #[error("a queue of {0} requests; the limit is {max}", max = limits::MAX_QUEUE_LENGTH)]
    TooLong(usize),
    /// A queue is in deadline order.
    #[error("a queue that is not in the order of its deadlines")]
    OutOfOrder,
    /// The rate meter's parts contradict each other.
    #[error("a rate meter that can't be")]
    Rate,
}

impl ModelQueue {
    /// Returns the state at `now`, the queue aside, as it was before the last `new` requests came,
    /// at this very time.
    pub fn saved(&self, now: Nanos, new: usize) -> Saved {
        let mut rate = self.rate.clone();
        let mut recent = self.recent;
        let ended = rate.advance(now);
        if ended > 0 {
            recent.samples_ended(ended, rate.rate(), &self.terms);
        }
        let mut rate = rate.parts();
        rate.current = rate.current.saturating_sub(new as u32);
        let reservation = match self.role {
            ClassRole::Above(last) => Some(last),
            _ => None,
        };
        let bounds_sent = self.role == ClassRole::Below(true);
        let unexpected = self.role == ClassRole::Unexpected;
        Saved {
            rate,
            last_start: self.last_start,
            recent,
            offer: self.offered,
            reservation,
            bounds_sent,
            unexpected,
            runs_again: self.runs_again,
            setting: self.setting,
            scale: self.scale,
            network: self.terms.network,
        }
    }

    /// The requests that wait, in deadline order.
    pub fn queued(&self) -> impl DoubleEndedIterator<Item = &Request> + ExactSizeIterator {
        self.queue.iter()
    }

    /// The last `count` of them, in one or two pieces of memory.
    #[inline]
    pub fn last(&self, count: usize) -> (&[Request], &[Request]) {
        let (front, back) = self.queue.as_slices();
        match back.len().checked_sub(count) {
            Some(before) => (&[], &back[before..]),
            None => (&front[(front.len() + back.len()).saturating_sub(count)..], back),
        }
    }

    /// The batch size that the rate calls for.
    pub fn target(&self) -> usize {
        self.target
    }

    /// What is fixed about its scheduling.
    pub fn config(&self) -> &QueueConfig {
        &self.terms
    }

    /// The queue whose state this was, with the profile in `terms` that it began with. `lower`: it
    /// is of a class below the highest.
    ///
    /// Errors: no queue can have been in that state.
    pub fn restore(
        terms: QueueConfig,
        lower: bool,
        saved: &Saved,
        queued: &[Request],
    ) -> Result<ModelQueue, NoState> {
        if queued.len() > limits::MAX_QUEUE_LENGTH {
            return Err(NoState::TooLong(queued.len()));
        }
        if !queued.is_sorted_by_key(|request| request.deadline) {
            return Err(NoState::OutOfOrder);
        }
        let rate = RateMeter::from_parts(&saved.rate).ok_or(NoState::Rate)?;
        let mut restored = ModelQueue::new(terms, Nanos::ZERO);
        restored.terms.profile = restored.base.scaled(saved.scale).worthwhile();
        restored.scale = saved.scale;
        restored.terms.network = saved.network;
        restored.rate = rate;
        restored.setting = saved.setting;
        restored.recent = saved.recent;
        restored.runs_again = saved.runs_again;
        restored.read_rate();
        restored.queue.extend(queued);
        restored.last_start = saved.last_start;
        restored.offered = saved.offer;
        restored.role = match saved.reservation {
            _ if lower => ClassRole::Below(saved.bounds_sent),
            Some(last) => ClassRole::Above(last),
            None if saved.unexpected => ClassRole::Unexpected,
            None => ClassRole::Alone,
        };
        Ok(restored)
    }
}
