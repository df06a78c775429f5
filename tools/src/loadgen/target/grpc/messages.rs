//! The protocol's messages, as far as a load generator needs them; field numbers are the
//! protocol's. Fields that are not here are skipped when a message is read.

use bytes::Bytes;
use prost::{Message, Oneof};
use std::collections::HashMap;

/// A value of a request's or an answer's parameters.
#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct InferParameter {
    #[prost(oneof = "ParameterChoice", tags = "1, 2, 3, 4, 5")]
    pub(in crate::loadgen::target) parameter_choice: Option<ParameterChoice>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(in crate::loadgen::target) enum ParameterChoice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint64(u64),
}

impl InferParameter {
    pub(in crate::loadgen::target) fn integer(value: i64) -> InferParameter {
        InferParameter { parameter_choice: Some(ParameterChoice::Int64(value)) }
    }

    pub(in crate::loadgen::target) fn text(value: &str) -> InferParameter {
        InferParameter { parameter_choice: Some(ParameterChoice::Text(value.into())) }
    }

    /// Returns the value if it is a number.
    pub(in crate::loadgen::target) fn number(&self) -> Option<f64> {
        match self.parameter_choice.as_ref()? {
            ParameterChoice::Int64(value) => Some(*value as f64),
            ParameterChoice::Uint64(value) => Some(*value as f64),
            ParameterChoice::Double(value) => Some(*value),
            ParameterChoice::Bool(_) | ParameterChoice::Text(_) => None,
        }
    }
}

pub(in crate::loadgen::target) type Parameters = HashMap<String, InferParameter>;

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelInferRequest {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) model_name: String,
    #[prost(map = "string, message", tag = "4")]
    pub(in crate::loadgen::target) parameters: Parameters,
    #[prost(message, repeated, tag = "5")]
    pub(in crate::loadgen::target) inputs: Vec<InferInputTensor>,
    #[prost(message, repeated, tag = "6")]
    pub(in crate::loadgen::target) outputs: Vec<InferRequestedOutputTensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(in crate::loadgen::target) raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct InferInputTensor {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::loadgen::target) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(in crate::loadgen::target) shape: Vec<i64>,
    #[prost(map = "string, message", tag = "4")]
    pub(in crate::loadgen::target) parameters: Parameters,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct InferRequestedOutputTensor {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
    #[prost(map = "string, message", tag = "2")]
    pub(in crate::loadgen::target) parameters: Parameters,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelInferResponse {
    #[prost(map = "string, message", tag = "4")]
    pub(in crate::loadgen::target) parameters: Parameters,
}

/// A request whose first field is a name: ModelMetadataRequest, ModelConfigRequest and
/// SystemSharedMemoryUnregisterRequest too.
#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct NameRequest {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelMetadataResponse {
    #[prost(message, repeated, tag = "4")]
    pub(in crate::loadgen::target) inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub(in crate::loadgen::target) outputs: Vec<TensorMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::loadgen::target) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(in crate::loadgen::target) shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub(in crate::loadgen::target) config: Option<ModelConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelConfig {
    #[prost(map = "string, message", tag = "14")]
    pub(in crate::loadgen::target) parameters: HashMap<String, ModelParameter>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelParameter {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) string_value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct RepositoryIndexRequest {
    #[prost(bool, tag = "2")]
    pub(in crate::loadgen::target) ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct RepositoryIndexResponse {
    #[prost(message, repeated, tag = "1")]
    pub(in crate::loadgen::target) models: Vec<ModelIndex>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct ModelIndex {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct SystemSharedMemoryRegisterRequest {
    #[prost(string, tag = "1")]
    pub(in crate::loadgen::target) name: String,
    #[prost(string, tag = "2")]
    pub(in crate::loadgen::target) key: String,
    #[prost(uint64, tag = "3")]
    pub(in crate::loadgen::target) offset: u64,
    #[prost(uint64, tag = "4")]
    pub(in crate::loadgen::target) byte_size: u64,
}

/// An answer of which nothing is needed.
#[derive(Clone, PartialEq, Message)]
pub(in crate::loadgen::target) struct Nothing {}
