//! ONNX Runtime on small ONNX files: the outputs that the built-in library computes, the operators
//! that it lacks, and a clear error for each file that cannot be served.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "../../engine/tests/harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use library::onnx_library;
use model_rows::run_rows;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use symphony_gpu::import::SizedFile;
use symphony_gpu::onnxruntime::open_library;
use symphony_gpu::signature::LENGTH_BYTES;
use symphony_gpu::{
    ComputeThread, CpuModel, DataType, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions, RunError,
    Signature,
};

const MAX_BATCH: usize = 5;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).with_extension("onnx")
}

fn options() -> OnnxRuntimeOptions {
    OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() }
}

fn load(path: &Path) -> Result<OnnxRuntimeModel, LoadError> {
    OnnxRuntimeModel::load(path, MAX_BATCH, &options())
}

fn refused(name: &str) -> String {
    load(&fixture(name)).err().unwrap_or_else(|| panic!("{name} was loaded")).to_string()
}

/// A row of zeros and ones, of which neighbours have others.
fn input(signature: &Signature, row: usize) -> Vec<u8> {
    let mut bytes = vec![0; signature.input_bytes()];
    for (index, spec) in signature.inputs.iter().enumerate() {
        let one: &[u8] = match spec.datatype {
            DataType::Fp64 => &1f64.to_le_bytes(),
            DataType::Fp32 => &1f32.to_le_bytes(),
            DataType::Fp16 => &half::f16::ONE.to_le_bytes(),
            _ => &1u64.to_le_bytes(),
        };
        let elements = bytes[signature.input_range(index)].chunks_exact_mut(spec.datatype.size_bytes());
        let ones = elements.enumerate().filter(|(at, _)| (at + row) % 2 == 1);
        ones.for_each(|(_, element)| element.copy_from_slice(&one[..element.len()]));
    }
    bytes
}

#[test]
fn it_computes_what_the_library_that_is_built_in_computes() {
    for name in ["linear", "two_inputs", "embedding", "types", "transposed"] {
        let mut theirs = load(&fixture(name)).unwrap();
        let mut ours = CpuModel::load(&fixture(name), MAX_BATCH).unwrap();
        assert_eq!(theirs.signature(), ours.signature(), "{name}");
        for rows in [1, 3, MAX_BATCH] {
            let rows: Vec<Vec<u8>> = (0..rows).map(|row| input(ours.signature(), row)).collect();
            assert_eq!(run_rows(&mut theirs, &rows), run_rows(&mut ours, &rows), "{name}");
        }
    }
}

#[test]
fn an_operator_that_is_not_built_in_runs_and_the_other_executor_names_this_one() {
    let error = CpuModel::load(&fixture("unsupported_operator"), 2).err().unwrap().to_string();
    assert!(error.contains("executor of kind \"onnxruntime\""), "{error}");
    let mut model = load(&fixture("unsupported_operator")).unwrap();
    let one: Vec<u8> = [1f32; 16].iter().flat_map(|x| x.to_le_bytes()).collect();
    let output = run_rows(&mut model, &[vec![0; 64], one]);
    // LRN with ONNX's defaults: x / (1 + 1e-4 / 3 * sum of squares of up to 3 neighbours) ^ 0.75.
    let floats: Vec<f32> = output[1].as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    for (at, &found) in floats.iter().enumerate() {
        let neighbours = if (4..12).contains(&at) { 3.0 } else { 2.0 };
        let expected = (1.0f32 + 1e-4 / 3.0 * neighbours).powf(-0.75);
        assert!((found - expected).abs() < 1e-6, "{at}: {found} is not {expected}");
    }
    assert_eq!(output[0], [0; 64]);
}

#[test]
fn a_batch_that_fails_leaves_the_model_able_to_run_the_next() {
    let mut model = load(&fixture("embedding")).unwrap();
    let ids = |a: i64, b: i64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    model.stage(0, &ids(0, i64::MAX));
    assert!(matches!(model.run(1), Err(RunError::Failed { .. })), "8 rows have no such index");
    let output = run_rows(&mut model, &[ids(3, 6)]);
    assert_eq!(output[0][..4], 1f32.to_le_bytes());
    for rows in [0, MAX_BATCH + 1] {
        assert!(matches!(model.run(rows), Err(RunError::Rows { max_batch: MAX_BATCH, .. })));
    }
}

