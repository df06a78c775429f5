//! Plans: what becomes of a model's nodes, memory that no two tensors use at once, the file of a
//! plan, and what is refused.

#[path = "../../engine/tests/harness/light_models.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod light;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "../../engine/tests/harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use light::made_folder;
use model_rows::run_rows;
use onnx::{BOOL, FLOAT, constant, file, graph, named_node, node, numbers, numbers_attribute, tensor};
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use symphony_gpu::HostModel;
use symphony_gpu::plan::{
    CompileOptions, ImageLayout, Launch, Operation, Plan, PlanElement, PlanModel, PlanPrecision, PlanRegion,
    compile,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Compiles a model of these bytes.
fn compiled(bytes: &[u8], max_batch: usize) -> Result<Plan, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, bytes).unwrap();
    compile(&path, max_batch).map(|compiled| compiled.plan).map_err(|error| error.to_string())
}

/// A function of a random model: of one or two tensors that were made before.
#[derive(Clone, Copy, Debug)]
enum Drawn {
    Relu(usize),
    Sum(usize, usize),
    Difference(usize, usize),
    Reversed(usize),
}

const WIDTH: usize = 3;

fn any_model() -> impl Strategy<Value = Vec<Drawn>> {
    let index = any::<prop::sample::Index>;
    let drawn = (0..4, index(), index());
    prop::collection::vec(drawn, 1..24).prop_map(|nodes| {
        let node = |(at, (kind, one, other)): (usize, &(i32, prop::sample::Index, prop::sample::Index))| {
            let (one, other) = (one.index(at + 1), other.index(at + 1));
            match kind {
                0 => Drawn::Relu(one),
                1 => Drawn::Sum(one, other),
                2 => Drawn::Difference(one, other),
                _ => Drawn::Reversed(one),
            }
        };
        nodes.iter().enumerate().map(node).collect()
    })
}

/// Returns the file of a random model, whose outputs are its last two tensors, and some that are
/// not used.
fn model_of(nodes: &[Drawn]) -> Vec<u8> {
    let name = |at: usize| format!("t{at}");
    let made = nodes.iter().enumerate().map(|(at, &drawn)| {
        let (kind, inputs) = match drawn {
            Drawn::Relu(x) => ("Relu", vec![name(x)]),
            Drawn::Sum(x, y) => ("Add", vec![name(x), name(y)]),
            Drawn::Difference(x, y) => ("Sub", vec![name(x), name(y)]),
            Drawn::Reversed(x) => {
                ("Slice", vec![name(x), "start".into(), "end".into(), "axis".into(), "step".into()])
            }
        };
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        node(kind, &inputs, &[&name(at + 1)], &[])
    });
    let shape = [0, WIDTH as u64];
    let output = |at: usize| tensor(&name(at), FLOAT, &shape);
    let numbers = [("start", -1), ("end", i64::MIN), ("axis", 1), ("step", -1)];
    let constants = numbers.map(|(name, value)| onnx::whole_numbers(name, &[value]));
    let outputs: Vec<Vec<u8>> = (nodes.len().max(2) - 1..=nodes.len()).map(output).collect();
    file(&graph(&made.collect::<Vec<_>>(), &constants, &[output(0)], &outputs))
}

