//! How true the models' profiles still are: the time that recent batches took, as a ratio to the
//! l(b) that the scheduler counts on. A ratio far above 1 makes batches late, one far below 1 makes
//! them smaller than they could be. Metrics show it, and the log says when it becomes large.

use crate::runtime::counters::executions::{Executed, Executions};
use crate::runtime::frontend::{ModelInfo, SlotState};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use symphony_scheduler::profile::Profile;
use symphony_transport::message::ModelId;

/// The number of a model's last batches that are compared.
const WINDOW: usize = 128;

/// The number of batches before which nothing is said.
const FLOOR: usize = 32;

/// The share of the batches that took no longer than what is said.
const QUANTILE: f64 = 0.95;

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

/// The last batches of one model.
#[derive(Debug)]
struct ModelDrift {
    /// The profile that the batches are compared with: another one means another model.
    profile: Arc<Profile>,
    /// The ratio of each of the last batches, oldest first.
    ratios: VecDeque<f64>,
    /// True from a logged drift to its end.
    is_large: bool,
}

impl ModelDrift {
    fn new(profile: Arc<Profile>) -> ModelDrift {
        ModelDrift { profile, ratios: VecDeque::with_capacity(WINDOW), is_large: false }
    }

    fn note(&mut self, batch: &Executed) {
        let size = batch.size as usize;
        if batch.cancelled || size == 0 || size > self.profile.max_batch() {
            return;
        }
        if self.ratios.len() == WINDOW {
            self.ratios.pop_front();
        }
        let took = (batch.finished - batch.started).as_secs_f64();
        self.ratios.push_back(took / self.profile.latency(size).as_secs_f64());
    }

    /// Returns the ratio that [`QUANTILE`] of the last batches did not exceed; `None` before there
    /// are [`FLOOR`].
    fn ratio(&self) -> Option<f64> {
        if self.ratios.len() < FLOOR {
            return None;
        }
        let mut sorted: Vec<f64> = self.ratios.iter().copied().collect();
        let rank = (sorted.len() as f64 * QUANTILE).ceil() as usize - 1;
        let (_, ratio, _) = sorted.select_nth_unstable_by(rank, f64::total_cmp);
        Some(*ratio)
    }

    /// Returns what became of the drift since the last call, if it is worth a line.
    fn change(&mut self) -> Option<DriftChange> {
        let ratio = self.ratio()?;
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
    pub(super) fn observe(&mut self, executions: &Executions, models: &[ModelInfo]) {
        let of = |id: &ModelId| models.get(id.0 as usize).filter(|model| model.state != SlotState::Vacant);
        self.models
            .retain(|id, drift| of(id).is_some_and(|model| Arc::ptr_eq(&model.profile, &drift.profile)));
        let ProfileDrifts { models: drifts, cursor } = self;
        executions.recent(executions.gpus(), cursor, |batch| {
            if let Some(model) = of(&batch.model) {
                let new = || ModelDrift::new(Arc::clone(&model.profile));
                drifts.entry(batch.model).or_insert_with(new).note(&batch);
            }
        });
        for (id, drift) in drifts {
            if let (Some(model), Some(change)) = (of(id), drift.change()) {
                log(model, change);
            }
        }
    }

    /// Returns the ratio of the time that a model's recent batches took to its profile; `None`
    /// before enough have run.
    pub(super) fn of(&self, model: ModelId) -> Option<f64> {
        self.models.get(&model)?.ratio()
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
    use proptest::prelude::*;
    use symphony_transport::Nanos;
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

    fn close(ratio: Option<f64>, expected: f64) -> bool {
        ratio.is_some_and(|ratio| (ratio - expected).abs() < 1e-6)
    }

    #[test]
    fn nothing_is_said_before_the_floor_and_cancelled_batches_say_nothing() {
        let mut drift = ModelDrift::new(profile());
        for _ in 0..FLOOR - 1 {
            drift.note(&batch(4, 3.0));
            drift.note(&Executed { cancelled: true, ..batch(4, 9.0) });
            drift.note(&batch(9, 1.0));
        }
        assert_eq!((drift.ratio(), drift.change()), (None, None));
        drift.note(&batch(1, 3.0));
        assert!(close(drift.ratio(), 3.0), "{drift:?}");
    }

    #[test]
    fn an_executor_that_becomes_slow_is_told_once_and_once_more_when_it_is_fast_again() {
        let mut drift = ModelDrift::new(profile());
        let mut run = |factor: f64| -> Vec<DriftChange> {
            let told = (0..2 * WINDOW as u32).filter_map(|n| {
                drift.note(&batch(1 + n % 8, factor));
                drift.change()
            });
            told.collect()
        };
        assert_eq!(run(1.0), []);
        assert!(matches!(run(1.5)[..], [DriftChange::Began(ratio)] if (ratio - 1.5).abs() < 1e-6));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(1.1)[..], [DriftChange::Ended(ratio)] if ratio < 1.0 + SMALL));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(0.5)[..], [DriftChange::Began(ratio)] if (ratio - 0.5).abs() < 1e-6));
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
        drifts.observe(&executions, std::slice::from_ref(&model));
        assert!(close(drifts.of(ModelId(0)), 2.0), "{drifts:?}");
        drifts.observe(&executions, &[ModelInfo { profile: profile(), ..model }]);
        assert_eq!(drifts.of(ModelId(0)), None);
    }

    proptest! {
        #[test]
        fn the_ratio_is_one_that_a_recent_batch_had(
            batches in proptest::collection::vec((1_u32..=8, 0.2_f64..5.0), FLOOR..3 * WINDOW),
        ) {
            let mut drift = ModelDrift::new(profile());
            batches.iter().for_each(|&(size, factor)| drift.note(&batch(size, factor)));
            let ratio = drift.ratio().unwrap();
            let recent = &batches[batches.len().saturating_sub(WINDOW)..];
            prop_assert!(recent.iter().any(|(_, factor)| (factor - ratio).abs() < 1e-6));
            let above = recent.iter().filter(|(_, factor)| *factor > ratio + 1e-6).count();
            prop_assert!(above as f64 <= recent.len() as f64 * (1.0 - QUANTILE));
        }
    }
}
