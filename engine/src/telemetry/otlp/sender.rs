//! The thread that makes spans of traced requests and sends them: some hundreds at a time or once a
//! second, again after a growing pause where the collector is away. The queue before it is bounded;
//! API cores drop the requests that do not fit.

use super::TraceCounts;
use super::messages::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, InstrumentationScope, KeyValue, Resource,
    ResourceSpans, ScopeSpans, Span,
};
use super::post::{Failure, post};
use super::spans::Spans;
use super::tracer::{Traced, Tracing};
use crate::config::{Endpoint, TraceConfig};
use crate::runtime::clock::Clock;
use prost::Message;
use rustix::thread::CpuSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The most traced requests that wait for the thread, of all API cores together.
pub(in crate::telemetry) const REQUESTS: usize = 8_192;

/// The interval at which the thread polls its queue. It does not wait on the channel, so that no
/// API core ever has to wake it.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The number of spans that are sent at once.
pub(in crate::telemetry) const AT_ONCE: usize = 2_048;

/// The time after which fewer spans are sent, too.
pub(in crate::telemetry) const EVERY: Duration = Duration::from_secs(1);

/// The time that the collector may take to answer, also while the server stops.
pub(in crate::telemetry) const PATIENCE: Duration = Duration::from_secs(10);
pub(in crate::telemetry) const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// The number of attempts to send the same spans, and the pause after the first, which doubles.
pub(in crate::telemetry) const ATTEMPTS: u32 = 5;
pub(in crate::telemetry) const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The time that the server's stop waits for the rest to be sent.
pub(in crate::telemetry) const FLUSH: Duration = Duration::from_secs(3);

/// The niceness of the thread.
const NICE: i32 = 10;

/// The running sender.
pub struct Exporter {
    tracing: Tracing,
    counts: Arc<TraceCounts>,
    stop: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Exporter {
    /// Starts the thread if `config` names a collector, on none of the cores in `taken` if there
    /// are others. `clock` is the engine's.
    ///
    /// Errors: the system gives no thread.
    pub fn start(config: &TraceConfig, clock: Clock, taken: Vec<usize>) -> io::Result<Option<Exporter>> {
        let Some(endpoint) = config.endpoint.clone() else { return Ok(None) };
        let (sender, requests) = sync_channel(REQUESTS);
        let counts = Arc::new(TraceCounts::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (end, ended) = sync_channel(1);
        let mut thread = Sending {
            endpoint,
            resource: resource(&config.service_name),
            clock,
            requests,
            spans: Spans::new(rand::random()),
            counts: Arc::clone(&counts),
            stop: Arc::clone(&stop),
            is_away: false,
        };
        std::thread::Builder::new().name("otlp".into()).spawn(move || {
            // The thread works at any priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            keep_off(&taken);
            thread.run();
            // The caller of `stop` may have stopped waiting.
            let _ = end.send(());
        })?;
        let tracing = Tracing::new(config, sender, Arc::clone(&counts));
        Ok(Some(Exporter { tracing, counts, stop, ended }))
    }

    /// Returns the shared state of the API cores' [`Tracer`](super::Tracer)s.
    pub(crate) fn tracing(&self) -> Tracing {
        self.tracing.clone()
    }

    /// Returns the counts of sent and lost traces.
    pub fn counts(&self) -> &Arc<TraceCounts> {
        &self.counts
    }

    /// Sends what is left, in three seconds at most. It must be called once the API cores have
    /// ended.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        if self.ended.recv_timeout(FLUSH) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the trace collector does not answer; the last spans are lost");
        }
    }
}

/// Has this thread run on other cores than these, if there are any.
fn keep_off(taken: &[usize]) {
    let Ok(mut cores) = rustix::thread::sched_getaffinity(None) else { return };
    taken.iter().filter(|&&core| core < CpuSet::MAX_CPU).for_each(|&core| cores.unset(core));
    if cores.count() > 0 {
        // The thread works on any core, too.
        let _ = rustix::thread::sched_setaffinity(None, &cores);
    }
}

