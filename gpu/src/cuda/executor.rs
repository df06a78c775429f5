//! The executor of one GPU. It never waits for it: the inputs of a batch are copied while the one
//! before it runs, a batch is launched at its exec_at as one graph, its outputs leave while the
//! next one runs, and all of that is asked for and not waited for. A device that fails, or does not
//! end a batch, is given up with its reason.
//!
//! ```text
//! enqueue ─▶ Arriving ─ exec_at, the GPU is free ─▶ Running ─▶ Leaving ─▶ poll
//!                └ `latest` has passed ─▶ cancelled ─▶ Ending ─▶ poll
//! ```
//!
//! The device reads and writes slots of registered slabs itself; their claims are held until the
//! batch's copies are over, whatever becomes of it.

use super::error::DriverError;
use super::model::CudaModel;
use super::open::CudaDevice;
use super::room::LANES;
use super::slots::{LentSlots, SharedSlabs};
use super::weights::WeightsInUse;
use crate::executor::{EnqueueError, Executor, FinishedJob, Job, NoWork, RowSlots};
use crate::host::{ComputeThread, HostModel, RunError};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;
use symphony_transport::slab::SlabView;

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
    slabs: SharedSlabs,
    models: Vec<Option<Box<dyn HostModel>>>,
    /// The batches that were given up while the device might use their slots.
    orphans: Vec<CudaJob>,
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
    slots: LentSlots,
    /// What keeps its model's weights on the GPU, until it is over.
    _weights: Option<WeightsInUse>,
}

enum CudaStage {
    Arriving,
    Running {
        started: Nanos,
    },
    Leaving {
        started: Nanos,
    },
    /// The result is known, and copies may be under way.
    Ending {
        since: Nanos,
        started: Nanos,
        result: Result<(), RunError>,
    },
    Over {
        started: Nanos,
        finished: Nanos,
        result: Result<(), RunError>,
    },
}

impl CudaExecutor {
    /// Makes an idle executor of a device, with these models by their slots. A batch that takes
    /// more than ten times its profile and more than `hung_after` ends the device.
    pub fn new(
        device: Arc<CudaDevice>,
        models: Vec<Option<Box<dyn HostModel>>>,
        hung_after: Nanos,
    ) -> CudaExecutor {
        CudaExecutor {
            device,
            slabs: SharedSlabs::default(),
            models,
            orphans: Vec::new(),
            jobs: VecDeque::new(),
            polled: None,
            hung_after,
            looked: Nanos::ZERO,
        }
    }

    /// Has the device read and write the slots of these slabs by itself. It is called before the
    /// first job.
    ///
    /// # Errors
    /// The driver refuses some of the memory; rows there are copied by the host as well.
    pub fn share(&mut self, slabs: &[SlabView]) -> Result<(), String> {
        let (slabs, result) = SharedSlabs::new(&self.device, slabs);
        self.slabs = slabs;
        result
    }

    /// Returns true if a model is one that it runs: a plan on a GPU.
    pub fn runs(model: &dyn HostModel) -> bool {
        cuda_model(model).is_some()
    }

