//! The functions of cuBLASLt, with the names and the arguments of `cublasLt.h`, for programs that
//! open this crate's library in its place. A product is turned back into what it was described
//! for, and put into a stream of the fake device; whatever does not fit is an error.
#![allow(non_snake_case, reason = "the names are NVIDIA's")]

use crate::device::workspace_of;
use crate::library::Library;
use crate::library_objects::{
    LibraryObject, LibraryObjects, Status, ended, enter, give_object, object_functions, set_attribute,
};
use std::ffi::{CStr, c_char, c_int, c_void};
use symphony_gpu::cuda::driver::{CallTensors, DevicePointer, Stream};
use symphony_gpu::cuda::library_kernels::call::{FusedFunction, LibraryCall, ProductCall};
use symphony_gpu::plan::PlanElement;

type Handle = *mut c_void;

// The statuses, kinds of objects and attributes of cublasLt.h.
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;
const HANDLE: &str = "cuBLASLt handle";
const DESCRIPTION: &str = "product";
const LAYOUT: &str = "layout";
const PREFERENCE: &str = "preference";

/// The places of what an object is made with, behind the attributes of the header.
const ROWS: u32 = 1_000;
const COLUMNS: u32 = 1_001;
const LEADING: u32 = 1_002;
const ELEMENT: u32 = 1_003;

