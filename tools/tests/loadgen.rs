//! The `loadgen` command against a small HTTP server on loopback: counts, exit codes and output.
//! The server has a thread per connection, answers from a script and counts what it is sent. Other
//! tests send to `loadgen echo`, which speaks gRPC too. A generator that shares its cores with
//! other tests is late, which is a warning.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../engine/tests/harness/process.rs"]
mod process;

use process::{ServerProcess, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// A status line's code, further header lines, and a body.
type Reply = (u16, &'static str, String);

struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    script: Box<dyn Fn(usize) -> Reply + Send + Sync>,
    infers: AtomicUsize,
    /// Infer requests that are being answered, and the most at once so far.
    busy: AtomicUsize,
    busiest: AtomicUsize,
    wrong: AtomicUsize,
    gone: AtomicBool,
}

const GOOD: &str = "symphony-outcome: good\r\n";

fn good(batch_size: u32) -> Reply {
    (200, GOOD, json!({ "parameters": { "batch_size": batch_size }, "outputs": [] }).to_string())
}

fn bad(status: u16, header: &'static str) -> Reply {
    (status, header, json!({ "error": "as the script says" }).to_string())
}

impl Server {
    /// A server that answers the n-th infer request by `script(n)`, for models `m` and `n`; it
    /// states that the SLO of `n` is 1 s.
    fn start(script: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            infers: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            busiest: AtomicUsize::new(0),
            wrong: AtomicUsize::new(0),
            gone: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.gone.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.serve(stream.unwrap()));
            }
        });
        Server { address, shared }
    }

    fn loadgen(&self, arguments: &str) -> Run {
        loadgen(&format!("--url http://{} --json {arguments}", self.address))
    }
}

/// `loadgen echo`, killed when the test is over.
struct Echo {
    http: String,
    grpc: String,
    _process: ServerProcess,
}

impl Echo {
    fn start() -> Echo {
        let mut command = command("echo --http 127.0.0.1:0 --grpc 127.0.0.1:0");
        let process = ServerProcess::start(&mut command, Stdio::null());
        let [http, grpc] = process.urls() else { panic!("{:?}", process.urls()) };
        Echo { http: http.clone(), grpc: grpc.clone(), _process: process }
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut writer = stream;
        loop {
            let (path, body) = read_request(&mut reader)?;
            let (status, headers, body) = self.answer(&path, &body);
            if self.gone.load(Ordering::SeqCst) {
                return None;
            }
            let head = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {}\r\n\r\n", body.len());
            writer.write_all((head + &body).as_bytes()).ok()?;
            if headers.contains("connection: close") {
                return None;
            }
        }
    }

    fn answer(&self, path: &str, body: &[u8]) -> Reply {
        match path {
            "/v2/models/m" | "/v2/models/n" => {
                let x = json!({ "name": "x", "datatype": "FP32", "shape": [-1, 2, 3] });
                (200, "", json!({ "name": "m", "inputs": [x], "outputs": [] }).to_string())
            }
            "/v2/models/n/config" => {
                let slo = json!({ "slo_ms": { "string_value": "1000" } });
                (200, "", json!({ "parameters": slo }).to_string())
            }
            "/v2/models/m/infer" | "/v2/models/n/infer" => {
                let busy = self.busy.fetch_add(1, Ordering::SeqCst) + 1;
                self.busiest.fetch_max(busy, Ordering::SeqCst);
                let wrong = !is_infer_request(body);
                self.wrong.fetch_add(usize::from(wrong), Ordering::SeqCst);
                let reply = (self.script)(self.infers.fetch_add(1, Ordering::SeqCst));
                self.busy.fetch_sub(1, Ordering::SeqCst);
                reply
            }
            _ => (404, "", json!({ "error": "there is no such model; the models are m and n" }).to_string()),
        }
    }
}

fn is_infer_request(body: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<Value>(body) else { return false };
    let input = &body["inputs"][0];
    let data = input["data"].as_array().map_or(0, Vec::len);
    input["name"] == "x" && input["datatype"] == "FP32" && input["shape"] == json!([1, 2, 3]) && data == 6
}

/// Reads a request's path and body; `None` when the client has closed the connection.
fn read_request(reader: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_string();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        if header == "\r\n" {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, body))
}

struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}\n{}", self.stdout, self.stderr);
        serde_json::from_str(&self.stdout).unwrap()
    }

    fn count(&self, name: &str) -> u64 {
        self.json()[name].as_u64().unwrap_or_else(|| panic!("{name} of {}", self.stdout))
    }
}

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command.args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn finished(output: Output) -> Run {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn loadgen(arguments: &str) -> Run {
    finished(command(arguments).output().unwrap())
}

#[test]
fn every_answer_is_counted_by_how_it_ended() {
    let server = Server::start(|n| match n % 10 {
        0 => bad(504, "symphony-outcome: late\r\n"),
        1 => bad(504, "symphony-outcome: dropped\r\n"),
        2 => bad(504, "symphony-outcome: cancelled\r\n"),
        3 => bad(429, "symphony-outcome: overloaded\r\n"),
        4 => bad(500, ""),
        _ => good(5),
    });
    let run = server.loadgen("--model m --rate 200 --duration 1 --arrival uniform");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!((run.count("offered"), run.count("sent"), run.count("good")), (200, 200, 100));
    assert_eq!((run.count("late"), run.count("dropped")), (20, 40));
    assert_eq!((run.count("rejected"), run.count("failed"), run.count("bad")), (20, 20, 100));
    assert_eq!(run.json()["mean_batch"], 5.0);
    assert_eq!(run.json()["offered_rps"], 200.0);
    assert_eq!(run.json()["bad_rate"], 0.5);
    assert!(
        run.stderr.contains("the first request that failed: 500 Internal Server Error: as the script says")
    );
    assert_eq!(server.shared.wrong.load(Ordering::SeqCst), 0, "every body was a good infer request");
}

#[test]
fn an_answer_after_the_slo_is_late_whatever_the_server_says() {
    let server = Server::start(|n| {
        if n % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        good(1)
    });
    let run = server.loadgen("--model m --rate 20 --duration 1 --arrival uniform --slo-ms 1000");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.count("offered"), 20);
    assert!(run.count("late") >= 10, "{}", run.stdout);
    assert!(run.json()["latency_ms"]["max"].as_f64().unwrap() >= 1_500.0);
}

#[test]
fn without_slo_ms_the_servers_own_slo_says_what_is_late() {
    let server = Server::start(|n| {
        if n % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        good(1)
    });
    let run = server.loadgen("--model n --rate 20 --duration 1 --arrival uniform");
    assert_eq!((run.code, run.count("offered")), (Some(0), 20), "{}", run.stderr);
    assert!(run.count("late") >= 10, "{}", run.stdout);
    assert_eq!(run.json()["models"][0]["slo_ms"], 1000.0);
    // `m` states none, and --slo-ms goes before what the server states.
    for flags in ["--model m", "--model n --slo-ms 60000"] {
        let run = server.loadgen(&format!("{flags} --rate 20 --duration 1 --arrival uniform"));
        assert_eq!((run.count("late"), run.count("good")), (0, 20), "{flags}: {}", run.stdout);
    }
}

#[test]
fn a_server_that_closes_its_connections_gets_new_ones() {
    let server = Server::start(|_| (200, "connection: close\r\n", "{}".into()));
    let run = server.loadgen("--model m --rate 100 --duration 1");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.count("good"), run.count("offered"), "{}", run.stderr);
}

#[test]
fn requests_wait_for_a_connection_when_all_are_in_use_and_their_latency_shows_it() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(100));
        good(1)
    });
    let run = server.loadgen("--model m --rate 40 --duration 1 --arrival uniform --max-connections 2");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!((run.count("offered"), run.count("good")), (40, 40));
    assert_eq!(server.shared.busiest.load(Ordering::SeqCst), 2);
    // 40 requests of 100 ms on two connections take 2 s; the last was meant for the end of the
    // first.
    assert!(run.json()["lateness_ms"]["max"].as_f64().unwrap() >= 500.0, "{}", run.stdout);
}

#[test]
fn a_closed_loop_has_as_many_requests_under_way_as_clients() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(5));
        good(1)
    });
    let run = server.loadgen("--model m --concurrency 3 --duration 1");
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(server.shared.busiest.load(Ordering::SeqCst), 3);
    assert!(run.count("offered") > 10 && run.count("offered") == run.count("good"));
}

#[test]
fn a_workload_asks_many_models_by_their_shares() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.toml");
    let model = |name: &str, share| {
        format!(
            "[[models]]\nname = \"{name}\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9000\nshare = {share}\narrival = \"uniform\"\n"
        )
    };
    let head = "gpus = 1\nrate_rps = 200\nwarmup_s = 0.5\nduration_s = 1\n";
    std::fs::write(&file, format!("{head}{}{}", model("m", 3), model("n", 1))).unwrap();
    let server = Server::start(|_| good(2));
    let run = server.loadgen(&format!("--workload {}", file.display()));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!((run.count("offered"), run.count("good")), (200, 200));
    assert_eq!(server.shared.infers.load(Ordering::SeqCst), 300, "the warm-up is sent too");
}

