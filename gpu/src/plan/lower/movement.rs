//! Lowering of operators that move elements or only give them another shape. A new shape alone
//! needs no launch, and most moves are one strided copy.

use super::super::element::{ConstantTensor, PlanElement};
use super::super::operation::{Operation, PadFill};
use super::builder::{NodeOutputs, PlanBuilder, PlanValue};
use super::node::{OnnxNode, axis_of};

/// A dense tensor on its way to a copy: what is walked through, and where its elements are.
pub(super) struct StridedWalk {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<i64>,
    pub(super) offset: usize,
}

impl StridedWalk {
    pub(super) fn of(x: &PlanValue) -> StridedWalk {
        let shape = x.shape().to_vec();
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis] as i64;
        }
        StridedWalk { shape, strides, offset: 0 }
    }

    /// Walks through the dimensions in another order.
    pub(super) fn permuted(self, order: &[usize]) -> StridedWalk {
        StridedWalk {
            shape: order.iter().map(|&axis| self.shape[axis]).collect(),
            strides: order.iter().map(|&axis| self.strides[axis]).collect(),
            offset: self.offset,
        }
    }

    pub(super) fn copy(
        self,
        builder: &mut PlanBuilder<'_>,
        x: &PlanValue,
        shape: Vec<usize>,
    ) -> Result<PlanValue, String> {
        let StridedWalk { shape: walked, strides, offset } = self;
        builder.emit(Operation::StridedCopy { walked, strides, offset, shape }, &[x])
    }
}

/// Copies a tensor as it is, to give it a buffer of its own.
pub(super) fn duplicate(builder: &mut PlanBuilder<'_>, x: &PlanValue) -> PlanValue {
    let StridedWalk { shape: walked, strides, offset } = StridedWalk::of(x);
    let shape = walked.clone();
    builder.push(Operation::StridedCopy { walked, strides, offset, shape }, &[x], x.of().clone())
}

pub(super) fn identity(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    Ok(vec![node.input(0)?.clone()])
}

/// Lowers Dropout, which drops nothing: its mask says that every element is kept.
pub(super) fn dropout(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let trains = node.optional(2).is_some_and(|mode| {
        mode.constant().and_then(ConstantTensor::whole_numbers).is_none_or(|mode| mode != [0])
    });
    if trains {
        return Err(node.lacks("it is for training"));
    }
    if node.outputs() == 1 {
        return Ok(vec![x.clone()]);
    }
    // Before that opset it is one of numbers.
    let element = if node.opset < 10 { x.of().element } else { PlanElement::Bool };
    let kept = filled(builder, &PlanBuilder::number(element, 1.0)?, x.shape().to_vec())?;
    Ok(vec![x.clone(), kept])
}

/// Returns a tensor of this shape whose elements are all that of another.
fn filled(builder: &mut PlanBuilder<'_>, one: &PlanValue, shape: Vec<usize>) -> Result<PlanValue, String> {
    let walk = StridedWalk { strides: vec![0; shape.len()], shape: shape.clone(), offset: 0 };
    walk.copy(builder, &one.view(vec![1])?, shape)
}

pub(super) fn reshape(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let to = node.numbers("shape", 1)?.ok_or("it has no shape")?;
    let copies = node.whole("allowzero", 0) == 0;
    let wrong = || format!("{} can't have the shape {to:?}", x.of());
    let size = |(at, &size): (usize, &i64)| match size {
        0 if copies => x.shape().get(at).copied(),
        -1 => Some(1),
        size => usize::try_from(size).ok(),
    };
    let shape: Option<Vec<usize>> = to.iter().enumerate().map(size).collect();
    let mut shape = shape.ok_or_else(wrong)?;
    if let Some(at) = to.iter().position(|&size| size == -1) {
        let known = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let all = x.of().elements().zip(known).and_then(|(all, known)| all.checked_div(known));
        shape[at] = all.ok_or_else(wrong)?;
    }
    Ok(vec![x.view(shape)?])
}

pub(super) fn flatten(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let axis = node.whole("axis", 1);
    let rank = x.shape().len();
    let axis = if axis == rank as i64 { rank } else { axis_of(axis, rank)? };
    let (before, after) = x.shape().split_at(axis);
    Ok(vec![x.view(vec![before.iter().product(), after.iter().product()])?])
}

