//! Models that a thread of the host computes: what is common to all libraries that run ONNX files
//! on CPU cores, and the executor that runs them.

mod compute;
mod error;
mod executor;
mod prefix_group;

pub use compute::ComputeThread;
pub use error::{LoadError, RunError};
pub use executor::{CpuExecutor, CpuWork};
pub use prefix_group::{GroupError, PrefixGroup, SplitModel};

use crate::import::InputDefaults;
use crate::signature::Signature;
use std::any::Any;
use std::sync::Arc;

/// The limit of the bytes that the inputs of a full batch take: above it a wrong shape or
/// `max_batch` is likelier than a real need.
pub const MAX_STAGED_BYTES: usize = 4 << 30;

/// A loaded model with the buffers of one batch, which the thread that runs it computes. It is
/// `Any` so that an executor that can do more with its own kind of model finds that again.
pub trait HostModel: Send + Any {
    /// Returns the inputs and outputs of one row.
    fn signature(&self) -> &Signature;

    /// Returns the largest batch that [`HostModel::run`] accepts.
    fn max_batch(&self) -> usize;

    /// Returns the size in bytes of the model's file and of the files that hold its weights.
    fn weights_bytes(&self) -> u64;

    /// Returns an estimate of the memory that it takes, in bytes, without what a run takes and
    /// gives back.
    fn memory_bytes(&self) -> u64;

    /// Makes the model compute on `thread` from now on, if that is not the thread that loaded it.
    fn compute_on(&mut self, thread: &ComputeThread);

    /// Takes the variants of the rows of the next batch, in order, before they are staged. Only a
    /// model with variants needs to be told: see [`Signature::has_variant`].
    fn arrange(&mut self, _variants: &[u32]) {}

    /// Copies one request's inputs, laid out as [`Signature`] says, into row `row` of the batch.
    ///
    /// # Panics
    /// If `row` is not below [`HostModel::max_batch`], or `input` is shorter than a row.
    fn stage(&mut self, row: usize, input: &[u8]);

    /// Runs the first `rows` rows that were staged and returns when the model is done.
    ///
    /// # Errors
    /// If `rows` is 0 or above [`HostModel::max_batch`], or if the model fails, for example on an
    /// index that is out of range in one of the rows: then no row has an output, and the batch may
    /// be run again in parts. A model that panics gives an error too.
    fn run(&mut self, rows: usize) -> Result<(), RunError>;

    /// Copies the outputs of row `row` of the last run into `output`, laid out as [`Signature`]
    /// says; in a model with variants, as that of the row's variant does.
    ///
    /// # Panics
    /// If the last [`HostModel::run`] had no such row or failed, or if `output` is shorter than a
    /// row.
    fn unstage(&self, row: usize, output: &mut [u8]);

    /// Returns the variant that the row at `row` has in a batch of the kind that takes longest, by
    /// which batches are measured. A model without variants has 0 alone.
    fn slowest_variant(&self, _row: usize) -> u32 {
        0
    }

    /// Returns the values of inputs that may be left out, on which it is tried and measured.
    fn defaults(&self) -> &InputDefaults;

    /// Returns a note of the import about the model's batch, where there is something to say.
    fn import_note(&self) -> Option<&str> {
        None
    }

    /// Returns the graph, of which another model can be made, even while this one runs.
    fn graph(&self) -> Arc<dyn HostGraph>;
}

/// The part of a loaded model that models made of it share.
pub trait HostGraph: Send + Sync {
    /// Makes a model with buffers of its own, to compute on `thread`. The file is not read again.
    ///
    /// # Errors
    /// If the library refuses the model that it has accepted before, for example for want of
    /// memory.
    fn make(self: Arc<Self>, thread: &ComputeThread) -> Result<Box<dyn HostModel>, RunError>;

    /// Asks the model that this graph is of to end its run, which was given up, where its library
    /// can be asked.
    fn interrupt(&self) {}
}
