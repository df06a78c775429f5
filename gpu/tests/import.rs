//! The import of ONNX files as people have them: a batch that is fixed to 1 becomes any size where
//! rows stay apart, else the model runs one row at a time and says why; hostile files are errors.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "../../engine/tests/harness/light_models.rs"]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "../../engine/tests/harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use library::onnx_library;
use light::{NOT_ON_RTEN, light_models};
use model_rows::run_rows;
use onnx::{
    FLOAT, INT64, constant, external_constant, file, graph, node, number_attribute, tensor, whole_numbers,
};
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use symphony_gpu::import::{DimensionSizes, SizedFile, rewrite_bytes};
use symphony_gpu::{CpuModel, DataType, HostModel, LoadError, OnnxRuntimeModel, OnnxRuntimeOptions};

fn on_onnxruntime(path: &Path, max_batch: usize) -> Result<Box<dyn HostModel>, LoadError> {
    let options = OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() };
    Ok(Box::new(OnnxRuntimeModel::load(path, max_batch, &options)?))
}

fn on_rten(path: &Path, max_batch: usize) -> Result<Box<dyn HostModel>, LoadError> {
    Ok(Box::new(CpuModel::load(path, max_batch)?))
}

type Loader = fn(&Path, usize) -> Result<Box<dyn HostModel>, LoadError>;

const BOTH: [(&str, Loader); 2] = [("cpu", on_rten), ("onnxruntime", on_onnxruntime)];

/// Rows of FP32 numbers, each of another size.
fn rows(count: usize, bytes: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut row = |most: f32| (0..bytes / 4).flat_map(|_| (most * random.f32()).to_le_bytes()).collect();
    (0..count).map(|at| row(1.0 / (at + 1) as f32)).collect()
}

/// The outputs of these rows in one batch.
fn outputs(model: &mut dyn HostModel, rows: &[Vec<u8>]) -> Vec<Vec<f32>> {
    let found = run_rows(model, rows);
    let bytes = model.signature().outputs[0].bytes();
    let numbers = |row: &Vec<u8>| row[..bytes].as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    found.iter().map(numbers).collect()
}

/// The largest difference of two rows, as a part of the largest element.
fn difference(one: &[f32], other: &[f32]) -> f32 {
    let largest = one.iter().fold(0f32, |most, x| most.max(x.abs()));
    one.iter().zip(other).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

#[test]
fn every_light_network_runs_batches_of_which_each_row_is_as_alone_on_both_libraries() {
    for path in light_models() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut of_library = Vec::new();
        for (executor, load) in BOTH {
            let mut model = match load(&path, 3) {
                Ok(model) => model,
                Err(error) => {
                    assert!(executor == "cpu" && NOT_ON_RTEN.contains(&name.as_str()), "{error}");
                    assert!(error.to_string().contains("executor of kind \"onnxruntime\""), "{error}");
                    continue;
                }
            };
            let note = model.import_note().unwrap_or_default();
            assert!(note.contains("was made the batch's"), "{name} on {executor}: {note}");
            let rows = rows(3, model.signature().input_bytes());
            let together = outputs(&mut *model, &rows);
            for (at, row) in rows.iter().enumerate() {
                let alone = outputs(&mut *model, std::slice::from_ref(row));
                let apart = difference(&alone[0], &together[at]);
                assert!(apart < 1e-4, "{name} on {executor}: row {at} differs by {apart}");
            }
            let apart = difference(&together[0], &together[2]);
            assert!(apart > 1e-2, "{name}: the rows can't be told apart, {apart}");
            of_library.push(together);
        }
        assert_eq!(of_library.len(), if NOT_ON_RTEN.contains(&name.as_str()) { 1 } else { 2 }, "{name}");
        if let [ours, theirs] = &of_library[..] {
            let apart = difference(&ours[1], &theirs[1]);
            assert!(apart < 1e-3, "{name}: the libraries differ by {apart}");
        }
    }
}

