//! The ModelThread: owns the queues of its models, their timers and the way from a request to a
//! batch (Symphony, section 4.5). It shares nothing: requests come from frontends, grants from the
//! RankThread, all over rings.
//!
//! A duty cycle takes only as much input as its outputs have room for. The rest stays in its ring,
//! and a full ring refuses at its far end, where a frontend answers `overloaded` at once. All
//! requests of a duty cycle are enqueued before their queues are re-selected, each once. So a
//! request costs the less the more of them wait, and a thread that has fallen behind catches up.

use super::agenda::{Agenda, Touched};
use super::agent::Agent;
use super::changes::ChangeReceiver;
use super::monitor::ModelMonitor;
use crate::runtime::counters::raise;
use crate::runtime::full_ring::AlwaysRoom;
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::threads::messages::{GrantMessage, RankMessage};
use crate::runtime::tuning::{AppliedSetting, LossCounts, TunedLink};
use std::sync::Arc;
use symphony_scheduler::limits;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::profile::ScaledProfile;
use symphony_scheduler::rank::{GpuReport, Grant, RankInput};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;
use symphony_transport::message::{
    BatchEntry, BatchHeader, Class, ENTRIES_PER_FRAME, Ending, Frame, GpuId, QueueId, Request, Response,
};
use symphony_transport::ring::{Consumer, Producer};

/// The most messages to the RankThread that one event causes: a report, the next candidate, and a
/// reservation or bounds.
const MESSAGES_PER_EVENT: usize = 3;

/// The most messages to the RankThread that an event other than a grant causes.
const MESSAGES_PER_SETTLING: usize = 2;

/// The most queues that take over a setting in one duty cycle.
const QUEUES_SET_PER_CYCLE: usize = 64;

/// The messages to the RankThread that the start of reservations causes.
const MESSAGES_PER_RESERVATION: usize = 1;

/// A source of requests: a frontend's ring, or a stream that is generated on the ModelThread's own
/// core.
pub trait Intake {
    /// Returns the next request that has come by `now`.
    fn next(&mut self, now: Nanos) -> Option<Request>;
    /// Returns the number of waiting requests, where that is known.
    fn waiting(&mut self) -> usize {
        0
    }
}

impl Intake for Consumer<Request> {
    #[inline]
    fn next(&mut self, _now: Nanos) -> Option<Request> {
        self.pop()
    }

    fn waiting(&mut self) -> usize {
        self.len()
    }
}

/// The destinations of batches and answers: rings to backends and frontends, or an object on the
/// same thread that counts them.
pub trait Outlets {
    /// Returns true if any batch of this thread's models can be sent to this GPU right now.
    fn has_room(&mut self, gpu: GpuId) -> bool;
    /// Sends a batch of these requests to the backend, `batch.size` in all. `due` is the time at
    /// which the batch could have been sent had every thread acted at once, since its frontrun had
    /// come and its GPU was about to be free.
    fn run(&mut self, due: Nanos, batch: BatchHeader, requests: (&[Request], &[Request]));
    /// Ends a request that has not run, at its frontend.
    fn end(&mut self, request: &Request, ending: Ending, now: Nanos);
}

/// The agent of a ModelThread. See the module's description. Its queues are per-class queues: see
/// [`QueueIds`].
///
/// One duty cycle polls its inputs in this order: grants, timers, requests (which settle the queues
/// that they are for), changes of queues, and the first reservations. Each input is taken only if
/// its outputs have room; frontends for whose requests there is none are served first in the next
/// cycle. What was written is published once, at the end of the cycle.
pub struct ModelThread<I, O> {
    /// The queues of the models that this thread owns: first all of the highest class, then all of
    /// the next.
    pub queues: Vec<ModelQueue>,
    /// The index in `queues` of the queue of the highest class of each of the engine's models, if
    /// this thread owns it.
    pub index_of: Vec<Option<u32>>,
    /// The queues' timers, and the queues that have new requests.
    pub agenda: Agenda,
    /// The source of requests of each frontend.
    pub requests: Vec<I>,
    /// The ring of grants from each RankThread.
    pub grants: Vec<Consumer<GrantMessage>>,
    /// The destination of decisions.
    pub outbox: Outbox<O>,
    /// The counters and the recorder.
    pub monitor: ModelMonitor,
    /// The queues of models that are loaded and unloaded meanwhile, where that may be: those of a
    /// model slot together.
    pub changes: Option<ChangeReceiver<Box<SlotQueues>>>,
    /// The progress of the first reservations.
    pub reservations: ReservationProgress,
    /// The profiles that its models' batches have shown, by the model.
    pub profiles: Option<ChangeReceiver<ScaledProfile>>,
    /// The link to the tuner of the default rule, where that is tuned.
    pub tuning: Option<TunedLink>,
    /// The delays of the network that were measured, by the model, where hosts are linked.
    pub delays: Option<ChangeReceiver<Network>>,
}

