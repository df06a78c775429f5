//! Reading CONFIG and the models of its repository: a TOML file, or a folder with `symphony.toml`
//! in it, to [`Config`]. Each table has a reader of its own in the file of its section.

use super::api::AccessConfig;
use super::cores::read_cores;
use super::diagnostics::{Diagnostics, Location};
use super::discovery::DiscoveryConfig;
use super::engine::Config;
use super::executors::{ExecutorKind, read_executors};
use super::faults::FaultConfig;
use super::hosts::{LinkConfig, read_hosts};
use super::http::read_http;
use super::log::LogConfig;
use super::models::{check_prefix_groups, read_models};
use super::network::read_network;
use super::onnxruntime::read_onnxruntime;
use super::queries::{MAX_SERVED_QUERIES, StageConfig, read_queries};
use super::repository::{RepositoryConfig, RepositoryControl, RepositoryFlags};
use super::scheduling::{
    check_whole_policy, read_drop, read_learned_profiles, read_policy, read_tuning, read_when,
};
use super::shutdown::ShutdownConfig;
use super::slab_size::read_memory;
use super::toml_reader::{TomlTable, read, read_text};
use super::trace::TraceConfig;
use std::path::Path;
use symphony_scheduler::limits;

/// Reads the engine's configuration at `path`: a TOML file, or a folder with `symphony.toml` in it.
/// Files that it names are relative to its folder. It must be called before any thread is pinned,
/// since it asks which cores this process may use.
///
/// Errors: every diagnostic of the file, of the profiles that it names, and of the models of its
/// repository.
pub fn read_config(path: &Path) -> Result<Config, Diagnostics> {
    read_config_with(Some(path), &RepositoryFlags::default(), &mut |_| ())
}

/// Reads the configuration as [`read_config`] does, overridden by the flags about the repository.
/// Without a `path` a CPU executor runs the repository's models. `note` is called with a line for
/// each field of the repository's files that has no effect.
///
/// Errors: those of [`read_config`].
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
    config.repository = flags.apply_to(config.repository.take())?;
    config.completed(rank_threads, note)
}

/// Reads the engine's configuration from TOML `text`, for programs that have the engine as a
/// library. Files that it names are relative to the current folder.
///
/// Errors: those of [`read_config`].
pub fn parse_config(text: &str) -> Result<Config, Diagnostics> {
    let file = Path::new("symphony.toml");
    let (config, rank_threads) = read_text(file, text, |root| read_root(root, file, false))?;
    config.completed(rank_threads, &mut |_| ())
}

impl Config {
    /// Adds the models of the repository and checks what depends on all models together.
    /// `rank_threads` is where the file gives their number.
    fn completed(
        mut self,
        rank_threads: Option<Location>,
        note: &mut dyn FnMut(&str),
    ) -> Result<Config, Diagnostics> {
        self.add_models_of_repository(note)?;
        self.check_queries()?;
        self.check_rank_threads(rank_threads)?;
        Ok(self)
    }

    /// Adds the models of the repository that are served from the start.
    fn add_models_of_repository(&mut self, note: &mut dyn FnMut(&str)) -> Result<(), Diagnostics> {
        let Some(repository) = &self.repository else { return Ok(()) };
        let kinds: Vec<ExecutorKind> = self.executors.iter().map(|executor| executor.kind).collect();
        let every = repository.control != RepositoryControl::Explicit
            || repository.load.iter().any(|name| name == "*");
        let mut names = if every { repository.names(note)? } else { repository.load.clone() };
        let queries = self.queries.iter().map(|query| &query.name);
        let own: Vec<String> = self.models.iter().map(|model| &model.name).chain(queries).cloned().collect();
        let mut diagnostics = Vec::new();
        let mut at = 0;
        while let Some(name) = names.get(at).cloned() {
            at += 1;
            if own.contains(&name) {
                let file = repository.path.join(&name);
                let wrong = "CONFIG has a model or a query of this name";
                let location = Location { file, line: 1, field: "name".into() };
                diagnostics.push(location.diagnostic(wrong, "give each model a name of its own"));
                continue;
            }
            match repository.read_model(&name, &kinds, None) {
                Ok(model) => {
                    model.notes.iter().for_each(|line| note(line));
                    self.models.extend(model.versions);
                    // The models of an ensemble are loaded with it.
                    let stages = model.query.iter().flat_map(|query| &query.stages);
                    for StageConfig { model, .. } in stages {
                        if !names.contains(model) && !own.contains(model) && repository.has(model) {
                            names.push(model.clone());
                        }
                    }
                    self.queries.extend(model.query);
                }
                Err(Diagnostics(more)) => diagnostics.extend(more),
            }
        }
        let loaded = |kind| self.models.iter().filter(|model| model.source.kind() == kind).count();
        let most = self.kinds().into_iter().map(loaded).max().unwrap_or_default();
        if repository.control != RepositoryControl::None && most > repository.max_versions {
            let wrong =
                format!("{most} versions to load are more than max_versions, {}", repository.max_versions);
            diagnostics
                .push(repository.location.diagnostic(wrong, "set max_versions in [repository] to more"));
        }
        if self.model_slots().len() > limits::MAX_MODELS {
            let wrong = format!("{} models and slots for later ones are too many", self.model_slots().len());
            let right = format!("one scheduler ranks at most {}: lower max_versions", limits::MAX_MODELS);
            diagnostics.push(repository.location.diagnostic(wrong, right));
        }
        if diagnostics.is_empty() { Ok(()) } else { Err(Diagnostics(diagnostics)) }
    }

