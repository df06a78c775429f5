//! The GPU time that models have had lately, and which of them yield under overload. A model whose
//! batches take long, or whose data does, is granted a GPU well before that is free: before those
//! of an overloaded model that take less time ask for it, whose next batch has yet to come. So as
//! long as a model is overloaded, those that have had far more GPU time than it are sent ahead no
//! farther than it is (docs/scheduling.md, "Overload").
//!
//! An addition for each batch. The models that are compared are two: the one whose batch is next,
//! and of the overloaded ones that which has had the least.

use crate::limits::RATE_WINDOW;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// A model yields if it has had so many times the GPU time of an overloaded one.
const FAR_MORE: u64 = 2;

/// The time after which a sixteenth of what a model has had is forgotten: the memory is that of the
/// rate meter, 5 s.
const FADES_EVERY: Nanos = Nanos(RATE_WINDOW.0 / FADES as u64);
const FADES: u32 = 16;

/// The GPU time that a model has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GpuShare {
    /// The time, faded.
    pub had: Nanos,
    /// How often it has faded since time zero.
    pub fades: u32,
}

impl GpuShare {
    /// Returns the time as it has become after so many fades.
    fn faded(self, fades: u32) -> u64 {
        let more = fades.saturating_sub(self.fades);
        // After so many there is less than a millionth of it.
        let left = if more > FADES * FADES { 0 } else { self.had.0 };
        (0..more).take_while(|_| left > 0).fold(left, |left, _| left - left.div_ceil(FADES.into()))
    }
}

/// The overloaded model that has had the least GPU time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeediestModel {
    /// The index of the model.
    pub model: usize,
    /// When it was last offered; [`Nanos::MAX`] if since the last matching.
    pub offered: Nanos,
}

/// See the module's description.
pub(super) struct GpuShares {
    shares: Vec<GpuShare>,
    neediest: Option<NeediestModel>,
}

impl GpuShares {
    pub(super) fn new(models: usize) -> GpuShares {
        GpuShares { shares: vec![GpuShare::default(); models], neediest: None }
    }

    /// Notes a batch of a model, which starts then and takes so long.
    #[inline]
    pub(super) fn add(&mut self, model: usize, starts: Nanos, takes: Nanos) {
        let fades = (starts.0 / FADES_EVERY.0) as u32;
        let share = &mut self.shares[model];
        if fades > share.fades {
            *share = GpuShare { had: Nanos(share.faded(fades)), fades };
        }
        share.had += takes;
    }

    /// Notes that an overloaded model has a candidate.
    #[cold]
    pub(super) fn note_overloaded(&mut self, model: usize) {
        let needs_more = |than: NeediestModel| {
            let [own, least] = self.times(model, than.model);
            own <= least
        };
        if self.neediest.is_none_or(needs_more) {
            self.neediest = Some(NeediestModel { model, offered: Nanos::MAX });
        }
    }

    /// Notes that a matching begins. A model that was not offered for so long needs nothing.
    #[inline]
    pub(super) fn begin(&mut self, now: Nanos, forgotten_after: Nanos) {
        if let Some(neediest) = &mut self.neediest {
            neediest.offered = if neediest.offered == Nanos::MAX { now } else { neediest.offered };
            if neediest.offered + forgotten_after < now {
                self.neediest = None;
            }
        }
    }

    /// Returns the overloaded model that this one is to be sent ahead no farther than.
    #[inline]
    pub(super) fn yields_to(&self, model: usize) -> Option<usize> {
        let neediest = self.neediest?.model;
        let [own, least] = self.times(model, neediest);
        (own > FAR_MORE * least).then_some(neediest)
    }

    /// Returns what the two models have had, by the time of the later one.
    fn times(&self, one: usize, other: usize) -> [u64; 2] {
        let [one, other] = [self.shares[one], self.shares[other]];
        let fades = one.fades.max(other.fades);
        [one.faded(fades), other.faded(fades)]
    }

    pub(super) fn share(&self, model: usize) -> GpuShare {
        self.shares[model]
    }

    pub(super) fn neediest(&self) -> Option<NeediestModel> {
        self.neediest
    }

    pub(super) fn restore(&mut self, model: usize, share: GpuShare, offered: Option<Nanos>) {
        self.shares[model] = share;
        if let Some(offered) = offered {
            self.neediest = Some(NeediestModel { model, offered });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORGOTTEN: Nanos = Nanos::from_millis(20);

    /// Four models on GPUs of which they have had so many milliseconds by 1 s.
    fn shares(had_ms: [u64; 4]) -> GpuShares {
        let mut shares = GpuShares::new(4);
        for (model, ms) in had_ms.into_iter().enumerate() {
            shares.add(model, Nanos::from_secs(1), Nanos::from_millis(ms));
        }
        shares
    }

    fn yielding(shares: &GpuShares) -> Vec<usize> {
        (0..4).filter(|&model| shares.yields_to(model).is_some()).collect()
    }

    #[test]
    fn who_has_had_far_more_than_an_overloaded_model_yields() {
        let mut shares = shares([100, 210, 150, 300]);
        assert_eq!(yielding(&shares), [], "none is overloaded");
        shares.note_overloaded(2);
        assert_eq!(yielding(&shares), [], "300 ms are twice as much as 150");
        shares.note_overloaded(0);
        assert_eq!(yielding(&shares), [1, 3]);
        shares.note_overloaded(3);
        assert_eq!(shares.yields_to(1), Some(0), "the one that has had the least counts");
        let mut flooded = super::tests::shares([900, 100, 100, 100]);
        flooded.note_overloaded(0);
        assert_eq!(yielding(&flooded), [], "nobody yields to the one that has had the most");
    }

    #[test]
    fn a_model_that_is_offered_no_more_needs_nothing() {
        let mut shares = shares([100, 210, 150, 300]);
        let at = Nanos::from_secs(2);
        shares.note_overloaded(0);
        shares.begin(at, FORGOTTEN);
        shares.begin(at + FORGOTTEN, FORGOTTEN);
        assert_eq!(yielding(&shares), [1, 3]);
        shares.note_overloaded(0);
        shares.begin(at + FORGOTTEN, FORGOTTEN);
        shares.begin(at + FORGOTTEN + FORGOTTEN, FORGOTTEN);
        assert_eq!(yielding(&shares), [1, 3], "it was offered again");
        shares.begin(at + FORGOTTEN + FORGOTTEN + Nanos(1), FORGOTTEN);
        assert_eq!(yielding(&shares), []);
        shares.note_overloaded(2);
        assert_eq!(shares.neediest().map(|neediest| neediest.model), Some(2), "then another one counts");
    }

    #[test]
    fn what_a_model_has_had_fades_in_some_seconds() {
        let mut shares = shares([100, 0, 100, 0]);
        // A third is left after 5 s.
        shares.add(1, Nanos::from_secs(6), Nanos::from_millis(10));
        shares.note_overloaded(1);
        assert_eq!(yielding(&shares), [0, 2]);
        shares.add(1, Nanos::from_secs(6), Nanos::from_millis(10));
        assert_eq!(yielding(&shares), []);
        shares.add(0, Nanos::from_secs(6), Nanos::ZERO);
        let had = shares.share(0).had.as_secs_f64();
        assert!((had / 0.1 - (15.0_f64 / 16.0).powi(16)).abs() < 0.01, "{had}");
        shares.add(0, Nanos::from_secs(900), Nanos(7));
        assert_eq!(shares.share(0).had, Nanos(7));
    }
}
