//! Every single request of a run, kept only if a file of them was asked for.

use super::outcome::RequestRecord;

/// Requests that are kept; a run may have more, of which the figures are counted all the same.
const MAX_RECORDS: usize = 10_000_000;

/// The requests that one thread saw end, or of a whole run.
#[derive(Clone, Debug, Default)]
pub struct Records {
    kept: Option<Vec<RequestRecord>>,
    left_out: u64,
}

impl Records {
    /// An empty list, which stays empty unless `keep`.
    pub fn new(keep: bool) -> Records {
        Records { kept: keep.then(Vec::new), left_out: 0 }
    }

    pub(super) fn push(&mut self, record: RequestRecord) {
        match &mut self.kept {
            Some(kept) if kept.len() < MAX_RECORDS => kept.push(record),
            Some(_) => self.left_out += 1,
            None => {}
        }
    }

    pub(super) fn merge(&mut self, other: Records) {
        self.left_out += other.left_out;
        other.kept.into_iter().flatten().for_each(|record| self.push(record));
    }

    pub(super) fn sort(&mut self) {
        self.kept.iter_mut().for_each(|kept| kept.sort_by_key(|record| record.intended));
    }

    /// Returns the requests that are kept, in the order of their intended send times.
    pub fn kept(&self) -> &[RequestRecord] {
        self.kept.as_deref().unwrap_or_default()
    }

    /// Returns the number of requests that are not kept.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
