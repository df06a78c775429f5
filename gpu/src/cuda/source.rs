//! The source of the kernels, in CUDA C++, as it is compiled for a device when that is opened.

use super::{arguments, codes};
use crate::plan::PlanPrecision;

/// Returns the source of the kernels for plans of a precision, with the declarations of their
/// arguments in front.
pub fn kernel_source(precision: PlanPrecision) -> String {
    let mut source = String::from("// Declared by the host: gpu/src/cuda/arguments.rs, codes.rs\n");
    arguments::declare(&mut source);
    codes::declare(&mut source);
    source.push_str(match precision {
        PlanPrecision::Fp32 => "",
        PlanPrecision::Fp16 => "#define WITH_F16\n",
        PlanPrecision::Bf16 => "#define WITH_BF16\n",
    });
    for part in [
        include_str!("../../kernels/walk.cuh"),
        include_str!("../../kernels/ptx.cuh"),
        include_str!("../../kernels/floats.cuh"),
        include_str!("../../kernels/functions.cuh"),
        include_str!("../../kernels/elements.cu"),
        include_str!("../../kernels/matrix.cu"),
        include_str!("../../kernels/tensor.cu"),
        include_str!("../../kernels/image.cu"),
        include_str!("../../kernels/reduction.cu"),
        include_str!("../../kernels/attention.cu"),
        include_str!("../../kernels/movement.cu"),
    ] {
        source.push_str(part);
    }
    source
}
