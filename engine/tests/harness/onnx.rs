//! A writer of small ONNX files, for models that no exporter makes: the few messages of ONNX that
//! they need, in protobuf's encoding.

/// The element types, by ONNX's numbers.
pub(crate) const FLOAT: u64 = 1;
pub(crate) const INT64: u64 = 7;
pub(crate) const BOOL: u64 = 9;

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of a whole number.
fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

/// A field of bytes: a text or a message.
fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

fn texts(field: u64, values: &[&str]) -> Vec<u8> {
    values.iter().flat_map(|value| bytes(field, value.as_bytes())).collect()
}

/// A node with these attributes, and the name of its first output.
pub(crate) fn node(kind: &str, inputs: &[&str], outputs: &[&str], attributes: &[Vec<u8>]) -> Vec<u8> {
    named_node(outputs[0], kind, inputs, outputs, attributes)
}

/// A node of this name with these attributes.
pub(crate) fn named_node(
    name: &str,
    kind: &str,
    inputs: &[&str],
    outputs: &[&str],
    attributes: &[Vec<u8>],
) -> Vec<u8> {
    let attributes: Vec<u8> = attributes.iter().flat_map(|attribute| bytes(5, attribute)).collect();
    [texts(1, inputs), texts(2, outputs), texts(3, &[name]), texts(4, &[kind]), attributes].concat()
}

/// An attribute that is a whole number.
pub(crate) fn number_attribute(name: &str, value: u64) -> Vec<u8> {
    [bytes(1, name.as_bytes()), number(3, value), number(20, 2)].concat()
}

/// An attribute of whole numbers.
pub(crate) fn numbers_attribute(name: &str, values: &[u64]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|&value| number(8, value)).collect();
    [bytes(1, name.as_bytes()), values, number(20, 7)].concat()
}

/// An attribute that is a text.
pub(crate) fn text_attribute(name: &str, value: &str) -> Vec<u8> {
    [bytes(1, name.as_bytes()), bytes(4, value.as_bytes()), number(20, 3)].concat()
}

/// An attribute that is a tensor.
pub(crate) fn tensor_attribute(name: &str, tensor: &[u8]) -> Vec<u8> {
    [bytes(1, name.as_bytes()), bytes(5, tensor), number(20, 4)].concat()
}

/// An attribute that is a graph.
pub(crate) fn graph_attribute(name: &str, graph: &[u8]) -> Vec<u8> {
    [bytes(1, name.as_bytes()), bytes(6, graph), number(20, 5)].concat()
}

/// An input or output of a graph. A dimension of 0 is dynamic.
pub(crate) fn tensor(name: &str, element: u64, shape: &[u64]) -> Vec<u8> {
    let dimension = |&size: &u64| if size == 0 { bytes(2, b"N") } else { number(1, size) };
    let shape: Vec<u8> = shape.iter().flat_map(|size| bytes(1, &dimension(size))).collect();
    let tensor = [number(1, element), bytes(2, &shape)].concat();
    [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
}

/// A constant of one FP32 number.
pub(crate) fn constant(name: &str, value: f32) -> Vec<u8> {
    [number(1, 1), number(2, FLOAT), bytes(8, name.as_bytes()), bytes(9, &value.to_le_bytes())].concat()
}

/// A constant of FP32 numbers.
pub(crate) fn numbers(name: &str, shape: &[u64], values: &[f32]) -> Vec<u8> {
    let shape: Vec<u8> = shape.iter().flat_map(|&size| number(1, size)).collect();
    let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [shape, number(2, FLOAT), bytes(8, name.as_bytes()), bytes(9, &content)].concat()
}

/// A constant of whole numbers.
pub(crate) fn whole_numbers(name: &str, values: &[i64]) -> Vec<u8> {
    let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    [number(1, values.len() as u64), number(2, INT64), bytes(8, name.as_bytes()), bytes(9, &content)].concat()
}

/// A constant of FP32 numbers that are in another file.
pub(crate) fn external_constant(name: &str, shape: &[u64], location: &str) -> Vec<u8> {
    let dimensions: Vec<u8> = shape.iter().flat_map(|&size| number(1, size)).collect();
    let length = (4 * shape.iter().product::<u64>()).to_string();
    let entries = [("location", location), ("offset", "0"), ("length", &length)];
    let entry = |(key, value): &(&str, &str)| {
        bytes(13, &texts(1, &[key]).into_iter().chain(texts(2, &[value])).collect::<Vec<u8>>())
    };
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    [dimensions, number(2, FLOAT), bytes(8, name.as_bytes()), entries, number(14, 1)].concat()
}

/// A graph of nodes, constants, inputs and outputs.
pub(crate) fn graph(
    nodes: &[Vec<u8>],
    constants: &[Vec<u8>],
    inputs: &[Vec<u8>],
    outputs: &[Vec<u8>],
) -> Vec<u8> {
    let all =
        |field, parts: &[Vec<u8>]| parts.iter().flat_map(|part| bytes(field, part)).collect::<Vec<u8>>();
    [all(1, nodes), bytes(2, b"graph"), all(5, constants), all(11, inputs), all(12, outputs)].concat()
}

/// The file of a graph.
pub(crate) fn file(graph: &[u8]) -> Vec<u8> {
    let operators = [bytes(1, b""), number(2, 17)].concat();
    [number(1, 8), bytes(7, graph), bytes(8, &operators)].concat()
}

/// A model of inputs `n` (INT64) and `x` (FP32) that adds 1 to `x` as often as the largest `n` of
/// its batch says, in a loop: a request can make it run for as long as it likes.
pub(crate) fn loop_model() -> Vec<u8> {
    let body = graph(
        &[node("Identity", &["go"], &["go_on"], &[]), node("Add", &["sum", "one"], &["more"], &[])],
        &[constant("one", 1.0)],
        &[tensor("at", INT64, &[]), tensor("go", BOOL, &[]), tensor("sum", FLOAT, &[1])],
        &[tensor("go_on", BOOL, &[]), tensor("more", FLOAT, &[1])],
    );
    file(&graph(
        &[
            node("ReduceMax", &["n"], &["most"], &[number_attribute("keepdims", 0)]),
            node("Loop", &["most", "", "zero"], &["added"], &[graph_attribute("body", &body)]),
            node("Add", &["x", "added"], &["y"], &[]),
        ],
        &[constant("zero", 0.0)],
        &[tensor("n", INT64, &[0, 1]), tensor("x", FLOAT, &[0, 1])],
        &[tensor("y", FLOAT, &[0, 1])],
    ))
}
