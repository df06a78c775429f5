//! The launches of a plan as launches of kernels: which kernel, how many threads, which arguments.
//! It is computed here alone, whatever the driver.

use super::arguments::{
    AffineArguments, AttentionArguments, BinaryArguments, CastArguments, ConcatPartArguments,
    ConvolutionArguments, FunctionCode, GatherArguments, LayerNormArguments, LocalResponseNormArguments,
    MAX_RANK, MatrixProductArguments, PadArguments, PoolArguments, ReduceArguments, ResizeArguments,
    SelectArguments, SoftmaxArguments, StridedCopyArguments, UnaryArguments,
};
use super::codes::Coded;
use super::driver::{DevicePointer, LaunchShape};
use crate::plan::{
    AttentionSizes, BinaryFunction, ImageLayout, Launch, Operand, Operation, PadFill, PlanElement,
    PlanPrecision, PlanType, PoolFunction, ReduceFunction, UnaryFunction, WindowSpec,
};
use bytemuck::{Pod, bytes_of};

/// The kernels, by their names in the source.
pub const KERNELS: [&str; 31] = [
    "unary",
    "cast",
    "binary",
    "select_elements",
    "affine",
    "convolution",
    "convolution_directly",
    "convolution_by_depth",
    "convolution_f16_64",
    "convolution_f16_128",
    "convolution_bf16_64",
    "convolution_bf16_128",
    "matrix_product",
    "matrix_product_f16_64",
    "matrix_product_f16_128",
    "matrix_product_bf16_64",
    "matrix_product_bf16_128",
    "attention_f16_64",
    "attention_f16_128",
    "attention_bf16_64",
    "attention_bf16_128",
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

/// Returns the kernels for plans of a precision.
pub fn kernels_of(precision: PlanPrecision) -> impl Iterator<Item = &'static str> {
    let is_of = move |name: &&'static str| {
        let (f16, bf16) = (name.contains("_f16"), name.contains("_bf16"));
        (!f16 || precision == PlanPrecision::Fp16) && (!bf16 || precision == PlanPrecision::Bf16)
    };
    KERNELS.into_iter().filter(is_of)
}

/// The threads of a block, for all kernels.
const THREADS: u32 = 256;

/// The most blocks along x: kernels take the rest in further turns.
const MOST_BLOCKS: u64 = 65_535;

/// The edge of the square of results that a block of a product or a convolution computes.
const TILE: u64 = 64;

/// The edge of the larger squares by tensor cores, where there are enough of them.
const LARGE_TILE: u64 = 128;

/// The number of larger squares that keep a card busy: about its multiprocessors.
const ENOUGH_TILES: u64 = 96;

/// The channels of a group's output below which a convolution is computed without tiles.
const FEW_CHANNELS: usize = 16;

/// The channels of a group below which halves are computed without tiles.
const FEW_CHANNELS_OF_HALVES: usize = 8;

/// The neighbouring floats that a thread computes where they are computed one by one.
const EACH_TIME: u64 = 8;

/// The most bytes that a thread copies at once.
const PIECE_BYTES: u64 = 16;

/// The rows of a softmax that a block computes, where a warp computes one.
const ROWS_BY_WARP: u64 = 8;

/// The longest row of a softmax that a warp computes.
const WARP_ROW: u64 = 1_024;

/// The longest row of a layer norm that half a block computes.
const HALF_BLOCK_ROW: u64 = 1_024;

/// The rows of q that a block of an attention computes: 16 a warp.
const ATTENTION_ROWS: u64 = 128;

