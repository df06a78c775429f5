//! The operators of ONNX that can be lowered: one row each.

use super::builder::{NodeOutputs, PlanBuilder};
use super::node::OnnxNode;
use super::{elementwise, images, movement, reductions, transposed_convolution};

/// A function that lowers a node.
pub(super) type LowerFunction = fn(&OnnxNode<'_>, &mut PlanBuilder<'_>) -> NodeOutputs;

/// Returns how an operator is lowered; `None` if it can't be.
pub(super) fn lowering_of(operator: &str) -> Option<LowerFunction> {
    Some(match operator {
        "Abs" | "Acos" | "Acosh" | "Asin" | "Asinh" | "Atan" | "Atanh" | "Ceil" | "Celu" | "Cos" | "Cosh"
        | "Elu" | "Erf" | "Exp" | "Floor" | "Gelu" | "HardSigmoid" | "HardSwish" | "LeakyRelu" | "Log"
        | "Mish" | "Neg" | "Not" | "Reciprocal" | "Relu" | "Round" | "Selu" | "Sigmoid" | "Sign" | "Sin"
        | "Sinh" | "Softplus" | "Softsign" | "Sqrt" | "Tan" | "Tanh" | "ThresholdedRelu" => {
            elementwise::unary
        }
        "Add" | "And" | "Div" | "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Mod"
        | "Mul" | "Or" | "PRelu" | "Pow" | "Sub" | "Xor" => elementwise::binary,
        "Max" | "Mean" | "Min" | "Sum" => elementwise::many,
        "Cast" => elementwise::cast,
        "CastLike" => elementwise::cast_like,
        "Clip" => elementwise::clip,
        "IsInf" => elementwise::is_infinite,
        "IsNaN" => elementwise::is_nan,
        "Where" => elementwise::select,
        "AveragePool" | "MaxPool" => images::pool,
        "BatchNormalization" => images::batch_norm,
        "Conv" => images::convolution,
        "ConvTranspose" => transposed_convolution::lower,
        "GlobalAveragePool" | "GlobalMaxPool" => images::global_pool,
        "GroupNormalization" => images::group_norm,
        "InstanceNormalization" => images::instance_norm,
        "LRN" => images::local_response_norm,
        "Resize" | "Upsample" => images::resize,
        "Concat" => movement::concat,
        "ConstantOfShape" => movement::constant_of_shape,
        "DepthToSpace" | "SpaceToDepth" => movement::depth_and_space,
        "Dropout" => movement::dropout,
        "Expand" => movement::expand,
        "Flatten" => movement::flatten,
        "Gather" => movement::gather,
        "Identity" => movement::identity,
        "Pad" => movement::pad,
        "Range" => movement::range,
        "Reshape" => movement::reshape,
        "Shape" | "Size" => movement::shape,
        "Slice" => movement::slice,
        "Split" => movement::split,
        "Squeeze" => movement::squeeze,
        "Tile" => movement::tile,
        "Transpose" => movement::transpose,
        "Trilu" => movement::triangle,
        "Unsqueeze" => movement::unsqueeze,
        "CumSum" => reductions::cumulative_sum,
        "Gemm" => reductions::gemm,
        "LayerNormalization" => reductions::layer_norm,
        "LogSoftmax" | "Softmax" => reductions::softmax,
        "MatMul" => reductions::matrix_product,
        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean"
        | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => reductions::reduce,
        _ => return None,
    })
}
