//! A model's file as an executor's library is to load it: as it is, or rewritten.

use super::declared::DeclaredTypes;
use super::file;
use crate::host::LoadError;
use rten_onnx::onnx::ModelProto;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A model's file, read and perhaps rewritten.
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
}

/// The first dimension of a model's inputs and outputs, as its loader demands it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BatchDimension {
    /// Any size: the batch's.
    Dynamic,
    /// 1: the model runs one row at a time.
    One,
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

    /// Returns the folder of the file.
    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }
}
