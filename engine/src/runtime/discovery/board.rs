//! The state of discovery, for others to read.

use std::sync::{Mutex, PoisonError};

/// The state of discovery, as it was at the last look.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiscoveryView {
    /// The source, as in CONFIG.
    pub source: &'static str,
    /// The source has answered when it was last asked.
    pub is_up: bool,
    /// The hosts or addresses that are known at the moment.
    pub known: usize,
    /// The joins, leaves and moves of hosts that were seen.
    pub changes: u64,
    /// How often the source was lost.
    pub losses: u64,
}

/// The state of discovery, which the source's thread and that of the links write.
#[derive(Debug)]
pub struct DiscoveryBoard(Mutex<DiscoveryView>);

impl DiscoveryBoard {
    /// Makes the board of a source that has not answered yet.
    pub(super) fn new(source: &'static str) -> DiscoveryBoard {
        DiscoveryBoard(Mutex::new(DiscoveryView { source, is_up: false, known: 0, changes: 0, losses: 0 }))
    }

    /// Returns the state.
    pub fn view(&self) -> DiscoveryView {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how many hosts are known, after so many changes more.
    pub(crate) fn set_known(&self, known: usize, changes: usize) {
        let mut view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        view.known = known;
        view.changes += changes as u64;
    }

    /// Notes whether the source answers, and logs it if that is new. `why` is the reason where it
    /// does not.
    pub(super) fn set_up(&self, why: Result<(), &str>) {
        let mut view = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (was_up, never_was) = (view.is_up, !view.is_up && view.losses == 0);
        view.is_up = why.is_ok();
        let source = view.source;
        match why {
            Ok(()) if !was_up => tracing::info!("discovery: {source} answers"),
            Err(why) if was_up || never_was => {
                view.losses += 1;
                tracing::warn!("discovery: {source} is lost: {why}; hosts that are known stay in use");
            }
            _ => {}
        }
    }
}
