//! The gRPC adapter, on hyper's HTTP/2: `framing` is gRPC's envelope around messages, `status` what
//! ends a call, `messages` those of proto/inference.proto; `fields`, `contents` and
//! `message_reader` read an infer request's within bounds, `infer` and `stream` translate infer
//! requests, `admin` all other calls of that service, and `adapter` takes a call through them.
//! `health` and `reflection` are services of gRPC's own, with messages of their own.
//!
//! **Architecture invariant:** the adapter translates between gRPC and the services; it decides
//! nothing that HTTP would have to decide again.

mod adapter;
mod admin;
mod contents;
mod fields;
mod framing;
mod health;
mod infer;
mod message_reader;
mod reflection;
mod status;
mod stream;

/// The messages of `proto/inference.proto`, whose fields its comments explain.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

/// The messages of `proto/grpc/health/v1/health.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(in crate::api) mod health_messages {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The messages of `proto/grpc/reflection/v1/reflection.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub(in crate::api) mod reflection_messages {
    include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
}

pub(super) use adapter::{is_grpc, read, refuse, respond, trailers_after_panic};

/// The limits that documents name.
#[cfg(test)]
pub(in crate::api) mod limits {
    pub(in crate::api) use super::health::{MAX_LISTED, MAX_WATCHES, WATCH_EVERY};
    pub(in crate::api) use super::message_reader::MAX_FIELD;
    pub(in crate::api) use super::reflection::MAX_REQUEST_BYTES;
}
