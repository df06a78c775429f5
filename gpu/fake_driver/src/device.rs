//! A fake device: its objects, the faults that were planned for it, and the thread that does what
//! waits in its streams.

use crate::host_memory::HostMemory;
use crate::memory::{GRANULARITY, Memory};
use crate::queue::{FakeEvent, FakeStream, Queues, Task};
use crate::{Fault, address_error, driver_error, kernels};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use symphony_gpu::cuda::driver::{
    CallTensors, Device, DeviceFacts, DeviceObject, DevicePointer, Event, Graph, Kernel, LaunchShape,
    LibraryState, Module, Page, Pinned, PreparedCall, ReservedAddresses, Stream, StreamHandle,
};
use symphony_gpu::cuda::launch::KERNELS;
use symphony_gpu::cuda::library_kernels::call::{CUBLASLT, CUDNN, LibraryCall};
use symphony_gpu::cuda::{DriverError, DriverResult};
use symphony_gpu::plan::AlignedBytes;
use symphony_transport::Nanos;
use symphony_transport::slab::ClassMemory;

/// A fault that was planned.
struct PlannedFault {
    call: &'static str,
    after: usize,
    fault: Fault,
}

/// What a device has but for its memory.
#[derive(Default)]
struct State {
    queues: Queues,
    modules: HashMap<u64, String>,
    kernels: HashMap<u64, (&'static str, u64)>,
    graphs: HashMap<u64, Vec<Task>>,
    /// The libraries that it has, by their names.
    libraries: Vec<&'static str>,
    /// The calls that these have prepared.
    prepared: HashMap<u64, LibraryCall>,
    last: u64,
    faults: Vec<PlannedFault>,
    calls: BTreeMap<&'static str, usize>,
    lost: Option<DriverError>,
    /// How often what hangs was let go on.
    resumed: u64,
    stopped: bool,
    /// True for a device that can't map pages.
    maps_nothing: bool,
}

struct Shared {
    facts: DeviceFacts,
    state: Mutex<State>,
    changed: Condvar,
    /// Apart from the state, so that streams can be asked while a kernel runs.
    memory: Mutex<Memory>,
}

/// A fake device. See the crate's description.
pub struct FakeDevice {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of a call.
enum Course {
    Well,
    /// The call is taken, and this is put in front of its work.
    Behind(Task),
}

impl FakeDevice {
    pub(crate) fn start(ordinal: usize, memory: u64) -> Arc<FakeDevice> {
        let facts = DeviceFacts { name: format!("fake GPU {ordinal}"), capability: [9, 0], memory };
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { facts, state, changed, memory: Mutex::new(Memory::new(memory)) });
        let worker = Arc::clone(&shared);
        let spawned = std::thread::Builder::new().name(format!("fake-gpu-{ordinal}"));
        spawned.spawn(move || worker.work()).expect("a thread for a fake device");
        Arc::new(FakeDevice { shared })
    }

    pub(crate) fn plan_fault(&self, call: &'static str, after: usize, fault: Fault) {
        lock(&self.shared.state).faults.push(PlannedFault { call, after, fault });
    }

    /// Makes memory of the host's the device's to read and write too, by a call of this name.
    pub(crate) fn share(&self, call: &'static str, memory: Box<dyn HostMemory>) -> DriverResult<Pinned> {
        self.call(call, |state| {
            let number = state.number();
            lock(&self.shared.memory).add_pinned(number, memory);
            Ok(Pinned(number))
        })
    }

    pub(crate) fn map_nothing(&self) {
        lock(&self.shared.state).maps_nothing = true;
    }

    pub(crate) fn offer_library(&self, name: &'static str) {
        lock(&self.shared.state).libraries.push(name);
    }

    /// Puts a call of a library into a stream, with as much workspace as it was given.
    pub(crate) fn launch_call(
        &self,
        name: &'static str,
        call: LibraryCall,
        (tensors, workspace_bytes): (CallTensors, usize),
        stream: Stream,
    ) -> DriverResult<()> {
        if workspace_bytes < workspace_of(&call) {
            return Err(refused(name, "the workspace does not suffice"));
        }
        let call = Box::new(call);
        self.put(name, stream, |_| Ok(Task::Call { call, tensors, workspace_bytes }))
    }

    /// Copies device memory out, for a library that computes on the host.
    pub(crate) fn read_memory(&self, address: u64, to: &mut [u8]) -> Result<(), String> {
        lock(&self.shared.memory).read(address, to)
    }

    /// Copies bytes into device memory, as [`FakeDevice::read_memory`] does out of it.
    pub(crate) fn write_memory(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        lock(&self.shared.memory).write(address, bytes)
    }

