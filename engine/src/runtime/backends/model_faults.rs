//! The models that make executors hang or die, and those that are unloaded for it.

use crate::runtime::frontend::ModelTable;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The number of times that a model may make an executor hang or die, within [`WITHIN`], before it
/// is unloaded.
pub(super) const HANGS: usize = 3;

/// The time within which hangs are counted together.
pub(super) const WITHIN: Nanos = Nanos::from_secs(60);

/// The faults of an engine's models. See the module's description.
pub(crate) struct ModelFaults {
    model_table: Arc<ModelTable>,
    /// True for the models that executors run no more, by id.
    condemned: Box<[AtomicBool]>,
    /// The last hangs and deaths: the model and the time of each.
    hangs: Mutex<Vec<(ModelId, Nanos)>>,
    /// The condemned models that the control thread is to unload, with the reason; `None` where
    /// there is no control thread.
    to_unload: Option<Mutex<Vec<(ModelId, String)>>>,
}

impl ModelFaults {
    /// Makes the faults of an engine with this table, none so far. `is_controlled` is true if its
    /// models are loaded and unloaded through [`ModelSlots`](crate::runtime::ModelSlots).
    pub(crate) fn new(model_table: Arc<ModelTable>, is_controlled: bool) -> ModelFaults {
        let models = model_table.models().len();
        ModelFaults {
            model_table,
            condemned: (0..models).map(|_| AtomicBool::new(false)).collect(),
            hangs: Mutex::default(),
            to_unload: is_controlled.then(Mutex::default),
        }
    }

    /// Returns true if the model is not to be run any more.
    #[inline]
    pub(crate) fn is_condemned(&self, model: ModelId) -> bool {
        // Relaxed: a batch more or less makes no difference.
        self.condemned.get(model.0 as usize).is_some_and(|condemned| condemned.load(Ordering::Relaxed))
    }

    /// Returns the name of a model.
    pub(crate) fn name_of(&self, model: ModelId) -> String {
        self.model_table.models()[model.0 as usize].name.clone()
    }

    /// Notes that the model made an executor hang or die. Returns the reason if it is unloaded for
    /// that.
    pub(crate) fn hung(&self, model: ModelId, now: Nanos) -> Option<String> {
        let mut hangs = lock(&self.hangs);
        hangs.retain(|(_, at)| *at + WITHIN > now);
        hangs.push((model, now));
        if hangs.iter().filter(|(of, _)| *of == model).count() < HANGS || self.is_condemned(model) {
            return None;
        }
        self.condemned[model.0 as usize].store(true, Ordering::Relaxed);
        let seconds = WITHIN.as_secs_f64();
        let reason = format!("unloaded: it made an executor hang or die {HANGS} times within {seconds} s");
        let all = self.model_table.run_with(model);
        self.model_table.note_withdrawal(&all, &reason);
        match &self.to_unload {
            Some(to_unload) => lock(to_unload).extend(all.into_iter().map(|model| (model, reason.clone()))),
            None => self.model_table.close(&all),
        }
        Some(reason)
    }

    /// Returns the models to unload that were condemned since the last call, with the reasons.
    pub(crate) fn take_condemned(&self) -> Vec<(ModelId, String)> {
        self.to_unload.as_ref().map(|to_unload| std::mem::take(&mut *lock(to_unload))).unwrap_or_default()
    }

    /// Forgets the faults of a slot's model, as it gets another one.
    pub(crate) fn forget(&self, model: ModelId) {
        lock(&self.hangs).retain(|(of, _)| *of != model);
        self.condemned[model.0 as usize].store(false, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
