//! `symphony inspect` as a user runs it: what it prints of a file that runs, of one that runs on
//! one executor only, and of what is no model.

mod harness;

use harness::light_models::made_folder;
use harness::onnx::{FLOAT, constant, file, graph, loop_model, node, numbers, tensor};
use harness::onnx_library::onnx_library;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use symphony_gpu::import::{SharedPrefix, sharing_groups};

fn inspect(model: &Path, library: &Path) -> Output {
    inspect_with(&[], model, library)
}

fn inspect_with(flags: &[&str], model: &Path, library: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    command.arg("inspect").args(flags).arg("--library").arg(library).arg(model).output().unwrap()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data").join(name)
}

#[test]
fn a_file_is_described_with_what_each_executor_makes_of_it() {
    let output = inspect(&fixture("fixed_batch.onnx"), &onnx_library());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    for part in [
        "fixed_batch.onnx: opset ",
        "inputs\n  x: FLOAT [1, 4]\n",
        "outputs\n  y: FLOAT [1, 3]\n",
        "all in this file",
        "\n  cpu: runs batches of up to 8; one request alone takes ",
        "\n  onnxruntime: runs batches of up to 8; one request alone takes ",
        "was made the batch's",
        "\nmodel.toml\n  executor = \"",
        "\n  slo_ms = 1 ",
        "\n  max_batch = 8",
    ] {
        assert!(said.contains(part), "{said}\nshould contain\n{part}");
    }
    let output = inspect(&fixture("dynamic_width.onnx"), &onnx_library());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(", width], dimensions [0, 2] are dynamic"), "{said}");
    assert!(output.status.success() && said.contains("\nexecutors, with width = 128\n"), "{said}");
    let proposed = "\n  sizes = [{ dimension = \"width\", buckets = [32, 64, 128] }]   # requests are padded";
    assert!(said.contains(proposed), "{said}");
}

#[test]
fn a_dynamic_dimension_is_tried_at_the_size_that_is_asked_for() {
    let sized = |size| inspect_with(&["--size", size], &fixture("dynamic_width.onnx"), &onnx_library());
    let output = sized("width=6");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("\n  cpu: runs batches of up to 8") && said.contains("\n  onnxruntime: runs"),
        "{said}"
    );
    assert!(said.ends_with("sizes = [{ dimension = \"width\", size = 6 }]\n"), "{said}");
    let output = inspect_with(&["--default", "count=4"], &fixture("stateful.onnx"), &onnx_library());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("\nexecutors\n"), "{said}");
    assert!(said.ends_with("\n  max_batch = 1\n  defaults = [{ input = \"count\", value = 4 }]\n"), "{said}");
    let wrong = sized("width=0");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("like sequence=128"), "{said}");
}

#[test]
fn what_is_proposed_is_accepted_by_check() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("models/m/1")).unwrap();
    let library = onnx_library();
    let config = format!(
        "[onnxruntime]\nlibrary = {library:?}\n[[executors]]\nkind = \"cpu\"\n\
         [[executors]]\nkind = \"onnxruntime\"\n[repository]\npath = \"models\"\n"
    );
    std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
    for (name, flags) in [
        ("fixed_batch.onnx", &[][..]),
        ("dynamic_width.onnx", &[]),
        ("masked_steps.onnx", &[]),
        ("stateful.onnx", &["--default", "count=4"]),
    ] {
        let output = inspect_with(flags, &fixture(name), &library);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = said.split("\nmodel.toml\n").nth(1).unwrap_or_else(|| panic!("{said}"));
        std::fs::write(folder.path().join("models/m/model.toml"), words).unwrap();
        std::fs::copy(fixture(name), folder.path().join("models/m/1/model.onnx")).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_symphony"));
        let checked = check.arg("check").arg(folder.path()).output().unwrap();
        assert!(checked.status.success(), "{words}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn an_executor_that_does_not_run_it_says_why_and_the_other_is_proposed() {
    let output = inspect(&fixture("unsupported_operator.onnx"), &onnx_library());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("operators: LRN 1"), "{said}");
    assert!(said.contains("cpu: does not run it: ") && said.contains("executor = \"onnxruntime\""), "{said}");
    let output = inspect(&fixture("unsupported_operator.onnx"), Path::new("/nowhere/libonnxruntime.so"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("onnxruntime: does not run it: ") && said.contains("/nowhere/"), "{said}");
}

#[test]
fn what_is_no_model_is_an_error_of_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.onnx");
    let whole = std::fs::read(fixture("linear.onnx")).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    for path in [path, folder.path().join("missing.onnx"), folder.path().to_path_buf()] {
        let output = inspect(&path, Path::new("/nowhere"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(output.stdout.is_empty() && said.contains(&*path.to_string_lossy()), "{said}");
    }
}

/// The parts of a model: x of [n, 4] times `first`, `middle`, plus `last`, by these names.
struct Layers<'a> {
    names: [&'a str; 3],
    first: [f32; 4],
    middle: Vec<Vec<u8>>,
    last: f32,
}

impl Layers<'_> {
    fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let [a, b, y] = self.names;
        let first = node("Mul", &["x", "w"], &[a], &[]);
        let nodes: Vec<Vec<u8>> = [first]
            .into_iter()
            .chain(self.middle.clone())
            .chain([node("Add", &[b, "c"], &[y], &[])])
            .collect();
        let weights = [numbers("w", &[4], &self.first), constant("c", self.last)];
        let input = tensor("x", FLOAT, &[0, 4]);
        let path = folder.join(name);
        std::fs::write(&path, file(&graph(&nodes, &weights, &[input], &[tensor(y, FLOAT, &[0, 4])])))
            .unwrap();
        path
    }
}

