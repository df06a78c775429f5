//! A backend's way to a frontend's slots past the frames of their link: [`DirectPath`]. It has the
//! orders that are with the device, so that each has one outcome, also if the connection is lost.

use super::direct_memory::{DirectEnd, DirectMemory};
use super::tensor_orders::{PathOutcome, ReadOrder, RowAnswer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use symphony_transport::Nanos;
use symphony_transport::rdma::{RdmaCounters, RdmaEvent};
use symphony_transport::slab::SlabView;
use symphony_transport::wire::{ExportedClass, RdmaOffer};

/// The way by a device. The owner begins and ends a connection of it with one of the link.
pub(super) struct DirectPath {
    memory: Box<dyn DirectMemory>,
    end: Option<Box<dyn DirectEnd>>,
    /// The offer for the peer, until it is sent.
    offer: Option<(RdmaOffer, Vec<ExportedClass>)>,
    /// Why the connection is of no use, until its owner asks.
    fault: Option<String>,
    /// The local slots.
    slab: SlabView,
    reads: BTreeSet<u64>,
    answers: BTreeMap<u64, RowAnswer>,
    next_answer: u64,
    /// What the connections before have done.
    before: RdmaCounters,
}

impl DirectPath {
    pub(super) fn new(memory: Box<dyn DirectMemory>, slab: SlabView) -> DirectPath {
        DirectPath {
            memory,
            end: None,
            offer: None,
            fault: None,
            slab,
            reads: BTreeSet::new(),
            answers: BTreeMap::new(),
            next_answer: 0,
            before: RdmaCounters::default(),
        }
    }

    /// Makes the end of a connection of the link, which is up, unless it has one.
    pub(super) fn begin(&mut self, now: Nanos) {
        if self.end.is_some() || self.fault.is_some() {
            return;
        }
        match self.memory.open(now) {
            Ok(end) => {
                self.offer = Some(end.offer());
                self.end = Some(end);
            }
            Err(sentence) => self.fault = Some(sentence),
        }
    }

    /// Ends the connection, and all orders with it.
    pub(super) fn lose(&mut self, outcomes: &mut VecDeque<PathOutcome>) {
        self.before = self.counters();
        // First: then nothing holds the slots of what was under way.
        self.end = None;
        (self.offer, self.fault) = (None, None);
        let reads = std::mem::take(&mut self.reads).into_iter();
        outcomes.extend(reads.map(|number| PathOutcome::Read(number, false)));
        outcomes.extend(std::mem::take(&mut self.answers).into_values().map(PathOutcome::Undelivered));
    }

    /// Returns the offer that is to be sent to the peer.
    pub(super) fn offer(&self) -> Option<&(RdmaOffer, Vec<ExportedClass>)> {
        self.offer.as_ref()
    }

    /// Notes that the offer was sent.
    pub(super) fn has_offered(&mut self) {
        self.offer = None;
    }

    /// Connects to the peer, which has answered the offer.
    pub(super) fn connect(&mut self, offer: &RdmaOffer, exported: &[ExportedClass]) {
        let connected = match &mut self.end {
            Some(end) => end.connect(offer, exported),
            None => Err("the peer has answered an offer that was not made".to_owned()),
        };
        self.fault = self.fault.take().or(connected.err());
    }

    /// Has a slot read.
    pub(super) fn read(&mut self, order: ReadOrder, outcomes: &mut VecDeque<PathOutcome>) {
        let ReadOrder { number, from, to, bytes } = order;
        match (&mut self.end, self.slab.claim_owned(to)) {
            (Some(end), Some(claim)) => {
                self.reads.insert(number);
                end.read(number, from, claim, bytes);
            }
            _ => outcomes.push_back(PathOutcome::Read(number, false)),
        }
    }

    /// Has an answer with outputs given; another one is not for this way, and is returned.
    pub(super) fn answer(
        &mut self,
        answer: RowAnswer,
        outcomes: &mut VecDeque<PathOutcome>,
    ) -> Option<RowAnswer> {
        let Some((local, range)) = answer.outputs.clone() else { return Some(answer) };
        let (Some(end), Some(claim)) = (&mut self.end, self.slab.claim_owned(local)) else {
            outcomes.push_back(PathOutcome::Undelivered(answer));
            return None;
        };
        end.answer(self.next_answer, claim, range, answer.response);
        self.answers.insert(self.next_answer, answer);
        self.next_answer += 1;
        None
    }

    /// Takes what the device has done, and has it do what waits. What is wrong is kept until
    /// [`DirectPath::take_fault`].
    pub(super) fn poll(&mut self, now: Nanos, outcomes: &mut VecDeque<PathOutcome>) {
        let Some(end) = &mut self.end else { return };
        if self.fault.is_none() {
            self.fault = end.poll(now).err();
        }
        while let Some(event) = end.take_event() {
            match event {
                RdmaEvent::Read { number, is_current } => {
                    if self.reads.remove(&number) {
                        outcomes.push_back(PathOutcome::Read(number, is_current));
                    }
                }
                RdmaEvent::Answered(number) => {
                    outcomes.extend(self.answers.remove(&number).map(PathOutcome::Answered));
                }
                // A backend has no landing.
                RdmaEvent::Landed(_) => {}
            }
        }
    }

    /// Returns why the connection is of no use, once.
    pub(super) fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Returns true if no order is open.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.answers.is_empty()
    }

    /// Returns what all connections have done.
    pub(super) fn counters(&self) -> RdmaCounters {
        self.end.as_ref().map_or(self.before, |end| self.before.plus(end.counters()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use symphony_transport::message::Response;
    use symphony_transport::slab::{Slab, SlotClaim, SlotClass, SlotId};
    use symphony_transport::wire::LandedAnswer;

    /// A device that does nothing until it is told to: it keeps the claims of what it has.
    struct IdleDevice {
        claims: Vec<SlotClaim>,
        happened: Receiver<Result<RdmaEvent, String>>,
        events: VecDeque<RdmaEvent>,
    }

    struct IdleMemory(Option<IdleDevice>);

    impl DirectMemory for IdleMemory {
        fn open(&mut self, _: Nanos) -> Result<Box<dyn DirectEnd>, String> {
            let device = self.0.take().ok_or("no device")?;
            Ok(Box::new(device))
        }
    }

    impl DirectEnd for IdleDevice {
        fn offer(&self) -> (RdmaOffer, Vec<ExportedClass>) {
            (RdmaOffer::default(), Vec::new())
        }

        fn connect(&mut self, _: &RdmaOffer, _: &[ExportedClass]) -> Result<(), String> {
            Ok(())
        }

        fn read(&mut self, _: u64, _: SlotId, to: SlotClaim, _: usize) {
            self.claims.push(to);
        }

        fn answer(&mut self, _: u64, outputs: SlotClaim, _: Range<usize>, _: Response) {
            self.claims.push(outputs);
        }

        fn poll(&mut self, _: Nanos) -> Result<(), String> {
            for event in self.happened.try_iter() {
                self.events.push_back(event?);
            }
            Ok(())
        }

        fn take_event(&mut self) -> Option<RdmaEvent> {
            self.events.pop_front()
        }

        fn copy_landed(&self, _: &LandedAnswer, _: &mut [u8]) {}

        fn give_back(&mut self) {}

        fn counters(&self) -> RdmaCounters {
            RdmaCounters { reads: 5, ..RdmaCounters::default() }
        }
    }

    fn path(slab: SlabView) -> (DirectPath, Sender<Result<RdmaEvent, String>>) {
        let (does, happened) = channel();
        let device = IdleDevice { claims: Vec::new(), happened, events: VecDeque::new() };
        (DirectPath::new(Box::new(IdleMemory(Some(device))), slab), does)
    }

    #[test]
    fn each_order_has_one_outcome_and_a_lost_connection_holds_no_slot() {
        let (mut owner, view) = Slab::new(&[SlotClass { slot_bytes: 64, count: 4 }], 0).unwrap();
        let (mut path, does) = path(view.clone());
        let mut outcomes = VecDeque::new();
        path.begin(Nanos::ZERO);
        assert!(path.offer().is_some());
        path.has_offered();
        let slots = [0; 3].map(|_| owner.alloc(64).unwrap());
        for (number, to) in (1..).zip(&slots[..2]) {
            path.read(ReadOrder { number, from: SlotId::default(), to: *to, bytes: 8 }, &mut outcomes);
        }
        let answer = |outputs| RowAnswer { response: Response::default(), outputs };
        assert!(path.answer(answer(Some((slots[2], 0..8))), &mut outcomes).is_none());
        assert!(path.answer(answer(None), &mut outcomes).is_some(), "it goes by a frame");
        does.send(Ok(RdmaEvent::Read { number: 2, is_current: false })).unwrap();
        path.poll(Nanos::ZERO, &mut outcomes);
        assert!(matches!(outcomes.pop_front(), Some(PathOutcome::Read(2, false))));
        assert!(outcomes.is_empty() && !path.is_idle() && !owner.free(slots[0]));
        does.send(Err("it broke".to_owned())).unwrap();
        path.poll(Nanos::ZERO, &mut outcomes);
        assert_eq!((path.take_fault().as_deref(), path.take_fault()), (Some("it broke"), None));
        path.lose(&mut outcomes);
        assert!(matches!(outcomes.pop_front(), Some(PathOutcome::Read(1, false))));
        assert!(matches!(outcomes.pop_front(), Some(PathOutcome::Undelivered(_))));
        assert!(outcomes.is_empty() && path.is_idle() && owner.free(slots[0]) && owner.free(slots[2]));
        // What is lost counts on, and another connection may not be had.
        assert_eq!(path.counters().reads, 5);
        path.begin(Nanos::ZERO);
        assert_eq!(path.take_fault().as_deref(), Some("no device"));
    }

    #[test]
    fn a_slot_that_a_device_has_is_read_into_by_no_other_order() {
        let (mut owner, view) = Slab::new(&[SlotClass { slot_bytes: 64, count: 1 }], 0).unwrap();
        let (mut path, _does) = path(view);
        let to = owner.alloc(64).unwrap();
        let mut outcomes = VecDeque::new();
        path.begin(Nanos::ZERO);
        for number in [1, 2] {
            path.read(ReadOrder { number, from: SlotId::default(), to, bytes: 8 }, &mut outcomes);
        }
        assert!(matches!(outcomes.pop_front(), Some(PathOutcome::Read(2, false))));
        assert!(outcomes.is_empty());
    }
}
