//! The tracing of one API core: it decides at a request's beginning whether it is traced, and hands
//! its data over at its end. Neither takes a lock or waits; where too many requests wait to be
//! sent, the request is counted and dropped.

use super::TraceCounts;
use super::context::{Parent, SpanId, TraceId};
use crate::config::TraceConfig;
use crate::runtime::frontend::{ModelInfo, Timeline};
use crate::telemetry::InferOutcome;
use rand::RngExt;
use rand_pcg::Pcg64Mcg;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use symphony_transport::Nanos;
use symphony_transport::message::GpuId;

/// The protocol by which a request came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// HTTP.
    Http,
    /// gRPC.
    Grpc,
}

impl Call {
    /// Returns the protocol's name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Call::Http => "http",
            Call::Grpc => "grpc",
        }
    }
}

/// The engine's answer to a traced request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TracedRun {
    /// The number of the request's rows.
    pub rows: usize,
    /// The request's priority class, 0 to 3.
    pub class: u8,
    /// The times of the request.
    pub timeline: Timeline,
    /// The size of the request's batch.
    pub batch_size: u32,
    /// The GPU that the batch was sent to.
    pub gpu: GpuId,
}

/// A request that is traced.
#[derive(Clone, PartialEq, Debug)]
pub struct Traced {
    pub(super) trace: TraceId,
    pub(super) span: SpanId,
    pub(super) parent: Option<SpanId>,
    pub(super) state: Box<str>,
    pub(super) call: Call,
    pub(super) model: String,
    pub(super) version: u64,
    pub(super) began: Nanos,
    pub(super) ended: Nanos,
    pub(super) outcome: InferOutcome,
    pub(super) ran: Option<TracedRun>,
    /// True if the request is one for a query, which is in no batch itself.
    pub(super) is_query: bool,
    /// The stages of a query that are over.
    pub(super) stages: Vec<TracedStage>,
}

/// A stage of a traced query: a request of the stage's model.
#[derive(Clone, PartialEq, Debug)]
pub struct TracedStage {
    /// The name of the stage.
    pub name: String,
    /// The name of the model.
    pub model: String,
    /// The version of the model.
    pub version: u64,
    /// The outcome, as the query takes it.
    pub outcome: InferOutcome,
    /// The engine's answer.
    pub ran: TracedRun,
}

impl Traced {
    /// Adds a stage of a query that is over.
    pub fn add_stage(&mut self, stage: TracedStage) {
        self.stages.push(stage);
    }

    /// Returns a stage as a request that is a child of this one, with this span.
    pub(super) fn request_of(&self, stage: &TracedStage, span: SpanId) -> Traced {
        Traced {
            trace: self.trace,
            span,
            parent: Some(self.span),
            state: self.state.clone(),
            call: self.call,
            model: stage.model.clone(),
            version: stage.version,
            began: stage.ran.timeline.arrival,
            ended: stage.ran.timeline.answered,
            outcome: stage.outcome,
            ran: Some(stage.ran),
            is_query: false,
            stages: Vec::new(),
        }
    }

    /// Adds the engine's answer.
    pub fn set_run(&mut self, ran: TracedRun) {
        self.ran = Some(ran);
    }
}

/// The shared state of all API cores' tracers.
#[derive(Clone)]
pub(crate) struct Tracing {
    /// The sampling threshold, of 2^63: a trace whose number is below is traced.
    threshold: u64,
    ended: SyncSender<Box<Traced>>,
    counts: Arc<TraceCounts>,
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").field("threshold", &self.threshold).finish_non_exhaustive()
    }
}

impl Tracing {
    pub(super) fn new(
        config: &TraceConfig,
        ended: SyncSender<Box<Traced>>,
        counts: Arc<TraceCounts>,
    ) -> Tracing {
        let threshold = (config.sample_ratio.clamp(0.0, 1.0) * (1_u64 << 63) as f64) as u64;
        Tracing { threshold, ended, counts }
    }
}

/// The tracer of an API core.
#[derive(Debug)]
pub struct Tracer(Option<(Tracing, RefCell<Pcg64Mcg>)>);

impl Tracer {
    /// Makes a tracer that hands over to `tracing`, or traces nothing.
    pub(crate) fn new(tracing: Option<Tracing>) -> Tracer {
        Tracer(tracing.map(|tracing| (tracing, RefCell::new(Pcg64Mcg::new(rand::random())))))
    }

