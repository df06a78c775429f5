//! Whatever a client sends, reading it takes at most four times the limit on bodies, and work on it
//! is done in slices: measured by an allocator of this test's own. Most inputs here are small and
//! become large: compressed, or lists of entries that take two bytes each on the wire.

#[path = "harness/peak_memory.rs"]
mod peak_memory;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{HeaderMap, HeaderValue};
use peak_memory::{PeakMemory, peak_of};
use prost::encoding::encode_varint;
use std::io::Write;
use symphony::api::reading::{Reader, Refused, Understood};
use symphony::runtime::frontend::{ModelInfo, SlotState};
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

#[global_allocator]
static ALLOCATOR: PeakMemory = PeakMemory;

/// The limit on bodies.
const LIMIT: usize = 4 << 20;

/// The most work, in bytes, between two pauses: a slice, and one step beyond.
const MAX_SLICE: usize = 256 << 10;

/// A model with one input of `elements` elements, and the reader of its requests.
fn reader(datatype: DataType, elements: usize) -> Reader {
    let input = TensorSpec { name: "x".into(), datatype, shape: vec![elements] };
    let model = ModelInfo {
        name: "m".into(),
        version: 1,
        platform: "emulated".into(),
        signature: Signature::of_rows(vec![input], Vec::new()),
        slo: Nanos::from_millis(25),
        max_batch: 8,
        state: SlotState::Serving,
        ..ModelInfo::vacant(ModelId(0), 0)
    };
    Reader::new(model, 4, LIMIT)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

/// A field that holds `bytes`.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    encode_varint(bytes.len() as u64, &mut field);
    field.extend_from_slice(bytes);
    field
}

fn call(message: &[u8], packed: bool) -> Bytes {
    let mut call = vec![u8::from(packed)];
    call.extend((message.len() as u32).to_be_bytes());
    call.extend_from_slice(message);
    call.into()
}

/// Reads a call within the bounds of memory and of slices.
fn grpc(name: &str, reader: &Reader, message: &[u8]) -> Result<Understood, Refused> {
    let packed = gzip(message);
    let mut headers = HeaderMap::new();
    let plain = read(name, reader, || reader.grpc(&headers, call(message, false)));
    headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
    let result = read(name, reader, || reader.grpc(&headers, call(&packed, true)));
    assert_eq!(result, plain, "{name}");
    result
}

fn http(name: &str, reader: &Reader, body: &[u8]) -> Result<Understood, Refused> {
    let packed = Bytes::from(gzip(body));
    let mut headers = HeaderMap::new();
    let plain = read(name, reader, || reader.http(&headers, Bytes::copy_from_slice(body)));
    headers.insert("content-encoding", HeaderValue::from_static("gzip"));
    let result = read(name, reader, || reader.http(&headers, packed));
    assert_eq!(result, plain, "{name}");
    result
}

fn read<T>(name: &str, reader: &Reader, work: impl FnOnce() -> T) -> T {
    let (result, peak) = peak_of(work);
    assert!(peak <= 4 * LIMIT, "{name}: {peak} bytes for bodies of up to {LIMIT}");
    let slice = reader.largest_slice();
    assert!(slice <= MAX_SLICE, "{name}: {slice} bytes of work without a pause");
    result
}

fn assert_refused(name: &str, result: &Result<Understood, Refused>, reason: &str) {
    let refused = result.as_ref().expect_err(name);
    assert!(refused.to_string().contains(reason), "{name}: {refused}");
}

/// Parameters with distinct names.
fn parameters(count: u32) -> Vec<u8> {
    (0..count).flat_map(|at| field(4, &field(1, format!("{at:06}").as_bytes()))).collect()
}

#[test]
fn a_message_of_a_million_empty_entries_is_refused_by_their_number() {
    let reader = reader(DataType::Fp32, 2);
    let entries = |number: u8| field(number, b"").repeat(1_000_000);
    assert!(gzip(&entries(5)).len() < 8_192, "the bomb is small");
    for (name, message, reason) in [
        ("inputs", entries(5), "413: the request has more than 1024 inputs"),
        ("outputs", entries(6), "more than 1024 outputs"),
        ("raw inputs", entries(7), "more than 1024 raw_input_contents"),
        ("parameters", entries(4), "more than 4096 parameters"),
        ("named parameters", parameters(300_000), "more than 4096 parameters"),
        ("an input's parameters", field(5, &parameters(300_000)), "more than 4096 parameters"),
        ("an output's parameters", field(6, &field(2, b"").repeat(1_000_000)), "more than 4096 parameters"),
        ("an input's shape", field(5, &field(3, &[1; 1_000_000])), "may have 65536"),
        ("a short list of it", field(5, &field(3, &[1; 33])), "more than 32 dimensions in a shape"),
        ("its dimensions one by one", field(5, &[0x18, 1].repeat(1_000_000)), "more than 32"),
        ("an input's contents", field(5, &field(5, b"").repeat(1_000_000)), "contents twice"),
        ("an id", field(3, &vec![b'a'; 2 << 20]), "field 3"),
        ("a name", field(5, &field(1, &vec![b'a'; 2 << 20])), "field 1"),
    ] {
        assert_refused(name, &grpc(name, &reader, &message), reason);
    }
}

