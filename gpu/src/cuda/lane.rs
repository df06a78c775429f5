//! The memory of one batch of a model, on the device and on the host, with a graph for each batch
//! size. While a batch runs in one lane, the next one's inputs arrive in another.

use super::driver::{CallTensors, Device, DevicePointer, Event, Graph, Pinned, PreparedCall, Stream};
use super::error::DriverResult;
use super::kernels::LoadedKernels;
use super::launch::{KernelLaunch, TensorPlaces, kernel_launches};
use super::library_kernels::prepared::{PreparedLaunch, PreparedPlan};
use super::open::{CudaDevice, LOAD_PATIENCE};
use super::owned::Owned;
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

    /// Starts to copy the staged rows to the device.
    pub(super) fn arrive(&self, plan: &Plan, rows: usize) -> DriverResult<()> {
        let stream = self.device.arrival.get();
        self.calls().record(self.arrival.began.get(), stream)?;
        for range in plan.inputs.iter().filter_map(|port: &PlanPort| port.range(rows)) {
            let to = DevicePointer(self.inputs.0 + range.start as u64);
            self.calls().copy_in(self.staged_inputs.get(), range, to, stream)?;
        }
        self.calls().record(self.arrival.ended.get(), stream)
    }

    /// Starts to run the rows that arrive, and to copy their outputs to the host.
    pub(super) fn run(&self, plan: &Plan, rows: usize) -> DriverResult<()> {
        let (execution, departure) = (self.device.execution.get(), self.device.departure.get());
        self.calls().wait(execution, self.arrival.ended.get())?;
        self.calls().record(self.execution.began.get(), execution)?;
        self.calls().launch_graph(self.graphs[rows - 1].get(), execution)?;
        self.calls().record(self.execution.ended.get(), execution)?;
        self.calls().wait(departure, self.execution.ended.get())?;
        self.calls().record(self.departure.began.get(), departure)?;
        let status = status_offset(plan);
        let outputs = plan.outputs.iter().filter_map(|port| port.range(rows));
        for range in outputs.chain(std::iter::once(status..status + STATUS_BYTES)) {
            let from = DevicePointer(self.outputs.0 + range.start as u64);
            self.calls().copy_out(from, self.staged_outputs.get(), range, departure)?;
        }
        self.calls().record(self.departure.ended.get(), departure)
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
        self.device.wait_for(self.departure.ended.get(), LOAD_PATIENCE)
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
