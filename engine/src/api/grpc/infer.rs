//! Infer requests over gRPC: a `ModelInferRequest` to an [`Inference`], and an answer as a
//! `ModelInferResponse`.

use super::message_reader::InferMessage;
use super::messages::infer_parameter::ParameterChoice;
use super::messages::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use super::messages::model_infer_response::InferOutputTensor;
use super::messages::{InferParameter, ModelInferResponse};
use crate::api::inference::{
    Format, GivenInput, InferAnswer, Inference, InputData, Inputs, OutputKind, ParameterValue,
    RequestDeadline, RequestedOutput, choose, run,
};
use crate::api::net::memory::{MemoryLease, ReadBounds};
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, quoted};
use crate::api::services::access::Caller;
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::{RegionPart, Regions};
use crate::api::services::{CoreServices, models};
use crate::telemetry::otlp::{Call, Parent};
use bytes::Bytes;
use std::collections::HashMap;

type ParameterMap = HashMap<String, InferParameter>;

/// Runs an infer request, whose client named `span` if any. It is interpreted within
/// `bounds`, whose memory is held until the engine has its bytes, and then counts the answer's.
///
/// Errors: the reason that it has no result in time.
pub(super) async fn infer(
    services: &CoreServices,
    caller: &Caller,
    message: InferMessage,
    mut deadline: RequestDeadline,
    span: Option<Parent>,
    mut bounds: ReadBounds,
) -> Result<(ModelInferResponse, MemoryLease), Problem> {
    let InferMessage { request, .. } = &message;
    let found = models::find(services, caller, &request.model_name, &request.model_version)?;
    let model = &found;
    let mut record = services.accounting.begin(model, Call::Grpc, span);
    services.shared.call_hook(&model.name);
    deadline.limit_class(caller.highest_class());
    let regions = services.access.regions(caller, &services.shared);
    let result = async {
        let most_rows = models::most_rows(services, model);
        let inference = parse(message, deadline, model, regions, most_rows, &mut bounds).await?;
        let answered = run(services, model, inference, bounds.memory, &mut record).await?;
        answer(answered, &Slices::on_core()).await
    }
    .await;
    record.end(&result);
    result
}

/// Reads a request for `model` of at most `most_rows` rows.
///
/// Errors: 400 with what was wrong, where, and what would be right; 413 or 429.
pub(super) async fn parse<'m>(
    message: InferMessage,
    mut deadline: RequestDeadline,
    model: &'m FoundModel,
    regions: &Regions,
    most_rows: usize,
    bounds: &mut ReadBounds,
) -> Result<Inference<'m>, Problem> {
    let InferMessage { request, contents } = message;
    for (name, value) in &request.parameters {
        deadline.parameter(name, &parameter_value(value))?;
    }
    deadline.check()?;
    let is_raw = !request.raw_input_contents.is_empty();
    let mut raw = request.raw_input_contents.into_iter();
    let given = request.inputs.iter().zip(contents).map(|(input, contents)| {
        let data = data(input, contents, is_raw, &mut raw)
            .map_err(|what| Problem::bad(format!("input {}: {what}", quoted(&input.name))))?;
        Ok(GivenInput { name: &input.name, datatype: &input.datatype, shape: &input.shape, data })
    });
    let given: Vec<GivenInput<'_>> = given.collect::<Result<_, Problem>>()?;
    if raw.len() > 0 {
        let message = format!("raw_input_contents has {} more tensors than there are inputs for", raw.len());
        return Err(Problem::bad(message));
    }
    let inputs = Inputs::new(model, deadline.application(), given, regions, most_rows, bounds).await?;
    let requested = request.outputs.iter().map(requested).collect::<Result<Vec<_>, Problem>>()?;
    let chosen = choose(&inputs.target.own, requested, Format::Binary, inputs.rows.count, regions)?;
    Ok(Inference { id: request.id, inputs, chosen, deadline })
}

fn parameter_value(parameter: &InferParameter) -> ParameterValue {
    match &parameter.parameter_choice {
        Some(ParameterChoice::Int64Param(number)) => ParameterValue::Number((*number).into()),
        Some(ParameterChoice::Uint64Param(number)) => ParameterValue::Number((*number).into()),
        Some(ParameterChoice::StringParam(text)) => ParameterValue::Text(text.clone()),
        _ => ParameterValue::Other,
    }
}

/// Finds an input's elements. `raw` yields those of this and the following inputs that are not in
/// shared memory.
fn data<'a>(
    input: &'a InferInputTensor,
    contents: Option<Result<Bytes, String>>,
    is_raw: bool,
    raw: &mut impl Iterator<Item = Bytes>,
) -> Result<InputData<'a>, String> {
    if let Some(part) = region(&input.parameters)? {
        return Ok(InputData::Region(part));
    }
    match (contents, is_raw) {
        (None, false) => Ok(InputData::Missing),
        (None, true) => {
            raw.next().map(InputData::Wire).ok_or_else(|| "raw_input_contents has no tensor for it".into())
        }
        (Some(contents), false) => contents.map(InputData::Wire),
        (Some(_), true) => Err("has contents of its own beside raw_input_contents; give one of them".into()),
    }
}

