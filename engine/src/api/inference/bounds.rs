//! The bounds of what a request may list, the same in both protocols. Each list is bounded while it
//! is read: an entry takes far more memory than the bytes by which a client sends it.

use crate::api::problem::Problem;
use hyper::StatusCode;

/// The most inputs of a request, and the most outputs that it may ask for.
pub(in crate::api) const MAX_TENSORS: usize = 1_024;

/// The most parameters of a request and its tensors together.
pub(in crate::api) const MAX_PARAMETERS: usize = 4_096;

/// The most dimensions of a shape, and the deepest nesting of a tensor's data.
pub(in crate::api) const MAX_RANK: usize = 32;

/// The reason that an input can't be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::api) enum InputFault {
    /// The whole request is refused.
    Refused(Problem),
    /// The input is wrong: what is, and what would be right.
    Invalid(String),
}

impl From<Problem> for InputFault {
    fn from(problem: Problem) -> InputFault {
        InputFault::Refused(problem)
    }
}

impl From<String> for InputFault {
    fn from(what: String) -> InputFault {
        InputFault::Invalid(what)
    }
}

impl InputFault {
    /// Returns the problem of a request whose input is called `input` in errors.
    pub(in crate::api) fn of(self, input: &str) -> Problem {
        match self {
            InputFault::Refused(problem) => problem,
            InputFault::Invalid(what) => Problem::bad(format!("input {input}: {what}")),
        }
    }
}

/// Returns the problem of a request with more than `most` of `what`.
pub(in crate::api) fn too_many(what: &str, most: usize) -> Problem {
    let message = format!("the request has more than {most} {what}, which is the limit");
    Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message)
}
