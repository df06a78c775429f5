//! A model's file as an executor's library is to load it: as it is, or rewritten, and the shapes
//! that its tensors then have.

use super::declared::DeclaredTypes;
use super::file;
use crate::host::LoadError;
use rten_onnx::onnx::ModelProto;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The whole shapes of a model's inputs, by their names.
pub(crate) type InputShapes = BTreeMap<String, Vec<usize>>;

/// A model's file, read and perhaps rewritten.
#[derive(Clone)]
pub(crate) struct OnnxSource {
    /// The file.
    pub(crate) path: PathBuf,
    /// The content that takes the place of the file's; `None` where that is loaded as it is.
    pub(crate) rewritten: Option<Vec<u8>>,
    pub(crate) declared: DeclaredTypes,
    /// The names of the files that hold weights, relative to the model's folder.
    pub(crate) weights: BTreeSet<String>,
    /// The size of the file and of those with its weights.
    pub(crate) weights_bytes: u64,
    /// The first dimension that inputs and outputs have.
    pub(crate) batch: BatchDimension,
    /// The shapes of the inputs, where there is no batch.
    pub(crate) shapes: InputShapes,
}

/// The first dimension of a model's inputs and outputs, as its loader demands it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchDimension {
    /// Any size: the batch's.
    Dynamic,
    /// 1: the model runs one row at a time.
    One,
    /// Any, and not the batch's: a run takes one request, whose tensors have whole shapes.
    Absent,
}

impl OnnxSource {
    /// Returns the model in the file, as it was perhaps rewritten.
    ///
    /// Errors: the file can't be read, or is damaged.
    pub(crate) fn model(&self) -> Result<ModelProto, LoadError> {
        let parsed = match &self.rewritten {
            Some(bytes) => file::parse(bytes),
            None => file::parse(&std::fs::read(&self.path).map_err(|e| LoadError::from_io(&self.path, e))?),
        };
        parsed.map_err(|reason| LoadError::Corrupt { path: self.path.clone(), reason })
    }

    /// Returns the shape of a row of an input that a library declares with these dimensions, `None`
    /// for dynamic ones.
    ///
    /// Errors: the first is not the batch's, where there is one, or another is not fixed.
    pub(crate) fn row_shape(&self, input: &str, declared: &[Option<usize>]) -> Result<Vec<usize>, LoadError> {
        let path = || self.path.clone();
        if self.batch == BatchDimension::Absent {
            let shape = self.shapes.get(input).cloned();
            return shape.ok_or_else(|| LoadError::NoShape { path: path(), tensor: input.to_owned() });
        }
        self.check_batch("input", input, declared)?;
        let row = declared.iter().enumerate().skip(1).map(|(index, dimension)| {
            dimension.filter(|&size| size > 0).ok_or_else(|| LoadError::Dimension {
                path: path(),
                tensor: input.to_owned(),
                index,
                found: size_text(*dimension),
            })
        });
        row.collect()
    }

    /// Checks that the first of a tensor's declared dimensions is the batch's, where there is one.
    ///
    /// Errors: it is not; `role` is `input` or `output`.
    pub(crate) fn check_batch(
        &self,
        role: &'static str,
        tensor: &str,
        declared: &[Option<usize>],
    ) -> Result<(), LoadError> {
        match (self.batch, declared.first()) {
            (BatchDimension::Absent, _) | (_, Some(None)) | (BatchDimension::One, Some(Some(1))) => Ok(()),
            _ => Err(LoadError::BatchDimension {
                path: self.path.clone(),
                role,
                tensor: tensor.to_owned(),
                shape: format!(
                    "[{}]",
                    declared.iter().copied().map(size_text).collect::<Vec<_>>().join(", ")
                ),
            }),
        }
    }

    /// Returns the folder of the file.
    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}

/// Returns how a message writes a dimension.
fn size_text(dimension: Option<usize>) -> String {
    dimension.map_or_else(|| "dynamic".to_owned(), |size| size.to_string())
}
