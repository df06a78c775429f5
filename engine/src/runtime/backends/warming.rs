//! Runs the samples that warm a model up, before it serves.

use crate::config::{Diagnostic, ModelConfig, WarmupData, WarmupInput, WarmupSample};
use crate::runtime::callbacks::Progress;
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use symphony_gpu::counted::counted;
use symphony_gpu::{DataType, HostModel, TensorSpec};

/// The seed of random data: a model that fails on it fails at each load.
const SEED: u64 = 1;

/// Runs the samples of `config` on `model`.
///
/// Errors: a diagnostic that names the sample: its inputs are not the model's, its file can't be
/// read or has another size, it has more rows than a batch, or the model fails on it.
pub fn warm_up(
    config: &ModelConfig,
    model: &mut dyn HostModel,
    progress: &Progress,
) -> Result<(), Diagnostic> {
    for sample in &config.warmup {
        let faulty = |wrong: String| {
            let wrong = format!("sample \"{}\": {wrong}", sample.name);
            let right = "give each sample the model's inputs, with data on which the model runs";
            sample.location.diagnostic(wrong, right)
        };
        if sample.rows > model.max_batch() {
            return Err(faulty(format!(
                "batch_size is {}, and the largest batch {}",
                sample.rows,
                model.max_batch()
            )));
        }
        let row = row(sample, model).map_err(faulty)?;
        (0..sample.rows).for_each(|at| model.stage(at, &row));
        for _ in 0..sample.count {
            model.run(sample.rows).map_err(|error| faulty(error.to_string()))?;
        }
        progress(&format!(
            "warmed {} up with sample \"{}\": {} of {}",
            config.name,
            sample.name,
            counted(sample.count as u64, "run"),
            counted(sample.rows as u64, "row"),
        ));
    }
    Ok(())
}

/// Returns the inputs of one row, as the model's signature lays them out.
fn row(sample: &WarmupSample, model: &dyn HostModel) -> Result<Vec<u8>, String> {
    let signature = model.signature();
    let names = || signature.inputs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>();
    if let Some(input) =
        sample.inputs.iter().find(|input| signature.inputs.iter().all(|spec| spec.name != input.name))
    {
        return Err(format!("the model has no input \"{}\"; its inputs are {:?}", input.name, names()));
    }
    let mut row = vec![0; signature.input_bytes()];
    for (at, spec) in signature.inputs.iter().enumerate() {
        let input = sample.inputs.iter().find(|input| input.name == spec.name);
        let input = input.ok_or_else(|| format!("input \"{}\" is not given", spec.name))?;
        fill(input, spec, signature.has_batch, &mut row[signature.input_range(at)])?;
    }
    Ok(row)
}

/// Writes the elements of one input.
fn fill(input: &WarmupInput, spec: &TensorSpec, has_batch: bool, bytes: &mut [u8]) -> Result<(), String> {
    let row = match &input.shape[..] {
        [1, row @ ..] if input.is_whole && has_batch => row,
        all => all,
    };
    if (input.datatype, row) != (spec.datatype, &spec.shape) {
        return Err(format!(
            "input \"{}\" is TYPE_{} {:?}; the model says TYPE_{} {:?} for one request",
            spec.name, input.datatype, input.shape, spec.datatype, spec.shape
        ));
    }
    match &input.data {
        WarmupData::Zero => {}
        WarmupData::Random => randomise(spec.datatype, bytes),
        WarmupData::File(file) => {
            let content =
                std::fs::read(file).map_err(|error| format!("{} can't be read ({error})", file.display()))?;
            if content.len() != bytes.len() {
                let (has, needs) = (content.len(), bytes.len());
                return Err(format!(
                    "{} has {has} bytes; input \"{}\" needs {needs}",
                    file.display(),
                    spec.name
                ));
            }
            bytes.copy_from_slice(&content);
        }
    }
    Ok(())
}

