//! What a ModelThread records: each event of each of its models, and around the thread's own sink a second one that
//! notes the decisions on their way out. Owned by the ModelThread.

use super::description::{Description, ModelsDescription};
use super::record::{COUNT_RECORDS, Record};
use super::tape::{Split, Tape};
use super::{RecordConfig, RecordError};
use crate::clock::Nanos;
use crate::limits;
use crate::model::{Dispatch, ModelQueue, ModelSink, Terms};
use crate::rank::{GpuReport, Grant};
use symphony_transport::message::{Ending, ModelId, Request};

/// Records that one event can write at most: the model's state, the event, and an end for each request of the queue;
/// the rest is for a batch, words and the segment's own.
const RESERVE: usize = 2 * limits::MAX_QUEUE + COUNT_RECORDS + 64;

/// The recorder of one ModelThread.
pub struct ModelRecorder {
    tape: Tape,
    /// The segment in which each model's state was last written, by the model's place in the thread.
    saved_in: Vec<u64>,
    next_batch: u64,
}

impl ModelRecorder {
    /// Makes the recording of the thread `role`, whose models have these names and terms, in the order of their
    /// places. `next_batch`: the number that its next batch gets.
    ///
    /// Errors: the file can't be made, or would be too small.
    pub fn create<'a>(
        config: &RecordConfig,
        role: &str,
        models: impl Iterator<Item = (&'a str, &'a Terms)>,
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
        let tape = Tape::create(&config.file(role), &text, split, RESERVE)?;
        Ok(ModelRecorder { tape, saved_in: vec![0; count], next_batch })
    }

    /// [`ModelQueue::on_request`] of the model at `place`, recorded.
    #[inline]
    pub fn on_request(
        &mut self,
        place: usize,
        queue: &mut ModelQueue,
        now: Nanos,
        request: Request,
        sink: &mut impl ModelSink,
    ) {
        self.event(place, queue, now, Record::request(&request));
        queue.on_request(now, request, &mut self.around(sink));
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
        self.event(place, queue, now, Record::grant(grant));
        queue.on_grant(now, grant, &mut self.around(sink));
    }

    /// [`ModelQueue::on_timer`], recorded.
    #[inline]
    pub fn on_timer(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        self.event(place, queue, now, Record::timer(queue.terms().model));
        queue.on_timer(now, &mut self.around(sink));
    }

    /// [`ModelQueue::stop`], recorded.
    pub fn stop(&mut self, place: usize, queue: &mut ModelQueue, now: Nanos, sink: &mut impl ModelSink) {
        self.event(place, queue, now, Record::stop(queue.terms().model));
        queue.stop(now, &mut self.around(sink));
    }

    /// Makes what was recorded count: call it at the end of each turn that found work.
    #[inline]
    pub fn publish(&mut self) {
        self.tape.publish();
    }

    #[inline]
    fn event(&mut self, place: usize, queue: &ModelQueue, now: Nanos, record: Record) {
        self.tape.begin(now);
        if self.saved_in[place] != self.tape.segment() {
            self.save(place, queue);
        }
        self.tape.write(record);
    }

    #[cold]
    fn save(&mut self, place: usize, queue: &ModelQueue) {
        self.saved_in[place] = self.tape.segment();
        for_each_saved(queue, |record| self.tape.write(record));
    }

    #[inline]
    fn around<'a, S: ModelSink>(&'a mut self, sink: &'a mut S) -> Recorded<'a, S> {
        Recorded { tape: &mut self.tape, next_batch: &mut self.next_batch, sink }
    }
}

/// The records of a model's state.
pub(super) fn for_each_saved(queue: &ModelQueue, mut record: impl FnMut(Record)) {
    let model = queue.terms().model;
    let saved = queue.saved();
    Record::saved_model(model, &saved, queue.len()).into_iter().for_each(&mut record);
    Record::saved_counts(model, &saved).for_each(&mut record);
    queue.queued().map(Record::saved_request).for_each(record);
}

/// Notes each decision and passes it on.
struct Recorded<'a, S> {
    tape: &'a mut Tape,
    next_batch: &'a mut u64,
    sink: &'a mut S,
}

impl<S: ModelSink> ModelSink for Recorded<'_, S> {
    #[inline]
    fn ready(&mut self, model: ModelId, latest: Nanos, delay: Nanos) {
        self.tape.write(Record::ready(model, latest, delay));
        self.sink.ready(model, latest, delay);
    }

    #[inline]
    fn withdraw(&mut self, model: ModelId) {
        self.tape.write(Record::withdraw(model));
        self.sink.withdraw(model);
    }

    #[inline]
    fn report(&mut self, report: GpuReport) {
        self.tape.write(Record::report(report));
        self.sink.report(report);
    }

    #[inline]
    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let size = requests.0.len() + requests.1.len();
        for record in Record::dispatch(dispatch, *self.next_batch, size) {
            self.tape.write(record);
        }
        *self.next_batch += 1;
        self.sink.dispatch(dispatch, requests);
    }

    #[inline]
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.tape.write(Record::ended(request, ending));
        self.sink.end(request, ending, now);
    }
}