/// The elements of a head that the smaller kernel of attention has room for.
const SMALL_HEAD: u64 = 64;

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

    /// Makes a launch with a thread for every eight of `count` things.
    fn for_eight<T: Pod>(kernel: &'static str, count: u64, arguments: &T) -> KernelLaunch {
        KernelLaunch::for_each(kernel, count.div_ceil(EACH_TIME), arguments)
    }

    /// Makes a launch for `count` elements, of which a thread has one, or eight if they are floats.
    fn for_elements<T: Pod>(
        kernel: &'static str,
        count: u64,
        are_floats: bool,
        arguments: &T,
    ) -> KernelLaunch {
        let launch = if are_floats { KernelLaunch::for_eight } else { KernelLaunch::for_each };
        launch(kernel, count, arguments)
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

/// Returns the launches of kernels that compute a launch of a plan: one or, of a concatenation,
/// several. A launch without elements needs none.
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
    placed.launches(count)
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

    fn launches(&self, count: u64) -> Result<Vec<KernelLaunch>, String> {
        let one = match &self.launch.operation {
            Operation::Unary(function) => self.unary(*function, self.x(0), self.element(0), count),
            Operation::Cast { to } => self.cast(*to, count),
            Operation::Binary(function) => self.binary(*function, count)?,
            Operation::Select => self.select(count)?,
            Operation::Affine { axis } => self.affine(*axis, count),
            Operation::Convolution { layout, window, groups } => {
                self.convolution(*layout, window, *groups, count)?
            }
            Operation::MatrixProduct { transposed, alpha } => self.matrix_product(*transposed, *alpha)?,
            Operation::Pool { layout, function, size, window } => {
                self.pool(*layout, *function, *size, window, count)?
            }
            Operation::Reduce { function, axes } => self.reduce(*function, axes, count)?,
            Operation::Softmax { axis, logarithm } => self.softmax(*axis, *logarithm),
            Operation::LayerNorm { axis, epsilon, adds } => self.layer_norm(*axis, *epsilon, *adds),
            Operation::Attention { heads, scale, packed } => self.attention(*heads, *scale, *packed)?,
            Operation::LocalResponseNorm { axis, size, alpha, beta, bias } => {
                self.local_response_norm([*axis, *size], [*alpha, *beta, *bias], count)
            }
            Operation::Concat { axis } => return Ok(self.concat(*axis)),
            Operation::Gather { axis } => self.gather(*axis),
            Operation::StridedCopy { walked, strides, offset, .. } => {
                self.strided_copy(walked, strides, *offset, count)?
            }
            Operation::Pad { begins, fill, .. } => self.pad(begins, *fill, count)?,
            Operation::Resize { layout, scales, interpolation, coordinates, .. } => {
                self.resize(*layout, *scales, interpolation.code(), coordinates.code(), count)?
            }
        };
        Ok(vec![one])
    }

    fn activation(&self) -> FunctionCode {
        FunctionCode::of(self.launch.activation)
    }

    fn unary(&self, function: UnaryFunction, x: u64, element: PlanElement, count: u64) -> KernelLaunch {
        let function = FunctionCode::of(Some(function));
        let arguments =
            UnaryArguments { x, y: self.y(), count, function, element: element.code(), unused: 0 };
        KernelLaunch::for_elements("unary", count, element.is_float(), &arguments)
    }

    fn cast(&self, to: PlanElement, count: u64) -> KernelLaunch {
        let (from, to) = (self.element(0).code(), to.code());
        let arguments = CastArguments { x: self.x(0), y: self.y(), count, from, to };
        let are_floats = self.element(0).is_float() && self.launch.output.of.element.is_float();
        KernelLaunch::for_elements("cast", count, are_floats, &arguments)
    }

    fn binary(&self, function: BinaryFunction, count: u64) -> Result<KernelLaunch, String> {
        let [left_inner, left_period] = repetition(self.shape_of(0), self.shape());
        let [right_inner, right_period] = repetition(self.shape_of(1), self.shape());
        let arguments = BinaryArguments {
            left: self.x(0),
            right: self.x(1),
            y: self.y(),
            status: self.placement.status().0,
            count,
            shape: padded(self.shape())?,
            left_strides: stretched(self.shape_of(0), self.shape())?,
            right_strides: stretched(self.shape_of(1), self.shape())?,
            left_inner,
            left_period,
            right_inner,
            right_period,
            activation: self.activation(),
            function: function.code(),
            element: self.element(0).code(),
        };
        let are_floats = self.launch.output.of.element.is_float();
        Ok(KernelLaunch::for_elements("binary", count, are_floats, &arguments))
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
            element: self.element(0).code(),
            unused: 0,
        };
        KernelLaunch::for_eight("affine", count, &arguments)
    }

    fn convolution(
        &self,
        layout: ImageLayout,
        window: &WindowSpec,
        groups: usize,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(layout, self.shape_of(0))?;
        let [m, depth, kernel_h, kernel_w] = image(layout, self.shape_of(1))?;
        let [_, _, out_h, out_w] = image(layout, self.shape())?;
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
            channels_last: (layout == ImageLayout::ChannelsLast).into(),
            activation: self.activation(),
            element: self.element(0).code(),
            unused: 0,
        };
        let of_group = m as usize / groups;
        let pixels = u64::from(n) * u64::from(out_h) * u64::from(out_w);
        let blocks = |tile| [pixels.div_ceil(tile), (of_group as u64).div_ceil(tile), groups as u64];
        let [large, small] = match (self.element(0), layout) {
            (PlanElement::F32, ImageLayout::ChannelsFirst) if of_group >= FEW_CHANNELS => {
                return Ok(KernelLaunch::of_blocks("convolution", blocks(TILE), &arguments));
            }
            (PlanElement::F32, _) | (_, ImageLayout::ChannelsFirst) => ["convolution_directly"; 2],
            _ if is_by_depth(self.element(0), layout, [c, m, depth].map(|size| size as usize), groups) => {
                return Ok(KernelLaunch::for_eight("convolution_by_depth", count, &arguments));
            }
            _ if of_group < FEW_CHANNELS_OF_HALVES => ["convolution_directly"; 2],
            (PlanElement::Bf16, _) => ["convolution_bf16_128", "convolution_bf16_64"],
            _ => ["convolution_f16_128", "convolution_f16_64"],
        };
        if large == small {
            return Ok(KernelLaunch::for_each(large, count, &arguments));
        }
        Ok(of_halves([large, small], blocks, &arguments))
    }

    fn matrix_product(&self, transposed: [bool; 2], alpha: f32) -> Result<KernelLaunch, String> {
        let products = MatrixProducts::of(self.launch, transposed)?;
        let MatrixProducts { batches, rows, columns, depth, shape, strides } = products;
        let arguments = MatrixProductArguments {
            left: self.x(0),
            right: self.x(1),
            bias: self.optional(2),
            y: self.y(),
            batches,
            rows,
            columns,
            depth,
            shape,
            left_strides: strides[0],
            right_strides: strides[1],
            activation: self.activation(),
            left_transposed: transposed[0].into(),
            right_transposed: transposed[1].into(),
            alpha,
            element: self.element(0).code(),
        };
        let blocks = |tile| [columns.div_ceil(tile), rows.div_ceil(tile), batches];
        let kernels = match self.element(0) {
            PlanElement::F16 => ["matrix_product_f16_128", "matrix_product_f16_64"],
            PlanElement::Bf16 => ["matrix_product_bf16_128", "matrix_product_bf16_64"],
            _ => return Ok(KernelLaunch::of_blocks("matrix_product", blocks(TILE), &arguments)),
        };
        Ok(of_halves(kernels, blocks, &arguments))
    }

    fn pool(
        &self,
        layout: ImageLayout,
        function: PoolFunction,
        size: [usize; 2],
        window: &WindowSpec,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(layout, self.shape_of(0))?;
        let [_, _, out_h, out_w] = image(layout, self.shape())?;
        let WindowSpec { strides, dilations, pads, .. } = window;
        let arguments = PoolArguments {
            x: self.x(0),
            y: self.y(),
            images: n.into(),
            channels: c.into(),
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
            channels_last: (layout == ImageLayout::ChannelsLast).into(),
            element: self.element(0).code(),
            unused: 0,
        };
        let by_eight = layout == ImageLayout::ChannelsLast && u64::from(c).is_multiple_of(EACH_TIME);
        Ok(KernelLaunch::for_each("pool", if by_eight { count / EACH_TIME } else { count }, &arguments))
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
        let (x, y, logarithm, element) = (self.x(0), self.y(), logarithm.into(), self.element(0).code());
        let arguments = SoftmaxArguments { x, y, outer, size, inner, logarithm, element };
        let by_warp = inner == 1 && size <= WARP_ROW;
        let rows = if by_warp { outer.div_ceil(ROWS_BY_WARP) } else { outer * inner };
        KernelLaunch::of_blocks("softmax", [rows, 1, 1], &arguments)
    }

    fn layer_norm(&self, axis: usize, epsilon: f32, adds: bool) -> KernelLaunch {
        let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product();
        let (before, row) = self.shape_of(0).split_at(axis);
        let (rows, size) = (product(before), product(row));
        let own = self.launch.inputs.len() - usize::from(adds);
        let (bias, added) = (if own > 2 { self.x(2) } else { 0 }, if adds { self.x(own) } else { 0 });
        let (scale, element) = (self.x(1), self.element(0).code());
        let (x, y, activation) = (self.x(0), self.y(), self.activation());
        let arguments =
            LayerNormArguments { x, added, scale, bias, y, rows, size, epsilon, element, activation };
        let in_pieces = size <= HALF_BLOCK_ROW && size.is_multiple_of(EACH_TIME) && activation.code == 0;
        let blocks = if in_pieces { rows.div_ceil(2) } else { rows };
        KernelLaunch::of_blocks("layer_norm", [blocks, 1, 1], &arguments)
    }

    fn attention(&self, heads: usize, scale: f32, packed: bool) -> Result<KernelLaunch, String> {
        let inputs: Vec<&PlanType> = self.launch.inputs.iter().map(|input| &input.of).collect();
        let AttentionSizes { batches, queries, keys, hidden } = AttentionSizes::of(heads, packed, &inputs)?;
        let (size, bytes) = ((hidden / heads) as u64, (hidden * self.element(0).bytes()) as u64);
        let of = |at: usize| if packed { self.x(0) + at as u64 * bytes } else { self.x(at) };
        let lead = if packed { 3 * hidden } else { hidden } as u64;
        let mask_at = if packed { 1 } else { 3 };
        let mask_strides = match self.launch.inputs.get(mask_at) {
            Some(mask) => stretched(&mask.of.shape, &[batches, heads, queries, keys])?,
            None => [0; MAX_RANK],
        };
        let [batches, heads, queries, keys] = [batches, heads, queries, keys].map(|size| size as u64);
        let arguments = AttentionArguments {
            q: of(0),
            k: of(1),
            v: of(2),
            mask: self.optional(mask_at),
            y: self.y(),
            batches,
            heads,
            queries,
            keys,
            size,
            lead,
            mask_strides,
            scale,
            element: self.element(0).code(),
        };
        let kernel = match (self.element(0), size > SMALL_HEAD) {
            (PlanElement::Bf16, false) => "attention_bf16_64",
            (PlanElement::Bf16, true) => "attention_bf16_128",
            (_, false) => "attention_f16_64",
            (_, true) => "attention_f16_128",
        };
        let blocks = [queries.div_ceil(ATTENTION_ROWS), heads, batches];
        Ok(KernelLaunch::of_blocks(kernel, blocks, &arguments))
    }

    fn local_response_norm(&self, [axis, size]: [usize; 2], factors: [f32; 3], count: u64) -> KernelLaunch {
        let [outer, channels, inner] = around(self.shape_of(0), axis);
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
            element: self.element(0).code(),
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
                launches.push(KernelLaunch::for_each(
                    "concat_part",
                    (blocks * bytes).div_ceil(PIECE_BYTES),
                    &arguments,
                ));
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
        KernelLaunch::for_each("gather", (outer * chosen * bytes).div_ceil(PIECE_BYTES), &arguments)
    }

    fn strided_copy(
        &self,
        walked: &[usize],
        strides: &[i64],
        offset: usize,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let mut arguments = StridedCopyArguments {
            x: self.x(0),
            y: self.y(),
            count,
            offset: offset as u64,
            shape: padded(walked)?,
            strides: padded_strides(strides)?,
            available: self.launch.inputs[0].of.elements().unwrap_or(0) as u64,
            bytes: self.element(0).bytes() as u64,
        };
        in_pieces(&mut arguments);
        Ok(KernelLaunch::for_each("strided_copy", arguments.count, &arguments))
    }

    fn pad(&self, begins: &[i64], fill: PadFill, count: u64) -> Result<KernelLaunch, String> {
        let value = match fill {
            PadFill::Constant(value) => self.element(0).bits(value),
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
        layout: ImageLayout,
        [scale_h, scale_w]: [f32; 2],
        interpolation: u32,
        coordinates: u32,
        count: u64,
    ) -> Result<KernelLaunch, String> {
        let [n, c, h, w] = image(layout, self.shape_of(0))?;
        let [_, _, out_h, out_w] = image(layout, self.shape())?;
        let (images, channels, element) = (n.into(), c.into(), self.element(0).code());
        let channels_last = (layout == ImageLayout::ChannelsLast).into();
        let (x, y) = (self.x(0), self.y());
        let arguments = ResizeArguments {
            x,
            y,
            images,
            channels,
            h,
            w,
            out_h,
            out_w,
            scale_h,
            scale_w,
            interpolation,
            coordinates,
            channels_last,
            element,
        };
        Ok(KernelLaunch::for_each("resize", count, &arguments))
    }
}

