//! The flags about the repository of models, of `serve` and `check`.

use crate::config::{RepositoryControl, RepositoryFlags};
use clap::Args;
use std::path::PathBuf;

/// Flags about the repository of models, named as Triton's are; docs/repository.md is for users.
#[derive(Args)]
pub(super) struct RepositoryArguments {
    /// A folder of models, NAME/VERSION/model.onnx, to serve besides those of CONFIG
    #[arg(long, value_name = "DIR")]
    model_repository: Option<PathBuf>,
    /// Control of loads and unloads after start-up: none, by the server as the folder changes
    /// (poll), or by clients (explicit)
    #[arg(long, value_name = "MODE", value_parser = RepositoryControl::ALL.map(|(name, _)| name))]
    model_control_mode: Option<String>,
    /// A model to load at start-up, with --model-control-mode explicit; `*` is all of them;
    /// repeatable
    #[arg(long, value_name = "NAME")]
    load_model: Vec<String>,
}

impl From<RepositoryArguments> for RepositoryFlags {
    fn from(given: RepositoryArguments) -> RepositoryFlags {
        let named = |mode: String| RepositoryControl::ALL.into_iter().find(|(name, _)| *name == mode);
        let control = given.model_control_mode.and_then(named).map(|(_, control)| control);
        RepositoryFlags { path: given.model_repository, control, load: given.load_model }
    }
}
