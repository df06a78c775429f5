//! cuBLASLt: products of matrices on one device. A product is described once, with the algorithm
//! that the library's heuristic puts first; that is the same whenever library and card are.
//!
//! The library's matrices have their columns one behind another, ours their rows: ours are the
//! transposes of what it sees, and `y = left * right` is `y' = right' * left'` there.

use super::call::{CUBLASLT, FusedFunction, ProductCall};
use super::functions::{self, Handle, LibraryStatus, NativeObject, checked};
use crate::cuda::driver::CallTensors;
use crate::cuda::error::{DriverError, DriverResult};
use crate::plan::PlanElement;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance, without_provenance_mut};

/// The names of the library, the versions that have what is called here.
const NAMES: [&str; 3] = ["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"];

/// The oldest version that is used.
const LEAST_VERSION: usize = 120_000;

library_functions! {
    /// The functions that are called.
    CublasLtFunctions {
        cublasLtGetVersion: fn() -> usize;
        cublasLtGetStatusName: fn(LibraryStatus) -> *const c_char;
        cublasLtCreate: fn(*mut Handle) -> LibraryStatus;
        cublasLtDestroy: fn(Handle) -> LibraryStatus;
        cublasLtMatmulDescCreate: fn(*mut Handle, u32, u32) -> LibraryStatus;
        cublasLtMatmulDescSetAttribute: fn(Handle, u32, *const c_void, usize) -> LibraryStatus;
        cublasLtMatmulDescDestroy: fn(Handle) -> LibraryStatus;
        cublasLtMatrixLayoutCreate: fn(*mut Handle, u32, u64, u64, i64) -> LibraryStatus;
        cublasLtMatrixLayoutSetAttribute: fn(Handle, u32, *const c_void, usize) -> LibraryStatus;
        cublasLtMatrixLayoutDestroy: fn(Handle) -> LibraryStatus;
        cublasLtMatmulPreferenceCreate: fn(*mut Handle) -> LibraryStatus;
        cublasLtMatmulPreferenceSetAttribute: fn(Handle, u32, *const c_void, usize) -> LibraryStatus;
        cublasLtMatmulPreferenceDestroy: fn(Handle) -> LibraryStatus;
        cublasLtMatmulAlgoGetHeuristic: fn(
            Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut HeuristicResult, *mut c_int
        ) -> LibraryStatus;
        cublasLtMatmul: fn(
            Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void,
            *const c_void, Handle, *mut c_void, Handle, *const [u64; 8], *mut c_void, usize, Handle
        ) -> LibraryStatus;
    }
}

/// What the heuristic finds: `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct HeuristicResult {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: LibraryStatus,
    waves: f32,
    reserved: [c_int; 4],
}

// The numbers of cublasLt.h and library_types.h.
const NOT_SUPPORTED: LibraryStatus = 15;
const COMPUTE_32F: u32 = 68;
const R_32F: u32 = 0;
const R_16F: u32 = 2;
const R_16BF: u32 = 14;
const DESC_TRANSPOSED: [u32; 2] = [3, 4];
const DESC_EPILOGUE: u32 = 7;
const DESC_BIAS_POINTER: u32 = 8;
const LAYOUT_BATCH_COUNT: u32 = 5;
const LAYOUT_BATCH_STRIDE: u32 = 6;
const PREFERENCE_WORKSPACE: u32 = 1;

/// A bias's address while the algorithm is chosen, which asks for its alignment alone.
const ANY_BIAS: u64 = 256;

/// The library on one device.
pub(super) struct CublasLt {
    functions: CublasLtFunctions,
    handle: NativeObject,
}

/// A product that the library has described, with its algorithm.
pub(super) struct PreparedProduct {
    description: NativeObject,
    /// The layouts of right, left and result: what the library calls A, B, and C and D.
    layouts: [NativeObject; 3],
    algorithm: [u64; 8],
    alpha: f32,
    has_bias: bool,
    pub(super) workspace_bytes: usize,
}

impl CublasLt {
    /// Opens the library for the current device.
    ///
    /// Errors: why it can't be used.
    pub(super) fn open() -> Result<CublasLt, String> {
        let functions = CublasLt::functions()?;
        // SAFETY: writes the address of a handle, which the other function destroys.
        let made =
            unsafe { NativeObject::new(|to| (functions.cublasLtCreate)(to), functions.cublasLtDestroy) };
        let handle = made.map_err(|status| functions.failure("open cuBLASLt", status).to_string())?;
        Ok(CublasLt { functions, handle })
    }

