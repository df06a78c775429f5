//! A frontend whose engine is the test: requests that it does not end, and responses that come
//! late, twice, or for a slot's earlier request.

use super::*;
use std::time::{Duration, Instant};
use symphony_gpu::{DataType, Signature, TensorSpec};

/// The longest time that a test waits, on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

const GRACE: Nanos = Nanos::from_millis(2);

fn setup() -> FrontendSetup {
    let tensor = TensorSpec { name: "t".into(), datatype: DataType::Fp32, shape: vec![4] };
    let signature = Signature::of_rows(vec![tensor.clone()], vec![tensor]);
    let model = ModelInfo {
        signature,
        slo: Nanos::from_millis(5),
        state: SlotState::Serving,
        ..ModelInfo::vacant(ModelId(0), 0)
    };
    FrontendSetup { grace: GRACE, ..FrontendSetup::of_models(Arc::new([model])) }
}

fn frontend(capacity: usize) -> (Frontend, FrontendPeer) {
    Frontend::new(FrontendSetup { capacity, ..setup() }).unwrap()
}

/// The requests that have come to the engine, without cancellations.
fn requests(peer: &mut FrontendPeer) -> Vec<Request> {
    std::iter::from_fn(|| peer.requests[0].pop()).filter(|request| request.takes_back == 0).collect()
}

fn response(request: &Request) -> Response {
    Response { id: request.id, slot: request.slot, ending: Ending::Done as u32, ..Response::default() }
}

/// Polls until this many answers have come. Returns their tickets and outcomes.
fn answers(frontend: &mut Frontend, count: usize) -> Vec<(Ticket, Outcome)> {
    let (began, mut answers) = (Instant::now(), Vec::new());
    while answers.len() < count {
        assert!(began.elapsed() < PATIENCE, "{answers:?}");
        frontend.poll(|ticket, answer| {
            if matches!(answer.outcome, Outcome::Overdue(_)) {
                assert!(answer.timeline.answered >= answer.timeline.due + GRACE, "{answer:?}");
                assert!(answer.row(0).is_empty());
            }
            answers.push((ticket, answer.outcome));
        });
    }
    answers
}

#[test]
fn a_request_that_the_engine_forgets_is_ended_once_and_its_slots_stay_taken() {
    let (mut frontend, mut peer) = frontend(3);
    let ask = Ask { rows: 2, ..Ask::one(ModelId(0)) };
    let two = frontend.submit(&ask, |_, _| ()).unwrap();
    let one = frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    let ended: Vec<Ticket> = answers(&mut frontend, 2).iter().map(|(ticket, _)| *ticket).collect();
    assert!(ended.contains(&two) && ended.contains(&one) && frontend.in_flight() == 0);
    assert_eq!(frontend.submit(&Ask::one(ModelId(0)), |_, _| ()), Err(Refusal::Overloaded));
    assert_eq!(frontend.in_engine.count(0), 2, "the model may not be unloaded yet");
    let counts = Arc::clone(frontend.counts());
    assert_eq!((counts.abandoned.get(), counts.held_slots.get()), (2, 3));
    let late = requests(&mut peer);
    peer.responses[0].push(response(&late[0])).unwrap();
    assert_eq!(frontend.poll(|_, _| panic!("it was answered")), 0);
    assert_eq!(counts.held_slots.get(), 3, "a row of it has not ended");
    late[1..].iter().for_each(|request| peer.responses[0].push(response(request)).unwrap());
    assert_eq!(frontend.poll(|_, _| panic!("it was answered")), 0);
    assert_eq!((counts.discarded.get(), counts.held_slots.get(), counts.lost_slots.get()), (2, 0, 0));
    assert_eq!(frontend.in_engine.count(0), 0);
    frontend.submit(&Ask { rows: 3, ..ask }, |_, _| ()).unwrap();
}

#[test]
fn ids_begin_where_they_are_told_to_and_go_round() {
    let sent = |first_ids| {
        let (mut frontend, mut peer) = Frontend::new(FrontendSetup { first_ids, ..setup() }).unwrap();
        let tickets = [0; 2].map(|_| frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap().id);
        let sent: Vec<Request> = requests(&mut peer);
        assert_eq!(tickets[..], sent.iter().map(|request| request.id).collect::<Vec<_>>()[..]);
        (tickets, sent[0].slot)
    };
    let last = FirstIds { request: REQUEST_IDS - 1, ..FirstIds::default() };
    assert_eq!(sent(last).0, [REQUEST_IDS - 1, 0]);
    // Also where a process is started twice within a microsecond.
    let (one, other) = (sent(FirstIds::of_process(1_000)), sent(FirstIds::of_process(1_001)));
    assert_ne!(one.1, other.1, "the same slot");
    assert!(one.0[0].abs_diff(other.0[0]) > 1 << 32, "{one:?} {other:?}");
}

