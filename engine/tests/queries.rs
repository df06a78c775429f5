//! Queries as clients meet them: graphs of models that are called as one model, by the `symphony`
//! binary on real sockets. The models really compute, or are emulated where their time matters.

mod harness;

use harness::onnx::{
    FLOAT, INT64, constant, file, graph, node, number_attribute, numbers, numbers_attribute, tensor,
    whole_numbers,
};
use harness::process::{PATIENCE, ServerProcess, request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A served configuration, killed when the test is over.
struct Server {
    address: SocketAddr,
    _process: ServerProcess,
    folder: TempDir,
}

impl Server {
    fn start(folder: TempDir, config: &str) -> Server {
        std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        command.args(["serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]).arg(folder.path());
        let process = ServerProcess::start(&mut command, Stdio::null());
        Server { address: process.address(), _process: process, folder }
    }

    fn call(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, _, body) = request(self.address, (method, path), "", body).unwrap();
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, "")
    }

    fn infer(&self, model: &str, body: &Value) -> (u16, Value) {
        self.call("POST", &format!("/v2/models/{model}/infer"), &body.to_string())
    }

    /// What the index says of a model or query: version, state and reason of each line.
    fn states(&self, name: &str) -> Vec<(String, String, String)> {
        let index = self.call("POST", "/v2/repository/index", "{}").1;
        let lines = index.as_array().unwrap().iter().filter(|line| line["name"] == name);
        let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
        lines.map(|line| (text(line, "version"), text(line, "state"), text(line, "reason"))).collect()
    }

    /// Waits until the index says what `is_so` wants.
    fn wait_for(
        &self,
        name: &str,
        is_so: impl Fn(&[(String, String, String)]) -> bool,
    ) -> Vec<(String, String, String)> {
        let began = Instant::now();
        loop {
            let states = self.states(name);
            if is_so(&states) {
                return states;
            }
            assert!(began.elapsed() < PATIENCE, "{states:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of a sample of `/metrics`, 0 if there is none.
    fn metric(&self, sample: &str) -> f64 {
        let text = self.get("/metrics").1;
        let lines = text.as_str().unwrap().lines();
        lines
            .filter_map(|line| line.strip_prefix(sample)?.trim().parse::<f64>().ok())
            .fold(0.0, |sum, value| sum + value)
    }
}

/// A model of rows of two numbers that finds as many objects in a row as its largest number says:
/// there is room for three, which are 1, 10 and 100 times the row.
fn detector() -> Vec<u8> {
    let largest = [numbers_attribute("axes", &[1]), number_attribute("keepdims", 1)];
    let nodes = [
        node("Unsqueeze", &["x", "axis"], &["one"], &[]),
        node("Mul", &["one", "times"], &["crops"], &[]),
        node("ReduceMax", &["x"], &["largest"], &largest),
        node("Cast", &["largest"], &["found"], &[number_attribute("to", INT64)]),
    ];
    let constants = [whole_numbers("axis", &[1]), numbers("times", &[3, 1], &[1.0, 10.0, 100.0])];
    let outputs = [tensor("crops", FLOAT, &[0, 3, 2]), tensor("found", INT64, &[0, 1])];
    file(&graph(&nodes, &constants, &[tensor("x", FLOAT, &[0, 2])], &outputs))
}

/// A folder with a repository `models` of rows of two numbers: `double`, `next`, `difference` and
/// `detector`.
fn models() -> TempDir {
    let all = tempfile::tempdir().unwrap();
    let x = |name: &str| tensor(name, FLOAT, &[0, 2]);
    let of_one = |kind: &str, value: f32| {
        let nodes = [node(kind, &["x", "c"], &["y"], &[])];
        file(&graph(&nodes, &[constant("c", value)], &[x("x")], &[x("y")]))
    };
    let nodes = [node("Sub", &["left", "right"], &["difference"], &[])];
    let difference = file(&graph(&nodes, &[], &[x("left"), x("right")], &[x("difference")]));
    let models = [
        ("double", of_one("Mul", 2.0)),
        ("next", of_one("Add", 1.0)),
        ("difference", difference),
        ("detector", detector()),
    ];
    for (name, model) in models {
        let folder = all.path().join("models").join(name).join("1");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model.onnx"), model).unwrap();
        let keys = "slo_ms = 20000\nmax_batch = 8\nprofile = { alpha_ms = 1, beta_ms = 1 }\n";
        std::fs::write(folder.parent().unwrap().join("model.toml"), keys).unwrap();
    }
    all
}

/// 2 x - ((2 x) + 1), and 2 x: two stages after the first, of which one waits for the other.
const OF_THREE: &str = r#"
policy = "work-conserving"
[[executors]]
kind = "cpu"
[repository]
path = "models"
control = "explicit"
load = ["*"]
[[queries]]
name = "minus_one"
slo_ms = 20000
inputs = ["image"]
outputs = ["result", "twice"]
stages = [
    { name = "last", model = "difference", inputs = [{ input = "left", tensor = "twice" }, { input = "right", tensor = "more" }], outputs = [{ output = "difference", tensor = "result" }] },
    { model = "double", inputs = [{ input = "x", tensor = "image" }], outputs = [{ output = "y", tensor = "twice" }] },
    { model = "next", version = 1, inputs = [{ input = "x", tensor = "twice" }], outputs = [{ output = "y", tensor = "more" }] },
]
"#;

fn rows(values: &[[f32; 2]]) -> Value {
    let data: Vec<f32> = values.concat();
    json!({ "id": "q", "inputs": [{ "name": "image", "datatype": "FP32", "shape": [values.len(), 2], "data": data }] })
}

#[test]
fn a_query_of_three_models_answers_as_one_model_with_the_times_of_its_stages() {
    let server = Server::start(models(), OF_THREE);
    let (status, answer) = server.infer("minus_one", &rows(&[[1.0, 2.0], [3.0, -4.0], [0.0, 8.0]]));
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["model_name"], &answer["id"]), (&json!("minus_one"), &json!("q")));
    assert_eq!(answer["outputs"][0]["data"], json!([-1.0, -1.0, -1.0, -1.0, -1.0, -1.0]));
    assert_eq!(answer["outputs"][1]["data"], json!([2.0, 4.0, 6.0, -8.0, 0.0, 16.0]));
    assert_eq!(answer["outputs"][1]["shape"], json!([3, 2]));
    let time = |name: &str| answer["parameters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    assert!(time("double.answered_us") <= time("next.queued_us"));
    assert!(time("next.answered_us") <= time("last.queued_us"));
    assert!(time("last.started_us") <= time("last.finished_us"));
    assert_eq!(time("last.answered_us"), time("answered_us"));
    assert_eq!(time("next.batch_size"), 3);
    assert_eq!(answer["parameters"].get("batch_size"), None, "a query has no batch of its own");
}

#[test]
fn a_query_is_described_and_counted_as_a_model() {
    let server = Server::start(models(), OF_THREE);
    let (_, metadata) = server.get("/v2/models/minus_one");
    assert_eq!(metadata["platform"], "ensemble");
    assert_eq!(metadata["inputs"], json!([{ "name": "image", "datatype": "FP32", "shape": [-1, 2] }]));
    assert_eq!(metadata["outputs"][1], json!({ "name": "twice", "datatype": "FP32", "shape": [-1, 2] }));
    let (_, config) = server.get("/v2/models/minus_one/versions/1/config");
    let steps = &config["ensemble_scheduling"]["step"];
    assert_eq!(
        steps[1],
        json!({ "model_name": "next", "model_version": 1, "input_map": { "x": "twice" }, "output_map": { "y": "more" } })
    );
    assert_eq!((&steps[0]["model_version"], config.get("dynamic_batching")), (&json!(-1), None));
    assert_eq!(server.get("/v2/models/minus_one/versions/2").0, 404);
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 200);
    assert_eq!(server.infer("minus_one", &json!({ "inputs": [] })).0, 400);
    let (_, statistics) = server.get("/v2/models/minus_one/stats");
    assert_eq!(statistics["model_stats"][0]["inference_count"], 1);
    let (_, of_member) = server.get("/v2/models/double/stats");
    assert_eq!(of_member["model_stats"][0]["inference_count"], 1);
    let ended = |outcome: &str| {
        server.metric(&format!(
            "symphony_requests_total{{model=\"minus_one\",outcome=\"{outcome}\",version=\"1\"}}"
        ))
    };
    assert_eq!([ended("good"), ended("invalid")], [1.0, 1.0]);
    assert_eq!(server.metric("symphony_requests_in_flight{model=\"minus_one\",version=\"1\"}"), 0.0);
    let (_, seen) = server.get("/dashboard/data?history=1");
    let rows = seen["models"].as_array().unwrap();
    let row = rows.iter().find(|row| row["platform"] == "ensemble").unwrap();
    let asked = row["outcomes"]["good"].as_u64().unwrap();
    assert!(asked > 0 && row["ran"] == asked && row["batches"] == 0, "{row}");
    assert!(rows.iter().any(|row| row["name"] == "double" && row["batches"] == 1), "{rows:?}");
    // What a client asked for is counted once, whatever it took.
    let good = rows.iter().map(|row| row["outcomes"]["good"].as_u64().unwrap());
    assert_eq!(good.sum::<u64>(), asked, "{rows:?}");
    let url = format!("http://{}", server.address);
    let mut top = Command::new(env!("CARGO_BIN_EXE_symphony"));
    let shown = top.args(["top", &url, "--once", "--interval", "0.1"]).output().unwrap();
    let (name, shown) = (row["name"].as_str().unwrap(), String::from_utf8_lossy(&shown.stdout).into_owned());
    assert!(shown.lines().any(|line| line.split_whitespace().any(|word| word == name)), "{shown}");
}

#[test]
fn a_query_is_ready_while_all_of_its_models_are() {
    let server = Server::start(models(), OF_THREE);
    let ready = || server.get("/v2/models/minus_one/ready").0;
    assert_eq!(ready(), 200);
    assert_eq!(server.call("POST", "/v2/repository/models/next/unload", "{}").0, 200);
    assert_eq!(ready(), 400);
    let (status, answer) = server.infer("minus_one", &rows(&[[1.0, 2.0]]));
    assert_eq!(status, 404, "{answer}");
    let why = answer["error"].as_str().unwrap();
    assert!(why.contains("query \"minus_one\" is not ready") && why.contains("model \"next\""), "{why}");
    assert_eq!(server.call("POST", "/v2/repository/models/next/load", "{}").0, 200);
    assert_eq!(ready(), 200);
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 200);
}

/// What a detector finds, doubled each by itself, and the whole plus one where it finds anything.
const OF_FOUND: &str = r#"
policy = "work-conserving"
[[executors]]
kind = "cpu"
[repository]
path = "models"
[[queries]]
name = "objects"
slo_ms = 20000
inputs = ["image"]
outputs = ["found", "scores", "more"]
stages = [
    { model = "detector", inputs = [{ input = "x", tensor = "image" }], outputs = ["crops", "found"] },
    { name = "each", model = "double", fan_out = ["crops"], count = "found", inputs = [{ input = "x", tensor = "crops" }], outputs = [{ output = "y", tensor = "scores" }] },
    { name = "any", model = "next", count = "found", inputs = [{ input = "x", tensor = "image" }], outputs = [{ output = "y", tensor = "more" }] },
]
"#;

#[test]
fn a_stage_runs_for_as_many_items_of_a_row_as_a_tensor_says() {
    let server = Server::start(models(), OF_FOUND);
    let (_, metadata) = server.get("/v2/models/objects");
    assert_eq!(metadata["outputs"][1], json!({ "name": "scores", "datatype": "FP32", "shape": [-1, 3, 2] }));
    let image = [[2.0, 1.0], [-1.0, 0.0], [0.0, 9.0]];
    let (status, answer) = server.infer("objects", &rows(&image));
    assert_eq!(status, 200, "{answer}");
    let data = |output: usize| &answer["outputs"][output]["data"];
    assert_eq!(data(0), &json!([2, 0, 9]));
    let scores =
        [[[4.0, 2.0], [40.0, 20.0], [0.0, 0.0]], [[0.0; 2]; 3], [[0.0, 18.0], [0.0, 180.0], [0.0, 1800.0]]];
    assert_eq!(data(1), &json!(scores.as_flattened().as_flattened()));
    assert_eq!(data(2), &json!([3.0, 2.0, 0.0, 0.0, 1.0, 10.0]));
    assert_eq!(server.metric("symphony_model_rows_total{model=\"double\",version=\"1\"}"), 5.0);
    assert_eq!(server.metric("symphony_model_rows_total{model=\"next\",version=\"1\"}"), 2.0);
    // Where nothing is found no other stage runs, nor has times.
    let (status, answer) = server.infer("objects", &rows(&[[-1.0, 0.5]]));
    assert_eq!((status, &answer["outputs"][1]["data"]), (200, &json!([0.0, 0.0, 0.0, 0.0, 0.0, 0.0])));
    let parameters = answer["parameters"].as_object().unwrap();
    assert!(parameters.contains_key("detector.queued_us") && !parameters.contains_key("each.queued_us"));
    assert_eq!(server.metric("symphony_model_rows_total{model=\"double\",version=\"1\"}"), 5.0);
}

/// Two emulated stages of which the second takes 300 ms and serves one request at a time.
const SLOW: &str = r#"
policy = "work-conserving"
[[executors]]
kind = "emulated"
count = 2
[[models]]
name = "quick"
executor = "emulated"
slo_ms = 1
profile = { alpha_ms = 0.1, beta_ms = 0.1 }
inputs = [{ name = "x", datatype = "FP32", shape = [4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [4] }]
[[models]]
name = "slow"
executor = "emulated"
slo_ms = 20000
max_batch = 1
profile = { alpha_ms = 300, beta_ms = 0 }
inputs = [{ name = "x", datatype = "FP32", shape = [4] }]
outputs = [{ name = "y", datatype = "FP32", shape = [4] }]
[[queries]]
name = "chain"
slo_ms = 20000
inputs = ["x"]
outputs = ["z"]
stages = [
    { model = "quick", inputs = ["x"], outputs = ["y"] },
    { model = "slow", inputs = [{ input = "x", tensor = "y" }], outputs = [{ output = "y", tensor = "z" }] },
]
"#;

#[test]
fn the_deadline_of_a_stage_follows_from_the_querys_and_not_from_its_model() {
    let server = Server::start(tempfile::tempdir().unwrap(), SLOW);
    let body = |timeout_us: u64| {
        json!({ "parameters": { "timeout": timeout_us },
                "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4] }] })
    };
    // The SLO of the first model alone, 1 ms, would be kept by few requests of a busy machine.
    for _ in 0..5 {
        let (status, answer) = server.infer("chain", &body(20_000_000));
        assert_eq!(status, 200, "{answer}");
    }
    // Once less is left than the second stage takes at least, the first one is not begun.
    let ran = server.metric("symphony_model_rows_total{model=\"slow\",version=\"1\"}");
    let (status, answer) = server.infer("chain", &body(250_000));
    assert_eq!(status, 504, "{answer}");
    let why = answer["error"].as_str().unwrap();
    assert!(why.starts_with("stage \"quick\": dropped"), "{why}");
    assert_eq!(server.metric("symphony_model_rows_total{model=\"slow\",version=\"1\"}"), ran);
    let dropped = "symphony_requests_total{model=\"chain\",outcome=\"dropped\",version=\"1\"}";
    assert_eq!(server.metric(dropped), 1.0);
}

/// `minus_one` as an ensemble of the repository; `dims` are those that it declares for its result.
fn ensemble(dims: usize) -> String {
    format!(
        r#"
platform: "ensemble"
input {{ name: "image" data_type: TYPE_FP32 dims: [ 2 ] }}
output {{ name: "result" data_type: TYPE_FP32 dims: [ {dims} ] }}
parameters {{ key: "slo_ms" value: {{ string_value: "20000" }} }}
ensemble_scheduling {{
  step {{ model_name: "double" input_map {{ key: "x" value: "image" }} output_map {{ key: "y" value: "twice" }} }}
  step {{ model_name: "next" input_map {{ key: "x" value: "twice" }} output_map {{ key: "y" value: "more" }} }}
  step {{
    model_name: "difference"
    input_map [ {{ key: "left" value: "twice" }}, {{ key: "right" value: "more" }} ]
    output_map {{ key: "difference" value: "result" }}
  }}
}}
"#
    )
}

#[test]
fn an_ensemble_of_the_repository_is_a_query() {
    const CONFIG: &str = "policy = \"work-conserving\"\n[[executors]]\nkind = \"cpu\"\n[repository]\npath = \"models\"\ncontrol = \"explicit\"\nload = [\"*\"]\n";
    let folder = models();
    for (name, dims) in [("minus_one", 2), ("wrong", 3)] {
        let folder = folder.path().join("models").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.pbtxt"), ensemble(dims)).unwrap();
    }
    let server = Server::start(folder, CONFIG);
    let (status, answer) = server.infer("minus_one", &rows(&[[1.0, 2.0], [3.0, -4.0]]));
    assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([-1.0, -1.0, -1.0, -1.0])), "{answer}");
    assert!(answer["parameters"]["next.answered_us"].is_u64(), "{answer}");
    assert_eq!(server.get("/v2/models/minus_one").1["platform"], json!("ensemble"));
    // What it declares must be what its models have.
    let (status, answer) = server.infer("wrong", &rows(&[[1.0, 2.0]]));
    let error = answer["error"].as_str().unwrap();
    assert!(
        status == 404 && error.contains("config.pbtxt:4") && error.contains("result"),
        "{status} {error}"
    );
    assert!(server.states("wrong")[0].2.contains("config.pbtxt:4"));
    // Models come and go, and an ensemble with them.
    assert_eq!(server.states("minus_one"), [state("1", "READY", "")]);
    assert_eq!(server.call("POST", "/v2/repository/models/next/unload", "{}").0, 200);
    assert_eq!(server.get("/v2/models/minus_one/ready").0, 400);
    let (version, state, reason) = server.states("minus_one").remove(0);
    assert_eq!((&*version, &*state), ("1", "UNAVAILABLE"));
    assert!(reason.contains("the model \"next\" of stage \"next\" is not served"), "{reason}");
    assert_eq!(server.call("POST", "/v2/repository/models/next/load", "{}").0, 200);
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 200);
}

#[test]
fn the_example_names_the_shape_in_each_quarter_of_a_sheet() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(examples.join("queries/quarters.onnx"), folder.path().join("quarters.onnx")).unwrap();
    let config = std::fs::read_to_string(examples.join("queries/symphony.toml")).unwrap();
    let shapes = examples.join("quickstart/shapes.onnx");
    // Times that any machine keeps. They are not measured, as the largest batch depends on them.
    let config = config
        .replace("../quickstart/shapes.onnx", shapes.to_str().unwrap())
        .replace("slo_ms = 50.0", "slo_ms = 20000.0\nprofile = { alpha_ms = 1.0, beta_ms = 1.0 }")
        .replace("slo_ms = 100.0", "slo_ms = 20000.0");
    let server = Server::start(folder, &config);
    let sample = std::fs::read_to_string(examples.join("queries/samples/sheet.json")).unwrap();
    let (status, answer) = server.call("POST", "/v2/models/sheet/infer", &sample);
    assert_eq!((status, &answer["outputs"][0]["shape"]), (200, &json!([1, 4, 10])), "{answer}");
    let labels = std::fs::read_to_string(examples.join("quickstart/shapes.labels.txt")).unwrap();
    let labels: Vec<&str> = labels.lines().collect();
    let scores = answer["outputs"][0]["data"].as_array().unwrap();
    let scores: Vec<f64> = scores.iter().map(|score| score.as_f64().unwrap()).collect();
    let largest = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
    let named: Vec<&str> = scores.chunks(10).map(|row| labels[largest(row)]).collect();
    assert_eq!(named, ["star", "heart", "heart", "star"]);
    assert_eq!(answer["parameters"]["shapes.batch_size"], 4);
}

