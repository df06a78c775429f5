//! Models whose tensors have no batch in front, or that do not keep it: a run takes one request,
//! whose tensors have whole shapes. And the defaults of inputs that a client may leave out.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "harness/model_rows.rs"]
mod model_rows;

use library::onnx_library;
use model_rows::run_rows;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use symphony_gpu::import::{DimensionSizes, InputDefaults, SizedFile};
use symphony_gpu::{CpuModel, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Loads a file on each library.
fn on_both(file: SizedFile<'_>) -> [Result<Box<dyn HostModel>, LoadError>; 2] {
    let options = OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() };
    let boxed = |model| Box::new(model) as Box<dyn HostModel>;
    [
        CpuModel::load(file, 8).map(|model| Box::new(model) as Box<dyn HostModel>),
        OnnxRuntimeModel::load(file, 8, &options).map(boxed),
    ]
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

fn shapes(model: &dyn HostModel) -> [Vec<Vec<usize>>; 2] {
    let signature = model.signature();
    [&signature.inputs, &signature.outputs].map(|of| of.iter().map(|spec| spec.shape.clone()).collect())
}

#[test]
fn what_does_not_keep_a_batch_runs_whole_requests_and_the_note_says_why() {
    for (name, input, output, why) in [
        ("scalar.onnx", &[][..], &[][..], "input `x` is a single element"),
        ("reshape_to_one.onnx", &[1, 4], &[1, 2, 2], "`y`"),
        ("sums_the_batch.onnx", &[1, 4], &[1, 4], "`y`"),
        ("splits_rows.onnx", &[1, 4], &[2, 2], "`y`"),
    ] {
        for model in on_both(SizedFile::from(&fixture(name))) {
            let mut model = model.unwrap();
            assert_eq!(shapes(&*model), [vec![input.to_vec()], vec![output.to_vec()]], "{name}");
            assert_eq!((model.max_batch(), model.signature().has_batch), (1, false), "{name}");
            let note = model.import_note().unwrap_or_default();
            assert!(note.starts_with("the model has no batch") && note.contains(why), "{name}: {note}");
            let row = bytes(&[3.0, 2.0, 1.0, 4.0][..input.iter().product()]);
            let padded = [row.clone(), vec![0; model.signature().input_bytes() - row.len()]].concat();
            assert_eq!(run_rows(&mut *model, &[padded])[0][..row.len()], row, "{name}");
        }
    }
}

#[test]
fn a_state_of_another_layout_and_a_single_element_are_taken_whole() {
    let path = fixture("stateful.onnx");
    let defaults = InputDefaults::from([("count".to_owned(), 5.0)]);
    let two = DimensionSizes::from([("N".to_owned(), NonZeroU32::new(2).unwrap())]);
    let none = DimensionSizes::new();
    for (sizes, n) in [(&none, 1), (&two, 2)] {
        for model in on_both(SizedFile { sizes, defaults: &defaults, ..SizedFile::from(&path) }) {
            let mut model = model.unwrap();
            let inputs = vec![vec![n, 3], vec![2, n, 3], vec![]];
            assert_eq!(shapes(&*model), [inputs, vec![vec![n, 3], vec![2, n, 3], vec![5]]]);
            let mut row = vec![0; model.signature().input_bytes()];
            let x: Vec<f32> = (0..3 * n).map(|at| at as f32).collect();
            row[model.signature().input_range(0)].copy_from_slice(&bytes(&x));
            // y = x + the sum of the state's parts.
            row[model.signature().input_range(1)].copy_from_slice(&bytes(&vec![1.0; 6 * n]));
            row[model.signature().input_range(2)].copy_from_slice(&5_i64.to_le_bytes());
            let output = &run_rows(&mut *model, &[row])[0];
            let expected: Vec<f32> = x.iter().map(|x| x + 2.0).collect();
            assert_eq!(floats(&output[model.signature().output_range(0)]), expected);
        }
    }
}

#[test]
fn a_default_must_be_of_an_input_and_of_its_type() {
    let path = fixture("stateful.onnx");
    let none = DimensionSizes::new();
    for (name, value, expected) in [
        (
            "rate",
            1.0,
            "has no input \"rate\", for which a default is given; its inputs are [\"x\", \"state\", ",
        ),
        ("count", 0.5, "the default of input \"count\" is 0.5, which no INT64 is; give another"),
    ] {
        let defaults = InputDefaults::from([(name.to_owned(), value)]);
        for model in on_both(SizedFile { sizes: &none, defaults: &defaults, ..SizedFile::from(&path) }) {
            let error = model.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
