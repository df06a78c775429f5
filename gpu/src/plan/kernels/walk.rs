//! A walk through tensors whose elements do not lie side by side.

/// Calls `visit` for each run along the last dimension of `shape`, in order, with the place of its
/// first element in each tensor. `strides` are the distances of neighbours in each tensor, `starts`
/// its first element's place.
pub(super) fn runs<const N: usize>(
    shape: &[usize],
    strides: [&[i64]; N],
    starts: [i64; N],
    mut visit: impl FnMut([i64; N]),
) {
    let outer = shape.len().saturating_sub(1);
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0usize; outer];
    let mut at = starts;
    loop {
        visit(at);
        let mut axis = outer;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < shape[axis] {
                at.iter_mut().zip(strides).for_each(|(at, strides)| *at += strides[axis]);
                break;
            }
            let back = (shape[axis] - 1) as i64;
            at.iter_mut().zip(strides).for_each(|(at, strides)| *at -= strides[axis] * back);
            index[axis] = 0;
        }
    }
}

/// Returns the distance of neighbours along each dimension of a dense tensor.
pub(super) fn dense_strides(shape: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis] as i64;
    }
    strides
}

/// Returns the distances of a dense tensor of `shape` that is stretched to `to`.
pub(super) fn stretched_strides(shape: &[usize], to: &[usize]) -> Vec<i64> {
    let dense = dense_strides(shape);
    let mut strides = vec![0; to.len() - shape.len()];
    strides.extend(shape.iter().zip(dense).map(|(&size, stride)| if size == 1 { 0 } else { stride }));
    strides
}
