//! The rolling profiles of an engine's models as of a moment, for whoever reads them beside the
//! thread that keeps them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use symphony_scheduler::profile::Profile;
use symphony_transport::message::ModelId;

/// The rolling profile of a model.
#[derive(Clone, Debug)]
struct RolledProfile {
    profile: Profile,
    /// The largest ratio to the profile of the load, over all batch sizes.
    drift: f64,
    /// True if the ModelThreads schedule by it.
    is_followed: bool,
}

/// The rolling profiles of all models of which enough batches have run. Written by the profile
/// keeper, a few times a second at most.
#[derive(Debug, Default)]
pub struct RollingProfiles {
    models: Mutex<BTreeMap<ModelId, RolledProfile>>,
    /// Rises with every change of a profile that is followed.
    number: AtomicU64,
}

impl RollingProfiles {
    /// Returns the largest ratio of a model's rolling profile to its profile, over all batch sizes;
    /// `None` before enough batches of a size have run.
    pub fn drift(&self, model: ModelId) -> Option<f64> {
        self.lock().get(&model).map(|of| of.drift)
    }

    /// Returns a model's rolling profile; `None` before enough batches of a size have run.
    pub fn profile(&self, model: ModelId) -> Option<Profile> {
        self.lock().get(&model).map(|of| of.profile.clone())
    }

    /// Returns the rolling profile by which a model is scheduled; `None` where that is the profile
    /// of its load.
    pub(crate) fn followed(&self, model: ModelId) -> Option<Profile> {
        self.lock().get(&model).filter(|of| of.is_followed).map(|of| of.profile.clone())
    }

    /// Returns a number that rises with every change of a profile that is followed.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    /// Sets a model's rolling profile.
    pub(crate) fn set(&self, model: ModelId, profile: &Profile, drift: f64, is_followed: bool) {
        let profile = profile.clone();
        self.lock().insert(model, RolledProfile { profile, drift, is_followed });
        if is_followed {
            self.number.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the models for which `keeps` is false.
    pub(crate) fn retain(&self, keeps: impl Fn(ModelId) -> bool) {
        self.lock().retain(|&model, _| keeps(model));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ModelId, RolledProfile>> {
        // A panic leaves a map that is whole.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
