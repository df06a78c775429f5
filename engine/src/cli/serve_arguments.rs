//! The arguments of `symphony serve`.

use super::repository::RepositoryArguments;
use crate::config::{AccessConfig, Endpoint, LEVELS, LogFlags, LogFormat, TraceFlags, is_host};
use crate::recorder::RecordConfig;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// The arguments of `serve`.
#[derive(Args)]
pub(super) struct ServeArguments {
    /// A TOML file, or a folder with symphony.toml in it; without one, a CPU executor runs the
    /// repository's models
    #[arg(required_unless_present = "model_repository")]
    pub(super) config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) repository: RepositoryArguments,
    /// The address to listen at for HTTP; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    pub(super) http: SocketAddr,
    /// The address to listen at for gRPC; 127.0.0.1:8001 if not given, or a free port if --http has
    /// port 0
    #[arg(long, value_name = "ADDR")]
    pub(super) grpc: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) access: AccessArguments,
    /// Keep the last decisions of each scheduler thread in a file in DIR, for `symphony replay`
    #[arg(long, value_name = "DIR")]
    pub(super) record: Option<PathBuf>,
    /// The size of each of these files, in MiB
    #[arg(long, value_name = "N", default_value_t = RecordConfig::DEFAULT_MIB, requires = "record",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub(super) record_mib: usize,
    #[command(flatten)]
    pub(super) log: LogArguments,
    #[command(flatten)]
    pub(super) trace: TraceArguments,
}

/// Flags about access control, which override `[api]` of CONFIG; docs/security.md is for users.
#[derive(Args)]
pub(super) struct AccessArguments {
    /// The only address at which admin calls (load, unload, settings, shared memory, metrics,
    /// dashboard) are answered; 127.0.0.1:8002 if not given and --http or --grpc is not on loopback
    #[arg(long, value_name = "ADDR")]
    admin: Option<SocketAddr>,
    #[command(flatten)]
    guard: GuardArguments,
}

/// Flags about who may ask, which override `[api]` of CONFIG too.
#[derive(Args)]
pub(super) struct GuardArguments {
    /// Use TLS with the certificates in this PEM file
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, a PEM file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer only clients with one of the bearer tokens in this TOML file; SIGHUP reloads it
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// A name, besides those of loopback, by which clients may address the server on loopback where
    /// there are no tokens, and the host of web pages that may ask; may be repeated
    #[arg(long, value_name = "NAME", value_parser = host)]
    allowed_host: Vec<String>,
    /// Let everybody who reaches --admin make admin calls, though it is not on loopback and there
    /// are no tokens
    #[arg(long)]
    insecure_admin: bool,
}

fn host(text: &str) -> Result<String, String> {
    let right = "it must be a name without a scheme and a port, like models.example";
    if is_host(text) { Ok(text.to_owned()) } else { Err(right.to_owned()) }
}

impl From<AccessArguments> for AccessConfig {
    fn from(given: AccessArguments) -> AccessConfig {
        given.guard.of_listener(given.admin)
    }
}

impl GuardArguments {
    /// Returns what the flags say, with this admin listener.
    pub(super) fn of_listener(self, admin: Option<SocketAddr>) -> AccessConfig {
        AccessConfig {
            admin,
            tls: self.tls_cert.zip(self.tls_key),
            tokens: self.tokens,
            allowed_hosts: self.allowed_host,
            insecure_admin: self.insecure_admin,
        }
    }
}

/// Flags about log lines, which override `[log]` of CONFIG.
#[derive(Args)]
pub(super) struct LogArguments {
    /// The format of log lines: text, or one JSON object per line [default: text]
    #[arg(long, value_name = "FORMAT", value_parser = LogFormat::ALL.map(|(name, _)| name))]
    log_format: Option<String>,
    /// The least important level that is logged [default: info]
    #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
    log_level: Option<String>,
}

impl From<LogArguments> for LogFlags {
    fn from(given: LogArguments) -> LogFlags {
        LogFlags { format: given.log_format, level: given.log_level }
    }
}

/// Flags about traces, which override `[trace]` of CONFIG; docs/tracing.md is for users.
#[derive(Args)]
pub(super) struct TraceArguments {
    /// Send OpenTelemetry traces to this collector, by OTLP over HTTP, such as
    /// http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<Endpoint>,
    /// The fraction of requests that are traced, 0 to 1, among those whose client does not decide
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

impl ServeArguments {
    /// Returns the address of gRPC: the given one, or the default beside that of HTTP.
    pub(super) fn grpc_address(&self) -> SocketAddr {
        self.grpc.unwrap_or_else(|| grpc_beside(self.http))
    }

    /// Returns the configuration of the flight recorders, if they are to run.
    pub(super) fn record_config(&self) -> Option<RecordConfig> {
        self.record.as_ref().map(|folder| RecordConfig { folder: folder.clone(), mib: self.record_mib })
    }
}

/// Returns the default address of gRPC. A user who lets the system choose the port of HTTP probably
/// runs several servers on the machine.
fn grpc_beside(http: SocketAddr) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], if http.port() == 0 { 0 } else { 8001 }))
}
