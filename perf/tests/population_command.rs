//! The commands `population` and `clairvoyant` as a user runs them.

use std::path::Path;
use std::process::{Command, Output};

fn population(arguments: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_population"));
    command.args(arguments).arg("--file").arg(file).output().unwrap()
}

fn clairvoyant(file: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_clairvoyant")).args([file, "--seeds", "1"]).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_second_run_takes_everything_from_the_file_and_the_half_to_report_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (file, chart) = (folder.path().join("found.json"), folder.path().join("chart.svg"));
    // Workload 0 alone.
    let line = ["--half", "report", "--every", "400", "--seeds", "1"];
    let first = population(&line, &file);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let said = text(&first.stdout);
    assert!(said.contains("| work-conserving:timeout | 1 |"), "{said}");
    assert!(said.contains("looked at 1 time"), "{said}");
    let kept = std::fs::read(&file).unwrap();
    let again = population(&[&line[..], &["--chart", chart.to_str().unwrap()]].concat(), &file);
    assert_eq!(text(&again.stdout), said);
    assert!(std::fs::read(&file).unwrap() == kept && chart.is_file());
    let anew = population(&[&line[..], &["--again", "--rules", "symphony"]].concat(), &file);
    assert!(text(&anew.stdout).contains("looked at 2 times"), "{}", text(&anew.stdout));
}

#[test]
fn what_it_does_not_know_is_answered_with_what_it_knows() {
    let file = Path::new("/nonexistent/found.json");
    for (arguments, says) in [
        (["--half", "both"], "give tune, report, mixed, faults or fresh"),
        (["--rules", "fifo"], "no policy; give one of symphony, "),
        (["--show", "tune-400"], "like tune-017, report-017 or mixed-017, from 000 to 399"),
    ] {
        let output = population(&arguments, file);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(says), "{}", text(&output.stderr));
    }
    let output = population(&["--every", "400", "--rules", "clipper"], file);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).starts_with("population: /nonexistent/found.json: "));
}

#[test]
fn a_workload_that_it_shows_has_its_limit_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    // One model on one GPU.
    let file = folder.path().join("w.toml");
    let shown = population(&["--show", "tune-085"], Path::new("unused"));
    std::fs::write(&file, shown.stdout).unwrap();
    let output = clairvoyant(file.to_str().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows: Vec<(String, f64)> = text(&output.stdout)
        .lines()
        .map(|line| (line.split(' ').next().unwrap().to_owned(), share(line)))
        .collect();
    assert_eq!(rows[0], ("clairvoyant".to_owned(), 1.0));
    assert_eq!(rows.len(), 6);
    assert!(rows[1..].iter().all(|(_, share)| (0.1..1.0).contains(share)), "{rows:?}");
}

fn share(line: &str) -> f64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_workload_without_a_known_limit_is_refused() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/table4-resnet50.toml");
    let output = clairvoyant(file);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("this has 8 GPUs and 1 models"), "{}", text(&output.stderr));
}
