//! GPUs for programs that a test starts, on a machine without one: the fake driver's library in
//! place of NVIDIA's, and NVIDIA's compiler from PyPI.

use super::light_models::made_folder;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder in which programs find the fake driver. It has to outlive them.
pub(crate) struct FakeGpus {
    folder: TempDir,
}

impl FakeGpus {
    /// Makes the folder.
    pub(crate) fn new() -> FakeGpus {
        let folder = tempfile::tempdir().unwrap();
        // Cargo has built it with the crate, on which this test depends.
        let library = std::env::current_exe().unwrap().with_file_name("libsymphony_fake_driver.so");
        assert!(library.is_file(), "{} is not there", library.display());
        std::os::unix::fs::symlink(library, folder.path().join("libcuda.so")).unwrap();
        FakeGpus { folder }
    }

    /// Returns the folder of the driver, without a compiler.
    #[allow(dead_code, reason = "test programs use a part of it")]
    pub(crate) fn driver(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the folder, in which programs find NVIDIA's libraries of kernels as well.
    #[allow(dead_code, reason = "not every test has them")]
    pub(crate) fn with_libraries() -> FakeGpus {
        let gpus = FakeGpus::new();
        let library = std::fs::read_link(gpus.folder.path().join("libcuda.so")).unwrap();
        ["libcublasLt.so", "libcudnn.so"].iter().for_each(|name| gpus.link_library(name, &library));
        gpus
    }

    /// Has programs find a library under a name.
    #[allow(dead_code, reason = "not every test has them")]
    pub(crate) fn link_library(&self, name: &str, library: &Path) {
        std::os::unix::fs::symlink(library, self.folder.path().join(name)).unwrap();
    }

    /// Has a program find ONNX Runtime with a CUDA provider, which computes on the host by the
    /// real library.
    #[allow(dead_code, reason = "not every test has it")]
    pub(crate) fn show_provider_to<'a>(&self, command: &'a mut Command, real: &Path) -> &'a mut Command {
        let link = self.folder.path().join("libonnxruntime.so");
        if !link.exists() {
            let library = std::fs::read_link(self.folder.path().join("libcuda.so")).unwrap();
            self.link_library("libonnxruntime.so", &library);
        }
        command.env("ORT_DYLIB_PATH", link).env("SYMPHONY_FAKE_ONNXRUNTIME", real)
    }

    /// Has a program find GPUs.
    pub(crate) fn show_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let compiler: PathBuf = made_folder("nvrtc");
        let folders = std::env::join_paths([self.folder.path().to_owned(), compiler]).unwrap();
        command.env("LD_LIBRARY_PATH", folders)
    }
}
