//! NVIDIA's compiler at run time, `libnvrtc.so`: kernels in CUDA C++ become PTX, which a driver
//! compiles for its card when it loads it, or machine code for one architecture, which needs no
//! compiler any more. No card is needed. Whoever opens a card or makes a plan's file calls it.

use super::compiled::KeptKernels;
use super::error::{DriverError, DriverResult};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CString, c_char, c_void};

/// The functions of the compiler that are called.
const SYMBOLS: [&str; 10] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcGetPTXSize",
    "nvrtcGetPTX",
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    "nvrtcDestroyProgram",
];

/// What kernels are compiled to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum KernelTarget {
    /// PTX for cards of this compute capability and later ones, as text that ends in 0.
    Ptx([u32; 2]),
    /// Machine code for cards of this compute capability, and of a later one of the same number in
    /// front.
    Machine([u32; 2]),
}

/// Compiles kernels, in CUDA C++, or takes what a start before this one compiled of them.
///
/// # Errors
/// There is no compiler, or it refuses the source or the architecture.
pub fn compile_kernels(source: &str, target: KernelTarget) -> DriverResult<Vec<u8>> {
    let refused = |reason: String| DriverError::Kernels { reason };
    // SAFETY: opens the library named libnvrtc.so, whose initialisers are NVIDIA's.
    if !unsafe { sys::is_culib_present() } {
        let reason = "libnvrtc.so can't be opened; install NVIDIA's package of it, for example \
                      nvidia-cuda-nvrtc of PyPI, and put its folder into LD_LIBRARY_PATH";
        return Err(refused(reason.to_owned()));
    }
    // SAFETY: as above; it is there, so the call does not panic.
    let library = unsafe { sys::culib() };
    for symbol in SYMBOLS {
        // SAFETY: the symbol is only looked for; what is found is not used.
        if unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.is_err() {
            return Err(refused(format!("libnvrtc.so lacks {symbol}")));
        }
    }
    let c_source = CString::new(source).map_err(|_| refused("the source has a 0".to_owned()))?;
    let failed = |call: &str, error| refused(format!("{call}: {error:?}"));
    let mut version = [0; 2];
    let [major, minor] = &mut version;
    // SAFETY: writes two numbers.
    let asked = unsafe { sys::nvrtcVersion(major, minor) };
    asked.result().map_err(|error| failed("ask its version", error))?;
    KeptKernels::of_this_user().find_or_make((source, target, version), || {
        let program = result::create_program(&c_source, None).map_err(|error| failed("start", error))?;
        let code = compile(program, target);
        // SAFETY: the program was made above and is not used any more.
        unsafe { result::destroy_program(program) }.map_err(|error| failed("end", error))?;
        code.map_err(refused)
    })
}

/// Compiles a program that there is.
fn compile(program: sys::nvrtcProgram, target: KernelTarget) -> Result<Vec<u8>, String> {
    let option = match target {
        KernelTarget::Ptx([major, minor]) => format!("--gpu-architecture=compute_{major}{minor}"),
        KernelTarget::Machine([major, minor]) => format!("--gpu-architecture=sm_{major}{minor}"),
    };
    // SAFETY: the program is there.
    if let Err(error) = unsafe { result::compile_program(program, &[option]) } {
        // SAFETY: the program is there, and has a log once it was compiled.
        let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
        let log: Vec<u8> = log.into_iter().map(c_char::cast_unsigned).take_while(|&byte| byte != 0).collect();
        let log = String::from_utf8_lossy(&log).into_owned();
        return Err(if log.is_empty() { format!("{error:?}") } else { log });
    }
    match target {
        KernelTarget::Ptx(_) => {
            // SAFETY: the program was compiled.
            let text = unsafe { result::get_ptx(program) }.map_err(|error| format!("{error:?}"))?;
            let mut image: Vec<u8> = text.into_iter().map(c_char::cast_unsigned).collect();
            image.push(0);
            Ok(image)
        }
        KernelTarget::Machine(_) => {
            let mut bytes = 0;
            // SAFETY: the program was compiled; writes one number.
            let sized = unsafe { sys::nvrtcGetCUBINSize(program, &mut bytes) };
            sized.result().map_err(|error| format!("{error:?}"))?;
            let mut image = vec![0u8; bytes];
            // SAFETY: the program was compiled, and its code has as many bytes as are given.
            let copied = unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) };
            copied.result().map_err(|error| format!("{error:?}"))?;
            Ok(image)
        }
    }
}
