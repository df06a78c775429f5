//! Kernels that are compiled ahead and carried by a plan, so that serving it needs no compiler:
//! made by `symphony compile --arch`, chosen when a model is put on a card.

use super::compiled::fingerprint;
use super::compiler::{KernelTarget, compile_kernels};
use super::error::DriverResult;
use super::source::kernel_source;
use crate::plan::{KernelImage, Plan};

/// Compiles the kernels of a plan for cards of a compute capability, such as 9, 0 for `sm_90`.
///
/// # Errors
/// There is no compiler, or it does not know the architecture.
pub fn prebuilt_kernels(plan: &Plan, capability: [u32; 2]) -> DriverResult<KernelImage> {
    let source = kernel_source(plan.precision);
    let code = compile_kernels(&source, KernelTarget::Machine(capability))?;
    Ok(KernelImage { capability, source: fingerprint(&source), bytes: code.len(), code })
}

/// Returns the kernels that a plan carries for a card; `None` if it has none that run there.
///
/// # Errors
/// They were compiled from another source than this program's.
pub(super) fn image_for(plan: &Plan, [major, minor]: [u32; 2]) -> Result<Option<&KernelImage>, String> {
    let runs = |image: &&KernelImage| image.capability[0] == major && image.capability[1] <= minor;
    let found = plan.kernels.iter().filter(runs).max_by_key(|image| image.capability);
    let Some(image) = found else { return Ok(None) };
    if image.source == fingerprint(kernel_source(plan.precision)) {
        return Ok(Some(image));
    }
    Err("its kernels are another version's; write it again by `symphony compile`".to_owned())
}
