//! The scheduler's own threads under all the requests that they can take: the command `scale`.
//! Requests are made on each ModelThread's core from a pre-computed stream, GPUs are objects in
//! place, so what is timed is the scheduler (Symphony, figure 11 left).

pub mod chart;
pub mod compare;
pub mod gaps;
pub mod gpus;
pub mod lags;
pub mod machine;
pub mod measured;
pub mod options;
pub mod report;
pub mod search;
pub mod stream;
pub mod world;
