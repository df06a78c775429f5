//! The `symphony` binary as its users meet it: the quickstart on real threads and sockets, its
//! shutdown, and what it says to a configuration with diagnostics. Needs no network but loopback.

mod harness;

use harness::process::{ServerProcess, request, wait_until};
use serde_json::Value;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart")
}

fn symphony() -> Command {
    Command::new(env!("CARGO_BIN_EXE_symphony"))
}

/// A served configuration, killed when the test is over.
struct Server {
    process: ServerProcess,
    address: SocketAddr,
}

impl Server {
    fn start(config: &Path) -> Server {
        Server::start_with(config, &[])
    }

    fn start_with(config: &Path, options: &[&std::ffi::OsStr]) -> Server {
        let mut command = symphony();
        command.args(["serve", "--http", "127.0.0.1:0"]).args(options).arg(config);
        let process = ServerProcess::start(&mut command, Stdio::null());
        Server { address: process.address(), process }
    }

    fn post(&self, path: &str, body: &str) -> (u16, Value) {
        post(self.address, path, body).unwrap()
    }

    /// Sends SIGINT and returns the exit code.
    fn interrupt(mut self) -> Option<i32> {
        self.process.interrupt()
    }
}

/// Sends one request and returns the status and the JSON body.
fn post(address: SocketAddr, path: &str, body: &str) -> std::io::Result<(u16, Value)> {
    let (status, _, body) = request(address, ("POST", path), "", body)?;
    let torn = |_| std::io::Error::other(format!("no whole answer: {body:?}"));
    Ok((status, serde_json::from_str(&body).map_err(torn)?))
}

fn sample(name: &str) -> String {
    std::fs::read_to_string(quickstart().join("samples").join(name)).unwrap()
}

/// The quickstart with SLOs that a machine busy with other tests keeps too. A policy that holds
/// batches back on purpose brings every answer close to its deadline, so here the other one serves.
fn patient_quickstart(folder: &Path) -> PathBuf {
    let text = std::fs::read_to_string(quickstart().join("symphony.toml")).unwrap();
    let text = text.replace("slo_ms = 50.0", "slo_ms = 2000.0");
    let text = text.replace("policy = \"symphony\"", "policy = \"work-conserving\"");
    assert!(text.contains("work-conserving") && text.contains("slo_ms = 2000.0"));
    for name in ["shapes.onnx", "wide.onnx"] {
        std::fs::copy(quickstart().join(name), folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("symphony.toml"), text).unwrap();
    folder.to_path_buf()
}

#[test]
fn the_quickstart_answers_its_samples_as_expected() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&patient_quickstart(folder.path()));
    for name in ["shapes", "shapes-2", "wide", "wide-2"] {
        let expected: Value = serde_json::from_str(&sample(&format!("{name}.expected.json"))).unwrap();
        let model = expected["model"].as_str().unwrap();
        let (status, answer) =
            server.post(&format!("/v2/models/{model}/infer"), &sample(&format!("{name}.json")));
        assert_eq!(status, 200, "{answer}");
        let scores = answer["outputs"][0]["data"].as_array().unwrap();
        let wanted = expected["scores"].as_array().unwrap();
        assert_eq!(scores.len(), wanted.len());
        for (score, wanted) in scores.iter().zip(wanted) {
            let off = (score.as_f64().unwrap() - wanted.as_f64().unwrap()).abs();
            assert!(off <= expected["tolerance"].as_f64().unwrap(), "{name}: {answer}");
        }
    }
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn an_emulated_model_answers_zeros_of_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&patient_quickstart(folder.path()));
    let ones = vec!["1"; 16].join(",");
    let body = format!(
        r#"{{"id":"x","inputs":[{{"name":"image","datatype":"FP32","shape":[1,16],"data":[{ones}]}}]}}"#
    );
    let (status, answer) = server.post("/v2/models/resnet50/infer", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["id"], "x");
    assert_eq!(answer["outputs"][0]["shape"], serde_json::json!([1, 10]));
    let data = answer["outputs"][0]["data"].as_array().unwrap();
    assert!(data.len() == 10 && data.iter().all(|zero| zero.as_f64() == Some(0.0)));
}

#[test]
fn a_deadline_that_cannot_be_met_is_answered_with_504_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&patient_quickstart(folder.path()));
    let body = sample("wide.json").replacen('{', r#"{"parameters":{"timeout":1},"#, 1);
    let (status, answer) = server.post("/v2/models/wide/infer", &body);
    assert_eq!(status, 504, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("deadline"), "{answer}");
}

