//! Reads requests without a socket or an engine: [`Reader`] takes a body or a message through the
//! same functions as a connection does, and returns the bytes that would have been written into the
//! engine's slots. It also writes such a request again. The fuzz targets of `engine/fuzz` use it.

use super::grpc::{self, messages};
use super::http;
use crate::api::inference::Inference;
use crate::api::inference::tensors::{elements, json};
use crate::api::net::memory::{CoreMemory, ReadBounds};
use crate::api::net::slices::{Slices, ready_now};
use crate::api::problem::Problem;
use crate::api::services::models::FoundModel;
use crate::api::services::shared_memory::Regions;
use crate::runtime::frontend::ModelInfo;
use bytes::Bytes;
use hyper::header::HeaderMap;
use messages::ModelInferRequest;
use messages::model_infer_request::InferInputTensor;
use serde::Serialize;
use serde_json::value::RawValue;
use std::cell::Cell;
use std::rc::Rc;
use symphony_gpu::{DataType, TensorSpec};

/// A reader of infer requests for one model, which ignores the name and version in them.
#[derive(Debug)]
pub struct Reader {
    model: FoundModel,
    most_rows: usize,
    most_bytes: usize,
    memory: usize,
    /// The largest slice of work of the last request.
    largest_slice: Cell<usize>,
    /// The table of shared memory regions, always empty.
    regions: Regions,
}

/// A valid infer request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Understood {
    /// The client's own id; empty for none.
    pub id: String,
    /// True if the inputs' shapes have the batch dimension.
    pub batched: bool,
    /// The input of each row, in the layout of the model's signature. At least one row.
    pub slots: Vec<Vec<u8>>,
}

/// The reason that a request is invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{status}: {message}")]
pub struct Refused {
    /// The HTTP status.
    pub status: u16,
    /// The message: what was wrong, where, and what would be right.
    pub message: String,
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused { status: problem.status.as_u16(), message: problem.message }
    }
}

impl Reader {
    /// Reads requests for `model` of at most `most_rows` rows, whose bodies unpack to at most
    /// `most_bytes`; reading one takes at most three times that.
    pub fn new(model: ModelInfo, most_rows: usize, most_bytes: usize) -> Reader {
        let memory = most_bytes.saturating_mul(3);
        Reader {
            model: FoundModel::alone(model),
            most_rows,
            most_bytes,
            memory,
            largest_slice: Cell::new(0),
            regions: Regions::default(),
        }
    }

    /// Returns the bounds for a body of `length` bytes.
    fn bounds(&self, length: usize) -> Result<ReadBounds, Problem> {
        let mut memory = CoreMemory::new(self.memory, self.memory).lease(&Rc::default());
        memory.grow(length)?;
        Ok(ReadBounds { limit: self.most_bytes, memory, slices: Slices::alone() })
    }

    /// Reads the body of `POST /v2/models/NAME/infer`; `headers` are its request's.
    ///
    /// Errors: the client's error message and status.
    pub fn http(&self, headers: &HeaderMap, body: Bytes) -> Result<Understood, Refused> {
        let Reader { model, most_rows, regions, .. } = self;
        let mut bounds = self.bounds(body.len())?;
        let inference = ready_now(http::read(headers, body, &mut bounds, model, regions, *most_rows));
        let understood = inference.map(|inference| self.understood(&inference, &bounds));
        self.largest_slice.set(bounds.slices.largest());
        Ok(understood?)
    }

    /// Reads the body of a call of `ModelInfer`: one message in its envelope; `headers` are the
    /// call's.
    ///
    /// Errors: the client's error message, with the corresponding HTTP status.
    pub fn grpc(&self, headers: &HeaderMap, body: Bytes) -> Result<Understood, Refused> {
        let Reader { model, most_rows, regions, .. } = self;
        let mut bounds = self.bounds(body.len())?;
        let inference = ready_now(grpc::read(headers, body, &mut bounds, model, regions, *most_rows));
        let understood = inference.map(|inference| self.understood(&inference, &bounds));
        self.largest_slice.set(bounds.slices.largest());
        Ok(understood?)
    }

