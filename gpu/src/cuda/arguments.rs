//! The arguments of the kernels: one structure each, whose declaration for the kernels' compiler is
//! made of the same lines as the host's. So the two can't differ.

use bytemuck::{Pod, Zeroable};
use std::fmt::Write;

/// The most dimensions of a tensor that is walked through.
pub const MAX_RANK: usize = 8;

/// The type of a field, as the kernels' compiler names it.
trait DeviceField {
    /// The name of the type, or of the type of an element.
    const NAME: &'static str;
    /// What stands behind the field's name.
    const BRACKETS: &'static str = "";
}

impl DeviceField for u64 {
    const NAME: &'static str = "unsigned long long";
}

impl DeviceField for u32 {
    const NAME: &'static str = "unsigned int";
}

impl DeviceField for f32 {
    const NAME: &'static str = "float";
}

impl DeviceField for [u64; MAX_RANK] {
    const NAME: &'static str = u64::NAME;
    const BRACKETS: &'static str = "[8]";
}

impl DeviceField for [i64; MAX_RANK] {
    const NAME: &'static str = "long long";
    const BRACKETS: &'static str = "[8]";
}

impl DeviceField for FunctionCode {
    const NAME: &'static str = "FunctionCode";
}

/// Declares a structure for the host, and how to declare it for the device, whose compiler checks
/// its size. `Pod` allows no gaps, so fields of the same types and the same sum lie at the same
/// places.
macro_rules! device_struct {
    ($(#[$attribute:meta])* $name:ident { $($(#[$field_attribute:meta])* $field:ident: $of:ty,)* }) => {
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $of,)*
        }

        impl $name {
            fn declare(to: &mut String) {
                let name = stringify!($name);
                let _ = writeln!(to, "struct {name} {{");
                $(let _ = writeln!(
                    to,
                    "    {} {}{};",
                    <$of as DeviceField>::NAME,
                    stringify!($field),
                    <$of as DeviceField>::BRACKETS
                );)*
                let _ = writeln!(to, "}};");
                let _ = writeln!(to, "static_assert(sizeof({name}) == {}, \"{name}\");", size_of::<$name>());
            }
        }
    };
}

device_struct! {
    /// A function of one element, with its parameters: see `codes.rs`.
    FunctionCode {
        /// The function's number; 0 for none.
        code: u32,
        /// The first parameter.
        a: f32,
        /// The second parameter.
        b: f32,
        /// Nothing.
        unused: u32,
    }
}

device_struct! {
    /// `y[i] = function(x[i])`; x and y may be the same.
    UnaryArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The number of elements.
        count: u64,
        /// What is computed.
        function: FunctionCode,
        /// The number of the elements' type.
        element: u32,
        /// Nothing.
        unused: u32,
    }
}

device_struct! {
    /// `y[i] = x[i]`, as elements of another type.
    CastArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The number of elements.
        count: u64,
        /// The number of the input's type.
        from: u32,
        /// The number of the output's type.
        to: u32,
    }
}

device_struct! {
    /// A function of pairs of elements.
    BinaryArguments {
        /// The left input.
        left: u64,
        /// The right input.
        right: u64,
        /// The output.
        y: u64,
        /// A word that becomes [`DIVIDED_BY_ZERO`] if a whole number is divided by 0.
        status: u64,
        /// The number of elements of the output.
        count: u64,
        /// The output's shape, its last dimension last; what is not used in front is 1.
        shape: [u64; MAX_RANK],
        /// The distances of neighbours in the left input.
        left_strides: [i64; MAX_RANK],
        /// The distances of neighbours in the right input.
        right_strides: [i64; MAX_RANK],
        /// How many neighbours of the output read the same element of the left input.
        left_inner: u64,
        /// After how many elements the left input is read from its start again; 0 where only the
        /// strides say what is read.
        left_period: u64,
        /// What `left_inner` is, for the right input.
        right_inner: u64,
        /// What `left_period` is, for the right input.
        right_period: u64,
        /// What follows.
        activation: FunctionCode,
        /// The number of the function.
        function: u32,
        /// The number of the inputs' type.
        element: u32,
    }
}

