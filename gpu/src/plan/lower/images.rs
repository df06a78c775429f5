//! Lowering of operators on images: windows, normalisation of channels, other sizes.

use super::super::element::ConstantTensor;
use super::super::operation::{
    BinaryFunction, ImageLayout, Interpolation, Operation, PoolFunction, ResizeCoordinates, UnaryFunction,
    WindowSpec,
};
use super::builder::{NodeOutputs, PlanBuilder, PlanValue};
use super::node::OnnxNode;

/// The order of dimensions in ONNX.
const FIRST: ImageLayout = ImageLayout::ChannelsFirst;

/// The most elements of a channel that is normalised by itself: as many ones are among the weights.
const MAX_NORMALISED: usize = 1 << 24;

/// Returns an image, or a line as an image of the height 1.
pub(super) fn as_image(node: &OnnxNode<'_>, x: &PlanValue) -> Result<PlanValue, String> {
    match *x.shape() {
        [n, c, w] => x.view(vec![n, c, 1, w]),
        [_, _, _, _] => Ok(x.clone()),
        _ => Err(node.lacks(&format!("its input is {}; images and lines are taken", x.of()))),
    }
}

/// Returns an image as a line if `like` is one.
pub(super) fn as_before(image: &PlanValue, like: &PlanValue) -> Result<PlanValue, String> {
    match (image.shape(), like.shape().len()) {
        (&[n, c, 1, w], 3) => image.view(vec![n, c, w]),
        _ => Ok(image.clone()),
    }
}

/// Returns an attribute of one number for each dimension of an image or a line.
pub(super) fn by_dimension(
    node: &OnnxNode<'_>,
    name: &str,
    rank: usize,
    default: usize,
) -> Result<[usize; 2], String> {
    let Some(given) = node.wholes(name) else { return Ok([default; 2]) };
    let number = |x: i64| usize::try_from(x).map_err(|_| node.lacks(&format!("{name} is {given:?}")));
    match *given {
        [width] if rank == 3 => Ok([default, number(width)?]),
        [height, width] if rank == 4 => Ok([number(height)?, number(width)?]),
        _ => Err(node.lacks(&format!("{name} is {given:?}"))),
    }
}

/// Returns the attribute `pads` of an operator on images or lines: top, left, bottom, right.
pub(super) fn given_pads(node: &OnnxNode<'_>, rank: usize) -> Result<[i64; 4], String> {
    match *node.wholes("pads").unwrap_or_default() {
        [] => Ok([0; 4]),
        [left, right] if rank == 3 => Ok([0, left, 0, right]),
        [top, left, bottom, right] if rank == 4 => Ok([top, left, bottom, right]),
        ref pads => Err(node.lacks(&format!("pads are {pads:?}"))),
    }
}

/// Returns how a window of this size moves over an image that had this rank.
fn window(
    node: &OnnxNode<'_>,
    image: &PlanValue,
    rank: usize,
    size: [usize; 2],
) -> Result<WindowSpec, String> {
    let strides = by_dimension(node, "strides", rank, 1)?;
    let dilations = by_dimension(node, "dilations", rank, 1)?;
    let given = given_pads(node, rank)?;
    if given.iter().any(|&pad| pad < 0) {
        return Err(node.lacks("a pad is below 0"));
    }
    let mut pads = given.map(|pad| pad as usize);
    let automatic = node.text("auto_pad", "NOTSET");
    if automatic == "VALID" {
        pads = [0; 4];
    } else if automatic.starts_with("SAME") {
        for at in 0..2 {
            let length = image.shape()[2 + at];
            let windows = length.div_ceil(strides[at].max(1));
            let reach = dilations[at].saturating_mul(size[at].saturating_sub(1)).saturating_add(1);
            let total =
                (windows.saturating_sub(1) * strides[at]).saturating_add(reach).saturating_sub(length);
            let begin = if automatic == "SAME_LOWER" { total.div_ceil(2) } else { total / 2 };
            (pads[at], pads[at + 2]) = (begin, total - begin);
        }
    }
    Ok(WindowSpec { strides, dilations, pads, round_up: node.whole("ceil_mode", 0) == 1 })
}

