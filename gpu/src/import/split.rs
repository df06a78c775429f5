//! Cuts models that share their first layers into a graph of these and one of each model's own
//! layers, each as a file in memory. What is cut is what [`prefix`](super::prefix) finds to be
//! computed alike. The weights of a part are in it, those from other files too.

use super::declared::DeclaredTypes;
use super::file::{self, OnnxFile};
use super::prefix::{CutNames, NumberedModel, SharedPrefix, folder_of, numbered_models, shared_by};
use super::proto::ProtoMessage;
use super::source::{BatchDimension, InputShapes, OnnxSource};
use super::{number, rewrite};
use crate::host::LoadError;
use crate::signature::{DataType, TensorSpec};
use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// The most bytes of a part: libraries read no larger message.
const MAX_PART_BYTES: u64 = (1 << 31) - 1;

/// A reason why models are not run as one.
#[derive(Debug)]
pub(crate) struct SplitError {
    /// The index of the model at which it shows.
    pub(crate) at: usize,
    pub(crate) error: LoadError,
}

/// A file that is to be cut: as it is loaded for batches, and its content.
struct WholeFile {
    path: PathBuf,
    bytes: Vec<u8>,
    model: ModelProto,
}

/// Models that share layers, ready to be cut.
pub(crate) struct SplitFiles {
    files: Vec<WholeFile>,
    names: Vec<CutNames>,
    /// The inputs that the layers after the shared ones take themselves; the shared ones pass them
    /// on.
    passed: Vec<String>,
    /// What the models share.
    pub(crate) shared: SharedPrefix,
}

impl SplitFiles {
    /// Finds the layers that the models share.
    ///
    /// Errors: they share none, or a file can't be read.
    pub(crate) fn new(sources: Vec<OnnxSource>) -> Result<SplitFiles, SplitError> {
        let read = |(at, source): (usize, OnnxSource)| {
            let path = source.path.clone();
            let bytes = source.rewritten.map_or_else(|| std::fs::read(&path), Ok);
            let bytes =
                bytes.map_err(|error| SplitError { at, error: LoadError::from_io(&source.path, error) })?;
            let corrupt = |reason| LoadError::Corrupt { path: path.clone(), reason };
            let model = file::parse(&bytes).map_err(|reason| SplitError { at, error: corrupt(reason) })?;
            Ok(WholeFile { path, bytes, model })
        };
        let files = sources.into_iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
        let contents: Vec<(&[u8], &ModelProto)> =
            files.iter().map(|file| (file.bytes.as_slice(), &file.model)).collect();
        let folders: Vec<PathBuf> = files.iter().map(|file| folder_of(&file.path)).collect();
        let models = numbered_models(&contents, &folders);
        let (shared, names) = shared_by(&models.iter().collect::<Vec<_>>());
        if shared.tensors.is_empty() {
            // Of two files the second is as good as the first; of more, one may be at fault.
            let at = odd_one(&models);
            let path = |at: usize| files.get(at).map(|file| file.path.clone()).unwrap_or_default();
            let with = path(usize::from(at == 0));
            return Err(SplitError { at, error: LoadError::NothingShared { path: path(at), with } });
        }
        let mut passed = BTreeSet::new();
        for (file, names) in files.iter().zip(&names) {
            let slice = file.slice(outputs_of(&file.model), |name| names.contains_key(name));
            passed.extend(file.inputs().filter(|input| slice.reached.contains(*input)).map(str::to_owned));
        }
        Ok(SplitFiles { files, names, passed: passed.into_iter().collect(), shared })
    }

    /// Returns the shared layers. Their outputs are the tensors of the cut, in its order, and then
    /// the inputs that are passed on.
    ///
    /// Errors: weights can't be read, or are too many.
    pub(crate) fn prefix(&self) -> Result<OnnxSource, SplitError> {
        let at_first = |error| SplitError { at: 0, error };
        let Some(file) = self.files.first() else { return Err(at_first(no_graph(Path::new("")))) };
        let slice = file.slice(self.shared.tensors.iter().map(String::as_str), |_| false);
        let taken = self.passed.iter().map(|input| (file.free_name(input), input));
        let taken: Vec<(String, &String)> = taken.collect();
        let copies: Vec<Vec<u8>> = taken.iter().map(|(name, input)| identity(input, name)).collect();
        let outputs = self.shared.tensors.iter().chain(taken.iter().map(|(name, _)| name));
        let outputs: Vec<Vec<u8>> = outputs.map(|name| named_value(name)).collect();
        file.part(&slice, copies, None, Some(outputs)).map_err(at_first)
    }

