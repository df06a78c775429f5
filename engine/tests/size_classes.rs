//! A model whose requests have many sizes, over real sockets: each goes to a size class, is padded
//! there, and is answered in its own size.

mod harness;

use harness::engine::{answer_all, config, start};
use harness::process::{ServerProcess, request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use symphony::runtime::frontend::{Ask, Class, Due, ModelInfo, Outcome};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data");

/// A CONFIG with a model that has the sizes `sizes`, and with these further keys of it.
fn served(sizes: &str, more: &str) -> String {
    format!(
        "policy = \"work-conserving\"\n[[executors]]\nkind = \"cpu\"\n\
         [[models]]\nname = \"steps\"\nfile = \"{DATA}/masked_steps.onnx\"\nslo_ms = 60000\nmax_batch = 4\n\
         sizes = {sizes}\n{more}"
    )
}

const BUCKETS: &str = "[{ dimension = \"steps\", buckets = [2, 4, 9] }]";
/// The padding would show in the sum if the mask did not take it out.
const PADDING: &str =
    "padding = [{ input = \"x\", value = 1000 }, { input = \"mask\", mask = true }]\nmax_waste = 0\n";

/// Writes a profile for each bucket, and returns the key that names them.
fn profiles(folder: &Path) -> &'static str {
    for (size, ms) in [(2, 2.0), (4, 4.0), (9, 9.0)] {
        let rows: String = (1..=4).map(|b| format!("{b},{0},{0}\n", ms + f64::from(b))).collect();
        let table = format!("batch,p50_ms,p99_ms\n{rows}");
        std::fs::write(folder.join(format!("steps-{size}.csv")), table).unwrap();
    }
    "profile = \"steps-{steps}.csv\"\n"
}

fn start_server(folder: &Path, more: &str) -> ServerProcess {
    // Which class a request goes to depends on profiles, and measured ones of so small a model on
    // noise.
    let text = served(BUCKETS, &format!("{more}{}", profiles(folder)));
    std::fs::write(folder.join("symphony.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    ServerProcess::start(command.args(["serve", "--http", "127.0.0.1:0"]).arg(folder), Stdio::inherit())
}

fn get(address: SocketAddr, path: &str) -> Value {
    let (status, _, body) = request(address, ("GET", path), "", "").unwrap();
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Sends a request of `rows` rows of these steps each; returns its status and its answer.
fn infer(address: SocketAddr, rows: usize, steps: usize, mask: Option<&[f32]>) -> (u16, Value) {
    let values: Vec<f32> = (1..=rows * steps * 2).map(|value| value as f32).collect();
    let tensor = |name: &str, shape: Vec<usize>, data: &[f32]| json!({ "name": name, "datatype": "FP32", "shape": shape, "data": data });
    let mut inputs = vec![tensor("x", vec![rows, steps, 2], &values)];
    inputs.extend(mask.map(|mask| tensor("mask", vec![rows, mask.len() / rows], mask)));
    let body = json!({ "inputs": inputs }).to_string();
    let (status, _, answer) = request(address, ("POST", "/v2/models/steps/infer"), "", &body).unwrap();
    (status, serde_json::from_str(&answer).unwrap())
}

/// The elements and the shape of an output.
fn output(answer: &Value, name: &str) -> (Vec<f64>, Vec<u64>) {
    let outputs = answer["outputs"].as_array().unwrap();
    let output = outputs.iter().find(|output| output["name"] == name).unwrap();
    let numbers = |of: &Value| of.as_array().unwrap().clone();
    (
        numbers(&output["data"]).iter().map(|value| value.as_f64().unwrap()).collect(),
        numbers(&output["shape"]).iter().map(|value| value.as_u64().unwrap()).collect(),
    )
}

#[test]
fn requests_of_every_size_are_padded_and_answered_in_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = start_server(folder.path(), PADDING);
    let address = server.address();
    for (rows, steps) in [(1, 1), (1, 2), (1, 3), (3, 3), (2, 4), (1, 5), (4, 9)] {
        // A mask that the client leaves out is ones; with one of its own the first step goes.
        for masks in [false, true] {
            let mask: Vec<f32> = (0..rows * steps).map(|at| f32::from(at % steps != 0)).collect();
            let (status, answer) = infer(address, rows, steps, masks.then_some(&mask));
            assert_eq!(status, 200, "{answer}");
            let value = |row: usize, step: usize, at: usize| {
                let own = (row * steps * 2 + step * 2 + at + 1) as f64;
                if masks && step == 0 { 0.0 } else { own }
            };
            let rows_of = |stride: usize| -> Vec<f64> {
                let places =
                    (0..rows).flat_map(|row| (0..steps).step_by(stride).map(move |step| (row, step)));
                places.flat_map(|(row, step)| [value(row, step, 0), value(row, step, 1)]).collect()
            };
            let shape = |steps: usize| vec![rows as u64, steps as u64, 2];
            assert_eq!(output(&answer, "left"), (rows_of(1), shape(steps)));
            assert_eq!(output(&answer, "seconds"), (rows_of(2), shape(steps.div_ceil(2))));
            let (sums, of_rows) = output(&answer, "sum");
            let sum =
                |row: usize| (0..steps).map(|step| value(row, step, 0) + value(row, step, 1)).sum::<f64>();
            assert_eq!((sums, of_rows), ((0..rows).map(sum).collect(), vec![rows as u64]));
        }
    }
    let metadata = get(address, "/v2/models/steps");
    assert_eq!(metadata["versions"], json!(["1"]));
    assert_eq!(metadata["inputs"][0]["shape"], json!([-1, -1, 2]));
    assert_eq!(metadata["outputs"][1]["shape"], json!([-1, -1, 2]));
    assert_eq!(metadata["outputs"][2]["shape"], json!([-1]));
    let parameters = &get(address, "/v2/models/steps/config")["parameters"];
    assert_eq!(parameters["size_classes"]["string_value"], "steps=2; steps=4; steps=9");
    let statistics = get(address, "/v2/models/steps/stats");
    assert_eq!(statistics["model_stats"].as_array().unwrap().len(), 1);
    assert_eq!(statistics["model_stats"][0]["inference_count"], 2 * (1 + 1 + 1 + 3 + 2 + 1 + 4));
    let (_, _, index) = request(address, ("POST", "/v2/repository/index"), "", "{}").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&index).unwrap().as_array().unwrap().len(), 1);
    let (_, _, metrics) = request(address, ("GET", "/metrics"), "", "").unwrap();
    for (sizes, rows) in [("steps=2", 4), ("steps=4", 12), ("steps=9", 10)] {
        let line =
            format!("symphony_model_rows_total{{model=\"steps\",version=\"1\",sizes=\"{sizes}\"}} {rows}\n");
        assert!(metrics.contains(&line), "{line} {metrics}");
    }
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn sizes_that_are_not_served_or_disagree_are_refused_with_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let server = start_server(folder.path(), PADDING);
    let refused = |answer: (u16, Value)| {
        assert_eq!(answer.0, 400, "{}", answer.1);
        answer.1["error"].as_str().unwrap().to_owned()
    };
    let error = refused(infer(server.address(), 1, 10, None));
    assert!(error.contains("\"steps\" is 10; the largest that is served is 9"), "{error}");
    let error = refused(infer(server.address(), 1, 3, Some(&[1.0; 4])));
    assert!(error.contains("input \"mask\": its \"steps\" is 4, but that of input \"x\" is 3"), "{error}");
    let error = refused(infer(server.address(), 1, 0, None));
    assert!(error.contains("input \"x\": shape is [1, 0, 2]; it must be [steps, 2]"), "{error}");
}

