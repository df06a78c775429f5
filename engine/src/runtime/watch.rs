//! What stands between a ModelThread and its queues: counts every event and decision, and has them recorded if a
//! recorder is there. A queue does not know that it is watched.

use super::counters::{Counting, ModelTally};
use crate::clock::Nanos;
use crate::model::{Dispatch, ModelQueue, ModelSink};
use crate::rank::{GpuReport, Grant};
use crate::recorder::ModelRecorder;
use symphony_transport::message::{Ending, ModelId, Request};

/// See the module's description.
pub struct ModelWatch {
    /// What is counted.
    pub(super) counting: Counting<ModelTally>,
    /// Where it is recorded.
    pub(super) recorder: Option<ModelRecorder>,
}

impl ModelWatch {
    /// Counts that nobody reads, and no recorder.
    pub fn unseen() -> ModelWatch {
        ModelWatch { counting: Counting::unseen(), recorder: None }
    }

    /// [`ModelQueue::on_request`] of the model at `place` in the thread.
    #[inline]
    pub(super) fn on_request(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        request: Request,
        sink: &mut impl ModelSink,
    ) {
        let ModelWatch { counting: Counting { tally, .. }, recorder } = self;
        tally.requests += 1;
        let sink = &mut Counted { tally, sink };
        match recorder {
            None => queue.on_request(now, request, sink),
            Some(recorder) => recorder.on_request(place, queue, now, request, sink),
        }
    }

    /// [`ModelQueue::on_grant`].
    #[inline]
    pub(super) fn on_grant(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        grant: Grant,
        sink: &mut impl ModelSink,
    ) {
        let ModelWatch { counting: Counting { tally, .. }, recorder } = self;
        tally.grants += 1;
        let sink = &mut Counted { tally, sink };
        match recorder {
            None => queue.on_grant(now, grant, sink),
            Some(recorder) => recorder.on_grant(place, queue, now, grant, sink),
        }
    }

    /// [`ModelQueue::on_timer`].
    #[inline]
    pub(super) fn on_timer(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        let ModelWatch { counting: Counting { tally, .. }, recorder } = self;
        tally.timers += 1;
        let sink = &mut Counted { tally, sink };
        match recorder {
            None => queue.on_timer(now, sink),
            Some(recorder) => recorder.on_timer(place, queue, now, sink),
        }
    }

    /// [`ModelQueue::stop`].
    pub(super) fn stop(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        let ModelWatch { counting: Counting { tally, .. }, recorder } = self;
        let sink = &mut Counted { tally, sink };
        match recorder {
            None => queue.stop(now, sink),
            Some(recorder) => recorder.stop(place, queue, now, sink),
        }
    }

    /// A turn begins.
    #[inline]
    pub(super) fn turn_begins(&mut self, now: Nanos) {
        self.counting.turn_begins(now);
    }

    /// The turn that began at `now` has found this much work.
    #[inline]
    pub(super) fn turn_ends(&mut self, now: Nanos, work: usize) {
        if work > 0
            && let Some(recorder) = &mut self.recorder
        {
            recorder.publish();
        }
        self.counting.turn_ends(now, work);
    }

    /// The thread ends: everything is published.
    pub(super) fn publish(&mut self) {
        self.recorder.iter_mut().for_each(ModelRecorder::publish);
        self.counting.publish();
    }
}

/// Counts each decision and passes it on.
struct Counted<'a, S> {
    tally: &'a mut ModelTally,
    sink: &'a mut S,
}