/// The queues of a model slot, by class; `None` for one that stays.
pub type SlotQueues = [Option<ModelQueue>; Class::COUNT];

/// The progress of a ModelThread's first reservations, which a RankThread orders once, when the
/// first request of a lower class has come to one of its models.
pub struct ReservationProgress {
    /// The number of queues of the highest class, which are the thread's first.
    highest: usize,
    /// The number of those queues that are done, for each RankThread that has ordered reservations:
    /// one more once [`RankInput::AllReserved`] is sent.
    done: Vec<Option<usize>>,
    /// The number of RankThreads that wait for reservations.
    under_way: usize,
}

impl ReservationProgress {
    /// Makes the progress of a thread whose first `highest` queues are of the highest class, before
    /// any order.
    pub fn new(highest: usize, rank_threads: usize) -> ReservationProgress {
        ReservationProgress { highest, done: vec![None; rank_threads], under_way: 0 }
    }
}

/// The destination of a ModelThread's decisions.
pub struct Outbox<O> {
    /// The RankThread of each queue of the engine.
    rank_of: Arc<[u32]>,
    /// The model of each queue, by which backends identify them.
    queue_ids: QueueIds,
    /// The ring to each RankThread.
    ranks: Vec<Producer<RankMessage>>,
    /// The destinations of batches and answers.
    outlets: O,
    /// The number of the next batch. ModelThreads count from different starts, so numbers are
    /// unique.
    next_batch: u64,
    /// The time at which the current event was due: the timer's time, the request's arrival.
    due: Nanos,
    /// The time at which the GPU of the current grant is free.
    gpu_free_at: Nanos,
    /// The candidate of each model's highest class that waits at the RankThread.
    waiting: Vec<WaitingCandidate>,
    /// The counts of what is dropped, for the tuner of the default rule, where that is tuned.
    losses: Option<Arc<LossCounts>>,
}

/// A candidate that waits for a GPU.
#[derive(Clone, Copy)]
struct WaitingCandidate {
    /// The time at which it became schedulable; [`Nanos::MAX`] while none is.
    since: Nanos,
    /// The candidate's delay(b).
    delay: Nanos,
}

impl WaitingCandidate {
    const NONE: WaitingCandidate = WaitingCandidate { since: Nanos::MAX, delay: Nanos::ZERO };
}

/// The rings from a ModelThread to backends and frontends.
pub struct RingOutlets {
    /// The ring to each backend thread.
    pub backends: Vec<Producer<Frame>>,
    /// The backend thread of each GPU, by GPU.
    pub gpu_backends: Arc<[u32]>,
    /// The ring to each frontend.
    pub frontends: Vec<Producer<Response>>,
    /// The number of frames that the largest batch of this thread's models takes.
    pub largest_batch_frames: usize,
}

impl<I: Intake, O: Outlets> ModelThread<I, O> {
    /// Links the thread to the tuner of the default rule.
    pub(crate) fn tune_by(&mut self, link: TunedLink) {
        self.outbox.losses = Some(link.losses());
        self.tuning = Some(link);
    }