    pub(crate) fn resume(&self) {
        let mut state = lock(&self.shared.state);
        state.queues.resume();
        state.resumed += 1;
        self.shared.changed.notify_all();
    }

    pub(crate) fn live(&self) -> BTreeMap<&'static str, usize> {
        let state = lock(&self.shared.state);
        let [memory, pinned, pages, reserved, mapped] = lock(&self.shared.memory).count();
        let counts = [
            ("memory", memory),
            ("pinned", pinned),
            ("page", pages),
            ("reservation", reserved),
            ("mapped", mapped),
            ("stream", state.queues.streams.len()),
            ("event", state.queues.events.len()),
            ("module", state.modules.len()),
            ("graph", state.graphs.len()),
            ("prepared call", state.prepared.len()),
        ];
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn calls(&self) -> BTreeMap<&'static str, usize> {
        lock(&self.shared.state).calls.clone()
    }

    /// Counts a call and looks whether it is to go wrong.
    fn enter(&self, call: &'static str, has_work: bool) -> DriverResult<(MutexGuard<'_, State>, Course)> {
        let mut state = lock(&self.shared.state);
        *state.calls.entry(call).or_default() += 1;
        if let Some(error) = &state.lost {
            return Err(error.clone());
        }
        let Some(at) = state.faults.iter().position(|planned| planned.call == call) else {
            return Ok((state, Course::Well));
        };
        if state.faults[at].after > 0 {
            state.faults[at].after -= 1;
            return Ok((state, Course::Well));
        }
        match (state.faults.remove(at).fault, has_work) {
            (Fault::Refuse(error), _) | (Fault::Break(error), false) => {
                if error.ends_device() {
                    state.lost = Some(error.clone());
                }
                Err(error)
            }
            (Fault::Break(error), true) => Ok((state, Course::Behind(Task::Break(error)))),
            (Fault::Hang, true) => Ok((state, Course::Behind(Task::Hang))),
            (Fault::Block, _) | (Fault::Hang, false) => {
                let resumed = state.resumed;
                let going = |state: &mut State| state.resumed == resumed && !state.stopped;
                let waited = self.shared.changed.wait_while(state, going);
                Ok((waited.unwrap_or_else(PoisonError::into_inner), Course::Well))
            }
        }
    }

    /// Makes a call that takes no work.
    fn call<T>(
        &self,
        call: &'static str,
        made: impl FnOnce(&mut State) -> DriverResult<T>,
    ) -> DriverResult<T> {
        let (mut state, _) = self.enter(call, false)?;
        made(&mut state)
    }

    /// Makes a call about memory. What a kernel uses at the moment is waited for; the device's
    /// streams can be asked meanwhile.
    fn memory_call<T>(
        &self,
        call: &'static str,
        made: impl FnOnce(&mut Memory) -> Result<T, String>,
    ) -> DriverResult<T> {
        self.call(call, |_| Ok(()))?;
        made(&mut lock(&self.shared.memory)).map_err(|what| refused(call, &what))
    }

