//! The start of the CPU executors: each thread is pinned and loads every CPU model for itself, and
//! the first one measures the profiles that the configuration leaves to measuring. Then each waits
//! for its rings and runs.

use super::batches::{Answers, Inbox};
use crate::config::{Config, Diagnostic, ModelConfig, ModelSource, ProfileSource};
use crate::runtime::backends::cpu::CpuBackend;
use crate::runtime::callbacks::Progress;
use crate::runtime::clock::Clock;
use crate::runtime::fault::FaultLatch;
use crate::runtime::panics::catch;
use crate::runtime::threads::agent::{Placement, run};
use crate::runtime::threads::changes::ChangeReceiver;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use symphony_gpu::{ComputeThread, CpuModel, MeasureOptions, ProfileTable, Signature, measure};

/// The findings of an executor about a model.
pub(crate) struct LoadReport {
    pub(crate) signature: Signature,
    /// The measured profile, only from the executor that measures.
    pub(crate) measured: Option<ProfileTable>,
}

/// The receiving end of models that are loaded and unloaded while an executor runs.
pub(crate) type ModelChangeReceiver = ChangeReceiver<Option<Box<CpuModel>>>;

/// An executor's rings.
pub(crate) struct ExecutorRings {
    pub(crate) inbox: Inbox,
    pub(crate) answers: Answers,
}

/// The result of an executor's loading: an entry per model of the configuration, `None` for other
/// executors' models; or the error of one.
type LoadResult = Result<Vec<Option<LoadReport>>, Diagnostic>;

/// An executor thread that loads its models, then waits for its rings.
pub(crate) struct LoadingExecutor {
    reports: Receiver<LoadResult>,
    wiring: Sender<(ExecutorRings, Option<ModelChangeReceiver>)>,
    thread: JoinHandle<()>,
}

impl LoadingExecutor {
    /// Waits until the executor has its models. Returns `None` if its thread died of them.
    pub(crate) fn wait(&self) -> Option<LoadResult> {
        self.reports.recv().ok()
    }

    /// Gives the executor its rings, and the channel of later models if there may be some; it runs
    /// from here on.
    pub(crate) fn wire(self, wiring: ExecutorRings, changes: Option<ModelChangeReceiver>) -> JoinHandle<()> {
        // Sending fails only if the thread has ended, which its handle shows.
        let _ = self.wiring.send((wiring, changes));
        self.thread
    }
}

/// The parameters of every executor.
#[derive(Clone)]
pub(crate) struct ExecutorSetup {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Clock,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) progress: Progress,
    pub(crate) faults: FaultLatch,
}

/// Starts the executor numbered `index`. Number 0 measures the profiles that have to be.
///
/// Errors: the system gives no thread.
pub(crate) fn start(
    index: usize,
    placement: Placement,
    setup: ExecutorSetup,
) -> std::io::Result<LoadingExecutor> {
    let (report, reports) = channel();
    let (wiring, rings) = channel();
    let role = format!("cpu-{index}");
    let thread = std::thread::Builder::new().name(role.clone()).spawn(move || {
        placement.take(&role);
        // The whole loop runs on the compute thread: a batch then costs no hand-over between
        // threads.
        let compute = ComputeThread::new();
        // The report is over only when the fault is known.
        let (faults, _reporting) = (setup.faults.clone(), report.clone());
        compute.clone().run(move || {
            if let Err(panic) = catch(|| live(index, placement, setup, &compute, report, rings)) {
                faults.report(&role, format_args!("died: {panic}"));
            }
        });
    })?;
    Ok(LoadingExecutor { reports, wiring, thread })
}

fn live(
    index: usize,
    placement: Placement,
    setup: ExecutorSetup,
    compute: &ComputeThread,
    report: Sender<LoadResult>,
    rings: Receiver<(ExecutorRings, Option<ModelChangeReceiver>)>,
) {
    let mut models: Vec<Option<Box<CpuModel>>> = Vec::new();
    let mut found = Vec::new();
    for model in &setup.config.models {
        let measuring = (index == 0).then(MeasureOptions::default);
        match load(model, compute, measuring, &setup.progress) {
            Ok(None) => {
                models.push(None);
                found.push(None);
            }
            Ok(Some((loaded, seen))) => {
                models.push(Some(Box::new(loaded)));
                found.push(Some(seen));
            }
            Err(diagnostic) => {
                let _ = report.send(Err(diagnostic));
                return;
            }
        }
    }
    let _ = report.send(Ok(found));
    // No rings come if the engine gave up starting.
    let Ok((ExecutorRings { inbox, answers }, changes)) = rings.recv() else { return };
    models.resize_with(setup.config.model_slots().len(), || None);
    let (clock, compute) = (setup.clock.clone(), compute.clone());
    let mut backend =
        CpuBackend { inbox, answers, clock, models, changes, compute, waiting: VecDeque::new() };
    run(&mut backend, placement.idle, &setup.clock, &setup.stop);
}

/// Loads a model if it is one for CPU executors, and measures it with the options of `measuring` if
/// its configuration asks for that.
pub(crate) fn load(
    model: &ModelConfig,
    compute: &ComputeThread,
    measuring: Option<MeasureOptions>,
    progress: &Progress,
) -> Result<Option<(CpuModel, LoadReport)>, Diagnostic> {
    let ModelSource::Cpu { file } = &model.source else { return Ok(None) };
    let mut loaded = CpuModel::load_on(compute, file, model.max_batch).map_err(|error| {
        model.locations.file.diagnostic(error, "give an ONNX model that the CPU executor can run")
    })?;
    let measured = match measuring.filter(|_| model.profile == ProfileSource::Measure) {
        Some(options) => {
            progress(&format!("measuring {} at batches of 1 to {} …", model.name, model.max_batch));
            Some(measure_one(model, &mut loaded, &options, progress)?)
        }
        None => None,
    };
    let signature = loaded.signature().clone();
    Ok(Some((loaded, LoadReport { signature, measured })))
}

fn measure_one(
    model: &ModelConfig,
    loaded: &mut CpuModel,
    options: &MeasureOptions,
    progress: &Progress,
) -> Result<ProfileTable, Diagnostic> {
    let table = measure(loaded, options, &mut |_, _| ()).map_err(|error| {
        model.locations.file.diagnostic(error, "give a model that runs on inputs of its own shapes")
    })?;
    let fit = table.fit();
    progress(&format!(
        "measured {}: l(1) = {:.3} ms, l({}) = {:.3} ms; about {:.3} b + {:.3} ms",
        model.name,
        table.latency(1).unwrap_or_default().as_millis_f64(),
        table.max_batch(),
        table.latency(table.max_batch()).unwrap_or_default().as_millis_f64(),
        fit.alpha_ns / 1e6,
        fit.beta_ns / 1e6,
    ));
    Ok(table)
}
