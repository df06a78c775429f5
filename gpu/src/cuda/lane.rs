//! The memory of one batch of a model, on the device and on the host, with a graph for each batch
//! size. While a batch runs in one lane, the next one's inputs arrive in another.

use super::driver::{CallTensors, Device, DevicePointer, Event, Graph, Pinned, PreparedCall, Stream};
use super::error::DriverResult;
use super::kernels::LoadedKernels;
use super::launch::{KernelLaunch, TensorPlaces, kernel_launches};
use super::library_kernels::prepared::{PreparedLaunch, PreparedPlan};
use super::open::CudaDevice;
use super::owned::{LOAD_PATIENCE, Owned};
use super::slots::SharedSlot;
use crate::plan::{BatchPlan, Operand, PLAN_ALIGNMENT, Plan, PlanPort, PlanRegion};
use crate::signature::Signature;
use std::sync::Arc;
use symphony_transport::Nanos;

/// The size of the word into which kernels write faults.
const STATUS_BYTES: usize = 4;

/// A lane. See the module's description.
pub(super) struct Lane {
    device: Arc<CudaDevice>,
    /// Where its rows lie on the device, which lanes of other models have in their turn.
    inputs: DevicePointer,
    outputs: DevicePointer,
    staged_inputs: Owned<Pinned>,
    staged_outputs: Owned<Pinned>,
    /// The graph of each batch size.
    graphs: Vec<Owned<Graph>>,
    arrival: TimedPart,
    execution: TimedPart,
    departure: TimedPart,
}

/// A part of a batch's way: two timed events of a stream, before it and after it.
struct TimedPart {
    began: Owned<Event>,
    ended: Owned<Event>,
}

impl TimedPart {
    fn new(device: &CudaDevice) -> DriverResult<TimedPart> {
        Ok(TimedPart { began: device.timed_event()?, ended: device.timed_event()? })
    }

    fn time(&self, calls: &dyn Device) -> DriverResult<Nanos> {
        calls.elapsed(self.began.get(), self.ended.get())
    }
}

/// How long the device took for the parts of a batch, by its own clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceTimes {
    /// The time from the first input's copy to the device until the last one's end.
    pub copy_in: Nanos,
    /// The time from the first kernel to the end of the last one.
    pub execution: Nanos,
    /// The time from the first output's copy to the host until the last one's end.
    pub copy_out: Nanos,
}

/// Where a lane's tensors lie.
struct LanePlaces {
    weights: DevicePointer,
    workspace: DevicePointer,
    inputs: DevicePointer,
    outputs: DevicePointer,
    status: DevicePointer,
    /// What calls of libraries need beside their tensors.
    library_workspace: DevicePointer,
}

impl TensorPlaces for LanePlaces {
    fn address(&self, operand: &Operand) -> DevicePointer {
        let base = match operand.region {
            PlanRegion::Weights => self.weights,
            PlanRegion::Inputs => self.inputs,
            PlanRegion::Outputs => self.outputs,
            PlanRegion::Workspace => self.workspace,
        };
        DevicePointer(base.0 + operand.offset as u64)
    }

    fn status(&self) -> DevicePointer {
        self.status
    }
}

/// Returns the place of the outputs behind a plan's inputs.
fn outputs_offset(plan: &Plan) -> usize {
    plan.input_bytes.next_multiple_of(PLAN_ALIGNMENT)
}

/// Returns the place of the libraries' workspace behind a plan's own.
fn library_workspace_offset(plan: &Plan) -> usize {
    plan.workspace_bytes().next_multiple_of(PLAN_ALIGNMENT)
}

/// Returns the workspace that a plan and the libraries need, bytes.
pub(super) fn workspace_bytes(plan: &Plan, prepared: &PreparedPlan) -> usize {
    match prepared.workspace_bytes() {
        0 => plan.workspace_bytes(),
        bytes => library_workspace_offset(plan) + bytes,
    }
}

