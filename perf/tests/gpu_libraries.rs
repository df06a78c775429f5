//! NVIDIA's libraries of kernels as the commands open them, in place of which they find the fake
//! driver's: networks give right answers through them, nothing of theirs is left, and where one is
//! not there, lacks a function or fails, kernels of Symphony's compute the model.

#[path = "../../engine/tests/harness/fake_gpus.rs"]
mod fake_gpus;
#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light_models;

use fake_gpus::FakeGpus;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Compares small networks with the interpreter: with convolutions in groups and not, with a bias
/// and without, and with products. Returns what `gpu agreement` prints, and what the libraries have
/// counted, if they were opened.
fn agreement(gpus: &FakeGpus, (precision, tolerance): (&str, &str), faults: &str) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let made =
        Command::new(env!("CARGO_BIN_EXE_gpu")).args(["networks", "--small"]).arg(folder.path()).output();
    assert!(made.unwrap().status.success());
    let report = folder.path().join("report");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu"));
    gpus.show_to(&mut command).args(["agreement", "--precision", precision, "--tolerance", tolerance]);
    command.env("SYMPHONY_FAKE_LIBRARY_FAULTS", faults).env("SYMPHONY_FAKE_LIBRARY_REPORT", &report);
    // A fake GPU's memory is the machine's, and tests run side by side.
    command.env("SYMPHONY_FAKE_GPU_MEMORY", "1000000000");
    let networks = ["mobilenet_v2", "densenet121", "bert_base"];
    let files = networks.map(|name| folder.path().join(name).with_extension("onnx"));
    let output = command.args(files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stdout));
    let compared: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(compared.len(), 3);
    (compared, std::fs::read_to_string(report).unwrap_or_default())
}

/// The precision of the tests of what is not about precisions, with its tolerance.
const FP32: (&str, &str) = ("fp32", "0.0001");

fn sum(compared: &[Value], by: &str) -> u64 {
    compared.iter().map(|one| one["launches"][by].as_u64().unwrap()).sum()
}

/// Returns how often a function was called.
fn calls(report: &str, function: &str) -> u64 {
    let line = report.lines().rev().find_map(|line| line.strip_prefix(function)?.strip_prefix(' '));
    line.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn networks_agree_through_the_libraries_and_nothing_of_theirs_is_left() {
    let gpus = FakeGpus::with_libraries();
    for form in [FP32, ("fp16", "0.01"), ("bf16", "0.08")] {
        let (compared, report) = agreement(&gpus, form, "");
        assert!(sum(&compared, "cublaslt") > 4, "{compared:?}");
        assert_eq!(compared[0]["libraries"][0], "cuBLASLt 13.0.2");
        assert_eq!(compared[0]["libraries"][1], "cuDNN 9.12.0");
        assert!(calls(&report, "cublasLtMatmul") >= sum(&compared, "cublaslt"), "{report}");
        let convolutions = ["cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward"];
        let convolutions: u64 = convolutions.iter().map(|function| calls(&report, function)).sum();
        assert!(sum(&compared, "cudnn") > 20 && convolutions >= sum(&compared, "cudnn"), "{report}");
        assert_eq!(calls(&report, "left"), 0, "{report}");
    }
}

#[test]
fn without_a_library_kernels_of_ours_compute_and_it_is_said_why() {
    let (compared, report) = agreement(&FakeGpus::new(), FP32, "");
    assert_eq!((sum(&compared, "cublaslt"), sum(&compared, "cudnn"), report.as_str()), (0, 0, ""));
    for (at, start) in [
        "kernels of Symphony's in place of cuBLASLt (libcublasLt.so or ",
        "kernels of Symphony's in place of cuDNN (libcudnn.so or ",
    ]
    .into_iter()
    .enumerate()
    {
        let why = compared[0]["libraries"][at].as_str().unwrap();
        assert!(why.starts_with(start), "{why}");
    }
}

/// Compiles a library that has these functions and nothing else.
fn library_with(folder: &Path, functions: &[&str]) -> std::path::PathBuf {
    let (source, library) = (folder.join("library.c"), folder.join("library.so"));
    let lines = functions.iter().map(|name| format!("unsigned long {name}(void) {{ return 1; }}\n"));
    std::fs::write(&source, lines.collect::<String>()).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(compiled.unwrap().success());
    library
}

#[test]
fn a_library_that_lacks_a_function_or_is_none_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let gpus = FakeGpus::new();
    let library = library_with(folder.path(), &["cublasLtGetVersion", "cudnnGetVersion"]);
    ["libcublasLt.so", "libcudnn.so"].iter().for_each(|name| gpus.link_library(name, &library));
    let (compared, _) = agreement(&gpus, FP32, "");
    for (at, lacking) in ["cublasLtGetStatusName", "cudnnGetErrorString"].into_iter().enumerate() {
        let why = compared[0]["libraries"][at].as_str().unwrap();
        assert!(why.contains(&format!("(the library lacks {lacking})")), "{why}");
    }
    let gpus = FakeGpus::new();
    std::fs::write(folder.path().join("text"), "no library").unwrap();
    gpus.link_library("libcublasLt.so", &folder.path().join("text"));
    let (compared, _) = agreement(&gpus, FP32, "");
    let why = compared[0]["libraries"][0].as_str().unwrap();
    assert!(why.contains("(libcublasLt.so can't be opened: "), "{why}");
    assert_eq!([sum(&compared, "cublaslt"), sum(&compared, "cudnn")], [0, 0]);
}

#[test]
fn a_driver_that_lacks_a_function_is_named_with_it_and_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let library = library_with(folder.path(), &["cuInit"]);
    std::fs::rename(library, folder.path().join("libcuda.so")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu"));
    let output = command.args(["agreement", "model.onnx"]).env("LD_LIBRARY_PATH", folder.path()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("the CUDA driver lacks cuGetErrorName; install one for CUDA 12"), "{said}");
}

#[test]
fn a_library_that_fails_is_left_out_and_nothing_of_its_is_left() {
    let gpus = FakeGpus::with_libraries();
    // CUBLAS_STATUS_ALLOC_FAILED, _NOT_SUPPORTED and _EXECUTION_FAILED; CUDNN_STATUS_NOT_SUPPORTED,
    // _INTERNAL_ERROR and _EXECUTION_FAILED.
    for fault in [
        "cublasLtCreate:0:3",
        "cublasLtMatmulAlgoGetHeuristic:0:15",
        "cublasLtMatmulAlgoGetHeuristic:1:3",
        "cublasLtMatmul:20:13",
        "cudnnCreate:0:4000",
        "cudnnGetConvolutionForwardWorkspaceSize:0:3000",
        "cudnnConvolutionForward:0:5000",
        "cudnnConvolutionBiasActivationForward:30:5000",
    ] {
        let (compared, report) = agreement(&gpus, FP32, fault);
        assert!(sum(&compared, "own") > 4, "{fault}: {compared:?}");
        assert_eq!(calls(&report, "left"), 0, "{fault}: {report}");
        let states = compared[0]["libraries"].as_array().unwrap();
        let opened = states.iter().filter(|state| !state.as_str().unwrap().starts_with("kernels")).count();
        let is_opening = ["cublasLtCreate:", "cudnnCreate:"].iter().any(|start| fault.starts_with(start));
        assert_eq!(opened, if is_opening { 1 } else { 2 }, "{fault}: {states:?}");
    }
}
