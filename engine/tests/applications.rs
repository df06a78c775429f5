//! A model whose requests are of two applications, over real sockets: a network that leaves out
//! layers, so that a request takes as long as it asks for.

mod harness;

use harness::process::{ServerProcess, request};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data/early_exit.onnx");

/// The elements of a row, which each layer moves on by one.
const WIDTH: usize = 64;

/// The layers of a long request: tens of milliseconds, where one without layers takes none.
const MANY: usize = 10_000;

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tokens of a client of each application, and of one that reads metrics.
const TOKENS: [(&str, &str, &str); 3] = [
    ("of-none", "token-of-clients-of-none", ""),
    ("of-summaries", "token-of-summaries", "application = \"summary\"\n"),
    ("prometheus", "token-of-prometheus", "role = \"metrics\"\n"),
];

const APPLICATIONS: &str = "applications = [{ name = \"chat\" }, { name = \"summary\", scale = 2 }]\n";

/// Writes CONFIG and the tokens; the model has these further keys.
fn write_config(folder: &Path, keys: &str) {
    write_config_by(folder, "", keys);
}

/// Writes them with these first lines of CONFIG.
fn write_config_by(folder: &Path, first: &str, keys: &str) {
    let config = format!(
        "{first}learned_profiles = \"learned.json\"\n[[executors]]\nkind = \"cpu\"\n[[models]]\nname = \"exits\"\nfile = \"{FIXTURE}\"\nslo_ms = 60000\n\
         max_batch = 4\n{keys}"
    );
    std::fs::write(folder.join("symphony.toml"), config).unwrap();
    let mut tokens = String::new();
    for (name, token, more) in TOKENS {
        write!(tokens, "[[tokens]]\nname = \"{name}\"\ntoken = \"{token}\"\n{more}").unwrap();
    }
    std::fs::write(folder.join("tokens.toml"), tokens).unwrap();
}

fn serve(folder: &Path) -> ServerProcess {
    serve_by(folder, "")
}

/// Serves with these first lines of CONFIG.
fn serve_by(folder: &Path, first: &str) -> ServerProcess {
    write_config_by(folder, first, &format!("{APPLICATIONS}profile = {{ alpha_ms = 2, beta_ms = 2 }}\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0", "--tokens"]).arg(folder.join("tokens.toml"));
    ServerProcess::start(command.arg(folder), Stdio::inherit())
}

/// A request for a number of layers, by the client with the token of this name.
struct Exits<'a> {
    server: &'a ServerProcess,
    client: &'a str,
    headers: &'a str,
    parameters: Value,
}

impl Exits<'_> {
    /// Sends it; returns its status and its answer.
    fn send(&self, layers: usize) -> (u16, Value) {
        let row: Vec<usize> = (0..WIDTH).collect();
        let body = json!({
            "parameters": self.parameters,
            "inputs": [
                { "name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": row },
                { "name": "depth", "datatype": "INT64", "shape": [1], "data": [layers] },
            ],
        });
        let (_, token, _) = TOKENS.iter().find(|(name, ..)| *name == self.client).unwrap();
        let headers = format!("Authorization: Bearer {token}\r\n{}", self.headers);
        let call = ("POST", "/v2/models/exits/infer");
        let (status, _, answer) = request(self.server.address(), call, &headers, &body.to_string()).unwrap();
        (status, serde_json::from_str(&answer).unwrap())
    }

    /// Sends it, and checks the answer.
    fn pass(&self, layers: usize) {
        let (status, answer) = self.send(layers);
        assert_eq!(status, 200, "{answer}");
        let expected: Vec<usize> = (0..WIDTH).map(|at| (at + WIDTH - layers % WIDTH) % WIDTH).collect();
        let values: Vec<f64> = expected.into_iter().map(|value| value as f64).collect();
        assert_eq!(answer["outputs"][0]["data"], json!(values));
    }
}

