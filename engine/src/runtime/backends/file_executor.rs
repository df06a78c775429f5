//! The executors of ONNX files, each with a thread of its own: a CPU core, which computes on that
//! thread, or a GPU, which works beside it.

use symphony_gpu::cuda::CudaExecutor;
use symphony_gpu::host::CpuWork;
use symphony_gpu::{
    ComputeThread, CpuExecutor, EnqueueError, Executor, FinishedJob, HostModel, Job, RowSlots,
};
use symphony_transport::Nanos;

/// An executor of ONNX files.
pub(crate) enum FileExecutor {
    /// A CPU core.
    Cpu(CpuExecutor),
    /// A GPU.
    Cuda(CudaExecutor),
}

impl Executor for FileExecutor {
    type Model = Box<dyn HostModel>;
    type Work = CpuWork;

    fn gpus(&self) -> u32 {
        match self {
            FileExecutor::Cpu(executor) => executor.gpus(),
            FileExecutor::Cuda(executor) => executor.gpus(),
        }
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Box<dyn HostModel>>) {
        match self {
            FileExecutor::Cpu(executor) => executor.exchange(slot, model),
            FileExecutor::Cuda(executor) => executor.exchange(slot, model),
        }
    }

    fn has_model(&self, slot: usize) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.has_model(slot),
            FileExecutor::Cuda(executor) => executor.has_model(slot),
        }
    }

    fn has_room(&self, gpu: u32) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.has_room(gpu),
            FileExecutor::Cuda(executor) => executor.has_room(gpu),
        }
    }

    fn ahead(&self) -> Nanos {
        match self {
            FileExecutor::Cpu(executor) => executor.ahead(),
            FileExecutor::Cuda(executor) => executor.ahead(),
        }
    }

    fn lost(&self) -> Option<&str> {
        match self {
            FileExecutor::Cpu(executor) => executor.lost(),
            FileExecutor::Cuda(executor) => executor.lost(),
        }
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        match self {
            FileExecutor::Cpu(executor) => executor.enqueue(job, rows, now),
            FileExecutor::Cuda(executor) => executor.enqueue(job, rows, now),
        }
    }

    fn take_work(&mut self) -> Option<(Job, CpuWork)> {
        match self {
            FileExecutor::Cpu(executor) => executor.take_work(),
            FileExecutor::Cuda(_) => None,
        }
    }

    fn end_work(&mut self, work: CpuWork, now: Nanos) {
        if let FileExecutor::Cpu(executor) = self {
            executor.end_work(work, now);
        }
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        match self {
            FileExecutor::Cpu(executor) => executor.poll(now),
            FileExecutor::Cuda(executor) => executor.poll(now),
        }
    }

    fn next_end(&self) -> Option<Nanos> {
        match self {
            FileExecutor::Cpu(executor) => executor.next_end(),
            FileExecutor::Cuda(executor) => executor.next_end(),
        }
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        match self {
            FileExecutor::Cpu(executor) => executor.write_outputs(finished, rows),
            FileExecutor::Cuda(executor) => executor.write_outputs(finished, rows),
        }
    }

    fn memory_bytes(&self) -> u64 {
        match self {
            FileExecutor::Cpu(executor) => executor.memory_bytes(),
            FileExecutor::Cuda(executor) => executor.memory_bytes(),
        }
    }

    fn die(&mut self) {
        match self {
            FileExecutor::Cpu(executor) => executor.die(),
            FileExecutor::Cuda(executor) => executor.die(),
        }
    }

    fn revive(&mut self, thread: &ComputeThread) {
        match self {
            FileExecutor::Cpu(executor) => executor.revive(thread),
            FileExecutor::Cuda(executor) => executor.revive(thread),
        }
    }
}
