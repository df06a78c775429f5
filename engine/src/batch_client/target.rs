//! What runs the rows: a model behind a server, or in this process.

use super::source::RowTensors;
use symphony_gpu::Signature;

/// A model that runs requests of several rows, without deadlines, in the lowest class.
pub(crate) trait RowTarget: Send + Sync {
    /// Returns the model's tensors, of one row each.
    fn signature(&self) -> &Signature;

    /// Returns what tells the model from others, and from itself after a change.
    fn identity(&self) -> Vec<String>;

    /// Runs rows. Returns for each output the bytes of its rows, one after another.
    ///
    /// Errors: a [`RunFault`].
    fn run(&self, rows: &[RowTensors]) -> Result<Vec<Vec<u8>>, RunFault>;
}

/// The reason why a request has no outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RunFault {
    /// Too much work: try again later, with less at once.
    Overloaded,
    /// Nobody answers, or not yet: try again for a while.
    Unreachable(String),
    /// The model failed on these rows; others may succeed.
    Rows(String),
    /// No request will succeed.
    Refused(String),
}
