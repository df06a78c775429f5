//! The scheduler's side of a host with frontends: their requests go into the rings that
//! ModelThreads read, and what ends there comes out of others, as where the frontends are in one
//! process with the scheduler.

use super::host_port::{HostPort, happened};
use super::row_table::{RowTable, TrackedRow};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use symphony_transport::Nanos;
use symphony_transport::link::{HostLink, LinkTerms, Parting};
use symphony_transport::message::{Ending, NO_DEADLINE, Request, Response};
use symphony_transport::ring::{Consumer, Producer};
use symphony_transport::wire::{MeasuredDelays, Payload};

/// The other ends of the rings that a frontend would have.
pub(crate) struct FrontendRings {
    /// The requests to each ModelThread.
    pub(crate) requests: Vec<Producer<Request>>,
    /// The answers of each ModelThread.
    pub(crate) responses: Vec<Consumer<Response>>,
    /// The rows that may be in ModelThreads at once: what a ring of answers holds.
    pub(crate) room: usize,
}

/// A frontend of the host.
struct RemoteCore {
    rings: FrontendRings,
    /// The rows that ModelThreads have, those of connections that are over included.
    inside: usize,
}

/// A host with frontends. See the module's description.
pub(super) struct RemoteFrontend {
    port: HostPort,
    /// The engine's numbers of its frontends.
    numbers: Range<u32>,
    cores: Vec<RemoteCore>,
    /// The ModelThread of each queue.
    thread_of: Arc<[u32]>,
    /// The cancellations and requests that have come and that no ring has yet.
    cancellations: VecDeque<Request>,
    waiting: VecDeque<Request>,
    /// The answers that wait for credits.
    answers: Vec<Response>,
    /// What it has measured of the ways from backends.
    measured: MeasuredDelays,
    /// True if no further requests are taken.
    drains: bool,
    refused: u64,
}

impl RemoteFrontend {
    /// Makes the side of a host whose frontends have the numbers from `first` on.
    pub(super) fn new(
        terms: LinkTerms,
        first: u32,
        rings: Vec<FrontendRings>,
        thread_of: Arc<[u32]>,
        now: Nanos,
    ) -> RemoteFrontend {
        RemoteFrontend {
            port: HostPort::new(terms, now),
            numbers: first..first + rings.len() as u32,
            cores: rings.into_iter().map(|rings| RemoteCore { rings, inside: 0 }).collect(),
            thread_of,
            cancellations: VecDeque::new(),
            waiting: VecDeque::new(),
            answers: Vec::new(),
            measured: MeasuredDelays::UNKNOWN,
            drains: false,
            refused: 0,
        }
    }

    pub(super) fn port(&self) -> &HostPort {
        &self.port
    }

    pub(super) fn port_mut(&mut self) -> &mut HostPort {
        &mut self.port
    }

    /// Returns what it has measured of the network.
    pub(super) fn measured(&self) -> &MeasuredDelays {
        &self.measured
    }

    /// Returns true if a frontend of this number is one of the host's.
    pub(super) fn has(&self, frontend: u32) -> bool {
        self.numbers.contains(&frontend)
    }

    /// Returns the number of records that were ignored: for queues or of frontends that are not
    /// there.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes no further requests: their frontend sends them to the scheduler that comes next.
    pub(super) fn drain(&mut self) {
        self.drains = true;
    }

    /// Returns true if nothing waits for room or credits.
    pub(super) fn is_idle(&self) -> bool {
        self.answers.is_empty() && self.waiting.is_empty()
    }

    /// Begins a connection, which ends the one before.
    pub(super) fn connect(&mut self, now: Nanos, rows: &mut RowTable) {
        self.lose(rows);
        self.port.connect(now);
    }

    /// Ends the connection, which was closed or could not be made.
    pub(super) fn disconnect(&mut self, now: Nanos, rows: &mut RowTable) {
        self.port.disconnect(now);
        self.lose(rows);
    }

    /// Reads what has come, and finds out whether the host is silent. Returns the end of the
    /// connection if it is over.
    pub(super) fn read(&mut self, now: Nanos, rows: &mut RowTable) -> Option<Parting> {
        let RemoteFrontend { port, waiting, measured, refused, drains, .. } = self;
        let parting = port.receive(now, |_, payload| match payload {
            Payload::Requests(requests) => {
                waiting.extend(requests.iter().filter(|request| !*drains || request.takes_back != 0));
                requests.len()
            }
            Payload::Delays(delays) => {
                *measured = delays;
                0
            }
            _ => {
                *refused += 1;
                1
            }
        });
        if parting.is_some() {
            self.lose(rows);
        }
        parting
    }

    /// Drops what its requests have here: they are cancelled where they wait, and what comes of
    /// those that are in batches is nobody's.
    fn lose(&mut self, rows: &mut RowTable) {
        self.waiting.clear();
        self.answers.clear();
        for first in rows.drop_frontends(self.numbers.clone()) {
            self.cancellations.push_back(Request { takes_back: 1, row: 0, rows_after: 0, ..first });
        }
    }

    /// Passes requests on to ModelThreads, and takes what has ended there. Returns how many there
    /// were.
    pub(super) fn turn(&mut self, now: Nanos, rows: &mut RowTable) -> usize {
        let work = self.cancel_waiting() + self.admit_waiting(now, rows) + self.take_ended(rows);
        self.cores.iter_mut().flat_map(|core| &mut core.rings.requests).for_each(Producer::publish);
        work
    }

