//! The table `[repository]` of CONFIG, and the flags that override it.

use crate::config::diagnostics::{Diagnostics, Location};
use crate::config::linear_profile;
use crate::config::toml_reader::{TomlTable, TomlValue, read_each};
use std::path::PathBuf;
use std::time::Duration;
use symphony_scheduler::limits;
use symphony_transport::Nanos;

/// The mode of control: by what models are loaded and unloaded while the engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepositoryControl {
    /// Control by nothing: the models of the repository at start-up are loaded.
    None,
    /// Control by the engine, which polls the repository and follows its changes.
    Poll,
    /// Control by clients of the API. At start-up only named models are loaded.
    Explicit,
}

impl RepositoryControl {
    /// Every mode with its name in CONFIG, which is Triton's.
    pub const ALL: [(&'static str, RepositoryControl); 3] = [
        ("none", RepositoryControl::None),
        ("poll", RepositoryControl::Poll),
        ("explicit", RepositoryControl::Explicit),
    ];
}

/// The repository of models and the control of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepositoryConfig {
    /// The repository's folder.
    pub path: PathBuf,
    /// The mode of control.
    pub control: RepositoryControl,
    /// The interval of polls, with [`RepositoryControl::Poll`].
    pub poll: Duration,
    /// The models to load at start-up, with [`RepositoryControl::Explicit`]; `*` is every model.
    pub load: Vec<String>,
    /// The SLO of models whose `model.toml` has none.
    pub slo: Option<Nanos>,
    /// Versions of models that may be loaded at once, for each kind of executor.
    pub max_versions: usize,
    /// The most bytes of one request's inputs and outputs that a model loaded later may have.
    pub max_row_bytes: usize,
    /// The location of the repository's path in CONFIG.
    pub location: Location,
}

impl RepositoryConfig {
    /// Returns the repository at `path` with defaults for everything else; `location` is where the
    /// path was given.
    pub fn at(path: PathBuf, location: Location) -> RepositoryConfig {
        RepositoryConfig {
            path,
            control: RepositoryControl::None,
            poll: Duration::from_secs(15),
            load: Vec::new(),
            slo: None,
            max_versions: 64,
            max_row_bytes: 1 << 20,
            location,
        }
    }

    /// Reads the table `[repository]`.
    pub(in crate::config) fn read(table: &TomlTable<'_>) -> Option<RepositoryConfig> {
        let path =
            table.required("path", "the repository's folder").and_then(|v| v.text("the folder's name"));
        let default =
            RepositoryConfig::at(table.folder().join(path.unwrap_or_default()), table.location("path"));
        let words = RepositoryControl::ALL.map(|(word, _)| word);
        let control = table.optional("control").map_or(Some("none"), |value| value.word(&words));
        let count = |name, most, otherwise| {
            table.optional(name).map_or(Some(otherwise), |value| value.count(1..=most))
        };
        let poll = count("poll_seconds", 86_400, default.poll.as_secs() as usize);
        let max_versions = count("max_versions", limits::MAX_MODELS, default.max_versions);
        let row_kb = count("max_row_kb", limits::MAX_ROW_BYTES >> 10, default.max_row_bytes >> 10);
        let slo =
            table.optional("slo_ms").map_or(Some(None), |value| value.number(linear_profile::SLO).map(Some));
        let load = match table.optional("load") {
            None => Some(Vec::new()),
            Some(value) => {
                let items = value.items("it must be a list of models' names, like [\"shapes\"]");
                let name = |item: &TomlValue<'_>| item.text("a model's name").map(str::to_owned);
                items.and_then(|items| read_each(&items, name))
            }
        };
        let (_, control) = RepositoryControl::ALL.into_iter().find(|(word, _)| Some(*word) == control)?;
        let load = load?;
        if !load.is_empty() && control != RepositoryControl::Explicit {
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
}

/// Command-line flags that override [`RepositoryConfig`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepositoryFlags {
    /// The repository's folder.
    pub path: Option<PathBuf>,
    /// The mode of control.
    pub control: Option<RepositoryControl>,
    /// More models to load at start-up, with [`RepositoryControl::Explicit`].
    pub load: Vec<String>,
}

impl RepositoryFlags {
    /// Returns `given`, the repository of CONFIG, overridden by these self.
    ///
    /// Errors: a flag that has no effect.
    pub(in crate::config) fn apply_to(
        &self,
        given: Option<RepositoryConfig>,
    ) -> Result<Option<RepositoryConfig>, Diagnostics> {
        let location =
            |field: &str| Location { file: "command line".into(), line: 1, field: field.to_owned() };
        let mut repository = match (&self.path, given) {
            (Some(path), Some(given)) => {
                RepositoryConfig { path: path.clone(), location: location("--model-repository"), ..given }
            }
            (Some(path), None) => RepositoryConfig::at(path.clone(), location("--model-repository")),
            (None, Some(given)) => given,
            (None, None) if self.control.is_none() && self.load.is_empty() => return Ok(None),
            (None, None) => {
                let right = "give --model-repository DIR too, or [repository] in CONFIG";
                let diagnostic =
                    location("--model-control-mode").diagnostic("there is no repository to control", right);
                return Err(Diagnostics(vec![diagnostic]));
            }
        };
        repository.control = self.control.unwrap_or(repository.control);
        repository.load.extend(self.load.iter().cloned());
        if !repository.load.is_empty() && repository.control != RepositoryControl::Explicit {
            let wrong = "is given, and every model is loaded anyway";
            let right = "add --model-control-mode explicit";
            return Err(Diagnostics(vec![location("--load-model").diagnostic(wrong, right)]));
        }
        Ok(Some(repository))
    }
}
