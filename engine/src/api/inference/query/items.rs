//! The items of a stage: how often it runs for each row, and how the tensors of rows and of items
//! are made of each other. A row has room for a fixed number of items, as tensors have fixed
//! shapes; what its items do not fill stays 0.

use crate::api::net::slices::Slices;
use std::ops::Range;
use symphony_gpu::Signature;

/// The items that a stage runs for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Items {
    /// The number of items that a row has room for.
    room: usize,
    /// The number that each row has.
    of_rows: Vec<usize>,
}

impl Items {
    /// Returns `room` items for each of `rows` rows.
    pub(super) fn all(rows: usize, room: usize) -> Items {
        Items { room, of_rows: vec![room; rows] }
    }

    /// Returns the items of rows whose numbers are given: what is below 0 is none, and what does
    /// not fit as many as there is room for.
    pub(super) fn counted(room: usize, counts: impl Iterator<Item = i128>) -> Items {
        let count = |count: i128| usize::try_from(count.max(0)).map_or(room, |count| count.min(room));
        Items { room, of_rows: counts.map(count).collect() }
    }

    /// Returns how many there are in all.
    pub(super) fn total(&self) -> usize {
        self.of_rows.iter().sum()
    }

    /// Returns row and index within the row of each item, in order.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.of_rows.iter().enumerate().flat_map(|(row, &count)| (0..count).map(move |item| (row, item)))
    }

    /// Returns the bytes that [`Items::gathered`] takes beyond those of what was made.
    pub(super) fn gathered_bytes(&self, signature: &Signature) -> usize {
        if self.are_rows() { 0 } else { self.of_rows.len() * self.room * signature.output_bytes() }
    }

    /// Puts the outputs of a stage's items together, in slices: each output of a row holds those of
    /// its items one after another, where [`range_of_row`] says. `made` are the rows of the model,
    /// one for each item.
    pub(super) async fn gathered(&self, signature: &Signature, made: Vec<u8>, slices: &Slices) -> Vec<u8> {
        if self.are_rows() {
            return made;
        }
        let item_bytes = signature.output_bytes();
        let row_bytes = self.room * item_bytes;
        let mut rows = vec![0; self.of_rows.len() * row_bytes];
        for ((row, item), made) in self.places().zip(made.chunks(item_bytes.max(1))) {
            for output in 0..signature.outputs.len() {
                let part = &made[signature.output_range(output)];
                let to = row * row_bytes + range_of_row(signature, output, self.room).start;
                slices.copy(part, &mut rows[to + item * part.len()..][..part.len()]).await;
            }
        }
        rows
    }

    /// Returns true if each row is an item.
    fn are_rows(&self) -> bool {
        self.room == 1 && self.total() == self.of_rows.len()
    }
}

/// Returns the byte range of an output of `room` items in a row of them.
pub(super) fn range_of_row(signature: &Signature, output: usize, room: usize) -> Range<usize> {
    let of_item = signature.output_range(output);
    room * of_item.start..room * of_item.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use symphony_gpu::{DataType, TensorSpec};

    fn tensor(name: &str, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.to_owned(), datatype: DataType::Uint8, shape: shape.to_vec() }
    }

    #[test]
    fn outputs_of_items_lie_together_by_row_and_output_and_missing_items_are_0() {
        let signature = Signature::of_rows(vec![], vec![tensor("a", &[1]), tensor("b", &[2])]);
        let items = Items::counted(3, [2, -1, 7].into_iter());
        assert_eq!((items.total(), items.places().nth(2)), (5, Some((2, 0))));
        let made = [0, 1, 2, 3, 4].iter().flat_map(|item: &u8| {
            let mut row = vec![0; signature.output_bytes()];
            row[signature.output_range(0)].fill(item + 1);
            row[signature.output_range(1)].copy_from_slice(&[10 * item, 10 * item + 1]);
            row
        });
        let rows = items.gathered(&signature, made.collect(), &Slices::alone()).now_or_never().unwrap();
        let of = |row: usize, output| {
            &rows[row * 3 * signature.output_bytes()..][range_of_row(&signature, output, 3)]
        };
        assert_eq!(
            [of(0, 0), of(1, 0), of(2, 0)].map(|of| of[..3].to_vec()),
            [[1, 2, 0], [0, 0, 0], [3, 4, 5]]
        );
        assert_eq!(
            (&of(0, 1)[..6], &of(2, 1)[..6]),
            (&[0, 1, 10, 11, 0, 0][..], &[20, 21, 30, 31, 40, 41][..])
        );
    }

    #[test]
    fn a_count_that_does_not_fit_is_as_many_as_there_is_room_for() {
        assert_eq!(Items::counted(4, [i128::from(u64::MAX), -3, 2].into_iter()).of_rows, [4, 0, 2]);
    }
}
