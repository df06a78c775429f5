//! A repository of models in Triton's layout, read from its folder; docs/repository.md is for
//! users.
//!
//! ```text
//! REPOSITORY/
//!   shapes/                the model's name
//!     config.pbtxt         Triton's words for it, optional (`triton.rs`)
//!     model.toml           ours: SLO, executor, priority, profile
//!     1/model.onnx         its versions
//!     2/model.onnx
//!     2/model.toml         optional: instead of the one above, for this version
//! ```
//!
//! The commands read one at start-up, with CONFIG; `control` reads a model again whenever it is
//! loaded. Nothing here remembers anything.

use super::diagnostics::{Diagnostic, Diagnostics, Location};
use super::engine_config::{
    ExecutorKind, ModelConfig, ModelLocations, ModelSource, ProfileSource, emulated, limit_batch,
    name_is_good, read_emulated_model, read_kind, read_profile,
};
use super::linear;
use super::reader::{Table, read};
use super::triton::{self, Declared, DeclaredTensor, TritonConfig};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use symphony_gpu::{Signature, TensorSpec};
use symphony_scheduler::limits;
use symphony_transport::Nanos;

/// The most models or versions that a folder may have, and files that are looked at for changes in
/// each.
const MAX_ENTRIES: usize = limits::MAX_MODELS;

/// Who loads and unloads models while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Nobody: what the repository has at start-up is loaded, and that is it.
    None,
    /// The engine: it looks at the repository now and then and follows its changes.
    Poll,
    /// Clients of the API. At start-up only what is named is loaded.
    Explicit,
}

impl Control {
    /// All of them by their names in CONFIG, which are Triton's.
    pub const ALL: [(&'static str, Control); 3] =
        [("none", Control::None), ("poll", Control::Poll), ("explicit", Control::Explicit)];
}

/// Where the repository is, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryConfig {
    /// Its folder.
    pub path: PathBuf,
    /// Who loads and unloads.
    pub control: Control,
    /// Between two looks at it, with [`Control::Poll`].
    pub poll: Duration,
    /// The models to load at start-up, with [`Control::Explicit`]; `*` is every model.
    pub load: Vec<String>,
    /// The SLO of models whose `model.toml` has none.
    pub slo: Option<Nanos>,
    /// Versions of models that may be loaded at once, for each kind of executor.
    pub max_versions: usize,
    /// The most bytes of one request's inputs and outputs that a model loaded later may have.
    pub max_row_bytes: usize,
    /// Where CONFIG names the repository.
    pub location: Location,
}

impl RepositoryConfig {
    /// The repository at `path` with defaults for everything else; `location` is where the path was
    /// given.
    pub fn at(path: PathBuf, location: Location) -> RepositoryConfig {
        RepositoryConfig {
            path,
            control: Control::None,
            poll: Duration::from_secs(15),
            load: Vec::new(),
            slo: None,
            max_versions: 64,
            max_row_bytes: 1 << 20,
            location,
        }
    }

    /// The section [repository] of CONFIG.
    pub(super) fn read(table: &Table<'_>) -> Option<RepositoryConfig> {
        let path =
            table.required("path", "the repository's folder").and_then(|v| v.text("the folder's name"));
        let default =
            RepositoryConfig::at(table.folder().join(path.unwrap_or_default()), table.location("path"));
        let words = Control::ALL.map(|(word, _)| word);
        let control = table.optional("control").map_or(Some("none"), |value| value.word(&words));
        let count = |name, most, otherwise| {
            table.optional(name).map_or(Some(otherwise), |value| value.count(1..=most))
        };
        let poll = count("poll_seconds", 86_400, default.poll.as_secs() as usize);
        let max_versions = count("max_versions", limits::MAX_MODELS, default.max_versions);
        let row_kb = count("max_row_kb", limits::MAX_SLAB_BYTES >> 14, default.max_row_bytes >> 10);
        let slo = table.optional("slo_ms").map_or(Some(None), |value| value.number(linear::SLO).map(Some));
        let load = match table.optional("load") {
            None => Some(Vec::new()),
            Some(value) => {
                let items = value.items("it must be a list of models' names, like [\"shapes\"]");
                items.and_then(|items| {
                    let names: Vec<_> = items.iter().map(|item| item.text("a model's name")).collect();
                    names.into_iter().map(|name| name.map(str::to_owned)).collect()
                })
            }
        };
        let (_, control) = Control::ALL.into_iter().find(|(word, _)| Some(*word) == control)?;
        let load = load?;
        if !load.is_empty() && control != Control::Explicit {
            table.report("load", "is given, and everything is loaded anyway", "set control = \"explicit\"");
        }
        path?;
        Some(RepositoryConfig {
            control,
            poll: Duration::from_secs(poll? as u64),
            load,
            slo: slo?.map(Nanos::from_millis_f64),
            max_versions: max_versions?,
            max_row_bytes: row_kb? << 10,
            ..default
        })
    }