#[test]
fn the_engine_is_asked_to_cancel_what_is_overdue() {
    let (mut frontend, mut peer) = frontend(1);
    let ticket = frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    answers(&mut frontend, 1);
    let sent: Vec<Request> = std::iter::from_fn(|| peer.requests[0].pop()).collect();
    let cancelled: Vec<u64> =
        sent.iter().filter(|request| request.takes_back == 1).map(|request| request.id).collect();
    assert_eq!(cancelled, [ticket.id]);
}

#[test]
fn a_request_without_a_deadline_is_left_to_the_engine() {
    let (mut frontend, mut peer) = frontend(2);
    let never = frontend.submit(&Ask { due: Due::Never, ..Ask::one(ModelId(0)) }, |_, _| ()).unwrap();
    let due = frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    assert_eq!(answers(&mut frontend, 1)[0].0, due);
    let request = requests(&mut peer)[0];
    peer.responses[0].push(response(&request)).unwrap();
    assert_eq!(answers(&mut frontend, 1), [(never, Outcome::Good)]);
}

#[test]
fn a_stale_or_doubled_response_is_counted_and_goes_to_no_other_request() {
    let (mut frontend, mut peer) = frontend(8);
    let two = Ask { rows: 2, due: Due::Never, ..Ask::one(ModelId(0)) };
    frontend.submit(&two, |_, _| ()).unwrap();
    let first = requests(&mut peer);
    // One row ends twice: the other one is still waited for.
    for _ in 0..2 {
        peer.responses[0].push(response(&first[0])).unwrap();
    }
    assert_eq!(frontend.poll(|_, _| panic!("a row has not ended")), 0);
    assert_eq!(frontend.counts().stale.get(), 1);
    peer.responses[0].push(response(&first[1])).unwrap();
    assert_eq!(answers(&mut frontend, 1).len(), 1);
    // The slots' next request gets nothing of what comes for the one before.
    let next = frontend.submit(&two, |_, _| ()).unwrap();
    let second = requests(&mut peer);
    let other_id = Response { id: first[0].id, ..response(&second[0]) };
    let other_slot = Response { id: second[0].id, ..response(&first[0]) };
    let of_no_slot = Response { slot: Default::default(), ..response(&second[0]) };
    for stale in [response(&first[0]), response(&first[1]), other_id, other_slot, of_no_slot] {
        // The ring holds as much as can be in flight.
        peer.responses[0].push(stale).unwrap();
        assert_eq!(frontend.poll(|_, _| panic!("{next:?} has not ended")), 0);
    }
    assert_eq!(frontend.counts().stale.get(), 6);
    second.iter().for_each(|request| peer.responses[0].push(response(request)).unwrap());
    assert_eq!(answers(&mut frontend, 1), [(next, Outcome::Good)]);
    assert_eq!((frontend.counts().stale.get(), frontend.counts().lost_slots.get()), (6, 0));
}

#[test]
fn once_the_engine_has_a_fault_every_request_ends_at_the_next_poll() {
    let (mut frontend, mut peer) = frontend(32);
    let in_flight = [
        Ask { rows: 3, ..Ask::one(ModelId(0)) },
        Ask { due: Due::Never, ..Ask::one(ModelId(0)) },
        Ask::one(ModelId(0)),
    ]
    .map(|ask| frontend.submit(&ask, |_, _| ()).unwrap());
    let sent = requests(&mut peer);
    peer.responses[0].push(response(&sent[0])).unwrap();
    frontend.faults().report("rank", "died");
    let mut ended = Vec::new();
    assert_eq!(frontend.poll(|ticket, answer| ended.push((ticket, answer.outcome))), 3);
    assert!(in_flight.iter().all(|ticket| ended.contains(&(*ticket, Outcome::Broken))), "{ended:?}");
    assert_eq!((frontend.in_flight(), frontend.counts().held_slots.get()), (0, 5));
    // What the threads that are left still end is discarded.
    sent[1..].iter().for_each(|request| peer.responses[0].push(response(request)).unwrap());
    assert_eq!(frontend.poll(|_, _| panic!("it was answered")), 0);
    assert_eq!((frontend.counts().held_slots.get(), frontend.counts().stale.get()), (0, 0));
}

