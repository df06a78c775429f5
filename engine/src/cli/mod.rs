//! What the `symphony` binary's commands do. Each returns once its work is over, or a [`Failure`]
//! that knows its exit code.

mod access;
mod replay;
mod top;

pub use replay::replay;
pub use top::top;

use self::access::Access;
use crate::api;
use crate::api::{ApiConfig, ApiError, SharedState};
use crate::config::{
    AccessConfig, Config, Control, Diagnostic, Diagnostics, ExecutorKind, HttpLimits, ModelConfig,
    ModelSource, RepositoryFlags, read_config_with,
};
use crate::control::Repository;
use crate::recorder::{RecordConfig, RecordError};
use crate::runtime::frontend::ModelInfo;
use crate::runtime::{Engine, Options, Placement, Progress, StartError};
use crate::telemetry::Observatory;
use crate::telemetry::log::LogFlags;
use crate::telemetry::otlp::{Exporter, TraceFlags};
use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use symphony_gpu::CpuModel;

/// How often `serve` looks for signals and dead threads.
const WATCH_EVERY: Duration = Duration::from_millis(50);

/// Why a command failed; shown to the user as it is.
#[derive(Debug)]
pub enum Failure {
    /// The run itself failed: exit code 1.
    Run(String),
    /// The usage or the input is wrong: exit code 2.
    Input(String),
    /// The machine lacks something: exit code 3.
    Machine(String),
}

impl Failure {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Run(_) => 1,
            Failure::Input(_) => 2,
            Failure::Machine(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Failure::Run(text) | Failure::Input(text) | Failure::Machine(text)) = self;
        f.write_str(text)
    }
}

impl From<Diagnostics> for Failure {
    fn from(diagnostics: Diagnostics) -> Failure {
        Failure::Input(diagnostics.to_string())
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        let text = error.to_string();
        match error {
            StartError::Config(_) | StartError::Limit { .. } | StartError::Policy(..) => Failure::Input(text),
            StartError::Record(error) => error.into(),
            StartError::Slab(_) | StartError::Thread(_) => Failure::Machine(text),
            StartError::Died(_) => Failure::Run(text),
        }
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Failure {
        let text = error.to_string();
        match error {
            RecordError::Create(..) => Failure::Machine(text),
            _ => Failure::Input(text),
        }
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        let text = error.to_string();
        match error {
            ApiError::PortInUse(_) | ApiError::PortForbidden(_) | ApiError::NoSuchAddress(_) => {
                Failure::Input(text)
            }
            ApiError::Listen(..) | ApiError::Machine(_) | ApiError::Thread(_) => Failure::Machine(text),
            ApiError::Died => Failure::Run(text),
        }
    }
}

/// Reads the configuration at `path`, and all models of its repository, and loads them, without
/// serving.
///
/// Errors: every diagnostic in it, exit code 2.
pub fn check(path: Option<&Path>, repository: &RepositoryFlags) -> Result<(), Failure> {
    let config = read_config_with(path, repository, &mut |line| eprintln!("{line}"))?;
    let (others, mut diagnostics) = models_loaded_later(&config);
    diagnostics.extend(config.access.load_tls().err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong));
    diagnostics.extend(config.access.load_tokens().err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong));
    for model in config.models.iter().chain(&others) {
        diagnostics.extend(try_to_load(model));
    }
    if !diagnostics.is_empty() {
        return Err(Diagnostics(diagnostics).into());
    }
    let executors: usize = config.executors.iter().map(|executor| executor.count).sum();
    let models = config.models.len() + others.len();
    let checked =
        if path.is_some() { &config.file } else { repository.path.as_ref().unwrap_or(&config.file) };
    println!("{}: ok; {models} models, {executors} executors", checked.display());
    Ok(())
}

/// The models of the repository that are not loaded at start-up, and the diagnostics in their
/// files.
fn models_loaded_later(config: &Config) -> (Vec<ModelConfig>, Vec<Diagnostic>) {
    let explicit = config.repository.as_ref().filter(|from| from.control == Control::Explicit);
    let Some(repository) = explicit else { return (Vec::new(), Vec::new()) };
    let kinds: Vec<ExecutorKind> = config.executors.iter().map(|executor| executor.kind).collect();
    let (mut models, mut diagnostics) = (Vec::new(), Vec::new());
    let names = repository.names().unwrap_or_else(|Diagnostics(more)| {
        diagnostics.extend(more);
        Vec::new()
    });
    for name in names.iter().filter(|name| config.models.iter().all(|model| model.name != **name)) {
        match repository.read_model(name, &kinds) {
            Ok(model) => models.extend(model.versions),
            Err(Diagnostics(more)) => diagnostics.extend(more),
        }
    }
    (models, diagnostics)
}

