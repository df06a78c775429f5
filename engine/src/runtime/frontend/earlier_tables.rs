//! The model tables that a frontend has replaced while a caller of it still holds them: requests
//! for the models that these list go on to be accepted. A frontend hands out a copy of its own of
//! each published table, so that it can tell its callers from others, and holds the published one
//! for as long: the control thread takes that for a sign that requests may still come.

use super::model_info::{ModelInfo, SlotState};
use std::sync::Arc;

/// A table that a caller may still hold.
struct EarlierTable {
    /// The frontend's copy, which callers hold.
    copy: Arc<[ModelInfo]>,
    /// The published table.
    _published: Arc<[ModelInfo]>,
}

/// The replaced tables. See the module's description.
#[derive(Default)]
pub(super) struct EarlierTables(Vec<EarlierTable>);

impl EarlierTables {
    /// Returns true if there are none.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a table that was replaced: the frontend's copy, and what it is a copy of.
    pub(super) fn add(&mut self, copy: Arc<[ModelInfo]>, published: Arc<[ModelInfo]>) {
        self.0.push(EarlierTable { copy, _published: published });
    }

    /// Lets go of the tables that no caller holds.
    pub(super) fn let_go(&mut self) {
        // Nobody but the frontend's thread can make a first clone of a copy.
        self.0.retain(|table| Arc::strong_count(&table.copy) > 1);
    }

    /// Returns true if the model is served in one of the tables, which its slot then still belongs
    /// to.
    pub(super) fn serve(&self, model: &ModelInfo) -> bool {
        self.0.iter().any(|table| table.copy[model.id.0 as usize].state == SlotState::Serving)
    }
}
