//! Kernels as functions of the host: the operation is found by the kernel's name and its arguments,
//! as a device has nothing else, and the plan's reference computes it.

use crate::memory::Memory;
use bytemuck::{Pod, pod_read_unaligned};
use half::f16;
use symphony_gpu::cuda::arguments::{
    AffineArguments, AttentionArguments, BinaryArguments, CastArguments, ConcatPartArguments,
    ConvolutionArguments, DIVIDED_BY_ZERO, GatherArguments, INDEX_OUT_OF_RANGE, LayerNormArguments,
    LocalResponseNormArguments, MAX_RANK, MatrixProductArguments, PadArguments, PoolArguments,
    ReduceArguments, ResizeArguments, SelectArguments, SoftmaxArguments, StridedCopyArguments,
    UnaryArguments,
};
use symphony_gpu::cuda::codes::Coded;
use symphony_gpu::cuda::driver::CallTensors;
use symphony_gpu::cuda::library_kernels::call::{ConvolutionCall, FusedFunction, LibraryCall, ProductCall};
use symphony_gpu::plan::{
    AlignedBytes, ImageLayout, Operation, PadFill, PlanElement, PlanType, UnaryFunction, WindowSpec, compute,
};

/// An operation with the addresses and the types of its tensors.
struct Found {
    operation: Operation,
    activation: Option<UnaryFunction>,
    inputs: Vec<(u64, PlanType)>,
    output: u64,
    /// The word for faults, and what is written there if the operation fails.
    status: Option<(u64, u32)>,
}

/// Runs a kernel of this name with these arguments.
///
/// Errors: it reads or writes what is not allocated, or its arguments make no sense.
pub(crate) fn run(kernel: &str, arguments: &[u8], memory: &mut Memory) -> Result<(), String> {
    if kernel == "concat_part" {
        return concat_part(&read(arguments)?, memory);
    }
    compute_found(find(kernel, arguments)?, memory)
}

/// Computes a call of a library, whose workspace is overwritten before and afterwards: what else
/// lies there is lost.
///
/// Errors: those of [`run`].
pub(crate) fn run_call(
    call: &LibraryCall,
    (at, workspace_bytes): (&CallTensors, usize),
    memory: &mut Memory,
) -> Result<(), String> {
    let overwrite = |memory: &mut Memory| match workspace_bytes {
        0 => Ok(()),
        bytes => memory.write(at.workspace.0, &vec![0xa5; bytes]),
    };
    overwrite(memory)?;
    let found = match call {
        LibraryCall::Product(call) => library_product(call, at),
        LibraryCall::Convolution(call) => library_convolution(call, at),
    };
    compute_found(found, memory)?;
    overwrite(memory)
}

fn compute_found(found: Found, memory: &mut Memory) -> Result<(), String> {
    let types: Vec<&PlanType> = found.inputs.iter().map(|(_, of)| of).collect();
    let output = found.operation.result(&types)?;
    let bytes = |of: &PlanType| of.bytes().ok_or(format!("{of} is too large"));
    let mut read: Vec<AlignedBytes> = Vec::new();
    for (address, of) in &found.inputs {
        let mut input = AlignedBytes::zeroed(bytes(of)?);
        memory.read(*address, input.as_bytes_mut())?;
        read.push(input);
    }
    let inputs: Vec<(&PlanType, &[u8])> =
        types.into_iter().zip(&read).map(|(of, bytes)| (of, bytes.as_bytes())).collect();
    let mut written = AlignedBytes::zeroed(bytes(&output)?);
    let computed = compute(&found.operation, found.activation, &inputs, (&output, written.as_bytes_mut()));
    match (computed, found.status) {
        (Ok(()), _) => memory.write(found.output, written.as_bytes()),
        (Err(_), Some((status, code))) => memory.write(status, &code.to_le_bytes()),
        (Err(why), None) => Err(why),
    }
}

