//! The structure of an ONNX file, checked before its messages are decoded: each content lies within
//! the message around it, lists are whole, and graphs and types are not nested deeper than decoders
//! can follow. A decoder believes the lengths that a file announces, and takes memory for them.

use super::number;
use super::proto::ProtoMessage;

/// The deepest nesting of graphs and of types: readers follow it by recursion.
const MAX_DEPTH: usize = 32;

/// A message that decoders follow.
#[derive(Clone, Copy)]
enum OnnxMessage {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Value,
    Type,
    TypeTensor,
    TypeSequence,
    Shape,
    /// One without messages in it.
    Leaf,
}

/// What a field with bytes holds.
enum ContentKind {
    Message(OnnxMessage),
    /// Numbers of variable length, one after another.
    Varints,
    /// Numbers of so many bytes.
    Words(usize),
}

impl OnnxMessage {
    /// Returns what the field of this number holds; `None` for texts, bytes and what is not
    /// decoded.
    fn content(self, field: u64) -> Option<ContentKind> {
        use ContentKind::{Message, Varints, Words};
        use OnnxMessage::*;
        Some(match (self, field) {
            (Model, number::MODEL_GRAPH) => Message(Graph),
            (Model, number::MODEL_OPSET | number::MODEL_METADATA) => Message(Leaf),
            (Graph, number::GRAPH_NODE) => Message(Node),
            (Graph, number::GRAPH_INITIALIZER) => Message(Tensor),
            (Graph, number::GRAPH_INPUT | number::GRAPH_OUTPUT | number::GRAPH_VALUE_INFO) => Message(Value),
            (Node, number::NODE_ATTRIBUTE) => Message(Attribute),
            (Attribute, number::ATTRIBUTE_TENSOR) => Message(Tensor),
            (Attribute, number::ATTRIBUTE_GRAPH | number::ATTRIBUTE_GRAPHS) => Message(Graph),
            (Tensor, number::TENSOR_INT32 | number::TENSOR_INT64) => Varints,
            (Tensor, number::TENSOR_FLOATS) => Words(4),
            (Tensor, number::TENSOR_DOUBLES) => Words(8),
            (Tensor, number::TENSOR_EXTERNAL) => Message(Leaf),
            (Value, number::VALUE_TYPE) => Message(Type),
            (Type, number::TYPE_TENSOR) => Message(TypeTensor),
            (Type, number::TYPE_SEQUENCE) => Message(TypeSequence),
            (TypeTensor, number::TENSOR_SHAPE) => Message(Shape),
            (TypeSequence, number::SEQUENCE_ELEMENT) => Message(Type),
            (Shape, number::SHAPE_DIMENSION) => Message(Leaf),
            _ => return None,
        })
    }

    /// Returns the name by which an error speaks of it.
    fn name(self) -> &'static str {
        match self {
            OnnxMessage::Model => "it",
            OnnxMessage::Graph | OnnxMessage::Node | OnnxMessage::Attribute => "its graph",
            OnnxMessage::Tensor => "a constant",
            _ => "a type or an entry",
        }
    }
}

/// Checks the bytes of a model's file.
///
/// Errors: what is wrong with them.
pub(super) fn check(model: &[u8]) -> Result<(), String> {
    check_message(OnnxMessage::Model, model, 0)
}

fn check_message(kind: OnnxMessage, bytes: &[u8], depth: usize) -> Result<(), String> {
    let deeper = usize::from(matches!(kind, OnnxMessage::Graph | OnnxMessage::Type));
    if depth + deeper > MAX_DEPTH + 1 {
        let what = if let OnnxMessage::Type = kind { "types" } else { "graphs" };
        return Err(format!("its {what} are nested more than {MAX_DEPTH} deep"));
    }
    let cut = || match kind {
        OnnxMessage::Model => "it ends in the middle".to_owned(),
        _ => format!("{} is damaged", kind.name()),
    };
    let message = ProtoMessage::parse(bytes).ok_or_else(cut)?;
    for (field, content) in message.all_contents() {
        match kind.content(field) {
            Some(ContentKind::Message(within)) => check_message(within, content, depth + deeper)?,
            Some(ContentKind::Varints) if !ProtoMessage::is_varints(content) => return Err(cut()),
            Some(ContentKind::Words(size)) if content.len() % size != 0 => return Err(cut()),
            _ => {}
        }
    }
    Ok(())
}
