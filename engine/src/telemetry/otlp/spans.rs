//! Spans of traced requests: the request's, one for each of its stages, and one for each batch that
//! a traced request was in. The stages of a query are requests of their own, children of its span.
//! A batch's span waits a while for further requests, so that it can link to them. Its ids follow
//! from the GPU and the start, so a request can link to it without any message. Pure: the time is
//! an argument.

use super::context::{SpanId, TraceId};
use super::messages::{KeyValue, Link, Span, SpanKind, Status, StatusCode, Value};
use super::tracer::{Traced, TracedRun};
use crate::telemetry::{InferOutcome, STAGES};
use std::collections::{HashMap, HashSet, VecDeque};
use symphony_transport::Nanos;
use symphony_transport::message::GpuId;

/// The time for which a batch waits for further traced requests: an answer takes far less from the
/// GPU to its API core.
const BATCH_WAIT: Nanos = Nanos::from_millis(500);

/// The most batches that wait at once; with more, the first is sent earlier.
const BATCHES: usize = 4_096;

/// The number of sent batches that are remembered, so that none is sent twice.
const REMEMBERED: usize = 8_192;

/// The most requests that a batch's span links to.
const LINKS: usize = 128;

/// The flag that a span is recorded, and the two that say that its parent is of another process.
const SAMPLED: u32 = 1;
const ORIGIN_KNOWN: u32 = 0x100;
const REMOTE_PARENT: u32 = 0x200;

/// The identity of a batch: no GPU starts two at once.
type BatchKey = (GpuId, Nanos);

/// Returns the trace and the span of a batch that `gpu` started at `started`, on the server of this
/// random number. A batch belongs to many requests, so it has a trace of its own.
pub fn batch_ids(server: u64, gpu: GpuId, started: Nanos) -> (TraceId, SpanId) {
    let which = mixed(mixed(mixed(server) ^ u64::from(gpu.0)).wrapping_add(started.0));
    let numbers = [1, 2, 3].map(|salt| mixed(which.wrapping_add(salt)).max(1).to_be_bytes());
    let mut trace = [0; 16];
    trace[..8].copy_from_slice(&numbers[0]);
    trace[8..].copy_from_slice(&numbers[1]);
    (TraceId(trace), SpanId(numbers[2]))
}

/// Returns the output of Sebastiano Vigna's splitmix64, which spreads a number over 64 bits.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// A batch that waits for further requests.
struct WaitingBatch {
    seen: Nanos,
    span: Span,
}

/// The most by which the time of day in spans may be off. The two clocks are not read at the same
/// moment, so a smaller difference says nothing; and a request and its batch, which may be taken in
/// one after the other, have the same times.
const CLOCK_TOLERANCE: Nanos = Nanos::from_millis(1);

/// The spans that are ready to be sent, and the batches that wait.
pub(super) struct Spans {
    server: u64,
    /// The time of day at the engine's time zero, in nanoseconds of Unix.
    epoch: u64,
    ready: VecDeque<Span>,
    waiting: HashMap<BatchKey, WaitingBatch>,
    /// The batches that wait, in the order in which they came.
    order: VecDeque<BatchKey>,
    /// The batches that were sent, newest last, as far as they are remembered.
    sent: VecDeque<BatchKey>,
    is_sent: HashSet<BatchKey>,
}

impl Spans {
    /// Makes an empty set; `server` is this process's random number.
    pub(super) fn new(server: u64) -> Spans {
        Spans {
            server,
            epoch: 0,
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            order: VecDeque::new(),
            sent: VecDeque::new(),
            is_sent: HashSet::new(),
        }
    }

    /// Sets the time of day at the engine's `now`, if it is off by more than [`CLOCK_TOLERANCE`].
    pub(super) fn set_clock(&mut self, now: Nanos, unix_ns: u64) {
        let epoch = unix_ns.saturating_sub(now.0);
        if self.epoch.abs_diff(epoch) > CLOCK_TOLERANCE.0 {
            self.epoch = epoch;
        }
    }

