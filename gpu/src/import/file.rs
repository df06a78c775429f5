//! An ONNX file, read whole and checked before anything interprets it: complete, not nested deeper
//! than readers can follow, and with weights in its own folder only.

use super::facts::whole_numbers;
use super::number;
use super::proto::ProtoMessage;
use super::structure;
use crate::host::LoadError;
use rten_onnx::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The elements of a constant that are too many.
const MAX_ELEMENTS: i64 = 1 << 31;

/// An ONNX file and its content.
pub(super) struct OnnxFile {
    pub(super) bytes: Vec<u8>,
    pub(super) model: ModelProto,
    /// The names of the files that hold weights, relative to the model's folder.
    pub(super) weights: BTreeSet<String>,
    /// The size of the file and of those with its weights.
    pub(super) weights_bytes: u64,
}

impl OnnxFile {
    /// Reads the file at `path`.
    ///
    /// Errors: it can't be read, is not named as ONNX files are, or can't be interpreted.
    pub(super) fn read(path: &Path) -> Result<OnnxFile, LoadError> {
        let metadata = path.metadata().map_err(|e| LoadError::from_io(path, e))?;
        if !metadata.is_file() {
            let source = io::Error::other("not a regular file");
            return Err(LoadError::Unreadable { path: path.into(), source });
        }
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
            return Err(LoadError::Extension { path: path.into() });
        }
        let bytes = std::fs::read(path).map_err(|e| LoadError::from_io(path, e))?;
        let corrupt = |reason| LoadError::Corrupt { path: path.into(), reason };
        let model = parse(&bytes).map_err(corrupt)?;
        model.graph.as_ref().map_or(Ok(()), check_constants).map_err(corrupt)?;
        let weights = OnnxFile::weight_files(&model);
        let external = |reason| LoadError::ExternalData { path: path.into(), reason };
        let sizes = weights.iter().map(|location| size_within(path, location).map_err(external));
        let sizes: Vec<u64> = sizes.collect::<Result<_, _>>()?;
        let weights_bytes = sizes.iter().fold(bytes.len() as u64, |total, &size| total.saturating_add(size));
        Ok(OnnxFile { bytes, model, weights, weights_bytes })
    }

    /// Returns the names of the files that hold weights of a model, relative to its folder.
    pub(super) fn weight_files(model: &ModelProto) -> BTreeSet<String> {
        let mut weights = BTreeSet::new();
        model.graph.iter().for_each(|graph| add_locations(graph, &mut weights));
        weights
    }
}

/// Interprets the bytes of a file; an error is what is wrong with them.
pub(super) fn parse(bytes: &[u8]) -> Result<ModelProto, String> {
    structure::check(bytes)?;
    let message = ProtoMessage::parse(bytes).ok_or("it ends in the middle")?;
    match message.contents(number::MODEL_GRAPH).count() {
        0 => return Err("it has no graph".to_owned()),
        1 => {}
        _ => return Err("it has two graphs".to_owned()),
    }
    let model = ModelProto::parse_buf(bytes).map_err(|error| error.to_string())?;
    if model.opset_import.is_empty() {
        return Err("it names no opset".to_owned());
    }
    Ok(model)
}

/// Checks that no constant is larger than a library may be asked to make.
fn check_constants(graph: &GraphProto) -> Result<(), String> {
    let named = |name: &String| graph.initializer.iter().find(|tensor| tensor.name.as_ref() == Some(name));
    let shape_of = |node: &NodeProto| match node.op_type.as_deref() {
        Some("ConstantOfShape") => node.input.first().and_then(named).and_then(whole_numbers),
        Some("Expand") => node.input.get(1).and_then(named).and_then(whole_numbers),
        _ => None,
    };
    let made = graph.node.iter().filter_map(shape_of);
    for shape in graph.initializer.iter().map(|tensor| tensor.dims.clone()).chain(made) {
        let elements = shape.iter().try_fold(1i64, |product, &size| product.checked_mul(size.max(0)));
        if elements.is_none_or(|elements| elements >= MAX_ELEMENTS) {
            return Err(format!(
                "a constant has the shape {shape:?}; fewer than {MAX_ELEMENTS} elements are taken"
            ));
        }
    }
    Ok(())
}

/// Adds the names of the files in which tensors of a graph, and of those in it, have their data.
fn add_locations(graph: &GraphProto, locations: &mut BTreeSet<String>) {
    let attributes = || graph.node.iter().flat_map(|node| &node.attribute);
    let constants = attributes().filter_map(|attribute| attribute.t.as_ref());
    locations.extend(graph.initializer.iter().chain(constants).flat_map(external_location).cloned());
    attributes()
        .filter_map(|attribute| attribute.g.as_ref())
        .for_each(|graph| add_locations(graph, locations));
}

fn external_location(tensor: &TensorProto) -> impl Iterator<Item = &String> {
    let entries = tensor.external_data.iter().filter(|entry| entry.key.as_deref() == Some("location"));
    entries.filter_map(|entry| entry.value.as_ref())
}

/// Returns the size of a file with weights; an error is why it is none that the model may read.
fn size_within(path: &Path, location: &str) -> Result<u64, String> {
    let relative = Path::new(location);
    let stays = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let file = path.with_file_name("").join(relative);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let real = |path: &Path| path.canonicalize().map_err(|error| format!("{location}: {error}"));
    let (file, folder): (PathBuf, PathBuf) = match stays {
        true => (real(&file)?, real(folder)?),
        false => return Err(format!("{location} is outside of the model's folder")),
    };
    if !file.starts_with(folder) {
        return Err(format!("{location} leads out of the model's folder"));
    }
    let metadata = file.metadata().map_err(|error| format!("{location}: {error}"))?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(format!("{location} is no file")) }
}
