//! A command whose output nobody reads any more, as before `| head`, ends by SIGPIPE without a
//! word.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "../../engine/tests/harness/process.rs"]
mod process;

use process::ends_quietly_unread;
use std::process::Command;

#[test]
fn the_commands_end_quietly_when_nobody_reads() {
    ends_quietly_unread(Command::new(env!("CARGO_BIN_EXE_instructions")).arg("--list"), false);
    // Their figures take a measurement; their errors do not.
    let mut scale = Command::new(env!("CARGO_BIN_EXE_scale"));
    ends_quietly_unread(scale.args(["--slo-ms", "1"]), true);
    let mut api = Command::new(env!("CARGO_BIN_EXE_api"));
    ends_quietly_unread(api.args(["echo", "--core", "65535"]), true);
    let mut population = Command::new(env!("CARGO_BIN_EXE_population"));
    ends_quietly_unread(population.args(["--show", "tune-000"]), false);
    let mut clairvoyant = Command::new(env!("CARGO_BIN_EXE_clairvoyant"));
    ends_quietly_unread(clairvoyant.arg("/nonexistent/w.toml"), true);
}
