//! The shared part of the fuzz targets: models of every element type, and the properties of a
//! request that was read. A target takes the model from an input's first byte, so that one corpus
//! covers all models. The allocator counts, so that the memory that reading takes is a property
//! too.

#[path = "../../tests/harness/peak_memory.rs"]
mod peak_memory;

use bytes::Bytes;
use http::HeaderMap;
use peak_memory::{PeakMemory, peak_of};
use prost::Message;
use symphony::api::reading::{Reader, Understood};
use symphony::runtime::frontend::{ModelInfo, SlotState};
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The most rows of a request.
pub const MOST_ROWS: usize = 8;

/// The most bytes that a body may unpack to.
pub const MOST_BYTES: usize = 4 << 20;

/// The most memory that reading a body may take, in bytes.
const MOST_MEMORY: usize = 4 * MOST_BYTES;

/// The longest id that every form of a request can express.
const MOST_ID: usize = 16 << 10;

#[global_allocator]
static ALLOCATOR: PeakMemory = PeakMemory;

/// Reads a body and checks the memory that this takes.
pub fn bounded<T>(read: impl FnOnce() -> T) -> T {
    let (result, peak) = peak_of(read);
    assert!(peak <= MOST_MEMORY, "reading took {peak} bytes");
    result
}

/// The header that gives the length of the JSON in front of raw tensors.
pub const JSON_LENGTH: &str = "inference-header-content-length";

/// Returns the reader for the model that an input's first byte names, and the rest of the input.
pub fn reader(input: &[u8]) -> Option<(Reader, &[u8])> {
    let (&choice, rest) = input.split_first()?;
    Some((Reader::new(model(choice), MOST_ROWS, MOST_BYTES), rest))
}

/// Returns a model: with two inputs, with a scalar and BYTES, or with one input of any type.
fn model(choice: u8) -> ModelInfo {
    let tensor = |name: &str, datatype, shape: &[usize]| TensorSpec {
        name: name.to_owned(),
        datatype,
        shape: shape.to_vec(),
    };
    let inputs = match usize::from(choice) % (DataType::ALL.len() + 2) {
        0 => vec![tensor("INPUT0", DataType::Fp32, &[2, 2]), tensor("INPUT1", DataType::Int32, &[3])],
        1 => vec![tensor("INPUT0", DataType::Bytes(16), &[2]), tensor("INPUT1", DataType::Bool, &[])],
        other => vec![tensor("INPUT0", DataType::ALL[other - 2], &[3])],
    };
    let outputs = vec![tensor("OUTPUT0", DataType::Fp32, &[2])];
    ModelInfo {
        name: "model".to_owned(),
        version: 1,
        platform: "emulated".to_owned(),
        signature: Signature::of_rows(inputs, outputs),
        slo: Nanos::from_millis(25),
        max_batch: 8,
        state: SlotState::Serving,
        ..ModelInfo::vacant(ModelId(0), 0)
    }
}

/// Checks the properties of a valid request: it keeps the bounds, and in each form that can express
/// it, it is written and read again unchanged.
pub fn check(reader: &Reader, read: &Understood) {
    assert!((1..=MOST_ROWS).contains(&read.slots.len()), "{} rows", read.slots.len());
    if read.id.len() > MOST_ID {
        return;
    }
    if let Some(body) = reader.json(read) {
        assert_eq!(reader.http(&HeaderMap::new(), body.into()).as_ref(), Ok(read));
    }
    let (body, json_bytes) = reader.binary(read);
    let mut headers = HeaderMap::new();
    headers.insert(JSON_LENGTH, json_bytes.into());
    assert_eq!(reader.http(&headers, body.into()).as_ref(), Ok(read));
    let call = enveloped(&reader.message(read).encode_to_vec());
    assert_eq!(reader.grpc(&HeaderMap::new(), call).as_ref(), Ok(read));
}

/// Returns a message with gRPC's five bytes in front.
pub fn enveloped(message: &[u8]) -> Bytes {
    let mut call = vec![0; 5];
    call[1..].copy_from_slice(&(message.len() as u32).to_be_bytes());
    call.extend_from_slice(message);
    call.into()
}
