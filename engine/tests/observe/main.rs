//! What the `symphony` binary lets be seen while it serves: on real threads and sockets, with two
//! API cores.

mod exposition;
#[path = "../harness/mod.rs"]
mod harness;
mod top;
mod traces;

use exposition::Exposition;
use harness::process::{PATIENCE, ServerProcess, request, wait_until};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// SLOs that any machine keeps, and two API cores.
const CONFIG: &str = r#"
policy = "work-conserving"
thread_timeout_s = 600
[cores]
api = [0, 0]
[[executors]]
kind = "emulated"
count = 2
[[models]]
name = "fast"
executor = "emulated"
slo_ms = 20000
max_batch = 8
profile = { alpha_ms = 0.5, beta_ms = 1 }
[[models]]
name = "idle"
executor = "emulated"
slo_ms = 20000
max_batch = 8
profile = { alpha_ms = 0.5, beta_ms = 1 }
"#;

/// A server, killed when the test is over.
struct Server {
    process: ServerProcess,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(config: &str) -> Server {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
        Server::start_in(folder, &[], Stdio::null())
    }

    /// Serves the configuration in `folder` with these options; what it logs goes to `log`.
    fn start_in(folder: tempfile::TempDir, options: &[&str], log: Stdio) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        command.args(["serve", "--http", "127.0.0.1:0"]).args(options).arg(folder.path());
        let process = ServerProcess::start(&mut command, log);
        Server { address: process.address(), process, folder }
    }

    /// One request on a connection of its own, so that any of the API cores may get it: status and
    /// body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (status, _, body) = request(self.address, (method, path), "", body).unwrap();
        (status, body)
    }

    fn infer(&self, model: &str) -> u16 {
        let body = r#"{"inputs":[{"name":"input","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;
        self.ask("POST", &format!("/v2/models/{model}/infer"), body).0
    }

    fn metrics(&self) -> Exposition {
        let (status, text) = self.ask("GET", "/metrics", "");
        assert_eq!(status, 200, "{text}");
        Exposition::read(&text)
    }
}

#[test]
fn whichever_core_answers_the_metrics_are_of_all() {
    let server = Server::start(CONFIG);
    for _ in 0..40 {
        assert_eq!(server.infer("fast"), 200);
    }
    assert_eq!(server.ask("POST", "/v2/models/fast/infer", "{}").0, 400);
    let fast = [("model", "fast"), ("version", "1")];
    for _ in 0..12 {
        let metrics = server.metrics();
        let outcome = |of| {
            metrics.get("symphony_requests_total", &[("model", "fast"), ("outcome", of), ("version", "1")])
        };
        assert_eq!(
            (outcome("good"), outcome("invalid"), outcome("late")),
            (Some(40.0), Some(1.0), Some(0.0))
        );
        assert_eq!(metrics.get("symphony_request_latency_seconds_count", &fast), Some(40.0));
        assert_eq!(metrics.get("symphony_requests_in_flight", &fast), Some(0.0));
        assert_eq!(metrics.get("symphony_requests_in_flight", &[("model", "idle"), ("version", "1")]), None);
        assert_eq!(metrics.get("symphony_http_responses_total", &[("code", "400")]), Some(1.0));
    }
}

#[test]
fn stages_batches_gpus_and_triton_s_names_agree_with_each_other() {
    let server = Server::start(CONFIG);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(server.infer("fast"), 200)));
        }
    });
    let metrics = server.metrics();
    let fast = [("model", "fast"), ("version", "1")];
    let get = |name: &str, labels: &[(&str, &str)]| {
        metrics.get(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
    };
    let whole = get("symphony_request_latency_seconds_sum", &fast);
    let stages = metrics.sum("symphony_request_stage_seconds_sum");
    assert!((whole - stages).abs() < 1e-6, "{whole} and {stages}");
    // A batch of one takes 1.5 ms, a larger one longer. Emulated durations are exact to the
    // nanosecond, sums of seconds to a rounding error.
    let rounding = 1e-9;
    assert!(
        get("symphony_request_stage_seconds_sum", &[("model", "fast"), ("stage", "run"), ("version", "1")])
            >= 40.0 * 1.5e-3 - rounding
    );
    assert_eq!(get("symphony_batch_size_sum", &fast), 40.0);
    let batches = get("symphony_model_batches_total", &fast);
    assert_eq!(get("symphony_batch_size_count", &fast), batches);
    assert_eq!(metrics.sum("symphony_gpu_batches_total"), batches);
    let busy = get("symphony_model_gpu_busy_seconds_total", &fast);
    assert!(busy >= 0.5e-3 * 40.0 + 1e-3 * batches - rounding, "{busy} s for {batches} batches");
    assert!((metrics.sum("symphony_gpu_busy_seconds_total") - busy).abs() < rounding);
    assert!((get("symphony_gpus_busy_seconds_total", &[]) - busy).abs() < rounding);
    assert_eq!(get("nv_inference_request_success", &fast), 40.0);
    assert_eq!(get("nv_inference_count", &fast), 40.0);
    assert_eq!(get("nv_inference_exec_count", &fast), batches);
    let durations: f64 = ["queue", "compute_input", "compute_infer", "compute_output"]
        .iter()
        .map(|stage| get(&format!("nv_inference_{stage}_duration_us"), &fast))
        .sum();
    // Each of five sums is cut to whole microseconds.
    assert!((get("nv_inference_request_duration_us", &fast) - durations).abs() <= 5.0);
    assert_eq!(metrics.sum("nv_inference_request_failure"), 0.0);
    wait_until("somebody has looked at the GPUs", || {
        (0..2).all(|gpu| {
            let share = server.metrics().get("nv_gpu_utilization", &[("gpu_uuid", &gpu.to_string())]);
            share.is_some_and(|share| (0.0..=1.0).contains(&share))
        })
    });
}

