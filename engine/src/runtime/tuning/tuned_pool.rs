//! The tuner of one sub-cluster: which models it has, when its arrivals are to be sampled, and when
//! to look at them.

use super::link::SampledArrival;
use crate::runtime::frontend::ModelInfo;
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_scheduler::deferral::Deferral;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::policy::tuning::{MOST_REPLAYED, Tuner};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rule_setting::{Prefer, RuleSetting};
use symphony_scheduler::workload::{Network, Workload, WorkloadModel};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, ModelId, NO_DEADLINE, Request};

/// The part of the room for arrivals for which sampling begins ahead of a look: the rate may be
/// higher than it was.
const SAMPLED: f64 = 0.8;

/// The highest rate, in requests per second, at which arrivals are sampled all the time that a look
/// may be early in: above it, ahead of looks only.
const SAMPLED_THROUGHOUT_RPS: f64 = MOST_REPLAYED as f64;

/// The number of arrivals that is wanted where all are until the look.
const UNTIL_THE_LOOK: usize = u32::MAX as usize;

/// What all sub-clusters of an engine have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TunedRule {
    pub(crate) drop: DropRule,
    pub(crate) deferral: &'static dyn Deferral,
    pub(crate) prefer: Prefer,
    pub(crate) network: Network,
}

/// A model of the highest class that a sub-cluster serves, as its tuner sees it.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TunedModel {
    id: ModelId,
    name: String,
    slo: Nanos,
    /// The profile of its load.
    profile: Arc<Profile>,
}

impl TunedModel {
    /// Returns those of the models that are tuned for.
    pub(super) fn all<'a>(models: impl Iterator<Item = &'a ModelInfo>) -> Vec<TunedModel> {
        let of = |model: &ModelInfo| TunedModel {
            id: model.id,
            name: model.name.clone(),
            slo: model.slo,
            profile: Arc::clone(&model.profile),
        };
        models.filter(|model| model.class == Class::HIGHEST).map(of).collect()
    }
}

/// A sub-cluster that is tuned. See the module's description.
pub(super) struct TunedPool {
    /// The models, in the order of the tuner's workload.
    models: Vec<TunedModel>,
    tuner: Tuner,
    /// The engine's time at the tuner's start, which is the tuner's zero.
    began: Nanos,
    setting: RuleSetting,
    /// The engine's time from which arrivals are sampled; `None` once they are.
    sample_at: Option<Nanos>,
    /// Arrivals before this engine's time are of the look before.
    sampled_from: Nanos,
    /// The last arrivals for the next look, as the ModelThreads have sent them, and its time.
    sampled: VecDeque<SampledArrival>,
    look_at: Nanos,
    /// The rate that the last look has found, in requests per second; infinite before the first.
    rate_rps: f64,
    /// The requests of each model that were dropped from the start to the last look, and since.
    lost_before: Vec<u64>,
    lost_since: Vec<u64>,
}

impl TunedPool {
    /// Makes the tuner of a sub-cluster of `gpus` GPUs which serves `models`, has `setting` and has
    /// dropped so many requests of each; `None` if there are no models.
    pub(super) fn new(
        gpus: usize,
        models: Vec<TunedModel>,
        rule: TunedRule,
        setting: RuleSetting,
        now: Nanos,
        lost: impl Fn(ModelId) -> u64,
    ) -> Option<TunedPool> {
        if models.is_empty() {
            return None;
        }
        let of = |model: &TunedModel| WorkloadModel::new(&model.name, (*model.profile).clone(), model.slo);
        let workload = Workload::of_models(gpus, 1.0, models.iter().map(of).collect());
        let workload = Workload { network: rule.network, ..workload };
        let tuner = Tuner::new(&workload, rule.drop, rule.deferral, setting, rule.prefer);
        let lost_before = models.iter().map(|model| lost(model.id)).collect();
        Some(TunedPool {
            lost_since: vec![0; models.len()],
            lost_before,
            models,
            look_at: now + tuner.pause(),
            tuner,
            began: now,
            setting,
            sample_at: Some(now),
            sampled_from: now,
            sampled: VecDeque::new(),
            rate_rps: f64::INFINITY,
        })
    }

