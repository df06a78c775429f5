//! Infer requests over HTTP: reads a body of JSON, and with the binary tensor extension the raw
//! tensors behind it or a raw tensor alone, to an [`Inference`]; writes an answer's body.

use super::bounded_list::BoundedList;
use super::skeleton::Skeleton;
use crate::api::inference::bounds::{MAX_RANK, MAX_TENSORS};
use crate::api::inference::tensors::elements;
use crate::api::inference::{
    Format, GivenInput, InferAnswer, Inference, InputData, Inputs, OutputKind, ParameterValue,
    RequestDeadline, RequestedOutput, choose, shape_of_body,
};
use crate::api::net::memory::ReadBounds;
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, names, quoted, shortened};
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::{RegionPart, Regions};
use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use symphony_gpu::DataType;
use symphony_gpu::signature::LENGTH_BYTES;

/// The header that gives the length of the JSON in front of raw tensors, in both directions.
pub(super) const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

#[derive(Deserialize)]
struct InferBody<'a> {
    #[serde(default)]
    id: String,
    #[serde(borrow, default)]
    parameters: Option<RequestParameters<'a>>,
    #[serde(borrow)]
    inputs: BoundedList<BodyInput<'a>, MAX_TENSORS>,
    #[serde(borrow, default)]
    outputs: Option<BoundedList<BodyOutput<'a>, MAX_TENSORS>>,
}

#[derive(Deserialize, Default)]
struct RequestParameters<'a> {
    #[serde(borrow)]
    timeout: Option<&'a RawValue>,
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    deadline: Option<&'a RawValue>,
    #[serde(borrow)]
    sequence_id: Option<&'a RawValue>,
    #[serde(borrow)]
    application: Option<&'a RawValue>,
    binary_data_output: Option<bool>,
}

#[derive(Deserialize)]
struct BodyInput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: BoundedList<i64, MAX_RANK>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(borrow)]
    parameters: Option<TensorParameters<'a>>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct BodyOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    parameters: Option<TensorParameters<'a>>,
}

#[derive(Deserialize, Default)]
struct TensorParameters<'a> {
    binary_data: Option<bool>,
    binary_data_size: Option<u64>,
    classification: Option<u64>,
    #[serde(borrow)]
    shared_memory_region: Option<Cow<'a, str>>,
    shared_memory_offset: Option<u64>,
    shared_memory_byte_size: Option<u64>,
}

impl TensorParameters<'_> {
    /// Returns the part of a shared memory region that they name, if any.
    fn region(&self) -> Result<Option<RegionPart<'_>>, String> {
        let Some(region) = &self.shared_memory_region else { return Ok(None) };
        let bytes = self.shared_memory_byte_size.ok_or("shared_memory_byte_size is missing")?;
        Ok(Some(RegionPart { region, offset: self.shared_memory_offset.unwrap_or(0), bytes }))
    }
}

/// An infer request's headers and body, and the model that it is for.
pub(super) struct InferCall<'a, 'm> {
    /// The headers of its request.
    pub(super) headers: &'a HeaderMap,
    /// The unpacked body.
    pub(super) body: Bytes,
    /// The deadline that the headers give.
    pub(super) deadline: RequestDeadline,
    /// The model.
    pub(super) model: &'m FoundModel,
    /// The shared memory that it may name.
    pub(super) regions: &'a Regions,
    /// The most rows that it may have.
    pub(super) most_rows: usize,
}

/// Reads an infer request within `bounds`.
///
/// Errors: 400 with what was wrong, where, and what would be right; 413 or 429.
pub(super) async fn parse<'m>(
    call: InferCall<'_, 'm>,
    bounds: &mut ReadBounds,
) -> Result<Inference<'m>, Problem> {
    let InferCall { headers, body, mut deadline, model, regions, most_rows } = call;
    let json_bytes = json_length(headers, body.len())?;
    if json_bytes == 0 && headers.contains_key(JSON_LENGTH) {
        deadline.check()?;
        return raw_input(body, deadline, model, regions, bounds).await;
    }
    let skeleton = Skeleton::of(&body[..json_bytes], bounds).await?;
    let mut raw = body.slice(json_bytes..);
    let body: InferBody<'_> =
        serde_json::from_slice(skeleton.text()).map_err(|e| malformed(&e, skeleton.is_cut()))?;
    let parameters = body.parameters.unwrap_or_default();
    for (name, value) in [
        ("timeout", parameters.timeout),
        ("priority", parameters.priority),
        ("deadline", parameters.deadline),
        ("sequence_id", parameters.sequence_id),
        ("application", parameters.application),
    ] {
        if let Some(value) = value {
            deadline.parameter(name, &parameter_value(value))?;
        }
    }
    deadline.check()?;
    let given = body.inputs.0.iter().map(|input| {
        let data = data(input, &skeleton, &mut raw)
            .map_err(|what| Problem::bad(format!("input {}: {what}", quoted(&input.name))))?;
        Ok(GivenInput { name: &input.name, datatype: &input.datatype, shape: &input.shape.0, data })
    });
    let given: Vec<GivenInput<'_>> = given.collect::<Result<_, Problem>>()?;
    if !raw.is_empty() {
        let message = format!("{} bytes of binary data are left over after all inputs", raw.len());
        return Err(Problem::bad(message));
    }
    let inputs = Inputs::new(model, deadline.application(), given, regions, most_rows, bounds).await?;
    let otherwise = format(parameters.binary_data_output);
    let outputs = body.outputs.unwrap_or_default().0;
    let requested =
        outputs.iter().map(|output| requested(output, otherwise)).collect::<Result<Vec<_>, Problem>>()?;
    let chosen = choose(&inputs.target.own, requested, otherwise, inputs.rows.count, regions)?;
    Ok(Inference { id: body.id, inputs, chosen, deadline })
}

