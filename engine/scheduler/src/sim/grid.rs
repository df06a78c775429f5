//! A search with few trials on a grid of loads, point 0 being the highest: it starts where the
//! highest load that passes is expected, and doubles its strides until that lies between two
//! points.

/// Returns a point that passes and whose neighbour towards 0, the highest load, does not; `None` if
/// none up to `last` passes. Tries `start` first and goes on by `stride`, doubled each time, until
/// the point is passed. The last call of `passes` that was true is for the point returned.
///
/// Errors: those of `passes`, which end the search.
pub fn highest<E>(
    start: usize,
    mut stride: usize,
    last: usize,
    mut passes: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let (mut good, mut bad);
    if passes(start)? {
        good = start;
        loop {
            if good == 0 {
                return Ok(Some(0));
            }
            let next = good.saturating_sub(stride);
            if !passes(next)? {
                bad = next;
                break;
            }
            (good, stride) = (next, 2 * stride);
        }
    } else {
        bad = start;
        loop {
            if bad == last {
                return Ok(None);
            }
            good = (bad + stride).min(last);
            if passes(good)? {
                break;
            }
            (bad, stride) = (good, 2 * stride);
        }
    }
    bisect(bad, good, passes).map(Some)
}

/// Returns a point between `bad`, which does not pass, and `good`, which does, that passes and
/// whose neighbour towards `bad` does not.
///
/// Errors: those of `passes`, which end the search.
pub fn bisect<E>(
    mut bad: usize,
    mut good: usize,
    mut passes: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    while good - bad > 1 {
        let middle = usize::midpoint(good, bad);
        if passes(middle)? { good = middle } else { bad = middle }
    }
    Ok(good)
}

/// Returns `good`, which passes, or a point towards 0, such that none of the points in these
/// distances from it towards 0 passes. A load in between may fail where passing is partly chance.
///
/// Errors: those of `passes`, which end the search.
pub fn beyond<E>(
    mut good: usize,
    distances: &[usize],
    mut passes: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let mut left = distances.iter();
    while let Some(&distance) = left.next() {
        if let Some(point) = good.checked_sub(distance)
            && passes(point)?
        {
            (good, left) = (point, distances.iter());
        }
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;

    #[test]
    fn the_highest_point_is_found_from_wherever_the_search_starts() {
        const LAST: usize = 930;
        for wanted in [0, 1, 2, 40, 300, LAST] {
            for start in [0, 1, 39, 40, 41, 500, LAST] {
                for stride in [1, 2, 8] {
                    let (mut last, mut runs) = (None, 0);
                    let found = highest(start, stride, LAST, |point| {
                        runs += 1;
                        last = if point >= wanted { Some(point) } else { last };
                        Ok::<_, Infallible>(point >= wanted)
                    });
                    assert_eq!(found, Ok(Some(wanted)));
                    assert_eq!(last, Some(wanted), "the rate kept is that of the last run that passed");
                    assert!(runs <= 21, "{runs} runs from {start} to {wanted}");
                }
            }
        }
        assert_eq!(highest(41, 2, LAST, |_| Ok::<_, Infallible>(false)), Ok(None));
    }

    #[test]
    fn a_few_points_that_fail_do_not_hide_those_beyond() {
        let found = |passing: &[usize]| {
            beyond(20, &[1, 2, 4], |point| Ok::<_, Infallible>(passing.contains(&point))).unwrap()
        };
        assert_eq!(found(&[20]), 20);
        assert_eq!(found(&[20, 19, 18]), 18);
        assert_eq!(found(&[20, 16, 14, 13]), 13);
        assert_eq!(found(&[20, 17, 15, 2]), 20);
        let at_the_end = beyond(1, &[1, 2, 4], |_| Ok::<_, Infallible>(true));
        assert_eq!(at_the_end, Ok(0));
    }
}
