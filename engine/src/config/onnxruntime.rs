//! The section `[onnxruntime]` of CONFIG: where ONNX Runtime is, its threads, and its GPU.

use super::toml_reader::TomlTable;
use symphony_gpu::OnnxRuntimeOptions;

/// The most threads that compute one batch.
const MOST_THREADS: usize = 256;

/// The largest number of a GPU.
const MOST_GPU: u64 = 255;

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
        let gpu = table.optional("gpu").map_or(Some(None), |v| v.integer(0..=MOST_GPU).map(Some));
        Some(OnnxRuntimeOptions { library: library?, threads: threads?, gpu: gpu?.map(|gpu| gpu as u32) })
    })
}