/// Reads a body that is, without JSON, one row of a model's only input. Its outputs are sent in
/// binary form.
///
/// Errors: 400 if the model has several inputs, or the bytes are not as many as the row needs.
async fn raw_input<'m>(
    body: Bytes,
    deadline: RequestDeadline,
    model: &'m FoundModel,
    regions: &Regions,
    bounds: &mut ReadBounds,
) -> Result<Inference<'m>, Problem> {
    let [spec] = &model.signature.inputs[..] else {
        let all = names(model.signature.inputs.iter().map(|spec| spec.name.as_str()));
        return Err(Problem::bad(format!(
            "Inference-Header-Content-Length is 0, so the body is the model's only input; but it has {all}"
        )));
    };
    let mut wire = body;
    let shape = shape_of_body(model, spec, wire.len())?;
    if let DataType::Bytes(_) = spec.datatype {
        bounds.memory.grow(LENGTH_BYTES + wire.len())?;
        let mut element = Vec::with_capacity(LENGTH_BYTES + wire.len());
        elements::put(&wire, &mut element);
        wire = element.into();
    }
    let (name, datatype, data) = (&spec.name, spec.datatype.name(), InputData::Wire(wire));
    let given = [GivenInput { name, datatype, shape: &shape, data }];
    let inputs = Inputs::new(model, deadline.application(), given, regions, 1, bounds).await?;
    let chosen = choose(&inputs.target.own, [], Format::Binary, 1, regions)?;
    Ok(Inference { id: String::new(), inputs, chosen, deadline })
}

fn json_length(headers: &HeaderMap, body: usize) -> Result<usize, Problem> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(body) };
    let length = value.to_str().ok().and_then(|text| text.parse::<usize>().ok());
    length.filter(|&length| length <= body).ok_or_else(|| {
        let is = quoted(&String::from_utf8_lossy(value.as_bytes()));
        Problem::bad(format!(
            "Inference-Header-Content-Length is {is}; it must be the length of the JSON, at most the body's {body} bytes"
        ))
    })
}

/// Returns the problem of a body that serde_json refuses, `is_cut` if without its elements.
fn malformed(error: &serde_json::Error, is_cut: bool) -> Problem {
    let mut what = shortened(&error.to_string(), 300);
    if is_cut {
        what.push_str(" (in the body with 0 in place of each array of data)");
    }
    if error.is_data() {
        return Problem::bad(format!("the body is not an infer request: {what}"));
    }
    Problem::bad(format!("the body is not valid JSON: {what}"))
}

fn parameter_value(value: &RawValue) -> ParameterValue {
    if value.get().starts_with(['[', '{']) {
        return ParameterValue::Other;
    }
    match serde_json::from_str(value.get()) {
        Ok(serde_json::Value::String(text)) => ParameterValue::Text(text),
        Ok(serde_json::Value::Number(number)) => {
            number.as_i128().map_or(ParameterValue::Other, ParameterValue::Number)
        }
        _ => ParameterValue::Other,
    }
}

/// Finds an input's elements. Binary elements are split off the front of `raw`.
fn data<'a>(
    input: &'a BodyInput<'_>,
    skeleton: &'a Skeleton<'_>,
    raw: &mut Bytes,
) -> Result<InputData<'a>, String> {
    let parameters = input.parameters.as_ref();
    if let Some(part) = parameters.map(TensorParameters::region).transpose()?.flatten() {
        return Ok(InputData::Region(part));
    }
    if let Some(size) = parameters.and_then(|p| p.binary_data_size) {
        let left = raw.len();
        let size = usize::try_from(size).ok().filter(|&size| size <= left).ok_or_else(|| {
            format!("binary_data_size is {size}, but only {left} bytes of binary data are left")
        })?;
        return Ok(InputData::Wire(raw.split_to(size)));
    }
    Ok(input.data.map_or(InputData::Missing, |data| InputData::Json(skeleton.value(data))))
}

