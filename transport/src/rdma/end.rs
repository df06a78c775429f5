//! One end of an RDMA connection, which the thread of the links owns: [`RdmaEnd`]. It posts reads
//! and answers, finds out what has completed and what is overdue, and owns all memory that the
//! device may touch in the connection's name.

use super::device::{RdmaDevice, RdmaError};
use super::event::{RdmaCounters, RdmaEvent};
use super::exported_slots::ExportedSlots;
use super::landing::LandingLeases;
use super::queue_pair::{COMPLETIONS, CompletedPosting, LocalBytes, Posting, QueuePair, RemoteBytes, Verb};
use super::region::{Access, DeviceBuffer, RegisteredSlab};
use crate::Nanos;
use crate::message::Response;
use crate::slab::{SlotClaim, SlotId};
use crate::wire::{ExportedClass, LandedAnswer, RdmaOffer};
use std::collections::VecDeque;
use std::ops::Range;

/// The operations under way at a time, each of which is two postings at most.
const MOST_OPEN: usize = 256;

/// The receives, and so the answers whose places are not given back, at a time.
const RECEIVES: usize = 256;

/// The time within which an operation completes, and within which the peer answers an offer.
const OPERATION_WITHIN: Nanos = Nanos::from_secs(2);

/// Bytes of a message, and of a slot's state.
const MESSAGE_BYTES: usize = size_of::<LandedAnswer>();
const STATE_BYTES: usize = size_of::<u32>();

/// The bit of a number that says that it is a receive's.
const IS_RECEIVE: u64 = 1 << 63;

/// The part of an end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RdmaSide {
    /// Has the slots that are read, and a landing of so many bytes for what is written.
    Frontend {
        /// Bytes of the landing.
        landing: u32,
    },
    /// Reads and writes.
    Backend,
}

/// Why a connection is of no use any more: it is to be dropped, with that of TCP beside it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RdmaFault {
    /// A call of the device failed.
    #[error(transparent)]
    Device(#[from] RdmaError),
    /// An operation failed.
    #[error("an RDMA operation failed: {0}")]
    Failed(String),
    /// An operation is overdue, though the device says nothing.
    #[error("an RDMA operation has not completed within {OPERATION_WITHIN:?}")]
    Overdue,
    /// The peer has not answered the offer.
    #[error("the peer has not answered the offer of an RDMA connection within {OPERATION_WITHIN:?}")]
    Unanswered,
    /// The peer broke a rule.
    #[error("RDMA: {0}")]
    Protocol(String),
}

/// A read that waits.
struct WaitingRead {
    number: u64,
    from: SlotId,
    to: SlotClaim,
    bytes: usize,
}

/// An answer that waits for a place or for room.
struct WaitingAnswer {
    number: u64,
    outputs: SlotClaim,
    range: Range<usize>,
    response: Response,
}

/// What the device has been told to do. It keeps the memory.
enum OpenWork {
    Read(WaitingRead),
    Answer(WaitingAnswer),
    GiveBack,
}

/// Work under way, and when it is overdue.
struct OpenOperation {
    sequence: u64,
    until: Nanos,
    work: OpenWork,
}

/// The peer, once it is connected.
struct ConnectedPeer {
    slots: ExportedSlots,
    landing: RemoteBytes,
}

/// One end of a connection. See the module's description.
///
/// In each turn its owner gives it orders, calls [`RdmaEnd::poll`], and takes events. After a fault
/// it is dropped: this destroys the pair of queues first, so that the slots of orders that have not
/// ended can be used again.
pub struct RdmaEnd {
    // Dropped first: no device touches what follows from then on.
    pair: QueuePair,
    /// Messages to send, messages received, and the states that reads found: each in its place.
    messages: DeviceBuffer,
    landing: Option<DeviceBuffer>,
    open: VecDeque<OpenOperation>,
    slabs: Vec<RegisteredSlab>,
    device: RdmaDevice,
    /// The number of the first packet.
    packet: u32,
    made: Nanos,
    peer: Option<ConnectedPeer>,
    leases: LandingLeases,
    reads: VecDeque<WaitingRead>,
    answers: VecDeque<WaitingAnswer>,
    sequence: u64,
    /// Places that were emptied and not given back.
    owed: u32,
    events: VecDeque<RdmaEvent>,
    counters: RdmaCounters,
    /// Kept from one turn to the next.
    postings: Vec<Posting>,
    completed: Vec<CompletedPosting>,
}

