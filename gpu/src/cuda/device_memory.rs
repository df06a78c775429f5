//! The memory of a device, taken once when it is opened, as pages: for the weights of models, for
//! the workspace that they share, and for the rows of lanes. A [`PageRange`] is addresses that stay
//! the same while pages come and go there, so that captured graphs survive that.
//!
//! A device that can't map pages has one allocation in their place. Ranges are parts of it then,
//! which don't grow, and weights stay where they are.

use super::driver::{DevicePointer, Page, ReservedAddresses};
use super::error::{DriverError, DriverResult};
use super::owned::{OpenDevice, Owned};
use super::pages::PagePool;
use crate::counted::{are, counted};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The size of a page where none is asked for, bytes: Clockwork, section 5.2.
pub(super) const PAGE_BYTES: usize = 16 << 20;

/// The inverse of the part of the memory that stays the driver's: for kernels and graphs.
const KEPT_BACK: u64 = 16;

/// How much of a device's memory is taken, and in what pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageOptions {
    /// The size of a page, bytes; 16 MiB if none is given, or the next size that the device has.
    pub page_bytes: Option<usize>,
    /// The bytes that are taken; all but a sixteenth of what is free if none are given.
    pub memory: Option<u64>,
}

/// The memory of a device. See the module's description.
pub(super) struct DeviceMemory {
    open: Arc<OpenDevice>,
    page_bytes: usize,
    pages: Pages,
    pool: Mutex<PagePool>,
}

/// What pages are made of.
enum Pages {
    Mapped(Vec<Owned<Page>>),
    Parts(Owned<DevicePointer>),
}

/// The pages of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageCounts {
    /// The pages that nothing uses.
    pub free: u32,
    /// All pages.
    pub total: u32,
    /// The size of one, bytes.
    pub page_bytes: usize,
}

