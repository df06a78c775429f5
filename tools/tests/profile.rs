//! `profile` as a user runs it: on the library that is built in, on ONNX Runtime, on GPUs that are
//! none, and where these are missing.

#[path = "../../engine/tests/harness/fake_gpus.rs"]
mod fake_gpus;
#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light_models;
#[path = "../../engine/tests/harness/onnx_library.rs"]
mod onnx_library;

use fake_gpus::FakeGpus;
use onnx_library::onnx_library;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use symphony_gpu::ProfileTable;
use symphony_gpu::cuda::Libcuda;

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
        ("gpu", 2, "give cpu, onnxruntime, onnxruntime-cuda:N or cuda:N"),
        ("cuda:x", 2, "give cpu, onnxruntime, onnxruntime-cuda:N or cuda:N"),
        ("cuda:0", 3, "--device cuda:0: there is no CUDA driver on this machine"),
    ] {
        if device == "cuda:0" && Libcuda::open().is_ok() {
            continue; // A machine with one.
        }
        let output = profile(device, nowhere);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn on_a_gpu_every_size_is_measured_200_times_and_its_parts_apart() {
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("linear.csv");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
    command.args(["--seconds", "0.05", "--max-batch", "5", "--json", "--device", "cuda:0", "--model"]);
    let output = FakeGpus::new().show_to(&mut command).arg(&model).arg("--csv").arg(&csv).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let gpu = &report["gpu"];
    assert_eq!(gpu["name"], "fake GPU 0");
    let parts = gpu["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 5);
    for row in parts {
        assert!(row["runs"].as_u64().unwrap() >= 200, "{row}");
        let of = |part: &str| (row[part]["p50"].as_f64().unwrap(), row[part]["p99"].as_f64().unwrap());
        for part in ["copy_in_ms", "launch_ms", "execution_ms", "copy_out_ms"] {
            let (p50, p99) = of(part);
            assert!(0.0 <= p50 && p50 <= p99, "{part} of {row}");
        }
        assert!(of("execution_ms").0 > 0.0, "{row}");
    }
    // Four inputs and three outputs a row, of four bytes each.
    assert!(gpu["dynamic_bytes"].as_u64().unwrap() >= 5 * 7 * 4, "{gpu}");
    assert!(gpu["taken_bytes"].as_u64() >= gpu["static_bytes"].as_u64(), "{gpu}");
    let table = ProfileTable::read(&csv).unwrap();
    assert_eq!(table.max_batch(), 5);
    let p99: Vec<f64> = table.rows().iter().map(|row| row.p99.as_millis_f64()).collect();
    let reported: Vec<f64> =
        report["table"].as_array().unwrap().iter().map(|row| row["p99_ms"].as_f64().unwrap()).collect();
    assert_eq!(p99, reported);
}

#[test]
fn on_a_gpu_sizes_may_be_chosen() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    for (batches, expected) in [("1-3,6", Ok(vec![1, 2, 3, 6])), ("3,2", Err("no list of batch sizes"))] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
        command.args(["--seconds", "0.05", "--runs", "3", "--json", "--device", "cuda:0"]);
        command.args(["--batches", batches]).arg("--model").arg(&model);
        let output = FakeGpus::new().show_to(&mut command).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match expected {
            Ok(sizes) => {
                assert!(output.status.success(), "{said}");
                let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                let rows = report["table"].as_array().unwrap();
                let batches: Vec<u64> = rows.iter().map(|row| row["batch"].as_u64().unwrap()).collect();
                assert_eq!(batches, sizes);
            }
            Err(wrong) => assert!(output.status.code() == Some(2) && said.contains(wrong), "{said}"),
        }
    }
}

#[test]
fn the_cuda_provider_is_measured_beside_plans() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    let gpus = FakeGpus::new();
    for device in ["cuda:0", "onnxruntime-cuda:0"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profile"));
        gpus.show_provider_to(gpus.show_to(&mut command), &onnx_library());
        command.args(["--seconds", "0.05", "--max-batch", "3", "--json", "--device", device, "--model"]);
        let output = command.arg(&model).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["device"], device);
        let rows = report["table"].as_array().unwrap();
        assert!(rows.len() == 3 && rows.iter().all(|row| row["p50_ms"].as_f64() > Some(0.0)), "{report}");
    }
}

#[test]
fn a_library_without_the_cuda_provider_is_refused_with_what_would_be_right() {
    let output = profile("onnxruntime-cuda:0", &onnx_library());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("CUDA provider can't be used on GPU 0"), "{said}");
    assert!(said.contains("package onnxruntime-gpu"), "{said}");
}