#[test]
fn sigint_under_load_answers_every_request_that_was_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&patient_quickstart(folder.path()));
    let (address, stop) = (server.address, AtomicBool::new(false));
    let body = sample("wide.json");
    let first = std::sync::Barrier::new(5);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut statuses = Vec::new();
                    statuses.push(post(address, "/v2/models/wide/infer", &body).unwrap().0);
                    first.wait();
                    // A refused connection is the end of the server; a torn answer would be an
                    // error of another kind.
                    while !stop.load(Ordering::Relaxed) {
                        match post(address, "/v2/models/wide/infer", &body) {
                            Ok((status, _)) => statuses.push(status),
                            Err(error) if is_gone(&error) => break,
                            Err(error) => panic!("an accepted request got no whole answer: {error}"),
                        }
                    }
                    statuses
                })
            })
            .collect();
        first.wait();
        assert_eq!(server.interrupt(), Some(0));
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            let statuses = client.join().unwrap();
            assert_eq!(statuses[0], 200);
            assert!(statuses.iter().all(|status| [200, 503, 504].contains(status)), "{statuses:?}");
        }
    });
}

/// True if the connection was refused, or closed before the first byte of an answer.
fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | BrokenPipe)
        || error.to_string() == r#"no whole answer: """#
}

#[test]
fn a_full_server_answers_probes_and_inference_at_its_admin_listener() {
    let folder = tempfile::tempdir().unwrap();
    let config = patient_quickstart(folder.path());
    let file = config.join("symphony.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "\n[http]\nmax_connections = 4\n").unwrap();
    let server = Server::start_with(&config, &["--admin".as_ref(), "127.0.0.1:0".as_ref()]);
    let admin = server.process.admin_address().expect("a third line");
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    wait_until("the public port is full", || {
        request(server.address, ("GET", "/v2/health/live"), "", "").is_ok_and(|(status, ..)| status == 503)
    });
    for path in ["/v2/health/live", "/v2/health/ready", "/metrics"] {
        assert_eq!(request(admin, ("GET", path), "", "").unwrap().0, 200, "{path}");
    }
    assert_eq!(post(admin, "/v2/models/wide/infer", &sample("wide.json")).unwrap().0, 200);
    drop(silent);
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn an_admin_listener_that_everybody_could_reach_is_refused_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let config = patient_quickstart(folder.path());
    let open = ["--admin".as_ref(), "0.0.0.0:0".as_ref()];
    let output =
        symphony().args(["serve", "--http", "127.0.0.1:0"]).args(open).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--tokens FILE") && said.contains("--insecure-admin"), "{said}");
    let server = Server::start_with(&config, &[open[0], open[1], "--insecure-admin".as_ref()]);
    let port = server.process.admin_address().unwrap().port();
    let admin = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(request(admin, ("GET", "/metrics"), "", "").unwrap().0, 200);
    let page = "Origin: https://evil.example\r\n";
    assert_eq!(request(admin, ("GET", "/metrics"), page, "").unwrap().0, 403);
    assert_eq!(server.interrupt(), Some(0));
}

fn check(folder: &Path, text: &str) -> Output {
    let file = folder.join("symphony.toml");
    std::fs::write(&file, text).unwrap();
    symphony().arg("check").arg(&file).output().unwrap()
}

#[test]
fn check_accepts_the_quickstart() {
    let output = symphony().arg("check").arg(quickstart()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[test]
fn check_whose_output_nobody_reads_ends_quietly() {
    harness::process::ends_quietly_unread(symphony().arg("check").arg(quickstart()), false);
}

#[test]
fn check_reports_every_diagnostic_with_its_line_and_exits_with_2() {
    let folder = tempfile::tempdir().unwrap();
    let output = check(
        folder.path(),
        "polcy = \"symphony\"\n\n[[executors]]\nkind = \"cpu\"\n\n[[models]]\nname = \"a\"\nfile = \"no.onnx\"\n\
         executor = \"cpu\"\nslo_ms = -5\n",
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    for wanted in
        ["symphony.toml:1: polcy", "symphony.toml:8: models[0].file", "symphony.toml:10: models[0].slo_ms"]
    {
        assert!(said.contains(wanted), "{wanted} is not in:\n{said}");
    }
}

#[test]
fn a_corrupt_model_file_is_a_diagnostic_of_its_line_in_check_and_serve() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(quickstart().join("shapes.onnx")).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(folder.path().join("half.onnx"), bytes).unwrap();
    let text = "[[executors]]\nkind = \"cpu\"\n[[models]]\nname = \"half\"\nfile = \"half.onnx\"\n\
                executor = \"cpu\"\nslo_ms = 50\n";
    let output = check(folder.path(), text);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("symphony.toml:5: models[0].file"),
        "{output:?}"
    );
    let serve = symphony().args(["serve", "--http", "127.0.0.1:0"]).arg(folder.path()).output().unwrap();
    assert_eq!(serve.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&serve.stderr).contains("symphony.toml:5: models[0].file"), "{serve:?}");
}

#[test]
fn a_port_in_use_is_said_with_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[executors]]\nkind = \"emulated\"\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\nslo_ms = 50\n\
                profile = { alpha_ms = 1.0, beta_ms = 1.0 }\n";
    std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = symphony().args(["serve", "--http", &address]).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"), "{output:?}");
}