/// The first number of each algorithm that the heuristic gives out.
const ALGORITHM: u64 = 0x5941_4d50;

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
struct HeuristicResult {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    130_002
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetStatusName(status: Status) -> *const c_char {
    let name: &CStr = match status {
        0 => c"CUBLAS_STATUS_SUCCESS",
        1 => c"CUBLAS_STATUS_NOT_INITIALIZED",
        3 => c"CUBLAS_STATUS_ALLOC_FAILED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// # Safety
/// As of every function here: what `cublasLt.h` asks of the arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(handle: *mut Handle) -> Status {
    if Library::current().is_err() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's.
    unsafe { give_object(handle, "cublasLtCreate", HANDLE, |_| {}) }
}

object_functions! {
    create cublasLtMatmulPreferenceCreate: PREFERENCE;
    destroy cublasLtDestroy: HANDLE;
    destroy cublasLtMatmulDescDestroy: DESCRIPTION;
    destroy cublasLtMatrixLayoutDestroy: LAYOUT;
    destroy cublasLtMatmulPreferenceDestroy: PREFERENCE;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut Handle, compute: u32, scale: u32) -> Status {
    // CUBLAS_COMPUTE_32F and CUDA_R_32F: single precision, and no TF32.
    if compute != 68 || scale != 0 {
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller's.
    unsafe { give_object(to, "cublasLtMatmulDescCreate", DESCRIPTION, |_| {}) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    of: Handle,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's.
    unsafe { set_attribute(of, ("cublasLtMatmulDescSetAttribute", DESCRIPTION), attribute, (from, bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    to: *mut Handle,
    element: u32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Status {
    let describe = |layout: &mut LibraryObject| {
        for (place, value) in [(ROWS, rows), (COLUMNS, columns), (LEADING, leading.cast_unsigned())] {
            layout.set(place, &value.to_le_bytes());
        }
        layout.set(ELEMENT, &element.to_le_bytes());
    };
    // SAFETY: the caller's.
    unsafe { give_object(to, "cublasLtMatrixLayoutCreate", LAYOUT, describe) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    of: Handle,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's.
    unsafe { set_attribute(of, ("cublasLtMatrixLayoutSetAttribute", LAYOUT), attribute, (from, bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    of: Handle,
    attribute: u32,
    from: *const c_void,
    bytes: usize,
) -> Status {
    let named = ("cublasLtMatmulPreferenceSetAttribute", PREFERENCE);
    // SAFETY: the caller's.
    unsafe { set_attribute(of, named, attribute, (from, bytes)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: Handle,
    description: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    preference: Handle,
    room: c_int,
    results: *mut HeuristicResult,
    count: *mut c_int,
) -> Status {
    let found = enter("cublasLtMatmulAlgoGetHeuristic").and_then(|mut objects| {
        objects.find(handle, HANDLE)?;
        // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES.
        let most = objects.find(preference, PREFERENCE)?.number(1).unwrap_or(0);
        let workspace = workspace_of(&described(&mut objects, description, [a, b, c, d])?.call(1.0));
        if workspace as u64 > most { Err(NOT_SUPPORTED) } else { Ok(workspace) }
    });
    match found {
        Err(status) => status,
        Ok(_) if room < 1 || results.is_null() || count.is_null() => INVALID_VALUE,
        Ok(workspace_bytes) => {
            let algorithm = [ALGORITHM, workspace_bytes as u64, 0, 0, 0, 0, 0, 0];
            let (state, waves, reserved) = (0, 1.0, [0; 4]);
            // SAFETY: the caller has room for one result and the count.
            unsafe {
                results.write(HeuristicResult { algorithm, workspace_bytes, state, waves, reserved });
                count.write(1);
            }
            0
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    handle: Handle,
    description: Handle,
    alpha: *const f32,
    a: u64,
    a_layout: Handle,
    b: u64,
    b_layout: Handle,
    beta: *const f32,
    c: u64,
    c_layout: Handle,
    d: u64,
    d_layout: Handle,
    algorithm: *const [u64; 8],
    workspace: u64,
    workspace_bytes: usize,
    stream: Handle,
) -> Status {
    // SAFETY: the caller's: two numbers and an algorithm.
    let (alpha, beta, [magic, needed, ..]) = unsafe { (alpha.read(), beta.read(), algorithm.read()) };
    ended(enter("cublasLtMatmul").and_then(|mut objects| {
        objects.find(handle, HANDLE)?;
        let product = described(&mut objects, description, [a_layout, b_layout, c_layout, d_layout])?;
        let fits = magic == ALGORITHM && needed == workspace_bytes as u64;
        // Only what can't be read is multiplied by 0.
        if beta != 0.0 || c != d || !fits {
            return Err(INVALID_VALUE);
        }
        let [left, right, bias, output, workspace] = [b, a, product.bias, d, workspace].map(DevicePointer);
        let tensors = CallTensors { left, right, bias, output, workspace };
        let (_, device) = Library::current().map_err(|_| INVALID_VALUE)?;
        let stream = Stream(stream.addr() as u64);
        let put =
            device.launch_call("cublasLtMatmul", product.call(alpha), (tensors, workspace_bytes), stream);
        put.map_err(|_| EXECUTION_FAILED)
    }))
}

/// A product as it was described.
struct DescribedProduct {
    call: ProductCall,
    bias: u64,
}

impl DescribedProduct {
    fn call(&self, alpha: f32) -> LibraryCall {
        LibraryCall::Product(ProductCall { alpha, ..self.call })
    }
}

/// Turns descriptions back into a product of matrices whose rows lie one behind another: what the
/// library sees as A is the right one.
fn described(
    objects: &mut LibraryObjects,
    description: Handle,
    layouts: [Handle; 4],
) -> Result<DescribedProduct, Status> {
    let object = objects.find(description, DESCRIPTION)?.clone();
    let found = layouts.map(|layout| objects.find(layout, LAYOUT).map(|layout| layout.clone()));
    let [a, b, c, d] = found;
    let [a, b, c, d] = [a?, b?, c?, d?];
    let (rows, columns) = (size(&d, COLUMNS)?, size(&d, ROWS)?);
    let transposed = [4, 3].map(|attribute| object.number(attribute) == Some(1));
    let depth = size(&a, if transposed[1] { ROWS } else { COLUMNS })?;
    let batches = d.number(5).unwrap_or(1);
    let element = match d.number(ELEMENT) {
        Some(0) => PlanElement::F32,
        Some(2) => PlanElement::F16,
        Some(14) => PlanElement::Bf16,
        _ => return Err(NOT_SUPPORTED),
    };
    // Each with its own matrices, or one for all.
    let own = |layout: &LibraryObject, [rows, columns]: [u64; 2], transposed: bool| {
        let (seen, stride) = ([size(layout, ROWS)?, size(layout, COLUMNS)?], layout.number(6).unwrap_or(0));
        let expected = if transposed { [columns, rows] } else { [rows, columns] };
        let is_dense = layout.number(LEADING) == Some(seen[0]) && seen == expected;
        let fits = is_dense
            && layout.number(5).unwrap_or(1) == batches
            && layout.number(ELEMENT) == d.number(ELEMENT);
        match stride {
            0 if fits => Ok(false),
            stride if fits && stride == rows * columns => Ok(true),
            _ => Err(INVALID_VALUE),
        }
    };
    let own_of = [own(&b, [depth, rows], transposed[0])?, own(&a, [columns, depth], transposed[1])?];
    for result in [&c, &d] {
        if own(result, [columns, rows], false)? != (batches > 1) {
            return Err(INVALID_VALUE);
        }
    }
    let epilogue = object.number(7).unwrap_or(1);
    let (has_bias, function) = match epilogue {
        1 => (false, FusedFunction::Identity),
        2 => (false, FusedFunction::Relu),
        4 => (true, FusedFunction::Identity),
        6 => (true, FusedFunction::Relu),
        32 => (false, FusedFunction::GeluTanh),
        36 => (true, FusedFunction::GeluTanh),
        _ => return Err(NOT_SUPPORTED),
    };
    let (own, alpha) = (own_of, 1.0);
    let call =
        ProductCall { element, batches, own, rows, columns, depth, transposed, alpha, has_bias, function };
    Ok(DescribedProduct { call, bias: object.number(8).unwrap_or(0) })
}

fn size(layout: &LibraryObject, place: u32) -> Result<u64, Status> {
    layout.number(place).filter(|size| *size > 0).ok_or(INVALID_VALUE)
}
