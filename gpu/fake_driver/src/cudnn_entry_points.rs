//! The functions of cuDNN, with the names and the arguments of `cudnn.h`, for programs that open
//! this crate's library in its place. A convolution is turned back into what it was described for,
//! and put into a stream of the fake device; whatever does not fit is an error.
#![allow(non_snake_case, reason = "the names are NVIDIA's")]

use crate::device::workspace_of;
use crate::library::Library;
use crate::library_objects::{LibraryObjects, Status, ended, enter, give_object, object_functions};
use std::ffi::{CStr, c_char, c_int, c_void};
use symphony_gpu::cuda::driver::{CallTensors, DevicePointer, Stream};
use symphony_gpu::cuda::library_kernels::call::{ConvolutionCall, LibraryCall};
use symphony_gpu::plan::{ImageLayout, PlanElement};

type Handle = *mut c_void;

// The statuses of cudnn_graph.h, and the kinds of objects.
const BAD_PARAM: Status = 2_000;
const NOT_SUPPORTED: Status = 3_000;
const EXECUTION_FAILED: Status = 5_000;
const HANDLE: &str = "cuDNN handle";
const TENSOR: &str = "tensor";
const FILTER: &str = "filter";
const CONVOLUTION: &str = "convolution";
const ACTIVATION: &str = "activation";

/// The algorithms that the heuristic names: one that is not deterministic, then two that are.
/// CUDNN_CONVOLUTION_FWD_ALGO_FFT, _WINOGRAD and _IMPLICIT_PRECOMP_GEMM.
const ALGORITHMS: [(u32, u32); 3] = [(4, 0), (6, 1), (1, 1)];

/// The algorithm that takes a bias without an activation.
const IMPLICIT_PRECOMP_GEMM: u32 = 1;

/// The place of a handle's stream, in its attributes.
const STREAM: u32 = 0;

/// `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
struct AlgorithmResult {
    algorithm: u32,
    status: Status,
    time: f32,
    workspace_bytes: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetVersion() -> usize {
    91_200
}

#[unsafe(no_mangle)]
extern "C" fn cudnnGetErrorString(status: Status) -> *const c_char {
    let name: &CStr = match status {
        0 => c"CUDNN_STATUS_SUCCESS",
        1_001 => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        4_000 => c"CUDNN_STATUS_INTERNAL_ERROR",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"unknown",
    };
    name.as_ptr()
}

/// # Safety
/// As of every function here: what `cudnn.h` asks of the arguments.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnCreate(handle: *mut Handle) -> Status {
    if Library::current().is_err() {
        return BAD_PARAM;
    }
    // SAFETY: the caller's.
    unsafe { give_object(handle, "cudnnCreate", HANDLE, |_| {}) }
}

object_functions! {
    create cudnnCreateTensorDescriptor: TENSOR;
    create cudnnCreateFilterDescriptor: FILTER;
    create cudnnCreateConvolutionDescriptor: CONVOLUTION;
    create cudnnCreateActivationDescriptor: ACTIVATION;
    destroy cudnnDestroy: HANDLE;
    destroy cudnnDestroyTensorDescriptor: TENSOR;
    destroy cudnnDestroyFilterDescriptor: FILTER;
    destroy cudnnDestroyConvolutionDescriptor: CONVOLUTION;
    destroy cudnnDestroyActivationDescriptor: ACTIVATION;
}

