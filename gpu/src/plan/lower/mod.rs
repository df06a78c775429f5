//! Lowering: the nodes of an ONNX graph, at one batch size, as few kinds of operations on tensors
//! whose types are known. What does not depend on a request is computed here.
//!
//! ```text
//! nodes ─▶ what no input reaches, folded once
//!       ─▶ by batch size: shapes, folded, lowered ─▶ fused ─▶ in half precision, channels last
//! ```

mod attention;
mod builder;
mod elementwise;
mod fuse;
mod images;
mod layout;
mod movement;
mod node;
mod operators;
mod precision;
mod reductions;
mod transposed_convolution;

use super::element::{PlanElement, PlanType};
use super::program::PlanPrecision;
use super::weights;
use crate::import::{BatchDimension, is_standard};
use builder::{FoldedConstants, NodeOutputs, PlanBuilder};
use node::{OnnxNode, node_name};
use operators::lowering_of;
use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto};
use std::collections::{HashMap, HashSet};
use std::path::Path;

pub(in crate::plan) use builder::{LoweredStep, PlanValue};

/// The oldest opset that is lowered: earlier ones stretch shapes otherwise.
const OLDEST_OPSET: i64 = 7;

/// An ONNX graph that is lowered for one batch size after another.
pub(super) struct GraphLowering<'a> {
    graph: &'a GraphProto,
    opset: i64,
    batch: BatchDimension,
    /// The inputs that are not initializers: name and type, whose first dimension is the batch's.
    inputs: Vec<(&'a str, PlanType)>,
    /// What is the same for each batch size.
    constants: HashMap<&'a str, PlanValue>,
    /// The nodes that were folded into it.
    done: HashSet<usize>,
    folded: FoldedConstants,
    precision: PlanPrecision,
}

/// A graph at one batch size.
pub(super) struct LoweredGraph {
    /// The steps in order.
    pub(super) steps: Vec<LoweredStep>,
    /// The inputs in the graph's order: each is a buffer of its own.
    pub(super) inputs: Vec<(String, PlanValue)>,
    /// The outputs in the graph's order: each is a buffer of its own, which a step writes.
    pub(super) outputs: Vec<(String, PlanValue)>,
    /// The nodes that were computed here.
    pub(super) folded: Vec<String>,
    /// The nodes that only give elements another shape or name.
    pub(super) reshaped: Vec<String>,
}

