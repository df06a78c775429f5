//! The load generator: sends requests to a server, or to an engine in this process, at times that do not
//! depend on the answers (open loop) or as fast as N clients get answers (closed loop), and reports what
//! came of them. Latency counts from the time a request was meant to be sent, so a stall of the server, or of
//! the generator, shows in the figures instead of hiding.

mod args;
pub mod http;
pub mod in_process;
pub mod inputs;
pub mod plan;
mod progress;
pub mod report;
pub mod tally;

pub use args::{Args, Protocol};

use crate::loadgen::plan::{Plan, PlanError};
use crate::loadgen::progress::Progress;
use crate::loadgen::report::Report;
use crate::loadgen::tally::Tally;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that requests can be sent to.
pub trait Target {
    /// Sends what `plan` says, records in `watch` what comes of it, and returns when all is answered or
    /// given up.
    ///
    /// Errors: what keeps the run from starting. What goes wrong with single requests is recorded.
    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError>;
}

/// What a running [`Target`] reports to, and what can stop it.
pub struct Watch {
    /// Every request and its end.
    pub tally: Tally,
    /// Set by Ctrl-C: send no more.
    pub stop: Arc<AtomicBool>,
    /// Shown to a user who waits.
    pub progress: Progress,
}

impl Watch {
    /// Whether the run was asked to end early.
    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Why a run could not start, or was not worth its figures.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line, a file, or the server's models don't fit together.
    #[error("{0}")]
    Usage(String),
    /// The server does not answer.
    #[error("{0}")]
    Unreachable(String),
    /// The machine lacks something.
    #[error("{0}")]
    Machine(String),
}

impl RunError {
    /// The exit code: DESIGN.md, section 9.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Unreachable(_) => 1,
            RunError::Usage(_) => 2,
            RunError::Machine(_) => 3,
        }
    }
}

impl From<PlanError> for RunError {
    fn from(error: PlanError) -> RunError {
        RunError::Usage(error.to_string())
    }
}

/// The whole command: runs what `args` say and prints the report.
pub fn main(args: &Args) -> ExitCode {
    match generate(args) {
        Ok(report) => {
            print(&report, args.json);
            ExitCode::from(verdict(&report))
        }
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn generate(args: &Args) -> Result<Report, RunError> {
    if args.protocol == Protocol::Grpc {
        return Err(RunError::Machine("--protocol grpc is not in this version; use --protocol http".into()));
    }
    let plan = args.plan()?;
    let mut target = args.target()?;
    let mut watch =
        Watch { tally: Tally::new(&plan), stop: stop_on_ctrl_c()?, progress: Progress::new(&plan) };
    let ran = target.run(&plan, &mut watch);
    watch.progress.finish();
    ran.map(|()| watch.tally.report(&plan))
}

/// A flag that the first Ctrl-C sets; a second one ends the process.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, RunError> {
    let stop = Arc::new(AtomicBool::new(false));
    let machine = |e: io::Error| RunError::Machine(format!("can't watch for Ctrl-C: {e}"));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // In this order: the first signal finds the flag unset, and the second finds it set.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop)).map_err(machine)?;
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(machine)?;
    }
    Ok(stop)
}

fn print(report: &Report, json: bool) {
    for note in report.notes() {
        eprintln!("loadgen: {note}");
    }
    if json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
}

/// 0, or 1 where the figures are of no use: nothing was answered, or the server went away.
fn verdict(report: &Report) -> u8 {
    u8::from((report.figures.sent > 0 && report.answered == 0) || report.lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn a_protocol_that_is_not_there_yet_is_refused_with_exit_code_3() {
        let line = "loadgen --url http://127.0.0.1:1 --model m --rate 1 --duration 1 --protocol grpc";
        let args = Args::try_parse_from(line.split(' ')).unwrap();
        let error = generate(&args).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert_eq!(error.to_string(), "--protocol grpc is not in this version; use --protocol http");
    }
}
