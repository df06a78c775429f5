//! What all API cores of a server share: little, and nothing that a request without shared memory
//! waits for.

use super::settings::LogSettings;
use super::shared_memory::Regions;
use super::statistics::Statistics;
use crate::control::Repository;
use crate::telemetry::otlp::{Exporter, Tracing};
use std::fmt;
use std::sync::Arc;

/// What all API cores of a server share. Cloned, it is still the same.
#[derive(Clone, Default)]
pub struct SharedState {
    pub(in crate::api) regions: Arc<Regions>,
    pub(in crate::api) statistics: Arc<Statistics>,
    pub(in crate::api) log: Arc<LogSettings>,
    pub(in crate::api) repository: Option<Arc<Repository>>,
    pub(in crate::api) tracing: Option<Tracing>,
}

impl SharedState {
    /// Without shared memory regions or counts yet, with the models that the server starts with.
    pub fn new() -> SharedState {
        SharedState::default()
    }

    /// The same with the models of a repository, if there is one.
    pub fn with_repository(self, repository: Option<Arc<Repository>>) -> SharedState {
        SharedState { repository, ..self }
    }

    /// The same with requests traced, if somebody sends the traces.
    pub fn with_traces(self, exporter: Option<&Exporter>) -> SharedState {
        SharedState { tracing: exporter.map(Exporter::tracing), ..self }
    }
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").field("repository", &self.repository.is_some()).finish_non_exhaustive()
    }
}