fn read<T: Pod>(arguments: &[u8]) -> Result<T, String> {
    let (has, needs) = (arguments.len(), size_of::<T>());
    if has != needs {
        return Err(format!("{has} bytes of arguments; the kernel takes {needs}"));
    }
    Ok(pod_read_unaligned(arguments))
}

fn find(kernel: &str, arguments: &[u8]) -> Result<Found, String> {
    match kernel {
        "unary" => unary(&read(arguments)?),
        "cast" => cast(&read(arguments)?),
        "binary" => binary(&read(arguments)?),
        "select_elements" => select(&read(arguments)?),
        "affine" => affine(&read(arguments)?),
        "convolution" | "convolution_directly" | "convolution_by_depth" => convolution(&read(arguments)?),
        name if name.starts_with("convolution_") => convolution(&read(arguments)?),
        name if name.starts_with("matrix_product_") => matrix_product(&read(arguments)?),
        "matrix_product" => matrix_product(&read(arguments)?),
        "pool" => pool(&read(arguments)?),
        "reduce" => reduce(&read(arguments)?),
        "softmax" => softmax(&read(arguments)?),
        "layer_norm" => layer_norm(&read(arguments)?),
        name if name.starts_with("attention_") => attention(&read(arguments)?),
        "local_response_norm" => local_response_norm(&read(arguments)?),
        "gather" => gather(&read(arguments)?),
        "strided_copy" => strided_copy(&read(arguments)?),
        "pad" => pad(&read(arguments)?),
        "resize" => resize(&read(arguments)?),
        other => Err(format!("there is no kernel {other}")),
    }
}

/// Makes a type of sizes as kernels have them.
fn of<const N: usize>(element: PlanElement, sizes: [u64; N]) -> PlanType {
    PlanType { element, shape: sizes.map(|size| size as usize).to_vec() }
}

/// Makes an image's type of its sizes N, C, H and W.
fn image_of(element: PlanElement, channels_last: u32, sizes: [u64; 4]) -> PlanType {
    PlanType { element, shape: layout(channels_last).shape(sizes.map(|size| size as usize)).to_vec() }
}

fn layout(channels_last: u32) -> ImageLayout {
    if channels_last == 0 { ImageLayout::ChannelsFirst } else { ImageLayout::ChannelsLast }
}

/// Checks that the short form of an input's strides says what they say.
fn check_repetition(
    [inner, period]: [u64; 2],
    count: u64,
    shape: [u64; MAX_RANK],
    strides: [i64; MAX_RANK],
) -> Result<(), String> {
    if period == 0 {
        return Ok(());
    }
    for at in 0..count {
        let (mut rest, mut place) = (at, 0);
        for axis in (0..MAX_RANK).rev() {
            place += (rest % shape[axis]) as i64 * strides[axis];
            rest /= shape[axis];
        }
        if place != (at / inner % period) as i64 {
            return Err(format!("element {at} reads {place}, not {inner} times {period}"));
        }
    }
    Ok(())
}

fn coded<T: Coded>(code: u32) -> Result<T, String> {
    T::of_code(code).ok_or(format!("nothing has the number {code}"))
}

/// Returns a type whose elements have this size; which one of these it is makes no difference.
fn sized(bytes: u64) -> Result<PlanElement, String> {
    match bytes {
        1 => Ok(PlanElement::Bool),
        2 => Ok(PlanElement::F16),
        4 => Ok(PlanElement::F32),
        8 => Ok(PlanElement::I64),
        other => Err(format!("no element has {other} bytes")),
    }
}

impl Found {
    fn new(operation: Operation, inputs: Vec<(u64, PlanType)>, output: u64) -> Found {
        Found { operation, activation: None, inputs, output, status: None }
    }

    /// Adds an input unless its address is 0.
    fn and_perhaps(mut self, address: u64, of: PlanType) -> Found {
        if address != 0 {
            self.inputs.push((address, of));
        }
        self
    }
}

