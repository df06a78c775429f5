//! A frame's content: [`Payload`], how it is written and how it is read. Reading borrows from the
//! buffer, and copies a record when it is looked at, since a socket's bytes are not aligned.

use super::checks::{CheckedRecord, WrongField, check_rows};
use super::fault::{EncodeFault, LengthRule, WireFault};
use super::header::{FrameHeader, HEADER_BYTES};
use super::kind::{FrameKind, MAX_PAYLOAD_BYTES};
use super::rdma_records::{ExportedClass, RdmaOffer};
use super::records::{
    Accepted, Alive, BackendCompletion, Closing, CreditGrant, GpuPresence, GrantedBatch, Hello,
    MeasuredDelays, OfferedModel, RecordList, TensorData, TensorRead, TensorWrite, TimeAnswer, TimeProbe,
};
use crate::message::{BatchEntry, Request, Response};
use bytemuck::bytes_of;

/// The content of a frame. Lists and bytes lie in the sender's memory or in the receiver's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Says who the sender is, and lists its models.
    Hello(Hello, RecordList<'a, OfferedModel>),
    /// The peer's `Hello` was accepted.
    Accepted(Accepted),
    /// The connection ends.
    Closing(Closing),
    /// One or more requests, each with all of its rows.
    Requests(RecordList<'a, Request>),
    /// One or more ends of requests.
    Responses(RecordList<'a, Response>),
    /// A batch and its one or more requests.
    Batch(GrantedBatch, RecordList<'a, BatchEntry>),
    /// One or more completions.
    Completions(RecordList<'a, BackendCompletion>),
    /// One or more GPUs that come, go or are lost.
    Gpus(RecordList<'a, GpuPresence>),
    /// A heartbeat.
    Alive(Alive),
    /// A question for the clock.
    TimeProbe(TimeProbe),
    /// The clock's answer.
    TimeAnswer(TimeAnswer),
    /// Credits.
    Credit(CreditGrant),
    /// An order to read.
    TensorRead(TensorRead),
    /// What was read.
    TensorData(TensorData, &'a [u8]),
    /// Bytes to write.
    TensorWrite(TensorWrite, &'a [u8]),
    /// An end of an RDMA connection, and the slots that can be read over it.
    Rdma(RdmaOffer, RecordList<'a, ExportedClass>),
    /// Measured delays.
    Delays(MeasuredDelays),
}

impl<'a> Payload<'a> {
    /// Returns the kind of the frame.
    pub fn kind(&self) -> FrameKind {
        match self {
            Payload::Hello(..) => FrameKind::Hello,
            Payload::Accepted(_) => FrameKind::Accepted,
            Payload::Closing(_) => FrameKind::Closing,
            Payload::Requests(_) => FrameKind::Requests,
            Payload::Responses(_) => FrameKind::Responses,
            Payload::Batch(..) => FrameKind::Batch,
            Payload::Completions(_) => FrameKind::Completions,
            Payload::Gpus(_) => FrameKind::Gpus,
            Payload::Alive(_) => FrameKind::Alive,
            Payload::TimeProbe(_) => FrameKind::TimeProbe,
            Payload::TimeAnswer(_) => FrameKind::TimeAnswer,
            Payload::Credit(_) => FrameKind::Credit,
            Payload::TensorRead(_) => FrameKind::TensorRead,
            Payload::TensorData(..) => FrameKind::TensorData,
            Payload::TensorWrite(..) => FrameKind::TensorWrite,
            Payload::Rdma(..) => FrameKind::Rdma,
            Payload::Delays(_) => FrameKind::Delays,
        }
    }

    /// Returns the bytes of the payload: of its head, and of what follows it.
    fn parts(&self) -> (&[u8], &'a [u8]) {
        match self {
            Payload::Hello(head, models) => (bytes_of(head), models.as_bytes()),
            Payload::Accepted(head) => (bytes_of(head), &[]),
            Payload::Closing(head) => (bytes_of(head), &[]),
            Payload::Requests(records) => (&[], records.as_bytes()),
            Payload::Responses(records) => (&[], records.as_bytes()),
            Payload::Batch(head, entries) => (bytes_of(head), entries.as_bytes()),
            Payload::Completions(records) => (&[], records.as_bytes()),
            Payload::Gpus(records) => (&[], records.as_bytes()),
            Payload::Alive(head) => (bytes_of(head), &[]),
            Payload::TimeProbe(head) => (bytes_of(head), &[]),
            Payload::TimeAnswer(head) => (bytes_of(head), &[]),
            Payload::Credit(head) => (bytes_of(head), &[]),
            Payload::TensorRead(head) => (bytes_of(head), &[]),
            Payload::TensorData(head, bytes) => (bytes_of(head), bytes),
            Payload::TensorWrite(head, bytes) => (bytes_of(head), bytes),
            Payload::Rdma(head, classes) => (bytes_of(head), classes.as_bytes()),
            Payload::Delays(head) => (bytes_of(head), &[]),
        }
    }

    /// Returns the length of the frame in bytes, its header included.
    pub fn encoded_len(&self) -> usize {
        let (head, tail) = self.parts();
        HEADER_BYTES + head.len() + tail.len()
    }

    /// Writes the frame at the beginning of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    ///
    /// The frame does not fit in the buffer, or is longer than any may be. Nothing was written.
    pub fn encode(&self, buffer: &mut [u8]) -> Result<usize, EncodeFault> {
        let (head, tail) = self.parts();
        let bytes = head.len() + tail.len();
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(EncodeFault::TooLong { bytes });
        }
        let needed = HEADER_BYTES + bytes;
        let room = buffer.len();
        let frame = buffer.get_mut(..needed).ok_or(EncodeFault::NoRoom { needed, room })?;
        let (header, payload) = frame.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(bytes_of(&FrameHeader::new(self.kind(), bytes as u32)));
        let (to_head, to_tail) = payload.split_at_mut(head.len());
        to_head.copy_from_slice(head);
        to_tail.copy_from_slice(tail);
        Ok(needed)
    }
}

/// Reads the frame that `bytes` begin with: its content, and its length in bytes. `None` as long as
/// more bytes are needed.
///
/// # Errors
///
/// The bytes are no frame of this version, or one with a wrong length or field. Where a connection
/// goes on after it cannot be known.
pub fn decode(bytes: &[u8]) -> Result<Option<(Payload<'_>, usize)>, WireFault> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else { return Ok(None) };
    let (kind, length) = bytemuck::pod_read_unaligned::<FrameHeader>(header).check()?;
    let Some(payload) = rest.get(..length) else { return Ok(None) };
    Ok(Some((PayloadBytes { kind, bytes: payload }.read()?, HEADER_BYTES + length)))
}

/// A whole payload that has not been checked yet.
#[derive(Clone, Copy)]
struct PayloadBytes<'a> {
    kind: FrameKind,
    bytes: &'a [u8],
}

impl<'a> PayloadBytes<'a> {
    fn read(self) -> Result<Payload<'a>, WireFault> {
        Ok(match self.kind {
            FrameKind::Hello => {
                let (head, models) = self.head_and_records(0)?;
                Payload::Hello(head, models)
            }
            FrameKind::Accepted => Payload::Accepted(self.only_head()?),
            FrameKind::Closing => Payload::Closing(self.only_head()?),
            FrameKind::Requests => {
                let requests = self.records(0, 1)?;
                check_rows(requests).map_err(|(record, wrong)| self.wrong_field(record, wrong))?;
                Payload::Requests(requests)
            }
            FrameKind::Responses => Payload::Responses(self.records(0, 1)?),
            FrameKind::Batch => {
                let (head, entries) = self.head_and_records(1)?;
                Payload::Batch(head, entries)
            }
            FrameKind::Completions => Payload::Completions(self.records(0, 1)?),
            FrameKind::Gpus => Payload::Gpus(self.records(0, 1)?),
            FrameKind::Alive => Payload::Alive(self.only_head()?),
            FrameKind::TimeProbe => Payload::TimeProbe(self.only_head()?),
            FrameKind::TimeAnswer => Payload::TimeAnswer(self.only_head()?),
            FrameKind::Credit => Payload::Credit(self.only_head()?),
            FrameKind::TensorRead => Payload::TensorRead(self.only_head()?),
            FrameKind::TensorData => {
                let (head, bytes): (TensorData, _) = self.head(1, 0)?;
                self.check_count(head.bytes, bytes)?;
                Payload::TensorData(head, bytes)
            }
            FrameKind::TensorWrite => {
                let (head, bytes): (TensorWrite, _) = self.head(1, 0)?;
                self.check_count(head.bytes, bytes)?;
                Payload::TensorWrite(head, bytes)
            }
            FrameKind::Rdma => {
                let (head, classes) = self.head_and_records(0)?;
                Payload::Rdma(head, classes)
            }
            FrameKind::Delays => Payload::Delays(self.only_head()?),
        })
    }

    /// Reads a head that nothing follows.
    fn only_head<T: CheckedRecord>(self) -> Result<T, WireFault> {
        match self.head(0, 0)? {
            (head, []) => Ok(head),
            _ => Err(self.wrong_length(LengthRule { head: size_of::<T>(), record: 0, at_least: 0 })),
        }
    }

    /// Reads a head and at least so many records.
    fn head_and_records<H: CheckedRecord, T: CheckedRecord>(
        self,
        at_least: usize,
    ) -> Result<(H, RecordList<'a, T>), WireFault> {
        let (head, _) = self.head(size_of::<T>(), at_least)?;
        Ok((head, self.records(size_of::<H>(), at_least)?))
    }

    /// Reads the head, which at least so many records of that size should follow, and returns the
    /// bytes after it.
    fn head<T: CheckedRecord>(self, record: usize, at_least: usize) -> Result<(T, &'a [u8]), WireFault> {
        let rule = LengthRule { head: size_of::<T>(), record, at_least };
        let (head, rest) = self.bytes.split_at_checked(rule.head).ok_or(self.wrong_length(rule))?;
        let head: T = bytemuck::pod_read_unaligned(head);
        head.check().map_err(|wrong| self.wrong_field(0, wrong))?;
        Ok((head, rest))
    }

    /// Reads the records after a head of so many bytes.
    fn records<T: CheckedRecord>(self, head: usize, at_least: usize) -> Result<RecordList<'a, T>, WireFault> {
        let rule = LengthRule { head, record: size_of::<T>(), at_least };
        let records = self.bytes.get(head..).and_then(RecordList::<T>::new);
        let records = records.filter(|records| records.len() >= at_least).ok_or(self.wrong_length(rule))?;
        for (at, record) in records.iter().enumerate() {
            record.check().map_err(|wrong| self.wrong_field(at, wrong))?;
        }
        Ok(records)
    }

    /// Checks that a tensor's bytes are as many as its head says.
    fn check_count(self, announced: u32, bytes: &[u8]) -> Result<(), WireFault> {
        if announced as usize == bytes.len() {
            return Ok(());
        }
        let right = "the number of bytes that follow";
        Err(self.wrong_field(0, WrongField { field: "bytes", value: u64::from(announced), right }))
    }

    fn wrong_length(self, right: LengthRule) -> WireFault {
        WireFault::Length { kind: self.kind, bytes: self.bytes.len(), right }
    }

    fn wrong_field(self, record: usize, wrong: WrongField) -> WireFault {
        let WrongField { field, value, right } = wrong;
        WireFault::Field { kind: self.kind, record, field, value, right }
    }
}
