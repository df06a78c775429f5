//! An infer request without its protocol, ready for the engine.

use super::deadline::RequestDeadline;
use super::inputs::Inputs;
use super::outputs::ChosenOutput;
use crate::runtime::frontend::Ask;

/// An infer request, read and checked against its model.
#[derive(Debug)]
pub(in crate::api) struct Inference<'m> {
    /// The client's own id, which the answer repeats; empty for none.
    pub(in crate::api) id: String,
    /// The model, and its inputs.
    pub(in crate::api) inputs: Inputs<'m>,
    /// The outputs to send, and their form.
    pub(in crate::api) chosen: Vec<ChosenOutput>,
    /// The time until the answer is due, and the request's class.
    pub(in crate::api) deadline: RequestDeadline,
}

impl Inference<'_> {
    /// Returns the request in the engine's terms.
    pub(in crate::api) fn ask(&self) -> Ask {
        let model = self.inputs.target.model;
        let rows = self.inputs.rows.count;
        Ask { model: model.id, rows, due: self.deadline.due(), class: self.deadline.class(model) }
    }
}
