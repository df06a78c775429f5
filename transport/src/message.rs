//! The messages that cross a crate or host boundary: fixed-size plain data, a cache line each where
//! it matters. A request's bytes never travel here: they stay in the frontend's slab
//! ([`crate::slab`]) and the messages carry the slot.
//!
//! ```text
//! frontend --Request--> ModelThread --BatchHeader + BatchEntry*--> backend --Response--> frontend
//!                            ^                                        |
//!                            +------- (grants) --- RankThread <--Completion
//! ```

use crate::Nanos;
use crate::slab::SlotId;
use bytemuck::{Pod, Zeroable};

/// A model's number: an index into the engine's table of models.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct ModelId(pub u32);

impl ModelId {
    /// The model's only queue, where each model has one, of the same number: in the simulator.
    #[inline]
    pub const fn only_queue(self) -> QueueId {
        QueueId(self.0)
    }
}

/// The number of a per-class queue: the requests of one class of one model, which the scheduler
/// schedules by themselves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct QueueId(pub u32);

impl QueueId {
    /// The queue's model, where each model has one queue, of the same number: in the simulator.
    #[inline]
    pub const fn only_model(self) -> ModelId {
        ModelId(self.0)
    }
}

/// The number of a GPU (or other device that runs one batch at a time): an index into the engine's
/// table of GPUs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct GpuId(pub u32);

/// A request's priority: 0, the default, is served first; a lower class (a higher number) uses only
/// what the classes above it leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Class(u8);

impl Class {
    /// The number of classes.
    pub const COUNT: usize = 4;
    /// The first.
    pub const HIGHEST: Class = Class(0);
    /// The last.
    pub const LOWEST: Class = Class(Class::COUNT as u8 - 1);

    /// The class of this number; `None` where there is none.
    pub const fn new(number: u8) -> Option<Class> {
        if (number as usize) < Class::COUNT { Some(Class(number)) } else { None }
    }

    /// The class's number, from 0.
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The deadline of a request without one, or less than any such: an instant that never comes, and
/// that times can be taken from.
pub const NO_DEADLINE: Nanos = Nanos(1 << 62);

/// The number of ids of requests: they are below it.
pub const REQUEST_IDS: u64 = 1 << 48;

/// One row of a request, from the frontend that accepted it to the thread that owns its model. The
/// rows of a request follow each other on the ring, and are published together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Request {
    /// Chosen by the frontend, unique among its requests, below [`REQUEST_IDS`]; answers carry it
    /// back. A request's rows share it.
    pub id: u64,
    /// Where the row's input lies and its output goes.
    pub slot: SlotId,
    /// When the frontend took it in.
    pub arrival: Nanos,
    /// When the batch must have finished: arrival + SLO - d_resp.
    pub deadline: Nanos,
    /// How much later than `deadline` the answer is really due: what the frontend keeps back for
    /// lateness of all kinds.
    pub reserve: Nanos,
    /// The queue of the request's model and class.
    pub queue: QueueId,
    /// Zero. Else the message cancels the request of this id, whose other fields it repeats.
    pub takes_back: u32,
    /// The row's number among the request's rows, from 0.
    pub row: u16,
    /// The number of the request's rows that follow it.
    pub rows_after: u16,
    /// The frontend to answer.
    pub frontend: u8,
    /// The request's priority.
    pub class: Class,
    /// The application that it comes from, among its model's: requests of one application have like
    /// run times. 0 where there is one.
    pub application: u8,
    /// 1 if it is made once more, since it was dropped before the time of `again_us` had passed;
    /// else 0.
    pub is_again: u8,
    /// The time after `deadline`, in microseconds, for which it is made once more if it is dropped:
    /// the deadline of a query's stage that others come after is a goal. 0 for any other.
    pub again_us: u32,
    /// Zero.
    pub padding: [u8; 4],
}

impl Request {
    /// Returns the request that is made if this one is dropped, where that is not its end.
    #[inline]
    pub fn again(&self) -> Option<Request> {
        let more = Nanos::from_micros(u64::from(self.again_us));
        let again = Request { deadline: self.deadline + more, is_again: 1, again_us: 0, ..*self };
        (self.again_us > 0).then_some(again)
    }

    /// Returns the [`Request::again_us`] of one that is made once more until so long after its
    /// deadline.
    #[inline]
    pub fn again_us(after_deadline: Nanos) -> u32 {
        u32::try_from(after_deadline.0 / 1_000).unwrap_or(u32::MAX)
    }

    /// Whether the two are rows of one request.
    #[inline]
    pub fn is_of_one_with(&self, other: &Request) -> bool {
        self.id == other.id && self.frontend == other.frontend
    }
}

/// One request of a batch on its way to a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct BatchEntry {
    /// The request's id.
    pub id: u64,
    /// Where its input lies and its output goes.
    pub slot: SlotId,
}

