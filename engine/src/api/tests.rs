//! The API over real sockets on loopback, with an engine that is one thread at the other end of the
//! real rings: what it does with a request is said by the model's name.

mod abuse;
mod access;
mod raw;
mod streams;

use super::{ApiConfig, ApiError, ApiHandle, start};
use crate::runtime::clock::Clock;
use crate::runtime::frontend::{Class, Frontend, FrontendPeer, FrontendSetup, ModelInfo, SlotState};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, GpuId, ModelId, Request, Response};

/// How long a test waits for what must come, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The models, each named after what the engine does with its requests.
const MODELS: [&str; 9] =
    ["echo", "late", "dropped", "cancelled", "full", "failed", "stopped", "held", "a b/c"];

fn tensor(name: &str, datatype: DataType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

fn models() -> Arc<[ModelInfo]> {
    let signature = Signature {
        inputs: vec![tensor("image", DataType::Fp32, &[2, 2]), tensor("flag", DataType::Bool, &[])],
        outputs: vec![tensor("same", DataType::Fp32, &[2, 2]), tensor("flag", DataType::Bool, &[])],
    };
    let model = |(at, name): (usize, &&str)| ModelInfo {
        id: ModelId(at as u32),
        name: name.to_string(),
        version: 1,
        platform: "emulated".into(),
        signature: signature.clone(),
        slo: if *name == "late" { Nanos::from_millis(1) } else { Nanos::from_secs(100) },
        max_batch: 8,
        class: Class::HIGHEST,
        thread: 0,
        state: SlotState::Serving,
    };
    MODELS.iter().enumerate().map(model).collect()
}

/// What the tests and the engine's thread share.
#[derive(Default)]
struct Control {
    taken: AtomicUsize,
    release: AtomicBool,
    end: AtomicBool,
}

struct Rig {
    addr: SocketAddr,
    api: Option<ApiHandle>,
    engine: Option<JoinHandle<()>>,
    control: Arc<Control>,
    accepting: Arc<AtomicBool>,
}

fn frontend(capacity: usize, clock: Clock, accepting: Arc<AtomicBool>) -> (Frontend, FrontendPeer) {
    Frontend::new(FrontendSetup {
        id: 0,
        clock,
        models: models(),
        later_row: 0,
        model_threads: 1,
        answering_threads: 1,
        capacity,
        result_delay: Nanos::ZERO,
        lateness: Nanos::ZERO,
        accepting,
    })
    .unwrap()
}

impl Rig {
    fn new(configure: impl FnOnce(&mut ApiConfig)) -> Rig {
        Rig::with_capacity(64, configure)
    }

    fn with_capacity(capacity: usize, configure: impl FnOnce(&mut ApiConfig)) -> Rig {
        let (clock, accepting) = (Clock::start(), Arc::new(AtomicBool::new(true)));
        let (frontend, peer) = frontend(capacity, clock.clone(), accepting.clone());
        let control = Arc::new(Control::default());
        let shared = control.clone();
        let engine = std::thread::spawn(move || engine(peer, &clock, &shared));
        let mut config = ApiConfig::at(([127, 0, 0, 1], 0).into());
        configure(&mut config);
        let api = start(frontend, config).unwrap();
        let addr = api.local_addr();
        Rig { addr, api: Some(api), engine: Some(engine), control, accepting }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { stream, read: Vec::new() }
    }

    fn get(&self, path: &str) -> Answer {
        self.client().request("GET", path, b"")
    }

    fn infer(&self, model: &str, body: &Value) -> Answer {
        self.client().infer(model, body)
    }

    fn metric(&self, line_start: &str) -> String {
        let text = self.get("/metrics").text;
        let line = text.lines().find(|l| l.starts_with(line_start));
        line.unwrap_or_else(|| panic!("no {line_start} in {text}")).to_string()
    }

    fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.control.release.store(true, Ordering::Relaxed);
        drop(self.api.take());
        self.control.end.store(true, Ordering::Relaxed);
        self.engine.take().unwrap().join().unwrap();
    }
}

