//! The command `gpu`: see `--help` and docs/gpus.md.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use symphony::cli::{end_quietly_on_closed_pipe, read_precision};
use symphony_gpu::plan::PlanPrecision;
use symphony_perf::MeasureError;
use symphony_perf::gpu::{compare, load_bandwidth};
use symphony_perf::networks::{NETWORKS, Network, NetworkSize, RESNET50_PARTS};

/// Make the networks for the measurement of a card, and compare the card with the interpreter
///
/// perf/gpu.sh is the whole measurement.
#[derive(Parser)]
#[command(name = "gpu", version, after_help = AFTER_HELP)]
struct GpuCommandLine {
    #[command(subcommand)]
    command: GpuCommand,
}

const AFTER_HELP: &str = "Exit codes: 0 done; 1 outputs differ, or a model failed; 2 bad usage or model file; \
                          3 the machine lacks a GPU.";

#[derive(Subcommand)]
enum GpuCommand {
    /// Write ResNet-50, DenseNet-121, MobileNet V2, VGG-16 and BERT-base as ONNX files, with
    /// weights from a seed
    Networks {
        /// The folder, which is made if it is not there
        folder: PathBuf,
        /// The same layers with an eighth of the channels, on small images
        #[arg(long)]
        small: bool,
        /// ResNet-50 without its last layer, and what stands behind that in variants of it, instead
        #[arg(long)]
        parts: bool,
        /// The seed of the weights
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Load and unload a model's weights again and again, beside a plain copy of as many bytes.
    /// Prints a JSON object
    Bandwidth {
        /// The ONNX file
        model: PathBuf,
        /// The GPU, by its number
        #[arg(long, value_name = "N", default_value_t = 0)]
        gpu: u32,
        /// The precision: fp32, fp16 or bf16
        #[arg(long, value_name = "P", default_value = "fp32", value_parser = read_precision)]
        precision: PlanPrecision,
        /// How often
        #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        times: u32,
    },
    /// Compare the outputs of models with the interpreter's, on random rows. Prints a JSON array
    Agreement {
        /// ONNX files
        #[arg(required = true)]
        models: Vec<PathBuf>,
        /// The GPU, by its number
        #[arg(long, value_name = "N", default_value_t = 0)]
        gpu: u32,
        /// The rows of the batch
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
        rows: u32,
        /// The precision: fp32, fp16 or bf16
        #[arg(long, value_name = "P", default_value = "fp32", value_parser = read_precision)]
        precision: PlanPrecision,
        /// The most that outputs may differ, as a part of the largest
        #[arg(long, value_name = "X", default_value_t = 1e-4)]
        tolerance: f64,
    },
}

fn main() -> ExitCode {
    end_quietly_on_closed_pipe();
    let result = match GpuCommandLine::parse().command {
        GpuCommand::Networks { folder, small, parts, seed } => {
            let networks = if parts { &RESNET50_PARTS[..] } else { &NETWORKS };
            write(networks, &folder, if small { NetworkSize::Small } else { NetworkSize::Full }, seed)
        }
        GpuCommand::Bandwidth { model, gpu, precision, times } => {
            load_bandwidth(&model, gpu, precision, times as usize).map(|measured| {
                println!("{}", serde_json::to_string(&measured).expect("plain numbers and names"));
                ExitCode::SUCCESS
            })
        }
        GpuCommand::Agreement { models, gpu, rows, precision, tolerance } => {
            agreement(&models, gpu, (rows as usize, precision), tolerance)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn write(
    networks: &[Network],
    folder: &PathBuf,
    size: NetworkSize,
    seed: u64,
) -> Result<ExitCode, MeasureError> {
    let failed = |path: &PathBuf, error: std::io::Error| {
        MeasureError::Usage(format!("{}: can't be written ({error})", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
    for network in networks {
        let (file, parameters) = network.file(size, seed);
        let path = folder.join(network.name).with_extension("onnx");
        std::fs::write(&path, &file).map_err(|error| failed(&path, error))?;
        println!("{}: {parameters} parameters, {} bytes", path.display(), file.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn agreement(
    models: &[PathBuf],
    gpu: u32,
    form: (usize, PlanPrecision),
    tolerance: f64,
) -> Result<ExitCode, MeasureError> {
    let compared = models.iter().map(|model| compare(model, gpu, form, tolerance));
    let compared = compared.collect::<Result<Vec<_>, _>>()?;
    println!("{}", serde_json::to_string(&compared).expect("plain numbers and names"));
    let all_agree = compared.iter().all(|model| model.agrees);
    Ok(if all_agree { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