    /// Returns true if it tunes for these models.
    pub(super) fn is_of(&self, models: &[TunedModel]) -> bool {
        self.models == models
    }

    /// Takes over the profiles of the models for which there is another one.
    pub(super) fn set_profiles(&mut self, of: impl Fn(ModelId) -> Option<Profile>) {
        for (at, model) in self.models.iter().enumerate() {
            if let Some(profile) = of(model.id) {
                self.tuner.set_profile(at, profile);
            }
        }
    }

    /// Returns the setting that the sub-cluster is to have.
    pub(super) fn setting(&self) -> RuleSetting {
        self.setting
    }

    /// Returns the time in which enough arrivals for a look come.
    fn enough(&self) -> Nanos {
        Nanos::from_secs_f64(SAMPLED * self.tuner.replayed(self.rate_rps) as f64 / self.rate_rps)
    }

    /// Returns when to look if nothing is a reason to look early.
    fn due(&self) -> Nanos {
        self.began + self.tuner.last_look() + self.tuner.pause()
    }

    /// Returns true if arrivals are sampled all the time that a look may be early in.
    fn is_sampled_throughout(&self) -> bool {
        self.rate_rps <= SAMPLED_THROUGHOUT_RPS
    }

    /// Returns the number of arrivals that are wanted from now on, once for each look.
    pub(super) fn wanted(&mut self, now: Nanos) -> Option<usize> {
        self.sample_at.take_if(|at| *at <= now)?;
        self.sampled_from = now;
        Some(if self.is_sampled_throughout() { UNTIL_THE_LOOK } else { MOST_REPLAYED })
    }

    /// Takes an arrival in.
    pub(super) fn note(&mut self, sampled: SampledArrival) {
        if sampled.arrival >= self.sampled_from && self.sample_at.is_none() {
            if self.sampled.len() == MOST_REPLAYED {
                self.sampled.pop_front();
            }
            self.sampled.push_back(sampled);
        }
    }

    /// Looks early if the pool, which has dropped so many requests of each model since the start,
    /// drops too many: once there are arrivals to look at.
    pub(super) fn note_lost(&mut self, now: Nanos, lost: impl Fn(ModelId) -> u64) {
        let mut has_lost = false;
        for ((model, before), since) in self.models.iter().zip(&self.lost_before).zip(&mut self.lost_since) {
            let lost = lost(model.id) - before;
            has_lost |= std::mem::replace(since, lost) != lost;
        }
        if !has_lost {
            return;
        }
        let came = match self.rate_rps.is_finite() {
            true => (self.rate_rps * (now - self.began - self.tuner.last_look()).as_secs_f64()) as u64,
            false => self.sampled.len() as u64,
        };
        let due = self.due();
        let Some(from) = self.tuner.early_look(came, &self.lost_since) else {
            self.look_at = due;
            return;
        };
        let mut from = (self.began + from).max(now);
        if let Some(at) = &mut self.sample_at {
            *at = from.min(*at);
        }
        if !self.is_sampled_throughout() {
            from = from.max(self.sample_at.unwrap_or(self.sampled_from) + self.enough());
        }
        // Not earlier than that, though it seemed so before: a pool has collapsed since, perhaps.
        self.look_at = from.min(due);
    }

