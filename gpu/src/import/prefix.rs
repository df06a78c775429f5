//! The first layers that several ONNX models share (Nexus, section 6.3): the nodes that have the
//! same operator, attributes and weights in all of them, and whose inputs are shared as well, from
//! the models' inputs on. Names do not matter, but those of the models' inputs.
//!
//! Every tensor gets a number, the same in all models where it is computed alike: tensors are
//! looked up by what makes them, whole and not by a hash of it, so that no two are taken for one.
//! One pass over the nodes of each file; the time and the memory are those of reading the weights.

use super::facts::listed_initializers;
use super::number;
use super::proto::ProtoMessage;
use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The layers that several models share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedPrefix {
    /// The number of nodes in the shared layers.
    pub nodes: usize,
    /// The bytes of weights in them.
    pub weights_bytes: u64,
    /// The tensors that the shared layers give to what follows them, or to the client, by their
    /// names in the first model.
    pub tensors: Vec<String>,
    /// Each model, in the order of the paths.
    pub models: Vec<PrefixedModel>,
}

impl SharedPrefix {
    /// Returns the bytes of all weights of the models, with the shared ones as often as there are
    /// models, and with them once.
    pub fn all_weights(&self) -> (u64, u64) {
        let all: u64 = self.models.iter().map(|model| model.weights_bytes).sum();
        let others = (self.models.len() as u64).saturating_sub(1);
        (all, all.saturating_sub(self.weights_bytes.saturating_mul(others)))
    }
}

/// A model that shares layers with others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefixedModel {
    /// The number of its nodes that compute something from its inputs.
    pub nodes: usize,
    /// The bytes of all of its weights.
    pub weights_bytes: u64,
    /// The names of [`SharedPrefix::tensors`] in this model.
    pub tensors: Vec<String>,
}

/// What makes a tensor.
#[derive(PartialEq, Eq, Hash)]
enum TensorOrigin {
    /// An input of the model: its name and its encoded type.
    Input(String, Vec<u8>),
    /// Weights: the encoded tensor without its name, and the folder of those in a file of their
    /// own.
    Weights(Vec<u8>, Option<PathBuf>),
    /// An output of a node: the encoded node without names, the version of its operators, its
    /// inputs and the output's place.
    Node(Vec<u8>, i64, Vec<Option<usize>>, usize),
}

/// The numbers of the tensors of all models.
#[derive(Default)]
struct TensorNumbers {
    of: HashMap<TensorOrigin, usize>,
    /// Numbers given to tensors that no other model can have count up from the other end.
    unique: usize,
}

impl TensorNumbers {
    fn of(&mut self, origin: TensorOrigin) -> usize {
        let next = self.of.len();
        *self.of.entry(origin).or_insert(next)
    }

    fn unique(&mut self) -> usize {
        self.unique += 1;
        usize::MAX - self.unique
    }
}

/// A node of a model that computes something from the model's inputs.
struct NumberedNode<'a> {
    inputs: Vec<usize>,
    outputs: Vec<(usize, &'a str)>,
    /// True if it says how large a tensor is, or is computed from that alone.
    is_shape: bool,
}

/// A model whose tensors have numbers.
pub(super) struct NumberedModel<'a> {
    nodes: Vec<NumberedNode<'a>>,
    /// The weights, with their bytes.
    weights: HashMap<usize, u64>,
    /// The tensors that are computed from weights alone, each with those that it is computed from.
    constants: HashMap<usize, Vec<usize>>,
    outputs: Vec<usize>,
}

impl NumberedModel<'_> {
    /// Returns the tensors that are computed from the model's inputs.
    pub(super) fn computed(&self) -> HashSet<usize> {
        self.nodes.iter().flat_map(|node| node.outputs.iter().map(|output| output.0)).collect()
    }

    /// Returns the number of nodes that compute these tensors, and the bytes of their weights.
    pub(super) fn cost_of(&self, tensors: &HashSet<usize>) -> (usize, u64) {
        let is_of = |node: &&NumberedNode<'_>| node.outputs.iter().all(|output| tensors.contains(&output.0));
        let nodes: Vec<&NumberedNode<'_>> = self.nodes.iter().filter(is_of).collect();
        let mut open: Vec<usize> = nodes.iter().flat_map(|node| node.inputs.iter().copied()).collect();
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        while let Some(number) = open.pop() {
            if seen.insert(number) {
                bytes += self.weights.get(&number).copied().unwrap_or(0);
                open.extend(self.constants.get(&number).into_iter().flatten());
            }
        }
        (nodes.len(), bytes)
    }
}

/// The names of the cut tensors in a model: each name of one, with its index among
/// [`SharedPrefix::tensors`]. A tensor that is computed twice has two names.
pub(super) type CutNames = HashMap<String, usize>;

