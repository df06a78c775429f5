//! The places of tensors in the workspace: those that are needed at the same time do not overlap,
//! and what is needed no more makes room.

use super::program::aligned;
use std::ops::Range;

/// A tensor that needs a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PlacedBuffer {
    /// The size, bytes.
    pub(super) bytes: usize,
    /// The launches from the one that writes it to the last that reads it, both included.
    pub(super) first: usize,
    pub(super) last: usize,
}

/// Returns the place of each buffer, and the size of the workspace, bytes. The largest is placed
/// first, each in the smallest gap that it fits into between those that are needed at the same
/// time: offline best fit.
pub(super) fn place(buffers: &[PlacedBuffer]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(buffers[at].bytes), buffers[at].first));
    let mut places = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut end = 0;
    for at in order {
        let buffer = &buffers[at];
        let at_once = placed
            .iter()
            .filter(|&&other| meet(buffer, &buffers[other]))
            .map(|&other| places[other]..aligned(places[other] + buffers[other].bytes));
        let mut taken: Vec<Range<usize>> = at_once.collect();
        taken.sort_by_key(|range| range.start);
        places[at] = best_gap(&taken, buffer.bytes);
        end = end.max(aligned(places[at] + buffer.bytes));
        placed.push(at);
    }
    (places, end)
}

/// Returns true if two buffers are needed at the same time.
fn meet(one: &PlacedBuffer, other: &PlacedBuffer) -> bool {
    one.first <= other.last && other.first <= one.last
}

/// Returns the start of the smallest gap between ranges, in the order of their starts, that has
/// this many bytes; the end of the last where none has.
fn best_gap(taken: &[Range<usize>], bytes: usize) -> usize {
    let mut best: Option<(usize, usize)> = None;
    let mut end = 0;
    for range in taken {
        let gap = range.start.saturating_sub(end);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, end));
        }
        end = end.max(range.end);
    }
    best.map_or(end, |(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::super::program::PLAN_ALIGNMENT;
    use super::*;
    use proptest::prelude::*;

    fn any_buffer() -> impl Strategy<Value = PlacedBuffer> {
        (0usize..5_000, 0usize..40, 0usize..12).prop_map(|(bytes, first, length)| PlacedBuffer {
            bytes,
            first,
            last: first + length,
        })
    }

    proptest! {
        #[test]
        fn buffers_that_are_needed_at_the_same_time_never_overlap(
            buffers in prop::collection::vec(any_buffer(), 0..60),
        ) {
            let (places, end) = place(&buffers);
            for (at, buffer) in buffers.iter().enumerate() {
                prop_assert!(places[at].is_multiple_of(PLAN_ALIGNMENT));
                prop_assert!(places[at] + buffer.bytes <= end);
                for (other, others) in buffers.iter().enumerate().take(at) {
                    let apart = places[at] + buffer.bytes <= places[other]
                        || places[other] + others.bytes <= places[at];
                    prop_assert!(apart || !meet(buffer, others), "{buffer:?} and {others:?}");
                }
            }
        }

        #[test]
        fn a_chain_needs_no_more_than_its_two_largest_neighbours_twice(
            sizes in prop::collection::vec(1usize..5_000, 2..40),
        ) {
            let chain = sizes.iter().enumerate();
            let buffers: Vec<PlacedBuffer> =
                chain.map(|(at, &bytes)| PlacedBuffer { bytes, first: at, last: at + 1 }).collect();
            let most = sizes.windows(2).map(|pair| aligned(pair[0]) + aligned(pair[1])).max();
            prop_assert!(place(&buffers).1 <= 2 * most.unwrap());
        }
    }
}
