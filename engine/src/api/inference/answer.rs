//! The answer to an infer request, without its protocol.

use super::inputs::Rows;
use super::outputs::{self, AnswerTensor, AnswerTimes, ChosenOutput, StageParameters};
use super::target::Target;
use crate::api::net::large_buffers::shared;
use crate::api::net::memory::MemoryLease;
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use crate::api::services::engine_client::EngineReply;
use crate::runtime::frontend::ModelInfo;

/// The answer to an infer request, in time.
#[derive(Debug)]
pub(in crate::api) struct InferAnswer<'m> {
    /// The client's own id, which the answer repeats; empty for none.
    pub(in crate::api) id: String,
    /// The times of the request's events.
    pub(in crate::api) times: AnswerTimes,
    target: Target<'m>,
    chosen: Vec<ChosenOutput>,
    rows: Rows,
    output: bytes::Bytes,
    memory: MemoryLease,
}

impl<'m> InferAnswer<'m> {
    /// Keeps the engine's reply to a request of these outputs; `memory` counts its bytes.
    pub(in crate::api) fn new(
        id: String,
        target: Target<'m>,
        chosen: Vec<ChosenOutput>,
        rows: Rows,
        reply: EngineReply,
        memory: MemoryLease,
    ) -> InferAnswer<'m> {
        let times = AnswerTimes::of(&reply);
        InferAnswer { id, times, target, chosen, rows, output: shared(reply.output), memory }
    }

    /// Adds the times of the stages of a query, which it answers.
    pub(super) fn with_stages(self, stages: Vec<StageParameters>) -> InferAnswer<'m> {
        InferAnswer { times: self.times.with_stages(stages), ..self }
    }

    /// Returns the model that answered.
    pub(in crate::api) fn model(&self) -> &'m ModelInfo {
        self.target.model
    }

    /// Returns the memory that counts its bytes.
    pub(in crate::api) fn into_memory(self) -> MemoryLease {
        self.memory
    }

    /// Returns its tensors, made in slices, of which those for shared memory are written there.
    ///
    /// Errors: 400 if the shared memory is too small or gone.
    pub(in crate::api) async fn outputs(&self, slices: &Slices) -> Result<Vec<AnswerTensor<'_>>, Problem> {
        outputs::outputs(&self.target, &self.chosen, self.rows, &self.output, slices).await
    }
}

/// Large answers for tests.
#[cfg(test)]
pub(in crate::api) mod samples {
    use super::super::inputs::Rows;
    use super::super::outputs::{Format, choose};
    use super::InferAnswer;
    use super::Target;
    use crate::api::net::memory::CoreMemory;
    use crate::api::services::engine_client::EngineReply;
    use crate::api::services::shared_memory::Regions;
    use crate::runtime::frontend::{ModelInfo, Outcome, SlotState, Timeline};
    use std::borrow::Cow;
    use std::rc::Rc;
    use symphony_gpu::{DataType, Signature, TensorSpec};
    use symphony_transport::message::{GpuId, ModelId};

    /// A model with a large output of numbers, one of one long text and one of many short ones.
    pub(in crate::api) fn large_model() -> ModelInfo {
        let tensor = |name: &str, datatype, elements| TensorSpec {
            name: name.to_owned(),
            datatype,
            shape: vec![elements],
        };
        let outputs = vec![
            tensor("numbers", DataType::Fp32, 1 << 20),
            tensor("text", DataType::Bytes(4 << 20), 1),
            tensor("texts", DataType::Bytes(4), 200_000),
        ];
        let signature = Signature::of_rows(Vec::new(), outputs);
        ModelInfo { signature, state: SlotState::Serving, ..ModelInfo::vacant(ModelId(0), 0) }
    }

    /// The answer to a request of two rows for [`large_model`].
    pub(in crate::api) fn large_answer(model: &ModelInfo, format: Format) -> InferAnswer<'_> {
        let rows = Rows { count: 2, batched: true };
        let chosen = choose(&model.signature, [], format, rows.count, &Regions::default()).unwrap();
        let reply = EngineReply {
            outcome: Outcome::Good,
            output: vec![b'1'; rows.count * model.signature.output_bytes()],
            timeline: Timeline::default(),
            batch_size: 2,
            gpu: GpuId(0),
        };
        let memory = CoreMemory::new(usize::MAX, usize::MAX).lease(&Rc::default());
        let target = Target { model, own: Cow::Borrowed(&model.signature) };
        InferAnswer::new("id".to_owned(), target, chosen, rows, reply, memory)
    }
}
