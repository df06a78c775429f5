//! The start of the executors of files: each thread is pinned and loads every model of its kind for
//! itself, and the first one of a kind measures the profiles that the configuration leaves to
//! measuring. Then each waits for its rings and runs. A thread that is given up is replaced by one
//! that takes its state over.

use super::batches::{Answers, Inbox};
use super::executor_state::{ExecutorState, ModelChangeReceiver};
use super::file_executor::FileExecutor;
use super::lease::ExecutorLease;
use super::libraries::Libraries;
use super::model_faults::ModelFaults;
use crate::config::{
    Config, Diagnostic, ExecutorKind, Location, ModelConfig, ModelSource, PrefixMember, ProfileSource,
};
use crate::runtime::backends::backend::Backend;
use crate::runtime::backends::warming::warm_up;
use crate::runtime::callbacks::{Progress, ThreadHook};
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use crate::runtime::gpu_memory::ServedGpus;
use crate::runtime::panics::{CaughtPanic, catch, catch_panic};
use crate::runtime::threads::agent::{Placement, Waiting, run_while};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use symphony_gpu::cuda::{DriverError, OpenDevice};
use symphony_gpu::host::SplitModel;
use symphony_gpu::import::{SharedPrefix, SizedFile, size_text};
use symphony_gpu::plan::{CompileOptions, PlanPrecision};
use symphony_gpu::{
    ComputeThread, CpuExecutor, CpuModel, CudaExecutor, CudaModel, Executor, GpuExecutor, GroupError,
    HostGraph, HostModel, LoadError, MeasureOptions, OnnxRuntimeModel, OnnxRuntimeOptions, PrefixGroup,
    ProfileTable, Signature, measure,
};
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;

/// The findings of an executor about a model.
#[derive(Clone)]
pub(crate) struct LoadReport {
    pub(crate) signature: Signature,
    /// The largest batch that it runs: 1 where the file's batch is fixed.
    pub(crate) max_batch: usize,
    /// The measured profile, only from the executor that measures.
    pub(crate) measured: Option<ProfileTable>,
}

/// A model that was loaded from its file, and what was found out.
type LoadedFile = (Box<dyn HostModel>, LoadReport);

/// An executor's rings.
pub(crate) struct ExecutorRings {
    pub(crate) inbox: Inbox,
    pub(crate) answers: Answers,
}

/// The state of an executor of files.
type FileState = Box<ExecutorState<FileExecutor>>;

/// The receiving end of models for an executor of files.
pub(crate) type HostModelChanges = ModelChangeReceiver<Box<dyn HostModel>>;

/// The time before a batch's start within which it is waited for without a nap.
const SOON: Nanos = Nanos::from_micros(200);

/// Returns the remedy of a GPU that can't be used.
pub(crate) fn gpu_right(error: &DriverError) -> &'static str {
    match error {
        DriverError::Memory { .. } => "change `page_mb` or `memory_mb` of the executor, or leave them out",
        _ => {
            "give as many executors of kind \"cuda\" as there are GPUs that the driver shows, or use another kind"
        }
    }
}

/// The result of an executor's loading: an entry per model of the configuration, `None` for other
/// executors' models; or the error of one.
type LoadResult = Result<Vec<Option<LoadReport>>, Diagnostic>;

/// The parts that an executor gets once it has loaded its models.
struct ExecutorWiring {
    rings: ExecutorRings,
    changes: Option<HostModelChanges>,
    lease: Arc<ExecutorLease<FileExecutor>>,
    faults: Arc<ModelFaults>,
    /// The slots of size classes that are not kept.
    merged: Vec<usize>,
}

/// An executor thread that loads its models, then waits for its rings.
pub(crate) struct LoadingExecutor {
    role: String,
    gpu: u32,
    placement: Placement,
    reports: Receiver<LoadResult>,
    wiring: Sender<ExecutorWiring>,
    thread: JoinHandle<()>,
}

