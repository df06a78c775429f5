//! A server on loopback for tests, and a client that speaks HTTP/1.1 to it. The engine is one
//! thread at the other end of the real rings; a model's name says what becomes of its requests.

use crate::api::{ApiConfig, ApiHandle, start};
use crate::runtime::FaultLatch;
use crate::runtime::clock::Clock;
use crate::runtime::frontend::{Frontend, FrontendPeer, FrontendSetup, ModelInfo, ModelTable, SlotState};
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

/// The longest time that a test waits for an event, on a machine that may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// The models, each named after the ending of its requests.
pub(super) const MODELS: [&str; 10] =
    ["echo", "late", "dropped", "cancelled", "full", "failed", "stopped", "held", "a b/c", "large"];

/// The elements of the outputs of `large`: numbers, and texts of at most [`LARGE_TEXT`] bytes. Each
/// byte of them is a `<`.
pub(super) const LARGE: [usize; 2] = [1 << 19, 4_096];

/// The length of each text of `large`.
pub(super) const LARGE_TEXT: usize = 60;

fn tensor(name: &str, datatype: DataType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, shape: shape.to_vec() }
}

fn models() -> Arc<[ModelInfo]> {
    let signature = Signature::of_rows(
        vec![tensor("image", DataType::Fp32, &[2, 2]), tensor("flag", DataType::Bool, &[])],
        vec![tensor("same", DataType::Fp32, &[2, 2]), tensor("flag", DataType::Bool, &[])],
    );
    let large = Signature {
        outputs: vec![
            tensor("numbers", DataType::Fp32, &LARGE[..1]),
            tensor("texts", DataType::Bytes(LARGE_TEXT as u32), &LARGE[1..]),
        ],
        ..signature.clone()
    };
    let model = |(at, name): (usize, &&str)| ModelInfo {
        name: name.to_string(),
        version: 1,
        platform: "emulated".into(),
        signature: if *name == "large" { large.clone() } else { signature.clone() },
        slo: if *name == "late" { Nanos::from_millis(1) } else { Nanos::from_secs(100) },
        max_batch: 8,
        state: SlotState::Serving,
        ..ModelInfo::vacant(ModelId(at as u32), 0)
    };
    MODELS.iter().enumerate().map(model).collect()
}

/// The state that the tests and the engine's thread share.
#[derive(Default)]
pub(super) struct EngineControl {
    pub(super) taken: AtomicUsize,
    pub(super) release: AtomicBool,
    pub(super) end: AtomicBool,
}

pub(super) struct TestServer {
    pub(super) addr: SocketAddr,
    pub(super) api: Option<ApiHandle>,
    pub(super) engine: Option<JoinHandle<()>>,
    pub(super) control: Arc<EngineControl>,
    pub(super) accepting: Arc<AtomicBool>,
    pub(super) faults: FaultLatch,
    pub(super) model_table: Arc<ModelTable>,
}

pub(super) fn frontend(
    capacity: usize,
    clock: Clock,
    accepting: Arc<AtomicBool>,
) -> (Frontend, FrontendPeer) {
    frontend_with_grace(capacity, Nanos::MAX, clock, accepting)
}

fn frontend_with_grace(
    capacity: usize,
    grace: Nanos,
    clock: Clock,
    accepting: Arc<AtomicBool>,
) -> (Frontend, FrontendPeer) {
    let faults = FaultLatch::new(Arc::clone(&accepting));
    let setup = FrontendSetup::of_models(models());
    Frontend::new(FrontendSetup { capacity, grace, clock, accepting, faults, ..setup }).unwrap()
}

impl TestServer {
    pub(super) fn new(configure: impl FnOnce(&mut ApiConfig)) -> TestServer {
        TestServer::with_capacity(64, configure)
    }

    pub(super) fn with_capacity(capacity: usize, configure: impl FnOnce(&mut ApiConfig)) -> TestServer {
        TestServer::with_grace(capacity, Nanos::MAX, configure)
    }

    /// Starts a server that ends requests itself this long after they are due.
    pub(super) fn with_grace(
        capacity: usize,
        grace: Nanos,
        configure: impl FnOnce(&mut ApiConfig),
    ) -> TestServer {
        let (clock, accepting) = (Clock::start(), Arc::new(AtomicBool::new(true)));
        let (frontend, peer) = frontend_with_grace(capacity, grace, clock.clone(), accepting.clone());
        let (faults, model_table) = (frontend.faults().clone(), Arc::clone(frontend.model_table()));
        let control = Arc::new(EngineControl::default());
        let shared = control.clone();
        let engine = std::thread::spawn(move || engine(peer, &clock, &shared));
        let mut config = ApiConfig::at(([127, 0, 0, 1], 0).into());
        // The names that the tests' clients give.
        config.allowed_hosts = ["t", "test"].map(String::from).to_vec();
        configure(&mut config);
        let api = start(frontend, config).unwrap();
        let addr = api.local_addr();
        TestServer { addr, api: Some(api), engine: Some(engine), control, accepting, faults, model_table }
    }

