//! The readers' results for valid files, and their diagnostics for invalid ones, word for word.

mod api;
mod discovery;
mod documents;
mod engine;
mod repository;
mod workload;

use super::Diagnostics;
use std::path::Path;

/// Writes `files` into a new folder.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    folder
}

/// The diagnostics as a user sees them, without the folder's name.
fn rendered(diagnostics: &Diagnostics, folder: &Path) -> Vec<String> {
    let folder = format!("{}/", folder.display());
    diagnostics.to_string().replace(&folder, "").lines().map(str::to_string).collect()
}
