//! Outputs of both libraries, and of plans, against those of ONNX Runtime's Python package, which
//! ran each row alone in the file as it is: for small networks as exporters write them, and the
//! light networks.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "../../engine/tests/harness/light_models.rs"]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;

use library::onnx_library;
use light::{NOT_ON_RTEN, light_models, made_folder};
use model_rows::run_rows;
use std::ops::Range;
use std::path::{Path, PathBuf};
use symphony_gpu::import::{DimensionSizes, SizedFile};
use symphony_gpu::plan::{self, CompileOptions, PlanModel, PlanPrecision};
use symphony_gpu::{
    CpuModel, DataType, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions, TensorSpec,
};

/// The rows of each reference.
const ROWS: usize = 3;

/// The largest difference of an output, as a part of its largest element. ONNX Runtime sums a batch
/// in another order than a row alone; rten and the interpreter of plans have kernels of their own.
/// A half has 11 binary digits, of BF16 8, and each launch rounds.
const TOLERANCE: [(&str, f32); 5] = [
    ("cpu", 1e-3),
    ("onnxruntime", 1e-4),
    ("plan", PLAN_TOLERANCE),
    ("plan fp16", 1e-2),
    ("plan bf16", 8e-2),
];
const PLAN_TOLERANCE: f32 = 1e-4;

/// The light networks that take the least computing, one of which rten can't run.
const QUICK: [&str; 3] = ["light_bvlc_alexnet", "light_shufflenet", "light_squeezenet"];

/// Returns the folder of the exported networks; its folder `references` has a folder for each
/// model.
fn exported_models() -> PathBuf {
    made_folder("exported_models")
}

/// Compiles a model, for the interpreter of plans.
fn interpreted<'a>(
    file: impl Into<SizedFile<'a>>,
    max_batch: usize,
    precision: PlanPrecision,
) -> Result<PlanModel, LoadError> {
    // Not by `PlanModel::load`: what follows compares rows in a batch with each alone.
    let compiled = plan::compile(file, CompileOptions { max_batch, precision })?;
    Ok(PlanModel::new(compiled.plan).unwrap())
}

/// Loads a model for a batch of every row.
fn load<'a>(executor: &str, file: impl Into<SizedFile<'a>>) -> Result<Box<dyn HostModel>, LoadError> {
    match executor {
        "cpu" => return Ok(Box::new(CpuModel::load(file, ROWS)?)),
        "plan" | "plan fp16" | "plan bf16" => {
            let precision = executor.strip_prefix("plan ").and_then(PlanPrecision::of_name);
            return Ok(Box::new(interpreted(file, ROWS, precision.unwrap_or_default())?));
        }
        _ => {}
    }
    let options = OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() };
    Ok(Box::new(OnnxRuntimeModel::load(file, ROWS, &options)?))
}

/// Returns the rows of the reference's tensors `role`, laid out as the signature says.
fn reference(
    folder: &Path,
    role: &str,
    specs: &[TensorSpec],
    row_bytes: usize,
    range: impl Fn(usize) -> Range<usize>,
) -> Vec<Vec<u8>> {
    let mut rows = vec![vec![0; row_bytes]; ROWS];
    for (index, spec) in specs.iter().enumerate() {
        let path = folder.join(format!("{role}{index}.bin"));
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), ROWS * spec.bytes(), "{} for {spec:?}", path.display());
        for (row, from) in rows.iter_mut().zip(bytes.chunks_exact(spec.bytes())) {
            row[range(index)].copy_from_slice(from);
        }
    }
    let after = folder.join(format!("{role}{}.bin", specs.len()));
    assert!(!after.exists(), "the model has no {}", after.display());
    rows
}

/// Asserts that an output is as expected: FP32 within `tolerance` of the largest element, other
/// types exactly.
fn assert_near(spec: &TensorSpec, found: &[u8], expected: &[u8], tolerance: f32, what: &str) {
    if spec.datatype != DataType::Fp32 {
        assert_eq!(found, expected, "{what}");
        return;
    }
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        // NaN is no nearer than anything else.
        let is_near = (found - expected).abs() <= tolerance * largest;
        assert!(is_near, "{what}: {found} for {expected}, and the largest is {largest}");
    }
}

