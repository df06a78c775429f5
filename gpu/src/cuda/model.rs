//! A plan on a device: its weights and its workspace, and lanes for the batches that arrive, run
//! and leave. As a model that a thread of the host runs it is warmed up and measured; served, it is
//! the executor's.

use super::arguments::status_text;
use super::driver::Stream;
use super::error::DriverResult;
use super::kernels::LoadedKernels;
use super::lane::{DeviceTimes, Lane, lane_bytes, workspace_bytes};
use super::library_kernels::prepared::{LibraryUse, PreparedPlan};
use super::open::CudaDevice;
use super::room::{ALL_LANES, HOST_LANE, LANES, Room, RoomNeed};
use super::weights::DeviceWeights;
use crate::host::{ComputeThread, HostGraph, HostModel, LoadError, RunError};
use crate::import::{InputDefaults, SizedFile, trial_row};
use crate::plan::{self, CompileOptions, MAX_PLAN_BATCH, Plan, PlanPrecision};
use crate::signature::Signature;
use std::sync::{Arc, PoisonError};

/// A model on a device.
pub struct CudaModel {
    graph: Arc<CudaGraph>,
    pub(super) lanes: [Lane; ALL_LANES],
    /// What the graphs of the lanes use.
    _kernels: Arc<LoadedKernels>,
    used: LibraryUse,
    /// The fault of a row's inputs, until the rows are run.
    staging: DriverResult<()>,
    import_note: Option<String>,
}

/// The part of a model that a run only reads, so that the model can be made anew.
struct CudaGraph {
    device: Arc<CudaDevice>,
    /// The plan, without its weights.
    plan: Plan,
    /// The largest batch that is run, of those that the plan is for.
    max_batch: usize,
    weights: Arc<DeviceWeights>,
    prepared: PreparedPlan,
    room: Room,
    signature: Signature,
    defaults: InputDefaults,
}