#[test]
fn a_reservation_gives_its_slots_back_or_is_sent_with_what_was_written_into_them() {
    let (mut frontend, mut peer) = frontend(2);
    let two = Ask { rows: 2, ..Ask::one(ModelId(0)) };
    let reserved = frontend.reserve(&two).unwrap();
    assert_eq!(frontend.reserve(&Ask::one(ModelId(0))), Err(Refusal::Overloaded));
    assert_eq!((frontend.in_flight(), requests(&mut peer).len()), (0, 0));
    frontend.release(reserved.slots);
    let reserved = frontend.reserve(&two).unwrap();
    for (row, &slot) in reserved.slots.iter().enumerate() {
        frontend.slab_view().claim(slot).unwrap()[0] = row as u8 + 1;
    }
    let ticket = frontend.send_reserved(&reserved).unwrap();
    let sent = requests(&mut peer);
    let firsts: Vec<u8> = sent.iter().map(|row| peer.slab.claim(row.slot).unwrap()[0]).collect();
    assert_eq!(firsts, [1, 2]);
    sent.iter().for_each(|row| peer.responses[0].push(response(row)).unwrap());
    assert_eq!(answers(&mut frontend, 1)[0].0, ticket);
    let reserved = frontend.reserve(&two).unwrap();
    frontend.accepting_flag().store(false, Ordering::Relaxed);
    assert_eq!(frontend.send_reserved(&reserved), Err(Refusal::Draining));
    frontend.release(reserved.slots);
    assert_eq!(frontend.slots_in_use(), 0);
}

#[test]
fn a_slot_that_a_device_still_holds_goes_to_no_other_request_until_it_is_given_up() {
    for ending in [Ending::Failed, Ending::Stopped, Ending::DroppedAtBackend] {
        let (mut frontend, mut peer) = frontend(2);
        frontend.submit(&Ask { rows: 2, ..Ask::one(ModelId(0)) }, |_, _| ()).unwrap();
        let sent = requests(&mut peer);
        let held = peer.slab.claim_owned(sent[1].slot).unwrap();
        let failed = |row| Response { ending: ending as u32, ..response(row) };
        sent.iter().for_each(|row| peer.responses[0].push(failed(row)).unwrap());
        assert_eq!(answers(&mut frontend, 1)[0].1, Outcome::Bad(ending));
        let counts = Arc::clone(frontend.counts());
        assert_eq!((frontend.slots_in_use(), counts.held_slots.get()), (1, 1));
        let two = Ask { rows: 2, ..Ask::one(ModelId(0)) };
        assert_eq!(frontend.submit(&two, |_, _| ()), Err(Refusal::Overloaded));
        let other = frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
        let other_row = requests(&mut peer)[0];
        assert_ne!(other_row.slot, sent[1].slot);
        peer.responses[0].push(response(&other_row)).unwrap();
        assert_eq!(answers(&mut frontend, 1)[0].0, other);
        drop(held);
        let began = Instant::now();
        while counts.held_slots.get() > 0 {
            assert!(began.elapsed() < PATIENCE, "the slot is not taken back");
            frontend.poll(|_, _| panic!("nothing is in flight"));
        }
        assert_eq!((frontend.slots_in_use(), counts.lost_slots.get()), (0, 0));
        assert!(frontend.faults().get().is_none());
        frontend.submit(&two, |_, _| ()).unwrap();
    }
}

#[test]
fn an_output_that_is_kept_stays_in_its_slots_until_they_are_released() {
    let (mut frontend, mut peer) = frontend(2);
    frontend.submit(&Ask { rows: 2, ..Ask::one(ModelId(0)) }, |_, _| ()).unwrap();
    for row in requests(&mut peer) {
        peer.slab.claim(row.slot).unwrap()[16..32].fill(7);
        peer.responses[0].push(response(&row)).unwrap();
    }
    let mut kept = None;
    frontend.poll(|_, answer| kept = answer.keep());
    let KeptOutput { slots, range } = kept.unwrap();
    assert_eq!((frontend.in_flight(), frontend.slots_in_use(), slots.len()), (0, 2, 2));
    assert_eq!(frontend.submit(&Ask::one(ModelId(0)), |_, _| ()), Err(Refusal::Overloaded));
    assert_eq!(frontend.slab_view().claim(slots[1]).unwrap()[range], [7; 16]);
    frontend.release(slots);
    frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
    assert_eq!(frontend.slots_in_use(), 1);
}