/// Runs one row, then as many as the model takes, and compares each with its reference.
fn assert_agrees(model: &mut dyn HostModel, folder: &Path, tolerance: f32, what: &str) {
    let signature = model.signature().clone();
    let inputs = reference(folder, "input", &signature.inputs, signature.input_bytes(), |at| {
        signature.input_range(at)
    });
    let expected = reference(folder, "output", &signature.outputs, signature.output_bytes(), |at| {
        signature.output_range(at)
    });
    let mut batches = vec![1, model.max_batch()];
    batches.dedup();
    for rows in batches {
        let found = run_rows(model, &inputs[..rows]);
        for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (at, spec) in signature.outputs.iter().enumerate() {
                let range = signature.output_range(at);
                let what = format!("{what}, {}, row {row} of {rows}", spec.name);
                assert_near(spec, &found[range.clone()], &expected[range], tolerance, &what);
            }
        }
    }
}

/// Compares these models, at these sizes of their dynamic dimensions, on each library that has
/// their operators.
fn assert_all_agree(paths: &[PathBuf], sizes: &DimensionSizes) {
    let folder = exported_models();
    for path in paths {
        let name = path.file_stem().unwrap().to_str().unwrap();
        for (executor, tolerance) in TOLERANCE {
            match load(executor, SizedFile { sizes, ..SizedFile::from(path) }) {
                Ok(mut model) => {
                    let what = format!("{name} on {executor}");
                    assert_eq!(model.max_batch(), ROWS, "{what}: {:?}", model.import_note());
                    assert_agrees(&mut *model, &folder.join("references").join(name), tolerance, &what);
                }
                Err(error) => {
                    let lacks = NOT_ON_RTEN.contains(&name) || name == "rare";
                    assert!(executor == "cpu" && lacks, "{error}");
                }
            }
        }
    }
}

#[test]
fn exported_networks_agree_with_the_python_package_alone_and_in_a_batch() {
    let folder = exported_models();
    let paths = ["encoder", "speech", "vision", "detector", "rare"]
        .map(|name| folder.join(name).with_extension("onnx"));
    assert_all_agree(&paths, &DimensionSizes::new());
}

#[test]
fn networks_with_dynamic_dimensions_agree_at_the_sizes_that_they_are_given() {
    let folder = exported_models().join("dynamic");
    let sizes = |sizes: &[(&str, u32)]| -> DimensionSizes {
        sizes.iter().map(|&(name, size)| (name.to_owned(), size.try_into().unwrap())).collect()
    };
    assert_all_agree(&[folder.join("encoder.onnx")], &sizes(&[("sequence", 32)]));
    assert_all_agree(&[folder.join("speech.onnx")], &sizes(&[("channels", 2), ("samples", 256)]));
}

#[test]
fn quick_light_networks_agree_with_the_python_package_alone_and_in_a_batch() {
    let quick = |path: &PathBuf| QUICK.iter().any(|name| path.ends_with(format!("{name}.onnx")));
    let paths: Vec<PathBuf> = light_models().into_iter().filter(quick).collect();
    assert_eq!(paths.len(), QUICK.len(), "{paths:?}");
    assert_all_agree(&paths, &DimensionSizes::new());
}

#[test]
fn every_light_network_agrees_with_the_python_package_as_a_plan_of_one_row() {
    let references = exported_models().join("references");
    for path in light_models() {
        let mut model = interpreted(&path, 1, PlanPrecision::Fp32).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert_agrees(&mut model, &references.join(name), PLAN_TOLERANCE, name);
    }
}

#[test]
#[ignore = "takes minutes on one core; the quick ones, and all as plans of one row, run always"]
fn every_light_network_agrees_with_the_python_package_alone_and_in_a_batch() {
    assert_all_agree(&light_models(), &DimensionSizes::new());
}

#[test]
fn a_row_may_be_a_single_element_and_outputs_differ_in_rank() {
    let folder = exported_models();
    let shapes = |specs: &[TensorSpec]| specs.iter().map(|spec| spec.shape.clone()).collect::<Vec<_>>();
    for (executor, _) in TOLERANCE {
        let encoder = load(executor, &folder.join("encoder.onnx")).unwrap();
        assert_eq!(shapes(&encoder.signature().outputs), [vec![32, 64], vec![64], vec![]], "{executor}");
        let speech = load(executor, &folder.join("speech.onnx")).unwrap();
        assert_eq!(shapes(&speech.signature().inputs), [vec![2, 256], vec![]], "{executor}");
        assert_eq!(shapes(&speech.signature().outputs), [vec![16, 29], vec![]], "{executor}");
    }
}