#[test]
fn the_flight_recording_of_a_killed_server_replays_to_the_same_decisions() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let options = ["--record".as_ref(), record.as_os_str(), "--record-mib".as_ref(), "8".as_ref()];
    let mut server = Server::start_with(&patient_quickstart(folder.path()), &options);
    let body = sample("shapes.json");
    for _ in 0..20 {
        assert_eq!(server.post("/v2/models/shapes/infer", &body).0, 200);
    }
    let metrics = request(server.address, ("GET", "/metrics"), "", "").unwrap().2;
    assert!(metrics.contains("symphony_model_thread_requests_total{thread=\"model-0\"} 20\n"), "{metrics}");
    assert!(metrics.contains("symphony_backend_start_lateness_seconds_count"), "{metrics}");
    server.process.kill();
    let replay = |arguments: &[&str]| {
        let output = symphony().arg("replay").arg(&record).args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, text) = replay(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("(20 requests)") && text.contains("the same decisions came out"), "{text}");
    let (code, text) = replay(&["--request", "7", "--frontend", "0"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("request 7 of frontend 0") && text.contains("in batch"), "{text}");
    assert!(text.contains(": in time, by "), "{text}");
    let (code, text) = replay(&["--request", "999999"]);
    assert_eq!(code, Some(1), "{text}");
    std::fs::write(record.join("rank.symrec"), "nonsense").unwrap();
    let (code, text) = replay(&[]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("rank.symrec: not a sound recording"), "{text}");
}

#[test]
fn the_example_repository_is_sound_with_a_configuration_and_without() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/repository");
    let check = |arguments: &[&std::ffi::OsStr]| {
        let Output { status, stdout, stderr } = symphony().arg("check").args(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code(), text(stdout), text(stderr))
    };
    let (code, said, complaints) = check(&[folder.as_ref()]);
    assert!(
        code == Some(0) && said.ends_with("symphony.toml: ok; 3 models, 3 executors\n"),
        "{said}{complaints}"
    );
    // By itself it gets a CPU executor, which runs no emulated models.
    let (code, said, complaints) = check(&["--model-repository".as_ref(), folder.join("models").as_ref()]);
    assert_eq!((code, said.as_str()), (Some(2), ""));
    assert!(
        complaints.contains("resnet50/model.toml:3: executor: the model runs on \"emulated\""),
        "{complaints}"
    );
    let shapes = tempfile::tempdir().unwrap();
    for file in ["shapes/config.pbtxt", "shapes/model.toml", "shapes/1/model.onnx"] {
        let to = shapes.path().join(file);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(folder.join("models").join(file), to).unwrap();
    }
    let (code, said, complaints) = check(&["--model-repository".as_ref(), shapes.path().as_ref()]);
    assert!(code == Some(0) && said.ends_with(": ok; 1 models, 1 executors\n"), "{said}{complaints}");
    let pbtxt = shapes.path().join("shapes/config.pbtxt");
    let wrong = std::fs::read_to_string(&pbtxt).unwrap().replace("dims: [ 10 ]", "dims: [ 11 ]");
    std::fs::write(&pbtxt, wrong).unwrap();
    let (code, _, complaints) = check(&["--model-repository".as_ref(), shapes.path().as_ref()]);
    let expected = "config.pbtxt:6: output: output \"scores\" has not the dims [11]; the model says [10] for one request";
    assert!(code == Some(2) && complaints.contains(expected), "{complaints}");
}