#[test]
fn a_fixed_batch_gives_what_a_dynamic_one_gives() {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    for (executor, load) in BOTH {
        let mut fixed = load(&fixture("fixed_batch.onnx"), 5).unwrap();
        let mut dynamic = load(&fixture("linear.onnx"), 5).unwrap();
        assert_eq!((fixed.max_batch(), dynamic.import_note()), (5, None), "{executor}");
        let rows = rows(5, fixed.signature().input_bytes());
        assert_eq!(outputs(&mut *fixed, &rows), outputs(&mut *dynamic, &rows), "{executor}");
    }
}

/// Writes a model of these nodes and constants from `x` to `y`, with the batch fixed to 1.
fn write(folder: &Path, nodes: &[Vec<u8>], constants: &[Vec<u8>], x: &[u64], y: &[u64]) -> PathBuf {
    let path = folder.join("model.onnx");
    let graph = graph(nodes, constants, &[tensor("x", FLOAT, x)], &[tensor("y", FLOAT, y)]);
    std::fs::write(&path, file(&graph)).unwrap();
    path
}

/// A model of one node that may mix rows, and what is said of it.
struct MixingCase {
    node: Vec<u8>,
    constants: Vec<Vec<u8>>,
    x: [u64; 2],
    y: [u64; 2],
    expected: &'static str,
}

#[test]
fn what_may_mix_rows_runs_one_at_a_time_and_the_note_says_what_stands_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let axis = |axis| [number_attribute("axis", axis)];
    let keep = |name: &str, value| [number_attribute(name, value)];
    let shape = |sizes: &[i64]| vec![whole_numbers("shape", sizes)];
    let case = |node, constants, x, y, expected| MixingCase { node, constants, x, y, expected };
    let cases = [
        case(
            node("Softmax", &["x"], &["y"], &axis(0)),
            vec![],
            [1, 4],
            [1, 4],
            "Softmax (`y`) works along the batch",
        ),
        case(
            node("CumSum", &["x", "zero"], &["y"], &[]),
            vec![constant("zero", 0.0)],
            [1, 4],
            [1, 4],
            "CumSum (`y`) works along the batch",
        ),
        case(
            node("ReduceMax", &["x"], &["y"], &keep("keepdims", 1)),
            vec![],
            [1, 4],
            [1, 1],
            "ReduceMax (`y`) folds the batch",
        ),
        case(
            node("Gemm", &["x", "x"], &["y"], &keep("transA", 1)),
            vec![],
            [1, 1],
            [1, 1],
            "more than its first input differs by row",
        ),
        case(
            node("Flatten", &["x"], &["y"], &axis(-2i64 as u64)),
            vec![],
            [1, 4],
            [1, 4],
            "Flatten (`y`) folds the batch",
        ),
        // One row becomes two.
        case(
            node("Reshape", &["x", "shape"], &["y"], &[]),
            shape(&[-1, 2]),
            [1, 4],
            [2, 2],
            "the model has no batch",
        ),
    ];
    for MixingCase { node, constants, x, y, expected } in cases {
        let path = write(folder.path(), &[node], &constants, &x, &y);
        for (executor, load) in BOTH {
            match load(&path, 8) {
                Ok(model) => {
                    let note = model.import_note().unwrap_or_default();
                    assert_eq!(model.max_batch(), 1, "{executor}: {note}");
                    assert!(note.contains(expected), "{executor}: {note}");
                    assert!(note.contains(" is one request"), "{executor}: {note}");
                }
                // rten has no FP32 axis.
                Err(error) => assert!(expected.contains("CumSum"), "{executor}: {error}"),
            }
        }
    }
}