/// Returns the shape of a dense tensor that is stretched to `shape` by these strides.
fn unstretched(shape: [u64; MAX_RANK], strides: [i64; MAX_RANK]) -> Result<[u64; MAX_RANK], String> {
    let sizes = std::array::from_fn(|at| if strides[at] == 0 { 1 } else { shape[at] });
    let mut dense = 1;
    for axis in (0..MAX_RANK).rev() {
        if strides[axis] != 0 && strides[axis] != dense {
            return Err(format!("the strides {strides:?} of {shape:?} are of no dense tensor"));
        }
        dense *= sizes[axis] as i64;
    }
    Ok(sizes)
}

fn unary(a: &UnaryArguments) -> Result<Found, String> {
    let function = a.function.function().ok_or("it has no function")?;
    let input = of(coded(a.element)?, [a.count]);
    Ok(Found::new(Operation::Unary(function), vec![(a.x, input)], a.y))
}

fn cast(a: &CastArguments) -> Result<Found, String> {
    let operation = Operation::Cast { to: coded(a.to)? };
    Ok(Found::new(operation, vec![(a.x, of(coded(a.from)?, [a.count]))], a.y))
}

fn binary(a: &BinaryArguments) -> Result<Found, String> {
    let element = coded(a.element)?;
    let tensor = |strides| Ok::<_, String>(of(element, unstretched(a.shape, strides)?));
    check_repetition([a.left_inner, a.left_period], a.count, a.shape, a.left_strides)?;
    check_repetition([a.right_inner, a.right_period], a.count, a.shape, a.right_strides)?;
    let inputs = vec![(a.left, tensor(a.left_strides)?), (a.right, tensor(a.right_strides)?)];
    let found = Found::new(Operation::Binary(coded(a.function)?), inputs, a.y);
    let (activation, status) = (a.activation.function(), Some((a.status, DIVIDED_BY_ZERO)));
    Ok(Found { activation, status, ..found })
}

fn select(a: &SelectArguments) -> Result<Found, String> {
    let tensor = |element, strides| Ok::<_, String>(of(element, unstretched(a.shape, strides)?));
    let inputs = vec![
        (a.condition, tensor(PlanElement::Bool, a.condition_strides)?),
        (a.left, tensor(sized(a.bytes)?, a.left_strides)?),
        (a.right, tensor(sized(a.bytes)?, a.right_strides)?),
    ];
    Ok(Found::new(Operation::Select, inputs, a.y))
}

fn affine(a: &AffineArguments) -> Result<Found, String> {
    let outer = a.count / (a.channels * a.inner).max(1);
    let element = coded(a.element)?;
    let channels = || of(element, [a.channels]);
    let inputs =
        vec![(a.x, of(element, [outer, a.channels, a.inner])), (a.scale, channels()), (a.shift, channels())];
    let found = Found::new(Operation::Affine { axis: 1 }, inputs, a.y);
    Ok(Found { activation: a.activation.function(), ..found })
}

fn convolution(a: &ConvolutionArguments) -> Result<Found, String> {
    // The least pads behind with which the output has its size.
    let behind = |out: u32, stride: u32, dilation: u32, size: u32, pad: u32, length: u32| {
        let covered = u64::from(out - 1) * u64::from(stride) + u64::from(dilation) * u64::from(size - 1) + 1;
        covered.saturating_sub(u64::from(length) + u64::from(pad)) as usize
    };
    let window = WindowSpec {
        strides: [a.stride_h as usize, a.stride_w as usize],
        dilations: [a.dilation_h as usize, a.dilation_w as usize],
        pads: [
            a.pad_top as usize,
            a.pad_left as usize,
            behind(a.out_h, a.stride_h, a.dilation_h, a.kernel_h, a.pad_top, a.h),
            behind(a.out_w, a.stride_w, a.dilation_w, a.kernel_w, a.pad_left, a.w),
        ],
        round_up: false,
    };
    let element = coded(a.element)?;
    let image = image_of(element, a.channels_last, [a.n, a.c, a.h, a.w].map(u64::from));
    let weights = image_of(element, a.channels_last, [a.m, a.depth, a.kernel_h, a.kernel_w].map(u64::from));
    let (layout, groups) = (layout(a.channels_last), a.groups as usize);
    let operation = Operation::Convolution { layout, window, groups };
    let found = Found::new(operation, vec![(a.x, image), (a.weights, weights)], a.y);
    let found = found.and_perhaps(a.bias, of(element, [a.m.into()]));
    Ok(Found { activation: a.activation.function(), ..found })
}