    /// Replaces the queues of model slots. The old queues are empty, or are of lower classes and
    /// hold requests that will not get a GPU any more and end here: the control thread ensures
    /// that. A grant that is still under way to an old queue reaches the new one, which gives the
    /// GPU back.
    fn take_changes(&mut self, now: Nanos) -> usize {
        let ModelThread { changes, queues, agenda, monitor, outbox, reservations, .. } = self;
        let Some(changes) = changes else { return 0 };
        const PER_QUEUE: usize = MESSAGES_PER_SETTLING + MESSAGES_PER_RESERVATION;
        const MESSAGES: usize = ChangeReceiver::<SlotQueues>::MOST * Class::COUNT * PER_QUEUE;
        if outbox.room_for_messages(MESSAGES) < MESSAGES {
            return 0;
        }
        changes.take(now, |change| {
            let indices = (change.index..).step_by(reservations.highest.max(1));
            for (index, new) in indices.zip(change.value.iter_mut()) {
                let Some(new) = new else { continue };
                let queue = &mut queues[index];
                if !queue.is_empty() {
                    monitor.apply(index, queue, now, ModelEvent::Stop, outbox);
                }
                std::mem::swap(queue, new);
                if index != change.index && queue.is_of_nothing() {
                    // Else the classes below would go on leaving GPUs to the old queue.
                    monitor.apply(index, queue, now, ModelEvent::StartReserving, outbox);
                }
                agenda.set_timer(index, queue.next_timer());
            }
            let queue = &mut queues[change.index];
            let rank = outbox.rank_of[queue.config().queue.0 as usize];
            if reservations.done[rank as usize].is_some_and(|done| done > change.index) {
                monitor.apply(change.index, queue, now, ModelEvent::StartReserving, outbox);
                agenda.set_timer(change.index, queue.next_timer());
            }
        })
    }

    /// Sends the first reservations to the RankThreads that have ordered them, as far as there is
    /// room for messages.
    #[cold]
    fn start_reserving(&mut self, now: Nanos) -> usize {
        let ModelThread { reservations, queues, agenda, monitor, outbox, .. } = self;
        let mut messages = 0;
        for (rank, done) in reservations.done.iter_mut().enumerate() {
            let Some(done) = done.as_mut().filter(|done| **done <= reservations.highest) else { continue };
            let mut room = outbox.ranks[rank].free();
            while room > 0 && *done < reservations.highest {
                let queue = &mut queues[*done];
                if outbox.rank_of[queue.config().queue.0 as usize] as usize == rank {
                    monitor.apply(*done, queue, now, ModelEvent::StartReserving, outbox);
                    agenda.set_timer(*done, queue.next_timer());
                    (room, messages) = (room - 1, messages + 1);
                }
                *done += 1;
            }
            if room > 0 {
                outbox.write(rank, RankInput::AllReserved.into());
                *done += 1;
                reservations.under_way -= 1;
                messages += 1;
            }
        }
        messages
    }

    fn take_grants(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.grants.len() {
            raise(&mut self.monitor.counting.tally.grant_ring_high, self.grants[at].len());
            while let Some(message) = self.grants[at].peek() {
                if message.is_start_reserving() {
                    self.grants[at].pop();
                    self.reservations.done[at] = Some(0);
                    self.reservations.under_way += 1;
                    continue;
                }
                let grant = Grant::from(message);
                if !self.outbox.has_room_for_batch(grant.gpu) {
                    break;
                }
                self.grants[at].pop();
                (self.outbox.due, self.outbox.gpu_free_at) = (now, grant.free_at);
                if let Some(index) = queue_index(&self.index_of, self.reservations.highest, grant.queue) {
                    let queue = &mut self.queues[index];
                    self.monitor.apply(index, queue, now, ModelEvent::Grant(grant), &mut self.outbox);
                    self.agenda.set_timer(index, queue.next_timer());
                }
                taken += 1;
            }
        }
        taken
    }

    fn fire_timers(&mut self, now: Nanos) -> usize {
        let mut fired = 0;
        while let Some((index, due)) = self.agenda.due(now)
            && self.outbox.room_for_messages(MESSAGES_PER_EVENT) == MESSAGES_PER_EVENT
        {
            self.outbox.due = due;
            let queue = &mut self.queues[index];
            self.monitor.apply(index, queue, now, ModelEvent::Timer, &mut self.outbox);
            self.agenda.set_timer(index, queue.next_timer());
            fired += 1;
        }
        fired
    }