fn engine(mut peer: FrontendPeer, clock: &Clock, control: &Control) {
    let mut held = Vec::new();
    while !control.end.load(Ordering::Relaxed) {
        while let Some(request) = peer.requests[0].pop() {
            if request.takes_back != 0 {
                continue;
            }
            control.taken.fetch_add(1, Ordering::Relaxed);
            held.push(request);
        }
        let release = control.release.load(Ordering::Relaxed);
        for request in held.extract_if(.., |r| release || asked_for(r) != "held") {
            let response = answer(&peer, request, clock);
            peer.responses[0].push(response).unwrap();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The model of a request, whose lane it names.
fn asked_for(request: &Request) -> &'static str {
    MODELS[request.queue.0 as usize % MODELS.len()]
}

fn answer(peer: &FrontendPeer, request: Request, clock: &Clock) -> Response {
    let ending = match asked_for(&request) {
        "dropped" => Ending::DroppedInQueue,
        "cancelled" => Ending::DroppedAtBackend,
        "full" => Ending::Overloaded,
        "failed" => Ending::Failed,
        "stopped" => Ending::Stopped,
        "late" => {
            while clock.now() <= request.deadline {
                std::thread::sleep(Duration::from_micros(100));
            }
            Ending::Done
        }
        _ => Ending::Done,
    };
    if ending == Ending::Done {
        let mut slot = peer.slab.claim(request.slot).unwrap();
        // The row: 16 bytes of image, 1 of flag, padded to 24; the output has the same layout.
        slot.copy_within(0..24, 24);
    }
    Response {
        id: request.id,
        slot: request.slot,
        batched: request.arrival + Nanos::from_micros(10),
        started: request.arrival + Nanos::from_micros(20),
        finished: request.arrival + Nanos::from_micros(30),
        ending: ending as u32,
        batch_size: 3,
        gpu: GpuId(5),
        ..Response::default()
    }
}

struct Client {
    stream: TcpStream,
    read: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_string()
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.split_once(": ").filter(|(n, _)| *n == name)).map(|(_, v)| v)
    }
}

impl Client {
    fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
        self.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    }

    fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send(method, path, body);
        self.answer()
    }

    fn infer(&mut self, model: &str, body: &Value) -> Answer {
        self.request("POST", &format!("/v2/models/{model}/infer"), body.to_string().as_bytes())
    }

    /// A response to HEAD, which says how long its body would be and has none.
    fn head(&mut self, path: &str) -> Answer {
        self.send("HEAD", path, b"");
        self.read_head()
    }

    fn read_head(&mut self) -> Answer {
        let head_end = self.fill_until(|read| find(read, b"\r\n\r\n")).expect("a head");
        let head = String::from_utf8(self.read.drain(..head_end + 4).collect()).unwrap();
        Answer { status: head[9..12].parse().unwrap(), head, text: String::new() }
    }

    fn answer(&mut self) -> Answer {
        let mut answer = self.read_head();
        let length: usize = answer.header("content-length").map_or(0, |v| v.parse().unwrap());
        self.fill_until(|read| (read.len() >= length).then_some(length)).expect("a body");
        answer.text = String::from_utf8(self.read.drain(..length).collect()).unwrap();
        answer
    }

    /// The JSON of an answer and the raw tensors behind it.
    fn raw_answer(&mut self) -> (Answer, Vec<u8>) {
        let mut answer = self.read_head();
        let length: usize = answer.header("content-length").map_or(0, |v| v.parse().unwrap());
        self.fill_until(|read| (read.len() >= length).then_some(length)).expect("a body");
        let mut body: Vec<u8> = self.read.drain(..length).collect();
        let json = answer.header("inference-header-content-length").map_or(length, |v| v.parse().unwrap());
        let raw = body.split_off(json);
        answer.text = String::from_utf8(body).unwrap();
        (answer, raw)
    }

    fn fill_until(&mut self, done: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
        loop {
            if let Some(at) = done(&self.read) {
                return Some(at);
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(n) if n > 0 => self.read.extend(&part[..n]),
                _ => return None,
            }
        }
    }

    /// Whether the server closes the connection without a further byte.
    fn is_closed(&mut self) -> bool {
        self.read.is_empty() && matches!(self.stream.read(&mut [0; 16]), Ok(0))
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

fn body() -> Value {
    json!({
        "id": "a \"quoted\" id",
        "inputs": [
            { "name": "image", "shape": [1, 2, 2], "datatype": "FP32", "data": [0.1, 2, -3e5, 4.5] },
            { "name": "flag", "shape": [1], "datatype": "BOOL", "data": [true] },
        ],
    })
}

/// `body()` with the value at `pointer` replaced.
fn body_with(pointer: &str, value: Value) -> Value {
    let mut body = body();
    *body.pointer_mut(pointer).unwrap() = value;
    body
}

#[test]
fn health_and_metadata_are_as_the_protocol_says() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    assert_eq!(client.request("GET", "/v2/health/live", b"").json(), json!({ "live": true }));
    assert_eq!(client.request("GET", "/v2/health/ready", b"").json(), json!({ "ready": true }));
    let server = client.request("GET", "/v2", b"").json();
    assert_eq!(server["name"], "symphony");
    assert!(server["extensions"].as_array().unwrap().contains(&json!("binary_tensor_data")), "{server}");
    let model = client.request("GET", "/v2/models/echo?x=1", b"");
    assert_eq!(model.header("content-type"), Some("application/json"));
    assert_eq!(
        model.json(),
        json!({
            "name": "echo",
            "versions": ["1"],
            "platform": "emulated",
            "inputs": [
                { "name": "image", "datatype": "FP32", "shape": [-1, 2, 2] },
                { "name": "flag", "datatype": "BOOL", "shape": [-1] },
            ],
            "outputs": [
                { "name": "same", "datatype": "FP32", "shape": [-1, 2, 2] },
                { "name": "flag", "datatype": "BOOL", "shape": [-1] },
            ],
        })
    );
    assert_eq!(client.request("GET", "/v2/models/echo/versions/1", b"").json(), model.json());
    let ready = json!({ "name": "echo", "ready": true });
    assert_eq!(client.request("GET", "/v2/models/echo/ready", b"").json(), ready);
    assert_eq!(client.request("GET", "/v2/models/echo/versions/1/ready", b"").json(), ready);
    assert_eq!(client.request("GET", "/v2/models/a%20b%2Fc/ready", b"").status, 200);
    assert_eq!(client.head("/v2/health/live").status, 200);
    assert_eq!(client.request("GET", "/v2", b"").status, 200);
}

