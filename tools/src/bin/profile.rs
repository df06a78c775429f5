//! `profile`: measures how long a model takes by batch size on a device, as the engine does at
//! load, and prints the table, the line fitted to it and the memory taken.

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use symphony::cli::{end_quietly_on_closed_pipe, read_default_flag, read_size_flag};
use symphony_gpu::import::{DimensionSizes, InputDefaults, SizedFile};
use symphony_gpu::memory::Watermark;
use symphony_gpu::{
    ComputeThread, CpuModel, HostModel, LoadError, MeasureOptions, OnnxRuntimeModel, OnnxRuntimeOptions,
    ProfileTable, measure,
};

/// Measure how long an ONNX model takes by batch size
///
/// Prints l(b) as the median and the 99th percentile of many runs, and the line alpha * b + beta
/// that fits best for b of 2 and more, with its worst error. The engine schedules by the p99
/// column; the line is a summary.
#[derive(Parser)]
#[command(name = "profile", version, after_help = AFTER_HELP)]
struct ProfileCommandLine {
    /// The ONNX file; a first dimension of its inputs and outputs that is dynamic or 1 is the batch
    #[arg(long, value_name = "FILE")]
    model: PathBuf,
    /// The device to run it on: cpu, or onnxruntime, whose library is found as `symphony serve`
    /// finds it (cuda:N is not in this version; emulated GPUs take what their profile says)
    #[arg(long, default_value = "cpu")]
    device: String,
    /// A size for a dynamic dimension beyond the batch; may be given several times
    #[arg(long = "size", value_name = "NAME=N", value_parser = read_size_flag)]
    sizes: Vec<(String, NonZeroU32)>,
    /// The value of an input that is not to be random; may be given several times
    #[arg(long = "default", value_name = "INPUT=VALUE", value_parser = read_default_flag)]
    defaults: Vec<(String, f64)>,
    /// The largest batch
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    max_batch: u32,
    /// Seconds to measure for, all batch sizes together
    #[arg(long, value_name = "S", default_value_t = 5.0)]
    seconds: f64,
    /// Write the table as CSV too, for a model's `profile = FILE`
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str =
    "Exit codes: 0 done; 1 the model failed; 2 bad usage or model file; 3 the machine lacks the device.";

#[derive(Serialize)]
struct ProfileReport {
    model: String,
    device: String,
    alpha_ms: f64,
    beta_ms: f64,
    /// Relative, at the batch size where the line is furthest off.
    fit_worst_error: f64,
    fit_worst_batch: usize,
    weights_bytes: u64,
    /// Growth of the process's peak resident memory while loading and running the largest batch.
    memory_bytes: Option<u64>,
    table: Vec<ProfileRow>,
}

#[derive(Serialize)]
struct ProfileRow {
    batch: usize,
    p50_ms: f64,
    p99_ms: f64,
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    match run(&ProfileCommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, message)) => {
            eprintln!("{message}");
            ExitCode::from(code)
        }
    }
}

fn run(line: &ProfileCommandLine) -> Result<(), (u8, String)> {
    match line.device.as_str() {
        "cpu" | "onnxruntime" => {}
        "emulated" => {
            let wrong = "--device emulated: an emulated GPU takes exactly what its profile says";
            return Err((2, format!("{wrong}; measure on cpu")));
        }
        cuda if cuda.starts_with("cuda") => {
            return Err((3, format!("--device {cuda}: CUDA is not in this version; measure on cpu")));
        }
        other => return Err((2, format!("--device: {other:?} is no device; give cpu or onnxruntime"))),
    }
    if !(line.seconds > 0.0 && line.seconds <= 86_400.0) {
        return Err((2, "--seconds: give a number above 0, at most 86400".to_owned()));
    }
    let memory = Watermark::start().ok();
    let compute = ComputeThread::new();
    let mut model = load(line, &compute).map_err(|error| match error {
        LoadError::Library { .. } => (3, error.to_string()),
        _ => (2, error.to_string()),
    })?;
    let table =
        measure_with_progress(&compute, &mut *model, line.seconds).map_err(|error| (1, error.to_string()))?;
    let output = ProfileReport::new(line, &table, &*model, memory.and_then(|m| m.peak_growth().ok()));
    if let Some(path) = &line.csv {
        table.write(path).map_err(|error| (2, error.to_string()))?;
    }
    if line.json {
        println!("{}", serde_json::to_string(&output).expect("plain numbers and names"));
    } else {
        print(&output);
    }
    Ok(())
}