pub(super) fn squeeze(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let rank = x.shape().len();
    let axes = match node.numbers("axes", 1)? {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).filter(|&axis| x.shape()[axis] == 1).collect(),
    };
    let kept = (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| x.shape()[axis]);
    Ok(vec![x.view(kept.collect())?])
}

pub(super) fn unsqueeze(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let axes = node.numbers("axes", 1)?.ok_or("it has no axes")?;
    let rank = x.shape().len() + axes.len();
    let axes = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut sizes = x.shape().iter();
    let size = |axis: usize| if axes.contains(&axis) { Some(1) } else { sizes.next().copied() };
    let shape: Option<Vec<usize>> = (0..rank).map(size).collect();
    Ok(vec![x.view(shape.ok_or("its axes are given twice")?)?])
}

pub(super) fn transpose(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let rank = x.shape().len();
    let order = match node.wholes("perm") {
        Some(order) => order.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("perm is {order:?} for {}", x.of()));
    }
    let walk = StridedWalk::of(x).permuted(&order);
    let shape = walk.shape.clone();
    // Elements stay where they are if only dimensions of size 1 move.
    let moved: Vec<usize> = order.into_iter().filter(|&axis| x.shape()[axis] != 1).collect();
    if moved.is_sorted() {
        return Ok(vec![x.view(shape)?]);
    }
    Ok(vec![walk.copy(builder, x, shape)?])
}

pub(super) fn slice(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let rank = x.shape().len();
    let starts = node.numbers("starts", 1)?.ok_or("it has no starts")?;
    let ends = node.numbers("ends", 2)?.ok_or("it has no ends")?;
    let axes = node.numbers("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = node.numbers_of(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err("its starts, ends, axes and steps are not as many".to_owned());
    }
    let mut walk = StridedWalk::of(x);
    let mut cut = Vec::new();
    for (at, &axis) in axes.iter().enumerate() {
        let axis = axis_of(axis, rank)?;
        if cut.contains(&axis) {
            return Err(format!("dimension {axis} is cut twice"));
        }
        cut.push(axis);
        let (size, step) = (x.shape()[axis] as i64, steps[at]);
        let from_end = |index: i64| if index < 0 { index.saturating_add(size) } else { index };
        let (lowest, highest) = if step < 0 { (-1, size - 1) } else { (0, size) };
        let start = from_end(starts[at]).clamp(lowest.max(0).min(highest.max(0)), highest.max(0));
        let end = from_end(ends[at]).clamp(lowest, highest);
        if step == 0 {
            return Err("a step is 0".to_owned());
        }
        let distance = (end - start) * step.signum();
        let count = u64::try_from(distance).unwrap_or(0).div_ceil(step.unsigned_abs());
        walk.shape[axis] = usize::try_from(count).unwrap_or(0);
        walk.offset += start as usize * walk.strides[axis] as usize;
        walk.strides[axis] = walk.strides[axis].saturating_mul(step);
    }
    let shape = walk.shape.clone();
    Ok(vec![walk.copy(builder, x, shape)?])
}

pub(super) fn split(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let axis = axis_of(node.whole("axis", 0), x.shape().len())?;
    let (size, parts) = (x.shape()[axis], node.node.output.len());
    let sizes = match node.numbers("split", 1)? {
        Some(sizes) => sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect(),
        None => {
            let of_part = size.div_ceil(parts.max(1));
            (0..parts).map(|at| of_part.min(size.saturating_sub(at * of_part))).collect::<Vec<usize>>()
        }
    };
    if sizes.len() != parts || sizes.iter().fold(0usize, |sum, &part| sum.saturating_add(part)) != size {
        return Err(format!("parts of {sizes:?} are not the whole of {}", x.of()));
    }
    let mut start = 0;
    let mut part = |size: usize| {
        let mut walk = StridedWalk::of(x);
        walk.offset = start * walk.strides[axis] as usize;
        walk.shape[axis] = size;
        start += size;
        let shape = walk.shape.clone();
        walk.copy(builder, x, shape)
    };
    sizes.into_iter().map(&mut part).collect()
}

pub(super) fn expand(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let to = node.numbers_of(1)?.ok_or("it has no shape")?;
    let to = to.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let shape = super::super::shapes::broadcast(x.shape(), &to.map_err(|_| "a size is below 0")?)?;
    if shape == x.shape() {
        return Ok(vec![x.clone()]);
    }
    let dense = StridedWalk::of(x);
    let strides =
        dense.strides.iter().zip(x.shape()).map(|(&stride, &size)| if size == 1 { 0 } else { stride });
    let mut walk =
        StridedWalk { shape: shape.clone(), strides: vec![0; shape.len() - x.shape().len()], offset: 0 };
    walk.strides.extend(strides);
    Ok(vec![walk.copy(builder, x, shape)?])
}