#[test]
fn an_infer_answer_has_the_outputs_the_id_and_the_times() {
    let rig = Rig::new(|_| {});
    let answer = rig.infer("echo", &body());
    assert_eq!((answer.status, answer.header("symphony-outcome")), (200, Some("good")), "{answer:?}");
    let mut json = answer.json();
    let parameters = json["parameters"].take();
    assert_eq!(
        json,
        json!({
            "model_name": "echo",
            "model_version": "1",
            "id": "a \"quoted\" id",
            "parameters": null,
            "outputs": [
                { "name": "same", "datatype": "FP32", "shape": [1, 2, 2], "data": [0.1, 2.0, -300000.0, 4.5] },
                { "name": "flag", "datatype": "BOOL", "shape": [1], "data": [true] },
            ],
        })
    );
    for (name, value) in
        [("queued_us", 0), ("batched_us", 10), ("started_us", 20), ("finished_us", 30), ("batch_size", 3)]
    {
        assert_eq!(parameters[name], value, "{name}");
    }
    assert_eq!(parameters["gpu"], 5);
}

#[test]
fn nested_data_a_shape_without_the_batch_and_chosen_outputs_are_fine() {
    let rig = Rig::new(|_| {});
    let nested = body_with("/inputs/0/data", json!([[[0.1, 2], [-3e5, 4.5]]]));
    assert_eq!(rig.infer("echo", &nested).json()["outputs"], rig.infer("echo", &body()).json()["outputs"]);
    let row = body_with("/inputs/0/shape", json!([2, 2]));
    // Of several inputs some may have the batch dimension; the answer then has it too.
    assert_eq!(rig.infer("echo", &row).json()["outputs"][0]["shape"], json!([1, 2, 2]));
    let mut none = row.clone();
    none["inputs"][1]["shape"] = json!([]);
    assert_eq!(rig.infer("echo", &none).json()["outputs"][0]["shape"], json!([2, 2]));
    let mut chosen = body();
    chosen["outputs"] = json!([{ "name": "flag" }]);
    assert_eq!(rig.infer("echo/versions/1", &chosen).json()["outputs"].as_array().unwrap().len(), 1);
    assert_eq!(rig.infer("a%20b%2Fc", &body()).status, 200);
}

#[test]
fn every_ending_has_its_status_and_says_why() {
    let rig = Rig::new(|_| {});
    for (model, status, outcome, word) in [
        ("late", 504, "late", "after the deadline"),
        ("dropped", 504, "dropped", "dropped in the queue"),
        ("cancelled", 504, "cancelled", "too late to meet the deadline"),
        ("full", 429, "overloaded", "queue of model"),
        ("failed", 500, "failed", "executor"),
        ("stopped", 503, "draining", "stopped"),
    ] {
        let answer = rig.infer(model, &body());
        assert_eq!((answer.status, answer.header("symphony-outcome")), (status, Some(outcome)));
        assert!(answer.error().contains(word), "{}", answer.error());
        assert_eq!(answer.header("retry-after"), (status == 429).then_some("1"));
        let line = rig.metric(&format!("symphony_requests_total{{model=\"{model}\",outcome=\"{outcome}\""));
        assert!(line.ends_with(" 1"), "{line}");
    }
}

#[test]
fn a_client_may_shorten_its_deadline() {
    let rig = Rig::new(|_| {});
    for timeout in [json!(2_500), json!("2500")] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": timeout });
        let error = rig.infer("dropped", &request).error();
        assert!(error.contains("2.500 ms after arrival"), "{error}");
    }
    for none in [json!(0), json!(null), json!(u64::MAX)] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": none });
        assert!(rig.infer("dropped", &request).error().contains("100000.000 ms after arrival"));
    }
    for wrong in [json!(-1), json!(1.5), json!("soon"), json!([1])] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": wrong });
        let answer = rig.infer("dropped", &request);
        assert!(answer.status == 400 && answer.error().contains("parameters.timeout"), "{answer:?}");
    }
}

