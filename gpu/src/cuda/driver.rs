//! What the CUDA executor needs of a driver, and nothing else: the traits [`Driver`] and
//! [`Device`]. NVIDIA's driver implements them (`libcuda.rs`), and so does the fake one of the
//! tests, whose device memory is host memory.
//!
//! Objects are numbers that the driver gives out; `Owned` gives them back. No call waits for the
//! device but those that say so.

use super::error::DriverResult;
use super::library_kernels::call::LibraryCall;
use std::ops::Range;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::slab::ClassMemory;

/// A CUDA driver.
pub trait Driver: Send + Sync {
    /// Returns the number of devices.
    ///
    /// # Errors
    /// There is no driver, or it refuses the call.
    fn devices(&self) -> DriverResult<u32>;

    /// Opens a device, counted from 0. Whoever opens it again gets the same memory.
    ///
    /// # Errors
    /// There is no such device, or it can't be used.
    fn open(&self, ordinal: u32) -> DriverResult<Arc<dyn Device>>;
}

/// The least compute capability: that of cards whose tensor cores the kernels use.
pub(super) const LEAST_CAPABILITY: [u32; 2] = [8, 0];

/// The properties of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// The device's name, such as `NVIDIA H200`.
    pub name: String,
    /// The compute capability: 9, 0 for `sm_90`.
    pub capability: [u32; 2],
    /// The memory, bytes.
    pub memory: u64,
}

/// The address of device memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DevicePointer(pub u64);

/// Host memory that the device reads and writes by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pinned(pub u64);

/// A queue of a device: what is put into it is done in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stream(pub u64);

/// The address by which NVIDIA's libraries, and what is built on them, know a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamHandle(pub usize);

/// A point in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Event(pub u64);

/// Kernels that were loaded together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Module(pub u64);

/// A kernel of a module; it goes with the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Kernel(pub u64);

/// Launches that are launched together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Graph(pub u64);

/// A page of device memory, which is at no address until it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Page(pub u64);

/// Reserved addresses of a device, which have memory only where pages are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReservedAddresses {
    /// The first address.
    pub start: DevicePointer,
    /// How many there are.
    pub bytes: usize,
}

/// A call that a library of kernels has prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PreparedCall {
    /// The number that stands for it.
    pub number: u64,
    /// The memory that it needs beside its tensors, bytes.
    pub workspace_bytes: usize,
}

/// Where the tensors of a prepared call lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallTensors {
    /// The left matrices, or the image.
    pub left: DevicePointer,
    /// The right matrices, or the kernels.
    pub right: DevicePointer,
    /// The bias; 0 if there is none.
    pub bias: DevicePointer,
    /// The result.
    pub output: DevicePointer,
    /// What the call needs beside.
    pub workspace: DevicePointer,
}

/// A library of kernels on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LibraryState {
    /// The library's name, such as `cuBLASLt`.
    pub name: &'static str,
    /// The version, or why it is not used.
    pub version: Result<String, String>,
}

impl std::fmt::Display for LibraryState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.version {
            Ok(version) => write!(f, "{} {version}", self.name),
            Err(why) => write!(f, "kernels of Symphony's in place of {} ({why})", self.name),
        }
    }
}

/// An object of a device that is to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "they are the objects above")]
pub enum DeviceObject {
    Memory(DevicePointer),
    Pinned(Pinned),
    Stream(Stream),
    Event(Event),
    Module(Module),
    Graph(Graph),
    Page(Page),
    ReservedAddresses(ReservedAddresses),
    PreparedCall(PreparedCall),
}

impl From<PreparedCall> for DeviceObject {
    fn from(call: PreparedCall) -> DeviceObject {
        DeviceObject::PreparedCall(call)
    }
}

impl From<DevicePointer> for DeviceObject {
    fn from(pointer: DevicePointer) -> DeviceObject {
        DeviceObject::Memory(pointer)
    }
}

impl From<Pinned> for DeviceObject {
    fn from(pinned: Pinned) -> DeviceObject {
        DeviceObject::Pinned(pinned)
    }
}

impl From<Stream> for DeviceObject {
    fn from(stream: Stream) -> DeviceObject {
        DeviceObject::Stream(stream)
    }
}

impl From<Event> for DeviceObject {
    fn from(event: Event) -> DeviceObject {
        DeviceObject::Event(event)
    }
}

impl From<Module> for DeviceObject {
    fn from(module: Module) -> DeviceObject {
        DeviceObject::Module(module)
    }
}

impl From<Graph> for DeviceObject {
    fn from(graph: Graph) -> DeviceObject {
        DeviceObject::Graph(graph)
    }
}

impl From<Page> for DeviceObject {
    fn from(page: Page) -> DeviceObject {
        DeviceObject::Page(page)
    }
}

impl From<ReservedAddresses> for DeviceObject {
    fn from(reservation: ReservedAddresses) -> DeviceObject {
        DeviceObject::ReservedAddresses(reservation)
    }
}

/// How many threads a kernel is launched with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchShape {
    /// The blocks along x, y and z.
    pub grid: [u32; 3],
    /// The threads of a block along x, y and z.
    pub block: [u32; 3],
}

/// A device of a driver. Every call may fail with what an earlier one has done: work is done later
/// than it is asked for.
///
/// # Errors
/// Each call returns the driver's error: an object that there is not, memory that is not allocated,
/// a lost device.
#[allow(clippy::missing_errors_doc, reason = "the trait's section is for all")]
pub trait Device: Send + Sync {
    /// Returns the device's properties.
    fn facts(&self) -> &DeviceFacts;

    /// Returns the device's free memory, bytes.
    fn free_memory(&self) -> DriverResult<u64>;

