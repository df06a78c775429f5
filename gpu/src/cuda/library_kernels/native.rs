//! NVIDIA's libraries on one device, and the calls that they have prepared, by number.

use super::call::{CUBLASLT, CUDNN, LibraryCall};
use super::cublaslt::{CublasLt, PreparedProduct};
use super::cudnn::{Cudnn, PreparedConvolution};
use super::functions::Handle;
use crate::cuda::driver::{CallTensors, LibraryState, PreparedCall};
use crate::cuda::error::{DriverError, DriverResult, FailedCall};
use std::collections::HashMap;

/// The libraries of a device. See the module's description.
pub(in crate::cuda) struct NativeLibraries {
    /// The calls, which go before the libraries.
    prepared: HashMap<u64, NativeCall>,
    last: u64,
    cublaslt: Result<CublasLt, String>,
    cudnn: Result<Cudnn, String>,
}

/// A call that a library has prepared.
enum NativeCall {
    Product(PreparedProduct),
    Convolution(PreparedConvolution),
}

/// Returns the libraries that the machine has, without a device.
pub fn installed_libraries() -> Vec<LibraryState> {
    states_of(CublasLt::installed(), Cudnn::installed())
}

fn states_of(cublaslt: Result<String, String>, cudnn: Result<String, String>) -> Vec<LibraryState> {
    let states = [(CUBLASLT, cublaslt), (CUDNN, cudnn)];
    states.map(|(name, version)| LibraryState { name, version }).into()
}

impl NativeLibraries {
    /// Opens the libraries for the current device.
    pub(in crate::cuda) fn open() -> NativeLibraries {
        let (cublaslt, cudnn) = (CublasLt::open(), Cudnn::open());
        NativeLibraries { cublaslt, cudnn, prepared: HashMap::new(), last: 0 }
    }

    /// Returns what became of each library.
    pub(in crate::cuda) fn states(&self) -> Vec<LibraryState> {
        let cublaslt = self.cublaslt.as_ref().map(CublasLt::version).map_err(String::clone);
        states_of(cublaslt, self.cudnn.as_ref().map(Cudnn::version).map_err(String::clone))
    }

    /// Prepares a call; `None` if no library takes it.
    ///
    /// Errors: the library's.
    pub(in crate::cuda) fn prepare(
        &mut self,
        call: &LibraryCall,
        most_workspace: usize,
    ) -> DriverResult<Option<PreparedCall>> {
        let made = match call {
            LibraryCall::Product(call) => {
                let Ok(library) = &self.cublaslt else { return Ok(None) };
                let made = library.prepare(call, most_workspace)?;
                made.map(|product| (product.workspace_bytes, NativeCall::Product(product)))
            }
            LibraryCall::Convolution(call) => {
                let Ok(library) = &self.cudnn else { return Ok(None) };
                let made = library.prepare(call, most_workspace)?;
                made.map(|convolution| (convolution.workspace_bytes, NativeCall::Convolution(convolution)))
            }
        };
        Ok(made.map(|(workspace_bytes, call)| {
            self.last += 1;
            self.prepared.insert(self.last, call);
            PreparedCall { number: self.last, workspace_bytes }
        }))
    }

    /// Puts a call into a stream.
    ///
    /// Errors: the library's, or the call was given back.
    ///
    /// # Safety
    /// `stream` is a stream of the current device, which is the libraries'.
    pub(in crate::cuda) unsafe fn launch(
        &self,
        call: PreparedCall,
        tensors: &CallTensors,
        stream: Handle,
    ) -> DriverResult<()> {
        match (self.prepared.get(&call.number), &self.cublaslt, &self.cudnn) {
            (Some(NativeCall::Product(product)), Ok(library), _) => {
                // SAFETY: the caller's.
                unsafe { library.launch(product, tensors, stream) }
            }
            (Some(NativeCall::Convolution(convolution)), _, Ok(library)) => {
                // SAFETY: the caller's.
                unsafe { library.launch(convolution, tensors, stream) }
            }
            _ => {
                let (call, name) = ("launch a library's call", "not sent".to_owned());
                let meaning = "it was given back, or never prepared".to_owned();
                Err(DriverError::Refused(FailedCall { call, name, meaning }))
            }
        }
    }

    /// Gives a call back.
    pub(in crate::cuda) fn release(&mut self, call: PreparedCall) {
        self.prepared.remove(&call.number);
    }
}
