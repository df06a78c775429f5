//! The library that programs open in place of NVIDIA's `libcuda.so`: the devices of a process, as
//! its environment describes them, the numbers of its errors, and the host memory that it has given
//! out by address. The functions themselves are in `entry_points.rs`.
//!
//! | variable | what it sets |
//! | --- | --- |
//! | `SYMPHONY_FAKE_GPUS` | how many devices there are; 1 |
//! | `SYMPHONY_FAKE_GPU_MEMORY` | the memory of each, bytes; 8 GiB |
//! | `SYMPHONY_FAKE_GPU_FAULTS` | `GPU:CALL:AFTER:FAULT,…`: the call of a device, by the name of the trait's method, that goes wrong after it has gone well so often; FAULT is `ecc`, `lost`, `memory`, `refused`, `hang` or `block` |

use crate::device::FakeDevice;
use crate::host_memory::{RegisteredPages, SharedPages};
use crate::{FakeDriver, Fault, driver_error, ecc_error};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use symphony_gpu::cuda::driver::{Device, DeviceObject, Pinned};
use symphony_gpu::cuda::{DriverError, DriverResult};

/// The memory of a device whose size is not given.
const MEMORY: u64 = 8 << 30;

/// The errors that the library returns: number, name and meaning, as in `cuda.h`.
const ERRORS: [(u32, &CStr, &CStr); 15] = [
    (0, c"CUDA_SUCCESS", c"no error"),
    (1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
    (200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
    (400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (600, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
    (
        ALREADY_REGISTERED,
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped",
    ),
    (719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (999, c"CUDA_ERROR_UNKNOWN", c"unknown error"),
];

/// A result as the driver's functions return it.
pub(crate) type CuResult = u32;

pub(crate) const SUCCESS: CuResult = 0;
pub(crate) const INVALID_VALUE: CuResult = 1;
pub(crate) const NOT_INITIALIZED: CuResult = 3;
pub(crate) const INVALID_DEVICE: CuResult = 101;
pub(crate) const INVALID_IMAGE: CuResult = 200;
pub(crate) const INVALID_CONTEXT: CuResult = 201;
pub(crate) const NOT_FOUND: CuResult = 500;
pub(crate) const NOT_READY: CuResult = 600;
const ALREADY_REGISTERED: CuResult = 712;
const UNKNOWN: CuResult = 999;

/// The devices of the process, once `cuInit` was called.
static LIBRARY: OnceLock<Library> = OnceLock::new();

thread_local! {
    /// The thread's current context: a device's number plus 1, or 0.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The devices, each with the host memory that is its own to read and write.
pub(crate) struct Library {
    driver: Arc<FakeDriver>,
    /// The host memory that devices read and write, by the first address.
    shared: Mutex<BTreeMap<usize, SharedMemory>>,
}

/// A piece of host memory: its length, and its number on each device that has it.
struct SharedMemory {
    bytes: usize,
    is_registered: bool,
    of: BTreeMap<usize, Pinned>,
}

impl Library {
    /// Makes the devices that the environment describes, unless they were made before.
    pub(crate) fn start() -> Result<(), String> {
        if LIBRARY.get().is_some() {
            return Ok(());
        }
        let count = number("SYMPHONY_FAKE_GPUS", 1)?;
        let memory = number("SYMPHONY_FAKE_GPU_MEMORY", MEMORY)?;
        let driver = FakeDriver::new(&vec![memory; count as usize]);
        let faults = std::env::var("SYMPHONY_FAKE_GPU_FAULTS").unwrap_or_default();
        for fault in faults.split(',').filter(|fault| !fault.is_empty()) {
            plan_fault(&driver, fault, count)?;
        }
        LIBRARY.get_or_init(|| Library { driver, shared: Mutex::default() });
        Ok(())
    }

    pub(crate) fn count() -> Result<usize, CuResult> {
        Library::started().map(|library| library.driver.devices.len())
    }

    /// Returns a device by its number.
    pub(crate) fn device(ordinal: usize) -> Result<&'static Arc<FakeDevice>, CuResult> {
        Library::started()?.driver.devices.get(ordinal).ok_or(INVALID_DEVICE)
    }

    /// Makes a device the one that the thread calls; 0 is none.
    pub(crate) fn enter(context: usize) -> Result<(), CuResult> {
        if context > Library::count()? {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    /// Returns the device that the thread calls, with its number.
    pub(crate) fn current() -> Result<(usize, &'static Arc<FakeDevice>), CuResult> {
        let ordinal = CURRENT.get().checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok((ordinal, Library::device(ordinal)?))
    }

    /// Allocates host memory that the current device reads and writes.
    pub(crate) fn share(bytes: usize) -> Result<*mut u8, CuResult> {
        let ((ordinal, device), pages) = (Library::current()?, SharedPages::zeroed(bytes));
        let start = pages.start();
        let pinned = code_of(device.share("allocate_pinned", Box::new(pages)))?;
        let of = BTreeMap::from([(ordinal, pinned)]);
        let memory = SharedMemory { bytes, is_registered: false, of };
        Library::started()?.by_address().insert(start.addr(), memory);
        Ok(start)
    }

    /// Registers host memory of the program's, for all devices. It has to be no other's.
    ///
    /// # Safety
    /// The bytes are allocated until they are unregistered.
    pub(crate) unsafe fn register(start: *mut u8, bytes: usize) -> Result<(), CuResult> {
        let (current, library) = (Library::current()?.0, Library::started()?);
        let mut by_address = library.by_address();
        let before = by_address.range(..start.addr() + bytes).next_back();
        if before.is_some_and(|(other, memory)| other + memory.bytes > start.addr()) {
            return Err(ALREADY_REGISTERED);
        }
        let mut of = BTreeMap::new();
        for (ordinal, device) in library.driver.devices.iter().enumerate() {
            // SAFETY: the caller's.
            let pages = unsafe { RegisteredPages::new(start, bytes) };
            match code_of(device.share("register", Box::new(pages))) {
                Ok(pinned) => drop(of.insert(ordinal, pinned)),
                // Another device may be lost.
                Err(code) if ordinal == current => return Err(code),
                Err(_) => {}
            }
        }
        by_address.insert(start.addr(), SharedMemory { bytes, is_registered: true, of });
        Ok(())
    }

    /// Gives host memory back by its first address: what was registered, or what was allocated.
    pub(crate) fn unshare(start: usize, is_registered: bool) -> Result<(), CuResult> {
        let library = Library::started()?;
        let mut by_address = library.by_address();
        if by_address.get(&start).is_none_or(|memory| memory.is_registered != is_registered) {
            return Err(INVALID_VALUE);
        }
        for (ordinal, pinned) in by_address.remove(&start).into_iter().flat_map(|memory| memory.of) {
            Library::device(ordinal)?.release(DeviceObject::Pinned(pinned));
        }
        Ok(())
    }

    /// Returns host memory of the current device by an address within it.
    pub(crate) fn shared(address: usize, bytes: usize) -> Result<(Pinned, Range<usize>), CuResult> {
        let (current, library) = (Library::current()?.0, Library::started()?);
        let by_address = library.by_address();
        let (start, memory) = by_address.range(..=address).next_back().ok_or(INVALID_VALUE)?;
        let pinned = memory.of.get(&current).ok_or(INVALID_VALUE)?;
        let at = address - start;
        let end = at.checked_add(bytes).filter(|&end| end <= memory.bytes);
        Ok((*pinned, at..end.ok_or(INVALID_VALUE)?))
    }

    fn started() -> Result<&'static Library, CuResult> {
        LIBRARY.get().ok_or(NOT_INITIALIZED)
    }

    fn by_address(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, SharedMemory>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn number(variable: &str, otherwise: u64) -> Result<u64, String> {
    let Ok(text) = std::env::var(variable) else { return Ok(otherwise) };
    text.parse().map_err(|_| format!("{variable} is `{text}`; give a whole number"))
}

/// Plans a fault that is given as `GPU:CALL:AFTER:FAULT`.
fn plan_fault(driver: &FakeDriver, text: &str, count: u64) -> Result<(), String> {
    let wrong = || format!("SYMPHONY_FAKE_GPU_FAULTS has `{text}`; give GPU:CALL:AFTER:FAULT");
    let fields: Vec<&str> = text.split(':').collect();
    let &[gpu, call, after, fault] = fields.as_slice() else { return Err(wrong()) };
    let gpu = gpu.parse().ok().filter(|&gpu: &usize| (gpu as u64) < count).ok_or_else(wrong)?;
    let after = after.parse().map_err(|_| wrong())?;
    // Once in a process.
    let call: &'static str = String::leak(call.to_owned());
    let fault = match fault {
        "ecc" => Fault::Break(ecc_error(call)),
        "lost" => Fault::Break(driver_error(call, 719, "CUDA_ERROR_LAUNCH_FAILED", "")),
        "memory" => Fault::Refuse(driver_error(call, 2, "CUDA_ERROR_OUT_OF_MEMORY", "")),
        "refused" => Fault::Refuse(driver_error(call, 1, "CUDA_ERROR_INVALID_VALUE", "")),
        "hang" => Fault::Hang,
        "block" => Fault::Block,
        _ => return Err(wrong()),
    };
    driver.plan_fault(gpu, call, after, fault);
    Ok(())
}

/// Turns an error into the driver's number for it, by its name.
pub(crate) fn code_of<T>(result: DriverResult<T>) -> Result<T, CuResult> {
    result.map_err(|error| match error {
        DriverError::NoDevice { .. } => INVALID_DEVICE,
        DriverError::OutOfMemory(call)
        | DriverError::Ecc(call)
        | DriverError::Lost(call)
        | DriverError::Refused(call) => {
            let found = ERRORS.iter().find(|(_, name, _)| name.to_bytes() == call.name.as_bytes());
            found.map_or(UNKNOWN, |(number, ..)| *number)
        }
        _ => UNKNOWN,
    })
}

/// Returns the name and the meaning of an error's number.
pub(crate) fn words(number: CuResult) -> Option<(&'static CStr, &'static CStr)> {
    ERRORS.iter().find(|(of, ..)| *of == number).map(|&(_, name, meaning)| (name, meaning))
}
