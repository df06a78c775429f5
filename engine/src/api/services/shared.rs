//! The state that all API cores of a server share. No request waits for it but those that use
//! shared memory.

use super::settings::LogSettings;
use super::shared_memory::Regions;
use super::statistics::Statistics;
use crate::control::Repository;
use crate::control::weights::GpuLoaders;
use crate::runtime::ThreadHook;
use crate::telemetry::otlp::{Exporter, Tracing};
use std::fmt;
use std::sync::Arc;

/// The state that all API cores of a server share. Clones share it too.
#[derive(Clone, Default)]
pub struct SharedState {
    pub(in crate::api) regions: Arc<Regions>,
    pub(in crate::api) statistics: Arc<Statistics>,
    pub(in crate::api) log: Arc<LogSettings>,
    pub(in crate::api) repository: Option<Arc<Repository>>,
    pub(in crate::api) gpu_loaders: Option<Arc<GpuLoaders>>,
    pub(in crate::api) tracing: Option<Tracing>,
    hook: Option<ThreadHook>,
}

impl SharedState {
    /// Creates the state: no shared memory regions, no counts, no model repository.
    pub fn new() -> SharedState {
        SharedState::default()
    }

    /// Adds a model repository, if there is one.
    pub fn with_repository(self, repository: Option<Arc<Repository>>) -> SharedState {
        SharedState { repository, ..self }
    }

    /// Adds the loaders of the process's GPUs, if it has any.
    pub fn with_gpu_loaders(self, gpu_loaders: Option<Arc<GpuLoaders>>) -> SharedState {
        SharedState { gpu_loaders, ..self }
    }

    /// Has every API core call `hook`, if there is one: ten times a second with its name, and for
    /// each infer request with the model's name. With it, tests make a core or a request's handler
    /// panic or hang.
    #[doc(hidden)]
    pub fn with_hook(self, hook: Option<ThreadHook>) -> SharedState {
        SharedState { hook, ..self }
    }

    /// Calls the hook, if there is one.
    #[inline]
    pub(in crate::api) fn call_hook(&self, name: &str) {
        if let Some(hook) = &self.hook {
            hook(name);
        }
    }

    /// Turns on the tracing of requests if there is an exporter for the traces.
    pub fn with_traces(self, exporter: Option<&Exporter>) -> SharedState {
        SharedState { tracing: exporter.map(Exporter::tracing), ..self }
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").field("repository", &self.repository.is_some()).finish_non_exhaustive()
    }
}
