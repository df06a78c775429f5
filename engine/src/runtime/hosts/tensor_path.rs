//! The way from a backend to the slots of a host with frontends: [`TensorPath`], and the one over a
//! link, [`LinkPath`]: by its frames, or by a device that reads and writes memory itself, whose
//! connection lives as long as the link's.

use super::direct_memory::DirectMemory;
use super::direct_path::DirectPath;
use super::host_port::HostPort;
use super::tensor_orders::{PathOutcome, ReadOrder, RowAnswer};
use std::collections::{HashMap, VecDeque};
use symphony_transport::Nanos;
use symphony_transport::link::{LinkTerms, Parting, SendRefusal};
use symphony_transport::rdma::RdmaCounters;
use symphony_transport::slab::SlabView;
use symphony_transport::wire::{
    CloseCode, MAX_PAYLOAD_BYTES, Payload, ReadOutcome, TensorData, TensorRead, TensorWrite,
};

/// The most bytes of a tensor in a frame.
const PIECE_BYTES: usize = MAX_PAYLOAD_BYTES - size_of::<TensorData>();

/// Bytes for a connection after which no more tensors are added in a turn.
const BYTES_PER_TURN: usize = 256 << 10;

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

/// The way by `TensorRead`, `TensorData` and `TensorWrite`, or past them.
pub(super) struct LinkPath {
    port: HostPort,
    /// The way past the frames, where hosts are configured for it.
    direct: Option<DirectPath>,
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

impl LinkPath {
    pub(super) fn new(
        terms: LinkTerms,
        slab: SlabView,
        memory: Option<Box<dyn DirectMemory>>,
        now: Nanos,
    ) -> LinkPath {
        LinkPath {
            port: HostPort::new(terms, now),
            direct: memory.map(|memory| DirectPath::new(memory, slab.clone())),
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
        let is_direct_idle = self.direct.as_ref().is_none_or(DirectPath::is_idle);
        is_direct_idle && self.reads.is_empty() && self.answers.is_empty() && self.outcomes.is_empty()
    }

    /// Returns true if a device works for this path, of which nothing wakes the thread.
    pub(super) fn awaits_device(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| !direct.is_idle())
    }

    /// Returns what the device has done for this path.
    pub(super) fn counters(&self) -> Option<RdmaCounters> {
        self.direct.as_ref().map(DirectPath::counters)
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
        let LinkPath { port, direct, slab, reads, outcomes, refused, .. } = self;
        let parting = port.receive(now, |_, payload| match (payload, &mut *direct) {
            (Payload::TensorData(head, bytes), None) => {
                take_piece(reads, slab, outcomes, head, bytes);
                1
            }
            (Payload::Rdma(offer, exported), Some(direct)) => {
                direct.connect(&offer, &exported.iter().collect::<Vec<_>>());
                0
            }
            _ => {
                *refused += 1;
                1
            }
        });
        let parting = parting.or_else(|| self.turn_direct(now));
        if parting.is_some() {
            self.lose();
        }
        parting
    }

    /// Takes what the device has done. Returns the end of the connection if that is of no use any
    /// more.
    fn turn_direct(&mut self, now: Nanos) -> Option<Parting> {
        let direct = self.direct.as_mut()?;
        if self.port.link().is_up() {
            direct.begin(now);
        }
        direct.poll(now, &mut self.outcomes);
        let sentence = direct.take_fault()?;
        Some(self.port.close(now, CloseCode::RdmaFailed, &sentence))
    }

    /// Ends all orders, since the connection is over.
    fn lose(&mut self) {
        if let Some(direct) = &mut self.direct {
            direct.lose(&mut self.outcomes);
        }
        let mut reads: Vec<u64> = self.reads.drain().map(|(number, _)| number).collect();
        reads.sort_unstable();
        self.outcomes.extend(reads.into_iter().map(|number| PathOutcome::Read(number, false)));
        self.outcomes.extend(self.answers.drain(..).map(PathOutcome::Undelivered));
        self.pieces.clear();
        self.written = 0;
    }

    /// Returns the bytes for the connection.
    pub(super) fn take_out(&mut self, now: Nanos) -> Vec<u8> {
        if let Some(direct) = &mut self.direct {
            if let Some((offer, exported)) = direct.offer()
                && self.port.send(now, &Payload::Rdma(*offer, (&exported[..]).into())).is_ok()
            {
                direct.has_offered();
            }
            // What was ordered in this turn.
            direct.poll(now, &mut self.outcomes);
        }
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
        let LinkPath { port, slab, written, .. } = self;
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

impl TensorPath for LinkPath {
    fn is_up(&self) -> bool {
        self.port.link().is_up()
    }

    fn read(&mut self, order: ReadOrder) {
        if !self.is_up() {
            return self.outcomes.push_back(PathOutcome::Read(order.number, false));
        }
        if let Some(direct) = &mut self.direct {
            return direct.read(order, &mut self.outcomes);
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
        if !self.is_up() {
            return self.outcomes.push_back(PathOutcome::Undelivered(answer));
        }
        let framed = match &mut self.direct {
            Some(direct) => direct.answer(answer, &mut self.outcomes),
            None => Some(answer),
        };
        self.answers.extend(framed);
    }

    fn take_outcome(&mut self) -> Option<PathOutcome> {
        self.outcomes.pop_front()
    }
}
