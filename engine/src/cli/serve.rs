//! `symphony serve`: runs the engine behind its HTTP and gRPC API until a signal stops it.

use super::access::ServeAccess;
use super::failure::CommandFailure;
use super::serve_arguments::ServeArguments;
use super::shutdown::{Shutdown, cut_off_after};
use crate::api::{self, ApiConfig, ApiHandle, SharedState};
use crate::config::{Config, RepositoryControl, TraceFlags, read_config_with};
use crate::control::Repository;
use crate::control::weights::GpuLoaders;
use crate::runtime::frontend::{ModelInfo, SlotState};
use crate::runtime::{Engine, FatalFault, Frontend, HostIdentity, Options, Placement, Progress};
use crate::telemetry::Telemetry;
use crate::telemetry::log;
use crate::telemetry::otlp::Exporter;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The interval at which `serve` checks for signals and dead threads.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// The longest wait for threads once all requests have their answers.
pub(super) const THREADS_END_WITHIN: Duration = Duration::from_secs(2);

/// The addresses of the server's listeners.
#[derive(Clone, Copy)]
struct Addresses {
    http: SocketAddr,
    grpc: SocketAddr,
}

/// Serves the configuration, or the models of the repository alone, until SIGINT or SIGTERM.
///
/// Errors: a diagnostic of the configuration, an address that can't be used, a machine without what
/// the engine needs, a thread that died.
pub(super) fn serve(arguments: ServeArguments, options: Options) -> Result<(), CommandFailure> {
    serve_as(&|_| Ok(None), arguments, options)
}

/// Serves as [`serve`] does, as the host that `find` returns of the configuration, if it is one.
///
/// Errors: those of [`serve`] and `find`.
pub(super) fn serve_as(
    find: &dyn Fn(&Config) -> Result<Option<HostIdentity>, CommandFailure>,
    arguments: ServeArguments,
    options: Options,
) -> Result<(), CommandFailure> {
    let shutdown = Shutdown::watch_signals()?;
    let addresses = Addresses { http: arguments.http, grpc: arguments.grpc_address() };
    let record = arguments.record_config();
    let ServeArguments { config: path, repository, access, log: log_flags, trace, .. } = arguments;
    let mut notes = Vec::new();
    let config =
        read_config_with(path.as_deref(), &repository.into(), &mut |line| notes.push(line.to_string()))?;
    log::start(config.log.with(&log_flags.into()));
    notes.iter().for_each(|note| tracing::info!("{note}"));
    let access = ServeAccess::load(config.access.with(&access.into()))?;
    let progress: Progress = Arc::new(|line| tracing::info!("{line}"));

    let host = find(&config)?;
    let api_threads = host.map_or(config.cores.api.len().max(1), |host| host.host(&config).api_threads);
    let recorded = record.is_some();
    let admin = access.config.admin_beside(&[addresses.http, addresses.grpc]);
    let options = Options { record, side_frontends: usize::from(admin.is_some()), ..options };
    let before_cycle = options.before_cycle.clone();
    let progressing = Arc::clone(&progress);
    let (mut engine, mut frontends) = match host {
        None => Engine::start_with(config.clone(), api_threads, progressing, options)?,
        Some(host) => Engine::start_host(config.clone(), host, progressing, options)?,
    };
    shutdown.serving(config.shutdown.timeout, engine.faults().clone());
    let repository = control_repository(&config, &mut engine, recorded, &progress)?;
    let loaders = gpu_loaders(&config, &engine, &progress)?;
    log_layout(&engine);
    frontends.iter().take(1).for_each(log_room);
    let exporter = export_traces(&config, &trace.into(), &engine)?;
    let traces = exporter.as_ref().map(|exporter| Arc::clone(exporter.counts()));
    let telemetry = Arc::new(Telemetry::of(&engine).with_traces(traces));

    let shared = SharedState::new().with_repository(repository.clone()).with_traces(exporter.as_ref());
    let shared = shared.with_gpu_loaders(loaders.clone()).with_hook(before_cycle);
    let (tls, tokens) = (access.tls.clone(), access.tokens.clone());
    let allowed_hosts = access.config.allowed_hosts.clone();
    let api = api_config(addresses, &config, api_threads, &telemetry);
    let mut api = ApiConfig { shared, tls, tokens, allowed_hosts, ..api };
    let mut servers = Vec::new();
    for (frontend, addr) in frontends.split_off(api_threads).into_iter().zip(admin) {
        let server = api::start_admin(frontend, addr, api.clone())?;
        (api.admin, api.admin_elsewhere) = (server.admin_addr(), true);
        servers.push(server);
    }
    for (frontend, &placement) in frontends.into_iter().zip(&engine.layout().frontends) {
        let server = api::start(frontend, ApiConfig { placement, ..api.clone() })?;
        // The first server resolves port 0; the others share its ports.
        (api.addr, api.grpc, api.admin) = (server.local_addr(), server.grpc_addr(), server.admin_addr());
        servers.push(server);
    }
    let addresses = Addresses { http: api.addr, grpc: api.grpc.unwrap_or(addresses.grpc) };
    print_ready(&config, &engine, &access, addresses, api.admin);

    let logged = wait(&engine, &telemetry, &shutdown, &access);
    tracing::info!("stopping: accepted requests are finished first; press Ctrl-C again to end at once");
    let (fault, cut_off) = RunningServer { engine, servers, repository, loaders, exporter }.stop(&shutdown);
    if let Some(fault) = fault {
        if !logged {
            tracing::error!("{fault}");
        }
        let FatalFault { thread, .. } = fault;
        return Err(CommandFailure::Fault(format!("ended by the fault of thread {thread}, logged above")));
    }
    if cut_off > 0 {
        let seconds = config.shutdown.timeout.as_secs();
        return Err(CommandFailure::CutOff(format!(
            "{cut_off} requests had no answer in time and were answered 503 (shutdown_timeout_s = {seconds})"
        )));
    }
    Ok(())
}

