//! Everything that runs a batch: emulated GPUs on one timer wheel, ONNX models on a CPU core; and
//! the measuring of a model on such a device.
//!
//! The engine's backend threads own what is here and call it; this crate knows `symphony-transport`
//! and nothing above it. It never decides when a batch runs.

pub mod cpu;
pub mod emulated;
pub mod measure;
pub mod memory;
pub mod signature;
pub mod table;

pub use cpu::{ComputeThread, CpuModel, LoadError, RunError};
pub use emulated::{EmulatedGpus, Finished, StartError};
pub use measure::{MeasureOptions, MeasuredBy, measure};
pub use signature::{DataType, Signature, TensorSpec};
pub use table::{Fit, ProfileTable, Row, TableError};
