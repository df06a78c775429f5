//! What kernels read and write: bytes with the type of their tensor.

use super::super::element::PlanType;
use bytemuck::{Pod, cast_slice, cast_slice_mut};

/// An input of a kernel.
#[derive(Clone, Copy)]
pub(in crate::plan) struct KernelInput<'a> {
    pub(in crate::plan) of: &'a PlanType,
    pub(in crate::plan) bytes: &'a [u8],
}

impl<'a> KernelInput<'a> {
    pub(super) fn elements<T: Pod>(&self) -> &'a [T] {
        cast_slice(self.bytes)
    }

    pub(super) fn shape(&self) -> &'a [usize] {
        &self.of.shape
    }
}

/// Where a kernel writes.
pub(in crate::plan) struct KernelOutput<'a> {
    pub(in crate::plan) of: &'a PlanType,
    pub(in crate::plan) bytes: &'a mut [u8],
}

impl KernelOutput<'_> {
    pub(super) fn elements<T: Pod>(&mut self) -> &mut [T] {
        cast_slice_mut(self.bytes)
    }
}

/// Returns the sizes of all dimensions before an axis, of it, and of all behind it.
pub(super) fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}
