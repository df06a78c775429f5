//! Kernels on images: windows that move over height and width, and other sizes.

use super::super::operation::{Interpolation, PoolFunction, ResizeCoordinates, WindowSpec};
use super::matrix::{COLUMNS, times_panel};
use super::operand::{KernelInput, KernelOutput};

/// Returns the four sizes of an image.
fn sizes(shape: &[usize]) -> [usize; 4] {
    std::array::from_fn(|at| shape[at])
}

/// Returns the place in the image that an element of a window reads; `None` outside of it.
fn inside(out: usize, tap: usize, stride: usize, dilation: usize, pad: usize, size: usize) -> Option<usize> {
    (out * stride + tap * dilation).checked_sub(pad).filter(|&at| at < size)
}

pub(super) fn convolution(
    window: &WindowSpec,
    groups: usize,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) {
    let ([n, c, h, w], [m, depth, kernel_h, kernel_w]) = (sizes(inputs[0].shape()), sizes(inputs[1].shape()));
    let [.., out_h, out_w] = sizes(&output.of.shape);
    let (image, kernels) = (inputs[0].elements::<f32>(), inputs[1].elements::<f32>());
    let bias = inputs.get(2).map(|bias| bias.elements::<f32>());
    let result = output.elements::<f32>();
    let (of_group, taps, pixels) = (m / groups, kernel_h * kernel_w, out_h * out_w);
    let mut panel = vec![[0f32; COLUMNS]; depth * taps];
    for (row, group) in (0..n).flat_map(|row| (0..groups).map(move |group| (row, group))) {
        let planes = &image[(row * c + group * depth) * h * w..][..depth * h * w];
        let kernels = &kernels[group * of_group * depth * taps..][..of_group * depth * taps];
        for first in (0..pixels).step_by(COLUMNS) {
            let width = COLUMNS.min(pixels - first);
            for (tap_y, tap_x) in (0..kernel_h).flat_map(|y| (0..kernel_w).map(move |x| (y, x))) {
                // The place in a plane that each pixel reads with this tap.
                let places: [Option<usize>; COLUMNS] = std::array::from_fn(|at| {
                    let (y, x) = ((first + at) / out_w, (first + at) % out_w);
                    let y = inside(y, tap_y, window.strides[0], window.dilations[0], window.pads[0], h)?;
                    let x = inside(x, tap_x, window.strides[1], window.dilations[1], window.pads[1], w)?;
                    (at < width).then_some(y * w + x)
                });
                let packed = panel[tap_y * kernel_w + tap_x..].iter_mut().step_by(taps);
                for (to, plane) in packed.zip(planes.chunks_exact(h * w)) {
                    *to = places.map(|place| place.map_or(0.0, |place| plane[place]));
                }
            }
            times_panel(kernels, depth * taps, &panel, |channel, sums| {
                let channel = group * of_group + channel;
                let bias = bias.map_or(0.0, |bias| bias[channel]);
                let to = &mut result[(row * m + channel) * pixels + first..][..width];
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = sum + bias);
            });
        }
    }
}

pub(super) fn pool(
    function: PoolFunction,
    size: [usize; 2],
    window: &WindowSpec,
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let [.., h, w] = sizes(x.shape());
    let [.., out_h, out_w] = sizes(&output.of.shape);
    let planes = x.elements::<f32>().chunks_exact(h * w);
    let results = output.elements::<f32>().chunks_exact_mut(out_h * out_w);
    for (plane, result) in planes.zip(results) {
        for (at, to) in result.iter_mut().enumerate() {
            let y = reach(at / out_w, 0, size, window, h);
            let x = reach(at % out_w, 1, size, window, w);
            let values = y.inside.clone().flat_map(|y| x.inside.clone().map(move |x| (y, x)));
            let values = values.map(|(y, x)| plane[y * w + x]);
            *to = match function {
                PoolFunction::Max => values.fold(f32::NEG_INFINITY, f32::max),
                PoolFunction::Mean => values.sum::<f32>() / (y.count * x.count) as f32,
                PoolFunction::MeanWithPads => values.sum::<f32>() / (y.with_pads * x.with_pads) as f32,
            };
        }
    }
}