#[test]
fn a_server_that_goes_away_ends_the_run_with_exit_code_1() {
    let server = Server::start(|_| good(1));
    let mut command =
        command(&format!("--url http://{} --json --model m --rate 200 --duration 30", server.address));
    let child = command.spawn().unwrap();
    wait_until("20 requests have come", || server.shared.infers.load(Ordering::SeqCst) >= 20);
    server.shared.gone.store(true, Ordering::SeqCst);
    // Wakes the thread that accepts, which then closes its socket.
    drop(TcpStream::connect(server.address));
    let run = finished(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.contains("the server went away during the run"), "{}", run.stderr);
    assert!(run.count("good") >= 10 && run.count("failed") >= 1, "{}", run.stdout);
    assert!(run.count("offered") < 6_000, "the run ended early: {}", run.stdout);
}

#[test]
fn ctrl_c_ends_the_run_early_and_it_still_reports() {
    let server = Server::start(|_| good(1));
    let mut command =
        command(&format!("--url http://{} --json --model m --rate 100 --duration 600", server.address));
    let child = command.spawn().unwrap();
    wait_until("10 requests have come", || server.shared.infers.load(Ordering::SeqCst) >= 10);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let run = finished(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert!(run.count("offered") >= 10 && run.count("good") == run.count("offered"), "{}", run.stdout);
}

#[test]
fn without_json_the_table_is_printed() {
    let server = Server::start(|_| good(3));
    let run = loadgen(&format!("--url http://{} --model m --rate 50 --duration 1", server.address));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    for word in ["offered", "sent", "good", "bad", "p99.9", "mean 3.00", "generator"] {
        assert!(run.stdout.contains(word), "{word}: {}", run.stdout);
    }
}

#[test]
fn a_server_that_is_not_there_is_exit_code_1_and_said_in_words() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let run = loadgen(&format!("--url http://{address} --model m --rate 1 --duration 1"));
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    let expected = format!("loadgen: http://{address}: can't connect to {address}: ");
    assert!(run.stderr.starts_with(&expected), "{}", run.stderr);
    assert!(
        run.stderr.contains("refused") && run.stderr.contains("is the server running there?"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_model_that_is_not_there_is_exit_code_2_with_the_servers_own_words() {
    let server = Server::start(|_| good(1));
    let run = server.loadgen("--model other --rate 1 --duration 1");
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.contains("there is no such model; the models are m and n"), "{}", run.stderr);
}

#[test]
fn a_server_of_another_protocol_is_exit_code_1() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"220 mail.example ESMTP\r\n");
        }
    });
    let run = loadgen(&format!("--url http://{address} --model m --rate 1 --duration 1"));
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    assert!(run.stderr.starts_with("loadgen: http://"), "{}", run.stderr);
}

#[test]
fn bad_usage_is_exit_code_2() {
    assert_eq!(loadgen("").code, Some(2));
    assert_eq!(loadgen("--url http://127.0.0.1:1 --model m --rate 0 --duration 1").code, Some(2));
    let run =
        loadgen("--url http://127.0.0.1:1 --model m --rate 1 --duration 1 --protocol grpc --tensors json");
    assert_eq!(
        (run.code, run.stderr.as_str()),
        (Some(2), "loadgen: gRPC has no JSON: leave --tensors json out\n")
    );
    assert_eq!(loadgen("--help").code, Some(0));
}

#[test]
fn an_engine_in_this_process_needs_no_server() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[executors]]\nkind = \"emulated\"\ncount = 4\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\n\
                slo_ms = 2000\nprofile = { alpha_ms = 1, beta_ms = 5 }\n";
    std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
    let target = format!("--in-process {} --json", folder.path().display());
    let run = loadgen(&format!("{target} --model m --rate 200 --duration 1 --arrival uniform"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!((run.count("offered"), run.count("sent")), (200, 200));
    assert!(run.count("good") >= 100 && run.json()["mean_batch"].as_f64().unwrap() >= 1.0, "{}", run.stdout);
    let run = loadgen(&format!("{target} --model n --rate 1 --duration 1"));
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.ends_with("the engine has no model \"n\"; it has m\n"), "{}", run.stderr);
    std::fs::write(folder.path().join("symphony.toml"), "policy = 3").unwrap();
    let run = loadgen(&format!("{target} --model m --rate 1 --duration 1"));
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("symphony.toml:1: policy: is 3; it must be"), "{}", run.stderr);
}