/// The reason why pages are not where they are to be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum PageError {
    #[error(
        "the GPU's memory does not suffice: {} of {:.1} MB {} needed and {} of {} {} free",
        counted((*.needed).into(), "page"), mega(.counts.page_bytes as u64), are((*.needed).into()),
        .counts.free, .counts.total, are(.counts.free.into())
    )]
    Lacking { needed: u32, counts: PageCounts },
    #[error("the GPU can't map pages, so that what is there can't grow or go: {0}")]
    Fixed(&'static str),
    #[error("{0}")]
    Driver(#[from] DriverError),
}

/// Returns the size of pages, where a device's are multiples of `granularity`.
fn page_size(options: PageOptions, granularity: usize) -> DriverResult<usize> {
    let Some(asked) = options.page_bytes else { return Ok(PAGE_BYTES.next_multiple_of(granularity)) };
    if asked == 0 || !asked.is_multiple_of(granularity) {
        let (asked, of) = (mega(asked as u64), mega(granularity as u64));
        let wrong =
            format!("pages of {asked:.1} MB are asked for, and its pages are multiples of {of:.1} MB");
        return Err(DriverError::Memory { wrong });
    }
    Ok(asked)
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

impl DeviceMemory {
    /// Takes a device's memory.
    ///
    /// Errors: the driver's, or the options are not for this device; nothing is left then.
    pub(super) fn take(open: &Arc<OpenDevice>, options: PageOptions) -> DriverResult<Arc<DeviceMemory>> {
        let calls = open.calls();
        let free = calls.free_memory()?;
        let granularity = calls.page_granularity()?;
        let page_bytes = page_size(options, granularity.unwrap_or(1))?;
        let usable = options.memory.unwrap_or(free - free / KEPT_BACK);
        if usable > free {
            let wrong =
                format!("memory of {:.1} MB is asked for and {:.1} MB are free", mega(usable), mega(free));
            return Err(DriverError::Memory { wrong });
        }
        let total = (usable / page_bytes as u64) as u32;
        let pages = match granularity {
            Some(_) => {
                let page = |_| Ok(Owned::new(open, calls.create_page(page_bytes)?));
                Pages::Mapped((0..total).map(page).collect::<DriverResult<_>>()?)
            }
            None => {
                let bytes = total as usize * page_bytes;
                Pages::Parts(Owned::new(open, calls.allocate(bytes)?))
            }
        };
        let pool = Mutex::new(PagePool::new(total));
        Ok(Arc::new(DeviceMemory { open: Arc::clone(open), page_bytes, pages, pool }))
    }

    fn pool(&self) -> MutexGuard<'_, PagePool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts(&self) -> PageCounts {
        let pool = self.pool();
        PageCounts { free: pool.free(), total: pool.total(), page_bytes: self.page_bytes }
    }

    /// Returns true if pages can be mapped.
    pub(super) fn maps(&self) -> bool {
        matches!(self.pages, Pages::Mapped(_))
    }

    /// Returns the pages that so many bytes take.
    pub(super) fn pages_for(&self, bytes: usize) -> u32 {
        bytes.div_ceil(self.page_bytes) as u32
    }

    /// Returns addresses for at most so many bytes, at which there is nothing yet.
    pub(super) fn range(self: &Arc<DeviceMemory>, most: usize) -> DriverResult<PageRange> {
        let bytes = self.pages_for(most.max(1)) as usize * self.page_bytes;
        let reservation = match self.pages {
            Pages::Mapped(_) => Some(Owned::new(&self.open, self.open.calls().reserve(bytes)?)),
            Pages::Parts(_) => None,
        };
        let start = reservation.as_ref().map_or(DevicePointer(0), |of| of.get().start);
        Ok(PageRange { memory: Arc::clone(self), start, pages: Vec::new(), usable: 0, reservation })
    }

    /// Returns addresses for as much as there is.
    pub(super) fn whole_range(self: &Arc<DeviceMemory>) -> DriverResult<PageRange> {
        self.range(self.counts().total as usize * self.page_bytes)
    }
}

/// Addresses with pages from the first on. See the module's description.
pub(super) struct PageRange {
    memory: Arc<DeviceMemory>,
    start: DevicePointer,
    /// The pages that are mapped, in order.
    pages: Vec<u32>,
    /// How many of them the device may use: fewer only where a call has failed and what it left
    /// could not be taken away.
    usable: usize,
    /// The addresses; `None` for a part of an allocation.
    reservation: Option<Owned<ReservedAddresses>>,
}

impl PageRange {
    /// Returns the first address: always the same where pages are mapped.
    pub(super) fn start(&self) -> DevicePointer {
        self.start
    }

    /// Returns the number of its pages.
    pub(super) fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Makes it as many pages as these bytes take.
    ///
    /// Errors: [`PageError`]; it is as it was then, unless the driver refuses that as well.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<(), PageError> {
        let wanted = self.memory.pages_for(bytes) as usize;
        if self.reservation.is_none() {
            return self.place(wanted);
        }
        self.cut(self.usable.min(wanted))?;
        if wanted > self.pages.len() { self.grow(wanted) } else { Ok(()) }
    }

    /// Finds its place in an allocation, once.
    fn place(&mut self, wanted: usize) -> Result<(), PageError> {
        if wanted <= self.pages.len() {
            return Ok(());
        }
        if !self.pages.is_empty() {
            return Err(PageError::Fixed(
                "the model needs more workspace or larger rows than those before it",
            ));
        }
        let taken = self.memory.pool().take_run(wanted as u32);
        self.pages = taken.ok_or_else(|| self.lacking(wanted))?;
        if let (Pages::Parts(all), Some(first)) = (&self.memory.pages, self.pages.first()) {
            self.start = DevicePointer(all.get().0 + u64::from(*first) * self.memory.page_bytes as u64);
        }
        Ok(())
    }

    fn lacking(&self, needed: usize) -> PageError {
        PageError::Lacking { needed: needed as u32, counts: self.memory.counts() }
    }

    fn at(&self, page: usize) -> DevicePointer {
        DevicePointer(self.start.0 + (page * self.memory.page_bytes) as u64)
    }

    fn grow(&mut self, wanted: usize) -> Result<(), PageError> {
        let before = self.pages.len();
        let taken = self.memory.pool().take((wanted - before) as u32);
        let taken = taken.ok_or_else(|| self.lacking(wanted - before))?;
        let mapped = self.map(&taken);
        if let Err(error) = mapped {
            let rest = self.pages.len() - before;
            self.memory.pool().give_back(taken.into_iter().skip(rest));
            // What can't be taken away stays its own, and is taken away before it is used again.
            let _ = self.cut(before);
            return Err(error.into());
        }
        self.usable = wanted;
        Ok(())
    }

    /// Maps pages behind those that it has.
    fn map(&mut self, taken: &[u32]) -> DriverResult<()> {
        let memory = Arc::clone(&self.memory);
        let Pages::Mapped(all) = &memory.pages else { return Ok(()) };
        let (calls, first) = (memory.open.calls(), self.pages.len());
        for &page in taken {
            calls.map(self.at(self.pages.len()), all[page as usize].get(), memory.page_bytes)?;
            self.pages.push(page);
        }
        calls.allow(self.at(first), taken.len() * memory.page_bytes)
    }

    /// Takes the pages away behind the first `left`.
    fn cut(&mut self, left: usize) -> DriverResult<()> {
        if left >= self.pages.len() {
            return Ok(());
        }
        let bytes = (self.pages.len() - left) * self.memory.page_bytes;
        self.memory.open.calls().unmap(self.at(left), bytes)?;
        let gone = self.pages.split_off(left);
        self.usable = self.usable.min(left);
        self.memory.pool().give_back(gone);
        Ok(())
    }
}

impl Drop for PageRange {
    fn drop(&mut self) {
        if self.memory.open.lost().is_some() {
            return;
        }
        match self.reservation {
            // What the driver does not take back stays in use.
            Some(_) => drop(self.cut(0)),
            None => self.memory.pool().give_back(self.pages.drain(..)),
        }
    }
}
