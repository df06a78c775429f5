//! The launches of a plan as launches of kernels: which kernel, how many threads, which arguments.
//! It is computed here alone, whatever the driver.

use super::arguments::{
    AffineArguments, BinaryArguments, CastArguments, ConcatPartArguments, ConvolutionArguments, FunctionCode,
    GatherArguments, LayerNormArguments, LocalResponseNormArguments, MAX_RANK, MatrixProductArguments,
    PadArguments, PoolArguments, ReduceArguments, ResizeArguments, SelectArguments, SoftmaxArguments,
    StridedCopyArguments, UnaryArguments,
};
use super::codes::Coded;
use super::driver::{DevicePointer, LaunchShape};
use crate::plan::{
    BinaryFunction, Launch, Operand, Operation, PadFill, PlanElement, PoolFunction, ReduceFunction,
    UnaryFunction, WindowSpec,
};
use bytemuck::{Pod, bytes_of};

/// The kernels, by their names in the source.
pub const KERNELS: [&str; 18] = [
    "unary",
    "cast",
    "binary",
    "select_elements",
    "affine",
    "convolution",
    "convolution_of_few_channels",
    "matrix_product",
    "pool",
    "reduce",
    "softmax",
    "layer_norm",
    "local_response_norm",
    "concat_part",
    "gather",
    "strided_copy",
    "pad",
    "resize",
];

/// The threads of a block, for all kernels.
const THREADS: u32 = 256;

/// The most blocks along x: kernels take the rest in further turns.
const MOST_BLOCKS: u64 = 65_535;

/// The edge of the square of results that a block of a product or a convolution computes.
const TILE: u64 = 64;

/// The channels of a group's output below which a convolution is computed without tiles.
const FEW_CHANNELS: usize = 16;

/// A launch of a kernel.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelLaunch {
    /// The kernel's name, one of [`KERNELS`].
    pub kernel: &'static str,
    /// How many threads it has.
    pub shape: LaunchShape,
    /// The argument, a structure of [`arguments`](super::arguments).
    pub arguments: Vec<u8>,
}

impl KernelLaunch {
    /// Makes a launch with a thread for each of `count` things.
    fn for_each<T: Pod>(kernel: &'static str, count: u64, arguments: &T) -> KernelLaunch {
        KernelLaunch::of_blocks(kernel, [count.div_ceil(u64::from(THREADS)), 1, 1], arguments)
    }

    fn of_blocks<T: Pod>(kernel: &'static str, blocks: [u64; 3], arguments: &T) -> KernelLaunch {
        let grid = blocks.map(|blocks| blocks.clamp(1, MOST_BLOCKS) as u32);
        let shape = LaunchShape { grid, block: [THREADS, 1, 1] };
        KernelLaunch { kernel, shape, arguments: bytes_of(arguments).to_vec() }
    }
}

/// Where the tensors of a batch lie on a device.
pub trait TensorPlaces {
    /// Returns the address of a tensor.
    fn address(&self, operand: &Operand) -> DevicePointer;

    /// Returns the address of the word into which kernels write faults.
    fn status(&self) -> DevicePointer;
}

/// A launch of a plan that is turned into launches of kernels.
struct Placed<'a> {
    launch: &'a Launch,
    placement: &'a dyn TensorPlaces,
}

/// Returns the launches of kernels that compute a launch of a plan: one or, of a concatenation and
/// of activations that kernels don't take, several. A launch without elements needs none.
///
/// # Errors
/// A tensor has more than [`MAX_RANK`] dimensions, or an image is too large for the kernels'
/// numbers.
pub fn kernel_launches(launch: &Launch, placement: &dyn TensorPlaces) -> Result<Vec<KernelLaunch>, String> {
    let placed = Placed { launch, placement };
    let count = placed.count();
    if count == 0 {
        return Ok(Vec::new());
    }
    let own = placed.own_launches(count)?;
    Ok(own.into_iter().chain(placed.activation_after(count)).collect())
}