/// Returns the device memory that a lane of a plan needs, bytes.
pub(super) fn lane_bytes(plan: &Plan) -> usize {
    outputs_offset(plan) + status_offset(plan) + STATUS_BYTES
}

/// Returns the place of the status word behind a plan's outputs.
fn status_offset(plan: &Plan) -> usize {
    plan.output_bytes.next_multiple_of(PLAN_ALIGNMENT)
}

impl Lane {
    /// Makes the lane of a model whose weights, workspace and rows lie at these addresses, and
    /// captures its graphs on `stream`: of calls of libraries where these have prepared some, of
    /// kernels for the rest.
    ///
    /// Errors: the driver's or a library's, or a launch that the kernels do not take; nothing is
    /// left then.
    pub(super) fn new(
        device: &Arc<CudaDevice>,
        plan: &Plan,
        (kernels, prepared): (&LoadedKernels, &PreparedPlan),
        [weights, workspace, rows]: [DevicePointer; 3],
        stream: Stream,
    ) -> Result<Lane, String> {
        let mut lane = Lane::without_graphs(device, plan, rows).map_err(|error| device.refusal(error))?;
        let (inputs, outputs) = (lane.inputs, lane.outputs);
        let status = DevicePointer(outputs.0 + status_offset(plan) as u64);
        let library_workspace = DevicePointer(workspace.0 + library_workspace_offset(plan) as u64);
        let placement = LanePlaces { weights, workspace, inputs, outputs, status, library_workspace };
        for at in 0..plan.batches.len() {
            let steps = steps(&plan.batches[at], |launch| prepared.of(at, launch), &placement)?;
            lane.graphs.push(capture(device, kernels, &steps, status, stream)?);
        }
        Ok(lane)
    }

    fn without_graphs(device: &Arc<CudaDevice>, plan: &Plan, rows: DevicePointer) -> DriverResult<Lane> {
        let (open, calls) = (&device.open, device.open.calls());
        let outputs = status_offset(plan) + STATUS_BYTES;
        Ok(Lane {
            inputs: rows,
            outputs: DevicePointer(rows.0 + outputs_offset(plan) as u64),
            staged_inputs: Owned::new(open, calls.allocate_pinned(plan.input_bytes)?),
            staged_outputs: Owned::new(open, calls.allocate_pinned(outputs)?),
            graphs: Vec::new(),
            arrival: TimedPart::new(device)?,
            execution: TimedPart::new(device)?,
            departure: TimedPart::new(device)?,
            device: Arc::clone(device),
        })
    }

    fn calls(&self) -> &dyn Device {
        self.device.open.calls()
    }

    /// Copies the inputs of a row to where the device reads them.
    pub(super) fn stage(
        &self,
        plan: &Plan,
        signature: &Signature,
        row: usize,
        input: &[u8],
    ) -> DriverResult<()> {
        for (at, port) in plan.inputs.iter().enumerate() {
            let bytes = &input[signature.input_range(at)];
            let start = port.offset + row * bytes.len();
            self.calls().write_pinned(self.staged_inputs.get(), start, bytes)?;
        }
        Ok(())
    }

    /// Starts to copy rows to the device: out of their slots where the device reads these, and else
    /// those that are staged. `slots` may have fewer rows.
    pub(super) fn arrive(
        &self,
        plan: &Plan,
        signature: &Signature,
        rows: usize,
        slots: &[Option<SharedSlot>],
    ) -> DriverResult<()> {
        let stream = self.device.arrival.get();
        self.calls().record(self.arrival.began.get(), stream)?;
        for (at, port) in plan.inputs.iter().enumerate() {
            for piece in pieces(port, rows, slots, signature.input_range(at).start) {
                let to = DevicePointer(self.inputs.0 + piece.at as u64);
                let (memory, from) = piece.host.unwrap_or((self.staged_inputs.get(), piece.at));
                self.calls().copy_in(memory, from..from + piece.bytes, to, stream)?;
            }
        }
        self.calls().record(self.arrival.ended.get(), stream)
    }

