//! Requests whose bodies are as large as they may be, of every kind.

use crate::api::loadgen::Protocol;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde_json::{Value, json};
use std::io::Write;
use symphony::api::grpc::messages::model_infer_request::InferInputTensor;
use symphony::api::grpc::messages::{InferTensorContents, ModelInferRequest};

/// The elements of a row of `numbers`, and of `texts`.
const ELEMENTS: usize = 128 << 10;
const TEXTS: usize = 8 << 10;

/// The bytes of each text.
const TEXT_BYTES: usize = 60;

/// The rows of a request of binary numbers: 60 MiB of the 64 that a body may have.
const ROWS: usize = 120;

/// The rows of a request whose numbers take nine characters each.
const JSON_ROWS: usize = 48;

/// The rows of a request for texts.
const TEXT_ROWS: usize = 100;

/// The name of the shared memory, and its size: the inputs, and behind them the outputs.
pub(super) const REGION_KEY: &str = "/symphony-turns";
pub(super) const REGION_BYTES: usize = 2 * 4 * ROWS * ELEMENTS;

/// An engine whose models give numbers for numbers, and texts for texts.
pub(super) const MODELS: &str = r#"
    [memory]
    slab_mb = 1024

    [[executors]]
    kind = "emulated"
    count = 1

    [[models]]
    name = "numbers"
    executor = "emulated"
    slo_ms = 60000
    profile = { alpha_ms = 0.01, beta_ms = 1 }
    inputs = [{ name = "x", datatype = "FP32", shape = [131072] }]
    outputs = [{ name = "y", datatype = "FP32", shape = [131072] }]

    [[models]]
    name = "texts"
    executor = "emulated"
    slo_ms = 60000
    profile = { alpha_ms = 0.01, beta_ms = 1 }
    inputs = [{ name = "x", datatype = "BYTES", shape = [8192], max_bytes = 64 }]
    outputs = [{ name = "y", datatype = "BYTES", shape = [8192], max_bytes = 64 }]
"#;

/// A request.
pub(super) struct LargeRequest {
    pub(super) protocol: Protocol,
    /// The path without the slash in front.
    pub(super) call: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// True if it is to be carried out, false if it is to be refused.
    pub(super) is_good: bool,
}