impl Placed<'_> {
    fn x(&self, at: usize) -> u64 {
        self.placement.address(&self.launch.inputs[at]).0
    }

    /// Returns the address of an input that there may not be.
    fn optional(&self, at: usize) -> u64 {
        self.launch.inputs.get(at).map_or(0, |input| self.placement.address(input).0)
    }

    fn y(&self) -> u64 {
        self.placement.address(&self.launch.output).0
    }

    fn shape_of(&self, at: usize) -> &[usize] {
        &self.launch.inputs[at].of.shape
    }

    fn shape(&self) -> &[usize] {
        &self.launch.output.of.shape
    }

    fn element(&self, at: usize) -> PlanElement {
        self.launch.inputs[at].of.element
    }

    /// Returns the number of elements of the output.
    fn count(&self) -> u64 {
        self.launch.output.of.elements().unwrap_or(0) as u64
    }

    fn own_launches(&self, count: u64) -> Result<Vec<KernelLaunch>, String> {
        let one = match &self.launch.operation {
            Operation::Unary(function) => self.unary(*function, self.x(0), self.element(0), count),
            Operation::Cast { to } => self.cast(*to, count),
            Operation::Binary(function) => self.binary(*function, count)?,
            Operation::Select => self.select(count)?,
            Operation::Affine { axis } => self.affine(*axis, count),
            Operation::Convolution { window, groups } => self.convolution(window, *groups, count)?,
            Operation::MatrixProduct { transposed, alpha } => self.matrix_product(*transposed, *alpha)?,
            Operation::Pool { function, size, window } => self.pool(*function, *size, window, count)?,
            Operation::Reduce { function, axes } => self.reduce(*function, axes, count)?,
            Operation::Softmax { axis, logarithm } => self.softmax(*axis, *logarithm),
            Operation::LayerNorm { axis, epsilon } => self.layer_norm(*axis, *epsilon),
            Operation::LocalResponseNorm { size, alpha, beta, bias } => {
                self.local_response_norm(*size, [*alpha, *beta, *bias], count)
            }
            Operation::Concat { axis } => return Ok(self.concat(*axis)),
            Operation::Gather { axis } => self.gather(*axis),
            Operation::StridedCopy { walked, strides, offset, .. } => {
                self.strided_copy(walked, strides, *offset, count)?
            }
            Operation::Pad { begins, fill, .. } => self.pad(begins, *fill, count)?,
            Operation::Resize { scales, interpolation, coordinates, .. } => {
                self.resize(*scales, interpolation.code(), coordinates.code(), count)?
            }
        };
        Ok(vec![one])
    }

    /// Returns the launch of the activation, where the kernel itself does not take it.
    fn activation_after(&self, count: u64) -> Option<KernelLaunch> {
        let takes_it = matches!(
            self.launch.operation,
            Operation::Binary(_)
                | Operation::Affine { .. }
                | Operation::Convolution { .. }
                | Operation::MatrixProduct { .. }
        );
        let function = self.launch.activation.filter(|_| !takes_it)?;
        Some(self.unary(function, self.y(), PlanElement::F32, count))
    }

    fn activation(&self) -> FunctionCode {
        FunctionCode::of(self.launch.activation)
    }

    fn unary(&self, function: UnaryFunction, x: u64, element: PlanElement, count: u64) -> KernelLaunch {
        let (function, element) = (FunctionCode::of(Some(function)), element.code());
        let arguments = UnaryArguments { x, y: self.y(), count, function, element, unused: 0 };
        KernelLaunch::for_each("unary", count, &arguments)
    }

    fn cast(&self, to: PlanElement, count: u64) -> KernelLaunch {
        let (from, to) = (self.element(0).code(), to.code());
        KernelLaunch::for_each("cast", count, &CastArguments { x: self.x(0), y: self.y(), count, from, to })
    }

    fn binary(&self, function: BinaryFunction, count: u64) -> Result<KernelLaunch, String> {
        let arguments = BinaryArguments {
            left: self.x(0),
            right: self.x(1),
            y: self.y(),
            status: self.placement.status().0,
            count,
            shape: padded(self.shape())?,
            left_strides: stretched(self.shape_of(0), self.shape())?,
            right_strides: stretched(self.shape_of(1), self.shape())?,
            activation: self.activation(),
            function: function.code(),
            element: self.element(0).code(),
        };
        Ok(KernelLaunch::for_each("binary", count, &arguments))
    }

    fn select(&self, count: u64) -> Result<KernelLaunch, String> {
        let arguments = SelectArguments {
            condition: self.x(0),
            left: self.x(1),
            right: self.x(2),
            y: self.y(),
            count,
            shape: padded(self.shape())?,
            condition_strides: stretched(self.shape_of(0), self.shape())?,
            left_strides: stretched(self.shape_of(1), self.shape())?,
            right_strides: stretched(self.shape_of(2), self.shape())?,
            bytes: self.element(1).bytes() as u64,
        };
        Ok(KernelLaunch::for_each("select_elements", count, &arguments))
    }

    fn affine(&self, axis: usize, count: u64) -> KernelLaunch {
        let [_, channels, inner] = around(self.shape_of(0), axis);
        let arguments = AffineArguments {
            x: self.x(0),
            scale: self.x(1),
            shift: self.x(2),
            y: self.y(),
            count,
            channels,
            inner,
            activation: self.activation(),
        };
        KernelLaunch::for_each("affine", count, &arguments)
    }

    fn convolution(&self, window: &WindowSpec, groups: usize, count: u64) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(self.shape_of(0))?;
        let [m, depth, kernel_h, kernel_w] = image(self.shape_of(1))?;
        let [_, _, out_h, out_w] = image(self.shape())?;
        let WindowSpec { strides, dilations, pads, .. } = window;
        let arguments = ConvolutionArguments {
            x: self.x(0),
            weights: self.x(1),
            bias: self.optional(2),
            y: self.y(),
            n,
            c,
            h,
            w,
            m,
            depth,
            kernel_h,
            kernel_w,
            out_h,
            out_w,
            groups: small(groups)?,
            stride_h: small(strides[0])?,
            stride_w: small(strides[1])?,
            dilation_h: small(dilations[0])?,
            dilation_w: small(dilations[1])?,
            pad_top: small(pads[0])?,
            pad_left: small(pads[1])?,
            unused: 0,
            activation: self.activation(),
        };
        let of_group = m as usize / groups;
        if of_group < FEW_CHANNELS {
            return Ok(KernelLaunch::for_each("convolution_of_few_channels", count, &arguments));
        }
        let pixels = u64::from(n) * u64::from(out_h) * u64::from(out_w);
        let blocks = [pixels.div_ceil(TILE), (of_group as u64).div_ceil(TILE), groups as u64];
        Ok(KernelLaunch::of_blocks("convolution", blocks, &arguments))
    }

    fn matrix_product(&self, transposed: [bool; 2], alpha: f32) -> Result<KernelLaunch, String> {
        let (before, size) = self.shape().split_at(self.shape().len() - 2);
        let batches: u64 = before.iter().map(|&size| size as u64).product();
        let matrices = |at: usize| stretched(&self.shape_of(at)[..self.shape_of(at).len() - 2], before);
        let left = self.shape_of(0);
        let arguments = MatrixProductArguments {
            left: self.x(0),
            right: self.x(1),
            bias: self.optional(2),
            y: self.y(),
            batches,
            rows: size[0] as u64,
            columns: size[1] as u64,
            depth: left[left.len() - if transposed[0] { 2 } else { 1 }] as u64,
            shape: padded(before)?,
            left_strides: matrices(0)?,
            right_strides: matrices(1)?,
            activation: self.activation(),
            left_transposed: transposed[0].into(),
            right_transposed: transposed[1].into(),
            alpha,
            unused: 0,
        };
        let blocks = [arguments.columns.div_ceil(TILE), arguments.rows.div_ceil(TILE), batches];
        Ok(KernelLaunch::of_blocks("matrix_product", blocks, &arguments))
    }

    fn pool(
        &self,
        function: PoolFunction,
        size: [usize; 2],
        window: &WindowSpec,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(self.shape_of(0))?;
        let [_, _, out_h, out_w] = image(self.shape())?;
        let WindowSpec { strides, dilations, pads, .. } = window;
        let arguments = PoolArguments {
            x: self.x(0),
            y: self.y(),
            planes: u64::from(n) * u64::from(c),
            h,
            w,
            out_h,
            out_w,
            size_h: small(size[0])?,
            size_w: small(size[1])?,
            stride_h: small(strides[0])?,
            stride_w: small(strides[1])?,
            dilation_h: small(dilations[0])?,
            dilation_w: small(dilations[1])?,
            pad_top: small(pads[0])?,
            pad_left: small(pads[1])?,
            pad_bottom: small(pads[2])?,
            pad_right: small(pads[3])?,
            function: function.code(),
            unused: 0,
        };
        Ok(KernelLaunch::for_each("pool", count, &arguments))
    }

    fn reduce(&self, function: ReduceFunction, axes: &[usize], count: u64) -> Result<KernelLaunch, String> {
        let (shape, strides) = (self.shape_of(0), dense(self.shape_of(0)));
        let split = |inside: bool| -> (Vec<usize>, Vec<i64>) {
            let of = (0..shape.len()).filter(|axis| axes.contains(axis) == inside);
            of.map(|axis| (shape[axis], strides[axis])).unzip()
        };
        let ((kept, kept_strides), (gone, gone_strides)) = (split(false), split(true));
        let arguments = ReduceArguments {
            x: self.x(0),
            y: self.y(),
            count,
            reduced: gone.iter().map(|&size| size as u64).product(),
            kept_shape: padded(&kept)?,
            kept_strides: padded_strides(&kept_strides)?,
            gone_shape: padded(&gone)?,
            gone_strides: padded_strides(&gone_strides)?,
            function: function.code(),
            element: self.element(0).code(),
        };
        Ok(KernelLaunch::of_blocks("reduce", [count, 1, 1], &arguments))
    }

    fn softmax(&self, axis: usize, logarithm: bool) -> KernelLaunch {
        let [outer, size, inner] = around(self.shape_of(0), axis);
        let (x, y, logarithm) = (self.x(0), self.y(), logarithm.into());
        let arguments = SoftmaxArguments { x, y, outer, size, inner, logarithm };
        KernelLaunch::of_blocks("softmax", [outer * inner, 1, 1], &arguments)
    }

    fn layer_norm(&self, axis: usize, epsilon: f32) -> KernelLaunch {
        let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product();
        let (before, row) = self.shape_of(0).split_at(axis);
        let (rows, size) = (product(before), product(row));
        let (scale, bias) = (self.x(1), self.optional(2));
        let arguments =
            LayerNormArguments { x: self.x(0), scale, bias, y: self.y(), rows, size, epsilon, unused: 0 };
        KernelLaunch::of_blocks("layer_norm", [rows, 1, 1], &arguments)
    }

    fn local_response_norm(&self, size: usize, factors: [f32; 3], count: u64) -> KernelLaunch {
        let [outer, channels, inner] = around(self.shape_of(0), 1);
        let ([alpha, beta, bias], size) = (factors, size as u64);
        let arguments = LocalResponseNormArguments {
            x: self.x(0),
            y: self.y(),
            outer,
            channels,
            inner,
            size,
            alpha,
            beta,
            bias,
            unused: 0,
        };
        KernelLaunch::for_each("local_response_norm", count, &arguments)
    }

    /// Returns a launch for each input that has elements.
    fn concat(&self, axis: usize) -> Vec<KernelLaunch> {
        let element = self.launch.output.of.element.bytes() as u64;
        let [blocks, size, inner] = around(self.shape(), axis);
        let step = size * inner * element;
        let mut y = self.y();
        let mut launches = Vec::new();
        for (at, input) in self.launch.inputs.iter().enumerate() {
            let bytes = input.of.shape[axis] as u64 * inner * element;
            if bytes > 0 {
                let arguments = ConcatPartArguments { x: self.x(at), y, blocks, bytes, step };
                launches.push(KernelLaunch::for_each("concat_part", blocks * bytes / element, &arguments));
            }
            y += bytes;
        }
        launches
    }

    fn gather(&self, axis: usize) -> KernelLaunch {
        let [outer, size, inner] = around(self.shape_of(0), axis);
        let indices = &self.launch.inputs[1];
        let chosen = indices.of.elements().unwrap_or(0) as u64;
        let bytes = inner * self.element(0).bytes() as u64;
        let arguments = GatherArguments {
            data: self.x(0),
            indices: self.x(1),
            y: self.y(),
            status: self.placement.status().0,
            outer,
            size,
            chosen,
            bytes,
            index_element: indices.of.element.code().into(),
        };
        KernelLaunch::for_each("gather", outer * chosen * inner, &arguments)
    }

    fn strided_copy(
        &self,
        walked: &[usize],
        strides: &[i64],
        offset: usize,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let arguments = StridedCopyArguments {
            x: self.x(0),
            y: self.y(),
            count,
            offset: offset as u64,
            shape: padded(walked)?,
            strides: padded_strides(strides)?,
            available: self.launch.inputs[0].of.elements().unwrap_or(0) as u64,
            bytes: self.element(0).bytes() as u64,
        };
        Ok(KernelLaunch::for_each("strided_copy", count, &arguments))
    }

    fn pad(&self, begins: &[i64], fill: PadFill, count: u64) -> Result<KernelLaunch, String> {
        let value = match (fill, self.element(0)) {
            (PadFill::Constant(value), PlanElement::F32) => u64::from(value.to_bits()),
            (PadFill::Constant(value), PlanElement::I32) => u64::from((value as i32).cast_unsigned()),
            (PadFill::Constant(value), PlanElement::I64) => (value as i64).cast_unsigned(),
            (PadFill::Constant(value), PlanElement::Bool) => u64::from(value != 0.0),
            _ => 0,
        };
        let arguments = PadArguments {
            x: self.x(0),
            y: self.y(),
            count,
            input_shape: padded(self.shape_of(0))?,
            output_shape: padded(self.shape())?,
            begins: padded_strides(begins)?,
            value,
            bytes: self.element(0).bytes() as u32,
            fill: fill.code(),
        };
        Ok(KernelLaunch::for_each("pad", count, &arguments))
    }

    fn resize(
        &self,
        [scale_h, scale_w]: [f32; 2],
        interpolation: u32,
        coordinates: u32,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(self.shape_of(0))?;
        let [_, _, out_h, out_w] = image(self.shape())?;
        let planes = u64::from(n) * u64::from(c);
        let (x, y) = (self.x(0), self.y());
        let arguments = ResizeArguments {
            x,
            y,
            planes,
            h,
            w,
            out_h,
            out_w,
            scale_h,
            scale_w,
            interpolation,
            coordinates,
        };
        Ok(KernelLaunch::for_each("resize", count, &arguments))
    }
}

