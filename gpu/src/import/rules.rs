//! The operators that are known to keep rows apart: given the batch as the first dimension of its
//! inputs, each has it as the first of its outputs, and a row depends on the same row only.

use super::facts::{ConstantFact, NodeView};

/// What a node makes of its inputs.
pub(super) enum NodeEffect {
    /// All outputs have the batch in front, and this many dimensions.
    Batched(usize),
    /// Outputs with the batch in front, once the node reshapes to this shape.
    Reshaped(Vec<i64>),
    /// No input of the model reaches the outputs.
    Constant(ConstantFact),
}

/// Operators on each element, or on windows, channels or features of each row, of the first input;
/// their other inputs are constant.
const OF_ONE_INPUT: &[&str] = &[
    "Abs",
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "DepthToSpace",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LeakyRelu",
    "Log",
    "LpPool",
    "MaxPool",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Sqrt",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
];

/// Operators of one input whose inputs have a batch and channels.
const WITH_CHANNELS: &[&str] = &[
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "SpaceToDepth",
];

/// Operators on elements of several inputs, of which shorter shapes are stretched.
const OF_ELEMENTS: &[&str] = &[
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
];

/// Operators that fold dimensions, whose `axes` are an input from this opset on.
const FOLDING: &[(&str, i64)] = &[
    ("ReduceL1", 18),
    ("ReduceL2", 18),
    ("ReduceLogSum", 18),
    ("ReduceLogSumExp", 18),
    ("ReduceMax", 18),
    ("ReduceMean", 18),
    ("ReduceMin", 18),
    ("ReduceProd", 18),
    ("ReduceSum", 13),
    ("ReduceSumSquare", 18),
];

/// Returns what a node makes of its inputs; an error is why it may mix rows.
pub(super) fn effect(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    if node.has_graph() {
        return Err(format!("{} has graphs of its own", node.name()));
    }
    if !node.is_reached() {
        return Ok(NodeEffect::Constant(constant(node)));
    }
    if !node.is_standard() {
        return Err(format!("{} is no operator of ONNX's own", node.name()));
    }
    let operator = node.operator();
    let folds = FOLDING.iter().any(|(name, _)| *name == operator);
    let rank = match operator {
        "Reshape" => return reshape(node).map(NodeEffect::Reshaped),
        _ if OF_ONE_INPUT.contains(&operator) => of_one_input(node)?,
        _ if OF_ELEMENTS.contains(&operator) => of_elements(node)?,
        _ if folds => folded(node)?,
        "Concat" => joined(node)?,
        "Flatten" => flattened(node)?,
        "Gemm" => gemm(node)?,
        "MatMul" => product(node)?,
        "Pad" => padded(node)?,
        "Slice" => sliced(node)?,
        "Softmax" | "LogSoftmax" | "Hardmax" | "LayerNormalization" => normalised(node)?,
        "Split" => along(node, "axis", 0)?,
        "Squeeze" => squeezed(node)?,
        "Transpose" => transposed(node)?,
        "Unsqueeze" => unsqueezed(node)?,
        _ => return Err(format!("{} is not known to keep rows apart", node.name())),
    };
    Ok(NodeEffect::Batched(rank))
}

/// Returns what is known of a node's output if all its inputs are constants.
fn constant(node: &NodeView<'_>) -> ConstantFact {
    let known = match node.operator() {
        _ if !node.is_standard() => None,
        "Constant" => node.attribute("value").and_then(|value| value.t.as_ref()).map(ConstantFact::of),
        "ConstantOfShape" => node
            .constant(0)
            .and_then(|shape| shape.values.clone())
            .map(|shape| ConstantFact { shape: Some(shape), values: None }),
        "Identity" => node.constant(0).cloned(),
        "Unsqueeze" => unsqueezed_constant(node),
        _ => None,
    };
    known.unwrap_or_default()
}

