//! The deterministic driver: a policy's scheduler in virtual time, with seeded arrivals and GPUs
//! that take exactly what the profile says, or as much more as a [`Fault`] makes them. The same
//! seed gives the same decisions. `simulate` prints the report; tests watch every event through an
//! [`Observer`], of which [`Audit`] checks what must hold for any policy.

pub mod arrivals;
mod audit;
pub mod goodput;
mod gpus;
pub mod grid;
mod minutes;
mod observer;
mod queries;
pub mod report;
mod simulation;
mod traffic;

pub use audit::{Audit, Decision, Violation};
pub use gpus::Fault;
pub use observer::{Observer, QueryEnding};
pub use simulation::{simulate, simulate_observed};
