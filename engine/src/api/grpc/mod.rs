//! The gRPC adapter, on hyper's HTTP/2: `framing` is gRPC's envelope around messages, `status` what
//! ends a call, `messages` those of proto/inference.proto; `infer` and `stream` translate infer
//! requests, `admin` all other calls, and `adapter` takes a call through them.
//!
//! **Architecture invariant:** the adapter translates between gRPC and the services; it decides
//! nothing that HTTP would have to decide again.

mod adapter;
mod admin;
mod framing;
mod infer;
mod status;
mod stream;

/// The messages of `proto/inference.proto`, whose fields its comments explain.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

pub(super) use adapter::{is_grpc, read, respond};
