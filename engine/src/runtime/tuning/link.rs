//! The two ends between the tuner's thread and a ModelThread: orders one way, arrivals the other.
//!
//! A ModelThread polls for orders once a millisecond. It sends arrivals only as long as some are
//! wanted, and never waits: those for which there is no room are left out. A setting is applied to
//! a bounded number of queues a duty cycle. What it drops it counts beside.

use crate::runtime::counters::count::Count;
use crate::runtime::queue_ids::QueueIds;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use symphony_scheduler::policy::tuning::MOST_REPLAYED;
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId, Request};

/// The orders that fit a ring: more than the tuner gives in a millisecond.
const ORDERS: usize = 64;

/// The interval at which a ModelThread polls for orders.
const POLL_INTERVAL: Nanos = Nanos::from_millis(1);

/// What the tuner tells a ModelThread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum TuningOrder {
    /// Send so many of the next arrivals of a sub-cluster, instead of those that were still wanted.
    Sample {
        /// The sub-cluster.
        group: usize,
        /// The number of arrivals.
        count: usize,
    },
    /// Go on with this setting in the queues of a sub-cluster.
    Set {
        /// The sub-cluster.
        group: usize,
        /// The setting.
        setting: RuleSetting,
    },
}

/// An arrival that was sampled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SampledArrival {
    pub(crate) model: ModelId,
    pub(crate) arrival: Nanos,
    pub(crate) deadline: Nanos,
    /// See [`Request::again_us`].
    pub(crate) again_us: u32,
}

/// The requests of the highest class that a ModelThread has dropped, by the model. The thread alone
/// adds to them.
#[derive(Debug)]
pub struct LossCounts(Box<[Count]>);

impl LossCounts {
    /// Counts a request that was dropped, unless it is made once more.
    pub(crate) fn count(&self, request: &Request) {
        if request.again().is_none()
            && let Some(model) = tuned_for(self.0.len(), request)
        {
            self.0[model.0 as usize].add(1);
        }
    }
}

/// Returns the model, of so many, of a request of the highest class. Others are not tuned for.
fn tuned_for(models: usize, request: &Request) -> Option<ModelId> {
    let ids = QueueIds::new(models);
    (ids.class(request.queue) == Class::HIGHEST).then(|| ids.model(request.queue))
}

/// The tuner's end of the link to a ModelThread.
pub(crate) struct TunerLink {
    orders: Producer<TuningOrder>,
    arrivals: Consumer<SampledArrival>,
    losses: Arc<LossCounts>,
}

/// A ModelThread's end of the link to the tuner.
pub struct TunedLink {
    orders: Consumer<TuningOrder>,
    arrivals: Producer<SampledArrival>,
    losses: Arc<LossCounts>,
    /// The sub-cluster of each model.
    group_of: Arc<[u32]>,
    /// The arrivals of each sub-cluster that are wanted, and of all.
    wanted: Vec<usize>,
    sampling: usize,
    /// The setting that is being applied, and the index of the next queue.
    applying: Option<AppliedSetting>,
    poll_at: Nanos,
}

/// A setting on its way into the queues of a ModelThread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppliedSetting {
    group: usize,
    pub(crate) setting: RuleSetting,
    pub(crate) next_queue: usize,
}

/// Makes both ends of a link. `group_of` has the sub-cluster of each model slot, of which there are
/// `groups`.
pub(crate) fn tuning_link(groups: usize, group_of: Arc<[u32]>) -> (TunerLink, TunedLink) {
    let (to_thread, orders) = RingBuffer::new(ORDERS);
    let (arrivals, from_thread) = RingBuffer::new(MOST_REPLAYED);
    let losses = Arc::new(LossCounts(group_of.iter().map(|_| Count::new()).collect()));
    let tuned = TunedLink {
        orders,
        arrivals,
        losses: Arc::clone(&losses),
        group_of,
        wanted: vec![0; groups],
        sampling: 0,
        applying: None,
        poll_at: Nanos::ZERO,
    };
    (TunerLink { orders: to_thread, arrivals: from_thread, losses }, tuned)
}

impl TunerLink {
    /// Sends an order. False if it does not fit, or the thread has ended.
    pub(crate) fn order(&mut self, order: TuningOrder) -> bool {
        self.orders.push(order).is_ok()
    }

    /// Returns the next arrival.
    pub(crate) fn next_arrival(&mut self) -> Option<SampledArrival> {
        self.arrivals.pop().ok()
    }

    /// Returns the number of requests of a model that the thread has dropped.
    pub(crate) fn lost(&self, model: ModelId) -> u64 {
        self.losses.0[model.0 as usize].get()
    }
}

