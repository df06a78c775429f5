//! An infer request without its protocol: `inputs` checks the client's tensors against the model
//! and writes them into the engine's slots, `target` finds the size class for them, `deadline`
//! determines when the answer is due and the class, `execution` runs the request, `query` one for a
//! query, `outputs` makes the answer's tensors, `ending` explains why there are none,
//! `classification` is the extension of that name, `tensors` converts elements, `bounds` says what
//! a request may list.
//!
//! **Architecture invariant:** whether a request is valid, and where its bytes go, is decided here
//! once for both protocols. A tensor is copied once, into its slab slot.

pub(super) mod answer;
pub(super) mod bounds;
mod classification;
mod deadline;
mod ending;
mod execution;
mod inputs;
mod outputs;
mod query;
mod request;
mod target;
pub(super) mod tensors;

pub(super) use answer::InferAnswer;
pub(super) use deadline::{ParameterValue, RequestDeadline};
pub(super) use execution::run;
pub(super) use inputs::{GivenInput, InputData, Inputs};
pub(super) use outputs::{Format, OutputKind, RequestedOutput, choose};
pub(super) use request::Inference;
pub(super) use target::shape_of_body;