/// Computes all tensors of a random model for one row.
fn computed(nodes: &[Drawn], x: [f32; WIDTH]) -> Vec<[f32; WIDTH]> {
    let mut tensors = vec![x];
    for &drawn in nodes {
        let of = |x: usize, y: usize, function: fn(f32, f32) -> f32| -> [f32; WIDTH] {
            std::array::from_fn(|at| function(tensors[x][at], tensors[y][at]))
        };
        let next = match drawn {
            Drawn::Relu(x) => of(x, x, |x, _| x.max(0.0)),
            Drawn::Sum(x, y) => of(x, y, |x, y| x + y),
            Drawn::Difference(x, y) => of(x, y, |x, y| x - y),
            Drawn::Reversed(x) => std::array::from_fn(|at| tensors[x][WIDTH - 1 - at]),
        };
        tensors.push(next);
    }
    tensors
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn launches_read_only_what_was_written_and_give_what_the_model_says(nodes in any_model()) {
        let plan = compiled(&model_of(&nodes), 3).unwrap();
        // Refuses a launch that reads what was not written, or was overwritten.
        plan.check().unwrap();
        let mut model = PlanModel::new(plan).unwrap();
        let rows = [[1.0, -2.0, 3.5], [0.0, 0.25, -1.0], [-4.0, 2.0, 8.0]];
        let signature = model.signature().clone();
        let staged = rows.map(|row| {
            let mut bytes = vec![0; signature.input_bytes()];
            bytes[..4 * WIDTH].copy_from_slice(&row.map(f32::to_le_bytes).concat());
            bytes
        });
        for (found, row) in run_rows(&mut model, &staged).iter().zip(rows) {
            let tensors = computed(&nodes, row);
            let expected = &tensors[nodes.len().max(2) - 1..];
            for (at, expected) in expected.iter().enumerate() {
                let bytes = &found[signature.output_range(at)];
                prop_assert_eq!(bytes, &expected.map(f32::to_le_bytes).concat()[..]);
            }
        }
    }

    #[test]
    fn a_damaged_file_of_a_plan_is_refused_or_runs(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = compile(&fixture("linear.onnx"), 2).unwrap().plan.to_bytes().unwrap();
        changes.iter().for_each(|(at, byte)| *at.get_mut(&mut bytes) = *byte);
        if let Some(length) = length {
            bytes.truncate(length.index(bytes.len()));
        }
        if let Ok(plan) = Plan::from_bytes(&bytes) {
            let mut model = PlanModel::new(plan).unwrap();
            let rows = model.max_batch();
            let _ = model.run(rows);
        }
    }
}

#[test]
fn a_plan_is_read_as_it_was_written_and_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("linear.plan");
    let plan = compile(&fixture("linear.onnx"), 4).unwrap().plan;
    plan.write(&path).unwrap();
    let read = Plan::read(&path).unwrap();
    assert_eq!(read, plan);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left behind");
    let refused = Plan::read(&fixture("linear.onnx")).unwrap_err().to_string();
    assert!(refused.contains("linear.onnx: is not a plan or is damaged"), "{refused}");
    let mut bytes = plan.to_bytes().unwrap();
    bytes[7] = 1;
    assert!(Plan::from_bytes(&bytes).unwrap_err().contains("version 1; 2 is read"));
}

/// Returns the plan of a chain of three sums of the input with itself.
fn chain() -> Plan {
    let names = ["x", "a", "b", "y"];
    let nodes: Vec<Vec<u8>> =
        names.windows(2).map(|pair| node("Add", &[pair[0], pair[0]], &[pair[1]], &[])).collect();
    let values = ["x", "y"].map(|name| tensor(name, FLOAT, &[0, 80]));
    compiled(&file(&graph(&nodes, &[], &values[..1], &values[1..])), 1).unwrap()
}

#[test]
fn a_plan_that_reads_what_is_not_written_is_refused() {
    let change = |change: fn(&mut Vec<Launch>)| {
        let mut plan = chain();
        change(&mut plan.batches[0].launches);
        plan.check().unwrap_err()
    };
    let reversed = change(|launches| launches.swap(0, 1));
    assert!(reversed.contains("with 1 rows, launch 0 (b): it reads 0..320 of workspace"), "{reversed}");
    let overlapping = change(|launches| launches[1].output = launches[1].inputs[0].clone());
    assert!(overlapping.contains("which it reads"), "{overlapping}");
    let outside = change(|launches| launches[1].inputs[0].offset = 1 << 20);
    assert!(outside.contains("does not lie at 1048576"), "{outside}");
    let weights = change(|launches| launches[0].output.region = PlanRegion::Weights);
    assert!(weights.contains("of weights"), "{weights}");
    let nothing = change(|launches| launches.truncate(2));
    assert!(nothing.contains("output `y` is not written"), "{nothing}");
}