impl TunedLink {
    /// Returns the counts of what the thread drops.
    pub(crate) fn losses(&self) -> Arc<LossCounts> {
        Arc::clone(&self.losses)
    }

    /// Returns true if arrivals are wanted.
    #[inline]
    pub(crate) fn is_sampling(&self) -> bool {
        self.sampling > 0
    }

    /// Sends an arrival if its sub-cluster's are wanted.
    #[cold]
    pub(crate) fn sample(&mut self, request: &Request) {
        if request.takes_back != 0 || request.is_again != 0 {
            return;
        }
        let Some(model) = tuned_for(self.group_of.len(), request) else { return };
        let group = self.group_of[model.0 as usize] as usize;
        let wanted = &mut self.wanted[group];
        if *wanted > 0 {
            (*wanted, self.sampling) = (*wanted - 1, self.sampling - 1);
            let Request { arrival, deadline, again_us, .. } = *request;
            // Without room the tuner is far behind: what it has is enough.
            let _ = self.arrivals.push(SampledArrival { model, arrival, deadline, again_us });
        }
    }

    /// Takes orders in, once a millisecond, and returns the setting that is to be applied.
    #[inline]
    pub(crate) fn applying(&mut self, now: Nanos) -> Option<AppliedSetting> {
        if now < self.poll_at {
            return None;
        }
        self.poll(now)
    }

    #[cold]
    fn poll(&mut self, now: Nanos) -> Option<AppliedSetting> {
        while self.applying.is_none() {
            let Ok(order) = self.orders.pop() else { break };
            match order {
                TuningOrder::Sample { group, count } => {
                    self.sampling = self.sampling - self.wanted[group] + count;
                    self.wanted[group] = count;
                }
                TuningOrder::Set { group, setting } => {
                    self.applying = Some(AppliedSetting { group, setting, next_queue: 0 });
                }
            }
        }
        if self.applying.is_none() {
            self.poll_at = now + POLL_INTERVAL;
        }
        self.applying
    }

    /// Returns true if the setting that is being applied is for this model.
    pub(crate) fn is_for(&self, applying: &AppliedSetting, model: ModelId) -> bool {
        self.group_of[model.0 as usize] as usize == applying.group
    }

    /// Notes how far a setting was applied; `None` once it is in every queue.
    pub(crate) fn applied(&mut self, applying: Option<AppliedSetting>) {
        self.applying = applying;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_transport::message::QueueId;

    #[test]
    fn as_many_arrivals_are_sent_as_were_wanted_of_the_sub_cluster() {
        let (mut tuner, mut tuned) = tuning_link(2, [0, 1].into());
        assert!(!tuned.is_sampling());
        assert!(tuner.order(TuningOrder::Sample { group: 1, count: 2 }));
        assert!(tuned.applying(Nanos(1)).is_none() && tuned.is_sampling());
        for id in 0..8 {
            // Models 0 and 1 in turn; those of queues 2 and 3 are of class 1.
            let queue = QueueId(id as u32 % 4);
            tuned.sample(&Request { id, queue, arrival: Nanos(id), ..Request::default() });
        }
        let sent: Vec<_> = std::iter::from_fn(|| tuner.next_arrival()).collect();
        assert_eq!(sent.iter().map(|one| (one.model.0, one.arrival.0)).collect::<Vec<_>>(), [(1, 1), (1, 5)]);
        assert!(!tuned.is_sampling());
    }

    #[test]
    fn what_is_dropped_of_the_highest_class_counts_for_its_model() {
        let (tuner, tuned) = tuning_link(1, [0, 0].into());
        // Queues 2 and 3 are those of class 1.
        for queue in [0, 1, 1, 2, 3].map(QueueId) {
            tuned.losses().count(&Request { queue, ..Request::default() });
        }
        tuned.losses().count(&Request { again_us: 1, ..Request::default() });
        assert_eq!([0, 1].map(|model| tuner.lost(ModelId(model))), [1, 2]);
    }

    #[test]
    fn a_setting_is_applied_before_the_next_order_is_taken() {
        let (mut tuner, mut tuned) = tuning_link(1, [0].into());
        let setting = RuleSetting { price: 0.0, ..RuleSetting::default() };
        assert!(tuner.order(TuningOrder::Set { group: 0, setting }));
        assert!(tuner.order(TuningOrder::Sample { group: 0, count: 1 }));
        let applying = tuned.applying(Nanos(1)).unwrap();
        assert!(tuned.is_for(&applying, ModelId(0)) && applying.setting == setting);
        assert!(tuned.applying(Nanos(1)).is_some() && !tuned.is_sampling());
        tuned.applied(None);
        assert!(tuned.applying(Nanos(1)).is_none() && tuned.is_sampling());
    }
}
