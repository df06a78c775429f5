//! The problems of accepted requests that have no result in time.

use crate::api::problem::Problem;
use crate::api::services::engine_client::EngineReply;
use crate::runtime::frontend::{ModelInfo, Outcome};
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use symphony_transport::Nanos;
use symphony_transport::message::Ending;

/// Returns the problem of a request that was not answered in time; `None` if it was.
pub(super) fn problem_of(model: &ModelInfo, reply: &EngineReply) -> Option<Problem> {
    // Nearly every request returns here, before any message is formatted.
    if reply.outcome == Outcome::Good {
        return None;
    }
    Some(why(model, reply))
}

fn why(model: &ModelInfo, reply: &EngineReply) -> Problem {
    let spent = in_ms(reply.timeline.finished - reply.timeline.arrival);
    let budget = match reply.timeline.due {
        Nanos::MAX => "for which it had no limit".to_owned(),
        due => format!("{} after arrival", in_ms(due - reply.timeline.arrival)),
    };
    let (gpu, batch) = (reply.gpu.0, reply.batch_size);
    let (status, outcome, message) = match reply.outcome {
        Outcome::Good => unreachable!("a request that was answered in time has its result"),
        Outcome::Late(by) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Late,
            format!(
                "late: the answer came {} after the deadline, which was {budget}; it ran on GPU {gpu} in a batch of \
                 {batch}",
                in_ms(by)
            ),
        ),
        Outcome::Overdue(by) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Late,
            format!(
                "late: it was given up {} after the deadline, which was {budget}; it had not ended",
                in_ms(by)
            ),
        ),
        Outcome::Broken => (
            StatusCode::SERVICE_UNAVAILABLE,
            InferOutcome::Draining,
            "the engine has broken down before the request had ended; the server's log says why".to_owned(),
        ),
        Outcome::Bad(Ending::DroppedInQueue) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Dropped,
            format!("dropped in the queue after {spent}: its deadline, {budget}, could not be met"),
        ),
        Outcome::Bad(Ending::DroppedAtBackend) => (
            StatusCode::GATEWAY_TIMEOUT,
            InferOutcome::Cancelled,
            format!(
                "cancelled at the backend after {spent}: its batch reached GPU {gpu} too late to meet the \
                 deadline, {budget}"
            ),
        ),
        Outcome::Bad(Ending::Overloaded) => (
            StatusCode::TOO_MANY_REQUESTS,
            InferOutcome::Overloaded,
            format!("overloaded: the queue of model {:?} is full; try again later", model.name),
        ),
        Outcome::Bad(Ending::Failed | Ending::Done) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            InferOutcome::Failed,
            format!(
                "the executor of GPU {gpu} failed on the request's batch of {batch}; the server's log says why"
            ),
        ),
        Outcome::Bad(Ending::Stopped) if batch > 0 => (
            StatusCode::SERVICE_UNAVAILABLE,
            InferOutcome::Draining,
            format!(
                "the weights of model {:?} are not loaded on GPU {gpu}, which its batch was given, or the engine was \
                 stopped",
                model.name
            ),
        ),
        Outcome::Bad(Ending::Stopped) => (
            StatusCode::SERVICE_UNAVAILABLE,
            InferOutcome::Draining,
            "the engine was stopped, or the model unloaded, before the request could run".to_string(),
        ),
        Outcome::Bad(Ending::Withdrawn) => (
            StatusCode::REQUEST_TIMEOUT,
            InferOutcome::Gone,
            format!("withdrawn after {spent}: the client took the request back before it ran"),
        ),
    };
    Problem { status, message, outcome, again: None }
}

fn in_ms(time: Nanos) -> String {
    format!("{:.3} ms", time.as_millis_f64())
}
