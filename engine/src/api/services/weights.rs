//! Loads and unloads the weights of models on the process's GPUs, through the control plane.

use super::access::Caller;
use super::shared::SharedState;
use crate::api::problem::Problem;
use crate::control::weights::{DoneChange, WeightsError, WeightsOrder};
use futures_channel::oneshot;
use hyper::StatusCode;

/// Carries an order out, and returns what was done on each GPU.
///
/// Errors: the order's own; 403 if `caller` may not use the model.
pub(in crate::api) async fn change(
    shared: &SharedState,
    caller: &Caller,
    order: WeightsOrder,
) -> Result<Vec<DoneChange>, Problem> {
    caller.check_model(&order.model)?;
    let Some(loaders) = &shared.gpu_loaders else {
        return Err(WeightsError::no_gpu().into());
    };
    let (done, ended) = oneshot::channel();
    // The client may have left before the order is done.
    loaders.order(&order, Box::new(|result| drop(done.send(result))));
    Ok(ended.await.unwrap_or(Err(WeightsError::Stopped))?)
}

impl From<WeightsError> for Problem {
    fn from(error: WeightsError) -> Problem {
        let status = match &error {
            WeightsError::Unknown(_) => StatusCode::NOT_FOUND,
            WeightsError::Wrong(_) => StatusCode::CONFLICT,
            WeightsError::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            WeightsError::Lost(_) | WeightsError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            WeightsError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            WeightsError::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
        };
        Problem::invalid(status, error.to_string())
    }
}