    /// Returns the number of spans that are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns true if no span is ready and no batch waits.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Returns the first `most` spans that are ready.
    pub(super) fn take_ready(&mut self, most: usize) -> Vec<Span> {
        self.ready.drain(..most.min(self.ready.len())).collect()
    }

    /// Adds a request that has ended, as seen at `now`.
    pub(super) fn add(&mut self, traced: &Traced, now: Nanos) {
        let span = self.of_request(traced);
        self.add_with_batch(traced, span, now);
        let own = u64::from_be_bytes(traced.span.0);
        for (at, stage) in traced.stages.iter().enumerate() {
            let id = SpanId(mixed(own.wrapping_add(at as u64 + 1)).max(1).to_be_bytes());
            let request = traced.request_of(stage, id);
            let span = Span {
                name: format!("stage {}", stage.name),
                kind: SpanKind::Internal.into(),
                flags: SAMPLED | ORIGIN_KNOWN,
                ..self.of_request(&request)
            };
            self.add_with_batch(&request, span, now);
        }
    }

    /// Adds the span of a request, those of its stages, and its batch, if it was in one.
    fn add_with_batch(&mut self, traced: &Traced, mut span: Span, now: Nanos) {
        if let Some(ran) = traced.ran.as_ref().filter(|_| !traced.is_query) {
            self.add_stages(traced, ran);
            if ran.timeline.has_run() {
                let (trace, id) = batch_ids(self.server, ran.gpu, ran.timeline.started);
                span.links.push(link(trace, id));
                self.add_to_batch(traced, ran, now);
            }
        }
        self.ready.push_back(span);
    }

    /// Makes batches ready that have waited long enough at `now`, or all of them.
    pub(super) fn settle(&mut self, now: Nanos, all: bool) {
        while let Some(key) = self.order.front() {
            let batch = &self.waiting[key];
            if !all && self.order.len() <= BATCHES && now - batch.seen < BATCH_WAIT {
                return;
            }
            let key = self.order.pop_front().expect("the queue has a front");
            let batch = self.waiting.remove(&key).expect("each key in order has a waiting batch");
            self.ready.push_back(batch.span);
            self.sent.push_back(key);
            self.is_sent.insert(key);
            if self.sent.len() > REMEMBERED {
                let oldest = self.sent.pop_front().expect("more than REMEMBERED are there");
                self.is_sent.remove(&oldest);
            }
        }
    }

    fn of_request(&self, traced: &Traced) -> Span {
        let mut attributes = vec![
            KeyValue::text("symphony.model.name", &traced.model),
            KeyValue::number("symphony.model.version", traced.version),
            KeyValue::text("symphony.protocol", traced.call.name()),
            KeyValue::text("symphony.outcome", traced.outcome.name()),
        ];
        if let Some(ran) = &traced.ran {
            attributes.push(KeyValue::number("symphony.class", ran.class.into()));
            attributes.push(KeyValue::number("symphony.rows", ran.rows as u64));
            if ran.timeline.due != Nanos::MAX {
                let ms = (ran.timeline.due - ran.timeline.arrival).as_millis_f64();
                attributes.push(KeyValue::new("symphony.deadline_ms", Value::Real(ms)));
            }
            if ran.timeline.has_run() && !traced.is_query {
                attributes.push(KeyValue::number("symphony.gpu", ran.gpu.0.into()));
                attributes.push(KeyValue::number("symphony.batch.size", ran.batch_size.into()));
            }
        }
        let flags = SAMPLED | ORIGIN_KNOWN | if traced.parent.is_some() { REMOTE_PARENT } else { 0 };
        Span {
            trace_id: traced.trace.0.to_vec(),
            span_id: traced.span.0.to_vec(),
            trace_state: traced.state.to_string(),
            parent_span_id: traced.parent.map_or(Vec::new(), |parent| parent.0.to_vec()),
            name: format!("infer {}", traced.model),
            kind: SpanKind::Server.into(),
            start_time_unix_nano: self.unix(traced.began),
            end_time_unix_nano: self.unix(traced.ended.max(traced.began)),
            attributes,
            status: status(traced.outcome),
            flags,
            ..Span::default()
        }
    }

