//! OpenTelemetry traces of sampled requests, sent by OTLP over HTTP. An API core's [`Tracer`]
//! decides which requests are traced and hands each over when it has ended, once and without
//! waiting; a thread of its own, off the pinned cores, makes spans of them (`spans`) in the
//! protocol's messages (`messages`) and sends them (`sender`, `post`). docs/tracing.md describes
//! it. Where no collector is named there is no thread, and a request costs a test of an `Option`.

mod context;
mod messages;
pub(super) mod post;
pub(super) mod sender;
mod spans;
mod tracer;

pub use context::{Parent, SpanId, TraceId};
pub use sender::Exporter;
pub use spans::batch_ids;
pub(crate) use tracer::Tracing;
pub use tracer::{Call, Traced, TracedRun, TracedStage, Tracer};

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of sent and lost traces. They are atomics that several threads add to, since changes
/// are rare.
#[derive(Debug, Default)]
pub struct TraceCounts {
    overflowed: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    retries: AtomicU64,
}

impl TraceCounts {
    /// Returns the number of traced requests that were dropped since too many waited to be sent.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that the collector took.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that the collector refused, or that were dropped since it was
    /// away for too long.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the number of times that spans were sent again.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    fn add(of: &AtomicU64, more: u64) {
        of.fetch_add(more, Ordering::Relaxed);
    }
}