device_struct! {
    /// One of two elements, as a condition says.
    SelectArguments {
        /// The condition.
        condition: u64,
        /// The input where it is true.
        left: u64,
        /// The input where it is false.
        right: u64,
        /// The output.
        y: u64,
        /// The number of elements of the output.
        count: u64,
        /// The output's shape, as in [`BinaryArguments`].
        shape: [u64; MAX_RANK],
        /// The distances of neighbours in the condition.
        condition_strides: [i64; MAX_RANK],
        /// The distances of neighbours in the left input.
        left_strides: [i64; MAX_RANK],
        /// The distances of neighbours in the right input.
        right_strides: [i64; MAX_RANK],
        /// The size of an element, bytes.
        bytes: u64,
    }
}

device_struct! {
    /// `x * scale + shift`, by channel.
    AffineArguments {
        /// The input.
        x: u64,
        /// A factor for each channel.
        scale: u64,
        /// A term for each channel.
        shift: u64,
        /// The output.
        y: u64,
        /// The number of elements.
        count: u64,
        /// The number of channels.
        channels: u64,
        /// The elements of a channel that lie side by side.
        inner: u64,
        /// What follows.
        activation: FunctionCode,
        /// The number of the elements' type.
        element: u32,
        /// Nothing.
        unused: u32,
    }
}

device_struct! {
    /// A convolution.
    ConvolutionArguments {
        /// The image.
        x: u64,
        /// The kernels.
        weights: u64,
        /// The bias; 0 for none.
        bias: u64,
        /// The output.
        y: u64,
        /// The images.
        n: u32,
        /// The channels of an image.
        c: u32,
        /// An image's height.
        h: u32,
        /// An image's width.
        w: u32,
        /// The channels of the output.
        m: u32,
        /// The channels that a kernel reads.
        depth: u32,
        /// A kernel's height.
        kernel_h: u32,
        /// A kernel's width.
        kernel_w: u32,
        /// The output's height.
        out_h: u32,
        /// The output's width.
        out_w: u32,
        /// The groups.
        groups: u32,
        /// The step down.
        stride_h: u32,
        /// The step right.
        stride_w: u32,
        /// The distance of a kernel's rows.
        dilation_h: u32,
        /// The distance of a kernel's columns.
        dilation_w: u32,
        /// The rows of zeros above.
        pad_top: u32,
        /// The columns of zeros on the left.
        pad_left: u32,
        /// Whether the channels come last.
        channels_last: u32,
        /// What follows.
        activation: FunctionCode,
        /// The number of the elements' type.
        element: u32,
        /// Nothing.
        unused: u32,
    }
}

device_struct! {
    /// Products of matrices.
    MatrixProductArguments {
        /// The left matrices.
        left: u64,
        /// The right matrices.
        right: u64,
        /// The bias of each column; 0 for none.
        bias: u64,
        /// The output.
        y: u64,
        /// The number of products.
        batches: u64,
        /// The rows of a product.
        rows: u64,
        /// The columns of a product.
        columns: u64,
        /// The terms of each sum.
        depth: u64,
        /// The shape of the products' dimensions in front, as in [`BinaryArguments`].
        shape: [u64; MAX_RANK],
        /// The distances of left matrices, in matrices.
        left_strides: [i64; MAX_RANK],
        /// The distances of right matrices, in matrices.
        right_strides: [i64; MAX_RANK],
        /// What follows.
        activation: FunctionCode,
        /// Whether the left matrices are transposed.
        left_transposed: u32,
        /// Whether the right matrices are transposed.
        right_transposed: u32,
        /// The factor.
        alpha: f32,
        /// The number of the elements' type.
        element: u32,
    }
}

