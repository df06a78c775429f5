//! The section `[onnxruntime]` of CONFIG: where ONNX Runtime is, and its threads.

use super::toml_reader::TomlTable;
use symphony_gpu::OnnxRuntimeOptions;

/// The most threads that compute one batch.
const MOST_THREADS: usize = 256;

/// Reads the section. The library is named by a path from the folder of the file.
pub(super) fn read_onnxruntime(root: &TomlTable<'_>) -> Option<OnnxRuntimeOptions> {
    root.section("onnxruntime", |table| {
        let default = OnnxRuntimeOptions::default();
        let library = match table.optional("library") {
            None => Some(None),
            Some(value) => {
                value.text("the file of libonnxruntime.so").map(|file| Some(table.folder().join(file)))
            }
        };
        let threads = table.optional("threads").map_or(Some(default.threads), |v| v.count(1..=MOST_THREADS));
        Some(OnnxRuntimeOptions { library: library?, threads: threads? })
    })
}
