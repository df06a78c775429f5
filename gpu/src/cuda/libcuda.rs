//! NVIDIA's driver: the library `libcuda.so`, opened when it is first asked for. Every function is
//! looked for when the driver is opened, so that one that is missing is an error and no panic of
//! the bindings.
//!
//! Callers have numbers for a device's objects, never addresses of the host: each is looked up
//! here, so that a call with an object that was given back is refused and reaches no memory.

use super::compiler::{KernelTarget, compile_kernels};
use super::driver::{
    CallTensors, Device, DeviceFacts, DeviceObject, DevicePointer, Driver, Event, Graph, Kernel,
    LEAST_CAPABILITY, LaunchShape, LibraryState, Module, Page, Pinned, PreparedCall, ReservedAddresses,
    Stream, StreamHandle,
};
use super::error::{DriverError, DriverResult, FailedCall};
use super::library_kernels::call::LibraryCall;
use super::library_kernels::native::NativeLibraries;
use cudarc::driver::sys;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symphony_transport::Nanos;
use symphony_transport::slab::ClassMemory;

/// The functions that are called, by their symbols.
const SYMBOLS: [&str; 48] = [
    "cuInit",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventElapsedTime",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
];

/// NVIDIA's driver, which has all functions that are called.
#[derive(Debug)]
pub struct Libcuda(());

impl Libcuda {
    /// Opens the driver.
    ///
    /// # Errors
    /// There is none, or it lacks a function, or it refuses to start.
    pub fn open() -> DriverResult<Libcuda> {
        // SAFETY: opens the library named libcuda.so, whose initialisers are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(DriverError::NoDriver);
        }
        // SAFETY: as above; it is there, so the call does not panic.
        let library = unsafe { sys::culib() };
        for symbol in SYMBOLS {
            // SAFETY: the symbol is only looked for; what is found is not used.
            if unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.is_err() {
                return Err(DriverError::MissingSymbol { symbol });
            }
        }
        // SAFETY: the function is there, and 0 is its one argument that is allowed.
        checked("start the driver", unsafe { sys::cuInit(0) })?;
        Ok(Libcuda(()))
    }
}

/// Returns the error of a call, if it has failed.
fn checked(call: &'static str, result: sys::CUresult) -> DriverResult<()> {
    if result == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    type Text = unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult;
    let text = |function: Text| {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the functions write the address of a text that stays, or null.
        unsafe { function(result, &mut text) };
        let found = (!text.is_null()).then(|| {
            // SAFETY: a text of the driver, which ends in 0.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        });
        found.unwrap_or_else(|| format!("error {}", result as u32))
    };
    let failed = FailedCall { call, name: text(sys::cuGetErrorName), meaning: text(sys::cuGetErrorString) };
    Err(DriverError::of_call(failed, result as u32))
}

impl Driver for Libcuda {
    fn devices(&self) -> DriverResult<u32> {
        let mut count: c_int = 0;
        // SAFETY: writes one number.
        checked("count devices", unsafe { sys::cuDeviceGetCount(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn open(&self, ordinal: u32) -> DriverResult<Arc<dyn Device>> {
        let count = self.devices()?;
        if ordinal >= count {
            return Err(DriverError::NoDevice { ordinal, count });
        }
        let (mut device, mut context) = (0, null_mut());
        // SAFETY: writes one number; there is such a device.
        checked("get a device", unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) })?;
        let facts = facts_of(device)?;
        // SAFETY: writes one address. It is given back once, by `drop`.
        checked("open a device", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        Ok(Arc::new(LibcudaDevice {
            device,
            context,
            facts,
            objects: Mutex::default(),
            mapping: Mutex::default(),
            libraries: Mutex::default(),
        }))
    }
}

fn facts_of(device: sys::CUdevice) -> DriverResult<DeviceFacts> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let attribute = |of| {
        let mut value: c_int = 0;
        // SAFETY: writes one number.
        checked("read an attribute", unsafe { sys::cuDeviceGetAttribute(&mut value, of, device) })?;
        Ok(value.cast_unsigned())
    };
    let mut name: [c_char; 256] = [0; 256];
    // SAFETY: writes at most as many bytes as are given, the last of them 0.
    let named = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) };
    checked("read a device's name", named)?;
    let mut memory = 0;
    // SAFETY: writes one number.
    checked("read a device's memory", unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) })?;
    // SAFETY: the driver has ended the text in 0.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok(DeviceFacts { name, capability: [attribute(MAJOR)?, attribute(MINOR)?], memory: memory as u64 })
}

