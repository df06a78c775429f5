//! How true the models' profiles still are: the rolling profile that follows from the last batches,
//! as a ratio to the l(b) that the scheduler counts on. A ratio far above 1 makes batches late, one
//! far below 1 makes them smaller than they could be. Metrics show it, and the log says when it
//! becomes large.

use crate::runtime::counters::executions::{Executed, Executions};
use crate::runtime::frontend::{ModelInfo, SlotState};
use std::collections::BTreeMap;
use std::sync::Arc;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rolling_profile::RollingProfile;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The distance from 1, up or down, beyond which a drift is logged.
const LARGE: f64 = 0.25;

/// The distance from 1 within which a logged drift has ended: nearer than [`LARGE`], so that noise
/// at the border makes no lines.
const SMALL: f64 = 0.15;

/// What became of a model's drift.
#[derive(Clone, Copy, PartialEq, Debug)]
enum DriftChange {
    /// Beyond [`LARGE`] from now on: the ratio.
    Began(f64),
    /// Within [`SMALL`] again: the ratio.
    Ended(f64),
}

/// The drift of one model.
#[derive(Debug)]
struct ModelDrift {
    /// The profile that the batches are compared with: another one means another model.
    profile: Arc<Profile>,
    rolling: RollingProfile,
    /// True from a logged drift to its end.
    is_large: bool,
}

impl ModelDrift {
    fn new(profile: Arc<Profile>) -> ModelDrift {
        let rolling = RollingProfile::new(Profile::clone(&profile));
        ModelDrift { profile, rolling, is_large: false }
    }

    /// Takes in a batch that a backend thread ran.
    fn note(&mut self, backend: usize, batch: &Executed) {
        if !batch.cancelled {
            self.rolling.note(backend, batch.size as usize, batch.started, batch.finished);
        }
    }

    /// Moves the rolling profile, and returns what became of the drift, if it is worth a line.
    fn update(&mut self, now: Nanos) -> Option<DriftChange> {
        self.rolling.update(now);
        let ratio = self.rolling.drift()?;
        let distance = (ratio - 1.0).abs();
        if !self.is_large && distance > LARGE {
            self.is_large = true;
            Some(DriftChange::Began(ratio))
        } else if self.is_large && distance < SMALL {
            self.is_large = false;
            Some(DriftChange::Ended(ratio))
        } else {
            None
        }
    }
}

/// The drift of every model that runs. See the module's description.
#[derive(Debug, Default)]
pub(super) struct ProfileDrifts {
    models: BTreeMap<ModelId, ModelDrift>,
    /// How far the executed batches were read.
    cursor: Vec<u64>,
}

impl ProfileDrifts {
    /// Takes in the batches that ran since the last call, and logs which of `models`, the table by
    /// id, have drifted far.
    pub(super) fn observe(&mut self, now: Nanos, executions: &Executions, models: &[ModelInfo]) {
        let of = |id: &ModelId| models.get(id.0 as usize).filter(|model| model.state != SlotState::Vacant);
        self.models
            .retain(|id, drift| of(id).is_some_and(|model| Arc::ptr_eq(&model.profile, &drift.profile)));
        let ProfileDrifts { models: drifts, cursor } = self;
        executions.recent(executions.gpus(), cursor, |batch| {
            if let Some(model) = of(&batch.model) {
                let new = || ModelDrift::new(Arc::clone(&model.profile));
                drifts.entry(batch.model).or_insert_with(new).note(executions.backend_of(batch.gpu), &batch);
            }
        });
        for (id, drift) in drifts {
            if let (Some(model), Some(change)) = (of(id), drift.update(now)) {
                log(model, change);
            }
        }
    }

    /// Returns the largest ratio of a model's rolling profile to its profile, over all batch sizes;
    /// `None` before enough batches of a size have run.
    pub(super) fn of(&self, model: ModelId) -> Option<f64> {
        self.models.get(&model)?.rolling.drift()
    }

