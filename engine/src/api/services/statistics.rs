//! Triton's inference statistics: counts and times of each model's requests. Each API core counts
//! its own requests; clients get the sum over all cores.

use crate::api::services::engine_client::EngineReply;
use crate::runtime::frontend::{ModelInfo, Outcome, Timeline};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

/// The number of events of a kind, and the sum of their durations.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(in crate::api) struct TimeSum {
    /// The number of events.
    pub(in crate::api) count: u64,
    /// The sum of durations, in nanoseconds.
    pub(in crate::api) ns: u64,
}

impl TimeSum {
    fn add(&mut self, time: Nanos) {
        self.count += 1;
        self.ns += time.0;
    }

    fn merge(&mut self, other: TimeSum) {
        self.count += other.count;
        self.ns += other.ns;
    }
}

/// The batches of one size, by the shares that this server's requests had in them: a request of `r`
/// rows counts `r / b` of a batch of `b`, so that all requests of a batch count 1 together.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(in crate::api) struct BatchStatistics {
    executions: f64,
    infer_ns: f64,
    output_ns: f64,
}

impl BatchStatistics {
    /// Returns the number of batches.
    pub(in crate::api) fn executions(&self) -> u64 {
        self.executions.round() as u64
    }

    /// Returns the durations of their runs.
    pub(in crate::api) fn infer(&self) -> TimeSum {
        TimeSum { count: self.executions(), ns: self.infer_ns as u64 }
    }

    /// Returns the durations from the end of a run to the API core.
    pub(in crate::api) fn output(&self) -> TimeSum {
        TimeSum { count: self.executions(), ns: self.output_ns as u64 }
    }

    fn merge(&mut self, other: &BatchStatistics) {
        self.executions += other.executions;
        self.infer_ns += other.infer_ns;
        self.output_ns += other.output_ns;
    }
}

/// The statistics of one model.
#[derive(Clone, Default, PartialEq, Debug)]
pub(in crate::api) struct ModelStatistics {
    /// The time at which a request last ran, in milliseconds since 1970; 0 for never.
    pub(in crate::api) last_ms: u64,
    /// The number of rows answered in time.
    pub(in crate::api) rows: u64,
    /// The requests answered in time, from arrival to answer.
    pub(in crate::api) success: TimeSum,
    /// All other valid requests, late ones included.
    pub(in crate::api) fail: TimeSum,
    /// The waits of requests answered in time, from arrival to the batch's start.
    pub(in crate::api) queue: TimeSum,
    /// The runs of the batches of requests answered in time.
    pub(in crate::api) infer: TimeSum,
    /// The ways of answers in time, from the batch's end to the API core.
    pub(in crate::api) output: TimeSum,
    /// The batches, by size.
    pub(in crate::api) batches: BTreeMap<u32, BatchStatistics>,
}

impl ModelStatistics {
    /// Returns the number of batches that ran.
    pub(in crate::api) fn executions(&self) -> u64 {
        self.batches.values().map(|batches| batches.executions).sum::<f64>().round() as u64
    }

    fn count(&mut self, reply: &EngineReply, rows: usize) {
        let total = reply.timeline.total();
        let Timeline { arrival, started, finished, answered, .. } = reply.timeline;
        let ran = matches!(reply.outcome, Outcome::Good | Outcome::Late(_));
        if ran {
            self.last_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_millis() as u64);
            let share = rows as f64 / f64::from(reply.batch_size.max(1));
            let batches = self.batches.entry(reply.batch_size).or_default();
            batches.executions += share;
            batches.infer_ns += share * (finished - started).0 as f64;
            batches.output_ns += share * (answered - finished).0 as f64;
        }
        match reply.outcome {
            Outcome::Good => {
                self.rows += rows as u64;
                self.success.add(total);
                self.queue.add(started - arrival);
                self.infer.add(finished - started);
                self.output.add(answered - finished);
            }
            // The client withdrew it.
            Outcome::Bad(Ending::Withdrawn) => {}
            _ => self.fail.add(total),
        }
    }

    fn merge(&mut self, other: &ModelStatistics) {
        self.last_ms = self.last_ms.max(other.last_ms);
        self.rows += other.rows;
        self.success.merge(other.success);
        self.fail.merge(other.fail);
        self.queue.merge(other.queue);
        self.infer.merge(other.infer);
        self.output.merge(other.output);
        for (&size, batches) in &other.batches {
            self.batches.entry(size).or_default().merge(batches);
        }
    }
}

/// The statistics of the model that a model slot has, or had last.
#[derive(Default, Debug)]
struct SlotStatistics {
    name: String,
    version: u64,
    statistics: ModelStatistics,
}

impl SlotStatistics {
    fn is_of(&self, model: &ModelInfo) -> bool {
        self.version == model.version && self.name == model.name
    }
}

