//! Models that share their first layers and are run as one, over real sockets and on both
//! libraries: clients see separate models.

mod harness;

use harness::onnx::{FLOAT, constant, file, graph, node, numbers, tensor};
use harness::onnx_library::onnx_library;
use harness::process::{ServerProcess, request};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The weights of the layers that all models share.
const SHARED: [f32; 4] = [1.0, -1.0, 2.0, 0.5];

/// Writes a model that gives the sum of max(x w, 0) and `add` for each of `copies` copies of it.
fn write_model(folder: &Path, name: &str, shared: &[f32], (add, copies): (f32, usize)) {
    let nodes = [
        node("Mul", &["x", "w"], &["xw"], &[]),
        node("Relu", &["xw"], &[&format!("{name}-hidden")], &[]),
        node("Add", &[&format!("{name}-hidden"), "c"], &["sum"], &[]),
        node(
            "Concat",
            &vec!["sum"; copies],
            &[&format!("{name}-y")],
            &[harness::onnx::number_attribute("axis", 1)],
        ),
    ];
    let output = tensor(&format!("{name}-y"), FLOAT, &[0, 4 * copies as u64]);
    let weights = [numbers("w", &[4], shared), constant("c", add)];
    let content = file(&graph(&nodes, &weights, &[tensor("x", FLOAT, &[0, 4])], &[output]));
    std::fs::write(folder.join(format!("{name}.onnx")), content).unwrap();
}

/// The models: a name, what it adds, and the copies that it gives.
const MODELS: [(&str, f32, usize); 3] = [("cat", 0.0, 1), ("dog", 10.0, 3), ("bird", 20.0, 2)];

/// Writes CONFIG for these models on an executor; each has further keys.
fn write_config(folder: &Path, executor: &str, keys: impl Fn(&str) -> String) {
    let mut config = format!(
        "[onnxruntime]\nlibrary = {:?}\n[[executors]]\nkind = \"{executor}\"\n\
         [repository]\npath = \"repository\"\ncontrol = \"explicit\"\n",
        onnx_library()
    );
    for (name, add, copies) in MODELS {
        write_model(folder, name, &SHARED, (add, copies));
        let keys = keys(name);
        write!(
            config,
            "[[models]]\nname = \"{name}\"\nfile = \"{name}.onnx\"\nexecutor = \"{executor}\"\n{keys}\n"
        )
        .unwrap();
    }
    // A query of which a stage is one of them.
    let stages = "stages = [{ model = \"dog\", inputs = [{ input = \"x\", tensor = \"picture\" }], \
                  outputs = [{ output = \"dog-y\", tensor = \"answer\" }] }]";
    write!(
        config,
        "[[queries]]\nname = \"query\"\nslo_ms = 50000\ninputs = [\"picture\"]\noutputs = [\"answer\"]\n{stages}\n"
    )
    .unwrap();
    std::fs::create_dir_all(folder.join("repository")).unwrap();
    std::fs::write(folder.join("symphony.toml"), config).unwrap();
}

