//! The engine's CONFIG (docs/design/specification.md, "Command lines" and "Model configuration";
//! docs/configuration.md lists every key): a TOML file, or a folder with `symphony.toml` in it, to
//! [`Config`]. `symphony serve` starts from one, `symphony check` reads one and goes on to load the
//! models. The models of a repository (`repository.rs`) come after those of the file.

use super::access::AccessConfig;
use super::diagnostics::{Diagnostic, Diagnostics, Location};
use super::linear;
use super::reader::{Bounds, Table, Value, read, read_text};
use super::repository::{Control, RepositoryConfig};
use super::triton::Declared;
use super::workload_file::read_network;
use crate::telemetry::log::{LEVELS, LogConfig, LogFormat, level_named};
use crate::telemetry::otlp::TraceConfig;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;
use symphony_gpu::{DataType, ProfileTable, Signature, TableError, TensorSpec};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits;
use symphony_scheduler::policy::when::{self, When};
use symphony_scheduler::policy::{self, Policy};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;

/// The largest batch whose time is measured at load, unless `max_batch` says otherwise: measuring
/// takes time.
const MEASURED_BATCH: usize = 32;
/// CPU executors, each a thread.
const MAX_CPU_EXECUTORS: usize = 1_024;
/// Inputs, or outputs, of an emulated model.
const MAX_TENSORS: usize = 64;
/// Bytes of one element of BYTES.
const MAX_ELEMENT_BYTES: usize = 1 << 20;
/// Bytes of an emulated model's inputs and outputs per request: 16 such rows fit a frontend's slab.
const MAX_ROW_BYTES: usize = limits::MAX_SLAB_BYTES / 16;

/// What `symphony serve` runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The TOML file that it was read from.
    pub file: PathBuf,
    /// The scheduling policy, one of [`policy::served`].
    pub policy: &'static str,
    /// How long a batch is held back, instead of the policy's own rule.
    pub when: Option<&'static When>,
    /// What becomes of requests that stand in the way of a good batch.
    pub drop: DropRule,
    /// Delays that the scheduler allows for beyond what the engine measures itself.
    pub network: Network,
    /// Which thread runs where.
    pub cores: Cores,
    /// Limits of the HTTP server.
    pub http: HttpLimits,
    /// Who may ask for what, and where.
    pub access: AccessConfig,
    /// What is logged, and how.
    pub log: LogConfig,
    /// What is traced, and where traces go.
    pub trace: TraceConfig,
    /// What runs batches.
    pub executors: Vec<Executor>,
    /// The models to serve from the start: CONFIG's, then the repository's, each version by itself.
    /// No two have one name and version. A model's id is its location here. At least one, unless
    /// there is a repository.
    pub models: Vec<ModelConfig>,
    /// Where other models are, which may be loaded later.
    pub repository: Option<RepositoryConfig>,
}

impl Config {
    /// How many executors there are of a kind.
    pub fn executors_of(&self, kind: ExecutorKind) -> usize {
        self.executors.iter().filter(|e| e.kind == kind).map(|e| e.count).sum()
    }

    /// What runs the model of each id: that of each model to serve from the start, then of the ids
    /// that are kept for models which are loaded later.
    pub fn model_slots(&self) -> Vec<ExecutorKind> {
        let mut locations: Vec<ExecutorKind> = self.models.iter().map(|model| model.source.kind()).collect();
        let Some(repository) = self.repository.as_ref().filter(|from| from.control != Control::None) else {
            return locations;
        };
        for kind in [ExecutorKind::Cpu, ExecutorKind::Emulated] {
            if self.executors_of(kind) > 0 {
                let taken = locations.iter().filter(|location| **location == kind).count();
                let kept = repository.max_versions.saturating_sub(taken);
                locations.extend(std::iter::repeat_n(kind, kept));
            }
        }
        locations
    }

    /// How many models can be served at once by executors of a kind.
    pub fn models_of(&self, kind: ExecutorKind) -> usize {
        self.model_slots().into_iter().filter(|location| *location == kind).count()
    }

    /// The most sub-clusters that can be made: executors of different kinds are never in one, and
    /// beyond one a kind each has an executor and a model.
    pub fn most_sub_clusters(&self) -> usize {
        let of_a_kind = |kind| match self.executors_of(kind) {
            0 => 0,
            executors => executors.min(self.models_of(kind)).max(1),
        };
        [ExecutorKind::Cpu, ExecutorKind::Emulated].into_iter().map(of_a_kind).sum()
    }
}

/// Which role runs on which core. Where nothing is given the engine chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// ModelThreads; `None` for as many as the machine has room for.
    pub model_threads: Option<usize>,
    /// The core of each ModelThread; empty, or as many as there are ModelThreads.
    pub model: Vec<usize>,
    /// RankThreads, at least 1. There is a sub-cluster for each, at least.
    pub rank_threads: usize,
    /// The core of each RankThread; empty, or as many as there are RankThreads.
    pub rank: Vec<usize>,
    /// The core of the thread that plays the emulated GPUs.
    pub emulated: Option<usize>,
    /// The core of each API thread; empty means one thread on a core that the engine chooses.
    pub api: Vec<usize>,
}

