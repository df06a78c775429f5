//! `symphony check`: validates a configuration without serving it.

use super::access::load_tls;
use super::failure::CommandFailure;
use super::repository::RepositoryArguments;
use crate::config::{
    Config, Diagnostic, Diagnostics, ExecutorKind, Location, ModelConfig, RepositoryControl, RepositoryFlags,
    read_config_with,
};
use crate::runtime::{GPU_RIGHT, Libraries, load_file, no_progress, warm_up};
use clap::Args;
use std::path::PathBuf;
use symphony_gpu::ComputeThread;
use symphony_gpu::onnxruntime::{LibraryError, SearchedPlace, open_library};

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
    let library = check_library(&config);
    let libraries = Libraries::new(config.onnxruntime.clone());
    let gpus = check_gpus(&config, &libraries);
    let runs = |model: &&ModelConfig| match model.source.kind() {
        ExecutorKind::OnnxRuntime => library.is_none(),
        ExecutorKind::Cuda => gpus.is_none(),
        _ => true,
    };
    for model in config.models.iter().chain(&others).filter(runs) {
        diagnostics.extend(try_to_load(model, &libraries));
    }
    diagnostics.extend(library.into_iter().chain(gpus));
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
fn try_to_load(model: &ModelConfig, libraries: &Libraries) -> Vec<Diagnostic> {
    match load_file(model, &ComputeThread::new(), (libraries, 0)) {
        Ok(None) => Vec::new(),
        Ok(Some(mut loaded)) => {
            if let Some(note) = loaded.import_note() {
                println!("{}: {note}", model.label());
            }
            let mut diagnostics = model.undeclared(loaded.signature());
            diagnostics.extend(warm_up(model, &mut *loaded, &no_progress()).err());
            diagnostics
        }
        Err(diagnostic) => vec![diagnostic],
    }
}

/// Opens the GPUs that executors need, and says which they are. Returns what stands in the way.
fn check_gpus(config: &Config, libraries: &Libraries) -> Option<Diagnostic> {
    for ordinal in 0..config.executors_of(ExecutorKind::Cuda) as u32 {
        match libraries.cuda.get(ordinal) {
            Ok(device) => {
                let facts = device.open.calls().facts();
                println!("GPU {ordinal}: {}, {:.1} GB", facts.name, facts.memory as f64 / 1e9);
            }
            Err(error) => {
                let location = Location { file: config.file.clone(), line: 1, field: "executors".into() };
                return Some(
                    location.diagnostic(format!("GPU {ordinal} can't be used ({error})"), GPU_RIGHT),
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