/// Returns true if a convolution of C channels by M kernels of a depth is one by depth that the
/// kernel for these computes: of halves, channels last, each channel with its own kernel.
pub(super) fn is_by_depth(
    element: PlanElement,
    layout: ImageLayout,
    [c, m, depth]: [usize; 3],
    groups: usize,
) -> bool {
    let each_its_own = depth == 1 && m == c && groups == c;
    let in_pieces = layout == ImageLayout::ChannelsLast && c.is_multiple_of(EACH_TIME as usize);
    element.is_half() && each_its_own && in_pieces
}

/// Has a copy of elements that lie in rows of neighbours move pieces of as many as a thread copies
/// at once, where rows begin and end with such.
fn in_pieces(copy: &mut StridedCopyArguments) {
    let each = PIECE_BYTES / copy.bytes;
    let [before @ .., last] = &mut copy.strides;
    let sizes = [copy.shape[MAX_RANK - 1], copy.offset, copy.available];
    let fits = sizes.iter().all(|size| size.is_multiple_of(each))
        && before.iter().all(|stride| stride % each as i64 == 0);
    if *last != 1 || !fits {
        return;
    }
    before.iter_mut().for_each(|stride| *stride /= each as i64);
    copy.shape[MAX_RANK - 1] /= each;
    copy.offset /= each;
    copy.available /= each;
    copy.count /= each;
    copy.bytes = PIECE_BYTES;
}

