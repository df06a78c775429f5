//! Models that share their first layers, run as one: whatever the mix of a batch, a row has the
//! outputs that its own whole model gives for it alone, on both libraries.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "../../engine/tests/harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use library::onnx_library;
use onnx::{FLOAT, INT64, constant, external_constant, file, graph, node, numbers, tensor};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use symphony_gpu::import::SizedFile;
use symphony_gpu::{
    ComputeThread, CpuModel, GroupError, HostModel, MeasureOptions, OnnxRuntimeModel, OnnxRuntimeOptions,
    Signature, measure,
};

const MAX_BATCH: usize = 6;

fn options() -> OnnxRuntimeOptions {
    OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() }
}

/// Models as one, with the signature of each.
type Group = (Box<dyn HostModel>, Vec<Signature>);

type GroupLoader = fn(&[PathBuf]) -> Result<Group, GroupError>;

fn on_rten(paths: &[PathBuf]) -> Result<Group, GroupError> {
    let files: Vec<SizedFile<'_>> = paths.iter().map(SizedFile::from).collect();
    let group = CpuModel::load_group(&ComputeThread::new(), &files, MAX_BATCH)?;
    let variants = group.variants().to_vec();
    Ok((Box::new(group), variants))
}

fn on_onnxruntime(paths: &[PathBuf]) -> Result<Group, GroupError> {
    let files: Vec<SizedFile<'_>> = paths.iter().map(SizedFile::from).collect();
    let group = OnnxRuntimeModel::load_group(&files, MAX_BATCH, &options())?;
    let variants = group.variants().to_vec();
    Ok((Box::new(group), variants))
}

const BOTH: [(&str, GroupLoader); 2] = [("cpu", on_rten), ("onnxruntime", on_onnxruntime)];

fn alone(executor: &str, path: &Path) -> Box<dyn HostModel> {
    match executor {
        "cpu" => Box::new(CpuModel::load(path, 1).unwrap()),
        _ => Box::new(OnnxRuntimeModel::load(path, 1, &options()).unwrap()),
    }
}

/// Numbers from -1 to 1 that follow from a seed.
fn seeded(seed: u64, count: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| 2.0 * random.f32() - 1.0).collect()
}

fn write(folder: &Path, name: &str, graph: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, file(graph)).unwrap();
    path
}

/// The inputs of all models below: `x`, and `k`, which no shared layer takes.
fn inputs() -> [Vec<u8>; 2] {
    [tensor("x", FLOAT, &[0, 4]), tensor("k", INT64, &[0, 2])]
}

/// The layers that all models below share: `hidden` is max(x w, 0), whatever the names.
fn shared(hidden: &str) -> [Vec<u8>; 2] {
    [node("MatMul", &["x", "w"], &["xw"], &[]), node("Relu", &["xw"], &[hidden], &[])]
}

fn shared_weights() -> Vec<u8> {
    numbers("w", &[4, 8], &seeded(1, 32))
}

/// A model of one output, of this width.
fn of_width(folder: &Path, name: &str, width: u64) -> PathBuf {
    let nodes = [shared("h").to_vec(), vec![node("MatMul", &["h", "own"], &["y"], &[])]].concat();
    let weights = [shared_weights(), numbers("own", &[8, width], &seeded(width, 8 * width))];
    write(folder, name, &graph(&nodes, &weights, &inputs(), &[tensor("y", FLOAT, &[0, width])]))
}

/// A model of two outputs, of which one needs `k`, and other names.
fn of_two_outputs(folder: &Path) -> PathBuf {
    let own = [
        node("Shape", &["hidden"], &["size"], &[]),
        node("Reshape", &["more", "size"], &["sum"], &[]),
        node("Mul", &["k", "k"], &["squares"], &[]),
    ];
    let more = [node("Add", &["hidden", "c"], &["more"], &[])];
    let nodes = [shared("hidden").to_vec(), more.to_vec(), own.to_vec()].concat();
    let outputs = [tensor("sum", FLOAT, &[0, 8]), tensor("squares", INT64, &[0, 2])];
    write(folder, "two.onnx", &graph(&nodes, &[shared_weights(), constant("c", 0.5)], &inputs(), &outputs))
}

/// A model that has no layer of its own.
fn of_shared_layers(folder: &Path) -> PathBuf {
    let outputs = [tensor("all", FLOAT, &[0, 8])];
    write(folder, "all.onnx", &graph(&shared("all"), &[shared_weights()], &inputs(), &outputs))
}

fn models(folder: &Path) -> Vec<PathBuf> {
    vec![
        of_width(folder, "narrow.onnx", 3),
        of_two_outputs(folder),
        of_width(folder, "wide.onnx", 40),
        of_shared_layers(folder),
    ]
}

/// A row of `x` and `k` that follows from a seed.
fn row(seed: u64) -> Vec<u8> {
    let x = seeded(seed, 4).into_iter().flat_map(f32::to_le_bytes);
    let k = [seed as i64 % 7, 3].into_iter().flat_map(i64::to_le_bytes);
    x.chain(k).collect()
}

