//! The numbers by which kernels get the functions and the types of a plan, and their names in the
//! kernels' source.

use super::arguments::FunctionCode;
use crate::plan::{
    BinaryFunction, Interpolation, PadFill, PlanElement, PoolFunction, ReduceFunction, ResizeCoordinates,
    UnaryFunction,
};
use std::fmt::Write;

/// The elements' types; the place of each is its number.
const ELEMENTS: [(&str, PlanElement); 6] = [
    ("ELEMENT_F32", PlanElement::F32),
    ("ELEMENT_I64", PlanElement::I64),
    ("ELEMENT_I32", PlanElement::I32),
    ("ELEMENT_BOOL", PlanElement::Bool),
    ("ELEMENT_F16", PlanElement::F16),
    ("ELEMENT_BF16", PlanElement::Bf16),
];

const BINARY: [(&str, BinaryFunction); 17] = {
    use BinaryFunction::*;
    [
        ("BINARY_ADD", Add),
        ("BINARY_SUB", Sub),
        ("BINARY_MUL", Mul),
        ("BINARY_DIV", Div),
        ("BINARY_POW", Pow),
        ("BINARY_MAX", Max),
        ("BINARY_MIN", Min),
        ("BINARY_MOD", Mod),
        ("BINARY_PRELU", Prelu),
        ("BINARY_EQUAL", Equal),
        ("BINARY_GREATER", Greater),
        ("BINARY_GREATER_OR_EQUAL", GreaterOrEqual),
        ("BINARY_LESS", Less),
        ("BINARY_LESS_OR_EQUAL", LessOrEqual),
        ("BINARY_AND", And),
        ("BINARY_OR", Or),
        ("BINARY_XOR", Xor),
    ]
};

const POOLS: [(&str, PoolFunction); 3] = [
    ("POOL_MAX", PoolFunction::Max),
    ("POOL_MEAN", PoolFunction::Mean),
    ("POOL_MEAN_WITH_PADS", PoolFunction::MeanWithPads),
];

const REDUCTIONS: [(&str, ReduceFunction); 10] = {
    use ReduceFunction::*;
    [
        ("REDUCE_L1", L1),
        ("REDUCE_L2", L2),
        ("REDUCE_LOG_SUM", LogSum),
        ("REDUCE_LOG_SUM_EXP", LogSumExp),
        ("REDUCE_MAX", Max),
        ("REDUCE_MEAN", Mean),
        ("REDUCE_MIN", Min),
        ("REDUCE_PROD", Prod),
        ("REDUCE_SUM", Sum),
        ("REDUCE_SUM_SQUARE", SumSquare),
    ]
};

const INTERPOLATIONS: [(&str, Interpolation); 5] = [
    ("RESIZE_NEAREST_DOWN", Interpolation::NearestDown),
    ("RESIZE_NEAREST_UP", Interpolation::NearestUp),
    ("RESIZE_FLOOR", Interpolation::Floor),
    ("RESIZE_CEIL", Interpolation::Ceil),
    ("RESIZE_LINEAR", Interpolation::Linear),
];

const COORDINATES: [(&str, ResizeCoordinates); 4] = [
    ("COORDINATES_HALF_PIXEL", ResizeCoordinates::HalfPixel),
    ("COORDINATES_PYTORCH_HALF_PIXEL", ResizeCoordinates::PytorchHalfPixel),
    ("COORDINATES_ALIGN_CORNERS", ResizeCoordinates::AlignCorners),
    ("COORDINATES_ASYMMETRIC", ResizeCoordinates::Asymmetric),
];

/// The fillings of a pad; a constant's value is passed beside.
const FILLS: [(&str, PadFill); 3] = [
    ("PAD_CONSTANT", PadFill::Constant(0.0)),
    ("PAD_EDGE", PadFill::Edge),
    ("PAD_REFLECT", PadFill::Reflect),
];

/// A function of one element by its two parameters.
type OfParameters = fn(f32, f32) -> UnaryFunction;

/// The functions of one element; the place of each plus 1 is its number, since 0 is none.
const UNARY: [(&str, OfParameters); 39] = {
    use UnaryFunction::*;
    [
        ("UNARY_ABS", |_, _| Abs),
        ("UNARY_ACOS", |_, _| Acos),
        ("UNARY_ACOSH", |_, _| Acosh),
        ("UNARY_ASIN", |_, _| Asin),
        ("UNARY_ASINH", |_, _| Asinh),
        ("UNARY_ATAN", |_, _| Atan),
        ("UNARY_ATANH", |_, _| Atanh),
        ("UNARY_CEIL", |_, _| Ceil),
        ("UNARY_CELU", |alpha, _| Celu { alpha }),
        ("UNARY_CLIP", |least, most| Clip { least, most }),
        ("UNARY_COS", |_, _| Cos),
        ("UNARY_COSH", |_, _| Cosh),
        ("UNARY_ELU", |alpha, _| Elu { alpha }),
        ("UNARY_ERF", |_, _| Erf),
        ("UNARY_EXP", |_, _| Exp),
        ("UNARY_FLOOR", |_, _| Floor),
        ("UNARY_GELU", |_, _| Gelu),
        ("UNARY_GELU_TANH", |_, _| GeluTanh),
        ("UNARY_HARD_SIGMOID", |alpha, beta| HardSigmoid { alpha, beta }),
        ("UNARY_HARD_SWISH", |_, _| HardSwish),
        ("UNARY_LEAKY_RELU", |alpha, _| LeakyRelu { alpha }),
        ("UNARY_LOG", |_, _| Log),
        ("UNARY_MISH", |_, _| Mish),
        ("UNARY_NEG", |_, _| Neg),
        ("UNARY_NOT", |_, _| Not),
        ("UNARY_RECIPROCAL", |_, _| Reciprocal),
        ("UNARY_RELU", |_, _| Relu),
        ("UNARY_ROUND", |_, _| Round),
        ("UNARY_SELU", |alpha, gamma| Selu { alpha, gamma }),
        ("UNARY_SIGMOID", |_, _| Sigmoid),
        ("UNARY_SIGN", |_, _| Sign),
        ("UNARY_SIN", |_, _| Sin),
        ("UNARY_SINH", |_, _| Sinh),
        ("UNARY_SOFTPLUS", |_, _| Softplus),
        ("UNARY_SOFTSIGN", |_, _| Softsign),
        ("UNARY_SQRT", |_, _| Sqrt),
        ("UNARY_TAN", |_, _| Tan),
        ("UNARY_TANH", |_, _| Tanh),
        ("UNARY_THRESHOLDED_RELU", |alpha, _| ThresholdedRelu { alpha }),
    ]
};

