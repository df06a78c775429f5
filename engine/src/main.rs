//! The `symphony` binary. The command line is in `symphony::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    symphony::cli::end_quietly_on_closed_pipe();
    symphony::cli::run()
}
