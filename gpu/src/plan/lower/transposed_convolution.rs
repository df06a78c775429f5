//! Lowering of ConvTranspose, where each element of an image adds a kernel to the output. Two ways:
//!
//! - *Tiles.* Where kernels lie side by side (their size is the stride, as in most decoders of
//!   images), each element of the output is of one element of the image: a convolution of 1 by 1
//!   computes a tile of each, and a copy puts them where they belong.
//! - *Zeros between.* Otherwise the image gets stride - 1 zeros between its elements, and is
//!   convolved with the kernels turned around. All but one in stride² of the products are by zero.

use super::super::operation::{ImageLayout, Operation, PadFill, WindowSpec};
use super::builder::{NodeOutputs, PlanBuilder, PlanValue};
use super::images::{as_before, as_image, by_dimension, given_pads};
use super::movement::StridedWalk;
use super::node::OnnxNode;

/// The convolution that a transposed one becomes.
struct Transposed {
    groups: usize,
    strides: [usize; 2],
    dilations: [usize; 2],
    /// The elements of the output that are cut off: top, left, bottom, right. Below 0, zeros are
    /// put there.
    cut: [i64; 4],
}

pub(super) fn lower(node: &OnnxNode<'_>, builder: &mut PlanBuilder<'_>) -> NodeOutputs {
    let (x, kernels) = (node.input(0)?, node.input(1)?);
    let (image, kernels) = (as_image(node, x)?, as_image(node, kernels)?);
    let of = parameters(node, &image, &kernels, x.shape().len())?;
    let bias = node.optional(2);
    let is_tiled = of.strides == kernels.shape()[2..] && of.dilations == [1; 2];
    let result = if is_tiled && of.groups == 1 && of.cut == [0; 4] {
        tiles(builder, &image, &kernels, bias)?
    } else {
        with_zeros_between(builder, &image, &kernels, bias, &of)?
    };
    Ok(vec![as_before(&result, x)?])
}

fn parameters(
    node: &OnnxNode<'_>,
    image: &PlanValue,
    kernels: &PlanValue,
    rank: usize,
) -> Result<Transposed, String> {
    let groups = usize::try_from(node.whole("group", 1)).unwrap_or(0);
    let channels = image.shape()[1];
    if groups == 0 || !channels.is_multiple_of(groups) || kernels.shape()[0] != channels {
        return Err(format!("{groups} groups of kernels {} do not fit {}", kernels.of(), image.of()));
    }
    let strides = by_dimension(node, "strides", rank, 1)?;
    let dilations = by_dimension(node, "dilations", rank, 1)?;
    let behind = by_dimension(node, "output_padding", rank, 0)?;
    if strides.contains(&0) || dilations.contains(&0) || kernels.shape()[2..].contains(&0) {
        return Err(node.lacks("a stride, a dilation or a size of its kernels is 0"));
    }
    let automatic = node.text("auto_pad", "NOTSET");
    let size = match *node.wholes("output_shape").unwrap_or_default() {
        [] if automatic.starts_with("SAME") => {
            Some([0, 1].map(|at| image.shape()[2 + at].saturating_mul(strides[at]) as i64))
        }
        [] => None,
        // Some writers give all dimensions.
        [.., width] if rank == 3 => Some([1, width]),
        [.., height, width] if rank == 4 => Some([height, width]),
        ref size => return Err(node.lacks(&format!("output_shape is {size:?}"))),
    };
    let mut cut = if automatic == "NOTSET" { given_pads(node, rank)? } else { [0; 4] };
    for at in 0..2 {
        let reach = (kernels.shape()[2 + at] - 1).checked_mul(dilations[at]);
        let whole = reach.and_then(|reach| {
            (image.shape()[2 + at].max(1) - 1).checked_mul(strides[at])?.checked_add(reach + 1)
        });
        let whole = whole.and_then(|whole| i64::try_from(whole).ok()).ok_or("its output is too large")?;
        if let Some(size) = size {
            let total = whole + behind[at] as i64 - size[at];
            let half = total.div_euclid(2);
            cut[at] = if automatic == "SAME_UPPER" { half } else { total - half };
            cut[at + 2] = total - cut[at];
        }
        cut[at + 2] -= behind[at] as i64;
        if cut[at] > whole || cut[at + 2] > whole || whole <= cut[at] + cut[at + 2] {
            return Err(format!("its output would have no elements: pads are {cut:?}"));
        }
    }
    Ok(Transposed { groups, strides, dilations, cut })
}