pub(super) fn convolution(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (x, kernels) = (node.input(0)?, node.input(1)?);
    let (image, kernels) = (as_image(node, x)?, as_image(node, kernels)?);
    let size = [kernels.shape()[2], kernels.shape()[3]];
    let window = window(node, &image, x.shape().len(), size)?;
    let groups = usize::try_from(node.whole("group", 1)).map_err(|_| node.lacks("group is below 0"))?;
    let inputs: Vec<&PlanValue> = [&image, &kernels].into_iter().chain(node.optional(2)).collect();
    let result = builder.emit(Operation::Convolution { layout: FIRST, window, groups }, &inputs)?;
    Ok(vec![as_before(&result, x)?])
}

pub(super) fn pool(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let image = as_image(node, x)?;
    let size = by_dimension(node, "kernel_shape", x.shape().len(), 1)?;
    let function = match (node.operator(), node.whole("count_include_pad", 0)) {
        ("MaxPool", _) => PoolFunction::Max,
        (_, 0) => PoolFunction::Mean,
        _ => PoolFunction::MeanWithPads,
    };
    let window = window(node, &image, x.shape().len(), size)?;
    let result = builder.emit(Operation::Pool { layout: FIRST, function, size, window }, &[&image])?;
    Ok(vec![as_before(&result, x)?])
}

/// Lowers a pool whose window is the whole image.
pub(super) fn global_pool(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let image = as_image(node, x)?;
    let size = [image.shape()[2], image.shape()[3]];
    let function = if node.operator() == "GlobalMaxPool" { PoolFunction::Max } else { PoolFunction::Mean };
    let window = WindowSpec { strides: [1; 2], dilations: [1; 2], pads: [0; 4], round_up: false };
    let result = builder.emit(Operation::Pool { layout: FIRST, function, size, window }, &[&image])?;
    Ok(vec![as_before(&result, x)?])
}

/// Lowers the normalisation of inference: a scale and a shift for each channel.
pub(super) fn batch_norm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    if node.whole("training_mode", 0) == 1 || node.outputs() > 1 || node.whole("spatial", 1) == 0 {
        return Err(node.lacks("it is for training, or for single elements"));
    }
    let (x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
    let (mean, variance) = (node.input(3)?, node.input(4)?);
    let binary = Operation::Binary;
    let epsilon = PlanValue::Constant(ConstantTensor::of_f32(&[], &[node.float("epsilon", 1e-5)]));
    let variance = builder.emit(binary(BinaryFunction::Add), &[variance, &epsilon])?;
    let deviation = builder.emit(Operation::Unary(UnaryFunction::Sqrt), &[&variance])?;
    let factor = builder.emit(binary(BinaryFunction::Div), &[scale, &deviation])?;
    let moved = builder.emit(binary(BinaryFunction::Mul), &[mean, &factor])?;
    let shift = builder.emit(binary(BinaryFunction::Sub), &[bias, &moved])?;
    Ok(vec![builder.emit(Operation::Affine { axis: 1 }, &[x, &factor, &shift])?])
}

/// Lowers the normalisation of each channel of each row by itself.
pub(super) fn instance_norm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let channels = x.shape().get(1).copied().unwrap_or(0);
    let normal = normal_groups(node, builder, channels)?;
    let result = builder.emit(Operation::Affine { axis: 1 }, &[&normal, node.input(1)?, node.input(2)?])?;
    Ok(vec![result.view(x.shape().to_vec())?])
}

/// Lowers the normalisation of groups of channels of each row. Scale and bias are a group's before
/// opset 21, and a channel's from there on.
pub(super) fn group_norm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let x = node.input(0)?;
    let groups = usize::try_from(node.whole("num_groups", 0)).unwrap_or(0);
    let mut normal = normal_groups(node, builder, groups)?;
    if node.opset >= 21 {
        normal = normal.view(x.shape().to_vec())?;
    }
    let result = builder.emit(Operation::Affine { axis: 1 }, &[&normal, node.input(1)?, node.input(2)?])?;
    Ok(vec![result.view(x.shape().to_vec())?])
}

/// Returns the groups of channels of a node's input, `[N, groups, rest]`, each with the mean 0 and
/// the variance 1.
fn normal_groups(
    node: &OnnxNode<'_>,
    builder: &mut PlanBuilder<'_>,
    groups: usize,
) -> Result<PlanValue, String> {
    let x = node.input(0)?;
    let [n, c, ref rest @ ..] = *x.shape() else { return Err(node.lacks("its input has no channels")) };
    if groups == 0 || c % groups != 0 {
        return Err(format!("{groups} groups of channels do not fit {}", x.of()));
    }
    let size = rest.iter().product::<usize>() * (c / groups);
    if size > MAX_NORMALISED {
        return Err(node.lacks(&format!("it normalises more than {MAX_NORMALISED} elements at once")));
    }
    let ones = PlanValue::Constant(builder.filled(size, 1.0));
    let epsilon = node.float("epsilon", 1e-5);
    builder.emit(
        Operation::LayerNorm { axis: 2, epsilon, adds: false },
        &[&x.view(vec![n, groups, size])?, &ones],
    )
}

