//! The element types that an ONNX file declares for its inputs and outputs. rten folds all element
//! types into four when it loads a model; clients see, and send, the declared ones.

use crate::signature::DataType;
use rten_onnx::onnx::{GraphProto, ModelProto, ValueInfoProto};
use std::fmt;

/// The element type of a tensor as ONNX numbers it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ElementType(pub(super) rten_onnx::onnx::DataType);

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
#[derive(Clone)]
pub(crate) struct DeclaredTypes {
    inputs: Vec<(String, ElementType)>,
    outputs: Vec<(String, ElementType)>,
}

impl DeclaredTypes {
    /// Returns the declarations of a model.
    pub(super) fn of(model: &ModelProto) -> DeclaredTypes {
        let of = |values: fn(&GraphProto) -> &[ValueInfoProto]| {
            model.graph.as_ref().map_or_else(Vec::new, |graph| element_types(values(graph)))
        };
        DeclaredTypes { inputs: of(|graph| &graph.input), outputs: of(|graph| &graph.output) }
    }

    /// Returns the element type of an input; `None` where the file declares none.
    pub(crate) fn input(&self, name: &str) -> Option<ElementType> {
        element_type(&self.inputs, name)
    }

    /// Returns the name of the output at `at`, if the file has `count` outputs. rten forgets those
    /// of outputs that it computes at the load.
    pub(crate) fn output_name(&self, at: usize, count: usize) -> Option<&str> {
        if self.outputs.len() == count { Some(&self.outputs.get(at)?.0) } else { None }
    }

    /// Returns the element type of an output; `None` where the file declares none.
    pub(crate) fn output(&self, name: &str) -> Option<ElementType> {
        element_type(&self.outputs, name)
    }
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
