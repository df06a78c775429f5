//! Measurements of Symphony (docs/performance.md). [`scale`] runs the scheduler's threads at full
//! speed, [`operations`] are the steps of a request's way one by one, for the benchmarks and the
//! instruction counts, and [`api`] measures `symphony serve` from outside. [`chaos`] runs the
//! simulation of the engine over many seeds. [`population`] compares scheduling rules on random
//! workloads. [`predictability`] is of executions and of what the scheduler expects of them,
//! [`gpu`] compares a card with the interpreter, and [`networks`] makes the models for it.
//! [`charts`] draws the charts of these and of the experiments in `perf/papers`, [`zoo`]
//! has the models of both, and [`provenance`] says what a result came from.

pub mod api;
pub mod chaos;
pub mod charts;
pub mod gpu;
mod measure_error;
pub mod networks;
pub mod operations;
pub mod population;
pub mod predictability;
pub mod provenance;
pub mod scale;
pub mod zoo;

pub use measure_error::MeasureError;
