//! The memory of a fake device: allocations and reserved addresses with gaps between them, so that
//! an address that leaves one lies in none, and pages that are mapped to reserved addresses. What
//! is read or written has to be there at that moment.

use crate::host_memory::HostMemory;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use symphony_gpu::plan::AlignedBytes;

/// The first address: none of the host's, which a mistake would otherwise find.
const FIRST: u64 = 0x7000_0000_0000;

/// The bytes between two allocations.
const GAP: u64 = 1 << 20;

/// What sizes of pages are multiples of.
pub(crate) const GRANULARITY: usize = 1 << 16;

/// The memory of a device, and the host's that it reads and writes.
pub(crate) struct Memory {
    limit: u64,
    used: u64,
    next: u64,
    device: BTreeMap<u64, AlignedBytes>,
    pages: HashMap<u64, AlignedBytes>,
    /// The lengths of reserved addresses, by the first.
    reserved: BTreeMap<u64, usize>,
    /// What is mapped, by the first address.
    mapped: BTreeMap<u64, Mapping>,
    pinned: HashMap<u64, Box<dyn HostMemory>>,
}

/// A page that is mapped.
struct Mapping {
    page: u64,
    bytes: usize,
    is_allowed: bool,
}

/// What is at an address: an allocation by its first address, or a page.
#[derive(Clone, Copy)]
enum Place {
    Allocated(u64),
    Page(u64),
}

impl Memory {
    pub(crate) fn new(limit: u64) -> Memory {
        Memory {
            limit,
            used: 0,
            next: FIRST,
            device: BTreeMap::new(),
            pages: HashMap::new(),
            reserved: BTreeMap::new(),
            mapped: BTreeMap::new(),
            pinned: HashMap::new(),
        }
    }

    /// Returns addresses that nothing else has.
    fn addresses(&mut self, bytes: usize) -> u64 {
        let address = self.next;
        self.next = (address + bytes as u64 + GAP).next_multiple_of(GRANULARITY as u64);
        address
    }

    pub(crate) fn free(&self) -> u64 {
        self.limit - self.used
    }

    /// Allocates device memory; `None` if there is not enough.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Option<u64> {
        if bytes as u64 > self.free() {
            return None;
        }
        let address = self.addresses(bytes);
        self.used += bytes as u64;
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

    /// Returns how many allocations, pieces of pinned memory, pages, reservations and mapped pages
    /// there are.
    pub(crate) fn count(&self) -> [usize; 5] {
        let Memory { device, pinned, pages, reserved, mapped, .. } = self;
        [device.len(), pinned.len(), pages.len(), reserved.len(), mapped.len()]
    }

    /// Makes a page; returns false if there is not enough memory.
    pub(crate) fn add_page(&mut self, number: u64, bytes: usize) -> bool {
        let fits = bytes as u64 <= self.free();
        if fits {
            self.used += bytes as u64;
            self.pages.insert(number, AlignedBytes::zeroed(bytes));
        }
        fits
    }

    /// Frees a page; returns false if there is none, or if it is mapped.
    pub(crate) fn free_page(&mut self, number: u64) -> bool {
        if self.mapped.values().any(|mapping| mapping.page == number) {
            return false;
        }
        let freed = self.pages.remove(&number);
        self.used -= freed.as_ref().map_or(0, |bytes| bytes.as_bytes().len() as u64);
        freed.is_some()
    }

    pub(crate) fn reserve(&mut self, bytes: usize) -> u64 {
        let start = self.addresses(bytes);
        self.reserved.insert(start, bytes);
        start
    }

    /// Gives reserved addresses back; returns false if they were not reserved, or have pages.
    pub(crate) fn free_reservation(&mut self, start: u64, bytes: usize) -> bool {
        let is_empty = self.mapped.range(start..start + bytes as u64).next().is_none();
        is_empty && self.reserved.remove(&start) == Some(bytes)
    }

    /// Maps a page.
    pub(crate) fn map(&mut self, at: u64, page: u64, bytes: usize) -> Result<(), String> {
        let end = at + bytes as u64;
        let within = self.reserved.range(..=at).next_back();
        if within.is_none_or(|(start, length)| end > start + *length as u64) {
            return Err(format!("{at:#x} is not reserved"));
        }
        if !at.is_multiple_of(GRANULARITY as u64)
            || self.pages.get(&page).is_none_or(|of| of.as_bytes().len() != bytes)
        {
            return Err(format!(
                "there is no page {page} of {bytes} bytes, or {at:#x} is not a page's address"
            ));
        }
        let before = self.mapped.range(..end).next_back();
        if before.is_some_and(|(start, of)| start + of.bytes as u64 > at) {
            return Err(format!("a page is mapped to {at:#x}"));
        }
        if self.mapped.values().any(|mapping| mapping.page == page) {
            return Err(format!("page {page} is mapped elsewhere"));
        }
        self.mapped.insert(at, Mapping { page, bytes, is_allowed: false });
        Ok(())
    }