    /// Finds the functions, of a version that is new enough.
    fn functions() -> Result<CublasLtFunctions, String> {
        let functions = CublasLtFunctions::open(&NAMES)?;
        // SAFETY: it takes nothing.
        functions::check_version(unsafe { (functions.cublasLtGetVersion)() }, LEAST_VERSION)?;
        Ok(functions)
    }

    /// Returns the version of the library that the machine has, without a device.
    ///
    /// Errors: why it can't be used.
    pub(super) fn installed() -> Result<String, String> {
        CublasLt::functions().map(|functions| functions.version())
    }

    /// Returns the library's version.
    pub(super) fn version(&self) -> String {
        self.functions.version()
    }

    /// Describes a product and chooses its algorithm; `None` if the library has none.
    ///
    /// Errors: the library's.
    pub(super) fn prepare(
        &self,
        call: &ProductCall,
        most_workspace: usize,
    ) -> DriverResult<Option<PreparedProduct>> {
        let functions = &self.functions;
        let described =
            functions.describe(call).map_err(|status| functions.failure("describe a product", status));
        let (description, layouts) = described?;
        let chosen = functions.choose(self.handle.get(), (&description, &layouts), most_workspace);
        let chosen = chosen.map_err(|status| functions.failure("choose a product's algorithm", status))?;
        Ok(chosen.map(|HeuristicResult { algorithm, workspace_bytes, .. }| PreparedProduct {
            description,
            layouts,
            algorithm,
            alpha: call.alpha,
            has_bias: call.has_bias,
            workspace_bytes,
        }))
    }

    /// Puts a product into a stream.
    ///
    /// Errors: the library's.
    ///
    /// # Safety
    /// `stream` is a stream of the current device.
    pub(super) unsafe fn launch(
        &self,
        product: &PreparedProduct,
        tensors: &CallTensors,
        stream: Handle,
    ) -> DriverResult<()> {
        let (functions, [a, b, d]) = (&self.functions, &product.layouts);
        if product.has_bias {
            let set = functions.set_description(&product.description, DESC_BIAS_POINTER, &tensors.bias.0);
            set.map_err(|status| functions.failure("set a product's bias", status))?;
        }
        let at = |address: u64| without_provenance::<c_void>(address as usize);
        let (alpha, beta) = (product.alpha, 0f32);
        let output = without_provenance_mut(tensors.output.0 as usize);
        let workspace = match product.workspace_bytes {
            0 => null_mut(),
            _ => without_provenance_mut(tensors.workspace.0 as usize),
        };
        // SAFETY: all objects are this library's, and the two factors are read before it returns.
        // Addresses are the device's: a wrong one is an error of the device.
        let status = unsafe {
            (functions.cublasLtMatmul)(
                self.handle.get(),
                product.description.get(),
                (&raw const alpha).cast(),
                at(tensors.right.0),
                a.get(),
                at(tensors.left.0),
                b.get(),
                (&raw const beta).cast(),
                output,
                d.get(),
                output,
                d.get(),
                &product.algorithm,
                workspace,
                product.workspace_bytes,
                stream,
            )
        };
        if status == 0 { Ok(()) } else { Err(functions.failure("launch a product", status)) }
    }
}

impl CublasLtFunctions {
    fn version(&self) -> String {
        // SAFETY: it takes nothing.
        functions::version_text(unsafe { (self.cublasLtGetVersion)() })
    }

    fn failure(&self, call: &'static str, status: LibraryStatus) -> DriverError {
        // SAFETY: returns a text of the library's, or null.
        unsafe { functions::failure(call, CUBLASLT, (self.cublasLtGetStatusName)(status)) }
    }

    fn set_description<T: Copy>(
        &self,
        of: &NativeObject,
        attribute: u32,
        value: &T,
    ) -> Result<(), LibraryStatus> {
        let from = (&raw const *value).cast();
        // SAFETY: reads as many bytes as the value has.
        checked(unsafe { (self.cublasLtMatmulDescSetAttribute)(of.get(), attribute, from, size_of::<T>()) })
    }

