//! The command line of the `symphony` binary: one file a command, with its arguments. A command
//! returns when its work is done, or a failure that has an exit code.
//!
//! | file | content |
//! | --- | --- |
//! | `serve.rs`, `serve_arguments.rs` | `serve`, from start-up to shutdown |
//! | `host.rs` | `frontend`, `scheduler` and `backend`: one host of an engine that is spread over several |
//! | `operator_endpoint.rs` | metrics and health of a scheduler and a backend |
//! | `shutdown.rs` | signals, and the bound on the time of a shutdown |
//! | `check.rs`, `doctor.rs`, `inspect.rs`, `compile.rs`, `run.rs`, `replay.rs`, `top.rs`, `ctl.rs` | the other commands |
//! | `inspect/proposal.rs` | the `model.toml` that `inspect` proposes |
//! | `file_flags.rs` | flags of programs that load an ONNX file |
//! | `access.rs` | certificates and tokens of `serve`, and their reload |
//! | `repository.rs` | flags that `serve` and `check` share |
//! | `failure.rs` | failures and exit codes |
//! | `closed_pipe.rs` | the end of any program whose reader has gone |

mod access;
mod check;
mod closed_pipe;
mod compile;
mod ctl;
mod doctor;
mod failure;
mod file_flags;
mod host;
mod inspect;
mod operator_endpoint;
mod replay;
mod repository;
mod run;
mod serve;
mod serve_arguments;
mod shutdown;
mod top;

pub use self::closed_pipe::end_quietly_on_closed_pipe;
pub use self::file_flags::{read_default_flag, read_precision, read_size_flag};

use self::check::{CheckArguments, check};
use self::compile::{CompileArguments, compile};
use self::ctl::{CtlArguments, ctl};
use self::doctor::{DoctorArguments, doctor};
use self::failure::EXIT_CODES;
use self::host::{FrontendArguments, HostArguments, frontend, run_host};
use self::inspect::{InspectArguments, inspect};
use self::replay::{ReplayArguments, replay};
use self::run::RunArguments;
use self::serve::serve;
use self::serve_arguments::ServeArguments;
use self::top::{TopArguments, top};
use crate::config::Role;
use crate::runtime::Options;
use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// Serves neural networks under deadlines: batches wait until the last moment at which they can
/// still grow.
#[derive(Parser)]
#[command(version, about, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load the models of CONFIG and serve them over HTTP and gRPC (KServe v2) until Ctrl-C
    ///
    /// Prints `ready http://ADDRESS` and `ready grpc://ADDRESS` on standard output once it serves;
    /// everything else goes to standard error. The first Ctrl-C (or SIGTERM) lets accepted requests
    /// finish, for shutdown_timeout_s of CONFIG at most; a second one ends the process at once.
    Serve(Box<ServeArguments>),
    /// Be a host with frontends of the engine that CONFIG spreads over several hosts, until Ctrl-C
    ///
    /// Serves as `serve` does; the requests are scheduled and run on the other hosts of
    /// `[[hosts]]`.
    Frontend(Box<FrontendArguments>),
    /// Be the scheduler of the engine that CONFIG spreads over several hosts, until Ctrl-C
    ///
    /// Prints `ready scheduler://ADDRESS` once others can connect, and with --admin
    /// `ready admin http://ADDRESS`. Tensors never pass here. The first Ctrl-C (or SIGTERM) lets
    /// what it has taken finish; a second one ends the process at once.
    Scheduler(Box<HostArguments>),
    /// Be a backend of the engine that CONFIG spreads over several hosts, until Ctrl-C
    ///
    /// Prints `ready backend://NAME` once its models are loaded, and with --admin
    /// `ready admin http://ADDRESS`. It connects to the scheduler and
    /// to the frontends by itself, again and again while they are away. The first Ctrl-C (or
    /// SIGTERM) lets its batches finish; a second one ends the process at once.
    Backend(Box<HostArguments>),
    /// Read CONFIG and load its models without serving; print every diagnostic as FILE:LINE: FIELD:
    /// wrong; right
    Check(CheckArguments),
    /// Check this host for CONFIG: limits, cores, clock, io_uring, ports, peers; print how to mend
    /// each
    ///
    /// Exit code 3 if something keeps the engine from running here, 0 if all that was found makes
    /// it slower.
    Doctor(DoctorArguments),
    /// Show what is in an ONNX file, what each executor makes of it, and a model.toml to start from
    ///
    /// The file is loaded, and run on zeros. Exit code 2 if it can't be read or no executor runs
    /// it.
    Inspect(InspectArguments),
    /// Compile an ONNX file to a plan: weights, and launches at fixed places of memory for each
    /// batch size
    ///
    /// Prints what became of the model, and writes it for devices to run. Exit code 2 if the file
    /// can't be read or has an operator that plans lack: the node is named.
    Compile(CompileArguments),
    /// Run the rows of a folder or a numpy file through a model, without deadlines
    ///
    /// The model is one of a server, or is loaded into this process. A run that was interrupted
    /// goes on where it ended, if the same command is given again. Rows that fail are listed, and
    /// the others go on. Exit code 1 if a row failed or the run was interrupted.
    Run(Box<RunArguments>),
    /// Show the state of a running server in this terminal until q is pressed
    ///
    /// The numbers are those of its dashboard; `?` lists the keys. Exit code 1 if there is no
    /// server or no terminal.
    Top(TopArguments),
    /// Load and unload the weights of models on a running server's GPUs, or list them
    ///
    /// The models stay served: requests for one without weights are answered 503. Exit code 1 if
    /// the server can't be reached or refuses, and says why.
    Ctl(CtlArguments),
    /// Replay recorded decisions through the scheduler and check that it decides the same
    ///
    /// Exit code 0 if it does, 1 if a decision differs (the first is shown), 2 if a file is no
    /// sound recording.
    Replay(ReplayArguments),
}

/// Runs the command that the process's arguments name, and returns the exit code.
pub fn run() -> ExitCode {
    ExitCode::from(run_with(std::env::args_os(), Options::default()))
}

/// Runs the command that `arguments` name as [`run`] does; an engine is started with `options`.
/// With it, tests make a thread of a server die or hang.
#[doc(hidden)]
pub fn run_with(arguments: impl IntoIterator<Item = OsString>, options: Options) -> u8 {
    let result = match CommandLine::parse_from(arguments).command {
        Command::Serve(arguments) => serve(*arguments, options),
        Command::Frontend(arguments) => frontend(*arguments, options),
        Command::Scheduler(arguments) => run_host(Role::Scheduler, *arguments, options),
        Command::Backend(arguments) => run_host(Role::Backend, *arguments, options),
        Command::Check(arguments) => check(arguments),
        Command::Doctor(arguments) => doctor(arguments),
        Command::Inspect(arguments) => inspect(arguments),
        Command::Compile(arguments) => compile(arguments),
        Command::Run(arguments) => run::run(*arguments),
        Command::Top(arguments) => top(arguments),
        Command::Ctl(arguments) => ctl(arguments),
        Command::Replay(arguments) => replay(arguments),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}
