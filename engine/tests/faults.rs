//! Threads of the engine that die, each in turn: the fault names the thread and its panic, requests
//! in flight end at once, new ones get an error, and the engine can be stopped.

mod harness;

use harness::engine::{EmulatedModel, answer_all, config, emulated_gpus, start_with};
use harness::process::{PATIENCE, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use symphony::runtime::frontend::{Ask, Due, Outcome, Refusal};
use symphony::runtime::{Options, ThreadHook};
use symphony_transport::message::ModelId;

const MODEL: EmulatedModel = EmulatedModel { slo_ms: 60_000.0, alpha_ms: 1.0, beta_ms: 5.0, more: "" };

/// A batch runs for ten minutes and is due later still: only a fault ends it.
const SLOW: EmulatedModel = EmulatedModel { slo_ms: 3_000_000.0, beta_ms: 600_000.0, ..MODEL };

/// Makes options with which the role `role` panics in its next duty cycle once the flag is set.
fn panicking(role: &'static str) -> (Options, Arc<AtomicBool>) {
    let now = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&now);
    let before: ThreadHook = Arc::new(move |running: &str| {
        assert!(!(running == role && seen.load(Ordering::Relaxed)), "a fault for {role}");
    });
    (Options { before_cycle: Some(before), ..Options::default() }, now)
}

#[test]
fn a_thread_that_dies_is_named_with_its_panic_and_the_engine_refuses_and_stops() {
    for role in ["model-0", "rank", "emulated"] {
        let folder = tempfile::tempdir().unwrap();
        let text = emulated_gpus(1) + &MODEL.sections(1) + &SLOW.sections(1).replace("m0", "slow");
        let (options, die) = panicking(role);
        let (engine, mut frontend) = start_with(config(folder.path(), &text), options);
        frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
        let mut good = 0;
        answer_all(&mut frontend, |_, _| good += 1);
        assert_eq!((good, engine.fault()), (1, None));
        let never = Ask { due: Due::Never, rows: 2, ..Ask::one(ModelId(1)) };
        for ask in [Ask::one(ModelId(1)), never, Ask::one(ModelId(1))] {
            frontend.submit(&ask, |_, _| ()).unwrap();
        }
        die.store(true, Ordering::Relaxed);
        wait_until("the fault is known", || engine.fault().is_some());
        let mut ended = Vec::new();
        let answered = frontend.poll(|_, answer| ended.push(answer.outcome));
        assert_eq!((answered, frontend.in_flight()), (3, 0), "{role}");
        assert_eq!(ended, [Outcome::Broken; 3], "{role}");
        let fault = engine.fault().unwrap();
        assert_eq!(fault.thread, role);
        assert!(fault.what.starts_with("died: panicked at engine/tests/faults.rs:"), "{fault}");
        assert!(fault.what.ends_with(&format!("a fault for {role}")), "{fault}");
        assert_eq!(frontend.submit(&Ask::one(ModelId(0)), |_, _| ()), Err(Refusal::Broken));
        let stopped = engine.stop_within(PATIENCE).unwrap_err();
        assert_eq!(stopped.thread, role);
    }
}

#[test]
fn a_thread_that_hangs_is_named_and_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (hang, role) = (Arc::new(AtomicBool::new(false)), "rank");
    let seen = Arc::clone(&hang);
    let before: ThreadHook = Arc::new(move |running: &str| {
        while running == role && seen.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let options = Options { before_cycle: Some(before), ..Options::default() };
    let text = format!("thread_timeout_s = 1\n{}{}", emulated_gpus(1), MODEL.sections(1));
    let (engine, _frontend) = start_with(config(folder.path(), &text), options);
    hang.store(true, Ordering::Relaxed);
    wait_until("the fault is known", || engine.fault().is_some());
    assert_eq!(engine.fault().map(|fault| fault.thread.as_str()), Some(role));
    let began = Instant::now();
    engine.stop_within(Duration::from_millis(100)).unwrap_err();
    assert!(began.elapsed() < PATIENCE);
    hang.store(false, Ordering::Relaxed);
}