#[test]
fn requests_go_over_http_as_bytes_and_over_grpc_on_several_threads() {
    let echo = Echo::start();
    for (flags, protocol, tensors) in [
        (format!("--url {}", echo.http), "http", "binary"),
        (format!("--url {} --tensors json", echo.http), "http", "json"),
        (format!("--url {} --protocol grpc", echo.grpc), "grpc", "binary"),
    ] {
        let run = loadgen(&format!(
            "{flags} --model echo --rate 300 --duration 1 --arrival uniform --threads 2 --connections 4 --rows 3 --json"
        ));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!((run.count("offered"), run.count("sent"), run.count("good")), (300, 300, 300));
        let info = &run.json()["run"];
        assert_eq!((&info["protocol"], &info["tensors"]), (&json!(protocol), &json!(tensors)));
        assert_eq!((&info["rows"], &info["threads"]), (&json!(3), &json!(2)));
    }
}

#[test]
fn a_server_lists_its_models_and_a_closed_loop_thinks() {
    let echo = Echo::start();
    for flags in [format!("--url {}", echo.http), format!("--url {} --protocol grpc", echo.grpc)] {
        let run = loadgen(&format!("{flags} --models all --concurrency 5 --think-ms 20 --duration 1 --json"));
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        assert_eq!(run.json()["models"][0]["name"], "echo");
        // Five clients that each think for 20 ms on average can't send more than about 250 in a
        // second.
        assert!((10..=500).contains(&run.count("good")), "{}", run.stdout);
    }
}

#[test]
fn an_error_of_a_grpc_server_is_reported_in_its_own_words() {
    let echo = Echo::start();
    let run = loadgen(&format!("--url {} --protocol grpc --model m --rate 1 --duration 1", echo.http));
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{}", run.stderr);
    assert!(run.stderr.starts_with(&format!("loadgen: {}: ", echo.http)), "{}", run.stderr);
    let run = loadgen(&format!(
        "--url {} --protocol grpc --model echo --rate 1 --duration 1 --shared-memory system",
        echo.grpc
    ));
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("does not take a shared memory region: the server has no such call"),
        "{}",
        run.stderr
    );
}

#[test]
fn a_generator_that_is_too_late_is_warned_about_and_fails_a_strict_run() {
    let server = Server::start(|_| good(1));
    let target = format!("--url http://{} --json --model m", server.address);
    let late = format!("{target} --rate 100 --duration 1 --slo-ms 1000 --max-lateness 0.000001");
    for (flag, how, code) in [("", "warning", 0), ("--strict", "failed", 1)] {
        let run = loadgen(&format!("{late} {flag}"));
        assert_eq!(run.code, Some(code), "{}", run.stderr);
        let said = format!("loadgen: {how}: the generator itself was late");
        assert!(run.stderr.contains(&said) && run.stderr.contains("p99.9 "), "{}", run.stderr);
        assert!(run.json()["lateness_limit_ms"].as_f64().unwrap() < 1e-4);
        assert!(run.json()["latency_from_sent_ms"]["p99"].is_f64(), "{}", run.stdout);
        assert!(run.json()["machine_stalls"]["count"].is_u64(), "{}", run.stdout);
    }
}

#[test]
fn a_run_leaves_the_files_asked_for_and_two_of_them_are_compared() {
    let server = Server::start(|_| {
        let stages = json!({ "queued_us": 0, "batched_us": 10, "started_us": 20, "finished_us": 30, "answered_us": 40 });
        (200, GOOD, json!({ "parameters": stages, "outputs": [] }).to_string())
    });
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let at = |name: &str| path(name).display().to_string();
    let files = format!(
        "--save {} --html {} --csv {} --csv-requests {} --hlog {} --hgrm {} --svg {}",
        at("a.json"),
        at("a.html"),
        at("a.csv"),
        at("r.csv"),
        at("a.hlog"),
        at("a.hgrm"),
        at("charts")
    );
    let run = server.loadgen(&format!("--model m --rate 100 --duration 2 --arrival uniform {files}"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let lines = |name: &str| std::fs::read_to_string(path(name)).unwrap().lines().count();
    assert_eq!((lines("a.csv"), lines("r.csv")), (3, 201));
    assert!(lines("a.hlog") >= 5 && lines("a.hgrm") > 10);
    let page = std::fs::read_to_string(path("a.html")).unwrap();
    assert!(page.contains("Where the time goes") && page.ends_with("</html>\n"));
    assert!(path("charts").join("latency.svg").is_file());

    // The same run, and one that is twice as slow.
    let mut slow: Value = serde_json::from_slice(&std::fs::read(path("a.json")).unwrap()).unwrap();
    assert_eq!(slow["seconds"].as_array().unwrap().len(), 2);
    slow["latency_ms"]["p50"] = json!(slow["latency_ms"]["p50"].as_f64().unwrap() * 2.0);
    slow["seconds"] = json!([]);
    std::fs::write(path("b.json"), slow.to_string()).unwrap();
    let same = loadgen(&format!("compare {} {} --fail-if-worse 0", at("a.json"), at("a.json")));
    assert_eq!((same.code, same.stderr.as_str()), (Some(0), ""));
    let worse = loadgen(&format!(
        "compare {} {} --fail-if-worse 50 --json --html {}",
        at("a.json"),
        at("b.json"),
        at("c.html")
    ));
    assert_eq!(worse.code, Some(1), "{}", worse.stderr);
    assert_eq!(worse.stderr, "loadgen: failed: latency p50, ms got worse\n");
    assert_eq!(worse.json()["changes"][2]["change"], 2.0);
    assert!(path("c.html").is_file());
    let missing = loadgen(&format!("compare {} /no/such/file", at("a.json")));
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(2), ""));
}

