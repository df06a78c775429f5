//! The run times of applications' requests that a policy has learnt, as of a moment, for whoever
//! reads them beside the thread of the policy.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, TryLockError};
use symphony_scheduler::run_time::RunTimeHistogram;
use symphony_transport::message::ModelId;

/// The histograms of run times by model slot, where a policy learns them. Written by the
/// PolicyThread, once a second.
#[derive(Debug, Default)]
pub struct RunTimeBoard(Mutex<BTreeMap<ModelId, RunTimeHistogram>>);

impl RunTimeBoard {
    /// Returns the run times of the application in this model slot; `None` where nothing is learnt.
    pub fn of(&self, model: ModelId) -> Option<RunTimeHistogram> {
        // A panic leaves a map that is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&model).cloned()
    }

    /// Sets the run times, unless somebody reads them just now: the caller never waits.
    pub(crate) fn set(&self, learned: impl IntoIterator<Item = (ModelId, RunTimeHistogram)>) {
        match self.0.try_lock() {
            Ok(mut models) => models.extend(learned),
            Err(TryLockError::Poisoned(models)) => models.into_inner().extend(learned),
            Err(TryLockError::WouldBlock) => {}
        }
    }
}
