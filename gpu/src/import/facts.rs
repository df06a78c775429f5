//! What is known of a graph's tensors while its batch is looked for: which have the batch as their
//! first dimension, and the shapes and values of constants.

use rten_onnx::onnx::{AttributeProto, DataType, GraphProto, NodeProto, TensorProto};
use std::collections::{HashMap, HashSet};

/// The most elements of a constant that are kept: shapes and axes have fewer.
pub(super) const MAX_KEPT: usize = 64;

/// What is known of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fact {
    /// A tensor of this many dimensions, of which the first is the batch's.
    Batched(usize),
    /// A tensor that no elements of the model's inputs reach: a constant, or what is computed from
    /// shapes.
    Constant(ConstantFact),
}

impl Fact {
    /// Returns true if the tensor's elements, but not those of the model's inputs, are known to
    /// depend on the number of rows.
    pub(super) fn depends_on_rows(&self) -> bool {
        matches!(self, Fact::Constant(fact) if fact.depends_on_rows())
    }
}

/// A number that is constant, or computed from shapes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Size {
    Number(i64),
    /// The number of rows in the batch.
    Rows,
    /// One that is not known, and the same for batches of every size.
    Same,
}

impl Size {
    pub(super) fn number(self) -> Option<i64> {
        if let Size::Number(number) = self { Some(number) } else { None }
    }
}

/// Returns a float as a whole number, if it is one that can be a size.
pub(super) fn whole(value: f64) -> Size {
    let whole = value as i64;
    if whole as f64 == value && whole.unsigned_abs() < 1 << 31 { Size::Number(whole) } else { Size::Same }
}

/// What is known of a tensor that no elements of the model's inputs reach.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ConstantFact {
    /// The shape, which is the same for batches of every size.
    pub(super) shape: Option<Vec<Size>>,
    /// The elements, where there are few; if they are not known, they are the same for batches of
    /// every size.
    pub(super) values: Option<Vec<Size>>,
}

impl ConstantFact {
    pub(super) fn of(tensor: &TensorProto) -> ConstantFact {
        let shape = tensor.dims.iter().copied().map(Size::Number).collect();
        ConstantFact { shape: Some(shape), values: numbers(tensor) }
    }

    /// Returns a tensor of one dimension.
    pub(super) fn of_values(values: Vec<Size>) -> ConstantFact {
        ConstantFact { shape: Some(vec![Size::Number(values.len() as i64)]), values: Some(values) }
    }

    pub(super) fn depends_on_rows(&self) -> bool {
        self.values.as_ref().is_some_and(|values| values.contains(&Size::Rows))
    }

    /// Returns the elements if all are numbers.
    pub(super) fn numbers(&self) -> Option<Vec<i64>> {
        self.values.as_ref()?.iter().map(|value| value.number()).collect()
    }
}

/// Returns the elements of a small tensor of numbers that is in the file.
fn numbers(tensor: &TensorProto) -> Option<Vec<Size>> {
    if tensor.data_type != Some(DataType::FLOAT) {
        return Some(whole_numbers(tensor)?.into_iter().map(Size::Number).collect());
    }
    let elements = few_elements(tensor)?;
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    let values: Vec<f32> = match raw {
        Some(raw) => raw.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect(),
        None => tensor.float_data.clone(),
    };
    (values.len() == elements).then(|| values.into_iter().map(|value| whole(value.into())).collect())
}

/// Returns the number of elements of a tensor that has few.
fn few_elements(tensor: &TensorProto) -> Option<usize> {
    let elements = tensor.dims.iter().try_fold(1i64, |product, &size| product.checked_mul(size))?;
    usize::try_from(elements).ok().filter(|&elements| elements <= MAX_KEPT)
}

/// Returns the elements of a small INT64 or INT32 tensor that is in the file.
pub(super) fn whole_numbers(tensor: &TensorProto) -> Option<Vec<i64>> {
    let elements = few_elements(tensor)?;
    let raw = tensor.raw_data.as_ref().map(|raw| raw.borrow());
    let values: Vec<i64> = match (tensor.data_type?, raw) {
        (DataType::INT64, Some(raw)) => raw.as_chunks().0.iter().map(|&x| i64::from_le_bytes(x)).collect(),
        (DataType::INT32, Some(raw)) => {
            raw.as_chunks().0.iter().map(|&x| i64::from(i32::from_le_bytes(x))).collect()
        }
        (DataType::INT64, None) => tensor.int64_data.clone(),
        (DataType::INT32, None) => tensor.int32_data.iter().map(|&x| i64::from(x)).collect(),
        _ => return None,
    };
    (values.len() == elements).then_some(values)
}

/// The facts about the tensors of a graph, by name.
pub(super) struct Facts<'a> {
    known: HashMap<&'a str, Fact>,
}

