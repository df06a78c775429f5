//! The thin API: the Open Inference Protocol (KServe v2) with Triton's extensions, over HTTP and
//! gRPC, on pinned glommio executors. [`server::start`] makes one API core out of a
//! [`Frontend`](crate::runtime::frontend::Frontend); `connection` serves a client, in HTTP/1.1 or
//! HTTP/2.
//!
//! ```text
//!  http/  routes, JSON and binary bodies ─┐
//!                                         ├─▶ inference/ checked against the model ─▶ core ─▶ answers ─▶ engine
//!  grpc/  envelope, messages, streams ────┘       ▲ tensors/ elements, regions shared memory
//! ```
//!
//! The two protocol adapters only translate; what a request means, which diagnostics there are and
//! what they are called is said once, behind them. What is counted is in `statistics` and in
//! [`observe`](crate::telemetry).

mod access;
mod answers;
mod body;
mod compression;
mod connection;
mod core;
mod dashboard;
mod describe;
pub mod glommio_io;
pub mod grpc;
mod http;
mod inference;
mod problem;
pub mod reading;
mod regions;
mod reply;
pub mod server;
mod settings;
mod shared;
mod socket;
mod statistics;
mod tensors;
#[cfg(test)]
mod tests;
pub mod tls;
pub mod tokens;

pub use core::OUTCOME;
pub use server::{ApiConfig, ApiError, ApiHandle, start};
pub use shared::Shared;
