//! Symphony's scheduler as pure state machines: a [`model::ModelQueue`] for each model, a
//! [`rank::RankState`] for each pool of GPUs, whole schedulers to compare them with ([`policy`]),
//! and a simulator that drives any of them in virtual time ([`sim`]).
//!
//! Every function takes the time as an argument, and decisions go into a sink. The crate is
//! `no_std`, so the compiler refuses a clock, a file, a socket or a thread in it; the pinned
//! threads of the crate `symphony` and the simulator here are two drivers of the same code.
//!
//! Modules look down only: `sim` → `policy` → `model` → `rank` → `deferral`, `drop_rule` →
//! `workload` → `profile` → `limits`.
#![cfg_attr(not(test), no_std)]

#[macro_use]
extern crate alloc;

pub mod deferral;
pub mod drop_rule;
pub mod limits;
pub mod model;
pub mod policy;
pub mod profile;
pub mod rank;
pub mod sim;
pub mod workload;
