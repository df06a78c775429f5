//! The server on real threads and sockets under everything at once: clients over HTTP and gRPC that
//! leave, that read and write slowly, that stop in the midst of a request, that cancel, requests on
//! which a model fails or panics, models that come and go, a flood. After it every request has
//! ended, the counters balance, and the server serves as before.

mod harness;

use harness::onnx::{file, graph, node, number_attribute, tensor};
use harness::process::{PATIENCE, ServerProcess, request, wait_until};
use prost::Message;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use symphony::api::grpc::messages::ModelInferRequest;
use symphony::api::grpc::messages::model_infer_request::InferInputTensor;

/// Statuses that a request under chaos may get: answered, wrong, unloaded, overloaded, stopped or
/// failed, late.
const ALLOWED: [u16; 7] = [200, 400, 404, 429, 500, 503, 504];

fn copy(folder: &Path, from: &str, to: &str) {
    let to = folder.join(to);
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(from), to).unwrap();
}

/// A model that divides one by one less than a whole number, and panics where that is one. It is
/// zero when the model is tried at its start.
fn divides() -> Vec<u8> {
    const INT32: u64 = 6;
    let nodes = [
        node("Equal", &["x", "x"], &["true"], &[]),
        node("Cast", &["true"], &["one"], &[number_attribute("to", INT32)]),
        node("Sub", &["x", "one"], &["less"], &[]),
        node("Div", &["one", "less"], &["y"], &[]),
    ];
    file(&graph(&nodes, &[], &[tensor("x", INT32, &[0, 1])], &[tensor("y", INT32, &[0, 1])]))
}

/// A server with two emulated GPUs and a CPU executor: the models `steady`, `embedding`, which
/// fails on indices out of range, `divides`, which panics on one, and `shapes`, which comes and
/// goes.
fn start(folder: &Path) -> ServerProcess {
    copy(folder, "../gpu/tests/data/embedding.onnx", "embedding.onnx");
    copy(folder, "../examples/quickstart/shapes.onnx", "models/shapes/1/model.onnx");
    std::fs::write(folder.join("divides.onnx"), divides()).unwrap();
    let keys = "slo_ms = 20000\nmax_batch = 4\nprofile = { alpha_ms = 1, beta_ms = 1 }\n";
    std::fs::write(folder.join("models/shapes/model.toml"), keys).unwrap();
    let tensor = |name| format!("[{{ name = \"{name}\", datatype = \"UINT8\", shape = [2048] }}]");
    let (input, output) = (tensor("x"), tensor("y"));
    let text = format!(
        "policy = \"work-conserving\"\n[http]\nmax_in_flight = 256\n[repository]\npath = \"models\"\n\
         control = \"explicit\"\nload = [\"shapes\"]\n[[executors]]\nkind = \"cpu\"\n[[executors]]\n\
         kind = \"emulated\"\ncount = 2\n[[models]]\nname = \"steady\"\nexecutor = \"emulated\"\nslo_ms = 20000\n\
         profile = {{ alpha_ms = 0.2, beta_ms = 1 }}\ninputs = {input}\noutputs = {output}\n\
         [[models]]\nname = \"embedding\"\nfile = \"embedding.onnx\"\n{keys}\
         [[models]]\nname = \"divides\"\nfile = \"divides.onnx\"\n{keys}"
    );
    let config = folder.join("symphony.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(config);
    ServerProcess::start(&mut command, Stdio::null())
}

fn body(name: &str, datatype: &str, elements: &[u64], timeout_us: u64) -> String {
    let input = json!({ "name": name, "datatype": datatype, "shape": [1, elements.len()], "data": elements });
    json!({ "inputs": [input], "parameters": { "timeout": timeout_us } }).to_string()
}

fn steady(timeout_us: u64) -> String {
    body("x", "UINT8", &[7; 2048], timeout_us)
}

fn embedding(index: u64) -> String {
    body("ids", "INT64", &[index, 1], 0)
}

fn divide(x: u64) -> String {
    body("x", "INT32", &[x], 0)
}

fn shapes() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/samples/shapes.json");
    std::fs::read_to_string(file).unwrap()
}

fn infer(address: SocketAddr, model: &str, body: &str) -> u16 {
    let path = format!("/v2/models/{model}/infer");
    let (status, _, answer) = request(address, ("POST", &path), "", body).unwrap();
    assert!(ALLOWED.contains(&status), "{model}: {status} {answer}");
    status
}