fn matrix_product(a: &MatrixProductArguments) -> Result<Found, String> {
    let element = coded(a.element)?;
    let matrices = |strides, [rows, columns]: [u64; 2], transposed: u32| {
        let size = if transposed == 0 { [rows, columns] } else { [columns, rows] };
        let sizes = unstretched(a.shape, strides)?;
        let shape = sizes.iter().chain(&size).map(|&size| size as usize).collect();
        Ok::<_, String>(PlanType { element, shape })
    };
    let left = matrices(a.left_strides, [a.rows, a.depth], a.left_transposed)?;
    let right = matrices(a.right_strides, [a.depth, a.columns], a.right_transposed)?;
    let transposed = [a.left_transposed != 0, a.right_transposed != 0];
    let operation = Operation::MatrixProduct { transposed, alpha: a.alpha };
    let found = Found::new(operation, vec![(a.left, left), (a.right, right)], a.y);
    let found = found.and_perhaps(a.bias, of(element, [a.columns]));
    Ok(Found { activation: a.activation.function(), ..found })
}

fn library_product(a: &ProductCall, at: &CallTensors) -> Found {
    let matrices = |own: bool, [rows, columns]: [u64; 2], transposed: bool| {
        let batches = if own { a.batches } else { 1 };
        of(a.element, if transposed { [batches, columns, rows] } else { [batches, rows, columns] })
    };
    let left = matrices(a.own[0], [a.rows, a.depth], a.transposed[0]);
    let right = matrices(a.own[1], [a.depth, a.columns], a.transposed[1]);
    let operation = Operation::MatrixProduct { transposed: a.transposed, alpha: a.alpha };
    let mut found = Found::new(operation, vec![(at.left.0, left), (at.right.0, right)], at.output.0);
    if a.has_bias {
        found.inputs.push((at.bias.0, of(a.element, [a.columns])));
    }
    Found { activation: fused(a.function), ..found }
}

fn library_convolution(a: &ConvolutionCall, at: &CallTensors) -> Found {
    let [top, left] = a.pads;
    let (strides, dilations, pads) = (a.strides, a.dilations, [top, left, top, left]);
    let window = WindowSpec { strides, dilations, pads, round_up: false };
    let image = |sizes| PlanType { element: a.element, shape: a.layout.shape(sizes).to_vec() };
    let operation = Operation::Convolution { layout: a.layout, window, groups: a.groups };
    let inputs = vec![(at.left.0, image(a.image)), (at.right.0, image(a.kernels))];
    let mut found = Found::new(operation, inputs, at.output.0);
    if a.has_bias {
        found.inputs.push((at.bias.0, of(a.element, [a.kernels[0] as u64])));
    }
    Found { activation: a.relu.then_some(UnaryFunction::Relu), ..found }
}

fn fused(function: FusedFunction) -> Option<UnaryFunction> {
    match function {
        FusedFunction::Identity => None,
        FusedFunction::Relu => Some(UnaryFunction::Relu),
        FusedFunction::GeluTanh => Some(UnaryFunction::GeluTanh),
    }
}

