//! Lowering of operators that compute each element by itself.

use super::super::element::{ConstantTensor, PlanElement};
use super::super::operation::{BinaryFunction, Operation, UnaryFunction};
use super::builder::{NodeOutputs, PlanBuilder, PlanValue};
use super::node::OnnxNode;

fn function(node: &OnnxNode<'_>) -> Option<UnaryFunction> {
    use UnaryFunction::*;
    let alpha = |default| node.float("alpha", default);
    Some(match node.operator() {
        "Abs" => Abs,
        "Acos" => Acos,
        "Acosh" => Acosh,
        "Asin" => Asin,
        "Asinh" => Asinh,
        "Atan" => Atan,
        "Atanh" => Atanh,
        "Ceil" => Ceil,
        "Celu" => Celu { alpha: alpha(1.0) },
        "Cos" => Cos,
        "Cosh" => Cosh,
        "Elu" => Elu { alpha: alpha(1.0) },
        "Erf" => Erf,
        "Exp" => Exp,
        "Floor" => Floor,
        "Gelu" if node.text("approximate", "none") == "tanh" => GeluTanh,
        "Gelu" => Gelu,
        "HardSigmoid" => HardSigmoid { alpha: alpha(0.2), beta: node.float("beta", 0.5) },
        "HardSwish" => HardSwish,
        "LeakyRelu" => LeakyRelu { alpha: alpha(0.01) },
        "Log" => Log,
        "Mish" => Mish,
        "Neg" => Neg,
        "Not" => Not,
        "Reciprocal" => Reciprocal,
        "Relu" => Relu,
        "Round" => Round,
        "Selu" => Selu { alpha: alpha(1.673_263_2), gamma: node.float("gamma", 1.050_701) },
        "Sigmoid" => Sigmoid,
        "Sign" => Sign,
        "Sin" => Sin,
        "Sinh" => Sinh,
        "Softplus" => Softplus,
        "Softsign" => Softsign,
        "Sqrt" => Sqrt,
        "Tan" => Tan,
        "Tanh" => Tanh,
        "ThresholdedRelu" => ThresholdedRelu { alpha: alpha(1.0) },
        _ => return None,
    })
}

pub(super) fn unary(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let function = function(node).ok_or_else(|| node.lacks("no such function"))?;
    Ok(vec![builder.emit(Operation::Unary(function), &[node.input(0)?])?])
}

/// Returns the function of pairs that an operator computes.
fn pair(operator: &str) -> Option<BinaryFunction> {
    use BinaryFunction::*;
    Some(match operator {
        "Add" | "Sum" | "Mean" => Add,
        "Sub" => Sub,
        "Mul" => Mul,
        "Div" => Div,
        "Pow" => Pow,
        "Max" => Max,
        "Min" => Min,
        "Mod" => Mod,
        "PRelu" => Prelu,
        "Equal" => Equal,
        "Greater" => Greater,
        "GreaterOrEqual" => GreaterOrEqual,
        "Less" => Less,
        "LessOrEqual" => LessOrEqual,
        "And" => And,
        "Or" => Or,
        "Xor" => Xor,
        _ => return None,
    })
}

pub(super) fn binary(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let function = pair(node.operator()).ok_or_else(|| node.lacks("no such function"))?;
    let (left, right) = (node.input(0)?, node.input(1)?);
    let is_float = left.of().element == PlanElement::F32;
    if function == BinaryFunction::Mod && (node.whole("fmod", 0) == 1) != is_float {
        return Err(node.lacks("fmod is 1 for floats, and 0 for whole numbers"));
    }
    let right = match (function, right.of().element) {
        (BinaryFunction::Pow, element) if element != left.of().element && is_float => {
            builder.emit(Operation::Cast { to: PlanElement::F32 }, &[right])?
        }
        // The slope has the shape of the last dimensions, without others in front.
        _ => right.clone(),
    };
    Ok(vec![builder.emit(Operation::Binary(function), &[left, &right])?])
}

/// Lowers an operator of any number of inputs, such as Sum.
pub(super) fn many(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let function = pair(node.operator()).ok_or_else(|| node.lacks("no such function"))?;
    let mut result = node.input(0)?.clone();
    for at in 1..node.inputs.len() {
        result = builder.emit(Operation::Binary(function), &[&result, node.input(at)?])?;
    }
    if node.operator() == "Mean" {
        let count = PlanBuilder::number(result.of().element, node.inputs.len() as f64)?;
        result = builder.emit(Operation::Binary(BinaryFunction::Div), &[&result, &count])?;
    }
    Ok(vec![result])
}

pub(super) fn select(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    Ok(vec![builder.emit(Operation::Select, &[node.input(0)?, node.input(1)?, node.input(2)?])?])
}

pub(super) fn cast(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let to = rten_onnx::onnx::DataType(i32::try_from(node.whole("to", 0)).unwrap_or(0));
    let element = PlanElement::of_onnx(to).ok_or_else(|| node.lacks(&format!("elements of type {to}")))?;
    cast_to(builder, node.input(0)?, element)
}

pub(super) fn cast_like(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    cast_to(builder, node.input(0)?, node.input(1)?.of().element)
}

fn cast_to(builder: &mut PlanBuilder<'_>, x: &PlanValue, to: PlanElement) -> NodeOutputs {
    if x.of().element == to {
        return Ok(vec![x.clone()]);
    }
    Ok(vec![builder.emit(Operation::Cast { to }, &[x])?])
}

/// Lowers IsNaN: nothing else differs from itself.
pub(super) fn is_nan(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let is_number = builder.emit(Operation::Binary(BinaryFunction::Equal), &[x, x])?;
    Ok(vec![builder.emit(Operation::Unary(UnaryFunction::Not), &[&is_number])?])
}

/// Lowers IsInf, of one sign or of both.
pub(super) fn is_infinite(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let detects = |sign: &str| node.whole(sign, 1) == 1;
    let (x, bound) = match (detects("detect_negative"), detects("detect_positive")) {
        (true, true) => (builder.emit(Operation::Unary(UnaryFunction::Abs), &[x])?, f32::INFINITY),
        (false, true) => (x.clone(), f32::INFINITY),
        (true, false) => (x.clone(), f32::NEG_INFINITY),
        (false, false) => return Err(node.lacks("it looks for neither sign")),
    };
    let bound = PlanValue::Constant(ConstantTensor::of_f32(&[], &[bound]));
    Ok(vec![builder.emit(Operation::Binary(BinaryFunction::Equal), &[&x, &bound])?])
}

/// Lowers Clip: bounds are attributes or, in later opsets, inputs.
pub(super) fn clip(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let bound = |name: &str, at: usize, none: f32| match (node.attribute(name), node.optional(at)) {
        (Some(attribute), _) => attribute.f,
        (None, None) => Some(none),
        (None, Some(bound)) => bound.constant()?.floats()?.first().copied(),
    };
    let bounds = bound("min", 1, f32::NEG_INFINITY).zip(bound("max", 2, f32::INFINITY));
    if let (Some((least, most)), PlanElement::F32) = (bounds, x.of().element) {
        return Ok(vec![builder.emit(Operation::Unary(UnaryFunction::Clip { least, most }), &[x])?]);
    }
    let mut result = x.clone();
    for (at, function) in [(1, BinaryFunction::Max), (2, BinaryFunction::Min)] {
        if let Some(bound) = node.optional(at) {
            result = builder.emit(Operation::Binary(function), &[&result, bound])?;
        }
    }
    Ok(vec![result])
}
