//! The executor of one CPU core: it copies the inputs of a batch out of their slots, hands out the
//! model with them as work, and copies the outputs back. So a thread whose model hangs holds
//! nothing but that model.

use super::{ComputeThread, HostGraph, HostModel, RunError};
use crate::executor::{EnqueueError, Executor, FinishedJob, Job, RowSlots, Work};
use std::sync::Arc;
use symphony_transport::Nanos;

/// One CPU core as a GPU. It takes one batch at a time: the thread that would copy the next one's
/// inputs is the thread that computes.
pub struct CpuExecutor {
    models: Vec<Option<Box<dyn HostModel>>>,
    /// The variants of the rows of a batch, while it is staged.
    variants: Vec<u32>,
    stage: JobStage,
    /// The graph of the model that is away as work; `None` once its slot has another model.
    away: Option<(usize, Arc<dyn HostGraph>)>,
}

/// The progress of the executor's job.
enum JobStage {
    Idle,
    Staged {
        job: Job,
        started: Nanos,
    },
    Away {
        job: Job,
        started: Nanos,
    },
    Over {
        job: Job,
        finished: FinishedJob,
    },
    /// The end was reported; the outputs are still in the model.
    Polled {
        job: Job,
    },
}

/// A model that is to run a batch whose inputs it has.
pub struct CpuWork {
    model: Box<dyn HostModel>,
    rows: usize,
    result: Result<(), RunError>,
}

impl Work for CpuWork {
    fn run(&mut self) {
        self.result = self.model.run(self.rows);
    }
}

impl CpuExecutor {
    /// Makes an idle executor with these models, by their slots.
    pub fn new(models: Vec<Option<Box<dyn HostModel>>>) -> CpuExecutor {
        CpuExecutor { models, variants: Vec::new(), stage: JobStage::Idle, away: None }
    }
}

impl Executor for CpuExecutor {
    type Model = Box<dyn HostModel>;
    type Work = CpuWork;

    fn gpus(&self) -> u32 {
        1
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Box<dyn HostModel>>) {
        std::mem::swap(&mut self.models[slot], model);
        self.away.take_if(|(away, _)| *away == slot);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.models[slot].is_some()
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.has_model(slot)
    }

    fn has_room(&self, _: u32) -> bool {
        matches!(self.stage, JobStage::Idle | JobStage::Polled { .. })
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        if !self.has_room(job.gpu) {
            return Err(EnqueueError::NoRoom);
        }
        let model = self.models[job.model].as_mut().ok_or(EnqueueError::NoModel)?;
        let bytes = model.signature().input_bytes();
        if model.signature().has_variant {
            self.variants.clear();
            for row in 0..job.rows {
                let slot = rows.claim(row).ok_or(EnqueueError::NoInputs)?;
                self.variants.push(model.signature().variant(&slot[..bytes]));
            }
            model.arrange(&self.variants);
        }
        for row in 0..job.rows {
            let slot = rows.claim(row).ok_or(EnqueueError::NoInputs)?;
            model.stage(row, &slot[..bytes]);
        }
        self.stage = JobStage::Staged { job, started: now };
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, CpuWork)> {
        let JobStage::Staged { job, started } = self.stage else { return None };
        let model = self.models[job.model].take()?;
        self.away = Some((job.model, model.graph()));
        self.stage = JobStage::Away { job, started };
        Some((job, CpuWork { model, rows: job.rows, result: Ok(()) }))
    }

    fn end_work(&mut self, work: CpuWork, now: Nanos) {
        let JobStage::Away { job, started } = self.stage else { return };
        self.models[job.model] = Some(work.model);
        self.away = None;
        let (gpu, batch) = (job.gpu, job.batch);
        let finished = FinishedJob { gpu, batch, started, finished: now, result: work.result };
        self.stage = JobStage::Over { job, finished };
    }

    fn poll(&mut self, _: Nanos) -> Option<FinishedJob> {
        let JobStage::Over { job, .. } = self.stage else { return None };
        match std::mem::replace(&mut self.stage, JobStage::Polled { job }) {
            JobStage::Over { finished, .. } => Some(finished),
            _ => None,
        }
    }

    fn next_end(&self) -> Option<Nanos> {
        matches!(self.stage, JobStage::Over { .. }).then_some(Nanos::ZERO)
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        let JobStage::Polled { job } = self.stage else { return false };
        let Some(model) = self.models[job.model].as_ref().filter(|_| job.batch == finished.batch) else {
            return false;
        };
        let input = model.signature().input_bytes();
        (0..job.rows)
            .all(|row| rows.claim(row).map(|mut slot| model.unstage(row, &mut slot[input..])).is_some())
    }

    fn memory_bytes(&self) -> u64 {
        self.models.iter().flatten().map(|model| model.memory_bytes()).sum()
    }

    fn die(&mut self) {
        self.away.iter().for_each(|(_, graph)| graph.interrupt());
        self.stage = JobStage::Idle;
    }

    fn revive(&mut self, thread: &ComputeThread) {
        self.models.iter_mut().flatten().for_each(|model| model.compute_on(thread));
        if let Some((slot, graph)) = self.away.take() {
            // One that can't be made anew is missing, and its batches fail.
            self.models[slot] = graph.make(thread).ok();
        }
    }
}
