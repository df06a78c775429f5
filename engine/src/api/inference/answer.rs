//! The answer to an infer request, without its protocol.

use super::inputs::Rows;
use super::outputs::{self, AnswerTensor, AnswerTimes, ChosenOutput};
use crate::api::problem::Problem;
use crate::api::services::engine_client::EngineReply;
use crate::runtime::frontend::ModelInfo;

/// The answer to an infer request, in time.
#[derive(Debug)]
pub(in crate::api) struct InferAnswer {
    /// The client's own id, which the answer repeats; empty for none.
    pub(in crate::api) id: String,
    /// The times of the request's events.
    pub(in crate::api) times: AnswerTimes,
    chosen: Vec<ChosenOutput>,
    rows: Rows,
    output: bytes::Bytes,
}

impl InferAnswer {
    /// Keeps the engine's reply to a request of these outputs.
    pub(in crate::api) fn new(
        id: String,
        chosen: Vec<ChosenOutput>,
        rows: Rows,
        reply: EngineReply,
    ) -> InferAnswer {
        InferAnswer { id, times: AnswerTimes::of(&reply), chosen, rows, output: reply.output.into() }
    }

    /// Returns its tensors, of which those for shared memory are written there.
    ///
    /// Errors: 400 if the shared memory is too small or gone.
    pub(in crate::api) fn outputs<'a>(
        &'a self,
        model: &'a ModelInfo,
    ) -> Result<Vec<AnswerTensor<'a>>, Problem> {
        outputs::outputs(model, &self.chosen, self.rows, &self.output)
    }
}