impl Default for Cores {
    fn default() -> Cores {
        Cores {
            model_threads: Some(1),
            model: Vec::new(),
            rank_threads: 1,
            rank: Vec::new(),
            emulated: None,
            api: Vec::new(),
        }
    }
}

/// Limits of the HTTP server, for each API thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// A request with a larger body is refused.
    pub max_body_bytes: usize,
    /// Requests in the engine at once; more are answered `overloaded`.
    pub max_in_flight: usize,
    /// Open connections; more are closed at once.
    pub max_connections: usize,
    /// Requests at once on a connection that can have several.
    pub max_in_flight_per_connection: usize,
    /// A request that has begun must have come whole after this time.
    pub read_timeout: Duration,
    /// A connection without a request is closed after this time.
    pub idle_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            max_body_bytes: 64 << 20,
            max_in_flight: limits::MAX_IN_FLIGHT,
            max_connections: 4_096,
            max_in_flight_per_connection: 1_024,
            read_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// A kind of thing that runs batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExecutorKind {
    /// An ONNX model on one CPU core.
    Cpu,
    /// A GPU that only takes its time, and answers zeros.
    Emulated,
}

impl ExecutorKind {
    /// Its name in CONFIG.
    pub fn name(self) -> &'static str {
        match self {
            ExecutorKind::Cpu => "cpu",
            ExecutorKind::Emulated => "emulated",
        }
    }
}

/// A group of executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Executor {
    /// Their kind.
    pub kind: ExecutorKind,
    /// How many, at least 1.
    pub count: usize,
    /// The core of each; empty, or as many as `count`. Always empty for emulated ones.
    pub cores: Vec<usize>,
}

/// A model to serve.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Usable in a URL's path as it is.
    pub name: String,
    /// Which of the versions of that name, from 1.
    pub version: u64,
    /// What runs it.
    pub source: ModelSource,
    /// The latency promised.
    pub slo: Nanos,
    /// The largest batch.
    pub max_batch: usize,
    /// 0 (most urgent) to 3.
    pub priority: u8,
    /// Where its profile is from.
    pub profile: ProfileSource,
    /// What Triton's `config.pbtxt` says of its tensors.
    pub declared: Declared,
    /// Where the file says what may turn out wrong when the model is loaded.
    pub locations: ModelLocations,
}

/// ModelSlots for the diagnostics that only loading a model shows: a corrupt file, or a measured
/// l(1) over the SLO.
#[derive(Clone, Debug)]
pub struct ModelLocations {
    /// Of `file`.
    pub file: Location,
    /// Of `slo_ms`.
    pub slo: Location,
    /// Of `max_batch`.
    pub max_batch: Location,
}

/// What runs a model's batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The CPU executors run this ONNX file, which could be opened and is not empty; it was not
    /// parsed yet.
    Cpu {
        /// The file.
        file: PathBuf,
    },
    /// The emulated GPUs answer zeros of this signature's outputs.
    Emulated {
        /// The tensors of one request.
        signature: Signature,
    },
}

impl ModelSource {
    /// The kind of executor that runs it.
    pub fn kind(&self) -> ExecutorKind {
        match self {
            ModelSource::Cpu { .. } => ExecutorKind::Cpu,
            ModelSource::Emulated { .. } => ExecutorKind::Emulated,
        }
    }
}

/// Where a model's profile is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileSource {
    /// It is measured when the model is loaded, up to `max_batch`.
    Measure,
    /// CONFIG says it. It ends at `max_batch`, and l(1) keeps the SLO.
    Given(Profile),
}

/// What the command line says of the repository, over CONFIG.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepositoryFlags {
    /// Its folder.
    pub path: Option<PathBuf>,
    /// Who loads and unloads.
    pub control: Option<Control>,
    /// More models to load at start-up, with [`Control::Explicit`].
    pub load: Vec<String>,
}

/// The engine's configuration at `path`: a TOML file, or a folder with `symphony.toml` in it. Files
/// that it names are relative to its folder. Call it before any thread is pinned: it asks which
/// cores there are.
///
/// Errors: every diagnostic in it, in the profiles that it names, and in the models of its
/// repository.
pub fn read_config(path: &Path) -> Result<Config, Diagnostics> {
    read_config_with(Some(path), &RepositoryFlags::default(), &mut |_| ())
}

/// Reads the engine's configuration from TOML `text`, for programs that have the engine as a
/// library. Files that it names are relative to the current folder.
///
/// Errors: as [`read_config`].
pub fn parse_config(text: &str) -> Result<Config, Diagnostics> {
    let file = Path::new("symphony.toml");
    let (mut config, rank_threads) = read_text(file, text, |root| read_root(root, file, false))?;
    config.add_models_of_repository(&mut |_| ())?;
    config.check_rank_threads(rank_threads)?;
    Ok(config)
}