    /// Returns a model's rolling profile; `None` before enough batches of a size have run.
    pub(super) fn rolling_profile(&self, model: ModelId) -> Option<&Profile> {
        self.models.get(&model)?.rolling.measured()
    }
}

fn log(model: &ModelInfo, change: DriftChange) {
    let (name, version) = (&*model.label(), model.version);
    match change {
        DriftChange::Began(ratio) => tracing::warn!(
            model = name,
            version,
            "batches take {ratio:.2} times what the profile says: measure it again"
        ),
        DriftChange::Ended(ratio) => {
            tracing::info!(
                model = name,
                version,
                "batches take {ratio:.2} times what the profile says again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::rolling_profile::FLOOR;
    use symphony_transport::message::{BatchHeader, GpuId};

    /// l(b) = 1 ms * b + 4 ms.
    fn profile() -> Arc<Profile> {
        Arc::new(Profile::linear(Nanos::from_millis(1), Nanos::from_millis(4), 8).unwrap())
    }

    /// A batch of `size` that takes `factor` times what the profile says.
    fn batch(size: u32, factor: f64) -> Executed {
        let took = Nanos::from_secs_f64(profile().latency(size as usize).as_secs_f64() * factor);
        let started = Nanos::from_secs(1);
        Executed {
            started,
            finished: started + took,
            gpu: GpuId(0),
            model: ModelId(0),
            size,
            cancelled: false,
        }
    }

    /// Runs batches of all sizes for 20 s, and returns the lines that were worth it.
    fn run(drift: &mut ModelDrift, from: Nanos, factor: f64) -> Vec<DriftChange> {
        let said = (0..2_000_u32).filter_map(|n| {
            drift.note(0, &batch(1 + n % 8, factor));
            drift.update(from + Nanos::from_millis(10 * u64::from(n)))
        });
        said.collect()
    }

    #[test]
    fn cancelled_batches_say_nothing() {
        let mut drift = ModelDrift::new(profile());
        let cancelled = Executed { cancelled: true, ..batch(4, 3.0) };
        (0..FLOOR).for_each(|_| drift.note(0, &cancelled));
        assert_eq!((drift.update(Nanos::from_secs(1)), drift.rolling.drift()), (None, None));
    }

    #[test]
    fn an_executor_that_becomes_slow_is_told_once_and_once_more_when_it_is_fast_again() {
        let mut drift = ModelDrift::new(profile());
        let mut at = Nanos::ZERO;
        let mut run = |factor| {
            at += Nanos::from_secs(30);
            run(&mut drift, at, factor)
        };
        assert_eq!(run(1.0), []);
        assert!(matches!(run(1.5)[..], [DriftChange::Began(ratio)] if ratio > 1.0 + LARGE));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(1.1)[..], [DriftChange::Ended(ratio)] if ratio < 1.0 + SMALL));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(0.5)[..], [DriftChange::Began(ratio)] if ratio < 1.0 - LARGE));
    }

    #[test]
    fn a_slot_that_gets_another_model_begins_anew() {
        let executions = Executions::new(std::iter::once(0..1));
        let mut executing = executions.of_backend(0);
        let header = BatchHeader { size: 1, ..BatchHeader::default() };
        (0..FLOOR).for_each(|_| executing.ran(&header, Nanos::ZERO, Nanos::from_millis(10)));
        let model =
            ModelInfo { state: SlotState::Serving, profile: profile(), ..ModelInfo::vacant(ModelId(0), 0) };
        let mut drifts = ProfileDrifts::default();
        let now = Nanos::from_secs(1);
        drifts.observe(now, &executions, std::slice::from_ref(&model));
        assert!(drifts.of(ModelId(0)).is_some_and(|ratio| ratio > 1.1), "{drifts:?}");
        drifts.observe(now, &executions, &[ModelInfo { profile: profile(), ..model }]);
        assert_eq!(drifts.of(ModelId(0)), None);
    }
}