impl<S: ModelSink> ModelSink for Counted<'_, S> {
    #[inline]
    fn ready(&mut self, model: ModelId, latest: Nanos, delay: Nanos) {
        self.sink.ready(model, latest, delay);
    }

    #[inline]
    fn withdraw(&mut self, model: ModelId) {
        self.sink.withdraw(model);
    }

    #[inline]
    fn report(&mut self, report: GpuReport) {
        self.tally.grants_unused += u64::from(report.exec_at.is_none());
        self.sink.report(report);
    }

    #[inline]
    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        self.tally.batches += 1;
        self.tally.batched_requests += (requests.0.len() + requests.1.len()) as u64;
        self.sink.dispatch(dispatch, requests);
    }

    #[inline]
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        match ending {
            Ending::DroppedInQueue => self.tally.dropped_in_queue += 1,
            Ending::Overloaded => self.tally.overloaded += 1,
            _ => self.tally.stopped += 1,
        }
        self.sink.end(request, ending, now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::*;
    use crate::model::selection::DropRule;
    use crate::model::{Slack, Terms};
    use crate::policy;
    use crate::profile::Profile;
    use crate::recorder::RecordConfig;
    use crate::workload::Network;
    use std::time::Instant;
    use symphony_transport::message::GpuId;
    use symphony_transport::wheel::Wheel;

    const MODELS: usize = 10;
    /// Requests of a turn.
    const TURN: usize = 32;

    /// Takes batches and words, and notes which models wait for a GPU.
    #[derive(Default)]
    struct Null {
        ready: Vec<ModelId>,
        batched: usize,
    }

    impl ModelSink for Null {
        fn ready(&mut self, model: ModelId, _latest: Nanos, _delay: Nanos) {
            self.ready.push(model);
        }
        fn withdraw(&mut self, _model: ModelId) {}
        fn report(&mut self, _report: GpuReport) {}
        fn dispatch(&mut self, _dispatch: Dispatch, requests: (&[Request], &[Request])) {
            self.batched += std::hint::black_box(requests.0.len() + requests.1.len());
        }
        fn end(&mut self, request: &Request, _ending: Ending, _now: Nanos) {
            std::hint::black_box(request.id);
        }
    }

    fn terms(model: usize, batch: usize) -> Terms {
        Terms {
            model: ModelId(model as u32),
            profile: Profile::linear(Nanos::from_micros(20), Nanos::from_millis(5), batch).unwrap(),
            slo: Nanos::from_millis(100),
            network: Network::default(),
            drop: DropRule::Window,
            deferral: policy::by_name("symphony-published").and_then(policy::Policy::deferral).unwrap(),
            slack: Slack::default(),
        }
    }

    /// The queues of a thread at 10 million requests a second, in batches of `batch`; nanoseconds per request.
    fn pump(batch: usize, requests: usize, mut watch: Option<ModelWatch>) -> f64 {
        let mut queues: Vec<ModelQueue> =
            (0..MODELS).map(|model| ModelQueue::new(terms(model, batch), Nanos::ZERO)).collect();
        let mut wheel = Wheel::new(MODELS, Nanos::ZERO);
        let mut sink = Null::default();
        let began = Instant::now();
        for turn in 0..requests / TURN {
            let now = Nanos((turn * TURN * 100) as u64);
            if let Some(watch) = &mut watch {
                watch.turn_begins(now);
            }
            for at in 0..TURN {
                let id = turn * TURN + at;
                let place = id % MODELS;
                let queue = &mut queues[place];
                let model = ModelId(place as u32);
                let deadline = now + Nanos::from_millis(100);
                let request = Request { id: id as u64, arrival: now, deadline, model, ..Request::default() };
                match &mut watch {
                    None => queue.on_request(now, request, &mut sink),
                    Some(watch) => watch.on_request(place, queue, now, request, &mut sink),
                }
                while let Some(model) = sink.ready.pop() {
                    let grant = Grant { model, gpu: GpuId(1), free_at: now };
                    match &mut watch {
                        None => queue.on_grant(now, grant, &mut sink),
                        Some(watch) => watch.on_grant(place, queue, now, grant, &mut sink),
                    }
                }
                wheel.set(place, queue.next_timer());
            }
            if let Some(watch) = &mut watch {
                watch.turn_ends(now, TURN);
            }
        }
        assert!(sink.batched * 10 > requests * 9, "{} of {requests} were batched", sink.batched);
        began.elapsed().as_secs_f64() * 1e9 / requests as f64
    }

    /// Not a claim but a measurement: `cargo test --release -p symphony --lib -- --ignored --nocapture cost_of`.
    #[test]
    #[ignore = "measures; its figures are in docs/recorder.md"]
    fn cost_of_counting_and_recording_per_request() {
        let folder = tempfile::tempdir().unwrap();
        let config = RecordConfig { folder: folder.path().to_owned(), mib: RecordConfig::DEFAULT_MIB };
        for batch in [60, 4] {
            let mut costs = [const { Vec::new() }; 3];
            for _ in 0..9 {
                for (with, costs) in costs.iter_mut().enumerate() {
                    let all: Vec<Terms> = (0..MODELS).map(|model| terms(model, batch)).collect();
                    let named = all.iter().map(|terms| ("m", terms));
                    let recorder =
                        (with == 2).then(|| ModelRecorder::create(&config, "model-0", named, 0).unwrap());
                    let counting = Counters::new(1, 0, Vec::new()).of_models(0);
                    let watch = (with > 0).then_some(ModelWatch { counting, recorder });
                    costs.push(pump(batch, 6_000_000, watch));
                }
            }
            let [plain, counted, recorded] = costs.map(|mut costs| {
                costs.sort_by(f64::total_cmp);
                (costs[0], costs[costs.len() / 2])
            });
            println!(
                "batches of {batch}, ns per request (least, median): plain {plain:.1?}, counted {counted:.1?}, counted \
                 and recorded {recorded:.1?}"
            );
        }
    }
}
