//! System shared memory for requests: one POSIX region a model, which holds the inputs of all its
//! requests and a slot for the outputs of each request that may be under way. The server maps it;
//! here it is written as a file.

use crate::loadgen::inputs::Tensor;
use rustix::fs::Mode;
use rustix::shm::{self, OFlags};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tensors start at multiples of this many bytes.
const ALIGNMENT: usize = 64;

/// The largest region.
const MAX_BYTES: usize = 1 << 30;

/// The most bytes of all output slots of one region.
const MAX_SLOT_BYTES: usize = 256 << 20;

/// Bytes of a shared memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionSlice {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A region, which goes away with this.
#[derive(Debug)]
pub(super) struct Region {
    /// The name at the server.
    pub(super) name: String,
    /// The name in the system, with a slash before it.
    pub(super) key: String,
    /// The size.
    pub(super) bytes: usize,
    /// The slices of each request's inputs.
    pub(super) inputs: Vec<Vec<RegionSlice>>,
    /// The slots for outputs.
    pub(super) slots: OutputSlots,
}

/// Equal slots, one after another, each for the outputs of one request.
#[derive(Debug)]
pub(super) struct OutputSlots {
    outputs: Vec<(String, RegionSlice)>,
    first: usize,
    slot_bytes: usize,
    /// The number of slots.
    pub(super) count: usize,
}

impl OutputSlots {
    /// Slots for these outputs of these sizes, up to `wanted` of them, from `first` on.
    fn new(outputs: &[(String, usize)], first: usize, wanted: usize) -> OutputSlots {
        let mut slot_bytes = 0;
        let mut slice = |(name, bytes): &(String, usize)| {
            let slice = RegionSlice { offset: slot_bytes, bytes: *bytes };
            slot_bytes += bytes.next_multiple_of(ALIGNMENT);
            (name.clone(), slice)
        };
        let outputs = outputs.iter().map(&mut slice).collect();
        let count = wanted.min(MAX_SLOT_BYTES / slot_bytes.max(1)).max(1);
        OutputSlots { outputs, first, slot_bytes, count }
    }

    /// The outputs' names and slices in slot number `slot`.
    pub(super) fn slices(&self, slot: usize) -> impl Iterator<Item = (&str, RegionSlice)> {
        let from = self.first + slot * self.slot_bytes;
        let moved = move |slice: RegionSlice| RegionSlice { offset: from + slice.offset, ..slice };
        self.outputs.iter().map(move |(name, slice)| (name.as_str(), moved(*slice)))
    }
}

impl Region {
    /// Makes a region with the inputs of `requests` in it and room for `wanted` requests' outputs.
    ///
    /// Errors: it would be too large, or the system has no shared memory left.
    pub(super) fn create(
        requests: &[Vec<Tensor>],
        outputs: &[(String, usize)],
        wanted: usize,
    ) -> Result<Region, String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("loadgen-{}-{number}", std::process::id());
        let mut end = 0;
        let mut slice = |tensor: &Tensor| {
            let slice = RegionSlice { offset: end, bytes: tensor.data.len() };
            end += tensor.data.len().next_multiple_of(ALIGNMENT);
            slice
        };
        let inputs: Vec<Vec<RegionSlice>> =
            requests.iter().map(|tensors| tensors.iter().map(&mut slice).collect()).collect();
        let slots = OutputSlots::new(outputs, end, wanted);
        let bytes = (end + slots.count * slots.slot_bytes).max(1);
        if bytes > MAX_BYTES {
            return Err(format!("it would take {bytes} bytes of shared memory; {MAX_BYTES} is the most"));
        }
        let region = Region { key: format!("/{name}"), name, bytes, inputs, slots };
        region.fill(requests).map_err(|e| format!("no shared memory region of {bytes} bytes: {e}"))?;
        Ok(region)
    }

    fn fill(&self, requests: &[Vec<Tensor>]) -> std::io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let file = File::from(shm::open(&self.key, flags, Mode::RUSR | Mode::WUSR)?);
        file.set_len(self.bytes as u64)?;
        for (tensors, slices) in requests.iter().zip(&self.inputs) {
            for (tensor, slice) in tensors.iter().zip(slices) {
                file.write_all_at(&tensor.data, slice.offset as u64)?;
            }
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Where it is gone already there is nothing left to do.
        let _ = shm::unlink(&self.key);
    }
}

/// The slots of one model that one thread hands out, one to each request under way.
pub(super) struct FreeSlots {
    free: RefCell<Vec<usize>>,
    permits: tokio::sync::Semaphore,
}

impl FreeSlots {
    /// The slots of `thread` of `threads`: they split them evenly, and each has one at the least.
    pub(super) fn of(slots: &OutputSlots, thread: usize, threads: usize) -> FreeSlots {
        let each = (slots.count / threads).max(1);
        let free: Vec<usize> = (0..each).map(|k| (thread * each + k) % slots.count).collect();
        FreeSlots { permits: tokio::sync::Semaphore::new(free.len()), free: RefCell::new(free) }
    }

    /// Runs `request` with a slot of its own, as soon as there is one.
    pub(super) async fn with<T>(&self, request: impl AsyncFnOnce(usize) -> T) -> T {
        let _permit = self.permits.acquire().await.expect("the semaphore is never closed");
        let slot = self.free.borrow_mut().pop().expect("there are as many slots as permits");
        let result = request(slot).await;
        self.free.borrow_mut().push(slot);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::inputs::Element;
    use bytes::Bytes;
    use std::os::unix::fs::FileExt;
    use symphony_gpu::DataType;

    #[test]
    fn a_region_holds_the_inputs_and_goes_away() {
        let tensor = |byte: u8| Tensor {
            name: "x".into(),
            element: Element::Fixed(DataType::Uint8),
            shape: vec![1, 3],
            data: Bytes::from(vec![byte; 3]),
        };
        let requests = [vec![tensor(1)], vec![tensor(2)]];
        let region = Region::create(&requests, &[("y".into(), 40), ("z".into(), 100)], 8).unwrap();
        assert_eq!(region.inputs[1], [RegionSlice { offset: 64, bytes: 3 }]);
        let slices: Vec<_> = region.slots.slices(1).collect();
        assert_eq!(
            slices,
            [("y", RegionSlice { offset: 320, bytes: 40 }), ("z", RegionSlice { offset: 384, bytes: 100 })]
        );
        assert_eq!(region.bytes, 128 + 8 * 192);
        let open = |key: &str| shm::open(key, OFlags::RDONLY, Mode::empty()).map(File::from);
        let mut bytes = [0; 3];
        open(&region.key).unwrap().read_exact_at(&mut bytes, 64).unwrap();
        assert_eq!(bytes, [2; 3]);
        let key = region.key.clone();
        drop(region);
        assert!(open(&key).is_err());
    }
}