#[test]
fn the_dashboard_is_there_and_its_numbers_are_those_of_the_metrics() {
    let server = Server::start(CONFIG);
    for (path, kind) in [
        ("/dashboard", "text/html"),
        ("/dashboard/dashboard.js", "text/javascript"),
        ("/dashboard/dashboard.css", "text/css"),
        ("/dashboard/data", "application/json"),
    ] {
        let (_, head, body) = request(server.address, ("GET", path), "", "").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        assert!(head.contains(&format!("content-type: {kind}")), "{path}: {head}");
        assert!(head.contains("content-security-policy: default-src 'none'"), "{path}: {head}");
        assert!(!body.is_empty());
        // An SVG's namespace is a name, and nothing is fetched from there.
        let elsewhere = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("http:") && !elsewhere.contains("https:"), "{path} names another place");
    }
    let (status, error) = server.ask("GET", "/dashboard/data?since=x", "");
    assert!(status == 400 && error.contains("since must be"), "{error}");
    assert_eq!(server.ask("GET", "/dashboard/nothing", "").0, 404);
    let began = Instant::now();
    (0..20).for_each(|_| assert_eq!(server.infer("fast"), 200));
    let data = |query: &str| -> Value {
        let (status, body) = server.ask("GET", &format!("/dashboard/data?{query}"), "");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    };
    let seen = data("model=0");
    let fast = &seen["models"][0];
    assert_eq!(
        (&fast["name"], &fast["outcomes"]["good"], &fast["rows"]),
        (&json!("fast"), &json!(20), &json!(20))
    );
    assert_eq!(seen["models"].as_array().unwrap().len(), 1, "the other was never asked for");
    let sum = |numbers: &Value| numbers.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum(&fast["of_slo"]), fast["ran"].as_u64()), (20, Some(20)));
    assert_eq!(Some(sum(&fast["sizes"])), fast["batches"].as_u64());
    assert_eq!(
        (&seen["profile"]["model"], &seen["profile"]["latency_us"]),
        (&json!(0), &json!([1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000]))
    );
    let mut drift = 0.0;
    wait_until("enough batches of one request say how true the profile is", || {
        drift = data("")["models"][0]["drift"].as_f64().unwrap_or_default();
        drift > 0.0
    });
    // An emulated batch takes no less than its profile says.
    assert!(drift >= 1.0, "{drift}");
    let rolling = data("model=0")["profile"]["rolling_us"].as_array().map(Vec::len);
    assert_eq!(rolling, Some(8));
    assert!(
        server.metrics().get("symphony_model_profile_drift", &[("model", "fast"), ("version", "1")])
            >= Some(1.0)
    );
    let batches = seen["batches"]["list"].as_array().unwrap();
    let (listed, ran) = (batches.len() as u64, fast["batches"].as_u64().unwrap());
    // Those of the last six seconds are listed: all, unless the machine took longer.
    assert!(listed == ran || (listed < ran && began.elapsed() > Duration::from_secs(5)), "{listed} of {ran}");
    assert!(batches.iter().all(|batch| batch[3].as_u64() >= batch[2].as_u64().map(|start| start + 1_500)));
    let cursor = seen["batches"]["cursor"].as_str().unwrap();
    assert_eq!(data(&format!("since={cursor}"))["batches"]["list"], json!([]));
    wait_until("there is a past, and advice from it", || {
        let seen = data("history=1");
        let good = &seen["history"]["models"][0]["good"];
        good.as_array().is_some_and(|good| good.last() == Some(&json!(20)))
            && seen["gpus"]["advised"] == json!(1)
    });
}

#[test]
fn log_lines_are_json_where_that_is_asked_for_and_failures_show_at_level_debug() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("symphony.toml"), format!("{CONFIG}[log]\nlevel = \"debug\"\n"))
        .unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let server = Server::start_in(folder, &["--log-format", "json"], log.into());
    assert_eq!(server.ask("POST", "/v2/models/fast/infer", "{}").0, 400);
    let text = || std::fs::read_to_string(server.folder.path().join("log")).unwrap();
    wait_until("the failure is logged", || text().contains("\"outcome\":\"invalid\""));
    let lines: Vec<Value> = text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().all(|line| line["timestamp"].is_string() && line["message"].is_string()),
        "{lines:?}"
    );
    let model = lines.iter().find(|line| line["model"] == "idle").expect("start-up tells of the models");
    assert_eq!((&model["level"], &model["slo_ms"]), (&json!("INFO"), &json!(20_000.0)));
    let failure = lines.iter().find(|line| line["outcome"] == "invalid").unwrap();
    assert_eq!((&failure["level"], &failure["model"]), (&json!("DEBUG"), &json!("fast")));
}

#[test]
fn a_server_that_can_serve_is_ready_and_says_so_everywhere() {
    let server = Server::start(CONFIG);
    let ready = |path| {
        let (status, body) = server.ask("GET", path, "");
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    assert_eq!(ready("/v2/health/ready"), (200, json!({ "ready": true })));
    assert_eq!(ready("/v2/models/fast/ready"), (200, json!({ "name": "fast", "ready": true })));
    assert_eq!(server.metrics().get("symphony_ready", &[]), Some(1.0));
}
