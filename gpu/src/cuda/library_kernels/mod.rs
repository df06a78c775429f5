//! Convolutions and products of matrices by NVIDIA's libraries, where the machine has them:
//! cuBLASLt and cuDNN are opened when a device is, and what they do not take, or where they are
//! not, is computed by the kernels of `gpu/kernels/`.
//!
//! | file | content |
//! | --- | --- |
//! | `call.rs` | what a library can be asked to compute, as data |
//! | `part.rs` | the part of a plan's launch that a library computes |
//! | `prepared.rs` | a plan's launches that libraries have prepared |
//! | `functions.rs`, `cublaslt.rs`, `cudnn.rs` | the functions of a library, cuBLASLt's, cuDNN's |
//! | `native.rs` | the libraries of a device, and the calls that they have prepared |

#[macro_use]
mod functions;

pub mod call;
mod cublaslt;
mod cudnn;
pub(super) mod native;
pub mod part;
pub(super) mod prepared;
