//! The client side of the engine. A [`Frontend`] puts a request's input into its slab, sends the
//! request to the ModelThread that owns its model, and hands each answer out once. One thread owns
//! it (an API core, a load generator), and it never blocks: what does not fit is refused at once.
//!
//! Invariant: whatever a frontend accepts, it answers exactly once, and at its deadline plus a
//! grace at the latest, whatever becomes of the engine; at once where that has a fault. It reads
//! models from a [`ModelTable`]; it never reads another thread's state.

mod answer;
mod earlier_tables;
mod in_flight;
mod model_info;
pub(crate) mod model_table;
mod overdue;
mod query_table;
mod request;
mod response_delay;
mod setup;
mod size_classes;
#[cfg(test)]
mod tests;
mod timeline;

pub use answer::{Answer, KeptOutput, Outcome};
pub use model_info::{ModelInfo, SlotState, Variant};
pub use model_table::{ModelTable, Withdrawal};
pub use query_table::{QueryModels, QueryTable, ServedQuery};
pub use request::{Ask, Due, Refusal, SlotReservation, Ticket};
// Public for tests of the load generator, which run a frontend without an engine.
#[doc(hidden)]
pub use setup::{FirstIds, FrontendPeer, FrontendSetup};
pub use size_classes::{InputFill, SizeClasses, SizedInput, TensorDimension};
pub(crate) use size_classes::{LoadedClass, kept_classes};
pub use symphony_transport::message::Class;
pub use timeline::Timeline;

use crate::runtime::clock::Clock;
use crate::runtime::counters::frontends::FrontendCounts;
use crate::runtime::fault::FaultLatch;
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::set_aside::SetAside;
use answer::{Output, OutputSlots};
use earlier_tables::EarlierTables;
use in_flight::{InFlight, SentRequest};
use model_info::row_bytes;
use model_table::InFlightCounts;
use overdue::Overdue;
use response_delay::ResponseReserve;
use setup::HOPS_OF_AN_ANSWER;
pub(crate) use setup::{largest_slot, slot_classes};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony_gpu::signature::Signature;
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;
use symphony_transport::message::{Ending, ModelId, NO_DEADLINE, REQUEST_IDS, Request, Response};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::{Slab, SlabError, SlabOwner, SlabView, SlotId};

/// The client side of the engine, owned by one thread. See the module's description.
pub struct Frontend {
    id: u32,
    clock: Clock,
    bells: Doorbells,
    queue_ids: QueueIds,
    /// A copy of the newest table that it has read, the table, and its number.
    models: Arc<[ModelInfo]>,
    published: Arc<[ModelInfo]>,
    table: u64,
    /// The number of queries that were ever served, when it last looked.
    queries: u64,
    /// The tables before it that callers may still hold.
    earlier: EarlierTables,
    model_table: Arc<ModelTable>,
    /// The model slots that have got another model, and the queries that have come, since they were
    /// last asked for.
    replaced: Vec<ModelId>,
    /// The numbers of its requests in the engine, by model.
    in_engine: InFlightCounts,
    /// The reserve of each model, which is taken off its deadlines.
    reserves: Vec<ResponseReserve>,
    least_reserve: Nanos,
    accepting: Arc<AtomicBool>,
    faults: FaultLatch,
    slab: SlabOwner,
    /// The slots of ended requests that a device may still use.
    set_aside: SetAside,
    view: SlabView,
    requests: Vec<Producer<Request>>,
    responses: Vec<Consumer<Response>>,
    in_flight: InFlight,
    overdue: Overdue,
    counts: Arc<FrontendCounts>,
    /// The cancellations that have not been sent yet: at most one per request, so no more than slab
    /// slots.
    cancellations: VecDeque<Ticket>,
    next_id: u64,
}

