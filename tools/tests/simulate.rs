//! `simulate` as a user runs it: every policy on every workload file of the project, and the
//! messages about wrong flags.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use symphony_scheduler::policy::{POLICIES, when};
use symphony_scheduler::query::DeadlineSplit;

fn workloads() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/workloads");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
    found.sort();
    found
}

fn simulate(arguments: &[&str]) -> Output {
    let table4 = workloads().into_iter().find(|path| path.ends_with("table4-resnet50.toml")).unwrap();
    Command::new(env!("CARGO_BIN_EXE_simulate")).arg(table4).args(arguments).output().unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = simulate(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?} was taken");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn every_policy_runs_every_workload_file() {
    let files = workloads();
    assert!(!files.is_empty());
    for policy in POLICIES {
        let run = Command::new(env!("CARGO_BIN_EXE_simulate"))
            .args(["--json", "--duration", "0.2", "--policy", policy.name()])
            .args(&files)
            .output()
            .unwrap();
        assert!(run.status.success(), "{}: {}", policy.name(), String::from_utf8_lossy(&run.stderr));
        let reports: Vec<Value> = run
            .stdout
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        assert_eq!(reports.len(), files.len());
        for report in reports {
            assert_eq!(report["policy"], policy.name());
            assert!(
                report["good_rps"].as_f64().unwrap() > 0.0,
                "{} on {}",
                policy.name(),
                report["workload"]
            );
        }
    }
}

#[test]
fn every_split_runs_a_file_of_queries_and_a_file_without_them_has_nothing_to_split() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perf/workloads/queries/traffic.toml");
    for (_, name, _) in DeadlineSplit::ALL {
        let run = Command::new(env!("CARGO_BIN_EXE_simulate"))
            .args(["--json", "--duration", "5", "--split", name])
            .arg(&file)
            .output()
            .unwrap();
        assert!(run.status.success(), "{name}: {}", String::from_utf8_lossy(&run.stderr));
        let report: Value = serde_json::from_slice(&run.stdout).unwrap();
        let query = &report["queries"][0];
        assert!(query["good"].as_u64().unwrap() > 0, "{name}: {query}");
        assert_eq!(query["stages"].as_array().unwrap().len(), 3);
    }
    assert_eq!(
        refusal(&["--split", "even"]),
        "--split: table4-resnet50 has no [[queries]] to split the SLO of\n"
    );
    assert!(refusal(&["--split", "odd"]).contains("give one of carried, nexus, even"));
}

#[test]
fn the_help_lists_each_policy_and_each_rule_with_a_line() {
    let help = String::from_utf8(simulate(&["--help"]).stdout).unwrap();
    for name in POLICIES.iter().map(|policy| policy.name()).chain(when::names()) {
        assert!(
            help.lines().any(|line| line.starts_with(&format!("  {name} "))),
            "{name} is not in:\n{help}"
        );
    }
}

#[test]
fn a_flag_that_the_policy_does_not_take_is_refused_with_those_that_do() {
    assert_eq!(
        refusal(&["--policy", "work-conserving", "--when", "latest"]),
        "--when: policy work-conserving does not take it; it goes with symphony-published\n"
    );
    let told = refusal(&["--policy", "clipper", "--drop", "window"]);
    assert!(told.starts_with("--drop: policy clipper does not take it; it goes with symphony, "), "{told}");
    assert!(refusal(&["--clockwork-batches", "any"]).ends_with("it goes with clockwork\n"));
    assert!(refusal(&["--orloj-delay-rate", "1e-3"]).ends_with("it goes with orloj\n"));
    assert!(refusal(&["--nexus-packing", "oblivious"]).ends_with("it goes with nexus\n"));
    assert!(
        refusal(&["--policy", "nexus", "--nexus-packing", "round"]).contains("give squishy or oblivious")
    );
    assert!(refusal(&["--triton-preferred", "4,8"]).ends_with("it goes with triton\n"));
}

#[test]
fn a_wrong_value_of_a_flag_is_refused_with_the_right_ones() {
    let told = refusal(&["--policy", "symphony-published", "--when", "later"]);
    assert!(told.starts_with("--when: \"later\" is no rule; give one of frontrun, beta-lambda, "), "{told}");
    assert!(refusal(&["--policy", "clockwork", "--clockwork-batches", "3"]).contains("give pow2 or any"));
    assert!(
        refusal(&["--policy", "clockwork", "--clockwork-ahead-ms", "0"]).contains("give a number above 0")
    );
    assert!(refusal(&["--policy", "orloj", "--orloj-delay-rate", "0"]).contains("give a number above 0"));
    assert!(refusal(&["--policy", "triton", "--triton-preferred", "0"]).contains("1..=1024"));
}
