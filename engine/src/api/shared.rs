//! What all API cores of a server share: little, and nothing that a request without shared memory
//! waits for.

use super::regions::Regions;
use super::settings::LogSettings;
use super::statistics::Statistics;
use crate::control::Repository;
use crate::telemetry::otlp::{Exporter, Tracing};
use std::fmt;
use std::sync::Arc;

/// What all API cores of a server share. Cloned, it is still the same.
#[derive(Clone, Default)]
pub struct Shared {
    pub(super) regions: Arc<Regions>,
    pub(super) statistics: Arc<Statistics>,
    pub(super) log: Arc<LogSettings>,
    pub(super) repository: Option<Arc<Repository>>,
    pub(super) tracing: Option<Tracing>,
}

impl Shared {
    /// Without shared memory regions or counts yet, with the models that the server starts with.
    pub fn new() -> Shared {
        Shared::default()
    }

    /// The same with the models of a repository, if there is one.
    pub fn with_repository(self, repository: Option<Arc<Repository>>) -> Shared {
        Shared { repository, ..self }
    }

    /// The same with requests traced, if somebody sends the traces.
    pub fn with_traces(self, exporter: Option<&Exporter>) -> Shared {
        Shared { tracing: exporter.map(Exporter::tracing), ..self }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("repository", &self.repository.is_some()).finish_non_exhaustive()
    }
}
