//! `symphony frontend`, `scheduler` and `backend`: one host of an engine that CONFIG spreads over
//! several.

use super::failure::CommandFailure;
use super::operator_endpoint::{OperatorArguments, OperatorEndpoint};
use super::serve::{THREADS_END_WITHIN, log_layout, serve_as, wait};
use super::serve_arguments::{LogArguments, ServeArguments};
use super::shutdown::{Shutdown, cut_off_after};
use crate::config::{Config, Role, read_config};
use crate::recorder::RecordConfig;
use crate::runtime::{Engine, HostIdentity, Options};
use crate::telemetry::log;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The arguments of `frontend`.
#[derive(Args)]
pub(super) struct FrontendArguments {
    #[command(flatten)]
    serve: ServeArguments,
    #[command(flatten)]
    place: PlaceArguments,
}

/// The arguments that say which host this is, and where.
#[derive(Args)]
struct PlaceArguments {
    /// The name of this host in CONFIG; not needed where it is the only one of its role
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where this host listens for others and they reach it, in place of its address in CONFIG;
    /// backends have none
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    address: Option<String>,
}

fn address(text: &str) -> Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(text.to_owned()),
        _ => Err("it must be HOST:PORT, such as 10.0.0.7:7400".to_owned()),
    }
}

/// The arguments of `scheduler` and `backend`.
#[derive(Args)]
pub(super) struct HostArguments {
    /// A TOML file, or a folder with symphony.toml in it: the same on all hosts
    config: PathBuf,
    #[command(flatten)]
    place: PlaceArguments,
    /// Keep the last decisions of each scheduler thread in a file in DIR, for `symphony replay`
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    #[command(flatten)]
    operators: OperatorArguments,
    #[command(flatten)]
    log: LogArguments,
}

/// Serves as a host with frontends, until SIGINT or SIGTERM.
///
/// Errors: those of `serve`, or CONFIG has no such host.
pub(super) fn frontend(arguments: FrontendArguments, options: Options) -> Result<(), CommandFailure> {
    let FrontendArguments { serve, place: PlaceArguments { name, address } } = arguments;
    let find = |config: &Config| find_host(config, Role::Frontend, name.as_deref()).map(Some);
    serve_as(&find, serve, Options { address, ..options })
}

/// Returns the host of a role.
fn find_host(config: &Config, role: Role, name: Option<&str>) -> Result<HostIdentity, CommandFailure> {
    HostIdentity::find(config, role, name).map_err(CommandFailure::Input)
}

/// Runs the scheduler or a backend until SIGINT or SIGTERM, and then until nothing is under way.
///
/// Errors: a diagnostic of the configuration, an address that can't be used, a machine without what
/// the host needs, a thread that died, what was cut off.
pub(super) fn run_host(role: Role, arguments: HostArguments, options: Options) -> Result<(), CommandFailure> {
    let shutdown = Shutdown::watch_signals()?;
    let HostArguments { config: path, place, record, operators, log: log_flags } = arguments;
    let PlaceArguments { name, address } = place;
    let config = read_config(&path)?;
    log::start(config.log.with(&log_flags.into()));
    let identity = find_host(&config, role, name.as_deref())?;
    let access = operators.load(&config)?;
    let record = record.map(|folder| RecordConfig { folder, mib: RecordConfig::DEFAULT_MIB });
    let progress = Arc::new(|line: &str| tracing::info!("{line}"));
    let timeout = config.shutdown.timeout;
    let name = identity.host(&config).name.clone();
    let options = Options { record, address, ..options };
    let (engine, mut frontends) = Engine::start_host(config.clone(), identity, progress, options)?;
    shutdown.serving(timeout, engine.faults().clone());
    log_layout(&engine);
    let endpoint = OperatorEndpoint::start(&config, access, &engine, frontends.pop())?;
    print_ready(role, &name, &engine, &endpoint);
    let logged = wait(&engine, &endpoint.telemetry, &shutdown, &endpoint.access);
    tracing::info!("stopping: what is under way is finished first; press Ctrl-C again to end at once");
    engine.drain();
    let has_drained = wait_until_drained(&engine, cut_off_after(timeout));
    if has_drained {
        shutdown.answered();
    }
    endpoint.stop();
    let fault = engine.fault().cloned();
    let _ = engine.stop_within(THREADS_END_WITHIN);
    if let Some(fault) = fault {
        if !logged {
            tracing::error!("{fault}");
        }
        return Err(CommandFailure::Fault(format!(
            "ended by the fault of thread {}, logged above",
            fault.thread
        )));
    }
    match has_drained {
        true => Ok(()),
        false => Err(CommandFailure::CutOff(format!(
            "not all that was under way ended in time (shutdown_timeout_s = {}): other hosts end it",
            timeout.as_secs()
        ))),
    }
}

/// Waits until nothing is under way, and returns false if that takes too long or the engine can't
/// go on.
fn wait_until_drained(engine: &Engine, within: Duration) -> bool {
    let until = Instant::now() + within;
    while Instant::now() < until && engine.fault().is_none() {
        if engine.links().is_none_or(|links| links.has_drained()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Prints that the host is ready, in one write: a reader may close the pipe after the first line.
fn print_ready(role: Role, name: &str, engine: &Engine, endpoint: &OperatorEndpoint) {
    let address = engine.links().and_then(|links| links.listens_at());
    let place = address.map_or(name.to_owned(), |address| address.to_string());
    let lines = format!("ready {}://{place}\n{}", role.name(), endpoint.ready());
    let _ = std::io::stdout().lock().write_all(lines.as_bytes());
}