    /// Starts to run the rows that arrive, and to copy their outputs to the host: into their slots,
    /// behind the inputs, where the device writes these.
    pub(super) fn run(
        &self,
        plan: &Plan,
        signature: &Signature,
        rows: usize,
        slots: &[Option<SharedSlot>],
    ) -> DriverResult<()> {
        let (execution, departure) = (self.device.execution.get(), self.device.departure.get());
        self.calls().wait(execution, self.arrival.ended.get())?;
        self.calls().record(self.execution.began.get(), execution)?;
        self.calls().launch_graph(self.graphs[rows - 1].get(), execution)?;
        self.calls().record(self.execution.ended.get(), execution)?;
        self.calls().wait(departure, self.execution.ended.get())?;
        self.calls().record(self.departure.began.get(), departure)?;
        for (at, port) in plan.outputs.iter().enumerate() {
            let in_slot = signature.input_bytes() + signature.output_range(at).start;
            for piece in pieces(port, rows, slots, in_slot) {
                let from = DevicePointer(self.outputs.0 + piece.at as u64);
                let (memory, to) = piece.host.unwrap_or((self.staged_outputs.get(), piece.at));
                self.calls().copy_out(from, memory, to..to + piece.bytes, departure)?;
            }
        }
        let status = status_offset(plan);
        let (from, range) = (self.outputs.0 + status as u64, status..status + STATUS_BYTES);
        self.calls().copy_out(DevicePointer(from), self.staged_outputs.get(), range, departure)?;
        self.calls().record(self.departure.ended.get(), departure)
    }

    /// Makes the lane's events stand behind all of its copies, after a call was refused between two
    /// of them.
    pub(super) fn fence(&self) -> DriverResult<()> {
        let (execution, departure) = (self.device.execution.get(), self.device.departure.get());
        self.calls().record(self.arrival.ended.get(), self.device.arrival.get())?;
        self.calls().record(self.execution.ended.get(), execution)?;
        self.calls().wait(departure, self.execution.ended.get())?;
        self.calls().record(self.departure.ended.get(), departure)
    }

    /// Returns true if no copy of the lane is under way, nor its graph.
    pub(super) fn is_quiet(&self) -> DriverResult<bool> {
        Ok(self.has_arrived()? && self.has_run()? && self.has_left()?)
    }

    /// Returns true if the inputs are on the device.
    pub(super) fn has_arrived(&self) -> DriverResult<bool> {
        self.calls().is_over(self.arrival.ended.get())
    }

    /// Returns true if the rows have run: the device can run others.
    pub(super) fn has_run(&self) -> DriverResult<bool> {
        self.calls().is_over(self.execution.ended.get())
    }

    /// Returns true if the outputs are on the host.
    pub(super) fn has_left(&self) -> DriverResult<bool> {
        self.calls().is_over(self.departure.ended.get())
    }

    /// Waits until the outputs are on the host.
    pub(super) fn wait(&self) -> Result<(), String> {
        self.device.open.wait_for(self.departure.ended.get(), LOAD_PATIENCE)
    }

    /// Returns the times of the rows that have left.
    pub(super) fn times(&self) -> DriverResult<DeviceTimes> {
        Ok(DeviceTimes {
            copy_in: self.arrival.time(self.calls())?,
            execution: self.execution.time(self.calls())?,
            copy_out: self.departure.time(self.calls())?,
        })
    }