/// Sets numbers of an object, from the place 0 on.
fn set_numbers(of: Handle, (function, kind): (&'static str, &str), first: u32, numbers: &[i64]) -> Status {
    ended(enter(function).and_then(|mut objects| {
        let object = objects.find(of, kind)?;
        (first..).zip(numbers).for_each(|(place, number)| object.set(place, &number.to_le_bytes()));
        Ok(())
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetStream(handle: Handle, stream: Handle) -> Status {
    set_numbers(handle, ("cudnnSetStream", HANDLE), STREAM, &[stream.addr() as i64])
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetTensor4dDescriptor(
    of: Handle,
    format: u32,
    element: u32,
    n: c_int,
    c: c_int,
    h: c_int,
    w: c_int,
) -> Status {
    let numbers = [format.into(), element.into(), n.into(), c.into(), h.into(), w.into()];
    set_numbers(of, ("cudnnSetTensor4dDescriptor", TENSOR), 0, &numbers)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetFilter4dDescriptor(
    of: Handle,
    element: u32,
    format: u32,
    m: c_int,
    depth: c_int,
    h: c_int,
    w: c_int,
) -> Status {
    let numbers = [format.into(), element.into(), m.into(), depth.into(), h.into(), w.into()];
    set_numbers(of, ("cudnnSetFilter4dDescriptor", FILTER), 0, &numbers)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolution2dDescriptor(
    of: Handle,
    pad_h: c_int,
    pad_w: c_int,
    stride_h: c_int,
    stride_w: c_int,
    dilation_h: c_int,
    dilation_w: c_int,
    mode: u32,
    compute: u32,
) -> Status {
    // CUDNN_CROSS_CORRELATION and CUDNN_DATA_FLOAT.
    if mode != 1 || compute != 0 {
        return NOT_SUPPORTED;
    }
    let numbers = [pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w].map(i64::from);
    set_numbers(of, ("cudnnSetConvolution2dDescriptor", CONVOLUTION), 0, &numbers)
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolutionGroupCount(of: Handle, groups: c_int) -> Status {
    set_numbers(of, ("cudnnSetConvolutionGroupCount", CONVOLUTION), 6, &[groups.into()])
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetConvolutionMathType(of: Handle, math: u32) -> Status {
    set_numbers(of, ("cudnnSetConvolutionMathType", CONVOLUTION), 7, &[math.into()])
}

#[unsafe(no_mangle)]
extern "C" fn cudnnSetActivationDescriptor(of: Handle, mode: u32, _: u32, _: f64) -> Status {
    set_numbers(of, ("cudnnSetActivationDescriptor", ACTIVATION), 0, &[mode.into()])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetConvolutionForwardAlgorithm_v7(
    handle: Handle,
    x: Handle,
    w: Handle,
    convolution: Handle,
    y: Handle,
    room: c_int,
    count: *mut c_int,
    results: *mut AlgorithmResult,
) -> Status {
    let found = enter("cudnnGetConvolutionForwardAlgorithm_v7").and_then(|mut objects| {
        objects.find(handle, HANDLE)?;
        described(&mut objects, [x, w, convolution, y])
            .map(|call| workspace_of(&LibraryCall::Convolution(call)))
    });
    let workspace_bytes = match found {
        Err(status) => return status,
        Ok(_) if count.is_null() || results.is_null() => return BAD_PARAM,
        Ok(bytes) => bytes,
    };
    let named = ALGORITHMS.into_iter().take(usize::try_from(room).unwrap_or(0)).enumerate();
    for (at, (algorithm, determinism)) in named {
        // CUDNN_TENSOR_OP_MATH.
        let (status, time, math, reserved) = (0, 0.1, 1, [0; 3]);
        let result =
            AlgorithmResult { algorithm, status, time, workspace_bytes, determinism, math, reserved };
        // SAFETY: the caller has room for this many results.
        unsafe { results.add(at).write(result) };
        // SAFETY: the caller's to be written.
        unsafe { count.write(at as c_int + 1) };
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    handle: Handle,
    x: Handle,
    w: Handle,
    convolution: Handle,
    y: Handle,
    algorithm: u32,
    bytes: *mut usize,
) -> Status {
    let found = enter("cudnnGetConvolutionForwardWorkspaceSize").and_then(|mut objects| {
        objects.find(handle, HANDLE)?;
        let call = described(&mut objects, [x, w, convolution, y])?;
        // As the library has no Winograd for every window.
        let is_known = algorithm == IMPLICIT_PRECOMP_GEMM || call.kernels[2..] == [3, 3];
        if is_known { Ok(workspace_of(&LibraryCall::Convolution(call))) } else { Err(NOT_SUPPORTED) }
    });
    match found {
        Err(status) => status,
        Ok(_) if bytes.is_null() => BAD_PARAM,
        Ok(needed) => {
            // SAFETY: the caller's to be written.
            unsafe { bytes.write(needed) };
            0
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnConvolutionForward(
    handle: Handle,
    alpha: *const f32,
    x_of: Handle,
    x: u64,
    w_of: Handle,
    w: u64,
    convolution: Handle,
    _: u32,
    workspace: u64,
    workspace_bytes: usize,
    beta: *const f32,
    y_of: Handle,
    y: u64,
) -> Status {
    // SAFETY: the caller's: two numbers.
    let factors = unsafe { [alpha.read(), beta.read()] };
    let name = "cudnnConvolutionForward";
    ended(enter(name).and_then(|mut objects| {
        let call = described(&mut objects, [x_of, w_of, convolution, y_of])?;
        let tensors = [x, w, 0, y, workspace].map(DevicePointer);
        put(&mut objects, (name, handle), call, factors, (tensors, workspace_bytes))
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cudnnConvolutionBiasActivationForward(
    handle: Handle,
    alpha: *const f32,
    x_of: Handle,
    x: u64,
    w_of: Handle,
    w: u64,
    convolution: Handle,
    algorithm: u32,
    workspace: u64,
    workspace_bytes: usize,
    beta: *const f32,
    z_of: Handle,
    z: u64,
    bias_of: Handle,
    bias: u64,
    activation: Handle,
    y_of: Handle,
    y: u64,
) -> Status {
    // SAFETY: the caller's: two numbers.
    let factors = unsafe { [alpha.read(), beta.read()] };
    let name = "cudnnConvolutionBiasActivationForward";
    ended(enter(name).and_then(|mut objects| {
        let call = described(&mut objects, [x_of, w_of, convolution, y_of])?;
        let (_, element, of_bias) = tensor(&mut objects, bias_of, TENSOR)?;
        // CUDNN_ACTIVATION_RELU and _IDENTITY; without a function one algorithm alone is there.
        let relu = match objects.find(activation, ACTIVATION)?.number(0) {
            Some(1) => true,
            Some(5) if algorithm == IMPLICIT_PRECOMP_GEMM => false,
            _ => return Err(NOT_SUPPORTED),
        };
        if of_bias != [1, call.kernels[0], 1, 1]
            || element != call.element
            || z_of != y_of
            || z != y
            || bias == 0
        {
            return Err(BAD_PARAM);
        }
        let call = ConvolutionCall { has_bias: true, relu, ..call };
        let tensors = [x, w, bias, y, workspace].map(DevicePointer);
        put(&mut objects, (name, handle), call, factors, (tensors, workspace_bytes))
    }))
}

/// Puts a convolution into the handle's stream.
fn put(
    objects: &mut LibraryObjects,
    (name, handle): (&'static str, Handle),
    call: ConvolutionCall,
    factors: [f32; 2],
    (tensors, workspace_bytes): ([DevicePointer; 5], usize),
) -> Result<(), Status> {
    let stream = Stream(objects.find(handle, HANDLE)?.number(STREAM).ok_or(BAD_PARAM)?);
    if factors != [1.0, 0.0] {
        return Err(BAD_PARAM);
    }
    let [left, right, bias, output, workspace] = tensors;
    let tensors = CallTensors { left, right, bias, output, workspace };
    let (_, device) = Library::current().map_err(|_| BAD_PARAM)?;
    let call = LibraryCall::Convolution(call);
    device.launch_call(name, call, (tensors, workspace_bytes), stream).map_err(|_| EXECUTION_FAILED)
}

/// Returns what a description of a tensor or of kernels says: its layout, type and sizes.
fn tensor(
    objects: &mut LibraryObjects,
    of: Handle,
    kind: &str,
) -> Result<(ImageLayout, PlanElement, [usize; 4]), Status> {
    let object = objects.find(of, kind)?;
    let layout = match object.number(0) {
        Some(0) => ImageLayout::ChannelsFirst,
        Some(1) => ImageLayout::ChannelsLast,
        _ => return Err(BAD_PARAM),
    };
    let element = match object.number(1) {
        Some(0) => PlanElement::F32,
        Some(2) => PlanElement::F16,
        Some(9) => PlanElement::Bf16,
        _ => return Err(NOT_SUPPORTED),
    };
    let sizes = [2, 3, 4, 5].map(|place| object.number(place).unwrap_or(0) as usize);
    if sizes.contains(&0) { Err(BAD_PARAM) } else { Ok((layout, element, sizes)) }
}

/// Turns descriptions back into a convolution, without a bias.
fn described(
    objects: &mut LibraryObjects,
    [x, w, convolution, y]: [Handle; 4],
) -> Result<ConvolutionCall, Status> {
    let (layout, element, image) = tensor(objects, x, TENSOR)?;
    let (of_kernels, of_output) = (tensor(objects, w, FILTER)?, tensor(objects, y, TENSOR)?);
    if (of_kernels.0, of_kernels.1) != (layout, element) || (of_output.0, of_output.1) != (layout, element) {
        return Err(BAD_PARAM);
    }
    let object = objects.find(convolution, CONVOLUTION)?;
    let number = |place| object.number(place).map(|number| number as usize).ok_or(BAD_PARAM);
    // CUDNN_FMA_MATH for single precision, so that it is no TF32, and CUDNN_TENSOR_OP_MATH.
    if number(7)? != if element == PlanElement::F32 { 3 } else { 1 } {
        return Err(BAD_PARAM);
    }
    Ok(ConvolutionCall {
        element,
        layout,
        image,
        kernels: of_kernels.2,
        output: of_output.2,
        groups: number(6)?,
        pads: [number(0)?, number(1)?],
        strides: [number(2)?, number(3)?],
        dilations: [number(4)?, number(5)?],
        has_bias: false,
        relu: false,
    })
}