fn unsqueezed_constant(node: &NodeView<'_>) -> Option<ConstantFact> {
    let mut shape = node.constant(0)?.shape.clone()?;
    let axes = node.numbers("axes", 1).ok()??;
    let rank = shape.len() + axes.len();
    let mut axes = axes.into_iter().map(|axis| place(axis, rank)).collect::<Option<Vec<usize>>>()?;
    axes.sort_unstable();
    for axis in axes {
        if axis > shape.len() {
            return None;
        }
        shape.insert(axis, 1);
    }
    Some(ConstantFact { shape: Some(shape), values: None })
}

/// Returns the place of an axis that may count from the end; `None` where there is none.
fn place(axis: i64, rank: usize) -> Option<usize> {
    let place = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(place).ok().filter(|&place| place < rank)
}

/// Returns the rank of the first input, which must have the batch in front.
fn first(node: &NodeView<'_>) -> Result<usize, String> {
    node.rank(0).ok_or_else(|| format!("{}: its first input is the same for all rows", node.name()))
}

/// Returns the rank of the first input, where the others are constants.
fn alone(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = first(node)?;
    match (1..node.inputs.len()).find(|&at| node.rank(at).is_some()) {
        Some(_) => Err(format!("{}: more than its first input differs by row", node.name())),
        None => Ok(rank),
    }
}

/// Returns the place of an axis that is not the batch's.
fn behind_batch(node: &NodeView<'_>, axis: i64, rank: usize) -> Result<usize, String> {
    match place(axis, rank) {
        Some(0) => Err(format!("{} works along the batch", node.name())),
        Some(place) => Ok(place),
        None => Err(format!("{} has no dimension {axis}", node.name())),
    }
}

fn of_one_input(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let operator = node.operator();
    if WITH_CHANNELS.contains(&operator) && rank < 2 {
        return Err(format!("{}: its input has no channels", node.name()));
    }
    let trains = match operator {
        "BatchNormalization" => node.number("training_mode", 0) != 0 || node.outputs() > 1,
        // Of opset 12 on the third input says whether it trains.
        "Dropout" => node.input(2).is_some(),
        _ => false,
    };
    // These count from the beginning of the batch.
    if operator == "MaxPool" && node.outputs() > 1 {
        return Err(format!("{} gives indices into the batch", node.name()));
    }
    if trains {
        return Err(format!("{} is exported for training", node.name()));
    }
    Ok(rank)
}

fn of_elements(node: &NodeView<'_>) -> Result<usize, String> {
    let ranks: Vec<usize> = (0..node.inputs.len()).filter_map(|at| node.rank(at)).collect();
    let rank = ranks.first().copied().unwrap_or(0);
    if ranks.iter().any(|&other| other != rank) {
        return Err(format!("{}: its inputs have {ranks:?} dimensions", node.name()));
    }
    for constant in (0..node.inputs.len()).filter_map(|at| node.constant(at)) {
        stretches(node, constant, rank)?;
    }
    Ok(rank)
}

/// Checks that a constant beside an input of this rank is the same for each row.
fn stretches(node: &NodeView<'_>, constant: &ConstantFact, rank: usize) -> Result<(), String> {
    match &constant.shape {
        Some(shape) if shape.len() < rank || (shape.len() == rank && shape.first() == Some(&1)) => Ok(()),
        Some(shape) => {
            Err(format!("{}: a constant of shape {shape:?} is not the same for each row", node.name()))
        }
        None => Err(format!("{}: the shape of a constant is not known", node.name())),
    }
}

fn folded(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let axes = node.numbers("axes", 1)?.filter(|axes| !axes.is_empty());
    let axes = axes.ok_or_else(|| format!("{} folds the batch", node.name()))?;
    for &axis in &axes {
        behind_batch(node, axis, rank)?;
    }
    if node.number("keepdims", 1) != 0 { Ok(rank) } else { less(node, rank, axes.len()) }
}

fn less(node: &NodeView<'_>, rank: usize, folded: usize) -> Result<usize, String> {
    let left = rank.checked_sub(folded).filter(|&left| left > 0);
    left.ok_or_else(|| format!("{} has more axes than its input", node.name()))
}

