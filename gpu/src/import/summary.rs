//! What an ONNX file says of itself, for a person who asks before it is served.

use super::batch::{self, FirstDimension};
use super::facts::listed_initializers;
use super::file::OnnxFile;
use super::sizes::{dynamic_name, dynamic_names, first_names, fixed_size};
use crate::host::LoadError;
use rten_onnx::onnx::{DataType, Dimension, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What an ONNX file says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnnxSummary {
    /// The program that made it, as it calls itself; empty where the file does not say.
    pub producer: String,
    /// The sets of operators that it uses, by domain (empty for ONNX's own), with their versions.
    pub opsets: Vec<(String, i64)>,
    /// The inputs, without those that are initializers.
    pub inputs: Vec<TensorSummary>,
    /// The outputs.
    pub outputs: Vec<TensorSummary>,
    /// The dynamic dimensions that need a size.
    pub without_size: BTreeSet<String>,
    /// The operators of the graph and of graphs in it, the most frequent first.
    pub operators: Vec<OperatorCount>,
    /// The names of the files that hold weights, relative to the model's folder.
    pub weight_files: Vec<String>,
    /// The size of the file and of those with its weights, bytes.
    pub weights_bytes: u64,
}

/// An input or output as a file declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSummary {
    /// The name.
    pub name: String,
    /// The element type in ONNX's words.
    pub datatype: String,
    /// The sizes; the name of a dynamic one, by which it is given a size, or `?` for an unnamed
    /// batch. `None` where no shape is declared.
    pub shape: Option<Vec<String>>,
    /// The indices of the dynamic dimensions.
    pub dynamic: Vec<usize>,
}

/// An operator, and the number of nodes that have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OperatorCount {
    /// The operator, behind its domain if that is not ONNX's own.
    pub operator: String,
    /// The number of nodes.
    pub nodes: usize,
}

/// Reads the file at `path` and returns what it says of itself.
///
/// # Errors
/// If it can't be read, is no ONNX model, or has its weights outside of its folder.
pub fn summarise(path: &Path) -> Result<OnnxSummary, LoadError> {
    let file = OnnxFile::read(path)?;
    let without_size = without_size(&file.model);
    let graph = file.model.graph.unwrap_or_default();
    let listed = listed_initializers(&graph);
    let inputs = graph.input.iter().enumerate().filter(|(at, _)| !listed.contains(at));
    let opsets = file.model.opset_import.iter();
    Ok(OnnxSummary {
        producer: file.model.producer_name.unwrap_or_default(),
        opsets: opsets.map(|of| (of.domain.clone().unwrap_or_default(), of.version.unwrap_or(0))).collect(),
        inputs: inputs.map(|(_, input)| tensor(input)).collect(),
        outputs: graph.output.iter().map(tensor).collect(),
        without_size,
        operators: operators(&graph),
        weight_files: file.weights.into_iter().collect(),
        weights_bytes: file.weights_bytes,
    })
}

/// Returns the names of the dynamic dimensions that need a size: those beyond the first, but for
/// those of a first dimension's name where that is no batch, and 1.
fn without_size(model: &ModelProto) -> BTreeSet<String> {
    let Some(graph) = &model.graph else { return BTreeSet::new() };
    let names = dynamic_names(graph);
    match batch::find(model) {
        FirstDimension::Absent(_) => &names - &first_names(graph),
        _ => names,
    }
}

fn tensor(value: &ValueInfoProto) -> TensorSummary {
    let tensor = value.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let datatype =
        tensor.and_then(|tensor| tensor.elem_type).map_or("no tensor".into(), |of: DataType| of.to_string());
    let dimensions = tensor.and_then(|tensor| tensor.shape.as_ref()).map(|shape| &shape.dim);
    let size = |(at, of): (usize, &Dimension)| match (fixed_size(of), &of.dim_param) {
        (Some(size), _) => size.to_string(),
        (None, Some(name)) if !name.is_empty() => name.clone(),
        _ => dynamic_name(value, at, of).unwrap_or_else(|| "?".to_owned()),
    };
    let is_dynamic = |(at, of): (usize, &Dimension)| fixed_size(of).is_none().then_some(at);
    TensorSummary {
        name: value.name.clone().unwrap_or_default(),
        datatype,
        shape: dimensions.map(|all| all.iter().enumerate().map(size).collect()),
        dynamic: dimensions
            .map_or_else(Vec::new, |all| all.iter().enumerate().filter_map(is_dynamic).collect()),
    }
}

fn operators(graph: &GraphProto) -> Vec<OperatorCount> {
    let mut counts = BTreeMap::new();
    count(graph, &mut counts);
    let mut counts: Vec<OperatorCount> =
        counts.into_iter().map(|(operator, nodes)| OperatorCount { operator, nodes }).collect();
    counts.sort_by_key(|of| std::cmp::Reverse(of.nodes));
    counts
}

fn count(graph: &GraphProto, counts: &mut BTreeMap<String, usize>) {
    for node in &graph.node {
        *counts.entry(operator(node)).or_default() += 1;
        node.attribute.iter().filter_map(|of| of.g.as_ref()).for_each(|graph| count(graph, counts));
    }
}

fn operator(node: &NodeProto) -> String {
    let operator = node.op_type.as_deref().unwrap_or_default();
    match node.domain.as_deref() {
        None | Some("" | "ai.onnx") => operator.to_owned(),
        Some(domain) => format!("{domain}.{operator}"),
    }
}

/// Returns a number of bytes for a person to read, in kB or MB where it is large enough.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
