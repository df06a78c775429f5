//! The operators that are known to keep rows apart: given the batch as the first dimension of its
//! inputs, each has it as the first of its outputs, and a row depends on the same row only.

use super::effect::{InputChange, NodeEffect};
use super::facts::{ConstantFact, Fact, NodeView, Size};
use super::known::{self, place};

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
    "ConvInteger",
    "Cos",
    "Cosh",
    "DepthToSpace",
    "DequantizeLinear",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GroupNormalization",
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
    "QLinearConv",
    "QuantizeLinear",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
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
    "ConvInteger",
    "ConvTranspose",
    "DepthToSpace",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LpPool",
    "MaxPool",
    "QLinearConv",
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
        return known::effect(node);
    }
    if !node.is_standard() {
        return Err(format!("{} is no operator of ONNX's own", node.name()));
    }
    let operator = node.operator();
    let takes_rows = |at: usize| match operator {
        "Reshape" | "Expand" => at == 1,
        "Resize" => at == 3,
        _ => false,
    };
    let by_rows = |(at, input): (usize, &Option<&Fact>)| {
        input.is_some_and(|input| input.depends_on_rows()) && !takes_rows(at)
    };
    if node.inputs.iter().enumerate().any(by_rows) {
        return Err(format!("{} computes with the number of rows", node.name()));
    }
    let folds = FOLDING.iter().any(|(name, _)| *name == operator);
    let rank = match operator {
        "Shape" => return shape(node).map(NodeEffect::Constant),
        "Reshape" => return reshape(node),
        "Resize" => return resized(node),
        "Concat" => return joined(node),
        "Expand" => return expanded(node),
        _ if OF_ONE_INPUT.contains(&operator) => of_one_input(node)?,
        _ if OF_ELEMENTS.contains(&operator) => of_elements(node)?,
        _ if folds => folded(node)?,
        "ArgMax" | "ArgMin" => first_largest(node)?,
        "CumSum" => summed(node)?,
        "Einsum" => einsum(node)?,
        "Flatten" => flattened(node)?,
        "Gather" => gathered(node)?,
        "GatherElements" => gathered_elements(node)?,
        "Gemm" => gemm(node)?,
        "MatMul" => product(node)?,
        "MatMulInteger" | "QLinearMatMul" => quantized_product(node)?,
        "OneHot" => one_hot(node)?,
        "Pad" => padded(node)?,
        "Slice" => sliced(node)?,
        "Softmax" | "LogSoftmax" | "Hardmax" | "LayerNormalization" | "RMSNormalization" => normalised(node)?,
        "LpNormalization" | "TopK" => along(node, "axis", -1)?,
        "Split" => along(node, "axis", 0)?,
        "Squeeze" => squeezed(node)?,
        "Tile" => tiled(node)?,
        "Transpose" => transposed(node)?,
        "Trilu" => of_matrices(node)?,
        "Unsqueeze" => unsqueezed(node)?,
        "Upsample" => upsampled(node)?,
        _ => return Err(format!("{} is not known to keep rows apart", node.name())),
    };
    Ok(NodeEffect::Batched(rank))
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
        Some(shape) if is_one_row(shape, rank) => Ok(()),
        Some(shape) => {
            let sizes =
                shape.iter().map(|size| size.number().map_or("?".to_owned(), |size| size.to_string()));
            let shape = sizes.collect::<Vec<_>>().join(", ");
            Err(format!("{}: a constant of shape [{shape}] is not the same for each row", node.name()))
        }
        None => Err(format!("{}: the shape of a constant is not known", node.name())),
    }
}

