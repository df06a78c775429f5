//! The work of a ModelThread for a request: queueing it, selecting the batch, forming the candidate
//! and sending it.

use super::Operation;
use std::hint::black_box;
use symphony_scheduler::deferral::{QueueConfig, Slack};
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::model::selection::{Finish, select, target_batch};
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::policy;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::{Grant, RankInput};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, GpuId, QueueId, Request};

/// The time between two requests of the model.
const GAP: Nanos = Nanos::from_micros(1);

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new("target_batch", "finds the target batch of a rate, as each rate sample does", || {
            let queue_config = queue_config(100.0, 1_024);
            Box::new(move |times| {
                for i in 0..times {
                    black_box(target_batch(&queue_config, black_box(1e4 + i as f64)));
                }
            })
        }),
        a_selection("select_64", "selects from 64 requests that can all run together", 64, 100.0),
        a_selection("select_1024", "selects from 1,024 requests, more than can run together", 1_024, 100.0),
        a_selection("select_late", "selects from 1,024 requests, half of which are too late", 1_024, 60.0),
        Operation::new(
            "queue_insert",
            "a request joins a candidate that waits for its frontrun; every 512 they are granted",
            || in_order(10_000.0, 512, 0),
        ),
        Operation::new(
            "queue_insert_out_of_order",
            "the same, but each deadline is up to 7 us before that of the request before",
            || in_order(10_000.0, 512, 8),
        ),
        Operation::new(
            "request_in_batches_of_89",
            "a request, and its share of timers, messages, grant and batch: a million a second, SLO 100 ms",
            || in_order(100.0, usize::MAX, 0),
        ),
        Operation::new("request_in_batches_of_4", "the same, SLO 10 ms", || in_order(10.0, usize::MAX, 0)),
    ]
}

fn queue_config(slo_ms: f64, max_batch: usize) -> QueueConfig {
    let (alpha, beta) = (Nanos::from_millis_f64(1.053), Nanos::from_millis_f64(5.072));
    QueueConfig {
        queue: QueueId(0),
        profile: Profile::linear(alpha, beta, max_batch).expect("the numbers are a profile's"),
        slo: Nanos::from_millis_f64(slo_ms),
        network: Network::default(),
        drop: DropRule::Window,
        deferral: policy::by_name("symphony-published")
            .and_then(policy::Policy::deferral)
            .expect("it defers"),
        slack: Slack::default(),
        gpus: 8,
    }
}

/// Repeats selections from a queue of `len` requests, the last of which has all of the SLO of
/// 100 ms left and the first `first_ms`.
fn a_selection(name: &'static str, about: &'static str, len: usize, first_ms: f64) -> Operation {
    Operation::new(name, about, move || {
        let queue_config = queue_config(100.0, 1_024);
        let now = Nanos::from_secs(1);
        let first = Nanos::from_millis_f64(first_ms);
        let step = (Nanos::from_millis(100) - first).0 / len as u64;
        let deadlines: Vec<Nanos> = (0..len as u64).map(|at| now + first + Nanos(step * at)).collect();
        Box::new(move |times| {
            for _ in 0..times {
                let finish = Finish { terms: &queue_config, now: black_box(now), gpu_free_at: Nanos::ZERO };
                black_box(select(DropRule::Window, finish, 80, 1.0, deadlines.len(), |at| deadlines[at]));
            }
        })
    })
}

/// Inserts a request into a queue each [`GAP`]. Timers fire in time, candidates are granted at
/// once, and the whole queue is granted when it has `at_most` requests. Of `disorder` requests in a
/// row, each is due 1 us before the one before.
fn in_order(slo_ms: f64, at_most: usize, disorder: u64) -> super::Repeat {
    let queue_config = queue_config(slo_ms, 1_024);
    let slo = queue_config.slo;
    let mut now = Nanos::from_secs(1);
    let mut queue = ModelQueue::new(queue_config, now);
    let mut sink = Sink::default();
    let mut id = 0;
    Box::new(move |times| {
        for _ in 0..times {
            now += GAP;
            id += 1;
            let early = if disorder > 0 { Nanos::from_micros(2 * (id % disorder)) } else { Nanos::ZERO };
            let request = Request { id, arrival: now, deadline: now + slo - early, ..Request::default() };
            queue.apply_request(now, &request, &mut sink);
            if queue.next_timer() <= now {
                queue.apply(now, ModelEvent::Timer, &mut sink);
            }
            while std::mem::take(&mut sink.ready) || queue.len() >= at_most {
                let grant = Grant {
                    queue: QueueId(0),
                    gpu: GpuId(0),
                    free_at: Nanos::ZERO,
                    until: Nanos::MAX,
                    again: true,
                };
                queue.apply(now, ModelEvent::Grant(grant), &mut sink);
            }
        }
    })
}

/// A sink that only notes whether a candidate is ready.
#[derive(Default)]
struct Sink {
    ready: bool,
}

impl ModelSink for Sink {
    fn to_rank(&mut self, message: RankInput) {
        match message {
            RankInput::Ready { offer, .. } => {
                black_box(offer);
                self.ready = true;
            }
            RankInput::Withdraw(_) => self.ready = false,
            RankInput::Report(report) => {
                black_box(report);
            }
            _ => {}
        }
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        black_box((dispatch, requests));
    }

    fn end(&mut self, request: &Request, _ending: Ending, _now: Nanos) {
        black_box(request);
    }
}