pub(super) fn local_response_norm(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let operation = Operation::LocalResponseNorm {
        axis: 1,
        size: usize::try_from(node.whole("size", 0)).map_err(|_| node.lacks("its size is below 0"))?,
        alpha: node.float("alpha", 1e-4),
        beta: node.float("beta", 0.75),
        bias: node.float("bias", 1.0),
    };
    Ok(vec![builder.emit(operation, &[node.input(0)?])?])
}

/// Lowers Resize, and Upsample, its predecessor.
pub(super) fn resize(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    for name in ["axes", "antialias", "keep_aspect_ratio_policy", "exclude_outside"] {
        if node.attribute(name).is_some() {
            return Err(node.lacks(&format!("it has the attribute {name}")));
        }
    }
    let x = node.input(0)?;
    let image = as_image(node, x)?;
    let of_old_opset = node.operator() == "Upsample" || node.opset < 11;
    let (mode, coordinates, rounding) = if of_old_opset {
        ("nearest", "asymmetric", "floor")
    } else {
        ("nearest", "half_pixel", "round_prefer_floor")
    };
    let interpolation = match (node.text("mode", mode), node.text("nearest_mode", rounding)) {
        ("linear", _) => Interpolation::Linear,
        ("nearest", "round_prefer_floor") => Interpolation::NearestDown,
        ("nearest", "round_prefer_ceil") => Interpolation::NearestUp,
        ("nearest", "floor") => Interpolation::Floor,
        ("nearest", "ceil") => Interpolation::Ceil,
        (mode, rounding) => return Err(node.lacks(&format!("its mode is {mode}, {rounding}"))),
    };
    let coordinates = match node.text("coordinate_transformation_mode", coordinates) {
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "pytorch_half_pixel" => ResizeCoordinates::PytorchHalfPixel,
        "align_corners" => ResizeCoordinates::AlignCorners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        other => return Err(node.lacks(&format!("its coordinates are {other}"))),
    };
    let (size, scales) = new_size(node, x.shape(), of_old_opset)?;
    let operation = Operation::Resize { layout: FIRST, size, scales, interpolation, coordinates };
    Ok(vec![as_before(&builder.emit(operation, &[&image])?, x)?])
}

/// Returns the new height and width of a resized image or line, and how many times larger it is.
fn new_size(
    node: &OnnxNode<'_>,
    shape: &[usize],
    of_old_opset: bool,
) -> Result<([usize; 2], [f32; 2]), String> {
    let rank = shape.len();
    let floats = |at: usize| node.optional(at).and_then(|of| of.constant()?.floats().map(<[f32]>::to_vec));
    let given = match node.attribute("scales") {
        Some(attribute) => Some(attribute.floats.clone()),
        None => floats(if of_old_opset { 1 } else { 2 }),
    };
    let given = given.filter(|scales| !scales.is_empty());
    let sizes = if of_old_opset { None } else { node.numbers_of(3)? };
    let (sizes, scales): (Vec<usize>, Vec<f32>) = match (given, sizes) {
        (Some(scales), _) if scales.len() == rank => {
            let sizes = shape.iter().zip(&scales).map(|(&size, scale)| (size as f32 * scale) as usize);
            (sizes.collect(), scales)
        }
        (None, Some(sizes)) if sizes.len() == rank => {
            let sizes: Vec<usize> = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
            let scales = sizes.iter().zip(shape).map(|(&new, &size)| new as f32 / size as f32);
            (sizes.clone(), scales.collect())
        }
        _ => return Err(node.lacks("it has neither scales nor sizes for each dimension as constants")),
    };
    if sizes[..2] != shape[..2] {
        return Err(node.lacks("it changes the number of rows or channels"));
    }
    let (&width, &scale) = sizes.last().zip(scales.last()).ok_or("it has no dimensions")?;
    Ok(if rank == 3 { ([1, width], [1.0, scale]) } else { ([sizes[2], width], [scales[2], scale]) })
}
