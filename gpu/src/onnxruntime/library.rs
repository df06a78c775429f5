//! The shared library of ONNX Runtime, which is not linked but opened when it is first needed: the
//! places where it is looked for, and the process's one environment of it.

use ort::environment::Environment;
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The environment variable that names the library, as other programs have it too.
pub const LIBRARY_VARIABLE: &str = "ORT_DYLIB_PATH";

/// The oldest version that will do: 1.20.
const OLDEST: u32 = ort::MINOR_VERSION;

/// The folders of packages in a folder of Python's.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// A place where the library was looked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SearchedPlace {
    /// The file, folder or variable.
    pub place: String,
    /// What was there.
    pub found: String,
}

/// An error that leaves the process without ONNX Runtime.
#[derive(Clone, Debug, thiserror::Error)]
#[error("ONNX Runtime's library was not found. Install it (`pip install onnxruntime`) where one of \
         these places is, or name the file of libonnxruntime.so, version 1.{OLDEST} or newer. Looked in: {}",
        list(.0))]
pub struct LibraryError(pub Vec<SearchedPlace>);

fn list(places: &[SearchedPlace]) -> String {
    let each = places.iter().map(|SearchedPlace { place, found }| format!("{place} ({found})"));
    each.collect::<Vec<_>>().join("; ")
}

/// The opened library.
#[derive(Clone)]
pub struct OnnxRuntimeLibrary {
    /// The file.
    pub path: PathBuf,
    /// The places that were looked in before it, without success.
    pub searched: Vec<SearchedPlace>,
    pub(super) environment: Arc<Environment>,
}

/// The library that the process has opened: it can hold one only.
static OPENED: Mutex<Option<OnnxRuntimeLibrary>> = Mutex::new(None);

/// Opens the library of ONNX Runtime, once in a process: the file `configured`, if one is given,
/// and no other; else that of the environment's `ORT_DYLIB_PATH`; else that of an installed Python
/// package `onnxruntime`; else the system's.
///
/// # Errors
/// [`LibraryError`] with all places that were looked in.
pub fn open_library(configured: Option<&Path>) -> Result<OnnxRuntimeLibrary, LibraryError> {
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = &*opened {
        return Ok(library.clone());
    }
    let mut searched = Vec::new();
    for (place, file) in candidates(configured, &mut searched) {
        match open(&file) {
            Ok(environment) => {
                let library = OnnxRuntimeLibrary { path: file, searched, environment };
                *opened = Some(library.clone());
                return Ok(library);
            }
            Err(found) => searched.push(SearchedPlace { place, found }),
        }
    }
    Err(LibraryError(searched))
}

/// Returns the files that may be the library, each with the name of its place. Notes the places
/// that have none.
fn candidates(configured: Option<&Path>, searched: &mut Vec<SearchedPlace>) -> Vec<(String, PathBuf)> {
    if let Some(file) = configured {
        // A name without a folder would be looked for among the system's libraries.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_path_buf());
        return vec![(file.display().to_string(), file)];
    }
    if let Some(file) = env::var_os(LIBRARY_VARIABLE).filter(|value| !value.is_empty()) {
        let file = PathBuf::from(file);
        return vec![(format!("{LIBRARY_VARIABLE}={}", file.display()), file)];
    }
    searched.push(SearchedPlace { place: LIBRARY_VARIABLE.into(), found: "not set".into() });
    let mut files = Vec::new();
    for packages in python_packages() {
        let folder = packages.join("onnxruntime/capi");
        match library_in(&folder) {
            Some(file) => files.push((file.display().to_string(), file)),
            None => searched.push(SearchedPlace {
                place: packages.display().to_string(),
                found: "no package onnxruntime".into(),
            }),
        }
    }
    files.push(("the system's libraries".into(), PathBuf::from("libonnxruntime.so")));
    files
}

/// Returns the folders in which Python packages are installed, in the order in which a `python3` of
/// this environment would be found: each once.
fn python_packages() -> Vec<PathBuf> {
    let variables = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let path = env::var_os("PATH").unwrap_or_default();
    // A folder that is relative would be another one with each working directory.
    let in_path = env::split_paths(&path).filter(|folder| folder.is_absolute());
    let programs = in_path.map(|folder| folder.join("python3")).filter(|file| file.is_file());
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".local"));
    let mut folders = Vec::new();
    for prefix in variables.chain(programs.flat_map(python_prefixes)).chain(home) {
        let entries = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let pythons = entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"python3"));
        let pythons: BTreeSet<PathBuf> = pythons.map(|entry| entry.path()).collect();
        for folder in pythons.iter().flat_map(|python| PACKAGES.map(|name| python.join(name))) {
            if folder.is_dir() && !folders.contains(&folder) {
                folders.push(folder);
            }
        }
    }
    folders
}

/// Returns the folders that a Python program is installed in: the one above it, and the one above
/// the file that it is a link to.
fn python_prefixes(program: PathBuf) -> impl Iterator<Item = PathBuf> {
    let target = program.canonicalize().ok();
    [Some(program), target].into_iter().flatten().filter_map(|file| Some(file.parent()?.parent()?.into()))
}

/// Returns the library in the folder of a Python package.
fn library_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let is_library = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"libonnxruntime.so")
    };
    entries.filter(is_library).max()
}

/// Opens one file; an error is what it is instead.
fn open(file: &Path) -> Result<Arc<Environment>, String> {
    let builder = ort::init_from(file).map_err(|error| match error {
        ort::LoadDynamicError::Dlopen { error, .. } => format!("can't be opened: {error}"),
        ort::LoadDynamicError::BadVersion { version_str, .. } => {
            format!("is version {version_str}, and 1.{OLDEST} or newer is needed")
        }
        _ => "is not ONNX Runtime".to_owned(),
    })?;
    // What goes wrong comes back as an error, where it belongs to something.
    let builder = builder.with_name("symphony").with_telemetry(false);
    let environment = builder.with_logger(Arc::new(|_, _, _, _, _| ())).build();
    environment.map(Arc::new).map_err(|error| format!("does not start: {error}"))
}
