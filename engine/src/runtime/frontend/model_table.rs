//! The model table, which frontends read: all model slots, replaced as a whole. The control thread
//! publishes a table; each [`Frontend`](crate::runtime::Frontend) compares its number once a call,
//! and takes the new table when it has changed. A holder of an old table may still send requests to
//! the models that it lists: a slot is given to another model only when no table that lists the old
//! one is held, and none of its requests is left. The queries, whose stages are models, are in a
//! [`QueryTable`] beside it.

use super::model_info::{ModelInfo, SlotState};
use super::query_table::QueryTable;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use symphony_transport::message::ModelId;

/// The current table. See the module's description.
#[derive(Debug)]
pub struct ModelTable {
    /// The number of tables published after the first.
    number: AtomicU64,
    current: Mutex<Arc<[ModelInfo]>>,
    /// The versions that were withdrawn for a fault, with the reason.
    withdrawn: Mutex<Vec<Withdrawal>>,
    queries: QueryTable,
}

/// A version that was withdrawn for a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Withdrawal {
    /// The name of the model.
    pub name: String,
    /// The version of the model.
    pub version: u64,
    /// The reason.
    pub reason: String,
}

impl ModelTable {
    /// Makes the first table, without queries.
    pub(crate) fn new(models: Arc<[ModelInfo]>) -> Arc<ModelTable> {
        ModelTable::with_queries(models, QueryTable::default())
    }

    /// Makes the first table beside that of queries.
    pub(crate) fn with_queries(models: Arc<[ModelInfo]>, queries: QueryTable) -> Arc<ModelTable> {
        Arc::new(ModelTable {
            number: AtomicU64::new(0),
            current: Mutex::new(models),
            withdrawn: Mutex::default(),
            queries,
        })
    }

    /// Returns the queries, whose stages are models of this table.
    pub fn queries(&self) -> &QueryTable {
        &self.queries
    }

    /// Returns the number of tables published after the first. It is cheap to read; the table
    /// itself is behind a lock.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        // Relaxed: a reader that sees a new number takes the lock, which orders the rest.
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the current table: every model slot, by id.
    pub fn models(&self) -> Arc<[ModelInfo]> {
        self.read().1
    }

    /// Returns the current table and its number.
    pub(crate) fn read(&self) -> (u64, Arc<[ModelInfo]>) {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        (self.number(), Arc::clone(&current))
    }

    /// Publishes a new table and returns the old one.
    pub(crate) fn publish(&self, models: Arc<[ModelInfo]>) -> Arc<[ModelInfo]> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.number.fetch_add(1, Ordering::Relaxed);
        std::mem::replace(&mut current, models)
    }

    /// Returns the slots of the served models whose batches those of this slot are: several where
    /// models are run as one.
    pub(crate) fn run_with(&self, slot: ModelId) -> Vec<ModelId> {
        let models = self.models();
        ModelInfo::served(&models).filter(|model| model.queue_slot() == slot).map(|model| model.id).collect()
    }

    /// Publishes the current table without these models. Only where nobody else publishes.
    pub(crate) fn close(&self, of: &[ModelId]) {
        let mut models = self.models().to_vec();
        of.iter().for_each(|model| models[model.0 as usize].state = SlotState::Draining);
        self.publish(models.into());
    }

    /// Notes the reason for which models are withdrawn.
    pub(crate) fn note_withdrawal(&self, of: &[ModelId], reason: &str) {
        let models = self.models();
        let mut withdrawn = self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner);
        for ModelInfo { name, version, .. } in of.iter().map(|model| &models[model.0 as usize]) {
            withdrawn.retain(|of| (&of.name, of.version) != (name, *version));
            withdrawn.push(Withdrawal { name: name.clone(), version: *version, reason: reason.to_owned() });
        }
    }

    /// Returns the versions that were withdrawn for a fault and are not served again.
    pub fn withdrawn(&self) -> Vec<Withdrawal> {
        let models = self.models();
        let mut withdrawn = self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner).clone();
        withdrawn.retain(|of| ModelInfo::find(&models, &of.name, Some(of.version)).is_none());
        withdrawn
    }
}

/// The numbers of a frontend's requests in the engine, by model slot. Written by the frontend
/// alone.
#[derive(Clone, Debug)]
pub(crate) struct InFlightCounts(Arc<[AtomicU32]>);

impl InFlightCounts {
    /// Makes counts of zero for `slots` slots.
    pub(crate) fn new(slots: usize) -> InFlightCounts {
        InFlightCounts((0..slots).map(|_| AtomicU32::new(0)).collect())
    }

    /// Counts one more request of the model in `slot`.
    #[inline]
    pub(crate) fn add(&self, slot: usize) {
        let count = &self.0[slot];
        // One writer, so no atomic addition. Relaxed: the control thread reads it once this
        // frontend has released the table that lists the model, which orders the two.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts one request less of the model in `slot`.
    #[inline]
    pub(crate) fn sub(&self, slot: usize) {
        let count = &self.0[slot];
        // Release: a reader of zero sees everything that was done with the request.
        count.store(count.load(Ordering::Relaxed) - 1, Ordering::Release);
    }

    /// Returns the number of requests of the model in `slot`.
    pub(crate) fn count(&self, slot: usize) -> u32 {
        self.0[slot].load(Ordering::Acquire)
    }
}
