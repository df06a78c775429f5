//! Everything that runs a batch: GPUs, emulated ones on one timer wheel, ONNX models on CPU cores,
//! and the measuring of a model on such a device.
//!
//! The engine's backend threads own these devices and call them by one trait, [`Executor`]. This
//! crate depends on `symphony-transport` and on nothing above it. It never decides when a batch
//! runs.

pub mod counted;
pub mod cpu;
pub mod cuda;
pub mod device_profile;
pub mod emulated;
pub mod executor;
mod gpu_executor;
pub mod host;
pub mod import;
pub mod measure;
pub mod memory;
pub mod onnxruntime;
pub mod plan;
pub mod signature;
pub mod table;

pub use cpu::CpuModel;
pub use cuda::{CudaExecutor, CudaModel};
pub use device_profile::{GpuMeasureOptions, GpuProfile, measure_on_gpu};
pub use emulated::{EmulatedExecutor, EmulatedGpus, EmulatedStartError, Finished};
pub use executor::{EnqueueError, Executor, FinishedJob, Job, NoWork, RowSlots, Work};
pub use gpu_executor::GpuExecutor;
pub use host::{
    ComputeThread, CpuExecutor, GroupError, HostGraph, HostModel, LoadError, PrefixGroup, RunError,
};
pub use measure::{MeasureOptions, MeasuredBy, measure};
pub use onnxruntime::{OnnxRuntimeModel, OnnxRuntimeOptions};
pub use signature::{DataType, Signature, TensorSpec};
pub use table::{Fit, ProfileRow, ProfileTable, TableError};
