//! RDMA connections between two ends of this process, over whatever device the host has: `.ci/rdma`
//! runs them over soft-RoCE in a virtual machine. Where there is no device, the error says so.
#![cfg(feature = "rdma")]

use std::time::{Duration, Instant};
use symphony_transport::Nanos;
use symphony_transport::message::Response;
use symphony_transport::rdma::{
    RdmaDevice, RdmaEnd, RdmaError, RdmaEvent, RdmaFault, RdmaSide, RegisteredSlab,
};
use symphony_transport::slab::{Slab, SlabOwner, SlabPages, SlabView, SlotClass};

const NEEDS_DEVICE: &str = "needs an RDMA device; .ci/rdma makes one";

/// Bytes of an object of Figure 12, and of a landing with room for two.
const OBJECT: usize = 150_000;
const LANDING: u32 = 320_000;

fn slab(frontend: u16, count: usize) -> (SlabOwner, SlabView) {
    Slab::on_pages(&[SlotClass { slot_bytes: OBJECT, count }], frontend, SlabPages::HugeIfReserved, 0)
        .unwrap()
}

/// A frontend's end and a backend's, which are connected, with their slabs.
struct Pair {
    device: RdmaDevice,
    began: Instant,
    frontend: RdmaEnd,
    backend: RdmaEnd,
    remote: (SlabOwner, SlabView),
    local: (SlabOwner, SlabView),
}

impl Pair {
    fn new() -> Pair {
        let device = RdmaDevice::open(None).expect(NEEDS_DEVICE);
        let (remote, local) = (slab(3, 64), slab(0, 64));
        let [frontend, backend] = ends(&device, &remote.1, &local.1);
        Pair { device, began: Instant::now(), frontend, backend, remote, local }
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// Polls both ends until the backend or the frontend has an event; panics if none comes.
    fn next(&mut self) -> RdmaEvent {
        let give_up = Instant::now() + Duration::from_secs(60);
        while Instant::now() < give_up {
            let now = self.now();
            self.frontend.poll(now).unwrap();
            self.backend.poll(now).unwrap();
            if let Some(event) = self.backend.take_event().or_else(|| self.frontend.take_event()) {
                return event;
            }
        }
        panic!("nothing has completed");
    }

    /// Polls the backend until it has a fault.
    fn fault(&mut self) -> RdmaFault {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            assert!(Instant::now() < give_up, "no fault was found");
            if let Err(fault) = self.backend.poll(self.now()) {
                return fault;
            }
        }
    }
}

fn ends(device: &RdmaDevice, remote: &SlabView, local: &SlabView) -> [RdmaEnd; 2] {
    let readable = vec![RegisteredSlab::for_readers(device, remote).unwrap()];
    let own = vec![RegisteredSlab::for_own_use(device, local).unwrap()];
    let side = RdmaSide::Frontend { landing: LANDING };
    let mut frontend = RdmaEnd::new(device, readable, side, 77, Nanos::ZERO).unwrap();
    let mut backend = RdmaEnd::new(device, own, RdmaSide::Backend, 0xff_ffff, Nanos::ZERO).unwrap();
    frontend.connect(&backend.offer(), backend.exported()).unwrap();
    backend.connect(&frontend.offer(), frontend.exported()).unwrap();
    [frontend, backend]
}

