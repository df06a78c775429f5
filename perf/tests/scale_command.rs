//! The command `scale` as a user runs it.

use std::process::Command;

#[test]
fn a_run_counts_its_requests_and_says_whether_it_passed() {
    let mut scale = Command::new(env!("CARGO_BIN_EXE_scale"));
    let ran =
        scale.args(["--rate", "20000", "--seconds", "0.3", "--attempts", "1", "--json"]).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    let report: serde_json::Value =
        serde_json::from_slice(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    // Whether it passes is a matter of the machine.
    assert_eq!(ran.status.code(), Some(if report["passed"] == true { 0 } else { 1 }), "{said}");
    let taken = report["requests_per_s"].as_f64().unwrap();
    assert!((10_000.0..=30_000.0).contains(&taken), "{report}");
    assert!(report["batch_mean"].as_f64().unwrap() >= 1.0, "{report}");
}
