//! The search for the batch of a model whose first dimensions are fixed to 1: node by node, which
//! tensors have it in front, and what has to change for it to have any size.

use super::effect::{InputChange, NodeEffect};
use super::facts::{Fact, Facts, initializer_names, is_standard, listed_initializers};
use super::rewrite::{BatchChanges, Changes, ReshapeChange, RowsChange, RowsKind, SizeChange, SoftmaxChange};
use super::rules::effect;
use super::sizes::{dimensions, fixed_size};
use rten_onnx::onnx::{Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use std::collections::HashSet;

/// The first opset whose operators the rules know: earlier ones stretch shapes otherwise.
const OLDEST_OPSET: i64 = 7;

/// The first opset whose softmax works along one dimension.
const FIRST_SOFTMAX_OF_ONE: i64 = 13;

/// The first dimension of a model's inputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FirstDimension {
    /// Dynamic for all inputs: it is the batch's as the file declares it.
    Declared,
    /// None that could be the batch's, for this reason.
    Absent(String),
    /// 1 for all inputs, and it can be the batch's with these changes.
    CanBeBatch(BatchChanges),
    /// 1 for all inputs, and this stands in the way of making it the batch's.
    Fixed(String),
}

/// Looks for the batch of a model.
pub(super) fn find(model: &ModelProto) -> FirstDimension {
    let Some(graph) = &model.graph else { return FirstDimension::Declared };
    let names = initializer_names(graph);
    let inputs =
        graph.input.iter().filter(|input| input.name.as_deref().is_none_or(|name| !names.contains(name)));
    let inputs: Vec<&ValueInfoProto> = inputs.collect();
    let dynamic = |input: &ValueInfoProto| dimensions(input).is_none_or(|all| first_size(all) == Some(None));
    if inputs.iter().all(|input| dynamic(input)) {
        return FirstDimension::Declared;
    }
    let ranks = inputs.iter().map(|input| rank_of_one(input)).collect::<Option<Vec<(&str, usize)>>>();
    match ranks {
        Some(inputs) => {
            follow(model, graph, &inputs).map_or_else(FirstDimension::Fixed, FirstDimension::CanBeBatch)
        }
        None => FirstDimension::Absent(why_absent(&inputs)),
    }
}

/// Returns the size of the first dimension, `None` in it if that is dynamic; `None` where there is
/// none.
fn first_size(dimensions: &[Dimension]) -> Option<Option<i64>> {
    dimensions.first().map(fixed_size)
}

/// Returns an input's name and rank if its first dimension is fixed to 1.
fn rank_of_one(input: &ValueInfoProto) -> Option<(&str, usize)> {
    let dimensions = dimensions(input)?;
    (first_size(dimensions) == Some(Some(1))).then_some((input.name.as_deref()?, dimensions.len()))
}

/// Returns why the inputs have no batch in front.
fn why_absent(inputs: &[&ValueInfoProto]) -> String {
    let describe = |input: &&ValueInfoProto| {
        let name = input.name.as_deref().unwrap_or_default();
        let first = match dimensions(input).map(first_size) {
            None => "has no shape".to_owned(),
            Some(None) => "is a single element".to_owned(),
            Some(Some(None)) => "has a dynamic first dimension".to_owned(),
            Some(Some(Some(size))) => format!("has the first dimension {size}"),
        };
        format!("input `{name}` {first}")
    };
    inputs.iter().map(describe).collect::<Vec<_>>().join(", ")
}

/// Follows the batch from the inputs to the outputs; returns the changes on the way, or what stands
/// in the way.
fn follow(model: &ModelProto, graph: &GraphProto, inputs: &[(&str, usize)]) -> Result<BatchChanges, String> {
    let opset = opset(model);
    if opset < OLDEST_OPSET {
        return Err(format!("its opset {opset} is older than {OLDEST_OPSET}"));
    }
    let mut facts = Facts::new(graph, inputs);
    let mut changes = BatchChanges::default();
    let mut taken = names(graph);
    for (at, node) in graph.node.iter().enumerate() {
        let fact = match effect(&facts.view(node, opset)?)? {
            NodeEffect::Batched(rank) => Fact::Batched(rank),
            NodeEffect::Constant(constant) => Fact::Constant(constant),
            NodeEffect::Reshaped(shape) => {
                let fact = Fact::Batched(shape.len());
                let name = free_name(first(&node.output), "shape", &mut taken);
                changes.reshapes.push(ReshapeChange { node: at, shape, name });
                fact
            }
            NodeEffect::Sized { rank, inputs } => {
                let change = |input: &InputChange| rows_change(at, node, *input, &mut taken);
                changes.rows.extend(inputs.iter().map(change));
                Fact::Batched(rank)
            }
        };
        node.output.iter().for_each(|output| facts.set(output, fact.clone()));
    }
    for output in &graph.output {
        let name = output.name.as_deref().unwrap_or_default();
        if !matches!(facts.get(name), Some(Fact::Batched(_))) {
            return Err(format!("output `{name}` is the same for all rows"));
        }
        let shape = output.r#type.as_ref().and_then(|of| of.tensor_type.as_ref()?.shape.as_ref());
        if shape.is_some_and(|shape| shape.dim.is_empty()) {
            return Err(format!("output `{name}` is declared without dimensions"));
        }
    }
    Ok(changes)
}