    /// Returns the most work, in bytes, that was done on the last request between two pauses in
    /// which an API core serves others.
    pub fn largest_slice(&self) -> usize {
        self.largest_slice.get()
    }

    fn understood(&self, inference: &Inference<'_>, bounds: &ReadBounds) -> Understood {
        let (rows, slices) = (inference.inputs.rows, &bounds.slices);
        let row = |at| {
            let mut slot = vec![0; self.model.signature.input_bytes()];
            ready_now(inference.inputs.fill(at, &mut slot, slices));
            slot
        };
        Understood {
            id: inference.id.clone(),
            batched: rows.batched,
            slots: (0..rows.count).map(row).collect(),
        }
    }

    /// Writes a request as a JSON body; `None` for values without a JSON form: NaN, infinities, and
    /// BYTES that are not UTF-8.
    pub fn json(&self, request: &Understood) -> Option<Vec<u8>> {
        let inputs = self.tensors(request, |spec, shape, bytes| {
            let mut text = Vec::new();
            json::write(&mut text, spec.datatype, bytes);
            let text = String::from_utf8(text).expect("JSON is UTF-8");
            let lost = match spec.datatype {
                DataType::Bytes(most) => {
                    elements::of(bytes, most).any(|element| std::str::from_utf8(element).is_err())
                }
                _ => text.contains("null"),
            };
            let data = RawValue::from_string(text).expect("it was written as JSON");
            (!lost).then(|| WrittenInput { data: Some(data), ..WrittenInput::of(spec, shape) })
        });
        let inputs: Vec<WrittenInput> = inputs.into_iter().collect::<Option<_>>()?;
        Some(WrittenBody { id: &request.id, inputs }.text())
    }

    /// Writes a request as a body of JSON with raw tensors behind it; also returns the JSON's
    /// length.
    pub fn binary(&self, request: &Understood) -> (Vec<u8>, usize) {
        let mut raw = Vec::new();
        let inputs = self.tensors(request, |spec, shape, bytes| {
            let wire = wire(spec, bytes);
            raw.extend_from_slice(&wire);
            let parameters = Some(WrittenParameters { binary_data_size: wire.len() });
            WrittenInput { parameters, ..WrittenInput::of(spec, shape) }
        });
        let mut body = WrittenBody { id: &request.id, inputs }.text();
        let json_bytes = body.len();
        body.extend(raw);
        (body, json_bytes)
    }

    /// Writes a request as a gRPC message.
    pub fn message(&self, request: &Understood) -> ModelInferRequest {
        let mut raw = Vec::new();
        let inputs = self.tensors(request, |spec, shape, bytes| {
            raw.push(Bytes::from(wire(spec, bytes)));
            InferInputTensor {
                name: spec.name.clone(),
                datatype: spec.datatype.name().to_owned(),
                shape: shape.to_vec(),
                ..InferInputTensor::default()
            }
        });
        ModelInferRequest {
            model_name: self.model.name.clone(),
            id: request.id.clone(),
            inputs,
            raw_input_contents: raw,
            ..ModelInferRequest::default()
        }
    }

    /// Calls `tensor` for each input with its shape and the bytes of all rows.
    fn tensors<T>(
        &self,
        request: &Understood,
        mut tensor: impl FnMut(&TensorSpec, &[i64], &[u8]) -> T,
    ) -> Vec<T> {
        let signature = &self.model.signature;
        let each = signature.inputs.iter().enumerate().map(|(at, spec)| {
            let row = spec.shape.iter().map(|&dimension| dimension as i64);
            let batch = request.batched.then_some(request.slots.len() as i64);
            let shape: Vec<i64> = batch.into_iter().chain(row).collect();
            let bytes: Vec<u8> =
                request.slots.iter().flat_map(|slot| &slot[signature.input_range(at)]).copied().collect();
            tensor(spec, &shape, &bytes)
        });
        each.collect()
    }
}

/// A body to write. Numbers stay text, as some would change if they were parsed in between.
#[derive(Serialize)]
struct WrittenBody<'a> {
    id: &'a str,
    inputs: Vec<WrittenInput>,
}

impl WrittenBody<'_> {
    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("these are JSON, and memory takes them")
    }
}

