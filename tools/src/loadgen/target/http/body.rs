//! The bodies of the protocol over HTTP: requests with tensors as JSON, as raw bytes after the
//! JSON, or in shared memory; and what is read of answers. Pure.

use crate::loadgen::inputs::Tensor;
use crate::loadgen::measure::{End, ServerDetails, StageTimes};
use crate::loadgen::target::call::Call;
use crate::loadgen::target::describe::{DescribedTensor, Description};
use crate::loadgen::target::shared_memory::{Region, RegionSlice};
use crate::loadgen::target::wire::{Reply, end_of};
use bytes::{Bytes, BytesMut};
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write;
use symphony_transport::Nanos;

/// The body of an infer request, and the length of its JSON if raw tensors follow that. With inputs
/// in shared memory the JSON is left open: [`with_outputs`] ends it.
///
/// Errors: values that JSON can't express.
pub(super) fn infer(call: &Call<'_>) -> Result<(Bytes, Option<usize>), String> {
    let raw = !call.json && call.shared.is_none();
    let mut text = String::from("{");
    write_parameters(&mut text, call, raw);
    text.push_str("\"inputs\":[");
    for (at, tensor) in call.tensors.iter().enumerate() {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let (name, datatype) = (Value::from(tensor.name.as_str()), tensor.element.name());
        let (comma, shape) = (if at > 0 { "," } else { "" }, shape.join(","));
        let _ = write!(text, "{comma}{{\"name\":{name},\"datatype\":\"{datatype}\",\"shape\":[{shape}],");
        match &call.shared {
            Some(shared) => write_slice(&mut text, shared.region, shared.slices[at]),
            None if raw => {
                let _ = write!(text, "\"parameters\":{{\"binary_data_size\":{}}}", tensor.data.len());
            }
            None => {
                text.push_str("\"data\":[");
                write_data(&mut text, tensor)?;
                text.push(']');
            }
        }
        text.push('}');
    }
    text.push(']');
    if call.shared.is_some() {
        return Ok((Bytes::from(text), None));
    }
    text.push('}');
    if !raw {
        return Ok((Bytes::from(text), None));
    }
    let json_length = text.len();
    let mut body = BytesMut::from(text.as_bytes());
    call.tensors.iter().for_each(|tensor| body.extend_from_slice(&tensor.data));
    Ok((body.freeze(), Some(json_length)))
}

fn write_data(text: &mut String, tensor: &Tensor) -> Result<(), String> {
    let written = tensor.element.write_json(&tensor.data, text);
    written.map_err(|what| format!("input \"{}\": {what}", tensor.name))
}

fn write_parameters(text: &mut String, call: &Call<'_>, raw: bool) {
    // At least one microsecond: zero would mean no limit to some servers.
    let timeout = call.limit.map(|limit| format!("\"timeout\":{}", limit.0.div_ceil(1_000).max(1)));
    let priority = call.priority().map(|priority| format!("\"priority\":{priority}"));
    let binary = raw.then(|| "\"binary_data_output\":true".to_owned());
    let parameters: Vec<String> = [timeout, priority, binary].into_iter().flatten().collect();
    if !parameters.is_empty() {
        let _ = write!(text, "\"parameters\":{{{}}},", parameters.join(","));
    }
}

fn write_slice(text: &mut String, region: &str, RegionSlice { offset, bytes }: RegionSlice) {
    let _ = write!(
        text,
        "\"parameters\":{{\"shared_memory_region\":\"{region}\",\"shared_memory_offset\":{offset},\
         \"shared_memory_byte_size\":{bytes}}}"
    );
}

/// Completes an open body with its outputs in these slices of a region.
pub(super) fn with_outputs<'a>(
    open: &[u8],
    region: &str,
    slices: impl Iterator<Item = (&'a str, RegionSlice)>,
) -> Bytes {
    let mut text = String::from(",\"outputs\":[");
    for (at, (name, slice)) in slices.enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let _ = write!(text, "{comma}{{\"name\":{},", Value::from(name));
        write_slice(&mut text, region, slice);
        text.push('}');
    }
    text.push_str("]}");
    let mut body = BytesMut::with_capacity(open.len() + text.len());
    body.extend_from_slice(open);
    body.extend_from_slice(text.as_bytes());
    body.freeze()
}