impl RdmaEnd {
    /// Makes an end that is not connected. Of a frontend's side the slabs are those that the peer
    /// may read, of a backend's those into which it reads. `packet` is the number of its first
    /// packet, below 2^24: drawn anew for each connection.
    ///
    /// # Errors
    ///
    /// [`RdmaError`]: the device has no room.
    pub fn new(
        device: &RdmaDevice,
        slabs: Vec<RegisteredSlab>,
        side: RdmaSide,
        packet: u32,
        now: Nanos,
    ) -> Result<RdmaEnd, RdmaError> {
        let is_reached = side != RdmaSide::Backend;
        let mut pair = QueuePair::new(device, [2 * MOST_OPEN, RECEIVES], is_reached)?;
        let bytes = MOST_OPEN * (MESSAGE_BYTES + STATE_BYTES) + RECEIVES * MESSAGE_BYTES;
        let messages = DeviceBuffer::new(device, bytes, Access::Local)?;
        let landing = match side {
            RdmaSide::Frontend { landing } => {
                Some(DeviceBuffer::new(device, landing as usize, Access::PeersWrite)?)
            }
            RdmaSide::Backend => None,
        };
        for at in 0..RECEIVES {
            // SAFETY: the buffer is dropped after the pair, and only copied from.
            unsafe { pair.post_receive(IS_RECEIVE | at as u64, message_received(&messages, at))? };
        }
        Ok(RdmaEnd {
            pair,
            messages,
            landing,
            open: VecDeque::with_capacity(MOST_OPEN),
            slabs,
            device: device.clone(),
            packet: packet & 0xff_ffff,
            made: now,
            peer: None,
            leases: LandingLeases::new(0),
            reads: VecDeque::new(),
            answers: VecDeque::new(),
            sequence: 0,
            owed: 0,
            events: VecDeque::new(),
            counters: RdmaCounters::default(),
            postings: Vec::new(),
            completed: Vec::with_capacity(COMPLETIONS),
        })
    }

    /// Returns what the peer needs to connect to this end.
    pub fn offer(&self) -> RdmaOffer {
        let port = self.device.opened.port;
        let [_, reads] = self.device.opened.most_reads;
        let landing = self.landing.as_ref();
        RdmaOffer {
            gid: port.gid,
            landing: landing.map_or(0, DeviceBuffer::address),
            landing_bytes: landing.map_or(0, |landing| landing.len() as u32),
            landing_key: landing.map_or(0, DeviceBuffer::remote_key),
            queue_pair: self.pair.number(),
            packet: self.packet,
            lid: port.lid.into(),
            mtu: 128 << port.mtu,
            reads: reads.into(),
            reserved: 0,
        }
    }

    /// Returns the slots that the peer may read.
    pub fn exported(&self) -> Vec<ExportedClass> {
        let of_readers = self.slabs.iter().filter(|_| self.landing.is_some());
        of_readers.flat_map(RegisteredSlab::exported).collect()
    }

    /// Connects to the peer's end.
    ///
    /// # Errors
    ///
    /// The device does not reach it, or the offer is none.
    pub fn connect(
        &mut self,
        offer: &RdmaOffer,
        exported: impl IntoIterator<Item = ExportedClass>,
    ) -> Result<(), RdmaFault> {
        if self.peer.is_some() {
            return Err(RdmaFault::Protocol("the peer has made a second offer".to_owned()));
        }
        let slots = ExportedSlots::new(exported).map_err(RdmaFault::Protocol)?;
        self.pair.connect(offer, self.packet)?;
        self.leases = LandingLeases::new(offer.landing_bytes);
        let landing = RemoteBytes { address: offer.landing, key: offer.landing_key };
        self.peer = Some(ConnectedPeer { slots, landing });
        Ok(())
    }

    /// Returns true if orders are carried out; until then they wait.
    pub fn is_connected(&self) -> bool {
        self.peer.is_some()
    }

    /// Has the first `bytes` of the peer's slot read into a slot of this host.
    pub fn read(&mut self, number: u64, from: SlotId, to: SlotClaim, bytes: usize) {
        self.reads.push_back(WaitingRead { number, from, to, bytes });
    }

    /// Has these bytes of a slot written to the peer, and the answer sent behind them. They belong
    /// to the same range of the row's slot there.
    pub fn answer(&mut self, number: u64, outputs: SlotClaim, range: Range<usize>, response: Response) {
        self.answers.push_back(WaitingAnswer { number, outputs, range, response });
    }