    /// Puts work into a stream, or into what is captured of it.
    fn put(
        &self,
        call: &'static str,
        stream: Stream,
        work: impl FnOnce(&mut State) -> DriverResult<Task>,
    ) -> DriverResult<()> {
        let (mut state, course) = self.enter(call, true)?;
        let task = work(&mut state)?;
        let queue = stream_of(&mut state, call, stream)?;
        let tasks = match course {
            Course::Well => vec![task],
            Course::Behind(before) => vec![before, task],
        };
        match &mut queue.captured {
            Some(captured) => captured.extend(tasks),
            None => queue.waiting.extend(tasks),
        }
        self.shared.changed.notify_all();
        Ok(())
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        lock(&self.shared.state).stopped = true;
        self.shared.changed.notify_all();
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Shared {
    /// Does what waits, until the device is dropped.
    fn work(&self) {
        let mut state = lock(&self.state);
        while !state.stopped {
            let task = if state.lost.is_none() { state.queues.next() } else { None };
            let Some(task) = task else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            let done = self.run(&task);
            state = lock(&self.state);
            if let Err(error) = done {
                state.lost.get_or_insert(error);
            }
        }
    }

    fn run(&self, task: &Task) -> DriverResult<()> {
        let broken = |call| move |what: String| address_error(call, &what);
        match task {
            Task::CopyIn { from, range, to } => {
                lock(&self.memory).copy_in(*from, range.clone(), *to).map_err(broken("copy_in"))
            }
            Task::CopyOut { from, to, range } => {
                lock(&self.memory).copy_out(*from, *to, range.clone()).map_err(broken("copy_out"))
            }
            Task::Zero { at, bytes } => {
                lock(&self.memory).write(*at, &vec![0; *bytes]).map_err(broken("zero"))
            }
            Task::Launch { kernel, arguments } => {
                kernels::run(kernel, arguments, &mut lock(&self.memory)).map_err(broken(kernel))
            }
            Task::Call { call, tensors, workspace_bytes } => {
                let run = kernels::run_call(call, (tensors, *workspace_bytes), &mut lock(&self.memory));
                run.map_err(broken(call.library()))
            }
            Task::Graph(tasks) => tasks.iter().try_for_each(|task| self.run(task)),
            Task::Break(error) => Err(error.clone()),
            // They only mark places, and are done where streams are worked off.
            Task::Record { .. } | Task::Wait { .. } | Task::Hang => Ok(()),
        }
    }
}

/// Returns the workspace that a call needs, which differs from call to call.
pub(crate) fn workspace_of(call: &LibraryCall) -> usize {
    match call {
        LibraryCall::Product(of) => (of.rows * of.columns % 7 * 1_000) as usize,
        LibraryCall::Convolution(of) => of.output.into_iter().product::<usize>() % 5 * 700,
    }
}

fn refused(call: &'static str, meaning: &str) -> DriverError {
    driver_error(call, 400, "CUDA_ERROR_INVALID_HANDLE", meaning)
}

fn stream_of<'a>(
    state: &'a mut State,
    call: &'static str,
    stream: Stream,
) -> DriverResult<&'a mut FakeStream> {
    state.queues.streams.get_mut(&stream.0).ok_or_else(|| refused(call, "there is no such stream"))
}

fn event_of<'a>(state: &'a mut State, call: &'static str, event: Event) -> DriverResult<&'a mut FakeEvent> {
    state.queues.events.get_mut(&event.0).ok_or_else(|| refused(call, "there is no such event"))
}