#[derive(Serialize)]
struct WrittenInput {
    name: String,
    datatype: &'static str,
    shape: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<WrittenParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Box<RawValue>>,
}

impl WrittenInput {
    fn of(spec: &TensorSpec, shape: &[i64]) -> WrittenInput {
        let (name, datatype) = (spec.name.clone(), spec.datatype.name());
        WrittenInput { name, datatype, shape: shape.to_vec(), parameters: None, data: None }
    }
}

#[derive(Serialize)]
struct WrittenParameters {
    binary_data_size: usize,
}

/// Converts elements in the layout of rows to the protocol's binary form.
fn wire(spec: &TensorSpec, bytes: &[u8]) -> Vec<u8> {
    match spec.datatype {
        DataType::Bytes(most) => {
            let mut wire = Vec::new();
            elements::of(bytes, most).for_each(|element| elements::put(element, &mut wire));
            wire
        }
        _ => bytes.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::frontend::SlotState;
    use hyper::header::HeaderValue;
    use prost::Message;
    use symphony_gpu::Signature;
    use symphony_transport::Nanos;
    use symphony_transport::message::ModelId;

    fn reader() -> Reader {
        let spec = |name: &str, datatype, shape: &[usize]| TensorSpec {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
        };
        let inputs = vec![
            spec("x", DataType::Fp32, &[2]),
            spec("s", DataType::Bytes(4), &[]),
            spec("b", DataType::Bool, &[3]),
        ];
        let model = ModelInfo {
            name: "m".into(),
            version: 1,
            platform: "emulated".into(),
            signature: Signature::of_rows(inputs, Vec::new()),
            slo: Nanos::from_millis(25),
            max_batch: 8,
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(0), 0)
        };
        Reader::new(model, 4, 1 << 16)
    }

    #[test]
    fn a_request_written_in_any_form_is_read_as_the_same() {
        let reader = reader();
        let body = r#"{"id":"7","inputs":[{"name":"b","datatype":"BOOL","shape":[2,3],"data":[true,false,true,false,false,true]},
            {"name":"s","datatype":"BYTES","shape":[2],"data":["é",""]},{"name":"x","datatype":"FP32","shape":[2,2],"data":[[1,-0.5],[3e7,0]]}]}"#;
        let read = reader.http(&HeaderMap::new(), Bytes::from(body)).unwrap();
        assert_eq!((read.id.as_str(), read.batched, read.slots.len()), ("7", true, 2));
        assert_eq!(read.slots[0][..4], 1f32.to_le_bytes());
        let json = reader.json(&read).unwrap();
        assert_eq!(reader.http(&HeaderMap::new(), json.into()).unwrap(), read);
        let (binary, json_bytes) = reader.binary(&read);
        let mut headers = HeaderMap::new();
        headers.insert("inference-header-content-length", HeaderValue::from(json_bytes));
        assert_eq!(reader.http(&headers, binary.into()).unwrap(), read);
        let message = reader.message(&read).encode_to_vec();
        let mut enveloped = vec![0; 5];
        enveloped[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
        enveloped.extend(message);
        assert_eq!(reader.grpc(&HeaderMap::new(), enveloped.into()).unwrap(), read);
    }

    #[test]
    fn what_json_cannot_say_is_not_written_as_json() {
        let reader = reader();
        let slot = |number: f32| [&number.to_le_bytes()[..], &[0; 4 + 8 + 8]].concat();
        let request = |slots| Understood { id: String::new(), batched: true, slots };
        assert!(reader.json(&request(vec![slot(1.0)])).is_some());
        assert_eq!(reader.json(&request(vec![slot(1.0), slot(f32::NAN)])), None);
        let mut no_utf8 = slot(1.0);
        no_utf8[8..13].copy_from_slice(&[1, 0, 0, 0, 0xff]);
        assert_eq!(reader.json(&request(vec![no_utf8])), None);
    }

    #[test]
    fn a_wrong_request_is_refused_as_a_server_would() {
        let refused = reader().http(&HeaderMap::new(), Bytes::from("{")).unwrap_err();
        assert_eq!(refused.status, 400);
        assert!(refused.to_string().contains("not valid JSON"), "{refused}");
    }
}
