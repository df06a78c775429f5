//! The inputs of a model, of one row and of one request.

use super::element::Element;
use bytes::Bytes;

/// One input of a model, as one row of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The input's name in the model.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// The shape of one row, without the batch dimension.
    pub shape: Vec<usize>,
}

impl InputSpec {
    /// Elements of a row; `usize::MAX` where the product does not fit.
    pub fn elements(&self) -> usize {
        self.shape.iter().fold(1, |product: usize, &dimension| product.saturating_mul(dimension))
    }

    /// Bytes of a row; `None` where each row may differ.
    pub fn row_bytes(&self) -> Option<usize> {
        self.element.size_bytes().map(|size| size.saturating_mul(self.elements()))
    }
}

/// One input of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The input's name.
    pub name: String,
    /// The type of its elements.
    pub element: Element,
    /// The whole shape, the batch dimension included if there is one.
    pub shape: Vec<usize>,
    /// The elements as the binary tensor extension has them: row-major, little endian.
    pub data: Bytes,
}

/// One row of a request: the bytes of each input, in the model's order.
pub type Row = Vec<Bytes>;
