//! A plan on a device: its weights and its workspace, and lanes for the batches that arrive, run
//! and leave. As a model that a thread of the host runs it is warmed up and measured; served, it is
//! the executor's.

use super::arguments::status_text;
use super::driver::{DevicePointer, Stream};
use super::error::DriverResult;
use super::lane::{DeviceTimes, Lane};
use super::open::CudaDevice;
use super::owned::Owned;
use crate::host::{ComputeThread, HostGraph, HostModel, LoadError, RunError};
use crate::import::{InputDefaults, SizedFile, trial_row};
use crate::plan::{self, Plan};
use crate::signature::Signature;
use std::sync::Arc;

/// The lanes of a model: one whose inputs arrive, one that runs, one whose outputs leave.
pub(super) const LANES: usize = 3;

/// The bytes of weights that are copied to the device in one piece.
const UPLOAD_BYTES: usize = 16 << 20;

/// A model on a device.
pub struct CudaModel {
    graph: Arc<CudaGraph>,
    pub(super) lanes: [Lane; LANES],
    /// What the graphs of the lanes use.
    _weights: Owned<DevicePointer>,
    _workspace: Owned<DevicePointer>,
    /// The fault of a row's inputs, until the rows are run.
    staging: DriverResult<()>,
    import_note: Option<String>,
}

/// The part of a model that a run only reads. It keeps the weights on the host, so that the model
/// can be made anew.
struct CudaGraph {
    device: Arc<CudaDevice>,
    plan: Plan,
    signature: Signature,
    defaults: InputDefaults,
}

impl CudaModel {
    /// Compiles an ONNX file for batches of at most `max_batch` rows and puts it on a device.
    ///
    /// # Errors
    /// Those of [`compile()`](crate::plan::compile()), and the driver's: nothing of the model is
    /// left on the device then.
    pub fn load<'a>(
        file: impl Into<SizedFile<'a>>,
        max_batch: usize,
        device: &Arc<CudaDevice>,
    ) -> Result<CudaModel, LoadError> {
        let file = file.into();
        let path = file.path;
        let compiled = plan::compile(file, max_batch)?;
        trial_row(file.defaults, &compiled.plan.signature(), path)?;
        let model = CudaModel::of_checked(compiled.plan, file.defaults.clone(), device);
        let mut model = model.map_err(|reason| LoadError::Device { path: path.into(), reason })?;
        model.import_note = compiled.note;
        Ok(model)
    }

    /// Puts a plan on a device.
    ///
    /// # Errors
    /// [`Plan::check`] refuses it, or the driver; nothing is left on the device then.
    pub fn new(plan: Plan, device: &Arc<CudaDevice>) -> Result<CudaModel, String> {
        plan.check()?;
        CudaModel::of_checked(plan, InputDefaults::new(), device)
    }

    fn of_checked(
        plan: Plan,
        defaults: InputDefaults,
        device: &Arc<CudaDevice>,
    ) -> Result<CudaModel, String> {
        let (device, signature) = (Arc::clone(device), plan.signature());
        CudaModel::of_graph(Arc::new(CudaGraph { device, plan, signature, defaults }))
    }

    fn of_graph(graph: Arc<CudaGraph>) -> Result<CudaModel, String> {
        let CudaGraph { device, plan, .. } = &*graph;
        let text = |error| device.refusal(error);
        let stream = device.stream().map_err(text)?;
        let allocate = |bytes| Ok(Owned::new(&device.open, device.open.calls().allocate(bytes)?));
        let weights: Owned<DevicePointer> = allocate(plan.weights.as_bytes().len()).map_err(text)?;
        let workspace: Owned<DevicePointer> = allocate(plan.workspace_bytes()).map_err(text)?;
        upload(device, plan.weights.as_bytes(), weights.get(), stream.get())?;
        let shared = [weights.get(), workspace.get()];
        let mut made = Vec::new();
        for _ in 0..LANES {
            made.push(Lane::new(device, plan, shared, stream.get())?);
        }
        let lanes = made.try_into().map_err(|_| "a lane is missing".to_owned())?;
        let (staging, import_note) = (Ok(()), None);
        Ok(CudaModel { lanes, _weights: weights, _workspace: workspace, staging, import_note, graph })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.graph.plan
    }

    /// Returns the device that it is on.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.graph.device
    }

    /// Returns the memory that it takes on the device, bytes.
    pub fn device_bytes(&self) -> u64 {
        let plan = &self.graph.plan;
        let lanes = LANES * (plan.input_bytes + plan.output_bytes);
        (plan.weights.as_bytes().len() + plan.workspace_bytes() + lanes) as u64
    }

    /// Returns how long the device took for the parts of the last [`HostModel::run`].
    ///
    /// # Errors
    /// The driver's: nothing was run yet, or the device is lost.
    pub fn device_times(&self) -> DriverResult<DeviceTimes> {
        self.lanes[0].times().map_err(|error| self.graph.device.open.note(error))
    }

    /// Returns what kernels have said of the rows that have left a lane.
    pub(super) fn outcome(&self, lane: usize) -> Result<(), RunError> {
        let failed = |reason: String| Err(RunError::Failed { reason });
        match self.lanes[lane].status(self.plan()) {
            Ok(status) => status_text(status).map_or(Ok(()), |text| failed(text.to_owned())),
            Err(error) => failed(self.graph.device.open.note(error).to_string()),
        }
    }

    fn run_here(&self, rows: usize) -> Result<(), String> {
        let (lane, text) = (&self.lanes[0], |error| self.graph.device.open.note(error).to_string());
        lane.arrive(self.plan(), rows).map_err(text)?;
        lane.run(self.plan(), rows).map_err(text)?;
        lane.wait()
    }
}

