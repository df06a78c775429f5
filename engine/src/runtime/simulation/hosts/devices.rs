//! The RDMA devices of the simulated hosts: a backend's reads of a frontend's slots and writes of
//! outputs take their time, and no process takes part in them. So a frontend that stands still is
//! read, and a read may come when its slot is another request's.

use super::super::dice::Dice;
use super::network::LONGEST_DELAY;
use crate::runtime::hosts::{DirectEnd, DirectMemory};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symphony_transport::Nanos;
use symphony_transport::message::Response;
use symphony_transport::rdma::{RdmaCounters, RdmaEvent};
use symphony_transport::slab::{SlabView, SlotClaim, SlotId};
use symphony_transport::wire::{ExportedClass, LandedAnswer, RdmaOffer};

/// The longest time that an operation takes: by then most slots are another's.
const LONGEST_OPERATION: Nanos = Nanos::from_millis(300);

/// Outputs that were written, and the answer sent behind them.
type Landed = (LandedAnswer, Vec<u8>);

/// What the devices reach of an end, for as long as it is there.
struct ReachedMemory {
    slabs: Vec<SlabView>,
    landed: VecDeque<Landed>,
}

/// The ends by their numbers.
struct Reached {
    dice: Dice,
    ends: HashMap<u32, ReachedMemory>,
    next: u32,
    /// No operation takes long any more.
    is_calm: bool,
}

/// The devices of all hosts, and what is between them.
#[derive(Clone)]
pub(super) struct Devices(Arc<Mutex<Reached>>);

impl Devices {
    pub(super) fn new(dice: Dice) -> Devices {
        Devices(Arc::new(Mutex::new(Reached { dice, ends: HashMap::new(), next: 1, is_calm: false })))
    }

    /// Returns what each of `links` links of a host with these slots gets of its device.
    pub(super) fn memories(&self, slabs: &[SlabView], links: usize) -> Vec<Option<Box<dyn DirectMemory>>> {
        let memory = || HostMemory { devices: self.clone(), slabs: slabs.to_vec() };
        (0..links).map(|_| Some(Box::new(memory()) as Box<dyn DirectMemory>)).collect()
    }

    /// Has no operation take long any more, which all later ones of its connection wait for.
    pub(super) fn calm(&self) {
        self.reached().is_calm = true;
    }

    fn reached(&self) -> MutexGuard<'_, Reached> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reached {
    /// Draws the time that an operation takes.
    fn delay(&mut self) -> Nanos {
        let Reached { dice, is_calm, .. } = self;
        if !*is_calm && dice.chance(0.0005) {
            return dice.time(LONGEST_DELAY, LONGEST_OPERATION);
        }
        dice.time(Nanos::from_micros(2), Nanos::from_micros(60))
    }
}

/// The slots of a host, and its device.
struct HostMemory {
    devices: Devices,
    slabs: Vec<SlabView>,
}

impl DirectMemory for HostMemory {
    fn open(&mut self, _: Nanos) -> Result<Box<dyn DirectEnd>, String> {
        let mut reached = self.devices.reached();
        let number = reached.next;
        reached.next += 1;
        let memory = ReachedMemory { slabs: self.slabs.clone(), landed: VecDeque::new() };
        reached.ends.insert(number, memory);
        Ok(Box::new(SimulatedEnd {
            devices: self.devices.clone(),
            number,
            peer: None,
            open: VecDeque::new(),
            landed: VecDeque::new(),
            events: VecDeque::new(),
            counters: RdmaCounters::default(),
        }))
    }
}

/// What a device was told to do.
enum DeviceOrder {
    Read { number: u64, from: SlotId, to: SlotClaim, bytes: usize },
    Answer { number: u64, outputs: SlotClaim, range: Range<usize>, response: Response },
}

/// An end of a connection, whose operations end in their order.
struct SimulatedEnd {
    devices: Devices,
    number: u32,
    peer: Option<u32>,
    /// The operations, with when they end once the device has them.
    open: VecDeque<(DeviceOrder, Option<Nanos>)>,
    /// What has landed and was not given back.
    landed: VecDeque<Landed>,
    events: VecDeque<RdmaEvent>,
    counters: RdmaCounters,
}