/// Numbers the tensors of models: each is a file's content, as bytes and as it was read, of the
/// folder at its place in `folders`.
pub(super) fn numbered_models<'a>(
    contents: &[(&[u8], &'a ModelProto)],
    folders: &[PathBuf],
) -> Vec<NumberedModel<'a>> {
    let mut numbers = TensorNumbers::default();
    let files = contents.iter().zip(folders);
    files.map(|(&(bytes, model), folder)| numbered(bytes, model, folder, &mut numbers)).collect()
}

/// Finds the layers that models share. Returns the names of the cut tensors in each model too.
pub(super) fn shared_by(models: &[&NumberedModel<'_>]) -> (SharedPrefix, Vec<CutNames>) {
    let in_all = models.iter().map(|model| model.computed()).reduce(|all, of| &all & &of).unwrap_or_default();
    let cut = cut_tensors(models, &in_all);
    let named = |model: &NumberedModel<'_>| -> Vec<String> {
        let outputs = model.nodes.iter().flat_map(|node| &node.outputs);
        let names: HashMap<usize, &str> = outputs.copied().collect();
        cut.iter().filter_map(|number| names.get(number).map(|name| (*name).to_owned())).collect()
    };
    let places: HashMap<usize, usize> = cut.iter().enumerate().map(|(at, &number)| (number, at)).collect();
    let cut_names = |model: &&NumberedModel<'_>| -> CutNames {
        let outputs = model.nodes.iter().flat_map(|node| &node.outputs);
        outputs.filter_map(|(number, name)| Some(((*name).to_owned(), *places.get(number)?))).collect()
    };
    let first = models.first();
    let (nodes, weights_bytes) = first.map_or((0, 0), |model| model.cost_of(&in_all));
    let shared = SharedPrefix {
        nodes,
        weights_bytes,
        tensors: first.map(|model| named(model)).unwrap_or_default(),
        models: models
            .iter()
            .map(|model| PrefixedModel {
                nodes: model.nodes.len(),
                weights_bytes: model.weights.values().sum(),
                tensors: named(model),
            })
            .collect(),
    };
    (shared, models.iter().map(cut_names).collect())
}

/// Returns the shared tensors that the layers after the shared ones take, or clients. Sizes of
/// tensors are not among them: they are computed anew from the tensors.
fn cut_tensors(models: &[&NumberedModel<'_>], shared: &HashSet<usize>) -> BTreeSet<usize> {
    let mut cut = BTreeSet::new();
    for model in models {
        let is_own = |node: &&NumberedNode<'_>| !node.outputs.iter().all(|output| shared.contains(&output.0));
        let sizes: HashSet<usize> = model
            .nodes
            .iter()
            .filter(|node| node.is_shape)
            .flat_map(|node| node.outputs.iter().map(|output| output.0))
            .collect();
        let makers: HashMap<usize, &NumberedNode<'_>> =
            model.nodes.iter().flat_map(|node| node.outputs.iter().map(move |out| (out.0, node))).collect();
        let taken = model.nodes.iter().filter(is_own).flat_map(|node| node.inputs.iter().copied());
        let mut open: Vec<usize> = taken.chain(model.outputs.iter().copied()).collect();
        let mut seen = HashSet::new();
        while let Some(number) = open.pop() {
            if !shared.contains(&number) || !seen.insert(number) {
                continue;
            }
            match makers.get(&number).filter(|_| sizes.contains(&number)) {
                Some(maker) => open.extend(&maker.inputs),
                None => drop(cut.insert(number)),
            }
        }
    }
    cut
}

fn numbered<'a>(
    bytes: &[u8],
    model: &'a ModelProto,
    folder: &Path,
    numbers: &mut TensorNumbers,
) -> NumberedModel<'a> {
    let (mut weights, mut constants) = (HashMap::new(), HashMap::new());
    let message = ProtoMessage::parse(bytes);
    let graph_bytes = message.as_ref().and_then(|message| message.contents(number::MODEL_GRAPH).next());
    let raw = graph_bytes.and_then(ProtoMessage::parse);
    let (Some(graph), Some(raw)) = (model.graph.as_ref(), raw) else {
        return NumberedModel { nodes: Vec::new(), weights, constants, outputs: Vec::new() };
    };
    let mut known: HashMap<&str, usize> = HashMap::new();
    for (tensor, bytes) in graph.initializer.iter().zip(raw.contents(number::GRAPH_INITIALIZER)) {
        let folder = (!tensor.external_data.is_empty()).then(|| folder.to_owned());
        let number = numbers.of(TensorOrigin::Weights(without(bytes, &[number::INITIALIZER_NAME]), folder));
        known.insert(tensor.name.as_deref().unwrap_or_default(), number);
        weights.insert(number, bytes_of(tensor, bytes));
    }
    let mut reached = inputs(graph, &raw, numbers, &mut known);
    let mut nodes = Vec::new();
    for (node, bytes) in graph.node.iter().zip(raw.contents(number::GRAPH_NODE)) {
        let taken = node.input.iter().filter(|name| !name.is_empty());
        let taken: Vec<usize> = taken.filter_map(|name| known.get(name.as_str()).copied()).collect();
        let outputs = numbered_outputs(node, bytes, model, numbers, &known);
        known.extend(outputs.iter().map(|(number, name)| (*name, *number)));
        let from_inputs: Vec<bool> = taken.iter().filter_map(|number| reached.get(number).copied()).collect();
        if from_inputs.is_empty() && !has_graph(node) {
            if node.op_type.as_deref() == Some("Constant") {
                weights.extend(outputs.iter().map(|output| (output.0, bytes.len() as u64)));
            }
            constants.extend(outputs.iter().map(|output| (output.0, taken.clone())));
            continue;
        }
        let sizes_only = from_inputs.iter().all(|&is_shape| is_shape) && !from_inputs.is_empty();
        let is_shape = matches!(node.op_type.as_deref(), Some("Shape" | "Size")) || sizes_only;
        reached.extend(outputs.iter().map(|output| (output.0, is_shape)));
        nodes.push(NumberedNode { inputs: taken, outputs, is_shape });
    }
    let outputs = graph.output.iter().filter_map(|output| known.get(output.name.as_deref()?).copied());
    NumberedModel { nodes, weights, constants, outputs: outputs.collect() }
}