    /// Allocates device memory, aligned to 256 bytes. May wait for the device.
    fn allocate(&self, bytes: usize) -> DriverResult<DevicePointer>;

    /// Returns what the sizes of pages are multiples of, bytes; `None` where the device can't map
    /// pages.
    fn page_granularity(&self) -> DriverResult<Option<usize>>;

    /// Allocates a page of device memory.
    fn create_page(&self, bytes: usize) -> DriverResult<Page>;

    /// Reserves addresses. `bytes` is a multiple of the granularity.
    fn reserve(&self, bytes: usize) -> DriverResult<ReservedAddresses>;

    /// Maps a page of `bytes` to reserved addresses at which there is none. The device may use them
    /// from [`Device::allow`] on.
    fn map(&self, at: DevicePointer, page: Page, bytes: usize) -> DriverResult<()>;

    /// Lets the device read and write these addresses, to which pages are mapped.
    fn allow(&self, at: DevicePointer, bytes: usize) -> DriverResult<()>;

    /// Takes whole pages away from these addresses. What the device does meanwhile must not use
    /// them.
    fn unmap(&self, at: DevicePointer, bytes: usize) -> DriverResult<()>;

    /// Allocates host memory that the device reads and writes by itself.
    fn allocate_pinned(&self, bytes: usize) -> DriverResult<Pinned>;

    /// Makes the memory of slots the device's to read and write by itself, until it is given back;
    /// it is kept alive so long. Only copies take it, and whoever asks for one holds claims of its
    /// slots until that is over. Other devices may have the same memory.
    fn register(&self, memory: ClassMemory) -> DriverResult<Pinned>;

    /// Copies bytes into host memory that the device reads.
    fn write_pinned(&self, to: Pinned, offset: usize, bytes: &[u8]) -> DriverResult<()>;

    /// Copies bytes out of host memory that the device writes.
    fn read_pinned(&self, from: Pinned, offset: usize, bytes: &mut [u8]) -> DriverResult<()>;

    /// Makes a stream that waits for no other.
    fn create_stream(&self) -> DriverResult<Stream>;

    /// Returns a stream as libraries beside the driver take it, which use it no longer than it is
    /// there.
    fn stream_handle(&self, stream: Stream) -> DriverResult<StreamHandle>;

    /// Makes an event, which is over until it is recorded.
    fn create_event(&self) -> DriverResult<Event>;

    /// Makes an event as [`Device::create_event`] does, which also notes the device's time.
    fn create_timed_event(&self) -> DriverResult<Event>;

    /// Compiles and loads kernels from CUDA C++ for this device. Takes up to a second.
    fn load_kernels(&self, source: &str) -> DriverResult<Module>;

    /// Loads kernels that were compiled for this device.
    fn load_image(&self, image: &[u8]) -> DriverResult<Module>;

    /// Returns a kernel by its name.
    fn kernel(&self, module: Module, name: &'static str) -> DriverResult<Kernel>;

    /// Copies host memory to the device, in its turn.
    fn copy_in(
        &self,
        from: Pinned,
        range: Range<usize>,
        to: DevicePointer,
        stream: Stream,
    ) -> DriverResult<()>;

    /// Copies device memory to the host, in its turn.
    fn copy_out(
        &self,
        from: DevicePointer,
        to: Pinned,
        range: Range<usize>,
        stream: Stream,
    ) -> DriverResult<()>;

    /// Writes zeros, in their turn.
    fn zero(&self, at: DevicePointer, bytes: usize, stream: Stream) -> DriverResult<()>;

    /// Launches a kernel, in its turn. `arguments` is its one parameter, a structure.
    fn launch(
        &self,
        kernel: Kernel,
        shape: LaunchShape,
        arguments: &[u8],
        stream: Stream,
    ) -> DriverResult<()>;

    /// Opens the libraries of kernels for the device, which may take memory of it, and returns what
    /// became of each. Without it no call is prepared.
    fn open_libraries(&self) -> DriverResult<Vec<LibraryState>>;

    /// Has a library choose how it computes a call, with at most `most_workspace` bytes beside the
    /// tensors; `None` if no library takes it.
    fn prepare(&self, call: &LibraryCall, most_workspace: usize) -> DriverResult<Option<PreparedCall>>;

    /// Launches a call that a library has prepared, in its turn.
    fn launch_prepared(&self, call: PreparedCall, tensors: &CallTensors, stream: Stream) -> DriverResult<()>;

    /// Makes what is put into the stream from now on be recorded and not done.
    fn begin_capture(&self, stream: Stream) -> DriverResult<()>;

    /// Ends the recording and returns it, ready to be launched.
    fn end_capture(&self, stream: Stream) -> DriverResult<Graph>;

    /// Launches what was recorded, in its turn.
    fn launch_graph(&self, graph: Graph, stream: Stream) -> DriverResult<()>;

    /// Puts an event into a stream: it is over when all before it is.
    fn record(&self, event: Event, stream: Stream) -> DriverResult<()>;

    /// Makes what is put into the stream from now on wait for an event.
    fn wait(&self, stream: Stream, event: Event) -> DriverResult<()>;

    /// Returns true if all before an event is done.
    fn is_over(&self, event: Event) -> DriverResult<bool>;

    /// Returns the device's time between two timed events, both of which are over; 0 if `to` was
    /// the first. NVIDIA's driver tells times to about half a microsecond.
    fn elapsed(&self, from: Event, to: Event) -> DriverResult<Nanos>;

    /// Gives an object back. May wait for the device. A fault is not reported: nobody could do
    /// anything about it.
    fn release(&self, resource: DeviceObject);
}
