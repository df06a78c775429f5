//! The ends of `symphony serve`: by a signal under load, while a model or a thread hangs, and by a
//! thread that dies or hangs. Each server runs in a process of its own: the program itself, or this
//! test's binary with a fault in an environment variable.

mod harness;

use harness::engine::{EmulatedModel, emulated_gpus};
use harness::onnx::loop_model;
use harness::process::{PATIENCE, ServerProcess, request, wait_until};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use symphony::runtime::{Options, ThreadHook};

/// The environment variable with the role at fault, what it does, and the folder of the server.
const FAULT: &str = "SYMPHONY_FAULT_OF_A_TEST";

/// A batch runs for ten minutes, so a request is answered earlier only if it is cut off.
const SLOW: EmulatedModel = EmulatedModel {
    slo_ms: 3_000_000.0,
    alpha_ms: 1.0,
    beta_ms: 600_000.0,
    more: "inputs = [{ name = \"x\", datatype = \"FP32\", shape = [1] }]\n\
           outputs = [{ name = \"y\", datatype = \"FP32\", shape = [1] }]\n",
};

const BODY: &str = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}]}"#;

/// A bound on the time of an end that is to take two seconds.
const SOON: Duration = Duration::from_secs(25);

struct Server {
    folder: tempfile::TempDir,
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server in which the role `role` does `what` ("panic" or "hang") once it is told to.
    fn start(keys: &str, role: &str, what: &str) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let text = format!("{keys}\n{}{}", emulated_gpus(1), SLOW.sections(1));
        std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_server_of_a_child_process", "--nocapture", "--test-threads=1"])
            .env("RUST_BACKTRACE", "0")
            .env(FAULT, format!("{role} {what} {}", folder.path().display()))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).find_map(|line| {
            let (_, url) = line.split_once("ready http://")?;
            url.split(' ').next()?.trim().parse().ok()
        });
        Server { folder, process, address: ready.expect("the server is ready") }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// Sends a request from a thread of its own, and returns once the engine has it. The status is
    /// `None` if the connection is closed without an answer.
    fn infer(&self) -> JoinHandle<Option<u16>> {
        let address = self.address;
        let client = std::thread::spawn(move || {
            request(address, ("POST", "/v2/models/m0/infer"), "", BODY).ok().map(|(status, ..)| status)
        });
        wait_until("the engine has the request", || {
            let metrics = request(address, ("GET", "/metrics"), "", "").unwrap().2;
            metrics.contains("symphony_requests_in_flight{model=\"m0\",version=\"1\"} 1\n")
        });
        client
    }

    /// Has the role at fault panic or hang.
    fn strike(&self) {
        std::fs::write(trigger(self.folder.path()), "").unwrap();
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Waits for its end and returns the exit code.
    fn end(&mut self) -> Option<i32> {
        let mut code = None;
        wait_until("the process has ended", || {
            code = self.process.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already has said why.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The file whose existence lets the fault happen.
fn trigger(folder: &Path) -> PathBuf {
    folder.join("strike")
}

/// Does nothing unless it is a child process of the tests below.
#[test]
fn a_server_of_a_child_process() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let [role, what, folder] = fault.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{fault}") };
    let (role, what, folder) = (role.to_owned(), what.to_owned(), PathBuf::from(folder));
    let now = Arc::new(AtomicBool::new(false));
    let (strike, file) = (Arc::clone(&now), trigger(&folder));
    std::thread::spawn(move || {
        while !file.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        strike.store(true, Ordering::Relaxed);
    });
    let before: ThreadHook = Arc::new(move |running: &str| {
        if running == role && now.load(Ordering::Relaxed) {
            assert!(what == "hang", "a fault for {role}");
            std::thread::sleep(10 * PATIENCE);
        }
    });
    let options = Options { before_cycle: Some(before), ..Options::default() };
    let arguments = ["symphony", "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let arguments = arguments.into_iter().map(Into::into).chain([folder.into_os_string()]);
    std::process::exit(symphony::cli::run_with(arguments, options).into());
}

#[test]
fn sigterm_ends_a_process_whose_threads_hang_within_the_time_out_and_answers_503() {
    let mut server = Server::start("shutdown_timeout_s = 2\nthread_timeout_s = 600", "emulated", "hang");
    let client = server.infer();
    server.strike();
    let began = Instant::now();
    server.signal("-TERM");
    assert_eq!((client.join().unwrap(), server.end()), (Some(503), Some(4)), "{}", server.log());
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    let mut server = Server::start("shutdown_timeout_s = 600", "none", "hang");
    let _client = server.infer();
    server.signal("-TERM");
    wait_until("the shutdown has begun", || server.log().contains("stopping"));
    server.signal("-INT");
    assert_eq!(server.end(), Some(4), "{}", server.log());
}

#[test]
fn a_thread_that_dies_ends_the_process_with_a_code_of_its_own_and_one_line() {
    for role in ["model-0", "rank", "emulated", "api"] {
        let mut server = Server::start("shutdown_timeout_s = 2", role, "panic");
        let client = server.infer();
        let began = Instant::now();
        server.strike();
        let expected = if role == "api" { None } else { Some(503) };
        assert_eq!((client.join().unwrap(), server.end()), (expected, Some(5)), "{role}: {}", server.log());
        assert!(began.elapsed() < SOON, "{role}: {:?}", began.elapsed());
        let log = server.log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains("a fault for")).collect();
        let named = format!("ERROR the engine's thread {role} died: panicked at engine/tests/shutdown.rs:");
        assert_eq!(lines.len(), 1, "{log}");
        assert!(lines[0].contains(&named) && lines[0].ends_with(&format!("a fault for {role}")), "{log}");
    }
}

#[test]
fn a_thread_that_hangs_ends_the_process_with_the_code_of_a_fault() {
    for role in ["rank", "api"] {
        let mut server = Server::start("shutdown_timeout_s = 2\nthread_timeout_s = 1", role, "hang");
        let client = server.infer();
        server.strike();
        let expected = if role == "api" { None } else { Some(503) };
        assert_eq!((client.join().unwrap(), server.end()), (expected, Some(5)), "{role}: {}", server.log());
        assert!(server.log().contains(&format!("the engine's thread {role} hangs")), "{}", server.log());
    }
}

/// Starts the program with a CONFIG of this text, in whose folder its models are.
fn serve(folder: &Path, text: &str) -> ServerProcess {
    std::fs::write(folder.join("symphony.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(folder);
    ServerProcess::start(&mut command, Stdio::null())
}

/// Serves a model whose loop runs as often as the request says, and one that is always quick, on
/// one CPU executor.
fn serve_loops(folder: &Path, keys: &str) -> ServerProcess {
    std::fs::write(folder.join("loops.onnx"), loop_model()).unwrap();
    let linear = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    std::fs::copy(linear, folder.join("linear.onnx")).unwrap();
    let model = |name: &str| {
        format!(
            "[[models]]\nname = \"{name}\"\nfile = \"{name}.onnx\"\nslo_ms = 600000\nmax_batch = 8\n\
             profile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n"
        )
    };
    let executor = "[[executors]]\nkind = \"cpu\"\ncount = 1\n";
    let policy = "policy = \"work-conserving\"\n";
    serve(folder, &format!("{policy}{keys}\n{executor}{}{}", model("loops"), model("linear")))
}

/// Asks the model of the loop, for an answer within this time. Returns the status.
fn ask_to_loop(address: SocketAddr, times: i64, timeout_us: u64) -> u16 {
    let body = format!(
        r#"{{"parameters":{{"timeout":{timeout_us}}},"inputs":[
            {{"name":"n","datatype":"INT64","shape":[1,1],"data":[{times}]}},
            {{"name":"x","datatype":"FP32","shape":[1,1],"data":[0]}}]}}"#
    );
    request(address, ("POST", "/v2/models/loops/infer"), "", &body).unwrap().0
}

/// The value of a metric of the model of the loop, 0 if it has none yet.
fn metric_of_loops(address: SocketAddr, name: &str) -> u64 {
    let metrics = request(address, ("GET", "/metrics"), "", "").unwrap().2;
    let line = format!("{name}{{model=\"loops\",version=\"1\"}} ");
    metrics.lines().find_map(|of| of.strip_prefix(&line)).map_or(0, |value| value.parse().unwrap())
}

/// Long enough for any machine, and shorter than the models' SLO.
const LONG_US: u64 = 500_000_000;

#[test]
fn a_model_in_an_endless_loop_is_outlived_by_its_clients_its_executor_and_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let keys = "shutdown_timeout_s = 40\n[faults]\ngrace_ms = 50\nhung_after_s = 0.5\nmax_hung_threads = 8";
    let mut server = serve_loops(folder.path(), keys);
    let address = server.address();
    assert_eq!(ask_to_loop(address, 3, LONG_US), 200);
    // One that has not begun within its deadline makes nothing hang.
    while metric_of_loops(address, "symphony_model_hung_batches_total") == 0 {
        let began = Instant::now();
        let status = ask_to_loop(address, i64::MAX, 200_000);
        // 500 if the API core had no time until the executor was given up.
        assert!(matches!(status, 504 | 500) && began.elapsed() < SOON, "{status}, {:?}", began.elapsed());
    }
    let input = r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
    for _ in 0..10 {
        assert_eq!(request(address, ("POST", "/v2/models/linear/infer"), "", input).unwrap().0, 200);
    }
    let client = std::thread::spawn(move || ask_to_loop(address, i64::MAX, LONG_US));
    wait_until("the engine has it", || metric_of_loops(address, "symphony_requests_in_flight") > 0);
    let began = Instant::now();
    server.signal("-TERM");
    assert_eq!((client.join().unwrap(), server.end()), (500, Some(0)), "it fails with its executor");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[test]
fn sigterm_ends_a_process_with_a_model_in_an_endless_loop_within_the_time_out() {
    // The client was answered 504 before the signal, or is answered 503 after it.
    for (timeout_us, status, code) in [(200_000, 504, 0), (LONG_US, 503, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let keys = "shutdown_timeout_s = 2\n[faults]\ngrace_ms = 50\nhung_after_s = 3600";
        let mut server = serve_loops(folder.path(), keys);
        let address = server.address();
        let client = std::thread::spawn(move || ask_to_loop(address, i64::MAX, timeout_us));
        if code == 0 {
            wait_until("it is answered", || client.is_finished());
        } else {
            wait_until("the engine has it", || metric_of_loops(address, "symphony_requests_in_flight") > 0);
        }
        let began = Instant::now();
        server.signal("-TERM");
        assert_eq!((client.join().unwrap(), server.end()), (status, Some(code)));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

#[test]
fn a_signal_drains_all_api_cores_at_once_and_every_accepted_request_is_answered() {
    const CLIENTS: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let model = EmulatedModel { slo_ms: 600_000.0, alpha_ms: 0.001, beta_ms: 4_000.0, ..SLOW };
    let text = format!(
        "policy = \"work-conserving\"\n[cores]\napi = [0, 1]\n{}{}",
        emulated_gpus(1),
        model.sections(1)
    );
    let mut server = serve(folder.path(), &text);
    let address = server.address();
    // The system spreads connections over both cores: all of them to one core is a chance of 2^-63.
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| std::thread::spawn(move || request(address, ("POST", "/v2/models/m0/infer"), "", BODY)))
        .collect();
    wait_until("both cores have them all", || {
        let metrics = request(address, ("GET", "/metrics"), "", "").unwrap().2;
        metrics.contains(&format!("symphony_requests_in_flight{{model=\"m0\",version=\"1\"}} {CLIENTS}\n"))
    });
    server.signal("-TERM");
    let statuses: Vec<u16> = clients.into_iter().map(|client| client.join().unwrap().unwrap().0).collect();
    assert_eq!((statuses, server.end()), (vec![200; CLIENTS], Some(0)));
}
