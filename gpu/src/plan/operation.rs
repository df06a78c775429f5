//! The operations of a plan: few, each with all its parameters, so that a kernel needs nothing but
//! them and the types of its tensors. ONNX's many operators are lowered to these.

use super::element::PlanElement;
use super::json_float;
use serde::{Deserialize, Serialize};

/// What a launch computes of its inputs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A function of each element.
    Unary(UnaryFunction),
    /// The same values as elements of another type.
    Cast {
        /// The type.
        to: PlanElement,
    },
    /// A function of pairs of elements; shapes are stretched as ONNX broadcasts them.
    Binary(BinaryFunction),
    /// The second input's element where the first is true, else the third's.
    Select,
    /// `x * scale + shift`, of the inputs x, scale and shift: one scale and shift for each index of
    /// a dimension of x.
    Affine {
        /// The dimension.
        axis: usize,
    },
    /// A convolution of an image with kernels, `[M, C / groups, h, w]` where channels come first
    /// and `[M, h, w, C / groups]` where they come last, and perhaps a bias `[M]`.
    Convolution {
        /// The order of the image's, the kernels' and the output's dimensions.
        layout: ImageLayout,
        /// How the kernel moves.
        window: WindowSpec,
        /// The groups of channels, each with its own kernels.
        groups: usize,
    },
    /// The products of matrices, the last two dimensions, for each index of those before, which are
    /// stretched; and perhaps a bias for each column. The sum of products is multiplied by `alpha`.
    MatrixProduct {
        /// Whether the left and the right matrix are transposed.
        transposed: [bool; 2],
        /// The factor.
        alpha: f32,
    },
    /// The largest or the mean element of each window of an image.
    Pool {
        /// The order of the image's dimensions.
        layout: ImageLayout,
        /// What is computed.
        function: PoolFunction,
        /// The size of the window: height, width.
        size: [usize; 2],
        /// How the window moves.
        window: WindowSpec,
    },
    /// One element for all along some dimensions, which keep the size 1.
    Reduce {
        /// What is computed.
        function: ReduceFunction,
        /// The dimensions, rising.
        axes: Vec<usize>,
    },
    /// Exponentials that sum to 1 along a dimension.
    Softmax {
        /// The dimension.
        axis: usize,
        /// Whether their logarithms are returned.
        logarithm: bool,
    },
    /// `(x - mean) / sqrt(variance + epsilon) * scale`, and perhaps a bias, of the inputs x, scale
    /// and bias: mean and variance are over the dimensions from an axis on.
    LayerNorm {
        /// The first of these dimensions.
        axis: usize,
        /// What keeps the divisor above 0.
        epsilon: f32,
        /// Whether there is one more input behind the others, which is added to x before.
        #[serde(default)]
        adds: bool,
    },
    /// Attention of halves: for each head `softmax(scale * q * k' + mask) * v`, of the inputs q, k
    /// and v, `[N, rows, heads * size]` each, or of one with the three side by side,
    /// `[N, rows, 3 * heads * size]`; and perhaps a mask that is stretched to
    /// `[N, heads, rows of q, rows of k]`. The softmax is over the rows of k.
    Attention {
        /// The number of heads.
        heads: usize,
        /// The factor of the products.
        scale: f32,
        /// Whether q, k and v are one input.
        packed: bool,
    },
    /// Local response normalisation across channels:
    /// `x / (bias + alpha / size * sum of squares) ^ beta`.
    LocalResponseNorm {
        /// The dimension of the channels.
        axis: usize,
        /// The number of neighbouring channels.
        size: usize,
        /// The factor of the squares.
        alpha: f32,
        /// The exponent.
        beta: f32,
        /// What is added.
        bias: f32,
    },
    /// The inputs one behind another along a dimension.
    Concat {
        /// The dimension.
        axis: usize,
    },
    /// The parts of the first input at the second's indices of a dimension.
    Gather {
        /// The dimension.
        axis: usize,
    },
    /// A copy of elements that lie `strides` elements apart, from `offset` on: transposition,
    /// parts, repetition.
    StridedCopy {
        /// The shape that is walked through; the output's has as many elements.
        walked: Vec<usize>,
        /// The distance of neighbours in the input along each dimension of `walked`.
        strides: Vec<i64>,
        /// The first element's place in the input.
        offset: usize,
        /// The output's shape.
        shape: Vec<usize>,
    },
    /// The input with elements around it.
    Pad {
        /// Elements in front of each dimension; negative ones are cut off.
        begins: Vec<i64>,
        /// Elements behind each dimension; negative ones are cut off.
        ends: Vec<i64>,
        /// What they are.
        fill: PadFill,
    },
    /// An image in another size.
    Resize {
        /// The order of the image's dimensions.
        layout: ImageLayout,
        /// The new height and width.
        size: [usize; 2],
        /// How many times larger the output is, by height and width.
        scales: [f32; 2],
        /// How an element is found.
        interpolation: Interpolation,
        /// Where an output's element lies in the input.
        coordinates: ResizeCoordinates,
    },
}

impl Operation {
    /// Returns true if a function of each element of the result can follow before it is rounded and
    /// written: an activation.
    pub fn takes_activation(&self) -> bool {
        matches!(
            self,
            Operation::Convolution { .. }
                | Operation::MatrixProduct { .. }
                | Operation::Affine { .. }
                | Operation::Binary(_)
                | Operation::LayerNorm { .. }
        )
    }