    /// Returns the own layers of the model at `at`, of which `tensors` are the outputs of the
    /// shared ones, and for each of its inputs the index of the one that it is.
    ///
    /// Errors: weights can't be read, or are too many.
    pub(crate) fn suffix(
        &self,
        at: usize,
        tensors: &[TensorSpec],
    ) -> Result<(OnnxSource, Vec<usize>), SplitError> {
        let at_own = |error| SplitError { at, error };
        let (Some(file), Some(names)) = (self.files.get(at), self.names.get(at)) else {
            return Err(at_own(no_graph(Path::new(""))));
        };
        let outputs: HashSet<&str> = outputs_of(&file.model).collect();
        let slice = file.slice(outputs_of(&file.model), |name| names.contains_key(name));
        let (mut inputs, mut copies, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for (source, spec) in tensors.iter().enumerate() {
            let input = self.passed.get(source.wrapping_sub(self.shared.tensors.len()));
            let mut own: Vec<&str> = match input {
                Some(input) => slice.reached.get(input.as_str()).copied().into_iter().collect(),
                None => {
                    let of_cut = names.iter().filter(|(_, of)| **of == source).map(|(name, _)| name.as_str());
                    of_cut.filter(|name| slice.reached.contains(name)).collect()
                }
            };
            own.sort_unstable();
            let Some(&first) = own.first() else { continue };
            // An output can't be an input as well.
            let plain = own.iter().find(|name| !outputs.contains(*name)).copied();
            let name = plain.map_or_else(|| file.free_name(first), str::to_owned);
            copies.extend(own.iter().filter(|own| **own != name).map(|own| identity(&name, own)));
            inputs.push(typed_value(&name, spec));
            sources.push(source);
        }
        let source = file.part(&slice, copies, Some(inputs), None).map_err(at_own)?;
        Ok((source, sources))
    }
}

/// Returns the first model that shares nothing with the one before it; the last where each two
/// do.
fn odd_one(models: &[NumberedModel<'_>]) -> usize {
    let shares =
        |pair: &[NumberedModel<'_>]| !shared_by(&pair.iter().collect::<Vec<_>>()).0.tensors.is_empty();
    let odd = models.windows(2).position(|pair| !shares(pair));
    odd.map_or(models.len().saturating_sub(1), |before| before + 1)
}

/// The part of a graph that some of its tensors are computed by.
struct Slice<'a> {
    /// The indices of its nodes.
    nodes: HashSet<usize>,
    /// The names of all tensors on the way, those at which it ends too.
    reached: HashSet<&'a str>,
}

impl WholeFile {
    fn graph(&self) -> Option<&GraphProto> {
        self.model.graph.as_ref()
    }

    /// Iterates over the names of the inputs.
    fn inputs(&self) -> impl Iterator<Item = &str> {
        self.graph().into_iter().flat_map(|graph| &graph.input).filter_map(|input| input.name.as_deref())
    }

    /// Returns what these tensors are computed by, back to those for which `is_end` is true.
    fn slice<'a>(&'a self, of: impl Iterator<Item = &'a str>, is_end: impl Fn(&str) -> bool) -> Slice<'a> {
        let all = self.graph().map_or(&[][..], |graph| &graph.node);
        let makers: HashMap<&str, (usize, &NodeProto)> = all
            .iter()
            .enumerate()
            .flat_map(|(at, node)| node.output.iter().map(move |output| (output.as_str(), (at, node))))
            .collect();
        let (mut nodes, mut reached, mut open) = (HashSet::new(), HashSet::new(), of.collect::<Vec<_>>());
        while let Some(name) = open.pop() {
            if name.is_empty() || !reached.insert(name) || is_end(name) {
                continue;
            }
            if let Some((at, node)) = makers.get(name)
                && nodes.insert(*at)
            {
                add_inputs(node, &mut open);
            }
        }
        Slice { nodes, reached }
    }

    /// Returns a name that no tensor has.
    fn free_name(&self, of: &str) -> String {
        let graph = self.graph();
        let nodes = || graph.into_iter().flat_map(|graph| &graph.node);
        let is_taken = |name: &str| nodes().any(|node| node.output.iter().any(|output| output == name));
        let mut name = format!("{of}/shared");
        while is_taken(&name) {
            name.push('_');
        }
        name
    }

    /// Returns a part of the file, with `copies` as its first nodes, and perhaps with other inputs
    /// or outputs.
    ///
    /// Errors: weights can't be read, or are too many.
    fn part(
        &self,
        slice: &Slice<'_>,
        copies: Vec<Vec<u8>>,
        inputs: Option<Vec<Vec<u8>>>,
        outputs: Option<Vec<Vec<u8>>>,
    ) -> Result<OnnxSource, LoadError> {
        let graph = self.graph().ok_or_else(|| no_graph(&self.path))?;
        let is_used =
            |tensor: &TensorProto| tensor.name.as_deref().is_some_and(|name| slice.reached.contains(name));
        let used: Vec<bool> = graph.initializer.iter().map(is_used).collect();
        let mut message = ProtoMessage::parse(&self.bytes).ok_or_else(|| no_graph(&self.path))?;
        let changed = message.change(number::MODEL_GRAPH, 0, |raw| {
            for (at, tensor) in graph.initializer.iter().enumerate().filter(|(at, _)| used[*at]) {
                if !tensor.external_data.is_empty() {
                    let within =
                        raw.change(number::GRAPH_INITIALIZER, at, |raw| Some(self.taken_in(tensor, raw)));
                    if let Err(error) = within? {
                        return Some(Err(error));
                    }
                }
            }
            raw.retain(number::GRAPH_INITIALIZER, |at| used.get(at) == Some(&true));
            raw.retain(number::GRAPH_NODE, |at| slice.nodes.contains(&at));
            raw.put_in_front(number::GRAPH_NODE, copies);
            // They may name tensors that are in the other part.
            raw.retain(number::GRAPH_VALUE_INFO, |_| false);
            for (number, values) in [(number::GRAPH_INPUT, inputs), (number::GRAPH_OUTPUT, outputs)] {
                if let Some(values) = values {
                    raw.retain(number, |_| false);
                    values.into_iter().for_each(|value| raw.push(number, value));
                }
            }
            Some(Ok(()))
        });
        changed.ok_or_else(|| no_graph(&self.path))??;
        self.source_of(message.encode())
    }

    fn source_of(&self, bytes: Vec<u8>) -> Result<OnnxSource, LoadError> {
        let path = self.path.clone();
        if bytes.len() as u64 > MAX_PART_BYTES {
            let reason = format!("a part of it has {} bytes; {MAX_PART_BYTES} are possible", bytes.len());
            return Err(LoadError::Split { path, reason });
        }
        let model = file::parse(&bytes).map_err(|reason| LoadError::Split { path: path.clone(), reason })?;
        Ok(OnnxSource {
            declared: DeclaredTypes::of(&model),
            weights: OnnxFile::weight_files(&model),
            weights_bytes: bytes.len() as u64,
            rewritten: Some(bytes),
            batch: BatchDimension::Dynamic,
            shapes: InputShapes::new(),
            path,
        })
    }

    /// Takes the data of a tensor that is in another file into its message.
    fn taken_in(&self, tensor: &TensorProto, raw: &mut ProtoMessage<'_>) -> Result<(), LoadError> {
        let entry = |key: &str| {
            let mut entries = tensor.external_data.iter().filter(|entry| entry.key.as_deref() == Some(key));
            entries.next().and_then(|entry| entry.value.as_deref())
        };
        let number = |key: &str| entry(key).and_then(|value| value.parse::<usize>().ok());
        let failed = |reason: String| LoadError::ExternalData { path: self.path.clone(), reason };
        let location = entry("location").unwrap_or_default();
        // The path was checked when the file was read.
        let data = std::fs::read(self.path.with_file_name("").join(location))
            .map_err(|error| failed(format!("{location}: {error}")))?;
        let start = number("offset").unwrap_or(0);
        let end = number("length").map_or(Some(data.len()), |length| start.checked_add(length));
        let own = end.and_then(|end| data.get(start..end));
        let own = own.ok_or_else(|| failed(format!("{location} ends before the tensor's data")))?;
        for field in [number::TENSOR_EXTERNAL, number::TENSOR_DATA_LOCATION] {
            raw.retain(field, |_| false);
        }
        raw.push(number::INITIALIZER_BYTES, own.to_vec());
        Ok(())
    }
}

fn no_graph(path: &Path) -> LoadError {
    LoadError::Split { path: path.into(), reason: "it has no graph".to_owned() }
}

/// Iterates over the names of the outputs.
fn outputs_of(model: &ModelProto) -> impl Iterator<Item = &str> {
    model.graph.iter().flat_map(|graph| &graph.output).filter_map(|output| output.name.as_deref())
}

/// Adds the tensors that a node takes, and those that graphs in it may.
fn add_inputs<'a>(node: &'a NodeProto, open: &mut Vec<&'a str>) {
    open.extend(node.input.iter().map(String::as_str));
    let graphs = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
    for graph in graphs {
        graph.node.iter().for_each(|node| add_inputs(node, open));
        open.extend(graph.output.iter().filter_map(|output| output.name.as_deref()));
    }
}

fn identity(from: &String, to: &str) -> Vec<u8> {
    rewrite::node("Identity", &[from], to, None).encode()
}

/// Returns a graph's output of this name, whose type a library derives.
fn named_value(name: &str) -> Vec<u8> {
    let mut value = ProtoMessage::default();
    value.push(number::VALUE_NAME, name.as_bytes().to_vec());
    value.encode()
}

/// Returns a graph's input of this name, with rows of a tensor's shape.
fn typed_value(name: &str, spec: &TensorSpec) -> Vec<u8> {
    let mut shape = ProtoMessage::default();
    shape.push(number::SHAPE_DIMENSION, rewrite::batch_dimension().encode());
    for &size in &spec.shape {
        let mut dimension = ProtoMessage::default();
        dimension.push_number(number::DIMENSION_SIZE, size as u64);
        shape.push(number::SHAPE_DIMENSION, dimension.encode());
    }
    let mut tensor = ProtoMessage::default();
    tensor.push_number(number::TENSOR_ELEMENT, element_type(spec.datatype) as u64);
    tensor.push(number::TENSOR_SHAPE, shape.encode());
    let mut kind = ProtoMessage::default();
    kind.push(number::TYPE_TENSOR, tensor.encode());
    let mut value = ProtoMessage::default();
    value.push(number::VALUE_NAME, name.as_bytes().to_vec());
    value.push(number::VALUE_TYPE, kind.encode());
    value.encode()
}

/// Returns ONNX's number of an element type.
fn element_type(datatype: DataType) -> i32 {
    use rten_onnx::onnx::DataType as Onnx;
    let element = match datatype {
        DataType::Bool => Onnx::BOOL,
        DataType::Uint8 => Onnx::UINT8,
        DataType::Uint16 => Onnx::UINT16,
        DataType::Uint32 => Onnx::UINT32,
        DataType::Uint64 => Onnx::UINT64,
        DataType::Int8 => Onnx::INT8,
        DataType::Int16 => Onnx::INT16,
        DataType::Int32 => Onnx::INT32,
        DataType::Int64 => Onnx::INT64,
        DataType::Fp16 => Onnx::FLOAT16,
        DataType::Bf16 => Onnx::BFLOAT16,
        DataType::Fp32 => Onnx::FLOAT,
        DataType::Fp64 => Onnx::DOUBLE,
        DataType::Bytes(_) => Onnx::STRING,
    };
    element.0
}