/// Returns the product of the dimensions before an axis, its size, and the product of those behind.
fn around(shape: &[usize], axis: usize) -> [u64; 3] {
    let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product();
    [product(&shape[..axis]), shape[axis] as u64, product(&shape[axis + 1..])]
}

/// The products of matrices of a launch, as kernels and libraries take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MatrixProducts {
    /// The number of products.
    pub batches: u64,
    /// The rows of a product.
    pub rows: u64,
    /// The columns of a product.
    pub columns: u64,
    /// The terms of each sum.
    pub depth: u64,
    /// The shape of the dimensions in front.
    pub shape: [u64; MAX_RANK],
    /// The distances of left and right matrices along these, in matrices.
    pub strides: [[i64; MAX_RANK]; 2],
}

impl MatrixProducts {
    /// Returns the products of a launch. Left matrices that meet one right matrix are one of all
    /// their rows.
    ///
    /// # Errors
    /// There are more than [`MAX_RANK`] dimensions.
    pub fn of(launch: &Launch, transposed: [bool; 2]) -> Result<MatrixProducts, String> {
        let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product::<u64>();
        let shape = &launch.output.of.shape;
        let [left, right] = [0, 1].map(|at| &launch.inputs[at].of.shape[..]);
        let (before, size) = shape.split_at(shape.len() - 2);
        let (rows, columns) = (size[0] as u64, size[1] as u64);
        let depth = left[left.len() - if transposed[0] { 2 } else { 1 }] as u64;
        let in_front = |of: &[usize]| product(&of[..of.len() - 2]);
        if in_front(right) == 1 && !transposed[0] && in_front(left) == product(before) {
            let (rows, shape, strides) = (rows * product(before), [1; MAX_RANK], [[0; MAX_RANK]; 2]);
            return Ok(MatrixProducts { batches: 1, rows, columns, depth, shape, strides });
        }
        let matrices = |of: &[usize]| stretched(&of[..of.len() - 2], before);
        let (shape, strides) = (padded(before)?, [matrices(left)?, matrices(right)?]);
        Ok(MatrixProducts { batches: product(before), rows, columns, depth, shape, strides })
    }
}