/// The body that registers a region.
pub(super) fn register(region: &Region) -> Bytes {
    json!({ "key": region.key, "offset": 0, "byte_size": region.bytes }).to_string().into()
}

/// An answer, read whole.
pub(super) struct HttpAnswer {
    pub(super) status: StatusCode,
    /// Symphony's own outcome of the request; other servers have none.
    pub(super) outcome: Option<String>,
    /// The length of the JSON, if raw tensors follow it.
    pub(super) json_length: Option<usize>,
    pub(super) body: Bytes,
}

impl HttpAnswer {
    fn json(&self) -> &[u8] {
        &self.body[..self.json_length.unwrap_or(self.body.len()).min(self.body.len())]
    }

    /// Reads the answer to an infer request.
    pub(super) fn reply(self) -> Reply {
        let end = end_of(self.outcome.as_deref(), || end_of_status(self.status));
        let why = (end == End::Failed).then(|| self.error_text());
        let details = if end == End::Good { self.details() } else { ServerDetails::default() };
        Reply { end, details, why }
    }

    fn details(&self) -> ServerDetails {
        #[derive(Deserialize)]
        struct AnswerBody {
            parameters: Option<AnswerParameters>,
        }
        #[derive(Deserialize)]
        struct AnswerParameters {
            batch_size: Option<u32>,
            gpu: Option<u32>,
            queued_us: Option<f64>,
            batched_us: Option<f64>,
            started_us: Option<f64>,
            finished_us: Option<f64>,
            answered_us: Option<f64>,
        }
        let body: Option<AnswerBody> = serde_json::from_slice(self.json()).ok();
        let Some(parameters) = body.and_then(|body| body.parameters) else { return ServerDetails::default() };
        let instant = |us: Option<f64>| us.map(|us| Nanos((us * 1e3) as u64));
        let times = || {
            Some(StageTimes {
                queued: instant(parameters.queued_us)?,
                batched: instant(parameters.batched_us)?,
                started: instant(parameters.started_us)?,
                finished: instant(parameters.finished_us)?,
                answered: instant(parameters.answered_us)?,
            })
        };
        ServerDetails { batch_size: parameters.batch_size.unwrap_or(0), gpu: parameters.gpu, times: times() }
    }

    /// Returns the status and the server's error message.
    pub(super) fn error_text(&self) -> String {
        const LONGEST: usize = 300;
        #[derive(Deserialize)]
        struct ErrorBody {
            error: String,
        }
        let message = match serde_json::from_slice::<ErrorBody>(&self.body) {
            Ok(body) => body.error,
            Err(_) => String::from_utf8_lossy(&self.body).into_owned(),
        };
        let message: String =
            message.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{}: {message}", self.status)
    }

    /// Reads the server's metadata: the extensions that it supports.
    pub(super) fn extensions(&self) -> Vec<String> {
        #[derive(Deserialize)]
        struct ServerMetadata {
            #[serde(default)]
            extensions: Vec<String>,
        }
        serde_json::from_slice::<ServerMetadata>(&self.body).map(|body| body.extensions).unwrap_or_default()
    }

    /// Reads a repository's index: the models that are ready; `None` where it is no index.
    pub(super) fn model_names(&self) -> Option<Vec<String>> {
        #[derive(Deserialize)]
        struct IndexEntry {
            name: String,
            state: Option<String>,
        }
        let entries: Vec<IndexEntry> = serde_json::from_slice(&self.body).ok()?;
        let ready = |entry: &IndexEntry| entry.state.as_deref().is_none_or(|state| state == "READY");
        let mut names: Vec<String> = entries.into_iter().filter(ready).map(|entry| entry.name).collect();
        // An entry a version.
        names.dedup();
        Some(names)
    }

