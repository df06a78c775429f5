//! The observable state of a running server: metrics, readiness, the dashboard's numbers, traces
//! and logs. All API cores share one [`Telemetry`], so each can answer for all of them; every core
//! counts with [`Metrics`] of its own. The thread that waits for the server's end calls
//! [`Telemetry::observe`] several times a second, which keeps the history.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `metrics` | what an API core counts |
//! | `registry` | what all cores share, and what is read of it |
//! | `prometheus`, `view`, `memory_view` | the same as Prometheus text, and as the dashboard's JSON |
//! | `health`, `history`, `advice` | stuck threads, the last seconds, the number of GPUs that they ask for |
//! | `failures`, [`log`] | failed requests, and the log |
//! | [`otlp`] | traces |
//!
//! Architecture invariant: a ModelThread, a RankThread and a backend never call this room; it reads
//! their counters.

mod advice;
#[cfg(test)]
mod documented_limits;
mod failures;
mod health;
mod histogram;
mod history;
pub mod log;
mod memory_view;
mod metrics;
pub mod otlp;
mod outcome;
mod prometheus;
mod registry;
mod view;

pub use failures::FailureLog;
pub use health::NotReady;
pub use histogram::{LATENCY_BOUNDS, Latencies};
pub use metrics::{CoreTurns, Metrics, ModelRequests, SLO_BUCKETS, SLO_BUCKETS_IN_TIME, STAGES};
pub use outcome::InferOutcome;
pub use registry::Telemetry;
pub use view::Query;
