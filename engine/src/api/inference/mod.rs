//! An infer request without its protocol: `inputs` checks what a client gave against the model and
//! puts it into the engine's slots, `terms` says by when and how urgent, `outputs` makes the
//! answer's tensors, `ending` says why there is none, `classes` is the classification extension.
//! The two protocol adapters, `http` and `grpc`, only translate.

mod classes;
mod ending;
mod inputs;
mod outputs;
mod terms;

pub(super) use ending::refused;
pub(super) use inputs::{Data, Given, Inputs, Rows};
pub(super) use outputs::{Asked, Format, How, Output, Times, Wanted, wanted};
pub(super) use terms::{Terms, Word};

use super::answers::Reply;
use super::problem::Problem;
use crate::runtime::frontend::{Ask, ModelInfo};

/// An infer request, understood and found right for its model.
#[derive(Debug)]
pub(super) struct Inference {
    /// The client's own id, to be repeated; empty for none.
    pub(super) id: String,
    /// What goes into the model.
    pub(super) inputs: Inputs,
    /// What of the model's outputs to send, and how.
    pub(super) wanted: Vec<Wanted>,
    /// By when, and how urgent.
    pub(super) terms: Terms,
}

impl Inference {
    /// What to ask the engine for.
    pub(super) fn ask(&self, model: &ModelInfo) -> Ask {
        let rows = self.inputs.rows.count;
        Ask { model: model.id, rows, due: self.terms.due(), class: self.terms.class(model) }
    }
}

/// An infer request that was answered in time.
#[derive(Debug)]
pub(super) struct Answered {
    /// As in [`Inference`].
    pub(super) id: String,
    /// When what happened.
    pub(super) times: Times,
    wanted: Vec<Wanted>,
    rows: Rows,
    output: bytes::Bytes,
}

impl Answered {
    /// What the engine said to a request that wanted this.
    pub(super) fn new(id: String, wanted: Vec<Wanted>, rows: Rows, reply: Reply) -> Answered {
        Answered { id, times: Times::of(&reply), wanted, rows, output: reply.output.into() }
    }

    /// Its tensors. What goes to shared memory is written there.
    ///
    /// Errors: 400 where the shared memory is too small or gone.
    pub(super) fn outputs<'a>(&'a self, model: &'a ModelInfo) -> Result<Vec<Output<'a>>, Problem> {
        outputs::outputs(model, &self.wanted, self.rows, &self.output)
    }
}
