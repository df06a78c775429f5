//! Plans on a GPU, by CUDA's driver alone: no framework underneath makes choices. What is called of
//! a driver is a trait, so that all but `libcuda.rs` runs in tests against a fake one.
//!
//! ```text
//! Plan ─ launch, arguments ─▶ kernel launches ─ lane ─▶ a graph for each batch size ─▶ executor
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `driver.rs`, `error.rs`, `owned.rs` | what is called of a driver, its errors, its objects |
//! | `libcuda.rs` | NVIDIA's driver |
//! | `arguments.rs`, `codes.rs`, `source.rs` | the kernels' arguments, and their source |
//! | `compiler.rs`, `compiled.rs` | NVRTC, and what it made before |
//! | `prebuilt.rs`, `kernels.rs` | kernels in a plan's file, kernels on a card |
//! | `launch.rs` | a plan's launches as launches of kernels |
//! | `library_kernels/` | products and convolutions by NVIDIA's libraries |
//! | `pages.rs`, `device_memory.rs`, `room.rs` | a device's memory, and what its models share |
//! | `weights.rs` | a model's weights, which are loaded and unloaded |
//! | `open.rs`, `lane.rs`, `model.rs` | a device, the way of a batch, a model |
//! | `executor.rs`, `slots.rs` | the executor of one GPU, and the slots that it is lent |
//! | `timing.rs` | the parts of a batch's time, for measurements |
//!
//! The kernels are in `gpu/kernels/`.

pub mod arguments;
pub mod codes;
mod compiled;
mod compiler;
mod device_memory;
pub mod driver;
mod error;
mod executor;
mod kernels;
mod lane;
pub mod launch;
mod libcuda;
pub mod library_kernels;
mod model;
mod open;
mod owned;
mod pages;
mod prebuilt;
mod room;
mod slots;
mod source;
mod timing;
mod weights;

pub use compiler::{KernelTarget, compile_kernels};
pub use device_memory::{PageCounts, PageOptions};
pub use error::{DriverError, DriverResult, FailedCall};
pub use executor::CudaExecutor;
pub use lane::DeviceTimes;
pub use libcuda::Libcuda;
pub use library_kernels::native::installed_libraries;
pub use library_kernels::prepared::LibraryUse;
pub use model::CudaModel;
pub use open::{CudaDevice, CudaDevices};
pub(crate) use owned::LOAD_PATIENCE;
pub use owned::{OpenDevice, Owned};
pub use prebuilt::prebuilt_kernels;
pub use source::kernel_source;
pub use timing::BatchTimes;
pub use weights::{DeviceWeights, WeightsLoad, WeightsState};