impl CudaModel {
    /// Compiles an ONNX file and puts it on a device.
    ///
    /// # Errors
    /// Those of [`compile()`](crate::plan::compile()), and the driver's: nothing of the model is
    /// left on the device then.
    pub fn load<'a>(
        file: impl Into<SizedFile<'a>>,
        options: impl Into<CompileOptions>,
        device: &Arc<CudaDevice>,
    ) -> Result<CudaModel, LoadError> {
        let file = file.into();
        let path = file.path;
        let options = options.into();
        let compiled = plan::compile(file, options)?;
        trial_row(file.defaults, &compiled.plan.signature(), path)?;
        let model = CudaModel::of_checked(compiled.plan, options.max_batch, file.defaults.clone(), device);
        let mut model = model.map_err(|reason| LoadError::Device { path: path.into(), reason })?;
        model.import_note = joined(compiled.note, model.import_note.take());
        Ok(model)
    }

    /// Puts the plan of a file, which `symphony compile` has written, on a device, for batches of
    /// at most `max_batch` rows. Its precision has to be `precision` if one is given.
    ///
    /// # Errors
    /// The file can't be read or is no plan that can be run, sizes of dimensions are given, which a
    /// plan has no more, or the plan is of another precision; and the driver's: nothing of the
    /// model is left on the device then.
    pub fn load_plan(
        file: SizedFile<'_>,
        max_batch: usize,
        precision: Option<PlanPrecision>,
        device: &Arc<CudaDevice>,
    ) -> Result<CudaModel, LoadError> {
        let refused = |reason: String| LoadError::PlanFile { reason };
        let shown = file.path.display();
        let plan = Plan::read(file.path).map_err(|error| refused(error.to_string()))?;
        if let Some(dimension) = file.sizes.keys().next() {
            let right = "give --size to `symphony compile` instead";
            return Err(refused(format!(
                "{shown}: a plan has no dynamic dimension \"{dimension}\"; {right}"
            )));
        }
        if let Some(wanted) = precision.filter(|wanted| *wanted != plan.precision) {
            let found = plan.precision;
            let right = format!("compile it with --precision {wanted}, or leave `precision` out");
            return Err(refused(format!("{shown}: the plan is in {found}, not in {wanted}; {right}")));
        }
        trial_row(file.defaults, &plan.signature(), file.path)?;
        let model = CudaModel::of_checked(plan, max_batch, file.defaults.clone(), device);
        model.map_err(|reason| LoadError::Device { path: file.path.into(), reason })
    }

    /// Puts a plan on a device.
    ///
    /// # Errors
    /// [`Plan::check`] refuses it, or the driver; nothing is left on the device then.
    pub fn new(plan: Plan, device: &Arc<CudaDevice>) -> Result<CudaModel, String> {
        plan.check()?;
        CudaModel::of_checked(plan, MAX_PLAN_BATCH, InputDefaults::new(), device)
    }

    fn of_checked(
        mut plan: Plan,
        max_batch: usize,
        defaults: InputDefaults,
        device: &Arc<CudaDevice>,
    ) -> Result<CudaModel, String> {
        let (signature, max_batch) = (plan.signature(), plan.max_batch().min(max_batch));
        let prepared = PreparedPlan::new(device, &plan)?;
        let need = RoomNeed { workspace: workspace_bytes(&plan, &prepared), lane: lane_bytes(&plan) };
        let room = device.room.make(need).map_err(|error| device.page_refusal(error))?;
        let bytes = std::mem::take(&mut plan.weights);
        let weights = DeviceWeights::new(device, bytes.as_bytes()).map_err(|error| device.refusal(error))?;
        weights.load()?;
        let (device, weights) = (Arc::clone(device), Arc::new(weights));
        CudaModel::of_graph(Arc::new(CudaGraph {
            device,
            plan,
            max_batch,
            weights,
            prepared,
            room,
            signature,
            defaults,
        }))
    }

    fn of_graph(graph: Arc<CudaGraph>) -> Result<CudaModel, String> {
        let CudaGraph { device, plan, prepared, .. } = &*graph;
        let stream = device.stream().map_err(|error| device.refusal(error))?;
        let kernels = device.kernels(plan)?;
        let made = graph.lanes((&kernels, prepared), stream.get());
        let (lanes, used, note) = match made {
            // What a library prepared and then refuses is computed by kernels, like all the rest.
            Err(why) if prepared.is_used() && device.open.lost().is_none() => {
                let without = PreparedPlan::refused(plan, why);
                (graph.lanes((&kernels, &without), stream.get())?, without.used(), without.note())
            }
            made => (made?, prepared.used(), prepared.note()),
        };
        Ok(CudaModel { lanes, _kernels: kernels, used, staging: Ok(()), import_note: note, graph })
    }

    /// Returns by what its products of matrices and convolutions are computed.
    pub fn library_use(&self) -> LibraryUse {
        self.used
    }

    /// Returns the plan, without its weights.
    pub fn plan(&self) -> &Plan {
        &self.graph.plan
    }

    /// Returns the device that it is on.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.graph.device
    }

    /// Returns its weights, which are loaded when it is made.
    pub fn weights(&self) -> &Arc<DeviceWeights> {
        &self.graph.weights
    }

    /// Returns the memory that it uses on the device, bytes: its weights, and what it shares with
    /// other models.
    pub fn device_bytes(&self) -> u64 {
        let CudaGraph { plan, prepared, weights, .. } = &*self.graph;
        (weights.bytes() + workspace_bytes(plan, prepared) + LANES * lane_bytes(plan)) as u64
    }

    /// Returns the memory that a batch of this size needs between its launches and within them,
    /// bytes.
    pub fn workspace_bytes(&self, rows: usize) -> usize {
        let CudaGraph { plan, prepared, .. } = &*self.graph;
        let own = plan.batches.get(rows - 1).map_or(0, |batch| batch.workspace_bytes);
        own + prepared.workspace_of(rows - 1)
    }

    /// Returns how long the device took for the parts of the last [`HostModel::run`].
    ///
    /// # Errors
    /// The driver's: nothing was run yet, or the device is lost.
    pub fn device_times(&self) -> DriverResult<DeviceTimes> {
        self.lanes[HOST_LANE].times().map_err(|error| self.graph.device.open.note(error))
    }

    /// Returns what kernels have said of the rows that have left a lane.
    pub(super) fn outcome(&self, lane: usize) -> Result<(), RunError> {
        let failed = |reason: String| Err(RunError::Failed { reason });
        match self.lanes[lane].status(self.plan()) {
            Ok(status) => status_text(status).map_or(Ok(()), |text| failed(text.to_owned())),
            Err(error) => failed(self.graph.device.open.note(error).to_string()),
        }
    }

    /// Returns the fault of the rows that were staged, if there was one, for the run that takes
    /// them.
    pub(super) fn take_staged(&mut self) -> DriverResult<()> {
        std::mem::replace(&mut self.staging, Ok(()))
    }

    fn run_here(&self, rows: usize) -> Result<(), String> {
        let (lane, text) = (&self.lanes[HOST_LANE], |error| self.graph.device.open.note(error).to_string());
        let _weights = self.graph.weights.in_use().ok_or("its weights are not on the GPU")?;
        let _alone = self.graph.device.host_run.lock().unwrap_or_else(PoisonError::into_inner);
        lane.arrive(self.plan(), self.signature(), rows, &[]).map_err(text)?;
        lane.run(self.plan(), self.signature(), rows, &[]).map_err(text)?;
        lane.wait()
    }
}