/// A running executor, as the watchdog sees it.
pub(crate) struct WatchedExecutor {
    pub(crate) role: String,
    /// The engine's number of its GPU.
    pub(crate) gpu: u32,
    placement: Placement,
    pub(crate) thread: JoinHandle<()>,
    pub(crate) lease: Arc<ExecutorLease<FileExecutor>>,
    /// The state of the executor, while it has no thread.
    pub(crate) held: Option<FileState>,
}

impl LoadingExecutor {
    /// Returns the executor's role.
    pub(crate) fn role(&self) -> &str {
        &self.role
    }

    /// Waits until the executor has its models. Returns `None` if its thread died of them.
    pub(crate) fn wait(&self) -> Option<LoadResult> {
        self.reports.recv().ok()
    }

    /// Gives the executor its rings, and the channel of later models if there may be some; it gives
    /// up the models in the slots of `merged`, and runs from here on.
    pub(crate) fn wire(
        self,
        rings: ExecutorRings,
        changes: Option<HostModelChanges>,
        faults: &Arc<ModelFaults>,
        merged: &[usize],
    ) -> WatchedExecutor {
        let LoadingExecutor { role, gpu, placement, wiring, thread, .. } = self;
        let (lease, faults) = (Arc::new(ExecutorLease::new()), Arc::clone(faults));
        // Sending fails only if the thread has ended, which its handle shows.
        let _ = wiring.send(ExecutorWiring {
            rings,
            changes,
            lease: Arc::clone(&lease),
            faults,
            merged: merged.to_vec(),
        });
        WatchedExecutor { role, gpu, placement, thread, lease, held: None }
    }
}

impl WatchedExecutor {
    /// Starts another thread, which takes over the state that is held, and returns the old one.
    ///
    /// Errors: the system gives no thread; the state is still held then.
    pub(crate) fn replace_thread(
        &mut self,
        setup: &ExecutorSetup,
        faults: &Arc<ModelFaults>,
    ) -> std::io::Result<JoinHandle<()>> {
        let (role, placement, lease) = (self.role.clone(), self.placement, ExecutorLease::new());
        let (setup, faults, lease) = (setup.clone(), Arc::clone(faults), Arc::new(lease));
        let (give, state) = channel::<FileState>();
        let own_lease = Arc::clone(&lease);
        let thread = std::thread::Builder::new().name(role.clone()).spawn(move || {
            placement.take(&role);
            let compute = ComputeThread::new();
            compute.clone().run(move || {
                if let Ok(mut state) = state.recv() {
                    state.restore(&compute, setup.clock.now());
                    serve(role, state, placement, &setup, &own_lease, faults);
                }
            });
        })?;
        if let Some(state) = self.held.take() {
            // The thread waits for it.
            let _ = give.send(state);
        }
        self.lease = lease;
        Ok(std::mem::replace(&mut self.thread, thread))
    }
}

/// Runs an executor's duty cycles until the engine stops, or until its state is taken over.
fn serve(
    role: String,
    state: FileState,
    placement: Placement,
    setup: &ExecutorSetup,
    lease: &Arc<ExecutorLease<FileExecutor>>,
    faults: Arc<ModelFaults>,
) {
    lease.begin();
    let mut backend = Backend {
        state: Some(state),
        lease: Arc::clone(lease),
        faults,
        clock: setup.clock.clone(),
        role,
        hook: setup.before_cycle.clone(),
        soon: SOON,
        hung_after: setup.config.faults.hung_after,
        log_at: Nanos::ZERO,
    };
    let waiting = Waiting::new(placement.idle, setup.bells.clone());
    let run = || run_while(&mut backend, &waiting, &setup.clock, &setup.stop, |of| of.state.is_some());
    // What a panic leaves behind is the watchdog's, which answers for it.
    if let Err(CaughtPanic { text, broke_promise }) = catch_panic(run) {
        if broke_promise {
            setup.faults.report(&backend.role, format_args!("died: {text}"));
        }
        tracing::error!("the thread of executor {} died: {text}", backend.role);
        lease.leave(backend.state.take());
    }
}

