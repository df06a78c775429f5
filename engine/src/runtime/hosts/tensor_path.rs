//! The way from a backend to the slots of a host with frontends: [`TensorPath`], and the one over
//! the frames of a link, [`FramedPath`]. A way that reads and writes the slots itself stands behind
//! the same trait; its control messages take the same link.

use super::host_port::HostPort;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use symphony_transport::Nanos;
use symphony_transport::link::{LinkTerms, Parting, SendRefusal};
use symphony_transport::message::Response;
use symphony_transport::slab::{SlabView, SlotId};
use symphony_transport::wire::{
    MAX_PAYLOAD_BYTES, Payload, ReadOutcome, TensorData, TensorRead, TensorWrite,
};

/// The most bytes of a tensor in a frame.
const PIECE_BYTES: usize = MAX_PAYLOAD_BYTES - size_of::<TensorData>();

/// Bytes for a connection after which no more tensors are added in a turn.
const BYTES_PER_TURN: usize = 256 << 10;

/// An order to read the beginning of a frontend's slot into a local one.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOrder {
    /// Chosen by the reader.
    pub(super) number: u64,
    pub(super) from: SlotId,
    pub(super) to: SlotId,
    pub(super) bytes: usize,
}

/// An answer, and the local slot that its outputs are in, where it has some.
#[derive(Clone, Debug)]
pub(super) struct RowAnswer {
    /// The answer, with the frontend's slot.
    pub(super) response: Response,
    pub(super) outputs: Option<(SlotId, Range<usize>)>,
}

/// What has become of an order.
#[derive(Clone, Debug)]
pub(super) enum PathOutcome {
    /// A read has ended; `true` if its bytes are there.
    Read(u64, bool),
    /// An answer and its outputs were handed over: its local slot is free.
    Answered(RowAnswer),
    /// An answer can't be given.
    Undelivered(RowAnswer),
}

/// A way to the slots of a host's frontends. Each order has one outcome, also if the way is lost.
pub(super) trait TensorPath: Send {
    /// Returns true if orders can be given. Those that are given otherwise fail.
    fn is_up(&self) -> bool;

    /// Reads from a slot.
    fn read(&mut self, order: ReadOrder);

    /// Writes outputs into a slot, and then gives the answer.
    fn answer(&mut self, answer: RowAnswer);

    /// Returns the next outcome.
    fn take_outcome(&mut self) -> Option<PathOutcome>;
}

/// A read of which pieces are missing.
struct OpenRead {
    order: ReadOrder,
    missing: usize,
    has_failed: bool,
}

/// The way by `TensorRead`, `TensorData` and `TensorWrite`.
pub(super) struct FramedPath {
    port: HostPort,
    /// The local slots.
    slab: SlabView,
    reads: HashMap<u64, OpenRead>,
    /// The pieces that wait for credits.
    pieces: VecDeque<TensorRead>,
    /// The answers that wait for credits, and how many bytes of the first's outputs are written.
    answers: VecDeque<RowAnswer>,
    written: usize,
    outcomes: VecDeque<PathOutcome>,
    refused: u64,
}

impl FramedPath {
    pub(super) fn new(terms: LinkTerms, slab: SlabView, now: Nanos) -> FramedPath {
        FramedPath {
            port: HostPort::new(terms, now),
            slab,
            reads: HashMap::new(),
            pieces: VecDeque::new(),
            answers: VecDeque::new(),
            written: 0,
            outcomes: VecDeque::new(),
            refused: 0,
        }
    }

    pub(super) fn port(&self) -> &HostPort {
        &self.port
    }

    pub(super) fn port_mut(&mut self) -> &mut HostPort {
        &mut self.port
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns true if no order is open.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.answers.is_empty() && self.outcomes.is_empty()
    }

    pub(super) fn connect(&mut self, now: Nanos) {
        self.lose();
        self.port.connect(now);
    }

    pub(super) fn disconnect(&mut self, now: Nanos) {
        self.port.disconnect(now);
        self.lose();
    }

    /// Reads what has come. Returns the end of the connection if it is over.
    pub(super) fn receive(&mut self, now: Nanos) -> Option<Parting> {
        let FramedPath { port, slab, reads, outcomes, refused, .. } = self;
        let parting = port.receive(now, |_, payload| {
            match payload {
                Payload::TensorData(head, bytes) => take_piece(reads, slab, outcomes, head, bytes),
                _ => *refused += 1,
            }
            1
        });
        if parting.is_some() {
            self.lose();
        }
        parting
    }

