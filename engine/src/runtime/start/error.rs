//! The reasons why an engine does not start.

use crate::config::Diagnostics;
use crate::recorder::RecordError;
use crate::runtime::fault::FatalFault;
use crate::runtime::profiling::LearnedProfilesError;
use symphony_transport::slab::SlabError;

/// The reason why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is at fault, its models included.
    #[error("{0}")]
    Config(#[from] Diagnostics),
    /// A limit of the engine would be exceeded.
    #[error("{what}: {asked} asked for; the limit is {limit}")]
    Limit {
        /// The name of what there would be too many of.
        what: &'static str,
        /// The number asked for.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// The policy does not run on pinned threads.
    #[error("policy {0} runs in `simulate` only; serve with one of: {1}")]
    Policy(String, String),
    /// The policy schedules as a whole, and is asked for what only ModelThreads do.
    #[error("policy {0} {1}")]
    WholePolicy(String, &'static str),
    /// The system gave no memory for requests in flight.
    #[error("{0}")]
    Slab(#[from] SlabError),
    /// The system gave no thread.
    #[error("the system gave no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The host does not know where to listen for others.
    #[error("{0}")]
    Address(String),
    /// The links to other hosts can't be used.
    #[error("{0}")]
    Links(std::io::Error),
    /// The host can't move tensors as CONFIG says.
    #[error("{0}")]
    Tensors(String),
    /// The flight recorder's files can't be created.
    #[error("{0}")]
    Record(#[from] RecordError),
    /// The file of learned profiles can't be used.
    #[error("{0}")]
    LearnedProfiles(#[from] LearnedProfilesError),
    /// A thread died while it loaded its models.
    #[error("while models were loaded, {0}")]
    Died(FatalFault),
}

impl StartError {
    /// Checks that `asked` is within `limit`.
    pub(super) fn at_most(what: &'static str, asked: usize, limit: usize) -> Result<(), StartError> {
        if asked <= limit { Ok(()) } else { Err(StartError::Limit { what, asked, limit }) }
    }
}
