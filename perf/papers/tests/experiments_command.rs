//! The command `experiments` as a user runs it.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../../engine/tests/harness/process.rs"]
mod process;

use std::process::{Command, Output};

fn experiments(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_experiments")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_unknown_name_is_answered_with_the_names_there_are() {
    let output = experiments(&["figure-99"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("\"figure-99\" is no experiment"), "{said}");
    assert!(said.contains("symphony-table4") && said.contains("clockwork-figure8"), "{said}");
    assert_eq!(experiments(&[]).status.code(), Some(2));
}

#[test]
fn the_list_has_a_line_for_each_experiment() {
    let output = experiments(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout).lines().count(), symphony_papers::EXPERIMENTS.len());
}

#[test]
fn the_same_seed_gives_the_same_files_however_many_threads_work() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (folder, threads) in folders.iter().zip(["1", "3"]) {
        let out = folder.path().to_str().unwrap();
        let output = experiments(&["nexus-figure5", "--out", out, "--threads", threads, "--seed", "7"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    for file in ["results.md", "results/nexus-figure5.csv", "results/nexus-figure5.svg"] {
        let [one, other] = folders.each_ref().map(|folder| std::fs::read(folder.path().join(file)).unwrap());
        assert!(one == other, "{file}");
    }
}

#[test]
fn a_csv_file_of_something_else_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("results")).unwrap();
    std::fs::write(folder.path().join("results/nexus-figure5.csv"), "a,b\n1,2\n").unwrap();
    let output = experiments(&["--redraw", "--out", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("nexus-figure5.csv: the columns are `a,b`"), "{said}");
}

#[test]
fn a_list_that_nobody_reads_ends_quietly() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_experiments"));
    process::ends_quietly_unread(command.arg("--list"), false);
}