/// Loads the model for its device.
fn load(line: &ProfileCommandLine, compute: &ComputeThread) -> Result<Box<dyn HostModel>, LoadError> {
    let sizes: DimensionSizes = line.sizes.iter().cloned().collect();
    let defaults: InputDefaults = line.defaults.iter().cloned().collect();
    let file = SizedFile { sizes: &sizes, defaults: &defaults, ..SizedFile::from(&line.model) };
    let max_batch = line.max_batch as usize;
    Ok(match line.device.as_str() {
        "onnxruntime" => {
            let load = || OnnxRuntimeModel::load(file, max_batch, &OnnxRuntimeOptions::default());
            Box::new(compute.run(load)?)
        }
        _ => Box::new(CpuModel::load_on(compute, file, max_batch)?),
    })
}

fn measure_with_progress(
    compute: &ComputeThread,
    model: &mut dyn HostModel,
    seconds: f64,
) -> Result<ProfileTable, symphony_gpu::RunError> {
    // Shown only where standard error is a terminal.
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template("measuring {wide_bar} {percent} %") {
        bar.set_style(style);
    }
    let options =
        MeasureOptions { budget: std::time::Duration::from_secs_f64(seconds), ..MeasureOptions::default() };
    let table = compute.run(|| {
        measure(model, &options, &mut |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        })
    });
    bar.finish_and_clear();
    table
}

impl ProfileReport {
    fn new(
        line: &ProfileCommandLine,
        table: &ProfileTable,
        model: &dyn HostModel,
        memory_bytes: Option<u64>,
    ) -> ProfileReport {
        let fit = table.fit();
        ProfileReport {
            model: line.model.display().to_string(),
            device: line.device.clone(),
            alpha_ms: fit.alpha_ns / 1e6,
            beta_ms: fit.beta_ns / 1e6,
            fit_worst_error: fit.worst_error,
            fit_worst_batch: fit.worst_batch,
            weights_bytes: model.weights_bytes(),
            memory_bytes,
            table: table
                .rows()
                .iter()
                .map(|row| ProfileRow {
                    batch: row.batch,
                    p50_ms: row.p50.as_millis_f64(),
                    p99_ms: row.p99.as_millis_f64(),
                })
                .collect(),
        }
    }
}

fn print(output: &ProfileReport) {
    println!("{} on {}", output.model, output.device);
    println!("{:>7} {:>12} {:>12} {:>14}", "batch", "p50 (ms)", "p99 (ms)", "requests/s");
    for ProfileRow { batch, p50_ms, p99_ms } in &output.table {
        println!("{batch:>7} {p50_ms:>12.3} {p99_ms:>12.3} {:>14.1}", *batch as f64 / p50_ms * 1e3);
    }
    println!("alpha {:.4} ms, beta {:.4} ms (fitted to p99 at b >= 2)", output.alpha_ms, output.beta_ms);
    println!(
        "the line is off by {:.1} % at worst, at b = {}",
        output.fit_worst_error * 100.0,
        output.fit_worst_batch
    );
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory =
        output.memory_bytes.map_or("not measured".to_owned(), |bytes| format!("{:.1} MiB", mib(bytes)));
    println!(
        "weights {:.1} MiB in the file; memory at the largest batch: {memory}",
        mib(output.weights_bytes)
    );
}