/// How many devices have each piece of registered memory, by its first address. The driver
/// registers it once in a process, for all devices.
static REGISTERED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn registered() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers memory, unless another device has it.
fn register(memory: &ClassMemory) -> sys::CUresult {
    let (mut registered, start) = (registered(), memory.start());
    let devices = registered.entry(start.as_ptr().addr()).or_default();
    if *devices == 0 {
        // SAFETY: the bytes are allocated, and stay so until they are unregistered: the device's
        // object keeps their slab alive.
        let result = unsafe {
            sys::cuMemHostRegister_v2(start.as_ptr().cast(), memory.bytes(), sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        if result != sys::CUresult::CUDA_SUCCESS {
            return result;
        }
    }
    *devices += 1;
    sys::CUresult::CUDA_SUCCESS
}

/// Gives registered memory back, unless another device has it.
fn unregister(memory: &ClassMemory) -> sys::CUresult {
    let (mut registered, start) = (registered(), memory.start());
    let devices = registered.entry(start.as_ptr().addr()).or_default();
    *devices = devices.saturating_sub(1);
    if *devices > 0 {
        return sys::CUresult::CUDA_SUCCESS;
    }
    registered.remove(&start.as_ptr().addr());
    // SAFETY: it was registered, and no device has it any more.
    unsafe { sys::cuMemHostUnregister(start.as_ptr().cast()) }
}

/// A device's object, with the driver's address for it.
#[derive(Clone)]
enum Object {
    Pinned(*mut u8, usize),
    Registered(ClassMemory),
    Stream(sys::CUstream),
    Event(sys::CUevent),
    Module(sys::CUmodule),
    Kernel(sys::CUfunction, Module),
    Graph(sys::CUgraphExec),
    Page(sys::CUmemGenericAllocationHandle),
}

/// The objects that a device has given out, by their numbers.
#[derive(Default)]
struct Objects {
    last: u64,
    by_number: HashMap<u64, Object>,
}

// SAFETY: the addresses are the driver's, whose functions may be called from any thread; pinned
// memory is read and written under the table's lock, by the host, and registered memory not at all.
unsafe impl Send for Objects {}

impl Objects {
    fn add(&mut self, object: Object) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, object);
        self.last
    }

    fn find<T>(&self, number: u64, of: impl FnOnce(Object) -> Option<T>) -> DriverResult<T> {
        let found = self.by_number.get(&number).cloned().and_then(of);
        found.ok_or_else(|| refused("look an object up", "it was given back, or is of another kind"))
    }
}

fn refused(call: &'static str, meaning: &str) -> DriverError {
    DriverError::Refused(FailedCall { call, name: "not sent".to_owned(), meaning: meaning.to_owned() })
}

/// A device with its primary context.
struct LibcudaDevice {
    device: sys::CUdevice,
    context: sys::CUcontext,
    facts: DeviceFacts,
    objects: Mutex<Objects>,
    /// Held while pages are mapped and unmapped, which takes long, and while one is given back. The
    /// table is free meanwhile: batches are launched beside a LOAD.
    mapping: Mutex<()>,
    /// The libraries of kernels, once they were opened.
    libraries: Mutex<Option<NativeLibraries>>,
}

// SAFETY: the context is made current on the calling thread before each call, and the driver's
// functions may then be called from any thread.
unsafe impl Send for LibcudaDevice {}
// SAFETY: as above; the table of objects has a lock.
unsafe impl Sync for LibcudaDevice {}