    /// Returns the name by which people speak of the operation.
    pub const fn name(&self) -> &'static str {
        match self {
            Operation::Unary(_) => "unary",
            Operation::Cast { .. } => "cast",
            Operation::Binary(_) => "binary",
            Operation::Select => "select",
            Operation::Affine { .. } => "affine",
            Operation::Convolution { .. } => "convolution",
            Operation::MatrixProduct { .. } => "matrix product",
            Operation::Pool { .. } => "pool",
            Operation::Reduce { .. } => "reduce",
            Operation::Softmax { .. } => "softmax",
            Operation::LayerNorm { .. } => "layer norm",
            Operation::Attention { .. } => "attention",
            Operation::LocalResponseNorm { .. } => "local response norm",
            Operation::Concat { .. } => "concat",
            Operation::Gather { .. } => "gather",
            Operation::StridedCopy { .. } => "strided copy",
            Operation::Pad { .. } => "pad",
            Operation::Resize { .. } => "resize",
        }
    }
}

/// The order of an image's dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageLayout {
    /// `[N, C, H, W]`, as in ONNX.
    ChannelsFirst,
    /// `[N, H, W, C]`: what tensor cores read side by side.
    ChannelsLast,
}

impl ImageLayout {
    /// Returns the sizes N, C, H and W of a shape of this order.
    pub fn sizes(self, shape: [usize; 4]) -> [usize; 4] {
        let [n, a, b, c] = shape;
        match self {
            ImageLayout::ChannelsFirst => shape,
            ImageLayout::ChannelsLast => [n, c, a, b],
        }
    }

    /// Returns the shape that has these sizes N, C, H and W.
    pub fn shape(self, [n, c, h, w]: [usize; 4]) -> [usize; 4] {
        match self {
            ImageLayout::ChannelsFirst => [n, c, h, w],
            ImageLayout::ChannelsLast => [n, h, w, c],
        }
    }
}

/// A function of one element.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are ONNX's functions of these names")]
pub enum UnaryFunction {
    Abs,
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atanh,
    Ceil,
    Celu {
        alpha: f32,
    },
    Clip {
        #[serde(with = "json_float")]
        least: f32,
        #[serde(with = "json_float")]
        most: f32,
    },
    Cos,
    Cosh,
    Elu {
        alpha: f32,
    },
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    LeakyRelu {
        alpha: f32,
    },
    Log,
    Mish,
    Neg,
    Not,
    Reciprocal,
    Relu,
    Round,
    Selu {
        alpha: f32,
        gamma: f32,
    },
    Sigmoid,
    Sign,
    Sin,
    Sinh,
    Softplus,
    Softsign,
    Sqrt,
    Tan,
    Tanh,
    ThresholdedRelu {
        alpha: f32,
    },
}

/// A function of two elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are ONNX's functions of these names")]
pub enum BinaryFunction {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Max,
    Min,
    Mod,
    Prelu,
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    And,
    Or,
    Xor,
}

impl BinaryFunction {
    /// Returns true if the result is true or false whatever the elements are.
    pub(super) fn is_comparison(self) -> bool {
        use BinaryFunction::*;
        matches!(self, Equal | Greater | GreaterOrEqual | Less | LessOrEqual)
    }

    /// Returns true if elements and result are true or false.
    pub(super) fn is_logic(self) -> bool {
        matches!(self, BinaryFunction::And | BinaryFunction::Or | BinaryFunction::Xor)
    }
}

/// How a window moves over the height and the width of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WindowSpec {
    /// The steps from one output to the next: down, right.
    pub strides: [usize; 2],
    /// The distances of the window's elements: down, right.
    pub dilations: [usize; 2],
    /// The elements that the image has around it: top, left, bottom, right.
    pub pads: [usize; 4],
    /// Whether a last window may reach beyond them: the size of the output is rounded up.
    pub round_up: bool,
}

/// What a pool computes of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolFunction {
    /// The largest element.
    Max,
    /// The mean of the elements in the image.
    Mean,
    /// The mean of the elements in the image and of those around it, which are 0.
    MeanWithPads,
}

/// What is computed of all elements along some dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "they are ONNX's functions of these names")]
pub enum ReduceFunction {
    L1,
    L2,
    LogSum,
    LogSumExp,
    Max,
    Mean,
    Min,
    Prod,
    Sum,
    SumSquare,
}

/// What stands around a padded tensor.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PadFill {
    /// A number.
    Constant(#[serde(with = "json_float")] f32),
    /// The nearest element.
    Edge,
    /// The elements in reverse, without that at the edge.
    Reflect,
}

/// How an element between others is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    /// The nearest one; of two equally near ones, that below.
    NearestDown,
    /// The nearest one; of two equally near ones, that above.
    NearestUp,
    /// The one below.
    Floor,
    /// The one above.
    Ceil,
    /// The four around it, weighted.
    Linear,
}

/// Where the element x of a resized dimension lies in the one before: of the length `l`, with the
/// new length `n` and the scale s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResizeCoordinates {
    /// `(x + 0.5) / s - 0.5`.
    HalfPixel,
    /// `(x + 0.5) / s - 0.5`; 0 where the new length is 1.
    PytorchHalfPixel,
    /// `x * (l - 1) / (n - 1)`.
    AlignCorners,
    /// `x / s`.
    Asymmetric,
}
