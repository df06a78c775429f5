//! What all models of a device share: the workspace, since one batch runs at a time, and the rows
//! of its lanes. Both are as large as the largest model needs; they grow and shrink as models come
//! and go, and stay where they are.

use super::device_memory::{DeviceMemory, PageError, PageRange};
use super::driver::DevicePointer;
use super::error::DriverResult;
use super::owned::OpenDevice;
use std::sync::{Arc, Mutex, PoisonError};

/// The lanes of batches: one whose inputs arrive, one that runs, one whose outputs leave.
pub(super) const LANES: usize = 3;

/// The lane of runs that a thread of the host waits for: warming up and measuring.
pub(super) const HOST_LANE: usize = LANES;

/// All lanes.
pub(super) const ALL_LANES: usize = LANES + 1;

/// The bytes that a model needs of what is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RoomNeed {
    pub(super) workspace: usize,
    pub(super) lane: usize,
}

/// What the models of a device share. See the module's description.
pub(super) struct SharedRoom {
    open: Arc<OpenDevice>,
    ranges: Mutex<SharedRanges>,
}

struct SharedRanges {
    workspace: PageRange,
    lanes: Vec<PageRange>,
    needs: Vec<RoomNeed>,
}

/// A model's part in what is shared; it shrinks when this is dropped.
pub(super) struct Room {
    shared: Arc<SharedRoom>,
    need: RoomNeed,
    pub(super) workspace: DevicePointer,
    pub(super) lanes: Vec<DevicePointer>,
}

impl SharedRoom {
    pub(super) fn new(open: &Arc<OpenDevice>, memory: &Arc<DeviceMemory>) -> DriverResult<Arc<SharedRoom>> {
        let lanes = (0..ALL_LANES).map(|_| memory.whole_range()).collect::<DriverResult<_>>()?;
        let ranges = SharedRanges { workspace: memory.whole_range()?, lanes, needs: Vec::new() };
        Ok(Arc::new(SharedRoom { open: Arc::clone(open), ranges: Mutex::new(ranges) }))
    }

    /// Makes room for a model.
    ///
    /// Errors: [`PageError`]; nothing has changed then.
    pub(super) fn make(self: &Arc<SharedRoom>, need: RoomNeed) -> Result<Room, PageError> {
        let mut ranges = self.ranges.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.needs.push(need);
        if let Err(error) = ranges.fit() {
            ranges.remove(need);
            return Err(error);
        }
        let (workspace, lanes) = (ranges.workspace.start(), ranges.lanes.iter().map(PageRange::start));
        Ok(Room { shared: Arc::clone(self), need, workspace, lanes: lanes.collect() })
    }
}

impl SharedRanges {
    /// Makes the ranges as large as the largest needs.
    fn fit(&mut self) -> Result<(), PageError> {
        let largest = |of: fn(&RoomNeed) -> usize| self.needs.iter().map(of).max().unwrap_or(0);
        let (workspace, lane) = (largest(|need| need.workspace), largest(|need| need.lane));
        self.workspace.resize(workspace)?;
        self.lanes.iter_mut().try_for_each(|range| range.resize(lane))
    }

    fn remove(&mut self, need: RoomNeed) {
        if let Some(at) = self.needs.iter().position(|of| *of == need) {
            self.needs.swap_remove(at);
        }
        // Shrinking takes nothing; what the driver does not take back is tried again at the next.
        let _ = self.fit();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.shared.open.lost().is_none() {
            self.shared.ranges.lock().unwrap_or_else(PoisonError::into_inner).remove(self.need);
        }
    }
}