fn format(binary: Option<bool>) -> Format {
    if binary == Some(true) { Format::Binary } else { Format::Json }
}

fn requested<'a>(output: &'a BodyOutput<'_>, otherwise: Format) -> Result<RequestedOutput<'a>, Problem> {
    let name: &str = &output.name;
    let Some(parameters) = &output.parameters else {
        return Ok(RequestedOutput { name, how: OutputKind::Tensor, format: otherwise });
    };
    let wrong = |what: String| Problem::bad(format!("output {}: {what}", quoted(name)));
    let how = match (parameters.region().map_err(wrong)?, parameters.classification) {
        (Some(part), _) => OutputKind::Region(part),
        (None, Some(most)) => OutputKind::Classes(most),
        (None, None) => OutputKind::Tensor,
    };
    let format = parameters.binary_data.map_or(otherwise, |binary| format(Some(binary)));
    Ok(RequestedOutput { name, how, format })
}

/// The beginning of an answer's JSON.
#[derive(Serialize)]
struct AnswerHead<'a> {
    model_name: &'a str,
    model_version: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
}

#[derive(Serialize)]
struct TensorHead<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<OutputParameters<'a>>,
}

#[derive(Serialize, Default)]
struct OutputParameters<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    binary_data_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_region: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shared_memory_byte_size: Option<usize>,
}

/// Returns the body of an answer in time, and the length of its JSON if raw tensors follow it.
///
/// Errors: 400 if the shared memory for an output is too small or gone.
pub(super) async fn answer(
    answered: &InferAnswer<'_>,
    slices: &Slices,
) -> Result<(Vec<u8>, Option<usize>), Problem> {
    let outputs = answered.outputs(slices).await?;
    let model = answered.model();
    let mut out = Vec::with_capacity(512);
    put(
        &mut out,
        &AnswerHead { model_name: &model.name, model_version: model.version.to_string(), id: &answered.id },
    );
    reopen(&mut out, b",\"parameters\":{");
    for (at, (name, value)) in answered.times.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        put(&mut out, &name);
        out.push(b':');
        put(&mut out, &value);
    }
    out.extend(b"},\"outputs\":[");
    let mut raw = Vec::new();
    for (at, output) in outputs.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        let mut head = TensorHead {
            name: output.name,
            datatype: output.datatype,
            shape: &output.shape,
            parameters: None,
        };
        if let Some((view, bytes)) = output.region {
            head.parameters = Some(OutputParameters {
                shared_memory_region: Some(view.region()),
                shared_memory_offset: Some(view.offset()),
                shared_memory_byte_size: Some(bytes),
                ..OutputParameters::default()
            });
            put(&mut out, &head);
        } else if output.format == Format::Binary {
            let wire = output.wire(slices).await;
            let binary_data_size = Some(wire.len());
            head.parameters = Some(OutputParameters { binary_data_size, ..OutputParameters::default() });
            put(&mut out, &head);
            raw.push(wire);
        } else {
            put(&mut out, &head);
            reopen(&mut out, b",\"data\":");
            output.json(&mut out, slices).await;
            out.push(b'}');
        }
    }
    out.extend(b"]}");
    let json_bytes = (!raw.is_empty()).then_some(out.len());
    slices.reserve(&mut out, raw.iter().map(|wire| wire.len()).sum()).await;
    for wire in &raw {
        slices.append(wire, &mut out).await;
    }
    Ok((out, json_bytes))
}

fn put(out: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(&mut *out, value).expect("these are JSON, and memory takes them");
}

/// Reopens the object that was written last, and appends `with`.
fn reopen(out: &mut Vec<u8>, with: &[u8]) {
    out.pop();
    out.extend_from_slice(with);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::inference::answer::samples::{large_answer, large_model};
    use crate::api::net::slices::{SLICE_BYTES, ready_now};

    #[test]
    fn a_large_answer_is_written_in_slices() {
        for format in [Format::Json, Format::Binary] {
            let model = large_model();
            let (answered, slices) = (large_answer(&model, format), Slices::alone());
            let (body, json_bytes) = ready_now(answer(&answered, &slices)).unwrap();
            assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
            let json: serde_json::Value =
                serde_json::from_slice(&body[..json_bytes.unwrap_or(body.len())]).unwrap();
            if format == Format::Json {
                assert_eq!(json["outputs"][1]["data"][1].as_str().map(str::len), Some(4 << 20));
                assert_eq!(json["outputs"][2]["data"].as_array().map(Vec::len), Some(400_000));
            } else {
                let sizes = [2 << 22, 2 * (4 + (4 << 20)), 400_000 * 8];
                assert_eq!(body.len() - json_bytes.unwrap(), sizes.iter().sum::<usize>());
            }
        }
    }
}
