//! The fixed-size records that frames are made of, beside the messages that also travel in rings
//! ([`crate::message`]). All are plain data: docs/protocol.md has their offsets. Instants are of
//! the sender's clock.

use super::text::Text;
use crate::Nanos;
use crate::message::{BatchHeader, Completion, GpuId, ModelId};
use crate::slab::SlotId;
use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::marker::PhantomData;

/// Says who a host is: the first frame of each side. An [`OfferedModel`] for each model
/// that it serves or asks for follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Hello {
    /// A digest of what both hosts must have the same configuration of.
    pub config: [u8; 32],
    /// The number of the connection, and of the process's start: greater than on every connection
    /// before, never zero.
    pub incarnation: u64,
    /// The time between two frames of the sender, at most: where nothing else is sent, an [`Alive`]
    /// is.
    pub heartbeat_every: Nanos,
    /// The code of a [`HostRole`].
    pub role: u32,
    /// The host's number among those of its role.
    pub number: u32,
    /// The number of its first GPU in the engine's table; zero where it has none.
    pub first_gpu: u32,
    /// The number of its GPUs.
    pub gpus: u32,
    /// The most requests of a batch.
    pub max_batch: u32,
    /// The records that it takes before it grants more: the first credits.
    pub credits: u32,
    /// The code of a [`TensorWay`].
    pub tensors: u32,
    /// The host's name, for messages.
    pub name: Text<52>,
}

/// The part that a host takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum HostRole {
    /// Accepts requests and holds their tensors.
    Frontend = 1,
    /// Runs the ModelThreads and RankThreads.
    Scheduler = 2,
    /// Runs batches.
    Backend = 3,
}

impl HostRole {
    /// Every role, in the order of the codes.
    pub const ALL: [HostRole; 3] = [HostRole::Frontend, HostRole::Scheduler, HostRole::Backend];

    /// Returns the role with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<HostRole> {
        HostRole::ALL.into_iter().find(|&role| role as u32 == code)
    }

    /// Returns the role's name in messages.
    pub fn name(self) -> &'static str {
        match self {
            HostRole::Frontend => "frontend",
            HostRole::Scheduler => "scheduler",
            HostRole::Backend => "backend",
        }
    }
}

/// What moves tensors between a frontend's host and a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum TensorWay {
    /// The frames of the link.
    Frames = 1,
    /// RDMA verbs, beside the link.
    Rdma = 2,
}

impl TensorWay {
    /// Returns the way with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<TensorWay> {
        [TensorWay::Frames, TensorWay::Rdma].into_iter().find(|&way| way as u32 == code)
    }
}

/// A model, as one host knows it. Two hosts agree on a model if these are equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct OfferedModel {
    /// A digest of the model's name, version and signature.
    pub digest: u64,
    /// The model's number in the engine's table.
    pub model: ModelId,
    /// The most rows of a batch.
    pub max_batch: u32,
    /// Bytes of a row's inputs.
    pub input_bytes: u32,
    /// Bytes of a row's outputs.
    pub output_bytes: u32,
}

/// The sender accepts the peer's [`Hello`]. After it has sent and received one, a side may send all
/// other kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Accepted {
    /// The incarnation of the peer, as its [`Hello`] gave it.
    pub incarnation: u64,
}

/// The sender's last frame: why it closes the connection. Its form is the same in all versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Closing {
    /// The code of a [`CloseCode`].
    pub code: u32,
    /// Zero.
    pub reserved: u32,
    /// A sentence for the peer's log.
    pub sentence: Text<248>,
}

impl Closing {
    /// Makes the frame of a reason and a sentence, of which what is too long is cut off.
    pub fn new(code: CloseCode, sentence: &str) -> Closing {
        Closing { code: code as u32, reserved: 0, sentence: Text::new(sentence) }
    }
}

/// Why a connection is closed: whether to connect again, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum CloseCode {
    /// The host stops, and has ended what it had.
    Leaving = 1,
    /// The two do not fit: version, role, configuration, models or limits. It stays so until one is
    /// started anew.
    Mismatch = 2,
    /// The peer sent what is no frame, or not allowed there.
    Protocol = 3,
    /// Nothing came from the peer for two heartbeats, or a batch is overdue by as much.
    Silent = 4,
    /// A later incarnation of the peer has connected.
    Superseded = 5,
    /// The RDMA connection beside this one has failed.
    RdmaFailed = 6,
}

impl CloseCode {
    /// Returns the reason with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<CloseCode> {
        use CloseCode::*;
        [Leaving, Mismatch, Protocol, Silent, Superseded, RdmaFailed]
            .into_iter()
            .find(|&known| known as u32 == code)
    }
}

/// A batch for a GPU. As many [`BatchEntry`](crate::message::BatchEntry)s as it has requests
/// follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GrantedBatch {
    /// The backend's incarnation that the GPU was granted of. Another one refuses the batch.
    pub incarnation: u64,
    /// The batch's number, unique in the life of the scheduler's incarnation.
    pub batch: u64,
    /// The time before which it must not start.
    pub exec_at: Nanos,
    /// The time after which it must not start; 2^64 - 1 where late is accepted.
    pub latest: Nanos,
    /// What its execution should take, l(b), in nanoseconds.
    pub duration: Nanos,
    /// The model to run.
    pub model: ModelId,
    /// The GPU to run it on.
    pub gpu: GpuId,
}