#[test]
fn a_declared_batch_whose_rows_depend_on_each_other_is_kept_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [
        node("ReduceMax", &["x"], &["most"], &[number_attribute("keepdims", 1)]),
        node("Div", &["x", "most"], &["y"], &[]),
    ];
    let path = write(folder.path(), &nodes, &[], &[0, 4], &[0, 4]);
    for (executor, load) in BOTH {
        let model = load(&path, 8).unwrap();
        let note = model.import_note().unwrap_or_default();
        assert_eq!(model.max_batch(), 8, "{executor}: {note}");
        assert!(note.contains("depend on the others of its batch") && note.contains("output `y`"), "{note}");
        let alone = load(&path, 1).unwrap();
        assert_eq!(alone.import_note(), None, "{executor}");
    }
}

#[test]
fn a_reshape_to_one_row_is_rewritten_for_its_node_alone() {
    let folder = tempfile::tempdir().unwrap();
    // One constant is the shape of both, and of a constant besides.
    let nodes = [
        node("Reshape", &["x", "shape"], &["a"], &[]),
        node("Reshape", &["a", "shape"], &["b"], &[]),
        node("ConstantOfShape", &["shape"], &["zeros"], &[]),
        node("Add", &["b", "zeros"], &["y"], &[]),
    ];
    let path = write(folder.path(), &nodes, &[whole_numbers("shape", &[1, 2, 2])], &[1, 4], &[1, 2, 2]);
    for (executor, load) in BOTH {
        let mut model = load(&path, 3).unwrap();
        assert_eq!(model.max_batch(), 3, "{executor}: {:?}", model.import_note());
        let rows = rows(3, model.signature().input_bytes());
        let as_floats = |row: &Vec<u8>| -> Vec<f32> {
            row[..16].as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
        };
        assert_eq!(outputs(&mut *model, &rows), rows.iter().map(as_floats).collect::<Vec<_>>(), "{executor}");
    }
}

#[test]
fn weights_are_read_from_the_models_own_folder_only() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("models");
    std::fs::create_dir_all(folder.join("parts")).unwrap();
    let ones: Vec<u8> = [1f32; 4].iter().flat_map(|x| x.to_le_bytes()).collect();
    for place in ["w.bin", "models/w.data", "models/parts/w.bin"] {
        std::fs::write(outer.path().join(place), &ones).unwrap();
    }
    std::os::unix::fs::symlink(outer.path().join("w.bin"), folder.join("link.bin")).unwrap();
    let absolute = outer.path().join("w.bin");
    let adds = [node("Add", &["x", "w"], &["y"], &[])];
    let with = |location: &str| {
        let weights = external_constant("w", &[1, 4], location);
        write(&folder, &adds, &[weights], &[1, 4], &[1, 4])
    };
    for (executor, load) in BOTH {
        for (location, expected) in [
            ("../w.bin", "is outside of the model's folder"),
            (absolute.to_str().unwrap(), "is outside of the model's folder"),
            ("parts/../../w.bin", "is outside of the model's folder"),
            ("link.bin", "leads out of the model's folder"),
            ("missing.bin", "missing.bin: No such file"),
            ("parts", "parts is no file"),
        ] {
            let error = load(&with(location), 2).err().unwrap();
            assert!(matches!(error, LoadError::ExternalData { .. }), "{executor}: {error}");
            assert!(error.to_string().contains(expected), "{executor}: {error}");
        }
        // rten takes no folders, and names of data only.
        let location = if executor == "cpu" { "w.data" } else { "parts/w.bin" };
        let mut model = load(&with(location), 2).unwrap();
        assert_eq!(model.max_batch(), 2, "{executor}: {:?}", model.import_note());
        assert!(
            outputs(&mut *model, &rows(2, 64))[1].iter().all(|&x| (1.0..=1.5).contains(&x)),
            "{executor}"
        );
    }
}

