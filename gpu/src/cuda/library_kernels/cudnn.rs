//! cuDNN: convolutions on one device, by its calls for one convolution with a bias and an
//! activation, which every version of it has had. Its algorithm is what the library's heuristic
//! puts first, the same whenever library and card are; none is timed.

use super::call::{CUDNN, ConvolutionCall};
use super::functions::{self, Handle, LibraryStatus, NativeObject, checked};
use crate::cuda::driver::{CallTensors, DevicePointer};
use crate::cuda::error::{DriverError, DriverResult};
use crate::plan::{ImageLayout, PlanElement};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance, without_provenance_mut};

/// The names of the library, the version that has what is called here.
const NAMES: [&str; 2] = ["libcudnn.so", "libcudnn.so.9"];

/// The oldest version that is used.
const LEAST_VERSION: usize = 90_000;

library_functions! {
    /// The functions that are called.
    CudnnFunctions {
        cudnnGetVersion: fn() -> usize;
        cudnnGetErrorString: fn(LibraryStatus) -> *const c_char;
        cudnnCreate: fn(*mut Handle) -> LibraryStatus;
        cudnnDestroy: fn(Handle) -> LibraryStatus;
        cudnnSetStream: fn(Handle, Handle) -> LibraryStatus;
        cudnnCreateTensorDescriptor: fn(*mut Handle) -> LibraryStatus;
        cudnnSetTensor4dDescriptor: fn(Handle, u32, u32, c_int, c_int, c_int, c_int) -> LibraryStatus;
        cudnnDestroyTensorDescriptor: fn(Handle) -> LibraryStatus;
        cudnnCreateFilterDescriptor: fn(*mut Handle) -> LibraryStatus;
        cudnnSetFilter4dDescriptor: fn(Handle, u32, u32, c_int, c_int, c_int, c_int) -> LibraryStatus;
        cudnnDestroyFilterDescriptor: fn(Handle) -> LibraryStatus;
        cudnnCreateConvolutionDescriptor: fn(*mut Handle) -> LibraryStatus;
        cudnnSetConvolution2dDescriptor: fn(
            Handle, c_int, c_int, c_int, c_int, c_int, c_int, u32, u32
        ) -> LibraryStatus;
        cudnnSetConvolutionGroupCount: fn(Handle, c_int) -> LibraryStatus;
        cudnnSetConvolutionMathType: fn(Handle, u32) -> LibraryStatus;
        cudnnDestroyConvolutionDescriptor: fn(Handle) -> LibraryStatus;
        cudnnCreateActivationDescriptor: fn(*mut Handle) -> LibraryStatus;
        cudnnSetActivationDescriptor: fn(Handle, u32, u32, f64) -> LibraryStatus;
        cudnnDestroyActivationDescriptor: fn(Handle) -> LibraryStatus;
        cudnnGetConvolutionForwardAlgorithm_v7: fn(
            Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut AlgorithmResult
        ) -> LibraryStatus;
        cudnnGetConvolutionForwardWorkspaceSize: fn(
            Handle, Handle, Handle, Handle, Handle, u32, *mut usize
        ) -> LibraryStatus;
        cudnnConvolutionForward: fn(
            Handle, *const f32, Handle, *const c_void, Handle, *const c_void, Handle, u32, *mut c_void,
            usize, *const f32, Handle, *mut c_void
        ) -> LibraryStatus;
        cudnnConvolutionBiasActivationForward: fn(
            Handle, *const f32, Handle, *const c_void, Handle, *const c_void, Handle, u32, *mut c_void,
            usize, *const f32, Handle, *const c_void, Handle, *const c_void, Handle, Handle, *mut c_void
        ) -> LibraryStatus;
    }
}

/// What the heuristic finds: `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct AlgorithmResult {
    algorithm: u32,
    status: LibraryStatus,
    time: f32,
    workspace_bytes: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