/// Returns the description of this server, which every message has.
fn resource(service_name: &str) -> Resource {
    Resource {
        attributes: vec![
            KeyValue::text("service.name", service_name),
            KeyValue::text("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::number("process.pid", std::process::id().into()),
        ],
    }
}

/// The state of the thread.
struct Sending {
    endpoint: Endpoint,
    resource: Resource,
    clock: Clock,
    requests: Receiver<Box<Traced>>,
    spans: Spans,
    counts: Arc<TraceCounts>,
    stop: Arc<AtomicBool>,
    /// True if the collector was away the last time.
    is_away: bool,
}

impl Sending {
    fn run(&mut self) {
        let mut sent_at = Instant::now();
        loop {
            let stopping = self.stop.load(Ordering::Acquire);
            self.take_in(stopping);
            let due = self.spans.ready() >= AT_ONCE || sent_at.elapsed() >= EVERY || stopping;
            if due && self.spans.ready() > 0 {
                self.send();
                sent_at = Instant::now();
            } else if stopping && self.spans.is_empty() {
                return;
            } else {
                std::thread::sleep(POLL_INTERVAL);
            }
        }
    }

    /// Takes requests that API cores handed over, as many as are to be sent at once.
    fn take_in(&mut self, all_batches: bool) {
        let now = self.clock.now();
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.spans.set_clock(now, u64::try_from(today.as_nanos()).unwrap_or(u64::MAX));
        while self.spans.ready() < AT_ONCE {
            let Ok(traced) = self.requests.try_recv() else { break };
            self.spans.add(&traced, now);
        }
        self.spans.settle(now, all_batches);
    }

    /// Sends spans until the collector has taken or refused them, or was away for too long.
    fn send(&mut self) {
        let spans = self.spans.take_ready(AT_ONCE);
        let count = spans.len() as u64;
        let body = self.request(spans).encode_to_vec();
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let stopping = self.stop.load(Ordering::Acquire);
            let patience = if stopping { LAST_PATIENCE } else { PATIENCE };
            let (why, after) = match post(&self.endpoint, &body, patience) {
                Ok(answer) => return self.taken(count, &answer),
                Err(Failure::Never(why)) => return self.refused(count, &why),
                Err(Failure::Later(why, after)) => (why, after),
            };
            if !self.is_away {
                tracing::warn!("the trace collector at {} can't be reached: {why}", self.endpoint);
                self.is_away = true;
            }
            if stopping || attempt == ATTEMPTS {
                return TraceCounts::add(&self.counts.failed, count);
            }
            self.rest(after.unwrap_or(pause));
            pause *= 2;
            TraceCounts::add(&self.counts.retries, 1);
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let scope = Some(InstrumentationScope { name: "symphony".to_owned(), version });
        let scope_spans = vec![ScopeSpans { scope, spans }];
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }],
        }
    }

    fn taken(&mut self, count: u64, answer: &[u8]) {
        if std::mem::take(&mut self.is_away) {
            tracing::info!("the trace collector at {} is back", self.endpoint);
        }
        let partial = ExportTraceServiceResponse::decode(answer).unwrap_or_default().partial_success;
        let rejected = partial
            .as_ref()
            .map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0))
            .min(count);
        TraceCounts::add(&self.counts.sent, count - rejected);
        if let Some(partial) = partial.filter(|_| rejected > 0) {
            self.refused(rejected, &partial.error_message);
        }
    }

    fn refused(&self, count: u64, why: &str) {
        TraceCounts::add(&self.counts.failed, count);
        tracing::warn!("the trace collector at {} refused {count} spans: {why:?}", self.endpoint);
    }

    /// Sleeps, unless the server stops.
    fn rest(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.stop.load(Ordering::Acquire) {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