/// Copies weights to a device, piece by piece, and waits until they are there.
fn upload(device: &Arc<CudaDevice>, bytes: &[u8], to: DevicePointer, stream: Stream) -> Result<(), String> {
    let (calls, text) = (device.open.calls(), |error| device.refusal(error));
    let staged = calls.allocate_pinned(bytes.len().min(UPLOAD_BYTES)).map_err(text)?;
    let staged = Owned::new(&device.open, staged);
    let copied = device.event().map_err(text)?;
    for (at, piece) in bytes.chunks(UPLOAD_BYTES).enumerate() {
        let to = DevicePointer(to.0 + (at * UPLOAD_BYTES) as u64);
        calls.write_pinned(staged.get(), 0, piece).map_err(text)?;
        calls.copy_in(staged.get(), 0..piece.len(), to, stream).map_err(text)?;
        calls.record(copied.get(), stream).map_err(text)?;
        device.wait_for(copied.get())?;
    }
    Ok(())
}

impl HostModel for CudaModel {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn max_batch(&self) -> usize {
        self.graph.plan.max_batch()
    }

    fn weights_bytes(&self) -> u64 {
        self.graph.plan.weights.as_bytes().len() as u64
    }

    /// Returns the memory on the device, and the weights on the host beside.
    fn memory_bytes(&self) -> u64 {
        self.device_bytes() + self.weights_bytes()
    }

    /// Does nothing: the device computes.
    fn compute_on(&mut self, _: &ComputeThread) {}

    fn stage(&mut self, row: usize, input: &[u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        let staged = self.lanes[0].stage(&self.graph.plan, &self.graph.signature, row, input);
        self.staging = std::mem::replace(&mut self.staging, Ok(())).and(staged);
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let max_batch = self.max_batch();
        if rows == 0 || rows > max_batch {
            return Err(RunError::Rows { rows, max_batch });
        }
        let staged = std::mem::replace(&mut self.staging, Ok(()));
        let ran = staged.map_err(|error| error.to_string()).and_then(|()| self.run_here(rows));
        ran.map_err(|reason| RunError::Failed { reason })?;
        self.outcome(0)
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        // Pinned memory of the model can be read whatever the device does; a fault leaves zeros.
        if self.lanes[0].unstage(&self.graph.plan, &self.graph.signature, row, output).is_err() {
            output.fill(0);
        }
    }

    fn defaults(&self) -> &InputDefaults {
        &self.graph.defaults
    }

    fn import_note(&self) -> Option<&str> {
        self.import_note.as_deref()
    }

    fn graph(&self) -> Arc<dyn HostGraph> {
        Arc::clone(&self.graph) as Arc<dyn HostGraph>
    }
}

impl HostGraph for CudaGraph {
    fn make(self: Arc<CudaGraph>, _: &ComputeThread) -> Result<Box<dyn HostModel>, RunError> {
        match CudaModel::of_graph(self) {
            Ok(model) => Ok(Box::new(model)),
            Err(reason) => Err(RunError::Failed { reason }),
        }
    }
}
