//! Writes a model anew with what the search for its batch has found: everything else in the file
//! stays as it is, byte for byte.

use super::number;
use super::proto::ProtoMessage;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The name of the dimension that is the batch.
const BATCH: &str = "batch";

/// The oldest version of the format in which an initializer need not be an input.
const SEPARATE_INITIALIZERS: u64 = 4;

/// A change of the shape to which a node reshapes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ReshapeChange {
    /// The node's index.
    pub(super) node: usize,
    /// The new shape, which copies the first dimension.
    pub(super) shape: Vec<i64>,
    /// The name of the new initializer with it.
    pub(super) name: String,
}

/// A change of a node's input that has 1 where the number of rows must be: nodes in front of it
/// take that from the shape of a tensor that has the batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowsChange {
    /// The node's index.
    pub(super) node: usize,
    /// The input's index among the node's.
    pub(super) input: usize,
    /// The input's name.
    pub(super) old: String,
    /// The name of a tensor that has the batch in front.
    pub(super) of: String,
    /// What becomes of the input.
    pub(super) kind: RowsKind,
    /// The names of new tensors: the shape of `of`, the index of its first size, the number of
    /// rows, what is behind it twice, the sizes, and what takes the input's place.
    pub(super) names: [String; 7],
}

/// What becomes of an input that has 1 where the number of rows must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RowsKind {
    /// Sizes, so many, of which the first becomes the number of rows.
    Sizes(usize),
    /// A constant of so many dimensions is repeated for each row.
    Repeated(usize),
}

/// The changes that make the first dimension the batch's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct BatchChanges {
    pub(super) reshapes: Vec<ReshapeChange>,
    /// The inputs that change, in the order of the nodes.
    pub(super) rows: Vec<RowsChange>,
}

/// A softmax of an opset before 13, which works on all dimensions from its axis on at once. A later
/// one works along one dimension, and libraries take every one for such: what it works on is folded
/// into one dimension, and unfolded after it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SoftmaxChange {
    /// The node's index.
    pub(super) node: usize,
    pub(super) operator: String,
    pub(super) axis: i64,
    pub(super) input: String,
    pub(super) output: String,
    /// The names of new tensors: the shape of the input, the folded input, and what becomes of it.
    pub(super) names: [String; 3],
}

/// A size for a dynamic dimension of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SizeChange {
    /// The input's index, initializers counted.
    pub(super) input: usize,
    /// The dimension's index.
    pub(super) index: usize,
    pub(super) size: NonZeroU32,
}

/// The changes to a model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Changes {
    /// The inputs, by index, that are initializers: they go from the list of inputs.
    pub(super) initializers: Vec<usize>,
    /// The changes by which the first dimension of all other inputs and of all outputs becomes the
    /// batch's, if it does.
    pub(super) batch: Option<BatchChanges>,
    /// The sizes of inputs' dimensions.
    pub(super) sizes: Vec<SizeChange>,
    /// The softmaxes that change, in the order of the nodes.
    pub(super) softmaxes: Vec<SoftmaxChange>,
}

/// Returns the file with these changes; `None` where it lacks what they change.
pub(super) fn rewrite(bytes: &[u8], ir_version: i64, changes: &Changes) -> Option<Vec<u8>> {
    let mut model = ProtoMessage::parse(bytes)?;
    let version = u64::try_from(ir_version).unwrap_or(0).max(SEPARATE_INITIALIZERS);
    model.set_number(number::MODEL_IR_VERSION, version);
    model.change(number::MODEL_GRAPH, 0, |graph| {
        for SizeChange { input, index, size } in &changes.sizes {
            let mut fixed = ProtoMessage::default();
            fixed.push_number(number::DIMENSION_SIZE, u64::from(size.get()));
            let fixed = fixed.encode();
            graph.change(number::GRAPH_INPUT, *input, |value| set_dimension(value, *index, fixed))?;
        }
        graph.retain(number::GRAPH_INPUT, |at| !changes.initializers.contains(&at));
        let mut nodes: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
        if let Some(BatchChanges { reshapes, rows }) = &changes.batch {
            reshapes.iter().try_for_each(|reshape| change_reshape(graph, reshape))?;
            for change in rows {
                let new = nodes.entry(change.node).or_default();
                new.extend(change_rows(graph, change)?.iter().map(ProtoMessage::encode));
            }
            for (&at, new) in &mut nodes {
                new.push(graph.contents(number::GRAPH_NODE).nth(at)?.to_vec());
            }
        }
        nodes.extend(changes.softmaxes.iter().map(|softmax| (softmax.node, unfolded_softmax(softmax))));
        // From the last on, so that the places of those before stay.
        for (at, new) in nodes.into_iter().rev() {
            graph.splice(number::GRAPH_NODE, at, new)?;
        }
        if changes.batch.is_some() || !changes.sizes.is_empty() {
            // What they declare of the insides is of a batch of one, or of no size.
            graph.retain(number::GRAPH_VALUE_INFO, |_| false);
        }
        if changes.batch.is_some() {
            for values in [number::GRAPH_INPUT, number::GRAPH_OUTPUT] {
                let count = graph.contents(values).count();
                (0..count).try_for_each(|at| graph.change(values, at, make_dynamic))?;
            }
        }
        Some(())
    })?;
    Some(model.encode())
}

