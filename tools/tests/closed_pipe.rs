//! A tool whose output nobody reads any more, as before `| head`, ends by SIGPIPE without a word.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../engine/tests/harness/process.rs"]
mod process;

use process::ends_quietly_unread;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn ends_quietly(program: &str, arguments: &str) {
    let mut command = Command::new(program);
    ends_quietly_unread(command.args(arguments.split_whitespace()).current_dir(ROOT), false);
}

#[test]
fn simulate_profile_and_loadgen_end_quietly_when_nobody_reads() {
    let simulate = env!("CARGO_BIN_EXE_simulate");
    ends_quietly(simulate, "perf/workloads/table4-resnet50.toml --duration 0.1");
    ends_quietly(simulate, "perf/workloads/table4-resnet50.toml --duration 0.1 --json");
    let profile = env!("CARGO_BIN_EXE_profile");
    ends_quietly(profile, "--model examples/quickstart/wide.onnx --max-batch 2 --seconds 0.1");
    let loadgen = env!("CARGO_BIN_EXE_loadgen");
    ends_quietly(loadgen, "echo --http 127.0.0.1:0 --grpc 127.0.0.1:0");
}

#[test]
fn an_error_that_nobody_reads_ends_quietly_too() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    ends_quietly_unread(command.args(["compare", "/no/such/file", "/no/such/file"]), true);
}
