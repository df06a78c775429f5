//! What a frontend remembers of the requests that it has sent: an entry for each slot of its slab,
//! those of one request's rows linked in their order, and what is known of the whole request in the
//! entry of its first row. Owned by the [`Frontend`](crate::runtime::Frontend).

use symphony_transport::Nanos;
use symphony_transport::message::{Class, Ending, ModelId, Response};
use symphony_transport::slab::SlotId;

/// Names no entry.
const NONE: u32 = u32::MAX;

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub(crate) id: u64,
    pub(crate) model: ModelId,
    pub(crate) class: Class,
    pub(crate) arrival: Nanos,
    /// When its answer is due; [`Nanos::MAX`] if never.
    pub(crate) due: Nanos,
    /// The deadline that the scheduler was given.
    pub(crate) deadline: Nanos,
    pub(crate) rows: u32,
    /// The engine was asked to take it back, or is about to be.
    pub(crate) taken_back: bool,
    /// Rows that have not ended.
    pub(crate) missing: u32,
    /// How the worst of its rows ended.
    pub(crate) ending: Ending,
    /// What was said of the row that ended last.
    pub(crate) last: Response,
}

impl SentRequest {
    /// A request that has just come; no row of it has ended.
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
    /// The entry of its request's first row.
    head: u32,
    /// Of the request whose first row this is.
    sent: SentRequest,
}

/// See the module's description.
pub(crate) struct InFlight {
    entries: Vec<InFlightEntry>,
    /// Requests that wait for their answer.
    requests: usize,
}

impl InFlight {
    /// Room for so many slots, none of them in use.
    pub(crate) fn new(slots: usize) -> InFlight {
        let sent = SentRequest::new(0, ModelId::default(), Class::HIGHEST, 0);
        let entry = InFlightEntry { slot: SlotId::default(), next: NONE, head: NONE, sent };
        InFlight { entries: vec![entry; slots], requests: 0 }
    }

    /// Requests that wait for their answer.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    /// Puts one more row, whose slot has this index, before those of the request that begins at
    /// `head`; `None`: it is the last.
    pub(crate) fn put_before(&mut self, head: Option<usize>, index: usize, slot: SlotId) {
        let entry = &mut self.entries[index];
        (entry.slot, entry.next) = (slot, head.map_or(NONE, |head| head as u32));
    }

    /// The request whose rows were linked from `head` on is sent.
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

    /// The request whose first row is in the slot of this index.
    pub(crate) fn sent(&self, head: usize) -> &SentRequest {
        &self.entries[head].sent
    }

    /// Notes that a request is to be taken back; false if it is not in flight, or was noted before.
    pub(crate) fn take_back(&mut self, head: usize, id: u64) -> bool {
        let Some(InFlightEntry { sent, .. }) = self.entries.get_mut(head) else { return false };
        let is_new = sent.id == id && sent.missing > 0 && !sent.taken_back;
        sent.taken_back |= is_new;
        is_new
    }

    /// Whether the request that begins at `head` is still this one.
    pub(crate) fn is_in_flight(&self, head: usize, id: u64) -> bool {
        let sent = &self.entries[head].sent;
        sent.id == id && sent.missing > 0
    }

    /// The slots of its rows, in order.
    pub(crate) fn slots(&self, head: usize) -> impl Iterator<Item = SlotId> {
        let mut row = head as u32;
        std::iter::from_fn(move || {
            let entry = self.entries.get(row as usize)?;
            row = entry.next;
            Some(entry.slot)
        })
    }

    /// The row in the slot of this index has ended. Where its request begins.
    pub(crate) fn row_ended(&mut self, index: usize, response: Response) -> usize {
        let head = self.entries[index].head as usize;
        let sent = &mut self.entries[head].sent;
        debug_assert_eq!(sent.id, response.id, "an answer for a request that is not in flight");
        let ending = Ending::from_code(response.ending).unwrap_or(Ending::Failed);
        if severity(ending) > severity(sent.ending) {
            sent.ending = ending;
        }
        if response.finished >= sent.last.finished {
            sent.last = response;
        }
        sent.missing -= 1;
        head
    }

    /// The request that begins at `head` is answered.
    pub(crate) fn answered(&mut self, head: usize) {
        debug_assert_eq!(self.entries[head].sent.missing, 0, "it is not over");
        self.requests -= 1;
    }
}

/// How much a request's client minds that a row ended so, beside its other rows.
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