/// The number of [`BatchEntry`]s that fit in one ring element.
pub const ENTRIES_PER_FRAME: usize = 4;

/// A batch on its way to a backend; [`BatchHeader::frames`] - 1 frames of entries follow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct BatchHeader {
    /// Unique in the engine's life.
    pub batch: u64,
    /// The time before which it must not start.
    pub exec_at: Nanos,
    /// The time after which it must not start: its first request would be late. [`Nanos::MAX`]
    /// where late is accepted.
    pub latest: Nanos,
    /// What its execution should take, l(b).
    pub duration: Nanos,
    /// The model to run.
    pub model: ModelId,
    /// The GPU to run it on.
    pub gpu: GpuId,
    /// The number of requests, b.
    pub size: u32,
    /// Zero.
    pub reserved: [u32; 5],
}

impl BatchHeader {
    /// Ring elements that a batch of `size` takes, its header included.
    pub const fn frames(size: usize) -> usize {
        1 + size.div_ceil(ENTRIES_PER_FRAME)
    }
}

/// The element of a ring of batches: a [`BatchHeader`] or [`ENTRIES_PER_FRAME`] entries, told apart
/// by position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Frame(pub [u64; 8]);

impl From<BatchHeader> for Frame {
    fn from(header: BatchHeader) -> Frame {
        bytemuck::cast(header)
    }
}

impl From<Frame> for BatchHeader {
    fn from(frame: Frame) -> BatchHeader {
        bytemuck::cast(frame)
    }
}

impl From<[BatchEntry; ENTRIES_PER_FRAME]> for Frame {
    fn from(entries: [BatchEntry; ENTRIES_PER_FRAME]) -> Frame {
        bytemuck::cast(entries)
    }
}

impl From<Frame> for [BatchEntry; ENTRIES_PER_FRAME] {
    fn from(frame: Frame) -> [BatchEntry; ENTRIES_PER_FRAME] {
        bytemuck::cast(frame)
    }
}

/// A batch has left a GPU: from the backend to the RankThread, which corrects the GPU's free_at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Completion {
    /// The batch, as its header named it.
    pub batch: u64,
    /// When it really started. Equal to `finished` where it was cancelled.
    pub started: Nanos,
    /// When it really finished.
    pub finished: Nanos,
    /// The model that ran.
    pub model: ModelId,
    /// The GPU that is free of it now.
    pub gpu: GpuId,
}

/// How a request ended. Every accepted request ends exactly once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u32)]
pub enum Ending {
    /// The request ran; its output is in its slot. Late or not is for the frontend to see.
    Done = 0,
    /// Dropped from the queue: no batch that a sensible schedule would run could still meet its
    /// deadline.
    DroppedInQueue = 1,
    /// The request's batch reached the backend too late to start, and was cancelled there.
    DroppedAtBackend = 2,
    /// The queue was full.
    Overloaded = 3,
    /// The executor failed on its batch.
    Failed = 4,
    /// The engine was stopped before it could run.
    Stopped = 5,
    /// The request's client cancelled it before it was in a batch.
    Withdrawn = 6,
}

impl Ending {
    /// The ending with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<Ending> {
        use Ending::*;
        [Done, DroppedInQueue, DroppedAtBackend, Overloaded, Failed, Stopped, Withdrawn]
            .get(code as usize)
            .copied()
    }
}

/// The end of a request: to the frontend that accepted it, from the thread where it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Response {
    /// The request's id.
    pub id: u64,
    /// The request's slot, the frontend's again from here on.
    pub slot: SlotId,
    /// When its batch was put together; zero if it never was in one.
    pub batched: Nanos,
    /// When its batch started, or by when it should have, where the backend cancelled it; zero if
    /// it never came there.
    pub started: Nanos,
    /// When its batch finished, or when it was dropped.
    pub finished: Nanos,
    /// The code of an [`Ending`].
    pub ending: u32,
    /// The size of its batch; zero if it never was in one.
    pub batch_size: u32,
    /// The GPU that its batch was sent to.
    pub gpu: GpuId,
    /// Zero.
    pub reserved: [u32; 3],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_fill_whole_cache_lines() {
        assert_eq!(size_of::<Request>(), 64);
        assert_eq!(size_of::<BatchHeader>(), 64);
        assert_eq!(size_of::<Frame>(), 64);
        assert_eq!(size_of::<[BatchEntry; ENTRIES_PER_FRAME]>(), 64);
        assert_eq!(size_of::<Response>(), 64);
    }

    #[test]
    fn an_ending_survives_its_code() {
        for code in 0..7 {
            assert_eq!(Ending::from_code(code).map(|e| e as u32), Some(code));
        }
        assert_eq!(Ending::from_code(7), None);
    }
}
