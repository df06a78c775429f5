//! Kernels that move elements and compute nothing: they know their size only.

use super::super::element::PlanElement;
use super::super::operation::PadFill;
use super::operand::{KernelInput, KernelOutput, around};
use super::walk::{dense_strides, runs};
use bytemuck::Pod;

pub(super) fn strided_copy(
    walked: &[usize],
    strides: &[i64],
    offset: usize,
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    match x.of.element.bytes() {
        1 => copy_sized::<u8>(walked, strides, offset, x, output),
        2 => copy_sized::<u16>(walked, strides, offset, x, output),
        4 => copy_sized::<u32>(walked, strides, offset, x, output),
        _ => copy_sized::<u64>(walked, strides, offset, x, output),
    }
}

fn copy_sized<T: Pod>(
    walked: &[usize],
    strides: &[i64],
    offset: usize,
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let from = x.elements::<T>();
    let length = walked.last().map_or(1, |&size| size);
    let step = strides.last().map_or(1, |&step| step);
    let mut rows = output.elements::<T>().chunks_exact_mut(length);
    runs(walked, [strides], [offset as i64], |[at]| {
        let row = rows.next().unwrap_or_default();
        if step == 1 {
            row.copy_from_slice(&from[at as usize..][..length]);
        } else {
            row.iter_mut()
                .enumerate()
                .for_each(|(index, to)| *to = from[(at + step * index as i64) as usize]);
        }
    });
}

pub(super) fn concat(axis: usize, inputs: &[KernelInput<'_>], output: &mut KernelOutput<'_>) {
    let [outer, ..] = around(&output.of.shape, axis);
    let mut to = &mut *output.bytes;
    let mut rest: Vec<(&[u8], usize)> =
        inputs.iter().map(|input| (input.bytes, input.bytes.len() / outer)).collect();
    for _ in 0..outer {
        for (bytes, length) in &mut rest {
            let (part, left) = bytes.split_at(*length);
            let (place, behind) = std::mem::take(&mut to).split_at_mut(*length);
            place.copy_from_slice(part);
            (*bytes, to) = (left, behind);
        }
    }
}

pub(super) fn gather(
    axis: usize,
    data: KernelInput<'_>,
    indices: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) -> Result<(), String> {
    let [outer, size, inner] = around(data.shape(), axis);
    let indices: Vec<i64> = match indices.of.element {
        PlanElement::I32 => indices.elements::<i32>().iter().map(|&index| i64::from(index)).collect(),
        _ => indices.elements::<i64>().to_vec(),
    };
    let length = inner * data.of.element.bytes();
    let mut parts = output.bytes.chunks_exact_mut(length);
    for at in 0..outer {
        for &index in &indices {
            let found = if index < 0 { index.saturating_add(size as i64) } else { index };
            let found = usize::try_from(found).ok().filter(|&index| index < size).ok_or_else(|| {
                format!("index {index} of a Gather is out of range: the dimension has {size} elements")
            })?;
            let from = &data.bytes[(at * size + found) * length..][..length];
            parts.next().unwrap_or_default().copy_from_slice(from);
        }
    }
    Ok(())
}

pub(super) fn pad(begins: &[i64], fill: PadFill, x: KernelInput<'_>, output: &mut KernelOutput<'_>) {
    let value = match fill {
        PadFill::Constant(value) => x.of.element.bits(value),
        _ => 0,
    };
    match x.of.element.bytes() {
        1 => pad_sized(begins, fill, value as u8, x, output),
        2 => pad_sized(begins, fill, value as u16, x, output),
        4 => pad_sized(begins, fill, value as u32, x, output),
        _ => pad_sized(begins, fill, value, x, output),
    }
}

fn pad_sized<T: Pod>(
    begins: &[i64],
    fill: PadFill,
    value: T,
    x: KernelInput<'_>,
    output: &mut KernelOutput<'_>,
) {
    let from = x.elements::<T>();
    let (strides, sizes) = (dense_strides(x.shape()), x.shape());
    let shape = &output.of.shape;
    for (at, to) in output.elements::<T>().iter_mut().enumerate() {
        let mut rest = at;
        let mut place = Some(0);
        for axis in (0..shape.len()).rev() {
            let index = (rest % shape[axis]) as i64 - begins[axis];
            rest /= shape[axis];
            let found = source(index, sizes[axis] as i64, fill);
            place = place.zip(found).map(|(place, index)| place + index * strides[axis]);
        }
        *to = place.map_or(value, |place| from[place as usize]);
    }
}

/// Returns the index that is read for one that may lie outside; `None` if there is none.
fn source(index: i64, size: i64, fill: PadFill) -> Option<i64> {
    if (0..size).contains(&index) {
        return Some(index);
    }
    match fill {
        PadFill::Constant(_) => None,
        PadFill::Edge => Some(index.clamp(0, size - 1)),
        PadFill::Reflect if size == 1 => Some(0),
        PadFill::Reflect => {
            let folded = index.rem_euclid(2 * (size - 1));
            Some(folded.min(2 * (size - 1) - folded))
        }
    }
}
