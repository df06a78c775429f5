//! A node of an ONNX graph as lowering sees it: its attributes, and its inputs as tensors.

use super::builder::PlanValue;
use rten_onnx::onnx::{AttributeProto, NodeProto};

/// A node with its inputs.
pub(super) struct OnnxNode<'a> {
    pub(super) node: &'a NodeProto,
    /// The inputs; `None` where one is left out.
    pub(super) inputs: Vec<Option<PlanValue>>,
    /// The version of ONNX's operators that the model uses.
    pub(super) opset: i64,
}

/// Returns how messages name a node: by its own name or, as names may be left out, by its first
/// output.
pub(super) fn node_name(node: &NodeProto) -> &str {
    let own = node.name.as_deref().filter(|name| !name.is_empty());
    own.or(node.output.first().map(String::as_str)).unwrap_or_default()
}

/// Returns an axis counted from the front.
///
/// Errors: there is no such dimension.
pub(super) fn axis_of(axis: i64, rank: usize) -> Result<usize, String> {
    let found = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    let found = usize::try_from(found).ok().filter(|&axis| axis < rank);
    found.ok_or_else(|| format!("there is no dimension {axis} of {rank}"))
}

impl<'a> OnnxNode<'a> {
    pub(super) fn operator(&self) -> &'a str {
        self.node.op_type.as_deref().unwrap_or_default()
    }

    /// Returns an input that must be there.
    pub(super) fn input(&self, at: usize) -> Result<&PlanValue, String> {
        self.optional(at).ok_or_else(|| format!("it has no input {at}"))
    }

    pub(super) fn optional(&self, at: usize) -> Option<&PlanValue> {
        self.inputs.get(at)?.as_ref()
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
    }

    pub(super) fn whole(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    pub(super) fn float(&self, name: &str, default: f32) -> f32 {
        self.attribute(name).and_then(|attribute| attribute.f).unwrap_or(default)
    }

    pub(super) fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.attribute(name).and_then(|attribute| attribute.s.as_deref()).unwrap_or(default)
    }

    pub(super) fn wholes(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// Returns the whole numbers of an input, `None` where it is left out.
    ///
    /// Errors: they are computed by the model, or are floats.
    pub(super) fn numbers_of(&self, at: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(input) = self.optional(at) else { return Ok(None) };
        let constant = input.constant().ok_or_else(|| format!("its input {at} depends on the request"))?;
        let numbers = constant.whole_numbers().ok_or_else(|| format!("its input {at} is {}", constant.of))?;
        Ok(Some(numbers))
    }

    /// Returns the whole numbers of an attribute or, in later opsets, of an input.
    pub(super) fn numbers(&self, name: &str, at: usize) -> Result<Option<Vec<i64>>, String> {
        match self.wholes(name) {
            Some(numbers) => Ok(Some(numbers.to_vec())),
            None => self.numbers_of(at),
        }
    }

    /// Returns the number of outputs that are used under a name.
    pub(super) fn outputs(&self) -> usize {
        self.node.output.iter().filter(|name| !name.is_empty()).count()
    }

    /// Refuses a form of the operator that is not lowered.
    pub(super) fn lacks(&self, what: &str) -> String {
        format!("this form of {} is lacking: {what}", self.operator())
    }
}
