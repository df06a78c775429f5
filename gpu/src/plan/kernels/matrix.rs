//! Products of matrices. The right one is read in panels of few columns, packed so that a panel
//! lies in one piece; convolutions pack their images the same way.

use super::operand::{KernelInput, KernelOutput};
use super::walk::stretched_strides;

/// The columns of a panel.
pub(super) const COLUMNS: usize = 8;

/// The rows that are computed at once.
const ROWS: usize = 4;

/// Multiplies `left`, row by row of `depth` elements, with a panel. `write` gets each row's index
/// and its products.
pub(super) fn times_panel(
    left: &[f32],
    depth: usize,
    panel: &[[f32; COLUMNS]],
    mut write: impl FnMut(usize, &[f32; COLUMNS]),
) {
    let mut row = 0;
    let mut blocks = left.chunks_exact(depth * ROWS);
    for block in &mut blocks {
        let rows: [&[f32]; ROWS] = std::array::from_fn(|at| &block[at * depth..(at + 1) * depth]);
        let mut sums = [[0f32; COLUMNS]; ROWS];
        for (at, column) in panel.iter().enumerate() {
            for (sums, row) in sums.iter_mut().zip(rows) {
                let factor = row[at];
                sums.iter_mut().zip(column).for_each(|(sum, x)| *sum += factor * x);
            }
        }
        for sums in &sums {
            write(row, sums);
            row += 1;
        }
    }
    for left in blocks.remainder().chunks_exact(depth) {
        let mut sums = [0f32; COLUMNS];
        for (factor, column) in left.iter().zip(panel) {
            sums.iter_mut().zip(column).for_each(|(sum, x)| *sum += factor * x);
        }
        write(row, &sums);
        row += 1;
    }
}

pub(super) fn products(
    transposed: [bool; 2],
    alpha: f32,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) {
    let (left, right) = (inputs[0], inputs[1]);
    let bias = inputs.get(2).map(|bias| bias.elements::<f32>());
    let (before, size) = output.of.shape.split_at(output.of.shape.len() - 2);
    let (rows, columns) = (size[0], size[1]);
    let [rank_left, rank_right] = [left, right].map(|of| of.shape().len());
    let depth = left.shape()[rank_left - if transposed[0] { 2 } else { 1 }];
    if depth == 0 {
        output.bytes.fill(0);
    } else {
        let strides = [(left, rank_left), (right, rank_right)]
            .map(|(of, rank)| stretched_strides(&of.shape()[..rank - 2], before));
        let mut panel = vec![[0f32; COLUMNS]; depth];
        let results = output.elements::<f32>().chunks_exact_mut(rows * columns);
        for (at, result) in results.enumerate() {
            let [l, r] = [&strides[0], &strides[1]].map(|strides| matrix_at(at, before, strides));
            let left = &left.elements::<f32>()[l * rows * depth..][..rows * depth];
            let right = &right.elements::<f32>()[r * depth * columns..][..depth * columns];
            let turned = transposed[0].then(|| transpose(left, depth, rows));
            let left = turned.as_deref().unwrap_or(left);
            for first in (0..columns).step_by(COLUMNS) {
                let width = COLUMNS.min(columns - first);
                pack(right, [depth, columns], transposed[1], first, &mut panel);
                times_panel(left, depth, &panel, |row, products| {
                    let to = &mut result[row * columns + first..][..width];
                    to.iter_mut().zip(products).for_each(|(to, product)| *to = alpha * product);
                });
            }
        }
    }
    if let Some(bias) = bias {
        for row in output.elements::<f32>().chunks_exact_mut(columns) {
            row.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
        }
    }
}

/// Returns the index of the matrix that is used for the output's matrix `at`.
fn matrix_at(mut at: usize, before: &[usize], strides: &[i64]) -> usize {
    let mut index = 0;
    for (size, stride) in before.iter().zip(strides).rev() {
        index += (at % size) * *stride as usize;
        at /= size;
    }
    index
}

/// Returns the transpose of a matrix of these rows and columns.
fn transpose(matrix: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| matrix[row * columns + column])).collect()
}

/// Packs the columns from `first` on; what the matrix has not is 0.
fn pack(
    right: &[f32],
    [depth, columns]: [usize; 2],
    transposed: bool,
    first: usize,
    panel: &mut [[f32; COLUMNS]],
) {
    let width = COLUMNS.min(columns - first);
    if transposed {
        panel.iter_mut().for_each(|row| *row = [0.0; COLUMNS]);
        for at in 0..width {
            let column = &right[(first + at) * depth..][..depth];
            panel.iter_mut().zip(column).for_each(|(row, &x)| row[at] = x);
        }
    } else {
        for (row, from) in panel.iter_mut().zip(right.chunks_exact(columns)) {
            *row = [0.0; COLUMNS];
            row[..width].copy_from_slice(&from[first..first + width]);
        }
    }
}
