//! Executions of one model and nothing else: Clockwork's Figure 2. Inputs are random, the batch
//! size is fixed, and each execution begins when the one before it has ended.

use super::{SortedTimes, TimePercentiles};
use crate::MeasureError;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use symphony_gpu::cuda::{CudaDevices, DriverError};
use symphony_gpu::device_profile::TimedRuns;
use symphony_gpu::measure::RandomRows;
use symphony_gpu::plan::{CompileOptions, PlanPrecision};
use symphony_gpu::{
    ComputeThread, CpuModel, CudaModel, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions, RunError,
};
use symphony_transport::Nanos;

/// The seed of the inputs.
const SEED: u64 = 1;

/// The device of the executions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IsolatedDevice {
    /// A CPU core, by the library that is built in.
    Cpu,
    /// A CPU core, by ONNX Runtime.
    OnnxRuntime,
    /// A GPU, by its number.
    Cuda(u32),
}

impl IsolatedDevice {
    /// Reads `cpu`, `onnxruntime` or `cuda:N`.
    ///
    /// # Errors
    /// What it must be.
    pub fn parse(text: &str) -> Result<IsolatedDevice, String> {
        let of_gpu = || text.strip_prefix("cuda:")?.parse().ok().map(IsolatedDevice::Cuda);
        match text {
            "cpu" => Ok(IsolatedDevice::Cpu),
            "onnxruntime" => Ok(IsolatedDevice::OnnxRuntime),
            _ => of_gpu().ok_or_else(|| "give cpu, onnxruntime or cuda:N".to_owned()),
        }
    }
}

impl std::fmt::Display for IsolatedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            IsolatedDevice::Cpu => f.write_str("cpu"),
            IsolatedDevice::OnnxRuntime => f.write_str("onnxruntime"),
            IsolatedDevice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The executions that are asked for.
#[derive(Clone, Debug)]
pub struct IsolationOptions {
    /// The ONNX file.
    pub model: PathBuf,
    /// The device.
    pub device: IsolatedDevice,
    /// The precision on a GPU.
    pub precision: PlanPrecision,
    /// The rows of each execution.
    pub batch: usize,
    /// How many are timed.
    pub executions: usize,
    /// The least and the most time of the warm-up before them.
    pub warm_up: [Duration; 2],
}

/// The times of the executions.
pub struct IsolatedTimes {
    /// The device's own: of the graph on a GPU, of the library's call on a CPU core.
    pub execution: SortedTimes,
    /// The host's: on a GPU with the call and the copy of the outputs.
    pub whole: SortedTimes,
}

/// The result of a measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct IsolationSummary {
    /// The ONNX file.
    pub model: String,
    /// The device.
    pub device: String,
    /// The rows of each execution.
    pub batch: usize,
    /// The times of the executions themselves.
    pub execution: TimePercentiles,
    /// The times that the host sees.
    pub whole: TimePercentiles,
    /// The 99.99th percentile of the executions over their median; nothing below 10,000 of them.
    pub p9999_over_p50: Option<f64>,
}

/// Times the executions.
///
/// # Errors
/// The device is lacking, the file is wrong, or the model fails.
pub fn measure(options: &IsolationOptions) -> Result<IsolatedTimes, MeasureError> {
    match options.device {
        IsolatedDevice::Cuda(ordinal) => on_gpu(options, ordinal),
        _ => on_cpu(options),
    }
}

/// Summarises the times.
pub fn summary(options: &IsolationOptions, times: &IsolatedTimes) -> IsolationSummary {
    IsolationSummary {
        model: options.model.display().to_string(),
        device: options.device.to_string(),
        batch: options.batch,
        execution: times.execution.percentiles(),
        whole: times.whole.percentiles(),
        p9999_over_p50: times.execution.tail_ratio(),
    }
}

fn on_gpu(options: &IsolationOptions, ordinal: u32) -> Result<IsolatedTimes, MeasureError> {
    let lacking = |error: DriverError| MeasureError::Machine(error.to_string());
    let device = CudaDevices::new(None).get(ordinal).map_err(lacking)?;
    let compile = CompileOptions { max_batch: options.batch, precision: options.precision };
    let mut model = CudaModel::load(&options.model, compile, &device).map_err(unloaded)?;
    let mut runs = TimedRuns::new(&mut model, SEED);
    runs.warm_up(options.batch, options.warm_up).map_err(failed)?;
    let (mut execution, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..options.executions {
        let times = runs.time(options.batch).map_err(failed)?;
        execution.push(times.execution);
        whole.push(times.whole);
    }
    Ok(IsolatedTimes { execution: SortedTimes::new(execution), whole: SortedTimes::new(whole) })
}

fn on_cpu(options: &IsolationOptions) -> Result<IsolatedTimes, MeasureError> {
    let compute = ComputeThread::new();
    let mut model: Box<dyn HostModel> = match options.device {
        IsolatedDevice::OnnxRuntime => {
            let library = OnnxRuntimeOptions::default();
            let load = || OnnxRuntimeModel::load(&options.model, options.batch, &library);
            Box::new(compute.run(load).map_err(unloaded)?)
        }
        _ => Box::new(CpuModel::load_on(&compute, &options.model, options.batch).map_err(unloaded)?),
    };
    let rows = RandomRows::new(&*model, SEED);
    (0..options.batch).for_each(|at| model.stage(at, rows.row(at)));
    let times = compute.run(|| -> Result<Vec<Nanos>, RunError> {
        let began = Instant::now();
        while began.elapsed() < options.warm_up[0] {
            model.run(options.batch)?;
        }
        let mut times = Vec::with_capacity(options.executions);
        for _ in 0..options.executions {
            let began = Instant::now();
            model.run(options.batch)?;
            times.push(began.elapsed().into());
        }
        Ok(times)
    });
    let times = SortedTimes::new(times.map_err(failed)?);
    Ok(IsolatedTimes { execution: times.clone(), whole: times })
}

fn unloaded(error: LoadError) -> MeasureError {
    match error {
        LoadError::Library { .. } => MeasureError::Machine(error.to_string()),
        LoadError::Device { .. } => MeasureError::Failed(error.to_string()),
        _ => MeasureError::Usage(error.to_string()),
    }
}

fn failed(error: RunError) -> MeasureError {
    MeasureError::Failed(error.to_string())
}