#[test]
fn without_a_device_or_its_library_the_error_says_what_to_do() {
    match RdmaDevice::open(Some("no-such-device")).map(|device| device.name().to_owned()) {
        Err(error @ (RdmaError::NoDevice | RdmaError::Library(_) | RdmaError::OtherDevice { .. })) => {
            let sentence = error.to_string();
            assert!(sentence.contains("RDMA") && sentence.len() > 40, "{sentence}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn slots_are_read_by_one_sided_reads_that_are_posted_together() {
    let mut pair = Pair::new();
    let slots: Vec<_> = (0..64_u8)
        .map(|byte| {
            let [from, to] =
                [&mut pair.remote.0, &mut pair.local.0].map(|owner| owner.alloc(OBJECT).unwrap());
            pair.remote.1.claim(from).unwrap().fill(byte);
            pair.backend.read(byte.into(), from, pair.local.1.claim_owned(to).unwrap(), OBJECT);
            to
        })
        .collect();
    for (number, to) in (0..).zip(slots) {
        assert_eq!(pair.next(), RdmaEvent::Read { number, is_current: true });
        let bytes = pair.local.1.claim(to).expect("the claim ended with the read");
        assert!(bytes[..OBJECT].iter().all(|&byte| u64::from(byte) == number));
    }
    let counters = pair.backend.counters();
    assert_eq!((counters.reads, counters.read_bytes, counters.doorbells), (64, 64 * OBJECT as u64, 1));
    assert!(pair.backend.is_idle() && pair.frontend.is_idle());
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn a_late_read_of_a_slot_that_is_anothers_by_now_has_failed() {
    let mut pair = Pair::new();
    let [from, freed] = [OBJECT; 2].map(|bytes| pair.remote.0.alloc(bytes).unwrap());
    let mut read = |number, from| {
        let to = pair.local.0.alloc(OBJECT).unwrap();
        pair.backend.read(number, from, pair.local.1.claim_owned(to).unwrap(), 100);
    };
    read(1, from);
    read(2, freed);
    // The slots' requests end before the backend gets to it.
    assert!(pair.remote.0.free(from) && pair.remote.0.free(freed));
    let again = pair.remote.0.alloc(OBJECT).unwrap();
    pair.remote.1.claim(again).unwrap().fill(9);
    for number in [1, 2] {
        assert_eq!(pair.next(), RdmaEvent::Read { number, is_current: false });
    }
    // And one of a slot that the frontend does not have.
    let to = pair.local.0.alloc(OBJECT).unwrap();
    pair.backend.read(3, bytemuck::cast(7_u64 << 48), pair.local.1.claim_owned(to).unwrap(), 100);
    assert_eq!(pair.next(), RdmaEvent::Read { number: 3, is_current: false });
    assert_eq!((pair.backend.counters().reads, pair.backend.counters().stale_reads), (0, 2));
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn outputs_land_before_their_answers_and_wait_for_places() {
    const ANSWERS: u64 = 40;
    let mut pair = Pair::new();
    let range = 1_000..OBJECT;
    for id in 0..ANSWERS {
        let slot = pair.local.0.alloc(OBJECT).unwrap();
        pair.local.1.claim(slot).unwrap().fill(id as u8);
        let claim = pair.local.1.claim_owned(slot).unwrap();
        pair.backend.answer(id, claim, range.clone(), Response { id, ..Response::default() });
    }
    let (mut landed, mut answered) = (0, 0);
    while (landed, answered) != (ANSWERS, ANSWERS) {
        match pair.next() {
            RdmaEvent::Landed(answer) => {
                let mut outputs = vec![0; answer.bytes as usize];
                pair.frontend.copy_landed(&answer, &mut outputs);
                assert_eq!((answer.response.id, answer.offset as usize), (landed, range.start));
                assert!(outputs.len() == range.len() && outputs.iter().all(|&byte| byte == landed as u8));
                pair.frontend.give_back();
                landed += 1;
            }
            RdmaEvent::Answered(number) => {
                assert_eq!(number, answered);
                answered += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pair.backend.counters().writes, ANSWERS);
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn a_key_that_opens_nothing_ends_the_connection_and_the_next_one_works() {
    let mut pair = Pair::new();
    let [from, to] = [&mut pair.remote.0, &mut pair.local.0].map(|owner| owner.alloc(OBJECT).unwrap());
    let own = vec![RegisteredSlab::for_own_use(&pair.device, &pair.local.1).unwrap()];
    let mut strange = RdmaEnd::new(&pair.device, own, RdmaSide::Backend, 5, Nanos::ZERO).unwrap();
    let readable = vec![RegisteredSlab::for_readers(&pair.device, &pair.remote.1).unwrap()];
    let side = RdmaSide::Frontend { landing: LANDING };
    let mut frontend = RdmaEnd::new(&pair.device, readable, side, 6, Nanos::ZERO).unwrap();
    frontend.connect(&strange.offer(), []).unwrap();
    let mut exported = frontend.exported();
    exported.iter_mut().for_each(|class| class.slots_key ^= 0x55);
    strange.connect(&frontend.offer(), exported).unwrap();
    strange.read(1, from, pair.local.1.claim_owned(to).unwrap(), OBJECT);
    let before = std::mem::replace(&mut pair.backend, strange);
    let fault = pair.fault();
    assert!(matches!(&fault, RdmaFault::Failed(words) if words.contains("access")), "{fault}");
    // The slot is claimed until the pair of queues is destroyed.
    assert!(pair.local.1.claim(to).is_none() && !pair.local.0.free(to));
    pair.backend = before;
    assert!(pair.local.1.claim(to).is_some());
    pair.backend.read(2, from, pair.local.1.claim_owned(to).unwrap(), OBJECT);
    assert_eq!(pair.next(), RdmaEvent::Read { number: 2, is_current: true });
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn a_peer_that_is_gone_is_found_by_a_time_out_and_a_new_connection_takes_its_place() {
    let mut pair = Pair::new();
    let [from, to] = [&mut pair.remote.0, &mut pair.local.0].map(|owner| owner.alloc(OBJECT).unwrap());
    let [next_frontend, next_backend] = ends(&pair.device, &pair.remote.1, &pair.local.1);
    drop(std::mem::replace(&mut pair.frontend, next_frontend));
    pair.backend.read(1, from, pair.local.1.claim_owned(to).unwrap(), OBJECT);
    let fault = pair.fault();
    assert!(matches!(fault, RdmaFault::Failed(_) | RdmaFault::Overdue), "{fault}");
    pair.backend = next_backend;
    assert!(pair.local.0.free(to), "nobody holds it any more");
    let to = pair.local.0.alloc(OBJECT).unwrap();
    pair.remote.1.claim(from).unwrap()[..5].copy_from_slice(b"again");
    pair.backend.read(2, from, pair.local.1.claim_owned(to).unwrap(), 5);
    assert_eq!(pair.next(), RdmaEvent::Read { number: 2, is_current: true });
    assert_eq!(&pair.local.1.claim(to).unwrap()[..5], b"again");
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn an_offer_that_nobody_answers_is_given_up() {
    let device = RdmaDevice::open(None).expect(NEEDS_DEVICE);
    let mut end = RdmaEnd::new(&device, Vec::new(), RdmaSide::Backend, 1, Nanos::ZERO).unwrap();
    assert_eq!(end.poll(Nanos::from_secs(1)), Ok(()));
    assert_eq!(end.poll(Nanos::from_secs(3)), Err(RdmaFault::Unanswered));
}
