//! Runs a checked infer request on the engine.

use super::answer::InferAnswer;
use super::ending::problem_of;
use super::query;
use super::request::Inference;
use crate::api::net::memory::MemoryLease;
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use crate::api::services::CoreServices;
use crate::api::services::accounting::InferRecord;
use crate::api::services::models::FoundModel;

/// Runs a checked request for `found` and adds the engine's reply to `record`. `memory` counts the
/// request's bytes until the engine has them, and those of its output from the time at which it
/// comes.
///
/// Errors: the reason that it has no result in time.
pub(in crate::api) async fn run<'m: 'r, 'r>(
    services: &CoreServices,
    found: &'m FoundModel,
    inference: Inference<'m>,
    mut memory: MemoryLease,
    record: &mut InferRecord<'r>,
) -> Result<InferAnswer<'m>, Problem> {
    if let Some(query) = found.query() {
        return query::run(services, query, inference, memory, record).await;
    }
    let engine = &services.engine;
    let ask = inference.ask();
    let Inference { id, inputs, chosen, .. } = inference;
    let (rows, target) = (inputs.rows, inputs.target.clone());
    let model = target.model;
    record.runs_on(model);
    let slices = Slices::on_core();
    let input_bytes = model.signature.input_bytes();
    let mut slots = engine.reserve(&ask)?;
    for row in 0..rows.count {
        inputs.fill(row, &mut slots.row(row)[..input_bytes], &slices).await;
    }
    drop(inputs);
    memory.shrink(memory.held());
    let (reply, memory) = slots.send(memory)?.answer().await?;
    record.answered(&ask, &reply);
    match problem_of(model, &reply) {
        None => Ok(InferAnswer::new(id, target, chosen, rows, reply, memory)),
        Some(problem) => Err(problem),
    }
}
