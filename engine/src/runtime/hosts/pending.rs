//! The requests that the frontends of a host have sent and that have not ended: what is sent again
//! to a scheduler that has started anew, and what an answer, a read or a write is checked against.

use std::collections::{HashMap, HashSet};
use symphony_transport::Nanos;
use symphony_transport::message::{Request, Response};
use symphony_transport::slab::SlotId;

/// The name of a request among those of a host: its frontend and its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct RequestKey {
    frontend: u8,
    id: u64,
}

impl RequestKey {
    pub(super) fn of(request: &Request) -> RequestKey {
        RequestKey { frontend: request.frontend, id: request.id }
    }
}

/// A request of which a row has not ended.
pub(super) struct UnansweredRequest {
    rows: Vec<Request>,
    has_ended: Vec<bool>,
    missing: usize,
    /// True if it was sent on the present connection to the scheduler.
    pub(super) is_sent: bool,
    /// True if its cancellation was sent, or is about to be.
    pub(super) is_cancelled: bool,
}

impl UnansweredRequest {
    /// Returns the number of its rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns its rows. All of them are sent again: queues take whole requests only.
    pub(super) fn rows(&self) -> impl Iterator<Item = &Request> {
        self.rows.iter()
    }

    /// Returns the rows that have not ended.
    pub(super) fn open_rows(&self) -> impl Iterator<Item = Request> {
        let is_open = |(_, has_ended): &(&Request, &bool)| !**has_ended;
        self.rows.iter().zip(&self.has_ended).filter(is_open).map(|(row, _)| *row)
    }
}

/// The requests that have not ended. See the module's description.
#[derive(Default)]
pub(super) struct PendingRequests {
    requests: HashMap<RequestKey, UnansweredRequest>,
    /// The slots of rows that have not ended.
    open: HashSet<SlotId>,
}

impl PendingRequests {
    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a row. Returns true if it is its request's last, so that this can be sent.
    pub(super) fn add(&mut self, row: Request) -> bool {
        let request = self.requests.entry(RequestKey::of(&row)).or_insert_with(|| UnansweredRequest {
            rows: Vec::with_capacity(usize::from(row.rows_after) + 1),
            has_ended: Vec::new(),
            missing: 0,
            is_sent: false,
            is_cancelled: false,
        });
        request.rows.push(row);
        request.has_ended.push(false);
        request.missing += 1;
        self.open.insert(row.slot);
        row.rows_after == 0
    }

    pub(super) fn get_mut(&mut self, key: RequestKey) -> Option<&mut UnansweredRequest> {
        self.requests.get_mut(&key)
    }

    /// Returns true if the slot is that of a row that has not ended.
    pub(super) fn is_open(&self, slot: SlotId) -> bool {
        self.open.contains(&slot)
    }

    /// Ends the row that an answer is for. Returns false if there is none, or if it has ended.
    pub(super) fn row_ended(&mut self, response: &Response) -> bool {
        let key = RequestKey { frontend: response.slot.frontend() as u8, id: response.id };
        let Some(request) = self.requests.get_mut(&key) else { return false };
        let at = request.rows.iter().position(|row| row.slot == response.slot);
        let Some(at) = at.filter(|&at| !request.has_ended[at]) else { return false };
        request.has_ended[at] = true;
        request.missing -= 1;
        if request.missing == 0 {
            self.requests.remove(&key);
        }
        self.open.remove(&response.slot)
    }

    /// Returns the requests in the order in which they came.
    pub(super) fn keys_by_arrival(&self) -> Vec<RequestKey> {
        let mut keys: Vec<(Nanos, RequestKey)> =
            self.requests.iter().map(|(key, request)| (request.rows[0].arrival, *key)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|(_, key)| key).collect()
    }

    /// Returns the requests of which `holds` is true, in the order of their names.
    pub(super) fn keys_of(&self, holds: impl Fn(&Request) -> bool) -> Vec<RequestKey> {
        let of = self.requests.iter().filter(|(_, request)| holds(&request.rows[0]));
        let mut keys: Vec<RequestKey> = of.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(number: u64) -> SlotId {
        bytemuck::cast(3 << 48 | number)
    }

    #[test]
    fn a_row_ends_once_and_is_closed_from_then_on() {
        let mut pending = PendingRequests::default();
        let row = |row: u16, rows_after| Request {
            id: 7,
            slot: slot(row.into()),
            frontend: 3,
            row,
            rows_after,
            ..Request::default()
        };
        assert!(!pending.add(row(0, 1)) && pending.add(row(1, 0)));
        let answer = |number| Response { id: 7, slot: slot(number), ..Response::default() };
        assert!(pending.row_ended(&answer(1)) && !pending.row_ended(&answer(1)));
        assert!(pending.is_open(slot(0)) && !pending.is_open(slot(1)));
        let open = pending.get_mut(RequestKey::of(&row(0, 1))).unwrap();
        assert_eq!((open.len(), open.open_rows().count()), (2, 1));
        assert!(!pending.row_ended(&Response { id: 8, ..answer(0) }));
        assert!(pending.row_ended(&answer(0)) && pending.is_empty());
    }
}