/// [`read_config`], with what the command line says of the repository. Without a `path`, a CPU
/// executor runs what the repository has. `note` is told of what is passed over in the repository's
/// files, in a line each.
///
/// Errors: as [`read_config`].
pub fn read_config_with(
    path: Option<&Path>,
    flags: &RepositoryFlags,
    note: &mut dyn FnMut(&str),
) -> Result<Config, Diagnostics> {
    let (mut config, rank_threads) = match path {
        None => (Config::for_repository(flags.path.clone().unwrap_or_default()), None),
        Some(path) => {
            let file = if path.is_dir() { path.join("symphony.toml") } else { path.to_path_buf() };
            read(&file, |root| read_root(root, &file, flags.path.is_some()))?
        }
    };
    config.heed(flags)?;
    config.add_models_of_repository(note)?;
    config.check_rank_threads(rank_threads)?;
    Ok(config)
}

impl Config {
    /// One CPU executor for the models of the repository at `path`.
    fn for_repository(path: PathBuf) -> Config {
        Config {
            file: path.join("symphony.toml"),
            policy: policy::POLICIES[0].name(),
            when: None,
            drop: policy::POLICIES[0].drop(),
            network: Network::default(),
            cores: Cores::default(),
            http: HttpLimits::default(),
            access: AccessConfig::default(),
            log: LogConfig::default(),
            trace: TraceConfig::default(),
            executors: vec![Executor { kind: ExecutorKind::Cpu, count: 1, cores: Vec::new() }],
            models: Vec::new(),
            repository: None,
        }
    }

    /// What the command line says of the repository holds over what CONFIG does.
    fn heed(&mut self, flags: &RepositoryFlags) -> Result<(), Diagnostics> {
        let location =
            |field: &str| Location { file: "command line".into(), line: 1, field: field.to_owned() };
        let given = self.repository.take();
        let mut repository = match (&flags.path, given) {
            (Some(path), Some(given)) => {
                RepositoryConfig { path: path.clone(), location: location("--model-repository"), ..given }
            }
            (Some(path), None) => RepositoryConfig::at(path.clone(), location("--model-repository")),
            (None, Some(given)) => given,
            (None, None) if flags.control.is_none() && flags.load.is_empty() => return Ok(()),
            (None, None) => {
                let right = "give --model-repository DIR too, or [repository] in CONFIG";
                let diagnostic =
                    location("--model-control-mode").diagnostic("there is no repository to control", right);
                return Err(Diagnostics(vec![diagnostic]));
            }
        };
        repository.control = flags.control.unwrap_or(repository.control);
        repository.load.extend(flags.load.iter().cloned());
        if !repository.load.is_empty() && repository.control != Control::Explicit {
            let wrong = "is given, and every model is loaded anyway";
            let right = "add --model-control-mode explicit";
            return Err(Diagnostics(vec![location("--load-model").diagnostic(wrong, right)]));
        }
        self.repository = Some(repository);
        Ok(())
    }

    /// Adds what the repository has for the start.
    fn add_models_of_repository(&mut self, note: &mut dyn FnMut(&str)) -> Result<(), Diagnostics> {
        let Some(repository) = &self.repository else { return Ok(()) };
        let kinds: Vec<ExecutorKind> = self.executors.iter().map(|executor| executor.kind).collect();
        let every = repository.control != Control::Explicit || repository.load.iter().any(|name| name == "*");
        let names = if every { repository.names()? } else { repository.load.clone() };
        let own: Vec<String> = self.models.iter().map(|model| model.name.clone()).collect();
        let mut diagnostics = Vec::new();
        for name in names {
            if own.contains(&name) {
                let file = repository.path.join(&name);
                let wrong = "CONFIG has a model of this name";
                let location = Location { file, line: 1, field: "name".into() };
                diagnostics.push(location.diagnostic(wrong, "give each model a name of its own"));
                continue;
            }
            match repository.read_model(&name, &kinds) {
                Ok(model) => {
                    model.notes.iter().for_each(|line| note(line));
                    self.models.extend(model.versions);
                }
                Err(Diagnostics(more)) => diagnostics.extend(more),
            }
        }
        let loaded = |kind| self.models.iter().filter(|model| model.source.kind() == kind).count();
        let most = loaded(ExecutorKind::Cpu).max(loaded(ExecutorKind::Emulated));
        if repository.control != Control::None && most > repository.max_versions {
            let wrong =
                format!("{most} versions to load are more than max_versions, {}", repository.max_versions);
            diagnostics
                .push(repository.location.diagnostic(wrong, "set max_versions in [repository] to more"));
        }
        if self.model_slots().len() > limits::MAX_MODELS {
            let wrong =
                format!("{} models and locations for later ones are too many", self.model_slots().len());
            let right = format!("one scheduler ranks at most {}: lower max_versions", limits::MAX_MODELS);
            diagnostics.push(repository.location.diagnostic(wrong, right));
        }
        if diagnostics.is_empty() { Ok(()) } else { Err(Diagnostics(diagnostics)) }
    }