// The numbers of cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h.
const TENSOR_NCHW: u32 = 0;
const TENSOR_NHWC: u32 = 1;
const DATA_FLOAT: u32 = 0;
const DATA_HALF: u32 = 2;
const DATA_BFLOAT16: u32 = 9;
const CROSS_CORRELATION: u32 = 1;
const ACTIVATION_RELU: u32 = 1;
const ACTIVATION_IDENTITY: u32 = 5;
const NOT_PROPAGATE_NAN: u32 = 0;
const TENSOR_OP_MATH: u32 = 1;
/// Single precision without TF32.
const FMA_MATH: u32 = 3;
const IMPLICIT_PRECOMP_GEMM: u32 = 1;
const DETERMINISTIC: u32 = 1;
/// The number of algorithms that there are.
const ALGORITHMS: usize = 8;
/// The statuses of what the library does not have: 3000 to 3999, and 9 of older versions.
const NOT_SUPPORTED: LibraryStatus = 3_000;
const NOT_SUPPORTED_BEFORE: LibraryStatus = 9;

/// The library on one device.
pub(super) struct Cudnn {
    functions: CudnnFunctions,
    handle: NativeObject,
}

/// A convolution that the library has described, with its algorithm.
pub(super) struct PreparedConvolution {
    image: NativeObject,
    kernels: NativeObject,
    output: NativeObject,
    convolution: NativeObject,
    /// The bias's description and what follows it, where there is one.
    bias: Option<[NativeObject; 2]>,
    algorithm: u32,
    pub(super) workspace_bytes: usize,
}

impl Cudnn {
    /// Opens the library for the current device.
    ///
    /// Errors: why it can't be used.
    pub(super) fn open() -> Result<Cudnn, String> {
        let functions = Cudnn::functions()?;
        // SAFETY: writes the address of a handle, which the other function destroys.
        let made = unsafe { NativeObject::new(|to| (functions.cudnnCreate)(to), functions.cudnnDestroy) };
        let handle = made.map_err(|status| functions.failure("open cuDNN", status).to_string())?;
        Ok(Cudnn { functions, handle })
    }

    /// Finds the functions, of a version that is new enough.
    fn functions() -> Result<CudnnFunctions, String> {
        let functions = CudnnFunctions::open(&NAMES)?;
        // SAFETY: it takes nothing.
        functions::check_version(unsafe { (functions.cudnnGetVersion)() }, LEAST_VERSION)?;
        Ok(functions)
    }

    /// Returns the version of the library that the machine has, without a device.
    ///
    /// Errors: why it can't be used.
    pub(super) fn installed() -> Result<String, String> {
        Cudnn::functions().map(|functions| functions.version())
    }

    /// Returns the library's version.
    pub(super) fn version(&self) -> String {
        self.functions.version()
    }

    /// Describes a convolution and chooses its algorithm; `None` if the library has none.
    ///
    /// Errors: the library's.
    pub(super) fn prepare(
        &self,
        call: &ConvolutionCall,
        most_workspace: usize,
    ) -> DriverResult<Option<PreparedConvolution>> {
        let described = self.describe(call).and_then(|mut described| {
            let chosen = self.choose(&described, call, most_workspace)?;
            Ok(chosen.map(|(algorithm, workspace_bytes)| {
                (described.algorithm, described.workspace_bytes) = (algorithm, workspace_bytes);
                described
            }))
        });
        match described {
            Err(status) if is_not_supported(status) => Ok(None),
            described => described.map_err(|status| self.functions.failure("prepare a convolution", status)),
        }
    }