/// Returns the launch of a product of halves: by the larger squares where there are enough.
fn of_halves<T: Pod>(
    [large, small]: [&'static str; 2],
    blocks: impl Fn(u64) -> [u64; 3],
    arguments: &T,
) -> KernelLaunch {
    let is_enough = blocks(LARGE_TILE).iter().product::<u64>() >= ENOUGH_TILES;
    let (kernel, tile) = if is_enough { (large, LARGE_TILE) } else { (small, TILE) };
    KernelLaunch::of_blocks(kernel, blocks(tile), arguments)
}

/// Returns how often an element of `shape` is read by neighbours when it is stretched to `to`, and
/// after how many elements the tensor starts again; a period of 0 if it is stretched otherwise.
fn repetition(shape: &[usize], to: &[usize]) -> [u64; 2] {
    let product = |sizes: &[usize]| sizes.iter().map(|&size| size as u64).product::<u64>();
    let front = to.len() - shape.len();
    let own = |axis: usize| if axis < front { 1 } else { shape[axis - front] };
    let kept: Vec<usize> = (0..to.len()).filter(|&axis| own(axis) != 1 || to[axis] == 1).collect();
    // The dimensions that are not stretched lie side by side.
    let real: Vec<usize> = kept.into_iter().filter(|&axis| to[axis] != 1).collect();
    match real[..] {
        [] => [1, 1],
        [first, .., last] if (first..=last).any(|axis| own(axis) == 1 && to[axis] != 1) => [1, 0],
        [first, ..] => {
            let last = real[real.len() - 1];
            [product(&to[last + 1..]), product(&to[first..=last])]
        }
    }
}

/// Returns the four sizes of an image, N, C, H and W, as kernels take them.
fn image(layout: ImageLayout, shape: &[usize]) -> Result<[u32; 4], String> {
    let shape: [usize; 4] = shape.try_into().map_err(|_| format!("an image has the shape {shape:?}"))?;
    let [n, c, h, w] = layout.sizes(shape);
    Ok([small(n)?, small(c)?, small(h)?, small(w)?])
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