/// A type or a function of a plan that kernels get by its number.
pub trait Coded: Copy + PartialEq + 'static {
    /// All of them with their names in the kernels' source, by their numbers.
    const ALL: &'static [(&'static str, Self)];

    /// Returns the number.
    fn code(self) -> u32 {
        Self::ALL.iter().position(|(_, of)| *of == self).unwrap_or(0) as u32
    }

    /// Returns what has a number; `None` if nothing has.
    fn of_code(code: u32) -> Option<Self> {
        Self::ALL.get(code as usize).map(|(_, of)| *of)
    }
}

impl Coded for PlanElement {
    const ALL: &'static [(&'static str, Self)] = &ELEMENTS;
}

impl Coded for BinaryFunction {
    const ALL: &'static [(&'static str, Self)] = &BINARY;
}

impl Coded for PoolFunction {
    const ALL: &'static [(&'static str, Self)] = &POOLS;
}

impl Coded for ReduceFunction {
    const ALL: &'static [(&'static str, Self)] = &REDUCTIONS;
}

impl Coded for Interpolation {
    const ALL: &'static [(&'static str, Self)] = &INTERPOLATIONS;
}

impl Coded for ResizeCoordinates {
    const ALL: &'static [(&'static str, Self)] = &COORDINATES;
}

/// The numbers of fillings; that of a constant has no value.
impl Coded for PadFill {
    const ALL: &'static [(&'static str, Self)] = &FILLS;

    fn code(self) -> u32 {
        match self {
            PadFill::Constant(_) => 0,
            PadFill::Edge => 1,
            PadFill::Reflect => 2,
        }
    }
}

impl FunctionCode {
    /// Returns the number and the parameters of a function, or of none.
    pub fn of(function: Option<UnaryFunction>) -> FunctionCode {
        let Some(function) = function else { return FunctionCode { code: 0, a: 0.0, b: 0.0, unused: 0 } };
        let [a, b] = parameters(function);
        let is_same = |(_, of): &(&str, OfParameters)| {
            std::mem::discriminant(&of(a, b)) == std::mem::discriminant(&function)
        };
        let code = UNARY.iter().position(is_same).map_or(0, |at| at as u32 + 1);
        FunctionCode { code, a, b, unused: 0 }
    }

    /// Returns the function; `None` if it is none.
    pub fn function(self) -> Option<UnaryFunction> {
        let (_, of) = UNARY.get((self.code as usize).checked_sub(1)?)?;
        Some(of(self.a, self.b))
    }
}

fn parameters(function: UnaryFunction) -> [f32; 2] {
    use UnaryFunction::*;
    match function {
        Celu { alpha } | Elu { alpha } | LeakyRelu { alpha } | ThresholdedRelu { alpha } => [alpha, 0.0],
        Clip { least, most } => [least, most],
        HardSigmoid { alpha, beta } => [alpha, beta],
        Selu { alpha, gamma } => [alpha, gamma],
        _ => [0.0, 0.0],
    }
}

/// Declares all numbers for the kernels' compiler.
pub(super) fn declare(to: &mut String) {
    fn names<T: Coded>() -> impl Iterator<Item = (usize, &'static str)> {
        T::ALL.iter().enumerate().map(|(at, (name, _))| (at, *name))
    }
    let unary = UNARY.iter().enumerate().map(|(at, (name, _))| (at + 1, *name));
    let all = names::<PlanElement>()
        .chain(names::<BinaryFunction>())
        .chain(names::<PoolFunction>())
        .chain(names::<ReduceFunction>())
        .chain(names::<Interpolation>())
        .chain(names::<ResizeCoordinates>())
        .chain(names::<PadFill>())
        .chain(unary);
    for (number, name) in all {
        let _ = writeln!(to, "#define {name} {number}u");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_again_by_its_number_and_parameters() {
        for (at, (name, of)) in UNARY.iter().enumerate() {
            let parameters = parameters(of(0.25, 0.5));
            let function = of(parameters[0], parameters[1]);
            let code = FunctionCode::of(Some(function));
            assert_eq!((code.code, code.function()), (at as u32 + 1, Some(function)), "{name}");
        }
        assert_eq!(FunctionCode::of(None).function(), None);
        assert!(BinaryFunction::ALL.iter().all(|(_, of)| BinaryFunction::of_code(of.code()) == Some(*of)));
        assert_eq!(ReduceFunction::of_code(10), None);
    }
}
