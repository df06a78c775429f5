//! The element types that an ONNX file declares for its inputs and outputs. rten folds all element
//! types into four when it loads a model; clients see, and send, the declared ones.

use crate::host::LoadError;
use crate::signature::DataType;
use rten_onnx::onnx::{GraphProto, ModelProto, ValueInfoProto};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// The element type of a tensor as ONNX numbers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementType(rten_onnx::onnx::DataType);

impl ElementType {
    /// Returns the protocol's type; `None` where there is none, as for strings and complex numbers.
    pub(crate) fn datatype(self) -> Option<DataType> {
        use rten_onnx::onnx::DataType as Onnx;
        let datatype = match self.0 {
            Onnx::BOOL => DataType::Bool,
            Onnx::UINT8 => DataType::Uint8,
            Onnx::UINT16 => DataType::Uint16,
            Onnx::UINT32 => DataType::Uint32,
            Onnx::UINT64 => DataType::Uint64,
            Onnx::INT8 => DataType::Int8,
            Onnx::INT16 => DataType::Int16,
            Onnx::INT32 => DataType::Int32,
            Onnx::INT64 => DataType::Int64,
            Onnx::FLOAT16 => DataType::Fp16,
            Onnx::BFLOAT16 => DataType::Bf16,
            Onnx::FLOAT => DataType::Fp32,
            Onnx::DOUBLE => DataType::Fp64,
            _ => return None,
        };
        Some(datatype)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements of type {}", self.0)
    }
}

/// The element types that one file declares.
pub(crate) struct DeclaredTypes {
    inputs: Vec<(String, ElementType)>,
    outputs: Vec<(String, ElementType)>,
    /// The size of the file and of the files that hold its weights.
    pub(crate) weights_bytes: u64,
}

impl DeclaredTypes {
    /// Returns the element type of an input; `None` where the file declares none.
    pub(crate) fn input(&self, name: &str) -> Option<ElementType> {
        element_type(&self.inputs, name)
    }

    /// Returns the element type of an output; `None` where the file declares none.
    pub(crate) fn output(&self, name: &str) -> Option<ElementType> {
        element_type(&self.outputs, name)
    }
}

/// Reads the declarations of the ONNX file at `path`.
pub(crate) fn read(path: &Path) -> Result<DeclaredTypes, LoadError> {
    let metadata = path.metadata().map_err(|e| LoadError::from_io(path, e))?;
    if !metadata.is_file() {
        let source = std::io::Error::other("not a regular file");
        return Err(LoadError::Unreadable { path: path.into(), source });
    }
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
        return Err(LoadError::Extension { path: path.into() });
    }
    let file = File::open(path).map_err(|e| LoadError::from_io(path, e))?;
    let corrupt = |reason: String| LoadError::Corrupt { path: path.into(), reason };
    if !is_whole(&file, metadata.len()).map_err(|e| LoadError::from_io(path, e))? {
        return Err(corrupt("it ends in the middle".to_string()));
    }
    let file = File::open(path).map_err(|e| LoadError::from_io(path, e))?;
    let model = ModelProto::parse_file(file).map_err(|e| corrupt(e.to_string()))?;
    if model.opset_import.is_empty() {
        return Err(corrupt("it names no opset".to_string()));
    }
    let graph = model.graph.ok_or_else(|| corrupt("it has no graph".to_string()))?;
    Ok(DeclaredTypes {
        inputs: element_types(&graph.input),
        outputs: element_types(&graph.output),
        weights_bytes: metadata.len() + external_bytes(path, &graph),
    })
}

/// Returns true if the file is a sequence of whole protocol buffer fields. The parser accepts the
/// beginning of a file that was cut short; a model that is served must be complete.
fn is_whole(file: &File, len: u64) -> io::Result<bool> {
    let mut reader = BufReader::new(file).take(len);
    while reader.limit() > 0 {
        let Some(tag) = varint(&mut reader)? else { return Ok(false) };
        let skipped = match tag & 7 {
            0 => varint(&mut reader)?.map(|_| 0),
            1 => Some(8),
            2 => varint(&mut reader)?,
            5 => Some(4),
            _ => None,
        };
        let Some(skipped) = skipped.filter(|&skipped| skipped <= reader.limit()) else { return Ok(false) };
        let left = reader.limit() - skipped;
        // At most the file's length, which fits.
        reader.get_mut().seek_relative(skipped as i64)?;
        reader.set_limit(left);
    }
    Ok(true)
}

/// Reads the next variable-length number; `None` where the file ends in it or it is too long.
fn varint(reader: &mut impl Read) -> io::Result<Option<u64>> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        if reader.read(&mut byte)? == 0 {
            return Ok(None);
        }
        value |= u64::from(byte[0] & 0x7F) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn element_types(values: &[ValueInfoProto]) -> Vec<(String, ElementType)> {
    let element_type = |value: &ValueInfoProto| {
        let tensor = value.r#type.as_ref()?.tensor_type.as_ref()?;
        Some((value.name.clone()?, ElementType(tensor.elem_type?)))
    };
    values.iter().filter_map(element_type).collect()
}

fn element_type(types: &[(String, ElementType)], name: &str) -> Option<ElementType> {
    types.iter().find(|(of, _)| of == name).map(|&(_, element_type)| element_type)
}

/// Returns the size of the files beside the model that hold weights. A missing one counts as 0, as
/// loading it will fail with the reason.
fn external_bytes(path: &Path, graph: &GraphProto) -> u64 {
    let entries = graph.initializer.iter().flat_map(|tensor| &tensor.external_data);
    let locations: BTreeSet<&str> = entries
        .filter(|entry| entry.key.as_deref() == Some("location"))
        .filter_map(|entry| entry.value.as_deref())
        .collect();
    let sizes = locations.iter().filter_map(|location| path.with_file_name(location).metadata().ok());
    sizes.map(|metadata| metadata.len()).sum()
}