/// Returns the product of the dimensions before an axis, its size, and the product of those behind.
fn around(shape: &[usize], axis: usize) -> [u64; 3] {
    let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product();
    [product(&shape[..axis]), shape[axis] as u64, product(&shape[axis + 1..])]
}

/// Returns the four sizes of an image, as kernels take them.
fn image(shape: &[usize]) -> Result<[u32; 4], String> {
    match *shape {
        [a, b, c, d] => Ok([small(a)?, small(b)?, small(c)?, small(d)?]),
        _ => Err(format!("an image has the shape {shape:?}")),
    }
}

/// Returns a size as kernels on images take it: their places fit 32 bits with a sign.
fn small(size: usize) -> Result<u32, String> {
    let found = u32::try_from(size).ok().filter(|size| *size <= i32::MAX.cast_unsigned());
    found.ok_or_else(|| format!("a size of {size} is too large for the kernels on images"))
}

/// Returns a shape with ones in front.
fn padded(shape: &[usize]) -> Result<[u64; MAX_RANK], String> {
    let mut padded = [1; MAX_RANK];
    let front = in_front(shape.len())?;
    padded[front..].iter_mut().zip(shape).for_each(|(to, &size)| *to = size as u64);
    Ok(padded)
}

/// Returns distances, or counts, with zeros in front.
fn padded_strides(strides: &[i64]) -> Result<[i64; MAX_RANK], String> {
    let mut padded = [0; MAX_RANK];
    padded[in_front(strides.len())?..].copy_from_slice(strides);
    Ok(padded)
}

fn in_front(rank: usize) -> Result<usize, String> {
    MAX_RANK
        .checked_sub(rank)
        .ok_or_else(|| format!("a tensor has {rank} dimensions; kernels take at most {MAX_RANK}"))
}

/// Returns the distances of neighbours in a dense tensor.
fn dense(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

/// Returns the distances in a dense tensor of `shape` that is stretched to `to`.
fn stretched(shape: &[usize], to: &[usize]) -> Result<[i64; MAX_RANK], String> {
    let strides = shape.iter().zip(dense(shape)).map(|(&size, stride)| if size == 1 { 0 } else { stride });
    let mut all = vec![0; to.len() - shape.len()];
    all.extend(strides);
    padded_strides(&all)
}
