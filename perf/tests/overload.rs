//! `api overload` from beginning to end, short and without a judgement by time: the machine of a
//! test is shared.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Builds the binaries that `api` starts, beside it.
fn build_the_others() {
    let mut build = Command::new(env!("CARGO"));
    // A test's own: a build script would take it for a change, and its dependents be built again.
    build.env_remove("CARGO_MANIFEST_DIR");
    // A test of each binary has it built, and with the same features as this one: those of all
    // tests of the workspace.
    build.args(["test", "--quiet", "--workspace", "--test", "serve", "--test", "loadgen", "--no-run"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    if Path::new(env!("CARGO_BIN_EXE_api")).parent().unwrap().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.stdout(Stdio::null()).status().unwrap().success());
}

#[test]
fn an_overload_is_measured_by_the_servers_counters_and_saved_with_its_machine_and_commit() {
    build_the_others();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overload.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_api"));
    command.args(["overload", "--seconds", "3", "--save"]).arg(&file);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // 1: a promise was not kept, which three seconds on a shared machine do not tell.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {said}", output.status);
    assert!(said.contains("of the peak's good rate") && said.contains("memory "), "{said}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert!(saved["command"].as_str().unwrap().contains("api overload --seconds 3"), "{saved}");
    assert!(saved["commit"].is_string() && saved["result"]["machine"]["cores"].is_u64(), "{saved}");
    let figures = &saved["result"]["figures"];
    assert_eq!(figures["windows"].as_array().unwrap().len(), 3, "{figures}");
    assert_eq!(figures["peak_steps"].as_array().unwrap().len(), 6);
    let offered = figures["offered_per_s"].as_f64().unwrap() / figures["peak_good_per_s"].as_f64().unwrap();
    assert!((offered - 3.0).abs() < 1e-9, "{figures}");
    assert!(figures["windows"][0]["memory_bytes"].as_u64().unwrap() > 1 << 20, "{figures}");
    assert!(figures["outcomes"].as_object().unwrap().len() > 1, "{figures}");
}