/// A message with one input of this type, whose contents are `contents`.
fn with_contents(datatype: &str, elements: u64, contents: &[u8]) -> Vec<u8> {
    let mut shape = Vec::new();
    encode_varint(elements, &mut shape);
    let parts = [field(1, b"x"), field(5, contents), field(2, datatype.as_bytes()), field(3, &shape)];
    field(5, &parts.concat())
}

#[test]
fn elements_are_bounded_by_the_bytes_that_they_become() {
    let zeros = vec![0; LIMIT / 2];
    let reader = reader(DataType::Int64, LIMIT / 8);
    for (name, message) in [
        ("numbers of a byte each", with_contents("INT64", zeros.len() as u64, &field(3, &zeros))),
        ("numbers one by one", with_contents("INT64", 1, &[0x18, 0].repeat(1_000_000))),
        ("empty strings", with_contents("BYTES", 1, &field(8, b"").repeat(1_500_000))),
    ] {
        let result = grpc(name, &reader, &message);
        assert_refused(name, &result, "the elements in contents take");
    }
    let most = LIMIT / 8;
    let message = with_contents("INT64", most as u64, &field(3, &vec![7; most]));
    let read = grpc("as many as there is room for", &reader, &message).unwrap();
    assert_eq!(read.slots[0], 7u64.to_le_bytes().repeat(most));
}

#[test]
fn elements_of_every_kind_are_read_as_what_they_are() {
    let floats: Vec<u8> = (0..1_000_000).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let reader_of_floats = reader(DataType::Fp32, 1_000_000);
    let message = with_contents("FP32", 1_000_000, &field(6, &floats));
    assert_eq!(grpc("floats", &reader_of_floats, &message).unwrap().slots[0], floats);
    let in_pieces =
        [field(6, &floats[..800]), [&[0x35], &floats[800..804]].concat(), field(6, &floats[804..])];
    let message = with_contents("FP32", 1_000_000, &in_pieces.concat());
    assert_eq!(grpc("floats in pieces", &reader_of_floats, &message).unwrap().slots[0], floats);
    // -1 and 127 as protobuf has them: the first in ten bytes.
    let mut ints = Vec::new();
    encode_varint(u64::MAX, &mut ints);
    ints.push(127);
    let read = grpc("bytes", &reader(DataType::Int8, 2), &with_contents("INT8", 2, &field(2, &ints)));
    assert_eq!(read.unwrap().slots[0][..2], [255, 127]);
    ints.extend([0x80, 1]);
    let read = grpc("too large", &reader(DataType::Int8, 3), &with_contents("INT8", 3, &field(2, &ints)));
    assert_refused("too large", &read, "does not fit in INT8");
    let texts = [field(8, b"ab"), field(8, b"")].concat();
    let read = grpc("texts", &reader(DataType::Bytes(3), 2), &with_contents("BYTES", 2, &texts));
    assert_eq!(read.unwrap().slots[0][..14], *b"\x02\0\0\0ab\0\0\0\0\0\0\0\0");
    let raw = [
        field(5, &[field(1, b"x"), field(2, b"FP32"), field(3, &[0xc0, 0x84, 0x3d])].concat()),
        field(7, &floats),
    ];
    assert_eq!(grpc("raw", &reader_of_floats, &raw.concat()).unwrap().slots[0], floats);
}

#[test]
fn a_body_that_unpacks_to_more_than_the_limit_is_refused_on_the_way() {
    let reader = reader(DataType::Fp32, 2);
    let bomb = gzip(&vec![b' '; 16 * LIMIT]);
    let mut headers = HeaderMap::new();
    headers.insert("content-encoding", HeaderValue::from_static("GZIP"));
    let members = gzip(b"").repeat(100_000);
    for (name, body, reason) in [("a bomb", bomb, "unpacks to more"), ("members", members, "16384 members")] {
        let result = read(name, &reader, || reader.http(&headers, body.into()));
        assert_refused(name, &result, reason);
    }
}

