//! The repository as clients meet it: the `symphony` binary, its HTTP API on real sockets, models
//! that are loaded, replaced and unloaded while others ask them.

mod harness;

use harness::onnx::loop_model;
use harness::process::{PATIENCE, ServerProcess, request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

struct Server {
    address: SocketAddr,
    _process: ServerProcess,
}

impl Server {
    /// Serves `folder/models`, which clients control.
    fn start(folder: &Path) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        command
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
            .arg(folder.join("models"));
        let process = ServerProcess::start(&mut command, Stdio::null());
        Server { address: process.address(), _process: process }
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

/// Sends one request and returns the status and the body, `null` if it is empty.
fn post(address: SocketAddr, path: &str, body: &str) -> (u16, Value) {
    let (status, _, body) = request(address, ("POST", path), "", body).unwrap();
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(&body).unwrap() })
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
    let file = json!({ "parameters": { "file:1/model.onnx": "eA==" } });
    let (status, answer) = server.post("/v2/repository/models/shapes/load", &file);
    assert!(status == 400 && answer["error"].as_str().unwrap().contains("file:1/model.onnx"), "{answer}");
}

#[test]
fn a_load_with_a_configuration_overrides_the_folders_until_the_next_load() {
    let folder = repository();
    std::fs::write(folder.path().join("models/shapes/config.pbtxt"), "max_batch_size: 3\n").unwrap();
    let server = Server::start(folder.path());
    let load = |config: Option<Value>| {
        let parameters = config.map_or(json!({}), |config| json!({ "config": config.to_string() }));
        let (status, answer) =
            server.post("/v2/repository/models/shapes/load", &json!({ "parameters": parameters }));
        (status, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    let max_batch = || {
        let (status, _, body) = request(server.address, ("GET", "/v2/models/shapes/config"), "", "").unwrap();
        assert_eq!(status, 200);
        serde_json::from_str::<Value>(&body).unwrap()["max_batch_size"].as_u64().unwrap()
    };
    assert_eq!(max_batch(), 3);
    assert_eq!(load(Some(json!({ "name": "shapes", "maxBatchSize": "8" }))), (200, String::new()));
    assert_eq!(max_batch(), 8, "more than the files say");
    assert_eq!(post(server.address, "/v2/models/shapes/infer", &sample()).0, 200);
    for (config, error) in [
        (json!({ "max_batch_size": "many" }), "config:1: max_batch_size: is many; it must be a whole number"),
        (json!({ "name": "other" }), "config:1: name: is \"other\"; it must be \"shapes\""),
        (json!([]), "config:1: config: "),
    ] {
        let (status, said) = load(Some(config));
        assert!(status == 400 && said.contains(error), "{status} {said}");
        assert_eq!(max_batch(), 8, "what was loaded is still served");
    }
    assert_eq!(load(None), (200, String::new()));
    assert_eq!(max_batch(), 3, "as the folder says again");
}

#[test]
fn a_model_is_warmed_up_before_it_serves_and_a_faulty_sample_is_named() {
    let folder = repository();
    let shapes = folder.path().join("models/shapes");
    let server = Server::start(folder.path());
    let load = |samples: &str| {
        std::fs::write(shapes.join("config.pbtxt"), samples).unwrap();
        let (status, answer) = server.post("/v2/repository/models/shapes/load", &json!({}));
        (status, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    let sample = |inputs: &str| format!("model_warmup {{ name: \"mine\" count: 2 {inputs} }}\n");
    let image = |data: &str| {
        format!("inputs {{ key: \"image\" value {{ data_type: TYPE_FP32 dims: [ 3, 32, 32 ] {data} }} }}")
    };
    let file = "input_data_file: \"image.bin\"";
    for (samples, error) in [
        (sample(&image(file)), "sample \"mine\": "),
        (sample(&image("")), "input \"image\" has not one type and one kind of data"),
        (sample(&image("input_data_file: \"../1/model.onnx\"")), "a file in the model's folder `warmup`"),
        (sample(""), "sample \"mine\" has no inputs"),
        (sample(&image("zero_data: true")).replace("32, 32", "32"), "the model says TYPE_FP32 [3, 32, 32]"),
        (sample(&format!("batch_size: 5 {}", image("zero_data: true"))), "the largest batch 4"),
    ] {
        let (status, said) = load(&samples);
        assert!(status == 400 && said.contains(error), "{status} {said}");
    }
    std::fs::create_dir(shapes.join("warmup")).unwrap();
    std::fs::write(shapes.join("warmup/image.bin"), [0; 12_287]).unwrap();
    let (status, said) = load(&sample(&image(file)));
    assert!(
        status == 400 && said.contains("has 12287 bytes; input \"image\" needs 12288"),
        "{status} {said}"
    );
    std::fs::write(shapes.join("warmup/image.bin"), [0; 12_288]).unwrap();
    let all = [sample(&format!("batch_size: 4 {}", image(file))), sample(&image("random_data: true"))];
    assert_eq!(load(&all.concat()), (200, String::new()));
    server.wait_for_index("shapes", &[("1", "READY")]);
}

#[test]
fn a_model_of_the_repository_that_hangs_is_unloaded_with_a_reason_and_can_be_loaded_again() {
    let folder = repository();
    let loops = folder.path().join("models/loops/1");
    std::fs::create_dir_all(&loops).unwrap();
    std::fs::write(loops.join("model.onnx"), loop_model()).unwrap();
    let keys = "slo_ms = 60000\nmax_batch = 4\nprofile = { alpha_ms = 1, beta_ms = 1 }\n";
    std::fs::write(folder.path().join("models/loops/model.toml"), keys).unwrap();
    let config = "policy = \"work-conserving\"\n[faults]\ngrace_ms = 50\nhung_after_s = 0.5\n\
                  [[executors]]\nkind = \"cpu\"\ncount = 1\n\
                  [repository]\npath = \"models\"\ncontrol = \"explicit\"\nload = [\"loops\", \"shapes\"]\n";
    std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(folder.path());
    let process = ServerProcess::start(&mut command, Stdio::null());
    let server = Server { address: process.address(), _process: process };
    let ask = |times: i64| {
        let body = json!({ "inputs": [
            { "name": "n", "datatype": "INT64", "shape": [1, 1], "data": [times] },
            { "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0] },
        ] });
        server.post("/v2/models/loops/infer", &body)
    };
    assert_eq!(ask(1).0, 200);
    for _ in 0..3 {
        // It fails with its executor, which is given up.
        assert_eq!(ask(i64::MAX).0, 500);
    }
    server.wait_for_index("loops", &[("", "UNAVAILABLE")]);
    let entries = server.post("/v2/repository/index", &json!({})).1;
    let reason = "unloaded: it made an executor hang or die 3 times within 60 s";
    let entry = entries.as_array().unwrap().iter().find(|entry| entry["name"] == "loops").unwrap();
    assert_eq!(entry["reason"], reason, "{entries}");
    let (status, why) = ask(1);
    assert!(status == 404 && why["error"].as_str().unwrap().contains(reason), "{status}: {why}");
    let ready = || -> (u16, Value) {
        let (status, _, body) = request(server.address, ("GET", "/v2/health/ready"), "", "").unwrap();
        (status, serde_json::from_str(&body).unwrap())
    };
    let unavailable = json!([{ "name": "loops", "version": "1", "reason": reason }]);
    assert_eq!(ready(), (200, json!({ "ready": true, "unavailable": unavailable })));
    assert_eq!(post(server.address, "/v2/models/shapes/infer", &sample()).0, 200);
    assert_eq!(server.post("/v2/repository/models/loops/load", &json!({})).0, 200);
    server.wait_for_index("loops", &[("1", "READY")]);
    assert_eq!(ask(1).0, 200);
    assert_eq!(ready(), (200, json!({ "ready": true })));
}
