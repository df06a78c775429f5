//! The source of a model: an ONNX file and what its tensors hold, or the signature of an emulated
//! model.

use super::tensors::{MAX_ELEMENT_BYTES, MAX_ROW_BYTES, read_tensors};
use crate::config::executors::ExecutorKind;
use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use symphony_gpu::import::{DimensionSizes, InputDefaults, TEXT_BYTES};
use symphony_gpu::plan::PlanPrecision;
use symphony_gpu::{Signature, TensorSpec};

/// The source of a model.
#[derive(Clone, Debug, PartialEq)]
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
        /// What its tensors hold.
        contents: FileContents,
    },
    /// The emulated GPUs answer zeros of this signature's outputs.
    Emulated {
        /// The tensors of one request.
        signature: Signature,
    },
}

/// What the tensors of a model with a file hold, as far as the file does not say it.
#[derive(Clone, Debug, PartialEq)]
pub struct FileContents {
    /// The most bytes of an element of BYTES.
    pub text_bytes: u32,
    /// The values of inputs that a client may leave out.
    pub defaults: InputDefaults,
    /// The precision in which a GPU computes it; FP32, or what a plan's file says, if none is
    /// given.
    pub precision: Option<PlanPrecision>,
}

impl Default for FileContents {
    /// Returns what holds for a model without words of its own.
    fn default() -> FileContents {
        FileContents { text_bytes: TEXT_BYTES, defaults: InputDefaults::new(), precision: None }
    }
}

impl ModelSource {
    /// Returns the kind of executor that runs the model.
    pub fn kind(&self) -> ExecutorKind {
        match self {
            ModelSource::File { executor, .. } => *executor,
            ModelSource::Emulated { .. } => ExecutorKind::Emulated,
        }
    }

    /// Returns the precision in which a GPU computes the model, if one is given.
    pub fn precision(&self) -> Option<PlanPrecision> {
        match self {
            ModelSource::File { contents, .. } => contents.precision,
            ModelSource::Emulated { .. } => None,
        }
    }

    /// Returns the source with these sizes of dynamic dimensions; an emulated model has none.
    pub(in crate::config) fn with_sizes(&self, sizes: DimensionSizes) -> ModelSource {
        match self.clone() {
            ModelSource::File { file, executor, contents, .. } => {
                ModelSource::File { file, executor, sizes, contents }
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
    let contents = read_contents(table, executor);
    let value = table.required("file", "the model's ONNX file")?;
    let file = table.folder().join(value.text("the model's ONNX file")?);
    let right = "name an ONNX file by its path from the folder of this file";
    match is_empty(&file) {
        Ok(false) => {
            Some(ModelSource::File { file, executor, sizes: DimensionSizes::new(), contents: contents? })
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

/// Reads the keys `max_bytes`, `defaults` and `precision` of a model on this kind. Whether the
/// model has these inputs only loading it shows.
pub(in crate::config) fn read_contents(
    table: &TomlTable<'_>,
    executor: ExecutorKind,
) -> Option<FileContents> {
    let most = table.optional("max_bytes");
    let text_bytes =
        most.map_or(Some(TEXT_BYTES), |value| value.count(1..=MAX_ELEMENT_BYTES).map(|most| most as u32));
    let defaults = table.optional("defaults").map_or(Some(InputDefaults::new()), |v| read_defaults(&v));
    let precision = table.optional("precision").map_or(Some(None), |value| read_precision(&value, executor));
    Some(FileContents { text_bytes: text_bytes?, defaults: defaults?, precision: precision? })
}

fn read_precision(value: &TomlValue<'_>, executor: ExecutorKind) -> Option<Option<PlanPrecision>> {
    let name = value.word(&PlanPrecision::ALL.map(PlanPrecision::name))?;
    if executor != ExecutorKind::Cuda {
        let wrong = format!("is given for a model on \"{}\"", executor.name());
        value.report(wrong, "leave it out: executors of kind \"cuda\" alone have a choice");
        return None;
    }
    Some(PlanPrecision::of_name(name))
}

fn read_defaults(value: &TomlValue<'_>) -> Option<InputDefaults> {
    const RIGHT: &str = "it must be a list, like [{ input = \"rate\", value = 16000 }]";
    let read = read_each(&value.items(RIGHT)?, |item| item.table(read_default))?;
    let mut defaults = InputDefaults::new();
    for (input, element) in read {
        if defaults.insert(input.clone(), element).is_some() {
            value.report(format!("names input \"{input}\" twice"), "name each input once");
            return None;
        }
    }
    Some(defaults)
}

fn read_default(table: &TomlTable<'_>) -> Option<(String, f64)> {
    const VALUE: &str = "the value of the elements where a client leaves the input out, like 0";
    let input = table.required("input", "the input's name").and_then(|value| value.text("the input's name"));
    let value = table.required("value", VALUE).and_then(|v| v.number(Bounds::from(f64::MIN, f64::MAX)));
    Some((input?.into(), value?))
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
    for name in ["sizes", "padding", "max_waste", "max_bytes", "defaults", "precision"] {
        if table.optional(name).is_some() {
            table.report(name, "is given for an emulated model", "leave it out: inputs has its shapes");
        }
    }
    let (inputs, outputs) =
        (read_tensors(table, "inputs", "input"), read_tensors(table, "outputs", "output"));
    emulated_source(table, Signature::of_rows(inputs?, outputs?))
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
