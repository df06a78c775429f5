//! What measures Symphony: [`scale`] runs the scheduler's threads at full speed, [`operations`] are
//! the steps of a request's way one by one, for the benchmarks and the instruction counts
//! (docs/performance.md). [`api`] asks a served engine from outside.

pub mod api;
pub mod charts;
pub mod operations;
pub mod scale;
