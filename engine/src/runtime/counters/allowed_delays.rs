//! The delays of the network that the policy allows for at the moment, for whoever reads them
//! beside the thread that feeds it.

use std::sync::{Mutex, PoisonError};
use symphony_scheduler::workload::Network;

/// The delays that each model's queues allow for, by the model's id, where hosts measure them;
/// empty elsewhere. Written by the thread of the links, when a delay changes.
#[derive(Debug, Default)]
pub struct AllowedDelays {
    models: Mutex<Vec<Network>>,
}

impl AllowedDelays {
    /// Returns the delays.
    pub fn read(&self) -> Vec<Network> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces all delays.
    pub(crate) fn set(&self, models: &[Network]) {
        models.clone_into(&mut self.models.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