impl Drop for LibcudaDevice {
    fn drop(&mut self) {
        // Libraries give back what they have of the device before that goes.
        if self.enter().is_ok() {
            self.libraries().take();
        }
        // SAFETY: it was retained once. A fault can't be mended here.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

impl LibcudaDevice {
    /// Makes a call on the device, by its objects.
    fn call(
        &self,
        call: &'static str,
        made: impl FnOnce(&mut Objects) -> DriverResult<sys::CUresult>,
    ) -> DriverResult<()> {
        let mut objects = self.objects();
        self.enter()?;
        checked(call, made(&mut objects)?)
    }

    /// Makes a call that maps or unmaps pages, beside calls of other kinds.
    fn map_call(
        &self,
        call: &'static str,
        made: impl FnOnce() -> DriverResult<sys::CUresult>,
    ) -> DriverResult<()> {
        let _alone = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        self.enter()?;
        checked(call, made()?)
    }

    /// Makes the device the one that the thread calls.
    fn enter(&self) -> DriverResult<()> {
        // SAFETY: the context was retained and is given back by `drop` alone.
        checked("enter a device", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn libraries(&self) -> MutexGuard<'_, Option<NativeLibraries>> {
        self.libraries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that makes an object, and gives that a number.
    fn make(
        &self,
        call: &'static str,
        make: impl FnOnce(&mut Objects) -> DriverResult<(sys::CUresult, Object)>,
    ) -> DriverResult<u64> {
        let mut made = None;
        self.call(call, |objects| {
            let (result, object) = make(objects)?;
            if result == sys::CUresult::CUDA_SUCCESS {
                made = Some(objects.add(object));
            }
            Ok(result)
        })?;
        made.ok_or_else(|| refused(call, "nothing was made"))
    }

    /// Returns where pages lie: on this device.
    fn location(&self) -> sys::CUmemLocation {
        let of = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_: of, id: self.device }
    }

    /// Returns what pages are made as.
    fn page_property(&self) -> sys::CUmemAllocationProp {
        // SAFETY: numbers and an address, for all of which 0 is a value: none asked for.
        let none: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        let of = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        sys::CUmemAllocationProp { type_: of, location: self.location(), ..none }
    }

    fn make_event(&self, flags: sys::CUevent_flags) -> DriverResult<Event> {
        let made = self.make("make an event", |_| {
            let mut event = null_mut();
            // SAFETY: writes one address.
            let result = unsafe { sys::cuEventCreate(&mut event, flags as u32) };
            Ok((result, Object::Event(event)))
        });
        made.map(Event)
    }

    /// Returns the address of a part of host memory that the device reads and writes.
    fn shared(objects: &Objects, of: Pinned, range: Range<usize>) -> DriverResult<*mut u8> {
        let memory = objects.find(of.0, |object| match object {
            Object::Registered(memory) => Some(Some(memory)),
            Object::Pinned(..) => Some(None),
            _ => None,
        })?;
        let Some(memory) = memory else { return LibcudaDevice::pinned(objects, of, range) };
        if range.start > range.end || range.end > memory.bytes() {
            return Err(refused("use registered memory", "the range is not in it"));
        }
        // SAFETY: the offset lies in the memory.
        Ok(unsafe { memory.start().as_ptr().add(range.start) })
    }

    /// Returns the address of a part of pinned memory.
    fn pinned(objects: &Objects, pinned: Pinned, range: Range<usize>) -> DriverResult<*mut u8> {
        let (address, length) = objects.find(pinned.0, |object| match object {
            Object::Pinned(address, length) => Some((address, length)),
            _ => None,
        })?;
        if range.start > range.end || range.end > length {
            return Err(refused("use pinned memory", "the range is not in it"));
        }
        // SAFETY: the offset lies in the allocation.
        Ok(unsafe { address.add(range.start) })
    }

    fn stream(objects: &Objects, stream: Stream) -> DriverResult<sys::CUstream> {
        objects.find(stream.0, |object| match object {
            Object::Stream(stream) => Some(stream),
            _ => None,
        })
    }

    fn event(objects: &Objects, event: Event) -> DriverResult<sys::CUevent> {
        objects.find(event.0, |object| match object {
            Object::Event(event) => Some(event),
            _ => None,
        })
    }
}

impl Device for LibcudaDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn free_memory(&self) -> DriverResult<u64> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        self.call("read the free memory", |_| Ok(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }))?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> DriverResult<DevicePointer> {
        let mut address = 0;
        // SAFETY: writes one address, of device memory, which the host never reads.
        self.call("allocate", |_| Ok(unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1)) }))?;
        Ok(DevicePointer(address))
    }

    fn page_granularity(&self) -> DriverResult<Option<usize>> {
        use sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as SUPPORTED;
        let mut supported: c_int = 0;
        // SAFETY: writes one number.
        let read = unsafe { sys::cuDeviceGetAttribute(&mut supported, SUPPORTED, self.device) };
        checked("read an attribute", read)?;
        if supported == 0 {
            return Ok(None);
        }
        let (mut bytes, property) = (0, self.page_property());
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        self.call("read the size of pages", |_| {
            // SAFETY: reads the property, which outlives the call; writes one number.
            Ok(unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &property, option) })
        })?;
        Ok(Some(bytes))
    }

    fn create_page(&self, bytes: usize) -> DriverResult<Page> {
        let property = self.page_property();
        let made = self.make("allocate a page", |_| {
            let mut page = 0;
            // SAFETY: reads the property, which outlives the call; writes one number.
            let result = unsafe { sys::cuMemCreate(&mut page, bytes, &property, 0) };
            Ok((result, Object::Page(page)))
        });
        made.map(Page)
    }

    fn reserve(&self, bytes: usize) -> DriverResult<ReservedAddresses> {
        let mut start = 0;
        self.call("reserve addresses", |_| {
            // SAFETY: writes one address, of the device, which the host never reads.
            Ok(unsafe { sys::cuMemAddressReserve(&mut start, bytes, 0, 0, 0) })
        })?;
        Ok(ReservedAddresses { start: DevicePointer(start), bytes })
    }

    fn map(&self, at: DevicePointer, page: Page, bytes: usize) -> DriverResult<()> {
        self.map_call("map a page", || {
            let page = self.objects().find(page.0, |object| match object {
                Object::Page(page) => Some(page),
                _ => None,
            })?;
            // SAFETY: the page is there, and is not given back while the lock of mappings is held.
            // Wrong addresses of the device are an error of the driver.
            Ok(unsafe { sys::cuMemMap(at.0, bytes, 0, page, 0) })
        })
    }

    fn allow(&self, at: DevicePointer, bytes: usize) -> DriverResult<()> {
        let access = sys::CUmemAccessDesc {
            location: self.location(),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: reads one description, which outlives the call; as in `map`.
        self.map_call("give access to pages", || Ok(unsafe { sys::cuMemSetAccess(at.0, bytes, &access, 1) }))
    }

    fn unmap(&self, at: DevicePointer, bytes: usize) -> DriverResult<()> {
        // SAFETY: as in `map`; the host reads none of it.
        self.map_call("unmap pages", || Ok(unsafe { sys::cuMemUnmap(at.0, bytes) }))
    }

    fn allocate_pinned(&self, bytes: usize) -> DriverResult<Pinned> {
        let made = self.make("allocate pinned memory", |_| {
            let mut address: *mut c_void = null_mut();
            // SAFETY: writes one address. Flags of 0: memory that the host also reads fast.
            let result = unsafe { sys::cuMemHostAlloc(&mut address, bytes.max(1), 0) };
            Ok((result, Object::Pinned(address.cast(), bytes)))
        });
        made.map(Pinned)
    }

    fn register(&self, memory: ClassMemory) -> DriverResult<Pinned> {
        let made = self.make("register memory", |_| Ok((register(&memory), Object::Registered(memory))));
        made.map(Pinned)
    }

    fn write_pinned(&self, to: Pinned, offset: usize, bytes: &[u8]) -> DriverResult<()> {
        let objects = self.objects();
        let to = LibcudaDevice::pinned(&objects, to, offset..offset.saturating_add(bytes.len()))?;
        // SAFETY: the range lies in an allocation that is not given back while the lock is held,
        // and no reference to it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn read_pinned(&self, from: Pinned, offset: usize, bytes: &mut [u8]) -> DriverResult<()> {
        let objects = self.objects();
        let from = LibcudaDevice::pinned(&objects, from, offset..offset.saturating_add(bytes.len()))?;
        // SAFETY: as in `write_pinned`; any bytes are bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn create_stream(&self) -> DriverResult<Stream> {
        let made = self.make("make a stream", |_| {
            let mut stream = null_mut();
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: writes one address.
            let result = unsafe { sys::cuStreamCreate(&mut stream, flags) };
            Ok((result, Object::Stream(stream)))
        });
        made.map(Stream)
    }

    fn stream_handle(&self, stream: Stream) -> DriverResult<StreamHandle> {
        LibcudaDevice::stream(&self.objects(), stream).map(|stream| StreamHandle(stream.expose_provenance()))
    }

    fn create_event(&self) -> DriverResult<Event> {
        self.make_event(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn create_timed_event(&self) -> DriverResult<Event> {
        self.make_event(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn load_kernels(&self, source: &str) -> DriverResult<Module> {
        // Machine code asks nothing of the driver; PTX asks for one that is as new as the compiler.
        // It is for cards that are newer than the compiler.
        let machine = compile_kernels(source, KernelTarget::Machine(self.facts.capability));
        let code = machine.or_else(|_| compile_kernels(source, KernelTarget::Ptx(LEAST_CAPABILITY)))?;
        self.load_image(&code)
    }

    fn load_image(&self, image: &[u8]) -> DriverResult<Module> {
        let made = self.make("load kernels", |_| {
            let mut module = null_mut();
            // SAFETY: the image outlives the call: it is machine code, which says its own length,
            // or text that ends in 0; writes one address.
            let result = unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) };
            Ok((result, Object::Module(module)))
        });
        made.map(Module)
    }

    fn kernel(&self, module: Module, name: &'static str) -> DriverResult<Kernel> {
        let text = CString::new(name).map_err(|_| refused("find a kernel", "its name has a 0"))?;
        let made = self.make("find a kernel", |objects| {
            let of = objects.find(module.0, |object| match object {
                Object::Module(module) => Some(module),
                _ => None,
            })?;
            let mut kernel = null_mut();
            // SAFETY: the module is loaded, the name ends in 0; writes one address.
            let result = unsafe { sys::cuModuleGetFunction(&mut kernel, of, text.as_ptr()) };
            Ok((result, Object::Kernel(kernel, module)))
        });
        made.map(Kernel)
    }

    fn copy_in(
        &self,
        from: Pinned,
        range: Range<usize>,
        to: DevicePointer,
        stream: Stream,
    ) -> DriverResult<()> {
        self.call("copy to the GPU", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            let host = LibcudaDevice::shared(objects, from, range.clone())?;
            // SAFETY: the host's range lies in pinned memory, and giving that back waits for the
            // copy; or in registered memory, of whose slots the caller holds claims until the copy
            // is over. A wrong address of the device is an error of the device.
            Ok(unsafe { sys::cuMemcpyHtoDAsync_v2(to.0, host.cast(), range.len(), stream) })
        })
    }

    fn copy_out(
        &self,
        from: DevicePointer,
        to: Pinned,
        range: Range<usize>,
        stream: Stream,
    ) -> DriverResult<()> {
        self.call("copy from the GPU", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            let host = LibcudaDevice::shared(objects, to, range.clone())?;
            // SAFETY: as in `copy_in`.
            Ok(unsafe { sys::cuMemcpyDtoHAsync_v2(host.cast(), from.0, range.len(), stream) })
        })
    }

    fn zero(&self, at: DevicePointer, bytes: usize, stream: Stream) -> DriverResult<()> {
        self.call("write zeros", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            // SAFETY: a wrong address of the device is an error of the device.
            Ok(unsafe { sys::cuMemsetD8Async(at.0, 0, bytes, stream) })
        })
    }

    fn launch(
        &self,
        kernel: Kernel,
        LaunchShape { grid, block }: LaunchShape,
        arguments: &[u8],
        stream: Stream,
    ) -> DriverResult<()> {
        self.call("launch a kernel", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            let (kernel, module) = objects.find(kernel.0, |object| match object {
                Object::Kernel(kernel, module) => Some((kernel, module)),
                _ => None,
            })?;
            // A kernel goes with its module.
            objects.find(module.0, |object| matches!(object, Object::Module(_)).then_some(()))?;
            let mut length = arguments.len();
            // cuda.h: CU_LAUNCH_PARAM_END, _BUFFER_POINTER and _BUFFER_SIZE are 0, 1 and 2.
            let mut extra: [*mut c_void; 5] = [
                std::ptr::without_provenance_mut(1),
                arguments.as_ptr().cast_mut().cast(),
                std::ptr::without_provenance_mut(2),
                (&raw mut length).cast(),
                null_mut(),
            ];
            let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
            // SAFETY: the kernel's module is loaded. The driver copies the arguments, which outlive
            // the call, before it returns. What a kernel does with them happens on the device.
            Ok(unsafe {
                sys::cuLaunchKernel(kernel, gx, gy, gz, bx, by, bz, 0, stream, null_mut(), extra.as_mut_ptr())
            })
        })
    }

    fn open_libraries(&self) -> DriverResult<Vec<LibraryState>> {
        self.enter()?;
        Ok(self.libraries().get_or_insert_with(NativeLibraries::open).states())
    }

    fn prepare(&self, call: &LibraryCall, most_workspace: usize) -> DriverResult<Option<PreparedCall>> {
        self.enter()?;
        self.libraries().as_mut().map_or(Ok(None), |libraries| libraries.prepare(call, most_workspace))
    }

    fn launch_prepared(&self, call: PreparedCall, tensors: &CallTensors, stream: Stream) -> DriverResult<()> {
        // Before the objects, so that no other call waits while a library prepares one.
        let libraries = self.libraries();
        self.call("launch a library's call", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            let libraries =
                libraries.as_ref().ok_or_else(|| refused("launch a library's call", "none is open"))?;
            // SAFETY: the stream is there, and the context of both is current.
            unsafe { libraries.launch(call, tensors, stream.cast()) }?;
            Ok(sys::CUresult::CUDA_SUCCESS)
        })
    }

    fn begin_capture(&self, stream: Stream) -> DriverResult<()> {
        self.call("begin a graph", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            // Other streams go on meanwhile, on this thread and on others.
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
            // SAFETY: the stream is there.
            Ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
        })
    }

    fn end_capture(&self, stream: Stream) -> DriverResult<Graph> {
        let mut graph = null_mut();
        let stream = LibcudaDevice::stream(&self.objects(), stream)?;
        self.call("end a graph", |_| {
            // SAFETY: the stream is there; writes one address.
            Ok(unsafe { sys::cuStreamEndCapture(stream, &mut graph) })
        })?;
        let made = self.make("make a graph", |_| {
            let mut executable = null_mut();
            // SAFETY: the graph was just recorded; writes one address.
            let result = unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) };
            if result == sys::CUresult::CUDA_SUCCESS {
                // Else the first launch does it, and is late; where it fails, so does the launch.
                // SAFETY: both are there.
                unsafe { sys::cuGraphUpload(executable, stream) };
            }
            Ok((result, Object::Graph(executable)))
        });
        // SAFETY: the graph was recorded, and what was made of it does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        made.map(Graph)
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> DriverResult<()> {
        self.call("launch a graph", |objects| {
            let stream = LibcudaDevice::stream(objects, stream)?;
            let graph = objects.find(graph.0, |object| match object {
                Object::Graph(graph) => Some(graph),
                _ => None,
            })?;
            // SAFETY: both are there, and the table's lock keeps other threads off the graph.
            Ok(unsafe { sys::cuGraphLaunch(graph, stream) })
        })
    }

    fn record(&self, event: Event, stream: Stream) -> DriverResult<()> {
        self.call("record an event", |objects| {
            let (event, stream) =
                (LibcudaDevice::event(objects, event)?, LibcudaDevice::stream(objects, stream)?);
            // SAFETY: both are there.
            Ok(unsafe { sys::cuEventRecord(event, stream) })
        })
    }

    fn wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        self.call("wait for an event", |objects| {
            let (event, stream) =
                (LibcudaDevice::event(objects, event)?, LibcudaDevice::stream(objects, stream)?);
            // SAFETY: both are there.
            Ok(unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
        })
    }

    fn is_over(&self, event: Event) -> DriverResult<bool> {
        let mut is_over = true;
        self.call("ask for an event", |objects| {
            let event = LibcudaDevice::event(objects, event)?;
            // SAFETY: the event is there.
            let result = unsafe { sys::cuEventQuery(event) };
            is_over = result != sys::CUresult::CUDA_ERROR_NOT_READY;
            Ok(if is_over { result } else { sys::CUresult::CUDA_SUCCESS })
        })?;
        Ok(is_over)
    }

    fn elapsed(&self, from: Event, to: Event) -> DriverResult<Nanos> {
        let mut milliseconds: f32 = 0.0;
        self.call("read a time", |objects| {
            let (from, to) = (LibcudaDevice::event(objects, from)?, LibcudaDevice::event(objects, to)?);
            // The bindings only have `cuEventElapsedTime_v2`, which drivers before CUDA 12.8 lack.
            type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;
            // SAFETY: the library is open, and the function has this type (cuda.h).
            let found = unsafe { sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime") };
            let function = found.map_err(|_| DriverError::MissingSymbol { symbol: "cuEventElapsedTime" })?;
            // SAFETY: both events are there; writes one number.
            Ok(unsafe { function(&mut milliseconds, from, to) })
        })?;
        // A negative time becomes 0.
        Ok(Nanos((f64::from(milliseconds) * 1e6) as u64))
    }

    fn release(&self, resource: DeviceObject) {
        let _no_mapping = matches!(resource, DeviceObject::Page(_) | DeviceObject::ReservedAddresses(_))
            .then(|| self.mapping.lock().unwrap_or_else(PoisonError::into_inner));
        if let DeviceObject::PreparedCall(call) = resource {
            self.libraries().iter_mut().for_each(|libraries| libraries.release(call));
        }
        // An object that the driver does not take back stays its own.
        let _ = self.call("give an object back", |objects| {
            let number = match resource {
                // SAFETY: device memory, which the host never reads.
                DeviceObject::Memory(at) => return Ok(unsafe { sys::cuMemFree_v2(at.0) }),
                DeviceObject::ReservedAddresses(ReservedAddresses { start, bytes }) => {
                    // SAFETY: as above; pages that are still mapped there make it an error.
                    return Ok(unsafe { sys::cuMemAddressFree(start.0, bytes) });
                }
                DeviceObject::PreparedCall(_) => return Ok(sys::CUresult::CUDA_SUCCESS),
                DeviceObject::Page(Page(number))
                | DeviceObject::Pinned(Pinned(number))
                | DeviceObject::Stream(Stream(number))
                | DeviceObject::Event(Event(number))
                | DeviceObject::Module(Module(number))
                | DeviceObject::Graph(Graph(number)) => number,
            };
            let Some(object) = objects.by_number.remove(&number) else {
                return Err(refused("give an object back", "it was given back before"));
            };
            if let Object::Registered(memory) = &object {
                return Ok(unregister(memory));
            }
            objects
                .by_number
                .retain(|_, other| !matches!(other, Object::Kernel(_, Module(module)) if *module == number));
            // SAFETY: it was made by this device, and is in the table no more. Freeing pinned
            // memory waits for the device's use of it.
            Ok(unsafe {
                match object {
                    Object::Pinned(address, _) => sys::cuMemFreeHost(address.cast()),
                    Object::Stream(stream) => sys::cuStreamDestroy_v2(stream),
                    Object::Event(event) => sys::cuEventDestroy_v2(event),
                    Object::Module(module) => sys::cuModuleUnload(module),
                    Object::Kernel(..) | Object::Registered(_) => sys::CUresult::CUDA_SUCCESS,
                    Object::Graph(graph) => sys::cuGraphExecDestroy(graph),
                    Object::Page(page) => sys::cuMemRelease(page),
                }
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_says_so() {
        match Libcuda::open() {
            Err(DriverError::NoDriver) => {
                let said = DriverError::NoDriver.to_string();
                assert!(said.starts_with("there is no CUDA driver on this machine"), "{said}");
            }
            // A machine with a driver, or with a part of one.
            Ok(driver) => assert!(driver.devices().is_ok()),
            Err(other) => assert!(!other.to_string().is_empty()),
        }
    }
}