    /// Returns the word that kernels have left.
    pub(super) fn status(&self, plan: &Plan) -> DriverResult<u32> {
        let mut word = [0; STATUS_BYTES];
        self.calls().read_pinned(self.staged_outputs.get(), status_offset(plan), &mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    /// Copies the outputs of a row from where the device has written them.
    pub(super) fn unstage(
        &self,
        plan: &Plan,
        signature: &Signature,
        row: usize,
        output: &mut [u8],
    ) -> DriverResult<()> {
        for (at, port) in plan.outputs.iter().enumerate() {
            let bytes = &mut output[signature.output_range(at)];
            let start = port.offset + row * bytes.len();
            self.calls().read_pinned(self.staged_outputs.get(), start, bytes)?;
        }
        Ok(())
    }
}

/// One thing that is put into a stream.
enum CaptureStep {
    Kernel(KernelLaunch),
    Library(PreparedCall, CallTensors),
}

/// Returns what is put into a stream for a batch size: launches that libraries have prepared, and
/// kernels for the rest.
fn steps<'a>(
    batch: &BatchPlan,
    prepared: impl Fn(usize) -> Option<&'a PreparedLaunch>,
    places: &LanePlaces,
) -> Result<Vec<CaptureStep>, String> {
    let mut steps = Vec::new();
    for (at, launch) in batch.launches.iter().enumerate() {
        let named = |why| format!("{why}, in node {}", launch.nodes.join(", "));
        let by_library = prepared(at);
        if let Some(prepared) = by_library {
            let input =
                |at: usize| launch.inputs.get(at).map_or_else(Default::default, |of| places.address(of));
            let (left, right, bias) = (input(0), input(1), input(2));
            let (output, workspace) = (places.address(&launch.output), places.library_workspace);
            steps.push(CaptureStep::Library(
                prepared.call(),
                CallTensors { left, right, bias, output, workspace },
            ));
        }
        let by_kernels = by_library.map_or(Some(launch), |prepared| prepared.after.as_ref());
        if let Some(launch) = by_kernels {
            let launches = kernel_launches(launch, places).map_err(named)?;
            steps.extend(launches.into_iter().map(CaptureStep::Kernel));
        }
    }
    Ok(steps)
}

/// A copy of a part of a tensor's rows.
struct RowCopy {
    /// Where it begins in the region of the device, and in what is staged.
    at: usize,
    bytes: usize,
    /// The memory of the host and where it begins there, if it is not staged.
    host: Option<(Pinned, usize)>,
}

/// Returns the copies of a tensor's rows: one of all rows where none has a slot of its own, else
/// one of each row. `in_slot` is where the tensor begins in a slot.
fn pieces(port: &PlanPort, rows: usize, slots: &[Option<SharedSlot>], in_slot: usize) -> Vec<RowCopy> {
    let Some(range) = port.range(rows) else { return Vec::new() };
    if slots.iter().all(Option::is_none) {
        return vec![RowCopy { at: range.start, bytes: range.len(), host: None }];
    }
    let bytes = range.len() / rows;
    let piece = |row: usize| {
        let slot = slots.get(row).copied().flatten();
        let host = slot.map(|slot| (slot.memory, slot.start + in_slot));
        RowCopy { at: range.start + row * bytes, bytes, host }
    };
    (0..rows).map(piece).collect()
}

/// Captures what is put into a stream as a graph.
fn capture(
    device: &Arc<CudaDevice>,
    kernels: &LoadedKernels,
    steps: &[CaptureStep],
    status: DevicePointer,
    stream: Stream,
) -> Result<Owned<Graph>, String> {
    let (calls, refusal) = (device.open.calls(), |error| device.refusal(error));
    let captured = || -> Result<(), String> {
        calls.zero(status, STATUS_BYTES, stream).map_err(refusal)?;
        for step in steps {
            let put = match step {
                CaptureStep::Kernel(launch) => {
                    calls.launch(kernels.get(launch.kernel)?, launch.shape, &launch.arguments, stream)
                }
                CaptureStep::Library(call, tensors) => calls.launch_prepared(*call, tensors, stream),
            };
            put.map_err(refusal)?;
        }
        Ok(())
    };
    calls.begin_capture(stream).map_err(refusal)?;
    let result = captured();
    // Also after a fault, so that the stream is no longer captured.
    let graph = calls.end_capture(stream).map(|graph| Owned::new(&device.open, graph));
    result?;
    graph.map_err(refusal)
}
