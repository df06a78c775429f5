//! A model without a batch, over real sockets: a state of another layout than its input, and a
//! count that is a single element and that a client may leave out.

mod harness;

use harness::process::{ServerProcess, request};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu/tests/data/stateful.onnx");

/// The tensors of `config.pbtxt` as Triton needs them for such a model.
const PBTXT: &str = "max_batch_size: 0\n\
    input [ { name: \"x\" data_type: TYPE_FP32 dims: [ 1, 3 ] },\n\
    { name: \"state\" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] },\n\
    { name: \"count\" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } optional: true } ]\n";

/// Writes a folder of models with the fixture, and this `model.toml`; returns CONFIG's folder.
fn repository(folder: &Path, words: &str) {
    let model = folder.join("models/voice");
    std::fs::create_dir_all(model.join("1")).unwrap();
    std::fs::copy(FIXTURE, model.join("1/model.onnx")).unwrap();
    std::fs::write(model.join("config.pbtxt"), PBTXT).unwrap();
    std::fs::write(model.join("model.toml"), format!("slo_ms = 60000\n{words}")).unwrap();
    let config = "[[executors]]\nkind = \"cpu\"\n[repository]\npath = \"models\"\n";
    std::fs::write(folder.join("symphony.toml"), config).unwrap();
}

fn symphony() -> Command {
    Command::new(env!("CARGO_BIN_EXE_symphony"))
}

/// Sends a request; returns its status and its answer.
fn infer(address: SocketAddr, inputs: Value) -> (u16, Value) {
    let body = json!({ "inputs": inputs }).to_string();
    let (status, _, answer) = request(address, ("POST", "/v2/models/voice/infer"), "", &body).unwrap();
    (status, serde_json::from_str(&answer).unwrap())
}

#[test]
fn requests_are_whole_and_a_default_fills_what_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path(), "defaults = [{ input = \"count\", value = 4 }]\n");
    let mut serve = symphony();
    serve.args(["serve", "--http", "127.0.0.1:0"]).arg(folder.path());
    let mut server = ServerProcess::start(&mut serve, Stdio::inherit());
    let address = server.address();
    let get = |path: &str| -> Value {
        let (status, _, body) = request(address, ("GET", path), "", "").unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    let metadata = get("/v2/models/voice");
    let shapes = |of: &str| -> Vec<Value> {
        metadata[of].as_array().unwrap().iter().map(|tensor| tensor["shape"].clone()).collect()
    };
    assert_eq!(shapes("inputs"), [json!([1, 3]), json!([2, 1, 3]), json!([1])]);
    assert_eq!(shapes("outputs"), [json!([1, 3]), json!([2, 1, 3]), json!([4])]);
    assert_eq!(get("/v2/models/voice/config")["max_batch_size"], 0);
    let tensor = |name: &str, datatype: &str, shape: Value, data: Value| json!({ "name": name, "datatype": datatype, "shape": shape, "data": data });
    let x = || tensor("x", "FP32", json!([1, 3]), json!([1, 2, 3]));
    let state = || tensor("state", "FP32", json!([2, 1, 3]), json!([10, 20, 30, 100, 200, 300]));
    let counted = |shape: Value| tensor("count", "INT64", shape, json!([4]));
    for inputs in [
        json!([x(), state()]),
        json!([x(), state(), counted(json!([]))]),
        json!([x(), state(), counted(json!([1]))]),
    ] {
        let (status, answer) = infer(address, inputs);
        assert_eq!(status, 200, "{answer}");
        let outputs = &answer["outputs"];
        assert_eq!(
            (&outputs[0]["shape"], &outputs[0]["data"]),
            (&json!([1, 3]), &json!([111.0, 222.0, 333.0]))
        );
        assert_eq!(outputs[1]["shape"], json!([2, 1, 3]));
        assert_eq!((&outputs[2]["shape"], &outputs[2]["data"]), (&json!([4]), &json!([0, 1, 2, 3])));
    }
    let two = tensor("x", "FP32", json!([2, 3]), json!([1, 2, 3, 4, 5, 6]));
    let (status, answer) = infer(address, json!([two, state()]));
    let error = answer["error"].as_str().unwrap();
    assert!(
        status == 400 && error.contains("shape is [2, 3]; it must be [1, 3]: the model has no batch"),
        "{error}"
    );
    let (status, answer) = infer(address, json!([x()]));
    let error = answer["error"].as_str().unwrap();
    assert!(status == 400 && error.contains("input \"state\" is missing"), "{error}");
    // An output whose shape the values decide is no answer.
    let (status, answer) =
        infer(address, json!([x(), state(), tensor("count", "INT64", json!([1]), json!([2]))]));
    let error = answer["error"].as_str().unwrap();
    assert!(status == 500 && error.contains("failed on the request's batch of 1"), "{status} {error}");
    assert_eq!(server.interrupt(), Some(0));
}

#[test]
fn an_optional_input_without_a_default_is_refused_with_the_line_to_write() {
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path(), "");
    let output = symphony().arg("check").arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("add defaults = [{ input = \"count\", value = 0 }] to model.toml"), "{said}");
}
