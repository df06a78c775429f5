//! `profile` as a user runs it: on the library that is built in, on ONNX Runtime, and where that is
//! missing.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod onnx_library;

use onnx_library::onnx_library;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn profile(device: &str, library: &Path) -> Output {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    command.args(["--seconds", "0.05", "--max-batch", "3", "--json", "--device", device, "--model"]);
    command.arg(model).env("ORT_DYLIB_PATH", library).output().unwrap()
}

#[test]
fn both_libraries_are_measured_at_every_batch_size() {
    for device in ["cpu", "onnxruntime"] {
        let output = profile(device, &onnx_library());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["device"], device);
        let rows = report["table"].as_array().unwrap();
        let batches: Vec<u64> = rows.iter().map(|row| row["batch"].as_u64().unwrap()).collect();
        assert_eq!(batches, [1, 2, 3]);
        assert!(rows.iter().all(|row| row["p50_ms"].as_f64().unwrap() > 0.0), "{report}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_what_would_be_right() {
    let nowhere = Path::new("/nowhere/libonnxruntime.so");
    for (device, code, expected) in [
        ("onnxruntime", 3, "ORT_DYLIB_PATH=/nowhere/libonnxruntime.so (can't be opened"),
        ("gpu", 2, "give cpu or onnxruntime"),
    ] {
        let output = profile(device, nowhere);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