    /// Reads a model's configuration: its SLO.
    pub(super) fn slo(&self) -> Option<Nanos> {
        let config: Value = serde_json::from_slice(&self.body).ok()?;
        let stated = &config["parameters"]["slo_ms"];
        let ms = stated["string_value"].as_str().or(stated.as_str()).and_then(|text| text.parse().ok());
        ms.or(stated.as_f64()).map(Nanos::from_millis_f64).filter(|&slo| slo > Nanos::ZERO)
    }

    /// Reads a model's metadata.
    ///
    /// Errors: they are not metadata of this protocol, or no input can be made.
    pub(super) fn description(&self) -> Result<Description, String> {
        #[derive(Deserialize)]
        struct Metadata {
            inputs: Vec<MetadataTensor>,
            #[serde(default)]
            outputs: Vec<MetadataTensor>,
        }
        #[derive(Deserialize)]
        struct MetadataTensor {
            name: String,
            datatype: String,
            shape: Vec<i64>,
        }
        let metadata: Metadata = serde_json::from_slice(&self.body)
            .map_err(|e| format!("its metadata is not of the KServe v2 protocol ({e})"))?;
        let tensors = |list: Vec<MetadataTensor>| -> Vec<DescribedTensor> {
            let tensor = |MetadataTensor { name, datatype, shape }| DescribedTensor { name, datatype, shape };
            list.into_iter().map(tensor).collect()
        };
        Description::new(&tensors(metadata.inputs), &tensors(metadata.outputs))
    }
}

