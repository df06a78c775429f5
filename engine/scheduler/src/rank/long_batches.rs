//! Candidates that take a GPU only if another one is free soon. Owned by a
//! [`RankState`](super::RankState), empty unless a setting has a reserve.
//!
//! A model whose requests can wait for a time t gets a GPU in time if one becomes free within t.
//! Where batches take far longer, GPUs become free seldom, and all that idle may be taken by such
//! batches at once. So a batch that takes longer than t leaves the last GPU that is free within t
//! to those that are shorter: it waits for another one, or becomes that short itself.

use super::input::Offer;
use super::min_tree::MinTree;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// See the module's description.
pub(super) struct LongBatches {
    /// `latest` of each model with a due one.
    due: MinTree,
    /// `latest` of each model with an early one.
    early: MinTree,
    /// The time within which another GPU has to be free; [`Nanos::MAX`] for a model without one.
    leaves: Vec<Nanos>,
    /// See [`Offer::shrinks`].
    shrinks: Vec<bool>,
    /// The number of models that have one.
    count: usize,
}

impl LongBatches {
    /// No candidate of any of the models.
    pub(super) fn new(models: usize) -> LongBatches {
        LongBatches {
            due: MinTree::new(models),
            early: MinTree::new(models),
            leaves: vec![Nanos::MAX; models],
            shrinks: vec![false; models],
            count: 0,
        }
    }

    /// True where no model has one.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True for a model that has one.
    #[inline]
    pub(super) fn has(&self, model: usize) -> bool {
        self.leaves[model] < Nanos::MAX
    }

    /// Returns the time within which another GPU has to be free, if the model has one.
    pub(super) fn leaves(&self, model: usize) -> Option<Nanos> {
        Some(self.leaves[model]).filter(|&leaves| leaves < Nanos::MAX)
    }

    /// Returns true if the model has one that becomes short enough instead.
    pub(super) fn shrinks(&self, model: usize) -> bool {
        self.has(model) && self.shrinks[model]
    }

    /// Returns the `latest` of a model's, and true if it is early.
    pub(super) fn waiting(&self, model: usize) -> (Nanos, bool) {
        let early = self.early.get(model);
        (early.min(self.due.get(model)), early < Nanos::MAX)
    }

    /// Adds that of a model that has none.
    #[cold]
    pub(super) fn set(&mut self, model: usize, offer: Offer) {
        if offer.latest < Nanos::MAX {
            let tree = if offer.early { &mut self.early } else { &mut self.due };
            tree.set(model, offer.latest);
            self.leaves[model] = offer.leaves;
            self.shrinks[model] = offer.shrinks;
            self.count += 1;
        }
    }

    /// Takes a model's out. Returns true if it was due.
    #[cold]
    pub(super) fn forget(&mut self, model: usize) -> bool {
        let was_due = self.due.get(model) < Nanos::MAX;
        self.due.set(model, Nanos::MAX);
        self.early.set(model, Nanos::MAX);
        self.leaves[model] = Nanos::MAX;
        self.count -= 1;
        was_due
    }

    /// Returns for `early` and `due` each the tree of these candidates, if its first goes before.
    #[cold]
    pub(super) fn or_before<'a>(
        &'a self,
        early: &'a MinTree,
        due: &'a MinTree,
    ) -> (&'a MinTree, &'a MinTree) {
        let first = |long: &'a MinTree, other: &'a MinTree| {
            if long.min_key() < other.min_key() { long } else { other }
        };
        (first(&self.early, early), first(&self.due, due))
    }
}