/// What is wrong with a model that only loading it shows.
fn try_to_load(model: &ModelConfig) -> Vec<Diagnostic> {
    let ModelSource::Cpu { file } = &model.source else { return Vec::new() };
    match CpuModel::load(file, model.max_batch) {
        Ok(loaded) => model.declared.check(loaded.signature()),
        Err(error) => {
            vec![model.locations.file.diagnostic(error, "give an ONNX model that the CPU executor can run")]
        }
    }
}

/// Where to listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// For HTTP.
    pub http: SocketAddr,
    /// For gRPC.
    pub grpc: SocketAddr,
}

/// Serves the configuration at `path`, or the models of the repository alone, until SIGINT or
/// SIGTERM, with flight recorders if `record` says where.
///
/// Errors: a diagnostic in the configuration, an address that can't be had, a machine without what
/// the engine needs.
pub fn serve(
    path: Option<&Path>,
    repository: &RepositoryFlags,
    addresses: Addresses,
    access: &AccessConfig,
    record: Option<RecordConfig>,
    log: &LogFlags,
    trace: &TraceFlags,
) -> Result<(), Failure> {
    let (ending, again) = watch_signals()?;
    let mut notes = Vec::new();
    let config = read_config_with(path, repository, &mut |line| notes.push(line.to_string()))?;
    config.log.with(log).start();
    notes.iter().for_each(|note| tracing::info!("{note}"));
    let samples = config.file.parent().unwrap_or(Path::new(".")).join("samples");
    let http_limits = config.http.clone();
    let access = Access::load(config.access.with(access))?;
    let api_threads = config.cores.api.len().max(1);
    let say: Progress = Arc::new(|line| tracing::info!("{line}"));
    let recorded = record.is_some();
    let (mut engine, frontends) = Engine::start_with(
        config.clone(),
        api_threads,
        Arc::clone(&say),
        Options { record, ..Options::default() },
    )?;
    let repository = control_repository(&config, &mut engine, recorded, &say)?;
    let models = Arc::clone(engine.models());
    describe(&engine);
    let exporter = export_traces(&config, trace, &engine)?;
    let traces = exporter.as_ref().map(|exporter| Arc::clone(exporter.counts()));
    let observatory = Arc::new(Observatory::of(&engine).with_traces(traces));
    let mut servers = Vec::new();
    let shared = SharedState::new().with_repository(repository.clone()).with_traces(exporter.as_ref());
    let api = api_config(addresses, &http_limits, api_threads, &observatory);
    let admin = access.config.admin_beside(&[addresses.http, addresses.grpc]);
    let (tls, tokens) = (access.tls.clone(), access.tokens.clone());
    let mut api = ApiConfig { shared, admin, tls, tokens, ..api };
    for (frontend, &placement) in frontends.into_iter().zip(&engine.layout().frontends) {
        let server = api::start(frontend, ApiConfig { placement, ..api.clone() })?;
        (api.addr, api.grpc, api.admin) = (server.local_addr(), server.grpc_addr(), server.admin_addr());
        servers.push(server);
    }
    let (address, grpc) = (api.addr, api.grpc.unwrap_or(addresses.grpc));
    // In one piece, and nobody need be there any more to read it: who waits for the first line may
    // go then.
    let ready = access.ready(address, grpc, api.admin);
    let _ = std::io::stdout().lock().write_all(ready.as_bytes());
    access.describe(&[address, grpc]);
    if let Some(line) = sample_request(&models, &samples, &access.url(address)) {
        tracing::info!("try: {line}");
    }
    let died = wait(&engine, &observatory, &ending, &|| {
        if again.swap(false, Ordering::Relaxed) {
            access.reload();
        }
    });
    tracing::info!("stopping: accepted requests are finished first; press Ctrl-C again to end at once");
    engine.drain();
    for server in servers {
        server.stop()?;
    }
    if let Some(repository) = repository {
        repository.stop();
    }
    engine.stop();
    if let Some(exporter) = exporter {
        exporter.stop();
    }
    match died {
        Some(thread) => {
            Err(Failure::Run(format!("the engine's thread {thread} died; its last words are above")))
        }
        None => Ok(()),
    }
}

