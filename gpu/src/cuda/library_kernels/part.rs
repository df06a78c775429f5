//! The part of a plan's launch that a library computes: the whole launch, or all but its
//! activation, which a kernel of ours then applies in place.

use super::super::launch::{MatrixProducts, is_by_depth};
use super::call::{ConvolutionCall, FusedFunction, LibraryCall, ProductCall};
use crate::plan::{ImageLayout, Launch, Operation, PlanElement, UnaryFunction, WindowSpec};

/// The largest size that the libraries' numbers hold.
const MOST: u64 = i32::MAX as u64;

/// The part of a launch that a library computes.
#[derive(Clone, PartialEq, Debug)]
pub struct LibraryPart {
    /// What the library is asked for.
    pub call: LibraryCall,
    /// The function of each result that it does not apply.
    pub after: Option<UnaryFunction>,
}

/// Returns the part of a launch that a library may compute; `None` where the launch is of another
/// operation, or of a form that no library has.
pub fn library_part(launch: &Launch) -> Option<LibraryPart> {
    let count = launch.output.of.elements()?;
    match &launch.operation {
        Operation::MatrixProduct { transposed, alpha } if count > 0 => product(launch, *transposed, *alpha),
        Operation::Convolution { layout, window, groups } if count > 0 => {
            convolution(launch, *layout, window, *groups)
        }
        _ => None,
    }
}

fn product(launch: &Launch, transposed: [bool; 2], alpha: f32) -> Option<LibraryPart> {
    let MatrixProducts { batches, rows, columns, depth, shape, strides } =
        MatrixProducts::of(launch, transposed).ok()?;
    // Each left and right matrix is behind the one before, or there is one for all.
    let own = |strides: &[i64]| {
        let (mut dense, mut none, mut next) = (true, true, 1);
        for (&size, &stride) in shape.iter().zip(strides).rev().filter(|(size, _)| **size != 1) {
            (dense, none) = (dense && stride == next, none && stride == 0);
            next *= size as i64;
        }
        if none { Some(false) } else { dense.then_some(true) }
    };
    let own = [own(&strides[0])?, own(&strides[1])?];
    let sizes = [batches, rows, columns, depth];
    if depth == 0 || sizes.iter().any(|&size| size > MOST) {
        return None;
    }
    let (function, after) = fused(launch.activation);
    let element = float(launch)?;
    let has_bias = launch.inputs.len() > 2;
    let call =
        ProductCall { element, batches, own, rows, columns, depth, transposed, alpha, has_bias, function };
    Some(LibraryPart { call: LibraryCall::Product(call), after })
}

/// The library's image has as many elements above it as below, and as many left as right; it is
/// the same if the elements below and right are none that a window reaches.
fn convolution(
    launch: &Launch,
    layout: ImageLayout,
    window: &WindowSpec,
    groups: usize,
) -> Option<LibraryPart> {
    let sizes = |shape: &[usize]| shape.try_into().ok().map(|shape| layout.sizes(shape));
    let [image, kernels] = [sizes(&launch.inputs[0].of.shape)?, sizes(&launch.inputs[1].of.shape)?];
    let output = sizes(&launch.output.of.shape)?;
    let WindowSpec { strides, dilations, pads: [top, left, ..], .. } = *window;
    let same = WindowSpec { pads: [top, left, top, left], round_up: false, ..*window };
    let [h, w] = same.outputs([image[2], image[3]], [kernels[2], kernels[3]]).ok()?;
    let largest = [image, kernels, output].into_iter().flatten().max()?;
    if [h, w] != output[2..] || largest as u64 > MOST {
        return None;
    }
    let has_bias = launch.inputs.len() > 2;
    let (relu, after) = match launch.activation {
        Some(UnaryFunction::Relu) if has_bias => (true, None),
        other => (false, other),
    };
    let (element, pads) = (float(launch)?, [top, left]);
    let ([n, c, ..], [m, depth, ..]) = (image, kernels);
    // Symphony's is several times as fast (docs/design/cuda.md).
    if is_by_depth(element, layout, [c, m, depth], groups) {
        return None;
    }
    let is_pointwise = kernels[2..] == [1, 1] && strides == [1, 1] && pads == [0, 0] && groups == 1;
    if is_pointwise && layout == ImageLayout::ChannelsLast {
        return pointwise(launch, [n * h * w, m, c]);
    }
    let call = ConvolutionCall {
        element,
        layout,
        image,
        kernels,
        output,
        groups,
        pads,
        strides,
        dilations,
        has_bias,
        relu,
    };
    Some(LibraryPart { call: LibraryCall::Convolution(call), after })
}

/// A convolution whose kernels have one element, of images whose channels come last: a product of
/// all pixels with the kernels.
fn pointwise(launch: &Launch, [pixels, kernels, channels]: [usize; 3]) -> Option<LibraryPart> {
    let (function, after) = fused(launch.activation);
    let call = ProductCall {
        element: float(launch)?,
        batches: 1,
        own: [false; 2],
        rows: pixels as u64,
        columns: kernels as u64,
        depth: channels as u64,
        transposed: [false, true],
        alpha: 1.0,
        has_bias: launch.inputs.len() > 2,
        function,
    };
    (call.rows <= MOST).then_some(LibraryPart { call: LibraryCall::Product(call), after })
}

/// Returns the function that cuBLASLt applies for an activation, and what follows.
fn fused(activation: Option<UnaryFunction>) -> (FusedFunction, Option<UnaryFunction>) {
    match activation {
        Some(UnaryFunction::Relu) => (FusedFunction::Relu, None),
        // What the library calls GELU is this approximation of it.
        Some(UnaryFunction::GeluTanh) => (FusedFunction::GeluTanh, None),
        other => (FusedFunction::Identity, other),
    }
}

/// Returns the type of a launch's floats.
fn float(launch: &Launch) -> Option<PlanElement> {
    Some(launch.output.of.element).filter(|element| element.is_float())
}