impl Frontend {
    /// Makes a frontend and the engine's ends of it.
    ///
    /// Slots come in one class per distinct row size (input and output together, rounded up by an
    /// eighth at most). All classes share `setup.capacity` slots and `setup.slab_bytes` bytes: the
    /// memory of each is reserved for all of that, and not touched before it is used.
    ///
    /// Errors: the machine has no memory for the slots.
    #[doc(hidden)]
    pub fn new(setup: FrontendSetup) -> Result<(Frontend, FrontendPeer), SlabError> {
        let largest = largest_slot(&setup.models, setup.later_row);
        let (slots, bytes) = (setup.capacity, setup.slab_bytes.max(largest));
        let classes = slot_classes(&setup.models, setup.later_row, slots, bytes, setup.pages);
        let (slab, view) = Slab::on_pages(&classes, setup.id as u16, setup.pages, setup.first_ids.slots)?;
        let slab = slab.limited_to(slots, bytes);
        let (request_producers, request_consumers) =
            (0..setup.model_threads).map(|_| ring(limits::REQUEST_RING)).unzip();
        let (response_producers, response_consumers) =
            (0..setup.answering_threads).map(|_| ring(slots)).unzip();
        let least_reserve = setup.result_delay + Nanos(setup.lateness.0 * HOPS_OF_AN_ANSWER);
        let frontend = Frontend {
            id: setup.id,
            clock: setup.clock,
            bells: setup.bells,
            reserves: setup
                .models
                .iter()
                .map(|model| ResponseReserve::new(least_reserve, model.slo))
                .collect(),
            least_reserve,
            in_engine: InFlightCounts::new(setup.models.len()),
            queue_ids: QueueIds::new(setup.models.len()),
            table: 0,
            queries: 0,
            earlier: EarlierTables::default(),
            model_table: ModelTable::new(Arc::clone(&setup.models)),
            replaced: Vec::new(),
            models: Arc::from(&*setup.models),
            published: setup.models,
            accepting: setup.accepting,
            faults: setup.faults,
            in_flight: InFlight::new(slab.capacity()),
            overdue: Overdue::new(slab.capacity(), setup.grace),
            counts: Arc::default(),
            cancellations: VecDeque::new(),
            slab,
            set_aside: SetAside::default(),
            view: view.clone(),
            requests: request_producers,
            responses: response_consumers,
            next_id: setup.first_ids.request,
        };
        Ok((
            frontend,
            FrontendPeer { requests: request_consumers, responses: response_producers, slab: view },
        ))
    }

    /// Returns the doorbells that ring when an answer has come, where the engine's threads sleep.
    pub fn bells(&self) -> &Doorbells {
        &self.bells
    }

    /// Returns its number among the engine's frontends.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns every model slot of the engine, by id, as of the last call of [`Frontend::submit`]
    /// or [`Frontend::poll`]. While this table is held, requests may be sent to the models that are
    /// served in it, whatever becomes of them; so hold it for no longer than a request.
    pub fn models(&self) -> &Arc<[ModelInfo]> {
        &self.models
    }

    /// Returns the newest version of the model of that name, if one is served.
    pub fn find_model(&mut self, name: &str) -> Option<&ModelInfo> {
        ModelInfo::find(self.newest_models(), name, None)
    }

    /// Refreshes the model table and returns it.
    pub fn newest_models(&mut self) -> &Arc<[ModelInfo]> {
        self.refresh_models();
        &self.models
    }

    /// Returns the engine's clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the flag that is cleared when the engine drains.
    pub fn accepting_flag(&self) -> &Arc<AtomicBool> {
        &self.accepting
    }

    /// Returns the latch by which the thread that owns the frontend reports faults that the engine
    /// can't survive.
    pub fn faults(&self) -> &FaultLatch {
        &self.faults
    }

