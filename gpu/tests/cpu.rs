//! The CPU executor on small ONNX files: right outputs, rows that do not touch each other, and a
//! clear error for each file that cannot be served. `make_fixtures.py` wrote the files.

use half::f16;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;
use symphony_gpu::{
    ComputeThread, CpuModel, DataType, HostModel, LoadError, MeasureOptions, RunError, measure,
};

const MAX_BATCH: usize = 9;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).with_extension("onnx")
}

fn load(name: &str) -> CpuModel {
    CpuModel::load(&fixture(name), MAX_BATCH).unwrap()
}

fn refused(name: &str) -> String {
    match CpuModel::load(&fixture(name), MAX_BATCH) {
        Ok(_) => panic!("{name} was loaded"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with(&fixture(name).display().to_string()), "{text}");
            text
        }
    }
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

fn output(model: &dyn HostModel, row: usize) -> Vec<u8> {
    let mut output = vec![0xAA; model.signature().output_bytes()];
    model.unstage(row, &mut output);
    output
}

/// The linear model by hand: w[i][j] = i + 10 j, b[j] = j.
fn linear(x: [f32; 4]) -> [f32; 3] {
    [0, 1, 2].map(|j| (0..4).map(|i| x[i] * (i + 10 * j) as f32).sum::<f32>() + j as f32)
}

#[test]
fn the_signature_is_that_of_one_row() {
    let model = load("linear");
    let signature = model.signature();
    assert_eq!((signature.inputs[0].name.as_str(), &signature.inputs[0].shape[..]), ("x", &[4][..]));
    assert_eq!((signature.outputs[0].name.as_str(), &signature.outputs[0].shape[..]), ("y", &[3][..]));
    assert_eq!((signature.input_bytes(), signature.output_bytes()), (16, 16));
    assert_eq!(model.max_batch(), MAX_BATCH);
    assert_eq!(model.weights_bytes(), fixture("linear").metadata().unwrap().len());
}

#[test]
fn every_row_of_every_batch_size_is_what_it_is_by_hand() {
    let mut model = load("linear");
    for rows in 1..=MAX_BATCH {
        let inputs: Vec<[f32; 4]> = (0..rows).map(|r| [r as f32, 1.0, -2.0, (rows * r) as f32]).collect();
        for (row, input) in inputs.iter().enumerate() {
            model.stage(row, &bytes(input));
        }
        model.run(rows).unwrap();
        for (row, input) in inputs.iter().enumerate() {
            assert_eq!(floats(&output(&model, row)[..12]), linear(*input), "row {row} of {rows}");
        }
    }
}

#[test]
fn two_inputs_and_two_outputs_keep_to_their_places() {
    let mut model = load("two_inputs");
    for row in 0..3 {
        let r = row as f32;
        let mut input = bytes(&[r, 2.0, 3.0, f32::NAN]);
        input.extend(bytes(&[10.0, 20.0, r, f32::NAN]));
        model.stage(row, &input);
    }
    model.run(3).unwrap();
    for row in 0..3 {
        let r = row as f32;
        let output = output(&model, row);
        assert_eq!(floats(&output[model.signature().output_range(0)]), [r - 10.0, -18.0, 3.0 - r]);
        assert_eq!(floats(&output[model.signature().output_range(1)]), [r * 10.0, 40.0, 3.0 * r]);
    }
}

#[test]
fn int64_tensors_are_int64_to_the_client() {
    let mut model = load("embedding");
    assert_eq!(model.signature().inputs[0].datatype, DataType::Int64);
    let ids: Vec<u8> = [3i64, 6].iter().flat_map(|id| id.to_le_bytes()).collect();
    model.stage(0, &ids);
    model.run(1).unwrap();
    let output = output(&model, 0);
    let vectors = floats(&output[model.signature().output_range(0)]);
    assert_eq!(vectors, [1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0, -3.0, -4.0, -5.0]);
    let next: Vec<u8> = [4i64, 7].iter().flat_map(|id| id.to_le_bytes()).collect();
    assert_eq!(output[model.signature().output_range(1)], next);
}