fn pool(a: &PoolArguments) -> Result<Found, String> {
    let layout = layout(a.channels_last);
    let sizes = |h: u32, w: u32| [a.images, a.channels, h.into(), w.into()];
    let image = image_of(coded(a.element)?, a.channels_last, sizes(a.h, a.w));
    let expected = image_of(image.element, a.channels_last, sizes(a.out_h, a.out_w));
    for round_up in [false, true] {
        let window = WindowSpec {
            strides: [a.stride_h as usize, a.stride_w as usize],
            dilations: [a.dilation_h as usize, a.dilation_w as usize],
            pads: [a.pad_top, a.pad_left, a.pad_bottom, a.pad_right].map(|pad| pad as usize),
            round_up,
        };
        let size = [a.size_h as usize, a.size_w as usize];
        let operation = Operation::Pool { layout, function: coded(a.function)?, size, window };
        if operation.result(&[&image])? == expected {
            return Ok(Found::new(operation, vec![(a.x, image)], a.y));
        }
    }
    Err(format!("no window over {image} gives {expected}"))
}

fn reduce(a: &ReduceArguments) -> Result<Found, String> {
    let part = |shape: [u64; MAX_RANK], strides: [i64; MAX_RANK], gone: bool| {
        shape
            .into_iter()
            .zip(strides)
            .filter(|(_, stride)| *stride > 0)
            .map(move |(size, stride)| (stride, size, gone))
    };
    let kept = part(a.kept_shape, a.kept_strides, false);
    let mut dimensions: Vec<(i64, u64, bool)> =
        kept.chain(part(a.gone_shape, a.gone_strides, true)).collect();
    // The dimension whose neighbours lie furthest apart comes first; where that is the same for
    // two, one of them has the size 1.
    dimensions.sort_by_key(|&(stride, size, _)| std::cmp::Reverse((stride, size)));
    let axes = dimensions.iter().enumerate().filter(|(_, (_, _, gone))| *gone).map(|(axis, _)| axis);
    let operation = Operation::Reduce { function: coded(a.function)?, axes: axes.collect() };
    let shape = dimensions.iter().map(|&(_, size, _)| size as usize).collect();
    Ok(Found::new(operation, vec![(a.x, PlanType { element: coded(a.element)?, shape })], a.y))
}

fn softmax(a: &SoftmaxArguments) -> Result<Found, String> {
    let operation = Operation::Softmax { axis: 1, logarithm: a.logarithm != 0 };
    Ok(Found::new(operation, vec![(a.x, of(coded(a.element)?, [a.outer, a.size, a.inner]))], a.y))
}

fn layer_norm(a: &LayerNormArguments) -> Result<Found, String> {
    let operation = Operation::LayerNorm { axis: 1, epsilon: a.epsilon, adds: a.added != 0 };
    let element = coded(a.element)?;
    let rows = of(element, [a.rows, a.size]);
    let inputs = vec![(a.x, rows.clone()), (a.scale, of(element, [a.size]))];
    let found = Found::new(operation, inputs, a.y).and_perhaps(a.bias, of(element, [a.size]));
    let found = found.and_perhaps(a.added, rows);
    Ok(Found { activation: a.activation.function(), ..found })
}

fn attention(a: &AttentionArguments) -> Result<Found, String> {
    let (element, hidden) = (coded::<PlanElement>(a.element)?, a.heads * a.size);
    let bytes = hidden * element.bytes() as u64;
    let packed = a.lead == 3 * hidden && [a.k, a.v] == [a.q + bytes, a.q + 2 * bytes];
    if !packed && a.lead != hidden {
        return Err(format!("rows of {hidden} elements lie {} apart", a.lead));
    }
    let operation = Operation::Attention { heads: a.heads as usize, scale: a.scale, packed };
    let rows = |count| of(element, [a.batches, count, a.lead]);
    let inputs = match packed {
        true => vec![(a.q, rows(a.queries))],
        false => vec![(a.q, rows(a.queries)), (a.k, rows(a.keys)), (a.v, rows(a.keys))],
    };
    let mut scores = [1; MAX_RANK];
    scores[MAX_RANK - 4..].copy_from_slice(&[a.batches, a.heads, a.queries, a.keys]);
    let mask = unstretched(scores, a.mask_strides)?;
    let mask = of::<4>(element, std::array::from_fn(|at| mask[MAX_RANK - 4 + at]));
    Ok(Found::new(operation, inputs, a.y).and_perhaps(a.mask, mask))
}