impl SimulatedEnd {
    /// Gives the device what waits.
    fn post(&mut self, now: Nanos) {
        let mut reached = self.devices.reached();
        let mut last = Nanos::ZERO;
        for (_, end) in &mut self.open {
            last = *end.get_or_insert_with(|| last.max(now + reached.delay()));
        }
    }

    /// Has the device end an operation.
    ///
    /// Errors: the other end is gone.
    fn end(&mut self, operation: DeviceOrder) -> Result<RdmaEvent, String> {
        let mut reached = self.devices.reached();
        let peer = self.peer.and_then(|peer| reached.ends.get_mut(&peer));
        let peer = peer.ok_or("the peer's end of the connection is gone")?;
        Ok(match operation {
            DeviceOrder::Read { number, from, mut to, bytes } => {
                let slot = peer.slabs.iter().find_map(|slab| slab.claim(from));
                let is_current = slot.is_some();
                if let Some(slot) = slot {
                    to[..bytes].copy_from_slice(&slot[..bytes]);
                    self.counters.reads += 1;
                } else {
                    // What the slot's next owner has written may have been read.
                    to[..bytes].fill(!0);
                    self.counters.stale_reads += 1;
                }
                RdmaEvent::Read { number, is_current }
            }
            DeviceOrder::Answer { number, outputs, range, response } => {
                let bytes = range.len() as u32;
                let answer =
                    LandedAnswer { response, offset: range.start as u32, bytes, ..Default::default() };
                peer.landed.push_back((answer, outputs[range].to_vec()));
                self.counters.writes += 1;
                RdmaEvent::Answered(number)
            }
        })
    }
}

impl DirectEnd for SimulatedEnd {
    fn offer(&self) -> (RdmaOffer, Vec<ExportedClass>) {
        let offer = RdmaOffer { queue_pair: self.number, mtu: 4_096, reads: 16, ..RdmaOffer::default() };
        (offer, Vec::new())
    }

    fn connect(&mut self, offer: &RdmaOffer, _: &[ExportedClass]) -> Result<(), String> {
        self.peer = Some(offer.queue_pair);
        Ok(())
    }

    fn read(&mut self, number: u64, from: SlotId, to: SlotClaim, bytes: usize) {
        self.open.push_back((DeviceOrder::Read { number, from, to, bytes }, None));
    }

    fn answer(&mut self, number: u64, outputs: SlotClaim, range: Range<usize>, response: Response) {
        self.open.push_back((DeviceOrder::Answer { number, outputs, range, response }, None));
    }

    fn poll(&mut self, now: Nanos) -> Result<(), String> {
        if self.peer.is_none() {
            return Ok(());
        }
        self.post(now);
        while let Some((operation, _)) = self.open.pop_front_if(|(_, end)| end.is_some_and(|end| end <= now))
        {
            let event = self.end(operation)?;
            self.events.push_back(event);
        }
        let mut reached = self.devices.reached();
        let came = reached.ends.get_mut(&self.number).map(|own| std::mem::take(&mut own.landed));
        for landed in came.into_iter().flatten() {
            self.events.push_back(RdmaEvent::Landed(landed.0));
            self.landed.push_back(landed);
        }
        Ok(())
    }

    fn take_event(&mut self) -> Option<RdmaEvent> {
        self.events.pop_front()
    }

    fn copy_landed(&self, _: &LandedAnswer, to: &mut [u8]) {
        // Places are given back in the order in which answers landed.
        if let Some((_, bytes)) = self.landed.front() {
            to.copy_from_slice(bytes);
        }
    }

    fn give_back(&mut self) {
        self.landed.pop_front();
    }

    fn counters(&self) -> RdmaCounters {
        self.counters
    }
}

impl Drop for SimulatedEnd {
    /// Ends the connection: no device reaches anything by it any more.
    fn drop(&mut self) {
        self.devices.reached().ends.remove(&self.number);
    }
}