/// Returns the change of an input of the node at `at`.
fn rows_change(at: usize, node: &NodeProto, input: InputChange, taken: &mut HashSet<String>) -> RowsChange {
    let (input, of, kind) = match input {
        InputChange::Sizes { at, of, count } => (at, of, RowsKind::Sizes(count)),
        InputChange::Repeated { at, of, rank } => (at, of, RowsKind::Repeated(rank)),
    };
    let name = |at: usize| node.input.get(at).cloned().unwrap_or_default();
    let parts = ["shape", "first", "rows", "places", "behind", "sizes", "batched"];
    let base = format!("{}/{input}", first(&node.output));
    let names = parts.map(|part| free_name(&base, part, taken));
    RowsChange { node: at, input, old: name(input), of: name(of), kind, names }
}

/// Returns the version of ONNX's own operators that a model uses.
fn opset(model: &ModelProto) -> i64 {
    let mut opsets = model.opset_import.iter().filter(|opset| is_standard(opset.domain.as_deref()));
    opsets.next().and_then(|opset| opset.version).unwrap_or(0)
}

fn first(names: &[String]) -> &str {
    names.first().map_or("", String::as_str)
}

/// Returns the names of all tensors of a graph.
fn names(graph: &GraphProto) -> HashSet<String> {
    let made = graph.node.iter().flat_map(|node| node.output.iter().chain(&node.input).cloned());
    made.chain(graph.initializer.iter().filter_map(|tensor| tensor.name.clone())).collect()
}

/// Returns a name that no tensor has, and takes it.
fn free_name(of: &str, part: &str, taken: &mut HashSet<String>) -> String {
    let mut name = format!("{of}/{part}");
    while !taken.insert(name.clone()) {
        name.push('_');
    }
    name
}

/// Returns true if a tensor has two dimensions by what makes it.
fn is_flat(graph: &GraphProto, tensor: &String) -> bool {
    let mut makers = graph.node.iter().filter(|node| node.output.first() == Some(tensor));
    makers.next().is_some_and(|node| matches!(node.op_type.as_deref(), Some("Flatten" | "Gemm")))
}

/// Returns the softmaxes of an opset whose softmax works on several dimensions, and that may do so.
fn softmaxes(model: &ModelProto, graph: &GraphProto) -> Vec<SoftmaxChange> {
    if !(OLDEST_OPSET..FIRST_SOFTMAX_OF_ONE).contains(&opset(model)) {
        return Vec::new();
    }
    let mut taken = names(graph);
    let change = |(at, node): (usize, &NodeProto)| {
        let operator =
            node.op_type.as_deref().filter(|operator| matches!(*operator, "Softmax" | "LogSoftmax"))?;
        let axis = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("axis"));
        let axis = axis.and_then(|axis| axis.i).unwrap_or(1);
        let (input, output) = (node.input.first()?, node.output.first()?);
        let is_last = axis == -1 || (axis == 1 && is_flat(graph, input));
        (is_standard(node.domain.as_deref()) && !is_last).then(|| SoftmaxChange {
            node: at,
            operator: operator.to_owned(),
            axis,
            input: input.clone(),
            output: output.clone(),
            names: ["unfolded", "folded", "done"].map(|part| free_name(output, part, &mut taken)),
        })
    };
    graph.node.iter().enumerate().filter_map(change).collect()
}

/// Returns the changes to a model's file: for its batch, if that was found, for these sizes, for
/// the initializers among its inputs and for its softmaxes.
pub(super) fn changes(model: &ModelProto, batch: Option<BatchChanges>, sizes: &[SizeChange]) -> Changes {
    let Some(graph) = &model.graph else { return Changes::default() };
    Changes {
        initializers: listed_initializers(graph),
        batch,
        sizes: sizes.to_vec(),
        softmaxes: softmaxes(model, graph),
    }
}