device_struct! {
    /// The largest or the mean element of each window.
    PoolArguments {
        /// The images.
        x: u64,
        /// The output.
        y: u64,
        /// The number of images.
        images: u64,
        /// The channels of an image.
        channels: u64,
        /// An image's height.
        h: u32,
        /// An image's width.
        w: u32,
        /// The output's height.
        out_h: u32,
        /// The output's width.
        out_w: u32,
        /// The window's height.
        size_h: u32,
        /// The window's width.
        size_w: u32,
        /// The step down.
        stride_h: u32,
        /// The step right.
        stride_w: u32,
        /// The distance of a window's rows.
        dilation_h: u32,
        /// The distance of a window's columns.
        dilation_w: u32,
        /// The rows above.
        pad_top: u32,
        /// The columns on the left.
        pad_left: u32,
        /// The rows below.
        pad_bottom: u32,
        /// The columns on the right.
        pad_right: u32,
        /// The number of the function.
        function: u32,
        /// Whether the channels come last.
        channels_last: u32,
        /// The number of the elements' type.
        element: u32,
        /// Nothing.
        unused: u32,
    }
}

device_struct! {
    /// One element for all along some dimensions.
    ReduceArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The number of elements of the output.
        count: u64,
        /// The number of elements that each is of.
        reduced: u64,
        /// The shape that is kept, as in [`BinaryArguments`].
        kept_shape: [u64; MAX_RANK],
        /// The distances of neighbours along it in the input.
        kept_strides: [i64; MAX_RANK],
        /// The shape that is reduced, as in [`BinaryArguments`].
        gone_shape: [u64; MAX_RANK],
        /// The distances of neighbours along it in the input.
        gone_strides: [i64; MAX_RANK],
        /// The number of the function.
        function: u32,
        /// The number of the elements' type.
        element: u32,
    }
}

device_struct! {
    /// Exponentials that sum to 1.
    SoftmaxArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The product of the dimensions in front.
        outer: u64,
        /// The dimension's size.
        size: u64,
        /// The product of the dimensions behind.
        inner: u64,
        /// Whether logarithms are written.
        logarithm: u32,
        /// The number of the elements' type.
        element: u32,
    }
}

device_struct! {
    /// Elements with the mean 0 and the variance 1, scaled and shifted.
    LayerNormArguments {
        /// The input.
        x: u64,
        /// What is added to the input before; 0 for nothing.
        added: u64,
        /// A factor for each element of a row.
        scale: u64,
        /// A term for each; 0 for none.
        bias: u64,
        /// The output.
        y: u64,
        /// The number of rows.
        rows: u64,
        /// The elements of a row.
        size: u64,
        /// What keeps the divisor above 0.
        epsilon: f32,
        /// The number of the elements' type.
        element: u32,
        /// What follows.
        activation: FunctionCode,
    }
}

device_struct! {
    /// Attention: `softmax(scale * q * k' + mask) * v` for each head.
    AttentionArguments {
        /// The rows that ask.
        q: u64,
        /// The rows that they are compared with.
        k: u64,
        /// The rows that are mixed.
        v: u64,
        /// What is added to the scores; 0 for nothing.
        mask: u64,
        /// The output, whose rows lie one behind another.
        y: u64,
        /// The size of the batch.
        batches: u64,
        /// The number of heads.
        heads: u64,
        /// The rows of q.
        queries: u64,
        /// The rows of k and v.
        keys: u64,
        /// The elements of a head.
        size: u64,
        /// The distance of two rows of q, k or v.
        lead: u64,
        /// The distances of neighbours in the mask, of which the last four are by batch, head, row
        /// of q and row of k.
        mask_strides: [i64; MAX_RANK],
        /// The factor of the products.
        scale: f32,
        /// The number of the elements' type.
        element: u32,
    }
}

device_struct! {
    /// Local response normalisation.
    LocalResponseNormArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The images.
        outer: u64,
        /// The channels of an image.
        channels: u64,
        /// The elements of a channel.
        inner: u64,
        /// The number of neighbouring channels.
        size: u64,
        /// The factor of the squares.
        alpha: f32,
        /// The exponent.
        beta: f32,
        /// What is added.
        bias: f32,
        /// The number of the elements' type.
        element: u32,
    }
}

device_struct! {
    /// A part of a concatenation: blocks of one input, with gaps in the output.
    ConcatPartArguments {
        /// The input.
        x: u64,
        /// The output, from the first byte of this part on.
        y: u64,
        /// The number of blocks.
        blocks: u64,
        /// The size of a block, bytes.
        bytes: u64,
        /// The distance of two blocks in the output, bytes.
        step: u64,
    }
}

