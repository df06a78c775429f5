//! Networks for tests that a script of `.ci` makes under target/: the light ones are of those in
//! the PyPI package `onnx`. The script is run here if it has not been yet.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The light networks with an operator that rten lacks: local response normalisation.
pub(crate) const NOT_ON_RTEN: [&str; 3] = ["light_bvlc_alexnet", "light_inception_v1", "light_zfnet512"];

/// Returns the folder `target/NAME`, which `.ci/NAME` makes.
pub(crate) fn made_folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target").join(name);
    if !folder.is_dir() {
        let status = Command::new(root.join(".ci").join(name)).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "this test needs the networks that .ci/{name} could not make; mend what it says"
        );
    }
    folder
}

/// Returns the files of the nine light networks: real architectures, as they are exported.
pub(crate) fn light_models() -> Vec<PathBuf> {
    let folder = made_folder("light_models");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 9, "{files:?}");
    files
}
