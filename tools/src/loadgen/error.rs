//! The errors of a run, each with its exit code.

use super::schedule::PlanError;

/// The reason for which a run could not start, or has no figures worth reporting.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line, a file, or the server's models don't fit together.
    #[error("{0}")]
    Usage(String),
    /// The server does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The user ended the run before there was anything to report.
    #[error("{0}")]
    Stopped(String),
    /// The machine lacks something.
    #[error("{0}")]
    Machine(String),
}

impl RunError {
    /// The exit code: docs/design/specification.md, "Command lines".
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Unreachable(_) | RunError::Stopped(_) => 1,
            RunError::Usage(_) => 2,
            RunError::Machine(_) => 3,
        }
    }
}

impl From<PlanError> for RunError {
    fn from(error: PlanError) -> RunError {
        RunError::Usage(error.to_string())
    }
}
