//! An infer request, whatever protocol carries it.

use super::shared_memory::RegionSlice;
use crate::loadgen::inputs::Tensor;
use symphony_transport::Nanos;

/// An infer request, before a protocol encodes it.
pub(super) struct Call<'a> {
    pub(super) model: &'a str,
    pub(super) tensors: &'a [Tensor],
    pub(super) limit: Option<Nanos>,
    pub(super) class: Option<u8>,
    /// True to send tensors as JSON, where the protocol has it.
    pub(super) json: bool,
    /// The tensors' slices of a shared memory region, if they are not in the request itself.
    pub(super) shared: Option<SharedInputs<'a>>,
}

impl Call<'_> {
    /// Returns the class as the protocol counts: from 1, since 0 leaves it to the model.
    pub(super) fn priority(&self) -> Option<u8> {
        self.class.map(|class| class + 1)
    }
}

/// Tensors of a request that lie in a shared memory region: its name, and each tensor's slice.
pub(super) struct SharedInputs<'a> {
    pub(super) region: &'a str,
    pub(super) slices: &'a [RegionSlice],
}