/// What these files share as one group, if they are one.
fn shared_by_all(paths: &[PathBuf]) -> Option<SharedPrefix> {
    let group = sharing_groups(paths).unwrap().pop()?;
    (group.members.len() == paths.len()).then_some(group.shared)
}

/// What `inspect` prints of these files.
fn compared<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    let output = command.arg("inspect").args(paths).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_first_layers_that_models_share_are_found_whatever_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let relu = |from: &str, to: &str| vec![node("Relu", &[from], &[to], &[])];
    let layers = |names: [&'static str; 3], first, last| Layers {
        names,
        first,
        middle: relu(names[0], names[1]),
        last,
    };
    let one = layers(["a", "b", "y"], [1.0, 2.0, 3.0, 4.0], 0.5).write(folder.path(), "one.onnx");
    let two = layers(["p", "q", "z"], [1.0, 2.0, 3.0, 4.0], 0.25).write(folder.path(), "two.onnx");
    let found = shared_by_all(&[one.clone(), two.clone()]).unwrap();
    assert_eq!((found.nodes, &found.tensors[..]), (2, &["b".to_owned()][..]));
    assert_eq!(found.models[1].tensors, ["q"]);
    let of_models = found.models.iter().map(|model| (model.nodes, model.weights_bytes > found.weights_bytes));
    assert_eq!(of_models.collect::<Vec<_>>(), [(3, true), (3, true)]);
    // One that differs in its first weights shares nothing; the same model shares everything.
    let other = layers(["a", "b", "y"], [1.0, 2.0, 3.0, 4.5], 0.5).write(folder.path(), "other.onnx");
    assert_eq!(shared_by_all(&[one.clone(), other.clone()]), None);
    let same = shared_by_all(&[one.clone(), one.clone()]).unwrap();
    assert_eq!((same.nodes, &same.tensors[..]), (3, &["y".to_owned()][..]));
    assert_eq!(same.weights_bytes, same.models[0].weights_bytes);
    // Sizes are computed anew after the cut: what they are of is given there.
    let sized = |name: &str, last| {
        let middle = [
            relu("a", "r"),
            vec![node("Shape", &["r"], &["s"], &[]), node("Reshape", &["r", "s"], &["b"], &[])],
        ];
        Layers { names: ["a", "b", "y"], first: [2.0; 4], middle: middle.concat(), last }
            .write(folder.path(), name)
    };
    let found = shared_by_all(&[sized("three.onnx", 1.0), sized("four.onnx", 2.0)]).unwrap();
    assert_eq!((found.nodes, &found.tensors[..]), (4, &["b".to_owned()][..]));
    let said = compared([&one, &two]);
    assert!(said.contains("the 2 models share their first layers: 2 nodes"), "{said}");
    assert!(said.contains("two.onnx: 1 node more") && said.contains("after q"), "{said}");
    assert!(compared([&one, &other]).contains("share no layer"));
    let flagged = ["inspect", "--size", "n=2"];
    let output =
        Command::new(env!("CARGO_BIN_EXE_symphony")).args(flagged).args([&one, &two]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let missing = folder.path().join("missing.onnx");
    assert!(sharing_groups(&[one, missing]).is_err());
}

#[test]
fn a_node_with_a_graph_in_it_ends_what_models_share() {
    let folder = tempfile::tempdir().unwrap();
    let looped = || {
        let path = folder.path().join("loop.onnx");
        std::fs::write(&path, loop_model()).unwrap();
        path
    };
    let found = shared_by_all(&[looped(), looped()]);
    assert!(found.is_none_or(|found| found.nodes < found.models[0].nodes));
}

#[test]
fn the_groups_of_real_networks_are_found_among_others_with_the_memory_that_each_saves() {
    let folder = made_folder("model_variants");
    let of = |network: &str| ["a", "b", "c"].map(|variant| folder.join(format!("{network}-{variant}.onnx")));
    let [[a, b, c], [d, e, f]] = [of("vision"), of("light_squeezenet")];
    let alone = fixture("linear.onnx");
    // In any order, and with a model that is of none of them.
    let paths = [&a, &d, &alone, &e, &b, &f, &c].map(Clone::clone);
    let groups = sharing_groups(&paths).unwrap();
    let members: Vec<&[usize]> = groups.iter().map(|group| &group.members[..]).collect();
    assert_eq!(members, [&[0, 4, 6][..], &[1, 3, 5]]);
    for (group, last) in groups.iter().zip([10 * 64, 1000 * 512]) {
        let shared = &group.shared;
        assert_eq!(shared.tensors.len(), 1, "{shared:?}");
        for model in &shared.models {
            // The sigmoid is one more, and so may be a bias and a name's copy.
            assert!((1..=5).contains(&(model.nodes - shared.nodes)), "{shared:?}");
            assert!(model.weights_bytes - shared.weights_bytes <= 4 * last + 8192, "{shared:?}");
        }
        let (all, once) = shared.all_weights();
        assert_eq!(all - once, 2 * shared.weights_bytes);
        // Also those that are computed within the model count.
        assert!(2 * shared.weights_bytes > shared.models[0].weights_bytes, "{shared:?}");
    }
    let said = compared(&paths);
    for part in [
        "3 of the 7 models share their first layers: ",
        "vision-b.onnx: ",
        "with the shared ones once\n  to run them as one, give each of their tables [[models]] the same prefix_group",
        "that share no layer with another: ",
        "linear.onnx\n",
    ] {
        assert!(said.contains(part), "{said}\nshould contain\n{part}");
    }
    assert!(!said.contains(" 0 bytes"), "{said}");
}
