//! The sessions of ONNX Runtime: where one computes, its options, and the stream of ours that it
//! computes on if it is on a GPU.

use super::call::{caught, failed};
use super::library::{OnnxRuntimeLibrary, open_library};
use super::provider::{self, ProviderGpu, ProviderUse};
use crate::cuda::driver::Stream;
use crate::cuda::{Libcuda, OpenDevice, Owned, driver::Driver};
use crate::host::{LoadError, RunError};
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The options of models on ONNX Runtime.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnnxRuntimeOptions {
    /// The library; `None` looks for it.
    pub library: Option<PathBuf>,
    /// The number of threads that compute one batch: the executor's own, and others that run where
    /// the system puts them.
    pub threads: usize,
    /// The GPU that computes, by its number, through the CUDA provider of the library; `None` for
    /// the executor's core. Operators that the provider lacks are computed on the core.
    pub gpu: Option<u32>,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> OnnxRuntimeOptions {
        OnnxRuntimeOptions { library: None, threads: 1, gpu: None }
    }
}

/// Where a session computes.
#[derive(Clone)]
pub(super) struct SessionPlace {
    pub(super) threads: usize,
    /// The GPU, and what of ours is used there.
    pub(super) gpu: Option<(ProviderGpu, ProviderUse)>,
}

impl SessionPlace {
    /// Returns what of ours is used on a GPU; `None` on a core.
    pub(super) fn provider_use(&self) -> Option<ProviderUse> {
        self.gpu.as_ref().map(|(_, of)| *of)
    }

    /// Returns true unless it is a GPU that was given up.
    pub(super) fn is_usable(&self) -> bool {
        self.gpu.as_ref().is_none_or(|(gpu, _)| gpu.device.lost().is_none())
    }

    /// Returns the same place with another use of what is ours, if it is a GPU.
    pub(super) fn with_use(&self, of: ProviderUse) -> SessionPlace {
        let gpu = self.gpu.clone().map(|(gpu, _)| (gpu, of));
        SessionPlace { threads: self.threads, gpu }
    }
}

/// A session, and the stream that it computes on where that is ours, which goes after it.
pub(super) struct PlacedSession {
    pub(super) session: Session,
    pub(super) stream: Option<Owned<Stream>>,
}

/// Opens the library, for the model of a file, and sees that it has what the options ask for. A GPU
/// is opened by NVIDIA's driver if it is not given.
pub(super) fn opened(
    options: &OnnxRuntimeOptions,
    device: Option<&Arc<OpenDevice>>,
    path: &Path,
) -> Result<(OnnxRuntimeLibrary, SessionPlace), LoadError> {
    let lacking = |reason| LoadError::Library { path: path.into(), reason };
    let library = open_library(options.library.as_deref()).map_err(|error| lacking(error.to_string()))?;
    let threads = options.threads;
    let Some(number) = options.gpu else { return Ok((library, SessionPlace { threads, gpu: None })) };
    provider::check(&library, number).map_err(lacking)?;
    let opened = || Libcuda::open()?.open(number).map(OpenDevice::new);
    let device = device.map_or_else(opened, |device| Ok(Arc::clone(device)));
    let device = device.map_err(|error| lacking(format!("GPU {number} can't be used ({error})")))?;
    Ok((library, SessionPlace { threads, gpu: Some((ProviderGpu { number, device }, ProviderUse::Graphs)) }))
}

/// Makes a session of a file's bytes; its external weights are looked for in `folder`.
pub(super) fn session(
    library: &OnnxRuntimeLibrary,
    bytes: &[u8],
    folder: &Path,
    place: &SessionPlace,
) -> Result<PlacedSession, RunError> {
    let stream = match &place.gpu {
        Some((gpu, ProviderUse::Graphs | ProviderUse::OurStream)) => Some(stream(gpu)?),
        _ => None,
    };
    let session = caught(|| configured(library, bytes, folder, place, stream.as_ref()))?;
    Ok(PlacedSession { session, stream })
}

/// Makes a stream of a GPU.
fn stream(gpu: &ProviderGpu) -> Result<Owned<Stream>, RunError> {
    let made = gpu.device.calls().create_stream().map(|stream| Owned::new(&gpu.device, stream));
    made.map_err(|error| RunError::Failed { reason: gpu.device.note(error).to_string() })
}

fn configured(
    library: &OnnxRuntimeLibrary,
    bytes: &[u8],
    folder: &Path,
    SessionPlace { threads, gpu }: &SessionPlace,
    stream: Option<&Owned<Stream>>,
) -> Result<Session, RunError> {
    /// The key under which ONNX Runtime takes the folder of external weights.
    const FOLDER: &str = "session.model_external_initializers_file_folder_path";
    let threads = *threads;
    let unset = |error: ort::Error<SessionBuilder>| RunError::Failed { reason: error.to_string() };
    let builder = Session::builder(&library.environment).map_err(failed)?;
    let builder = match gpu {
        Some((gpu, of)) => {
            let handle = stream.map(|stream| gpu.device.calls().stream_handle(stream.get())).transpose();
            let handle =
                handle.map_err(|error| RunError::Failed { reason: gpu.device.note(error).to_string() })?;
            let provider = provider::cuda(gpu.number, handle, *of == ProviderUse::Graphs);
            builder.with_execution_providers([provider]).map_err(unset)?
        }
        None => builder,
    };
    let builder = builder.with_optimization_level(GraphOptimizationLevel::All).map_err(unset)?;
    let builder = builder.with_intra_threads(threads).map_err(unset)?;
    let builder = builder.with_inter_threads(1).map_err(unset)?;
    let builder = builder.with_intra_op_spinning(false).map_err(unset)?;
    let mut builder = builder.with_config_entry(FOLDER, folder.to_string_lossy()).map_err(unset)?;
    if threads > 1 {
        // The others would all run on the core that this one is pinned to.
        let every = every_core();
        let others = vec![every.as_str(); threads - 1].join(";");
        builder = builder.with_config_entry("session.intra_op_thread_affinities", others).map_err(unset)?;
    }
    builder.commit_from_memory(bytes).map_err(failed)
}

/// Returns the machine's cores as ONNX Runtime lists them, counted from 1.
fn every_core() -> String {
    // As 0-3,8: the calling thread may be pinned, so its own cores are not all.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let next = |core: &str| core.trim().parse::<usize>().map_or(1, |core| core + 1).to_string();
    let range = |cores: &str| cores.split('-').map(next).collect::<Vec<_>>().join("-");
    online.split(',').map(range).collect::<Vec<_>>().join(",")
}
