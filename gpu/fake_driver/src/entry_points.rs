//! The functions of CUDA's driver, with the names and the arguments of `cuda.h`, for programs that
//! open this crate's library in place of NVIDIA's. Each one finds the fake device and calls the
//! method that has its meaning; objects are their numbers, as addresses that nobody follows.
#![allow(non_snake_case, reason = "the names are NVIDIA's")]

use crate::device::FakeDevice;
use crate::library::{
    CuResult, INVALID_DEVICE, INVALID_IMAGE, INVALID_VALUE, Library, NOT_FOUND, NOT_READY, SUCCESS, code_of,
    words,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use symphony_gpu::cuda::DriverResult;
use symphony_gpu::cuda::driver::{
    Device, DeviceObject, DevicePointer, Event, Graph, Kernel, LaunchShape, Module, Page, ReservedAddresses,
    Stream,
};
use symphony_gpu::cuda::launch::KERNELS;

/// An object of a device, or a context: a number.
type Handle = *mut c_void;

fn handle(number: u64) -> Handle {
    std::ptr::without_provenance_mut(number as usize)
}

fn number(handle: Handle) -> u64 {
    handle.addr() as u64
}

fn ended(result: Result<(), CuResult>) -> CuResult {
    result.err().unwrap_or(SUCCESS)
}

/// Calls the current device.
fn call(made: impl FnOnce(&FakeDevice) -> DriverResult<()>) -> CuResult {
    ended(Library::current().and_then(|(_, device)| code_of(made(device))))
}

/// Writes a result where the caller has room for it.
///
/// # Safety
/// `to` is null, or the caller's to be written.
unsafe fn give<T>(to: *mut T, result: Result<T, CuResult>) -> CuResult {
    match result {
        Err(code) => code,
        Ok(_) if to.is_null() => INVALID_VALUE,
        Ok(value) => {
            // SAFETY: it is the caller's to be written, and not null.
            unsafe { to.write(value) };
            SUCCESS
        }
    }
}

/// Calls the current device and writes the number of the object that it has made.
///
/// # Safety
/// That of [`give`].
unsafe fn make(to: *mut Handle, made: impl FnOnce(&Arc<FakeDevice>) -> DriverResult<u64>) -> CuResult {
    let result = Library::current().and_then(|(_, device)| code_of(made(device)));
    // SAFETY: the caller's.
    unsafe { give(to, result.map(handle)) }
}

fn release(object: impl Into<DeviceObject>) -> CuResult {
    call(|device| {
        device.release(object.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_: c_uint) -> CuResult {
    match Library::start() {
        Ok(()) => SUCCESS,
        Err(wrong) => {
            // The number says too little to a person who sets variables.
            eprintln!("{wrong}");
            INVALID_VALUE
        }
    }
}

/// # Safety
/// As of every function here: what `cuda.h` asks of the arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's.
    unsafe { give(text, words(error).map(|(name, _)| name.as_ptr()).ok_or(INVALID_VALUE)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: CuResult, text: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's.
    unsafe { give(text, words(error).map(|(_, meaning)| meaning.as_ptr()).ok_or(INVALID_VALUE)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CuResult {
    // SAFETY: the caller's.
    unsafe { give(count, Library::count().map(|count| count as c_int)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> CuResult {
    let found = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE).and_then(Library::device);
    // SAFETY: the caller's.
    unsafe { give(device, found.map(|_| ordinal)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) -> CuResult {
    let found = Library::device(device as usize);
    let (Ok(found), Ok(room)) = (found, usize::try_from(length)) else { return INVALID_VALUE };
    let text = found.facts().name.as_bytes();
    if name.is_null() || room == 0 {
        return INVALID_VALUE;
    }
    let copied = text.len().min(room - 1);
    // SAFETY: the caller has room for this many bytes and a 0.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, copied);
        name.add(copied).write(0);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> CuResult {
    let found = Library::device(device as usize).map(|device| match attribute {
        // cuda.h: CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
        75 => device.facts().capability[0] as c_int,
        76 => device.facts().capability[1] as c_int,
        // CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED.
        102 => c_int::from(device.page_granularity().is_ok_and(|bytes| bytes.is_some())),
        _ => 0,
    });
    // SAFETY: the caller's.
    unsafe { give(value, found) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> CuResult {
    // SAFETY: the caller's.
    unsafe { give(bytes, Library::device(device as usize).map(|device| device.facts().memory as usize)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> CuResult {
    let found = Library::device(device as usize).map(|_| handle(device as u64 + 1));
    // SAFETY: the caller's.
    unsafe { give(context, found) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> CuResult {
    ended(Library::device(device as usize).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> CuResult {
    ended(Library::enter(context.addr()))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult {
    let found = Library::current().and_then(|(_, device)| Ok((code_of(device.free_memory())?, device)));
    match found {
        Err(code) => code,
        Ok((available, device)) => {
            // SAFETY: the caller's, both.
            unsafe { give(free, Ok(available as usize)).max(give(total, Ok(device.facts().memory as usize))) }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> CuResult {
    let found = Library::current().and_then(|(_, device)| code_of(device.allocate(bytes)));
    // SAFETY: the caller's.
    unsafe { give(address, found.map(|DevicePointer(address)| address)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> CuResult {
    release(DevicePointer(address))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(address: *mut Handle, bytes: usize, _: c_uint) -> CuResult {
    // SAFETY: the caller's.
    unsafe { give(address, Library::share(bytes).map(<*mut u8>::cast)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(address: Handle) -> CuResult {
    ended(Library::unshare(address.addr(), false))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostRegister_v2(address: Handle, bytes: usize, flags: c_uint) -> CuResult {
    /// The flag of memory that is registered for all contexts.
    const PORTABLE: c_uint = 1;
    if address.is_null() || bytes == 0 || flags != PORTABLE {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's.
    ended(unsafe { Library::register(address.cast(), bytes) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(address: Handle) -> CuResult {
    ended(Library::unshare(address.addr(), true))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> CuResult {
    ended(Library::shared(from.addr(), bytes).and_then(|(pinned, range)| {
        let (_, device) = Library::current()?;
        code_of(device.copy_in(pinned, range, DevicePointer(to), Stream(number(stream))))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle) -> CuResult {
    ended(Library::shared(to.addr(), bytes).and_then(|(pinned, range)| {
        let (_, device) = Library::current()?;
        code_of(device.copy_out(DevicePointer(from), pinned, range, Stream(number(stream))))
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(at: u64, value: u8, bytes: usize, stream: Handle) -> CuResult {
    if value != 0 {
        return INVALID_VALUE;
    }
    call(|device| device.zero(DevicePointer(at), bytes, Stream(number(stream))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut Handle, _: c_uint) -> CuResult {
    // SAFETY: the caller's.
    unsafe { make(stream, |device| device.create_stream().map(|Stream(number)| number)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: Handle) -> CuResult {
    release(Stream(number(stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _: c_uint) -> CuResult {
    call(|device| device.wait(Stream(number(stream)), Event(number(event))))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(stream: Handle, _: c_int) -> CuResult {
    call(|device| device.begin_capture(Stream(number(stream))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> CuResult {
    // SAFETY: the caller's.
    unsafe { make(graph, |device| device.end_capture(Stream(number(stream))).map(|Graph(number)| number)) }
}

/// Makes what is launched of what was recorded: the same object, from now on.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(
    executable: *mut Handle,
    graph: Handle,
    _: c_ulonglong,
) -> CuResult {
    // SAFETY: the caller's.
    unsafe { make(executable, |_| Ok(number(graph))) }
}

/// Does nothing: a graph is a list of the host's.
#[unsafe(no_mangle)]
extern "C" fn cuGraphUpload(_: Handle, _: Handle) -> CuResult {
    SUCCESS
}

/// Does nothing: [`cuGraphExecDestroy`] gives the one object back.
#[unsafe(no_mangle)]
extern "C" fn cuGraphDestroy(_: Handle) -> CuResult {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphExecDestroy(graph: Handle) -> CuResult {
    release(Graph(number(graph)))
}

#[unsafe(no_mangle)]
extern "C" fn cuGraphLaunch(graph: Handle, stream: Handle) -> CuResult {
    call(|device| device.launch_graph(Graph(number(graph)), Stream(number(stream))))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    _: *const c_void,
    _: c_int,
) -> CuResult {
    let found = Library::current().and_then(|(_, device)| code_of(device.page_granularity()));
    // SAFETY: the caller's.
    unsafe { give(bytes, found.and_then(|bytes| bytes.ok_or(INVALID_VALUE))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(page: *mut u64, bytes: usize, _: *const c_void, _: c_ulonglong) -> CuResult {
    let made = Library::current().and_then(|(_, device)| code_of(device.create_page(bytes)));
    // SAFETY: the caller's.
    unsafe { give(page, made.map(|Page(number)| number)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(page: u64) -> CuResult {
    release(Page(page))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAddressReserve(
    start: *mut u64,
    bytes: usize,
    _: usize,
    _: u64,
    _: c_ulonglong,
) -> CuResult {
    let made = Library::current().and_then(|(_, device)| code_of(device.reserve(bytes)));
    // SAFETY: the caller's.
    unsafe { give(start, made.map(|reservation| reservation.start.0)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(start: u64, bytes: usize) -> CuResult {
    release(ReservedAddresses { start: DevicePointer(start), bytes })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(at: u64, bytes: usize, _: usize, page: u64, _: c_ulonglong) -> CuResult {
    call(|device| device.map(DevicePointer(at), Page(page), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(at: u64, bytes: usize, _: *const c_void, _: usize) -> CuResult {
    call(|device| device.allow(DevicePointer(at), bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(at: u64, bytes: usize) -> CuResult {
    call(|device| device.unmap(DevicePointer(at), bytes))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut Handle, flags: c_uint) -> CuResult {
    // cuda.h: CU_EVENT_DISABLE_TIMING.
    let is_timed = flags & 2 == 0;
    let made = |device: &Arc<FakeDevice>| match is_timed {
        true => device.create_timed_event(),
        false => device.create_event(),
    };
    // SAFETY: the caller's.
    unsafe { make(event, |device| made(device).map(|Event(number)| number)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: Handle, to: Handle) -> CuResult {
    let (from, to) = (Event(number(from)), Event(number(to)));
    let found = Library::current().and_then(|(_, device)| code_of(device.elapsed(from, to)));
    // SAFETY: the caller's.
    unsafe { give(milliseconds, found.map(|time| time.as_millis_f64() as f32)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: Handle) -> CuResult {
    release(Event(number(event)))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> CuResult {
    call(|device| device.record(Event(number(event)), Stream(number(stream))))
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: Handle) -> CuResult {
    let found = Library::current().and_then(|(_, device)| code_of(device.is_over(Event(number(event)))));
    found.map_or_else(|code| code, |is_over| if is_over { SUCCESS } else { NOT_READY })
}

/// Returns the length of machine code, an ELF file of 64 bits: its tables of sections and segments
/// are behind all else.
///
/// # Safety
/// A whole file is there.
unsafe fn machine_code_length(image: *const u8) -> usize {
    // SAFETY: the caller's: the header has 64 bytes.
    let header = unsafe { std::slice::from_raw_parts(image, 64) };
    let field = |at: usize, bytes: usize| {
        header[at..at + bytes].iter().rev().fold(0, |value: usize, &byte| value << 8 | usize::from(byte))
    };
    let sections = field(40, 8) + field(58, 2) * field(60, 2);
    sections.max(field(32, 8) + field(54, 2) * field(56, 2))
}

/// Takes the text of kernels, as NVRTC has compiled it, or their machine code: both name each of
/// them.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> CuResult {
    if image.is_null() {
        return INVALID_IMAGE;
    }
    // SAFETY: the caller's: an image is a text that ends in 0, or an ELF file.
    if unsafe { CStr::from_ptr(image.cast()) }.to_bytes().starts_with(b"\x7fELF") {
        // SAFETY: the caller's: the file is whole.
        let image = unsafe { std::slice::from_raw_parts(image.cast(), machine_code_length(image.cast())) };
        // SAFETY: the caller's.
        return unsafe { make(module, |device| device.load_image(image).map(|Module(number)| number)) };
    }
    // SAFETY: as above.
    let Ok(text) = unsafe { CStr::from_ptr(image.cast()) }.to_str() else { return INVALID_IMAGE };
    if !text.contains(".target sm_90") {
        return INVALID_IMAGE;
    }
    // SAFETY: the caller's.
    unsafe { make(module, |device| device.load_kernels(text).map(|Module(number)| number)) }
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> CuResult {
    release(Module(number(module)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    kernel: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> CuResult {
    // SAFETY: the caller's: a name that ends in 0.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let Some(name) = KERNELS.into_iter().find(|kernel| kernel.as_bytes() == name) else { return NOT_FOUND };
    // SAFETY: the caller's.
    unsafe { make(kernel, |device| device.kernel(Module(number(module)), name).map(|Kernel(number)| number)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernel(
    kernel: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _: c_uint,
    stream: Handle,
    parameters: *mut Handle,
    extra: *mut Handle,
) -> CuResult {
    if !parameters.is_null() || extra.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's: pairs of a kind and an address, the last kind 0.
    let Some(arguments) = (unsafe { arguments(extra) }) else { return INVALID_VALUE };
    let shape = LaunchShape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z] };
    call(|device| device.launch(Kernel(number(kernel)), shape, &arguments, Stream(number(stream))))
}

/// Returns the arguments of a launch, which the caller gives as one buffer.
///
/// # Safety
/// `extra` is what `cuLaunchKernel` takes under that name.
unsafe fn arguments(mut extra: *mut Handle) -> Option<Vec<u8>> {
    let (mut start, mut length) = (None, None);
    loop {
        // SAFETY: the list has not ended yet.
        let kind = unsafe { extra.read() }.addr();
        if kind == 0 {
            break;
        }
        // SAFETY: each kind but the last has an address behind it.
        let value = unsafe { extra.add(1).read() };
        match kind {
            1 => start = Some(value.cast_const().cast::<u8>()),
            // SAFETY: the address of the buffer's length.
            2 => length = Some(unsafe { value.cast::<usize>().read() }),
            _ => return None,
        }
        // SAFETY: the pair was not the last.
        extra = unsafe { extra.add(2) };
    }
    // SAFETY: the buffer has this length.
    Some(unsafe { std::slice::from_raw_parts(start?, length?) }.to_vec())
}
