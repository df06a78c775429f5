//! The folder of a repository: names of models, their versions, and changes of their files.

use super::section::RepositoryConfig;
use crate::config::diagnostics::Diagnostics;
use crate::config::models::is_model_name;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use symphony_scheduler::limits;

/// The most models of a repository, versions of a model, and files of a folder that are watched for
/// changes.
const MAX_ENTRIES: usize = limits::MAX_MODELS;

impl RepositoryConfig {
    /// Returns the names of the models, which are those of the folders, sorted. Files and hidden
    /// folders are no models, and neither is a folder whose name can't be a model's, such as a file
    /// system's `lost+found`: `note` gets a line for each of the latter.
    ///
    /// Errors: it can't be read.
    pub fn names(&self, note: &mut dyn FnMut(&str)) -> Result<Vec<String>, Diagnostics> {
        let failed = |error: std::io::Error| {
            let wrong = format!("{} can't be read ({error})", self.path.display());
            Diagnostics(vec![
                self.location.diagnostic(wrong, "name a folder that has a folder for each model"),
            ])
        };
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)?.take(MAX_ENTRIES) {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Also by a link: that is how some deploy.
            if name.starts_with('.') || !entry.path().is_dir() {
                continue;
            }
            if is_model_name(&name) {
                names.push(name);
            } else {
                let folder = entry.path();
                note(&format!(
                    "{}: is passed over: no model can have this name; 1 to 128 letters, digits, `_`, `-` \
                     and `.` can be one",
                    folder.display()
                ));
            }
        }
        names.sort();
        Ok(names)
    }

    /// True if the repository has a folder for this model. The name may be any text of a client.
    pub fn has(&self, name: &str) -> bool {
        is_model_name(name) && self.path.join(name).is_dir()
    }

    /// Returns the sizes and times of the files of the model `name`, by which a change is detected.
    pub fn stamp(&self, name: &str) -> FileStamp {
        let folder = self.path.join(name);
        let mut files = Vec::new();
        stamp_folder(&folder, &mut files);
        stamp_folder(&folder.join("warmup"), &mut files);
        for version in versions_in(&folder) {
            stamp_folder(&folder.join(version.to_string()), &mut files);
        }
        files.sort();
        FileStamp(files)
    }
}

/// The sizes and modification times of a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileStamp(Vec<(PathBuf, u64, Option<SystemTime>)>);

impl FileStamp {
    /// True if `other` has the same files in the folder of `version` and beside the versions'
    /// folders.
    pub fn agrees_on(&self, other: &FileStamp, version: u64) -> bool {
        let concerned = |stamp: &FileStamp| -> Vec<(PathBuf, u64, Option<SystemTime>)> {
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

/// Parses the name of a version's folder: a number from 1, without leading zeros.
fn version_of(name: &str) -> Option<u64> {
    name.parse().ok().filter(|version: &u64| *version > 0 && version.to_string() == name)
}

/// Returns the versions in a model's folder, in ascending order. Other folders are ignored.
pub(super) fn versions_in(folder: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut versions: Vec<u64> =
        folders.filter_map(|entry| version_of(entry.file_name().to_str()?)).collect();
    versions.sort_unstable();
    versions
}