    /// Returns true if nothing waits or is under way.
    pub fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.answers.is_empty() && self.open.is_empty() && self.events.is_empty()
    }

    /// Returns what the connection has done.
    pub fn counters(&self) -> RdmaCounters {
        self.counters
    }

    /// Copies the outputs of an answer that has landed.
    ///
    /// # Panics
    ///
    /// `to` is longer than what has landed.
    pub fn copy_landed(&self, answer: &LandedAnswer, to: &mut [u8]) {
        assert!(to.len() <= answer.bytes as usize, "more than has landed");
        if let Some(landing) = &self.landing {
            landing.read(answer.at as usize, to);
        }
    }

    /// Gives back the place of the oldest answer that has landed.
    pub fn give_back(&mut self) {
        self.owed += 1;
    }

    /// Returns the next event.
    pub fn take_event(&mut self) -> Option<RdmaEvent> {
        self.events.pop_front()
    }

    /// Takes what has completed, and posts what waits, in one list.
    ///
    /// # Errors
    ///
    /// [`RdmaFault`]: the connection is over.
    pub fn poll(&mut self, now: Nanos) -> Result<(), RdmaFault> {
        loop {
            let mut completed = std::mem::take(&mut self.completed);
            let polled = self.pair.poll(&mut completed);
            let count = completed.len();
            let taken = completed.drain(..).try_for_each(|of| self.take_completed(of));
            self.completed = completed;
            polled?;
            taken?;
            if count < COMPLETIONS {
                break;
            }
        }
        if self.open.front().is_some_and(|operation| operation.until < now) {
            return Err(RdmaFault::Overdue);
        }
        if self.peer.is_none() {
            let is_late = self.made + OPERATION_WITHIN < now;
            return if is_late { Err(RdmaFault::Unanswered) } else { Ok(()) };
        }
        self.flush(now)
    }

    fn take_completed(
        &mut self,
        CompletedPosting { number, outcome }: CompletedPosting,
    ) -> Result<(), RdmaFault> {
        let bytes = outcome.map_err(RdmaFault::Failed)?;
        if number & IS_RECEIVE != 0 {
            return self.take_message((number & !IS_RECEIVE) as usize, bytes);
        }
        // Each completes after all before it.
        let operation = self.open.pop_front().filter(|operation| operation.sequence == number);
        let Some(OpenOperation { sequence, work, .. }) = operation else {
            return Err(RdmaFault::Protocol("an operation has completed out of turn".to_owned()));
        };
        match work {
            OpenWork::Read(read) => {
                let mut state = [0; STATE_BYTES];
                self.messages.read(state_at(sequence), &mut state);
                let is_current = read.from.is_current(u32::from_le_bytes(state));
                if is_current {
                    self.counters.reads += 1;
                    self.counters.read_bytes += read.bytes as u64;
                } else {
                    self.counters.stale_reads += 1;
                }
                self.events.push_back(RdmaEvent::Read { number: read.number, is_current });
            }
            OpenWork::Answer(answer) => self.events.push_back(RdmaEvent::Answered(answer.number)),
            OpenWork::GiveBack => {}
        }
        Ok(())
    }

    fn take_message(&mut self, at: usize, bytes: usize) -> Result<(), RdmaFault> {
        if bytes != MESSAGE_BYTES {
            return Err(RdmaFault::Protocol(format!("a message of {bytes} bytes, not {MESSAGE_BYTES}")));
        }
        let mut message = [0; MESSAGE_BYTES];
        let place = message_received(&self.messages, at);
        self.messages.read((place.address - self.messages.address()) as usize, &mut message);
        // SAFETY: the buffer is dropped after the pair, and only copied from.
        unsafe { self.pair.post_receive(IS_RECEIVE | at as u64, place)? };
        let message = LandedAnswer::read(&message).map_err(RdmaFault::Protocol)?;
        match &self.landing {
            Some(landing) if message.at as usize + message.bytes as usize <= landing.len() => {
                self.events.push_back(RdmaEvent::Landed(message));
                Ok(())
            }
            Some(_) => Err(RdmaFault::Protocol("outputs that end behind the landing".to_owned())),
            None if self.leases.give_back(message.given_back as usize) => Ok(()),
            None => Err(RdmaFault::Protocol("more places given back than are leased".to_owned())),
        }
    }

    /// Posts what waits, as far as there is room.
    fn flush(&mut self, now: Nanos) -> Result<(), RdmaFault> {
        let mut postings = std::mem::take(&mut self.postings);
        postings.clear();
        self.add_reads(now, &mut postings);
        self.add_answers(now, &mut postings)?;
        if self.owed > 0 && self.open.len() < MOST_OPEN {
            let message = LandedAnswer { given_back: std::mem::take(&mut self.owed), ..Default::default() };
            let sequence = self.begin(now, OpenWork::GiveBack);
            postings.push(self.message(sequence, message));
        }
        let posted = if postings.is_empty() {
            Ok(())
        } else {
            self.counters.doorbells += 1;
            // SAFETY: what they name is kept by `open` until it has completed, and by this end
            // otherwise, both of which are dropped after the pair: claims, to whose bytes nobody
            // has a reference, and buffers that are only copied.
            unsafe { self.pair.post(&postings) }
        };
        self.postings = postings;
        Ok(posted?)
    }

    /// Notes an operation that is about to be posted. Returns its sequence number.
    fn begin(&mut self, now: Nanos, work: OpenWork) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        self.open.push_back(OpenOperation { sequence, until: now + OPERATION_WITHIN, work });
        sequence
    }

    /// Adds the bytes of all reads, then their states: behind a fence, so that a device that
    /// answers reads side by side has ended those of the bytes before.
    fn add_reads(&mut self, now: Nanos, postings: &mut Vec<Posting>) {
        let mut states = Vec::new();
        while self.open.len() < MOST_OPEN
            && let Some(read) = self.reads.pop_front()
        {
            let slots = self.peer.as_ref().map(|peer| &peer.slots);
            let remote = slots.and_then(|slots| slots.locate(read.from, read.bytes));
            let local = self.local(&read.to, 0..read.bytes);
            let (Some(remote), Some(local)) = (remote, local) else {
                self.events.push_back(RdmaEvent::Read { number: read.number, is_current: false });
                continue;
            };
            let from = RemoteBytes { address: remote.address, key: remote.key };
            postings.push(Posting { verb: Verb::Read { from, fenced: false }, local, told_as: None });
            let sequence = self.begin(now, OpenWork::Read(read));
            let from = RemoteBytes { address: remote.state_address, key: remote.state_key };
            let address = self.messages.address() + state_at(sequence) as u64;
            let local = LocalBytes { address, bytes: STATE_BYTES as u32, key: self.messages.local_key() };
            let verb = Verb::Read { from, fenced: states.is_empty() };
            states.push(Posting { verb, local, told_as: Some(sequence) });
        }
        postings.append(&mut states);
    }

    /// Adds the outputs of answers, each with its message.
    fn add_answers(&mut self, now: Nanos, postings: &mut Vec<Posting>) -> Result<(), RdmaFault> {
        let Some(&ConnectedPeer { landing, .. }) = self.peer.as_ref() else { return Ok(()) };
        while self.open.len() < MOST_OPEN
            && self.leases.leased() < RECEIVES
            && let Some(WaitingAnswer { range, .. }) = self.answers.front()
        {
            let Some(at) = self.leases.lease(range.len() as u32) else {
                // An empty landing has a place for all that fits at all.
                let fits = self.leases.leased() > 0;
                let sentence = format!("the frontend's landing has no room for {} bytes", range.len());
                return if fits { Ok(()) } else { Err(RdmaFault::Protocol(sentence)) };
            };
            let Some(answer) = self.answers.pop_front() else { return Ok(()) };
            let WaitingAnswer { range, response, .. } = &answer;
            let (response, bytes, offset) = (*response, range.len() as u32, range.start as u32);
            if bytes > 0 {
                let Some(local) = self.local(&answer.outputs, range.clone()) else {
                    return Err(RdmaFault::Protocol("outputs that are in no registered slot".to_owned()));
                };
                let to = RemoteBytes { address: landing.address + u64::from(at), key: landing.key };
                postings.push(Posting { verb: Verb::Write { to }, local, told_as: None });
                self.counters.writes += 1;
            }
            let sequence = self.begin(now, OpenWork::Answer(answer));
            let message = LandedAnswer { response, at, bytes, offset, ..Default::default() };
            postings.push(self.message(sequence, message));
        }
        Ok(())
    }

    /// Puts a message into its place. Returns the posting that sends it.
    fn message(&mut self, sequence: u64, message: LandedAnswer) -> Posting {
        let at = (sequence as usize % MOST_OPEN) * MESSAGE_BYTES;
        self.messages.write(at, bytemuck::bytes_of(&message));
        let address = self.messages.address() + at as u64;
        let local = LocalBytes { address, bytes: MESSAGE_BYTES as u32, key: self.messages.local_key() };
        Posting { verb: Verb::Send, local, told_as: Some(sequence) }
    }

    /// Returns bytes of a claimed slot as the device knows them; `None` if it is of no slab of this
    /// end, or has fewer.
    fn local(&self, claim: &SlotClaim, range: Range<usize>) -> Option<LocalBytes> {
        let bytes = claim.get(range)?;
        let address = bytes.as_ptr().expose_provenance() as u64;
        let key = self.slabs.iter().find_map(|slab| slab.key_of(address))?;
        Some(LocalBytes { address, bytes: bytes.len() as u32, key })
    }
}

/// Returns where a message that was received lies.
fn message_received(messages: &DeviceBuffer, at: usize) -> LocalBytes {
    let address = messages.address() + ((MOST_OPEN + at) * MESSAGE_BYTES) as u64;
    LocalBytes { address, bytes: MESSAGE_BYTES as u32, key: messages.local_key() }
}

/// Returns where the state that a read found lies in the buffer of messages.
fn state_at(sequence: u64) -> usize {
    (MOST_OPEN + RECEIVES) * MESSAGE_BYTES + (sequence as usize % MOST_OPEN) * STATE_BYTES
}