device_struct! {
    /// Parts of a tensor at given indices.
    GatherArguments {
        /// The tensor.
        data: u64,
        /// The indices.
        indices: u64,
        /// The output.
        y: u64,
        /// A word that becomes [`INDEX_OUT_OF_RANGE`] if an index is.
        status: u64,
        /// The product of the dimensions in front.
        outer: u64,
        /// The dimension's size.
        size: u64,
        /// The number of indices.
        chosen: u64,
        /// The bytes behind an index.
        bytes: u64,
        /// The number of the indices' type.
        index_element: u64,
    }
}

device_struct! {
    /// A copy of elements that do not lie side by side.
    StridedCopyArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The number of elements.
        count: u64,
        /// The first element's place.
        offset: u64,
        /// The shape that is walked through, as in [`BinaryArguments`].
        shape: [u64; MAX_RANK],
        /// The distances of neighbours in the input.
        strides: [i64; MAX_RANK],
        /// The number of elements of the input.
        available: u64,
        /// The size of an element, bytes.
        bytes: u64,
    }
}

device_struct! {
    /// A tensor with elements around it.
    PadArguments {
        /// The input.
        x: u64,
        /// The output.
        y: u64,
        /// The number of elements of the output.
        count: u64,
        /// The input's shape, as in [`BinaryArguments`].
        input_shape: [u64; MAX_RANK],
        /// The output's shape, as in [`BinaryArguments`].
        output_shape: [u64; MAX_RANK],
        /// The elements in front.
        begins: [i64; MAX_RANK],
        /// The constant, as an element.
        value: u64,
        /// The size of an element, bytes.
        bytes: u32,
        /// The number of the filling.
        fill: u32,
    }
}

device_struct! {
    /// An image in another size.
    ResizeArguments {
        /// The images.
        x: u64,
        /// The output.
        y: u64,
        /// The number of images.
        images: u64,
        /// The channels of an image.
        channels: u64,
        /// An image's height.
        h: u32,
        /// An image's width.
        w: u32,
        /// The output's height.
        out_h: u32,
        /// The output's width.
        out_w: u32,
        /// How many times higher it is.
        scale_h: f32,
        /// How many times wider it is.
        scale_w: f32,
        /// The number of the interpolation.
        interpolation: u32,
        /// The number of the way in which coordinates are found.
        coordinates: u32,
        /// Whether the channels come last.
        channels_last: u32,
        /// The number of the elements' type.
        element: u32,
    }
}

/// What a kernel writes into the status word if a whole number is divided by 0.
pub const DIVIDED_BY_ZERO: u32 = 1;

/// What a kernel writes into the status word if an index is out of range.
pub const INDEX_OUT_OF_RANGE: u32 = 2;

/// Returns what a status word of a batch means; `None` if nothing went wrong.
pub fn status_text(status: u32) -> Option<&'static str> {
    match status {
        0 => None,
        DIVIDED_BY_ZERO => Some("a whole number is divided by 0"),
        INDEX_OUT_OF_RANGE => Some("an index of a Gather is out of range"),
        _ => Some("a kernel has reported a fault that it does not have"),
    }
}

/// Declares all structures, and the faults that kernels write, for the kernels' compiler.
pub(super) fn declare(to: &mut String) {
    let declarations: [fn(&mut String); 19] = [
        FunctionCode::declare,
        UnaryArguments::declare,
        CastArguments::declare,
        BinaryArguments::declare,
        SelectArguments::declare,
        AffineArguments::declare,
        ConvolutionArguments::declare,
        MatrixProductArguments::declare,
        PoolArguments::declare,
        ReduceArguments::declare,
        SoftmaxArguments::declare,
        LayerNormArguments::declare,
        AttentionArguments::declare,
        LocalResponseNormArguments::declare,
        ConcatPartArguments::declare,
        GatherArguments::declare,
        StridedCopyArguments::declare,
        PadArguments::declare,
        ResizeArguments::declare,
    ];
    declarations.iter().for_each(|declare| declare(to));
    let _ = writeln!(to, "#define DIVIDED_BY_ZERO {DIVIDED_BY_ZERO}u");
    let _ = writeln!(to, "#define INDEX_OUT_OF_RANGE {INDEX_OUT_OF_RANGE}u");
}