#[test]
fn an_operator_that_plans_lack_is_named_with_its_node_and_the_file() {
    let values = ["x", "y"].map(|name| tensor(name, FLOAT, &[0, 4]));
    // Exporters leave names of nodes out; then it is the first output's.
    let nodes =
        [named_node("/head/Det", "Det", &["x"], &["d"], &[]), named_node("", "Hardmax", &["d"], &["y"], &[])];
    let refused = compiled(&file(&graph(&nodes, &[], &values[..1], &values[1..])), 1).unwrap_err();
    assert!(refused.contains("model.onnx: can't become a plan"), "{refused}");
    assert!(refused.contains("the operators Det (node `/head/Det`), Hardmax (node `y`)"), "{refused}");
    let pads = numbers_attribute("pads", &[0, 0, 0, 0]);
    let nodes = [named_node("/head/MaxPool", "MaxPool", &["x"], &["y"], &[pads])];
    let refused = compiled(&file(&graph(&nodes, &[], &values[..1], &values[1..])), 1).unwrap_err();
    assert!(refused.contains("node `/head/MaxPool` (MaxPool): "), "{refused}");
}

#[test]
fn what_changes_single_elements_is_a_part_of_the_launch_before_it() {
    let values = ["x", "y"].map(|name| tensor(name, FLOAT, &[0, 4]));
    let nodes = [
        node("Mul", &["two", "two"], &["four"], &[]),
        node("Add", &["x", "four"], &["sum"], &[]),
        node("Identity", &["sum"], &["same"], &[]),
        node("Relu", &["same"], &["y"], &[]),
    ];
    let model = file(&graph(&nodes, &[constant("two", 2.0)], &values[..1], &values[1..]));
    let plan = compiled(&model, 1).unwrap();
    let launches = &plan.batches[0].launches;
    assert_eq!(launches.len(), 1, "{launches:?}");
    assert_eq!(launches[0].nodes, ["sum", "y"]);
    assert_eq!(first_number(&plan.weights.as_bytes()[..4]), 4.0);
}

fn first_number(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn a_layer_norm_also_gives_its_mean_and_factor_and_dropout_its_mask() {
    let norm = node("LayerNormalization", &["x", "scale"], &["normal", "mean", "factor"], &[]);
    let dropout = node("Dropout", &["normal"], &["y", "mask"], &[]);
    let outputs = [
        tensor("y", FLOAT, &[0, 2, 4]),
        tensor("mean", FLOAT, &[0, 2, 1]),
        tensor("factor", FLOAT, &[0, 2, 1]),
        tensor("mask", BOOL, &[0, 2, 4]),
    ];
    let scale = numbers("scale", &[4], &[1.0, 1.0, 2.0, 1.0]);
    let model = file(&graph(&[norm, dropout], &[scale], &[tensor("x", FLOAT, &[0, 2, 4])], &outputs));
    let mut model = PlanModel::new(compiled(&model, 2).unwrap()).unwrap();
    let signature = model.signature().clone();
    // The variances are 4 and, but for the epsilon, 1.
    let (epsilon, rows) = (1e-5f64, [[-2.0, 2.0, -2.0, 2.0, 4.0, 4.0, 2.0, 2.0f32], [0.0; 8]]);
    let row = |row: [f32; 8]| {
        let mut bytes = vec![0; signature.input_bytes()];
        bytes[..32].copy_from_slice(&row.map(f32::to_le_bytes).concat());
        bytes
    };
    let found = run_rows(&mut model, &rows.map(row));
    let factors = [4.0, 1.0, 0.0].map(|variance| (1.0 / (variance + epsilon).sqrt()) as f32);
    let floats = |row: usize, at: usize| -> Vec<f32> {
        found[row][signature.output_range(at)].chunks_exact(4).map(first_number).collect()
    };
    assert_eq!(floats(0, 1), [0.0, 3.0]);
    for (row, expected) in [(0, [factors[0], factors[1]]), (1, [factors[2], factors[2]])] {
        for (found, expected) in floats(row, 2).into_iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-6 * expected, "{found} for {expected}");
        }
    }
    let normal = floats(0, 0);
    assert!(
        (normal[2] + 4.0 * factors[0]).abs() < 1e-6 && (normal[4] - factors[1]).abs() < 1e-6,
        "{normal:?}"
    );
    assert!(found.iter().all(|row| row[signature.output_range(3)] == [1; 8]));
}

