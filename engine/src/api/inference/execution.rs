//! Runs a checked infer request on the engine.

use super::answer::InferAnswer;
use super::ending::problem_of;
use super::request::Inference;
use crate::api::problem::Problem;
use crate::api::services::accounting::InferRecord;
use crate::api::services::engine_client::EngineClient;
use crate::runtime::frontend::ModelInfo;

/// Runs a checked request and adds the engine's reply to `record`. `held`, which keeps the
/// request's bytes counted, is dropped as soon as the engine has them.
///
/// Errors: the reason that it has no result in time.
pub(in crate::api) async fn run(
    engine: &EngineClient,
    model: &ModelInfo,
    inference: Inference,
    held: impl Sized,
    record: &mut InferRecord<'_>,
) -> Result<InferAnswer, Problem> {
    let ask = inference.ask(model);
    let Inference { id, inputs, chosen, .. } = inference;
    let rows = inputs.rows;
    let fill = move |row: usize, slot: &mut [u8]| {
        let _until_sent = &held;
        inputs.fill(model, row, slot);
    };
    let reply = engine.ask(&ask, fill).await?;
    record.answered(&ask, &reply);
    match problem_of(model, &reply) {
        None => Ok(InferAnswer::new(id, chosen, rows, reply)),
        Some(problem) => Err(problem),
    }
}