/// The parameters of every executor.
#[derive(Clone)]
pub(crate) struct ExecutorSetup {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Clock,
    pub(crate) bells: Doorbells,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) progress: Progress,
    pub(crate) faults: FaultLatch,
    pub(crate) before_cycle: Option<ThreadHook>,
    pub(crate) libraries: Libraries,
    pub(crate) gpu_memory: Arc<ServedGpus>,
}

/// The executor that a thread is to be.
#[derive(Clone)]
pub(crate) struct ExecutorIdentity {
    pub(crate) kind: ExecutorKind,
    pub(crate) role: String,
    pub(crate) gpu: u32,
    /// The place among those of its kind: the number of its GPU at the driver.
    pub(crate) device: u32,
    /// True for the one of its kind that measures the profiles that have to be.
    pub(crate) measures: bool,
}

/// Starts an executor.
///
/// Errors: the system gives no thread.
pub(crate) fn start(
    identity: ExecutorIdentity,
    placement: Placement,
    setup: ExecutorSetup,
) -> std::io::Result<LoadingExecutor> {
    let (report, reports) = channel();
    let (wiring, wired) = channel();
    let (role, gpu, own) = (identity.role.clone(), identity.gpu, identity);
    let thread = std::thread::Builder::new().name(role.clone()).spawn(move || {
        placement.take(&own.role);
        // The whole loop runs on the compute thread: a batch then costs no hand-over between
        // threads.
        let compute = ComputeThread::new();
        // The report is over only when the fault is known.
        let (faults, _reporting) = (setup.faults.clone(), report.clone());
        compute.clone().run(move || {
            let role = own.role.clone();
            if let Err(panic) = catch(|| live(own, placement, setup, &compute, report, wired)) {
                faults.report(&role, format_args!("died: {panic}"));
            }
        });
    })?;
    Ok(LoadingExecutor { role, gpu, placement, reports, wiring, thread })
}

fn live(
    ExecutorIdentity { kind, role, gpu, device, measures }: ExecutorIdentity,
    placement: Placement,
    setup: ExecutorSetup,
    compute: &ComputeThread,
    report: Sender<LoadResult>,
    wired: Receiver<ExecutorWiring>,
) {
    let mut models: Vec<Option<Box<dyn HostModel>>> = Vec::new();
    let mut found: Vec<Option<LoadReport>> = Vec::new();
    let mut of_groups: Vec<(&PrefixMember, LoadReport)> = Vec::new();
    for model in &setup.config.models {
        let measuring = measures.then(MeasureOptions::default);
        let own = model.source.kind() == kind;
        let before = models.last().and_then(Option::as_deref).zip(found.last().and_then(Option::as_ref));
        let loaded = match (own, &model.prefix, before) {
            (false, _, _) => Ok((None, None)),
            (true, Some(member), _) if member.number > 0 => {
                let report = of_groups.iter().find(|(of, _)| *of == member);
                Ok((None, report.map(|(_, report)| report.clone())))
            }
            (true, Some(_), _) => {
                let group = model.group(&setup.config.models);
                load_group(&group, compute, &setup.libraries, measuring, &setup.progress).map(
                    |(loaded, mut reports)| {
                        let first = reports.remove(0);
                        let others = group.iter().filter_map(|of| of.prefix.as_ref()).skip(1);
                        of_groups.extend(others.zip(reports));
                        (Some(loaded), Some(first))
                    },
                )
            }
            (true, None, Some((before, report))) if model.shares_file() => {
                let copy = share(model, before.graph(), compute);
                copy.map(|copy| (Some(copy), Some(report.clone())))
            }
            (true, None, _) => {
                let loaded = load(model, compute, (&setup.libraries, device), measuring, &setup.progress);
                loaded.map(Option::unzip)
            }
        };
        match loaded {
            Ok((loaded, seen)) => {
                models.push(loaded);
                found.push(seen);
            }
            Err(diagnostic) => {
                let _ = report.send(Err(diagnostic));
                return;
            }
        }
    }
    let mut executor = match executor_of(kind, (gpu, device), &setup) {
        Ok(executor) => executor,
        Err(diagnostic) => {
            let _ = report.send(Err(diagnostic));
            return;
        }
    };
    executor.announce(&models);
    let _ = report.send(Ok(found));
    // No rings come if the engine gave up starting.
    let Ok(ExecutorWiring { rings, changes, lease, faults, merged }) = wired.recv() else { return };
    if let Err(reason) = executor.share(&rings.answers.slabs) {
        tracing::warn!("executor {role}: rows are copied once more on the host: {reason}");
    }
    merged.into_iter().for_each(|at| models[at] = None);
    models.resize_with(setup.config.model_slots().len(), || None);
    models.iter_mut().enumerate().for_each(|(slot, model)| executor.exchange(slot, model));
    let now = setup.clock.now();
    let state = ExecutorState::new(rings.inbox, rings.answers, executor, changes, gpu, now);
    serve(role, Box::new(state), placement, &setup, &lease, faults);
}

