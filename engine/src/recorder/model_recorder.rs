//! What a ModelThread records: each event of each of its models, and around the thread's own sink a
//! second one that notes the decisions on their way out. Owned by the ModelThread.

use super::description::{Description, ModelsDescription};
use super::journal::{Journal, Split};
use super::record::{COUNT_RECORDS, Record};
use super::{RecordConfig, RecordError};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::limits;
use symphony_scheduler::model::{Dispatch, ModelQueue, ModelSink};
use symphony_scheduler::rank::{BatchBounds, GpuReport, Grant, Offer, Reservation};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Ending, ModelId, Request};

/// Records that one event can write at most: the model's state, the requests that came, and an end
/// for each request of the queue; the rest is for a batch, words and the segment's own.
const RESERVE: usize = 3 * limits::MAX_QUEUE_LENGTH + COUNT_RECORDS + 64;

/// The recorder of one ModelThread.
pub struct ModelRecorder {
    journal: Journal,
    /// By the model's place in the thread.
    models: Vec<Model>,
    next_batch: u64,
}

/// What is known of a model's recording.
#[derive(Clone, Copy, Default)]
struct Model {
    /// The segment in which its state was last written.
    saved_in: u64,
    /// How long its queue was when all of it was recorded: what came behind that is not written
    /// yet.
    recorded: usize,
}

impl Model {
    /// Requests at the queue's end that are not written yet.
    #[inline]
    fn unwritten(&self, queue: &ModelQueue) -> usize {
        queue.len().saturating_sub(self.recorded)
    }
}

