//! The default policy's scheduler in the simulator, with its tuner: a look takes no virtual time,
//! and knows only what has arrived.

use super::deferred::Deferred;
use super::interface::{Decisions, Scheduler};
use super::tuning::Tuner;
use symphony_transport::Nanos;
use symphony_transport::message::{Completion, Request};

/// A deferring policy's scheduler whose setting is tuned.
pub(super) struct Tuned {
    /// The scheduler.
    pub(super) deferred: Deferred,
    /// The tuner of its setting.
    pub(super) tuner: Tuner,
}

impl Scheduler for Tuned {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        self.tuner.note(&request);
        self.deferred.on_request(now, request, out);
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        self.deferred.on_completion(now, completion, out);
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        if self.tuner.next_look() <= now
            && let Some(setting) = self.tuner.look(now)
        {
            self.deferred.set(now, setting, out);
        }
        self.deferred.on_timer(now, out);
    }

    fn next_timer(&self) -> Nanos {
        self.deferred.next_timer().min(self.tuner.next_look())
    }
}
