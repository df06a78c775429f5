//! The requests by which a model is warmed up while it is loaded, as Triton's `config.pbtxt` gives
//! them.

use crate::config::diagnostics::Location;
use std::path::PathBuf;
use symphony_gpu::DataType;

/// A sample: a request that is run while its model is loaded, before the model serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupSample {
    /// The location of the sample.
    pub location: Location,
    /// The name, for errors.
    pub name: String,
    /// The number of rows; all have the same inputs.
    pub rows: usize,
    /// The number of times that the sample is run.
    pub count: usize,
    /// The inputs of one row.
    pub inputs: Vec<WarmupInput>,
}

/// An input of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WarmupInput {
    /// The name of the model's input.
    pub name: String,
    /// The type of its elements.
    pub datatype: DataType,
    /// The shape of one row.
    pub shape: Vec<usize>,
    /// True if the shape has the batch in front where there is one: `max_batch_size` is 0.
    pub is_whole: bool,
    /// The values.
    pub data: WarmupData,
}

/// The values of a sample's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WarmupData {
    /// Zeros.
    Zero,
    /// Random values: floats from 0 to 1, whole numbers from 0 to 99.
    Random,
    /// The content of this file: one row's elements, little endian.
    File(PathBuf),
}