/// Makes an executor of this kind without models: the engine's number of its GPU is `gpu`, and
/// `device` its place among those of its kind.
fn executor_of(
    kind: ExecutorKind,
    (gpu, device): (u32, u32),
    setup: &ExecutorSetup,
) -> Result<FileExecutor, Diagnostic> {
    let slots = setup.config.model_slots().len();
    let none = (0..slots).map(|_| None).collect();
    if kind != ExecutorKind::Cuda {
        return Ok(FileExecutor::Cpu(CpuExecutor::new(none)));
    }
    let opened = setup.libraries.cuda.get(device).map_err(|error| {
        let location = Location { file: setup.config.file.clone(), line: 1, field: "executors".into() };
        location.diagnostic(format!("GPU {device} can't be used ({error})"), gpu_right(&error))
    })?;
    opened.libraries.iter().for_each(|library| (setup.progress)(&format!("GPU {device}: {library}")));
    let gpu = setup.gpu_memory.add(gpu, &opened);
    let plans = CudaExecutor::new(opened, none, setup.config.faults.hung_after);
    Ok(FileExecutor::Cuda(GpuExecutor::new(plans, slots), gpu))
}

/// Makes the model of another application of the graph of one that was loaded, with buffers of its
/// own: the two share their weights.
///
/// Errors: the library refuses what it has accepted before.
pub(crate) fn share(
    model: &ModelConfig,
    graph: Arc<dyn HostGraph>,
    compute: &ComputeThread,
) -> Result<Box<dyn HostModel>, Diagnostic> {
    graph.make(compute).map_err(|error| {
        let right = "give the model fewer applications, or the machine more memory";
        model.locations.file.diagnostic(format!("no copy of {} can be made ({error})", model.label()), right)
    })
}

/// Loads the file of a model, to compute on `compute`, by the library of its executors, or on the
/// GPU that is the `device`-th of them. Returns `None` if it has no file.
///
/// Errors: the diagnostic of a file that can't be served.
pub fn load_file(
    model: &ModelConfig,
    compute: &ComputeThread,
    (libraries, device): (&Libraries, u32),
) -> Result<Option<Box<dyn HostModel>>, Diagnostic> {
    let Some(file) = sized_file(&model.source) else { return Ok(None) };
    let executor = model.source.kind();
    let loaded = match executor {
        ExecutorKind::OnnxRuntime => compute
            .run(|| OnnxRuntimeModel::load(file, model.max_batch, &libraries.onnxruntime))
            .map(|loaded| Box::new(loaded) as Box<dyn HostModel>),
        ExecutorKind::Cuda => {
            load_on_gpu(file, (model.max_batch, model.source.precision()), libraries, device)
        }
        _ => CpuModel::load_on(compute, file, model.max_batch)
            .map(|loaded| Box::new(loaded) as Box<dyn HostModel>),
    };
    let kind = executor.name();
    let right = format!("give an ONNX model that the executor \"{kind}\" can run");
    loaded.map(Some).map_err(|error| model.locations.file.diagnostic(error, right))
}

