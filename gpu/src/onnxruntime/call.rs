//! Calls of ONNX Runtime's library, whose errors and panics are errors of a run.

use crate::host::RunError;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls ONNX Runtime; a panic is an error.
pub(super) fn caught<R>(call: impl FnOnce() -> Result<R, RunError>) -> Result<R, RunError> {
    // A session is only read by a run, so a panic leaves nothing half done behind.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(RunError::Panicked))
}

/// Returns the library's error as that of a run.
pub(super) fn failed(error: ort::Error) -> RunError {
    RunError::Failed { reason: error.to_string() }
}
