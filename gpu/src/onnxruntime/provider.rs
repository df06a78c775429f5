//! ONNX Runtime's CUDA provider: the library's own kernels on a GPU, on a stream and on rows of
//! ours. It is for comparison, and for models that plans can't be made of.

use super::library::OnnxRuntimeLibrary;
use crate::cuda::OpenDevice;
use crate::cuda::driver::{DevicePointer, StreamHandle};
use ort::AsPointer;
use ort::ep::{CUDA, ExecutionProviderDispatch};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::TensorElementType;
use std::ffi::CString;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

/// A GPU by its number, which the library opens by itself, and as the driver knows it.
#[derive(Clone)]
pub(super) struct ProviderGpu {
    pub(super) number: u32,
    pub(super) device: Arc<OpenDevice>,
}

/// What of ours a session has, from the most on: a model that refuses one is given the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProviderUse {
    /// Our stream and rows of ours, and a graph of each batch size.
    Graphs,
    /// Our stream and rows of ours.
    OurStream,
    /// Nothing: the provider has a stream and memory of its own, and copies rows in the run.
    Own,
}

impl ProviderUse {
    /// Returns what is tried next, and how a message tells that it is.
    pub(super) fn next(self) -> Option<(ProviderUse, &'static str)> {
        match self {
            ProviderUse::Graphs => Some((ProviderUse::OurStream, "without CUDA graphs")),
            ProviderUse::OurStream => Some((ProviderUse::Own, "on the provider's own stream and memory")),
            ProviderUse::Own => None,
        }
    }
}

/// Returns the provider for a GPU, to compute on a stream of ours if one is given, which outlives
/// the session. A session that can't have it is not made.
pub(super) fn cuda(gpu: u32, stream: Option<StreamHandle>, graphs: bool) -> ExecutionProviderDispatch {
    let provider = CUDA::default().with_device_id(gpu.cast_signed()).with_cuda_graph(graphs);
    let provider = match stream {
        // SAFETY: the caller's: the stream outlives the session.
        Some(StreamHandle(stream)) => unsafe { provider.with_compute_stream(without_provenance_mut(stream)) },
        None => provider,
    };
    provider.build().error_on_failure()
}

/// Returns the options of a run whose graph has this number; no graph is made or launched with
/// `None`.
pub(super) fn options_of_graph(number: Option<usize>) -> ort::Result<RunOptions> {
    /// The key under which the provider takes the number of a graph; with -1 there is none.
    const GRAPH: &str = "gpu_graph_id";
    let mut options = RunOptions::new()?;
    options.set(GRAPH, number.map_or("-1".to_owned(), |number| number.to_string()))?;
    Ok(options)
}

/// Whether a tensor is read or written by a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorRole {
    Input,
    Output,
}

/// A tensor in device memory.
pub(super) struct DeviceTensor<'a> {
    pub(super) name: &'a str,
    pub(super) element: TensorElementType,
    /// The whole shape.
    pub(super) shape: &'a [i64],
    pub(super) at: DevicePointer,
    pub(super) bytes: usize,
}

/// Has the runs of a binding read or write a tensor where it lies. (The crate's own call binds a
/// copy of an input.)
///
/// # Safety
/// The memory is there for as long as the binding.
pub(super) unsafe fn bind(
    binding: &mut IoBinding,
    gpu: u32,
    role: TensorRole,
    tensor: &DeviceTensor<'_>,
) -> ort::Result<()> {
    let (at, ordinal) = (without_provenance_mut(tensor.at.0 as usize), gpu.cast_signed());
    let memory =
        MemoryInfo::new(AllocationDevice::CUDA, ordinal, AllocatorType::Device, MemoryType::Default)?;
    let name = CString::new(tensor.name).map_err(|_| ort::Error::new("a tensor's name has a 0"))?;
    let (api, mut value) = (ort::api(), null_mut());
    let (shape, element) = (tensor.shape, tensor.element.into());
    // SAFETY: reads the shape's sizes; the memory is the caller's to promise, and not followed.
    let made = unsafe {
        let (sizes, bytes) = (shape.as_ptr(), tensor.bytes);
        let made = (api.CreateTensorWithDataAsOrtValue)(
            memory.ptr(),
            at,
            bytes,
            sizes,
            shape.len(),
            element,
            &mut value,
        );
        ort::Error::result_from_status(made)
    };
    made?;
    let bind = if role == TensorRole::Input { api.BindInput } else { api.BindOutput };
    // SAFETY: the binding and the value are the library's, and the name ends in 0. The binding
    // keeps what it needs of the value, which is released once.
    unsafe {
        let bound = ort::Error::result_from_status(bind(binding.ptr_mut(), name.as_ptr(), value));
        (api.ReleaseValue)(value);
        bound
    }
}

/// Sees that the library has the provider, and that it finds the GPU.
///
/// Errors: what is lacking, and what would be right.
pub(super) fn check(library: &OnnxRuntimeLibrary, gpu: u32) -> Result<(), String> {
    let refused = |error: String| {
        let library = library.path.display();
        format!(
            "ONNX Runtime's CUDA provider can't be used on GPU {gpu} ({error}); {library} is to be of the package \
             onnxruntime-gpu, with CUDA and cuDNN in the loader's path, or leave `gpu` out"
        )
    };
    let builder = Session::builder(&library.environment).map_err(|error| refused(error.to_string()))?;
    let builder = builder.with_execution_providers([cuda(gpu, None, false)]);
    builder.map(|_| ()).map_err(|error| refused(error.to_string()))
}
