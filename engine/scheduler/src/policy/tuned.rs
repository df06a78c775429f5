//! The default policy's scheduler in the simulator, with its tuner: a look takes no virtual time,
//! and knows only what has arrived and what was lost.

use super::deferred::Deferred;
use super::interface::{Decisions, Scheduler};
use super::tuning::Tuner;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, GpuId, Request};

/// A deferring policy's scheduler whose setting is tuned.
pub(super) struct Tuned {
    deferred: Deferred,
    tuner: Tuner,
    /// The requests that count and have come since the last look.
    came: u64,
    /// The number of each model's requests that were lost since, of those that count.
    lost: Vec<u64>,
    /// When to look; [`Nanos::MAX`] if nothing has come since the last look.
    look_at: Nanos,
}

impl Tuned {
    /// `models` is the number of the workload's models.
    pub(super) fn new(deferred: Deferred, tuner: Tuner, models: usize) -> Tuned {
        Tuned { deferred, tuner, came: 0, lost: vec![0; models], look_at: Nanos::MAX }
    }

    /// Lets the scheduler act, and looks early if too much is lost.
    fn act(&mut self, out: &mut dyn Decisions, act: impl FnOnce(&mut Deferred, &mut dyn Decisions)) {
        let mut counted = LossCount { out, tuner: &self.tuner, lost: &mut self.lost, has_lost: false };
        act(&mut self.deferred, &mut counted);
        if counted.has_lost
            && let Some(early) = self.tuner.early_look(self.came, &self.lost)
        {
            self.look_at = early.min(self.look_at);
        }
    }
}

impl Scheduler for Tuned {
    fn on_request(&mut self, now: Nanos, request: Request, out: &mut dyn Decisions) {
        if self.tuner.note(&request) {
            self.came += 1;
            if self.came == 1 {
                self.look_at = self.tuner.next_look();
            }
        }
        self.act(out, |deferred, out| deferred.on_request(now, request, out));
    }

    fn on_completion(&mut self, now: Nanos, completion: Completion, out: &mut dyn Decisions) {
        self.act(out, |deferred, out| deferred.on_completion(now, completion, out));
    }

    fn on_timer(&mut self, now: Nanos, out: &mut dyn Decisions) {
        if self.look_at <= now {
            let setting = self.tuner.look(now);
            (self.came, self.look_at) = (0, Nanos::MAX);
            self.lost.fill(0);
            if let Some(setting) = setting {
                self.act(out, |deferred, out| deferred.set(now, setting, out));
            }
        }
        self.act(out, |deferred, out| deferred.on_timer(now, out));
    }

    fn next_timer(&self) -> Nanos {
        self.deferred.next_timer().min(self.look_at)
    }
}

/// Passes decisions on, and counts the requests that are lost.
struct LossCount<'a> {
    out: &'a mut dyn Decisions,
    tuner: &'a Tuner,
    lost: &'a mut [u64],
    has_lost: bool,
}

impl Decisions for LossCount<'_> {
    fn run(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        self.out.run(batch, requests);
    }

    fn run_preemptible(&mut self, batch: BatchHeader, requests: (&[Request], &[Request])) {
        self.out.run_preemptible(batch, requests);
    }

    fn preempt(&mut self, gpu: GpuId, back: &mut Vec<Request>) -> bool {
        self.out.preempt(gpu, back)
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        if self.tuner.counts(request) && request.again().is_none() {
            self.lost[request.queue.0 as usize] += 1;
            self.has_lost = true;
        }
        self.out.end(request, ending, now);
    }
}