    /// Whether each RankThread can have a sub-cluster. `location`: where CONFIG says how many there
    /// are.
    fn check_rank_threads(&self, location: Option<Location>) -> Result<(), Diagnostics> {
        let most = self.most_sub_clusters();
        match location {
            Some(location) if self.cores.rank_threads > most => {
                let wrong = format!(
                    "{} RankThreads are more than there can be sub-clusters",
                    self.cores.rank_threads
                );
                let right = format!(
                    "each sub-cluster has an executor and a model of its own: give at most {most}, or more executors \
                     and models"
                );
                Err(Diagnostics(vec![location.diagnostic(wrong, right)]))
            }
            _ => Ok(()),
        }
    }
}

/// CONFIG itself, and where it tells the number of RankThreads. `repository`: one is given besides.
fn read_root(root: &Table<'_>, file: &Path, repository: bool) -> Option<(Config, Option<Location>)> {
    let policy = read_policy(root);
    let when = read_when(root, policy);
    let rules = DropRule::ALL.map(|(_, name, _)| name);
    let drop = root.optional("drop").map_or(Some(None), |v| v.word(&rules).map(DropRule::parse));
    let network = read_network(root);
    let cores = read_cores(root);
    let http = read_http(root);
    let access = AccessConfig::read(root);
    let log = read_log(root);
    let trace = read_trace(root);
    let mut kinds = Kinds::default();
    let executors = root.tables("executors", 0, |table| read_executor(table, &mut kinds));
    let total: usize = executors.iter().map(|e| e.count).sum();
    if total > limits::MAX_GPUS {
        let right = format!("one scheduler matches at most {}: lower the counts", limits::MAX_GPUS);
        root.report("executors", format!("{total} executors in all are too many"), right);
    }
    let own = root.optional("repository").map(|value| value.table(RepositoryConfig::read));
    let least = usize::from(own.is_none() && !repository);
    let models = root.tables("models", least, |table| read_model(table, &kinds));
    if models.len() > limits::MAX_MODELS {
        let right = format!("one scheduler ranks at most {}", limits::MAX_MODELS);
        root.report("models", format!("{} models are too many", models.len()), right);
    }
    report_twins(root, &models);
    let (cores, rank_threads) = cores?;
    let config = Config {
        file: file.into(),
        policy: policy?.name(),
        when: when?,
        drop: drop?.unwrap_or(policy?.drop()),
        network: network?,
        cores,
        http: http?,
        access: access?,
        log: log?,
        trace: trace?,
        executors,
        models: models.into_iter().map(|(_, model)| model).collect(),
        repository: own.map_or(Some(None), |own| own.map(Some))?,
    };
    Some((config, rank_threads))
}