    /// Ends all orders, since the connection is over.
    fn lose(&mut self) {
        let mut reads: Vec<u64> = self.reads.drain().map(|(number, _)| number).collect();
        reads.sort_unstable();
        self.outcomes.extend(reads.into_iter().map(|number| PathOutcome::Read(number, false)));
        self.outcomes.extend(self.answers.drain(..).map(PathOutcome::Undelivered));
        self.pieces.clear();
        self.written = 0;
    }

    /// Returns the bytes for the connection.
    pub(super) fn take_out(&mut self, now: Nanos) -> Vec<u8> {
        while let Some(&piece) = self.pieces.front()
            && self.port.send(now, &Payload::TensorRead(piece)).is_ok()
        {
            self.pieces.pop_front();
        }
        while self.port.outgoing_bytes() < BYTES_PER_TURN
            && let Some(answer) = self.answers.front().cloned()
            && self.send_answer(now, &answer).is_ok()
        {
            self.answers.pop_front();
            self.written = 0;
            self.outcomes.push_back(PathOutcome::Answered(answer));
        }
        self.port.send_own(now);
        self.port.take_out()
    }

    /// Sends what is left of an answer.
    fn send_answer(&mut self, now: Nanos, answer: &RowAnswer) -> Result<(), SendRefusal> {
        let FramedPath { port, slab, written, .. } = self;
        if let Some((local, range)) = &answer.outputs
            && let Some(guard) = slab.claim(*local)
        {
            let outputs = &guard[range.clone()];
            while *written < outputs.len() {
                let piece = &outputs[*written..outputs.len().min(*written + PIECE_BYTES)];
                let (offset, bytes) = ((range.start + *written) as u32, piece.len() as u32);
                let head = TensorWrite { slot: answer.response.slot, offset, bytes };
                port.send(now, &Payload::TensorWrite(head, piece))?;
                *written += piece.len();
            }
        }
        port.send(now, &Payload::Responses((&[answer.response][..]).into()))
    }
}

/// Copies a piece of a read to where it belongs.
fn take_piece(
    reads: &mut HashMap<u64, OpenRead>,
    slab: &SlabView,
    outcomes: &mut VecDeque<PathOutcome>,
    head: TensorData,
    bytes: &[u8],
) {
    // The piece's place is in its number: see `read`.
    let (number, piece) = (head.read >> PIECE_BITS, (head.read & ((1 << PIECE_BITS) - 1)) as usize);
    let Some(read) = reads.get_mut(&number) else { return };
    let begin = piece * PIECE_BYTES;
    let is_read = ReadOutcome::from_code(head.outcome) == Some(ReadOutcome::Read);
    let copied = is_read
        && slab.claim(read.order.to).is_some_and(|mut guard| {
            let to = guard.get_mut(begin..begin + bytes.len());
            to.is_some_and(|to| {
                to.copy_from_slice(bytes);
                true
            })
        });
    read.has_failed |= !copied;
    read.missing -= 1;
    if read.missing == 0 {
        outcomes.push_back(PathOutcome::Read(number, !read.has_failed));
        reads.remove(&number);
    }
}

/// The bits of the number of a read's piece: rows have at most 64 MiB.
const PIECE_BITS: u32 = 8;

impl TensorPath for FramedPath {
    fn is_up(&self) -> bool {
        self.port.link().is_up()
    }

    fn read(&mut self, order: ReadOrder) {
        if !self.is_up() {
            return self.outcomes.push_back(PathOutcome::Read(order.number, false));
        }
        let pieces = order.bytes.div_ceil(PIECE_BYTES);
        for piece in 0..pieces {
            let offset = piece * PIECE_BYTES;
            self.pieces.push_back(TensorRead {
                read: order.number << PIECE_BITS | piece as u64,
                slot: order.from,
                offset: offset as u32,
                bytes: (order.bytes - offset).min(PIECE_BYTES) as u32,
            });
        }
        self.reads.insert(order.number, OpenRead { order, missing: pieces, has_failed: false });
    }

    fn answer(&mut self, answer: RowAnswer) {
        if self.is_up() {
            self.answers.push_back(answer);
        } else {
            self.outcomes.push_back(PathOutcome::Undelivered(answer));
        }
    }

    fn take_outcome(&mut self) -> Option<PathOutcome> {
        self.outcomes.pop_front()
    }
}