#[test]
fn batch_norms_behind_convolutions_become_part_of_them_and_no_weight_lies_twice() {
    let path = made_folder("light_models").join("light_resnet50.onnx");
    let compiled = compile(&path, 3).unwrap();
    let kinds = |of: fn(&Operation) -> bool| {
        compiled.plan.batches[2].launches.iter().filter(|launch| of(&launch.operation)).count()
    };
    assert_eq!(kinds(|of| matches!(of, Operation::Convolution { .. })), 53);
    assert_eq!(kinds(|of| matches!(of, Operation::Affine { .. })), 0);
    let megabytes = compiled.plan.weights.as_bytes().len() as f64 / 1e6;
    // ResNet-50 has 25.5 million weights without the means and variances.
    assert!((100.0..104.0).contains(&megabytes), "{megabytes} MB");
    let workspaces = compiled.plan.batches.iter().map(|batch| batch.workspace_bytes);
    assert!(workspaces.is_sorted(), "a larger batch needs no less");
}

#[test]
fn images_of_halves_are_turned_around_once_at_each_end_and_not_between() {
    let path = made_folder("light_models").join("light_resnet50.onnx");
    let options = CompileOptions { max_batch: 1, precision: PlanPrecision::Fp16 };
    let plan = compile(&path, options).unwrap().plan;
    let launches = &plan.batches[0].launches;
    let copies = launches.iter().filter(|of| matches!(of.operation, Operation::StridedCopy { .. }));
    assert_eq!(copies.count(), 1, "the pool's result is the same in either layout");
    let casts = launches.iter().filter(|of| matches!(of.operation, Operation::Cast { .. }));
    assert_eq!(casts.count(), 2, "at the input and at the output");
    for launch in launches {
        let first = ImageLayout::ChannelsFirst;
        let kept = matches!(launch.operation, Operation::Convolution { layout, .. } if layout == first);
        assert!(!kept, "{launch:?}");
        if let Operation::Convolution { .. } = launch.operation {
            assert!(launch.inputs.iter().all(|of| of.of.element == PlanElement::F16));
            assert!(launch.inputs[0].of.shape[3].is_multiple_of(8), "a pixel is read in pieces of 16 bytes");
        }
    }
}

/// Counts the launches of a plan's largest batch, by their operations.
fn operations_of(plan: &Plan) -> std::collections::BTreeMap<&'static str, usize> {
    let mut counts = std::collections::BTreeMap::new();
    let launches = &plan.batches.last().unwrap().launches;
    launches.iter().for_each(|launch| *counts.entry(launch.operation.name()).or_default() += 1);
    counts
}

#[test]
fn attention_of_halves_is_one_launch_behind_one_product_and_norms_take_sums() {
    for (name, layers, mask) in [("encoder", 2, true), ("vision", 2, false)] {
        let path = made_folder("exported_models").join(name).with_extension("onnx");
        let of = |precision| compile(&path, CompileOptions { max_batch: 3, precision }).unwrap().plan;
        let (single, half) = (of(PlanPrecision::Fp32), of(PlanPrecision::Fp16));
        let (single, counts) = (operations_of(&single), operations_of(&half));
        assert_eq!((counts["attention"], counts.get("softmax")), (layers, None), "{name}: {counts:?}");
        assert_eq!(single["matrix product"], counts["matrix product"] + 4 * layers, "{name}");
        let launches = &half.batches.last().unwrap().launches;
        for launch in launches.iter().filter(|launch| launch.operation.name() == "attention") {
            let Operation::Attention { heads, scale, packed } = launch.operation else { unreachable!() };
            assert_eq!((heads, scale, packed), (4, 0.25, true), "{name}");
            assert_eq!(launch.inputs.len(), if mask { 2 } else { 1 }, "{name}");
        }
        let sums =
            launches.iter().filter(|of| matches!(of.operation, Operation::LayerNorm { adds: true, .. }));
        assert_eq!(sums.count(), 2 * layers, "{name}: {counts:?}");
    }
}
