//! ONNX Runtime's CUDA provider: the library's own kernels on a GPU, with its own memory and its
//! own stream. It is for comparison, and for models that plans can't be made of.

use super::OnnxRuntimeLibrary;
use ort::ep::{CUDA, ExecutionProviderDispatch};
use ort::session::Session;

/// Returns the provider for a GPU. A session that can't have it is not made.
pub(super) fn cuda(gpu: u32) -> ExecutionProviderDispatch {
    CUDA::default().with_device_id(gpu.cast_signed()).build().error_on_failure()
}

/// Sees that the library has the provider, and that it finds the GPU, if one is asked for.
///
/// Errors: what is lacking, and what would be right.
pub(super) fn check(library: &OnnxRuntimeLibrary, gpu: Option<u32>) -> Result<(), String> {
    let Some(gpu) = gpu else { return Ok(()) };
    let refused = |error: String| {
        let library = library.path.display();
        format!(
            "ONNX Runtime's CUDA provider can't be used on GPU {gpu} ({error}); {library} is to be of the package \
             onnxruntime-gpu, with CUDA and cuDNN in the loader's path, or leave `gpu` out"
        )
    };
    let builder = Session::builder(&library.environment).map_err(|error| refused(error.to_string()))?;
    builder.with_execution_providers([cuda(gpu)]).map(|_| ()).map_err(|error| refused(error.to_string()))
}