    /// Returns true if it has no batch, and no copy of an earlier one is under way.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.orphans.is_empty()
    }

    fn model(&self, slot: usize) -> Option<&CudaModel> {
        cuda_model(&**self.models.get(slot)?.as_ref()?)
    }

    /// Returns a lane that no batch of the executor has.
    fn free_lane(&self) -> Option<usize> {
        (0..LANES).find(|lane| self.jobs.iter().chain(&self.orphans).all(|of| of.lane != *lane))
    }

    /// Claims the rows of a job. Those that the device can't read itself are copied to where it
    /// can.
    fn stage(&self, job: &Job, lane: usize, rows: &dyn RowSlots) -> Result<LentSlots, EnqueueError> {
        let model = self.model(job.model).ok_or(EnqueueError::NoModel)?;
        let (plan, signature, mut lent) = (model.plan(), model.signature(), LentSlots::default());
        if job.rows == 0 || job.rows > plan.max_batch() {
            return Err(EnqueueError::NoInputs);
        }
        for row in 0..job.rows {
            let Some(claim) = rows.claim(row) else {
                lent.give_back();
                return Err(EnqueueError::NoInputs);
            };
            let slot = self.slabs.find(&claim);
            if slot.is_none() {
                let input = &claim[..signature.input_bytes()];
                if let Err(error) = model.lanes[lane].stage(plan, signature, row, input) {
                    self.device.open.note(error);
                    lent.give_back();
                    return Err(EnqueueError::NoInputs);
                }
            }
            lent.add(claim, slot);
        }
        Ok(lent)
    }

    /// Starts to copy the rows of a job to the device.
    fn arrive(&self, job: &Job, lane: usize, lent: &LentSlots) -> Result<(), RunError> {
        let Some(model) = self.model(job.model) else { return Ok(()) };
        let arrived = model.lanes[lane].arrive(model.plan(), model.signature(), job.rows, &lent.slots);
        arrived.map_err(|error| self.call_failed(model, lane, error))
    }

    /// Returns the failure of a batch one of whose calls has failed. Its copies can be waited for.
    fn call_failed(&self, model: &CudaModel, lane: usize, error: DriverError) -> RunError {
        let reason = self.device.open.note(error).to_string();
        if self.device.open.lost().is_none()
            && let Err(error) = model.lanes[lane].fence()
        {
            // Nobody can say when its copies are over.
            self.device.open.give_up(format!("after a call that failed, {error}"));
        }
        RunError::Failed { reason }
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
                let of = &mut self.jobs[at];
                of.stage = stage;
                if matches!(of.stage, CudaStage::Over { .. }) {
                    of.slots.give_back();
                }
            }
        }
        if self.device.open.lost().is_some() {
            self.end_all(now);
        }
    }

    /// Returns the stage that a batch has reached; `None` where that is the one that it has.
    fn next_stage(&self, at: usize, now: Nanos) -> Option<CudaStage> {
        let CudaJob { job, lane, stage, slots, .. } = &self.jobs[at];
        let model = self.model(job.model)?;
        let (lane_of, plan, signature) = (&model.lanes[*lane], model.plan(), model.signature());
        let over = |started, result| Some(CudaStage::Over { started, finished: now, result });
        // Whatever the result is: a copy may be under way.
        let ending = |started, result| {
            if slots.are_lent() {
                Some(CudaStage::Ending { since: now, started, result })
            } else {
                over(started, result)
            }
        };
        let failed = |started, error| {
            let reason = self.device.open.note(error).to_string();
            ending(started, Err(RunError::Failed { reason }))
        };
        match stage {
            CudaStage::Arriving if now > job.latest => ending(now, Err(RunError::Late)),
            CudaStage::Arriving if now < job.exec_at || self.is_running() => None,
            CudaStage::Arriving => match lane_of.run(plan, signature, job.rows, &slots.slots) {
                Ok(()) => Some(CudaStage::Running { started: now }),
                Err(error) => ending(now, Err(self.call_failed(model, *lane, error))),
            },
            &CudaStage::Running { started } => match lane_of.has_run() {
                Ok(true) => Some(CudaStage::Leaving { started }),
                Ok(false) => {
                    self.give_up_if_hung(job, started, now);
                    None
                }
                Err(error) => failed(started, error),
            },
            &CudaStage::Leaving { started } => match lane_of.has_left() {
                Ok(true) => over(started, model.outcome(*lane)),
                Ok(false) => {
                    self.give_up_if_hung(job, started, now);
                    None
                }
                Err(error) => failed(started, error),
            },
            CudaStage::Ending { since, started, result } => {
                if lane_of.is_quiet().map_err(|error| self.device.open.note(error)).unwrap_or(false) {
                    return over(*started, result.clone());
                }
                self.give_up_if_hung(job, *since, now);
                None
            }
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
            let failed = || Err(RunError::Failed { reason: reason.clone() });
            let (started, result) = match stage {
                CudaStage::Over { .. } => continue,
                CudaStage::Arriving => (now, failed()),
                CudaStage::Running { started } | CudaStage::Leaving { started } => (*started, failed()),
                CudaStage::Ending { started, result, .. } => (*started, result.clone()),
            };
            *stage = CudaStage::Over { started, finished: now, result };
        }
    }

    /// Waits until the copies of the batches that were given up are over, and gives the device up
    /// if they don't end.
    fn settle(&mut self) {
        let (began, patience) = (Instant::now(), Duration::from_nanos(self.hung_after.0));
        while let Some(CudaJob { job, lane, .. }) = self.orphans.last()
            && self.device.open.lost().is_none()
        {
            let quiet = self.model(job.model).map_or(Ok(true), |model| model.lanes[*lane].is_quiet());
            if quiet.map_err(|error| self.device.open.note(error)).unwrap_or(false) {
                self.orphans.pop().iter_mut().for_each(|of| of.slots.give_back());
            } else if began.elapsed() > patience {
                let seconds = patience.as_secs_f64();
                self.device.open.give_up(format!("copies have not ended after {seconds:.1} s"));
            } else {
                std::thread::sleep(Duration::from_nanos(LOOK_EVERY.0));
            }
        }
        self.orphans.clear();
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        self.die();
        self.settle();
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
        self.settle();
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
        gpu == 0 && self.jobs.len() + self.orphans.len() < LANES
    }

    fn ahead(&self) -> Nanos {
        AHEAD
    }

    fn lost(&self) -> Option<&str> {
        self.device.open.lost()
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        if !self.has_room(job.gpu) {
            return Err(EnqueueError::NoRoom);
        }
        if !self.has_model(job.model) {
            return Err(EnqueueError::NoModel);
        }
        let lane = self.free_lane().ok_or(EnqueueError::NoRoom)?;
        let weights = self.model(job.model).and_then(|of| of.weights().in_use());
        let weights = Some(weights.ok_or(EnqueueError::NoModel)?);
        let slots = self.stage(&job, lane, rows)?;
        self.polled.take_if(|of| of.lane == lane);
        let stage = match self.arrive(&job, lane, &slots) {
            Ok(()) => CudaStage::Arriving,
            Err(_) if !slots.are_lent() => return Err(EnqueueError::NoInputs),
            Err(error) => CudaStage::Ending { since: now, started: now, result: Err(error) },
        };
        self.jobs.push_back(CudaJob { job, lane, stage, slots, _weights: weights });
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
        let CudaJob { job, lane, stage, slots, .. } = self.jobs.remove(at)?;
        let CudaStage::Over { started, finished, result } = stage else { return None };
        let stage = CudaStage::Leaving { started };
        self.polled = Some(CudaJob { job, lane, stage, slots, _weights: None });
        Some(FinishedJob { gpu: job.gpu, batch: job.batch, started, finished, result })
    }

    fn next_end(&self) -> Option<Nanos> {
        let next_look = self.looked + LOOK_EVERY;
        let due = |of: &CudaJob| match of.stage {
            CudaStage::Arriving if self.is_running() => of.job.latest,
            CudaStage::Arriving => of.job.exec_at,
            CudaStage::Running { started } => (started + of.job.duration).max(LOOK_BEFORE) - LOOK_BEFORE,
            CudaStage::Leaving { .. } | CudaStage::Ending { .. } => next_look,
            CudaStage::Over { .. } => Nanos::ZERO,
        };
        let soonest = self.jobs.iter().map(due).min()?;
        let is_over = self.jobs.iter().any(|of| matches!(of.stage, CudaStage::Over { .. }));
        Some(if is_over { Nanos::ZERO } else { soonest.max(next_look) })
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        let Some(CudaJob { job, lane, slots, .. }) = self.polled.take_if(|of| of.job.batch == finished.batch)
        else {
            return false;
        };
        let Some(model) = self.model(job.model) else { return false };
        let (plan, signature) = (model.plan(), model.signature());
        let (input, output) = (signature.input_bytes(), signature.output_bytes());
        // The device has written into the slots that it was lent.
        let staged = |row: &usize| slots.slots.get(*row).is_none_or(Option::is_none);
        (0..job.rows).filter(staged).all(|row| {
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

    /// Forgets all jobs. Copies that are still under way to memory of the executor reach no slot,
    /// and what follows in a lane comes after them; slots that the device was lent stay claimed
    /// until it has ended.
    fn die(&mut self) {
        self.orphans.extend(self.jobs.drain(..).filter(|of| of.slots.are_lent()));
        self.polled = None;
    }

    /// Waits until the device has ended with what was given up.
    fn revive(&mut self, _: &ComputeThread) {
        self.settle();
    }
}
