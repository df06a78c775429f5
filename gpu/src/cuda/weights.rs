//! A model's weights: in pinned memory of the host always, and on the device between LOAD and
//! UNLOAD (Clockwork, sections 4.4 and 5.2), at addresses that stay the same. Both are called by
//! threads that may wait; batches run beside them.

use super::device_memory::{PageError, PageRange};
use super::driver::{DevicePointer, Event, Pinned, Stream};
use super::error::DriverResult;
use super::open::CudaDevice;
use super::owned::Owned;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    presence: Mutex<WeightsPresence>,
}

/// Whether weights can be used, and by how many runs they are.
#[derive(Default)]
struct WeightsPresence {
    is_there: bool,
    runs: usize,
}

/// The use of weights by a batch: they are not unloaded before it ends.
pub(super) struct WeightsInUse(Arc<DeviceWeights>);

impl Drop for WeightsInUse {
    fn drop(&mut self) {
        self.0.presence().runs -= 1;
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
            presence: Mutex::default(),
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

    /// Returns true if they are on the device.
    pub fn is_there(&self) -> bool {
        self.presence().is_there
    }

    /// Uses them until the value is dropped; `None` if they are not on the device.
    pub(super) fn in_use(self: &Arc<DeviceWeights>) -> Option<WeightsInUse> {
        let mut presence = self.presence();
        presence.runs += usize::from(presence.is_there);
        presence.is_there.then(|| WeightsInUse(Arc::clone(self)))
    }

    /// Loads the weights, and returns when they are there. Batches of other models run meanwhile.
    ///
    /// # Errors
    /// The pages do not suffice, or the driver refuses a call; nothing is left then.
    pub fn load(&self) -> Result<WeightsLoad, String> {
        let mut range = self.range();
        if self.is_there() {
            return Ok(WeightsLoad::default());
        }
        range.resize(self.bytes).map_err(|error| self.device.page_refusal(error))?;
        let copied = self.copy(range.start());
        if copied.is_err() {
            // What the driver does not take back is taken back before the next LOAD.
            let _ = range.resize(0);
        }
        let copying = copied?;
        self.presence().is_there = true;
        Ok(WeightsLoad { pages: range.pages(), bytes: self.bytes, copying })
    }

    fn copy(&self, to: DevicePointer) -> Result<Nanos, String> {
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
        let ended = self.wait_for_copies();
        asked.map_err(|error| self.device.refusal(error))?;
        ended?;
        calls.elapsed(self.began.get(), self.copied.get()).map_err(|error| self.device.refusal(error))
    }

    /// Waits until all copies are over, also where one was refused: pages are taken away then. A
    /// device that does not say when is given up.
    fn wait_for_copies(&self) -> Result<(), String> {
        let wait = || {
            let recorded = self.device.open.calls().record(self.copied.get(), self.stream.get());
            recorded.map_err(|error| self.device.refusal(error))?;
            self.device.wait_for(self.copied.get())
        };
        wait().inspect_err(|_| {
            if let Err(again) = wait() {
                self.device.open.give_up(format!("it does not say when weights are copied: {again}"));
            }
        })
    }

    /// Takes the weights off the device and frees their pages. Returns the number of these.
    ///
    /// # Errors
    /// Batches use them, the device can't map pages, or the driver refuses; they are still there
    /// then, unless it was the driver.
    pub fn unload(&self) -> Result<u32, String> {
        let mut range = self.range();
        if !self.device.memory.maps() {
            return Err(self.device.page_refusal(PageError::Fixed("weights stay where they are")));
        }
        {
            let mut presence = self.presence();
            if presence.runs > 0 {
                return Err(format!("{} batches use the weights", presence.runs));
            }
            presence.is_there = false;
        }
        let pages = range.pages();
        range.resize(0).map_err(|error| self.device.page_refusal(error))?;
        Ok(pages)
    }
}