    /// The names of its models: those of its folders, sorted.
    ///
    /// Errors: it can't be read, or has a folder whose name can't be a model's.
    pub fn names(&self) -> Result<Vec<String>, Diagnostics> {
        let failed = |error: std::io::Error| {
            let wrong = format!("{} can't be read ({error})", self.path.display());
            Diagnostics(vec![
                self.location.diagnostic(wrong, "name a folder that has a folder for each model"),
            ])
        };
        let mut names = Vec::new();
        let mut diagnostics = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)?.take(MAX_ENTRIES) {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Also by a link: that is how some deploy.
            if name.starts_with('.') || !entry.path().is_dir() {
                continue;
            }
            if name_is_good(&name) {
                names.push(name);
            } else {
                let location = Location { file: entry.path(), line: 1, field: "name".into() };
                let right =
                    "call the folder by 1 to 128 letters, digits, `_`, `-` and `.`: the name stands in URLs";
                diagnostics.push(location.diagnostic("can't be a model's name", right));
            }
        }
        names.sort();
        if diagnostics.is_empty() { Ok(names) } else { Err(Diagnostics(diagnostics)) }
    }

    /// Whether [`RepositoryConfig::names`] could have this one: a name that a client sends need not
    /// be one.
    pub fn has(&self, name: &str) -> bool {
        name_is_good(name) && self.path.join(name).is_dir()
    }

    /// The model `name` as its folder has it now, for executors of these kinds.
    ///
    /// Errors: every diagnostic in its files. Whether the model itself can run only loading it
    /// shows.
    pub fn read_model(&self, name: &str, kinds: &[ExecutorKind]) -> Result<RepositoryModel, Diagnostics> {
        let folder = self.path.join(name);
        let location = Location { file: folder.clone(), line: 1, field: "model".into() };
        if !self.has(name) {
            let wrong = format!("the repository has no model \"{}\"", printable(name));
            return Err(Diagnostics(vec![location.diagnostic(wrong, "add a folder of that name to it")]));
        }
        let mut notes = Vec::new();
        let pbtxt = folder.join("config.pbtxt");
        let triton = match pbtxt.exists() {
            true => triton::read(&pbtxt, name, &mut notes).map_err(Diagnostics)?,
            false => TritonConfig::default(),
        };
        let found = versions_in(&folder);
        let reading = Reading { repository: self, name, folder: &folder, triton: &triton, kinds };
        let mut versions = Vec::new();
        let mut diagnostics = Vec::new();
        // An emulated model has no file, so it needs no folder for one.
        let only = if found.is_empty() { vec![1] } else { Vec::new() };
        for version in triton.versions.choose(&found).into_iter().chain(only) {
            match reading.version(version) {
                Ok(model) => versions.push(model),
                Err(Diagnostics(more)) => diagnostics.extend(more),
            }
        }
        if versions.is_empty() && diagnostics.is_empty() {
            let wrong = format!("its version_policy chooses none of the versions {found:?}");
            diagnostics.push(location.diagnostic(wrong, "choose one of them, or add a version's folder"));
        }
        if diagnostics.is_empty() {
            Ok(RepositoryModel { versions, notes })
        } else {
            diagnostics.dedup();
            Err(Diagnostics(diagnostics))
        }
    }

    /// What the files of the model `name` look like from outside: as long as it is the same, so are
    /// they.
    pub fn stamp(&self, name: &str) -> Stamp {
        let folder = self.path.join(name);
        let mut files = Vec::new();
        stamp_folder(&folder, &mut files);
        for version in versions_in(&folder) {
            stamp_folder(&folder.join(version.to_string()), &mut files);
        }
        files.sort();
        Stamp(files)
    }
}

