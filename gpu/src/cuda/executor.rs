//! The executor of one GPU. It never waits for it: the inputs of a batch are copied while the one
//! before it runs, a batch is launched at its exec_at as one graph, its outputs leave while the
//! next one runs, and all of that is asked for and not waited for. A device that fails, or does not
//! end a batch, is given up with its reason.
//!
//! ```text
//! enqueue ─▶ Arriving ─ exec_at, the GPU is free ─▶ Running ─▶ Leaving ─▶ poll
//!                └ `latest` has passed ─▶ cancelled
//! ```

use super::model::CudaModel;
use super::open::CudaDevice;
use super::room::LANES;
use super::weights::WeightsInUse;
use crate::executor::{EnqueueError, Executor, FinishedJob, Job, NoWork, RowSlots};
use crate::host::{ComputeThread, HostModel, RunError};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use symphony_transport::Nanos;

/// The time before exec_at from which a batch is taken: for its inputs to arrive.
const AHEAD: Nanos = Nanos::from_millis(2);

/// The time between two looks at a GPU that is busy.
const LOOK_EVERY: Nanos = Nanos::from_micros(20);

/// The time before the expected end of a batch from which the GPU is looked at.
const LOOK_BEFORE: Nanos = Nanos::from_micros(100);

/// The multiple of its profile that a batch may take before the GPU counts as hung.
const SLOWER_THAN_PROFILED: u64 = 10;

/// One GPU as an executor. See the module's description.
pub struct CudaExecutor {
    device: Arc<CudaDevice>,
    models: Vec<Option<Box<dyn HostModel>>>,
    /// The batches that it has, in the order in which they start.
    jobs: VecDeque<CudaJob>,
    /// The batch that was polled last, whose outputs are still in its lane.
    polled: Option<CudaJob>,
    /// The least time that a batch may take before the GPU counts as hung.
    hung_after: Nanos,
    /// The time at which the GPU was looked at last.
    looked: Nanos,
}

/// A batch of the executor.
struct CudaJob {
    job: Job,
    lane: usize,
    stage: CudaStage,
    /// What keeps its model's weights on the GPU, until it is over.
    _weights: Option<WeightsInUse>,
}

enum CudaStage {
    Arriving,
    Running { started: Nanos },
    Leaving { started: Nanos },
    Over { started: Nanos, finished: Nanos, result: Result<(), RunError> },
}

impl CudaExecutor {
    /// Makes an idle executor of a device, with these models by their slots. A batch that takes
    /// more than ten times its profile and more than `hung_after` ends the device.
    pub fn new(
        device: Arc<CudaDevice>,
        models: Vec<Option<Box<dyn HostModel>>>,
        hung_after: Nanos,
    ) -> CudaExecutor {
        let (jobs, polled, looked) = (VecDeque::new(), None, Nanos::ZERO);
        CudaExecutor { device, models, jobs, polled, hung_after, looked }
    }

    fn model(&self, slot: usize) -> Option<&CudaModel> {
        cuda_model(&**self.models.get(slot)?.as_ref()?)
    }

    /// Returns a lane that no batch of the executor has.
    fn free_lane(&self) -> Option<usize> {
        (0..LANES).find(|lane| self.jobs.iter().all(|of| of.lane != *lane))
    }

    /// Copies the rows of a job to where the device reads them, and starts to copy them there.
    fn stage(&self, job: &Job, lane: usize, rows: &dyn RowSlots) -> Result<(), EnqueueError> {
        let model = self.model(job.model).ok_or(EnqueueError::NoModel)?;
        let (plan, signature) = (model.plan(), model.signature());
        if job.rows == 0 || job.rows > plan.max_batch() {
            return Err(EnqueueError::NoInputs);
        }
        let failed = |error| {
            self.device.open.note(error);
            EnqueueError::NoInputs
        };
        for row in 0..job.rows {
            let slot = rows.claim(row).ok_or(EnqueueError::NoInputs)?;
            let input = &slot[..signature.input_bytes()];
            model.lanes[lane].stage(plan, signature, row, input).map_err(failed)?;
        }
        model.lanes[lane].arrive(plan, job.rows).map_err(failed)
    }

    /// Brings every batch as far as it gets by now.
    fn advance(&mut self, now: Nanos) {
        self.looked = now;
        for at in 0..self.jobs.len() {
            if self.device.open.lost().is_some() {
                return self.end_all(now);
            }
            let next = self.next_stage(at, now);
            if let Some(stage) = next {
                self.jobs[at].stage = stage;
            }
        }
        if self.device.open.lost().is_some() {
            self.end_all(now);
        }
    }

    /// Returns the stage that a batch has reached; `None` where that is the one that it has.
    fn next_stage(&self, at: usize, now: Nanos) -> Option<CudaStage> {
        let CudaJob { job, lane, stage, .. } = &self.jobs[at];
        let model = self.model(job.model)?;
        let (lane_of, plan) = (&model.lanes[*lane], model.plan());
        let over = |started, result| Some(CudaStage::Over { started, finished: now, result });
        let failed = |started, error| {
            let reason = self.device.open.note(error).to_string();
            over(started, Err(RunError::Failed { reason }))
        };
        match *stage {
            CudaStage::Arriving if now > job.latest => over(now, Err(RunError::Late)),
            CudaStage::Arriving if now < job.exec_at || self.is_running() => None,
            CudaStage::Arriving => match lane_of.run(plan, job.rows) {
                Ok(()) => Some(CudaStage::Running { started: now }),
                Err(error) => failed(now, error),
            },
            CudaStage::Running { started } => match lane_of.has_run() {
                Ok(true) => Some(CudaStage::Leaving { started }),
                Ok(false) => {
                    self.give_up_if_hung(job, started, now);
                    None
                }
                Err(error) => failed(started, error),
            },
            CudaStage::Leaving { started } => match lane_of.has_left() {
                Ok(true) => over(started, model.outcome(*lane)),
                Ok(false) => {
                    self.give_up_if_hung(job, started, now);
                    None
                }
                Err(error) => failed(started, error),
            },
            CudaStage::Over { .. } => None,
        }
    }