/// Returns the part of a shared memory region that parameters name, if any.
fn region(parameters: &ParameterMap) -> Result<Option<RegionPart<'_>>, String> {
    if parameters.is_empty() {
        return Ok(None);
    }
    let region = match parameters.get("shared_memory_region").map(|p| &p.parameter_choice) {
        None => return Ok(None),
        Some(Some(ParameterChoice::StringParam(region))) => region,
        Some(_) => return Err("shared_memory_region must be a string".into()),
    };
    let number = |name: &str| match parameters.get(name).map(parameter_value) {
        None => Ok(None),
        Some(ParameterValue::Number(number)) if u64::try_from(number).is_ok() => Ok(Some(number as u64)),
        Some(_) => Err(format!("{name} must be a number of bytes")),
    };
    let bytes = number("shared_memory_byte_size")?.ok_or("shared_memory_byte_size is missing")?;
    Ok(Some(RegionPart { region, offset: number("shared_memory_offset")?.unwrap_or(0), bytes }))
}

fn requested(output: &InferRequestedOutputTensor) -> Result<RequestedOutput<'_>, Problem> {
    let wrong = |what: String| Problem::bad(format!("output {}: {what}", quoted(&output.name)));
    let how = match (
        region(&output.parameters).map_err(wrong)?,
        output.parameters.get("classification").map(parameter_value),
    ) {
        (Some(part), _) => OutputKind::Region(part),
        (None, Some(ParameterValue::Number(most))) => OutputKind::Classes(u64::try_from(most).unwrap_or(0)),
        (None, Some(_)) => OutputKind::Classes(0),
        (None, None) => OutputKind::Tensor,
    };
    Ok(RequestedOutput { name: &output.name, how, format: Format::Binary })
}

async fn answer(
    mut answered: InferAnswer<'_>,
    slices: &Slices,
) -> Result<(ModelInferResponse, MemoryLease), Problem> {
    let outputs = answered.outputs(slices).await?;
    let model = answered.model();
    let number = |number: u64| InferParameter {
        parameter_choice: Some(ParameterChoice::Int64Param(i64::try_from(number).unwrap_or(i64::MAX))),
    };
    let mut response = ModelInferResponse {
        model_name: model.name.clone(),
        model_version: model.version.to_string(),
        parameters: answered.times.iter().map(|(name, value)| (name.to_owned(), number(value))).collect(),
        ..ModelInferResponse::default()
    };
    for output in &outputs {
        let mut parameters = ParameterMap::new();
        let mut raw = Bytes::new();
        match output.region {
            None => raw = output.wire(slices).await,
            Some((view, bytes)) => {
                let name = ParameterChoice::StringParam(view.region().to_owned());
                let name = InferParameter { parameter_choice: Some(name) };
                parameters.insert("shared_memory_region".to_owned(), name);
                parameters.insert("shared_memory_offset".to_owned(), number(view.offset()));
                parameters.insert("shared_memory_byte_size".to_owned(), number(bytes as u64));
            }
        }
        response.outputs.push(InferOutputTensor {
            name: output.name.to_owned(),
            datatype: output.datatype.to_owned(),
            shape: output.shape.iter().map(|&dimension| dimension as i64).collect(),
            parameters,
            contents: None,
        });
        response.raw_output_contents.push(raw);
    }
    drop(outputs);
    response.id = std::mem::take(&mut answered.id);
    Ok((response, answered.into_memory()))
}

#[cfg(test)]
mod tests {
    use super::super::framing::{Envelope, PREFIX};
    use super::super::messages::ModelStreamInferResponse;
    use super::*;
    use crate::api::inference::answer::samples::{large_answer, large_model};
    use crate::api::net::slices::{SLICE_BYTES, ready_now};
    use hyper::header::HeaderMap;
    use prost::Message;

    #[test]
    fn a_large_answer_is_encoded_in_slices_as_the_protocol_has_it() {
        let model = large_model();
        let (answered, slices) = (large_answer(&model, Format::Binary), Slices::alone());
        let (response, _memory) = ready_now(answer(answered, &slices)).unwrap();
        for in_stream in [false, true] {
            let envelope = Envelope::of(&HeaderMap::new()).unwrap();
            let sealed = ready_now(envelope.seal_answer(response.clone(), in_stream, &slices));
            assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
            assert_eq!(Envelope::length(&sealed), Some(sealed.len()));
            let message = sealed.slice(PREFIX..);
            let read = match in_stream {
                false => ModelInferResponse::decode(message).unwrap(),
                true => ModelStreamInferResponse::decode(message).unwrap().infer_response.unwrap(),
            };
            assert!(read == response && read.raw_output_contents.len() == 3);
        }
    }
}