/// The sizes and times of a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl Stamp {
    /// Whether `other` has the same files in the folder of `version` and beside the versions'
    /// folders.
    pub fn agrees_on(&self, other: &Stamp, version: u64) -> bool {
        let concerned = |stamp: &Stamp| -> Vec<(PathBuf, u64, Option<SystemTime>)> {
            let of_version = |path: &Path| {
                let folder = path.parent().and_then(Path::file_name).and_then(|name| name.to_str());
                folder.and_then(version_of).is_none_or(|other| other == version)
            };
            stamp.0.iter().filter(|(path, ..)| of_version(path)).cloned().collect()
        };
        concerned(self) == concerned(other)
    }
}

fn stamp_folder(folder: &Path, files: &mut Vec<(PathBuf, u64, Option<SystemTime>)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES) {
        // Through links: what they lead to is what would be loaded.
        if let Ok(about) = std::fs::metadata(entry.path())
            && about.is_file()
        {
            files.push((entry.path(), about.len(), about.modified().ok()));
        }
    }
}

/// A model of the repository.
#[derive(Clone, Debug)]
pub struct RepositoryModel {
    /// The versions to serve, at least one, rising.
    pub versions: Vec<ModelConfig>,
    /// What its `config.pbtxt` says that means nothing here: a line each.
    pub notes: Vec<String>,
}

/// A version's number, as the name of its folder: no leading zero.
fn version_of(name: &str) -> Option<u64> {
    name.parse().ok().filter(|version: &u64| *version > 0 && version.to_string() == name)
}

/// The versions that a model's folder has, rising. Other folders are the model's own affair.
fn versions_in(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut versions: Vec<u64> =
        folders.filter_map(|entry| version_of(entry.file_name().to_str()?)).collect();
    versions.sort_unstable();
    versions
}

/// What a version's model is read from.
struct Reading<'r> {
    repository: &'r RepositoryConfig,
    name: &'r str,
    folder: &'r Path,
    triton: &'r TritonConfig,
    kinds: &'r [ExecutorKind],
}