pub(super) fn tile(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let repeats = node.numbers_of(1)?.ok_or("it has no repeats")?;
    let repeats = repeats.iter().map(|&times| usize::try_from(times)).collect::<Result<Vec<_>, _>>();
    let repeats = repeats.map_err(|_| "a repeat is below 0")?;
    if repeats.len() != x.shape().len() {
        return Err(format!("{repeats:?} are not the repeats of {}", x.of()));
    }
    let dense = StridedWalk::of(x);
    let pairs = repeats.iter().zip(dense.shape.iter().zip(&dense.strides));
    let (walked, strides) = pairs.flat_map(|(&times, (&size, &stride))| [(times, 0), (size, stride)]).unzip();
    let shape = repeats.iter().zip(x.shape()).map(|(times, size)| times.saturating_mul(*size)).collect();
    Ok(vec![StridedWalk { shape: walked, strides, offset: 0 }.copy(builder, x, shape)?])
}

pub(super) fn concat(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let inputs = (0..node.inputs.len()).map(|at| node.input(at)).collect::<Result<Vec<_>, _>>()?;
    let axis = axis_of(node.whole("axis", 1), node.input(0)?.shape().len())?;
    Ok(vec![builder.emit(Operation::Concat { axis }, &inputs)?])
}

pub(super) fn gather(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (data, indices) = (node.input(0)?, node.input(1)?);
    let axis = axis_of(node.whole("axis", 0), data.shape().len())?;
    Ok(vec![builder.emit(Operation::Gather { axis }, &[data, indices])?])
}

pub(super) fn pad(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let rank = x.shape().len();
    let given = node.numbers("pads", 1)?.ok_or("it has no pads")?;
    let axes = node.numbers_of(3)?.unwrap_or_else(|| (0..rank as i64).collect());
    if given.len() != 2 * axes.len() {
        return Err(format!("pads {given:?} do not fit {}", x.of()));
    }
    let (mut begins, mut ends) = (vec![0; rank], vec![0; rank]);
    for (at, &axis) in axes.iter().enumerate() {
        let axis = axis_of(axis, rank)?;
        (begins[axis], ends[axis]) = (given[at], given[at + axes.len()]);
    }
    let value = match node.optional(2) {
        None => node.float("value", 0.0),
        Some(value) => {
            let value = value.constant().ok_or_else(|| node.lacks("its value depends on the request"))?;
            let float = value.floats().and_then(|of| of.first()).copied();
            let whole = || Some(*value.whole_numbers()?.first()? as f32);
            float.or_else(whole).ok_or("its value is empty")?
        }
    };
    let fill = match node.text("mode", "constant") {
        "constant" => PadFill::Constant(value),
        "edge" => PadFill::Edge,
        "reflect" => PadFill::Reflect,
        other => return Err(node.lacks(&format!("its mode is {other}"))),
    };
    Ok(vec![builder.emit(Operation::Pad { begins, ends, fill }, &[x])?])
}

