//! The memory of a fake device: allocations with gaps between them, so that an address that leaves
//! one lies in none.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use symphony_gpu::plan::{AlignedBytes, PLAN_ALIGNMENT};

/// The first address: none of the host's, which a mistake would otherwise find.
const FIRST: u64 = 0x7000_0000_0000;

/// The bytes between two allocations.
const GAP: u64 = 1 << 20;

/// The memory of a device, and the host's that it reads and writes.
pub(crate) struct Memory {
    limit: u64,
    used: u64,
    next: u64,
    device: BTreeMap<u64, AlignedBytes>,
    pinned: HashMap<u64, AlignedBytes>,
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Memory {
        Memory { limit, used: 0, next: FIRST, device: BTreeMap::new(), pinned: HashMap::new() }
    }

    pub(crate) fn free(&self) -> u64 {
        self.limit - self.used
    }

    /// Allocates device memory; `None` if there is not enough.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if bytes as u64 > self.free() {
            return None;
        }
        let address = self.next;
        self.used += bytes as u64;
        self.next = (address + bytes as u64 + GAP).next_multiple_of(PLAN_ALIGNMENT as u64);
        self.device.insert(address, AlignedBytes::zeroed(bytes));
        Some(address)
    }

    pub(crate) fn add_pinned(&mut self, number: u64, bytes: usize) {
        self.pinned.insert(number, AlignedBytes::zeroed(bytes));
    }

    /// Frees device memory; returns false if there is none at this address.
    pub(crate) fn free_device(&mut self, address: u64) -> bool {
        let freed = self.device.remove(&address);
        self.used -= freed.as_ref().map_or(0, |bytes| bytes.as_bytes().len() as u64);
        freed.is_some()
    }

    pub(crate) fn free_pinned(&mut self, number: u64) -> bool {
        self.pinned.remove(&number).is_some()
    }

    pub(crate) fn count(&self) -> (usize, usize) {
        (self.device.len(), self.pinned.len())
    }

    fn place(&self, address: u64, bytes: usize) -> Result<(u64, Range<usize>), String> {
        let outside = || format!("{bytes} bytes at {address:#x} are not allocated");
        let (&base, found) = self.device.range(..=address).next_back().ok_or_else(outside)?;
        let start = (address - base) as usize;
        let end = start.checked_add(bytes).filter(|&end| end <= found.as_bytes().len());
        Ok((base, start..end.ok_or_else(outside)?))
    }

    /// Returns device memory.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Result<&[u8], String> {
        let (base, range) = self.place(address, bytes)?;
        Ok(&self.device[&base].as_bytes()[range])
    }

    /// Returns device memory, to be written.
    pub(crate) fn write(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        let (base, range) = self.place(address, bytes)?;
        let found = self.device.get_mut(&base).ok_or("it was freed")?;
        Ok(&mut found.as_bytes_mut()[range])
    }

    /// Returns a part of pinned memory, to be read or written.
    pub(crate) fn pinned(&mut self, number: u64, range: Range<usize>) -> Result<&mut [u8], String> {
        let found = self.pinned.get_mut(&number).ok_or("the pinned memory was freed")?;
        let bytes = found.as_bytes().len();
        found.as_bytes_mut().get_mut(range.clone()).ok_or(format!("{range:?} of {bytes} pinned bytes"))
    }

    pub(crate) fn copy_in(&mut self, number: u64, range: Range<usize>, to: u64) -> Result<(), String> {
        let copied = self.pinned(number, range)?.to_vec();
        self.write(to, copied.len())?.copy_from_slice(&copied);
        Ok(())
    }

    pub(crate) fn copy_out(&mut self, from: u64, number: u64, range: Range<usize>) -> Result<(), String> {
        let copied = self.read(from, range.len())?.to_vec();
        self.pinned(number, range)?.copy_from_slice(&copied);
        Ok(())
    }
}
