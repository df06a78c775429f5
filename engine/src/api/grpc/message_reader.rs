//! Reads a `ModelInferRequest` field by field. prost would decode all of it at once, and an empty
//! entry, two bytes of a message, takes it hundreds of bytes of memory. So the fields are walked
//! first: each list is bounded while it is read, every entry's memory is taken from the request's
//! budget before prost decodes it, and other requests run in between.

use super::contents;
use super::fields::{Field, FieldValue, Fields};
use super::messages::ModelInferRequest;
use super::messages::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::api::inference::bounds::{InputFault, MAX_PARAMETERS, MAX_RANK, MAX_TENSORS, too_many};
use crate::api::net::memory::ReadBounds;
use crate::api::problem::{Problem, quoted};
use bytes::Bytes;
use hyper::StatusCode;
use prost::Message;
use std::ops::Range;

/// The largest field that is neither a tensor nor elements, in bytes: names, ids and parameters.
pub(in crate::api) const MAX_FIELD: usize = 64 << 10;

/// The memory that an entry of a list takes beside its bytes, at most: an input with all its empty
/// lists, as a list grows.
const ENTRY_MEMORY: usize = 1_024;

/// The work of one field, in bytes.
const FIELD_WORK: usize = 64;

/// The numbers of the fields of `ModelInferRequest` and its tensors.
mod number {
    pub(super) const PARAMETERS: u32 = 4;
    pub(super) const INPUTS: u32 = 5;
    pub(super) const OUTPUTS: u32 = 6;
    pub(super) const RAW_INPUT_CONTENTS: u32 = 7;
    pub(super) const OF_TENSOR_SHAPE: u32 = 3;
    pub(super) const OF_TENSOR_CONTENTS: u32 = 5;
    pub(super) const OF_OUTPUT_PARAMETERS: u32 = 2;
}

/// A `ModelInferRequest` whose inputs' `contents` are in the protocol's binary form.
pub(super) struct InferMessage {
    /// The message without `contents`.
    pub(super) request: ModelInferRequest,
    /// The contents of each input; the errors say what is wrong with them.
    pub(super) contents: Vec<Option<Result<Bytes, String>>>,
}

/// Reads a message within `bounds`, whose memory counts its bytes already.
///
/// Errors: 400 if it is no such message, 413 if a list of it is too long, 429 if there is no
/// memory.
pub(super) async fn infer_message(message: Bytes, bounds: &mut ReadBounds) -> Result<InferMessage, Problem> {
    let request = ModelInferRequest::default();
    let read = InferMessage { request, contents: Vec::new() };
    let mut reader = MessageReader { message, parameters: 0, contents: 0, bounds, read };
    reader.read().await?;
    Ok(reader.read)
}

struct MessageReader<'a> {
    message: Bytes,
    /// The number of parameters so far, of the request and its tensors.
    parameters: usize,
    /// The bytes of all contents so far.
    contents: usize,
    bounds: &'a mut ReadBounds,
    read: InferMessage,
}