    /// Returns the model slots that have got another model, and the queries that have come, since
    /// the last call, for side tables.
    pub fn take_replaced_models(&mut self) -> impl Iterator<Item = ModelId> + '_ {
        self.replaced.drain(..)
    }

    /// Returns the counts of its irregular ends.
    pub fn counts(&self) -> &Arc<FrontendCounts> {
        &self.counts
    }

    /// Returns the model table that it reads.
    pub fn model_table(&self) -> &Arc<ModelTable> {
        &self.model_table
    }

    /// Makes the frontend read this model table, whose first version it has, and returns its counts
    /// of requests in the engine.
    pub(crate) fn follow(&mut self, model_table: Arc<ModelTable>) -> InFlightCounts {
        self.published = model_table.models();
        self.queries = model_table.queries().number();
        self.model_table = model_table;
        self.in_engine.clone()
    }

    /// Takes the newest table, if there is one, and lets go of those that no caller holds.
    #[inline]
    fn refresh_models(&mut self) {
        if self.model_table.number() != self.table {
            self.take_table();
        }
        if self.model_table.queries().number() != self.queries {
            self.note_queries();
        }
        if !self.earlier.is_empty() {
            self.earlier.let_go();
        }
    }

    /// Notes the queries that have come since.
    #[cold]
    fn note_queries(&mut self) {
        let (new, number) = self.model_table.queries().since(self.queries);
        self.replaced.extend(new);
        self.queries = number;
    }

    #[cold]
    fn take_table(&mut self) {
        let (number, models) = self.model_table.read();
        for ((new, old), reserve) in models.iter().zip(self.models.iter()).zip(&mut self.reserves) {
            let is_another = (&new.name, new.version) != (&old.name, old.version) || new.slo != old.slo;
            if new.state == SlotState::Serving && (old.state != SlotState::Serving || is_another) {
                *reserve = ResponseReserve::new(self.least_reserve, new.slo);
                if !self.replaced.contains(&new.id) {
                    self.replaced.push(new.id);
                }
            }
        }
        let copy = std::mem::replace(&mut self.models, Arc::from(&*models));
        self.earlier.add(copy, std::mem::replace(&mut self.published, models));
        self.table = number;
    }

    /// Checks that requests may be sent to a model.
    ///
    /// Errors: [`Refusal::Unloaded`] or [`Refusal::NotServing`].
    #[inline]
    fn check_served(&self, model: &ModelInfo) -> Result<(), Refusal> {
        if model.state == SlotState::Serving { Ok(()) } else { self.check_served_earlier(model) }
    }

    #[cold]
    fn check_served_earlier(&self, model: &ModelInfo) -> Result<(), Refusal> {
        match model.state {
            SlotState::Vacant => Err(Refusal::Unloaded),
            _ if self.earlier.serve(model) => Ok(()),
            _ => Err(Refusal::NotServing),
        }
    }

    /// Returns the engine's time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Returns how many rows of each size of its slots may be in flight at once where there are no
    /// others: the bytes of a row, input and output together, and their number.
    pub fn room_by_row_size(&self) -> Vec<(usize, usize)> {
        self.slab.sizes().map(|bytes| (bytes, self.slab.fitting(bytes))).collect()
    }

    /// Returns the bound that tickets' indices are below.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Returns the number of requests accepted and not yet answered. Those that it answered since
    /// they were overdue are not among them, though the engine may still hold their slots.
    pub fn in_flight(&self) -> usize {
        self.in_flight.requests()
    }

    /// Returns the number of slab slots that requests in flight have.
    pub(crate) fn slots_in_use(&self) -> usize {
        self.slab.in_use()
    }

    /// Returns the most rows that a request for this model may have: as many as there are slots
    /// for, and a model's queue holds. Of a lower class fewer are possible.
    pub fn most_rows(&self, model: ModelId) -> usize {
        let slots = self.slab.fitting(row_bytes(&self.models[model.0 as usize]));
        slots.min(limits::MAX_QUEUE_LENGTH)
    }

    /// Returns true while new requests are accepted.
    pub fn accepting(&self) -> bool {
        // Acquire: of the fault for which it was cleared, if there is one.
        self.accepting.load(Ordering::Acquire)
    }

    /// Sends one request. `fill` is called for each row, in order, and writes the row's input, in
    /// the layout of the model's [`Signature`], straight into its slot
    /// (`signature.input_bytes()` long, its old content undefined). The model is one that is served
    /// in the newest table, or in an older one that the caller still holds ([`Frontend::models`]).
    ///
    /// Errors: a [`Refusal`]; the request then leaves no trace.
    pub fn submit(&mut self, ask: &Ask, mut fill: impl FnMut(usize, &mut [u8])) -> Result<Ticket, Refusal> {
        let (index, ask) = self.admit(ask)?;
        let input_bytes = self.models[ask.model.0 as usize].signature.input_bytes();
        for (row, slot) in self.in_flight.slots(index).enumerate() {
            let mut guard = self.view.claim(slot).expect("a slot just taken has no other holder");
            fill(row, &mut guard[..input_bytes]);
        }
        let id = self.take_id();
        self.send(index, id, &ask);
        Ok(Ticket { index, id })
    }

    /// Takes the slots for a request whose input the caller writes itself, in its own time, through
    /// a [`Frontend::slab_view`]; [`Frontend::send_reserved`] sends it, or
    /// [`Frontend::release`] frees its slots. The caller holds a table in which the model is served
    /// ([`Frontend::models`]) until then.
    ///
    /// Errors: a [`Refusal`]; the request then leaves no trace.
    pub fn reserve(&mut self, ask: &Ask) -> Result<SlotReservation, Refusal> {
        let (index, ask) = self.admit(ask)?;
        Ok(SlotReservation { ask, index, slots: self.in_flight.slots(index).collect() })
    }

    /// Sends a request whose slots are filled, and of which nothing is held.
    ///
    /// Errors: a [`Refusal`]; its slots are the caller's to release.
    pub fn send_reserved(
        &mut self,
        &SlotReservation { ask, index, .. }: &SlotReservation,
    ) -> Result<Ticket, Refusal> {
        if !self.accepting() {
            return Err(self.refusal());
        }
        self.refresh_models();
        self.check_served(&self.models[ask.model.0 as usize])?;
        let thread = self.thread_of(ask.model);
        if !self.requests[thread].has_room(ask.rows) {
            return Err(Refusal::Overloaded);
        }
        let id = self.take_id();
        self.send(index, id, &ask);
        Ok(Ticket { index, id })
    }

    /// Returns the id of the next request.
    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id = (id + 1) % REQUEST_IDS;
        id
    }

    /// Frees slots: of a [`SlotReservation`] that was not sent, or of a [`KeptOutput`].
    pub fn release(&mut self, slots: impl IntoIterator<Item = SlotId>) {
        slots.into_iter().for_each(|slot| self.free_slot(slot));
    }

    /// Returns a view of the slots' bytes.
    pub fn slab_view(&self) -> &SlabView {
        &self.view
    }

    /// Checks that a request can be accepted now, and takes slots for it. Returns the index of the
    /// first, and the request with the class that it is served in.
    fn admit(&mut self, ask: &Ask) -> Result<(usize, Ask), Refusal> {
        if !self.accepting() {
            return Err(self.refusal());
        }
        self.refresh_models();
        self.check_served(&self.models[ask.model.0 as usize])?;
        let class = ask.served_in();
        self.check_room(ask.model, class, ask.rows)?;
        Ok((self.take_slots(ask.model, ask.rows), Ask { class, ..*ask }))
    }

    /// Returns the reason why nothing is accepted any more.
    #[cold]
    pub(crate) fn refusal(&self) -> Refusal {
        if self.faults.get().is_some() { Refusal::Broken } else { Refusal::Draining }
    }

    /// Sends the request whose input lies in the slots from `index` on.
    fn send(&mut self, index: usize, id: u64, &Ask { model, rows, due, class }: &Ask) {
        let info = &self.models[model.0 as usize];
        let (slo, queue_slot, thread) = (info.slo, info.queue_slot(), self.thread_of(model));
        if let Some(variant) = info.variant {
            self.write_variant(index, &info.signature, variant);
        }
        let arrival = self.clock.now();
        let (wanted, more, is_again) = match due {
            Due::Slo | Due::Never => (slo, Nanos::ZERO, false),
            Due::Within(time) => (time.min(slo), Nanos::ZERO, false),
            Due::Carried { within, more, is_again } => (within, more, is_again),
        };
        let (due, deadline, reserve) = match due {
            // Such requests get distinct deadlines, so that they are served in order and can be
            // found again.
            Due::Never => (Nanos::MAX, NO_DEADLINE + arrival, Nanos::ZERO),
            _ => {
                let due = arrival + wanted;
                let deadline = due - self.reserves[model.0 as usize].get();
                (due, deadline, due - deadline)
            }
        };
        self.in_flight
            .send(index, SentRequest { arrival, due, deadline, ..SentRequest::new(id, model, class, rows) });
        self.overdue.note(arrival);
        self.overdue.sent(index, due);
        self.in_engine.add(model.0 as usize);
        let queue_id = self.queue_ids.of(queue_slot, class);
        let ring = &mut self.requests[thread];
        for (row, slot) in self.in_flight.slots(index).enumerate() {
            let request = Request {
                id,
                slot,
                arrival,
                deadline,
                reserve,
                queue: queue_id,
                row: row as u16,
                rows_after: (rows - 1 - row) as u16,
                frontend: self.id as u8,
                class,
                is_again: u8::from(is_again),
                again_us: Request::again_us(more),
                ..Request::default()
            };
            ring.write(request).expect("room was checked, and this is the only producer");
        }
        ring.publish();
        self.bells.ring();
    }

    /// Returns the ModelThread that owns the queues of a model.
    fn thread_of(&self, model: ModelId) -> usize {
        let queue_slot = self.models[model.0 as usize].queue_slot();
        self.models[queue_slot.0 as usize].thread
    }

    /// Writes into the rows of the request that begins at `index` which of the models that are run
    /// as one it is for.
    #[cold]
    fn write_variant(&self, index: usize, signature: &Signature, variant: Variant) {
        for slot in self.in_flight.slots(index) {
            let mut row = self.view.claim(slot).expect("nothing of a request that is sent is held");
            signature.set_variant(&mut row[..signature.input_bytes()], variant.number);
        }
    }

    /// Checks that this number of rows for a model can be accepted now.
    fn check_room(&mut self, model: ModelId, class: Class, rows: usize) -> Result<(), Refusal> {
        const {
            assert!(
                limits::MAX_QUEUE_LENGTH <= u16::MAX as usize
                    && limits::MAX_QUEUE_LENGTH <= limits::REQUEST_RING
            )
        };
        if class > Class::HIGHEST {
            return self.check_room_below(model, class, rows);
        }
        let limit = if rows == 1 { 1 } else { self.most_rows(model) };
        if rows == 0 || rows > limit {
            return Err(Refusal::TooManyRows { rows, limit });
        }
        let info = &self.models[model.0 as usize];
        let has_slots = self.slab.has_room(row_bytes(info), rows);
        let thread = self.thread_of(model);
        if has_slots && self.requests[thread].has_room(rows) { Ok(()) } else { Err(Refusal::Overloaded) }
    }

    /// Checks as [`Frontend::check_room`] does for a lower class: slab and ring keep a quarter of
    /// their room for each class above it.
    #[cold]
    fn check_room_below(&mut self, model: ModelId, class: Class, rows: usize) -> Result<(), Refusal> {
        let info = &self.models[model.0 as usize];
        let bytes = row_bytes(info);
        let kept = |of: usize| (of * usize::from(class.number())).div_ceil(Class::COUNT);
        let slots = self.slab.fitting(bytes);
        let kept_slots = kept(slots).min(slots - 1);
        let limit = (slots - kept_slots).min(limits::MAX_QUEUE_LENGTH);
        if rows == 0 || rows > limit {
            return Err(Refusal::TooManyRows { rows, limit });
        }
        let has_slots = self.slab.free_fitting(bytes) >= rows + kept_slots;
        let thread = self.thread_of(model);
        let has_room = self.requests[thread].has_room(rows + kept(limits::REQUEST_RING));
        if has_slots && has_room { Ok(()) } else { Err(Refusal::Overloaded) }
    }

    /// Takes a slab slot for each row, of which there are enough, and returns the index of the
    /// first.
    fn take_slots(&mut self, model: ModelId, rows: usize) -> usize {
        let bytes = row_bytes(&self.models[model.0 as usize]);
        let mut head = None;
        for _ in 0..rows {
            let slot = self.slab.alloc(bytes).expect("free slots were counted");
            let index = self.slab.index(slot);
            self.in_flight.put_before(head, index, slot);
            head = Some(index);
        }
        head.expect("a request has a row")
    }

    /// Hands out every answer that has come, and one for every request that is overdue, each
    /// exactly once; once the engine can't go on, one for each that is left. Returns how many there
    /// were.
    pub fn poll(&mut self, mut deliver: impl FnMut(Ticket, Answer<'_>)) -> usize {
        self.refresh_models();
        let mut delivered = 0;
        for at in 0..self.responses.len() {
            while let Some(response) = self.responses[at].pop() {
                delivered += self.end_row(response, &mut deliver);
            }
        }
        if delivered == 0 && (self.in_flight() > 0 || self.set_aside.len() > 0) {
            self.overdue.note(self.clock.now());
        }
        delivered += self.end_overdue(&mut deliver);
        if !self.accepting() {
            delivered += self.end_lost(&mut deliver);
        }
        self.send_cancellations();
        if self.set_aside.take_back(&mut self.slab, self.overdue.now()) > 0 {
            self.count_held();
        }
        delivered
    }

    /// Ends the row that a response names, and with the last row its request. Returns the number of
    /// answers that were handed out.
    #[inline]
    fn end_row(&mut self, response: Response, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        let index = self.slab.index(response.slot);
        let Some(head) = self.in_flight.row_ended(index, response) else {
            self.counts.stale.add(1);
            return 0;
        };
        let &SentRequest { id, ending, missing, abandoned, .. } = self.in_flight.sent(head);
        if missing == 0 && abandoned {
            self.let_go(head);
        } else if missing == 0 {
            self.deliver(head, deliver);
            return 1;
        } else if ending != Ending::Done {
            // The client gets an error, so the remaining rows need not run.
            self.cancel(Ticket { index: head, id });
        }
        0
    }

    /// Answers the requests that are overdue, as far as a slice of the sweep is due. Returns their
    /// number.
    #[inline]
    fn end_overdue(&mut self, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        if self.in_flight() > 0 && self.overdue.is_due() { self.sweep(deliver) } else { 0 }
    }

    #[cold]
    fn sweep(&mut self, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        let (mut left, mut ended) = (self.overdue.begin_slice(), 0);
        while let Some(index) = self.overdue.next(&mut left) {
            if self.in_flight.waits(index) {
                let by = self.overdue.now() - self.in_flight.sent(index).due;
                self.abandon(index, Outcome::Overdue(by), deliver);
                ended += 1;
            }
        }
        ended
    }

    /// Answers the request that begins at `index`, and leaves its slots to the engine.
    fn abandon(&mut self, index: usize, outcome: Outcome, deliver: &mut impl FnMut(Ticket, Answer<'_>)) {
        let sent = self.in_flight.sent(index);
        let (ticket, slo) = (Ticket { index, id: sent.id }, self.models[sent.model.0 as usize].slo);
        deliver(ticket, overdue::answer_to(sent, slo, outcome, self.overdue.now()));
        self.in_flight.abandon(index);
        self.counts.abandoned.add(1);
        self.count_held();
        // It may still wait in its queue; then its slots come back at once.
        self.cancel(ticket);
    }

    /// Takes back the slots of an abandoned request, whose last row has ended.
    #[cold]
    fn let_go(&mut self, index: usize) {
        let model = self.in_flight.sent(index).model;
        self.in_flight.let_go(index);
        self.free_slots(index);
        self.in_engine.sub(model.0 as usize);
        self.counts.discarded.add(1);
        self.count_held();
    }

    /// Ends what the engine never will: everything in flight if it can't go on, and else what was
    /// sent to threads that have ended. Returns the number of answers.
    #[cold]
    fn end_lost(&mut self, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        let broken = self.faults.get().is_some() && self.in_flight() > 0;
        let ended = if broken { self.break_off(deliver) } else { 0 };
        ended + self.end_unread(deliver)
    }

    /// Answers every request in flight, since nothing says what becomes of it in the engine.
    fn break_off(&mut self, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        self.overdue.note(self.clock.now());
        let ended = self.in_flight();
        for index in 0..self.capacity() {
            if self.in_flight.waits(index) {
                self.abandon(index, Outcome::Broken, deliver);
            }
        }
        ended
    }

    /// Ends the requests that a ModelThread has not read and never will, since it has ended: they
    /// were sent after its last look at its ring.
    fn end_unread(&mut self, deliver: &mut impl FnMut(Ticket, Answer<'_>)) -> usize {
        let (now, mut delivered) = (self.clock.now(), 0);
        for at in 0..self.requests.len() {
            while let Some(Request { id, slot, takes_back, .. }) = self.requests[at].take_back() {
                if takes_back != 0 {
                    continue;
                }
                let ending = Ending::Stopped as u32;
                let response = Response { id, slot, finished: now, ending, ..Response::default() };
                delivered += self.end_row(response, deliver);
            }
        }
        delivered
    }

    /// Cancels a request if it still waits: its answer then is [`Ending::Withdrawn`]. One that runs
    /// or has run ends normally, and nothing happens if it was answered already.
    pub fn cancel(&mut self, ticket: Ticket) {
        if self.in_flight.take_back(ticket.index, ticket.id) {
            self.cancellations.push_back(ticket);
            self.send_cancellations();
        }
    }

    /// Sends cancellations as far as the rings have room; the rest goes at the next poll.
    fn send_cancellations(&mut self) {
        if self.cancellations.is_empty() {
            return;
        }
        while let Some(&Ticket { index, id }) = self.cancellations.front() {
            if self.in_flight.is_in_flight(index, id) {
                let &SentRequest { model, arrival, deadline, class, .. } = self.in_flight.sent(index);
                let queue_slot = self.models[model.0 as usize].queue_slot();
                let thread = self.thread_of(model);
                let ring = &mut self.requests[thread];
                let frontend = self.id as u8;
                let cancellation = Request {
                    id,
                    arrival,
                    deadline,
                    queue: self.queue_ids.of(queue_slot, class),
                    takes_back: 1,
                    frontend,
                    class,
                    ..Request::default()
                };
                if ring.push(cancellation).is_err() {
                    break;
                }
            }
            self.cancellations.pop_front();
        }
        self.bells.ring();
    }

    /// Hands out the answer of the request that begins at `index`, and takes its slots back.
    fn deliver(&mut self, index: usize, deliver: &mut impl FnMut(Ticket, Answer<'_>)) {
        let answered = self.clock.now();
        self.overdue.note(answered);
        let SentRequest { id, model, arrival, due, deadline, rows, ending, last, .. } =
            *self.in_flight.sent(index);
        if due != Nanos::MAX {
            self.observe_response(model, &last, answered, (due, deadline));
        }
        let outcome = match ending {
            Ending::Done if answered <= due => Outcome::Good,
            Ending::Done => Outcome::Late(answered - due),
            other => Outcome::Bad(other),
        };
        let kept = Cell::new(false);
        let slots = OutputSlots { in_flight: &self.in_flight, head: index, kept: &kept };
        let answer = Answer {
            outcome,
            rows: rows as usize,
            output: Output { slots: Some(slots), ..self.output(index, ending) },
            model,
            slo: self.models[model.0 as usize].slo,
            timeline: Timeline {
                arrival,
                due,
                batched: last.batched,
                started: if ending == Ending::Done { last.started } else { Nanos::ZERO },
                finished: last.finished,
                answered,
            },
            batch_size: last.batch_size,
            gpu: last.gpu,
        };
        deliver(Ticket { index, id }, answer);
        if !kept.get() {
            self.free_slots(index);
        }
        self.in_flight.answered(index);
        self.in_engine.sub(model.0 as usize);
    }

    /// Takes back the slots of the request that begins at `index`, which the engine has let go of.
    /// One that a device may still read or write, after the request has failed or the engine has
    /// stopped, is set aside until it is given up.
    fn free_slots(&mut self, index: usize) {
        let is_done = self.in_flight.sent(index).ending == Ending::Done;
        for slot in self.in_flight.slots(index) {
            if self.slab.free(slot) {
                continue;
            }
            if is_done {
                self.slot_is_lost();
            } else {
                self.set_aside.add(slot);
                self.count_held();
            }
        }
    }

    #[cold]
    fn count_held(&self) {
        let held = self.in_flight.held_rows() + self.set_aside.len();
        self.counts.held_slots.set(held as u64);
    }

    /// Frees a slot that the engine has nothing to do with.
    fn free_slot(&mut self, slot: SlotId) {
        if !self.slab.free(slot) {
            self.slot_is_lost();
        }
    }

    #[cold]
    fn slot_is_lost(&self) {
        self.counts.lost_slots.add(1);
        let thread = format!("frontend-{}", self.id);
        self.faults.report(&thread, "found a slot in use after the end of its request");
    }

    /// Adjusts the reserve of a model, by which its batches end before they are due, to an answer.
    fn observe_response(
        &mut self,
        model: ModelId,
        last: &Response,
        answered: Nanos,
        (due, deadline): (Nanos, Nanos),
    ) {
        let reserve = &mut self.reserves[model.0 as usize];
        match Ending::from_code(last.ending) {
            Some(Ending::Done) => reserve.observe(answered - deadline),
            // The response holds the latest start and the actual time: the answer would have been
            // late by their difference.
            Some(Ending::DroppedAtBackend) => {
                reserve.observe((due - deadline) + (last.finished - last.started));
            }
            _ => {}
        }
    }

    /// Returns the outputs of the request that begins at `index`.
    fn output(&self, index: usize, ending: Ending) -> Output<'_> {
        let signature = &self.models[self.in_flight.sent(index).model.0 as usize].signature;
        let range = signature.input_bytes()..signature.input_bytes() + signature.output_bytes();
        if ending != Ending::Done {
            return Output { range, first: None, others: Vec::new(), slots: None };
        }
        let mut slots = self.in_flight.slots(index);
        let mut next = || {
            let slot = slots.next()?;
            Some(self.view.claim(slot).expect("the backend has released the slot"))
        };
        Output { range, first: next(), others: std::iter::from_fn(next).collect(), slots: None }
    }
}