#[test]
fn hostile_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let identity = || node("Identity", &["x"], &["y"], &[]);
    // A graph in a graph, and so on.
    let mut deep = graph(&[], &[], &[], &[]);
    for _ in 0..2_000 {
        deep = graph(
            &[node("If", &["x"], &["y"], &[onnx::graph_attribute("then_branch", &deep)])],
            &[],
            &[],
            &[],
        );
    }
    let deep_file = folder.path().join("deep.onnx");
    std::fs::write(&deep_file, file(&deep)).unwrap();
    let cycle = [
        node("Add", &["x", "b"], &["a"], &[]),
        node("Add", &["a", "x"], &["b"], &[]),
        node("Add", &["a", "b"], &["y"], &[]),
    ];
    let huge =
        [node("ConstantOfShape", &["shape"], &["zeros"], &[]), node("Add", &["x", "zeros"], &["y"], &[])];
    let many = 1i64 << 31;
    let named = |name: &str, nodes: &[Vec<u8>], constants: &[Vec<u8>], x: &[u64]| {
        let path = write(folder.path(), nodes, constants, x, &[1, 4]);
        let to = folder.path().join(name).with_extension("onnx");
        std::fs::rename(path, &to).unwrap();
        to
    };
    // Weights that announce 2^55 bytes: found by the fuzzer.
    let announces = folder.path().join("announces.onnx");
    std::fs::write(
        &announces,
        include_bytes!("../../engine/fuzz/seeds/onnx_import/weights_announce_2_55_bytes"),
    )
    .unwrap();
    // Half of a sound file: the nodes are there, the rest is not.
    let sound = named("sound", &[identity()], &[], &[1, 4]);
    let bytes = std::fs::read(&sound).unwrap();
    let truncated = folder.path().join("truncated.onnx");
    std::fs::write(&truncated, &bytes[..bytes.len() / 2]).unwrap();
    let files = [
        (truncated, ""),
        (announces, "a constant is damaged"),
        (deep_file, "nested more than 32 deep"),
        (named("cycle", &cycle, &[], &[1, 4]), ""),
        (
            named("huge", &huge, &[whole_numbers("shape", &[many])], &[1, 4]),
            "a constant has the shape [2147483648]",
        ),
        (
            named("overflow", &huge, &[whole_numbers("shape", &[many, many, many])], &[1, 4]),
            "a constant has the shape",
        ),
        (named("wide", &[identity()], &[], &[1, 1 << 31, 1 << 31]), ""),
        (named("negative", &[identity()], &[], &[1, u64::MAX]), ""),
        (named("none", &[], &[], &[1, 4]), ""),
    ];
    for (path, expected) in files {
        for (executor, load) in BOTH {
            let error = load(&path, 2)
                .err()
                .unwrap_or_else(|| panic!("{} on {executor}", path.display()))
                .to_string();
            assert!(error.contains(expected), "{executor}: {error}");
        }
    }
}

/// A real network, and a model that reshapes.
static SOUND: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let squeezenet = light_models().into_iter().find(|path| path.ends_with("light_squeezenet.onnx")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nodes = [
        node("Reshape", &["x", "shape"], &["a"], &[]),
        node("Relu", &["a"], &["b"], &[]),
        node("Softmax", &["b"], &["y"], &[number_attribute("axis", 1)]),
    ];
    let reshapes = write(folder.path(), &nodes, &[whole_numbers("shape", &[1, 2, 2])], &[1, 4], &[1, 2, 2]);
    [std::fs::read(squeezenet).unwrap(), std::fs::read(reshapes).unwrap()]
});