/// The policy: one that the pinned threads run.
fn read_policy(root: &Table<'_>) -> Option<&'static dyn Policy> {
    let Some(value) = root.optional("policy") else { return Some(policy::POLICIES[0]) };
    let served = policy::served();
    let named = value.is_text().then(|| value.text("a policy")).flatten().and_then(policy::by_name);
    if let Some(simulated) = named.filter(|policy| policy.deferral().is_none()) {
        let right = format!("serve with one of {}", served.join(", "));
        value.report(format!("\"{}\" runs in `simulate` only", simulated.name()), right);
        return None;
    }
    policy::by_name(value.word(&served)?)
}

/// The rule `when`, if there is one; a diagnostic where the policy has its own.
fn read_when(root: &Table<'_>, policy: Option<&dyn Policy>) -> Option<Option<&'static When>> {
    let Some(value) = root.optional("when") else { return Some(None) };
    let rule = when::by_name(value.word(&when::names())?)?;
    let policy = policy?;
    if !policy.options().contains(&"when") {
        let right = format!("take it out, or set policy = \"{}\"", policy::taking("when").join("\" or \""));
        value.report(format!("policy \"{}\" has a rule of its own", policy.name()), right);
        return None;
    }
    Some(Some(rule))
}

/// The kinds of executors that CONFIG has, as far as they could be read.
#[derive(Default)]
struct Kinds {
    known: Vec<ExecutorKind>,
    /// An entry's kind could not be read: it may be any.
    unclear: bool,
}

/// The kind of executor that `value` names; `ort` and `cuda` are known words that this version
/// can't honour.
pub(super) fn read_kind(value: &Value<'_>) -> Option<ExecutorKind> {
    match value.word(&["cpu", "emulated", "ort", "cuda"])? {
        "cpu" => Some(ExecutorKind::Cpu),
        "emulated" => Some(ExecutorKind::Emulated),
        later => {
            value.report(format!("\"{later}\" is not in this version"), "use \"cpu\" or \"emulated\"");
            None
        }
    }
}

fn read_executor(table: &Table<'_>, kinds: &mut Kinds) -> Option<Executor> {
    let kind = table.required("kind", "\"cpu\" or \"emulated\"").and_then(|v| read_kind(&v));
    match kind {
        Some(kind) => kinds.known.push(kind),
        None => kinds.unclear = true,
    }
    let most = if kind == Some(ExecutorKind::Cpu) { MAX_CPU_EXECUTORS } else { limits::MAX_GPUS };
    let count = table.optional("count").map(|v| v.count(1..=most));
    let cores = read_core_list(table, "cores", "executor", most)?;
    if kind == Some(ExecutorKind::Emulated) && !cores.is_empty() {
        table.report(
            "cores",
            "is given for emulated GPUs",
            "they share one thread: set `emulated` in [cores]",
        );
        return None;
    }
    let count = count.unwrap_or(Some(cores.len().max(1)))?;
    if !cores.is_empty() && cores.len() != count {
        let wrong = format!("lists {} cores for {count} executors", cores.len());
        table.report("cores", wrong, "list one core for each, or leave `count` out");
        return None;
    }
    Some(Executor { kind: kind?, count, cores })
}

/// A role that several threads may play, and the fields of [cores] about it.
struct Role {
    name: &'static str,
    /// The list of their cores.
    cores: &'static str,
    /// How many they are.
    count: &'static str,
    limit: usize,
}

const MODEL_THREAD: Role =
    Role { name: "ModelThread", cores: "model", count: "model_threads", limit: limits::MAX_MODEL_THREADS };

const RANK_THREAD: Role =
    Role { name: "RankThread", cores: "rank", count: "rank_threads", limit: limits::MAX_RANK_THREADS };

impl Role {
    /// The threads' cores, and how many threads there are: as many as cores, or one, unless
    /// `read_count` says otherwise; it may say `None` for a number that the engine chooses.
    fn read(
        &self,
        table: &Table<'_>,
        read_count: impl FnOnce(&Value<'_>) -> Option<Option<usize>>,
    ) -> Option<(Vec<usize>, Option<usize>)> {
        let cores = read_core_list(table, self.cores, self.name, self.limit);
        let one_each = cores.as_ref().map_or(1, |cores| cores.len().max(1));
        let count = table.optional(self.count).map_or(Some(Some(one_each)), |value| read_count(&value))?;
        let cores = cores?;
        if !cores.is_empty() && count != Some(cores.len()) {
            let wrong = format!("lists {} cores, which is not `{}`", cores.len(), self.count);
            let right = format!("list one core for each {}, or leave `{}` out", self.name, self.count);
            table.report(self.cores, wrong, right);
            return None;
        }
        Some((cores, count))
    }
}

/// The table [cores], and where it tells the number of RankThreads.
fn read_cores(root: &Table<'_>) -> Option<(Cores, Option<Location>)> {
    root.section("cores", |table| {
        let model = MODEL_THREAD.read(table, read_model_threads);
        let rank = RANK_THREAD.read(table, |value| value.count(1..=limits::MAX_RANK_THREADS).map(Some));
        let emulated = table.optional("emulated").map_or(Some(None), |v| read_core(&v).map(Some));
        let api = read_core_list(table, "api", "API thread", limits::MAX_FRONTENDS);
        let ((model, model_threads), (rank, rank_threads)) = (model?, rank?);
        let location =
            table.location(if table.has(RANK_THREAD.count) { RANK_THREAD.count } else { RANK_THREAD.cores });
        let rank_threads = rank_threads.unwrap_or(1);
        let cores = Cores { model_threads, model, rank_threads, rank, emulated: emulated?, api: api? };
        Some((cores, Some(location)))
    })
}

/// The number of ModelThreads, `Some(None)` where the engine is to choose.
fn read_model_threads(value: &Value<'_>) -> Option<Option<usize>> {
    if !value.is_text() {
        return value.count(1..=limits::MAX_MODEL_THREADS).map(Some);
    }
    let right = format!("\"auto\" or a whole number from 1 to {}", limits::MAX_MODEL_THREADS);
    if value.text(&right)? == "auto" {
        return Some(None);
    }
    value.refuse_value(right);
    None
}

/// The cores of as many threads of a role, or the one core; none where nothing is given.
fn read_core_list(table: &Table<'_>, name: &'static str, role: &str, limit: usize) -> Option<Vec<usize>> {
    let Some(value) = table.optional(name) else { return Some(Vec::new()) };
    if value.is_whole() {
        return read_core(&value).map(|core| vec![core]);
    }
    let items = value.items("it must be a list of core numbers, like [2, 3]")?;
    if items.len() > limit {
        let wrong = format!("lists {} cores, one for each {role}", items.len());
        value.report(wrong, format!("there may be {limit} {role}s at most"));
        return None;
    }
    items.iter().map(read_core).collect::<Vec<_>>().into_iter().collect()
}

fn read_core(value: &Value<'_>) -> Option<usize> {
    let core = value.count(0..=u16::MAX as usize)?;
    let cores: Vec<usize> = core_affinity::get_core_ids().unwrap_or_default().iter().map(|c| c.id).collect();
    if cores.is_empty() || cores.contains(&core) {
        return Some(core);
    }
    let numbers = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    value.report(format!("this process may not run on a core {core}"), format!("use one of {numbers}"));
    None
}

fn read_http(root: &Table<'_>) -> Option<HttpLimits> {
    let default = HttpLimits::default();
    root.section("http", |table| {
        let count =
            |name, most, otherwise| table.optional(name).map_or(Some(otherwise), |v| v.count(1..=most));
        let body = count("max_body_mb", 1_024, default.max_body_bytes >> 20);
        let in_flight = count("max_in_flight", limits::MAX_IN_FLIGHT, default.max_in_flight);
        let connections = count("max_connections", 65_536, default.max_connections);
        let each = count(
            "max_in_flight_per_connection",
            limits::MAX_IN_FLIGHT,
            default.max_in_flight_per_connection,
        );
        let seconds = |name, otherwise: Duration| {
            count(name, 86_400, otherwise.as_secs() as usize).map(|s| Duration::from_secs(s as u64))
        };
        let read_timeout = seconds("read_timeout_s", default.read_timeout);
        let idle_timeout = seconds("idle_timeout_s", default.idle_timeout);
        Some(HttpLimits {
            max_body_bytes: body? << 20,
            max_in_flight: in_flight?,
            max_connections: connections?,
            max_in_flight_per_connection: each?,
            read_timeout: read_timeout?,
            idle_timeout: idle_timeout?,
        })
    })
}

/// What is traced.
fn read_trace(root: &Table<'_>) -> Option<TraceConfig> {
    root.section("trace", |table| {
        let default = TraceConfig::default();
        let endpoint = table.optional("endpoint").map_or(Some(None), |value| {
            let text = value.text("the address of a collector")?;
            let endpoint = text.parse().map_err(|right| value.report(format!("is {text:?}"), right));
            endpoint.ok().map(Some)
        });
        let ratio = table.optional("sample_ratio");
        let ratio = ratio.map_or(Some(default.sample_ratio), |value| value.number(Bounds::from(0.0, 1.0)));
        let name = table.optional("service_name").map_or(Some(default.service_name), |value| {
            value.text("what the server is called in traces").map(str::to_owned)
        });
        Some(TraceConfig { endpoint: endpoint?, sample_ratio: ratio?, service_name: name? })
    })
}

fn read_log(root: &Table<'_>) -> Option<LogConfig> {
    let default = LogConfig::default();
    root.section("log", |table| {
        let formats = LogFormat::ALL.map(|(name, _)| name);
        let format = table
            .optional("format")
            .map_or(Some(default.format), |v| v.word(&formats).and_then(LogFormat::named));
        let level =
            table.optional("level").map_or(Some(default.level), |v| v.word(&LEVELS).and_then(level_named));
        Some(LogConfig { format: format?, level: level? })
    })
}

fn read_model(table: &Table<'_>, kinds: &Kinds) -> Option<(Location, ModelConfig)> {
    let name = table.required("name", "the name that clients ask for").and_then(|v| read_name(&v));
    let kind = table.optional("executor").map_or(Some(ExecutorKind::Cpu), |v| read_kind(&v));
    let slo = table.required("slo_ms", "the latency promised, in ms").and_then(|v| v.number(linear::SLO));
    let slo = slo.map(Nanos::from_millis_f64);
    let max_batch = table.optional("max_batch").map(|v| v.count(1..=limits::MAX_BATCH));
    let priority = table.optional("priority").map_or(Some(0), |v| v.integer(0..=3));
    let Some(kind) = kind else {
        // What else the model needs depends on what runs it.
        for name in ["file", "profile", "inputs", "outputs"] {
            table.optional(name);
        }
        return None;
    };
    if !kinds.unclear && !kinds.known.contains(&kind) {
        let kind = kind.name();
        let wrong = format!("the model runs on \"{kind}\", and there is no such executor");
        table.report("executor", wrong, format!("add a table [[executors]] with kind = \"{kind}\""));
    }
    let profile = read_profile(table, kind, slo);
    let source = match kind {
        ExecutorKind::Cpu => read_cpu_model(table),
        ExecutorKind::Emulated => read_emulated_model(table),
    };
    let (profile, max_batch) = limit_batch(profile?, max_batch.map_or(Some(None), |given| given.map(Some))?);
    let locations = ModelLocations {
        file: table.location("file"),
        slo: table.location("slo_ms"),
        max_batch: table.location("max_batch"),
    };
    let (name, source, slo, priority) = (name?, source?, slo?, priority? as u8);
    let declared = Declared::default();
    let model =
        ModelConfig { name, version: 1, source, slo, max_batch, priority, profile, declared, locations };
    Some((table.location("name"), model))
}

/// The profile and the largest batch, each kept within the other; `asked` is what the user says of
/// the latter.
pub(super) fn limit_batch(profile: ProfileSource, asked: Option<usize>) -> (ProfileSource, usize) {
    match profile {
        ProfileSource::Measure => (profile, asked.unwrap_or(MEASURED_BATCH)),
        ProfileSource::Given(profile) => {
            let profile = profile.truncated(asked.unwrap_or(limits::MAX_BATCH));
            let max_batch = profile.max_batch();
            (ProfileSource::Given(profile), max_batch)
        }
    }
}

/// Whether a model may have this name: it stands in URLs.
pub(super) fn name_is_good(name: &str) -> bool {
    const LONGEST: usize = 128;
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= LONGEST && !name.starts_with('.') && name.chars().all(good)
}

fn read_name(value: &Value<'_>) -> Option<String> {
    let name = value.text("the name that clients ask for")?;
    if !name_is_good(name) {
        let right = "1 to 128 letters, digits, `_`, `-` and `.`, not beginning with `.`: it stands in URLs";
        value.refuse_value(right);
        return None;
    }
    Some(name.into())
}

fn read_cpu_model(table: &Table<'_>) -> Option<ModelSource> {
    for name in ["inputs", "outputs"] {
        if table.optional(name).is_some() {
            table.report(name, "is given for a model with a file", "leave it out: the file says it");
        }
    }
    let value = table.required("file", "the model's ONNX file")?;
    let file = table.folder().join(value.text("the model's ONNX file")?);
    let right = "name an ONNX file by its path from the folder of this file";
    match is_empty(&file) {
        Ok(false) => Some(ModelSource::Cpu { file }),
        Ok(true) => {
            value.report(format!("{} is empty", file.display()), right);
            None
        }
        Err(e) => {
            value.report(format!("{} can't be read ({e})", file.display()), right);
            None
        }
    }
}

/// Whether a file has no bytes; an error if it can't be read, or is none.
fn is_empty(file: &Path) -> std::io::Result<bool> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    Ok(File::open(file)?.read(&mut [0])? == 0)
}

pub(super) fn read_emulated_model(table: &Table<'_>) -> Option<ModelSource> {
    if table.optional("file").is_some() {
        table.report("file", "is given for an emulated model", "leave it out: nothing is computed");
    }
    let (inputs, outputs) =
        (read_tensors(table, "inputs", "input"), read_tensors(table, "outputs", "output"));
    emulated(table, Signature { inputs: inputs?, outputs: outputs? })
}

/// An emulated model of these tensors, if a request of it fits in a frontend's memory.
pub(super) fn emulated(table: &Table<'_>, signature: Signature) -> Option<ModelSource> {
    let specs = signature.inputs.iter().chain(&signature.outputs);
    let bytes = specs.map(TensorSpec::bytes).fold(0, usize::saturating_add);
    if bytes > MAX_ROW_BYTES {
        let wrong = format!("inputs and outputs take {bytes} bytes a request");
        table.report("inputs", wrong, format!("at most {MAX_ROW_BYTES} bytes fit: make the shapes smaller"));
        return None;
    }
    Some(ModelSource::Emulated { signature })
}

/// The tensors of an emulated model; one of four FP32 values if there are none.
fn read_tensors(table: &Table<'_>, field: &'static str, default: &str) -> Option<Vec<TensorSpec>> {
    let Some(value) = table.optional(field) else {
        return Some(vec![TensorSpec { name: default.into(), datatype: DataType::Fp32, shape: vec![4] }]);
    };
    const RIGHT: &str = "it must be a list, like [{ name = \"x\", datatype = \"FP32\", shape = [4] }]";
    let items = value.items(RIGHT)?;
    if items.is_empty() || items.len() > MAX_TENSORS {
        value.report(format!("has {} tensors", items.len()), format!("give 1 to {MAX_TENSORS}"));
        return None;
    }
    let tensors: Vec<Option<TensorSpec>> = items.iter().map(|item| item.table(read_tensor)).collect();
    let tensors: Vec<TensorSpec> = tensors.into_iter().collect::<Option<_>>()?;
    for (at, tensor) in tensors.iter().enumerate() {
        if tensors[..at].iter().any(|before| before.name == tensor.name) {
            value.report(format!("has two tensors named \"{}\"", tensor.name), "give each a name of its own");
            return None;
        }
    }
    Some(tensors)
}

fn read_tensor(table: &Table<'_>) -> Option<TensorSpec> {
    let name = table.required("name", "the tensor's name").and_then(|v| v.text("the tensor's name"));
    let datatype = read_datatype(table);
    let shape = table.required("shape", "the shape of one request's tensor, like [3, 32, 32]");
    let shape = shape.and_then(|v| read_shape(&v, datatype?));
    Some(TensorSpec { name: name?.into(), datatype: datatype?, shape: shape? })
}

/// The type of a tensor's elements; for BYTES with the most bytes that one may have, since room is
/// kept for them.
fn read_datatype(table: &Table<'_>) -> Option<DataType> {
    const RIGHT: &str = "the most bytes that an element of BYTES may have, like 256";
    let names: Vec<&str> = DataType::ALL.iter().map(|t| t.name()).chain(["BYTES"]).collect();
    let name = table.required("datatype", "the type of its elements, like \"FP32\"");
    let name = name.and_then(|v| v.word(&names));
    let most = table.optional("max_bytes");
    match (name?, most) {
        ("BYTES", Some(most)) => most.count(1..=MAX_ELEMENT_BYTES).map(|most| DataType::Bytes(most as u32)),
        ("BYTES", None) => {
            table.report("max_bytes", "is missing", format!("add {RIGHT}"));
            None
        }
        (name, None) => DataType::parse(name),
        (name, Some(_)) => {
            let wrong = format!("is given for elements of {name}, which have one size");
            table.report("max_bytes", wrong, format!("leave it out: it is {RIGHT}"));
            None
        }
    }
}

fn read_shape(value: &Value<'_>, datatype: DataType) -> Option<Vec<usize>> {
    let items = value.items("it must be a list of sizes without the batch's, like [3, 32, 32]")?;
    let sizes: Vec<Option<usize>> = items.iter().map(|item| item.count(1..=MAX_ROW_BYTES)).collect();
    let shape: Vec<usize> = sizes.into_iter().collect::<Option<_>>()?;
    let tensor = TensorSpec { name: String::new(), datatype, shape };
    if tensor.bytes() > MAX_ROW_BYTES {
        value.report("is of too large a tensor", format!("at most {MAX_ROW_BYTES} bytes fit"));
        return None;
    }
    Some(tensor.shape)
}

pub(super) fn read_profile(
    table: &Table<'_>,
    kind: ExecutorKind,
    slo: Option<Nanos>,
) -> Option<ProfileSource> {
    const RIGHT: &str = "\"measure\", a CSV file's name, or { alpha_ms = 1.0, beta_ms = 5.0 }";
    let Some(value) = table.optional("profile") else {
        if kind == ExecutorKind::Cpu {
            return Some(ProfileSource::Measure);
        }
        let right = "add { alpha_ms = 1.0, beta_ms = 5.0 } or a CSV file's name: an emulated model needs one";
        table.report("profile", "is missing", right);
        return None;
    };
    if value.is_table() {
        let terms = value.table(linear::read_terms)?;
        return given(table, linear::profile(terms, slo?));
    }
    if !value.is_text() {
        value.refuse(RIGHT);
        return None;
    }
    match value.text(RIGHT)? {
        "measure" if kind == ExecutorKind::Cpu => Some(ProfileSource::Measure),
        "measure" => {
            let right = "give { alpha_ms = 1.0, beta_ms = 5.0 } or a CSV file's name";
            value.report("an emulated model has nothing to measure", right);
            None
        }
        file => {
            let path = table.folder().join(file);
            let measured =
                ProfileTable::read(&path).map_err(|error| profile_diagnostic(&value, table, error)).ok()?;
            given(table, measured_profile(&measured, slo?))
        }
    }
}

fn given(table: &Table<'_>, profile: Result<Profile, (String, String)>) -> Option<ProfileSource> {
    match profile {
        Ok(profile) => Some(ProfileSource::Given(profile)),
        Err((wrong, right)) => {
            table.report("slo_ms", wrong, right);
            None
        }
    }
}

/// The profile of a measured table, without the batches that no request could wait for.
fn measured_profile(table: &ProfileTable, slo: Nanos) -> Result<Profile, (String, String)> {
    let mut latencies = table.latencies();
    latencies.truncate(limits::MAX_BATCH);
    linear::check_alone(latencies.first().copied().unwrap_or_default(), slo)?;
    latencies.retain(|&latency| latency <= slo);
    Profile::measured(&latencies)
        .map_err(|e| (format!("is of a bad profile ({e})"), "measure it again".into()))
}

/// Reports what is wrong with a profile's file: at its own line where there is one.
fn profile_diagnostic(value: &Value<'_>, table: &Table<'_>, error: TableError) {
    match error {
        TableError::Line { path, line, problem } => {
            let (wrong, right) =
                problem.split_once("; ").unwrap_or((&problem, "mend it, or measure it again"));
            let (wrong, right) = (wrong.into(), right.into());
            table.add(Diagnostic { file: path, line, field: "profile".into(), wrong, right });
        }
        TableError::Unreadable { path, source } => {
            let wrong = format!("{} can't be read ({source})", path.display());
            value.report(wrong, "give \"measure\", or a CSV file with the columns batch,p50_ms,p99_ms");
        }
        other => value.report(other, "measure it again"),
    }
}

fn report_twins(root: &Table<'_>, models: &[(Location, ModelConfig)]) {
    let mut lines: HashMap<&str, usize> = HashMap::new();
    for (location, model) in models {
        if let Some(line) = lines.insert(&model.name, location.line) {
            let wrong = format!("\"{}\" is already the name of the model at line {line}", model.name);
            root.add(location.diagnostic(wrong, "give each model a name of its own"));
        }
    }
}
