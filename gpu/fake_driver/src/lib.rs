//! A CUDA driver for tests. Device memory is host memory, a stream is a queue that a thread works
//! off in order, a graph is a recorded list, and a kernel runs the reference of its operation,
//! found by its name and its arguments alone. Every address is checked against what was allocated,
//! every object against what was made, and every call can be made to fail or to hang.
//!
//! Tests within a process hand a [`FakeDriver`] to what they test. The crate is a shared library as
//! well, which a program opens in place of NVIDIA's driver: a link `libcuda.so` to it in a folder
//! of `LD_LIBRARY_PATH`. (No link `libcuda.so.1`: NVRTC opens that itself.) Its variables are in
//! `library.rs`. Links `libcublasLt.so` and `libcudnn.so` make it those libraries as well; their
//! variables are in `library_objects.rs`. A link `libonnxruntime.so` makes it that of ONNX Runtime,
//! whose CUDA provider computes on the host (`onnxruntime.rs`).

mod cublaslt_entry_points;
mod cudnn_entry_points;
mod device;
mod entry_points;
mod host_memory;
mod kernels;
mod library;
mod library_objects;
mod memory;
mod onnxruntime;
mod onnxruntime_entry_points;
mod queue;

pub use device::FakeDevice;

use std::collections::BTreeMap;
use std::sync::Arc;
use symphony_gpu::cuda::driver::{Device, Driver};
use symphony_gpu::cuda::{DriverError, DriverResult, FailedCall};

/// What a call does that was made to go wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The call returns this error.
    Refuse(DriverError),
    /// The call is taken, and its work fails when its turn comes: the device is lost with this
    /// error. A call without work fails at once.
    Break(DriverError),
    /// The work never ends, until [`FakeDriver::resume`]: what is behind it in its stream waits. A
    /// call without work does not return.
    Hang,
    /// The call does not return, until [`FakeDriver::resume`]; then it goes well.
    Block,
}

/// A driver with fake devices.
pub struct FakeDriver {
    pub(crate) devices: Vec<Arc<FakeDevice>>,
}

impl FakeDriver {
    /// Makes a driver whose devices have these sizes of memory, bytes.
    pub fn new(memories: &[u64]) -> Arc<FakeDriver> {
        let devices = memories.iter().enumerate().map(|(at, &memory)| FakeDevice::start(at, memory));
        Arc::new(FakeDriver { devices: devices.collect() })
    }

    /// Makes the call of this name of a device go wrong, after it has gone well `after` times more.
    /// The names are those of the trait's methods.
    pub fn plan_fault(&self, device: usize, call: &'static str, after: usize, fault: Fault) {
        self.devices[device].plan_fault(call, after, fault);
    }

    /// Lets everything of a device go on that hangs.
    pub fn resume(&self, device: usize) {
        self.devices[device].resume();
    }

    /// Makes a device one that can't map pages.
    pub fn map_nothing(&self, device: usize) {
        self.devices[device].map_nothing();
    }

    /// Gives a device a library of kernels of this name, before it is opened.
    pub fn offer_library(&self, device: usize, name: &'static str) {
        self.devices[device].offer_library(name);
    }

    /// Returns how many objects a device has given out that were not given back, by their kinds.
    pub fn live(&self, device: usize) -> BTreeMap<&'static str, usize> {
        self.devices[device].live()
    }

    /// Returns how often the calls of a device were made, by their names.
    pub fn calls(&self, device: usize) -> BTreeMap<&'static str, usize> {
        self.devices[device].calls()
    }
}

impl Driver for FakeDriver {
    fn devices(&self) -> DriverResult<u32> {
        Ok(self.devices.len() as u32)
    }

    fn open(&self, ordinal: u32) -> DriverResult<Arc<dyn Device>> {
        let count = self.devices.len() as u32;
        let device = self.devices.get(ordinal as usize).ok_or(DriverError::NoDevice { ordinal, count })?;
        Ok(Arc::clone(device) as Arc<dyn Device>)
    }
}

/// Returns an error as NVIDIA's driver words it.
pub fn driver_error(call: &'static str, number: u32, name: &str, meaning: &str) -> DriverError {
    DriverError::of_call(FailedCall { call, name: name.to_owned(), meaning: meaning.to_owned() }, number)
}

/// Returns the error of memory that could not be corrected.
pub fn ecc_error(call: &'static str) -> DriverError {
    driver_error(call, 214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered")
}

/// Returns the error of a kernel, or a copy, that has left what was allocated.
pub fn address_error(call: &'static str, what: &str) -> DriverError {
    let meaning = format!("an illegal memory access was encountered: {what}");
    driver_error(call, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", &meaning)
}
