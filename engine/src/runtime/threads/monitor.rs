//! Counts and records each event and decision of a ModelThread's queues. The ModelThread applies
//! its events through this monitor; the queues themselves neither count nor record.

use crate::recorder::ModelRecorder;
use crate::runtime::counters::{Board, Counting, ModelTally};
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::rank::RankInput;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, Request};

/// The counters and the recorder of a ModelThread. See the module's description.
pub struct ModelMonitor {
    /// The thread's counters.
    pub(crate) counting: Counting<ModelTally>,
    /// The recorder, if events are recorded.
    pub(crate) recorder: Option<ModelRecorder>,
}

impl ModelMonitor {
    /// Makes a monitor whose counters are published.
    pub fn new(recorder: Option<ModelRecorder>) -> ModelMonitor {
        ModelMonitor { counting: Counting::new(Board::new()), recorder }
    }

    /// Makes a monitor whose counters are not published, without a recorder.
    pub fn unpublished() -> ModelMonitor {
        ModelMonitor { counting: Counting::unpublished(), recorder: None }
    }

    /// Calls [`ModelQueue::apply`] on the queue at `index` in the thread, counts, and records if
    /// there is a recorder.
    #[inline(always)]
    pub(crate) fn apply(
        &mut self,
        index: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        event: ModelEvent<'_>,
        sink: &mut impl ModelSink,
    ) -> bool {
        let tally = &mut self.counting.tally;
        match event {
            // First, since it is the common case and the same with a recorder.
            ModelEvent::Enqueue(request) if queue.push_last(now, request) => return true,
            ModelEvent::Settle => tally.settled += 1,
            ModelEvent::Grant(_) => tally.grants += 1,
            ModelEvent::Timer => tally.timers += 1,
            _ => {}
        }
        let sink = &mut CountingSink { tally, sink };
        match &mut self.recorder {
            None => queue.apply(now, event, sink),
            Some(recorder) => recorder.apply(index, queue, now, event, sink),
        }
    }

    /// Notes the start of a duty cycle.
    #[inline]
    pub(crate) fn cycle_begins(&mut self, now: Nanos) {
        self.counting.cycle_begins(now);
    }

    /// Notes the end of the duty cycle that began at `now` and found this much work.
    #[inline]
    pub(crate) fn cycle_ends(&mut self, now: Nanos, work: usize) {
        if work > 0
            && let Some(recorder) = &mut self.recorder
        {
            recorder.publish();
        }
        self.counting.cycle_ends(now, work);
    }

    /// Publishes all counts and records, when the thread ends.
    pub(crate) fn publish(&mut self) {
        self.recorder.iter_mut().for_each(ModelRecorder::publish);
        self.counting.publish();
    }
}

/// Counts each decision and passes it on.
struct CountingSink<'a, S> {
    tally: &'a mut ModelTally,
    sink: &'a mut S,
}

impl<S: ModelSink> ModelSink for CountingSink<'_, S> {
    #[inline(always)]
    fn to_rank(&mut self, message: RankInput) {
        if let RankInput::Report(report) = &message {
            self.tally.grants_unused += u64::from(report.exec_at.is_none());
        }
        self.sink.to_rank(message);
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
}
