//! The classification extension: the largest elements of an output, as `VALUE:INDEX` strings.

use super::tensors::elements;
use crate::api::net::slices::Slices;
use half::{bf16, f16};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use symphony_gpu::DataType;
use symphony_gpu::signature::LENGTH_BYTES;

/// Appends the `most` largest elements of one row of an output to `wire`, in the protocol's binary
/// form, largest first and of equal ones the first, each with its index. `row` holds elements as a
/// row has them; NaN, which has no order, comes last. It is done in slices.
pub(super) async fn largest(
    datatype: DataType,
    row: &[u8],
    most: usize,
    wire: &mut Vec<u8>,
    slices: &Slices,
) {
    let to = (wire, slices);
    match datatype {
        DataType::Bool | DataType::Uint8 => {
            of(row, most, to, u8::from_le_bytes, f64::from, |v| v.to_string()).await
        }
        DataType::Uint16 => of(row, most, to, u16::from_le_bytes, f64::from, |v| v.to_string()).await,
        DataType::Uint32 => of(row, most, to, u32::from_le_bytes, f64::from, |v| v.to_string()).await,
        DataType::Uint64 => of(row, most, to, u64::from_le_bytes, |v| v as f64, |v| v.to_string()).await,
        DataType::Int8 => of(row, most, to, i8::from_le_bytes, f64::from, |v| v.to_string()).await,
        DataType::Int16 => of(row, most, to, i16::from_le_bytes, f64::from, |v| v.to_string()).await,
        DataType::Int32 => of(row, most, to, i32::from_le_bytes, f64::from, |v| v.to_string()).await,
        DataType::Int64 => of(row, most, to, i64::from_le_bytes, |v| v as f64, |v| v.to_string()).await,
        DataType::Fp16 => of(row, most, to, f16::from_le_bytes, f64::from, six_places).await,
        DataType::Bf16 => of(row, most, to, bf16::from_le_bytes, f64::from, six_places).await,
        DataType::Fp32 => of(row, most, to, f32::from_le_bytes, f64::from, six_places).await,
        DataType::Fp64 => of(row, most, to, f64::from_le_bytes, |v| v, six_places).await,
        DataType::Bytes(_) => {}
    }
}

/// Formats a number as Triton does.
fn six_places<T: Into<f64>>(value: T) -> String {
    format!("{:.6}", value.into())
}

/// The elements that are looked at between two reports of work.
const PIECE: usize = 256;

/// The work of looking at an element, in bytes.
const ELEMENT_WORK: usize = 8;

/// The work of listing one, in bytes.
const TEXT_WORK: usize = 32;

/// An element among the largest so far. The greatest of these is the first to be replaced.
struct RankedElement<T> {
    rank: f64,
    index: usize,
    value: T,
}

impl<T> RankedElement<T> {
    /// Compares by the order in which they are listed.
    fn listed(&self, other: &RankedElement<T>) -> Ordering {
        other.rank.total_cmp(&self.rank).then(self.index.cmp(&other.index))
    }
}

impl<T> PartialEq for RankedElement<T> {
    fn eq(&self, other: &RankedElement<T>) -> bool {
        self.listed(other).is_eq()
    }
}

impl<T> Eq for RankedElement<T> {}

impl<T> PartialOrd for RankedElement<T> {
    fn partial_cmp(&self, other: &RankedElement<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for RankedElement<T> {
    fn cmp(&self, other: &RankedElement<T>) -> Ordering {
        self.listed(other)
    }
}

async fn of<T: Copy, const N: usize>(
    row: &[u8],
    most: usize,
    (wire, slices): (&mut Vec<u8>, &Slices),
    element: impl Fn([u8; N]) -> T,
    order: impl Fn(T) -> f64,
    text: impl Fn(T) -> String,
) {
    let mut largest = BinaryHeap::new();
    for (at, piece) in row.as_chunks::<N>().0.chunks(PIECE).enumerate() {
        for (index, &bytes) in (at * PIECE..).zip(piece) {
            let value = element(bytes);
            let rank = order(value);
            let rank = if rank.is_nan() { f64::NEG_INFINITY } else { rank };
            let ranked = RankedElement { rank, index, value };
            if largest.len() < most {
                largest.push(ranked);
            } else if largest.peek().is_some_and(|last| ranked < *last) {
                largest.pop();
                largest.push(ranked);
            }
        }
        slices.did(piece.len() * ELEMENT_WORK).await;
    }
    let mut listed = Vec::with_capacity(largest.len());
    while let Some(RankedElement { index, value, .. }) = largest.pop() {
        listed.push((index, value));
        slices.did(ELEMENT_WORK).await;
    }
    for (index, value) in listed.into_iter().rev() {
        let text = format!("{}:{index}", text(value));
        slices.reserve(wire, LENGTH_BYTES + text.len()).await;
        elements::put(text.as_bytes(), wire);
        slices.did(TEXT_WORK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::net::slices::{SLICE_BYTES, ready_now};

    fn largest(datatype: DataType, row: &[u8], most: usize) -> Vec<String> {
        let mut wire = Vec::new();
        ready_now(super::largest(datatype, row, most, &mut wire, &Slices::alone()));
        elements::texts(&wire).map(str::to_owned).collect()
    }

    #[test]
    fn a_large_row_is_classified_in_slices() {
        let row: Vec<u8> = (0..1 << 18).flat_map(|at: u32| (at as f32).to_le_bytes()).collect();
        for most in [1, 1 << 18] {
            let (mut wire, slices) = (Vec::new(), Slices::alone());
            ready_now(super::largest(DataType::Fp32, &row, most, &mut wire, &slices));
            assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
            assert_eq!(elements::texts(&wire).count(), most);
            assert_eq!(elements::texts(&wire).next(), Some("262143.000000:262143"));
        }
    }

    #[test]
    fn the_largest_come_first_with_their_indices() {
        let row: Vec<u8> =
            [0.25f32, f32::NAN, 0.5, -1.0, 0.5].into_iter().flat_map(f32::to_le_bytes).collect();
        assert_eq!(largest(DataType::Fp32, &row, 3), ["0.500000:2", "0.500000:4", "0.250000:0"]);
        assert_eq!(largest(DataType::Fp32, &row, 99).len(), 5);
        assert_eq!(largest(DataType::Int8, &[255, 3], 1), ["3:1"]);
    }
}
