//! `symphony check`: validates a configuration without serving it.

use super::access::load_tls;
use super::failure::CommandFailure;
use super::repository::RepositoryArguments;
use crate::config::{
    Config, Diagnostic, Diagnostics, ExecutorKind, Location, ModelConfig, ModelSource, QueryConfig,
    RepositoryControl, RepositoryFlags, StageConfig, read_config_with,
};
use crate::runtime::frontend::{ModelInfo, QueryModels, SlotState};
use crate::runtime::{
    Libraries, default_elements, gpu_right, load_file, load_group_files, no_progress, warm_up,
};
use clap::Args;
use std::path::PathBuf;
use symphony_gpu::onnxruntime::{LibraryError, SearchedPlace, open_library};
use symphony_gpu::{ComputeThread, Signature};
use symphony_transport::message::ModelId;

/// The arguments of `check`.
#[derive(Args)]
pub(super) struct CheckArguments {
    /// A TOML file, or a folder with symphony.toml in it; without one, the repository's models are
    /// checked
    #[arg(required_unless_present = "model_repository")]
    config: Option<PathBuf>,
    #[command(flatten)]
    repository: RepositoryArguments,
}

/// Reads the configuration and all models of its repository, loads the models without serving them,
/// and compares the tensors of queries and ensembles with theirs.
///
/// Errors: every diagnostic, exit code 2.
pub(super) fn check(arguments: CheckArguments) -> Result<(), CommandFailure> {
    let (path, repository) = (arguments.config.as_deref(), RepositoryFlags::from(arguments.repository));
    let config = read_config_with(path, &repository, &mut |line| eprintln!("{line}"))?;
    let LoadedLater { models: others, queries, mut diagnostics } = loaded_later(&config);
    diagnostics.extend(load_tls(&config.access).err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong));
    diagnostics.extend(config.access.load_tokens().err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong));
    let library = check_library(&config);
    let libraries = Libraries::of(&config, None);
    let gpus = check_gpus(&config, &libraries);
    let runs = |model: &&ModelConfig| match model.source.kind() {
        ExecutorKind::OnnxRuntime => library.is_none(),
        ExecutorKind::Cuda => gpus.is_none(),
        _ => true,
    };
    let models: Vec<&ModelConfig> = config.models.iter().chain(&others).collect();
    let queries: Vec<&QueryConfig> = config.queries.iter().chain(&queries).collect();
    let mut loaded = Vec::new();
    let is_cut =
        |model: &&ModelConfig| model.prefix.is_some() && matches!(model.source, ModelSource::File { .. });
    for model in models.iter().copied().filter(runs).filter(|model| !is_cut(model)) {
        let (signature, more) = try_to_load(model, &libraries);
        diagnostics.extend(more);
        loaded.extend(signature.map(|signature| described(loaded.len(), model, signature)));
    }
    let is_first = |model: &&ModelConfig| model.prefix.as_ref().is_some_and(|prefix| prefix.number == 0);
    for first in config.models.iter().filter(runs).filter(is_cut).filter(is_first) {
        let group = first.group(&config.models);
        match load_group_files(&group, &ComputeThread::new(), &libraries) {
            Ok(found) => {
                println!("{}", found.summary(&group));
                for (model, signature) in group.into_iter().zip(found.variants) {
                    loaded.push(described(loaded.len(), model, signature));
                }
            }
            Err(diagnostic) => diagnostics.push(diagnostic),
        }
    }
    diagnostics.extend(queries.iter().flat_map(|query| check_query(query, &models, &loaded)));
    diagnostics.extend(library.into_iter().chain(gpus));
    if !diagnostics.is_empty() {
        return Err(Diagnostics(diagnostics).into());
    }
    let executors: usize = config.executors.iter().map(|executor| executor.count).sum();
    let checked =
        if path.is_some() { &config.file } else { repository.path.as_ref().unwrap_or(&config.file) };
    let (file, models) = (checked.display(), models.len());
    let queries = match queries.len() {
        0 => String::new(),
        count => format!(", {count} queries"),
    };
    println!("{file}: ok; {models} models{queries}, {executors} executors");
    Ok(())
}

/// The models and ensembles of the repository that are not loaded at start-up, and the diagnostics
/// of their files.
#[derive(Default)]
struct LoadedLater {
    models: Vec<ModelConfig>,
    queries: Vec<QueryConfig>,
    diagnostics: Vec<Diagnostic>,
}