impl Reading<'_> {
    fn version(&self, version: u64) -> Result<ModelConfig, Diagnostics> {
        let of_version = self.folder.join(version.to_string());
        let own = of_version.join("model.toml");
        let shared = self.folder.join("model.toml");
        if own.exists() || shared.exists() {
            let toml = if own.exists() { own } else { shared };
            return read(&toml, |root| self.model(root, version));
        }
        self.without_words(version, &of_version).map_err(|diagnostic| Diagnostics(vec![diagnostic]))
    }

    /// A model whose folder has no `model.toml`.
    fn without_words(&self, version: u64, of_version: &Path) -> Result<ModelConfig, Diagnostic> {
        let location =
            |field: &str| Location { file: self.folder.join("model.toml"), line: 1, field: field.to_owned() };
        let slo = self.repository.slo.ok_or_else(|| {
            let right =
                "write the latency promised there, like `slo_ms = 50`; or for all models in [repository]";
            location("slo_ms").diagnostic("there is no such file", right)
        })?;
        if !self.kinds.contains(&ExecutorKind::Cpu) {
            let right = "add a table [[executors]] with kind = \"cpu\" to CONFIG";
            return Err(location("executor")
                .diagnostic("the model runs on \"cpu\", and there is no such executor", right));
        }
        let (profile, max_batch) = limit_batch(ProfileSource::Measure, None);
        Ok(ModelConfig {
            name: self.name.to_owned(),
            version,
            source: self.onnx(of_version)?,
            slo,
            max_batch: self.triton.max_batch.unwrap_or(max_batch),
            priority: 0,
            profile,
            declared: self.triton.declared.clone(),
            locations: ModelLocations {
                file: Location {
                    file: of_version.join(&self.triton.filename),
                    line: 1,
                    field: "file".into(),
                },
                slo: location("slo_ms"),
                max_batch: location("max_batch"),
            },
        })
    }

    /// The model that a `model.toml` tells of.
    fn model(&self, root: &Table<'_>, version: u64) -> Option<ModelConfig> {
        let of_version = self.folder.join(version.to_string());
        let default = self.triton.executor.unwrap_or(ExecutorKind::Cpu);
        let kind = root.optional("executor").map_or(Some(default), |value| read_kind(&value));
        let slo = match (root.optional("slo_ms"), self.repository.slo) {
            (Some(value), _) => value.number(linear::SLO).map(Nanos::from_millis_f64),
            (None, Some(slo)) => Some(slo),
            (None, None) => {
                let right = "add the latency promised, in ms; or for all models in [repository] of CONFIG";
                root.report("slo_ms", "is missing", right);
                None
            }
        };
        let max_batch = root.optional("max_batch").map(|value| value.count(1..=limits::MAX_BATCH));
        let priority = root.optional("priority").map_or(Some(0), |value| value.integer(0..=3));
        let kind = kind?;
        if !self.kinds.contains(&kind) {
            let wrong = format!("the model runs on \"{}\", and there is no such executor", kind.name());
            let right = format!("add a table [[executors]] with kind = \"{}\" to CONFIG", kind.name());
            root.report("executor", wrong, right);
        }
        let profile = read_profile(root, kind, slo);
        let source = match kind {
            ExecutorKind::Emulated => self.emulated(root),
            ExecutorKind::Cpu => {
                for name in ["inputs", "outputs"] {
                    if root.optional(name).is_some() {
                        root.report(
                            name,
                            "is given for a model with a file",
                            "leave it out: the file says it",
                        );
                    }
                }
                self.onnx(&of_version).map_err(|diagnostic| root.add(diagnostic)).ok()
            }
        };
        // Both files may bound the batch: the smaller holds.
        let asked = max_batch.map_or(Some(None), |given| given.map(Some))?;
        let asked = match (asked, self.triton.max_batch) {
            (Some(ours), Some(tritons)) => Some(ours.min(tritons)),
            (ours, tritons) => ours.or(tritons),
        };
        let (profile, max_batch) = limit_batch(profile?, asked);
        let locations = ModelLocations {
            file: Location { file: of_version.join(&self.triton.filename), line: 1, field: "file".into() },
            slo: root.location("slo_ms"),
            max_batch: root.location("max_batch"),
        };
        let declared = match kind {
            ExecutorKind::Cpu => self.triton.declared.clone(),
            ExecutorKind::Emulated => Declared::default(),
        };
        let (name, priority) = (self.name.to_owned(), priority? as u8);
        Some(ModelConfig {
            name,
            version,
            source: source?,
            slo: slo?,
            max_batch,
            priority,
            profile,
            declared,
            locations,
        })
    }

    /// An emulated model's tensors: as `model.toml` has them, else as `config.pbtxt` declares them.
    fn emulated(&self, root: &Table<'_>) -> Option<ModelSource> {
        let Declared { inputs, outputs } = &self.triton.declared;
        let are_declared = !inputs.is_empty() && !outputs.is_empty();
        if !are_declared || root.has("inputs") || root.has("outputs") {
            return read_emulated_model(root);
        }
        let specs = |tensors: &[DeclaredTensor]| -> Option<Vec<TensorSpec>> {
            let specs =
                tensors.iter().map(|tensor| tensor.spec().map_err(|diagnostic| root.add(diagnostic)).ok());
            specs.collect::<Vec<_>>().into_iter().collect()
        };
        let (inputs, outputs) = (specs(inputs), specs(outputs));
        emulated(root, Signature { inputs: inputs?, outputs: outputs? })
    }

    /// The ONNX file in a version's folder.
    fn onnx(&self, of_version: &Path) -> Result<ModelSource, Diagnostic> {
        let file = of_version.join(&self.triton.filename);
        let location = Location { file: file.clone(), line: 1, field: "file".into() };
        let right = "put the version's ONNX model there";
        match std::fs::metadata(&file) {
            Ok(about) if about.is_file() && about.len() > 0 => Ok(ModelSource::Cpu { file }),
            Ok(about) if about.is_file() => Err(location.diagnostic("the file is empty", right)),
            Ok(_) => Err(location.diagnostic("it is no file", right)),
            Err(error) => Err(location.diagnostic(format!("the file can't be read ({error})"), right)),
        }
    }
}

/// A client's word as it may stand in a message.
fn printable(name: &str) -> String {
    const LONGEST: usize = 80;
    name.chars().take(LONGEST).collect::<String>().escape_debug().to_string()
}