impl<'a> Facts<'a> {
    /// Begins with the graph's initializers and these inputs, which have that many dimensions.
    pub(super) fn new(graph: &'a GraphProto, inputs: &[(&'a str, usize)]) -> Facts<'a> {
        let initializer = |tensor: &'a TensorProto| {
            Some((tensor.name.as_deref()?, Fact::Constant(ConstantFact::of(tensor))))
        };
        let mut known: HashMap<&str, Fact> = graph.initializer.iter().filter_map(initializer).collect();
        known.extend(inputs.iter().map(|&(name, rank)| (name, Fact::Batched(rank))));
        Facts { known }
    }

    /// Returns what is known of a tensor that was made already.
    pub(super) fn get(&self, name: &str) -> Option<&Fact> {
        self.known.get(name)
    }

    pub(super) fn set(&mut self, name: &'a str, fact: Fact) {
        if !name.is_empty() {
            self.known.insert(name, fact);
        }
    }

    /// Looks at a node with what is known of its inputs; an error is the tensor that is used before
    /// it is made.
    pub(super) fn view<'v>(&'v self, node: &'a NodeProto, opset: i64) -> Result<NodeView<'v>, String>
    where
        'a: 'v,
    {
        let fact = |name: &'v String| match name.as_str() {
            "" => Ok(None),
            name => self.get(name).map(Some).ok_or_else(|| format!("`{name}` is used before it is made")),
        };
        let inputs = node.input.iter().map(fact).collect::<Result<_, _>>()?;
        Ok(NodeView { node, inputs, opset })
    }
}

/// Returns true if operators of this domain are ONNX's own.
pub(crate) fn is_standard(domain: Option<&str>) -> bool {
    matches!(domain, None | Some("" | "ai.onnx"))
}

/// Returns the names of a graph's initializers.
pub(super) fn initializer_names(graph: &GraphProto) -> HashSet<&str> {
    graph.initializer.iter().filter_map(|tensor| tensor.name.as_deref()).collect()
}

/// Returns the indices of the inputs that are initializers: files of old versions list them.
pub(super) fn listed_initializers(graph: &GraphProto) -> Vec<usize> {
    let names = initializer_names(graph);
    let inputs = graph.input.iter().enumerate();
    let listed = inputs.filter(|(_, input)| input.name.as_deref().is_some_and(|name| names.contains(name)));
    listed.map(|(at, _)| at).collect()
}

/// A node with what is known of its inputs.
pub(super) struct NodeView<'v> {
    node: &'v NodeProto,
    /// What is known of each input; `None` where it is left out.
    pub(super) inputs: Vec<Option<&'v Fact>>,
    /// The version of ONNX's operators that the model uses.
    pub(super) opset: i64,
}

impl<'v> NodeView<'v> {
    pub(super) fn operator(&self) -> &'v str {
        self.node.op_type.as_deref().unwrap_or_default()
    }

    /// Returns how a message names the node.
    pub(super) fn name(&self) -> String {
        let output = self.node.output.first().map_or("", String::as_str);
        format!("{} (`{output}`)", self.operator())
    }

    /// Returns true if the operator is of ONNX itself.
    pub(super) fn is_standard(&self) -> bool {
        is_standard(self.node.domain.as_deref())
    }

    pub(super) fn outputs(&self) -> usize {
        self.node.output.iter().filter(|name| !name.is_empty()).count()
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'v AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
    }

    /// Returns true if an attribute is a graph, which may use any tensor of this one.
    pub(super) fn has_graph(&self) -> bool {
        self.node.attribute.iter().any(|attribute| attribute.g.is_some())
    }

    pub(super) fn number(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).and_then(|attribute| attribute.i).unwrap_or(default)
    }

    pub(super) fn input(&self, at: usize) -> Option<&'v Fact> {
        self.inputs.get(at).copied().flatten()
    }

    /// Returns the rank of an input that has the batch in front.
    pub(super) fn rank(&self, at: usize) -> Option<usize> {
        match self.input(at) {
            Some(Fact::Batched(rank)) => Some(*rank),
            _ => None,
        }
    }

    pub(super) fn constant(&self, at: usize) -> Option<&'v ConstantFact> {
        match self.input(at) {
            Some(Fact::Constant(fact)) => Some(fact),
            _ => None,
        }
    }

    /// Returns true if elements of the model's inputs reach the node.
    pub(super) fn is_reached(&self) -> bool {
        self.inputs.iter().any(|input| matches!(input, Some(Fact::Batched(_))))
    }

    /// Returns the whole numbers that the input at `at` or, in older opsets, the attribute `name`
    /// gives: `None` where there are none, an error where they are computed by the model.
    pub(super) fn numbers(&self, name: &str, at: usize) -> Result<Option<Vec<i64>>, String> {
        if let Some(attribute) = self.attribute(name) {
            return Ok(Some(attribute.ints.clone()));
        }
        match self.input(at) {
            None => Ok(None),
            Some(Fact::Constant(fact)) => fact.numbers().map(Some).ok_or_else(|| self.computed(name)),
            Some(_) => Err(self.computed(name)),
        }
    }

    /// Returns the shape that a Reshape is given, if all of it are numbers.
    ///
    /// Errors: it has none.
    pub(super) fn numbers_of_shape(&self) -> Result<Option<Vec<i64>>, String> {
        match (self.attribute("shape"), self.input(1)) {
            (Some(shape), _) => Ok(Some(shape.ints.clone())),
            (None, Some(Fact::Constant(fact))) => Ok(fact.numbers()),
            (None, Some(_)) => Err(self.computed("shape")),
            (None, None) => Err(format!("{} has no shape", self.name())),
        }
    }

    fn computed(&self, name: &str) -> String {
        format!("{}: its {name} are computed", self.name())
    }

    /// Returns the elements of an input that no elements of the model's inputs reach.
    pub(super) fn values(&self, at: usize) -> Option<&'v [Size]> {
        self.constant(at)?.values.as_deref()
    }

    /// Returns the shape of an input that no elements of the model's inputs reach.
    pub(super) fn shape(&self, at: usize) -> Option<&'v [Size]> {
        self.constant(at)?.shape.as_deref()
    }
}