#[test]
fn classes_for_which_padding_costs_little_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(config(folder.path(), &served(BUCKETS, "max_waste = 1\n")));
    let models = frontend.newest_models().clone();
    assert_eq!(ModelInfo::served(&models).count(), 1);
    let model = ModelInfo::find(&models, "steps", None).unwrap();
    assert_eq!(model.label(), "steps (steps=9)");
    assert_eq!(model.class_for(&models, &[1], None).map(|class| class.id), Some(model.id));
    // The vacant slots of the other classes keep no GPU from a request of a lower class.
    let patient = Ask { class: Class::LOWEST, due: Due::Never, ..Ask::one(model.id) };
    for ask in [Ask::one(model.id), patient] {
        frontend.submit(&ask, |_, input| input.fill(0)).unwrap();
        answer_all(&mut frontend, |_, answer| assert_eq!(answer.outcome, Outcome::Good));
    }
    engine.stop();
}

#[test]
fn keys_that_do_not_go_together_are_named_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        std::fs::write(folder.path().join("symphony.toml"), text).unwrap();
        let output =
            Command::new(env!("CARGO_BIN_EXE_symphony")).arg("check").arg(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(check(&served(BUCKETS, PADDING)), (Some(0), String::new()));
    for (sizes, more, said) in [
        ("[{ dimension = \"steps\", buckets = [4, 2] }]", "", "models[0].sizes[0].buckets: is not ascending"),
        (
            "[{ dimension = \"steps\", buckets = [4] }]",
            "",
            "buckets: is too short; it must be a list of two sizes or more",
        ),
        ("[{ dimension = \"steps\", size = 4, buckets = [4, 8] }]", "", "size: is given beside buckets"),
        ("[{ dimension = \"steps\" }]", "", "size: is missing; add the size that all requests have"),
        ("[{ dimension = \"length\", buckets = [4, 8] }]", "", "\"steps\""),
        (
            "[{ dimension = \"steps\", size = 4 }]",
            "max_waste = 0.5\n",
            "max_waste: is given for a model whose requests have one size",
        ),
        (BUCKETS, "max_waste = 2\n", "max_waste: is 2; it must be a number from 0 to 1"),
        (BUCKETS, "padding = [{ input = \"x\" }]\n", "padding[0].value: is missing"),
        (BUCKETS, "profile = { alpha_ms = 1, beta_ms = 1 }\n", "profile: is one for all buckets of sizes"),
        (
            BUCKETS,
            "profile = \"steps.csv\"\n",
            "one file for all buckets of sizes; leave it out, or name a CSV file for each",
        ),
    ] {
        let (code, errors) = check(&served(sizes, more));
        assert_eq!(code, Some(2), "{sizes} {more}: {errors}");
        assert!(errors.contains(said), "{sizes} {more}: {errors}");
    }
}

#[test]
fn the_profile_of_each_class_can_be_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = start(config(folder.path(), &served(BUCKETS, profiles(folder.path()))));
    let models = frontend.newest_models().clone();
    let alone: Vec<f64> =
        ModelInfo::served(&models).map(|model| model.profile.latency(1).as_millis_f64()).collect();
    assert_eq!(alone, [3.0, 5.0, 10.0]);
    engine.stop();
}