/// Runs rows, each with the number of its variant, in one batch, and returns the outputs of each.
fn run_mixed(group: &mut dyn HostModel, variants: &[Signature], rows: &[(u32, Vec<u8>)]) -> Vec<Vec<u8>> {
    let numbers: Vec<u32> = rows.iter().map(|(variant, _)| *variant).collect();
    group.arrange(&numbers);
    for (at, (variant, row)) in rows.iter().enumerate() {
        let signature = &variants[*variant as usize];
        let mut input = row.clone();
        input.resize(signature.input_bytes(), 0);
        signature.set_variant(&mut input, *variant);
        assert_eq!(group.signature().variant(&input), *variant);
        group.stage(at, &input);
    }
    group.run(rows.len()).unwrap();
    let output = |(at, (variant, _)): (usize, &(u32, Vec<u8>))| {
        let mut output = vec![0; variants[*variant as usize].output_bytes()];
        group.unstage(at, &mut output);
        output
    };
    rows.iter().enumerate().map(output).collect()
}

fn run_alone(model: &mut dyn HostModel, row: &[u8]) -> Vec<u8> {
    model.stage(0, row);
    model.run(1).unwrap();
    let mut output = vec![0; model.signature().output_bytes()];
    model.unstage(0, &mut output);
    output
}

/// Compares rows of outputs: floats to a part in 100,000, whole numbers exactly.
fn assert_same(signature: &Signature, found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, spec) in signature.outputs.iter().enumerate() {
        let range = signature.output_range(at);
        let (found, expected) = (&found[range.clone()], &expected[range]);
        if spec.datatype != symphony_gpu::DataType::Fp32 {
            assert_eq!(found, expected, "{what}: {}", spec.name);
            continue;
        }
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
        };
        let (found, expected) = (floats(found), floats(expected));
        let most = 1e-5 * expected.iter().fold(1f32, |most, x| most.max(x.abs()));
        let is_same = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= most);
        assert!(is_same, "{what}: {}: {found:?} and not {expected:?}", spec.name);
    }
}

/// A group on each library, and its models alone.
struct Loaded {
    executor: &'static str,
    group: Group,
    alone: Vec<Box<dyn HostModel>>,
}

fn loaded() -> MutexGuard<'static, Vec<Loaded>> {
    static LOADED: LazyLock<Mutex<Vec<Loaded>>> = LazyLock::new(|| {
        let folder = tempfile::tempdir().unwrap();
        let paths = models(folder.path());
        let load = |&(executor, load): &(&'static str, GroupLoader)| Loaded {
            executor,
            group: load(&paths).unwrap(),
            alone: paths.iter().map(|path| alone(executor, path)).collect(),
        };
        Mutex::new(BOTH.iter().map(load).collect())
    });
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_row_has_the_outputs_of_its_own_model_alone_whatever_the_mix(
        rows in prop::collection::vec((0u32..4, 0u64..1000), 1..=MAX_BATCH),
    ) {
        let rows: Vec<(u32, Vec<u8>)> =
            rows.into_iter().map(|(variant, seed)| (variant, row(seed))).collect();
        for Loaded { executor, group: (group, variants), alone } in loaded().iter_mut() {
            let found = run_mixed(&mut **group, variants, &rows);
            for ((variant, row), found) in rows.iter().zip(&found) {
                let expected = run_alone(&mut *alone[*variant as usize], row);
                assert_same(&variants[*variant as usize], found, &expected, executor);
            }
        }
    }
}

#[test]
fn a_group_made_of_its_graph_gives_the_same_and_a_wrong_mix_is_an_error() {
    let rows: Vec<(u32, Vec<u8>)> = (0..4).map(|variant| (variant, row(variant.into()))).collect();
    for Loaded { executor, group: (group, variants), .. } in loaded().iter_mut() {
        let expected = run_mixed(&mut **group, variants, &rows);
        let mut made = group.graph().make(&ComputeThread::new()).unwrap();
        assert_eq!(run_mixed(&mut *made, variants, &rows), expected, "{executor}");
        assert_eq!(made.memory_bytes(), group.memory_bytes(), "{executor}");
        group.arrange(&[0, 4]);
        let input = vec![0; group.signature().input_bytes()];
        (0..2).for_each(|at| group.stage(at, &input));
        let error = group.run(2).unwrap_err().to_string();
        assert!(error.contains("each below 4"), "{error}");
        assert!(group.run(1).is_err() && group.run(MAX_BATCH + 1).is_err());
        assert_eq!(run_mixed(&mut **group, variants, &rows), expected, "{executor}: it goes on");
    }
}