    /// Returns true if it is time to look.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.look_at <= now && !self.sampled.is_empty()
    }

    /// Looks at what has come. Returns the setting before and the new one if that is another.
    pub(super) fn look(&mut self, now: Nanos) -> Option<(RuleSetting, RuleSetting)> {
        // Those of several ModelThreads and frontends have come in turns, each in order.
        self.sampled.make_contiguous().sort_by_key(|one| one.arrival);
        let (first, last) = match (self.sampled.front(), self.sampled.back()) {
            (Some(first), Some(last)) if self.sampled.len() == MOST_REPLAYED => (first.arrival, last.arrival),
            (_, last) => (self.sampled_from, last.map_or(now, |last| last.arrival)),
        };
        self.rate_rps = self.sampled.len() as f64 / (last - first).as_secs_f64().max(1e-3);
        for SampledArrival { model, arrival, deadline, again_us } in self.sampled.drain(..) {
            let Some(at) = self.models.iter().position(|own| own.id == model) else { continue };
            self.tuner.note(&Request {
                arrival: arrival - self.began,
                deadline: if deadline == NO_DEADLINE { deadline } else { deadline - self.began },
                queue: ModelId(at as u32).only_queue(),
                again_us,
                ..Request::default()
            });
        }
        let new = self.tuner.look(now - self.began);
        for (before, since) in self.lost_before.iter_mut().zip(&mut self.lost_since) {
            *before += std::mem::take(since);
        }
        self.look_at = self.due();
        let earliest = self.began + self.tuner.earliest_look();
        let next = if self.is_sampled_throughout() { earliest } else { self.look_at };
        self.sample_at = Some((next - self.enough()).max(now));
        new.map(|new| (std::mem::replace(&mut self.setting, new), new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::policy::{self, Policy};

    impl TunedRule {
        /// The default rule, tuned for GPU time, without a network.
        pub(in super::super) fn of_default() -> TunedRule {
            TunedRule {
                drop: DropRule::Exchange,
                deferral: policy::by_name("symphony").and_then(Policy::deferral).unwrap(),
                prefer: Prefer::Efficiency,
                network: Network::default(),
            }
        }
    }

    /// The tuner of a pool that serves models with these SLOs.
    fn pool(slos: &[Nanos]) -> TunedPool {
        let profile = Profile::linear(Nanos::from_micros(1), Nanos::from_millis(1), 1024);
        let profile = Arc::new(profile.unwrap());
        let model = |(id, &slo)| TunedModel {
            id: ModelId(id),
            name: format!("m{id}"),
            slo,
            profile: Arc::clone(&profile),
        };
        let (rule, setting) = (TunedRule::of_default(), RuleSetting::default());
        TunedPool::new(8, (0..).zip(slos).map(model).collect(), rule, setting, Nanos::ZERO, |_| 0).unwrap()
    }

    #[test]
    fn what_is_lost_before_the_first_look_brings_it_forward() {
        let slos = [Nanos::from_millis(10), Nanos::from_secs(10)];
        let mut pool = pool(&slos);
        assert!(pool.wanted(Nanos::ZERO).is_some());
        let (now, due) = (Nanos::from_secs(1), pool.look_at);
        let lost = |of_first| move |model| if model == ModelId(0) { of_first } else { 0 };
        pool.note_lost(now, lost(60));
        assert_eq!(pool.look_at, due, "nothing has come");
        for arrival in (1..=1_000).map(Nanos::from_millis) {
            let deadline = arrival + slos[0];
            pool.note(SampledArrival { model: ModelId(0), arrival, deadline, again_us: 0 });
        }
        pool.note_lost(now, lost(61));
        assert!(pool.look_at == pool.tuner.earliest_look() && pool.look_at < due);
    }

    #[test]
    fn an_early_look_waits_for_enough_arrivals_where_they_are_sampled_ahead_of_looks_only() {
        let mut pool = pool(&[Nanos::from_millis(25)]);
        // 400,000 requests per second, of which nothing is lost in a replay.
        assert!(pool.wanted(Nanos::ZERO).is_some());
        for arrival in (1..=20_000).map(|id| Nanos(2_500 * id)) {
            let deadline = arrival + Nanos::from_millis(25);
            pool.note(SampledArrival { model: ModelId(0), arrival, deadline, again_us: 0 });
        }
        pool.look(Nanos::from_millis(250));
        assert!((399_000.0..401_000.0).contains(&pool.rate_rps), "{}", pool.rate_rps);
        let (enough, due) = (pool.enough(), pool.due());
        // A fiftieth is lost until the earliest time of an early look, when sampling begins.
        let began = pool.tuner.earliest_look();
        pool.note_lost(began, |_| 1_000);
        assert!(pool.wanted(began).is_some() && pool.look_at == began + enough && pool.look_at < due);
        pool.note_lost(began + Nanos::from_millis(1), |_| 1_100);
        assert_eq!(pool.look_at, began + enough, "what is lost meanwhile is no reason to look at once");
    }
}
