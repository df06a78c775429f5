//! Emulated GPUs that really read their inputs and write outputs which follow from them: so an
//! answer with the tensor of another request is found out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use symphony_gpu::{
    ComputeThread, EmulatedExecutor, EnqueueError, Executor, FinishedJob, Job, NoWork, RowSlots,
};
use symphony_transport::Nanos;

/// What a byte of input becomes in the output.
pub(super) const MASK: u8 = 0x5a;

/// Emulated GPUs whose outputs are their inputs, each byte changed.
pub(super) struct ComputingExecutor {
    emulated: EmulatedExecutor,
    /// The inputs of the batch that each GPU has.
    inputs: Vec<Vec<Vec<u8>>>,
    row_bytes: usize,
    /// The time, by the host's clock, until which no batch ends.
    hangs_until: Arc<AtomicU64>,
}

impl ComputingExecutor {
    pub(super) fn new(
        emulated: EmulatedExecutor,
        row_bytes: usize,
        hangs_until: Arc<AtomicU64>,
    ) -> ComputingExecutor {
        let inputs = vec![Vec::new(); emulated.gpus() as usize];
        ComputingExecutor { emulated, inputs, row_bytes, hangs_until }
    }
}

impl Executor for ComputingExecutor {
    type Model = Range<usize>;
    type Work = NoWork;

    fn gpus(&self) -> u32 {
        self.emulated.gpus()
    }

    fn exchange(&mut self, slot: usize, model: &mut Option<Range<usize>>) {
        self.emulated.exchange(slot, model);
    }

    fn has_model(&self, slot: usize) -> bool {
        self.emulated.has_model(slot)
    }

    fn is_loaded(&self, slot: usize) -> bool {
        self.emulated.is_loaded(slot)
    }

    fn has_room(&self, gpu: u32) -> bool {
        self.emulated.has_room(gpu)
    }

    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError> {
        let read = |row| Some(rows.claim(row)?[..self.row_bytes].to_vec());
        let inputs: Option<Vec<Vec<u8>>> = (0..job.rows).map(read).collect();
        let inputs = inputs.ok_or(EnqueueError::NoInputs)?;
        self.emulated.enqueue(job, rows, now)?;
        self.inputs[job.gpu as usize] = inputs;
        Ok(())
    }

    fn take_work(&mut self) -> Option<(Job, NoWork)> {
        None
    }

    fn end_work(&mut self, work: NoWork, _: Nanos) {
        match work {}
    }

    fn poll(&mut self, now: Nanos) -> Option<FinishedJob> {
        if now.0 < self.hangs_until.load(Ordering::Relaxed) {
            return None;
        }
        self.emulated.poll(now)
    }

    fn next_end(&self) -> Option<Nanos> {
        self.emulated.next_end()
    }

    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool {
        let inputs = &self.inputs[finished.gpu as usize];
        inputs.iter().enumerate().all(|(row, input)| {
            rows.claim(row).is_some_and(|mut slot| {
                let outputs = &mut slot[self.row_bytes..2 * self.row_bytes];
                outputs.iter_mut().zip(input).for_each(|(to, from)| *to = from ^ MASK);
                true
            })
        })
    }

    fn memory_bytes(&self) -> u64 {
        0
    }

    fn die(&mut self) {
        self.emulated.die();
    }

    fn revive(&mut self, thread: &ComputeThread) {
        self.emulated.revive(thread);
    }
}