    /// Puts a convolution into a stream.
    ///
    /// Errors: the library's.
    ///
    /// # Safety
    /// `stream` is a stream of the current device.
    pub(super) unsafe fn launch(
        &self,
        of: &PreparedConvolution,
        tensors: &CallTensors,
        stream: Handle,
    ) -> DriverResult<()> {
        let (functions, handle) = (&self.functions, self.handle.get());
        let at = |DevicePointer(address): DevicePointer| without_provenance::<c_void>(address as usize);
        let (one, zero) = (1f32, 0f32);
        let output = without_provenance_mut(tensors.output.0 as usize);
        let workspace = match of.workspace_bytes {
            0 => null_mut(),
            _ => without_provenance_mut(tensors.workspace.0 as usize),
        };
        // SAFETY: the stream is the caller's.
        let set = checked(unsafe { (functions.cudnnSetStream)(handle, stream) });
        // SAFETY: all objects are this library's, and the factors are read before it returns.
        // Addresses are the device's: a wrong one is an error of the device.
        let put = || unsafe {
            match &of.bias {
                None => (functions.cudnnConvolutionForward)(
                    handle,
                    &one,
                    of.image.get(),
                    at(tensors.left),
                    of.kernels.get(),
                    at(tensors.right),
                    of.convolution.get(),
                    of.algorithm,
                    workspace,
                    of.workspace_bytes,
                    &zero,
                    of.output.get(),
                    output,
                ),
                // What is added beside the bias has the factor 0.
                Some([bias, activation]) => (functions.cudnnConvolutionBiasActivationForward)(
                    handle,
                    &one,
                    of.image.get(),
                    at(tensors.left),
                    of.kernels.get(),
                    at(tensors.right),
                    of.convolution.get(),
                    of.algorithm,
                    workspace,
                    of.workspace_bytes,
                    &zero,
                    of.output.get(),
                    output,
                    bias.get(),
                    at(tensors.bias),
                    activation.get(),
                    of.output.get(),
                    output,
                ),
            }
        };
        let launched = set.and_then(|()| checked(put()));
        // The stream may be gone before the library is.
        // SAFETY: null is the device's own stream.
        unsafe { (functions.cudnnSetStream)(handle, null_mut()) };
        launched.map_err(|status| functions.failure("launch a convolution", status))
    }

    /// Describes a convolution, without its algorithm.
    fn describe(&self, call: &ConvolutionCall) -> Result<PreparedConvolution, LibraryStatus> {
        let functions = &self.functions;
        let element = data_type(call.element);
        // SAFETY: writes the address of a description, which the other function destroys.
        let convolution = unsafe {
            let make = |to| (functions.cudnnCreateConvolutionDescriptor)(to);
            NativeObject::new(make, functions.cudnnDestroyConvolutionDescriptor)
        }?;
        let ([pad_h, pad_w], [down, right], [dilation_h, dilation_w]) =
            (call.pads.map(int), call.strides.map(int), call.dilations.map(int));
        let math = if call.element == PlanElement::F32 { FMA_MATH } else { TENSOR_OP_MATH };
        let of = convolution.get();
        // SAFETY: the description is there. Sums are in single precision, whatever the elements.
        unsafe {
            let mode = CROSS_CORRELATION;
            checked((functions.cudnnSetConvolution2dDescriptor)(
                of, pad_h, pad_w, down, right, dilation_h, dilation_w, mode, DATA_FLOAT,
            ))?;
            checked((functions.cudnnSetConvolutionGroupCount)(of, int(call.groups)))?;
            checked((functions.cudnnSetConvolutionMathType)(of, math))?;
        }
        // SAFETY: writes the address of a description, which the other function destroys.
        let kernels = unsafe {
            let make = |to| (functions.cudnnCreateFilterDescriptor)(to);
            NativeObject::new(make, functions.cudnnDestroyFilterDescriptor)
        }?;
        let [m, depth, height, width] = call.kernels.map(int);
        // SAFETY: the description is there.
        checked(unsafe {
            let layout = tensor_format(call.layout);
            (functions.cudnnSetFilter4dDescriptor)(kernels.get(), element, layout, m, depth, height, width)
        })?;
        let bias = match call.has_bias {
            false => None,
            true => Some([self.tensor(call, [1, call.kernels[0], 1, 1])?, self.activation(call)?]),
        };
        let (image, output) = (self.tensor(call, call.image)?, self.tensor(call, call.output)?);
        Ok(PreparedConvolution {
            image,
            kernels,
            output,
            convolution,
            bias,
            algorithm: 0,
            workspace_bytes: 0,
        })
    }

    fn tensor(&self, call: &ConvolutionCall, sizes: [usize; 4]) -> Result<NativeObject, LibraryStatus> {
        let functions = &self.functions;
        // SAFETY: writes the address of a description, which the other function destroys.
        let tensor = unsafe {
            let make = |to| (functions.cudnnCreateTensorDescriptor)(to);
            NativeObject::new(make, functions.cudnnDestroyTensorDescriptor)
        }?;
        let ([n, c, h, w], layout) = (sizes.map(int), tensor_format(call.layout));
        let element = data_type(call.element);
        // SAFETY: the description is there.
        checked(unsafe {
            (functions.cudnnSetTensor4dDescriptor)(tensor.get(), layout, element, n, c, h, w)
        })?;
        Ok(tensor)
    }

