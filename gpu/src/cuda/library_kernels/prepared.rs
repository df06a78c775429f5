//! The launches of a plan that libraries have prepared, once for all lanes: each launch goes to a
//! library if one takes it, so that the same model on the same machine always runs the same
//! kernels.

use super::call::LibraryCall;
use super::part::library_part;
use crate::cuda::driver::PreparedCall;
use crate::cuda::open::CudaDevice;
use crate::cuda::owned::Owned;
use crate::plan::{Launch, Operation, Plan};
use serde::Serialize;
use std::fmt;
use std::sync::Arc;

/// The most workspace that a library may use for a call: NVIDIA's advice for H100.
const MOST_WORKSPACE: usize = 32 << 20;

/// The launches of a plan that libraries compute. See the module's description.
#[derive(Default)]
pub(in crate::cuda) struct PreparedPlan {
    /// The launches of each batch size: `None` for those that kernels of ours compute.
    batches: Vec<Vec<Option<PreparedLaunch>>>,
    workspace_bytes: usize,
    /// How often each library is used for the largest batch.
    used: LibraryUse,
    /// Why no library is used, where one has failed.
    refused: Option<String>,
}

/// A launch that a library computes.
pub(in crate::cuda) struct PreparedLaunch {
    call: Arc<Owned<PreparedCall>>,
    /// What a kernel of ours does with the result, in place.
    pub(in crate::cuda) after: Option<Launch>,
}

/// The numbers of products of matrices and convolutions of a model's largest batch, by what
/// computes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct LibraryUse {
    /// Launches by cuBLASLt.
    pub cublaslt: usize,
    /// Launches by cuDNN.
    pub cudnn: usize,
    /// Launches by kernels of Symphony's.
    pub own: usize,
}

impl fmt::Display for LibraryUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LibraryUse { cublaslt, cudnn, own } = self;
        write!(f, "{cublaslt} launches by cuBLASLt, {cudnn} by cuDNN, {own} by kernels of Symphony's")
    }
}

impl PreparedLaunch {
    /// Returns the call.
    pub(in crate::cuda) fn call(&self) -> PreparedCall {
        self.call.get()
    }
}

impl PreparedPlan {
    /// Has libraries prepare the launches of a plan. One that fails is used for none of them.
    ///
    /// Errors: the device is lost.
    pub(in crate::cuda) fn new(device: &CudaDevice, plan: &Plan) -> Result<PreparedPlan, String> {
        match prepare(device, plan) {
            Ok(prepared) => Ok(prepared),
            Err(why) if device.open.lost().is_none() => Ok(PreparedPlan::refused(plan, why)),
            Err(why) => Err(why),
        }
    }

    /// Returns a plan that kernels of ours compute, since a library has failed.
    pub(in crate::cuda) fn refused(plan: &Plan, why: String) -> PreparedPlan {
        let own =
            plan.batches.last().map_or(0, |batch| batch.launches.iter().filter(|of| is_heavy(of)).count());
        let used = LibraryUse { own, ..LibraryUse::default() };
        PreparedPlan { refused: Some(why), used, ..PreparedPlan::default() }
    }

    /// Returns what a library has prepared for a launch.
    pub(in crate::cuda) fn of(&self, batch: usize, launch: usize) -> Option<&PreparedLaunch> {
        self.batches.get(batch)?.get(launch)?.as_ref()
    }

    /// Returns true if a library computes a launch.
    pub(in crate::cuda) fn is_used(&self) -> bool {
        self.batches.iter().flatten().any(Option::is_some)
    }

    /// Returns the memory that the calls need beside their tensors, bytes.
    pub(in crate::cuda) fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Returns the memory that the calls of a batch size need beside their tensors, bytes.
    pub(in crate::cuda) fn workspace_of(&self, batch: usize) -> usize {
        let launches = self.batches.get(batch).into_iter().flatten().flatten();
        launches.map(|launch| launch.call().workspace_bytes).max().unwrap_or(0)
    }

    /// Returns by what the largest batch is computed.
    pub(in crate::cuda) fn used(&self) -> LibraryUse {
        self.used
    }

    /// Returns what is to be said of a library that has failed.
    pub(in crate::cuda) fn note(&self) -> Option<String> {
        let why = self.refused.as_ref()?;
        Some(format!("no library is used, since one has failed ({why}); kernels of Symphony's compute it"))
    }
}

/// Returns true if libraries have such an operation.
fn is_heavy(launch: &Launch) -> bool {
    matches!(launch.operation, Operation::MatrixProduct { .. } | Operation::Convolution { .. })
}

fn prepare(device: &CudaDevice, plan: &Plan) -> Result<PreparedPlan, String> {
    let mut plans = PreparedPlan::default();
    // Layers of the same sizes share a call.
    let mut known: Vec<(LibraryCall, Option<Arc<Owned<PreparedCall>>>)> = Vec::new();
    for batch in &plan.batches {
        let mut used = LibraryUse::default();
        let mut launches = Vec::new();
        for launch in &batch.launches {
            let prepared = match library_part(launch) {
                None => None,
                Some(part) => {
                    let call = match known.iter().find(|(call, _)| *call == part.call) {
                        Some((_, prepared)) => prepared.clone(),
                        None => {
                            let prepared = device.open.calls().prepare(&part.call, MOST_WORKSPACE);
                            let prepared = prepared.map_err(|error| device.open.note(error).to_string())?;
                            let prepared = prepared.map(|call| Arc::new(Owned::new(&device.open, call)));
                            known.push((part.call, prepared.clone()));
                            prepared
                        }
                    };
                    call.map(|call| (call, part))
                }
            };
            match &prepared {
                Some((call, part)) => {
                    plans.workspace_bytes = plans.workspace_bytes.max(call.get().workspace_bytes);
                    used.count(&part.call);
                }
                None => used.own += usize::from(is_heavy(launch)),
            }
            launches.push(prepared.map(|(call, part)| {
                let after = part.after.map(|function| Launch {
                    operation: Operation::Unary(function),
                    inputs: vec![launch.output.clone()],
                    output: launch.output.clone(),
                    activation: None,
                    nodes: launch.nodes.clone(),
                });
                PreparedLaunch { call, after }
            }));
        }
        plans.batches.push(launches);
        plans.used = used;
    }
    Ok(plans)
}

impl LibraryUse {
    fn count(&mut self, call: &LibraryCall) {
        match call {
            LibraryCall::Product(_) => self.cublaslt += 1,
            LibraryCall::Convolution(_) => self.cudnn += 1,
        }
    }
}