fn serve(folder: &Path, executor: &str) -> ServerProcess {
    // One SLO differs from the others: deadlines are a request's own.
    let slo = |name: &str| if name == "bird" { 30_000 } else { 60_000 };
    write_config(folder, executor, |name| {
        format!("slo_ms = {}\nmax_batch = 8\nprefix_group = \"animals\"", slo(name))
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0"]);
    ServerProcess::start(command.arg(folder), Stdio::inherit())
}

fn call(server: &ServerProcess, method: &str, path: &str, body: &str) -> (u16, String) {
    let (status, _, answer) = request(server.address(), (method, path), "", body).unwrap();
    (status, answer)
}

fn get(server: &ServerProcess, path: &str) -> Value {
    let (status, answer) = call(server, "GET", path, "");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).unwrap()
}

/// Asks a model for some rows, and checks the answer.
fn ask(server: &ServerProcess, (name, add, copies): (&str, f32, usize), (tensor, rows): (&str, usize)) {
    let x: Vec<f32> = (0..4 * rows).map(|at| at as f32 - 3.0).collect();
    let body = json!({ "inputs": [{ "name": tensor, "datatype": "FP32", "shape": [rows, 4], "data": x }] });
    let (status, answer) = call(server, "POST", &format!("/v2/models/{name}/infer"), &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let row = |x: &[f32]| -> Vec<f32> {
        let own: Vec<f32> = x.iter().zip(SHARED).map(|(x, w)| (x * w).max(0.0) + add).collect();
        own.repeat(copies)
    };
    let expected: Vec<f32> = x.chunks(4).flat_map(row).collect();
    assert_eq!(answer["outputs"][0]["shape"], json!([rows, 4 * copies]), "{name}");
    assert_eq!(answer["outputs"][0]["data"], json!(expected), "{name}");
}

/// Returns the value of a metric of a model.
fn metric(server: &ServerProcess, name: &str, model: &str) -> f64 {
    let (_, metrics) = call(server, "GET", "/metrics", "");
    let sample = format!("{name}{{model=\"{model}\",version=\"1\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn clients_see_separate_models_and_each_gets_the_answers_of_its_own() {
    const ROUNDS: usize = 20;
    for executor in ["cpu", "onnxruntime"] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = serve(folder.path(), executor);
        let metadata = get(&server, "/v2/models/dog");
        assert_eq!(metadata["inputs"], json!([{ "name": "x", "datatype": "FP32", "shape": [-1, 4] }]));
        assert_eq!(metadata["outputs"], json!([{ "name": "dog-y", "datatype": "FP32", "shape": [-1, 12] }]));
        std::thread::scope(|scope| {
            for model in MODELS {
                let server = &server;
                scope.spawn(move || (0..ROUNDS).for_each(|at| ask(server, model, ("x", 1 + at % 3))));
            }
            let server = &server;
            scope.spawn(move || (0..ROUNDS).for_each(|_| ask(server, ("query", 10.0, 3), ("picture", 2))));
        });
        let rows = (0..ROUNDS).map(|at| 1 + at % 3).sum::<usize>();
        for (name, ..) in MODELS {
            assert_eq!(call(&server, "GET", &format!("/v2/models/{name}/ready"), "").0, 200);
            let stats = get(&server, &format!("/v2/models/{name}/stats"));
            let of_query = if name == "dog" { (ROUNDS, 2 * ROUNDS) } else { (0, 0) };
            let stats = &stats["model_stats"][0];
            assert_eq!(stats["inference_stats"]["success"]["count"], json!(ROUNDS + of_query.0), "{name}");
            assert_eq!(stats["inference_count"], json!(rows + of_query.1), "{name}");
            // The repository's calls leave them alone, as all models of CONFIG.
            let (status, why) = call(&server, "POST", &format!("/v2/repository/models/{name}/unload"), "{}");
            assert!(status == 400 && why.contains("CONFIG's own"), "{status} {why}");
        }
        // Batches are those of the first; nothing was dropped or run twice.
        let all = 3 * rows + 2 * ROUNDS;
        assert_eq!(metric(&server, "symphony_batch_size_sum", "cat"), all as f64, "{executor}");
        assert_eq!(metric(&server, "symphony_batch_size_sum", "dog"), 0.0, "{executor}");
        assert_eq!(metric(&server, "symphony_model_rows_total", "bird"), rows as f64, "{executor}");
        assert_eq!(server.interrupt(), Some(0));
    }
}

fn check(folder: &Path) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_symphony")).arg("check").arg(folder).output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn check_says_what_is_shared_and_what_keeps_models_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let all = |more: &str| format!("slo_ms = 60000\nprefix_group = \"animals\"\n{more}");
    write_config(folder, "cpu", |_| all("max_batch = 4"));
    let (output, said) = check(folder);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("cat, dog, bird are run as one over the layers that they share: 2 nodes"),
        "{said}"
    );
    write_model(folder, "dog", &[1.0, 2.0, 3.0, 4.0], (10.0, 3));
    let (output, said) = check(folder);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("dog.onnx: shares no layer with ") && said.contains("models[1].file"), "{said}");
    for (keys, wrong) in [
        (("max_batch = 4", "max_batch = 8"), "`max_batch` is another than that of \"cat\""),
        (("", "profile = { alpha_ms = 1, beta_ms = 1 }"), "`profile` is another than that of \"cat\""),
        (("", "rolling = false"), "`rolling` is another than that of \"cat\""),
        (("", "applications = [{ name = \"a\" }, { name = \"b\" }]"), "or applications"),
    ] {
        write_config(folder, "cpu", |name| all(if name == "bird" { keys.1 } else { keys.0 }));
        let (output, said) = check(folder);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("models[2].prefix_group: ") && said.contains(wrong), "{said}");
    }
    write_config(folder, "cpu", |name| if name == "bird" { all("") } else { "slo_ms = 60000".into() });
    assert!(check(folder).1.contains("\"animals\" has this model alone"), "{}", check(folder).1);
    // A model that can't be read may be the second of the group.
    write_config(folder, "cpu", |name| match name {
        "bird" => all(""),
        "dog" => all("priority = 9"),
        _ => "slo_ms = 60000".into(),
    });
    let (_, said) = check(folder);
    assert!(said.contains("models[1].priority") && !said.contains("alone"), "{said}");
    let repository = folder.join("repository/owl/1");
    std::fs::create_dir_all(&repository).unwrap();
    std::fs::copy(folder.join("bird.onnx"), repository.join("model.onnx")).unwrap();
    std::fs::write(folder.join("repository/owl/model.toml"), all("")).unwrap();
    write_config(folder, "cpu", |_| all(""));
    let (output, said) = check(folder);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("model.toml:2: prefix_group: is no field that is known here"), "{said}");
    std::fs::remove_dir_all(folder.join("repository/owl")).unwrap();
    write_config(folder, "cuda", |_| all(""));
    let (output, said) = check(folder);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("the executor \"cuda\" runs no models as one; run them on \"cpu\""), "{said}");
}

