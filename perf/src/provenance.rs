//! What makes a result repeatable: the command line and the commit that it ran.

use std::process::Command;

/// Returns this process's command line.
pub fn command_line() -> String {
    std::env::args().collect::<Vec<_>>().join(" ")
}

/// Returns the commit of the working directory; `None` where there is none.
pub fn commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