    fn set_layout<T: Copy>(&self, of: &NativeObject, attribute: u32, value: &T) -> Result<(), LibraryStatus> {
        let from = (&raw const *value).cast();
        // SAFETY: reads as many bytes as the value has.
        checked(unsafe { (self.cublasLtMatrixLayoutSetAttribute)(of.get(), attribute, from, size_of::<T>()) })
    }

    /// Describes a product: its operation, and the layouts of right, left and result.
    fn describe(&self, call: &ProductCall) -> Result<(NativeObject, [NativeObject; 3]), LibraryStatus> {
        // SAFETY: writes the address of a description, which the other function destroys.
        let description = unsafe {
            let make = |to| (self.cublasLtMatmulDescCreate)(to, COMPUTE_32F, R_32F);
            NativeObject::new(make, self.cublasLtMatmulDescDestroy)
        }?;
        let [left, right] = call.transposed;
        for (attribute, transposed) in DESC_TRANSPOSED.into_iter().zip([right, left]) {
            self.set_description(&description, attribute, &i32::from(transposed))?;
        }
        self.set_description(&description, DESC_EPILOGUE, &epilogue(call))?;
        if call.has_bias {
            self.set_description(&description, DESC_BIAS_POINTER, &ANY_BIAS)?;
        }
        let ProductCall { rows, columns, depth, own, .. } = *call;
        let layouts = [
            self.layout(call, if right { [depth, columns] } else { [columns, depth] }, own[1])?,
            self.layout(call, if left { [rows, depth] } else { [depth, rows] }, own[0])?,
            self.layout(call, [columns, rows], true)?,
        ];
        Ok((description, layouts))
    }

    /// Describes a matrix, as the library sees it, for each product.
    fn layout(
        &self,
        call: &ProductCall,
        [rows, columns]: [u64; 2],
        own: bool,
    ) -> Result<NativeObject, LibraryStatus> {
        let of = match call.element {
            PlanElement::F16 => R_16F,
            PlanElement::Bf16 => R_16BF,
            _ => R_32F,
        };
        // SAFETY: writes the address of a layout, which the other function destroys.
        let layout = unsafe {
            let make = |to| (self.cublasLtMatrixLayoutCreate)(to, of, rows, columns, rows as i64);
            NativeObject::new(make, self.cublasLtMatrixLayoutDestroy)
        }?;
        if call.batches > 1 {
            let stride = if own { (rows * columns) as i64 } else { 0 };
            self.set_layout(&layout, LAYOUT_BATCH_COUNT, &(call.batches as i32))?;
            self.set_layout(&layout, LAYOUT_BATCH_STRIDE, &stride)?;
        }
        Ok(layout)
    }

    /// Chooses the algorithm of a product; `None` if there is none.
    fn choose(
        &self,
        handle: Handle,
        (description, [a, b, d]): (&NativeObject, &[NativeObject; 3]),
        most_workspace: usize,
    ) -> Result<Option<HeuristicResult>, LibraryStatus> {
        // SAFETY: writes the address of preferences, which the other function destroys.
        let preference = unsafe {
            let make = |to| (self.cublasLtMatmulPreferenceCreate)(to);
            NativeObject::new(make, self.cublasLtMatmulPreferenceDestroy)
        }?;
        let most = most_workspace as u64;
        // SAFETY: reads as many bytes as the number has.
        checked(unsafe {
            let from = (&raw const most).cast();
            (self.cublasLtMatmulPreferenceSetAttribute)(preference.get(), PREFERENCE_WORKSPACE, from, 8)
        })?;
        let (mut result, mut count) = (HeuristicResult::default(), 0);
        // SAFETY: all objects are this library's; writes at most the one result, and one number.
        let status = unsafe {
            (self.cublasLtMatmulAlgoGetHeuristic)(
                handle,
                description.get(),
                a.get(),
                b.get(),
                d.get(),
                d.get(),
                preference.get(),
                1,
                &mut result,
                &mut count,
            )
        };
        if status == NOT_SUPPORTED {
            return Ok(None);
        }
        checked(status)?;
        let is_found = count > 0 && result.state == 0 && result.workspace_bytes <= most_workspace;
        Ok(is_found.then_some(result))
    }
}

/// Returns the number of what follows a product.
fn epilogue(call: &ProductCall) -> u32 {
    let bias = if call.has_bias { 4 } else { 0 };
    match call.function {
        FusedFunction::Identity => bias.max(1),
        FusedFunction::Relu => 2 + bias,
        FusedFunction::GeluTanh => 32 + bias,
    }
}