#[test]
fn check_compares_queries_and_ensembles_with_their_models() {
    let check = |config: &str, of_ensemble: &str| {
        let folder = models();
        write_ensemble(folder.path(), of_ensemble);
        std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        let output = command.arg("check").arg(folder.path()).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let config = OF_FOUND.replace("path = \"models\"", "path = \"models\"\ncontrol = \"explicit\"");
    let (code, text) = check(&config, &ensemble(2));
    assert!(
        code == Some(0) && text.contains("symphony.toml: ok; 4 models, 2 queries, 1 executors"),
        "{text}"
    );
    let wrong_inputs =
        config.replace("input = \"x\", tensor = \"crops\"", "input = \"data\", tensor = \"crops\"");
    let items = config.replace("fan_out = [\"crops\"], ", "");
    let counted = config
        .replace("fan_out = [\"crops\"], count = \"found\"", "fan_out = [\"crops\"], count = \"crops\"");
    for (config, of_ensemble, error) in [
        (
            &config,
            ensemble(3),
            "config.pbtxt:4: output: output \"result\" has not the dims [3]; the model says [2] for one request",
        ),
        (
            &config,
            ensemble(2).replace("\"next\" input", "\"none\" input"),
            "config.pbtxt:8: step: the model \"none\" of stage \"none\" is not served",
        ),
        (
            &config,
            ensemble(2).replace("key: \"left\"", "key: \"first\""),
            "config.pbtxt:9: step: the model \"difference\" of stage \"difference\" has no input \"first\"; its inputs are [\"left\", \"right\"]",
        ),
        (
            &wrong_inputs,
            ensemble(2),
            "queries[0].stages[1].model: the model \"double\" of stage \"each\" has no input \"data\"; its inputs are [\"x\"]",
        ),
        (
            &items,
            ensemble(2),
            "queries[0].stages[1].model: input \"x\" of stage \"each\" takes a tensor FP32 of shape [3, 2] a row; its model \"double\" takes FP32 of shape [2]",
        ),
        (
            &counted,
            ensemble(2),
            "queries[0].stages[1].model: stage \"each\" counts its items by a tensor FP32 of shape [3, 2] a row; it must be one whole number or BOOL",
        ),
    ] {
        let (code, text) = check(config, &of_ensemble);
        assert!(code == Some(2) && text.contains(error), "{text}, not {error}");
    }
}

fn state(version: &str, state: &str, reason: &str) -> (String, String, String) {
    (version.to_owned(), state.to_owned(), reason.to_owned())
}

/// Writes an ensemble `minus_one` into the repository of a folder.
fn write_ensemble(folder: &Path, config: &str) {
    let folder = folder.join("models/minus_one");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.pbtxt"), config).unwrap();
}

/// An ensemble of the name of [`ensemble`]'s that gives twice its input.
const DOUBLE: &str = r#"
platform: "ensemble"
input { name: "image" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "result" data_type: TYPE_FP32 dims: [ 2 ] }
parameters { key: "slo_ms" value: { string_value: "20000" } }
ensemble_scheduling {
  step { model_name: "double" input_map { key: "x" value: "image" } output_map { key: "y" value: "result" } }
}
"#;

#[test]
fn an_ensemble_is_loaded_with_its_models_and_unloaded_with_them_or_alone() {
    let folder = models();
    write_ensemble(folder.path(), &ensemble(2));
    let config = OF_THREE.split("load =").next().unwrap();
    let server = Server::start(folder, config);
    let order = |path: &str, body: &str| {
        let (status, answer) = server.call("POST", &format!("/v2/repository/models/{path}"), body);
        (status, answer["error"].as_str().unwrap_or_default().to_owned())
    };
    let good = (200, String::new());
    assert_eq!(server.states("minus_one"), [state("", "UNAVAILABLE", "not loaded")]);
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 404);
    assert_eq!(order("minus_one/load", "{}"), good);
    let (_, answer) = server.infer("minus_one", &rows(&[[1.0, 2.0]]));
    assert_eq!(answer["outputs"][0]["data"], json!([-1.0, -1.0]), "{answer}");
    assert_eq!(server.states("minus_one"), [state("1", "READY", "")]);
    assert_eq!(server.states("double"), [state("1", "READY", "")]);
    // Alone, its models stay; then they go too, but for those that were not its own.
    assert_eq!(order("minus_one/unload", "{}"), good);
    assert_eq!(order("minus_one/unload", "{}").0, 404);
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 404);
    assert_eq!(server.states("double"), [state("1", "READY", "")]);
    assert_eq!(order("detector/load", "{}"), good);
    assert_eq!(order("minus_one/load", "{}"), good);
    assert_eq!(
        order("minus_one/unload", r#"{ "parameters": { "unload_dependents": 1 } }"#),
        (400, "parameter \"unload_dependents\" must be true or false".to_owned())
    );
    assert_eq!(order("minus_one/unload", r#"{ "parameters": { "unload_dependents": true } }"#), good);
    let serves = |name: &str| server.get(&format!("/v2/models/{name}/ready")).0 == 200;
    assert_eq!(["double", "next", "difference", "detector"].map(serves), [false, false, false, true]);
    // A file that is wrong changes nothing, nor a model that is missing, and both are named.
    write_ensemble(server.folder.path(), &ensemble(2).replace("\"next\" input_map", "\"none\" input_map"));
    let (status, error) = order("minus_one/load", "{}");
    assert!(status == 400 && error.contains("config.pbtxt:8: step: the model \"none\""), "{error}");
    assert!(!serves("double"), "it was loaded for nothing");
    write_ensemble(server.folder.path(), &ensemble(2).replace("step {", "step { model_version: 0"));
    let (status, error) = order("minus_one/load", "{}");
    assert!(status == 400 && error.contains("config.pbtxt:7: model_version: is 0"), "{error}");
    let lines = server.states("minus_one");
    assert!(
        lines.len() == 1 && lines[0].1 == "UNAVAILABLE" && lines[0].2.contains("model_version"),
        "{lines:?}"
    );
}

#[test]
fn an_ensemble_is_replaced_and_unloaded_under_requests_none_of_which_fails() {
    let folder = models();
    write_ensemble(folder.path(), &ensemble(2));
    let server = Server::start(folder, &OF_THREE.replace("minus_one", "of_config"));
    let (stop, address) = (AtomicBool::new(false), server.address);
    let ask = |values: &[f32; 2]| {
        let body = rows(&[*values]).to_string();
        let (status, _, body) = request(address, ("POST", "/v2/models/minus_one/infer"), "", &body).unwrap();
        (status, serde_json::from_str::<Value>(&body).unwrap())
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut twice = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let (status, answer) = ask(&[3.0, 4.0]);
                        let result = &answer["outputs"][0]["data"];
                        assert_eq!(status, 200, "{answer}");
                        twice += usize::from(*result == json!([6.0, 8.0]));
                        assert!([json!([6.0, 8.0]), json!([-1.0, -1.0])].contains(result), "{answer}");
                    }
                    twice
                })
            })
            .collect();
        for config in [DOUBLE, &ensemble(2), &ensemble(3), DOUBLE] {
            write_ensemble(server.folder.path(), config);
            let (status, answer) = server.call("POST", "/v2/repository/models/minus_one/load", "{}");
            assert_eq!(status, if *config == *ensemble(3) { 400 } else { 200 }, "{answer}");
            let (_, answer) = ask(&[3.0, 4.0]);
            let expected = if config == DOUBLE { [6.0, 8.0] } else { [-1.0, -1.0] };
            assert_eq!(answer["outputs"][0]["data"], json!(expected));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>() > 0);
    });
    // One that has been replaced often has its counts alone, and one that was unloaded none.
    let sample = "symphony_requests_total{model=\"minus_one\",outcome=\"good\",version=\"1\"}";
    assert!(server.metric(sample) >= 1.0);
    assert_eq!(server.metric("symphony_requests_in_flight{model=\"minus_one\",version=\"1\"}"), 0.0);
    assert_eq!(server.call("POST", "/v2/repository/models/minus_one/unload", "{}").0, 200);
    assert_eq!(server.metric(sample), 0.0);
    assert_eq!(server.infer("of_config", &rows(&[[1.0, 2.0]])).0, 200, "CONFIG's own stays");
    assert_eq!(server.call("POST", "/v2/repository/models/of_config/unload", "{}").0, 400);
    assert_eq!(server.states("of_config"), [state("1", "READY", "")]);
}

