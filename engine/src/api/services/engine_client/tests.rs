//! The table of an API core's calls, without sockets and in virtual time: the test is the engine,
//! which loses answers, doubles them, ends calls late or dies; clients leave meanwhile.

use super::*;
use crate::api::net::core_tasks::TurnClock;
use crate::api::net::glommio_io::local_executor;
use crate::api::net::handler_panics::HandlerPanics;
use crate::api::net::memory::CoreMemory;
use crate::api::net::slices::{SLICE_BYTES, ready_now};
use crate::runtime::clock::Clock;
use crate::runtime::frontend::{FrontendPeer, FrontendSetup, SlotState};
use crate::runtime::{FaultLatch, Placement};
use crate::telemetry::Telemetry;
use futures_util::future::LocalBoxFuture;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;
use std::time::Instant;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;
use symphony_transport::message::{Ending, Request, Response};

const GRACE: Nanos = Nanos::from_millis(20);
const SLO: Nanos = Nanos::from_millis(50);

/// The slots of the frontend: few, so that they are soon used again.
const CAPACITY: usize = 6;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A client asks for this number of rows.
    Asks(usize),
    /// The client of a call leaves.
    Leaves(usize),
    /// The engine ends a row, and says so this often.
    Ends(usize, usize),
    /// The engine repeats an answer that it gave some time ago.
    Repeats(usize),
    /// Time passes, and the answers that have come are delivered.
    Passes(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        3 => (1usize..4).prop_map(Happening::Asks),
        1 => any::<usize>().prop_map(Happening::Leaves),
        6 => (any::<usize>(), prop_oneof![1 => Just(0usize), 6 => Just(1), 1 => Just(2)])
            .prop_map(|(which, times)| Happening::Ends(which, times)),
        1 => any::<usize>().prop_map(Happening::Repeats),
        3 => (0u64..30).prop_map(Happening::Passes),
    ]
}

/// A client that waits.
struct WaitingClient<'a> {
    number: u64,
    rows: usize,
    due: Nanos,
    call: LocalBoxFuture<'a, Result<CountedReply, Refusal>>,
}

/// The engine's side, which the test plays.
struct PlayedEngine {
    peer: FrontendPeer,
    requests: Vec<Request>,
    said: Vec<Response>,
}

impl PlayedEngine {
    fn receive(&mut self) {
        while let Some(request) = self.peer.requests[0].pop() {
            if request.takes_back == 0 {
                self.requests.push(request);
            }
        }
    }

    /// Ends a row: its output is its input.
    fn end(&mut self, which: usize, times: usize) {
        self.receive();
        if self.requests.is_empty() {
            return;
        }
        let request = self.requests.swap_remove(which % self.requests.len());
        let mut slot = self.peer.slab.claim(request.slot).expect("the engine has the slot until it says so");
        slot.copy_within(..8, 8);
        drop(slot);
        let ending = Ending::Done as u32;
        let response = Response { id: request.id, slot: request.slot, ending, ..Response::default() };
        for _ in 0..times {
            self.say(response);
        }
        if times > 0 {
            self.said.push(response);
        }
    }

    fn say(&mut self, response: Response) {
        // A ring that is full of repeated answers takes no more of them.
        let _ = self.peer.responses[0].push(response);
    }
}

fn engine() -> (EngineClient, PlayedEngine, Arc<quanta::Mock>, FaultLatch) {
    let (clock, time) = Clock::of_virtual_time();
    let tensor = TensorSpec { name: "t".into(), datatype: DataType::Uint64, shape: vec![1] };
    let signature = Signature::of_rows(vec![tensor.clone()], vec![tensor]);
    let served =
        ModelInfo { signature, slo: SLO, state: SlotState::Serving, ..ModelInfo::vacant(ModelId(0), 0) };
    let setup = FrontendSetup {
        clock,
        capacity: CAPACITY,
        grace: GRACE,
        ..FrontendSetup::of_models(Arc::new([served]))
    };
    let faults = setup.faults.clone();
    let (frontend, peer) = Frontend::new(setup).unwrap();
    let metrics = Rc::new(Arc::new(Telemetry::through(&frontend)).add_core("api"));
    let client = EngineClient::new(frontend, metrics, Idle::Nap);
    (client, PlayedEngine { peer, requests: Vec::new(), said: Vec::new() }, time, faults)
}

