//! A CUDA provider of ONNX Runtime on fake devices: what it was asked for, which sessions have it,
//! and where the tensors of bindings lie. The library itself is the real one, which computes on the
//! host; the functions that stand before it are in `onnxruntime_entry_points.rs`.
//!
//! | variable | what it sets |
//! | --- | --- |
//! | `SYMPHONY_FAKE_ONNXRUNTIME` | the file of the real library |
//!
//! The variables of `library_objects.rs` are for it as well: an option of the provider, `If`,
//! `Loop` or `RunWithBinding` can be made to fail, and captured and launched graphs are counted.

use crate::device::FakeDevice;
use crate::library::Library;
use crate::library_objects::enter;
use ort_sys::ONNXTensorElementDataType;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use symphony_gpu::cuda::driver::{Device, DeviceObject, Stream};

/// The pause between two looks at a stream.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// The operators with which the provider makes no graph, as ONNX writes a node's.
const CONTROL_FLOW: [(&str, &[u8]); 3] =
    [("If", b"\x22\x02If"), ("Loop", b"\x22\x04Loop"), ("Scan", b"\x22\x04Scan")];

/// A tensor in device memory.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BoundTensor {
    pub(crate) name: CString,
    pub(crate) element: ONNXTensorElementDataType,
    pub(crate) shape: Vec<i64>,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

/// The tensors of a binding, or of a graph.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct BoundTensors {
    pub(crate) inputs: Vec<BoundTensor>,
    pub(crate) outputs: Vec<BoundTensor>,
}

/// A session of the provider.
struct ProviderSession {
    device: &'static Arc<FakeDevice>,
    stream: Option<Stream>,
    makes_graphs: bool,
    /// What each graph reads and writes, by its number.
    graphs: HashMap<i64, BoundTensors>,
    /// The number among the libraries' objects.
    counted: usize,
}

/// Everything that was asked of the provider, by the addresses of the library's objects.
#[derive(Default)]
pub(crate) struct ProviderState {
    pub(crate) options: HashMap<usize, BTreeMap<String, String>>,
    pub(crate) of_session_options: HashMap<usize, BTreeMap<String, String>>,
    sessions: HashMap<usize, ProviderSession>,
    pub(crate) bindings: HashMap<usize, BoundTensors>,
    /// The numbers of graphs that runs ask for.
    pub(crate) of_run_options: HashMap<usize, i64>,
}

static STATE: OnceLock<Mutex<ProviderState>> = OnceLock::new();

pub(crate) fn state() -> MutexGuard<'static, ProviderState> {
    STATE.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a use of a part of the provider.
///
/// Errors: it is to fail.
fn used(part: &'static str) -> Result<(), String> {
    enter(part)
        .map(|objects| objects.report())
        .map_err(|status| format!("{part} fails with {status}, as the test asks for"))
}

/// Returns the device and the stream that a provider's options name.
fn place(options: &BTreeMap<String, String>) -> Result<(&'static Arc<FakeDevice>, Option<Stream>), String> {
    let number = |name: &str| options.get(name).map(|text| text.parse::<u64>().map_err(|_| name.to_owned()));
    Library::start()?;
    let ordinal = number("device_id").transpose()?.unwrap_or(0);
    let device = Library::device(ordinal as usize).map_err(|code| format!("no device {ordinal} ({code})"))?;
    let stream = match number("user_compute_stream").transpose()? {
        Some(_) if options.get("has_user_compute_stream").map(String::as_str) != Some("1") => {
            return Err("user_compute_stream without has_user_compute_stream".to_owned());
        }
        stream => stream.map(Stream),
    };
    if let Some(stream) = stream {
        used("user_compute_stream")?;
        device.stream_handle(stream).map_err(|error| error.to_string())?;
    }
    Ok((device, stream))
}

impl ProviderState {
    /// Gives options of sessions the provider.
    pub(crate) fn append(&mut self, session_options: usize, provider: usize) -> Result<(), String> {
        let options = self.options.get(&provider).ok_or("there are no such options")?.clone();
        place(&options)?;
        self.of_session_options.insert(session_options, options);
        Ok(())
    }