impl Device for FakeDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.shared.facts
    }

    fn free_memory(&self) -> DriverResult<u64> {
        self.call("free_memory", |_| Ok(lock(&self.shared.memory).free()))
    }

    fn allocate(&self, bytes: usize) -> DriverResult<DevicePointer> {
        self.call("allocate", |_| {
            let allocated = lock(&self.shared.memory).allocate(bytes.max(1));
            let lacking =
                || driver_error("allocate", 2, "CUDA_ERROR_OUT_OF_MEMORY", &format!("no {bytes} bytes"));
            allocated.map(DevicePointer).ok_or_else(lacking)
        })
    }

    fn page_granularity(&self) -> DriverResult<Option<usize>> {
        self.call("page_granularity", |state| Ok((!state.maps_nothing).then_some(GRANULARITY)))
    }

    fn create_page(&self, bytes: usize) -> DriverResult<Page> {
        self.call("create_page", |state| {
            let number = state.number();
            if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
                return Err(refused("create_page", "the size is no multiple of the granularity"));
            }
            let lacking =
                || driver_error("create_page", 2, "CUDA_ERROR_OUT_OF_MEMORY", &format!("no {bytes} bytes"));
            lock(&self.shared.memory).add_page(number, bytes).then_some(Page(number)).ok_or_else(lacking)
        })
    }

    fn reserve(&self, bytes: usize) -> DriverResult<ReservedAddresses> {
        self.call("reserve", |_| {
            if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
                return Err(refused("reserve", "the size is no multiple of the granularity"));
            }
            let start = DevicePointer(lock(&self.shared.memory).reserve(bytes));
            Ok(ReservedAddresses { start, bytes })
        })
    }

    fn map(&self, at: DevicePointer, page: Page, bytes: usize) -> DriverResult<()> {
        self.memory_call("map", |memory| memory.map(at.0, page.0, bytes))
    }

    fn allow(&self, at: DevicePointer, bytes: usize) -> DriverResult<()> {
        self.memory_call("allow", |memory| memory.allow(at.0, bytes))
    }

    fn unmap(&self, at: DevicePointer, bytes: usize) -> DriverResult<()> {
        self.memory_call("unmap", |memory| memory.unmap(at.0, bytes))
    }

    fn allocate_pinned(&self, bytes: usize) -> DriverResult<Pinned> {
        self.share("allocate_pinned", Box::new(AlignedBytes::zeroed(bytes)))
    }

    fn register(&self, memory: ClassMemory) -> DriverResult<Pinned> {
        self.share("register", Box::new(memory))
    }

    fn write_pinned(&self, to: Pinned, offset: usize, bytes: &[u8]) -> DriverResult<()> {
        self.memory_call("write_pinned", |memory| memory.write_pinned(to.0, offset, bytes))
    }

    fn read_pinned(&self, from: Pinned, offset: usize, bytes: &mut [u8]) -> DriverResult<()> {
        let range = offset..offset + bytes.len();
        bytes.copy_from_slice(&self.memory_call("read_pinned", |memory| memory.read_pinned(from.0, range))?);
        Ok(())
    }

    fn create_stream(&self) -> DriverResult<Stream> {
        self.call("create_stream", |state| {
            let number = state.number();
            state.queues.streams.insert(number, FakeStream::default());
            Ok(Stream(number))
        })
    }

    fn stream_handle(&self, stream: Stream) -> DriverResult<StreamHandle> {
        self.call("stream_handle", |state| {
            stream_of(state, "stream_handle", stream).map(|_| StreamHandle(stream.0 as usize))
        })
    }

    fn create_event(&self) -> DriverResult<Event> {
        self.call("create_event", |state| {
            let number = state.number();
            state.queues.events.insert(number, FakeEvent::default());
            Ok(Event(number))
        })
    }

    fn create_timed_event(&self) -> DriverResult<Event> {
        self.call("create_timed_event", |state| {
            let number = state.number();
            state.queues.events.insert(number, FakeEvent { is_timed: true, ..FakeEvent::default() });
            Ok(Event(number))
        })
    }

    fn load_kernels(&self, source: &str) -> DriverResult<Module> {
        self.call("load_kernels", |state| {
            let number = state.number();
            state.modules.insert(number, source.to_owned());
            Ok(Module(number))
        })
    }

    /// Takes machine code, in which the kernels' names stand.
    fn load_image(&self, image: &[u8]) -> DriverResult<Module> {
        self.call("load_image", |state| {
            if !image.starts_with(b"\x7fELF") {
                return Err(driver_error(
                    "load_image",
                    200,
                    "CUDA_ERROR_INVALID_IMAGE",
                    "device kernel image is invalid",
                ));
            }
            let number = state.number();
            state.modules.insert(number, String::from_utf8_lossy(image).into_owned());
            Ok(Module(number))
        })
    }

    fn kernel(&self, module: Module, name: &'static str) -> DriverResult<Kernel> {
        self.call("kernel", |state| {
            let source =
                state.modules.get(&module.0).ok_or_else(|| refused("kernel", "there is no such module"))?;
            if !KERNELS.contains(&name) || !source.contains(name) {
                return Err(driver_error("kernel", 500, "CUDA_ERROR_NOT_FOUND", name));
            }
            let number = state.number();
            state.kernels.insert(number, (name, module.0));
            Ok(Kernel(number))
        })
    }

    fn copy_in(
        &self,
        from: Pinned,
        range: Range<usize>,
        to: DevicePointer,
        stream: Stream,
    ) -> DriverResult<()> {
        self.put("copy_in", stream, |_| Ok(Task::CopyIn { from: from.0, range, to: to.0 }))
    }

    fn copy_out(
        &self,
        from: DevicePointer,
        to: Pinned,
        range: Range<usize>,
        stream: Stream,
    ) -> DriverResult<()> {
        self.put("copy_out", stream, |_| Ok(Task::CopyOut { from: from.0, to: to.0, range }))
    }

    fn zero(&self, at: DevicePointer, bytes: usize, stream: Stream) -> DriverResult<()> {
        self.put("zero", stream, |_| Ok(Task::Zero { at: at.0, bytes }))
    }

    fn launch(
        &self,
        kernel: Kernel,
        LaunchShape { grid, block }: LaunchShape,
        arguments: &[u8],
        stream: Stream,
    ) -> DriverResult<()> {
        self.put("launch", stream, |state| {
            let &(kernel, module) =
                state.kernels.get(&kernel.0).ok_or_else(|| refused("launch", "there is no such kernel"))?;
            if !state.modules.contains_key(&module) {
                return Err(refused("launch", "the kernel's module was unloaded"));
            }
            // What cards take.
            let threads: u32 = block.iter().product();
            if grid.contains(&0) || threads == 0 || threads > 1_024 || grid[1].max(grid[2]) > 65_535 {
                let meaning = format!("a launch of {grid:?} blocks of {block:?} threads");
                return Err(driver_error("launch", 1, "CUDA_ERROR_INVALID_VALUE", &meaning));
            }
            Ok(Task::Launch { kernel, arguments: arguments.to_vec() })
        })
    }

    fn open_libraries(&self) -> DriverResult<Vec<LibraryState>> {
        self.call("open_libraries", |state| {
            let of = |name| match state.libraries.contains(&name) {
                true => LibraryState { name, version: Ok("1.2.3".to_owned()) },
                false => LibraryState { name, version: Err("there is none".to_owned()) },
            };
            Ok([CUBLASLT, CUDNN].map(of).to_vec())
        })
    }

    fn prepare(&self, call: &LibraryCall, most_workspace: usize) -> DriverResult<Option<PreparedCall>> {
        self.call("prepare", |state| {
            let workspace_bytes = workspace_of(call);
            if !state.libraries.contains(&call.library()) || workspace_bytes > most_workspace {
                return Ok(None);
            }
            let number = state.number();
            state.prepared.insert(number, *call);
            Ok(Some(PreparedCall { number, workspace_bytes }))
        })
    }

    fn launch_prepared(&self, call: PreparedCall, tensors: &CallTensors, stream: Stream) -> DriverResult<()> {
        let found = lock(&self.shared.state).prepared.get(&call.number).copied();
        let found = found.ok_or_else(|| refused("launch_prepared", "there is no such call"))?;
        self.launch_call("launch_prepared", found, (*tensors, call.workspace_bytes), stream)
    }

    fn begin_capture(&self, stream: Stream) -> DriverResult<()> {
        self.call("begin_capture", |state| {
            let queue = stream_of(state, "begin_capture", stream)?;
            if queue.captured.is_some() {
                return Err(refused("begin_capture", "a capture has begun before"));
            }
            queue.captured = Some(Vec::new());
            Ok(())
        })
    }

    fn end_capture(&self, stream: Stream) -> DriverResult<Graph> {
        self.call("end_capture", |state| {
            let captured = stream_of(state, "end_capture", stream)?.captured.take();
            let tasks = captured.ok_or_else(|| refused("end_capture", "no capture has begun"))?;
            let number = state.number();
            state.graphs.insert(number, tasks);
            Ok(Graph(number))
        })
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> DriverResult<()> {
        self.put("launch_graph", stream, |state| {
            let tasks = state
                .graphs
                .get(&graph.0)
                .ok_or_else(|| refused("launch_graph", "there is no such graph"))?;
            Ok(Task::Graph(tasks.clone()))
        })
    }

    fn record(&self, event: Event, stream: Stream) -> DriverResult<()> {
        self.put("record", stream, |state| {
            let of = event_of(state, "record", event)?;
            of.recorded += 1;
            Ok(Task::Record { event: event.0, turn: of.recorded })
        })
    }

    fn wait(&self, stream: Stream, event: Event) -> DriverResult<()> {
        self.put("wait", stream, |state| {
            let turn = event_of(state, "wait", event)?.recorded;
            Ok(Task::Wait { event: event.0, turn })
        })
    }

    fn is_over(&self, event: Event) -> DriverResult<bool> {
        self.call("is_over", |state| {
            let of = event_of(state, "is_over", event)?;
            Ok(of.reached == of.recorded)
        })
    }

    fn elapsed(&self, from: Event, to: Event) -> DriverResult<Nanos> {
        self.call("elapsed", |state| {
            let mut reached_at = |event| {
                let of = event_of(state, "elapsed", event)?;
                if !of.is_timed || of.recorded == 0 {
                    return Err(refused("elapsed", "the event has no time"));
                }
                let not_over = || driver_error("elapsed", 600, "CUDA_ERROR_NOT_READY", "it is not over");
                of.reached_at.filter(|_| of.reached == of.recorded).ok_or_else(not_over)
            };
            let (from, to) = (reached_at(from)?, reached_at(to)?);
            Ok(to.saturating_duration_since(from).into())
        })
    }

    fn release(&self, resource: DeviceObject) {
        let Ok((mut state, _)) = self.enter("release", false) else { return };
        let released = match resource {
            DeviceObject::Memory(at) => lock(&self.shared.memory).free_device(at.0),
            DeviceObject::Pinned(of) => lock(&self.shared.memory).free_pinned(of.0),
            DeviceObject::Page(of) => lock(&self.shared.memory).free_page(of.0),
            DeviceObject::ReservedAddresses(of) => {
                lock(&self.shared.memory).free_reservation(of.start.0, of.bytes)
            }
            DeviceObject::Stream(of) => state.queues.streams.remove(&of.0).is_some(),
            DeviceObject::Event(of) => state.queues.events.remove(&of.0).is_some(),
            DeviceObject::Module(of) => state.modules.remove(&of.0).is_some(),
            DeviceObject::Graph(of) => state.graphs.remove(&of.0).is_some(),
            DeviceObject::PreparedCall(of) => state.prepared.remove(&of.number).is_some(),
        };
        assert!(released, "{resource:?} was given back twice, or never made");
    }
}
