//! The requests that a frontend has sent and that are not answered: an entry for each slot of its
//! slab, those of one request's rows linked in their order, with the state of the whole request in
//! the entry of its first row. Owned by the [`Frontend`](crate::runtime::Frontend).

use symphony_transport::Nanos;
use symphony_transport::message::{Class, Ending, ModelId, Response};
use symphony_transport::slab::SlotId;

/// The index of no entry.
const NONE: u32 = u32::MAX;

/// A request that was sent to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub(crate) id: u64,
    pub(crate) model: ModelId,
    pub(crate) class: Class,
    pub(crate) arrival: Nanos,
    /// The time at which its answer is due; [`Nanos::MAX`] if never.
    pub(crate) due: Nanos,
    /// The deadline that the scheduler was given.
    pub(crate) deadline: Nanos,
    pub(crate) rows: u32,
    /// True if the engine was asked to cancel it, or is about to be.
    pub(crate) taken_back: bool,
    /// True if its client was answered before the engine let go of it.
    pub(crate) abandoned: bool,
    /// The number of rows that have not ended.
    pub(crate) missing: u32,
    /// The ending of its worst row so far.
    pub(crate) ending: Ending,
    /// The response of the row that ended last.
    pub(crate) last: Response,
}

impl SentRequest {
    /// Makes a request that has just come; no row of it has ended.
    pub(crate) fn new(id: u64, model: ModelId, class: Class, rows: usize) -> SentRequest {
        SentRequest {
            id,
            model,
            class,
            arrival: Nanos::ZERO,
            due: Nanos::ZERO,
            deadline: Nanos::ZERO,
            rows: rows as u32,
            taken_back: false,
            abandoned: false,
            missing: rows as u32,
            ending: Ending::Done,
            last: Response::default(),
        }
    }
}

#[derive(Clone, Copy)]
struct InFlightEntry {
    slot: SlotId,
    /// The entry of its request's next row.
    next: u32,
    /// The entry of its request's first row; [`NONE`] once the row has ended.
    head: u32,
    /// The request whose first row this is.
    sent: SentRequest,
}

/// The requests in flight. See the module's description.
pub(crate) struct InFlight {
    entries: Vec<InFlightEntry>,
    /// The number of requests that wait for their answer.
    requests: usize,
    /// The number of rows of abandoned requests that the engine has not let go of.
    held_rows: usize,
}

impl InFlight {
    /// Makes room for `slots` slots, none of them in use.
    pub(crate) fn new(slots: usize) -> InFlight {
        let sent = SentRequest::new(0, ModelId::default(), Class::HIGHEST, 0);
        let entry = InFlightEntry { slot: SlotId::default(), next: NONE, head: NONE, sent };
        InFlight { entries: vec![entry; slots], requests: 0, held_rows: 0 }
    }

    /// Returns the number of requests that wait for their answer.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Links one more row, whose slot has this index, before those of the request that begins at
    /// `head`; `None` if it is the last row.
    pub(crate) fn put_before(&mut self, head: Option<usize>, index: usize, slot: SlotId) {
        let entry = &mut self.entries[index];
        (entry.slot, entry.next) = (slot, head.map_or(NONE, |head| head as u32));
    }

    /// Stores a sent request, whose rows were linked from `head` on.
    pub(crate) fn send(&mut self, head: usize, sent: SentRequest) {
        let mut row = head as u32;
        while row != NONE {
            let entry = &mut self.entries[row as usize];
            entry.head = head as u32;
            row = entry.next;
        }
        self.entries[head].sent = sent;
        self.requests += 1;
    }

    /// Returns the request whose first row is in the slot of this index.
    pub(crate) fn sent(&self, head: usize) -> &SentRequest {
        &self.entries[head].sent
    }

    /// Notes that a request is to be cancelled. Returns false if it is not in flight, or was noted
    /// before.
    pub(crate) fn take_back(&mut self, head: usize, id: u64) -> bool {
        let Some(InFlightEntry { sent, .. }) = self.entries.get_mut(head) else { return false };
        let is_new = sent.id == id && sent.missing > 0 && !sent.taken_back;
        sent.taken_back |= is_new;
        is_new
    }

    /// Returns true if the request that begins at `head` is still this one.
    pub(crate) fn is_in_flight(&self, head: usize, id: u64) -> bool {
        let sent = &self.entries[head].sent;
        sent.id == id && sent.missing > 0
    }

    /// Returns the slots of the request's rows, in order.
    pub(crate) fn slots(&self, head: usize) -> impl Iterator<Item = SlotId> {
        let mut row = head as u32;
        std::iter::from_fn(move || {
            let entry = self.entries.get(row as usize)?;
            row = entry.next;
            Some(entry.slot)
        })
    }

    /// Notes that the row in the slot of this index has ended. Returns the index at which its
    /// request begins; `None` if the response is stale: its slot has been given to another request,
    /// or its row has ended before.
    #[inline]
    pub(crate) fn row_ended(&mut self, index: usize, response: Response) -> Option<usize> {
        let entry = self.entries.get(index)?;
        if entry.slot != response.slot {
            return None;
        }
        let head = entry.head as usize;
        if self.entries.get(head)?.sent.id != response.id {
            return None;
        }
        self.entries[index].head = NONE;
        let sent = &mut self.entries[head].sent;
        let ending = Ending::from_code(response.ending).unwrap_or(Ending::Failed);
        if severity(ending) > severity(sent.ending) {
            sent.ending = ending;
        }
        if response.finished >= sent.last.finished {
            sent.last = response;
        }
        sent.missing -= 1;
        Some(head)
    }

    /// Removes the request that begins at `head`, which is answered.
    pub(crate) fn answered(&mut self, head: usize) {
        debug_assert_eq!(self.entries[head].sent.missing, 0, "it has rows that have not ended");
        self.requests -= 1;
    }

    /// Returns true if the request that begins at `head` waits for its answer.
    pub(crate) fn waits(&self, head: usize) -> bool {
        let sent = &self.entries[head].sent;
        sent.missing > 0 && !sent.abandoned
    }

    /// Notes that the client of the request that begins at `head` has an answer, while the engine
    /// still holds its rows.
    pub(crate) fn abandon(&mut self, head: usize) {
        let sent = &mut self.entries[head].sent;
        sent.abandoned = true;
        self.requests -= 1;
        self.held_rows += sent.rows as usize;
    }

    /// Removes an abandoned request, whose last row has ended.
    pub(crate) fn let_go(&mut self, head: usize) {
        self.held_rows -= self.entries[head].sent.rows as usize;
    }

    /// Returns the number of rows of abandoned requests that the engine has not let go of.
    pub(crate) fn held_rows(&self) -> usize {
        self.held_rows
    }
}

/// Returns the severity of a row's ending for its client, compared with its other rows.
fn severity(ending: Ending) -> u8 {
    match ending {
        Ending::Done => 0,
        Ending::Withdrawn => 1,
        Ending::DroppedInQueue => 2,
        Ending::DroppedAtBackend => 3,
        Ending::Overloaded => 4,
        Ending::Stopped => 5,
        Ending::Failed => 6,
    }
}