impl ModelRecorder {
    /// Makes the recording of the thread `role`, whose models have these names, classes and terms,
    /// in the order of their places. `next_batch`: the number that its next batch gets.
    ///
    /// Errors: the file can't be made, or would be too small.
    pub fn create<'a>(
        config: &RecordConfig,
        role: &str,
        models: impl Iterator<Item = (&'a str, Class, &'a QueueConfig)>,
        next_batch: u64,
    ) -> Result<ModelRecorder, RecordError> {
        let description = ModelsDescription::new(models);
        let count = description.models.len();
        // Half of each segment, at least, is for events.
        let least = 2 * RESERVE;
        let split = Split::new(config.mib, least).ok_or_else(|| RecordError::TooSmall {
            role: role.to_owned(),
            mib: config.mib,
            least: Split::least_mib(least),
        })?;
        let text = serde_json::to_vec(&Description::Models(description))
            .expect("a description is plain numbers and strings");
        let journal = Journal::create(&config.file(role), &text, split, RESERVE)?;
        Ok(ModelRecorder { journal, models: vec![Model::default(); count], next_batch })
    }

    /// [`ModelQueue::enqueue`] of the model at `place`, recorded, of a request that the queue does
    /// not [take last](ModelQueue::takes_last). All others are recorded by
    /// [`ModelRecorder::settle`], which is owed in the same turn, from where they are in the queue.
    #[cold]
    pub fn enqueue(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        request: Request,
        sink: &mut impl ModelSink,
    ) -> bool {
        self.write_new(place, queue, now);
        self.journal.write(Record::request(&request));
        let queued = queue.enqueue(now, request, &mut self.around(sink));
        self.models[place].recorded = queue.len();
        queued
    }

    /// [`ModelQueue::take_back`], recorded; [`ModelRecorder::settle`] is owed in the same turn.
    #[cold]
    pub fn take_back(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        wish: &Request,
        sink: &mut impl ModelSink,
    ) -> bool {
        self.write_new(place, queue, now);
        self.journal.write(Record::take_back(wish));
        let found = queue.take_back(now, wish, &mut self.around(sink));
        self.models[place].recorded = queue.len();
        found
    }

    /// Writes the requests at the queue's end that are not written yet: before it changes
    /// elsewhere.
    fn write_new(&mut self, place: usize, queue: &ModelQueue, now: Nanos) {
        let new = self.begin(place, queue, now);
        let (first, rest) = queue.last(new);
        first.iter().chain(rest).for_each(|request| self.journal.write(Record::request(request)));
    }

    /// [`ModelQueue::settle`], recorded with the requests that have come.
    #[inline]
    pub fn settle(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        let new = self.begin(place, queue, now);
        self.journal.write(Record::came(queue.terms().model, new));
        let (first, rest) = queue.last(new);
        self.journal.write_requests(first);
        self.journal.write_requests(rest);
        queue.settle(now, &mut self.around(sink));
        self.models[place].recorded = queue.len();
    }

    /// [`ModelQueue::on_grant`], recorded.
    #[inline]
    pub fn on_grant(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        grant: Grant,
        sink: &mut impl ModelSink,
    ) {
        self.event(place, queue, now, Record::grant(grant), sink, |queue, sink| {
            queue.on_grant(now, grant, sink)
        });
    }

    /// [`ModelQueue::on_timer`], recorded.
    #[inline]
    pub fn on_timer(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        let record = Record::timer(queue.terms().model);
        self.event(place, queue, now, record, sink, |queue, sink| queue.on_timer(now, sink));
    }

    /// [`ModelQueue::foretell`], recorded.
    pub fn foretell(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        let record = Record::foretell(queue.terms().model);
        self.event(place, queue, now, record, sink, |queue, sink| queue.foretell(sink));
    }

    /// [`ModelQueue::stop`], recorded.
    pub fn stop(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        let record = Record::stop(queue.terms().model);
        self.event(place, queue, now, record, sink, |queue, sink| queue.stop(now, sink));
    }

    /// Makes what was recorded count: call it at the end of each turn that found work.
    #[inline]
    pub fn publish(&mut self) {
        self.journal.publish();
    }

    /// An event that no request comes with.
    #[inline]
    fn event<S: ModelSink>(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        record: Record,
        sink: &mut S,
        happen: impl FnOnce(&mut ModelQueue, &mut Recorded<'_, S>),
    ) {
        let new = self.begin(place, queue, now);
        debug_assert_eq!(new, 0, "a model is settled before another event");
        self.journal.write(record);
        happen(queue, &mut self.around(sink));
        self.models[place].recorded = queue.len();
    }

    /// An event begins of the model at `place`; so many requests came before it and are not written
    /// yet.
    #[inline]
    fn begin(&mut self, place: usize, queue: &ModelQueue, now: Nanos) -> usize {
        self.journal.begin(now);
        let model = &mut self.models[place];
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

/// The records of a model's state at `now`, before the last `new` requests came.
pub(super) fn for_each_saved(queue: &ModelQueue, now: Nanos, new: usize, mut record: impl FnMut(Record)) {
    let model = queue.terms().model;
    let (saved, queued) = (queue.saved(now, new), queue.len() - new);
    Record::saved_model(model, &saved, queued).into_iter().for_each(&mut record);
    Record::saved_counts(model, &saved).for_each(&mut record);
    queue.queued().take(queued).map(Record::saved_request).for_each(record);
}

/// Notes each decision and passes it on.
struct Recorded<'a, S> {
    journal: &'a mut Journal,
    next_batch: &'a mut u64,
    sink: &'a mut S,
}

impl<S: ModelSink> ModelSink for Recorded<'_, S> {
    #[inline]
    fn ready(&mut self, model: ModelId, offer: Offer) {
        self.journal.write(Record::ready(model, offer));
        self.sink.ready(model, offer);
    }

    #[inline]
    fn withdraw(&mut self, model: ModelId) {
        self.journal.write(Record::withdraw(model));
        self.sink.withdraw(model);
    }

    #[inline]
    fn report(&mut self, report: GpuReport) {
        self.journal.write(Record::report(report));
        self.sink.report(report);
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

    #[inline]
    fn reservation(&mut self, model: ModelId, next: Reservation) {
        self.journal.write(Record::reservation(model, next));
        self.sink.reservation(model, next);
    }

    fn standing(&mut self, model: ModelId, standing: BatchBounds) {
        self.journal.write(Record::standing(model, standing));
        self.sink.standing(model, standing);
    }
}