    fn take_requests(&mut self, now: Nanos) -> usize {
        let (mut taken, mut cancelled) = (0, 0);
        let (frontends, first) = (self.requests.len(), self.agenda.first_frontend);
        for at in (first..frontends).chain(0..first) {
            raise(&mut self.monitor.counting.tally.request_ring_high, self.requests[at].waiting());
            // A queue that is settled sends a few messages at most, and no more queues are settled
            // than requests and cancellations came.
            let settled = taken + cancelled;
            let wanted = (settled + limits::REQUESTS_PER_CYCLE) * MESSAGES_PER_SETTLING;
            let mut left =
                (self.outbox.room_for_messages(wanted) / MESSAGES_PER_SETTLING).saturating_sub(settled);
            if left == 0 {
                self.agenda.first_frontend = at;
                break;
            }
            // All rows of a request are taken in the same duty cycle, so that no batch is formed of
            // only some of them.
            let mut rows_after = 0;
            while left > 0 || rows_after > 0 {
                let Some(request) = self.requests[at].next(now) else { break };
                left = left.saturating_sub(1);
                rows_after = request.rows_after;
                if let Some(tuning) = self.tuning.as_mut().filter(|tuning| tuning.is_sampling()) {
                    tuning.sample(&request);
                }
                if request.takes_back != 0 {
                    self.cancel(&request, now);
                    cancelled += 1;
                    continue;
                }
                if let Some(index) = queue_index(&self.index_of, self.reservations.highest, request.queue)
                    && self.monitor.apply(
                        index,
                        &mut self.queues[index],
                        now,
                        ModelEvent::Enqueue(&request),
                        &mut self.outbox,
                    )
                {
                    self.agenda.touch(index, request.arrival);
                }
                taken += 1;
            }
        }
        self.monitor.counting.tally.requests += taken as u64;
        if taken + cancelled > 0 {
            self.settle(now);
        }
        taken + cancelled
    }

    /// Cancels a request that still waits in its queue.
    #[cold]
    fn cancel(&mut self, first_row: &Request, now: Nanos) {
        if let Some(index) = queue_index(&self.index_of, self.reservations.highest, first_row.queue)
            && self.monitor.apply(
                index,
                &mut self.queues[index],
                now,
                ModelEvent::Cancel(first_row),
                &mut self.outbox,
            )
        {
            self.agenda.touch(index, now);
        }
    }

    /// Applies the setting that the tuner has ordered, if it has, to as many queues as there is
    /// room for messages, and at most [`QUEUES_SET_PER_CYCLE`].
    #[inline]
    fn take_setting(&mut self, now: Nanos) -> usize {
        match self.tuning.as_mut().and_then(|tuning| tuning.applying(now)) {
            Some(applying) => self.apply_setting(now, applying),
            None => 0,
        }
    }

    #[cold]
    fn apply_setting(&mut self, now: Nanos, mut applying: AppliedSetting) -> usize {
        let ModelThread { tuning, queues, agenda, monitor, outbox, .. } = self;
        let Some(tuning) = tuning else { return 0 };
        let wanted = QUEUES_SET_PER_CYCLE * MESSAGES_PER_SETTLING;
        let room = outbox.room_for_messages(wanted) / MESSAGES_PER_SETTLING;
        let mut set = 0;
        while set < room && applying.next_queue < queues.len() {
            let index = applying.next_queue;
            let queue = &mut queues[index];
            if tuning.is_for(&applying, outbox.queue_ids.model(queue.config().queue)) {
                monitor.apply(index, queue, now, ModelEvent::Set(applying.setting), outbox);
                agenda.set_timer(index, queue.next_timer());
                set += 1;
            }
            applying.next_queue += 1;
        }
        tuning.applied(Some(applying).filter(|applying| applying.next_queue < queues.len()));
        set
    }