fn joined(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = first(node)?;
    if (0..node.inputs.len()).any(|at| node.rank(at) != Some(rank)) {
        return Err(format!("{} joins what differs by row with what does not", node.name()));
    }
    behind_batch(node, node.number("axis", 1), rank)?;
    Ok(rank)
}

fn along(node: &NodeView<'_>, attribute: &str, default: i64) -> Result<usize, String> {
    let rank = alone(node)?;
    behind_batch(node, node.number(attribute, default), rank)?;
    Ok(rank)
}

fn normalised(node: &NodeView<'_>) -> Result<usize, String> {
    let is_layer = node.operator() == "LayerNormalization";
    along(node, "axis", if is_layer || node.opset >= 13 { -1 } else { 1 })
}

fn flattened(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let axis = node.number("axis", 1);
    match if axis < 0 { place(axis, rank) } else { usize::try_from(axis).ok() } {
        Some(1) => Ok(2),
        _ => Err(format!("{} folds the batch into another dimension", node.name())),
    }
}

fn gemm(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    if rank != 2 || node.number("transA", 0) != 0 {
        return Err(format!("{} multiplies along the batch", node.name()));
    }
    node.constant(2).map_or(Ok(()), |added| stretches(node, added, rank))?;
    Ok(rank)
}

fn product(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = first(node)?;
    match (node.rank(1), node.constant(1).and_then(|constant| constant.shape.as_ref())) {
        (Some(other), _) if other == rank && rank >= 3 => Ok(rank),
        (None, Some(shape)) if rank >= 2 && shape.len() == 2 => Ok(rank),
        _ => Err(format!("{} multiplies in a way that may mix rows", node.name())),
    }
}

fn padded(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let pads = node.numbers("pads", 1)?.unwrap_or_default();
    let kept = pads.len() == 2 * rank && pads[0] == 0 && pads[rank] == 0 && node.input(3).is_none();
    if kept { Ok(rank) } else { Err(format!("{} may pad the batch", node.name())) }
}

fn sliced(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let axes = node.numbers("axes", 3)?.ok_or_else(|| format!("{} cuts the batch", node.name()))?;
    axes.iter().try_for_each(|&axis| behind_batch(node, axis, rank).map(drop))?;
    Ok(rank)
}

fn squeezed(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let axes = node.numbers("axes", 1)?.ok_or_else(|| format!("{} removes the batch", node.name()))?;
    axes.iter().try_for_each(|&axis| behind_batch(node, axis, rank).map(drop))?;
    less(node, rank, axes.len())
}

fn unsqueezed(node: &NodeView<'_>) -> Result<usize, String> {
    let axes = node.numbers("axes", 1)?.unwrap_or_default();
    let rank = alone(node)?.saturating_add(axes.len());
    axes.iter().try_for_each(|&axis| behind_batch(node, axis, rank).map(drop))?;
    Ok(rank)
}

fn transposed(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    match node.attribute("perm").map(|perm| perm.ints.as_slice()) {
        Some([0, ..]) => Ok(rank),
        _ => Err(format!("{} moves the batch", node.name())),
    }
}

/// Returns the shape that copies the batch. With the batch copied, a reshape keeps rows apart
/// whatever the other sizes are: it fails if they do not fit a row.
fn reshape(node: &NodeView<'_>) -> Result<Vec<i64>, String> {
    alone(node)?;
    let shape = node.numbers("shape", 1)?;
    let mut shape = shape.ok_or_else(|| format!("{} has no shape", node.name()))?;
    if node.number("allowzero", 0) != 0 {
        return Err(format!("{} has no size that copies the batch", node.name()));
    }
    match shape.first_mut() {
        Some(size @ (-1..=1)) => *size = 0,
        _ => return Err(format!("{} makes the shape {shape:?}", node.name())),
    }
    Ok(shape)
}