#[test]
fn an_index_out_of_range_fails_its_batch_and_not_the_next() {
    let mut model = load("embedding");
    let ids = |a: i64, b: i64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    model.stage(0, &ids(0, 1));
    model.stage(1, &ids(2, i64::MAX));
    assert!(matches!(model.run(2), Err(RunError::Failed { .. })), "8 rows have no such index");
    model.stage(1, &ids(2, 3));
    model.run(2).unwrap();
    assert_eq!(floats(&output(&model, 1)[20..40]), [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn every_other_type_is_converted_on_its_way_in_and_out() {
    let mut model = load("types");
    let row = [
        [1.5f64, -2.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
        [0.5f32, 2.0, -3.0].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        [1i32, i32::MAX, -7].iter().flat_map(|x| x.to_le_bytes()).collect(),
        vec![0, 1, 1],
        vec![0, 128, 255],
        vec![0, 128, 255],
    ];
    let expected = [
        [-1.5f64, 2.0, -0.0].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>(),
        [-0.5f32, -2.0, 3.0].iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        [-1i32, -i32::MAX, 7].iter().flat_map(|x| x.to_le_bytes()).collect(),
        vec![1, 0, 0],
        vec![0, 128, 255],
        vec![0, 128, 255],
    ];
    let mut input = vec![0; model.signature().input_bytes()];
    for (index, tensor) in row.iter().enumerate() {
        input[model.signature().input_range(index)].copy_from_slice(tensor);
    }
    model.stage(0, &vec![0; input.len()]);
    model.stage(1, &input);
    model.run(2).unwrap();
    let output = output(&model, 1);
    for (index, tensor) in expected.iter().enumerate() {
        let name = &model.signature().outputs[index].name;
        assert_eq!(&output[model.signature().output_range(index)], &tensor[..], "{name}");
    }
}

#[test]
fn an_output_of_undeclared_sizes_is_learnt_and_is_row_major() {
    let mut model = load("transposed");
    assert_eq!(model.signature().outputs[0].shape, [3, 2]);
    model.stage(0, &bytes(&[0.0; 6]));
    model.stage(1, &bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    model.run(2).unwrap();
    assert_eq!(floats(&output(&model, 1)), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

#[test]
fn models_share_a_compute_thread_and_run_inside_it() {
    let thread = ComputeThread::new();
    let mut first = CpuModel::load_on(&thread, &fixture("linear"), 2).unwrap();
    let mut second = CpuModel::load_on(&thread, &fixture("two_inputs"), 2).unwrap();
    let result = thread.run(|| {
        first.stage(0, &bytes(&[1.0, 0.0, 0.0, 0.0]));
        first.run(1).unwrap();
        second.run(2).unwrap();
        output(&first, 0)
    });
    assert_eq!(floats(&result[..12]), linear([1.0, 0.0, 0.0, 0.0]));
}

#[test]
fn a_graph_makes_another_model_with_rows_of_its_own() {
    let thread = ComputeThread::new();
    let mut first = CpuModel::load_on(&thread, &fixture("linear"), 2).unwrap();
    first.stage(0, &bytes(&[1.0, 0.0, 0.0, 0.0]));
    let mut second = first.graph().make(&ComputeThread::new()).unwrap();
    second.stage(0, &bytes(&[0.0, 1.0, 0.0, 0.0]));
    std::thread::scope(|scope| {
        scope.spawn(|| first.run(1).unwrap());
        scope.spawn(|| second.run(1).unwrap());
    });
    assert_eq!(floats(&output(&first, 0)[..12]), linear([1.0, 0.0, 0.0, 0.0]));
    assert_eq!(floats(&output(&*second, 0)[..12]), linear([0.0, 1.0, 0.0, 0.0]));
    assert_eq!(second.max_batch(), 2);
}

#[test]
fn a_batch_of_none_or_of_too_many_is_refused() {
    let mut model = load("linear");
    for rows in [0, MAX_BATCH + 1] {
        assert!(matches!(model.run(rows), Err(RunError::Rows { max_batch: MAX_BATCH, .. })));
    }
    let error = CpuModel::load(&fixture("linear"), 0).err().unwrap().to_string();
    assert!(error.ends_with("max_batch is 0; give at least 1"), "{error}");
}

#[test]
fn each_file_that_cannot_be_served_says_what_was_found_and_what_would_be_right() {
    let cases = [
        ("no_such_model", "there is no such file; give the path of an ONNX model"),
        ("unsupported_operator", "LRN"),
        ("unsupported_operator", "an operator is not supported by the executor \"cpu\""),
        ("dynamic_width", "dimension 2 of input `x` is dynamic, with the name \"width\", and has no size"),
        ("strings", "or run the model on the executor \"onnxruntime\""),
        ("no_inputs", "has no inputs"),
    ];
    for (name, expected) in cases {
        let error = refused(name);
        assert!(error.contains(expected), "{error}\nshould contain\n{expected}");
    }
}

#[test]
fn a_folder_and_a_file_of_another_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = CpuModel::load(folder.path(), 1).err().unwrap();
    assert!(matches!(error, LoadError::Unreadable { .. }), "{error}");
    let path = folder.path().join("model.bin");
    std::fs::copy(fixture("linear"), &path).unwrap();
    let error = CpuModel::load(&path, 1).err().unwrap();
    assert!(matches!(error, LoadError::Extension { .. }), "{error}");
}

#[test]
fn inputs_too_large_to_stage_are_refused() {
    let error = CpuModel::load(&fixture("linear"), 1 << 40).err().unwrap();
    assert!(matches!(error, LoadError::TooLarge { row: 16, .. }), "{error}");
}

/// Loads these bytes and, where they are still a model, runs it: neither may panic.
fn survive(bytes: &[u8]) -> Result<(), LoadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.onnx");
    std::fs::write(&path, bytes).unwrap();
    let mut model = CpuModel::load(&path, 3)?;
    let input = vec![1; model.signature().input_bytes()];
    // One whose batch was damaged may run one request at a time.
    let rows = model.max_batch();
    (0..rows).for_each(|row| model.stage(row, &input));
    let _ = model.run(rows).map(|()| output(&model, rows - 1));
    Ok(())
}

#[test]
fn a_file_cut_short_anywhere_is_an_error() {
    let whole = std::fs::read(fixture("linear")).unwrap();
    for len in 0..whole.len() {
        assert!(survive(&whole[..len]).is_err(), "{len} of {} bytes were accepted", whole.len());
    }
    survive(&whole).unwrap();
}

#[test]
fn a_file_with_any_one_byte_flipped_never_panics() {
    for name in ["linear", "embedding"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        for position in 0..whole.len() {
            for mask in [0x01, 0x80, 0xFF] {
                let mut damaged = whole.clone();
                damaged[position] ^= mask;
                let _ = survive(&damaged);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_file_never_panics(
        name in prop::sample::select(vec!["linear", "two_inputs", "embedding", "types", "transposed"]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (position, value) in damage {
            let position = position.index(bytes.len());
            bytes[position] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = survive(&bytes);
    }

    #[test]
    fn a_file_of_any_bytes_is_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(survive(&bytes).is_err());
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours(
        rows in prop::collection::vec(prop::array::uniform4(-100i8..100), 1..=MAX_BATCH),
        row in any::<prop::sample::Index>(),
    ) {
        let mut model = load("linear");
        let rows: Vec<[f32; 4]> = rows.into_iter().map(|row| row.map(f32::from)).collect();
        for (row, input) in rows.iter().enumerate() {
            model.stage(row, &bytes(input));
        }
        model.run(rows.len()).unwrap();
        let row = row.index(rows.len());
        let among_others = output(&model, row)[..12].to_vec();
        model.stage(0, &bytes(&rows[row]));
        model.run(1).unwrap();
        prop_assert_eq!(among_others, &output(&model, 0)[..12]);
    }
}

#[test]
fn a_measured_table_has_every_size_and_never_falls() {
    for name in ["linear", "embedding", "types"] {
        let mut model = CpuModel::load(&fixture(name), 20).unwrap();
        let options =
            MeasureOptions { budget: Duration::from_millis(20), most_runs: 20, ..MeasureOptions::default() };
        let mut steps = Vec::new();
        let table = measure(&mut model, &options, &mut |done, total| steps.push((done, total))).unwrap();
        assert_eq!(table.max_batch(), 20);
        assert_eq!(table.rows().len(), 18, "1 to 16, then 18 and 20");
        assert!(table.latencies().is_sorted());
        assert!(steps.is_sorted_by_key(|step| step.0));
        let last = steps.last().unwrap();
        assert_eq!(last.0, last.1);
        assert!(last.0 >= 5 * 18 && last.0 <= 20 * 18, "{last:?}");
        assert!(table.fit().beta_ns >= 0.0);
    }
}
