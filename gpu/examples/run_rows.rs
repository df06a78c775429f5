//! Runs single rows through models on an executor, without a server: each is loaded, staged, run
//! and unstaged as a backend does it. `perf/node_tests` counts with it how many of ONNX's node
//! tests an executor passes.
//!
//! Usage: `run_rows cpu|onnxruntime|plan FOLDER...`. Each FOLDER has `model.onnx` and, for each
//! input, `NAME.in` with the elements of a row, little endian. For each it writes `NAME.out` for
//! each output there, and prints `FOLDER`, a tab, and `ran` or what stood in the way. A folder is
//! printed before its model is loaded, so that whoever reads knows of which model a crash was.
//!
//! `run_rows operators NAME...` prints those of ONNX's operators that plans cover.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use symphony_gpu::plan::{PlanModel, covers_operator};
use symphony_gpu::{CpuModel, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions};

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let executor = arguments.next().unwrap_or_default();
    if executor == "operators" {
        arguments.filter(|name| covers_operator(name)).for_each(|name| println!("{name}"));
        return Ok(());
    }
    if !["cpu", "onnxruntime", "plan"].contains(&executor.as_str()) {
        eprintln!("usage: run_rows cpu|onnxruntime|plan FOLDER... or run_rows operators NAME...");
        std::process::exit(2);
    }
    for folder in arguments {
        print!("{folder}\t");
        io::stdout().flush()?;
        match run(&executor, Path::new(&folder)) {
            Ok(()) => println!("ran"),
            // A library's message may have several lines.
            Err(why) => println!("{}", why.replace(['\n', '\t'], " ")),
        }
    }
    Ok(())
}

/// Loads a model for batches of one.
fn load(executor: &str, file: &Path) -> Result<Box<dyn HostModel>, LoadError> {
    Ok(match executor {
        "onnxruntime" => Box::new(OnnxRuntimeModel::load(file, 1, &OnnxRuntimeOptions::default())?),
        "plan" => Box::new(PlanModel::load(file, 1)?),
        _ => Box::new(CpuModel::load(file, 1)?),
    })
}

/// Runs the row in a folder.
fn run(executor: &str, folder: &Path) -> Result<(), String> {
    let mut model = load(executor, &folder.join("model.onnx")).map_err(|error| format!("load: {error}"))?;
    let signature = model.signature().clone();
    let mut row = vec![0; signature.input_bytes()];
    for (at, input) in signature.inputs.iter().enumerate() {
        let path = folder.join(format!("{}.in", input.name));
        let bytes = fs::read(&path).map_err(|error| format!("input: {}: {error}", path.display()))?;
        let place = &mut row[signature.input_range(at)];
        if place.len() != bytes.len() {
            return Err(format!("input: {} takes {} bytes, not {}", input.name, place.len(), bytes.len()));
        }
        place.copy_from_slice(&bytes);
    }
    model.stage(0, &row);
    model.run(1).map_err(|error| format!("run: {error}"))?;
    let mut output = vec![0; signature.output_bytes()];
    model.unstage(0, &mut output);
    for (at, spec) in signature.outputs.iter().enumerate() {
        let path = folder.join(format!("{}.out", spec.name));
        fs::write(&path, &output[signature.output_range(at)])
            .map_err(|error| format!("output: {}: {error}", path.display()))?;
    }
    Ok(())
}