    /// Takes over the profiles that have come, in the queues of all classes of their models, if
    /// there is room for what follows.
    #[inline]
    fn take_profiles(&mut self, now: Nanos) -> usize {
        match &self.profiles {
            Some(profiles) if profiles.is_due(now) => self.apply_profiles(now),
            _ => 0,
        }
    }

    #[cold]
    fn apply_profiles(&mut self, now: Nanos) -> usize {
        let ModelThread { profiles, queues, index_of, agenda, monitor, outbox, reservations, .. } = self;
        let Some(profiles) = profiles else { return 0 };
        const MESSAGES: usize = ChangeReceiver::<ScaledProfile>::MOST * Class::COUNT * MESSAGES_PER_EVENT;
        if outbox.room_for_messages(MESSAGES) < MESSAGES {
            return 0;
        }
        profiles.take(now, |change| {
            let Some(first) = index_of[change.index] else { return };
            let indices = (first as usize..queues.len()).step_by(reservations.highest.max(1));
            for index in indices {
                let queue = &mut queues[index];
                // Else the slot has another model already.
                if queue.base_profile().is_same(&change.value.base) {
                    monitor.apply(index, queue, now, ModelEvent::Rescale(&change.value), outbox);
                    agenda.set_timer(index, queue.next_timer());
                }
            }
        })
    }

    /// Takes over the delays that have come, in the queues of all classes of their models, if there
    /// is room for what follows.
    #[inline]
    fn take_delays(&mut self, now: Nanos) -> usize {
        match &self.delays {
            Some(delays) if delays.is_due(now) => self.apply_delays(now),
            _ => 0,
        }
    }

    #[cold]
    fn apply_delays(&mut self, now: Nanos) -> usize {
        let ModelThread { delays, queues, index_of, agenda, monitor, outbox, reservations, .. } = self;
        let Some(delays) = delays else { return 0 };
        const MESSAGES: usize = ChangeReceiver::<Network>::MOST * Class::COUNT * MESSAGES_PER_EVENT;
        if outbox.room_for_messages(MESSAGES) < MESSAGES {
            return 0;
        }
        delays.take(now, |change| {
            let Some(first) = index_of[change.index] else { return };
            for index in (first as usize..queues.len()).step_by(reservations.highest.max(1)) {
                let queue = &mut queues[index];
                monitor.apply(index, queue, now, ModelEvent::Delays(change.value), outbox);
                agenda.set_timer(index, queue.next_timer());
            }
        })
    }

    /// Re-selects the queues for which requests have come.
    fn settle(&mut self, now: Nanos) {
        let ModelThread { queues, agenda, outbox, monitor, .. } = self;
        agenda.for_each_touched(|timers, Touched { index, since }| {
            outbox.due = since;
            let queue = &mut queues[index];
            monitor.apply(index, queue, now, ModelEvent::Settle, outbox);
            timers.set(index, queue.next_timer());
        });
    }
}

/// Returns the index of a queue in its thread, of whose queues the first `highest` are of the
/// highest class.
#[inline]
fn queue_index(index_of: &[Option<u32>], highest: usize, queue: QueueId) -> Option<usize> {
    let index = match index_of.get(queue.0 as usize) {
        Some(index) => index.map(|index| index as usize),
        None => lower_queue_index(index_of, highest, queue),
    };
    debug_assert!(index.is_some(), "a message for a model of another thread");
    index
}

/// Returns the [`queue_index`] of a queue of a lower class.
#[cold]
fn lower_queue_index(index_of: &[Option<u32>], highest: usize, queue: QueueId) -> Option<usize> {
    let ids = QueueIds::new(index_of.len());
    let index = index_of.get(ids.model(queue).0 as usize).copied().flatten()?;
    Some(index as usize + highest * usize::from(ids.class(queue).number()))
}