/// Returns true if a constant of this shape is the same for each row of a tensor of this rank.
fn is_one_row(shape: &[Size], rank: usize) -> bool {
    shape.len() < rank || (shape.len() == rank && shape.first() == Some(&Size::Number(1)))
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

/// Joins tensors that have the batch with constants, which are repeated for each row: a token of
/// the class before the patches of an image.
fn joined(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    let batched = (0..node.inputs.len()).find_map(|at| Some((at, node.rank(at)?)));
    let (of, rank) = batched.ok_or_else(|| format!("{} has no input", node.name()))?;
    behind_batch(node, node.number("axis", 1), rank)?;
    let mut inputs = Vec::new();
    for at in 0..node.inputs.len() {
        match (node.rank(at), node.shape(at)) {
            (Some(other), _) if other == rank => {}
            (None, Some([Size::Number(1), rest @ ..])) if rest.len() + 1 == rank => {
                inputs.push(InputChange::Repeated { at, of, rank });
            }
            _ => {
                let joins = "joins what differs by row with what does not";
                return Err(format!("{} {joins}", node.name()));
            }
        }
    }
    Ok(if inputs.is_empty() { NodeEffect::Batched(rank) } else { NodeEffect::Sized { rank, inputs } })
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
    let mixes = || format!("{} multiplies in a way that may mix rows", node.name());
    // A matrix on the right is the same for each row; so is a constant with 1 in the batch's place.
    let beside = |at: usize, rank: usize| {
        let shape = node.shape(at).filter(|_| rank >= 2)?;
        (shape.len() >= 2 && (shape.len() == 2 || (rank >= 3 && is_one_row(shape, rank)))).then_some(rank)
    };
    let rank = match (node.rank(0), node.rank(1)) {
        (Some(rank), Some(other)) => (rank == other && rank >= 3).then_some(rank),
        (Some(rank), None) => beside(1, rank),
        (None, Some(rank)) => beside(0, rank).filter(|&rank| rank >= 3),
        (None, None) => None,
    };
    rank.ok_or_else(mixes)
}

fn quantized_product(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let at = if node.operator() == "QLinearMatMul" { 3 } else { 1 };
    match node.shape(at) {
        Some([_, _]) if rank >= 2 => Ok(rank),
        _ => Err(format!("{} multiplies in a way that may mix rows", node.name())),
    }
}

/// A product by indices: the batch's index leads the terms of what has it, and no other.
fn einsum(node: &NodeView<'_>) -> Result<usize, String> {
    let mixes = || format!("{} multiplies in a way that may mix rows", node.name());
    let equation = node.attribute("equation").and_then(|of| of.s.as_deref()).unwrap_or_default();
    let (terms, result) = equation.split_once("->").ok_or_else(mixes)?;
    let letters = |term: &str| -> Vec<char> { term.chars().filter(|c| !c.is_whitespace()).collect() };
    let (terms, result): (Vec<Vec<char>>, Vec<char>) =
        (terms.split(',').map(letters).collect(), letters(result));
    let batch = *result.first().ok_or_else(mixes)?;
    let leads = |term: &[char]| term.first() == Some(&batch) && !term[1..].contains(&batch);
    let keeps = |(at, term): (usize, &Vec<char>)| match node.rank(at) {
        Some(rank) => term.len() == rank && leads(term),
        None => !term.contains(&batch),
    };
    let is_plain = equation.chars().all(|c| c.is_ascii_alphabetic() || ",-> ".contains(c));
    let kept = is_plain && terms.len() == node.inputs.len() && terms.iter().enumerate().all(keeps);
    if kept && leads(&result) { Ok(result.len()) } else { Err(mixes()) }
}

fn first_largest(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = along(node, "axis", 0)?;
    if node.number("keepdims", 1) != 0 { Ok(rank) } else { less(node, rank, 1) }
}

fn summed(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    match node.constant(1).and_then(ConstantFact::numbers).as_deref() {
        Some(&[axis]) => behind_batch(node, axis, rank).map(|_| rank),
        _ => Err(format!("{} works along an axis that is not known", node.name())),
    }
}

fn one_hot(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)? + 1;
    behind_batch(node, node.number("axis", -1), rank).map(|_| rank)
}

/// Operators on the matrices of the last two dimensions.
fn of_matrices(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    if rank >= 3 { Ok(rank) } else { Err(format!("{} works along the batch", node.name())) }
}

/// Takes parts of each row at the same places, or rows of a table at the places that each row says.
fn gathered(node: &NodeView<'_>) -> Result<usize, String> {
    let axis = node.number("axis", 0);
    match (node.rank(0), node.rank(1)) {
        (Some(rank), None) => {
            behind_batch(node, axis, rank)?;
            Ok(rank - 1 + known_shape(node, 1)?.len())
        }
        (None, Some(rank)) => {
            let table = known_shape(node, 0)?.len();
            match place(axis, table) {
                Some(0) => Ok(rank + table - 1),
                _ => Err(format!("{} puts the batch behind another dimension", node.name())),
            }
        }
        _ => Err(format!("{} takes rows that other rows name", node.name())),
    }
}

/// Returns the shape of a constant.
fn known_shape<'v>(node: &NodeView<'v>, at: usize) -> Result<&'v [Size], String> {
    node.shape(at).ok_or_else(|| format!("{}: the shape of a constant is not known", node.name()))
}

fn gathered_elements(node: &NodeView<'_>) -> Result<usize, String> {
    match (node.rank(0), node.rank(1)) {
        (Some(rank), Some(other)) if rank == other => {
            behind_batch(node, node.number("axis", 0), rank).map(|_| rank)
        }
        _ => Err(format!("{} takes elements that are not of its row", node.name())),
    }
}

fn tiled(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    match node.values(1) {
        Some([Size::Number(1), rest @ ..]) if !rest.contains(&Size::Rows) => Ok(rank),
        _ => Err(format!("{} may repeat the batch", node.name())),
    }
}

fn expanded(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    let rank = alone(node)?;
    let sizes = node.values(1).ok_or_else(|| format!("{} has a shape that is not known", node.name()))?;
    let front = if sizes.len() == rank { sizes.first() } else { None };
    let others = if front.is_some() { &sizes[1..] } else { sizes };
    match front {
        // 1 is stretched to the batch.
        None | Some(Size::Number(1) | Size::Rows) if sizes.len() <= rank && !others.contains(&Size::Rows) => {
            Ok(NodeEffect::Batched(rank))
        }
        _ => Err(format!("{} may repeat the batch", node.name())),
    }
}

