//! Kernels that compute sums, means and the like along dimensions. Sums of floats are kept in
//! double precision: this is the reference.

use super::super::element::PlanElement;
use super::super::operation::ReduceFunction;
use super::operand::{KernelInput, KernelOutput, around};
use super::walk::{dense_strides, runs};
use bytemuck::Pod;

pub(super) fn reduce(
    function: ReduceFunction,
    axes: &[usize],
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    match x.of.element {
        PlanElement::I32 => reduce_whole(axes, x, output, |values: &mut dyn Iterator<Item = i32>| {
            of_whole(function, &mut values.map(i64::from)) as i32
        }),
        PlanElement::I64 => {
            reduce_whole(axes, x, output, |values: &mut dyn Iterator<Item = i64>| of_whole(function, values))
        }
        // Halves were widened.
        _ => reduce_floats(function, axes, x, output),
    }
}

/// Calls `reduced` for each element of the output with the places of the elements that it is of.
fn for_each_part(axes: &[usize], x: KernelInput<'_>, mut reduced: impl FnMut(&[usize])) {
    let (shape, strides) = (x.shape(), dense_strides(x.shape()));
    let split = |inside: bool| -> (Vec<usize>, Vec<i64>) {
        let kept = (0..shape.len()).filter(|axis| axes.contains(axis) == inside);
        // A last dimension of 1 makes each element a run.
        let pairs = kept.map(|axis| (shape[axis], strides[axis])).chain([(1, 0)]);
        pairs.unzip()
    };
    let ((kept, kept_strides), (gone, gone_strides)) = (split(false), split(true));
    let mut places = Vec::new();
    runs(&kept, [&kept_strides], [0], |[start]| {
        places.clear();
        runs(&gone, [&gone_strides], [start], |[at]| places.push(at as usize));
        reduced(&places);
    });
}

fn reduce_whole<T: Pod>(
    axes: &[usize],
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
    reduce: impl Fn(&mut dyn Iterator<Item = T>) -> T,
) {
    let from = x.elements::<T>();
    let mut to = output.elements::<T>().iter_mut();
    for_each_part(axes, x, |places| {
        if let Some(to) = to.next() {
            *to = reduce(&mut places.iter().map(|&at| from[at]));
        }
    });
}

/// Reduces whole numbers; logarithms and roots are of floats.
fn of_whole(function: ReduceFunction, values: &mut dyn Iterator<Item = i64>) -> i64 {
    match function {
        ReduceFunction::Max => values.max().unwrap_or(0),
        ReduceFunction::Min => values.min().unwrap_or(0),
        ReduceFunction::Prod => values.fold(1, i64::wrapping_mul),
        ReduceFunction::Sum => values.fold(0, i64::wrapping_add),
        ReduceFunction::L1 => values.fold(0, |sum, x| sum.wrapping_add(x.wrapping_abs())),
        ReduceFunction::SumSquare => values.fold(0, |sum, x| sum.wrapping_add(x.wrapping_mul(x))),
        ReduceFunction::Mean => {
            let (sum, count) = values.fold((0i64, 0), |(sum, count), x| (sum.wrapping_add(x), count + 1));
            sum / count.max(1)
        }
        ReduceFunction::L2 | ReduceFunction::LogSum | ReduceFunction::LogSumExp => {
            let values: Vec<f64> = values.map(|x| x as f64).collect();
            of_floats(function, &values) as i64
        }
    }
}

fn reduce_floats(
    function: ReduceFunction,
    axes: &[usize],
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let from = x.elements::<f32>();
    let mut to = output.elements::<f32>().iter_mut();
    let mut values = Vec::new();
    for_each_part(axes, x, |places| {
        values.clear();
        values.extend(places.iter().map(|&at| f64::from(from[at])));
        if let Some(to) = to.next() {
            *to = of_floats(function, &values) as f32;
        }
    });
}

