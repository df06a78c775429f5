//! What loads and runs ONNX files besides the library that is built in: ONNX Runtime, and CUDA's
//! driver with its GPUs.

use crate::config::Config;
use std::sync::Arc;
use symphony_gpu::OnnxRuntimeOptions;
use symphony_gpu::cuda::CudaDevices;
use symphony_gpu::cuda::driver::Driver;

/// The libraries of an engine. See the module's description.
#[derive(Clone)]
pub struct Libraries {
    /// The options of ONNX Runtime.
    pub onnxruntime: OnnxRuntimeOptions,
    /// The GPUs, which are opened when the first model needs them.
    pub cuda: Arc<CudaDevices>,
}

impl Libraries {
    /// Makes the libraries of this configuration, with NVIDIA's driver unless another is given.
    pub fn of(config: &Config, driver: Option<Arc<dyn Driver>>) -> Libraries {
        let cuda = CudaDevices::new(driver).with_pages(config.gpu_pages());
        Libraries { onnxruntime: config.onnxruntime.clone(), cuda: Arc::new(cuda) }
    }
}
