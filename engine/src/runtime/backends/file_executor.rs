//! The executors of ONNX files, each with a thread of its own: a CPU core, which computes on that
//! thread, or a GPU, which works beside it but for models that a library runs there.

use crate::runtime::gpu_memory::ServedGpu;
use std::sync::Arc;
use symphony_gpu::host::CpuWork;
use symphony_gpu::{
    ComputeThread, CpuExecutor, EnqueueError, Executor, FinishedJob, GpuExecutor, HostModel, Job, RowSlots,
};
use symphony_transport::Nanos;
use symphony_transport::slab::SlabView;

/// An executor of ONNX files.
#[allow(clippy::large_enum_variant, reason = "there is one for each thread")]
pub(crate) enum FileExecutor {
    /// A CPU core.
    Cpu(CpuExecutor),
    /// A GPU, with the list of its models for others.
    Cuda(GpuExecutor, Arc<ServedGpu>),
}

impl FileExecutor {
    /// Has a device that can do so read and write the slots of these slabs by itself.
    ///
    /// Errors: why some of them are copied by the host as well.
    pub(crate) fn share(&mut self, slabs: &[SlabView]) -> Result<(), String> {
        match self {
            FileExecutor::Cpu(_) => Ok(()),
            FileExecutor::Cuda(executor, _) => executor.share(slabs),
        }
    }

    /// Lists the models, by their slots, that it is about to get, so that others know of them once
    /// the engine has started.
    pub(crate) fn announce(&self, models: &[Option<Box<dyn HostModel>>]) {
        if let FileExecutor::Cuda(_, gpu) = self {
            models.iter().enumerate().for_each(|(slot, model)| gpu.note(slot, model.as_deref()));
        }
    }
}

impl Executor for FileExecutor {
    type Model = Box<dyn HostModel>;
    type Work = CpuWork;

    fn gpus(&self) -> u32 {
        match self {
            FileExecutor::Cpu(executor) => executor.gpus(),
            FileExecutor::Cuda(executor, _) => executor.gpus(),
        }
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Box<dyn HostModel>>) {
        match self {
            FileExecutor::Cpu(executor) => executor.exchange(slot, model),
            FileExecutor::Cuda(executor, gpu) => {
                gpu.note(slot, model.as_deref());
                executor.exchange(slot, model);
            }
        }
    }

    fn has_model(&self, slot: usize) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.has_model(slot),
            FileExecutor::Cuda(executor, _) => executor.has_model(slot),
        }
    }

    fn is_loaded(&self, slot: usize) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.is_loaded(slot),
            FileExecutor::Cuda(executor, _) => executor.is_loaded(slot),
        }
    }

    fn has_room(&self, gpu: u32) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.has_room(gpu),
            FileExecutor::Cuda(executor, _) => executor.has_room(gpu),
        }
    }

    fn ahead(&self) -> Nanos {
        match self {
            FileExecutor::Cpu(executor) => executor.ahead(),
            FileExecutor::Cuda(executor, _) => executor.ahead(),
        }
    }

    fn lost(&self) -> Option<&str> {
        match self {
            FileExecutor::Cpu(executor) => executor.lost(),
            FileExecutor::Cuda(executor, _) => executor.lost(),
        }
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        match self {
            FileExecutor::Cpu(executor) => executor.enqueue(job, rows, now),
            FileExecutor::Cuda(executor, _) => executor.enqueue(job, rows, now),
        }
    }

    fn take_work(&mut self) -> Option<(Job, CpuWork)> {
        match self {
            FileExecutor::Cpu(executor) => executor.take_work(),
            FileExecutor::Cuda(executor, _) => executor.take_work(),
        }
    }

    fn end_work(&mut self, work: CpuWork, now: Nanos) {
        match self {
            FileExecutor::Cpu(executor) => executor.end_work(work, now),
            FileExecutor::Cuda(executor, _) => executor.end_work(work, now),
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        match self {
            FileExecutor::Cpu(executor) => executor.poll(now),
            FileExecutor::Cuda(executor, _) => executor.poll(now),
        }
    }

    fn next_end(&self) -> Option<Nanos> {
        match self {
            FileExecutor::Cpu(executor) => executor.next_end(),
            FileExecutor::Cuda(executor, _) => executor.next_end(),
        }
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.write_outputs(finished, rows),
            FileExecutor::Cuda(executor, _) => executor.write_outputs(finished, rows),
        }
    }

    fn memory_bytes(&self) -> u64 {
        match self {
            FileExecutor::Cpu(executor) => executor.memory_bytes(),
            FileExecutor::Cuda(executor, _) => executor.memory_bytes(),
        }
    }

    fn die(&mut self) {
        match self {
            FileExecutor::Cpu(executor) => executor.die(),
            FileExecutor::Cuda(executor, _) => executor.die(),
        }
    }

    fn revive(&mut self, thread: &ComputeThread) {
        match self {
            FileExecutor::Cpu(executor) => executor.revive(thread),
            FileExecutor::Cuda(executor, _) => executor.revive(thread),
        }
    }
}
