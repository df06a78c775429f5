//! The command `scale`: the scheduler's own threads under the highest load that they can take.
//! Requests are made on each ModelThread's core from a pre-computed stream, and GPUs are replaced
//! by objects in its memory, so the scheduler alone is timed (Symphony, Figure 11 left).
//!
//! [`options`] turns the command line into a [`plan`], and [`run`] executes it. [`search`] finds
//! the highest rate that passes, [`agreement`] repeats it, [`compare`] the cost of counters and
//! recorder. [`report`] and [`sweep_chart`] show the results, beside what the [`machine`] took from
//! the threads.

pub mod agreement;
pub mod compare;
pub mod machine;
pub mod options;
pub mod plan;
pub mod report;
pub mod run;
pub mod search;
pub mod sweep_chart;
