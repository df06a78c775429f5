//! What a backend thread knows of a device: the trait [`Executor`]. A kind of executor implements
//! it; the engine drives every kind by the same loop, which hands it batches, runs the work that
//! needs a thread, and takes the batches that are over.
//!
//! No method waits. An executor whose device is a thread of the host hands out a [`Work`], which
//! owns everything that it needs while it runs; all else stays in the executor, so that another
//! thread can go on with it if the work never returns.

use crate::host::ComputeThread;
use crate::host::RunError;
use symphony_transport::Nanos;
use symphony_transport::slab::SlotClaim;

/// A batch, or a part of one, for an executor to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Job {
    /// The batch's number. No other batch of the same GPU has it.
    pub batch: u64,
    /// The GPU to run it, counted from the executor's first.
    pub gpu: u32,
    /// The slot of the model to run.
    pub model: usize,
    /// The number of rows.
    pub rows: usize,
    /// The duration that the scheduler expects.
    pub duration: Nanos,
    /// The time from which it may run.
    pub exec_at: Nanos,
    /// The time after which it is not to start any more.
    pub latest: Nanos,
}

/// The rows of a job in the slab: where their inputs are and their outputs go.
pub trait RowSlots {
    /// Claims a row's slot. A claim is owned: a device may read or write it after the call. Returns
    /// `None` if another holder has it, or if there is no such row.
    fn claim(&self, row: usize) -> Option<SlotClaim>;
}

/// A reason for which an executor does not take a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EnqueueError {
    /// The GPU has as many batches as it takes, or there is no such GPU.
    #[error("the GPU takes no batch at present")]
    NoRoom,
    /// The slot has no model.
    #[error("there is no such model on the executor")]
    NoModel,
    /// A row could not be claimed.
    #[error("a row of the batch has no inputs")]
    NoInputs,
}

/// A job that is over.
#[derive(Debug)]
pub struct FinishedJob {
    /// The GPU that ran it.
    pub gpu: u32,
    /// The batch's number.
    pub batch: u64,
    /// The time at which it started.
    pub started: Nanos,
    /// The time at which it finished.
    pub finished: Nanos,
    /// Whether the model ran.
    pub result: Result<(), RunError>,
}

/// Work of an executor that needs the calling thread for as long as it takes, which may be for
/// ever. It owns what it needs.
pub trait Work: Send {
    /// Does the work.
    fn run(&mut self);
}

/// The work of executors whose devices need no thread: there is none.
#[derive(Clone, Copy, Debug)]
pub enum NoWork {}

impl Work for NoWork {
    fn run(&mut self) {
        match *self {}
    }
}

/// A group of GPUs that one backend thread drives. See the module's description.
pub trait Executor: Send {
    /// A model as this kind of executor has it loaded. It is made, and measured, beside the
    /// executor: loading takes long.
    type Model: Send;
    /// The work that needs a thread.
    type Work: Work;

    /// Returns the number of GPUs, numbered from 0.
    fn gpus(&self) -> u32;

    /// Exchanges the model of a slot with another, or with none: loads it, unloads it. Jobs that
    /// were enqueued for the old one must be over.
    fn exchange(&mut self, slot: usize, model: &mut Option<Self::Model>);

    /// Returns true if the slot has a model that can run.
    fn has_model(&self, slot: usize) -> bool;

    /// Returns true if the weights of the slot's model are on the device at the moment. Without
    /// them it takes no job.
    fn is_loaded(&self, slot: usize) -> bool;

    /// Returns true if the GPU takes one more batch. It may take several, and runs them in order.
    fn has_room(&self, gpu: u32) -> bool;

    /// Returns how long before its exec_at a job may be enqueued, so that its inputs are there by
    /// then. An executor with another answer than 0 holds a job back until exec_at itself, and ends
    /// one that can't start by its `latest` with [`RunError::Late`].
    fn ahead(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Returns why its GPUs are lost for good, if they are: they are to be given nothing any more.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// Takes a job: claims the inputs of its rows and starts to run it, or puts it behind the jobs
    /// that the GPU has. A device that reads the slots by itself keeps the claims; a claim must be
    /// given up before [`Executor::poll`] returns the job.
    ///
    /// # Errors
    /// [`EnqueueError`]; the job was not taken then.
    fn enqueue(&mut self, job: Job, rows: &dyn RowSlots, now: Nanos) -> Result<(), EnqueueError>;

    /// Takes out the work that is to be run next on the calling thread, and the job that it is of.
    /// It comes back by [`Executor::end_work`], unless its thread never returns.
    fn take_work(&mut self) -> Option<(Job, Self::Work)>;

    /// Takes work back that was run.
    fn end_work(&mut self, work: Self::Work, now: Nanos);

    /// Returns a job that is over by now, if there is one; call it until there is none.
    fn poll(&mut self, now: Nanos) -> Option<FinishedJob>;

    /// Returns a time before which [`Executor::poll`] returns no job, unless work is taken back or
    /// a job is enqueued; `None` if that is for ever. A device that has to be asked returns the
    /// time at which it is to be asked next.
    fn next_end(&self) -> Option<Nanos>;

    /// Writes the outputs of the job that [`Executor::poll`] has returned last into its rows, where
    /// the device has not written them itself. Returns false if a row could not be claimed.
    fn write_outputs(&mut self, finished: &FinishedJob, rows: &dyn RowSlots) -> bool;

    /// Returns the memory that its models take, in bytes, as far as it is known.
    fn memory_bytes(&self) -> u64;

    /// Forgets all jobs: they were given up, since work of theirs did not come back or the thread
    /// died. Claims are given up too; a device that might still write into a slot is stopped first.
    fn die(&mut self);

    /// Makes the executor whole again after [`Executor::die`], to compute on `thread`: models whose
    /// work never came back are made anew.
    fn revive(&mut self, thread: &ComputeThread);
}