/// Starts the thread that sends traces, where a collector is named: on other cores than those of
/// pinned threads.
fn export_traces(config: &Config, flags: &TraceFlags, engine: &Engine) -> Result<Option<Exporter>, Failure> {
    let trace = config.trace.clone().with(flags);
    let failed = |error| Failure::Machine(format!("the system gave no thread: {error}"));
    let exporter =
        Exporter::start(&trace, engine.clock().clone(), engine.layout().cores()).map_err(failed)?;
    if let Some(endpoint) = trace.endpoint.filter(|_| exporter.is_some()) {
        let (collector, ratio) = (endpoint.to_string(), trace.sample_ratio);
        tracing::info!(collector, ratio, service = trace.service_name, "traces");
    }
    Ok(exporter)
}

/// Starts the control of the repository, where there is one that is to be controlled.
fn control_repository(
    config: &Config,
    engine: &mut Engine,
    recorded: bool,
    say: &Progress,
) -> Result<Option<Arc<Repository>>, Failure> {
    let controlled = config.repository.as_ref().is_some_and(|from| from.control != Control::None);
    if controlled && recorded {
        say(
            "note: no model is loaded or unloaded later: the flight recorder is told of the models once, as it begins",
        );
    }
    let Some(places) = engine.take_model_slots() else { return Ok(None) };
    let started = Repository::start(config, places, Arc::clone(say));
    let failed = |error| Failure::Machine(format!("the system gave no thread: {error}"));
    started.map(|repository| Some(Arc::new(repository))).map_err(failed)
}

fn api_config(
    addresses: Addresses,
    limits: &HttpLimits,
    threads: usize,
    observatory: &Arc<Observatory>,
) -> ApiConfig {
    ApiConfig {
        grpc: Some(addresses.grpc),
        share_port: threads > 1,
        observatory: Some(Arc::clone(observatory)),
        max_body_bytes: limits.max_body_bytes,
        max_connections: limits.max_connections,
        max_requests_at_once: limits.max_in_flight_per_connection,
        read_timeout: limits.read_timeout,
        idle_timeout: limits.idle_timeout,
        ..ApiConfig::at(addresses.http)
    }
}

/// A flag that the first SIGINT or SIGTERM sets, while the second ends the process; and one that
/// each SIGHUP sets.
fn watch_signals() -> Result<(Arc<AtomicBool>, Arc<AtomicBool>), Failure> {
    let unwatched = |error| Failure::Machine(format!("signals can't be watched: {error}"));
    let again = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::clone(&again)).map_err(unwatched)?;
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Registered in this order: while the flag is not yet set the first does nothing, and the
        // second sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .map_err(unwatched)?;
    }
    Ok((flag, again))
}

/// Waits for a signal, or for a thread to die: then says which. Meanwhile it is the one who looks
/// at the engine, and calls `meanwhile`.
fn wait(
    engine: &Engine,
    observatory: &Observatory,
    ending: &AtomicBool,
    meanwhile: &dyn Fn(),
) -> Option<String> {
    while !ending.load(Ordering::Relaxed) {
        meanwhile();
        let dead = engine.dead();
        observatory.look(dead.as_deref());
        if dead.is_some() {
            return dead;
        }
        std::thread::sleep(WATCH_EVERY);
    }
    None
}

/// Says what runs where.
fn describe(engine: &Engine) {
    let layout = engine.layout();
    let core = |placement: &Placement| placement.core.map_or("any".to_owned(), |core| core.to_string());
    let list = |placements: &[Placement]| placements.iter().map(core).collect::<Vec<_>>().join(",");
    tracing::info!(
        rank = list(&layout.ranks),
        models = list(&layout.models),
        cpu_executors = list(&layout.executors),
        emulated = layout.emulated.as_ref().map_or("none".to_owned(), core),
        api = list(&layout.frontends),
        "cores"
    );
    if layout.shared {
        tracing::info!(
            "this machine has fewer cores than the engine has threads, so they share; it works, slower: a thread sees \
             that a time has come up to {:.2} ms late, and the scheduler allows for that",
            engine.lateness().as_millis_f64()
        );
    }
    for (model, profile) in engine.models().iter().zip(engine.profiles()) {
        tracing::info!(
            model = model.name,
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

/// A command line that sends the first sample that the configuration's folder has for one of its
/// models.
fn sample_request(models: &[ModelInfo], samples: &Path, server: &str) -> Option<String> {
    models.iter().find_map(|model| {
        let sample = samples.join(format!("{}.json", model.name));
        sample
            .is_file()
            .then(|| format!("curl -s {server}/v2/models/{}/infer -d @{}", model.name, sample.display()))
    })
}