    /// Sees that the provider takes a model.
    pub(crate) fn check_model(&self, session_options: usize, model: &[u8]) -> Result<(), String> {
        let Some(options) = self.of_session_options.get(&session_options) else { return Ok(()) };
        if !makes_graphs(options) {
            return Ok(());
        }
        used("enable_cuda_graph")?;
        let flows = |(_, bytes): &&(&str, &[u8])| model.windows(bytes.len()).any(|window| window == *bytes);
        match CONTROL_FLOW.iter().find(flows) {
            Some((operator, _)) => {
                Err(format!("no graph can be captured: the model has the control flow node {operator}"))
            }
            None => Ok(()),
        }
    }

    /// Notes a session that was made with these options.
    pub(crate) fn add_session(&mut self, session: usize, session_options: usize) -> Result<(), String> {
        let Some(options) = self.of_session_options.get(&session_options) else { return Ok(()) };
        let (device, stream) = place(options)?;
        let counted = enter("session").map(|mut objects| objects.make("provider's handle").0);
        let counted = counted.map_err(|status| format!("a session fails with {status}"))?;
        let makes_graphs = makes_graphs(options);
        self.sessions.insert(
            session,
            ProviderSession { device, stream, makes_graphs, graphs: HashMap::new(), counted },
        );
        Ok(())
    }

    /// Forgets a session. Its stream has to be there still.
    pub(crate) fn remove_session(&mut self, session: usize) {
        let Some(of) = self.sessions.remove(&session) else { return };
        if of.stream.is_some_and(|stream| of.device.stream_handle(stream).is_err()) {
            eprintln!("a stream was destroyed before the session that uses it");
            std::process::abort();
        }
        if let Ok(mut objects) = enter("ReleaseSession") {
            let _ = objects.destroy(std::ptr::without_provenance_mut(of.counted), "provider's handle");
        }
    }

    /// Returns the device and the stream of a session with the tensors that a run uses; `None` for
    /// a session without the provider. A graph has to find everything where it was captured.
    pub(crate) fn run(
        &mut self,
        session: usize,
        binding: usize,
        run_options: usize,
    ) -> Result<Option<BoundRun>, String> {
        let Some(of) = self.sessions.get_mut(&session) else { return Ok(None) };
        used("RunWithBinding")?;
        let tensors = self.bindings.get(&binding).cloned().ok_or("nothing is bound")?;
        let graph = self.of_run_options.get(&run_options).copied().unwrap_or(0);
        if of.makes_graphs && graph >= 0 {
            match of.graphs.get(&graph) {
                Some(captured) if *captured == tensors => used("graph launched")?,
                Some(_) => return Err(format!("graph {graph} was captured with other tensors")),
                None => {
                    used("graph captured")?;
                    of.graphs.insert(graph, tensors.clone());
                }
            }
        }
        let stream =
            of.stream.ok_or("tensors of a device are bound, and the session has a stream of its own")?;
        Ok(Some(BoundRun { device: of.device, stream, tensors }))
    }
}

fn makes_graphs(options: &BTreeMap<String, String>) -> bool {
    options.get("enable_cuda_graph").is_some_and(|value| value == "1" || value == "true")
}

/// A run on tensors of a device.
pub(crate) struct BoundRun {
    device: &'static Arc<FakeDevice>,
    stream: Stream,
    pub(crate) tensors: BoundTensors,
}

impl BoundRun {
    /// Waits until all that was put into the stream before is done.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let text = |error: symphony_gpu::cuda::DriverError| error.to_string();
        let event = self.device.create_event().map_err(text)?;
        let reached = self.device.record(event, self.stream).and_then(|()| {
            while !self.device.is_over(event)? {
                std::thread::sleep(LOOK_EVERY);
            }
            Ok(())
        });
        self.device.release(DeviceObject::Event(event));
        reached.map_err(text)
    }

    /// Returns what a tensor has, in whole words.
    pub(crate) fn read(&self, tensor: &BoundTensor) -> Result<Vec<u64>, String> {
        let mut words = vec![0u64; tensor.bytes.div_ceil(8)];
        let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..tensor.bytes];
        self.device.read_memory(tensor.address, bytes)?;
        Ok(words)
    }

    /// Writes a tensor.
    pub(crate) fn write(&self, tensor: &BoundTensor, words: &[u64]) -> Result<(), String> {
        self.device.write_memory(tensor.address, &bytemuck::cast_slice::<u64, u8>(words)[..tensor.bytes])
    }
}