/// Lowers DepthToSpace and SpaceToDepth: a transposition of 6 dimensions.
pub(super) fn depth_and_space(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let block = usize::try_from(node.whole("blocksize", 0)).unwrap_or(0);
    let [n, c, h, w] = x.shape()[..].try_into().map_err(|_| node.lacks("its input is no image"))?;
    let area = block.saturating_mul(block);
    // The elements of a channel's block side by side, or the channels of each place in it.
    let by_channel = node.text("mode", "DCR") == "CRD";
    let (parts, order, shape) = if node.operator() == "SpaceToDepth" {
        if block == 0 || h % block != 0 || w % block != 0 {
            return Err(format!("blocks of {block} do not fit {}", x.of()));
        }
        let (rows, columns) = (h / block, w / block);
        let parts = vec![n, c, rows, block, columns, block];
        let order = if by_channel { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
        (parts, order, vec![n, c.saturating_mul(area), rows, columns])
    } else {
        if block == 0 || c % area != 0 {
            return Err(format!("blocks of {block} do not fit {}", x.of()));
        }
        let shape = vec![n, c / area, h.saturating_mul(block), w.saturating_mul(block)];
        match by_channel {
            true => (vec![n, c / area, block, block, h, w], [0, 1, 4, 2, 5, 3], shape),
            false => (vec![n, block, block, c / area, h, w], [0, 3, 4, 1, 5, 2], shape),
        }
    };
    let parts = x.view(parts)?;
    Ok(vec![StridedWalk::of(&parts).permuted(&order).copy(builder, &parts, shape)?])
}

/// Lowers Shape and Size: shapes are known.
pub(super) fn shape(node: &OnnxNode<'_>, _: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let sizes: Vec<i64> = x.shape().iter().map(|&size| size as i64).collect();
    if node.operator() == "Size" {
        let all = sizes.iter().product();
        return Ok(vec![PlanValue::Constant(ConstantTensor::of_i64(&[], &[all]))]);
    }
    let rank = sizes.len() as i64;
    let place = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (place(node.whole("start", 0)), place(node.whole("end", rank)));
    Ok(vec![PlanBuilder::whole_numbers(sizes.get(start..end).unwrap_or_default())])
}

/// Lowers Trilu: what lies on the other side of the diagonal is 0.
pub(super) fn triangle(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let [.., rows, columns] = *x.shape() else { return Err(node.lacks("its input is no matrix")) };
    let diagonal = node.numbers_of(1)?.and_then(|numbers| numbers.first().copied()).unwrap_or(0);
    let is_upper = node.whole("upper", 1) == 1;
    let right_of = |row: usize, column: usize| column as i64 - row as i64;
    let is_kept = |right: i64| if is_upper { right >= diagonal } else { right <= diagonal };
    let kept: Vec<i64> = (0..rows)
        .flat_map(|row| (0..columns).map(move |column| i64::from(is_kept(right_of(row, column)))))
        .collect();
    let kept = PlanValue::Constant(ConstantTensor::of_i64(&[rows, columns], &kept));
    let kept = builder.emit(Operation::Cast { to: PlanElement::Bool }, &[&kept])?;
    let zero = PlanBuilder::number(x.of().element, 0.0)?;
    Ok(vec![builder.emit(Operation::Select, &[&kept, x, &zero])?])
}

/// Lowers ConstantOfShape to a number that is stretched.
pub(super) fn constant_of_shape(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let sizes = node.numbers_of(0)?.ok_or("it has no shape")?;
    let shape = sizes.iter().map(|&size| usize::try_from(size)).collect::<Result<Vec<_>, _>>();
    let shape = shape.map_err(|_| format!("its shape is {sizes:?}"))?;
    let value = match node.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        Some(tensor) => super::super::weights::read_within(tensor)?,
        None => ConstantTensor::of_f32(&[1], &[0.0]),
    };
    Ok(vec![filled(builder, &PlanValue::Constant(value), shape)?])
}

/// Lowers Range, of numbers that are known.
pub(super) fn range(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    /// The most numbers.
    const MOST: f64 = (1 << 24) as f64;
    let element = node.input(0)?.of().element;
    let number = |at: usize| -> Result<f64, String> {
        let tensor =
            node.input(at)?.constant().ok_or_else(|| node.lacks("its numbers depend on the request"))?;
        let float = tensor.floats().and_then(|of| of.first()).map(|&x| f64::from(x));
        let whole = || Some(*tensor.whole_numbers()?.first()? as f64);
        float.or_else(whole).ok_or_else(|| "it has no number".to_owned())
    };
    let (start, limit, step) = (number(0)?, number(1)?, number(2)?);
    let count = ((limit - start) / step).ceil().max(0.0);
    if step == 0.0 || count.is_nan() || count > MOST {
        return Err(format!("it goes from {start} to {limit} by {step}"));
    }
    let numbers = (0..count as usize).map(|at| start + at as f64 * step);
    if element == PlanElement::F32 {
        let numbers: Vec<f32> = numbers.map(|x| x as f32).collect();
        return Ok(vec![PlanValue::Constant(ConstantTensor::of_f32(&[numbers.len()], &numbers))]);
    }
    let numbers: Vec<i64> = numbers.map(|x| x as i64).collect();
    let numbers = PlanBuilder::whole_numbers(&numbers);
    Ok(vec![match element {
        PlanElement::I64 => numbers,
        to => builder.emit(Operation::Cast { to }, &[&numbers])?,
    }])
}