/// Returns the value of a metric of an application, with these other labels.
fn metric(server: &ServerProcess, name: &str, application: &str, labels: &[&str]) -> Option<f64> {
    let headers = "Authorization: Bearer token-of-prometheus\r\n";
    let (_, _, metrics) = request(server.address(), ("GET", "/metrics"), headers, "").unwrap();
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
    let has = |line: &&str| {
        let label = format!("application=\"{application}\"");
        labels.iter().chain(&[&*label]).all(|label| line.contains(label))
    };
    metrics.lines().filter(of_name).find(has).and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

#[test]
fn a_request_is_of_the_application_that_it_names_or_its_token_or_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = serve(folder.path());
    let of = |client, headers, parameters| Exits { server: &server, client, headers, parameters };
    let none = || json!({});
    of("of-none", "", none()).pass(1);
    of("of-none", "", json!({ "application": "summary" })).pass(2);
    of("of-none", "X-Application: summary\r\n", none()).pass(3);
    of("of-none", "X-Application: summary\r\n", json!({ "application": "chat" })).pass(4);
    of("of-summaries", "", none()).pass(5);
    of("of-summaries", "", json!({ "application": "chat" })).pass(6);
    let rows = |application| metric(&server, "symphony_model_rows_total", application, &[]);
    assert_eq!((rows("chat"), rows("summary")), (Some(3.0), Some(3.0)));
    let (status, answer) = of("of-none", "", json!({ "application": "poem" })).send(1);
    assert_eq!(status, 400);
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("no application \"poem\"; it has [\"chat\", \"summary\"]"), "{error}");
    let headers = "Authorization: Bearer token-of-clients-of-none\r\n";
    let (_, _, config) = request(server.address(), ("GET", "/v2/models/exits/config"), headers, "").unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["parameters"]["applications"]["string_value"], "chat,summary");
    // Clients see one model.
    let (_, _, statistics) =
        request(server.address(), ("GET", "/v2/models/exits/stats"), headers, "").unwrap();
    let statistics: Value = serde_json::from_str(&statistics).unwrap();
    assert_eq!(statistics["model_stats"].as_array().unwrap().len(), 1);
    assert_eq!(statistics["model_stats"][0]["inference_count"], 6);
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn each_application_has_a_profile_that_follows_its_own_batches() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = serve(folder.path());
    let of = |application: &str| Exits {
        server: &server,
        client: "of-none",
        headers: "",
        parameters: json!({ "application": application }),
    };
    let (chat, summary, began) = (of("chat"), of("summary"), Instant::now());
    let drift = |application| metric(&server, "symphony_model_profile_drift", application, &[]);
    while drift("summary").is_none_or(|drift| drift < 2.0) {
        assert!(began.elapsed() < PATIENCE, "{:?}", drift("summary"));
        chat.pass(0);
        summary.pass(MANY);
    }
    let chat = drift("chat");
    assert!(chat.is_none_or(|chat| chat < 2.0), "{chat:?}: the long requests are none of its own");
    assert_eq!(server.interrupt(), Some(0));
    // The next server begins with that. Metrics have the models that were asked for: once here, of
    // which nothing can be learnt.
    let (again, began) = (serve(folder.path()), Instant::now());
    Exits { server: &again, client: "of-summaries", headers: "", parameters: json!({}) }.pass(0);
    while metric(&again, "symphony_model_profile_drift", "summary", &[]).is_none_or(|drift| drift < 1.9) {
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn orloj_serves_all_applications_as_one_model_whose_requests_differ() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = serve_by(folder.path(), "policy = \"orloj\"\n");
    let of = |application: &str| Exits {
        server: &server,
        client: "of-none",
        headers: "",
        parameters: json!({ "application": application }),
    };
    std::thread::scope(|scope| {
        for (application, layers) in [("chat", 0), ("summary", MANY), ("chat", 1)] {
            let requests = of(application);
            scope.spawn(move || (0..20).for_each(|_| requests.pass(layers)));
        }
    });
    let rows = |application| metric(&server, "symphony_model_rows_total", application, &[]);
    assert_eq!((rows("chat"), rows("summary")), (Some(40.0), Some(20.0)));
    // It is shown once a second.
    let (began, median) = (Instant::now(), |server: &ServerProcess, application| {
        metric(server, "symphony_application_run_time_seconds", application, &["quantile=\"0.5\""])
    });
    while median(&server, "summary").is_none() {
        assert!(began.elapsed() < PATIENCE);
    }
    assert_eq!(server.interrupt(), Some(0));
    let learned = std::fs::read_to_string(folder.path().join("learned.json")).unwrap();
    let learned: Value = serde_json::from_str(&learned).unwrap();
    let of_models = learned["models"].as_array().unwrap();
    assert_eq!(of_models.len(), 2, "{learned}");
    let parts = |of: &Value| of["run_times"]["parts"].as_array().unwrap().len();
    assert!(of_models.iter().all(|of| parts(of) > 1), "{learned}");
    // The next server begins with that.
    let (chat, _) = (of_models[0]["run_times"].clone(), &of_models[1]);
    let mut again = serve_by(folder.path(), "policy = \"orloj\"\n");
    let began = Instant::now();
    let start = loop {
        Exits { server: &again, client: "of-none", headers: "", parameters: json!({}) }.pass(0);
        if let Some(start) = median(&again, "chat") {
            break start;
        }
        assert!(began.elapsed() < PATIENCE);
    };
    let (mut left, width) = (0.5, chat["width_ms"].as_f64().unwrap());
    let before = chat["parts"].as_array().unwrap().iter().take_while(|part| {
        left -= part.as_f64().unwrap();
        left > 0.0
    });
    let median_ms = before.count() as f64 * width;
    assert!((start * 1e3 - median_ms).abs() < 2.0 * width, "{start} s after {median_ms} ms, bins of {width}");
    assert_eq!(again.interrupt(), Some(0));
}

#[test]
fn a_file_that_is_none_of_learned_profiles_is_named_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path(), "");
    let file = folder.path().join("learned.json");
    std::fs::write(&file, "[[models]]\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    let output = command.args(["serve", "--http", "127.0.0.1:0"]).arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("learned.json: no file of learned profiles: ") && said.contains("line 1"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[[models]]\n");
}

#[test]
fn applications_that_make_no_sense_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    for (keys, said) in [
        ("applications = [{ name = \"a\" }]\n", "applications: is too short"),
        ("applications = [{ name = \"a\" }, { name = \"a\" }]\n", "applications: names \"a\" twice"),
        ("applications = [{ name = \"a b\" }, { name = \"c\" }]\n", "applications[0].name: is \"a b\""),
        ("applications = [{ name = \"a\", scale = 0 }, { name = \"c\" }]\n", "applications[0].scale: is 0"),
        (
            "applications = [{ name = \"a\", scale = 1000 }, { name = \"c\" }]\nprofile = { alpha_ms = 50, beta_ms = 50 }\n",
            "applications: a request of \"a\" alone takes 100000.000 ms",
        ),
    ] {
        write_config(folder.path(), keys);
        let output =
            Command::new(env!("CARGO_BIN_EXE_symphony")).arg("check").arg(folder.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{keys}: {errors}");
        assert!(errors.contains(said), "{keys}: {errors}");
    }
}
