//! Small networks as exporters write them, and inputs of these and of the light networks with the
//! outputs that the Python package of ONNX Runtime gives for them: `.ci/exported_models` makes them
//! under target/. It is run here if it has not been yet.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the networks; its folder `references` has a folder for each model.
pub(crate) fn exported_models() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/exported_models");
    if !folder.is_dir() {
        let status = Command::new(root.join(".ci/exported_models")).status();
        assert!(
            status.is_ok_and(|status| status.success()),
            "this test needs the networks that .ci/exported_models could not make; mend what it says"
        );
    }
    folder
}
