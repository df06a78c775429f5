//! What each record of a frame must be, beyond its size. A fault names the field, its value and
//! what would be right; who decodes adds the kind of the frame and the record's number.

use super::records::{
    Accepted, Alive, BackendCompletion, CloseCode, Closing, CreditGrant, GpuPresence, GrantedBatch, Hello,
    HostRole, MeasuredDelays, OfferedModel, Presence, ReadOutcome, RecordList, TensorData, TensorRead,
    TensorWay, TensorWrite, TimeAnswer, TimeProbe,
};
use super::text::Text;
use crate::Nanos;
use crate::message::{BatchEntry, Class, Ending, Request, Response};
use bytemuck::Pod;

/// The bits of a request's id.
const ID_BITS: u32 = 48;

/// A field with a wrong value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WrongField {
    pub(super) field: &'static str,
    pub(super) value: u64,
    pub(super) right: &'static str,
}

/// `Ok` where `holds`.
pub(super) fn demand(
    holds: bool,
    field: &'static str,
    value: impl Into<u64>,
    right: &'static str,
) -> Result<(), WrongField> {
    if holds { Ok(()) } else { Err(WrongField { field, value: value.into(), right }) }
}

fn demand_text<const N: usize>(field: &'static str, text: &Text<N>) -> Result<(), WrongField> {
    let wrong = text.first_wrong_byte();
    demand(wrong.is_none(), field, wrong.unwrap_or_default(), "UTF-8 with zeros after it")
}

fn demand_incarnation(incarnation: u64) -> Result<(), WrongField> {
    demand(incarnation != 0, "incarnation", incarnation, "1 or more")
}

fn demand_id(id: u64) -> Result<(), WrongField> {
    demand(id >> ID_BITS == 0, "id", id, "below 2^48")
}

/// A record whose fields can be checked by themselves.
pub(super) trait CheckedRecord: Pod {
    /// Returns the first field that is wrong.
    fn check(&self) -> Result<(), WrongField> {
        Ok(())
    }
}

impl CheckedRecord for OfferedModel {}
impl CheckedRecord for Alive {}
impl CheckedRecord for TimeProbe {}
impl CheckedRecord for TimeAnswer {}
impl CheckedRecord for CreditGrant {}
impl CheckedRecord for TensorRead {}
impl CheckedRecord for TensorWrite {}
impl CheckedRecord for MeasuredDelays {}

impl CheckedRecord for Hello {
    fn check(&self) -> Result<(), WrongField> {
        demand_incarnation(self.incarnation)?;
        demand(self.heartbeat_every > Nanos::ZERO, "heartbeat_every", self.heartbeat_every.0, "1 or more")?;
        demand(HostRole::from_code(self.role).is_some(), "role", self.role, "1 to 3")?;
        let fits = self.first_gpu.checked_add(self.gpus).is_some();
        demand(fits, "first_gpu", self.first_gpu, "so small that all GPUs have a number below 2^32")?;
        demand(TensorWay::from_code(self.tensors).is_some(), "tensors", self.tensors, "1 or 2")?;
        demand_text("name", &self.name)
    }
}

impl CheckedRecord for Accepted {
    fn check(&self) -> Result<(), WrongField> {
        demand_incarnation(self.incarnation)
    }
}

impl CheckedRecord for Closing {
    fn check(&self) -> Result<(), WrongField> {
        demand(CloseCode::from_code(self.code).is_some(), "code", self.code, "1 to 6")?;
        demand(self.reserved == 0, "reserved", self.reserved, "0")?;
        demand_text("sentence", &self.sentence)
    }
}

impl CheckedRecord for Request {
    fn check(&self) -> Result<(), WrongField> {
        demand_id(self.id)?;
        demand(self.takes_back <= 1, "takes_back", self.takes_back, "0 or 1")?;
        let rows = u32::from(self.row) + u32::from(self.rows_after);
        demand(self.takes_back == 0 || rows == 0, "takes_back", self.takes_back, "0 where there are rows")?;
        demand(Class::new(self.class.number()).is_some(), "class", self.class.number(), "0 to 3")?;
        demand(self.is_again <= 1, "is_again", self.is_again, "0 or 1")?;
        let wrong = self.padding.iter().copied().find(|&byte| byte != 0);
        demand(wrong.is_none(), "padding", wrong.unwrap_or_default(), "0")
    }
}

impl CheckedRecord for Response {
    fn check(&self) -> Result<(), WrongField> {
        demand_id(self.id)?;
        demand(Ending::from_code(self.ending).is_some(), "ending", self.ending, "0 to 6")?;
        let wrong = self.reserved.iter().copied().find(|&word| word != 0);
        demand(wrong.is_none(), "reserved", wrong.unwrap_or_default(), "0")
    }
}

impl CheckedRecord for GrantedBatch {
    fn check(&self) -> Result<(), WrongField> {
        demand_incarnation(self.incarnation)
    }
}

impl CheckedRecord for BatchEntry {
    fn check(&self) -> Result<(), WrongField> {
        demand_id(self.id)
    }
}

impl CheckedRecord for BackendCompletion {
    fn check(&self) -> Result<(), WrongField> {
        demand_incarnation(self.incarnation)?;
        demand(self.number != 0, "number", self.number, "1 or more")?;
        let Self { completion, .. } = self;
        let is_over = completion.started <= completion.finished;
        demand(is_over, "finished", completion.finished.0, "not before `started`")
    }
}

impl CheckedRecord for GpuPresence {
    fn check(&self) -> Result<(), WrongField> {
        demand_incarnation(self.incarnation)?;
        demand(Presence::from_code(self.presence).is_some(), "presence", self.presence, "1 to 3")
    }
}

impl CheckedRecord for TensorData {
    fn check(&self) -> Result<(), WrongField> {
        let outcome = ReadOutcome::from_code(self.outcome);
        demand(outcome.is_some(), "outcome", self.outcome, "1 to 3")?;
        let has_bytes = outcome == Some(ReadOutcome::Read);
        demand(has_bytes || self.bytes == 0, "bytes", self.bytes, "0 where nothing was read")
    }
}

/// Checks that the rows of each request follow each other, first to last, so that no frame ends in
/// the midst of a request. Returns the number of the record that is wrong, too.
pub(super) fn check_rows(requests: RecordList<'_, Request>) -> Result<(), (usize, WrongField)> {
    let mut before: Option<Request> = None;
    for (at, request) in requests.iter().enumerate() {
        let open = before.filter(|before| before.rows_after > 0);
        let follows = match open {
            Some(open) => {
                request.is_of_one_with(&open)
                    && u32::from(request.row) == u32::from(open.row) + 1
                    && request.rows_after == open.rows_after - 1
            }
            None => request.row == 0,
        };
        let right = "the next of its request, of which all are in one frame";
        demand(follows, "row", request.row, right).map_err(|wrong| (at, wrong))?;
        before = Some(request);
    }
    let left = before.map_or(0, |last| last.rows_after);
    let right = "0 in a frame's last record";
    demand(left == 0, "rows_after", left, right).map_err(|wrong| (requests.len() - 1, wrong))
}