#[test]
fn a_profile_is_measured_on_batches_in_which_every_model_has_rows() {
    for Loaded { executor, group: (group, variants), .. } in loaded().iter_mut() {
        let mut of_rows: Vec<u32> = (0..MAX_BATCH).map(|row| group.slowest_variant(row)).collect();
        assert!(of_rows[4..].iter().all(|&variant| variant == of_rows[0]), "{executor}: {of_rows:?}");
        of_rows.truncate(variants.len());
        of_rows.sort_unstable();
        assert_eq!(of_rows, [0, 1, 2, 3], "{executor}");
        let options = MeasureOptions { least_runs: 1, most_runs: 2, ..MeasureOptions::default() };
        assert_eq!(measure(&mut **group, &options, &mut |_, _| ()).unwrap().max_batch(), MAX_BATCH);
    }
}

#[test]
fn weights_that_are_shared_take_memory_once() {
    const WIDTH: u64 = 512;
    let folder = tempfile::tempdir().unwrap();
    let external = seeded(3, WIDTH * WIDTH).into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
    std::fs::write(folder.path().join("shared.data"), &external).unwrap();
    let model = |own: u64| {
        let nodes = [
            node("MatMul", &["x", "w"], &["xw"], &[]),
            node("Relu", &["xw"], &["h"], &[]),
            node("MatMul", &["h", "own"], &["y"], &[]),
        ];
        let weights = [
            external_constant("w", &[WIDTH, WIDTH], "shared.data"),
            numbers("own", &[WIDTH, 2], &seeded(own, 2 * WIDTH)),
        ];
        let (x, y) = (tensor("x", FLOAT, &[0, WIDTH]), tensor("y", FLOAT, &[0, 2]));
        write(folder.path(), &format!("{own}.onnx"), &graph(&nodes, &weights, &[x], &[y]))
    };
    let paths: Vec<PathBuf> = (10..18).map(model).collect();
    for (executor, load) in BOTH {
        let (few, _) = load(&paths[..2]).unwrap();
        let (many, variants) = load(&paths).unwrap();
        let separate: u64 = paths.iter().map(|path| alone(executor, path).memory_bytes()).sum();
        let (few, many, shared) = (few.memory_bytes(), many.memory_bytes(), external.len() as u64);
        assert!(few >= shared && many - few < shared / 10, "{executor}: {few}, then {many}");
        // rten keeps weights twice, and ONNX Runtime's models the content of their file.
        assert!(many < shared * 5 / 2, "{executor}: {many}");
        assert!(many * 3 < separate, "{executor}: {many}, and {separate} each for itself");
        assert_eq!(variants.len(), 8);
    }
}

/// What the file at fault is called, and what is said of it.
fn refusal(load: GroupLoader, paths: &[PathBuf]) -> (String, String) {
    let GroupError { at, error } = load(paths).err().expect("it is refused");
    (paths[at].file_name().unwrap().to_string_lossy().into_owned(), error.to_string())
}

#[test]
fn models_that_can_not_be_run_as_one_are_refused_with_the_file_and_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fine = || of_width(folder, "fine.onnx", 3);
    let of_first = |name: &str, first: u64, x: Vec<u8>| {
        let nodes = [node("MatMul", &["x", "w"], &["y"], &[])];
        let weights = [numbers("w", &[4, 8], &seeded(first, 32))];
        let inputs = [x, tensor("k", INT64, &[0, 2])];
        write(folder, name, &graph(&nodes, &weights, &inputs, &[tensor("y", FLOAT, &[0, 8])]))
    };
    let other = of_first("other.onnx", 2, tensor("x", FLOAT, &[0, 4]));
    let renamed = {
        let nodes = [node("MatMul", &["picture", "w"], &["y"], &[])];
        let input = tensor("picture", FLOAT, &[0, 4]);
        write(
            folder,
            "renamed.onnx",
            &graph(&nodes, &[shared_weights()], &[input], &[tensor("y", FLOAT, &[0, 8])]),
        )
    };
    let mixes = {
        let own = [
            node("ReduceSum", &["h", "first"], &["of_all"], &[]),
            node("Mul", &["h", "of_all"], &["y"], &[]),
        ];
        let nodes = [shared("h").to_vec(), own.to_vec()].concat();
        let weights = [shared_weights(), onnx::whole_numbers("first", &[0])];
        write(folder, "mixes.onnx", &graph(&nodes, &weights, &inputs(), &[tensor("y", FLOAT, &[0, 8])]))
    };
    let whole = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/scalar.onnx");
    let missing = folder.join("missing.onnx");
    for (_, load) in BOTH {
        for (second, said) in [
            (&other, "shares no layer with "),
            (&renamed, "its inputs are `picture` FP32 [4], and those of "),
            (&mixes, "differs in a batch"),
            (&missing, "there is no such file"),
        ] {
            let (file, error) = refusal(load, &[fine(), second.clone()]);
            assert!(error.contains(said), "{error}");
            assert_eq!(file, second.file_name().unwrap().to_string_lossy(), "{error}");
        }
        let (file, error) = refusal(load, &[whole.clone(), fine()]);
        assert!(error.contains("can't be run as one"), "{file}: {error}");
    }
}
