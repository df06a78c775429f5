//! The library of ONNX Runtime for tests: that of `ORT_DYLIB_PATH`, or the one that
//! `.ci/onnxruntime` installs from PyPI under target/, which happens here if it has not yet.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the file of the library.
pub(crate) fn onnx_library() -> PathBuf {
    if let Some(named) = std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from) {
        assert!(named.is_file(), "ORT_DYLIB_PATH is {}, which is no file", named.display());
        return named;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let installed = root.join("target/onnxruntime/libonnxruntime.so");
    if !installed.is_file() {
        let status = Command::new(root.join(".ci/onnxruntime")).status();
        assert!(
            status.is_ok_and(|status| status.success()) && installed.is_file(),
            "this test needs ONNX Runtime's library, which .ci/onnxruntime could not install from PyPI; mend \
             what it says, or set ORT_DYLIB_PATH to a libonnxruntime.so of version 1.20 or newer"
        );
    }
    installed.canonicalize().unwrap()
}