fn change_reshape(graph: &mut ProtoMessage<'_>, change: &ReshapeChange) -> Option<()> {
    let ReshapeChange { node, shape, name } = change;
    graph
        .change(number::GRAPH_NODE, *node, |node| node.replace(number::NODE_INPUT, 1, name.clone().into()))?;
    graph.push(number::GRAPH_INITIALIZER, initializer(name, shape).encode());
    Some(())
}

/// Changes an input of a node, and returns the nodes that go in front of it.
fn change_rows(graph: &mut ProtoMessage<'_>, change: &RowsChange) -> Option<Vec<ProtoMessage<'static>>> {
    let RowsChange { node: at, input, old, of, kind, names } = change;
    let [shape, first, rows, places, behind, sizes, new] = names;
    graph.change(number::GRAPH_NODE, *at, |node| {
        node.replace(number::NODE_INPUT, *input, new.clone().into())
    })?;
    let mut constant = |name: &str, values: &[i64]| {
        graph.push(number::GRAPH_INITIALIZER, initializer(name, values).encode());
    };
    constant(first, &[0]);
    let mut nodes = vec![node("Shape", &[of], shape, None), node("Gather", &[shape, first], rows, None)];
    match *kind {
        RowsKind::Sizes(count) => {
            let others: Vec<i64> = (1..count as i64).collect();
            constant(places, &others);
            nodes.push(node("Gather", &[old, places], behind, None));
            nodes.push(node("Concat", &[rows, behind], new, Some(0)));
        }
        RowsKind::Repeated(rank) => {
            constant(behind, &vec![1; rank.saturating_sub(1)]);
            nodes.push(node("Concat", &[rows, behind], sizes, Some(0)));
            nodes.push(node("Expand", &[old, sizes], new, None));
        }
    }
    Some(nodes)
}

/// Returns the nodes that take the place of a softmax.
fn unfolded_softmax(change: &SoftmaxChange) -> Vec<Vec<u8>> {
    let SoftmaxChange { operator, axis, input, output, names: [shape, folded, done], .. } = change;
    let nodes = [
        node("Shape", &[input], shape, None),
        node("Flatten", &[input], folded, Some(*axis)),
        node(operator, &[folded], done, Some(1)),
        node("Reshape", &[done, shape], output, None),
    ];
    nodes.iter().map(ProtoMessage::encode).collect()
}

/// Returns a node, perhaps with the attribute `axis`.
pub(super) fn node(
    operator: &str,
    inputs: &[&String],
    output: &str,
    axis: Option<i64>,
) -> ProtoMessage<'static> {
    /// The number of an attribute's type that is a whole number.
    const INT: u64 = 2;
    let mut node = ProtoMessage::default();
    inputs.iter().for_each(|input| node.push(number::NODE_INPUT, input.as_bytes().to_vec()));
    node.push(number::NODE_OUTPUT, output.as_bytes().to_vec());
    node.push(number::NODE_OPERATOR, operator.as_bytes().to_vec());
    if let Some(axis) = axis {
        let mut attribute = ProtoMessage::default();
        attribute.push(number::ATTRIBUTE_NAME, b"axis".to_vec());
        attribute.push_number(number::ATTRIBUTE_NUMBER, axis as u64);
        attribute.push_number(number::ATTRIBUTE_TYPE, INT);
        node.push(number::NODE_ATTRIBUTE, attribute.encode());
    }
    node
}

/// Returns an initializer of whole numbers.
fn initializer(name: &str, values: &[i64]) -> ProtoMessage<'static> {
    let mut tensor = ProtoMessage::default();
    tensor.push_number(number::INITIALIZER_DIMENSIONS, values.len() as u64);
    tensor.push_number(number::INITIALIZER_TYPE, rten_onnx::onnx::DataType::INT64.0 as u64);
    tensor.push(number::INITIALIZER_NAME, name.as_bytes().to_vec());
    tensor.push(number::INITIALIZER_BYTES, values.iter().flat_map(|value| value.to_le_bytes()).collect());
    tensor
}

/// Makes the first dimension of an input or output the batch's, where it has a shape.
fn make_dynamic(value: &mut ProtoMessage<'_>) -> Option<()> {
    set_dimension(value, 0, batch_dimension().encode())
}

/// Returns the dimension that is the batch.
pub(super) fn batch_dimension() -> ProtoMessage<'static> {
    let mut batch = ProtoMessage::default();
    batch.push(number::DIMENSION_NAME, BATCH.as_bytes().to_vec());
    batch
}

/// Replaces a dimension of an input or output, where it has a shape.
fn set_dimension(value: &mut ProtoMessage<'_>, index: usize, dimension: Vec<u8>) -> Option<()> {
    value.change_only(number::VALUE_TYPE, |of| {
        of.change_only(number::TYPE_TENSOR, |tensor| {
            if tensor.contents(number::TENSOR_SHAPE).next().is_none() {
                return Some(());
            }
            tensor.change_only(number::TENSOR_SHAPE, |shape| {
                shape.replace(number::SHAPE_DIMENSION, index, dimension)
            })
        })
    })
}