/// Returns the file of a model, with what CONFIG says of it; `None` if it has none.
fn sized_file(source: &ModelSource) -> Option<SizedFile<'_>> {
    let ModelSource::File { file, sizes, contents, .. } = source else { return None };
    Some(SizedFile { path: file, sizes, defaults: &contents.defaults, text_bytes: contents.text_bytes })
}

/// Loads the files of models that are run as one, to compute on `compute`, by the library of their
/// executors; returns the signature of each too, and what they share.
///
/// Errors: the diagnostic of a file that can't be served, or not with the others.
pub fn load_group_files(
    models: &[&ModelConfig],
    compute: &ComputeThread,
    libraries: &Libraries,
) -> Result<LoadedGroup, Diagnostic> {
    fn loaded<M: SplitModel>(group: PrefixGroup<M>) -> LoadedGroup {
        let (variants, shared) = (group.variants().to_vec(), group.shared().clone());
        LoadedGroup { model: Box::new(group), variants, shared }
    }
    let files: Vec<SizedFile<'_>> = models.iter().filter_map(|model| sized_file(&model.source)).collect();
    let Some(first) = models.first() else {
        unreachable!("a group has models: the configuration was checked")
    };
    let executor = first.source.kind();
    let group = match executor {
        ExecutorKind::OnnxRuntime => {
            let load = || OnnxRuntimeModel::load_group(&files, first.max_batch, &libraries.onnxruntime);
            compute.run(load).map(loaded)
        }
        _ => CpuModel::load_group(compute, &files, first.max_batch).map(loaded),
    };
    group.map_err(|GroupError { at, error }| {
        let right = "mend the file, or leave prefix_group out, so that the model is run by itself";
        models[at].locations.file.diagnostic(error, right)
    })
}

/// Models that are run as one, loaded.
pub struct LoadedGroup {
    /// All of them.
    pub model: Box<dyn HostModel>,
    /// The tensors of each.
    pub variants: Vec<Signature>,
    /// What they share.
    pub shared: SharedPrefix,
}

impl LoadedGroup {
    /// Returns a line about what the models share.
    pub fn summary(&self, models: &[&ModelConfig]) -> String {
        let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        let (all, once) = self.shared.all_weights();
        format!(
            "{} are run as one over the layers that they share: {} nodes, {} of weights, which with their own are {} \
             instead of {}",
            names.join(", "),
            self.shared.nodes,
            size_text(self.shared.weights_bytes),
            size_text(once),
            size_text(all),
        )
    }
}

/// Loads models that are run as one, and measures them as [`load`] does, on the batches of each
/// size that take longest. Returns what was found of each model.
fn load_group(
    models: &[&ModelConfig],
    compute: &ComputeThread,
    libraries: &Libraries,
    measuring: Option<MeasureOptions>,
    progress: &Progress,
) -> Result<(Box<dyn HostModel>, Vec<LoadReport>), Diagnostic> {
    let mut group = load_group_files(models, compute, libraries)?;
    progress(&group.summary(models));
    let measured = measured(models[0], &mut *group.model, measuring, progress)?;
    let max_batch = group.model.max_batch();
    let report = |signature| LoadReport { signature, max_batch, measured: measured.clone() };
    Ok((group.model, group.variants.into_iter().map(report).collect()))
}

