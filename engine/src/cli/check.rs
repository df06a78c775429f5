//! `symphony check`: validates a configuration without serving it.

use super::access::load_tls;
use super::failure::CommandFailure;
use super::repository::RepositoryArguments;
use crate::config::{
    Config, Diagnostic, Diagnostics, ExecutorKind, ModelConfig, ModelSource, RepositoryControl,
    RepositoryFlags, read_config_with,
};
use crate::runtime::{no_progress, warm_up};
use clap::Args;
use std::path::PathBuf;
use symphony_gpu::{CpuModel, HostModel};

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

/// Reads the configuration and all models of its repository, and loads the models without serving
/// them.
///
/// Errors: every diagnostic, exit code 2.
pub(super) fn check(arguments: CheckArguments) -> Result<(), CommandFailure> {
    let (path, repository) = (arguments.config.as_deref(), RepositoryFlags::from(arguments.repository));
    let config = read_config_with(path, &repository, &mut |line| eprintln!("{line}"))?;
    let (others, mut diagnostics) = models_loaded_later(&config);
    diagnostics.extend(load_tls(&config.access).err().map_or_else(Vec::new, |Diagnostics(wrong)| wrong));
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

/// Reads the models of the repository that are not loaded at start-up, and returns the diagnostics
/// of their files too.
fn models_loaded_later(config: &Config) -> (Vec<ModelConfig>, Vec<Diagnostic>) {
    let explicit = config.repository.as_ref().filter(|from| from.control == RepositoryControl::Explicit);
    let Some(repository) = explicit else { return (Vec::new(), Vec::new()) };
    let kinds: Vec<ExecutorKind> = config.executors.iter().map(|executor| executor.kind).collect();
    let (mut models, mut diagnostics) = (Vec::new(), Vec::new());
    let names = repository.names(&mut |line| eprintln!("{line}")).unwrap_or_else(|Diagnostics(more)| {
        diagnostics.extend(more);
        Vec::new()
    });
    for name in names.iter().filter(|name| config.models.iter().all(|model| model.name != **name)) {
        match repository.read_model(name, &kinds, None) {
            Ok(model) => models.extend(model.versions),
            Err(Diagnostics(more)) => diagnostics.extend(more),
        }
    }
    (models, diagnostics)
}

/// Loads the model, and returns the diagnostics that only loading shows.
fn try_to_load(model: &ModelConfig) -> Vec<Diagnostic> {
    let ModelSource::Cpu { file } = &model.source else { return Vec::new() };
    match CpuModel::load(file, model.max_batch) {
        Ok(mut loaded) => {
            let mut diagnostics = model.declared.check(loaded.signature());
            diagnostics.extend(warm_up(model, &mut loaded, &no_progress()).err());
            diagnostics
        }
        Err(error) => {
            vec![model.locations.file.diagnostic(error, "give an ONNX model that the CPU executor can run")]
        }
    }
}
