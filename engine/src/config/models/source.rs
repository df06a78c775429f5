//! The source of a model: an ONNX file, or the signature of an emulated model.

use super::tensors::{MAX_ELEMENT_BYTES, MAX_ROW_BYTES, read_tensors};
use crate::config::executors::ExecutorKind;
use crate::config::toml_reader::TomlTable;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use symphony_gpu::import::{DimensionSizes, TEXT_BYTES};
use symphony_gpu::{Signature, TensorSpec};

/// The source of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// The executors of a kind run this ONNX file, which could be opened and is not empty; it was
    /// not parsed yet.
    File {
        /// The file.
        file: PathBuf,
        /// The kind: one that runs files.
        executor: ExecutorKind,
        /// The sizes of its dynamic dimensions beyond the batch.
        sizes: DimensionSizes,
        /// The most bytes of an element of BYTES.
        text_bytes: u32,
    },
    /// The emulated GPUs answer zeros of this signature's outputs.
    Emulated {
        /// The tensors of one request.
        signature: Signature,
    },
}

impl ModelSource {
    /// Returns the kind of executor that runs the model.
    pub fn kind(&self) -> ExecutorKind {
        match self {
            ModelSource::File { executor, .. } => *executor,
            ModelSource::Emulated { .. } => ExecutorKind::Emulated,
        }
    }

    /// Returns the source with these sizes of dynamic dimensions; an emulated model has none.
    pub(in crate::config) fn with_sizes(&self, sizes: DimensionSizes) -> ModelSource {
        match self.clone() {
            ModelSource::File { file, executor, text_bytes, .. } => {
                ModelSource::File { file, executor, sizes, text_bytes }
            }
            emulated @ ModelSource::Emulated { .. } => emulated,
        }
    }
}

/// Reads the file of a model, without sizes.
pub(super) fn read_file_model(table: &TomlTable<'_>, executor: ExecutorKind) -> Option<ModelSource> {
    for name in ["inputs", "outputs"] {
        if table.optional(name).is_some() {
            table.report(name, "is given for a model with a file", "leave it out: the file says it");
        }
    }
    let text_bytes = read_text_bytes(table);
    let value = table.required("file", "the model's ONNX file")?;
    let file = table.folder().join(value.text("the model's ONNX file")?);
    let right = "name an ONNX file by its path from the folder of this file";
    match is_empty(&file) {
        Ok(false) => {
            Some(ModelSource::File { file, executor, sizes: DimensionSizes::new(), text_bytes: text_bytes? })
        }
        Ok(true) => {
            value.report(format!("{} is empty", file.display()), right);
            None
        }
        Err(e) => {
            value.report(format!("{} can't be read ({e})", file.display()), right);
            None
        }
    }
}

/// Reads the most bytes of an element of BYTES.
pub(in crate::config) fn read_text_bytes(table: &TomlTable<'_>) -> Option<u32> {
    let given = table.optional("max_bytes");
    given.map_or(Some(TEXT_BYTES), |value| value.count(1..=MAX_ELEMENT_BYTES).map(|most| most as u32))
}

/// True if the file is empty.
///
/// Errors: it can't be read, or is no file.
fn is_empty(file: &Path) -> std::io::Result<bool> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    Ok(File::open(file)?.read(&mut [0])? == 0)
}

pub(in crate::config) fn read_emulated_model(table: &TomlTable<'_>) -> Option<ModelSource> {
    if table.optional("file").is_some() {
        table.report("file", "is given for an emulated model", "leave it out: nothing is computed");
    }
    for name in ["sizes", "padding", "max_waste", "max_bytes"] {
        if table.optional(name).is_some() {
            table.report(name, "is given for an emulated model", "leave it out: inputs has its shapes");
        }
    }
    let (inputs, outputs) =
        (read_tensors(table, "inputs", "input"), read_tensors(table, "outputs", "output"));
    emulated_source(table, Signature { inputs: inputs?, outputs: outputs? })
}

/// Returns an emulated model of this signature, if its requests fit in a frontend's slab.
pub(in crate::config) fn emulated_source(table: &TomlTable<'_>, signature: Signature) -> Option<ModelSource> {
    let specs = signature.inputs.iter().chain(&signature.outputs);
    let bytes = specs.map(TensorSpec::bytes).fold(0, usize::saturating_add);
    if bytes > MAX_ROW_BYTES {
        let wrong = format!("inputs and outputs take {bytes} bytes a request");
        table.report("inputs", wrong, format!("at most {MAX_ROW_BYTES} bytes fit: make the shapes smaller"));
        return None;
    }
    Some(ModelSource::Emulated { signature })
}