impl<I: Intake, O: Outlets> Agent for ModelThread<I, O> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.monitor.cycle_begins(now);
        let mut work = self.take_grants(now) + self.fire_timers(now) + self.take_requests(now);
        work += self.take_changes(now) + self.take_setting(now) + self.take_profiles(now);
        work += self.take_delays(now);
        if self.reservations.under_way > 0 {
            work += self.start_reserving(now);
        }
        self.outbox.publish();
        self.monitor.cycle_ends(now, work);
        work
    }

    fn next_due(&self) -> Nanos {
        self.agenda.next_timer()
    }

    fn stop(&mut self, now: Nanos) {
        let last = &mut LastOutbox(&mut self.outbox);
        for (index, queue) in self.queues.iter_mut().enumerate() {
            self.monitor.apply(index, queue, now, ModelEvent::Stop, last);
        }
        // A request that is sent after this goes back to its frontend, as its ring has no reader.
        for mut requests in self.requests.drain(..) {
            while let Some(request) = requests.next(now) {
                if request.takes_back != 0 {
                    continue;
                }
                self.monitor.counting.tally.stopped += 1;
                self.outbox.end(&request, Ending::Stopped, now);
            }
        }
        self.outbox.publish();
        self.monitor.publish();
    }
}

/// Returns the frames of a batch: its header, then its requests' ids and slots, the last frame
/// filled up with zeros.
#[inline]
pub fn frames<'a>(
    batch: BatchHeader,
    requests: (&'a [Request], &'a [Request]),
) -> impl Iterator<Item = Frame> + use<'a> {
    let mut entries = requests.0.iter().chain(requests.1).map(|r| BatchEntry { id: r.id, slot: r.slot });
    let of_entries = (1..BatchHeader::frames(batch.size as usize)).map(move |_| {
        let frame: [BatchEntry; ENTRIES_PER_FRAME] =
            std::array::from_fn(|_| entries.next().unwrap_or_default());
        frame.into()
    });
    std::iter::once(batch.into()).chain(of_entries)
}

impl<O: Outlets> Outbox<O> {
    /// Makes the outbox of the ModelThread numbered `thread`. `rank_of` has, for each model of the
    /// engine, the index in `ranks` of the ring to its RankThread.
    pub fn new(
        thread: usize,
        rank_of: Arc<[u32]>,
        ranks: Vec<Producer<RankMessage>>,
        outlets: O,
    ) -> Outbox<O> {
        Outbox {
            waiting: vec![WaitingCandidate::NONE; rank_of.len()],
            queue_ids: QueueIds::new(rank_of.len()),
            rank_of,
            ranks,
            outlets,
            next_batch: Outbox::<O>::first_batch(thread),
            due: Nanos::ZERO,
            gpu_free_at: Nanos::ZERO,
            losses: None,
        }
    }

    /// Returns the outbox for a thread whose queues are these per-class queues.
    pub fn of_classes(self, queue_ids: QueueIds) -> Outbox<O> {
        let models = queue_ids.count() / Class::COUNT;
        Outbox { queue_ids, waiting: vec![WaitingCandidate::NONE; models], ..self }
    }

    /// Returns the number of the first batch of the ModelThread numbered `thread`.
    pub fn first_batch(thread: usize) -> u64 {
        (thread as u64) << 48
    }

    /// Returns the number of the next batch.
    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Returns the destinations of batches and answers.
    pub fn outlets(&self) -> &O {
        &self.outlets
    }

    /// Returns the destinations of batches and answers, mutably.
    pub fn outlets_mut(&mut self) -> &mut O {
        &mut self.outlets
    }

    /// Returns the number of messages, up to `wanted`, that fit the ring to any RankThread.
    fn room_for_messages(&mut self, wanted: usize) -> usize {
        let room =
            |rank: &mut Producer<RankMessage>| if rank.has_room(wanted) { wanted } else { rank.free() };
        self.ranks.iter_mut().map(room).min().unwrap_or(wanted)
    }

    fn has_room_for_batch(&mut self, gpu: GpuId) -> bool {
        self.outlets.has_room(gpu) && self.room_for_messages(MESSAGES_PER_EVENT) == MESSAGES_PER_EVENT
    }

    #[inline]
    fn no_more_waiting(&mut self, queue: QueueId) {
        if let Some(waiting) = self.waiting.get_mut(queue.0 as usize) {
            waiting.since = Nanos::MAX;
        }
    }

