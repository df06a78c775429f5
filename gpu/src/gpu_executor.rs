//! The executor of one GPU that runs plans, and by ONNX Runtime's CUDA provider the models that
//! plans can't be made of. The GPU runs one batch at a time, whichever of the two has it: a batch
//! of the library waits until all plans' batches before it are over, and while it runs, which takes
//! the calling thread, none is begun.

use crate::cuda::CudaExecutor;
use crate::executor::{EnqueueError, Executor, FinishedJob, Job, RowSlots};
use crate::host::{ComputeThread, CpuExecutor, CpuWork, HostModel, RunError};
use symphony_transport::Nanos;
use symphony_transport::slab::SlabView;

/// One GPU as an executor. See the module's description.
pub struct GpuExecutor {
    plans: CudaExecutor,
    library: CpuExecutor,
    /// The library's batch whose inputs are staged, until its turn comes.
    waiting: Option<Job>,
    /// The time at which the turn of the library's batch has come.
    began: Nanos,
}

impl GpuExecutor {
    /// Makes an executor of a GPU that runs `plans`, with room for as many models of the library.
    /// Neither has a model in the same slot as the other.
    pub fn new(plans: CudaExecutor, slots: usize) -> GpuExecutor {
        let library = CpuExecutor::new((0..slots).map(|_| None).collect());
        GpuExecutor { plans, library, waiting: None, began: Nanos::ZERO }
    }

    /// Has the GPU read and write the slots of these slabs by itself, for plans.
    ///
    /// # Errors
    /// Those of [`CudaExecutor::share`].
    pub fn share(&mut self, slabs: &[SlabView]) -> Result<(), String> {
        self.plans.share(slabs)
    }

    /// Lets the library's batch begin once its time has come, or ends it if that has passed.
    fn advance(&mut self, now: Nanos) -> Option<FinishedJob> {
        let job = self.waiting?;
        let ended = |reason: RunError| {
            let (gpu, batch) = (job.gpu, job.batch);
            Some(FinishedJob { gpu, batch, started: now, finished: now, result: Err(reason) })
        };
        if let Some(reason) = self.plans.lost() {
            let reason = reason.to_owned();
            self.forget_waiting();
            return ended(RunError::Failed { reason });
        }
        if now > job.latest {
            self.forget_waiting();
            return ended(RunError::Late);
        }
        if now >= job.exec_at && self.plans.is_idle() {
            (self.waiting, self.began) = (None, now);
        }
        None
    }

    fn forget_waiting(&mut self) {
        self.waiting = None;
        self.library.die();
    }
}

impl Executor for GpuExecutor {
    type Model = Box<dyn HostModel>;
    type Work = CpuWork;

    fn gpus(&self) -> u32 {
        1
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Box<dyn HostModel>>) {
        let (mut plan, mut other) = match model.take() {
            Some(of) if CudaExecutor::runs(&*of) => (Some(of), None),
            of => (None, of),
        };
        self.plans.exchange(slot, &mut plan);
        self.library.exchange(slot, &mut other);
        *model = plan.or(other);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.plans.has_model(slot) || (self.lost().is_none() && self.library.has_model(slot))
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.plans.is_loaded(slot) || self.library.is_loaded(slot)
    }

    fn has_room(&self, gpu: u32) -> bool {
        self.waiting.is_none() && self.library.has_room(gpu) && self.plans.has_room(gpu)
    }

    fn ahead(&self) -> Nanos {
        self.plans.ahead()
    }

    fn lost(&self) -> Option<&str> {
        self.plans.lost()
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        if !self.has_room(job.gpu) {
            return Err(EnqueueError::NoRoom);
        }
        if !self.library.has_model(job.model) {
            return self.plans.enqueue(job, rows, now);
        }
        self.library.enqueue(job, rows, now)?;
        self.waiting = Some(job);
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, CpuWork)> {
        if self.waiting.is_some() { None } else { self.library.take_work() }
    }

    fn end_work(&mut self, work: CpuWork, now: Nanos) {
        self.library.end_work(work, now);
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        if let Some(finished) = self.plans.poll(now).or_else(|| self.advance(now)) {
            return Some(finished);
        }
        let finished = self.library.poll(now)?;
        // It was staged before.
        Some(FinishedJob { started: self.began, ..finished })
    }

    fn next_end(&self) -> Option<Nanos> {
        let waiting = self.waiting.map(|job| if self.plans.is_idle() { job.exec_at } else { job.latest });
        [self.plans.next_end(), waiting, self.library.next_end()].into_iter().flatten().min()
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        self.plans.write_outputs(finished, rows) || self.library.write_outputs(finished, rows)
    }

    fn memory_bytes(&self) -> u64 {
        self.plans.memory_bytes() + self.library.memory_bytes()
    }

    fn die(&mut self) {
        self.plans.die();
        self.forget_waiting();
    }

    fn revive(&mut self, thread: &ComputeThread) {
        self.plans.revive(thread);
        self.library.revive(thread);
    }
}