fn of_floats(function: ReduceFunction, values: &[f64]) -> f64 {
    let sum = |of: fn(f64) -> f64| values.iter().map(|&x| of(x)).sum::<f64>();
    let most = || values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match function {
        ReduceFunction::Sum => sum(|x| x),
        ReduceFunction::Mean => sum(|x| x) / values.len() as f64,
        ReduceFunction::Max => most(),
        ReduceFunction::Min => values.iter().copied().fold(f64::INFINITY, f64::min),
        ReduceFunction::Prod => values.iter().product(),
        ReduceFunction::L1 => sum(f64::abs),
        ReduceFunction::L2 => sum(|x| x * x).sqrt(),
        ReduceFunction::SumSquare => sum(|x| x * x),
        ReduceFunction::LogSum => sum(|x| x).ln(),
        ReduceFunction::LogSumExp => {
            let most = most();
            most + values.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
        }
    }
}

pub(super) fn softmax(axis: usize, logarithm: bool, x: KernelInput<'_>, output: &mut KernelOutput<'_>) {
    let [outer, size, inner] = around(x.shape(), axis);
    let (from, to) = (x.elements::<f32>(), output.elements::<f32>());
    for (at, behind) in (0..outer).flat_map(|at| (0..inner).map(move |behind| (at, behind))) {
        let place = |index: usize| (at * size + index) * inner + behind;
        let most = (0..size).map(|index| from[place(index)]).fold(f32::NEG_INFINITY, f32::max);
        let over = |index: usize| f64::from(from[place(index)] - most);
        let sum: f64 = (0..size).map(|index| over(index).exp()).sum();
        for index in 0..size {
            let x = over(index);
            to[place(index)] = if logarithm { x - sum.ln() } else { x.exp() / sum } as f32;
        }
    }
}

pub(super) fn layer_norm(
    axis: usize,
    epsilon: f32,
    adds: bool,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) {
    let (added, inputs) = inputs
        .split_last()
        .filter(|_| adds)
        .map_or((None, inputs), |(added, inputs)| (Some(added.elements::<f32>()), inputs));
    let size = inputs[0].shape()[axis..].iter().product::<usize>();
    let scale = inputs[1].elements::<f32>();
    let bias = inputs.get(2).map(|bias| bias.elements::<f32>());
    let sum = added.map(|added| -> Vec<f32> {
        inputs[0].elements::<f32>().iter().zip(added).map(|(x, added)| x + added).collect()
    });
    let from = sum.as_deref().unwrap_or(inputs[0].elements()).chunks_exact(size);
    for (from, to) in from.zip(output.elements::<f32>().chunks_exact_mut(size)) {
        let mean = from.iter().map(|&x| f64::from(x)).sum::<f64>() / size as f64;
        let variance = from.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / size as f64;
        let factor = 1.0 / (variance + f64::from(epsilon)).sqrt();
        for (at, (to, &x)) in to.iter_mut().zip(from).enumerate() {
            let normal = ((f64::from(x) - mean) * factor) as f32;
            *to = normal * scale[at] + bias.map_or(0.0, |bias| bias[at]);
        }
    }
}

pub(super) fn local_response_norm(
    [axis, size]: [usize; 2],
    [alpha, beta, bias]: [f32; 3],
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let [outer, channels, inner] = around(x.shape(), axis);
    let (from, to) = (x.elements::<f32>(), output.elements::<f32>());
    let mut sums = vec![0f32; inner];
    for (row, channel) in (0..outer).flat_map(|row| (0..channels).map(move |channel| (row, channel))) {
        let plane = |channel: usize| &from[(row * channels + channel) * inner..][..inner];
        sums.fill(0.0);
        let last = (channel + size / 2).min(channels - 1);
        for near in channel.saturating_sub((size - 1) / 2)..=last {
            sums.iter_mut().zip(plane(near)).for_each(|(sum, x)| *sum += x * x);
        }
        let to = &mut to[(row * channels + channel) * inner..][..inner];
        for ((to, x), sum) in to.iter_mut().zip(plane(channel)).zip(&sums) {
            *to = x / (bias + alpha / size as f32 * sum).powf(beta);
        }
    }
}