/// Returns the result of a call, if it has one. The mark of the client is checked in every row.
fn result_of(client: &mut WaitingClient<'_>) -> Option<Result<Outcome, Refusal>> {
    let polled = client.call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(result) = polled else { return None };
    Some(result.map(|(reply, _)| {
        if matches!(reply.outcome, Outcome::Good | Outcome::Late(_)) {
            let rows: Vec<u64> = (0..client.rows as u64).map(|row| client.number << 8 | row).collect();
            let expected: Vec<u8> = rows.iter().flat_map(|mark| mark.to_le_bytes()).collect();
            assert_eq!(reply.output, expected, "the answer of another call");
        }
        reply.outcome
    }))
}

proptest! {
    #[test]
    fn every_call_ends_once_with_its_own_answer_whatever_the_engine_does(
        happenings in prop::collection::vec(happening(), 1..120),
        dies in any::<bool>(),
    ) {
        let (client, mut engine, time, faults) = engine();
        let memory = CoreMemory::new(1 << 20, 1 << 20);
        let mut waiting: Vec<WaitingClient<'_>> = Vec::new();
        let mut now = Nanos::ZERO;
        let mut number = 0;
        for happening in happenings {
            match happening {
                Happening::Asks(rows) => {
                    number += 1;
                    let mark = number << 8;
                    let ask = Ask { rows, ..Ask::one(ModelId(0)) };
                    let (client, memory) = (&client, memory.lease(&Rc::default()));
                    let call = Box::pin(async move {
                        let mut request = client.reserve(&ask)?;
                        for row in 0..rows {
                            request.row(row)[..8].copy_from_slice(&(mark | row as u64).to_le_bytes());
                        }
                        request.send(memory)?.answer().await
                    });
                    let mut asked = WaitingClient { number, rows, due: now + SLO, call };
                    match result_of(&mut asked) {
                        None => waiting.push(asked),
                        Some(result) => prop_assert!(matches!(result, Err(Refusal::Overloaded)), "{result:?}"),
                    }
                }
                Happening::Leaves(which) if !waiting.is_empty() => {
                    waiting.swap_remove(which % waiting.len());
                }
                Happening::Ends(which, times) => engine.end(which, times),
                Happening::Repeats(which) if !engine.said.is_empty() => {
                    let again = engine.said[which % engine.said.len()];
                    engine.say(again);
                }
                Happening::Leaves(_) | Happening::Repeats(_) => {}
                Happening::Passes(milliseconds) => {
                    // Often enough for the frontend's look at deadlines.
                    for _ in 0..milliseconds {
                        time.increment(1_000_000u64);
                        now += Nanos::from_millis(1);
                        client.deliver(&mut Vec::new());
                    }
                    client.deliver(&mut Vec::new());
                    waiting.retain_mut(|waiter| result_of(waiter).is_none());
                    let bound = GRACE + Nanos::from_millis(21);
                    prop_assert!(waiting.iter().all(|waiter| now <= waiter.due + bound), "one has no answer in time");
                }
            }
        }
        let left = waiting.len();
        if dies {
            faults.report("rank", "died");
            prop_assert_eq!(client.cut_off(), left, "each client that waits is told once");
            for waiter in &mut waiting {
                let result = result_of(waiter);
                prop_assert!(matches!(result, Some(Err(Refusal::Broken))), "{result:?}");
            }
            prop_assert_eq!(client.cut_off(), 0);
        }
        for _ in 0..200 {
            time.increment(1_000_000u64);
            client.deliver(&mut Vec::new());
        }
        if !dies {
            prop_assert!(waiting.iter_mut().all(|waiter| result_of(waiter).is_some()), "one has no answer");
        }
        prop_assert_eq!(client.in_flight(), 0);
        let held: usize = client.waiting.borrow().iter().flatten().count();
        prop_assert_eq!(held, 0, "the table keeps no call that has ended");
    }
}