    /// Checks that no query has the name of a model, and that the models of queries exist, unless a
    /// repository may have them later.
    fn check_queries(&self) -> Result<(), Diagnostics> {
        let has = |name: &str| self.models.iter().any(|model| model.name == name);
        let mut diagnostics = Vec::new();
        if let (true, Some(last)) = (self.queries.len() > MAX_SERVED_QUERIES, self.queries.last()) {
            let wrong = format!("{} queries and ensembles are too many", self.queries.len());
            diagnostics.push(last.location.diagnostic(wrong, format!("give at most {MAX_SERVED_QUERIES}")));
        }
        for query in &self.queries {
            if has(&query.name) {
                let wrong = format!("\"{}\" is the name of a model too", query.name);
                let right = "give the query a name of its own";
                diagnostics.push(query.location.diagnostic(wrong, right));
            }
            for stage in query.stages.iter().filter(|stage| !has(&stage.model)) {
                if self.repository.is_none() {
                    let wrong = format!("\"{}\" is no model of this file", stage.model);
                    diagnostics.push(stage.location.diagnostic(wrong, "name one of `[[models]]`"));
                }
            }
        }
        if diagnostics.is_empty() { Ok(()) } else { Err(Diagnostics(diagnostics)) }
    }

    /// Checks that each RankThread can have a sub-cluster. `location` is that of their number in
    /// CONFIG.
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

/// Reads CONFIG, and returns the location of the number of RankThreads too. `repository` is true if
/// the command line names a repository.
fn read_root(root: &TomlTable<'_>, file: &Path, repository: bool) -> Option<(Config, Option<Location>)> {
    let policy = read_policy(root);
    let when = read_when(root, policy);
    let drop = read_drop(root);
    let tuning = read_tuning(root, policy, drop.flatten());
    let learned_profiles = read_learned_profiles(root);
    let network = read_network(root);
    let cores = read_cores(root);
    let http = read_http(root);
    let memory = read_memory(root);
    let access = AccessConfig::read(root);
    let faults = FaultConfig::read(root);
    let log = LogConfig::read(root);
    let trace = TraceConfig::read(root);
    let shutdown = ShutdownConfig::read(root);
    let onnxruntime = read_onnxruntime(root);
    let discovery = DiscoveryConfig::read(root);
    let hosts = read_hosts(root, discovery.as_ref());
    let links = LinkConfig::read(root);
    let (executors, kinds) = read_executors(root, &hosts);
    let own = root.optional("repository").map(|value| value.table(RepositoryConfig::read));
    let least = usize::from(own.is_none() && !repository);
    let (mut models, are_all) = read_models(root, least, &kinds);
    check_prefix_groups(&mut models, are_all).into_iter().for_each(|diagnostic| root.add(diagnostic));
    let queries = read_queries(root);
    let (cores, rank_threads) = cores?;
    let config = Config {
        file: file.into(),
        policy: policy?.name(),
        when: when?,
        drop: drop?.unwrap_or(policy?.drop()),
        tuning: tuning?,
        learned_profiles: learned_profiles?,
        network: network?,
        cores,
        http: http?,
        memory: memory?,
        access: access?,
        faults: faults?,
        log: log?,
        trace: trace?,
        shutdown: shutdown?,
        onnxruntime: onnxruntime?,
        hosts,
        links: links?,
        discovery: discovery?,
        executors,
        models,
        queries,
        repository: own.map_or(Some(None), |own| own.map(Some))?,
    };
    check_whole_policy(root, &config);
    Some((config, rank_threads))
}
