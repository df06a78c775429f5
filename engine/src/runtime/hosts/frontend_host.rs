//! A host with frontends: its link to the scheduler, where their requests go, and its links to the
//! backends, which read and write their slots and answer. It stands where ModelThreads and
//! executors stand in one process.
//!
//! Invariant: each row that a frontend has sent is answered once. A row that has been answered is
//! neither read nor written any more, though its slot may be another request's only later.

use super::direct_memory::DirectMemory;
use super::direct_slots::DirectSlots;
use super::host::Host;
use super::host_port::{HostPort, happened};
use super::measured_delays::{TellingTime, way_here};
use super::pending::{PendingRequests, RequestKey};
use std::collections::VecDeque;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting};
use symphony_transport::message::{Ending, NO_DEADLINE, Request, Response};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::slab::SlabView;
use symphony_transport::wire::{
    CloseCode, ExportedClass, HostRole, LandedAnswer, MeasuredDelays, Payload, RdmaOffer, ReadOutcome,
    TensorData, TensorRead, TensorWrite,
};

/// The most records in a frame of requests, but for those of one request.
const RECORDS_PER_FRAME: usize = 128;

/// Bytes for a connection after which no more tensors are added in a turn.
const BYTES_PER_TURN: usize = 256 << 10;

/// The time after which requests that a lost backend may have had are sent again, and again for as
/// long as they have no answer: the scheduler ignores those that it has.
const DOUBT: Nanos = Nanos::from_millis(500);

/// The time after its last deadline at which a row ends, whatever becomes of its answer: its client
/// was answered long before.
const LEASE: Nanos = Nanos::from_secs(2);

/// The time between two looks at deadlines.
const LOOK_EVERY: Nanos = Nanos::from_millis(20);

/// The other ends of a frontend's rings, and its slots.
pub(crate) struct LocalFrontend {
    pub(crate) requests: Consumer<Request>,
    pub(crate) responses: Producer<Response>,
    pub(crate) slab: SlabView,
}

/// The frontends of the host, and what they have sent.
struct LocalFrontends {
    /// The engine's number of the first.
    first: u32,
    frontends: Vec<LocalFrontend>,
    pending: PendingRequests,
}

/// A backend, as a host with frontends is told of it.
pub(crate) struct BackendOfFrontend {
    pub(crate) terms: LinkTerms,
    /// The device that moves tensors, where hosts are configured for one.
    pub(crate) memory: Option<Box<dyn DirectMemory>>,
}

/// A link to a backend.
struct SlotServer {
    port: HostPort,
    /// The backend's way to the slots past the frames, where hosts are configured for it.
    direct: Option<DirectSlots>,
    /// The reads that wait for credits or room.
    reads: VecDeque<TensorRead>,
    refused: u64,
}

/// A host with frontends. See the module's description. Its first link is that to the scheduler;
/// those to backends follow.
pub(crate) struct FrontendHost {
    scheduler: HostPort,
    backends: Vec<SlotServer>,
    local: LocalFrontends,
    /// The requests that are to be sent, and the cancellations of those that were.
    to_send: VecDeque<RequestKey>,
    cancellations: VecDeque<Request>,
    /// The requests that a lost backend may have had, and when they are sent again.
    doubtful: Vec<RequestKey>,
    doubt_at: Nanos,
    grace: Nanos,
    looked: Nanos,
    telling: TellingTime,
    refused: u64,
    resubmitted: u64,
}

impl FrontendHost {
    /// Makes the host of frontends with the numbers from `first` on, which end requests themselves
    /// by `grace` after they are due.
    pub(crate) fn new(
        scheduler: LinkTerms,
        backends: Vec<BackendOfFrontend>,
        (first, frontends): (u32, Vec<LocalFrontend>),
        grace: Nanos,
        now: Nanos,
    ) -> FrontendHost {
        let server = |BackendOfFrontend { terms, memory }| SlotServer {
            port: HostPort::new(terms, now),
            direct: memory.map(DirectSlots::new),
            reads: VecDeque::new(),
            refused: 0,
        };
        FrontendHost {
            scheduler: HostPort::new(scheduler, now),
            backends: backends.into_iter().map(server).collect(),
            local: LocalFrontends { first, frontends, pending: PendingRequests::default() },
            to_send: VecDeque::new(),
            cancellations: VecDeque::new(),
            doubtful: Vec::new(),
            doubt_at: Nanos::MAX,
            grace,
            looked: Nanos::ZERO,
            telling: TellingTime::default(),
            refused: 0,
            resubmitted: 0,
        }
    }