/// A model of emulated GPUs that is run as one with others, with these inputs and outputs of a row.
fn emulated(name: &str, inputs: &str, outputs: usize) -> String {
    format!(
        "[[models]]\nname = \"{name}\"\nexecutor = \"emulated\"\nprefix_group = \"animals\"\nslo_ms = 60000\n\
         profile = {{ alpha_ms = 1, beta_ms = 1 }}\ninputs = [{inputs}]\n\
         outputs = [{{ name = \"{name}-y\", datatype = \"FP32\", shape = [{outputs}] }}]\n"
    )
}

/// The input of the emulated models.
const X: &str = "{ name = \"x\", datatype = \"FP32\", shape = [4] }";

#[test]
fn emulated_models_are_run_as_one_and_each_answers_its_own_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |models: [String; 2]| {
        let executors = "policy = \"work-conserving\"\n[[executors]]\nkind = \"emulated\"\n";
        std::fs::write(folder.join("symphony.toml"), format!("{executors}{}", models.concat())).unwrap();
    };
    write([emulated("few", X, 1), emulated("many", &X.replace("[4]", "[5]"), 9)]);
    let (output, said) = check(folder);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`inputs` is another than that of \"few\""), "{said}");
    write([emulated("few", X, 1), emulated("many", X, 9)]);
    assert_eq!(check(folder).0.status.code(), Some(0), "{}", check(folder).1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.args(["serve", "--http", "127.0.0.1:0"]).arg(folder);
    let mut server = ServerProcess::start(&mut command, Stdio::inherit());
    let x = json!([{ "name": "x", "datatype": "FP32", "shape": [2, 4], "data": [1, 2, 3, 4, 5, 6, 7, 8] }]);
    for (name, outputs) in [("few", 1), ("many", 9), ("few", 1)] {
        let path = format!("/v2/models/{name}/infer");
        let (status, answer) = call(&server, "POST", &path, &json!({ "inputs": x }).to_string());
        assert_eq!(status, 200, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        // Nothing of another request that had the slot before.
        assert_eq!(answer["outputs"][0]["data"], json!(vec![0.0; 2 * outputs]), "{name}");
    }
    assert_eq!(metric(&server, "symphony_batch_size_sum", "few"), 6.0);
    assert_eq!(metric(&server, "symphony_batch_size_sum", "many"), 0.0);
    assert_eq!(server.interrupt(), Some(0));
}
