//! The failures of commands, and their exit codes.

use crate::api::ApiError;
use crate::config::Diagnostics;
use crate::recorder::RecordError;
use crate::runtime::StartError;
use std::fmt;

/// The text about exit codes at the end of `--help`.
pub(super) const EXIT_CODES: &str =
    "Exit codes: 0 done; 1 the run failed; 2 bad usage or configuration; 3 the machine lacks something.";

/// A command's failure, with the message for the user.
#[derive(Debug)]
pub(super) enum Failure {
    /// The run itself failed: exit code 1.
    Run(String),
    /// The usage or the input is wrong: exit code 2.
    Input(String),
    /// The machine lacks something: exit code 3.
    Machine(String),
}

impl Failure {
    /// Returns the process's exit code.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Failure::Run(_) => 1,
            Failure::Input(_) => 2,
            Failure::Machine(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Run(text) | Failure::Input(text) | Failure::Machine(text)) = self;
        f.write_str(text)
    }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Failure {
        Failure::Input(diagnostics.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        let text = error.to_string();
        match error {
            StartError::Config(_) | StartError::Limit { .. } | StartError::Policy(..) => Failure::Input(text),
            StartError::Record(error) => error.into(),
            StartError::Slab(_) | StartError::Thread(_) => Failure::Machine(text),
            StartError::Died(_) => Failure::Run(text),
        }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        let text = error.to_string();
        match error {
            RecordError::Create(..) => Failure::Machine(text),
            _ => Failure::Input(text),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        let text = error.to_string();
        match error {
            ApiError::PortInUse(_) | ApiError::PortForbidden(_) | ApiError::NoSuchAddress(_) => {
                Failure::Input(text)
            }
            ApiError::Listen(..) | ApiError::Machine(_) | ApiError::Thread(_) => Failure::Machine(text),
            ApiError::Died => Failure::Run(text),
        }
    }
}
