//! The rows that frontends on other hosts have at the scheduler. Inside the scheduler's process a
//! row has a handle in place of its slot: what comes back from ModelThreads under the handle of a
//! row that is gone, since its frontend's connection is, finds nothing here.

use std::collections::HashMap;
use std::ops::Range;
use symphony_transport::message::{Request, Response};
use symphony_transport::slab::SlotId;

/// The bits of a handle, from the lowest: the place in the table, its generation, the frontend.
const PLACE_BITS: u32 = 24;
const GENERATION_BITS: u32 = 24;

/// A row, as its frontend sent it, but with instants of this host's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackedRow {
    pub(crate) request: Request,
    pub(crate) handle: SlotId,
}

impl TrackedRow {
    /// Returns the row as ModelThreads see it.
    pub(super) fn inside(&self) -> Request {
        Request { slot: self.handle, ..self.request }
    }

    /// Returns an answer in the words of its frontend.
    pub(super) fn answered(&self, response: Response) -> Response {
        Response { id: self.request.id, slot: self.request.slot, ..response }
    }
}

#[derive(Default)]
struct RowPlace {
    generation: u32,
    request: Option<Request>,
}

/// A request with rows in the table.
struct TrackedRequest {
    rows: usize,
    first: Request,
}

/// The rows that have not ended. See the module's description.
#[derive(Default)]
pub(super) struct RowTable {
    places: Vec<RowPlace>,
    free: Vec<u32>,
    /// The requests by frontend and id.
    requests: HashMap<(u8, u64), TrackedRequest>,
}

impl RowTable {
    /// Returns the number of requests that have not ended.
    pub(super) fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Returns true if a request has rows here.
    pub(super) fn has(&self, request: &Request) -> bool {
        self.requests.contains_key(&(request.frontend, request.id))
    }

    /// Returns the first row of the request that a cancellation is for.
    pub(super) fn first_row(&self, cancellation: &Request) -> Option<Request> {
        self.requests.get(&(cancellation.frontend, cancellation.id)).map(|request| request.first)
    }

    /// Adds a row.
    pub(super) fn add(&mut self, request: Request) -> TrackedRow {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(RowPlace::default());
            self.places.len() as u32 - 1
        });
        let RowPlace { generation, request: stored } = &mut self.places[place as usize];
        *stored = Some(request);
        let high = u64::from(request.frontend) << GENERATION_BITS | u64::from(*generation);
        let handle = bytemuck::cast(high << PLACE_BITS | u64::from(place));
        let key = (request.frontend, request.id);
        self.requests.entry(key).or_insert(TrackedRequest { rows: 0, first: request }).rows += 1;
        TrackedRow { request, handle }
    }

    /// Returns the row of a handle, if it has not ended.
    pub(super) fn get(&self, handle: SlotId) -> Option<TrackedRow> {
        let (place, generation) = parts(handle);
        let row = self.places.get(place)?;
        let request = row.request.filter(|_| row.generation == generation)?;
        Some(TrackedRow { request, handle })
    }

    /// Takes a row out, which has ended.
    pub(super) fn end(&mut self, handle: SlotId) -> Option<TrackedRow> {
        let row = self.get(handle)?;
        let (place, generation) = parts(handle);
        let next = (generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.places[place] = RowPlace { generation: next, request: None };
        self.free.push(place as u32);
        let key = (row.request.frontend, row.request.id);
        if let Some(request) = self.requests.get_mut(&key) {
            request.rows -= 1;
            if request.rows == 0 {
                self.requests.remove(&key);
            }
        }
        Some(row)
    }

    /// Takes out all rows of these frontends. Returns the first row of each of their requests.
    pub(super) fn drop_frontends(&mut self, frontends: Range<u32>) -> Vec<Request> {
        let is_own = |frontend: u8| frontends.contains(&u32::from(frontend));
        let gone = self.requests.extract_if(|(frontend, _), _| is_own(*frontend));
        let mut gone: Vec<Request> = gone.map(|(_, request)| request.first).collect();
        // A map's order is another one in each run.
        gone.sort_unstable_by_key(|first| (first.frontend, first.id));
        for (place, row) in self.places.iter_mut().enumerate() {
            if row.request.take_if(|request| is_own(request.frontend)).is_some() {
                row.generation = (row.generation + 1) & ((1 << GENERATION_BITS) - 1);
                self.free.push(place as u32);
            }
        }
        gone
    }
}

/// Returns the place and the generation of a handle.
fn parts(handle: SlotId) -> (usize, u32) {
    let bits: u64 = bytemuck::cast(handle);
    let low = |bits: u64, width: u32| bits & ((1 << width) - 1);
    (low(bits, PLACE_BITS) as usize, low(bits >> PLACE_BITS, GENERATION_BITS) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(frontend: u8, id: u64, row: u16) -> Request {
        Request { id, frontend, row, ..Request::default() }
    }

    #[test]
    fn a_handle_of_a_row_that_has_ended_finds_nothing_though_its_place_is_taken_again() {
        let mut table = RowTable::default();
        let first = table.add(row(3, 7, 0)).handle;
        assert_eq!((first.frontend(), table.get(first).map(|row| row.request.id)), (3, Some(7)));
        assert!(table.end(first).is_some() && table.end(first).is_none());
        let second = table.add(row(3, 8, 0)).handle;
        assert!(table.get(first).is_none() && table.get(second).is_some());
    }

    #[test]
    fn a_request_is_there_until_its_last_row_has_ended() {
        let mut table = RowTable::default();
        let handles = [0, 1].map(|at| table.add(row(1, 9, at)).handle);
        table.end(handles[0]);
        assert!(table.has(&row(1, 9, 0)));
        table.end(handles[1]);
        assert!(!table.has(&row(1, 9, 0)) && table.requests() == 0);
    }

    #[test]
    fn a_frontend_takes_its_rows_along_and_no_others() {
        let mut table = RowTable::default();
        let handles = [1, 2, 3].map(|frontend| table.add(row(frontend, 5, 0)).handle);
        let gone = table.drop_frontends(1..3);
        assert_eq!(gone.iter().map(|first| first.frontend).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(handles.map(|handle| table.get(handle).is_some()), [false, false, true]);
    }
}