/// Numbers the inputs of a graph, and returns them, as tensors that are no sizes.
fn inputs<'a>(
    graph: &'a GraphProto,
    raw: &ProtoMessage<'_>,
    numbers: &mut TensorNumbers,
    known: &mut HashMap<&'a str, usize>,
) -> HashMap<usize, bool> {
    let listed = listed_initializers(graph);
    let mut reached = HashMap::new();
    for (at, (input, bytes)) in graph.input.iter().zip(raw.contents(number::GRAPH_INPUT)).enumerate() {
        if listed.contains(&at) {
            continue;
        }
        let name = input.name.as_deref().unwrap_or_default();
        let message = ProtoMessage::parse(bytes);
        let kind = message.as_ref().and_then(|message| message.contents(number::VALUE_TYPE).next());
        let number = numbers.of(TensorOrigin::Input(name.to_owned(), kind.unwrap_or_default().to_vec()));
        known.insert(name, number);
        reached.insert(number, false);
    }
    reached
}

/// Numbers the outputs of a node: those of one with graphs in it are no other model's, since these
/// may take any tensor around them.
fn numbered_outputs<'a>(
    node: &'a NodeProto,
    bytes: &[u8],
    model: &ModelProto,
    numbers: &mut TensorNumbers,
    known: &HashMap<&str, usize>,
) -> Vec<(usize, &'a str)> {
    const NAMES: [u64; 4] = [number::NODE_INPUT, number::NODE_OUTPUT, number::NODE_NAME, number::NODE_TEXT];
    let stripped = without(bytes, &NAMES);
    let inputs: Vec<Option<usize>> =
        node.input.iter().map(|name| known.get(name.as_str()).copied()).collect();
    let is_known = node.input.iter().zip(&inputs).all(|(name, number)| name.is_empty() || number.is_some());
    let domain = node.domain.as_deref().unwrap_or_default();
    let of_domain = |of: &&rten_onnx::onnx::OperatorSetIdProto| {
        let named = of.domain.as_deref().unwrap_or_default();
        named == domain || [named, domain].iter().all(|name| matches!(*name, "" | "ai.onnx"))
    };
    let version = model.opset_import.iter().find(of_domain).and_then(|of| of.version).unwrap_or(0);
    let named = node.output.iter().enumerate().filter(|(_, name)| !name.is_empty());
    let mut number = |at: usize| match is_known && !has_graph(node) {
        true => numbers.of(TensorOrigin::Node(stripped.clone(), version, inputs.clone(), at)),
        false => numbers.unique(),
    };
    named.map(|(at, name)| (number(at), name.as_str())).collect()
}

fn has_graph(node: &NodeProto) -> bool {
    node.attribute.iter().any(|attribute| attribute.g.is_some())
}

/// Returns a message without the fields of these numbers.
fn without(bytes: &[u8], numbers: &[u64]) -> Vec<u8> {
    let mut message = ProtoMessage::parse(bytes).unwrap_or_default();
    numbers.iter().for_each(|&number| message.retain(number, |_| false));
    message.encode()
}

pub(super) fn folder_of(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    folder.canonicalize().unwrap_or_else(|_| folder.to_owned())
}

/// Returns the bytes of a tensor: as it is encoded, or as it says of its file.
fn bytes_of(tensor: &TensorProto, encoded: &[u8]) -> u64 {
    let length = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some("length"));
    let length = length.and_then(|entry| entry.value.as_ref()?.parse().ok());
    length.unwrap_or(encoded.len() as u64)
}