fn upsampled(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let by_attribute = node.attribute("scales").map(|of| of.floats.first() == Some(&1.0));
    let by_input = || node.values(1).is_some_and(|scales| scales.first() == Some(&Size::Number(1)));
    match by_attribute.unwrap_or_else(by_input) {
        true => Ok(rank),
        false => Err(format!("{} may resize the batch", node.name())),
    }
}

fn resized(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    let may = || format!("{} may resize the batch", node.name());
    let rank = alone(node)?;
    let is_empty = |at: usize| node.shape(at).is_none_or(|shape| shape == [Size::Number(0)]);
    if let Some(axes) = node.attribute("axes") {
        axes.ints.iter().try_for_each(|&axis| behind_batch(node, axis, rank).map(drop))?;
        return Ok(NodeEffect::Batched(rank));
    }
    // Of opset 10 the scales are the second input.
    let (scales, sizes) = if node.opset < 11 { (1, 3) } else { (2, 3) };
    let crops = node.attribute("coordinate_transformation_mode").and_then(|mode| mode.s.as_deref())
        == Some("tf_crop_and_resize");
    if crops {
        return Err(may());
    }
    match (node.input(sizes), node.values(sizes)) {
        (None, _) | (Some(_), Some([])) => match node.values(scales) {
            Some([Size::Number(1), ..]) if !is_empty(scales) => Ok(NodeEffect::Batched(rank)),
            _ => Err(may()),
        },
        (Some(_), Some([front, others @ ..])) if !others.contains(&Size::Rows) => match front {
            Size::Rows => Ok(NodeEffect::Batched(rank)),
            Size::Number(1) => {
                let change = InputChange::Sizes { at: sizes, of: 0, count: others.len() + 1 };
                Ok(NodeEffect::Sized { rank, inputs: vec![change] })
            }
            _ => Err(may()),
        },
        _ => Err(may()),
    }
}

fn shape(node: &NodeView<'_>) -> Result<ConstantFact, String> {
    let rank = alone(node)?;
    let sizes = std::iter::once(Size::Rows).chain(std::iter::repeat_n(Size::Same, rank.saturating_sub(1)));
    Ok(known::shape(node, sizes.take(rank).collect()))
}

fn padded(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let pads = node.numbers("pads", 1)?.unwrap_or_default();
    let kept = pads.len() == 2 * rank && pads[0] == 0 && pads[rank] == 0 && node.input(3).is_none();
    if kept { Ok(rank) } else { Err(format!("{} may pad the batch", node.name())) }
}

fn sliced(node: &NodeView<'_>) -> Result<usize, String> {
    let rank = alone(node)?;
    let cuts = || format!("{} cuts the batch", node.name());
    let axes = node.numbers("axes", 3)?.ok_or_else(cuts)?;
    for (at, &axis) in axes.iter().enumerate() {
        match place(axis, rank) {
            // All of it, as exporters write for a dimension that is not cut.
            Some(0) => {
                let (starts, ends) = (node.numbers("starts", 1)?, node.numbers("ends", 2)?);
                let bound = |of: Option<Vec<i64>>| of.and_then(|of| of.get(at).copied());
                let steps = node.numbers("steps", 4)?.is_none_or(|steps| steps.get(at) == Some(&1));
                let is_all = bound(starts) == Some(0) && bound(ends) >= Some(i64::from(i32::MAX));
                (steps && is_all).then_some(()).ok_or_else(cuts)?;
            }
            _ => drop(behind_batch(node, axis, rank)?),
        }
    }
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

/// Reshapes to a shape that copies the batch, or computes it. With the batch copied, a reshape
/// keeps rows apart whatever the other sizes are: it fails if they do not fit a row.
fn reshape(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    let rank = alone(node)?;
    let makes = |shape: &[Size]| {
        format!("{} makes a shape of {} sizes, of which the first is not the batch", node.name(), shape.len())
    };
    if let Some(mut shape) = node.numbers_of_shape()? {
        if node.number("allowzero", 0) != 0 {
            return Err(format!("{} has no size that copies the batch", node.name()));
        }
        return match shape.first_mut() {
            Some(size @ (-1..=1)) => {
                *size = 0;
                Ok(NodeEffect::Reshaped(shape))
            }
            _ => Err(format!("{} makes the shape {shape:?}", node.name())),
        };
    }
    let shape = node.values(1).ok_or_else(|| format!("{}: its shape is computed", node.name()))?;
    match shape {
        [front, others @ ..] if !others.contains(&Size::Rows) => match front {
            Size::Rows => Ok(NodeEffect::Batched(shape.len())),
            Size::Number(-1..=1) if rank > 0 => {
                let change = InputChange::Sizes { at: 1, of: 0, count: shape.len() };
                Ok(NodeEffect::Sized { rank: shape.len(), inputs: vec![change] })
            }
            _ => Err(makes(shape)),
        },
        _ => Err(makes(shape)),
    }
}