/// The parts of a server that end one after another.
struct RunningServer {
    engine: Engine,
    servers: Vec<ApiHandle>,
    repository: Option<Arc<Repository>>,
    loaders: Option<Arc<GpuLoaders>>,
    exporter: Option<Exporter>,
}

impl RunningServer {
    /// Ends the parts. Returns the engine's fault, if it has one, and the number of requests that
    /// were cut off.
    fn stop(self, shutdown: &Shutdown) -> (Option<FatalFault>, usize) {
        let RunningServer { engine, servers, repository, loaders, exporter } = self;
        engine.drain();
        let cut_off = stop_servers(servers);
        if cut_off == 0 {
            shutdown.answered();
        }
        if let Some(repository) = repository {
            repository.stop_within(THREADS_END_WITHIN);
        }
        if let Some(loaders) = loaders {
            loaders.stop_within(THREADS_END_WITHIN);
        }
        let fault = engine.fault().cloned();
        // Whoever waited for it has an answer: a thread that hangs only now is no fault.
        let _ = engine.stop_within(THREADS_END_WITHIN);
        if let Some(exporter) = exporter {
            exporter.stop();
        }
        (fault, cut_off)
    }
}

/// Stops all API cores at once, waits for them, and returns the number of requests that were cut
/// off.
fn stop_servers(mut servers: Vec<ApiHandle>) -> usize {
    servers.iter_mut().for_each(ApiHandle::begin_stop);
    // One that has died has reported a fault.
    servers.into_iter().map(|server| server.stop().unwrap_or(0)).sum()
}

/// Prints that the server is ready, and logs what its addresses permit and a sample request.
fn print_ready(
    config: &Config,
    engine: &Engine,
    access: &ServeAccess,
    addresses: Addresses,
    admin: Option<SocketAddr>,
) {
    // All lines are one write, and a failure is ignored: a reader may close the pipe after the
    // first.
    let ready = access.ready(addresses.http, addresses.grpc, admin);
    let _ = std::io::stdout().lock().write_all(ready.as_bytes());
    access.log_open_addresses(&[addresses.http, addresses.grpc]);
    let samples = config.file.parent().unwrap_or(Path::new(".")).join("samples");
    let models = engine.models().iter().map(|model| &model.name);
    let names = config.queries.iter().map(|query| &query.name).chain(models);
    if let Some(line) = sample_request(names, &samples, &access.url(addresses.http)) {
        tracing::info!("try: {line}");
    }
}

/// Starts the thread that sends traces, if a collector is named, on cores without pinned threads.
fn export_traces(
    config: &Config,
    flags: &TraceFlags,
    engine: &Engine,
) -> Result<Option<Exporter>, CommandFailure> {
    let trace = config.trace.clone().with(flags);
    let failed = |error| CommandFailure::Machine(format!("the system gave no thread: {error}"));
    let exporter =
        Exporter::start(&trace, engine.clock().clone(), engine.layout().cores()).map_err(failed)?;
    if let Some(endpoint) = trace.endpoint.filter(|_| exporter.is_some()) {
        let (collector, ratio) = (endpoint.to_string(), trace.sample_ratio);
        tracing::info!(collector, ratio, service = trace.service_name, "traces");
    }
    Ok(exporter)
}

