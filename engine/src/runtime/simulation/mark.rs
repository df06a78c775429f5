//! The mark in the input of each row of a simulation, which no other row of the engine has. The
//! executor copies it to the output, so a client recognises the answers to its own requests. It
//! says which model the row is for.

use symphony_transport::message::ModelId;

/// The bits by which a request is recognised: those of its frontend and its id.
const REQUEST: u64 = 1 << 63 | 0xf << 48 | ((1 << 42) - 1);

/// The bit of requests whose answers may be lost.
const EXPENDABLE: u64 = 1 << 62;

/// A mark: 1, expendable, row (6 bits), rows (4), frontend (4), model (6), id (42).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct RowMark(u64);

impl RowMark {
    /// Makes the mark of the first of `rows` rows of a request, at most 15, for a model below 64.
    /// `expendable` requests are those whose answers may be lost.
    pub(super) fn new((frontend, id): (u16, u64), model: ModelId, rows: usize, expendable: bool) -> RowMark {
        let flags = 1 << 63 | u64::from(expendable) << 62;
        RowMark(
            flags | (rows as u64) << 52 | u64::from(frontend) << 48 | u64::from(model.0 & 0x3f) << 42 | id,
        )
    }

    /// Returns the mark of another row of the same request.
    #[inline]
    pub(super) fn of_row(self, row: usize) -> RowMark {
        RowMark(self.0 | (row as u64) << 56)
    }

    /// Returns the mark as it lies in a slot.
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Reads the mark at the beginning of a slot.
    #[inline]
    pub(super) fn read(slot: &[u8]) -> RowMark {
        RowMark(u64::from_le_bytes(slot[..8].try_into().unwrap_or_default()))
    }

    /// Returns true if this is a row of this request.
    #[inline]
    pub(super) fn is_of(self, frontend: u16, id: u64) -> bool {
        self.0 & REQUEST == RowMark::new((frontend, id), ModelId(0), 0, false).0
    }

    /// Returns the model that its client has asked for.
    #[inline]
    pub(super) fn model(self) -> ModelId {
        ModelId((self.0 >> 42 & 0x3f) as u32)
    }

    /// Returns the number of rows of its request.
    pub(super) fn rows(self) -> usize {
        (self.0 >> 52 & 0xf) as usize
    }

    /// Returns true if an answer to its request may be lost.
    pub(super) fn is_expendable(self) -> bool {
        self.0 & EXPENDABLE != 0
    }
}