    #[inline]
    fn write(&mut self, rank: usize, message: RankMessage) {
        self.ranks[rank].write(message).always_has_room("a message: room was checked before the event");
    }

    /// Publishes the messages written to RankThreads: once a duty cycle, since each poll of theirs
    /// moves a cache line.
    fn publish(&mut self) {
        self.ranks.iter_mut().for_each(Producer::publish);
    }
}

impl<O: Outlets> ModelSink for Outbox<O> {
    #[inline(always)]
    fn to_rank(&mut self, message: RankInput) {
        let queue = match message {
            RankInput::Ready { queue, offer } => {
                if let Some(waiting) = self.waiting.get_mut(queue.0 as usize) {
                    if waiting.since == Nanos::MAX {
                        waiting.since = self.due;
                    }
                    waiting.delay = offer.delay;
                }
                queue
            }
            RankInput::Withdraw(queue) | RankInput::Report(GpuReport { queue, .. }) => {
                self.no_more_waiting(queue);
                queue
            }
            RankInput::Reserve { queue, .. } | RankInput::Bounds { queue, .. } => queue,
            RankInput::Completion(_)
            | RankInput::AllReserved
            | RankInput::Presence { .. }
            | RankInput::CompletionDelay(_) => {
                debug_assert!(false, "no queue sends {message:?}");
                return;
            }
        };
        self.write(self.rank_of[queue.0 as usize] as usize, message.into());
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let (model, size) = (self.queue_ids.model(dispatch.queue), requests.0.len() + requests.1.len());
        let batch = dispatch.header(model, self.next_batch, size);
        self.next_batch += 1;
        let waiting = self.waiting.get(dispatch.queue.0 as usize).copied();
        let WaitingCandidate { since, delay } = waiting.unwrap_or(WaitingCandidate::NONE);
        // For a lower class, or a model that had withdrawn when its grant came, only this moment is
        // known.
        let since = if since == Nanos::MAX { dispatch.batched } else { since };
        self.outlets.run(since.max(self.gpu_free_at - delay), batch, requests);
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        if ending == Ending::DroppedInQueue
            && let Some(losses) = &self.losses
        {
            losses.count(request);
        }
        self.outlets.end(request, ending, now);
    }
}

/// The outbox of a thread that stops. A RankThread that has no room for its withdrawals, since it
/// hangs or has stopped itself, does not keep the requests from their end; nobody will take what it
/// may grant then.
struct LastOutbox<'a, O>(&'a mut Outbox<O>);

impl<O: Outlets> ModelSink for LastOutbox<'_, O> {
    fn to_rank(&mut self, message: RankInput) {
        if self.0.room_for_messages(1) == 1 {
            self.0.to_rank(message);
        }
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        self.0.dispatch(dispatch, requests);
    }

    fn end(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.0.end(request, ending, now);
    }
}

impl Outlets for RingOutlets {
    fn has_room(&mut self, gpu: GpuId) -> bool {
        let backend = self.gpu_backends[gpu.0 as usize];
        self.backends[backend as usize].has_room(self.largest_batch_frames)
    }

    fn run(&mut self, _due: Nanos, mut batch: BatchHeader, requests: (&[Request], &[Request])) {
        // The frontend's reserve covers lateness such as a batch's late start: half of it goes into
        // `latest`; the other half stays for the way back.
        let head = requests.0.first().map_or(Nanos::ZERO, |head| head.reserve);
        batch.latest += Nanos(head.0 / 2);
        let ring = &mut self.backends[self.gpu_backends[batch.gpu.0 as usize] as usize];
        let mut written = Ok(());
        for frame in frames(batch, requests) {
            written = written.and_then(|()| ring.write(frame));
        }
        written.always_has_room("a batch: room was checked before the grant was taken");
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
        self.frontends[usize::from(request.frontend)]
            .push(response)
            .always_has_room("an answer: a frontend's ring holds all it can have in flight");
    }
}

#[cfg(test)]
mod tests;