#[test]
fn a_graph_makes_another_model_and_only_the_run_that_is_interrupted_ends() {
    let mut first = load(&fixture("linear")).unwrap();
    let graph = first.graph();
    let mut second = std::sync::Arc::clone(&graph).make(&ComputeThread::new()).unwrap();
    let row: Vec<u8> = [1f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let expected = run_rows(&mut first, std::slice::from_ref(&row));
    graph.interrupt();
    first.stage(0, &row);
    assert!(first.run(1).is_err(), "it was asked to end");
    assert_eq!(run_rows(&mut *second, &[row]), expected);
}

#[test]
fn several_threads_compute_what_one_does() {
    let options = OnnxRuntimeOptions { threads: 3, ..options() };
    let mut several = OnnxRuntimeModel::load(&fixture("linear"), 2, &options).unwrap();
    let mut one = load(&fixture("linear")).unwrap();
    let rows = vec![vec![63; 16]; 2];
    assert_eq!(run_rows(&mut several, &rows), run_rows(&mut one, &rows));
}

#[test]
fn each_file_that_cannot_be_served_says_what_was_found_and_what_would_be_right() {
    let cases = [
        ("no_such_model", "there is no such file"),
        ("dynamic_width", "dimension 2 of input `x` is dynamic, with the name \"width\", and has no size"),
        ("no_inputs", "has no inputs"),
    ];
    for (name, expected) in cases {
        let error = refused(name);
        assert!(error.contains(expected), "{error}\nshould contain\n{expected}");
    }
    let error = OnnxRuntimeModel::load(&fixture("linear"), 1 << 40, &options()).err().unwrap();
    assert!(matches!(error, LoadError::TooLarge { role: "inputs", row: 16, .. }), "{error}");
}

#[test]
fn texts_go_in_and_come_out_as_they_are_and_those_that_can_not_fail_alone() {
    let room = |text: &[u8]| {
        let mut room = (text.len() as u32).to_le_bytes().to_vec();
        room.extend(text);
        room.resize(LENGTH_BYTES + 12, 0xFF);
        room
    };
    let path = fixture("strings");
    let file = SizedFile { text_bytes: 12, ..SizedFile::from(&path) };
    let mut model = OnnxRuntimeModel::load(file, 3, &options()).unwrap();
    assert_eq!(model.signature().inputs[0].datatype, DataType::Bytes(12));
    assert_eq!(model.signature().outputs[0].datatype, DataType::Bytes(12));
    let texts = ["", "größe", "twelve bytes"].map(str::as_bytes);
    let outputs = run_rows(&mut model, &texts.map(room));
    for (output, text) in outputs.iter().zip(texts) {
        assert_eq!(output[..LENGTH_BYTES], (text.len() as u32).to_le_bytes());
        assert_eq!(&output[LENGTH_BYTES..][..text.len()], text);
        assert!(output[LENGTH_BYTES + text.len()..].iter().all(|&byte| byte == 0));
    }
    for wrong in [&b"\xff\xfe"[..], b"a\0b"] {
        model.stage(0, &room(wrong));
        let error = model.run(1).unwrap_err();
        assert!(matches!(error, RunError::Failed { .. }), "{error}");
    }
    model.stage(0, &room(b"again"));
    model.run(1).unwrap();
}

#[test]
fn outputs_that_no_machine_holds_are_refused_before_memory_is_taken_for_them() {
    // Each node makes a row twice as long: 4 bytes become 256 KiB.
    let names: Vec<String> = (0..=16).map(|at| format!("t{at}")).collect();
    let along_rows = [onnx::number_attribute("axis", 1)];
    let doubles = |of: &[String]| onnx::node("Concat", &[&of[0], &of[0]], &[&of[1]], &along_rows);
    let nodes: Vec<Vec<u8>> = names.windows(2).map(doubles).collect();
    let ends = [onnx::tensor("t0", onnx::FLOAT, &[0, 1]), onnx::tensor("t16", onnx::FLOAT, &[0, 1 << 16])];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("grows.onnx");
    std::fs::write(&path, onnx::file(&onnx::graph(&nodes, &[], &ends[..1], &ends[1..]))).unwrap();
    let error = OnnxRuntimeModel::load(&path, 1 << 20, &options()).err().unwrap();
    assert!(matches!(error, LoadError::TooLarge { role: "outputs", row: 262_144, .. }), "{error}");
}

#[test]
fn a_library_that_was_opened_is_the_process_s() {
    let path = options().library.unwrap();
    assert_eq!(open_library(Some(&path)).unwrap().path, path);
    let again = open_library(Some(Path::new("no/such/library.so"))).unwrap();
    assert_eq!(again.path, path, "a process holds one");
}

/// Loads these bytes and, where they are still a model, runs it: neither may panic.
fn survive(bytes: &[u8]) -> Result<(), LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.onnx");
    std::fs::write(&path, bytes).unwrap();
    let mut model = load(&path)?;
    let input = vec![1; model.signature().input_bytes()];
    // One whose batch was damaged may run one request at a time.
    let rows = model.max_batch();
    (0..rows).for_each(|row| model.stage(row, &input));
    let _ = model.run(rows);
    Ok(())
}

#[test]
fn a_file_whose_batch_was_damaged_runs_one_request_at_a_time() {
    let mut bytes = std::fs::read(fixture("types")).unwrap();
    bytes[274] = 24;
    survive(&bytes).unwrap();
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let whole = std::fs::read(fixture("linear")).unwrap();
    for len in 0..whole.len() {
        assert!(survive(&whole[..len]).is_err(), "{len} of {} bytes were accepted", whole.len());
    }
    survive(&whole).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_damaged_file_never_panics(
        name in prop::sample::select(vec!["linear", "two_inputs", "embedding", "types", "transposed"]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (position, value) in damage {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        let _ = survive(&bytes);
    }
}