/// Sends requests whose answers are read whole.
fn patient(address: SocketAddr) {
    for n in 0..120u64 {
        infer(address, "steady", &steady([0, 1, 5_000][n as usize % 3]));
        infer(address, "shapes", &shapes());
        // A model that failed for one client answers the next.
        assert_ne!(infer(address, "embedding", &embedding(if n % 2 == 0 { 99_999 } else { 3 })), 404);
        assert_ne!(infer(address, "divides", &divide(n % 3)), 404);
    }
}

fn head_of(address: SocketAddr, model: &str, body: &str) -> String {
    let length = body.len();
    format!("POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n")
}

fn send(address: SocketAddr, model: &str, body: &str, bytes: usize) -> TcpStream {
    let whole = head_of(address, model, body) + body;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The server may have closed the connection, being at its limit.
    let _ = stream.write_all(&whole.as_bytes()[..bytes.min(whole.len())]);
    stream
}

/// Leaves in the midst of a request, before the answer, or in the midst of it.
fn vanishing(address: SocketAddr) {
    for n in 0..200usize {
        let mut stream = send(address, "steady", &steady(0), if n % 4 == 0 { n * 7 } else { usize::MAX });
        if n % 4 == 1 {
            let _ = stream.read(&mut [0; 16]);
        }
    }
}

/// Reads its answers a few bytes at a time.
fn slow_readers(address: SocketAddr) {
    let mut streams: Vec<TcpStream> =
        (0..20).map(|_| send(address, "steady", &steady(0), usize::MAX)).collect();
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(10));
        for stream in &mut streams {
            let _ = stream.read(&mut [0; 3]);
        }
    }
}

/// Sends the end of its requests a byte at a time, and reads the answers.
fn slow_writers(address: SocketAddr) {
    let body = steady(0);
    let rest = &body.as_bytes()[body.len() - 100..];
    let begin =
        |_| send(address, "steady", &body, head_of(address, "steady", &body).len() + body.len() - 100);
    let mut streams: Vec<TcpStream> = (0..10).map(begin).collect();
    for byte in rest.chunks(1) {
        std::thread::sleep(Duration::from_millis(5));
        for stream in &mut streams {
            let _ = stream.write_all(byte);
        }
    }
    for mut stream in streams {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        let status: u16 = std::str::from_utf8(&status[9..]).unwrap().parse().unwrap();
        assert!(ALLOWED.contains(&status), "{status}");
    }
}

/// Begins requests that it never sends the end of, and leaves them open.
fn half_writers(address: SocketAddr) -> Vec<TcpStream> {
    (0..10).map(|n| send(address, "steady", &steady(0), 150 + n * 20)).collect()
}

// RFC 9113, section 6.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags][..], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// A call of `ModelInfer` for `steady`.
fn grpc_call(stream: u32) -> Vec<u8> {
    let input = InferInputTensor {
        name: "x".into(),
        datatype: "UINT8".into(),
        shape: vec![1, 2048],
        ..InferInputTensor::default()
    };
    let message = ModelInferRequest {
        model_name: "steady".into(),
        inputs: vec![input],
        raw_input_contents: vec![vec![7; 2048].into()],
        ..ModelInferRequest::default()
    };
    let message = message.encode_to_vec();
    let message = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
    // HPACK: POST, http; literals without an index: the path, the authority, content-type.
    let (path, kind) = ("/inference.GRPCInferenceService/ModelInfer", "application/grpc");
    let mut head = vec![0x83, 0x86, 0x04, path.len() as u8];
    head.extend(path.bytes());
    head.extend([0x01, 9]);
    head.extend(b"localhost");
    head.extend([0x0f, 31 - 15, kind.len() as u8]);
    head.extend(kind.bytes());
    [frame(HEADERS, END_HEADERS, stream, &head), frame(DATA, END_STREAM, stream, &message)].concat()
}

