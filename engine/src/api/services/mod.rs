//! The services that the protocol adapters use, free of protocols: access control, models and their
//! repository, statistics, settings, shared memory, the engine itself. [`CoreServices`] holds those
//! of one API core, [`SharedState`] what all cores of a server share.
//!
//! **Architecture invariant:** no service parses a request or writes a response of a protocol, and
//! none uses `inference`, an adapter or the dispatcher. A refusal is a
//! [`Problem`](crate::api::problem::Problem), which each adapter renders.

pub(super) mod access;
pub(super) mod accounting;
mod core_services;
pub(super) mod dashboard;
pub(super) mod describe;
pub(super) mod engine_client;
pub(super) mod models;
pub(super) mod origin;
pub(super) mod queries;
pub(super) mod repository;
pub(super) mod settings;
mod shared;
pub(super) mod shared_memory;
pub(super) mod statistics;
pub mod tokens;
pub(super) mod weights;

pub(super) use core_services::CoreServices;
pub use shared::SharedState;
