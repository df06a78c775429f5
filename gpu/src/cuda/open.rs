//! The devices that are open: each with its streams and its kernels, which all of its models share.

use super::device_memory::{DeviceMemory, PageCounts, PageError, PageOptions};
use super::driver::{Driver, Event, LEAST_CAPABILITY, LibraryState, Stream};
use super::error::{DriverError, DriverResult};
use super::kernels::{CompiledKernels, LoadedKernels};
use super::libcuda::Libcuda;
use super::owned::{OpenDevice, Owned};
use super::room::SharedRoom;
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A device that is ready for models.
pub struct CudaDevice {
    /// The device.
    pub open: Arc<OpenDevice>,
    /// The stream on which batches run, one at a time.
    pub(super) execution: Owned<Stream>,
    /// The stream of the inputs.
    pub(super) arrival: Owned<Stream>,
    /// The stream of the outputs.
    pub(super) departure: Owned<Stream>,
    /// What its models share. It goes before the memory that it is of.
    pub(super) room: Arc<SharedRoom>,
    pub(super) memory: Arc<DeviceMemory>,
    /// Held while a thread of the host runs a batch of its own.
    pub(super) host_run: Mutex<()>,
    /// What became of each library of kernels.
    pub libraries: Vec<LibraryState>,
    kernels: CompiledKernels,
}

impl CudaDevice {
    /// Opens a device of a driver, makes its streams and takes its memory as `pages` says. Kernels
    /// are loaded with the first model that needs them.
    ///
    /// # Errors
    /// The driver's, or `pages` is not for this device; nothing is left on it then.
    pub fn open(driver: &dyn Driver, ordinal: u32, pages: PageOptions) -> DriverResult<CudaDevice> {
        let open = OpenDevice::new(driver.open(ordinal)?);
        let device = open.calls();
        let (capability, text) =
            (device.facts().capability, |[major, minor]: [u32; 2]| format!("{major}.{minor}"));
        if capability < LEAST_CAPABILITY {
            let (has, needs) = (text(capability), text(LEAST_CAPABILITY));
            let reason = format!("its compute capability is {has}; {needs} is needed");
            return Err(DriverError::Kernels { reason });
        }
        let stream = || Ok(Owned::new(&open, device.create_stream()?));
        let (execution, arrival, departure) = (stream()?, stream()?, stream()?);
        // What they take of the device's memory is gone before the rest becomes pages.
        let libraries = device.open_libraries()?;
        let memory = DeviceMemory::take(&open, pages)?;
        let (room, host_run) = (SharedRoom::new(&open, &memory)?, Mutex::default());
        let kernels = CompiledKernels::default();
        Ok(CudaDevice {
            execution,
            arrival,
            departure,
            libraries,
            kernels,
            room,
            memory,
            host_run,
            open: Arc::clone(&open),
        })
    }

    /// Returns the pages of its memory.
    pub fn pages(&self) -> PageCounts {
        self.memory.counts()
    }

    /// Returns true if it can map pages, so that weights come and go.
    pub fn maps_pages(&self) -> bool {
        self.memory.maps()
    }

    /// Returns the kernels for a plan, which it carries or which are compiled for the device: that
    /// takes seconds, once for each precision.
    ///
    /// Errors: the driver's or the compiler's, or the plan's kernels are another version's.
    pub(super) fn kernels(&self, plan: &Plan) -> Result<Arc<LoadedKernels>, String> {
        self.kernels.of_plan(&self.open, plan, |error| self.refusal(error))
    }

    /// Returns why a model can't be put on the device, with what is free where that does not
    /// suffice. Gives the device up if nothing can run there any more.
    pub(super) fn refusal(&self, error: DriverError) -> String {
        let free = match &error {
            DriverError::OutOfMemory(_) => self.open.calls().free_memory().ok(),
            _ => None,
        };
        let text = self.open.note(error).to_string();
        match free {
            Some(free) => format!("{text}; {:.1} MB are free", free as f64 / 1e6),
            None => text,
        }
    }

    /// Returns why pages are not where they are to be, as [`CudaDevice::refusal`] does.
    pub(super) fn page_refusal(&self, error: PageError) -> String {
        match error {
            PageError::Driver(error) => self.refusal(error),
            other => other.to_string(),
        }
    }

    /// Makes a stream of its own.
    pub(super) fn stream(&self) -> DriverResult<Owned<Stream>> {
        Ok(Owned::new(&self.open, self.open.calls().create_stream()?))
    }

    /// Makes an event that notes the device's time.
    pub(super) fn timed_event(&self) -> DriverResult<Owned<Event>> {
        Ok(Owned::new(&self.open, self.open.calls().create_timed_event()?))
    }
}

/// The driver and its open devices. A device is opened once, and by whoever needs it first.
pub struct CudaDevices {
    driver: Mutex<Option<Arc<dyn Driver>>>,
    /// How the memory of each device is taken, from the first on.
    pages: Vec<PageOptions>,
    open: Mutex<BTreeMap<u32, Arc<CudaDevice>>>,
}

impl CudaDevices {
    /// Makes the devices of a driver; of NVIDIA's, opened when it is first needed, if none is
    /// given.
    pub fn new(driver: Option<Arc<dyn Driver>>) -> CudaDevices {
        CudaDevices { driver: Mutex::new(driver), pages: Vec::new(), open: Mutex::default() }
    }

    /// Has the memory of each device be taken as these say, from the first on.
    pub fn with_pages(self, pages: Vec<PageOptions>) -> CudaDevices {
        CudaDevices { pages, ..self }
    }

    /// Returns a device, which is opened if it is not yet.
    ///
    /// # Errors
    /// There is no driver or no such device, or it can't be opened.
    pub fn get(&self, ordinal: u32) -> DriverResult<Arc<CudaDevice>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let pages = self.pages.get(ordinal as usize).copied().unwrap_or_default();
        let device = Arc::new(CudaDevice::open(&*self.driver()?, ordinal, pages)?);
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }

    fn driver(&self) -> DriverResult<Arc<dyn Driver>> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &*driver {
            return Ok(Arc::clone(driver));
        }
        let opened: Arc<dyn Driver> = Arc::new(Libcuda::open()?);
        Ok(Arc::clone(driver.insert(opened)))
    }
}
