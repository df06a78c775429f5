//! `api overload` from beginning to end, short and without a judgement by time: the machine of a
//! test is shared.

#[path = "../../engine/tests/harness/binaries.rs"]
mod binaries;

use binaries::build_beside;
use serde_json::Value;
use std::process::Command;

#[test]
fn an_overload_is_measured_by_the_servers_counters_and_saved_with_its_machine_and_commit() {
    build_beside(env!("CARGO_BIN_EXE_api"), &["serve", "loadgen"]);
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
