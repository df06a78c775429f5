//! What a node makes of constants and of shapes: the elements of the model's inputs do not reach
//! it, but the number of rows may. Exporters compute with shapes to reshape, to repeat and to
//! resize; each size is followed as a number, as the number of rows, or as one that is the same for
//! batches of every size.

use super::effect::NodeEffect;
use super::facts::{ConstantFact, MAX_KEPT, NodeView, Size, whole};

/// Returns what a node makes of inputs that the elements of the model's inputs do not reach.
///
/// Errors: it computes with the number of rows in a way that is not known.
pub(super) fn effect(node: &NodeView<'_>) -> Result<NodeEffect, String> {
    let known = if node.is_standard() { made(node)? } else { None };
    match known {
        Some(effect) => Ok(effect),
        None if node.inputs.iter().flatten().any(|input| input.depends_on_rows()) => Err(unknown(node)),
        None => Ok(NodeEffect::Constant(ConstantFact::default())),
    }
}

/// Returns the sizes of a tensor as a one-dimensional tensor, `Shape`'s output.
pub(super) fn shape(node: &NodeView<'_>, sizes: Vec<Size>) -> ConstantFact {
    let rank = sizes.len() as i64;
    let end = |name: &str, default| {
        let at = node.number(name, default);
        (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize
    };
    let (from, to) = (end("start", 0), end("end", rank));
    ConstantFact::of_values(sizes.get(from..to.max(from)).unwrap_or_default().to_vec())
}

fn unknown(node: &NodeView<'_>) -> String {
    format!("{} computes with the number of rows in a way that is not known", node.name())
}

/// Returns what a node makes; `None` where that is not known.
fn made(node: &NodeView<'_>) -> Result<Option<NodeEffect>, String> {
    let constant = match node.operator() {
        "Constant" => literal(node),
        // Whole numbers stay what they are, and the others are not known.
        "Identity" | "Cast" | "Floor" | "Ceil" | "Round" => node.constant(0).cloned(),
        "Shape" => node.constant(0).and_then(|of| Some(shape(node, of.shape.clone()?))),
        "Unsqueeze" => unsqueezed(node),
        "Squeeze" => squeezed(node),
        "Reshape" => reshaped(node),
        "Transpose" => transposed(node),
        "Gather" => gathered(node),
        "Slice" => sliced(node),
        "Concat" => joined(node),
        "Range" => ranged(node),
        "ConstantOfShape" => return filled(node),
        "Expand" => return expanded(node),
        "Tile" => return tiled(node),
        "Where" => chosen(node)?,
        "Add" | "Sub" | "Mul" | "Div" | "Equal" => combined(node)?,
        operator if SAME_SHAPE.contains(&operator) => {
            let of = node.constant(0).filter(|of| !of.depends_on_rows());
            of.map(|of| ConstantFact { shape: of.shape.clone(), values: None })
        }
        _ => None,
    };
    Ok(constant.map(NodeEffect::Constant))
}

/// Operators that make elements of elements of their only input.
const SAME_SHAPE: &[&str] =
    &["Abs", "Cos", "Exp", "Log", "Neg", "Not", "Reciprocal", "Sigmoid", "Sin", "Softmax", "Sqrt", "Tanh"];

fn literal(node: &NodeView<'_>) -> Option<ConstantFact> {
    if let Some(tensor) = node.attribute("value").and_then(|value| value.t.as_ref()) {
        return Some(ConstantFact::of(tensor));
    }
    let number = node.attribute("value_int").and_then(|value| value.i).map(Size::Number);
    let float = node.attribute("value_float").and_then(|value| value.f).map(|value| whole(value.into()));
    if let Some(only) = number.or(float) {
        return Some(ConstantFact { shape: Some(Vec::new()), values: Some(vec![only]) });
    }
    let numbers = node.attribute("value_ints")?;
    Some(ConstantFact::of_values(numbers.ints.iter().copied().map(Size::Number).collect()))
}

fn unsqueezed(node: &NodeView<'_>) -> Option<ConstantFact> {
    let ConstantFact { shape, values } = node.constant(0)?.clone();
    let mut shape = shape?;
    let axes = node.numbers("axes", 1).ok()??;
    let rank = shape.len() + axes.len();
    let mut axes = axes.into_iter().map(|axis| place(axis, rank)).collect::<Option<Vec<usize>>>()?;
    axes.sort_unstable();
    for axis in axes {
        if axis > shape.len() {
            return None;
        }
        shape.insert(axis, Size::Number(1));
    }
    Some(ConstantFact { shape: Some(shape), values })
}

fn squeezed(node: &NodeView<'_>) -> Option<ConstantFact> {
    let ConstantFact { shape, values } = node.constant(0)?.clone();
    let shape = shape?;
    let axes: Vec<usize> = match node.numbers("axes", 1).ok()? {
        Some(axes) => axes.into_iter().map(|axis| place(axis, shape.len())).collect::<Option<_>>()?,
        None if shape.contains(&Size::Same) => return None,
        None => (0..shape.len()).filter(|&at| shape[at] == Size::Number(1)).collect(),
    };
    let left = shape.iter().enumerate().filter(|(at, _)| !axes.contains(at)).map(|(_, &size)| size);
    Some(ConstantFact { shape: Some(left.collect()), values })
}

fn reshaped(node: &NodeView<'_>) -> Option<ConstantFact> {
    let ConstantFact { shape, values } = node.constant(0)?.clone();
    let to = node.numbers("shape", 1).ok()??;
    let known = elements(&shape?);
    let mut others = to.iter().filter(|&&size| size != -1);
    let product = others.try_fold(1i64, |all, &size| all.checked_mul(size));
    let size = |&size: &i64| match size {
        -1 => known.zip(product.filter(|&of| of > 0)).map_or(Size::Same, |(all, of)| Size::Number(all / of)),
        0 => Size::Same,
        size => Size::Number(size),
    };
    Some(ConstantFact { shape: Some(to.iter().map(size).collect()), values })
}

/// Returns the number of elements of a shape; `None` where that is not known.
fn elements(shape: &[Size]) -> Option<i64> {
    shape.iter().try_fold(1i64, |all, size| all.checked_mul(size.number()?))
}

fn transposed(node: &NodeView<'_>) -> Option<ConstantFact> {
    let of = node.constant(0).filter(|of| !of.depends_on_rows())?;
    let shape = of.shape.as_ref()?;
    let shape: Vec<Size> = match node.attribute("perm") {
        None => shape.iter().rev().copied().collect(),
        Some(perm) => {
            let at = |&axis: &i64| shape.get(usize::try_from(axis).ok()?).copied();
            perm.ints.iter().map(at).collect::<Option<_>>()?
        }
    };
    Some(ConstantFact { shape: Some(shape), values: None })
}

fn gathered(node: &NodeView<'_>) -> Option<ConstantFact> {
    let (of, indices) = (node.constant(0)?, node.constant(1).filter(|of| !of.depends_on_rows())?);
    let (shape, at) = (of.shape.as_ref()?, indices.shape.as_ref()?);
    let axis = place(node.number("axis", 0), shape.len())?;
    let picked = |values: &Vec<Size>| {
        let pick = |index: &Size| values.get(place(index.number()?, values.len())?).copied();
        indices.values.as_ref()?.iter().map(pick).collect::<Option<Vec<Size>>>()
    };
    let values = if shape.len() == 1 { of.values.as_ref().and_then(picked) } else { None };
    if values.is_none() && of.depends_on_rows() {
        return None;
    }
    let shape = [&shape[..axis], at, &shape[axis + 1..]].concat();
    Some(ConstantFact { shape: Some(shape), values })
}

fn sliced(node: &NodeView<'_>) -> Option<ConstantFact> {
    let of = node.constant(0)?;
    let values = of.values.as_ref().filter(|_| of.shape.as_ref().is_some_and(|shape| shape.len() == 1));
    let cut = || {
        let values = values?;
        let only = |name: &str, at: usize| match node.numbers(name, at).ok()?.as_deref() {
            Some(&[only]) => Some(only),
            _ => None,
        };
        if node.numbers("steps", 4).ok()?.is_some_and(|steps| steps != [1]) {
            return None;
        }
        let rank = values.len() as i64;
        let bound = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
        let (from, to) = (bound(only("starts", 1)?), bound(only("ends", 2)?));
        Some(values[from..to.max(from)].to_vec())
    };
    match cut() {
        Some(values) => Some(ConstantFact::of_values(values)),
        None if of.depends_on_rows() => None,
        None => {
            let rank = of.shape.as_ref()?.len();
            Some(ConstantFact { shape: Some(vec![Size::Same; rank]), values: None })
        }
    }
}

fn joined(node: &NodeView<'_>) -> Option<ConstantFact> {
    let parts = (0..node.inputs.len()).map(|at| node.constant(at)).collect::<Option<Vec<_>>>()?;
    let shapes = parts.iter().map(|part| part.shape.as_ref()).collect::<Option<Vec<_>>>()?;
    let rank = shapes.first()?.len();
    if rank == 1 {
        // A part whose values are not known is the same for every batch.
        let values = |(part, shape): (&&ConstantFact, &&Vec<Size>)| {
            let count = || usize::try_from(shape.first()?.number()?).ok().filter(|&count| count <= MAX_KEPT);
            part.values.clone().or_else(|| Some(vec![Size::Same; count()?]))
        };
        let values = parts.iter().zip(&shapes).map(values).collect::<Option<Vec<_>>>()?.concat();
        return (values.len() <= MAX_KEPT).then(|| ConstantFact::of_values(values));
    }
    let axis = place(node.number("axis", 1), rank)?;
    if parts.iter().any(|part| part.depends_on_rows()) || shapes.iter().any(|shape| shape.len() != rank) {
        return None;
    }
    let sizes = shapes.iter().map(|shape| shape[axis].number()).collect::<Option<Vec<i64>>>();
    let mut shape = shapes[0].clone();
    shape[axis] = sizes.map_or(Size::Same, |sizes| Size::Number(sizes.iter().sum()));
    Some(ConstantFact { shape: Some(shape), values: None })
}

fn ranged(node: &NodeView<'_>) -> Option<ConstantFact> {
    let depends = node.inputs.iter().flatten().any(|input| input.depends_on_rows());
    (!depends).then(|| ConstantFact { shape: Some(vec![Size::Same]), values: None })
}

fn filled(node: &NodeView<'_>) -> Result<Option<NodeEffect>, String> {
    let Some(sizes) = node.constant(0).and_then(|sizes| sizes.values.clone()) else { return Ok(None) };
    if let Some(rank) = rows_in_front(node, &sizes)? {
        return Ok(Some(NodeEffect::Batched(rank)));
    }
    let value = node.attribute("value").and_then(|value| value.t.as_ref());
    let value = match value.map(ConstantFact::of) {
        None => Some(Size::Number(0)),
        Some(of) => of.values.and_then(|values| values.first().copied()),
    };
    let count = elements(&sizes).and_then(|count| usize::try_from(count).ok()).filter(|&all| all <= MAX_KEPT);
    let values = value.zip(count).map(|(value, count)| vec![value; count]);
    Ok(Some(NodeEffect::Constant(ConstantFact { shape: Some(sizes), values })))
}

/// Returns the number of these sizes if the first is the number of rows, and `None` if none is.
///
/// Errors: another than the first is.
fn rows_in_front(node: &NodeView<'_>, sizes: &[Size]) -> Result<Option<usize>, String> {
    match sizes {
        [Size::Rows, rest @ ..] if !rest.contains(&Size::Rows) => Ok(Some(sizes.len())),
        _ if sizes.contains(&Size::Rows) => Err(unknown(node)),
        _ => Ok(None),
    }
}

fn expanded(node: &NodeView<'_>) -> Result<Option<NodeEffect>, String> {
    let (Some(of), Some(sizes)) = (node.constant(0), node.constant(1).and_then(|of| of.values.clone()))
    else {
        return Ok(None);
    };
    let Some(shape) = of.shape.as_ref().filter(|_| !of.depends_on_rows()) else { return Ok(None) };
    if rows_in_front(node, &sizes)?.is_some() {
        let is_one_row = shape.len() < sizes.len() || shape.first() == Some(&Size::Number(1));
        let rank = is_one_row.then_some(NodeEffect::Batched(sizes.len()));
        return rank.filter(|_| shape.len() <= sizes.len()).map(Some).ok_or_else(|| unknown(node));
    }
    let shape = stretched(shape, &sizes);
    Ok(shape.map(|shape| NodeEffect::Constant(ConstantFact { shape: Some(shape), values: None })))
}

fn tiled(node: &NodeView<'_>) -> Result<Option<NodeEffect>, String> {
    let (Some(of), Some(times)) = (node.constant(0), node.constant(1).and_then(|of| of.values.clone()))
    else {
        return Ok(None);
    };
    let Some(shape) = of.shape.as_ref().filter(|_| !of.depends_on_rows()) else { return Ok(None) };
    if let Some(rank) = rows_in_front(node, &times)? {
        let is_one_row = shape.len() == rank && shape.first() == Some(&Size::Number(1));
        return if is_one_row { Ok(Some(NodeEffect::Batched(rank))) } else { Err(unknown(node)) };
    }
    let size = |(of, times): (&Size, &Size)| {
        let product = of.number().zip(times.number()).and_then(|(of, times)| of.checked_mul(times));
        product.map_or(Size::Same, Size::Number)
    };
    let shape = shape.iter().zip(&times).map(size).collect();
    Ok(Some(NodeEffect::Constant(ConstantFact { shape: Some(shape), values: None })))
}

/// Returns the shape to which two are stretched; `None` where one has rows.
fn stretched(one: &[Size], other: &[Size]) -> Option<Vec<Size>> {
    let rank = one.len().max(other.len());
    let at = |of: &[Size], at: usize| match at.checked_sub(rank - of.len()) {
        Some(at) => of[at],
        None => Size::Number(1),
    };
    let size = |place: usize| match (at(one, place), at(other, place)) {
        (Size::Rows, _) | (_, Size::Rows) => None,
        (Size::Number(1), size) | (size, Size::Number(1)) => Some(size),
        (Size::Number(one), Size::Number(_)) => Some(Size::Number(one)),
        _ => Some(Size::Same),
    };
    (0..rank).map(size).collect()
}

/// Returns the elements of an input stretched to `count`; `None` where they are not known.
fn elements_of(of: &ConstantFact, count: usize) -> Option<Vec<Size>> {
    match of.values.as_deref() {
        Some([only]) => Some(vec![*only; count]),
        Some(values) if values.len() == count => Some(values.to_vec()),
        _ => None,
    }
}

/// Returns what a node makes, element by element, of inputs of at most one dimension that are
/// stretched to each other; else their shape alone.
///
/// Errors: an element depends on the number of rows in a way that is not known.
fn by_element(
    node: &NodeView<'_>,
    of: impl Fn(&[Size]) -> Option<Size>,
) -> Result<Option<ConstantFact>, String> {
    let Some(inputs) = (0..node.inputs.len()).map(|at| node.constant(at)).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let Some(shapes) = inputs.iter().map(|input| input.shape.as_ref()).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let shape = shapes.iter().try_fold(Vec::new(), |all, shape| stretched(&all, shape));
    let depends = inputs.iter().any(|input| input.depends_on_rows());
    let counts = inputs.iter().filter_map(|input| Some(input.values.as_ref()?.len()));
    let count = counts.max().filter(|_| shapes.iter().all(|shape| shape.len() <= 1));
    let values = count.and_then(|count| {
        let values = inputs.iter().map(|input| elements_of(input, count)).collect::<Option<Vec<_>>>()?;
        let element = |at: usize| of(&values.iter().map(|values| values[at]).collect::<Vec<_>>());
        (0..count).map(element).collect::<Option<Vec<Size>>>()
    });
    match values {
        None if depends => Err(unknown(node)),
        values => Ok(shape.map(|shape| ConstantFact { shape: Some(shape), values })),
    }
}

fn chosen(node: &NodeView<'_>) -> Result<Option<ConstantFact>, String> {
    by_element(node, |of| match *of {
        [Size::Number(condition), yes, no] => Some(if condition != 0 { yes } else { no }),
        [_, yes, no] if yes == no => Some(yes),
        [_, Size::Rows, _] | [_, _, Size::Rows] => None,
        [_, _, _] => Some(Size::Same),
        _ => None,
    })
}

fn combined(node: &NodeView<'_>) -> Result<Option<ConstantFact>, String> {
    let operator = node.operator();
    by_element(node, |of| match (operator, of) {
        (_, &[Size::Number(one), Size::Number(other)]) => Some(number(operator, one, other)),
        ("Add" | "Sub", [Size::Rows, Size::Number(0)]) | ("Mul" | "Div", [Size::Rows, Size::Number(1)]) => {
            Some(Size::Rows)
        }
        ("Add", [Size::Number(0), Size::Rows]) | ("Mul", [Size::Number(1), Size::Rows]) => Some(Size::Rows),
        // A number of rows is above 0.
        ("Equal", [Size::Rows, Size::Number(..=0)] | [Size::Number(..=0), Size::Rows]) => {
            Some(Size::Number(0))
        }
        (_, [Size::Rows, _] | [_, Size::Rows]) => None,
        (_, [_, _]) => Some(Size::Same),
        _ => None,
    })
}

/// Returns the result of an operator on two numbers, which may be whole or be written as floats.
fn number(operator: &str, one: i64, other: i64) -> Size {
    let result = match operator {
        "Add" => one.checked_add(other),
        "Sub" => one.checked_sub(other),
        "Mul" => one.checked_mul(other),
        "Equal" => Some(i64::from(one == other)),
        _ => one.checked_rem(other).filter(|&rest| rest == 0).map(|_| one / other),
    };
    result.map_or(Size::Same, Size::Number)
}

/// Returns the place of an axis that may count from the end; `None` where there is none.
pub(super) fn place(axis: i64, rank: usize) -> Option<usize> {
    let place = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(place).ok().filter(|&place| place < rank)
}