impl CudaGraph {
    /// Makes the lanes, whose graphs are captured on `stream`.
    fn lanes(
        &self,
        by: (&LoadedKernels, &PreparedPlan),
        stream: Stream,
    ) -> Result<[Lane; ALL_LANES], String> {
        let mut made = Vec::new();
        for &rows in &self.room.lanes {
            let places = [self.weights.start(), self.room.workspace, rows];
            made.push(Lane::new(&self.device, &self.plan, by, places, stream)?);
        }
        made.try_into().map_err(|_| "a lane is missing".to_owned())
    }
}

/// Returns what two notes say.
fn joined(one: Option<String>, other: Option<String>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}

impl HostModel for CudaModel {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn max_batch(&self) -> usize {
        self.graph.max_batch
    }

    fn weights_bytes(&self) -> u64 {
        self.graph.weights.bytes() as u64
    }

    /// Returns the memory on the device, and the weights on the host beside.
    fn memory_bytes(&self) -> u64 {
        self.device_bytes() + self.weights_bytes()
    }

    /// Does nothing: the device computes.
    fn compute_on(&mut self, _: &ComputeThread) {}

    fn stage(&mut self, row: usize, input: &[u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        let staged = self.lanes[HOST_LANE].stage(&self.graph.plan, &self.graph.signature, row, input);
        self.staging = std::mem::replace(&mut self.staging, Ok(())).and(staged);
    }

    fn run(&mut self, rows: usize) -> Result<(), RunError> {
        let max_batch = self.max_batch();
        if rows == 0 || rows > max_batch {
            return Err(RunError::Rows { rows, max_batch });
        }
        let staged = self.take_staged();
        let ran = staged.map_err(|error| error.to_string()).and_then(|()| self.run_here(rows));
        ran.map_err(|reason| RunError::Failed { reason })?;
        self.outcome(HOST_LANE)
    }

    fn unstage(&self, row: usize, output: &mut [u8]) {
        assert!(row < self.max_batch(), "row {row} of {}", self.max_batch());
        // Pinned memory of the model can be read whatever the device does; a fault leaves zeros.
        if self.lanes[HOST_LANE].unstage(&self.graph.plan, &self.graph.signature, row, output).is_err() {
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