impl MessageReader<'_> {
    async fn read(&mut self) -> Result<(), Problem> {
        let message = self.message.clone();
        for field in Fields::within(&message, 0..message.len()) {
            let field = field?;
            self.bounds.slices.did(FIELD_WORK).await;
            let request = &self.read.request;
            match field.number {
                number::INPUTS => self.input(field).await?,
                number::OUTPUTS => {
                    bound("outputs", request.outputs.len() + 1, MAX_TENSORS)?;
                    let output = self.output(field).await?;
                    self.read.request.outputs.push(output);
                }
                number::RAW_INPUT_CONTENTS => {
                    bound("raw_input_contents", request.raw_input_contents.len() + 1, MAX_TENSORS)?;
                    // It stays where it is.
                    self.read.request.merge(message.slice(field.whole)).map_err(unreadable)?;
                }
                number::PARAMETERS => {
                    self.count_parameter()?;
                    let taken = self.take(&field)?;
                    self.read.request.merge(taken).map_err(unreadable)?;
                }
                1..=3 => {
                    let taken = self.take(&field)?;
                    self.read.request.merge(taken).map_err(unreadable)?;
                }
                // A client newer than this server may send further fields.
                _ => {}
            }
        }
        Ok(())
    }

    async fn input(&mut self, field: Field) -> Result<(), Problem> {
        let at = self.read.request.inputs.len();
        bound("inputs", at + 1, MAX_TENSORS)?;
        self.bounds.memory.grow(ENTRY_MEMORY)?;
        let (mut input, mut contents) = (InferInputTensor::default(), None);
        let message = self.message.clone();
        for field in Fields::within(&message, place(field)?) {
            let field = field?;
            self.bounds.slices.did(FIELD_WORK).await;
            match field.number {
                number::OF_TENSOR_CONTENTS if contents.is_some() => {
                    return Err(Problem::bad(format!("input {} has contents twice", quoted(&input.name))));
                }
                number::OF_TENSOR_CONTENTS => contents = Some(place(field)?),
                number::PARAMETERS => {
                    self.count_parameter()?;
                    input.merge(self.take(&field)?).map_err(unreadable)?;
                }
                1..=number::OF_TENSOR_SHAPE => {
                    input.merge(self.take(&field)?).map_err(unreadable)?;
                    bound("dimensions in a shape", input.shape.len(), MAX_RANK)?;
                }
                _ => {}
            }
        }
        let contents = match contents {
            None => None,
            Some(place) => Some(self.elements(place, &input.datatype).await?),
        };
        self.read.request.inputs.push(input);
        self.read.contents.push(contents);
        Ok(())
    }

    async fn elements(
        &mut self,
        place: Range<usize>,
        datatype: &str,
    ) -> Result<Result<Bytes, String>, Problem> {
        let left = self.bounds.limit.saturating_sub(self.contents);
        match contents::elements(&self.message, place, datatype, left, self.bounds).await {
            Ok(bytes) => {
                self.contents += bytes.len();
                Ok(Ok(bytes))
            }
            Err(InputFault::Invalid(what)) => Ok(Err(what)),
            Err(InputFault::Refused(problem)) => Err(problem),
        }
    }

    async fn output(&mut self, field: Field) -> Result<InferRequestedOutputTensor, Problem> {
        self.bounds.memory.grow(ENTRY_MEMORY)?;
        let mut output = InferRequestedOutputTensor::default();
        let message = self.message.clone();
        for field in Fields::within(&message, place(field)?) {
            let field = field?;
            self.bounds.slices.did(FIELD_WORK).await;
            match field.number {
                number::OF_OUTPUT_PARAMETERS => self.count_parameter()?,
                1 => {}
                _ => continue,
            }
            output.merge(self.take(&field)?).map_err(unreadable)?;
        }
        Ok(output)
    }

    fn count_parameter(&mut self) -> Result<(), Problem> {
        self.parameters += 1;
        bound("parameters", self.parameters, MAX_PARAMETERS)?;
        self.bounds.memory.grow(ENTRY_MEMORY)
    }

    /// Returns the bytes of a small field, whose copy the budget has memory for.
    fn take(&mut self, field: &Field) -> Result<Bytes, Problem> {
        let length = field.whole.len();
        if length > MAX_FIELD {
            let message = format!(
                "field {} of the call's message has {length} bytes; names, ids, shapes and parameters may have {MAX_FIELD}",
                field.number
            );
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.bounds.memory.grow(length)?;
        Ok(self.message.slice(field.whole.clone()))
    }
}

fn bound(what: &str, count: usize, most: usize) -> Result<(), Problem> {
    if count > most { Err(too_many(what, most)) } else { Ok(()) }
}

/// Returns the place of the message that a field is.
fn place(field: Field) -> Result<Range<usize>, Problem> {
    match field.value {
        FieldValue::Bytes(place) => Ok(place),
        _ => {
            let number = field.number;
            Err(Problem::bad(format!("the call's message can't be read: field {number} is no message")))
        }
    }
}

fn unreadable(error: prost::DecodeError) -> Problem {
    Problem::bad(format!("the call's message can't be read: {error}"))
}
