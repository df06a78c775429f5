//! What measures Symphony: [`scale`] runs the scheduler's threads at full speed, [`operations`] are the steps of a
//! request's way one by one, for the benchmarks and the instruction counts. See docs/performance.md.

pub mod operations;
pub mod scale;