/// Returns how a request ended by the HTTP status alone.
fn end_of_status(status: StatusCode) -> End {
    match status {
        status if status.is_success() => End::Good,
        StatusCode::GATEWAY_TIMEOUT => End::Dropped,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => End::Rejected,
        _ => End::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::inputs::Element;
    use crate::loadgen::target::call::SharedInputs;
    use symphony_gpu::DataType;

    fn tensors() -> Vec<Tensor> {
        let element = Element::Fixed(DataType::Fp32);
        let data = [0.5_f32, 1.5].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>().into();
        let bytes = Bytes::from_static(b"\x02\0\0\0hi");
        vec![
            Tensor { name: "a \"b\"".into(), element, shape: vec![1, 2], data },
            Tensor { name: "s".into(), element: Element::Bytes, shape: vec![1], data: bytes },
        ]
    }

    fn call(tensors: &[Tensor], json: bool) -> Call<'_> {
        let limit = Some(Nanos::from_micros(25_000));
        Call { model: "m", tensors, limit, class: Some(2), json, shared: None }
    }

    #[test]
    fn json_tensors_are_in_the_body_with_the_time_out_in_microseconds() {
        let tensors = tensors();
        let (body, length) = infer(&call(&tensors, true)).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({
            "parameters": { "timeout": 25_000, "priority": 3 },
            "inputs": [
                { "name": "a \"b\"", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 1.5] },
                { "name": "s", "datatype": "BYTES", "shape": [1], "data": ["hi"] },
            ],
        });
        assert_eq!((body, length), (expected, None));
    }

    #[test]
    fn raw_tensors_follow_the_json_and_are_asked_for_in_the_answer() {
        let tensors = tensors();
        let (body, length) = infer(&call(&tensors, false)).unwrap();
        let (head, rest) = body.split_at(length.unwrap());
        let head: Value = serde_json::from_slice(head).unwrap();
        assert_eq!(head["parameters"]["binary_data_output"], true);
        assert_eq!(head["inputs"][0]["parameters"], json!({ "binary_data_size": 8 }));
        assert_eq!(head["inputs"][1]["parameters"], json!({ "binary_data_size": 6 }));
        assert_eq!(rest, [&tensors[0].data[..], &tensors[1].data[..]].concat());
    }

    #[test]
    fn shared_tensors_are_places_of_a_region_and_outputs_too() {
        let tensors = tensors();
        let slices = [RegionSlice { offset: 0, bytes: 8 }, RegionSlice { offset: 64, bytes: 6 }];
        let shared = Some(SharedInputs { region: "r", slices: &slices });
        let (open, _) = infer(&Call { shared, ..call(&tensors, false) }).unwrap();
        let body = with_outputs(&open, "r", [("y", RegionSlice { offset: 128, bytes: 40 })].into_iter());
        let body: Value = serde_json::from_slice(&body).unwrap();
        let slice = |offset: u64, bytes: u64| json!({ "shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": bytes });
        assert_eq!(body["inputs"][1]["parameters"], slice(64, 6));
        assert_eq!(body["outputs"], json!([{ "name": "y", "parameters": slice(128, 40) }]));
    }

    fn answer(status: u16, outcome: Option<&str>, body: &'static str) -> HttpAnswer {
        let status = StatusCode::from_u16(status).unwrap();
        let body = Bytes::from_static(body.as_bytes());
        HttpAnswer { status, outcome: outcome.map(Into::into), json_length: None, body }
    }

    #[test]
    fn symphonys_own_outcome_decides_how_a_request_ended_and_else_the_status() {
        for (status, outcome, end) in [
            (200, Some("good"), End::Good),
            (504, Some("late"), End::Late),
            (504, Some("dropped"), End::Dropped),
            (504, Some("cancelled"), End::Dropped),
            (429, Some("overloaded"), End::Rejected),
            (503, Some("draining"), End::Rejected),
            (500, Some("failed"), End::Failed),
            (400, Some("invalid"), End::Failed),
            (200, None, End::Good),
            (504, None, End::Dropped),
            (429, None, End::Rejected),
            (503, None, End::Rejected),
            (404, None, End::Failed),
            (500, Some("a new outcome"), End::Failed),
        ] {
            assert_eq!(answer(status, outcome, "").reply().end, end, "{status} {outcome:?}");
        }
    }

    #[test]
    fn the_batch_and_the_stages_are_read_where_the_server_states_them() {
        let details = |body| answer(200, None, body).reply().details;
        let body = r#"{"parameters":{"queued_us":0,"batched_us":5,"started_us":7,"finished_us":17,"answered_us":18,
                       "batch_size":7,"gpu":2},"outputs":[]}"#;
        let us = Nanos::from_micros;
        let durations = details(body).times.unwrap().durations(us(30));
        assert_eq!(durations, [us(5), us(2), us(10), us(1), us(12)]);
        assert_eq!((details(body).batch_size, details(body).gpu), (7, Some(2)));
        assert_eq!(details(r#"{"outputs":[]}"#), ServerDetails::default());
        assert_eq!(details("no JSON"), ServerDetails::default());
        let mut raw = answer(200, None, r#"{"parameters":{"batch_size":3}}....raw"#);
        raw.json_length = Some(31);
        assert_eq!(raw.reply().details.batch_size, 3);
    }

    #[test]
    fn metadata_and_configuration_have_the_tensors_and_the_slo() {
        let body = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,3,-1]}]}"#;
        let description = answer(200, None, body).description().unwrap();
        assert_eq!((description.inputs[0].shape.as_slice(), description.batched), ([3, 1].as_slice(), true));
        let error = answer(200, None, "{}").description().unwrap_err();
        assert!(error.contains("not of the KServe v2 protocol"), "{error}");
        let slo = |body| answer(200, None, body).slo();
        assert_eq!(slo(r#"{"parameters":{"slo_ms":{"string_value":"25"}}}"#), Some(Nanos::from_millis(25)));
        assert_eq!((slo("{}"), slo("no JSON")), (None, None));
    }

    #[test]
    fn an_index_lists_the_models_that_are_ready_once() {
        let index = r#"[{"name":"a","version":"1","state":"READY"},{"name":"a","version":"2","state":"READY"},
                        {"name":"b","state":"UNAVAILABLE"},{"name":"c"}]"#;
        assert_eq!(answer(200, None, index).model_names().unwrap(), ["a", "c"]);
        assert_eq!(answer(200, None, "{}").model_names(), None);
    }
}
