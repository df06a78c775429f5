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
        if counted.has_lost {
            let early = self.tuner.early_look(self.came, &self.lost);
            self.look_at = early.unwrap_or_else(|| self.tuner.next_look());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drop_rule::DropRule;
    use crate::policy::{self, Policy};
    use crate::profile::Profile;
    use crate::rule_setting::{Prefer, RuleSetting};
    use crate::workload::{Workload, WorkloadModel};

    struct Ignored;

    impl Decisions for Ignored {
        fn run(&mut self, _: BatchHeader, _: (&[Request], &[Request])) {}
        fn run_preemptible(&mut self, _: BatchHeader, _: (&[Request], &[Request])) {}
        fn preempt(&mut self, _: GpuId, _: &mut Vec<Request>) -> bool {
            false
        }
        fn end(&mut self, _: &Request, _: Ending, _: Nanos) {}
    }

    /// Has requests come, a thousand a second until `until`, of which none reach the queues.
    fn live_on(tuned: &mut Tuned, now: &mut Nanos, until: Nanos) {
        while *now < until {
            *now += Nanos::from_millis(1);
            let deadline = *now + Nanos::from_millis(25);
            tuned.tuner.note(&Request { arrival: *now, deadline, ..Request::default() });
            tuned.came += 1;
            tuned.look_at = tuned.look_at.min(tuned.tuner.next_look());
            tuned.on_timer(*now, &mut Ignored);
        }
    }

    fn lose(tuned: &mut Tuned, count: usize, now: Nanos) {
        tuned.act(&mut Ignored, |_, out| {
            (0..count).for_each(|_| out.end(&Request::default(), Ending::DroppedInQueue, now));
        });
    }

    #[test]
    fn an_early_look_is_put_off_once_the_pool_has_collapsed() {
        let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 18).unwrap();
        let models = vec![WorkloadModel::new("m", profile, Nanos::from_millis(25))];
        let workload = Workload::of_models(8, 1_000.0, models);
        let deferral = policy::by_name("symphony").and_then(Policy::deferral).unwrap();
        let setting = RuleSetting::default();
        let deferred = Deferred::new(&workload, DropRule::Exchange, deferral, setting);
        let tuner = Tuner::new(&workload, DropRule::Exchange, deferral, setting, Prefer::Efficiency);
        let (mut tuned, mut now) = (Tuned::new(deferred, tuner, 1), Nanos::ZERO);
        live_on(&mut tuned, &mut now, Nanos::from_millis(4_200));
        // A look that is early, and what follows it.
        lose(&mut tuned, 400, now);
        let early = tuned.look_at;
        live_on(&mut tuned, &mut now, early);
        let last = tuned.tuner.last_look();
        assert_eq!(last, now, "it was looked at early");
        let earliest = tuned.tuner.earliest_look();
        live_on(&mut tuned, &mut now, last + Nanos::from_millis(500));
        lose(&mut tuned, 60, now);
        assert_eq!(tuned.look_at, earliest, "an eighth is lost");
        lose(&mut tuned, 60, now);
        assert!(tuned.look_at > earliest, "a quarter is lost");
        live_on(&mut tuned, &mut now, last + Nanos::from_millis(650));
        lose(&mut tuned, 1, now);
        assert_eq!(tuned.look_at, earliest, "less than a fifth is lost");
    }
}
