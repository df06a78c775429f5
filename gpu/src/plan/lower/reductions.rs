//! Lowering of sums, means and products of matrices, and of what is normalised by such.

use super::super::element::{ConstantTensor, PlanElement};
use super::super::operation::{BinaryFunction, Operation, PadFill, ReduceFunction, UnaryFunction};
use super::builder::{NodeOutputs, PlanBuilder, PlanValue};
use super::node::{OnnxNode, axis_of};

/// Lowers CumSum: in each step every element is added the one that lies 1, 2, 4 … before it, which
/// is the sum of as many by then.
pub(super) fn cumulative_sum(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let rank = x.shape().len();
    let axis = node.numbers_of(1)?.and_then(|axis| axis.first().copied()).ok_or("it has no axis")?;
    let axis = axis_of(axis, rank)?;
    let moved = |builder: &mut PlanBuilder<'_>, x: &PlanValue, by: usize| {
        let (mut begins, mut ends) = (vec![0; rank], vec![0; rank]);
        let (from, to) =
            if node.whole("reverse", 0) == 1 { (&mut ends, &mut begins) } else { (&mut begins, &mut ends) };
        (from[axis], to[axis]) = (by as i64, -(by as i64));
        builder.emit(Operation::Pad { begins, ends, fill: PadFill::Constant(0.0) }, &[x])
    };
    let mut sum = if node.whole("exclusive", 0) == 1 { moved(builder, x, 1)? } else { x.clone() };
    let mut by = 1;
    while by < x.shape()[axis] {
        let before = moved(builder, &sum, by)?;
        sum = builder.emit(Operation::Binary(BinaryFunction::Add), &[&sum, &before])?;
        by *= 2;
    }
    Ok(vec![sum])
}

pub(super) fn reduce(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let function = match node.operator() {
        "ReduceL1" => ReduceFunction::L1,
        "ReduceL2" => ReduceFunction::L2,
        "ReduceLogSum" => ReduceFunction::LogSum,
        "ReduceLogSumExp" => ReduceFunction::LogSumExp,
        "ReduceMax" => ReduceFunction::Max,
        "ReduceMean" => ReduceFunction::Mean,
        "ReduceMin" => ReduceFunction::Min,
        "ReduceProd" => ReduceFunction::Prod,
        "ReduceSum" => ReduceFunction::Sum,
        _ => ReduceFunction::SumSquare,
    };
    let rank = x.shape().len();
    let given = node.numbers("axes", 1)?.filter(|axes| !axes.is_empty());
    if given.is_none() && node.whole("noop_with_empty_axes", 0) == 1 {
        return Ok(vec![x.clone()]);
    }
    let mut axes = match given {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    axes.sort_unstable();
    let kept: Vec<usize> =
        (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| x.shape()[axis]).collect();
    let result = builder.emit(Operation::Reduce { function, axes }, &[x])?;
    Ok(vec![if node.whole("keepdims", 1) == 1 { result } else { result.view(kept)? }])
}

pub(super) fn softmax(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    // The import has changed those of opsets before 13 that work on several dimensions.
    let axis = axis_of(node.whole("axis", if node.opset < 13 { 1 } else { -1 }), x.shape().len())?;
    let logarithm = node.operator() == "LogSoftmax";
    Ok(vec![builder.emit(Operation::Softmax { axis, logarithm }, &[x])?])
}

pub(super) fn layer_norm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (x, scale) = (node.input(0)?, node.input(1)?);
    let axis = axis_of(node.whole("axis", -1), x.shape().len())?;
    let epsilon = node.float("epsilon", 1e-5);
    let stretched = |of: &PlanValue| of.view(x.shape()[axis..].to_vec());
    let scale = stretched(scale)?;
    let bias = node.optional(2).map(stretched).transpose()?;
    let inputs: Vec<&PlanValue> = [x, &scale].into_iter().chain(&bias).collect();
    let normal = builder.emit(Operation::LayerNorm { axis, epsilon, adds: false }, &inputs)?;
    if node.outputs() == 1 {
        return Ok(vec![normal]);
    }
    let [mean, factor] = mean_and_factor(x, axis, epsilon, builder)?;
    Ok(vec![normal, mean, factor])
}

/// Returns the mean over the dimensions from an axis on, which keep the size 1, and what the
/// differences from it are multiplied by: `1 / sqrt(variance + epsilon)`.
fn mean_and_factor(
    x: &PlanValue,
    axis: usize,
    epsilon: f32,
    builder: &mut PlanBuilder<'_>,
) -> Result<[PlanValue; 2], String> {
    let axes: Vec<usize> = (axis..x.shape().len()).collect();
    let mean_of = || Operation::Reduce { function: ReduceFunction::Mean, axes: axes.clone() };
    let mean = builder.emit(mean_of(), &[x])?;
    let difference = builder.emit(Operation::Binary(BinaryFunction::Sub), &[x, &mean])?;
    let square = builder.emit(Operation::Binary(BinaryFunction::Mul), &[&difference, &difference])?;
    let variance = builder.emit(mean_of(), &[&square])?;
    let epsilon = PlanValue::Constant(ConstantTensor::of_f32(&[], &[epsilon]));
    let mut factor = builder.emit(Operation::Binary(BinaryFunction::Add), &[&variance, &epsilon])?;
    for function in [UnaryFunction::Sqrt, UnaryFunction::Reciprocal] {
        factor = builder.emit(Operation::Unary(function), &[&factor])?;
    }
    Ok([mean, factor])
}

pub(super) fn matrix_product(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (left, right) = (node.input(0)?, node.input(1)?);
    // A vector is a row on the left and a column on the right, and that dimension goes again.
    let (row, column) = (left.shape().len() == 1, right.shape().len() == 1);
    let left = if row { left.view([&[1], left.shape()].concat())? } else { left.clone() };
    let right = if column { right.view([right.shape(), &[1]].concat())? } else { right.clone() };
    let operation = Operation::MatrixProduct { transposed: [false; 2], alpha: 1.0 };
    let result = builder.emit(operation, &[&left, &right])?;
    let mut shape = result.shape().to_vec();
    if column {
        shape.pop();
    }
    if row {
        shape.remove(shape.len() - if column { 1 } else { 2 });
    }
    Ok(vec![result.view(shape)?])
}

pub(super) fn gemm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (left, right) = (node.input(0)?, node.input(1)?);
    let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
    let transposed = ["transA", "transB"].map(|name| node.whole(name, 0) == 1);
    let operation = Operation::MatrixProduct { transposed, alpha };
    let columns = right.shape().get(usize::from(!transposed[1])).copied().unwrap_or(0);
    let Some(added) = node.optional(2).filter(|_| beta != 0.0) else {
        return Ok(vec![builder.emit(operation, &[left, right])?]);
    };
    let added = match beta {
        1.0 => added.clone(),
        beta => {
            let beta = PlanValue::Constant(ConstantTensor::of_f32(&[], &[beta]));
            builder.emit(Operation::Binary(BinaryFunction::Mul), &[added, &beta])?
        }
    };
    if added.of().elements() == Some(columns) && added.shape().last() == Some(&columns) {
        return Ok(vec![builder.emit(operation, &[left, right, &added.view(vec![columns])?])?]);
    }
    let product = builder.emit(operation, &[left, right])?;
    if added.of().element != PlanElement::F32 {
        return Err(node.lacks(&format!("it adds {}", added.of())));
    }
    Ok(vec![builder.emit(Operation::Binary(BinaryFunction::Add), &[&product, &added])?])
}
