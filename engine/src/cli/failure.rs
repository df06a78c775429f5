//! The failures of commands, and their exit codes.

use crate::api::ApiError;
use crate::config::Diagnostics;
use crate::recorder::RecordError;
use crate::runtime::StartError;
use std::fmt;

/// The text about exit codes at the end of `--help`.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 done; 1 the run failed; 2 bad usage or configuration; 3 the machine lacks something; \
     4 a shutdown cut off requests; 5 a thread of the engine died or hung.";

/// The exit code of a shutdown that cut off requests.
pub(super) const CUT_OFF: u8 = 4;

/// The exit code of a process in which a thread of the engine died or hung.
pub(super) const FAULT: u8 = 5;

/// A command's failure, with the message for the user.
#[derive(Debug)]
pub(super) enum CommandFailure {
    /// The run itself failed: exit code 1.
    Run(String),
    /// The usage or the input is wrong: exit code 2.
    Input(String),
    /// The machine lacks something: exit code 3.
    Machine(String),
    /// A shutdown cut off requests: exit code 4.
    CutOff(String),
    /// A thread of the engine died or hung: exit code 5.
    Fault(String),
}

impl CommandFailure {
    /// Returns the process's exit code.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            CommandFailure::Run(_) => 1,
            CommandFailure::Input(_) => 2,
            CommandFailure::Machine(_) => 3,
            CommandFailure::CutOff(_) => CUT_OFF,
            CommandFailure::Fault(_) => FAULT,
        }
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CommandFailure::Run(text)
        | CommandFailure::Input(text)
        | CommandFailure::Machine(text)
        | CommandFailure::CutOff(text)
        | CommandFailure::Fault(text)) = self;
        f.write_str(text)
    }
}

impl From<Diagnostics> for CommandFailure {
    fn from(diagnostics: Diagnostics) -> CommandFailure {
        CommandFailure::Input(diagnostics.to_string())
    }
}

impl From<StartError> for CommandFailure {
    fn from(error: StartError) -> CommandFailure {
        let text = error.to_string();
        match error {
            StartError::Config(_)
            | StartError::Limit { .. }
            | StartError::Policy(..)
            | StartError::WholePolicy(..)
            | StartError::Address(_)
            | StartError::LearnedProfiles(_) => CommandFailure::Input(text),
            StartError::Record(error) => error.into(),
            StartError::Slab(_) | StartError::Thread(_) | StartError::Links(_) | StartError::Tensors(_) => {
                CommandFailure::Machine(text)
            }
            StartError::Died(_) => CommandFailure::Fault(text),
        }
    }
}

impl From<RecordError> for CommandFailure {
    fn from(error: RecordError) -> CommandFailure {
        let text = error.to_string();
        match error {
            RecordError::Create(..) => CommandFailure::Machine(text),
            _ => CommandFailure::Input(text),
        }
    }
}

impl From<ApiError> for CommandFailure {
    fn from(error: ApiError) -> CommandFailure {
        let text = error.to_string();
        match error {
            ApiError::PortInUse(_) | ApiError::PortForbidden(_) | ApiError::NoSuchAddress(_) => {
                CommandFailure::Input(text)
            }
            ApiError::Listen(..) | ApiError::Machine(_) | ApiError::Thread(_) => {
                CommandFailure::Machine(text)
            }
            ApiError::Died(_) => CommandFailure::Fault(text),
        }
    }
}
