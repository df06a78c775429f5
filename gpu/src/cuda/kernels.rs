//! The kernels of plans on a card: those that a plan carries, or those that were compiled for its
//! precision when the first such model was loaded.

use super::driver::{Kernel, Module};
use super::error::DriverResult;
use super::launch::kernels_of;
use super::owned::{OpenDevice, Owned};
use super::prebuilt::image_for;
use super::source::kernel_source;
use crate::plan::{Plan, PlanPrecision};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels that are loaded on a card.
pub(super) struct LoadedKernels {
    kernels: HashMap<&'static str, Kernel>,
    /// The kernels go with it.
    _module: Owned<Module>,
}

impl LoadedKernels {
    fn new(open: &Arc<OpenDevice>, module: Module, precision: PlanPrecision) -> DriverResult<LoadedKernels> {
        let (device, module) = (open.calls(), Owned::new(open, module));
        let kernels = kernels_of(precision).map(|name| Ok((name, device.kernel(module.get(), name)?)));
        Ok(LoadedKernels { kernels: kernels.collect::<DriverResult<_>>()?, _module: module })
    }

    /// Returns the kernel of a name.
    pub(super) fn get(&self, name: &str) -> Result<Kernel, String> {
        self.kernels.get(name).copied().ok_or_else(|| format!("there is no kernel {name}"))
    }
}

/// The kernels of a card that were compiled there, by the precision of plans.
#[derive(Default)]
pub(super) struct CompiledKernels {
    by_precision: Mutex<Vec<(PlanPrecision, Arc<LoadedKernels>)>>,
}

impl CompiledKernels {
    /// Returns the kernels for a plan: its own if it carries some that run on the card.
    ///
    /// Errors: the driver's or the compiler's by `refusal`; or the plan's kernels are another
    /// version's.
    pub(super) fn of_plan(
        &self,
        open: &Arc<OpenDevice>,
        plan: &Plan,
        refusal: impl Fn(super::error::DriverError) -> String,
    ) -> Result<Arc<LoadedKernels>, String> {
        let device = open.calls();
        if let Some(image) = image_for(plan, device.facts().capability)? {
            let module = device.load_image(&image.code).map_err(&refusal)?;
            return Ok(Arc::new(LoadedKernels::new(open, module, plan.precision).map_err(&refusal)?));
        }
        let mut known = self.by_precision.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kernels)) = known.iter().find(|(precision, _)| *precision == plan.precision) {
            return Ok(Arc::clone(kernels));
        }
        let module = device.load_kernels(&kernel_source(plan.precision)).map_err(&refusal)?;
        let kernels = Arc::new(LoadedKernels::new(open, module, plan.precision).map_err(&refusal)?);
        known.push((plan.precision, Arc::clone(&kernels)));
        Ok(kernels)
    }
}