/// Puts the plan of a file on a GPU, or the plan that an ONNX file becomes.
fn load_on_gpu(
    file: SizedFile<'_>,
    (max_batch, precision): (usize, Option<PlanPrecision>),
    libraries: &Libraries,
    device: u32,
) -> Result<Box<dyn HostModel>, LoadError> {
    let opened = libraries.cuda.get(device);
    let opened =
        opened.map_err(|error| LoadError::Device { path: file.path.into(), reason: error.to_string() })?;
    if file.path.extension().is_some_and(|extension| extension == "plan") {
        return Ok(Box::new(CudaModel::load_plan(file, max_batch, precision, &opened)?));
    }
    let options = CompileOptions { max_batch, precision: precision.unwrap_or_default() };
    match CudaModel::load(file, options, &opened) {
        Ok(model) => Ok(Box::new(model)),
        Err(LoadError::Lowering { path, reason }) => {
            let loaded = load_by_library(file, max_batch, &reason, (libraries, device, &opened.open));
            loaded.map_err(|error| LoadError::OnGpu { path, reason, library: error.to_string() })
        }
        Err(error) => Err(error),
    }
}

/// Loads a file that can't become a plan, to be run on a GPU by ONNX Runtime's CUDA provider, in
/// the precision that it has.
fn load_by_library(
    file: SizedFile<'_>,
    max_batch: usize,
    reason: &str,
    (libraries, device, open): (&Libraries, u32, &Arc<OpenDevice>),
) -> Result<Box<dyn HostModel>, LoadError> {
    let options = OnnxRuntimeOptions { gpu: Some(device), ..libraries.onnxruntime.clone() };
    let note =
        format!("runs on GPU {device} by ONNX Runtime's CUDA provider: it can't become a plan ({reason})");
    Ok(Box::new(OnnxRuntimeModel::load_on(file, max_batch, &options, Some(open))?.with_note(&note)))
}

/// Loads a model if it has a file, warms it up, and measures it with the options of `measuring` if
/// its configuration asks for that.
pub(crate) fn load(
    model: &ModelConfig,
    compute: &ComputeThread,
    place: (&Libraries, u32),
    measuring: Option<MeasureOptions>,
    progress: &Progress,
) -> Result<Option<LoadedFile>, Diagnostic> {
    let Some(mut loaded) = load_file(model, compute, place)? else { return Ok(None) };
    if let Some(note) = loaded.import_note() {
        progress(&format!("{}: {note}", model.label()));
    }
    warm_up(model, &mut *loaded, progress)?;
    let max_batch = loaded.max_batch();
    let measured = measured(model, &mut *loaded, measuring, progress)?;
    let signature = loaded.signature().clone();
    Ok(Some((loaded, LoadReport { signature, max_batch, measured })))
}

/// Measures a model if its configuration asks for that.
fn measured(
    model: &ModelConfig,
    loaded: &mut dyn HostModel,
    measuring: Option<MeasureOptions>,
    progress: &Progress,
) -> Result<Option<ProfileTable>, Diagnostic> {
    let Some(options) = measuring.filter(|_| model.profile == ProfileSource::Measure) else {
        return Ok(None);
    };
    progress(&format!("measuring {} at batches of 1 to {} …", model.label(), loaded.max_batch()));
    measure_one(model, loaded, &options, progress).map(Some)
}

fn measure_one(
    model: &ModelConfig,
    loaded: &mut dyn HostModel,
    options: &MeasureOptions,
    progress: &Progress,
) -> Result<ProfileTable, Diagnostic> {
    let table = measure(loaded, options, &mut |_, _| ()).map_err(|error| {
        model.locations.file.diagnostic(error, "give a model that runs on inputs of its own shapes")
    })?;
    let fit = table.fit();
    let worthwhile = model.profile_by(&table).ok().map(|profile| profile.worthwhile().max_batch());
    let limited = worthwhile.filter(|&most| most < table.max_batch()).map_or_else(String::new, |most| {
        format!("; batches of up to {most} are worthwhile: larger ones take longer for each request")
    });
    progress(&format!(
        "measured {}: l(1) = {:.3} ms, l({}) = {:.3} ms; about {:.3} b + {:.3} ms{limited}",
        model.label(),
        table.latency(1).unwrap_or_default().as_millis_f64(),
        table.max_batch(),
        table.latency(table.max_batch()).unwrap_or_default().as_millis_f64(),
        fit.alpha_ns / 1e6,
        fit.beta_ns / 1e6,
    ));
    Ok(table)
}
