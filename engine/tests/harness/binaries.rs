//! The binaries of other packages, which a test starts: Cargo builds those of its own package only.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the binaries of the packages that have these tests, beside `own`, which is one of the
/// test's own package. Returns their folder.
pub(crate) fn build_beside(own: &str, tests: &[&str]) -> PathBuf {
    let folder = Path::new(own).parent().unwrap().to_path_buf();
    let mut build = Command::new(env!("CARGO"));
    // Those of the test's package: a build script would take them for changes, and its dependents
    // be built again, under the tests that come after this one.
    let of_package = |name: &OsStr| {
        ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()))
    };
    std::env::vars_os().filter(|(name, _)| of_package(name)).for_each(|(name, _)| {
        build.env_remove(name);
    });
    // A test of a binary has it built, and with the same features as the caller: those of all tests
    // of the workspace. With others, all that depends on them would be compiled again.
    build.args(["test", "--quiet", "--workspace", "--no-run"]);
    if symphony_transport::rdma::IS_BUILT {
        build.args(["--features", "rdma"]);
    }
    build.args(tests.iter().flat_map(|test| ["--test", test]));
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.stdout(Stdio::null()).status().unwrap().success());
    folder
}
