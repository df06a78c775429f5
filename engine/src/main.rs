//! The `symphony` binary: `serve` runs the engine behind its HTTP and gRPC API until Ctrl-C,
//! `check` validates a configuration without serving. What a command line means is here; the work
//! is in the library.

use clap::{Args, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use symphony::cli::{Addresses, check, replay, serve, top};
use symphony::config::{
    AccessConfig, Endpoint, LEVELS, LogFlags, LogFormat, RepositoryControl, RepositoryFlags, TraceFlags,
};
use symphony::recorder::RecordConfig;
use symphony::recorder::replay::Wanted;
use symphony::top::TopOptions;

/// Serves neural networks under deadlines: batches wait until the last moment at which they can
/// still grow.
#[derive(Parser)]
#[command(version, about, after_help = EXIT_CODES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str =
    "Exit codes: 0 done; 1 the run failed; 2 bad usage or configuration; 3 the machine lacks something.";

#[derive(Subcommand)]
enum Command {
    /// Load the models of CONFIG and serve them over HTTP and gRPC (KServe v2) until Ctrl-C
    ///
    /// Prints `ready http://ADDRESS` and `ready grpc://ADDRESS` on standard output once it serves;
    /// everything else goes to standard error. The first Ctrl-C (or SIGTERM) lets accepted requests
    /// finish; a second one ends at once.
    Serve(Box<ServeArguments>),
    /// Read CONFIG and load its models without serving; print every diagnostic as FILE:LINE: FIELD:
    /// wrong; right
    Check {
        /// A TOML file, or a folder with symphony.toml in it; without one, the repository's models
        /// are checked
        #[arg(required_unless_present = "model_repository")]
        config: Option<PathBuf>,
        #[command(flatten)]
        repository: RepositoryArguments,
    },
    /// Show what a running server does, in this terminal, until q is pressed
    ///
    /// The same numbers as on its dashboard; `?` lists the keys. Exit code 1 if there is no server
    /// or no terminal.
    Top {
        /// The server's address
        #[arg(default_value = "http://127.0.0.1:8000")]
        url: String,
        /// Print one frame as plain text, 80 columns wide, and end
        #[arg(long)]
        once: bool,
        /// Seconds between two looks at the server, 0.1 to 60
        #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
        interval: f64,
        /// A file with the bearer token that the server wants, if it wants one
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// Use no colours; the environment variable NO_COLOR says the same
        #[arg(long)]
        no_color: bool,
    },
    /// Feed recorded decisions through the scheduler again and say whether the same ones come out
    ///
    /// Exit code 0 if they do, 1 if one differs (the first is shown), 2 if a file is no sound
    /// recording.
    Replay {
        /// A file of `serve --record`, or the folder that has them
        recording: PathBuf,
        /// Tell why the request of this id was batched, dropped or late
        #[arg(long, value_name = "ID")]
        request: Option<u64>,
        /// The frontend (API core) that took the request in; ids are unique per frontend
        #[arg(long, value_name = "F", requires = "request")]
        frontend: Option<u32>,
    },
}

/// What `serve` takes.
#[derive(Args)]
struct ServeArguments {
    /// A TOML file, or a folder with symphony.toml in it; without one, a CPU executor runs the
    /// repository's models
    #[arg(required_unless_present = "model_repository")]
    config: Option<PathBuf>,
    #[command(flatten)]
    repository: RepositoryArguments,
    /// Where to listen for HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    http: SocketAddr,
    /// Where to listen for gRPC; 127.0.0.1:8001 if not given, or a free port if --http has port 0
    #[arg(long, value_name = "ADDR")]
    grpc: Option<SocketAddr>,
    #[command(flatten)]
    access: AccessArguments,
    /// Keep the last decisions of each scheduler thread in a file in DIR, for `symphony replay`
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// The size of each of these files, in MiB
    #[arg(long, value_name = "N", default_value_t = RecordConfig::DEFAULT_MIB, requires = "record",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    record_mib: usize,
    #[command(flatten)]
    log: LogArguments,
    #[command(flatten)]
    trace: TraceArguments,
}

/// Who may ask for what, and where. CONFIG's [api] says the same; docs/security.md tells of it.
#[derive(Args)]
struct AccessArguments {
    /// Where to answer admin calls (load, unload, settings, shared memory, metrics, dashboard), and
    /// nowhere else; 127.0.0.1:8002 if not given and --http or --grpc is not on loopback
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Speak TLS with the certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer only who brings one of the bearer tokens in this TOML file; SIGHUP has it read again
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

impl From<AccessArguments> for AccessConfig {
    fn from(given: AccessArguments) -> AccessConfig {
        AccessConfig { admin: given.admin, tls: given.tls_cert.zip(given.tls_key), tokens: given.tokens }
    }
}

/// What is logged on standard error. CONFIG's [log] says the same.
#[derive(Args)]
struct LogArguments {
    /// How a log line looks: text, or one JSON object a line [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = LogFormat::ALL.map(|(name, _)| name))]
    log_format: Option<String>,
    /// The least important lines that are logged [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
    log_level: Option<String>,
}

impl From<LogArguments> for LogFlags {
    fn from(given: LogArguments) -> LogFlags {
        LogFlags { format: given.log_format, level: given.log_level }
    }
}

/// Where traces of requests go. CONFIG's [trace] says the same; docs/tracing.md tells of it.
#[derive(Args)]
struct TraceArguments {
    /// Send OpenTelemetry traces to this collector, by OTLP over HTTP, such as
    /// http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<Endpoint>,
    /// The share of the requests that are traced, 0 to 1, of those whose client does not say
    /// [default: 0.01]
    #[arg(long, value_name = "RATIO", value_parser = ratio)]
    trace_ratio: Option<f64>,
}

impl From<TraceArguments> for TraceFlags {
    fn from(given: TraceArguments) -> TraceFlags {
        TraceFlags { endpoint: given.otlp, sample_ratio: given.trace_ratio }
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "it must be a number from 0 to 1".to_owned())
}

/// The repository of models, in Triton's words. docs/repository.md tells of it.
#[derive(Args)]
struct RepositoryArguments {
    /// A folder of models, NAME/VERSION/model.onnx, to serve besides those of CONFIG
    #[arg(long, value_name = "DIR")]
    model_repository: Option<PathBuf>,
    /// Who loads and unloads its models later: nobody, the server as the folder changes, or clients
    #[arg(long, value_name = "MODE", value_parser = RepositoryControl::ALL.map(|(name, _)| name))]
    model_control_mode: Option<String>,
    /// A model to load at start-up, with --model-control-mode explicit; `*` is all of them; may be
    /// given again
    #[arg(long, value_name = "NAME")]
    load_model: Vec<String>,
}

impl From<RepositoryArguments> for RepositoryFlags {
    fn from(given: RepositoryArguments) -> RepositoryFlags {
        let named = |mode: String| RepositoryControl::ALL.into_iter().find(|(name, _)| *name == mode);
        let control = given.model_control_mode.and_then(named).map(|(_, control)| control);
        RepositoryFlags { path: given.model_repository, control, load: given.load_model }
    }
}

/// Where gRPC is served if nothing is said of it. Whoever lets the system choose a port for HTTP
/// runs several servers on one machine, most likely.
fn grpc_beside(http: SocketAddr) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], if http.port() == 0 { 0 } else { 8001 }))
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.ok_or_else(|| "it must be a number of seconds from 0.1 to 60".to_owned())
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Command::Serve(given) => {
            let ServeArguments { config, repository, http, grpc, access, record, record_mib, log, trace } =
                *given;
            let record = record.map(|folder| RecordConfig { folder, mib: record_mib });
            let addresses = Addresses { http, grpc: grpc.unwrap_or_else(|| grpc_beside(http)) };
            serve(
                config.as_deref(),
                &repository.into(),
                addresses,
                &access.into(),
                record,
                &log.into(),
                &trace.into(),
            )
        }
        Command::Check { config, repository } => check(config.as_deref(), &repository.into()),
        Command::Top { url, once, interval, token_file, no_color } => {
            let plain = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            let every = Duration::from_secs_f64(interval);
            top(&url, token_file.as_deref(), TopOptions { once, every, coloured: !plain })
        }
        Command::Replay { recording, request, frontend } => {
            replay(&recording, request.map(|id| Wanted { id, frontend }))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
