//! What stands between a ModelThread and its queues: counts every event and decision, and has them
//! recorded if a recorder is there. A queue does not know that it is watched.

use crate::recorder::ModelRecorder;
use crate::runtime::counters::{Board, Counting, ModelTally};
use symphony_scheduler::model::{Dispatch, ModelQueue, ModelSink};
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId, Request};

/// See the module's description.
pub struct ModelWatch {
    /// What is counted.
    pub(crate) counting: Counting<ModelTally>,
    /// Where it is recorded.
    pub(crate) recorder: Option<ModelRecorder>,
}

impl ModelWatch {
    /// Counts that are published and that nobody reads, and what is recorded.
    pub fn new(recorder: Option<ModelRecorder>) -> ModelWatch {
        ModelWatch { counting: Counting::new(Board::new()), recorder }
    }

    /// Counts that are not even published, and no recorder.
    pub fn unseen() -> ModelWatch {
        ModelWatch { counting: Counting::unseen(), recorder: None }
    }

    /// [`ModelQueue::enqueue`] of the model at `place` in the thread.
    #[inline]
    pub(crate) fn enqueue(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        request: Request,
        sink: &mut impl ModelSink,
    ) -> bool {
        if !queue.takes_last(&request) {
            return self.enqueue_before_others(place, queue, now, request, sink);
        }
        // Recorded when the model is settled.
        queue.push_last(now, request);
        true
    }

    #[cold]
    fn enqueue_before_others(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        request: Request,
        sink: &mut impl ModelSink,
    ) -> bool {
        self.watched(
            queue,
            sink,
            |queue, sink| queue.enqueue(now, request, sink),
            |recorder, queue, sink| recorder.enqueue(place, queue, now, request, sink),
        )
    }

    /// [`ModelQueue::take_back`].
    #[cold]
    pub(crate) fn take_back(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        wish: &Request,
        sink: &mut impl ModelSink,
    ) -> bool {
        self.watched(
            queue,
            sink,
            |queue, sink| queue.take_back(now, wish, sink),
            |recorder, queue, sink| recorder.take_back(place, queue, now, wish, sink),
        )
    }

    /// [`ModelQueue::settle`].
    #[inline]
    pub(crate) fn settle(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        self.counting.tally.settled += 1;
        self.watched(
            queue,
            sink,
            |queue, sink| queue.settle(now, sink),
            |recorder, queue, sink| recorder.settle(place, queue, now, sink),
        );
    }

    /// [`ModelQueue::on_grant`].
    #[inline]
    pub(crate) fn on_grant(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        grant: Grant,
        sink: &mut impl ModelSink,
    ) {
        self.counting.tally.grants += 1;
        self.watched(
            queue,
            sink,
            |queue, sink| queue.on_grant(now, grant, sink),
            |recorder, queue, sink| recorder.on_grant(place, queue, now, grant, sink),
        );
    }

    /// [`ModelQueue::on_timer`].
    #[inline]
    pub(crate) fn on_timer(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        self.counting.tally.timers += 1;
        self.watched(
            queue,
            sink,
            |queue, sink| queue.on_timer(now, sink),
            |recorder, queue, sink| recorder.on_timer(place, queue, now, sink),
        );
    }

    /// [`ModelQueue::foretell`].
    #[cold]
    pub(crate) fn foretell(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        self.watched(
            queue,
            sink,
            |queue, sink| queue.foretell(sink),
            |recorder, queue, sink| recorder.foretell(place, queue, now, sink),
        );
    }

    /// [`ModelQueue::stop`].
    pub(crate) fn stop(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        sink: &mut impl ModelSink,
    ) {
        self.watched(
            queue,
            sink,
            |queue, sink| queue.stop(now, sink),
            |recorder, queue, sink| recorder.stop(place, queue, now, sink),
        );
    }

    /// Has an event of a queue happen: `recorded`, where there is a recorder, else `plain`. Its
    /// decisions are counted.
    #[inline]
    fn watched<S: ModelSink, R>(
        &mut self,
        queue: &mut ModelQueue,
        sink: &mut S,
        plain: impl FnOnce(&mut ModelQueue, &mut Counted<'_, S>) -> R,
        recorded: impl FnOnce(&mut ModelRecorder, &mut ModelQueue, &mut Counted<'_, S>) -> R,
    ) -> R {
        let sink = &mut Counted { tally: &mut self.counting.tally, sink };
        match &mut self.recorder {
            None => plain(queue, sink),
            Some(recorder) => recorded(recorder, queue, sink),
        }
    }

    /// A turn begins.
    #[inline]
    pub(crate) fn turn_begins(&mut self, now: Nanos) {
        self.counting.turn_begins(now);
    }

    /// The turn that began at `now` has found this much work.
    #[inline]
    pub(crate) fn turn_ends(&mut self, now: Nanos, work: usize) {
        if work > 0
            && let Some(recorder) = &mut self.recorder
        {
            recorder.publish();
        }
        self.counting.turn_ends(now, work);
    }

    /// The thread ends: everything is published.
    pub(crate) fn publish(&mut self) {
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
    fn ready(&mut self, model: ModelId, offer: Offer) {
        self.sink.ready(model, offer);
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
            Ending::Withdrawn => self.tally.withdrawn += 1,
            _ => self.tally.stopped += 1,
        }
        self.sink.end(request, ending, now);
    }

    #[inline]
    fn reservation(&mut self, model: ModelId, next: Reservation) {
        self.sink.reservation(model, next);
    }

    #[inline]
    fn standing(&mut self, model: ModelId, standing: BatchBounds) {
        self.sink.standing(model, standing);
    }
}