    /// Returns the first addresses of the pages that are mapped to these addresses without a gap.
    fn mapped_to(&self, at: u64, bytes: usize) -> Result<Vec<u64>, String> {
        let (mut next, mut starts) = (at, Vec::new());
        while next < at + bytes as u64 {
            let mapping = self.mapped.get(&next).ok_or(format!("no page begins at {next:#x}"))?;
            starts.push(next);
            next += mapping.bytes as u64;
        }
        if next == at + bytes as u64 { Ok(starts) } else { Err("a part of a page".to_owned()) }
    }

    /// Lets the device use pages.
    pub(crate) fn allow(&mut self, at: u64, bytes: usize) -> Result<(), String> {
        for start in self.mapped_to(at, bytes)? {
            self.mapped.entry(start).and_modify(|mapping| mapping.is_allowed = true);
        }
        Ok(())
    }

    /// Takes pages away.
    pub(crate) fn unmap(&mut self, at: u64, bytes: usize) -> Result<(), String> {
        for start in self.mapped_to(at, bytes)? {
            self.mapped.remove(&start);
        }
        Ok(())
    }

    /// Returns the pieces of memory that lie at these addresses.
    fn pieces(&self, mut address: u64, mut bytes: usize) -> Result<Vec<(Place, Range<usize>)>, String> {
        let outside = format!("{bytes} bytes at {address:#x} are not allocated, or no page is mapped there");
        let mut pieces = Vec::new();
        loop {
            let allocated = self.device.range(..=address).next_back();
            let allocated = allocated.map(|(&base, of)| (Place::Allocated(base), base, of.as_bytes().len()));
            let mapped = self.mapped.range(..=address).next_back().filter(|(_, of)| of.is_allowed);
            let mapped = mapped.map(|(&base, of)| (Place::Page(of.page), base, of.bytes));
            let holds = |(_, base, length): &(Place, u64, usize)| address <= base + *length as u64;
            let found = allocated.into_iter().chain(mapped).filter(holds).max_by_key(|(_, base, _)| *base);
            let (place, base, length) = found.ok_or_else(|| outside.clone())?;
            let start = (address - base) as usize;
            let end = length.min(start.saturating_add(bytes));
            if start == end && bytes > 0 {
                return Err(outside);
            }
            pieces.push((place, start..end));
            (address, bytes) = (address + (end - start) as u64, bytes - (end - start));
            if bytes == 0 {
                return Ok(pieces);
            }
        }
    }

    /// Copies device memory out.
    pub(crate) fn read(&self, address: u64, mut to: &mut [u8]) -> Result<(), String> {
        for (place, range) in self.pieces(address, to.len())? {
            let found = match place {
                Place::Allocated(base) => self.device.get(&base),
                Place::Page(page) => self.pages.get(&page),
            };
            let (piece, rest) = to.split_at_mut(range.len());
            piece.copy_from_slice(&found.ok_or("it was freed")?.as_bytes()[range]);
            to = rest;
        }
        Ok(())
    }

    /// Copies bytes into device memory.
    pub(crate) fn write(&mut self, address: u64, mut bytes: &[u8]) -> Result<(), String> {
        for (place, range) in self.pieces(address, bytes.len())? {
            let found = match place {
                Place::Allocated(base) => self.device.get_mut(&base),
                Place::Page(page) => self.pages.get_mut(&page),
            };
            let (piece, rest) = bytes.split_at(range.len());
            found.ok_or("it was freed")?.as_bytes_mut()[range].copy_from_slice(piece);
            bytes = rest;
        }
        Ok(())
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
        self.write(to, &copied)
    }

    pub(crate) fn copy_out(&mut self, from: u64, number: u64, range: Range<usize>) -> Result<(), String> {
        let mut copied = vec![0; range.len()];
        self.read(from, &mut copied)?;
        self.write_pinned(number, range.start, &copied)
    }
}

fn check_range(memory: &dyn HostMemory, range: &Range<usize>) -> Result<(), String> {
    let bytes = memory.length();
    if range.start > range.end || range.end > bytes {
        return Err(format!("{range:?} of {bytes} pinned bytes"));
    }
    let is_lent = memory.is_lent(range.clone());
    if is_lent { Ok(()) } else { Err(format!("nobody holds the slots at {range:?}")) }
}
