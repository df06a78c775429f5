//! A model's weights: in pinned memory of the host always, and on the device between LOAD and
//! UNLOAD (Clockwork, sections 4.4 and 5.2), at addresses that stay the same. Both are called by
//! threads that may wait; batches run beside them.

use super::device_memory::{PageError, PageRange};
use super::driver::{DevicePointer, Event, Pinned, Stream};
use super::error::DriverResult;
use super::open::CudaDevice;
use super::owned::{LOAD_PATIENCE, Owned};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use symphony_transport::Nanos;

/// The bytes that are copied in one piece, so that the inputs of batches get in between.
const PIECE_BYTES: usize = 16 << 20;

/// The weights of a model. See the module's description.
pub struct DeviceWeights {
    device: Arc<CudaDevice>,
    bytes: usize,
    staged: Owned<Pinned>,
    stream: Owned<Stream>,
    began: Owned<Event>,
    copied: Owned<Event>,
    range: Mutex<PageRange>,
    /// The pages that the range has, for those who must not wait for a LOAD.
    held: AtomicU32,
    presence: Mutex<WeightsPresence>,
    /// Rung when a batch no longer uses them.
    left: Condvar,
}

/// Where a model's weights are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WeightsState {
    /// Not on the device: no batch runs.
    #[default]
    Unloaded,
    /// Being copied to the device.
    Loading,
    /// Present on the device: batches run.
    Loaded,
    /// Leaving the device: batches that run are finished first, and no more begin.
    Unloading,
}

/// Whether weights can be used, and by how many runs they are.
#[derive(Default)]
struct WeightsPresence {
    state: WeightsState,
    runs: usize,
    last_load: Option<WeightsLoad>,
}

/// The use of weights by a batch: they are not unloaded before it ends.
pub(super) struct WeightsInUse(Arc<DeviceWeights>);

impl Drop for WeightsInUse {
    fn drop(&mut self) {
        self.0.presence().runs -= 1;
        self.0.left.notify_all();
    }
}

/// What a LOAD has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WeightsLoad {
    /// The pages that it has taken.
    pub pages: u32,
    /// The bytes that were copied.
    pub bytes: usize,
    /// The device's time for the copies.
    pub copying: Nanos,
    /// The host's time for all of it.
    pub whole: Nanos,
}

impl DeviceWeights {
    /// Copies weights to pinned memory, to be loaded.
    ///
    /// Errors: the driver's.
    pub(super) fn new(device: &Arc<CudaDevice>, bytes: &[u8]) -> DriverResult<DeviceWeights> {
        let calls = device.open.calls();
        let staged = Owned::new(&device.open, calls.allocate_pinned(bytes.len())?);
        calls.write_pinned(staged.get(), 0, bytes)?;
        Ok(DeviceWeights {
            bytes: bytes.len(),
            staged,
            stream: device.stream()?,
            began: device.timed_event()?,
            copied: device.timed_event()?,
            range: Mutex::new(device.memory.range(bytes.len())?),
            held: AtomicU32::new(0),
            presence: Mutex::default(),
            left: Condvar::new(),
            device: Arc::clone(device),
        })
    }