#[test]
fn ensembles_that_appear_change_and_go_in_a_polled_folder_are_followed() {
    let folder = models();
    let moved = folder.path().join("next");
    std::fs::rename(folder.path().join("models/next"), &moved).unwrap();
    let config = "policy = \"work-conserving\"\n[[executors]]\nkind = \"cpu\"\n[repository]\npath = \"models\"\ncontrol = \"poll\"\npoll_seconds = 1\n";
    let server = Server::start(folder, config);
    let result = || server.infer("minus_one", &rows(&[[3.0, 4.0]])).1["outputs"][0]["data"].clone();
    // Its model `next` is missing at first.
    write_ensemble(server.folder.path(), &ensemble(2));
    let states = server.wait_for("minus_one", |states| {
        states.first().is_some_and(|of| of.2.contains("is not served")) && states[0].2.contains("\"next\"")
    });
    assert_eq!(states[0].1, "UNAVAILABLE");
    std::fs::rename(&moved, server.folder.path().join("models/next")).unwrap();
    server.wait_for("minus_one", |states| states.len() == 1 && states[0].1 == "READY");
    assert_eq!(result(), json!([-1.0, -1.0]));
    write_ensemble(server.folder.path(), DOUBLE);
    let began = Instant::now();
    while result() != json!([6.0, 8.0]) {
        assert!(began.elapsed() < PATIENCE, "the changed one is not served");
        assert!([json!([6.0, 8.0]), json!([-1.0, -1.0])].contains(&result()), "it is always served");
    }
    std::fs::remove_dir_all(server.folder.path().join("models/minus_one")).unwrap();
    server.wait_for("minus_one", |states| states.is_empty());
    assert_eq!(server.infer("minus_one", &rows(&[[1.0, 2.0]])).0, 404);
}
