//! The HTTP adapter: `routes` maps paths, `infer` reads and writes the bodies of infer requests
//! (`skeleton` and `bounded_list` within bounds), `admin` all other bodies, and `adapter` takes a
//! request through them.
//!
//! **Architecture invariant:** the adapter translates between HTTP and the services; it decides
//! nothing that gRPC would have to decide again.

mod adapter;
mod admin;
mod bounded_list;
mod gpus;
mod infer;
mod routes;
mod skeleton;

pub(super) use adapter::{fail, read, respond};

/// The limits that documents name.
#[cfg(test)]
pub(in crate::api) mod limits {
    pub(in crate::api) use super::adapter::MIN_COMPRESSED_BYTES;
    pub(in crate::api) use super::skeleton::MAX_TEXT;
}
