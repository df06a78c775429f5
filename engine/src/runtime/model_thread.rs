//! The ModelThread: owns the queues of its models, their timers and the way from a request to a batch (Symphony,
//! section 4.5). It shares nothing: requests come from frontends, grants from the RankThread, all over rings.
//!
//! A turn takes only as much input as its outputs have room for. What has to wait stays in its ring, and a ring
//! that is full refuses at its far end, where a frontend answers `overloaded` at once.

use super::agent::Agent;
use super::counters::raise;
use super::watch::ModelWatch;
use super::wire::{GrantMessage, RankMessage};
use crate::clock::Nanos;
use crate::limits;
use crate::model::{Dispatch, ModelQueue, ModelSink};
use crate::rank::{GpuReport, Grant};
use std::sync::Arc;
use symphony_transport::message::{
    BatchEntry, BatchHeader, ENTRIES_PER_FRAME, Ending, Frame, GpuId, ModelId, Request, Response,
};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::wheel::Wheel;

/// Words for the RankThread that one event can give rise to: a report and the next candidate.
const WORDS_PER_EVENT: usize = 2;

/// Where batches for a GPU go.
#[derive(Clone, Debug)]
pub(super) struct GpuHomes {
    /// The backend thread of each GPU, by GPU.
    pub(super) backend: Arc<[u32]>,
}

/// See the module's description.
pub(super) struct ModelThread {
    /// The queues of the models that this thread owns.
    pub(super) queues: Vec<ModelQueue>,
    /// For each model of the engine, its place in `queues`, if it is this thread's.
    pub(super) place: Vec<Option<u32>>,
    /// Their timers.
    pub(super) wheel: Wheel,
    /// One ring per frontend.
    pub(super) requests: Vec<Consumer<Request>>,
    /// From each RankThread.
    pub(super) grants: Vec<Consumer<GrantMessage>>,
    /// Where decisions go.
    pub(super) outbox: Outbox,
    /// What is counted and recorded of all this.
    pub(super) watch: ModelWatch,
    /// Frames that the largest batch of this thread's models takes.
    pub(super) largest_batch_frames: usize,
}

/// The sending ends of a ModelThread's rings.
pub(super) struct Outbox {
    /// For each model of the engine, which RankThread ranks it.
    pub(super) rank_of: Arc<[u32]>,
    /// To each RankThread.
    pub(super) ranks: Vec<Producer<RankMessage>>,
    /// To each backend thread.
    pub(super) backends: Vec<Producer<Frame>>,
    /// Which backend thread plays which GPU.
    pub(super) homes: GpuHomes,
    /// To each frontend.
    pub(super) frontends: Vec<Producer<Response>>,
    /// The number of the next batch. ModelThreads count from different starts, so numbers are unique.
    pub(super) next_batch: u64,
}

impl ModelThread {
    fn take_grants(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.grants.len() {
            raise(&mut self.watch.counting.tally.grant_ring_high, self.grants[at].len());
            while let Some(message) = self.grants[at].peek() {
                let grant = Grant::from(message);
                if !self.outbox.has_room_for(grant.gpu, self.largest_batch_frames) {
                    break;
                }
                self.grants[at].pop();
                self.with_queue(grant.model, |watch, place, queue, outbox| {
                    watch.on_grant(place, queue, now, grant, outbox);
                });
                taken += 1;
            }
        }
        taken
    }

    fn fire_timers(&mut self, now: Nanos) -> usize {
        let mut fired = 0;
        while self.outbox.has_room_for_words() {
            let Some((place, _)) = self.wheel.pop_expired(now) else { break };
            let queue = &mut self.queues[place];
            self.watch.on_timer(place, queue, now, &mut self.outbox);
            self.wheel.set(place, queue.next_timer());
            fired += 1;
        }
        fired
    }

    fn take_requests(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.requests.len() {
            raise(&mut self.watch.counting.tally.request_ring_high, self.requests[at].len());
            for _ in 0..limits::REQUESTS_PER_TURN {
                if !self.outbox.has_room_for_words() {
                    return taken;
                }
                let Some(request) = self.requests[at].pop() else { break };
                self.with_queue(request.model, |watch, place, queue, outbox| {
                    watch.on_request(place, queue, now, request, outbox);
                });
                taken += 1;
            }
        }
        taken
    }

    fn with_queue(
        &mut self,
        model: ModelId,
        event: impl FnOnce(&mut ModelWatch, usize, &mut ModelQueue, &mut Outbox),
    ) {
        let Some(place) = self.place.get(model.0 as usize).copied().flatten() else {
            debug_assert!(false, "a message for a model of another thread");
            return;
        };
        let queue = &mut self.queues[place as usize];
        event(&mut self.watch, place as usize, queue, &mut self.outbox);
        self.wheel.set(place as usize, queue.next_timer());
    }
}

impl Agent for ModelThread {
    fn poll(&mut self, now: Nanos) -> usize {
        self.watch.turn_begins(now);
        let work = self.take_grants(now) + self.fire_timers(now) + self.take_requests(now);
        self.watch.turn_ends(now, work);
        work
    }

    fn stop(&mut self, now: Nanos) {
        for (place, queue) in self.queues.iter_mut().enumerate() {
            self.watch.stop(place, queue, now, &mut self.outbox);
        }
        for requests in &mut self.requests {
            while let Some(request) = requests.pop() {
                self.watch.counting.tally.stopped += 1;
                self.outbox.end(&request, Ending::Stopped, now);
            }
        }
        self.watch.publish();
    }
}

impl Outbox {
    fn has_room_for_words(&mut self) -> bool {
        self.ranks.iter_mut().all(|rank| rank.has_room(WORDS_PER_EVENT))
    }

    fn has_room_for(&mut self, gpu: GpuId, frames: usize) -> bool {
        let backend = self.homes.backend[gpu.0 as usize];
        self.backends[backend as usize].has_room(frames) && self.has_room_for_words()
    }

    fn say(&mut self, model: ModelId, message: RankMessage) {
        let rank = self.rank_of[model.0 as usize];
        let sent = self.ranks[rank as usize].push(message);
        debug_assert!(sent.is_ok(), "room was seen before the event");
    }
}

impl ModelSink for Outbox {
    fn ready(&mut self, model: ModelId, latest: Nanos, delay: Nanos) {
        self.say(model, RankMessage::ready(model, latest, delay));
    }

    fn withdraw(&mut self, model: ModelId) {
        self.say(model, RankMessage::withdraw(model));
    }

    fn report(&mut self, report: GpuReport) {
        self.say(report.model, RankMessage::report(report));
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let size = requests.0.len() + requests.1.len();
        let header: BatchHeader = dispatch.header(self.next_batch, size);
        self.next_batch += 1;
        let ring = &mut self.backends[self.homes.backend[dispatch.gpu.0 as usize] as usize];
        let mut written = ring.write(header.into());
        let mut entries = requests.0.iter().chain(requests.1).map(|r| BatchEntry { id: r.id, slot: r.slot });
        for _ in 1..BatchHeader::frames(size) {
            let frame: [BatchEntry; ENTRIES_PER_FRAME] =
                std::array::from_fn(|_| entries.next().unwrap_or_default());
            written = written.and_then(|()| ring.write(frame.into()));
        }
        debug_assert!(written.is_ok(), "room was seen before the grant was taken");
        ring.publish();
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        let response = Response {
            id: request.id,
            slot: request.slot,
            finished: now,
            ending: ending as u32,
            ..Response::default()
        };
        let sent = self.frontends[request.frontend as usize].push(response);
        debug_assert!(sent.is_ok(), "a frontend's ring holds all it can have in flight");
    }
}