impl<'a> GraphLowering<'a> {
    /// Folds what no input reaches.
    ///
    /// Errors: the graph has operators, elements or dimensions that plans lack, or a constant can't
    /// be read.
    pub(super) fn new(
        model: &'a ModelProto,
        batch: BatchDimension,
        folder: &Path,
        precision: PlanPrecision,
    ) -> Result<GraphLowering<'a>, String> {
        let graph = model.graph.as_ref().ok_or("it has no graph")?;
        let mut opsets = model.opset_import.iter().filter(|opset| is_standard(opset.domain.as_deref()));
        let opset = opsets.next().and_then(|opset| opset.version).unwrap_or(0);
        if opset < OLDEST_OPSET {
            return Err(format!("its opset {opset} is older than {OLDEST_OPSET}"));
        }
        refuse_lacking(graph)?;
        let initializers: HashMap<&str, &TensorProto> =
            graph.initializer.iter().filter_map(|tensor| Some((tensor.name.as_deref()?, tensor))).collect();
        let given = graph
            .input
            .iter()
            .filter(|input| input.name.as_deref().is_some_and(|name| !initializers.contains_key(name)));
        let inputs = given.map(|input| input_type(input, batch)).collect::<Result<Vec<_>, _>>()?;
        let mut lowering = GraphLowering {
            graph,
            opset,
            batch,
            inputs,
            constants: HashMap::new(),
            done: HashSet::new(),
            folded: FoldedConstants::default(),
            precision,
        };
        lowering.fold_constants(&initializers, folder)?;
        Ok(lowering)
    }

    /// Reads the initializers that nodes use, and computes the nodes that no input reaches. What
    /// only these use is given up again.
    fn fold_constants(
        &mut self,
        initializers: &HashMap<&'a str, &'a TensorProto>,
        folder: &Path,
    ) -> Result<(), String> {
        let mut left: HashMap<&str, usize> = HashMap::new();
        let outputs = self.graph.output.iter().filter_map(|output| output.name.as_deref());
        let read = self.graph.node.iter().flat_map(|node| &node.input).map(String::as_str);
        read.chain(outputs).for_each(|name| *left.entry(name).or_default() += 1);
        let outputs = self.graph.output.iter().filter_map(|output| output.name.as_deref());
        let mut wanted: Vec<&'a str> = outputs.collect();
        for (at, node) in self.graph.node.iter().enumerate() {
            wanted.extend(node.input.iter().map(String::as_str));
            for name in wanted.drain(..) {
                if let (Some(tensor), false) = (initializers.get(name), self.constants.contains_key(name)) {
                    self.constants.insert(name, PlanValue::Constant(weights::read(tensor, folder)?));
                }
            }
            let mut builder = PlanBuilder::new(None);
            let constant = |name: &String| name.is_empty() || self.constants.contains_key(name.as_str());
            if !node.input.iter().all(constant) {
                continue;
            }
            // What fails here fails again, with its message, for a batch size.
            let Ok(values) = lower_node(node, self.opset, &self.constants, &mut builder) else { continue };
            if !builder.steps.is_empty() {
                continue;
            }
            self.constants.extend(node.output.iter().map(String::as_str).zip(values));
            self.done.insert(at);
            for name in &node.input {
                let uses = left.entry(name).or_default();
                *uses = uses.saturating_sub(1);
                if *uses == 0 {
                    self.constants.remove(name.as_str());
                }
            }
        }
        Ok(())
    }

    /// Lowers the graph for a batch of `rows` rows.
    ///
    /// Errors: the node that can't be lowered and why, or an output that has not the batch in
    /// front.
    pub(super) fn lower(&mut self, rows: usize) -> Result<LoweredGraph, String> {
        let mut builder = PlanBuilder::new(Some(&mut self.folded));
        let mut values = self.constants.clone();
        let mut inputs = Vec::new();
        for (name, of) in &self.inputs {
            let mut of = of.clone();
            if self.batch == BatchDimension::Dynamic {
                of.shape[0] = rows;
            }
            let value = PlanValue::Computed(builder.computed(of));
            values.insert(name, value.clone());
            inputs.push(((*name).to_owned(), value));
        }
        let (mut folded, mut reshaped) = (Vec::new(), Vec::new());
        for (at, node) in self.graph.node.iter().enumerate() {
            if self.done.contains(&at) {
                folded.push(node_name(node).to_owned());
                continue;
            }
            let steps = builder.steps.len();
            let made = lower_node(node, self.opset, &values, &mut builder)?;
            if made.iter().all(|value| value.constant().is_some()) {
                folded.push(node_name(node).to_owned());
            } else if builder.steps.len() == steps {
                reshaped.push(node_name(node).to_owned());
            }
            values.extend(node.output.iter().map(String::as_str).zip(made));
        }
        let outputs = outputs(self.graph, &values, &inputs, rows, &mut builder)?;
        let kept: Vec<PlanValue> = outputs.iter().map(|(_, value)| value.clone()).collect();
        fuse::fuse(&mut builder, &kept)?;
        let element = self.precision.element();
        if element.is_half() {
            attention::apply(&mut builder, &kept)?;
            precision::apply(&mut builder, &inputs, &outputs, element);
            layout::apply(&mut builder)?;
        }
        Ok(LoweredGraph { steps: builder.steps, inputs, outputs, folded, reshaped })
    }

    /// Returns the number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.graph.node.len()
    }
}

/// Returns true if plans have an operator of ONNX's own set, perhaps not each form of it.
pub fn covers_operator(operator: &str) -> bool {
    operator == "Constant" || lowering_of(operator).is_some()
}

/// Refuses a graph with operators that can't be lowered: names each, with its first node.
fn refuse_lacking(graph: &GraphProto) -> Result<(), String> {
    let mut named = HashSet::new();
    let mut lacking = Vec::new();
    for node in &graph.node {
        let operator = node.op_type.as_deref().unwrap_or_default();
        let known = is_standard(node.domain.as_deref()) && covers_operator(operator);
        if !known && named.insert(operator) {
            lacking.push(format!("{operator} (node `{}`)", node_name(node)));
        }
    }
    if lacking.is_empty() { Ok(()) } else { Err(format!("plans lack the operators {}", lacking.join(", "))) }
}

