//! The ends of `symphony serve`: by a signal while a thread hangs, and by a thread that dies or
//! hangs. Each server runs in a process of its own: this test's binary, with the fault in an
//! environment variable.

mod harness;

use harness::engine::{EmulatedModel, emulated_gpus};
use harness::process::{PATIENCE, request, wait_until};
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