/// Reads the frames of a connection until each of these streams has ended. Returns how many of them
/// had an answer.
fn read_streams(stream: &mut TcpStream, mut open: Vec<u32>) -> usize {
    let mut answered = 0;
    while !open.is_empty() {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("every call ends");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).expect("frames are whole");
        let (kind, flags) = (head[3], head[4]);
        let of = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        answered += usize::from(kind == DATA && !payload.is_empty() && open.contains(&of));
        if kind == RST_STREAM || kind <= HEADERS && flags & END_STREAM != 0 {
            open.retain(|&stream| stream != of);
        }
    }
    answered
}

/// Makes calls over gRPC, several at a time, cancels some of them, and leaves in the midst of some.
fn grpc_clients(address: SocketAddr) {
    let mut answered = 0;
    for n in 0..30 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let calls: Vec<u8> = [1, 3, 5, 7].into_iter().flat_map(grpc_call).collect();
        let cancelled = frame(RST_STREAM, 0, 3, &8u32.to_be_bytes());
        let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        stream.write_all(&[&hello[..], &frame(SETTINGS, 0, 0, b""), &calls, &cancelled].concat()).unwrap();
        if n % 3 != 0 {
            answered += read_streams(&mut stream, vec![1, 5, 7]);
        }
    }
    assert!(answered > 0, "no call over gRPC was answered");
}

/// Asks as much as a connection takes, and reads only what comes meanwhile.
fn flood(address: SocketAddr) {
    for _ in 0..3 {
        let streams: Vec<TcpStream> =
            (0..60).map(|_| send(address, "steady", &steady(0), usize::MAX)).collect();
        drop(streams);
    }
}

/// Unloads and loads a model again and again.
fn come_and_go(address: SocketAddr) {
    for _ in 0..12 {
        for action in ["unload", "load"] {
            let path = format!("/v2/repository/models/shapes/{action}");
            let (status, _, answer) = request(address, ("POST", &path), "", "{}").unwrap();
            assert_eq!(status, 200, "{action}: {answer}");
        }
    }
}

/// Returns the sum of a metric over all its labels; of those lines that contain `label` only.
fn metric(metrics: &str, name: &str, label: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.contains(label));
    let values = lines.filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next())?
    });
    values.map(|value| value.parse::<f64>().unwrap() as u64).sum()
}

fn metrics(address: SocketAddr) -> String {
    request(address, ("GET", "/metrics"), "", "").unwrap().2
}

/// True if all that the ModelThreads received has ended, and been counted once.
fn balances(address: SocketAddr) -> bool {
    let text = metrics(address);
    let of_threads = |name: &str| metric(&text, &format!("symphony_model_thread_{name}_total"), "");
    let ended = ["batched_requests", "dropped_in_queue", "overloaded", "withdrawn", "stopped"];
    let ended: u64 = ended.into_iter().map(of_threads).sum();
    metric(&text, "symphony_requests_in_flight", "") == 0 && of_threads("requests") == ended && ended > 0
}

#[test]
fn after_all_that_strangers_do_every_request_has_ended_and_the_server_serves_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start(folder.path());
    let address = server.address();
    let roles: [fn(SocketAddr); 8] =
        [patient, patient, vanishing, vanishing, slow_readers, slow_writers, flood, come_and_go];
    let _half_sent = half_writers(address);
    let mut running: Vec<_> =
        roles.into_iter().map(|role| std::thread::spawn(move || role(address))).collect();
    let grpc = server.grpc_address();
    running.push(std::thread::spawn(move || grpc_clients(grpc)));
    for role in running {
        role.join().unwrap();
    }
    wait_until("every request has ended and the counters balance", || balances(address));
    let text = metrics(address);
    let ran = metric(&text, "symphony_requests_total", "model=\"steady\"");
    assert!(ran >= 240, "{text}");
    // Each request for one has made it panic.
    assert_eq!(infer(address, "divides", &divide(1)), 500);
    let models =
        [("steady", steady(0)), ("embedding", embedding(3)), ("divides", divide(3)), ("shapes", shapes())];
    for (model, body) in models {
        wait_until("each model answers as before", || infer(address, model, &body) == 200);
    }
    wait_until("the versions that were replaced are gone", || {
        let (_, _, index) = request(address, ("POST", "/v2/repository/index"), "", "{}").unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let states: Vec<&Value> = index.as_array().unwrap().iter().map(|entry| &entry["state"]).collect();
        states.len() == 4 && states.iter().all(|state| **state == "READY")
    });
    assert_eq!(server.interrupt(), Some(0));
}