/// What a window covers along one dimension.
struct WindowReach {
    /// The places in the image.
    inside: std::iter::StepBy<std::ops::Range<usize>>,
    /// How many these are.
    count: usize,
    /// How many there are with the pads.
    with_pads: usize,
}

fn reach(out: usize, axis: usize, size: [usize; 2], window: &WindowSpec, length: usize) -> WindowReach {
    let (dilation, pad) = (window.dilations[axis], window.pads[axis]);
    let start = out * window.strides[axis];
    let taps = |range: std::ops::Range<usize>| {
        (0..size[axis]).filter(|tap| range.contains(&(start + tap * dilation))).count()
    };
    let count = taps(pad..pad + length);
    let first = (0..size[axis]).map(|tap| start + tap * dilation).find(|&at| at >= pad).unwrap_or(pad) - pad;
    let inside =
        (first..if count == 0 { first } else { first + (count - 1) * dilation + 1 }).step_by(dilation);
    WindowReach { inside, count, with_pads: taps(0..pad + length + window.pads[axis + 2]) }
}

pub(super) fn resize(
    scales: [f32; 2],
    interpolation: Interpolation,
    coordinates: ResizeCoordinates,
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let [.., h, w] = sizes(x.shape());
    let [.., out_h, out_w] = sizes(&output.of.shape);
    let along = |length: usize, new: usize, scale: f32| -> Vec<ResizedPlace> {
        (0..new)
            .map(|at| place(coordinate(at, length, new, scale, coordinates), length, interpolation))
            .collect()
    };
    let (rows, columns) = (along(h, out_h, scales[0]), along(w, out_w, scales[1]));
    let results = output.elements::<f32>().chunks_exact_mut(out_h * out_w);
    for (plane, result) in x.elements::<f32>().chunks_exact(h * w).zip(results) {
        for (y, to) in rows.iter().zip(result.chunks_exact_mut(out_w)) {
            for (x, to) in columns.iter().zip(to) {
                let row = |y: usize| mixed(plane[y * w + x.below], plane[y * w + x.above], x.weight);
                *to = mixed(row(y.below), row(y.above), y.weight);
            }
        }
    }
}

/// Where a resized element is read: between two neighbours.
struct ResizedPlace {
    below: usize,
    above: usize,
    /// The weight of the one above.
    weight: f32,
}

/// Returns the weighted mean of two numbers; one without weight may be infinite.
fn mixed(below: f32, above: f32, weight: f32) -> f32 {
    if weight == 0.0 { below } else { below * (1.0 - weight) + above * weight }
}

fn coordinate(at: usize, length: usize, new: usize, scale: f32, coordinates: ResizeCoordinates) -> f32 {
    let half_pixel = (at as f32 + 0.5) / scale - 0.5;
    match coordinates {
        ResizeCoordinates::HalfPixel => half_pixel,
        ResizeCoordinates::PytorchHalfPixel => {
            if new > 1 {
                half_pixel
            } else {
                0.0
            }
        }
        ResizeCoordinates::AlignCorners if new > 1 => at as f32 * (length - 1) as f32 / (new - 1) as f32,
        ResizeCoordinates::AlignCorners => 0.0,
        ResizeCoordinates::Asymmetric => at as f32 / scale,
    }
}

fn place(x: f32, length: usize, interpolation: Interpolation) -> ResizedPlace {
    let last = length - 1;
    let nearest = |x: f32| {
        let at = (x.max(0.0) as usize).min(last);
        ResizedPlace { below: at, above: at, weight: 0.0 }
    };
    match interpolation {
        Interpolation::NearestDown => nearest((x - 0.5).ceil()),
        Interpolation::NearestUp => nearest((x + 0.5).floor()),
        Interpolation::Floor => nearest(x.floor()),
        Interpolation::Ceil => nearest(x.ceil()),
        Interpolation::Linear => {
            let x = x.max(0.0).min(last as f32);
            let below = (x as usize).min(last);
            ResizedPlace { below, above: (below + 1).min(last), weight: x - below as f32 }
        }
    }
}
