//! What a library of kernels can be asked to compute, as plain data: the sizes and the types of a
//! call, without addresses.

use crate::plan::{ImageLayout, PlanElement};

/// What a library computes in one call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LibraryCall {
    /// Products of matrices.
    Product(ProductCall),
    /// A convolution.
    Convolution(ConvolutionCall),
}

/// The function of each result that a library applies before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FusedFunction {
    /// None.
    Identity,
    /// The greater of the number and 0.
    Relu,
    /// GELU by the hyperbolic tangent.
    GeluTanh,
}

/// Products of dense matrices whose rows lie one behind another, each product's behind the one
/// before: `function(alpha * left * right + bias)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProductCall {
    /// The type of all elements; sums are in single precision.
    pub element: PlanElement,
    /// The number of products.
    pub batches: u64,
    /// Whether the left and the right matrix of each product is one of its own, or one for all.
    pub own: [bool; 2],
    /// The rows of a product.
    pub rows: u64,
    /// The columns of a product.
    pub columns: u64,
    /// The terms of each sum.
    pub depth: u64,
    /// Whether the left and the right matrix are transposed.
    pub transposed: [bool; 2],
    /// The factor of the sum.
    pub alpha: f32,
    /// Whether there is a bias for each column.
    pub has_bias: bool,
    /// The function of each result.
    pub function: FusedFunction,
}

/// A convolution of dense images: `function(image * kernels + bias)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvolutionCall {
    /// The type of all elements; sums are in single precision.
    pub element: PlanElement,
    /// The order of the dimensions of image, kernels and output.
    pub layout: ImageLayout,
    /// The image: N, C, height, width.
    pub image: [usize; 4],
    /// The kernels: M, C / groups, height, width.
    pub kernels: [usize; 4],
    /// The output: N, M, height, width.
    pub output: [usize; 4],
    /// The groups of channels, each with its own kernels.
    pub groups: usize,
    /// The rows above and below the image, and the columns left and right of it.
    pub pads: [usize; 2],
    /// The steps from one output to the next: down, right.
    pub strides: [usize; 2],
    /// The distances of a kernel's elements: down, right.
    pub dilations: [usize; 2],
    /// Whether there is a bias for each M.
    pub has_bias: bool,
    /// Whether the greater of each result and 0 is taken; only with a bias.
    pub relu: bool,
}

impl LibraryCall {
    /// Returns the libraries' name for it, for people.
    pub fn library(&self) -> &'static str {
        match self {
            LibraryCall::Product(_) => CUBLASLT,
            LibraryCall::Convolution(_) => CUDNN,
        }
    }
}

/// The name of the library for products.
pub const CUBLASLT: &str = "cuBLASLt";

/// The name of the library for convolutions.
pub const CUDNN: &str = "cuDNN";