#[test]
fn what_was_rewritten_does_not_change_again() {
    for file in SOUND.iter() {
        let rewritten = rewrite_bytes(file).unwrap();
        assert!(rewrite_bytes(&rewritten).is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn a_damaged_file_is_refused_or_rewritten_once(
        which in 0usize..2,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut: bool,
    ) {
        let mut bytes = SOUND[which].clone();
        // The network's beginning has its nodes.
        let within = bytes.len().min(8_192);
        for (position, value) in damage {
            let position = position.index(within);
            bytes[position] = value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Some(rewritten) = rewrite_bytes(&bytes) {
            prop_assert!(rewrite_bytes(&rewritten).is_none());
        }
    }
}

/// The sizes of these dimensions.
fn sizes(of: &[(&str, u32)]) -> DimensionSizes {
    of.iter().map(|&(name, size)| (name.to_owned(), NonZeroU32::new(size).unwrap())).collect()
}

#[test]
fn a_dynamic_dimension_has_the_size_that_is_given_and_the_outputs_follow_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dynamic_width.onnx");
    let options = OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() };
    for width in [1, 5, 64] {
        let sizes = sizes(&[("width", width)]);
        let file = SizedFile { sizes: &sizes, ..SizedFile::from(&path) };
        let on_rten = Box::new(CpuModel::load(file, 4).unwrap()) as Box<dyn HostModel>;
        let on_onnxruntime = Box::new(OnnxRuntimeModel::load(file, 4, &options).unwrap());
        for mut model in [on_rten, on_onnxruntime] {
            assert_eq!(model.signature().inputs[0].shape, [3, width as usize]);
            assert_eq!(model.signature().outputs[0].shape, [3, width as usize]);
            assert_eq!((model.max_batch(), model.import_note()), (4, None));
            let bytes = model.signature().inputs[0].bytes();
            let row: Vec<u8> = (0..bytes / 4).flat_map(|at| (at as f32 - 4.0).to_le_bytes()).collect();
            let expected: Vec<f32> = (0..bytes / 4).map(|at| (at as f32 - 4.0).max(0.0)).collect();
            let padded = [&row[..], &vec![0; model.signature().input_bytes() - bytes]].concat();
            assert_eq!(outputs(&mut *model, &vec![padded; 4]), vec![expected; 4]);
        }
    }
}

#[test]
fn a_batch_fixed_to_one_becomes_dynamic_beside_a_dimension_that_is_given_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &[node("Relu", &["x"], &["y"], &[])], &[], &[1, 3, 0], &[1, 3, 0]);
    // The harness names a dynamic dimension N, in field 2. In field 3 the text is no name.
    let unnamed = std::fs::read(&path).unwrap();
    let unnamed: Vec<u8> =
        unnamed.windows(3).map(|of| if of == [0x12, 1, b'N'] { 0x1A } else { of[0] }).collect();
    let end = std::fs::read(&path).unwrap().split_off(unnamed.len());
    std::fs::write(&path, [unnamed, end].concat()).unwrap();
    let sizes = sizes(&[("x.2", 7)]);
    let model = CpuModel::load(SizedFile { sizes: &sizes, ..SizedFile::from(&path) }, 4).unwrap();
    assert_eq!((model.max_batch(), &model.signature().outputs[0].shape[..]), (4, &[3, 7][..]));
    assert!(model.import_note().unwrap().contains("was made the batch's"));
}

#[test]
fn a_size_for_no_dimension_names_those_that_there_are() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dynamic_width.onnx");
    let sizes = sizes(&[("height", 2), ("width", 2)]);
    let error =
        CpuModel::load(SizedFile { sizes: &sizes, ..SizedFile::from(&path) }, 4).err().unwrap().to_string();
    assert!(error.contains("no dynamic dimension \"height\"") && error.ends_with("[\"width\"]"), "{error}");
}

#[test]
fn an_output_that_is_known_at_the_load_has_its_name_and_type() {
    let nodes = [node("Size", &["x"], &["size"], &[]), node("Unsqueeze", &["size", "first"], &["y"], &[])];
    let ends = [tensor("x", FLOAT, &[1, 4]), tensor("y", INT64, &[1])];
    let graph = graph(&nodes, &[whole_numbers("first", &[0])], &ends[..1], &ends[1..]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("size.onnx");
    std::fs::write(&path, file(&graph)).unwrap();
    for (executor, load) in BOTH {
        let mut model = load(&path, 1).unwrap();
        let output = &model.signature().outputs[0];
        assert_eq!((output.name.as_str(), output.datatype), ("y", DataType::Int64), "{executor}");
        assert_eq!(run_rows(&mut *model, &[vec![0; 16]]), [4_i64.to_le_bytes()], "{executor}");
    }
}