    fn activation(&self, call: &ConvolutionCall) -> Result<NativeObject, LibraryStatus> {
        let functions = &self.functions;
        // SAFETY: writes the address of a description, which the other function destroys.
        let activation = unsafe {
            let make = |to| (functions.cudnnCreateActivationDescriptor)(to);
            NativeObject::new(make, functions.cudnnDestroyActivationDescriptor)
        }?;
        let mode = if call.relu { ACTIVATION_RELU } else { ACTIVATION_IDENTITY };
        // SAFETY: the description is there.
        checked(unsafe {
            (functions.cudnnSetActivationDescriptor)(activation.get(), mode, NOT_PROPAGATE_NAN, 0.0)
        })?;
        Ok(activation)
    }

    /// Returns the first algorithm of the heuristic's that gives the same result each time, with
    /// its workspace; `None` if there is none.
    fn choose(
        &self,
        of: &PreparedConvolution,
        call: &ConvolutionCall,
        most_workspace: usize,
    ) -> Result<Option<(u32, usize)>, LibraryStatus> {
        let (functions, handle) = (&self.functions, self.handle.get());
        let (x, w, conv, y) = (of.image.get(), of.kernels.get(), of.convolution.get(), of.output.get());
        let (mut results, mut count) = ([AlgorithmResult::default(); ALGORITHMS], 0);
        // SAFETY: all objects are this library's; writes at most as many results as there is room
        // for, and one number.
        checked(unsafe {
            let (room, to) = (ALGORITHMS as c_int, results.as_mut_ptr());
            (functions.cudnnGetConvolutionForwardAlgorithm_v7)(handle, x, w, conv, y, room, &mut count, to)
        })?;
        for found in results.iter().take(usize::try_from(count).unwrap_or(0)) {
            // With a bias and no activation the library takes this one alone.
            let takes = !call.has_bias || call.relu || found.algorithm == IMPLICIT_PRECOMP_GEMM;
            if found.status != 0 || found.determinism != DETERMINISTIC || !takes {
                continue;
            }
            if call.element != PlanElement::F32 {
                // SAFETY: the description is there.
                checked(unsafe { (functions.cudnnSetConvolutionMathType)(conv, found.math) })?;
            }
            let mut bytes = 0;
            // SAFETY: all objects are this library's; writes one number.
            let sized = checked(unsafe {
                let algorithm = found.algorithm;
                (functions.cudnnGetConvolutionForwardWorkspaceSize)(
                    handle, x, w, conv, y, algorithm, &mut bytes,
                )
            });
            match sized {
                Ok(()) if bytes <= most_workspace => return Ok(Some((found.algorithm, bytes))),
                Err(status) if !is_not_supported(status) => return Err(status),
                _ => {}
            }
        }
        Ok(None)
    }
}

impl CudnnFunctions {
    fn version(&self) -> String {
        // SAFETY: it takes nothing.
        functions::version_text(unsafe { (self.cudnnGetVersion)() })
    }

    fn failure(&self, call: &'static str, status: LibraryStatus) -> DriverError {
        // SAFETY: returns a text of the library's, or null.
        unsafe { functions::failure(call, CUDNN, (self.cudnnGetErrorString)(status)) }
    }
}

fn is_not_supported(status: LibraryStatus) -> bool {
    status == NOT_SUPPORTED_BEFORE || (NOT_SUPPORTED..NOT_SUPPORTED + 1_000).contains(&status)
}

/// Returns a size as the library takes it; `part.rs` lets no larger one come here.
fn int(size: usize) -> c_int {
    c_int::try_from(size).unwrap_or(c_int::MAX)
}

fn tensor_format(layout: ImageLayout) -> u32 {
    match layout {
        ImageLayout::ChannelsFirst => TENSOR_NCHW,
        ImageLayout::ChannelsLast => TENSOR_NHWC,
    }
}

fn data_type(element: PlanElement) -> u32 {
    match element {
        PlanElement::F16 => DATA_HALF,
        PlanElement::Bf16 => DATA_BFLOAT16,
        _ => DATA_FLOAT,
    }
}
