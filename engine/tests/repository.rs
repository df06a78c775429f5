//! The repository as clients meet it: the `symphony` binary, its HTTP API on real sockets, models
//! that are loaded, replaced and unloaded while others ask them.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ten times what the slowest machine seen needed, and more.
const PATIENCE: Duration = Duration::from_secs(120);

struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Serves `folder/models`, which clients control.
    fn start(folder: &Path) -> Server {
        let mut child = Command::new(env!("CARGO_BIN_EXE_symphony"))
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--grpc",
                "127.0.0.1:0",
                "--model-control-mode",
                "explicit",
            ])
            .args(["--load-model", "shapes", "--model-repository"])
            .arg(folder.join("models"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("ready http://").expect("the first line says where it serves");
        Server { address: address.parse().unwrap(), child }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        post(self.address, path, &body.to_string())
    }

    /// What the index says of a model: its versions and their states.
    fn index(&self, name: &str) -> Vec<(String, String)> {
        let (status, entries) = self.post("/v2/repository/index", &json!({}));
        assert_eq!(status, 200, "{entries}");
        let of_model = entries.as_array().unwrap().iter().filter(|entry| entry["name"] == name);
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        of_model.map(|entry| (text(entry, "version"), text(entry, "state"))).collect()
    }

    fn wait_for_index(&self, name: &str, expected: &[(&str, &str)]) {
        let began = Instant::now();
        loop {
            let found = self.index(name);
            let same =
                |((version, state), (v, s)): (&(String, String), &(&str, &str))| version == v && state == s;
            if found.len() == expected.len() && found.iter().zip(expected).all(same) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{found:?}, not {expected:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One request on a connection of its own; the status and the body, `null` if it is empty.
fn post(address: SocketAddr, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

fn put_version(folder: &Path, version: u64) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/shapes.onnx");
    let to = folder.join("models/shapes").join(version.to_string());
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(from, to.join("model.onnx")).unwrap();
}

fn repository() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put_version(folder.path(), 1);
    // Its time is given, so that a machine busy with other tests measures nothing; its SLO is one
    // that any machine keeps.
    let words = "slo_ms = 60000\nmax_batch = 4\nprofile = { alpha_ms = 1, beta_ms = 1 }\n";
    std::fs::write(folder.path().join("models/shapes/model.toml"), words).unwrap();
    folder
}

fn sample() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/samples/shapes.json");
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn a_version_is_replaced_under_load_without_a_failed_request() {
    let folder = repository();
    let server = Server::start(folder.path());
    server.wait_for_index("shapes", &[("1", "READY")]);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (stop, address, body) = (Arc::clone(&stop), server.address, sample());
            std::thread::spawn(move || {
                let mut versions = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let (status, answer) = post(address, "/v2/models/shapes/infer", &body);
                    assert_eq!(status, 200, "{answer}");
                    versions.push(answer["model_version"].as_str().unwrap().parse::<u64>().unwrap());
                }
                versions
            })
        })
        .collect();
    for version in 2..=5 {
        put_version(folder.path(), version);
        let (status, answer) = server.post("/v2/repository/models/shapes/load", &json!({}));
        assert_eq!(status, 200, "{answer}");
        server.wait_for_index("shapes", &[(&version.to_string(), "READY")]);
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        let versions = client.join().unwrap();
        assert!(
            versions.is_sorted() && !versions.is_empty(),
            "the newest serves from the switch on: {versions:?}"
        );
    }
    let (status, answer) = post(server.address, "/v2/models/shapes/infer", &sample());
    assert_eq!((status, answer["model_version"].as_str()), (200, Some("5")));
}

#[test]
fn clients_load_and_unload_and_are_told_why_not() {
    let folder = repository();
    let server = Server::start(folder.path());
    let infer = || post(server.address, "/v2/models/shapes/infer", &sample()).0;
    assert_eq!(infer(), 200);
    let (status, answer) = server.post("/v2/repository/models/shapes/unload", &json!({}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(infer(), 404);
    server.wait_for_index("shapes", &[("", "UNAVAILABLE")]);
    std::fs::write(folder.path().join("models/shapes/config.pbtxt"), "max_batch_size: many\n").unwrap();
    let (status, answer) = server.post("/v2/repository/models/shapes/load", &json!({}));
    let error = answer["error"].as_str().unwrap();
    assert!(status == 400 && error.contains("config.pbtxt:1: max_batch_size: is many"), "{status} {error}");
    std::fs::write(folder.path().join("models/shapes/config.pbtxt"), "max_batch_size: 2\n").unwrap();
    assert_eq!(server.post("/v2/repository/models/shapes/load", &json!({})).0, 200);
    assert_eq!(infer(), 200);
    let (status, answer) = server.post("/v2/repository/models/none/load", &json!({}));
    assert!((400..500).contains(&status) && answer["error"].as_str().unwrap().contains("none"), "{answer}");
    let config = json!({ "parameters": { "config": "{}" } });
    let (status, answer) = server.post("/v2/repository/models/shapes/load", &config);
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("config"), "{answer}");
}