    fn core(&mut self, frontend: u8) -> Option<&mut RemoteCore> {
        let at = u32::from(frontend).checked_sub(self.numbers.start)?;
        self.cores.get_mut(at as usize)
    }

    /// Sends cancellations, as far as the rings have room.
    fn cancel_waiting(&mut self) -> usize {
        let mut sent = 0;
        while let Some(&first) = self.cancellations.front() {
            let thread = self.thread_of[first.queue.0 as usize] as usize;
            let Some(core) = self.core(first.frontend) else { break };
            if core.rings.requests[thread].write(first).is_err() {
                break;
            }
            self.cancellations.pop_front();
            sent += 1;
        }
        sent
    }

    /// Passes on the requests that have come, as far as there is room, once the frontend's clock is
    /// known.
    fn admit_waiting(&mut self, now: Nanos, rows: &mut RowTable) -> usize {
        if self.port.link().clock().error(now).is_none() {
            return 0;
        }
        let mut admitted = 0;
        // Cancellations come first: the row that one of them is for may come again.
        while self.cancellations.is_empty()
            && let Some(&first) = self.waiting.front()
        {
            let count = usize::from(first.rows_after) + 1;
            if !self.admit(now, first, count, rows) {
                break;
            }
            self.waiting.drain(..count);
            admitted += count;
        }
        admitted
    }

    /// Passes on the first request of those that wait, of this number of rows. Returns false if it
    /// has to wait on.
    fn admit(&mut self, now: Nanos, first: Request, count: usize, rows: &mut RowTable) -> bool {
        let Some(&thread) = self.thread_of.get(first.queue.0 as usize) else {
            self.refused += count as u64;
            return true;
        };
        if first.takes_back != 0 {
            if let Some(row) = rows.first_row(&first) {
                self.cancellations.push_back(Request { takes_back: 1, row: 0, rows_after: 0, ..row });
                self.cancel_waiting();
            }
            return true;
        }
        let known = rows.has(&first);
        let Some(core) = self.core(first.frontend) else {
            self.refused += count as u64;
            return true;
        };
        if known {
            // It was sent again in doubt, and is here still.
            return true;
        }
        if core.inside + count > core.rings.room {
            let overloaded = |request: &Request| ended(request, Ending::Overloaded, now);
            self.answers.extend(self.waiting.iter().take(count).map(overloaded));
            return true;
        }
        if !core.rings.requests[thread as usize].has_room(count) {
            return false;
        }
        core.inside += count;
        for at in 0..count {
            let request = mapped(self.port.link(), self.waiting[at], now);
            let row = rows.add(request);
            if let Some(core) = self.core(first.frontend) {
                // Room was checked.
                let _ = core.rings.requests[thread as usize].write(row.inside());
            }
        }
        true
    }

    /// Queues the rows of a request again. Returns false if the ring has no room.
    pub(super) fn again(&mut self, rows: &[TrackedRow]) -> bool {
        let Request { queue, frontend, .. } = rows[0].request;
        let thread = self.thread_of[queue.0 as usize] as usize;
        let Some(core) = self.core(frontend) else { return true };
        if !core.rings.requests[thread].has_room(rows.len()) {
            return false;
        }
        core.inside += rows.len();
        for row in rows {
            // Room was checked.
            let _ = core.rings.requests[thread].write(row.inside());
        }
        true
    }

    /// Notes that a row of a frontend has left its ModelThread in a batch.
    pub(super) fn left(&mut self, frontend: u32) {
        if let Some(core) = self.core(frontend as u8) {
            core.inside -= 1;
        }
    }

    /// Takes the answers of ModelThreads.
    fn take_ended(&mut self, rows: &mut RowTable) -> usize {
        let RemoteFrontend { cores, answers, .. } = self;
        let mut taken = 0;
        for core in cores {
            for ring in &mut core.rings.responses {
                while let Some(response) = ring.pop() {
                    core.inside -= 1;
                    taken += 1;
                    answers.extend(rows.end(response.slot).map(|row| row.answered(response)));
                }
            }
        }
        taken
    }

    /// Takes an answer for the host.
    pub(super) fn answer(&mut self, response: Response) {
        self.answers.push(response);
    }

    /// Returns the bytes for the connection.
    pub(super) fn take_out(&mut self, now: Nanos) -> Vec<u8> {
        let RemoteFrontend { port, answers, .. } = self;
        port.send_records(now, answers, |records| Payload::Responses(records.into()));
        port.send_own(now);
        port.take_out()
    }
}

/// Returns the row with instants of this host's clock. Its deadline is not later than by the
/// frontend's.
fn mapped(link: &HostLink, request: Request, now: Nanos) -> Request {
    let deadline = match request.deadline {
        // No instant, but the order of those that have no deadline.
        never if never >= NO_DEADLINE => never,
        theirs => link.clock().to_ours(theirs, now).map_or(theirs, |bounds| bounds.earliest),
    };
    Request { arrival: happened(link, request.arrival, now), deadline, ..request }
}

/// Returns the answer to a row that never was in a batch.
pub(super) fn ended(request: &Request, ending: Ending, now: Nanos) -> Response {
    let &Request { id, slot, .. } = request;
    Response { id, slot, finished: now, ending: ending as u32, ..Response::default() }
}