    /// Takes the requests and cancellations of the frontends.
    fn take_requests(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for at in 0..self.local.frontends.len() {
            while let Some(request) = self.local.frontends[at].requests.pop() {
                taken += 1;
                if request.takes_back != 0 {
                    self.cancel(request, now);
                } else if self.local.pending.add(request) {
                    self.to_send.push_back(RequestKey::of(&request));
                }
            }
        }
        taken
    }

    /// Passes a cancellation on, or ends the request where the scheduler does not have it.
    fn cancel(&mut self, request: Request, now: Nanos) {
        let key = RequestKey::of(&request);
        let Some(pending) = self.local.pending.get_mut(key) else { return };
        if pending.is_sent {
            pending.is_cancelled = true;
            self.cancellations.push_back(request);
        } else {
            self.local.end(key, Ending::Withdrawn, now);
        }
    }

    /// Notes that the scheduler has nothing of what was sent: it is sent again on the next
    /// connection.
    fn scheduler_is_lost(&mut self, now: Nanos) {
        self.cancellations.clear();
        self.doubtful.clear();
        self.to_send.clear();
        for key in self.local.pending.keys_by_arrival() {
            let Some(pending) = self.local.pending.get_mut(key) else { continue };
            self.resubmitted += u64::from(pending.is_sent);
            pending.is_sent = false;
            if pending.is_cancelled {
                self.local.end(key, Ending::Withdrawn, now);
            } else {
                self.to_send.push_back(key);
            }
        }
    }

    /// Notes that a backend is lost: any request may be one that it has answered in vain.
    fn backend_is_lost(&mut self, at: usize, now: Nanos) {
        self.backends[at].lose();
        self.doubtful = self.local.pending.keys_by_arrival();
        if self.doubt_at == Nanos::MAX {
            self.doubt_at = now + DOUBT;
        }
    }

    /// Has requests in doubt sent again.
    fn resolve_doubts(&mut self, now: Nanos) {
        if now < self.doubt_at {
            return;
        }
        let FrontendHost { local, doubtful, to_send, resubmitted, .. } = self;
        let mut is_open = |key: &RequestKey| {
            let pending = local.pending.get_mut(*key);
            pending.is_some_and(|pending| pending.is_sent && !pending.is_cancelled)
        };
        doubtful.retain(|key| is_open(key));
        to_send.extend(doubtful.iter());
        *resubmitted += doubtful.len() as u64;
        self.doubt_at = if doubtful.is_empty() { Nanos::MAX } else { now + DOUBT };
    }

    /// Ends the requests whose time is over: that no scheduler can run any more, and those whose
    /// answers are lost.
    fn look_at_deadlines(&mut self, now: Nanos) {
        if now < self.looked + LOOK_EVERY {
            return;
        }
        self.looked = now;
        let is_up = self.scheduler.link().is_up();
        let over = |request: &Request| {
            let due = request.deadline + request.reserve;
            request.deadline < NO_DEADLINE && if is_up { due + self.grace + LEASE < now } else { due < now }
        };
        for key in self.local.pending.keys_of(over) {
            self.local.end(key, if is_up { Ending::Failed } else { Ending::DroppedInQueue }, now);
        }
    }

    /// Sends requests, as far as there are credits: those that are worth it still.
    fn send_requests(&mut self, now: Nanos) {
        while self.scheduler.link().is_up() && !self.to_send.is_empty() {
            let mut frame: Vec<Request> = Vec::new();
            let mut keys = 0;
            for &key in &self.to_send {
                let Some(pending) = self.local.pending.get_mut(key) else {
                    keys += 1;
                    continue;
                };
                if !frame.is_empty() && frame.len() + pending.len() > RECORDS_PER_FRAME {
                    break;
                }
                keys += 1;
                if !pending.is_cancelled {
                    frame.extend(pending.rows());
                }
            }
            if !frame.is_empty() && self.scheduler.send(now, &Payload::Requests((&frame[..]).into())).is_err()
            {
                return;
            }
            for key in self.to_send.drain(..keys) {
                self.local.pending.get_mut(key).into_iter().for_each(|pending| pending.is_sent = true);
            }
        }
        let cancellations = self.cancellations.make_contiguous();
        let mut sent = 0;
        while let Some(cancellation) = cancellations.get(sent..sent + 1)
            && self.scheduler.send(now, &Payload::Requests(cancellation.into())).is_ok()
        {
            sent += 1;
        }
        self.cancellations.drain(..sent);
    }

    /// Tells the scheduler what was measured of the backends' ways here, now and then.
    fn tell_delays(&mut self, now: Nanos) {
        let ways = self.backends.iter().filter_map(|backend| way_here(backend.port.link()));
        let Some(way) = ways.max().filter(|_| self.scheduler.link().is_up()) else { return };
        if self.telling.has_come(now) {
            let measured = MeasuredDelays { way, ..MeasuredDelays::UNKNOWN };
            // The link is up, and it takes no credits.
            let _ = self.scheduler.send(now, &Payload::Delays(measured));
        }
    }
}

