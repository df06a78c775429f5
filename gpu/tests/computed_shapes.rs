//! Files whose first dimension is 1, and that compute with shapes as exporters write it: the batch
//! is followed through what is computed, and what has 1 in its place is computed instead.

#[path = "../../engine/tests/harness/onnx_library.rs"]
mod library;
#[path = "harness/model_rows.rs"]
mod model_rows;
#[path = "../../engine/tests/harness/onnx.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod onnx;

use library::onnx_library;
use model_rows::run_rows;
use onnx::{FLOAT, file, graph, node, number_attribute, numbers, tensor, text_attribute, whole_numbers};
use std::path::Path;
use symphony_gpu::{CpuModel, HostModel, OnnxRuntimeModel, OnnxRuntimeOptions};

/// A model from `x` to `y`.
struct ModelCase {
    what: &'static str,
    nodes: Vec<Vec<u8>>,
    constants: Vec<Vec<u8>>,
    x: &'static [u64],
    y: &'static [u64],
}

fn on_both(folder: &Path, case: &ModelCase) -> [Box<dyn HostModel>; 2] {
    let path = folder.join("model.onnx");
    let ends = [tensor("x", FLOAT, case.x), tensor("y", FLOAT, case.y)];
    std::fs::write(&path, file(&graph(&case.nodes, &case.constants, &ends[..1], &ends[1..]))).unwrap();
    let options = OnnxRuntimeOptions { library: Some(onnx_library()), ..OnnxRuntimeOptions::default() };
    let on_rten = CpuModel::load(&path, 4).map(|model| Box::new(model) as Box<dyn HostModel>);
    let on_onnxruntime = OnnxRuntimeModel::load(&path, 4, &options).map(|model| Box::new(model) as _);
    [on_rten, on_onnxruntime].map(|loaded| loaded.unwrap_or_else(|error| panic!("{}: {error}", case.what)))
}

fn plain(operator: &str, inputs: &[&str], output: &str) -> Vec<u8> {
    node(operator, inputs, &[output], &[])
}

fn with_axis(operator: &str, inputs: &[&str], output: &str, axis: u64) -> Vec<u8> {
    node(operator, inputs, &[output], &[number_attribute("axis", axis)])
}

/// The nodes that make `rows`, the first size of `x`, as a tensor of one element.
fn rows() -> Vec<Vec<u8>> {
    vec![
        plain("Shape", &["x"], "sizes"),
        with_axis("Gather", &["sizes", "zero"], "front", 0),
        plain("Unsqueeze", &["front", "axes"], "rows"),
    ]
}

/// The constants of [`rows`].
fn of_rows(more: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut zero = whole_numbers("zero", &[0]);
    // Without dimensions.
    zero.drain(..2);
    [&[zero, whole_numbers("axes", &[0])], more].concat()
}