    /// Adds the stages that the request came through. One that was dropped only has the first.
    fn add_stages(&mut self, traced: &Traced, ran: &TracedRun) {
        let mut stages = ran.timeline.stages();
        let own = u64::from_be_bytes(traced.span.0);
        let mut count = stages.len();
        if !ran.timeline.has_run() {
            count = 1;
            stages[0].1 = ran.timeline.finished;
        }
        for (at, ((name, _), (start, end))) in STAGES.iter().zip(stages).enumerate().take(count) {
            self.ready.push_back(Span {
                trace_id: traced.trace.0.to_vec(),
                span_id: mixed(own.wrapping_add(at as u64 + 1)).max(1).to_be_bytes().to_vec(),
                trace_state: traced.state.to_string(),
                parent_span_id: traced.span.0.to_vec(),
                name: (*name).to_owned(),
                kind: SpanKind::Internal.into(),
                start_time_unix_nano: self.unix(start),
                end_time_unix_nano: self.unix(end.max(start)),
                flags: SAMPLED | ORIGIN_KNOWN,
                ..Span::default()
            });
        }
    }

    fn add_to_batch(&mut self, traced: &Traced, ran: &TracedRun, now: Nanos) {
        let key = (ran.gpu, ran.timeline.started);
        if self.is_sent.contains(&key) {
            return;
        }
        if !self.waiting.contains_key(&key) {
            let span = self.of_batch(traced, ran);
            self.waiting.insert(key, WaitingBatch { seen: now, span });
            self.order.push_back(key);
        }
        let span = &mut self.waiting.get_mut(&key).expect("it was inserted above").span;
        if span.links.len() < LINKS {
            span.links.push(link(traced.trace, traced.span));
        } else {
            span.dropped_links_count += 1;
        }
    }

    fn of_batch(&self, traced: &Traced, ran: &TracedRun) -> Span {
        let (trace, id) = batch_ids(self.server, ran.gpu, ran.timeline.started);
        Span {
            trace_id: trace.0.to_vec(),
            span_id: id.0.to_vec(),
            name: format!("batch {}", traced.model),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: self.unix(ran.timeline.started),
            end_time_unix_nano: self.unix(ran.timeline.finished.max(ran.timeline.started)),
            attributes: vec![
                KeyValue::text("symphony.model.name", &traced.model),
                KeyValue::number("symphony.model.version", traced.version),
                KeyValue::number("symphony.gpu", ran.gpu.0.into()),
                KeyValue::number("symphony.batch.size", ran.batch_size.into()),
            ],
            flags: SAMPLED | ORIGIN_KNOWN,
            ..Span::default()
        }
    }

    fn unix(&self, time: Nanos) -> u64 {
        self.epoch.saturating_add(time.0)
    }
}

fn link(trace: TraceId, span: SpanId) -> Link {
    Link { trace_id: trace.0.to_vec(), span_id: span.0.to_vec(), flags: SAMPLED | ORIGIN_KNOWN }
}