impl LocalFrontends {
    fn frontend(&mut self, number: u16) -> Option<&mut LocalFrontend> {
        let at = u32::from(number).checked_sub(self.first)?;
        self.frontends.get_mut(at as usize)
    }

    /// Ends the rows of a request that have not ended.
    fn end(&mut self, key: RequestKey, ending: Ending, now: Nanos) {
        let Some(pending) = self.pending.get_mut(key) else { return };
        let open: Vec<Request> = pending.open_rows().collect();
        for Request { id, slot, .. } in open {
            let ending = ending as u32;
            self.answer(Response { id, slot, finished: now, ending, ..Response::default() });
        }
    }

    /// Hands an answer to its frontend, unless the row has ended: then nobody waits for it.
    fn answer(&mut self, response: Response) {
        if self.pending.row_ended(&response)
            && let Some(frontend) = self.frontend(response.slot.frontend())
        {
            // The ring holds an answer for each slot, and a slot's row ends once.
            let pushed = frontend.responses.push(response);
            debug_assert!(pushed.is_ok(), "a ring of answers is full");
        }
    }

    /// Takes the answers of a peer, whose instants are mapped.
    fn take_answers(&mut self, link: &HostLink, now: Nanos, responses: impl Iterator<Item = Response>) {
        for response in responses {
            let Response { batched, started, finished, .. } = response;
            let [batched, started, finished] = [batched, started, finished].map(|at| happened(link, at, now));
            self.answer(Response { batched, started, finished, ..response });
        }
    }

    /// Writes into a slot whose row has not ended.
    fn write(&mut self, TensorWrite { slot, offset, .. }: TensorWrite, bytes: &[u8]) {
        if !self.pending.is_open(slot) {
            return;
        }
        let Some(frontend) = self.frontend(slot.frontend()) else { return };
        let Some(mut guard) = frontend.slab.claim(slot) else { return };
        let begin = offset as usize;
        if let Some(to) = guard.get_mut(begin..begin.saturating_add(bytes.len())) {
            to.copy_from_slice(bytes);
        }
    }

    /// Copies outputs that have landed into a slot whose row has not ended.
    fn land(&mut self, answer: &LandedAnswer, copy: &dyn Fn(&mut [u8])) {
        let slot = answer.response.slot;
        if !self.pending.is_open(slot) {
            return;
        }
        let Some(frontend) = self.frontend(slot.frontend()) else { return };
        let Some(mut guard) = frontend.slab.claim(slot) else { return };
        let begin = answer.offset as usize;
        if let Some(to) = guard.get_mut(begin..begin.saturating_add(answer.bytes as usize)) {
            copy(to);
        }
    }

    /// Answers a read of a slot by `send`.
    fn read<T>(&mut self, order: TensorRead, send: impl FnOnce(TensorData, &[u8]) -> T) -> T {
        let TensorRead { read, slot, offset, bytes } = order;
        let refusal = |outcome| TensorData { read, outcome: outcome as u32, bytes: 0 };
        let is_open = self.pending.is_open(slot);
        let frontend = self.frontend(slot.frontend()).filter(|_| is_open);
        let Some(guard) = frontend.and_then(|frontend| frontend.slab.claim(slot)) else {
            return send(refusal(ReadOutcome::Stale), &[]);
        };
        match guard.get(offset as usize..offset as usize + bytes as usize) {
            Some(read_bytes) => {
                send(TensorData { read, outcome: ReadOutcome::Read as u32, bytes }, read_bytes)
            }
            None => send(refusal(ReadOutcome::OutOfBounds), &[]),
        }
    }
}

impl SlotServer {
    fn receive(&mut self, now: Nanos, local: &mut LocalFrontends) -> Option<Parting> {
        let SlotServer { port, direct, reads, refused } = self;
        let is_direct = direct.is_some();
        let mut offer = None;
        let parting = port.receive(now, |link, payload| match payload {
            Payload::Rdma(head, exported) if is_direct => {
                offer = Some((head, exported.iter().collect::<Vec<_>>()));
                0
            }
            Payload::TensorRead(order) if !is_direct => {
                reads.push_back(order);
                1
            }
            Payload::TensorWrite(head, bytes) if !is_direct => {
                local.write(head, bytes);
                1
            }
            Payload::Responses(responses) => {
                local.take_answers(link, now, responses.iter());
                responses.len()
            }
            _ => {
                *refused += 1;
                1
            }
        });
        if parting.is_some() {
            return parting;
        }
        let sentence = self.turn_direct(now, offer, local).err()?;
        Some(self.port.close(now, CloseCode::RdmaFailed, &sentence))
    }