/// A body with one input, which begins with `head` and goes on with its data.
fn body_of(head: &str, data: &str) -> Vec<u8> {
    format!("{{\"inputs\":[{{\"name\":\"x\",{head},\"data\":{data}}}]}}").into_bytes()
}

#[test]
fn a_json_body_is_bounded_in_its_lists_its_depth_and_its_elements() {
    let reader = reader(DataType::Int64, LIMIT / 4);
    let list = |entry: &str, count: usize| format!("[{}{entry}]", format!("{entry},").repeat(count - 1));
    let input = r#"{"name":"","shape":[],"datatype":""}"#;
    let shape = format!(r#""shape":[{}],"datatype":"INT64""#, LIMIT / 4);
    for (name, body, reason) in [
        ("inputs", format!("{{\"inputs\":{}}}", list(input, 2_000)), "more than 1024 entries"),
        ("many inputs", format!("{{\"inputs\":{}}}", list(input, 100_000)), "over 262144 bytes of JSON"),
        (
            "outputs",
            format!("{{\"inputs\":[],\"outputs\":{}}}", list(r#"{"name":""}"#, 10_000)),
            "more than 1024 entries",
        ),
        (
            "a shape",
            format!(r#"{{"inputs":[{{"name":"x","datatype":"FP32","shape":{}}}]}}"#, list("1", 50_000)),
            "more than 32 entries",
        ),
        ("arrays in arrays", "[".repeat(LIMIT - 1), "nested more than"),
        ("arrays in data", format!(r#"{{"inputs":[{{"data":{}"#, "[".repeat(1_000_000)), "nested more than"),
        (
            "a parameter",
            format!(r#"{{"inputs":[],"parameters":{{"timeout":{}}}}}"#, list("[]", 80_000)),
            "timeout",
        ),
        ("an id", format!(r#"{{"inputs":[],"id":"{}"}}"#, "\\u0061".repeat(500_000)), "over 262144 bytes"),
    ] {
        let result = http(name, &reader, body.as_bytes());
        assert_refused(name, &result, reason);
    }
    let zeros = body_of(&shape, &list("0", LIMIT / 4));
    assert_refused("zeros", &http("zeros", &reader, &zeros), "the limit is");
    for (name, data, reason) in [
        ("a long number", format!("[{}]", "1".repeat(1_000_000)), "which is not an integer"),
        ("a long string", format!("[\"{}\"]", "a".repeat(1_000_000)), "which is not an integer"),
        ("no end", "[1,2".to_owned() + &" ".repeat(100_000), "not valid JSON"),
        ("a wrong comma", format!("[1,{}]", " ".repeat(100_000)), "comma out of place"),
    ] {
        let result = http(
            name,
            &self::reader(DataType::Int64, 2),
            &body_of(r#""shape":[2],"datatype":"INT64""#, &data),
        );
        assert_refused(name, &result, reason);
    }
}

#[test]
fn large_tensors_are_read_whole_from_json_and_from_bytes() {
    let values: Vec<u64> = (0..200_000).map(|at| at * 3).collect();
    let row: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let reader = reader(DataType::Int64, values.len());
    let text = format!("{values:?}");
    let json = body_of(r#""shape":[200000],"datatype":"INT64""#, &text);
    assert_eq!(http("numbers", &reader, &json).unwrap().slots[0], row);
    let escaped = json.clone();
    let escaped = String::from_utf8(escaped).unwrap().replace("\"data\"", "\"d\\u0061ta\"");
    assert_refused("another name of data", &http("data", &reader, escaped.as_bytes()), "over 262144 bytes");
    let mut headers = HeaderMap::new();
    headers.insert("inference-header-content-length", HeaderValue::from_static("0"));
    let raw = read("raw", &reader, || reader.http(&headers, row.clone().into())).unwrap();
    assert_eq!((raw.slots[0].as_slice(), raw.batched), (row.as_slice(), true));
    let cut = reader.http(&headers, row[8..].to_vec().into());
    assert_refused("raw, cut", &cut, "has 1599992 bytes of data");
    let texts = self::reader(DataType::Bytes(1_000_000), 1);
    let raw = read("a raw text", &texts, || texts.http(&headers, vec![b'a'; 900_000].into())).unwrap();
    assert_eq!(raw.slots[0][..6], [0xa0, 0xbb, 0x0d, 0, b'a', b'a']);
}