fn loaded_later(config: &Config) -> LoadedLater {
    let mut later = LoadedLater::default();
    let explicit = config.repository.as_ref().filter(|from| from.control == RepositoryControl::Explicit);
    let Some(repository) = explicit else { return later };
    let kinds: Vec<ExecutorKind> = config.executors.iter().map(|executor| executor.kind).collect();
    let names = repository.names(&mut |line| eprintln!("{line}")).unwrap_or_else(|Diagnostics(more)| {
        later.diagnostics.extend(more);
        Vec::new()
    });
    let is_known = |name: &String| {
        config.models.iter().any(|model| model.name == *name)
            || config.queries.iter().any(|query| query.name == *name)
    };
    for name in names.iter().filter(|name| !is_known(name)) {
        match repository.read_model(name, &kinds, None) {
            Ok(model) => {
                later.models.extend(model.versions);
                later.queries.extend(model.query);
            }
            Err(Diagnostics(more)) => later.diagnostics.extend(more),
        }
    }
    later
}

/// Describes a model that could be loaded as if it were served in slot `at`.
fn described(at: usize, model: &ModelConfig, signature: Signature) -> ModelInfo {
    ModelInfo {
        name: model.name.clone(),
        version: model.version,
        defaults: default_elements(&model.source, &signature),
        signature,
        state: SlotState::Serving,
        ..ModelInfo::vacant(ModelId(at as u32), 0)
    }
}

/// Compares a query with its models, if all of those that there are could be loaded.
fn check_query(query: &QueryConfig, models: &[&ModelConfig], loaded: &[ModelInfo]) -> Vec<Diagnostic> {
    let is_loaded =
        |model: &ModelConfig| loaded.iter().any(|of| (&of.name, of.version) == (&model.name, model.version));
    for StageConfig { name, model, version, location, .. } in &query.stages {
        let is_meant =
            |of: &&&ModelConfig| of.name == *model && version.is_none_or(|version| of.version == version);
        let meant: Vec<&&ModelConfig> = models.iter().filter(is_meant).collect();
        if meant.iter().any(|model| model.variable.is_some()) {
            let wrong = format!("the model \"{model}\" of stage \"{name}\" is served in size classes");
            return vec![location.diagnostic(wrong, "give its dimensions one size each")];
        }
        if !meant.iter().all(|model| is_loaded(model)) {
            // What is wrong with the model is said already.
            return Vec::new();
        }
    }
    QueryModels::find(query, loaded).err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong)
}

/// Loads the model, and returns its tensors, if they are known, and the diagnostics that only
/// loading shows.
fn try_to_load(model: &ModelConfig, libraries: &Libraries) -> (Option<Signature>, Vec<Diagnostic>) {
    if let ModelSource::Emulated { signature } = &model.source {
        return (Some(signature.clone()), Vec::new());
    }
    match load_file(model, &ComputeThread::new(), (libraries, 0)) {
        Ok(None) => (None, Vec::new()),
        Ok(Some(mut loaded)) => {
            if let Some(note) = loaded.import_note() {
                println!("{}: {note}", model.label());
            }
            let mut diagnostics = model.undeclared(loaded.signature());
            diagnostics.extend(warm_up(model, &mut *loaded, &no_progress()).err());
            (Some(loaded.signature().clone()), diagnostics)
        }
        Err(diagnostic) => (None, vec![diagnostic]),
    }
}

/// Opens the GPUs that executors need, and says which they are. Returns what stands in the way.
fn check_gpus(config: &Config, libraries: &Libraries) -> Option<Diagnostic> {
    for ordinal in 0..config.executors_of(ExecutorKind::Cuda) as u32 {
        match libraries.cuda.get(ordinal) {
            Ok(device) => {
                let facts = device.open.calls().facts();
                println!("GPU {ordinal}: {}, {:.1} GB", facts.name, facts.memory as f64 / 1e9);
                device.libraries.iter().for_each(|library| println!("GPU {ordinal}: {library}"));
            }
            Err(error) => {
                let location = Location { file: config.file.clone(), line: 1, field: "executors".into() };
                return Some(
                    location.diagnostic(format!("GPU {ordinal} can't be used ({error})"), gpu_right(&error)),
                );
            }
        }
    }
    None
}

/// Opens ONNX Runtime if an executor needs it, and says where it was found, or where it was looked
/// for.
fn check_library(config: &Config) -> Option<Diagnostic> {
    if config.executors_of(ExecutorKind::OnnxRuntime) == 0 {
        return None;
    }
    match open_library(config.onnxruntime.library.as_deref()) {
        Ok(library) => {
            println!("ONNX Runtime: {}", library.path.display());
            None
        }
        Err(LibraryError(searched)) => {
            for SearchedPlace { place, found } in &searched {
                eprintln!("ONNX Runtime: looked in {place}: {found}");
            }
            let location = Location { file: config.file.clone(), line: 1, field: "onnxruntime".into() };
            let right =
                "install it (`pip install onnxruntime`), or name the file as `library` in [onnxruntime]";
            Some(location.diagnostic("ONNX Runtime's library was not found", right))
        }
    }
}
