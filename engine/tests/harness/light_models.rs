//! The light networks for tests, which `.ci/light_models` makes under target/ of those in the PyPI
//! package `onnx`. It is run here if it has not been yet.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the files of the nine light networks: real architectures, as they are exported.
pub(crate) fn light_models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/light_models");
    if !folder.is_dir() {
        let status = Command::new(root.join(".ci/light_models")).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "this test needs the networks that .ci/light_models could not make; mend what it says"
        );
    }
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 9, "{files:?}");
    files
}