/// Writes random elements: floats from 0 to 1, whole numbers from 0 to 99, which are indices that
/// most models take.
fn randomise(datatype: DataType, bytes: &mut [u8]) {
    let mut random = Pcg64Mcg::seed_from_u64(SEED);
    for element in bytes.chunks_exact_mut(datatype.size_bytes()) {
        let (fraction, whole) = (random.random::<f32>(), random.random_range(0..100_u64));
        match datatype {
            DataType::Fp64 => element.copy_from_slice(&f64::from(fraction).to_le_bytes()),
            DataType::Fp32 => element.copy_from_slice(&fraction.to_le_bytes()),
            DataType::Fp16 => element.copy_from_slice(&f16::from_f32(fraction).to_le_bytes()),
            DataType::Bf16 => element.copy_from_slice(&bf16::from_f32(fraction).to_le_bytes()),
            DataType::Bool => element[0] = u8::from(whole >= 50),
            _ => element.copy_from_slice(&whole.to_le_bytes()[..element.len().min(8)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_config;
    use std::path::Path;
    use std::sync::{Arc, Mutex};
    use symphony_gpu::CpuModel;

    fn input(datatype: DataType, shape: &[usize], data: WarmupData) -> WarmupInput {
        WarmupInput { name: "image".into(), datatype, shape: shape.to_vec(), is_whole: false, data }
    }

    #[test]
    fn each_sample_is_run_as_often_as_it_says() {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart");
        let mut config = read_config(&example).unwrap().models;
        let mut config = config.swap_remove(config.iter().position(|model| model.name == "shapes").unwrap());
        let mut model = CpuModel::load(&example.join("shapes.onnx"), 4).unwrap();
        let sample = |rows, count, data| WarmupSample {
            location: config.locations.file.clone(),
            name: "s".into(),
            rows,
            count,
            inputs: vec![input(DataType::Fp32, &[3, 32, 32], data)],
        };
        config.warmup = vec![sample(4, 3, WarmupData::Zero), sample(1, 1, WarmupData::Random)];
        let lines = Arc::new(Mutex::new(Vec::new()));
        let progress: Progress = {
            let lines = Arc::clone(&lines);
            Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()))
        };
        warm_up(&config, &mut model, &progress).unwrap();
        let said = lines.lock().unwrap().join("\n");
        assert_eq!(
            said,
            "warmed shapes up with sample \"s\": 3 runs of 4 rows\n\
             warmed shapes up with sample \"s\": 1 run of 1 row"
        );
    }

    #[test]
    fn random_elements_are_of_their_type() {
        for datatype in [DataType::Fp32, DataType::Fp64, DataType::Fp16, DataType::Bf16] {
            let mut bytes = vec![0; 64 * datatype.size_bytes()];
            randomise(datatype, &mut bytes);
            let float = |element: &[u8]| match datatype {
                DataType::Fp64 => f64::from_le_bytes(element.try_into().unwrap()),
                DataType::Fp32 => f64::from(f32::from_le_bytes(element.try_into().unwrap())),
                DataType::Fp16 => f16::from_le_bytes(element.try_into().unwrap()).to_f64(),
                _ => bf16::from_le_bytes(element.try_into().unwrap()).to_f64(),
            };
            let all: Vec<f64> = bytes.chunks_exact(datatype.size_bytes()).map(float).collect();
            assert!(all.iter().all(|value| (0.0..=1.0).contains(value)), "{datatype}: {all:?}");
            assert!(all.iter().any(|value| *value != all[0]), "{datatype}: {all:?}");
        }
        let mut bytes = [0; 256];
        randomise(DataType::Int64, &mut bytes);
        assert!(bytes.as_chunks::<8>().0.iter().all(|element| u64::from_le_bytes(*element) < 100));
        randomise(DataType::Bool, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte < 2) && bytes.contains(&0) && bytes.contains(&1));
    }
}