/// A kind of request: its name, and what makes it.
type NamedRequest = (&'static str, fn() -> LargeRequest);

/// The kinds.
pub(super) const KINDS: &[NamedRequest] = &[
    ("HTTP, JSON", || http("numbers", json_numbers())),
    ("HTTP, JSON that breaks off at its end", broken_json),
    ("HTTP, JSON packed by gzip, the answer too", || packed(http("numbers", json_numbers()))),
    ("HTTP, binary", || binary(json!({ "binary_data": true }))),
    ("HTTP, binary, answered in JSON", || binary(json!({ "binary_data": false }))),
    ("HTTP, binary, packed by gzip, the answer too", || packed(binary(json!({ "binary_data": true })))),
    ("HTTP, binary, classified", || binary(json!({ "classification": 1000 }))),
    ("HTTP, binary, one byte too few", || too_short(binary(json!({ "binary_data": true })))),
    ("HTTP, texts in JSON", || http("texts", json_texts())),
    ("HTTP, texts in binary", binary_texts),
    ("HTTP, shared memory in and out", shared_memory),
    ("gRPC, raw", || grpc(&raw_message())),
    ("gRPC, raw, packed by gzip, the answer too", || packed_grpc(&raw_message())),
    ("gRPC, typed numbers", || grpc(&typed_message())),
    ("gRPC, texts", || grpc(&texts_message())),
];

fn http(model: &str, body: Vec<u8>) -> LargeRequest {
    let call = format!("v2/models/{model}/infer");
    LargeRequest { protocol: Protocol::Http, call, headers: Vec::new(), body, is_good: true }
}

/// Returns the head of a request in JSON up to the data of its only input.
fn json_head(rows: usize, of: usize, datatype: &str) -> Vec<u8> {
    format!("{{\"inputs\":[{{\"name\":\"x\",\"shape\":[{rows},{of}],\"datatype\":\"{datatype}\",\"data\":[")
        .into_bytes()
}

fn json_numbers() -> Vec<u8> {
    let mut body = json_head(JSON_ROWS, ELEMENTS, "FP32");
    for number in 0..JSON_ROWS * ELEMENTS {
        let sign = if number == 0 { "" } else { "," };
        body.extend(format!("{sign}0.{:06}", number % 1_000_000).bytes());
    }
    body.extend(b"]}]}");
    body
}

fn broken_json() -> LargeRequest {
    let mut request = http("numbers", json_numbers());
    request.body.truncate(request.body.len() - 1);
    LargeRequest { is_good: false, ..request }
}

fn json_texts() -> Vec<u8> {
    let mut body = json_head(TEXT_ROWS, TEXTS, "BYTES");
    let text = format!("\"{}\"", "t".repeat(TEXT_BYTES));
    let texts = vec![text.as_bytes(); TEXT_ROWS * TEXTS];
    body.extend(texts.join(&b","[..]));
    body.extend(b"]}]}");
    body
}

/// Returns the head of a request whose only input follows it in binary, with this output, and the
/// header that tells its length.
fn with_head(model: &str, input: Value, output: Value, raw: &[u8]) -> LargeRequest {
    let head = json!({ "inputs": [input], "outputs": [{ "name": "y", "parameters": output }] }).to_string();
    let headers = vec![("inference-header-content-length", head.len().to_string())];
    LargeRequest { headers, ..http(model, [head.as_bytes(), raw].concat()) }
}

fn binary(output: Value) -> LargeRequest {
    let raw = raw_numbers();
    let parameters = json!({ "binary_data_size": raw.len() });
    let input =
        json!({ "name": "x", "shape": [ROWS, ELEMENTS], "datatype": "FP32", "parameters": parameters });
    with_head("numbers", input, output, &raw)
}

fn too_short(mut request: LargeRequest) -> LargeRequest {
    request.body.pop();
    LargeRequest { is_good: false, ..request }
}

fn raw_numbers() -> Vec<u8> {
    (0..ROWS * ELEMENTS).flat_map(|number| (number as f32).to_le_bytes()).collect()
}

fn raw_texts() -> Vec<u8> {
    let text = [&(TEXT_BYTES as u32).to_le_bytes()[..], &[b't'; TEXT_BYTES]].concat();
    text.repeat(TEXT_ROWS * TEXTS)
}

fn binary_texts() -> LargeRequest {
    let raw = raw_texts();
    let parameters = json!({ "binary_data_size": raw.len() });
    let input =
        json!({ "name": "x", "shape": [TEXT_ROWS, TEXTS], "datatype": "BYTES", "parameters": parameters });
    with_head("texts", input, json!({ "binary_data": true }), &raw)
}

fn shared_memory() -> LargeRequest {
    let bytes = REGION_BYTES / 2;
    let at = |offset: usize| json!({ "shared_memory_region": "r", "shared_memory_byte_size": bytes, "shared_memory_offset": offset });
    let input = json!({ "name": "x", "shape": [ROWS, ELEMENTS], "datatype": "FP32", "parameters": at(0) });
    let body = json!({ "inputs": [input], "outputs": [{ "name": "y", "parameters": at(bytes) }] });
    http("numbers", body.to_string().into_bytes())
}

/// Returns the registration of the shared memory.
pub(super) fn registration() -> Vec<u8> {
    json!({ "key": REGION_KEY, "offset": 0, "byte_size": REGION_BYTES }).to_string().into_bytes()
}

fn packed(mut request: LargeRequest) -> LargeRequest {
    request.headers.extend([("content-encoding", "gzip".to_owned()), ("accept-encoding", "gzip".to_owned())]);
    LargeRequest { body: gzip(&request.body), ..request }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = packer.write_all(bytes).and_then(|()| packer.finish());
    packed.expect("memory does not refuse bytes")
}

fn message(model: &str, datatype: &str, shape: [usize; 2]) -> ModelInferRequest {
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "x".to_owned(),
            datatype: datatype.to_owned(),
            shape: shape.map(|size| size as i64).to_vec(),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    }
}

fn raw_message() -> ModelInferRequest {
    let raw_input_contents = vec![raw_numbers().into()];
    ModelInferRequest { raw_input_contents, ..message("numbers", "FP32", [ROWS, ELEMENTS]) }
}

fn typed_message() -> ModelInferRequest {
    let fp32_contents = (0..ROWS * ELEMENTS).map(|number| number as f32).collect();
    let mut message = message("numbers", "FP32", [ROWS, ELEMENTS]);
    message.inputs[0].contents =
        Some(InferTensorContents { fp32_contents, ..InferTensorContents::default() });
    message
}

fn texts_message() -> ModelInferRequest {
    let bytes_contents = vec![vec![b't'; TEXT_BYTES].into(); TEXT_ROWS * TEXTS];
    let mut message = message("texts", "BYTES", [TEXT_ROWS, TEXTS]);
    message.inputs[0].contents =
        Some(InferTensorContents { bytes_contents, ..InferTensorContents::default() });
    message
}

fn grpc(message: &ModelInferRequest) -> LargeRequest {
    sealed(0, &message.encode_to_vec(), Vec::new())
}

fn packed_grpc(message: &ModelInferRequest) -> LargeRequest {
    let names = ["grpc-encoding", "grpc-accept-encoding"];
    sealed(1, &gzip(&message.encode_to_vec()), names.map(|name| (name, "gzip".to_owned())).to_vec())
}

/// Returns a call with this message; `flag` is 1 if it is packed.
fn sealed(flag: u8, message: &[u8], headers: Vec<(&'static str, String)>) -> LargeRequest {
    let body = [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat();
    let call = "inference.GRPCInferenceService/ModelInfer".to_owned();
    LargeRequest { protocol: Protocol::Grpc, call, headers, body, is_good: true }
}