impl GrantedBatch {
    /// Makes the record of a batch that was granted to this incarnation.
    pub fn new(incarnation: u64, header: BatchHeader) -> GrantedBatch {
        let BatchHeader { batch, exec_at, latest, duration, model, gpu, .. } = header;
        GrantedBatch { incarnation, batch, exec_at, latest, duration, model, gpu }
    }

    /// Returns the header of the batch, which has `size` requests, as it goes into a ring.
    pub fn header(self, size: u32) -> BatchHeader {
        let GrantedBatch { batch, exec_at, latest, duration, model, gpu, .. } = self;
        BatchHeader { batch, exec_at, latest, duration, model, gpu, size, reserved: [0; 5] }
    }
}

/// A batch has left a GPU of another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct BackendCompletion {
    /// The backend's incarnation that ran it.
    pub incarnation: u64,
    /// The number among the completions of the GPU and incarnation, the first of which is 1.
    pub number: u64,
    /// The batch, and when it ran.
    pub completion: Completion,
}

/// A GPU comes, goes or is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct GpuPresence {
    /// The backend's incarnation that has the GPU.
    pub incarnation: u64,
    /// The time of the change.
    pub since: Nanos,
    /// The GPU.
    pub gpu: GpuId,
    /// The code of a [`Presence`].
    pub presence: u32,
}

/// Whether a GPU can be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Presence {
    /// The GPU takes batches.
    Up = 1,
    /// The GPU takes no more batches, and completes those that it has.
    Down = 2,
    /// The GPU takes no more batches, and those that it had are lost.
    Lost = 3,
}

impl Presence {
    /// Returns the presence with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<Presence> {
        [Presence::Up, Presence::Down, Presence::Lost].into_iter().find(|&known| known as u32 == code)
    }
}

/// A heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Alive {
    /// The number of heartbeats that were sent before on the connection.
    pub number: u64,
    /// When it was sent.
    pub sent: Nanos,
}

/// A question for the peer's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TimeProbe {
    /// When it was sent.
    pub sent: Nanos,
}

/// The answer to a [`TimeProbe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TimeAnswer {
    /// When the probe was sent, by the clock of the probe's sender.
    pub sent: Nanos,
    /// When the probe came, by the clock of the answer's sender.
    pub received: Nanos,
    /// When the answer was sent, by the clock of its sender.
    pub answered: Nanos,
}

/// Permission to send: in one direction of a connection, for records of all kinds that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct CreditGrant {
    /// The number of records that the peer may have sent since the handshake, in all.
    pub total: u64,
}

/// An order to read bytes of a slot of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TensorRead {
    /// Chosen by the reader; the answer carries it back.
    pub read: u64,
    /// The slot, with its generation.
    pub slot: SlotId,
    /// The first byte to read.
    pub offset: u32,
    /// The number of bytes: at most a payload without the head of [`TensorData`].
    pub bytes: u32,
}

/// What was read; the bytes follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TensorData {
    /// The number of the [`TensorRead`].
    pub read: u64,
    /// The code of a [`ReadOutcome`].
    pub outcome: u32,
    /// The number of bytes that follow.
    pub bytes: u32,
}

/// How a read ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ReadOutcome {
    /// The bytes follow, all that were asked for.
    Read = 1,
    /// The slot has been given to another request since, or its memory is in use; no bytes follow.
    Stale = 2,
    /// The slot is shorter than that; no bytes follow.
    OutOfBounds = 3,
}

impl ReadOutcome {
    /// Returns the outcome with this code, `None` where there is none.
    pub fn from_code(code: u32) -> Option<ReadOutcome> {
        use ReadOutcome::*;
        [Read, Stale, OutOfBounds].into_iter().find(|&known| known as u32 == code)
    }
}

/// Bytes for a slot of the peer; they follow. The response of the slot's request is sent after the
/// last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TensorWrite {
    /// The slot, with its generation.
    pub slot: SlotId,
    /// Where the first byte goes.
    pub offset: u32,
    /// The number of bytes that follow.
    pub bytes: u32,
}

/// High percentiles of what a host has measured of the network, for the scheduler; [`Nanos::MAX`]
/// is what is not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct MeasuredDelays {
    /// The delay of frames on their way to the sender: at a backend, of the scheduler's; at a
    /// frontend, of the slowest backend's.
    pub way: Nanos,
    /// What it takes a backend to fetch the inputs of a batch, however few their bytes.
    pub fetch: Nanos,
    /// What it takes longer for each KiB.
    pub fetch_per_kib: Nanos,
}

impl MeasuredDelays {
    /// Nothing is known.
    pub const UNKNOWN: MeasuredDelays =
        MeasuredDelays { way: Nanos::MAX, fetch: Nanos::MAX, fetch_per_kib: Nanos::MAX };
}

/// Records of one size that follow each other in a frame, wherever in memory that lies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordList<'a, T> {
    /// Whole records: a multiple of `T`'s size.
    bytes: &'a [u8],
    records: PhantomData<&'a [T]>,
}

impl<'a, T: Pod> From<&'a [T]> for RecordList<'a, T> {
    fn from(records: &'a [T]) -> RecordList<'a, T> {
        RecordList { bytes: bytemuck::cast_slice(records), records: PhantomData }
    }
}

impl<'a, T: Pod> RecordList<'a, T> {
    /// Makes the list of these bytes; `None` if they are no whole number of records.
    pub(super) fn new(bytes: &'a [u8]) -> Option<RecordList<'a, T>> {
        bytes.len().is_multiple_of(size_of::<T>()).then_some(RecordList { bytes, records: PhantomData })
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns a copy of each record, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'a, T> {
        self.bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
    }

    /// The records as bytes.
    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for RecordList<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