    pub(super) fn client(&self) -> Client {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client { stream, read: Vec::new() }
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.client().request("GET", path, b"")
    }

    pub(super) fn infer(&self, model: &str, body: &Value) -> Answer {
        self.client().infer(model, body)
    }

    pub(super) fn metric(&self, line_start: &str) -> String {
        let text = self.get("/metrics").text;
        let line = text.lines().find(|l| l.starts_with(line_start));
        line.unwrap_or_else(|| panic!("no {line_start} in {text}")).to_string()
    }

    pub(super) fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds() {
            assert!(Instant::now() < end, "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.control.release.store(true, Ordering::Relaxed);
        drop(self.api.take());
        self.control.end.store(true, Ordering::Relaxed);
        self.engine.take().unwrap().join().unwrap();
    }
}

fn engine(mut peer: FrontendPeer, clock: &Clock, control: &EngineControl) {
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
        for request in held.extract_if(.., |r| release || model_of(r) != "held") {
            let response = answer(&peer, request, clock);
            peer.responses[0].push(response).unwrap();
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Returns the model of a request, whose id names a per-class queue.
fn model_of(request: &Request) -> &'static str {
    MODELS[request.queue.0 as usize % MODELS.len()]
}

fn answer(peer: &FrontendPeer, request: Request, clock: &Clock) -> Response {
    let ending = match model_of(&request) {
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
        if model_of(&request) == "large" {
            slot[24..].fill(b'<');
        }
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

pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) read: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub(super) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_string()
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| l.split_once(": ").filter(|(n, _)| *n == name)).map(|(_, v)| v)
    }
}

impl Client {
    pub(super) fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
        self.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    }

    pub(super) fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Answer {
        self.send(method, path, body);
        self.answer()
    }

    pub(super) fn infer(&mut self, model: &str, body: &Value) -> Answer {
        self.request("POST", &format!("/v2/models/{model}/infer"), body.to_string().as_bytes())
    }

    /// A response to HEAD, which says how long its body would be and has none.
    pub(super) fn head(&mut self, path: &str) -> Answer {
        self.send("HEAD", path, b"");
        self.read_head()
    }

    pub(super) fn read_head(&mut self) -> Answer {
        let head_end = self.fill_until(|read| find(read, b"\r\n\r\n")).expect("a head");
        let head = String::from_utf8(self.read.drain(..head_end + 4).collect()).unwrap();
        Answer { status: head[9..12].parse().unwrap(), head, text: String::new() }
    }

    pub(super) fn answer(&mut self) -> Answer {
        let mut answer = self.read_head();
        let length: usize = answer.header("content-length").map_or(0, |v| v.parse().unwrap());
        self.fill_until(|read| (read.len() >= length).then_some(length)).expect("a body");
        answer.text = String::from_utf8(self.read.drain(..length).collect()).unwrap();
        answer
    }

    /// The JSON of an answer and the raw tensors behind it.
    pub(super) fn raw_answer(&mut self) -> (Answer, Vec<u8>) {
        let mut answer = self.read_head();
        let length: usize = answer.header("content-length").map_or(0, |v| v.parse().unwrap());
        self.fill_until(|read| (read.len() >= length).then_some(length)).expect("a body");
        let mut body: Vec<u8> = self.read.drain(..length).collect();
        let json = answer.header("inference-header-content-length").map_or(length, |v| v.parse().unwrap());
        let raw = body.split_off(json);
        answer.text = String::from_utf8(body).unwrap();
        (answer, raw)
    }

    pub(super) fn fill_until(&mut self, done: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
        loop {
            if let Some(at) = done(&self.read) {
                return Some(at);
            }
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(n) if n > 0 => self.read.extend(&part[..n]),
                // A completion of an executor on this thread interrupts a read that has a time-out.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => return None,
            }
        }
    }

    /// Returns true if the server closes the connection without a further byte.
    pub(super) fn is_closed(&mut self) -> bool {
        self.read.is_empty() && matches!(self.stream.read(&mut [0; 16]), Ok(0))
    }
}

pub(super) fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

pub(super) fn body() -> Value {
    json!({
        "id": "a \"quoted\" id",
        "inputs": [
            { "name": "image", "shape": [1, 2, 2], "datatype": "FP32", "data": [0.1, 2, -3e5, 4.5] },
            { "name": "flag", "shape": [1], "datatype": "BOOL", "data": [true] },
        ],
    })
}

/// `body()` with the value at `pointer` replaced.
pub(super) fn body_with(pointer: &str, value: Value) -> Value {
    let mut body = body();
    *body.pointer_mut(pointer).unwrap() = value;
    body
}

pub(super) fn infer_with(server: &TestServer, headers: &str, body: &[u8]) -> (Answer, Vec<u8>) {
    let mut client = server.client();
    let length = body.len();
    let head = format!(
        "POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\n{headers}content-length: {length}\r\n\r\n"
    );
    client.stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    client.raw_answer()
}