/// Returns an input's name, and its type with a batch of 1.
fn input_type(input: &ValueInfoProto, batch: BatchDimension) -> Result<(&str, PlanType), String> {
    let name = input.name.as_deref().unwrap_or_default();
    let tensor = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(|| format!("input `{name}` is no tensor"))?;
    let datatype = tensor.elem_type.unwrap_or(rten_onnx::onnx::DataType(0));
    let element = PlanElement::of_onnx(datatype)
        .ok_or_else(|| format!("input `{name}` has elements of type {datatype}, which plans lack"))?;
    let shape = tensor.shape.as_ref().ok_or_else(|| format!("input `{name}` has no shape"))?;
    let mut sizes = Vec::new();
    for (at, dimension) in shape.dim.iter().enumerate() {
        let fixed = dimension.dim_value.and_then(|size| usize::try_from(size).ok());
        sizes.push(match (at, fixed, batch) {
            (0, None, BatchDimension::Dynamic) => 1,
            (0, Some(1), BatchDimension::One) => 1,
            (_, _, BatchDimension::Absent) => return Err("plans are for models with a batch".to_owned()),
            (0, _, _) => return Err(format!("the first dimension of input `{name}` is not the batch's")),
            (_, Some(size), _) if size > 0 => size,
            _ => return Err(format!("dimension {at} of input `{name}` has no size above 0")),
        });
    }
    if sizes.is_empty() {
        return Err(format!("input `{name}` has no dimension for the batch"));
    }
    Ok((name, PlanType::new(element, sizes)))
}

/// Lowers one node; returns its outputs.
///
/// Errors: what stands in the way, with the operator and the node.
fn lower_node(
    node: &NodeProto,
    opset: i64,
    values: &HashMap<&str, PlanValue>,
    builder: &mut PlanBuilder<'_>,
) -> NodeOutputs {
    let operator = node.op_type.as_deref().unwrap_or_default();
    let named = |why: String| format!("node `{}` ({operator}): {why}", node_name(node));
    node_name(node).clone_into(&mut builder.node);
    if operator == "Constant" {
        return constant(node).map(|value| vec![value]).map_err(named);
    }
    let value = |name: &String| match name.as_str() {
        "" => Ok(None),
        name => values.get(name).cloned().map(Some).ok_or_else(|| not_made(name)),
    };
    let inputs = node.input.iter().map(value).collect::<Result<_, _>>().map_err(named)?;
    let lower = lowering_of(operator).ok_or_else(|| named("plans lack this operator".to_owned()))?;
    lower(&OnnxNode { node, inputs, opset }, builder).map_err(named)
}

/// Returns the message about a tensor that is used and was not made.
fn not_made(name: &str) -> String {
    format!("`{name}` is used before it is made, or is a further output of a node, which plans lack")
}

/// Returns the value of a node without inputs.
fn constant(node: &NodeProto) -> Result<PlanValue, String> {
    use super::element::ConstantTensor;
    let attribute = node.attribute.first().ok_or("it has no value")?;
    let tensor = match attribute.name.as_deref() {
        Some("value") => weights::read_within(attribute.t.as_ref().ok_or("it has no value")?)?,
        Some("value_int") => ConstantTensor::of_i64(&[], &[attribute.i.unwrap_or(0)]),
        Some("value_ints") => ConstantTensor::of_i64(&[attribute.ints.len()], &attribute.ints),
        Some("value_float") => ConstantTensor::of_f32(&[], &[attribute.f.unwrap_or(0.0)]),
        Some("value_floats") => ConstantTensor::of_f32(&[attribute.floats.len()], &attribute.floats),
        other => return Err(format!("its value is a {}, which plans lack", other.unwrap_or_default())),
    };
    Ok(PlanValue::Constant(tensor))
}

/// Returns the outputs of a graph, each in a buffer of its own that a step writes.
fn outputs(
    graph: &GraphProto,
    values: &HashMap<&str, PlanValue>,
    inputs: &[(String, PlanValue)],
    rows: usize,
    builder: &mut PlanBuilder<'_>,
) -> Result<Vec<(String, PlanValue)>, String> {
    let mut taken: HashSet<Option<usize>> = inputs.iter().map(|(_, input)| input.buffer()).collect();
    // A constant has no buffer.
    taken.insert(None);
    let mut outputs = Vec::new();
    for output in &graph.output {
        let name = output.name.as_deref().unwrap_or_default();
        let value = values.get(name).ok_or_else(|| not_made(name))?;
        if value.shape().first() != Some(&rows) {
            return Err(format!(
                "output `{name}` is {} for a batch of {rows}: the batch must be its first dimension",
                value.of()
            ));
        }
        name.clone_into(&mut builder.node);
        let value =
            if taken.insert(value.buffer()) { value.clone() } else { movement::duplicate(builder, value) };
        taken.insert(value.buffer());
        outputs.push((name.to_owned(), value));
    }
    Ok(outputs)
}