#[test]
fn a_file_that_can_not_be_written_is_an_error_before_anything_is_sent() {
    let server = Server::start(|_| good(1));
    let run = server.loadgen("--model m --rate 100 --duration 1 --html /no/such/folder/a.html");
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("/no/such/folder/a.html: can't be written"), "{}", run.stderr);
    assert_eq!(server.shared.infers.load(Ordering::SeqCst), 0);
}

#[test]
fn inputs_from_a_file_are_sent_and_one_that_does_not_fit_is_refused() {
    let server = Server::start(|_| good(1));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: usize| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![0; bytes]).unwrap();
        path.display().to_string()
    };
    let (fits, short) = (write("fits.raw", 48), write("short.raw", 20));
    let run = server.loadgen(&format!("--model m --rate 50 --duration 1 --input {fits}"));
    assert_eq!((run.code, server.shared.wrong.load(Ordering::SeqCst)), (Some(0), 0), "{}", run.stderr);
    let run = server.loadgen(&format!("--model m --rate 50 --duration 1 --input m={short}"));
    assert_eq!(run.code, Some(2));
    assert!(
        run.stderr.contains("short.raw: it has 20 bytes; input \"x\" (FP32 of [2, 3]) takes 24 a row"),
        "{}",
        run.stderr
    );
}

#[test]
fn the_goodput_of_a_server_is_found_and_needs_an_slo() {
    let folder = tempfile::tempdir().unwrap();
    let text = "[[executors]]\nkind = \"emulated\"\ncount = 1\n[[models]]\nname = \"m\"\nexecutor = \"emulated\"\n\
                slo_ms = 400\nprofile = { alpha_ms = 20, beta_ms = 0 }\n";
    std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
    let run = loadgen(&format!(
        "--in-process {} --json --max-lateness 1e9 --model m --find-goodput --rate 20 --duration 1 --resolution 25",
        folder.path().display()
    ));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    // It runs one request in 20 ms, so 50 a second; a second's backlog may hide some more in the
    // SLO.
    let goodput = run.json()["goodput_rps"].as_f64().unwrap();
    assert!((0.0..=110.0).contains(&goodput), "{}", run.stdout);
    let steps = run.json()["steps"].as_array().unwrap().len();
    assert!(steps >= 2 && run.stderr.matches("/s   bad ").count() == steps, "{}", run.stderr);
    let server = Server::start(|_| good(1));
    let run = server.loadgen("--model m --find-goodput --duration 1");
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("give --slo-ms"), "{}", run.stderr);
}

#[test]
fn a_ramp_and_counts_per_minute_say_how_many_requests_there_are() {
    let server = Server::start(|_| good(1));
    let run = server.loadgen("--model m --ramp 0:200:2 --arrival uniform");
    assert_eq!((run.code, run.count("offered")), (Some(0), 200), "{}", run.stderr);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counts.csv");
    std::fs::write(&file, "HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,m,http,60,40\no,a,n,http,20,30\n")
        .unwrap();
    let flags = format!("--models m,n --arrival minutes:{} --time-scale 60 --duration 2", file.display());
    let run = server.loadgen(&flags);
    assert_eq!((run.code, run.count("offered")), (Some(0), 150), "{}", run.stderr);
    assert_eq!(run.json()["models"][1]["offered"], 50);
}