/// Starts the control plane of the repository, if its models may be loaded later.
fn control_repository(
    config: &Config,
    engine: &mut Engine,
    recorded: bool,
    progress: &Progress,
) -> Result<Option<Arc<Repository>>, CommandFailure> {
    let controlled = config.repository.as_ref().is_some_and(|from| from.control != RepositoryControl::None);
    if controlled && recorded {
        progress(
            "note: no model is loaded or unloaded later: the flight recorder is told of the models once, as it begins",
        );
    }
    let Some(slots) = engine.take_model_slots() else { return Ok(None) };
    let started = Repository::start(config, slots, Arc::clone(progress));
    let failed = |error| CommandFailure::Machine(format!("the system gave no thread: {error}"));
    started.map(|repository| Some(Arc::new(repository))).map_err(failed)
}

/// Starts the loaders of the process's GPUs, if it has any.
fn gpu_loaders(
    config: &Config,
    engine: &Engine,
    progress: &Progress,
) -> Result<Option<Arc<GpuLoaders>>, CommandFailure> {
    if engine.gpu_memory().gpus().is_empty() {
        return Ok(None);
    }
    let started = GpuLoaders::start(engine, config.faults.hung_after, progress);
    let failed = |error| CommandFailure::Machine(format!("the system gave no thread: {error}"));
    started.map(|loaders| Some(Arc::new(loaders))).map_err(failed)
}

/// Returns the configuration that all API threads share.
fn api_config(
    addresses: Addresses,
    Config { http: limits, shutdown, .. }: &Config,
    threads: usize,
    telemetry: &Arc<Telemetry>,
) -> ApiConfig {
    ApiConfig {
        grpc: Some(addresses.grpc),
        share_port: threads > 1,
        telemetry: Some(Arc::clone(telemetry)),
        stop_timeout: cut_off_after(shutdown.timeout),
        limits: limits.clone(),
        ..ApiConfig::at(addresses.http)
    }
}

/// Waits for a signal to stop, or for a fault that the engine can't survive, which it logs; returns
/// true if there was one. Meanwhile it updates the telemetry and reloads certificates and tokens on
/// SIGHUP.
pub(super) fn wait(
    engine: &Engine,
    telemetry: &Telemetry,
    shutdown: &Shutdown,
    access: &ServeAccess,
) -> bool {
    while !shutdown.is_asked() {
        if shutdown.take_reload() {
            access.reload();
        }
        let fault = engine.fault();
        telemetry.observe(fault.map(|fault| fault.thread.as_str()));
        if let Some(fault) = fault {
            tracing::error!("{fault}");
            return true;
        }
        std::thread::sleep(WATCH_EVERY);
    }
    false
}

/// Logs how many rows of each size an API core can have in flight.
fn log_room(frontend: &Frontend) {
    let room = frontend.room_by_row_size().into_iter();
    let list: Vec<String> = room.map(|(bytes, rows)| format!("{rows} of up to {bytes} bytes")).collect();
    tracing::info!("rows in flight, for each API core ([memory] slab_mb): {}", list.join(", or "));
}

/// Logs the core of each thread, and the profile of each model.
pub(super) fn log_layout(engine: &Engine) {
    let layout = engine.layout();
    let core = |placement: &Placement| placement.core.map_or("any".to_owned(), |core| core.to_string());
    let list = |placements: &[Placement]| placements.iter().map(core).collect::<Vec<_>>().join(",");
    tracing::info!(
        rank = list(&layout.ranks),
        models = list(&layout.models),
        cpu_executors = list(&layout.executors),
        emulated = layout.emulated.as_ref().map_or("none".to_owned(), core),
        api = list(&layout.frontends),
        links = layout.links.as_ref().map_or("none".to_owned(), core),
        "cores"
    );
    if layout.shared {
        tracing::info!(
            "this machine has fewer cores than the engine has threads, so they share; it works, slower: a thread sees \
             that a time has come up to {:.2} ms late, and the scheduler allows for that",
            engine.lateness().as_millis_f64()
        );
    }
    let serving = |(model, _): &(&ModelInfo, _)| model.state == SlotState::Serving;
    for (model, profile) in engine.models().iter().zip(engine.profiles()).filter(serving) {
        tracing::info!(
            model = &*model.label(),
            version = model.version,
            slo_ms = model.slo.as_millis_f64(),
            max_batch = model.max_batch,
            "model: l(1) = {:.3} ms, l({}) = {:.3} ms",
            profile.latency(1).as_millis_f64(),
            model.max_batch,
            profile.latency(model.max_batch).as_millis_f64(),
        );
    }
}

/// Returns a command line that sends the first sample in the configuration's folder for a query or
/// a model of these names.
fn sample_request<'n>(
    mut names: impl Iterator<Item = &'n String>,
    samples: &Path,
    server: &str,
) -> Option<String> {
    names.find_map(|name| {
        let sample = samples.join(format!("{name}.json"));
        let line = || format!("curl -s {server}/v2/models/{name}/infer -d @{}", sample.display());
        sample.is_file().then(line)
    })
}