    fn is_running(&self) -> bool {
        self.jobs.iter().any(|of| matches!(of.stage, CudaStage::Running { .. }))
    }

    fn give_up_if_hung(&self, job: &Job, started: Nanos, now: Nanos) {
        let patience = Nanos(job.duration.0.saturating_mul(SLOWER_THAN_PROFILED)).max(self.hung_after);
        if now - started > patience {
            let seconds = (now - started).as_secs_f64();
            self.device
                .open
                .give_up(format!("a batch of {} rows has not ended after {seconds:.1} s", job.rows));
        }
    }

    /// Ends all batches of a device that was given up.
    fn end_all(&mut self, now: Nanos) {
        let reason = self.device.open.lost().unwrap_or_default().to_owned();
        for CudaJob { stage, .. } in &mut self.jobs {
            let started = match *stage {
                CudaStage::Over { .. } => continue,
                CudaStage::Arriving => now,
                CudaStage::Running { started } | CudaStage::Leaving { started } => started,
            };
            let result = Err(RunError::Failed { reason: reason.clone() });
            *stage = CudaStage::Over { started, finished: now, result };
        }
    }
}

/// Returns a model as one that is on a GPU, if it is.
fn cuda_model(model: &dyn HostModel) -> Option<&CudaModel> {
    (model as &dyn Any).downcast_ref()
}

impl Executor for CudaExecutor {
    type Model = Box<dyn HostModel>;
    type Work = NoWork;

    fn gpus(&self) -> u32 {
        1
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Box<dyn HostModel>>) {
        self.polled.take_if(|of| of.job.model == slot);
        std::mem::swap(&mut self.models[slot], model);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.device.open.lost().is_none() && self.model(slot).is_some()
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.model(slot).is_some_and(|of| of.weights().is_there())
    }

    fn has_room(&self, gpu: u32) -> bool {
        gpu == 0 && self.jobs.len() < LANES
    }

    fn ahead(&self) -> Nanos {
        AHEAD
    }

    fn lost(&self) -> Option<&str> {
        self.device.open.lost()
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, _: Nanos) -> Result<(), EnqueueError> {
        if !self.has_room(job.gpu) {
            return Err(EnqueueError::NoRoom);
        }
        if !self.has_model(job.model) {
            return Err(EnqueueError::NoModel);
        }
        let lane = self.free_lane().ok_or(EnqueueError::NoRoom)?;
        let weights = self.model(job.model).and_then(|of| of.weights().in_use());
        let weights = Some(weights.ok_or(EnqueueError::NoModel)?);
        self.stage(&job, lane, rows)?;
        self.polled.take_if(|of| of.lane == lane);
        self.jobs.push_back(CudaJob { job, lane, stage: CudaStage::Arriving, _weights: weights });
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, NoWork)> {
        None
    }

    fn end_work(&mut self, work: NoWork, _: Nanos) {
        match work {}
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        self.advance(now);
        let at = self.jobs.iter().position(|of| matches!(of.stage, CudaStage::Over { .. }))?;
        let CudaJob { job, lane, stage, .. } = self.jobs.remove(at)?;
        let CudaStage::Over { started, finished, result } = stage else { return None };
        self.polled = Some(CudaJob { job, lane, stage: CudaStage::Leaving { started }, _weights: None });
        Some(FinishedJob { gpu: job.gpu, batch: job.batch, started, finished, result })
    }

    fn next_end(&self) -> Option<Nanos> {
        let next_look = self.looked + LOOK_EVERY;
        let due = |of: &CudaJob| match of.stage {
            CudaStage::Arriving if self.is_running() => of.job.latest,
            CudaStage::Arriving => of.job.exec_at,
            CudaStage::Running { started } => (started + of.job.duration).max(LOOK_BEFORE) - LOOK_BEFORE,
            CudaStage::Leaving { .. } => next_look,
            CudaStage::Over { .. } => Nanos::ZERO,
        };
        let soonest = self.jobs.iter().map(due).min()?;
        let is_over = self.jobs.iter().any(|of| matches!(of.stage, CudaStage::Over { .. }));
        Some(if is_over { Nanos::ZERO } else { soonest.max(next_look) })
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        let Some(CudaJob { job, lane, .. }) = self.polled.take_if(|of| of.job.batch == finished.batch) else {
            return false;
        };
        let Some(model) = self.model(job.model) else { return false };
        let (plan, signature) = (model.plan(), model.signature());
        let (input, output) = (signature.input_bytes(), signature.output_bytes());
        (0..job.rows).all(|row| {
            rows.claim(row).is_some_and(|mut slot| {
                let written =
                    model.lanes[lane].unstage(plan, signature, row, &mut slot[input..input + output]);
                written.map_err(|error| self.device.open.note(error)).is_ok()
            })
        })
    }

    fn memory_bytes(&self) -> u64 {
        self.models
            .iter()
            .flatten()
            .filter_map(|model| cuda_model(&**model))
            .map(CudaModel::device_bytes)
            .sum()
    }

    /// Forgets all jobs. Copies that are still under way reach no slot: inputs and outputs pass
    /// through memory of the executor, and what follows in a lane comes after them.
    fn die(&mut self) {
        self.jobs.clear();
        self.polled = None;
    }

    fn revive(&mut self, _: &ComputeThread) {}
}