    /// Answers an offer of the backend's, and takes the answers that have landed.
    fn turn_direct(
        &mut self,
        now: Nanos,
        offer: Option<(RdmaOffer, Vec<ExportedClass>)>,
        local: &mut LocalFrontends,
    ) -> Result<(), String> {
        let SlotServer { port, direct: Some(direct), .. } = self else { return Ok(()) };
        if let Some(offer) = offer {
            direct.answer(&offer, now)?;
        }
        direct.poll(now, |answer, copy| {
            local.land(answer, copy);
            local.take_answers(port.link(), now, std::iter::once(answer.response));
        })
    }

    /// Ends what is of a connection that is over.
    fn lose(&mut self) {
        self.reads.clear();
        self.direct.iter_mut().for_each(DirectSlots::lose);
    }

    /// Answers reads, as far as there are credits and room in this turn.
    fn take_out(&mut self, now: Nanos, local: &mut LocalFrontends) -> Vec<u8> {
        let SlotServer { port, direct, reads, .. } = self;
        if let Some(direct) = direct
            && let Some((offer, exported)) = direct.offer()
            && port.send(now, &Payload::Rdma(*offer, (&exported[..]).into())).is_ok()
        {
            direct.has_offered();
        }
        while let Some(&order) = reads.front()
            && port.outgoing_bytes() < BYTES_PER_TURN
            && local.read(order, |head, bytes| port.send(now, &Payload::TensorData(head, bytes))).is_ok()
        {
            reads.pop_front();
        }
        port.send_own(now);
        port.take_out()
    }
}

impl Host for FrontendHost {
    fn links(&self) -> usize {
        1 + self.backends.len()
    }

    fn link(&self, at: usize) -> &HostLink {
        at.checked_sub(1).map_or(&self.scheduler, |backend| &self.backends[backend].port).link()
    }

    fn peer(&self, at: usize) -> (HostRole, u32) {
        at.checked_sub(1).map_or((HostRole::Scheduler, 0), |backend| (HostRole::Backend, backend as u32))
    }

    fn connect(&mut self, at: usize, now: Nanos) {
        match at.checked_sub(1) {
            None => {
                self.scheduler_is_lost(now);
                self.scheduler.connect(now);
            }
            Some(backend) => {
                self.backend_is_lost(backend, now);
                self.backends[backend].port.connect(now);
            }
        }
    }

    fn disconnect(&mut self, at: usize, now: Nanos) {
        match at.checked_sub(1) {
            None => {
                self.scheduler.disconnect(now);
                self.scheduler_is_lost(now);
            }
            Some(backend) => {
                self.backends[backend].port.disconnect(now);
                self.backend_is_lost(backend, now);
            }
        }
    }

    fn take_in(&mut self, at: usize, bytes: &[u8]) {
        match at.checked_sub(1) {
            None => self.scheduler.take_in(bytes),
            Some(backend) => self.backends[backend].port.take_in(bytes),
        }
    }

    fn read(&mut self, at: usize, now: Nanos) -> Option<Parting> {
        let FrontendHost { scheduler, backends, local, refused, .. } = self;
        let parting = match at.checked_sub(1) {
            None => scheduler.receive(now, |link, payload| match payload {
                Payload::Responses(responses) => {
                    local.take_answers(link, now, responses.iter());
                    responses.len()
                }
                _ => {
                    *refused += 1;
                    1
                }
            }),
            Some(backend) => backends[backend].receive(now, local),
        };
        if parting.is_some() {
            match at.checked_sub(1) {
                None => self.scheduler_is_lost(now),
                Some(backend) => self.backend_is_lost(backend, now),
            }
        }
        parting
    }

    fn turn(&mut self, now: Nanos) -> usize {
        let taken = self.take_requests(now);
        self.resolve_doubts(now);
        self.look_at_deadlines(now);
        taken
    }

    fn take_out(&mut self, at: usize, now: Nanos) -> Vec<u8> {
        match at.checked_sub(1) {
            None => {
                self.send_requests(now);
                self.tell_delays(now);
                self.scheduler.send_own(now);
                self.scheduler.take_out()
            }
            Some(backend) => self.backends[backend].take_out(now, &mut self.local),
        }
    }

    fn refused(&self) -> u64 {
        self.refused + self.backends.iter().map(|backend| backend.refused).sum::<u64>()
    }

    fn repeated(&self) -> u64 {
        self.resubmitted
    }

    fn drain(&mut self) {}

    fn is_idle(&self) -> bool {
        self.local.pending.is_empty()
    }

    fn leave(&mut self, now: Nanos) {
        self.scheduler.leave(now);
        self.backends.iter_mut().for_each(|backend| drop(backend.port.leave(now)));
    }
}