    fn presence(&self) -> MutexGuard<'_, WeightsPresence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self) -> MutexGuard<'_, PageRange> {
        self.range.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the first address.
    pub(super) fn start(&self) -> DevicePointer {
        self.range().start()
    }

    /// Returns the number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of pages that they take on the device.
    pub fn pages(&self) -> u32 {
        self.device.memory.pages_for(self.bytes)
    }

    /// Returns the number of pages that they have at the moment. Waits for no LOAD.
    pub fn held_pages(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }

    /// Returns where they are. Waits for no LOAD.
    pub fn state(&self) -> WeightsState {
        self.presence().state
    }

    /// Returns what the last LOAD that went well has done; a model's weights are loaded once when
    /// it is made.
    pub fn last_load(&self) -> Option<WeightsLoad> {
        self.presence().last_load
    }

    /// Returns true if batches can use them.
    pub fn is_there(&self) -> bool {
        self.state() == WeightsState::Loaded
    }

    /// Uses them until the value is dropped; `None` if they are not on the device.
    pub(super) fn in_use(self: &Arc<DeviceWeights>) -> Option<WeightsInUse> {
        let mut presence = self.presence();
        let is_there = presence.state == WeightsState::Loaded;
        presence.runs += usize::from(is_there);
        is_there.then(|| WeightsInUse(Arc::clone(self)))
    }

    fn set_state(&self, state: WeightsState) {
        self.presence().state = state;
    }

    /// Loads the weights as [`DeviceWeights::load_within`] does, within a minute.
    ///
    /// # Errors
    /// Those of [`DeviceWeights::load_within`].
    pub fn load(&self) -> Result<WeightsLoad, String> {
        self.load_within(LOAD_PATIENCE)
    }

    /// Loads the weights, and returns when they are there; at once if they are. Batches of other
    /// models run meanwhile. A device that has not copied them after `patience` is given up.
    ///
    /// # Errors
    /// The pages do not suffice, the driver refuses a call, or the device is given up; of one that
    /// is not, nothing is left.
    pub fn load_within(&self, patience: Duration) -> Result<WeightsLoad, String> {
        let began = Instant::now();
        let mut range = self.range();
        if self.is_there() {
            return Ok(WeightsLoad::default());
        }
        self.set_state(WeightsState::Loading);
        let copied = self.fill(&mut range, patience);
        if copied.is_err() {
            // What the driver does not take back is taken back before the next LOAD.
            let _ = range.resize(0);
        }
        self.held.store(range.pages(), Ordering::Relaxed);
        let mut presence = self.presence();
        presence.state = if copied.is_ok() { WeightsState::Loaded } else { WeightsState::Unloaded };
        let whole = began.elapsed().into();
        let load = WeightsLoad { pages: range.pages(), bytes: self.bytes, copying: copied?, whole };
        presence.last_load = Some(load);
        Ok(load)
    }

    /// Maps pages and copies the weights there; returns the device's time for the copies.
    fn fill(&self, range: &mut PageRange, patience: Duration) -> Result<Nanos, String> {
        range.resize(self.bytes).map_err(|error| self.device.page_refusal(error))?;
        self.copy(range.start(), patience)
    }

    fn copy(&self, to: DevicePointer, patience: Duration) -> Result<Nanos, String> {
        let (calls, stream) = (self.device.open.calls(), self.stream.get());
        let copied = || {
            calls.record(self.began.get(), stream)?;
            for at in (0..self.bytes).step_by(PIECE_BYTES) {
                let end = self.bytes.min(at + PIECE_BYTES);
                calls.copy_in(self.staged.get(), at..end, DevicePointer(to.0 + at as u64), stream)?;
            }
            Ok(())
        };
        let asked: DriverResult<()> = copied();
        let ended = self.wait_for_copies(patience);
        asked.map_err(|error| self.device.refusal(error))?;
        ended?;
        calls.elapsed(self.began.get(), self.copied.get()).map_err(|error| self.device.refusal(error))
    }

    /// Waits until all copies are over, also where one was refused: pages are taken away then. A
    /// device that does not say when is given up.
    fn wait_for_copies(&self, patience: Duration) -> Result<(), String> {
        let wait = || {
            let recorded = self.device.open.calls().record(self.copied.get(), self.stream.get());
            recorded.map_err(|error| self.device.refusal(error))?;
            self.device.open.wait_for(self.copied.get(), patience)
        };
        wait().inspect_err(|_| {
            if let Err(again) = wait() {
                self.device.open.give_up(format!("it does not say when weights are copied: {again}"));
            }
        })
    }

    /// Unloads the weights as [`DeviceWeights::unload_within`] does, within a minute.
    ///
    /// # Errors
    /// Those of [`DeviceWeights::unload_within`].
    pub fn unload(&self) -> Result<u32, String> {
        self.unload_within(LOAD_PATIENCE)
    }

    /// Takes the weights off the device and frees their pages, once the batches that use them are
    /// over; none begins meanwhile. Returns the number of the pages, 0 if they were not there.
    ///
    /// # Errors
    /// Batches still use them after `patience`, or the device can't map pages: they are still there
    /// then. Or the driver refuses, or the device is given up.
    pub fn unload_within(&self, patience: Duration) -> Result<u32, String> {
        let mut range = self.range();
        if !self.device.memory.maps() {
            return Err(self.device.page_refusal(PageError::Fixed("weights stay where they are")));
        }
        if self.is_there() {
            self.close(patience)?;
        }
        let pages = range.pages();
        let taken = range.resize(0);
        self.held.store(range.pages(), Ordering::Relaxed);
        self.set_state(WeightsState::Unloaded);
        taken.map_err(|error| self.device.page_refusal(error))?;
        Ok(pages)
    }

    /// Has no more batches begin, and waits for those that use the weights.
    fn close(&self, patience: Duration) -> Result<(), String> {
        let mut presence = self.presence();
        presence.state = WeightsState::Unloading;
        let used = |presence: &mut WeightsPresence| presence.runs > 0;
        let waited = self.left.wait_timeout_while(presence, patience, used);
        let (mut presence, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if presence.runs == 0 {
            return Ok(());
        }
        presence.state = WeightsState::Loaded;
        let seconds = patience.as_secs_f64();
        Err(match presence.runs {
            1 => format!("a batch still uses the weights after {seconds:.1} s"),
            runs => format!("{runs} batches still use the weights after {seconds:.1} s"),
        })
    }
}