fn local_response_norm(a: &LocalResponseNormArguments) -> Result<Found, String> {
    let &LocalResponseNormArguments { alpha, beta, bias, .. } = a;
    let operation = Operation::LocalResponseNorm { axis: 1, size: a.size as usize, alpha, beta, bias };
    let image = of(coded(a.element)?, [a.outer, a.channels, a.inner, 1]);
    Ok(Found::new(operation, vec![(a.x, image)], a.y))
}

fn concat_part(a: &ConcatPartArguments, memory: &mut Memory) -> Result<(), String> {
    let bytes = a.bytes as usize;
    let mut part = vec![0; bytes];
    for block in 0..a.blocks {
        memory.read(a.x + block * a.bytes, &mut part)?;
        memory.write(a.y + block * a.step, &part)?;
    }
    Ok(())
}

/// Gathers bytes: what an index chooses is one piece.
fn gather(a: &GatherArguments) -> Result<Found, String> {
    let data = of(PlanElement::Bool, [a.outer, a.size, a.bytes]);
    let index = u32::try_from(a.index_element).map_err(|_| "the indices have no type")?;
    let inputs = vec![(a.data, data), (a.indices, of(coded(index)?, [a.chosen]))];
    let found = Found::new(Operation::Gather { axis: 1 }, inputs, a.y);
    Ok(Found { status: Some((a.status, INDEX_OUT_OF_RANGE)), ..found })
}

fn strided_copy(a: &StridedCopyArguments) -> Result<Found, String> {
    // A piece of 16 bytes is two elements.
    let (bytes, each) = if a.bytes == 16 { (8, 2) } else { (a.bytes, 1) };
    let operation = Operation::StridedCopy {
        walked: a.shape.iter().map(|&size| size as usize).chain([each]).collect(),
        strides: a.strides.iter().map(|stride| stride * each as i64).chain([1]).collect(),
        offset: a.offset as usize * each,
        shape: vec![a.count as usize * each],
    };
    Ok(Found::new(operation, vec![(a.x, of(sized(bytes)?, [a.available * each as u64]))], a.y))
}

fn pad(a: &PadArguments) -> Result<Found, String> {
    let element = sized(a.bytes.into())?;
    let fill = match (coded(a.fill)?, element) {
        // Bits of a float, whatever they are the bits of.
        (PadFill::Constant(_), PlanElement::F32) => PadFill::Constant(f32::from_bits(a.value as u32)),
        (PadFill::Constant(_), PlanElement::F16) => {
            PadFill::Constant(f16::from_bits(a.value as u16).to_f32())
        }
        (PadFill::Constant(_), _) => PadFill::Constant(a.value.cast_signed() as f32),
        (other, _) => other,
    };
    let behind = |at: usize| a.output_shape[at] as i64 - a.input_shape[at] as i64 - a.begins[at];
    let ends = (0..MAX_RANK).map(behind).collect();
    let operation = Operation::Pad { begins: a.begins.to_vec(), ends, fill };
    Ok(Found::new(operation, vec![(a.x, of(element, a.input_shape))], a.y))
}

fn resize(a: &ResizeArguments) -> Result<Found, String> {
    let image = [a.images, a.channels, a.h.into(), a.w.into()];
    let image = image_of(coded(a.element)?, a.channels_last, image);
    let operation = Operation::Resize {
        layout: layout(a.channels_last),
        size: [a.out_h as usize, a.out_w as usize],
        scales: [a.scale_h, a.scale_w],
        interpolation: coded(a.interpolation)?,
        coordinates: coded(a.coordinates)?,
    };
    Ok(Found::new(operation, vec![(a.x, image)], a.y))
}
