//! The messages of an ONNX file that networks here need, with the numbers of `onnx.proto`.

/// The element types, by ONNX's numbers.
pub(super) const FLOAT: i32 = 1;
pub(super) const INT64: i32 = 7;

/// A file.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModelFile {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(string, tag = "2")]
    pub(super) producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<OnnxGraph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) operator_sets: Vec<OperatorSet>,
}

/// A version of the operators.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

/// Nodes with their constants.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OnnxGraph {
    #[prost(message, repeated, tag = "1")]
    pub(super) nodes: Vec<OnnxNode>,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) constants: Vec<OnnxTensor>,
    #[prost(message, repeated, tag = "11")]
    pub(super) inputs: Vec<OnnxPort>,
    #[prost(message, repeated, tag = "12")]
    pub(super) outputs: Vec<OnnxPort>,
}

/// A node.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OnnxNode {
    #[prost(string, repeated, tag = "1")]
    pub(super) inputs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) outputs: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) operator: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attributes: Vec<OnnxAttribute>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OnnxAttribute {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(float, optional, tag = "2")]
    pub(super) float: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) integer: Option<i64>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) integers: Vec<i64>,
    /// 1, 2 and 7: a float, an integer, integers.
    #[prost(int32, tag = "20")]
    pub(super) kind: i32,
}

impl OnnxAttribute {
    pub(super) fn of_float(name: &str, value: f32) -> OnnxAttribute {
        OnnxAttribute { name: name.to_owned(), float: Some(value), kind: 1, ..OnnxAttribute::default() }
    }

    pub(super) fn of_integer(name: &str, value: i64) -> OnnxAttribute {
        OnnxAttribute { name: name.to_owned(), integer: Some(value), kind: 2, ..OnnxAttribute::default() }
    }

    pub(super) fn of_integers(name: &str, values: &[i64]) -> OnnxAttribute {
        let integers = values.to_vec();
        OnnxAttribute { name: name.to_owned(), integers, kind: 7, ..OnnxAttribute::default() }
    }
}

/// A constant.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OnnxTensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) shape: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) element: i32,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "9")]
    pub(super) content: Vec<u8>,
}

/// An input or output of a graph.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OnnxPort {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    of: Option<PortType>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PortType {
    #[prost(message, optional, tag = "1")]
    tensor: Option<PortTensor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PortTensor {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<PortShape>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PortShape {
    #[prost(message, repeated, tag = "1")]
    dimensions: Vec<PortDimension>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PortDimension {
    #[prost(int64, optional, tag = "1")]
    size: Option<i64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
}

impl OnnxPort {
    /// Makes a port whose first dimension is the batch, with this shape of a row.
    pub(super) fn of_rows(name: &str, element: i32, row: &[usize]) -> OnnxPort {
        let batch = PortDimension { size: None, name: Some("N".to_owned()) };
        let fixed = row.iter().map(|&size| PortDimension { size: Some(size as i64), name: None });
        let dimensions = std::iter::once(batch).chain(fixed).collect();
        let tensor = PortTensor { element, shape: Some(PortShape { dimensions }) };
        OnnxPort { name: name.to_owned(), of: Some(PortType { tensor: Some(tensor) }) }
    }
}
