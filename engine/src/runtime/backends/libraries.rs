//! What loads and runs ONNX files besides the library that is built in: ONNX Runtime, and CUDA's
//! driver with its GPUs.

use std::sync::Arc;
use symphony_gpu::OnnxRuntimeOptions;
use symphony_gpu::cuda::CudaDevices;

/// The libraries of an engine. See the module's description.
#[derive(Clone)]
pub struct Libraries {
    /// The options of ONNX Runtime.
    pub onnxruntime: OnnxRuntimeOptions,
    /// The GPUs, which are opened when the first model needs them.
    pub cuda: Arc<CudaDevices>,
}

impl Libraries {
    /// Makes the libraries with these options, and NVIDIA's driver.
    pub fn new(onnxruntime: OnnxRuntimeOptions) -> Libraries {
        Libraries { onnxruntime, cuda: Arc::new(CudaDevices::new(None)) }
    }
}
