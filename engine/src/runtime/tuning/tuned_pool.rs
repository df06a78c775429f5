//! The tuner of one sub-cluster: which models it has, when its arrivals are to be sampled, and when
//! to look at them.

use super::link::SampledArrival;
use crate::runtime::frontend::ModelInfo;
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
    /// The arrivals for the next look, as the ModelThreads have sent them, and its time.
    sampled: Vec<SampledArrival>,
    look_at: Nanos,
}

impl TunedPool {
    /// Makes the tuner of a sub-cluster of `gpus` GPUs which serves `models` and has `setting`;
    /// `None` if there are none.
    pub(super) fn new(
        gpus: usize,
        models: Vec<TunedModel>,
        rule: TunedRule,
        setting: RuleSetting,
        now: Nanos,
    ) -> Option<TunedPool> {
        if models.is_empty() {
            return None;
        }
        let of = |model: &TunedModel| WorkloadModel::new(&model.name, (*model.profile).clone(), model.slo);
        let workload = Workload::of_models(gpus, 1.0, models.iter().map(of).collect());
        let workload = Workload { network: rule.network, ..workload };
        let tuner = Tuner::new(&workload, rule.drop, rule.deferral, setting, rule.prefer);
        Some(TunedPool {
            models,
            look_at: now + tuner.pause(),
            tuner,
            began: now,
            setting,
            sample_at: Some(now),
            sampled_from: now,
            sampled: Vec::new(),
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

    /// Returns the number of arrivals that are wanted from now on, once for each look.
    pub(super) fn wanted(&mut self, now: Nanos) -> Option<usize> {
        self.sample_at.take_if(|at| *at <= now)?;
        self.sampled_from = now;
        Some(MOST_REPLAYED)
    }

    /// Takes an arrival in.
    pub(super) fn note(&mut self, sampled: SampledArrival) {
        let is_of_this_look = sampled.arrival >= self.sampled_from && self.sample_at.is_none();
        if is_of_this_look && self.sampled.len() < MOST_REPLAYED {
            self.sampled.push(sampled);
        }
    }

    /// Returns true if it is time to look.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.look_at <= now && !self.sampled.is_empty()
    }

    /// Looks at what has come. Returns the setting before and the new one if that is another.
    pub(super) fn look(&mut self, now: Nanos) -> Option<(RuleSetting, RuleSetting)> {
        // Those of several ModelThreads and frontends have come in turns.
        self.sampled.sort_unstable_by_key(|one| one.arrival);
        let last = self.sampled.last().map_or(now, |last| last.arrival);
        let span = (last - self.sampled_from).as_secs_f64().max(1e-3);
        let rate = self.sampled.len() as f64 / span;
        let enough = Nanos::from_secs_f64(SAMPLED * self.tuner.replayed(rate) as f64 / rate);
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
        let pause = self.tuner.pause();
        self.look_at = now + pause;
        self.sample_at = Some(self.look_at - enough.min(pause));
        new.map(|new| (std::mem::replace(&mut self.setting, new), new))
    }
}