    /// Returns true if any request may be traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a request for `model` at `now`, as a part of its client's span if it named one: that
    /// span then decides whether the request is traced. Of the others the configured share is.
    /// Returns `None` for those that are not.
    pub fn begin(
        &self,
        call: Call,
        parent: Option<Parent>,
        model: &ModelInfo,
        now: impl FnOnce() -> Nanos,
    ) -> Option<Box<Traced>> {
        let (tracing, random) = self.0.as_ref()?;
        let mut random = random.borrow_mut();
        let (trace, parent, state) = match parent {
            Some(parent) if !parent.sampled => return None,
            Some(parent) => (parent.trace, Some(parent.span), parent.state),
            None => {
                // The trace's last 8 bytes decide, as in OpenTelemetry's own samplers.
                let low: u64 = random.random();
                if low >> 1 >= tracing.threshold {
                    return None;
                }
                let id = u128::from(random.random::<u64>()) << 64 | u128::from(low);
                (TraceId(id.max(1).to_be_bytes()), None, Box::default())
            }
        };
        Some(Box::new(Traced {
            trace,
            span: SpanId(random.random::<u64>().max(1).to_be_bytes()),
            parent,
            state,
            call,
            model: model.name.clone(),
            version: model.version,
            began: now(),
            ended: Nanos::ZERO,
            outcome: InferOutcome::Gone,
            ran: None,
            is_query: model.is_query(),
            stages: Vec::new(),
        }))
    }

    /// Ends a request and hands it over.
    pub fn end(&self, mut traced: Box<Traced>, outcome: InferOutcome, now: Nanos) {
        let Some((tracing, _)) = &self.0 else { return };
        (traced.outcome, traced.ended) = (outcome, now);
        if tracing.ended.try_send(traced).is_err() {
            TraceCounts::add(&tracing.counts.overflowed, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::otlp::spans::tests::model;
    use std::sync::mpsc::{Receiver, sync_channel};

    fn tracer(sample_ratio: f64, room: usize) -> (Tracer, Receiver<Box<Traced>>, Arc<TraceCounts>) {
        let (ended, traced) = sync_channel(room);
        let counts = Arc::new(TraceCounts::default());
        let config = TraceConfig { sample_ratio, ..TraceConfig::default() };
        (Tracer::new(Some(Tracing::new(&config, ended, Arc::clone(&counts)))), traced, counts)
    }

    fn parent(sampled: bool) -> Parent {
        Parent { trace: TraceId([7; 16]), span: SpanId([8; 8]), sampled, state: "a=b".into() }
    }

    #[test]
    fn clients_decide_and_the_ratio_decides_for_those_that_do_not() {
        let begun = |tracer: &Tracer, parent| tracer.begin(Call::Http, parent, &model(), || Nanos(1));
        let (all, ..) = tracer(1.0, 1);
        let (none, ..) = tracer(0.0, 1);
        for _ in 0..100 {
            let traced = begun(&all, None).unwrap();
            assert!(traced.parent.is_none() && traced.span != SpanId([0; 8]));
            assert_eq!(begun(&none, None), None);
        }
        let traced = begun(&none, Some(parent(true))).unwrap();
        assert_eq!(
            (traced.trace, traced.parent, &*traced.state),
            (TraceId([7; 16]), Some(SpanId([8; 8])), "a=b")
        );
        assert_eq!(begun(&all, Some(parent(false))), None);
        let (some, ..) = tracer(0.25, 1);
        let share = (0..20_000).filter(|_| begun(&some, None).is_some()).count();
        // 61 requests are one standard deviation.
        assert!((4_500..5_500).contains(&share), "{share} of 20,000");
        assert_eq!(begun(&Tracer::new(None), Some(parent(true))), None);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_forgotten() {
        let (tracer, traced, counts) = tracer(1.0, 2);
        for _ in 0..5 {
            let begun = tracer.begin(Call::Grpc, None, &model(), || Nanos(1)).unwrap();
            tracer.end(begun, InferOutcome::Good, Nanos(2));
        }
        assert_eq!((traced.try_iter().count(), counts.overflowed()), (2, 3));
        let begun = tracer.begin(Call::Grpc, None, &model(), || Nanos(1)).unwrap();
        tracer.end(begun, InferOutcome::Late, Nanos(9));
        let ended = traced.recv().unwrap();
        assert_eq!((ended.outcome, ended.began, ended.ended), (InferOutcome::Late, Nanos(1), Nanos(9)));
    }
}