fn convolution(groups: usize, dilations: [usize; 2], pads: [usize; 4]) -> Operation {
    let window = WindowSpec { strides: [1; 2], dilations, pads, round_up: false };
    Operation::Convolution { layout: ImageLayout::ChannelsFirst, window, groups }
}

fn tiles(
    builder: &mut PlanBuilder<'_>,
    image: &PlanValue,
    kernels: &PlanValue,
    bias: Option<&PlanValue>,
) -> Result<PlanValue, String> {
    let [n, c, h, w] = sizes(image)?;
    let [_, outputs, kernel_h, kernel_w] = sizes(kernels)?;
    let tile = kernel_h * kernel_w;
    let flat = outputs.checked_mul(tile).ok_or("its kernels are too large")?;
    let turned = StridedWalk::of(kernels).permuted(&[1, 2, 3, 0]);
    let kernels = turned.copy(builder, kernels, vec![flat, c, 1, 1])?;
    let bias = match bias {
        Some(bias) => {
            let each = StridedWalk { shape: vec![outputs, tile], strides: vec![1, 0], offset: 0 };
            Some(each.copy(builder, &bias.view(vec![outputs])?, vec![flat])?)
        }
        None => None,
    };
    let inputs: Vec<&PlanValue> = [image, &kernels].into_iter().chain(&bias).collect();
    let computed = builder.emit(convolution(1, [1; 2], [0; 4]), &inputs)?;
    let parts = computed.view(vec![n, outputs, kernel_h, kernel_w, h, w])?;
    let placed = StridedWalk::of(&parts).permuted(&[0, 1, 4, 2, 5, 3]);
    placed.copy(builder, &parts, vec![n, outputs, h * kernel_h, w * kernel_w])
}

fn with_zeros_between(
    builder: &mut PlanBuilder<'_>,
    image: &PlanValue,
    kernels: &PlanValue,
    bias: Option<&PlanValue>,
    &Transposed { groups, strides, dilations, cut }: &Transposed,
) -> Result<PlanValue, String> {
    let [n, c, h, w] = sizes(image)?;
    let [_, outputs, kernel_h, kernel_w] = sizes(kernels)?;
    let mut image = image.clone();
    if strides != [1; 2] {
        let behind = strides.map(|stride| stride as i64 - 1);
        let apart = Operation::Pad {
            begins: vec![0; 6],
            ends: vec![0, 0, 0, behind[0], 0, behind[1]],
            fill: PadFill::Constant(0.0),
        };
        let spread = builder.emit(apart, &[&image.view(vec![n, c, h, 1, w, 1])?])?;
        image = spread.view(vec![n, c, h * strides[0], w * strides[1]])?;
    }
    // Behind the last element are stride - 1 zeros already.
    let reach = [(kernel_h - 1) * dilations[0], (kernel_w - 1) * dilations[1]];
    let around: [i64; 4] = std::array::from_fn(|at| {
        let behind = if at < 2 { 0 } else { strides[at - 2] as i64 - 1 };
        reach[at % 2] as i64 - cut[at] - behind
    });
    let pads = around.map(|pad| pad.max(0) as usize);
    if around.iter().any(|&pad| pad < 0) {
        let cut = |at: usize| around[at].min(0);
        let (begins, ends) = (vec![0, 0, cut(0), cut(1)], vec![0, 0, cut(2), cut(3)]);
        image = builder.emit(Operation::Pad { begins, ends, fill: PadFill::Constant(0.0) }, &[&image])?;
    }
    let (from, area) = (c / groups, kernel_h * kernel_w);
    let each = outputs * area;
    let turned = StridedWalk {
        shape: vec![groups, outputs, from, kernel_h, kernel_w],
        strides: [from * each, area, each]
            .map(|stride| stride as i64)
            .into_iter()
            .chain([-(kernel_w as i64), -1])
            .collect(),
        offset: area - 1,
    };
    let all = groups.checked_mul(outputs).ok_or("its kernels are too large")?;
    let kernels = turned.copy(builder, kernels, vec![all, from, kernel_h, kernel_w])?;
    let inputs: Vec<&PlanValue> = [&image, &kernels].into_iter().chain(bias).collect();
    builder.emit(convolution(groups, dilations, pads), &inputs)
}

fn sizes(image: &PlanValue) -> Result<[usize; 4], String> {
    image.shape().try_into().map_err(|_| format!("{} is no image", image.of()))
}
