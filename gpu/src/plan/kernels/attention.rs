//! Attention. Sums are kept in double precision: this is the reference.

use super::operand::{KernelInput, KernelOutput};
use super::walk::stretched_strides;

/// The rows of q, k or v: those of a head lie between those of others.
struct HeadRows<'a> {
    elements: &'a [f32],
    /// How many there are for each index of the batch.
    count: usize,
    /// The distance of two rows.
    width: usize,
    /// Where the first head begins in a row.
    first: usize,
    /// The elements of a head.
    size: usize,
}

impl<'a> HeadRows<'a> {
    fn of_head(&self, batch: usize, head: usize, row: usize) -> &'a [f32] {
        let start = (batch * self.count + row) * self.width + self.first + head * self.size;
        &self.elements[start..][..self.size]
    }
}

pub(super) fn attention(
    heads: usize,
    scale: f32,
    packed: bool,
    inputs: &[KernelInput<'_>],
    output: &mut KernelOutput<'_>,
) {
    let [batches, queries, hidden] = [0, 1, 2].map(|axis| output.of.shape[axis]);
    let size = hidden / heads;
    let rows = |at: usize| {
        let (of, first) = if packed { (inputs[0], at * hidden) } else { (inputs[at], 0) };
        let (count, width) = (of.shape()[1], of.shape()[2]);
        HeadRows { elements: of.elements(), count, width, first, size }
    };
    let [q, k, v] = [0, 1, 2].map(rows);
    let mask = inputs.get(if packed { 1 } else { 3 }).map(|mask| {
        (mask.elements::<f32>(), stretched_strides(mask.shape(), &[batches, heads, queries, k.count]))
    });
    let result = output.elements::<f32>();
    for (batch, head) in (0..batches).flat_map(|batch| (0..heads).map(move |head| (batch, head))) {
        for row in 0..queries {
            let query = q.of_head(batch, head, row);
            let score = |key: usize| {
                let pairs = query.iter().zip(k.of_head(batch, head, key));
                let product: f64 = pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let added = mask.as_ref().map_or(0.0, |(mask, strides)| {
                    let at = [batch, head, row, key].into_iter().zip(strides);
                    f64::from(mask[at.map(|(index, stride)| index as i64 * stride).sum::<i64>() as usize])
                });
                product * f64::from(scale) + added
            };
            let scores: Vec<f64> = (0..k.count).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.into_iter().map(|score| (score - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut mixed = vec![0f64; size];
            for (key, weight) in weights.into_iter().enumerate() {
                let value = v.of_head(batch, head, key).iter();
                mixed.iter_mut().zip(value).for_each(|(mixed, x)| *mixed += weight * f64::from(*x));
            }
            let to = &mut result[(batch * queries + row) * hidden + head * size..][..size];
            to.iter_mut().zip(mixed).for_each(|(to, mixed)| *to = (mixed / sum) as f32);
        }
    }
}
