//! Records the events of a ModelThread's queues; a sink around the thread's own records the
//! decisions as they pass. Owned by the ModelThread.

use super::description::{Description, ModelsDescription};
use super::journal::{Journal, Split};
use super::record::{COUNT_RECORDS, Record};
use super::{RecordConfig, RecordError};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::limits;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::rank::RankInput;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Ending, Request};

/// The most records that one event can write: the model's state, the requests that came, and an end
/// for each request of the queue; the rest is for a batch, the duty cycle and the segment's own.
const RESERVE: usize = 3 * limits::MAX_QUEUE_LENGTH + COUNT_RECORDS + 64;

/// The recorder of one ModelThread.
pub struct ModelRecorder {
    journal: Journal,
    /// The state of each queue's recording, by the queue's index in the thread.
    models: Vec<QueueRecording>,
    next_batch: u64,
}

/// The state of a queue's recording.
#[derive(Clone, Copy, Default)]
struct QueueRecording {
    /// The segment in which the queue's state was last written.
    saved_in: u64,
    /// The length of the queue when all of it was recorded: later requests are not written yet.
    recorded: usize,
}

impl QueueRecording {
    /// Returns the number of requests at the queue's end that are not written yet.
    #[inline]
    fn unwritten(&self, queue: &ModelQueue) -> usize {
        queue.len().saturating_sub(self.recorded)
    }
}

impl ModelRecorder {
    /// Creates the recording of the thread `role`, whose queues have these names, classes and
    /// configurations, in the order of their indices. `next_batch` is the number of its next batch.
    ///
    /// Errors: the file can't be created, or would be too small.
    pub fn create<'a>(
        config: &RecordConfig,
        role: &str,
        models: impl Iterator<Item = (&'a str, Class, &'a QueueConfig)>,
        next_batch: u64,
    ) -> Result<ModelRecorder, RecordError> {
        let description = ModelsDescription::new(models);
        let count = description.models.len();
        // At least half of each segment is for events.
        let least = 2 * RESERVE;
        let split = Split::new(config.mib, least).ok_or_else(|| RecordError::TooSmall {
            role: role.to_owned(),
            mib: config.mib,
            least: Split::least_mib(least),
        })?;
        let text = serde_json::to_vec(&Description::Models(description))
            .expect("a description is plain numbers and strings");
        let journal = Journal::create(&config.file(role), &text, split, RESERVE)?;
        Ok(ModelRecorder { journal, models: vec![QueueRecording::default(); count], next_batch })
    }

    /// Calls [`ModelQueue::apply`] on the queue at `index` in the thread, and records it. Requests
    /// that become the last of their queue are recorded by the [`ModelEvent::Settle`] that is owed
    /// in the same duty cycle, from their positions in the queue.
    #[inline(always)]
    pub fn apply(
        &mut self,
        index: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        event: ModelEvent<'_>,
        sink: &mut impl ModelSink,
    ) -> bool {
        match event {
            ModelEvent::Enqueue(request) if queue.push_last(now, request) => return true,
            ModelEvent::Enqueue(_) | ModelEvent::Cancel(_) => {
                return self.apply_elsewhere(index, queue, now, event, sink);
            }
            ModelEvent::Settle => {
                let new = self.begin(index, queue, now);
                self.journal.write(Record::came(queue.config().queue, new));
                let (first, rest) = queue.last(new);
                self.journal.write_requests(first);
                self.journal.write_requests(rest);
            }
            _ => {
                let new = self.begin(index, queue, now);
                debug_assert_eq!(new, 0, "a queue is settled before another event");
                self.journal.write(Record::event(queue.config().queue, event));
            }
        }
        queue.apply(now, event, &mut self.around(sink));
        self.models[index].recorded = queue.len();
        false
    }

    /// Records and applies an event that changes the queue elsewhere than at its end, after the
    /// requests at its end that are not written yet.
    #[cold]
    fn apply_elsewhere(
        &mut self,
        index: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        event: ModelEvent<'_>,
        sink: &mut impl ModelSink,
    ) -> bool {
        let new = self.begin(index, queue, now);
        let (first, rest) = queue.last(new);
        first.iter().chain(rest).for_each(|request| self.journal.write(Record::request(request)));
        self.journal.write(Record::event(queue.config().queue, event));
        let changed = queue.apply(now, event, &mut self.around(sink));
        self.models[index].recorded = queue.len();
        changed
    }

    /// Publishes what was recorded. It must be called at the end of each duty cycle that found
    /// work.
    #[inline]
    pub fn publish(&mut self) {
        self.journal.publish();
    }

    /// Begins an event of the queue at `index`. Returns the number of requests at the queue's end
    /// that are not written yet.
    #[inline]
    fn begin(&mut self, index: usize, queue: &ModelQueue, now: Nanos) -> usize {
        self.journal.begin(now);
        let model = &mut self.models[index];
        let new = model.unwritten(queue);
        if model.saved_in != self.journal.segment() {
            model.saved_in = self.journal.segment();
            self.save(queue, now, new);
        }
        new
    }

    #[cold]
    fn save(&mut self, queue: &ModelQueue, now: Nanos, new: usize) {
        for_each_saved(queue, now, new, |record| self.journal.write(record));
    }

    #[inline]
    fn around<'a, S: ModelSink>(&'a mut self, sink: &'a mut S) -> Recorded<'a, S> {
        Recorded { journal: &mut self.journal, next_batch: &mut self.next_batch, sink }
    }
}

/// Calls `record` with each record of a queue's state at `now`, before the last `new` requests
/// came.
pub(super) fn for_each_saved(queue: &ModelQueue, now: Nanos, new: usize, mut record: impl FnMut(Record)) {
    let id = queue.config().queue;
    let (saved, queued) = (queue.saved(now, new), queue.len() - new);
    Record::saved_model(id, &saved, queued).into_iter().for_each(&mut record);
    Record::saved_counts(id, &saved).for_each(&mut record);
    queue.queued().take(queued).map(Record::saved_request).for_each(record);
}

/// Records each decision and passes it on.
struct Recorded<'a, S> {
    journal: &'a mut Journal,
    next_batch: &'a mut u64,
    sink: &'a mut S,
}

impl<S: ModelSink> ModelSink for Recorded<'_, S> {
    #[inline(always)]
    fn to_rank(&mut self, message: RankInput) {
        self.journal.write(Record::from(message));
        self.sink.to_rank(message);
    }

    #[inline]
    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let size = requests.0.len() + requests.1.len();
        for record in Record::dispatch(dispatch, *self.next_batch, size) {
            self.journal.write(record);
        }
        *self.next_batch += 1;
        self.sink.dispatch(dispatch, requests);
    }

    #[inline]
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.journal.write(Record::ended(request, ending));
        self.sink.end(request, ending, now);
    }
}