/// The statistics of one API core. Only its thread writes, so the lock is free unless a client
/// reads the statistics.
#[derive(Clone, Default, Debug)]
pub(in crate::api) struct CoreStatistics(Arc<Mutex<BTreeMap<ModelId, SlotStatistics>>>);

impl CoreStatistics {
    fn model_slots(&self) -> MutexGuard<'_, BTreeMap<ModelId, SlotStatistics>> {
        // A panic while counting leaves a count off by one at the worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of `rows` rows that the engine accepted and has answered.
    pub(in crate::api) fn count(&self, model: &ModelInfo, rows: usize, reply: &EngineReply) {
        let mut slots = self.model_slots();
        let slot = slots.entry(model.id).or_default();
        if !slot.is_of(model) {
            let statistics = ModelStatistics::default();
            *slot = SlotStatistics { name: model.name.clone(), version: model.version, statistics };
        }
        slot.statistics.count(reply, rows);
    }
}

/// The statistics of all API cores.
#[derive(Default, Debug)]
pub(in crate::api) struct Statistics(Mutex<Vec<CoreStatistics>>);

impl Statistics {
    fn cores(&self) -> MutexGuard<'_, Vec<CoreStatistics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a core and returns its statistics.
    pub(in crate::api) fn join(&self) -> CoreStatistics {
        let core = CoreStatistics::default();
        self.cores().push(core.clone());
        core
    }

    /// Returns the statistics of a model of `table`, or of a query, summed over all cores.
    pub(in crate::api) fn of_model(&self, model: &ModelInfo, table: &[ModelInfo]) -> ModelStatistics {
        if model.is_query() { self.of(std::iter::once(model)) } else { self.of(model.classes(table)) }
    }

    /// Returns the statistics of one model, given by its size classes or itself, summed over all
    /// cores.
    fn of<'m>(&self, classes: impl Iterator<Item = &'m ModelInfo>) -> ModelStatistics {
        let mut sum = ModelStatistics::default();
        let cores = self.cores();
        for model in classes {
            for core in &*cores {
                let slots = core.model_slots();
                let slot = slots.get(&model.id).filter(|slot| slot.is_of(model));
                slot.iter().for_each(|slot| sum.merge(&slot.statistics));
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::frontend::SlotState;
    use symphony_transport::message::GpuId;

    fn reply(outcome: Outcome, batch_size: u32) -> EngineReply {
        EngineReply {
            outcome,
            output: Vec::new(),
            timeline: Timeline {
                arrival: Nanos(1_000),
                due: Nanos(9_000),
                batched: Nanos(1_500),
                started: Nanos(2_000),
                finished: Nanos(5_000),
                answered: Nanos(5_500),
            },
            batch_size,
            gpu: GpuId(0),
        }
    }

    fn model(version: u64) -> ModelInfo {
        ModelInfo {
            name: "m".into(),
            version,
            platform: "emulated".into(),
            slo: Nanos(8_000),
            max_batch: 8,
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(3), 0)
        }
    }

    #[test]
    fn requests_of_a_batch_count_it_once_together_over_all_cores() {
        let all = Statistics::default();
        let (one, other) = (all.join(), all.join());
        one.count(&model(1), 1, &reply(Outcome::Good, 3));
        one.count(&model(1), 1, &reply(Outcome::Late(Nanos(1)), 3));
        other.count(&model(1), 1, &reply(Outcome::Good, 3));
        other.count(&model(1), 2, &reply(Outcome::Good, 2));
        one.count(&model(1), 4, &reply(Outcome::Bad(Ending::DroppedInQueue), 0));
        one.count(&model(1), 4, &reply(Outcome::Bad(Ending::Withdrawn), 0));
        let sum = all.of([&model(1)].into_iter());
        assert_eq!((sum.rows, sum.executions()), (4, 2));
        assert_eq!(
            (sum.success, sum.fail),
            (TimeSum { count: 3, ns: 13_500 }, TimeSum { count: 2, ns: 9_000 })
        );
        assert_eq!(sum.queue, TimeSum { count: 3, ns: 3_000 });
        assert_eq!((sum.infer.ns, sum.output.ns), (9_000, 1_500));
        let sizes: Vec<_> =
            sum.batches.iter().map(|(size, b)| (*size, b.executions(), b.infer().ns)).collect();
        assert_eq!(sizes, [(2, 1, 3_000), (3, 1, 3_000)]);
        assert!(sum.last_ms > 0);
        assert_eq!(all.of([&model(2)].into_iter()), ModelStatistics::default());
        one.count(&model(2), 1, &reply(Outcome::Good, 1));
        assert_eq!(
            (all.of([&model(2)].into_iter()).rows, all.of([&model(1)].into_iter()).rows),
            (1, 3),
            "a slot that another model took over"
        );
    }
}