#[test]
fn a_large_output_is_copied_out_of_its_slots_in_slices() {
    let tensor = TensorSpec { name: "t".into(), datatype: DataType::Uint8, shape: vec![3 << 20] };
    let signature = Signature::of_rows(vec![tensor.clone()], vec![tensor]);
    let served = ModelInfo { signature, state: SlotState::Serving, ..ModelInfo::vacant(ModelId(0), 0) };
    let (mut frontend, peer) = Frontend::new(FrontendSetup::of_models(Arc::new([served]))).unwrap();
    let held = frontend.reserve(&Ask { rows: 2, ..Ask::one(ModelId(0)) }).unwrap();
    held.slots.iter().for_each(|&slot| peer.slab.claim(slot).unwrap()[3 << 20..6 << 20].fill(7));
    let slices = Slices::alone();
    let output = ready_now(copied(frontend.slab_view(), &held.slots, 3 << 20..6 << 20, &slices));
    assert!(output.len() == 6 << 20 && output.iter().all(|&byte| byte == 7));
    assert!((SLICE_BYTES..2 * SLICE_BYTES).contains(&slices.largest()), "{}", slices.largest());
    frontend.release(held.slots);
}

/// Answers every request of a frontend at once and rings, until it is to stop.
fn answer_and_ring(mut peer: FrontendPeer, bells: &Doorbells, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        match peer.requests[0].pop() {
            Some(Request { id, slot, .. }) => {
                let ending = Ending::Done as u32;
                peer.responses[0].push(Response { id, slot, ending, ..Response::default() }).unwrap();
                bells.ring();
            }
            None => std::thread::yield_now(),
        }
    }
}

#[test]
fn an_answer_wakes_the_pump_that_sleeps_until_a_doorbell_rings() {
    /// Far longer than the test takes.
    const FOR_EVER: Duration = Duration::from_secs(100);
    let (bells, stop) = (Doorbells::new(), AtomicBool::new(false));
    let slo = Nanos::from_secs(1_000);
    let served = ModelInfo { slo, state: SlotState::Serving, ..ModelInfo::vacant(ModelId(0), 0) };
    let setup = FrontendSetup { bells: bells.clone(), ..FrontendSetup::of_models(Arc::new([served])) };
    let faults = setup.faults.clone();
    let (frontend, peer) = Frontend::new(setup).unwrap();
    let clock = frontend.clock().clone();
    let metrics = Rc::new(Arc::new(Telemetry::through(&frontend)).add_core("api"));
    let panics = HandlerPanics::new("api", faults, metrics.clone(), Rc::default());
    let tasks = Rc::new(CoreTasks::new(panics, metrics.clone(), clock, TurnClock::Elapsed));
    let mut client = EngineClient::new(frontend, metrics, Idle::Nap);
    client.longest_sleep = FOR_EVER;
    let client = Rc::new(client);
    std::thread::scope(|scope| {
        scope.spawn(|| answer_and_ring(peer, &bells, &stop));
        let executor = local_executor(Placement { core: None, idle: Idle::Nap }).unwrap();
        let began = Instant::now();
        executor.run(async {
            let pumped = client.clone();
            let pump = glommio::spawn_local(async move { pumped.pump(&tasks).await });
            let memory = CoreMemory::new(1 << 20, 1 << 20);
            for _ in 0..2_000 {
                let request = client.reserve(&Ask::one(ModelId(0))).unwrap();
                let pending = request.send(memory.lease(&Rc::default())).unwrap();
                assert_eq!(pending.answer().await.unwrap().0.outcome, Outcome::Good);
            }
            pump.cancel().await;
        });
        stop.store(true, Ordering::Relaxed);
        assert!(began.elapsed() < FOR_EVER, "an answer was seen only at the end of the longest sleep");
    });
}
