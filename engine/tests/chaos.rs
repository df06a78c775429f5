//! The server on real threads and sockets under everything at once: clients that leave, that read
//! slowly, that cancel, requests on which a model fails, models that come and go, a flood. After
//! it every request has ended, the counters balance, and the server serves as before.

mod harness;

use harness::process::{PATIENCE, ServerProcess, request, wait_until};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Statuses that a request under chaos may get: answered, wrong, unloaded, overloaded, stopped or
/// failed, late.
const ALLOWED: [u16; 7] = [200, 400, 404, 429, 500, 503, 504];

fn copy(folder: &Path, from: &str, to: &str) {
    let to = folder.join(to);
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(from), to).unwrap();
}

/// A server with two emulated GPUs and a CPU executor: the models `steady`, `embedding`, which
/// fails on indices out of range, and `shapes`, which comes and goes.
fn start(folder: &Path) -> ServerProcess {
    copy(folder, "../gpu/tests/data/embedding.onnx", "embedding.onnx");
    copy(folder, "../examples/quickstart/shapes.onnx", "models/shapes/1/model.onnx");
    let keys = "slo_ms = 20000\nmax_batch = 4\nprofile = { alpha_ms = 1, beta_ms = 1 }\n";
    std::fs::write(folder.join("models/shapes/model.toml"), keys).unwrap();
    let tensor = |name| format!("[{{ name = \"{name}\", datatype = \"UINT8\", shape = [2048] }}]");
    let (input, output) = (tensor("x"), tensor("y"));
    let text = format!(
        "policy = \"work-conserving\"\n[http]\nmax_in_flight = 256\n[repository]\npath = \"models\"\n\
         control = \"explicit\"\nload = [\"shapes\"]\n[[executors]]\nkind = \"cpu\"\n[[executors]]\n\
         kind = \"emulated\"\ncount = 2\n[[models]]\nname = \"steady\"\nexecutor = \"emulated\"\nslo_ms = 20000\n\
         profile = {{ alpha_ms = 0.2, beta_ms = 1 }}\ninputs = {input}\noutputs = {output}\n\
         [[models]]\nname = \"embedding\"\nfile = \"embedding.onnx\"\n{keys}"
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
    }
}

fn send(address: SocketAddr, model: &str, body: &str, bytes: usize) -> TcpStream {
    let head = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let whole = head + body;
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
    let roles: [fn(SocketAddr); 7] =
        [patient, patient, vanishing, vanishing, slow_readers, flood, come_and_go];
    let running: Vec<_> = roles.into_iter().map(|role| std::thread::spawn(move || role(address))).collect();
    for role in running {
        role.join().unwrap();
    }
    wait_until("every request has ended and the counters balance", || balances(address));
    let text = metrics(address);
    let ran = metric(&text, "symphony_requests_total", "model=\"steady\"");
    assert!(ran >= 240, "{text}");
    for (model, body) in [("steady", steady(0)), ("embedding", embedding(3)), ("shapes", shapes())] {
        wait_until("each model answers as before", || infer(address, model, &body) == 200);
    }
    wait_until("the versions that were replaced are gone", || {
        let (_, _, index) = request(address, ("POST", "/v2/repository/index"), "", "{}").unwrap();
        let index: Value = serde_json::from_str(&index).unwrap();
        let states: Vec<&Value> = index.as_array().unwrap().iter().map(|entry| &entry["state"]).collect();
        states.len() == 3 && states.iter().all(|state| **state == "READY")
    });
    assert_eq!(server.interrupt(), Some(0));
}