fn made_dynamic() -> Vec<ModelCase> {
    let case = |what, nodes: Vec<Vec<u8>>, constants, x, y| ModelCase { what, nodes, constants, x, y };
    let after_rows = |more: &[Vec<u8>]| [rows(), more.to_vec()].concat();
    let scales = |values: &[f32]| numbers("scales", &[values.len() as u64], values);
    let nearest = |inputs: &[&str]| node("Resize", inputs, &["y"], &[text_attribute("mode", "nearest")]);
    vec![
        case(
            "x.view(x.size(0), -1)",
            after_rows(&[
                with_axis("Concat", &["rows", "rest"], "shape", 0),
                plain("Reshape", &["x", "shape"], "y"),
            ]),
            of_rows(&[whole_numbers("rest", &[-1])]),
            &[1, 2, 3],
            &[1, 6],
        ),
        case(
            "a reshape to 1 and sizes of x",
            after_rows(&[
                with_axis("Gather", &["sizes", "last"], "width", 0),
                with_axis("Concat", &["one", "rest", "width"], "shape", 0),
                plain("Reshape", &["x", "shape"], "y"),
            ]),
            of_rows(&[
                whole_numbers("one", &[1]),
                whole_numbers("rest", &[2, 1]),
                whole_numbers("last", &[-1]),
            ]),
            &[1, 2, 3],
            &[1, 2, 1, 3],
        ),
        case(
            "a resize by scales",
            vec![nearest(&["x", "", "scales"])],
            vec![scales(&[1.0, 1.0, 2.0, 2.0])],
            &[1, 2, 3, 3],
            &[1, 2, 6, 6],
        ),
        case(
            "a resize to constant sizes",
            vec![nearest(&["x", "", "", "to"])],
            vec![whole_numbers("to", &[1, 2, 6, 9])],
            &[1, 2, 3, 3],
            &[1, 2, 6, 9],
        ),
        case(
            "a resize to sizes of which two are those of x",
            after_rows(&[
                plain("Slice", &["sizes", "from", "to"], "kept"),
                with_axis("Concat", &["kept", "size"], "target", 0),
                nearest(&["x", "", "", "target"]),
            ]),
            of_rows(&[
                whole_numbers("from", &[0]),
                whole_numbers("to", &[2]),
                whole_numbers("size", &[6, 6]),
            ]),
            &[1, 2, 3, 3],
            &[1, 2, 6, 6],
        ),
        case(
            "a token of the class",
            vec![with_axis("Concat", &["token", "x"], "y", 1)],
            vec![numbers("token", &[1, 1, 3], &[1.0, 2.0, 3.0])],
            &[1, 2, 3],
            &[1, 3, 3],
        ),
        case(
            "token.expand(x.size(0), -1, -1)",
            after_rows(&[
                with_axis("Concat", &["rows", "same"], "asked", 0),
                node(
                    "ConstantOfShape",
                    &["three"],
                    &["ones"],
                    &[onnx::tensor_attribute("value", &whole_numbers("", &[1]))],
                ),
                plain("Mul", &["ones", "minus"], "unsaid"),
                plain("Equal", &["asked", "unsaid"], "is_unsaid"),
                plain("Where", &["is_unsaid", "ones", "asked"], "shape"),
                plain("Expand", &["token", "shape"], "tokens"),
                with_axis("Concat", &["tokens", "x"], "y", 1),
            ]),
            of_rows(&[
                whole_numbers("same", &[-1, -1]),
                whole_numbers("three", &[3]),
                whole_numbers("minus", &[-1]),
                numbers("token", &[1, 1, 3], &[1.0, 2.0, 3.0]),
            ]),
            &[1, 2, 3],
            &[1, 3, 3],
        ),
        case(
            "zeros of the batch's size",
            after_rows(&[
                with_axis("Concat", &["rows", "rest"], "shape", 0),
                plain("ConstantOfShape", &["shape"], "zeros"),
                with_axis("Concat", &["x", "zeros"], "y", 1),
            ]),
            of_rows(&[whole_numbers("rest", &[1, 3])]),
            &[1, 2, 3],
            &[1, 3, 3],
        ),
        case(
            "columns by constant indices",
            vec![with_axis("Gather", &["x", "places"], "y", 2)],
            vec![whole_numbers("places", &[2, 0])],
            &[1, 2, 3],
            &[1, 2, 2],
        ),
        case(
            "a product by indices",
            vec![node("Einsum", &["x", "w"], &["y"], &[text_attribute("equation", "bij,jk->bik")])],
            vec![numbers("w", &[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
            &[1, 2, 3],
            &[1, 2, 2],
        ),
        case(
            "a constant on the left of a product",
            vec![plain("MatMul", &["w", "x"], "y")],
            vec![numbers("w", &[1, 2], &[1.0, 2.0])],
            &[1, 2, 3],
            &[1, 1, 3],
        ),
        case(
            "rows that are repeated within",
            vec![plain("Tile", &["x", "times"], "y")],
            vec![whole_numbers("times", &[1, 2, 1])],
            &[1, 2, 3],
            &[1, 4, 3],
        ),
        case(
            "weights that are reshaped first",
            vec![plain("Reshape", &["w", "to"], "matrix"), plain("MatMul", &["x", "matrix"], "y")],
            vec![numbers("w", &[6], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), whole_numbers("to", &[3, 2])],
            &[1, 2, 3],
            &[1, 2, 2],
        ),
    ]
}

#[test]
fn what_is_computed_from_the_number_of_rows_follows_the_batch() {
    let folder = tempfile::tempdir().unwrap();
    for case in made_dynamic() {
        let mut found = Vec::new();
        for mut model in on_both(folder.path(), &case) {
            let note = model.import_note().unwrap_or_default().to_owned();
            assert!(note.contains("was made the batch's"), "{}: {note}", case.what);
            let bytes = model.signature().input_bytes();
            let floats = case.x.iter().product::<u64>() as usize;
            let row = |row: usize| -> Vec<u8> {
                let values = (0..floats).flat_map(|at| ((row * floats + at) as f32).to_le_bytes());
                values.chain(std::iter::repeat_n(0, bytes - 4 * floats)).collect()
            };
            let rows: Vec<Vec<u8>> = (0..4).map(row).collect();
            let output = model.signature().output_range(0);
            let outputs: Vec<Vec<u8>> =
                run_rows(&mut *model, &rows).into_iter().map(|row| row[output.clone()].to_vec()).collect();
            for (row, batched) in rows.iter().zip(&outputs) {
                assert_eq!(
                    run_rows(&mut *model, std::slice::from_ref(row))[0][output.clone()],
                    batched[..],
                    "{}",
                    case.what
                );
            }
            assert_ne!(outputs[0], outputs[1], "{}", case.what);
            found.push(outputs);
        }
        assert_eq!(found[0], found[1], "{}", case.what);
    }
}

#[test]
fn what_is_computed_with_the_number_of_rows_otherwise_keeps_the_batch_at_one() {
    let folder = tempfile::tempdir().unwrap();
    let case = |what, nodes: Vec<Vec<u8>>, constants, x, y| ModelCase { what, nodes, constants, x, y };
    let after_rows = |more: &[Vec<u8>]| [rows(), more.to_vec()].concat();
    let cases = [
        (
            case(
                "a sum of the rows and the number of rows",
                after_rows(&[
                    node("Cast", &["rows"], &["count"], &[number_attribute("to", 1)]),
                    plain("Add", &["x", "count"], "y"),
                ]),
                of_rows(&[]),
                &[1, 3],
                &[1, 3],
            ),
            "Add (`y`) computes with the number of rows",
        ),
        (
            case(
                "heads beside the batch",
                after_rows(&[
                    plain("Mul", &["rows", "two"], "both"),
                    with_axis("Concat", &["both", "rest"], "shape", 0),
                    plain("Reshape", &["x", "shape"], "parts"),
                    plain("Reshape", &["parts", "back"], "y"),
                ]),
                of_rows(&[
                    whole_numbers("two", &[2]),
                    whole_numbers("rest", &[-1]),
                    whole_numbers("back", &[1, 4]),
                ]),
                &[1, 4],
                &[1, 4],
            ),
            "Mul (`both`) computes with the number of rows in a way that is not known",
        ),
        (
            case(
                "a product over rows",
                vec![node("Einsum", &["x", "x"], &["y"], &[text_attribute("equation", "bi,bj->ij")])],
                vec![],
                &[1, 3],
                &[3, 3],
            ),
            "",
        ),
        (
            case(
                "the first row",
                vec![with_axis("Gather", &["x", "first"], "y", 0)],
                vec![whole_numbers("first", &[0])],
                &[1, 3],
                &[1, 3],
            ),
            "Gather (`y`) works along the batch",
        ),
    ];
    for (case, why) in cases {
        for model in on_both(folder.path(), &case) {
            let note = model.import_note().unwrap_or_default();
            assert_eq!(model.max_batch(), 1, "{}: {note}", case.what);
            let whole = note.starts_with("the model has no batch");
            assert!(if why.is_empty() { whole } else { note.contains(why) }, "{}: {note}", case.what);
        }
    }
}