/// Returns an error where the server is why there is no result in time; not where the client is.
fn status(outcome: InferOutcome) -> Option<Status> {
    match outcome {
        InferOutcome::Good | InferOutcome::Invalid | InferOutcome::Gone => None,
        _ => Some(Status { message: outcome.name().to_owned(), code: StatusCode::Error.into() }),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::tracer::{Call, TracedStage};
    use super::*;
    use crate::runtime::frontend::{ModelInfo, SlotState, Timeline};
    use symphony_transport::message::ModelId;

    pub(in crate::telemetry::otlp) fn model() -> ModelInfo {
        ModelInfo {
            name: "m".into(),
            version: 4,
            platform: "emulated".into(),
            slo: Nanos::from_millis(25),
            max_batch: 8,
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(0), 0)
        }
    }

    fn ran(gpu: u32, started: u64) -> TracedRun {
        TracedRun {
            rows: 2,
            class: 1,
            timeline: Timeline {
                arrival: Nanos(started - 40),
                due: Nanos(started + 1_000_000),
                batched: Nanos(started - 10),
                started: Nanos(started),
                finished: Nanos(started + 50),
                answered: Nanos(started + 60),
            },
            batch_size: 3,
            gpu: GpuId(gpu),
        }
    }

    fn traced(number: u8, ran: Option<TracedRun>) -> Traced {
        Traced {
            trace: TraceId([number; 16]),
            span: SpanId([number; 8]),
            parent: None,
            state: Box::default(),
            call: Call::Http,
            model: "m".into(),
            version: 4,
            began: Nanos(50),
            ended: Nanos(170),
            outcome: if ran.is_some() { InferOutcome::Good } else { InferOutcome::Invalid },
            ran,
            is_query: false,
            stages: Vec::new(),
        }
    }

    fn all(spans: &mut Spans) -> Vec<Span> {
        spans.settle(Nanos::ZERO, true);
        spans.take_ready(usize::MAX)
    }

    #[test]
    fn a_request_has_a_span_its_stages_and_a_link_to_its_batch_which_links_back() {
        let mut spans = Spans::new(9);
        spans.set_clock(Nanos(1_000), 1_000_001_000);
        spans.add(&traced(1, Some(ran(5, 100))), Nanos(200));
        spans.add(&traced(2, Some(ran(5, 100))), Nanos(300));
        let spans = all(&mut spans);
        let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
        let (requests, batches) = (named("infer m"), named("batch m"));
        assert_eq!((requests.len(), batches.len(), spans.len()), (2, 1, 2 + 2 * 4 + 1));
        let (trace, id) = batch_ids(9, GpuId(5), Nanos(100));
        for request in &requests {
            assert_eq!(
                (&request.links[0].trace_id[..], &request.links[0].span_id[..]),
                (&trace.0[..], &id.0[..])
            );
            assert_eq!(
                (request.start_time_unix_nano, request.end_time_unix_nano),
                (1_000_000_050, 1_000_000_170)
            );
        }
        let batch = batches[0];
        assert_eq!((&batch.trace_id[..], &batch.span_id[..]), (&trace.0[..], &id.0[..]));
        assert_eq!((batch.start_time_unix_nano, batch.end_time_unix_nano), (1_000_000_100, 1_000_000_150));
        let back: Vec<&[u8]> = batch.links.iter().map(|link| &link.span_id[..]).collect();
        assert_eq!(back, [&[1; 8], &[2; 8]]);
        let run = named("run");
        assert!(run.iter().all(|span| span.start_time_unix_nano == 1_000_000_100));
        assert_eq!(run[0].parent_span_id, [1; 8]);
        let mut ids: Vec<_> = spans.iter().map(|span| (&span.trace_id, &span.span_id)).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), spans.len(), "no two spans have one id");
    }

    #[test]
    fn a_query_has_a_child_for_each_stage_which_links_to_the_batch_of_its_model() {
        let mut spans = Spans::new(9);
        let stage = |name: &str, at: u64| TracedStage {
            name: name.into(),
            model: format!("model of {name}"),
            version: 3,
            outcome: InferOutcome::Good,
            ran: ran(5, at),
        };
        let stages = vec![stage("first", 100), stage("last", 300)];
        spans.add(&Traced { is_query: true, stages, ..traced(1, Some(ran(5, 100))) }, Nanos(400));
        let spans = all(&mut spans);
        let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
        assert_eq!(spans.len(), 1 + 2 * (1 + 4 + 1), "the query itself has no batch");
        let query = named("infer m")[0];
        assert!(query.links.is_empty() && query.attributes.iter().all(|of| of.key != "symphony.gpu"));
        for (name, began) in [("first", 60), ("last", 260)] {
            let stage = named(&format!("stage {name}"))[0];
            assert_eq!((&stage.parent_span_id, &stage.trace_id), (&query.span_id, &query.trace_id));
            assert_eq!(stage.start_time_unix_nano, began);
            let batch = named(&format!("batch model of {name}"))[0];
            assert_eq!((&stage.links[0].span_id, &batch.links[0].span_id), (&batch.span_id, &stage.span_id));
            let inner = spans.iter().filter(|span| span.parent_span_id == stage.span_id);
            assert_eq!(inner.count(), 4);
        }
        let mut ids: Vec<_> = spans.iter().map(|span| (&span.trace_id, &span.span_id)).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), spans.len(), "no two spans have one id");
    }

    #[test]
    fn a_batch_waits_for_its_requests_and_is_sent_once() {
        let mut spans = Spans::new(9);
        spans.add(&traced(1, Some(ran(5, 100))), Nanos(0));
        spans.take_ready(usize::MAX);
        spans.settle(BATCH_WAIT - Nanos(1), false);
        assert_eq!((spans.ready(), spans.is_empty()), (0, false));
        spans.settle(BATCH_WAIT, false);
        assert_eq!(spans.take_ready(usize::MAX).len(), 1);
        // A request that comes after that has only the link.
        spans.add(&traced(2, Some(ran(5, 100))), BATCH_WAIT);
        let late = all(&mut spans);
        assert_eq!((late.len(), late.last().unwrap().links.len()), (5, 1));
        // Another batch of that GPU is another.
        spans.add(&traced(3, Some(ran(5, 200))), BATCH_WAIT);
        assert_eq!(all(&mut spans).len(), 6);
    }

    #[test]
    fn everything_is_bounded() {
        let mut spans = Spans::new(9);
        for at in 0..LINKS as u64 + 10 {
            spans.add(&traced(at as u8, Some(ran(5, 100))), Nanos(0));
        }
        let batch = all(&mut spans).pop().unwrap();
        assert_eq!((batch.links.len(), batch.dropped_links_count), (LINKS, 10));
        for at in 0..2 * REMEMBERED as u64 {
            spans.add(&traced(1, Some(ran(5, 1_000 + at))), Nanos(0));
            spans.settle(Nanos(0), false);
            spans.take_ready(usize::MAX);
        }
        assert_eq!((spans.waiting.len(), spans.order.len()), (BATCHES, BATCHES));
        assert_eq!((spans.sent.len(), spans.is_sent.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn a_request_that_never_ran_has_neither_stages_nor_a_batch() {
        let mut spans = Spans::new(9);
        spans.add(&traced(1, None), Nanos(0));
        let only = all(&mut spans);
        assert_eq!((only.len(), only[0].links.len(), &only[0].status), (1, 0, &None));
        let ran = ran(5, 100);
        let timeline = Timeline { batched: Nanos::ZERO, started: Nanos::ZERO, ..ran.timeline };
        let dropped = TracedRun { timeline, batch_size: 0, ..ran };
        spans.add(&Traced { outcome: InferOutcome::Dropped, ..traced(1, Some(dropped)) }, Nanos(0));
        let both = all(&mut spans);
        assert_eq!(both.iter().map(|span| span.name.as_str()).collect::<Vec<_>>(), ["queue", "infer m"]);
        let status = both[1].status.as_ref().unwrap();
        assert_eq!((status.message.as_str(), status.code), ("dropped", StatusCode::Error.into()));
        assert_eq!(both[0].end_time_unix_nano - both[0].start_time_unix_nano, 90);
    }

    #[test]
    fn ids_of_batches_differ() {
        let ids: std::collections::HashSet<_> = (0..100)
            .flat_map(|gpu| (0..100).map(move |at| batch_ids(1, GpuId(gpu), Nanos(at))))
            .chain([batch_ids(2, GpuId(0), Nanos(0))])
            .collect();
        assert_eq!(ids.len(), 10_001);
    }
}
