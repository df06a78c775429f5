//! The memory of a fake device: allocations with gaps between them, so that an address that leaves
//! one lies in none.

use crate::host_memory::HostMemory;
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
    pinned: HashMap<u64, Box<dyn HostMemory>>,
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

    pub(crate) fn add_pinned(&mut self, number: u64, memory: Box<dyn HostMemory>) {
        self.pinned.insert(number, memory);
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

    /// Copies a part of pinned memory out.
    pub(crate) fn read_pinned(&self, number: u64, range: Range<usize>) -> Result<Vec<u8>, String> {
        let found = self.pinned.get(&number).ok_or("the pinned memory was freed")?;
        check_range(&**found, &range)?;
        let mut bytes = vec![0; range.len()];
        found.read(range, &mut bytes);
        Ok(bytes)
    }

    /// Copies bytes into pinned memory.
    pub(crate) fn write_pinned(&mut self, number: u64, at: usize, bytes: &[u8]) -> Result<(), String> {
        let found = self.pinned.get_mut(&number).ok_or("the pinned memory was freed")?;
        check_range(&**found, &(at..at + bytes.len()))?;
        found.write(at, bytes);
        Ok(())
    }

    pub(crate) fn copy_in(&mut self, number: u64, range: Range<usize>, to: u64) -> Result<(), String> {
        let copied = self.read_pinned(number, range)?;
        self.write(to, copied.len())?.copy_from_slice(&copied);
        Ok(())
    }

    pub(crate) fn copy_out(&mut self, from: u64, number: u64, range: Range<usize>) -> Result<(), String> {
        let copied = self.read(from, range.len())?.to_vec();
        self.write_pinned(number, range.start, &copied)
    }
}

fn check_range(memory: &dyn HostMemory, range: &Range<usize>) -> Result<(), String> {
    let bytes = memory.length();
    let is_within = range.start <= range.end && range.end <= bytes;
    if is_within { Ok(()) } else { Err(format!("{range:?} of {bytes} pinned bytes")) }
}
