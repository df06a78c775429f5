//! What a node makes of its inputs, as the rules find it out.

use super::facts::ConstantFact;

/// What a node makes of its inputs.
pub(super) enum NodeEffect {
    /// All outputs have the batch in front, and this many dimensions.
    Batched(usize),
    /// Outputs with the batch in front, once the node reshapes to this shape.
    Reshaped(Vec<i64>),
    /// Outputs with the batch in front and this many dimensions, once inputs of the node have it.
    Sized { rank: usize, inputs: Vec<InputChange> },
    /// No elements of the model's inputs reach the outputs.
    Constant(ConstantFact),
}

/// A change of a node's input that has 1 where the number of rows must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InputChange {
    /// The input at `at` is sizes, of which the first becomes that of the batch of the input `of`.
    Sizes { at: usize, of: usize, count: usize },
    /// The constant at `at`, which has so many dimensions, is repeated for each row of the input
    /// `of`.
    Repeated { at: usize, of: usize, rank: usize },
}