#[test]
fn a_wrong_infer_body_is_told_what_would_be_right() {
    let rig = Rig::new(|_| {});
    let mut missing = body();
    missing["inputs"].as_array_mut().unwrap().pop();
    let mut twice = body();
    twice["inputs"][1] = twice["inputs"][0].clone();
    let mut no_data = body();
    no_data["inputs"][0].as_object_mut().unwrap().remove("data");
    let with_outputs = |outputs: Value| {
        let mut body = body();
        body["outputs"] = outputs;
        body
    };
    for (wrong, word) in [
        (
            body_with("/inputs/0/name", json!("imge")),
            r#"input "imge" is not one of the model's inputs ["image", "flag"]"#,
        ),
        (body_with("/inputs/0/name", json!("x".repeat(1000))), "…"),
        (missing, r#"input "flag" is missing"#),
        (twice, r#"input "image" is given twice"#),
        (no_data, "has no elements"),
        (body_with("/inputs/0/datatype", json!("FP64")), r#"datatype is "FP64"; it must be "FP32""#),
        (body_with("/inputs/0/shape", json!([1, 4])), "shape is [1, 4]; it must be [1, 2, 2] or [2, 2]"),
        (body_with("/inputs/0/shape", json!([-1, 2, 2])), "-1 rows; a request may have 1 to 64"),
        (body_with("/inputs/0/shape", json!([99, 2, 2])), "99 rows; a request may have 1 to 64"),
        (body_with("/inputs/0/shape", json!([0, 2, 2])), "0 rows; a request may have 1 to 64"),
        (body_with("/inputs/1/shape", json!([2])), "has 2 rows, but the inputs before have 1"),
        (
            body_with(
                "/inputs/1",
                json!({ "name": "flag", "shape": [2], "datatype": "BOOL", "data": [true, true] }),
            ),
            "has 2 rows, but the inputs before have 1",
        ),
        (body_with("/inputs/0/shape", json!(vec![1; 100])), "100 dimensions"),
        (body_with("/inputs/0/shape", json!("2,2")), "expected a sequence"),
        (body_with("/inputs/0/data", json!([1, 2, 3])), "3 elements, but shape [1, 2, 2] needs 4"),
        (body_with("/inputs/0/data", json!([1, 2, 3, 4, 5])), "more elements"),
        (body_with("/inputs/0/data", json!([[[1, 2, 3], [4]]])), "array of 3"),
        (body_with("/inputs/0/data", json!([1, "2", 3, 4])), r#"data[1] is "2""#),
        (body_with("/inputs/0/data", json!([1, 1e39, 3, 4])), "that FP32 can hold"),
        (body_with("/inputs/1/data", json!([1])), "true or false"),
        (with_outputs(json!([{ "name": "label" }])), r#"output "label" is not one of"#),
        (with_outputs(json!([{ "name": "flag" }, { "name": "flag" }])), "asked for twice"),
        (with_outputs(json!([{ "name": "flag", "parameters": { "classification": 0 } }])), "at least 1"),
        (
            with_outputs(json!([{ "name": "flag", "parameters": { "shared_memory_region": "r" } }])),
            "shared_memory_byte_size is missing",
        ),
        (json!({}), "missing field `inputs`"),
        (json!([]), "not an infer request"),
    ] {
        let answer = rig.infer("echo", &wrong);
        assert_eq!((answer.status, answer.header("symphony-outcome")), (400, Some("invalid")), "{answer:?}");
        assert!(answer.error().contains(word), "{} lacks {word}", answer.error());
        assert!(answer.error().len() < 1_000);
    }
    assert_eq!(rig.control.taken.load(Ordering::Relaxed), 0, "none of it reached the engine");
}

#[test]
fn every_truncation_of_a_good_body_is_refused() {
    let rig = Rig::new(|_| {});
    let text = body().to_string();
    let mut client = rig.client();
    for end in 0..text.len() {
        let answer = client.request("POST", "/v2/models/echo/infer", &text.as_bytes()[..end]);
        assert!(answer.status == 400 && answer.error().contains("not valid JSON"), "{answer:?}");
    }
}

#[test]
fn unknown_paths_models_versions_and_wrong_methods_have_their_statuses() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    for path in ["/", "/v1", "/v2/", "/v2/models", "/v2/models//ready", "/v2/models/echo/cfg", "/metrics/x"] {
        let answer = client.request("GET", path, b"");
        assert!(answer.status == 404 && answer.error().contains("/v2/models/NAME"), "{path} {answer:?}");
    }
    let unknown = client.infer("resnet", &body());
    assert_eq!(unknown.status, 404);
    assert!(unknown.error().contains(r#"no model "resnet"; the models are ["echo", "late""#));
    let version = client.request("GET", "/v2/models/echo/versions/2", b"");
    assert!(version.status == 404 && version.error().contains(r#"no version "2"; it has ["1"]"#));
    let get = client.request("GET", "/v2/models/echo/infer", b"");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
    let post = client.request("POST", "/v2/health/live", b"{}");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    assert!(post.error().contains("does not take POST"));
}

#[test]
fn a_gigabyte_is_refused_by_its_length_alone() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    client
        .stream
        .write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 1073741824\r\n\r\n")
        .unwrap();
    let answer = client.answer();
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    assert!(answer.error().contains("1073741824 bytes; the limit is 67108864"), "{}", answer.error());
}

#[test]
fn a_client_that_sends_a_refused_body_whole_still_sees_why() {
    let rig = Rig::new(|config| config.max_body_bytes = 1_000);
    let mut client = rig.client();
    let answer = client.request("POST", "/v2/models/echo/infer", &vec![b' '; 20 << 20]);
    assert!(answer.status == 413 && client.is_closed(), "{answer:?}");
}

#[test]
fn a_body_that_breaks_off_is_no_request() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    client
        .stream
        .write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\n{")
        .unwrap();
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    rig.wait_until("it is forgotten", || rig.metric("symphony_http_connections").ends_with(" 1"));
    assert_eq!(rig.control.taken.load(Ordering::Relaxed), 0);
}

#[test]
fn a_chunked_body_is_counted_and_one_within_the_limit_is_read() {
    let rig = Rig::new(|config| config.max_body_bytes = 1_000);
    let head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut client = rig.client();
    client.stream.write_all(head).unwrap();
    for part in body().to_string().as_bytes().chunks(7) {
        client
            .stream
            .write_all(&[format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat())
            .unwrap();
    }
    client.stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(client.answer().status, 200);
    let mut client = rig.client();
    client.stream.write_all(head).unwrap();
    let chunk = format!("190\r\n{}\r\n", " ".repeat(400));
    for _ in 0..3 {
        client.stream.write_all(chunk.as_bytes()).unwrap();
    }
    let answer = client.answer();
    assert!(answer.status == 413 && answer.error().contains("the limit is 1000"), "{answer:?}");
}

#[test]
fn bodies_together_have_a_limit_too() {
    let rig = Rig::new(|config| config.max_bodies_bytes = 100);
    let answer = rig.infer("echo", &body());
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
}

/// Sends `body` with further headers, each ended by CRLF.
fn infer_with(rig: &Rig, headers: &str, body: &[u8]) -> (Answer, Vec<u8>) {
    let mut client = rig.client();
    let length = body.len();
    let head = format!(
        "POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\n{headers}content-length: {length}\r\n\r\n"
    );
    client.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    client.raw_answer()
}

#[test]
fn tensors_may_come_and_go_as_bytes_behind_the_json() {
    let rig = Rig::new(|_| {});
    let image: Vec<u8> = [1.5f32, -2.0, 0.0, 4.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let json = json!({
        "inputs": [
            { "name": "image", "shape": [2, 2], "datatype": "FP32", "parameters": { "binary_data_size": 16 } },
            { "name": "flag", "shape": [], "datatype": "BOOL", "parameters": { "binary_data_size": 1 } },
        ],
        "parameters": { "binary_data_output": true },
        "outputs": [{ "name": "flag", "parameters": { "binary_data": false } }, { "name": "same" }],
    });
    let text = json.to_string();
    let headers = format!("inference-header-content-length: {}\r\n", text.len());
    // A BOOL that is neither 0 nor 1 is true.
    let (answer, raw) = infer_with(&rig, &headers, &[text.as_bytes(), &image, &[7]].concat());
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
    let outputs = answer.json()["outputs"].clone();
    assert_eq!(outputs[0]["data"], json!([true]));
    assert_eq!(outputs[1]["parameters"], json!({ "binary_data_size": 16 }));
    assert_eq!((&outputs[1]["shape"], raw), (&json!([2, 2]), image));
    for (wrong, word) in [
        (&[text.as_bytes(), &[0; 16]].concat(), "only 0 bytes of binary data are left"),
        (&[text.as_bytes(), &[0; 18]].concat(), "1 bytes of binary data are left over"),
        (&b"{}".to_vec(), "Inference-Header-Content-Length"),
    ] {
        let (answer, _) = infer_with(&rig, &headers, wrong);
        assert!(answer.status == 400 && answer.error().contains(word), "{answer:?}");
    }
}

#[test]
fn a_request_may_be_a_batch_of_several_rows() {
    let rig = Rig::new(|_| {});
    let batch = json!({
        "inputs": [
            { "name": "image", "shape": [3, 2, 2], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11] },
            { "name": "flag", "shape": [3], "datatype": "BOOL", "data": [true, false, true] },
        ],
        "outputs": [
            { "name": "flag" },
            { "name": "same", "parameters": { "classification": 2 } },
        ],
    });
    let outputs = rig.infer("echo", &batch).json()["outputs"].clone();
    assert_eq!((&outputs[0]["shape"], &outputs[0]["data"]), (&json!([3]), &json!([true, false, true])));
    assert_eq!((&outputs[1]["shape"], &outputs[1]["datatype"]), (&json!([3, 2]), &json!("BYTES")));
    let classes =
        json!(["3.000000:3", "2.000000:2", "7.000000:3", "6.000000:2", "11.000000:3", "10.000000:2"]);
    assert_eq!(outputs[1]["data"], classes);
    assert_eq!(rig.control.taken.load(Ordering::Relaxed), 3);
    let statistics = rig.get("/v2/models/echo/stats").json()["model_stats"][0].clone();
    assert_eq!((&statistics["inference_count"], &statistics["execution_count"]), (&json!(3), &json!(1)));
    assert_eq!(statistics["inference_stats"]["success"]["count"], 1);
    assert_eq!(statistics["batch_stats"][0]["batch_size"], 3);
}

#[test]
fn a_deadline_may_come_in_a_header_and_the_tightest_counts() {
    let rig = Rig::new(|_| {});
    let mut request = body();
    request["parameters"] = json!({ "timeout": 60_000_000 });
    let send = |header: &str| {
        let mut client = rig.client();
        let body = request.to_string();
        let head = format!(
            "POST /v2/models/dropped/infer HTTP/1.1\r\nhost: t\r\n{header}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.stream.write_all(head.as_bytes()).unwrap();
        client.answer()
    };
    assert!(send("").error().contains("60000.000 ms after arrival"));
    let budget = send("x-request-deadline-ms: 30000\r\n").error();
    assert!(budget.contains(" 29") && budget.contains("ms after arrival"), "{budget}");
    let contradiction = send("x-request-deadline-ms: none\r\n");
    assert!(contradiction.status == 400 && contradiction.error().contains("leave one of them out"));
    let wrong = send("x-request-deadline-ms: soon\r\n");
    assert!(wrong.status == 400 && wrong.error().contains("X-Request-Deadline-Ms"), "{wrong:?}");
    request["parameters"] = json!({ "deadline": "none" });
    assert!(rig.infer("dropped", &request).error().contains("no limit"));
    request["parameters"] = json!({ "priority": 9 });
    assert!(rig.infer("echo", &request).error().contains("parameters.priority"));
}

#[test]
fn bodies_may_be_compressed_either_way_and_what_is_not_known_is_refused() {
    let rig = Rig::new(|_| {});
    let text = body().to_string();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let (answer, _) = infer_with(&rig, "content-encoding: gzip\r\n", &packed.finish().unwrap());
    assert_eq!(answer.status, 200, "{answer:?}");
    let (answer, _) = infer_with(&rig, "content-encoding: br\r\n", text.as_bytes());
    assert_eq!(answer.status, 415);
    let (answer, _) = infer_with(&rig, "content-encoding: gzip\r\n", text.as_bytes());
    assert!(answer.status == 400 && answer.error().contains("not valid gzip"), "{answer:?}");
    // An answer too small to be worth it comes as it is.
    let (answer, _) = infer_with(&rig, "accept-encoding: gzip\r\n", text.as_bytes());
    assert_eq!((answer.status, answer.header("content-encoding")), (200, None));
}

#[test]
fn the_models_configuration_index_and_settings_are_told() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    let config = client.request("GET", "/v2/models/echo/config", b"").json();
    assert_eq!(config["input"][0], json!({ "name": "image", "data_type": "TYPE_FP32", "dims": [2, 2] }));
    assert_eq!((&config["max_batch_size"], &config["dynamic_batching"]), (&json!(8), &json!({})));
    let index = client.request("POST", "/v2/repository/index", b"").json();
    assert_eq!(index[0], json!({ "name": "echo", "version": "1", "state": "READY", "reason": "" }));
    let load = client.request("POST", "/v2/repository/models/echo/load", b"{}");
    assert!(load.status == 503 && load.error().contains("explicit control is off"), "{load:?}");
    let log = client.request("POST", "/v2/logging", br#"{"log_verbose_level":1}"#).json();
    assert_eq!(log["log_verbose_level"], 1);
    let wrong = client.request("POST", "/v2/logging", br#"{"log_levle":1}"#);
    assert!(wrong.status == 400 && wrong.error().contains("log_levle"));
    let trace = client.request("GET", "/v2/models/echo/trace/setting", b"").json();
    assert_eq!(trace["trace_level"], json!(["OFF"]));
    assert_eq!(client.request("POST", "/v2/trace/setting", br#"{"trace_rate":"5"}"#).status, 400);
    assert_eq!(client.request("GET", "/v2/cudasharedmemory/status", b"").json(), json!([]));
    let cuda = client.request("POST", "/v2/cudasharedmemory/region/r/register", b"{}");
    assert!(cuda.status == 501 && cuda.error().contains("not supported"), "{cuda:?}");
}

#[test]
fn what_is_no_http_gets_a_400_and_too_large_a_head_a_431() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    client.stream.write_all(b"\x16\x03\x01 tls?\r\n\r\n").unwrap();
    assert_eq!(client.answer().status, 400);
    let mut client = rig.client();
    let head = format!("GET /v2 HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "y".repeat(40_000));
    client.stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.answer().status, 431);
    assert_eq!(rig.get("/v2").status, 200);
}

#[test]
fn a_head_that_does_not_end_is_closed_with_a_408() {
    let rig = Rig::new(|config| config.header_timeout = Duration::from_millis(150));
    let mut client = rig.client();
    client.stream.write_all(b"GET /v2 HTTP/1.1\r\nhost").unwrap();
    let answer = client.answer();
    assert_eq!(answer.status, 408);
    assert!(answer.error().contains("too slowly"));
    assert!(client.is_closed());
}

#[test]
fn a_head_that_drips_does_not_keep_its_connection() {
    let rig = Rig::new(|config| config.header_timeout = Duration::from_millis(150));
    let mut client = rig.client();
    let mut drip = client.stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && drip.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(client.answer().status, 408);
    drop(client);
    dripping.join().unwrap();
}

#[test]
fn a_body_that_pauses_or_drips_is_answered_408() {
    let pauses: fn(&mut ApiConfig) = |config| config.read_timeout = Duration::from_millis(150);
    let drips: fn(&mut ApiConfig) = |config| config.body_timeout = Duration::from_millis(150);
    for configure in [pauses, drips] {
        let rig = Rig::new(configure);
        let mut client = rig.client();
        let head = b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{";
        client.stream.write_all(head).unwrap();
        let answer = client.answer();
        assert!(answer.status == 408 && answer.error().contains("1 bytes so far"), "{answer:?}");
        assert!(client.is_closed());
    }
}

#[test]
fn a_connection_that_nobody_uses_is_closed_without_a_word() {
    let rig = Rig::new(|config| config.idle_timeout = Duration::from_millis(150));
    let mut silent = rig.client();
    let mut used = rig.client();
    assert_eq!(used.request("GET", "/v2", b"").status, 200);
    assert!(silent.is_closed());
    assert!(used.is_closed());
    rig.wait_until("both are forgotten", || rig.metric("symphony_http_connections").ends_with(" 1"));
}

#[test]
fn half_open_connections_do_not_hold_up_others() {
    let rig = Rig::new(|_| {});
    let half_open: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = rig.client();
            client.stream.write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\ncontent-le").unwrap();
            client
        })
        .collect();
    assert_eq!(rig.infer("echo", &body()).status, 200);
    drop(half_open);
    rig.wait_until("all are forgotten", || rig.metric("symphony_http_connections").ends_with(" 1"));
}

#[test]
fn a_connection_over_the_limit_is_told_so_and_closed() {
    let rig = Rig::new(|config| config.max_connections = 1);
    let mut first = rig.client();
    assert_eq!(first.request("GET", "/v2", b"").status, 200);
    let refused = rig.client().answer();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    drop(first);
    rig.wait_until("there is room again", || rig.client().request("GET", "/v2", b"").status == 200);
}

#[test]
fn one_connection_serves_many_requests_also_when_they_are_pipelined() {
    let rig = Rig::new(|_| {});
    let mut client = rig.client();
    for _ in 0..20 {
        assert_eq!(client.infer("echo", &body()).status, 200);
    }
    for _ in 0..20 {
        client.send("POST", "/v2/models/echo/infer", body().to_string().as_bytes());
        client.send("GET", "/v2/health/live", b"");
    }
    for _ in 0..20 {
        assert!(client.answer().text.contains("outputs"));
        assert!(client.answer().text.contains("live"));
    }
    assert!(rig.metric("symphony_http_responses_total{code=\"200\"}").ends_with(" 60"));
}

#[test]
fn no_free_slot_is_answered_429_at_once() {
    let rig = Rig::with_capacity(1, |_| {});
    let mut holder = rig.client();
    holder.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    rig.wait_until("the engine has it", || rig.control.taken.load(Ordering::Relaxed) == 1);
    let answer = rig.infer("echo", &body());
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    rig.control.release.store(true, Ordering::Relaxed);
    assert_eq!(holder.answer().status, 200);
    assert_eq!(rig.infer("echo", &body()).status, 200);
}

#[test]
fn a_draining_engine_is_not_ready_and_takes_nothing() {
    let rig = Rig::new(|_| {});
    rig.accepting.store(false, Ordering::Relaxed);
    assert_eq!(rig.get("/v2/health/live").status, 200);
    let ready = rig.get("/v2/health/ready");
    assert_eq!((ready.status, rig.get("/v2/models/echo/ready").status), (503, 503));
    assert_eq!(ready.json(), json!({ "ready": false, "reasons": ["the server is shutting down"] }));
    assert_eq!(rig.metric("symphony_ready"), "symphony_ready 0");
    let answer = rig.infer("echo", &body());
    assert_eq!((answer.status, answer.header("symphony-outcome")), (503, Some("draining")));
}

#[test]
fn a_stop_answers_what_is_in_flight_and_closes_the_rest() {
    let mut rig = Rig::new(|_| {});
    let mut in_flight = rig.client();
    in_flight.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    let (mut idle, mut fresh, mut partial) = (rig.client(), rig.client(), rig.client());
    assert_eq!(idle.request("GET", "/v2", b"").status, 200);
    partial.stream.write_all(b"GET /v2").unwrap();
    rig.wait_until("the engine has it", || rig.control.taken.load(Ordering::Relaxed) == 1);
    let api = rig.api.take().unwrap();
    let stopping = std::thread::spawn(move || api.stop());
    assert!(idle.is_closed() && fresh.is_closed() && partial.is_closed());
    rig.wait_until("the port is closed", || TcpStream::connect(rig.addr).is_err());
    assert!(!stopping.is_finished(), "one request is still to be answered");
    rig.control.release.store(true, Ordering::Relaxed);
    assert_eq!(in_flight.answer().status, 200);
    assert!(in_flight.is_closed());
    stopping.join().unwrap().unwrap();
}

#[test]
fn a_stop_does_not_wait_forever() {
    let mut rig = Rig::new(|config| config.stop_timeout = Duration::from_millis(50));
    let mut client = rig.client();
    client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    rig.wait_until("the engine has it", || rig.control.taken.load(Ordering::Relaxed) == 1);
    rig.api.take().unwrap().stop().unwrap();
    assert!(!rig.control.release.load(Ordering::Relaxed));
}

#[test]
fn a_client_that_leaves_is_forgotten_and_its_answer_still_taken() {
    let rig = Rig::new(|_| {});
    for _ in 0..10 {
        let mut client = rig.client();
        client.send("POST", "/v2/models/held/infer", body().to_string().as_bytes());
    }
    rig.wait_until("the engine has them", || rig.control.taken.load(Ordering::Relaxed) == 10);
    rig.wait_until("their connections are gone", || rig.metric("symphony_http_connections").ends_with(" 1"));
    let in_flight = "symphony_requests_in_flight{model=\"held\",version=\"1\"}";
    assert_eq!(rig.metric(in_flight), format!("{in_flight} 10"));
    rig.control.release.store(true, Ordering::Relaxed);
    rig.wait_until("all are answered", || rig.metric(in_flight).ends_with(" 0"));
    assert_eq!(rig.infer("held", &body()).status, 200);
    let gone = rig.metric("symphony_requests_total{model=\"held\",outcome=\"gone\"");
    assert!(gone.ends_with(" 10"), "{gone}");
}

#[test]
fn a_port_in_use_is_named_before_anything_starts() {
    let rig = Rig::new(|_| {});
    let (frontend, _peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
    let error = start(frontend, ApiConfig::at(rig.addr)).unwrap_err();
    assert!(matches!(error, ApiError::PortInUse(addr) if addr == rig.addr), "{error}");
}

#[test]
fn a_core_that_is_not_there_is_an_error_of_start() {
    let (frontend, _peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
    let mut config = ApiConfig::at(([127, 0, 0, 1], 0).into());
    config.placement.core = Some(77_777);
    assert!(start(frontend, config).unwrap_err().to_string().contains("core 77777"));
}

#[test]
fn several_cores_may_share_a_port() {
    let share = |addr: SocketAddr| {
        let (frontend, peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
        let mut config = ApiConfig::at(addr);
        config.share_port = true;
        (start(frontend, config).unwrap(), peer)
    };
    let (first, _peer) = share(([127, 0, 0, 1], 0).into());
    let (second, _other_peer) = share(first.local_addr());
    assert_eq!(first.local_addr(), second.local_addr());
}

#[test]
fn whatever_the_body_is_the_answer_is_a_4xx_and_the_server_lives() {
    let rig = Rig::new(|_| {});
    let client = std::cell::RefCell::new(rig.client());
    let good = body().to_string().into_bytes();
    let broken = (0..good.len(), any::<u8>(), 0usize..3).prop_map(move |(at, byte, what)| {
        let mut text = good.clone();
        match what {
            0 => text[at] = byte,
            1 => text.insert(at, byte),
            _ => drop(text.remove(at)),
        }
        text
    });
    let any_bytes = proptest::collection::vec(any::<u8>(), 0..300);
    proptest!(ProptestConfig::with_cases(500), |(bytes in any_bytes)| {
        let answer = client.borrow_mut().request("POST", "/v2/models/echo/infer", &bytes);
        prop_assert_eq!(answer.status, 400);
        prop_assert!(!answer.error().is_empty());
    });
    proptest!(ProptestConfig::with_cases(1_000), |(bytes in broken)| {
        let answer = client.borrow_mut().request("POST", "/v2/models/echo/infer", &bytes);
        // A change inside a number or a string may leave a good request.
        prop_assert!(matches!(answer.status, 200 | 400), "{answer:?}");
    });
}
