//! Models that hang or fail on what a request says, and executors that die: other requests and
//! other models are served.

mod harness;

use harness::engine::{answer_all, config, poll_until, start_with};
use harness::onnx::loop_model;
use harness::process::PATIENCE;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use symphony::runtime::frontend::{Ask, Due, Frontend, Outcome, Ticket};
use symphony::runtime::{Engine, Options, ThreadHook};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

const LOOPS: ModelId = ModelId(0);
const LINEAR: ModelId = ModelId(1);
const EMBEDDING: ModelId = ModelId(2);

/// Starts an engine of `executors` CPU executors with a model that may loop, one that never does,
/// and one that fails on an index out of its range.
fn serve(folder: &Path, executors: usize, faults: &str) -> (Engine, Frontend) {
    serve_with(folder, executors, faults, Options::default())
}

/// Starts such an engine with these options.
fn serve_with(folder: &Path, executors: usize, faults: &str, options: Options) -> (Engine, Frontend) {
    std::fs::write(folder.join("loops.onnx"), loop_model()).unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data");
    let mut text =
        format!("[faults]\ngrace_ms = 20\n{faults}\n[[executors]]\nkind = \"cpu\"\ncount = {executors}\n");
    for name in ["loops", "linear", "embedding"] {
        let file = format!("{name}.onnx");
        if name != "loops" {
            std::fs::copy(data.join(&file), folder.join(&file)).unwrap();
        }
        text += &format!(
            "[[models]]\nname = \"{name}\"\nfile = \"{file}\"\nslo_ms = 1000\nmax_batch = 8\n\
             profile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n"
        );
    }
    start_with(config(folder, &text), options)
}

/// Sends a request to the model that loops this often, and returns its outcome.
fn ask_to_loop(frontend: &mut Frontend, times: i64, within: Nanos) -> Outcome {
    let ask = Ask { due: Due::Within(within), ..Ask::one(LOOPS) };
    let fill = |_, input: &mut [u8]| {
        input.fill(0);
        input[..8].copy_from_slice(&times.to_le_bytes());
    };
    frontend.submit(&ask, fill).unwrap();
    answer(frontend)
}

/// Waits for the answer of the only request in flight.
fn answer(frontend: &mut Frontend) -> Outcome {
    let mut outcome = None;
    answer_all(frontend, |_, answer| outcome = Some(answer.outcome));
    outcome.expect("one was in flight")
}

/// Sends requests that end well soon until this many in a row have.
fn serve_in_a_row(frontend: &mut Frontend, model: ModelId, count: usize) {
    let (began, mut good) = (Instant::now(), 0);
    while good < count {
        assert!(began.elapsed() < PATIENCE, "{model:?} is not served any more");
        frontend.submit(&Ask::one(model), |_, input| input.fill(0)).unwrap();
        good = if answer(frontend) == Outcome::Good { good + 1 } else { 0 };
    }
}

/// Makes an executor hang: sends a request that loops until one has begun to run.
fn hang(frontend: &mut Frontend) {
    let began = Instant::now();
    loop {
        assert!(began.elapsed() < PATIENCE, "no request began to run");
        let outcome = ask_to_loop(frontend, i64::MAX, Nanos::from_millis(200));
        // Failed if this thread had no core until the executor was given up.
        if matches!(outcome, Outcome::Overdue(_) | Outcome::Bad(Ending::Failed)) {
            return;
        }
        assert!(
            matches!(outcome, Outcome::Bad(Ending::DroppedInQueue | Ending::DroppedAtBackend)),
            "{outcome:?}"
        );
    }
}

fn hung_batches(engine: &Engine) -> u64 {
    engine.counters().executions().of_model(LOOPS).hung_batches
}

#[test]
fn an_executor_that_hangs_is_replaced_and_its_model_unloaded_after_the_third_time() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), 1, "hung_after_s = 0.5");
    assert_eq!(ask_to_loop(&mut frontend, 3, Nanos::from_secs(60)), Outcome::Good);
    let old_table = Arc::clone(frontend.newest_models());
    for time in 1..=3 {
        hang(&mut frontend);
        poll_until(&mut frontend, "its slot is free", |frontend| frontend.counts().held_slots.get() == 0);
        poll_until(&mut frontend, "it is counted", |_| hung_batches(&engine) == time);
        serve_in_a_row(&mut frontend, LINEAR, 3);
        if time < 3 {
            serve_in_a_row(&mut frontend, LOOPS, 1);
        }
    }
    poll_until(&mut frontend, "it is unloaded", |frontend| frontend.find_model("loops").is_none());
    assert!(frontend.find_model("linear").is_some());
    let withdrawn = engine.model_table().withdrawn();
    assert!(
        withdrawn[0].name == "loops" && withdrawn[0].reason.contains("hang or die 3 times"),
        "{withdrawn:?}"
    );
    // What an older table still lets through fails at once.
    let outcome = ask_to_loop(&mut frontend, 0, Nanos::from_secs(60));
    assert_eq!(outcome, Outcome::Bad(Ending::Failed));
    drop(old_table);
    engine.stop();
}

#[test]
fn while_one_executor_hangs_the_others_serve() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), 2, "hung_after_s = 3600");
    hang(&mut frontend);
    serve_in_a_row(&mut frontend, LINEAR, 20);
    assert_eq!((hung_batches(&engine), frontend.counts().held_slots.get() >= 1), (0, true));
    // A stop does not wait for an hour.
    let began = Instant::now();
    engine.stop();
    assert!(began.elapsed() < PATIENCE);
}

#[test]
fn a_request_whose_batch_waits_behind_one_that_hangs_ends_in_time() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("loops.onnx"), loop_model()).unwrap();
    let linear = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx");
    std::fs::copy(linear, folder.path().join("linear.onnx")).unwrap();
    // The executor is thought to loop from 1 s to 3 s, so it gets its next batch a second ahead.
    let text = "policy = \"work-conserving\"\n[network]\ncontrol_us = 1000000\n\
                [faults]\ngrace_ms = 10000\nhung_after_s = 3600\n[[executors]]\nkind = \"cpu\"\ncount = 1\n\
                [[models]]\nname = \"loops\"\nfile = \"loops.onnx\"\nslo_ms = 600000\nmax_batch = 1\n\
                profile = { alpha_ms = 1, beta_ms = 2000 }\n\
                [[models]]\nname = \"linear\"\nfile = \"linear.onnx\"\nslo_ms = 5000\nmax_batch = 8\n\
                profile = { alpha_ms = 0.1, beta_ms = 1 }\n";
    let (engine, mut frontend) = start_with(config(folder.path(), text), Options::default());
    let endless = |_: usize, input: &mut [u8]| {
        input.fill(0);
        input[..8].copy_from_slice(&i64::MAX.to_le_bytes());
    };
    frontend.submit(&Ask::one(LOOPS), endless).unwrap();
    let (began, mut ended) = (Instant::now(), Vec::new());
    while !ended.contains(&Outcome::Bad(Ending::DroppedAtBackend)) {
        assert!(began.elapsed() < PATIENCE, "{ended:?}");
        // Whoever finds no room is one of too many already.
        let _ = frontend.submit(&Ask::one(LINEAR), |_, input| input.fill(0));
        frontend.poll(|_, answer| ended.push(answer.outcome));
        let overdue = ended.iter().find(|of| matches!(of, Outcome::Overdue(_)));
        assert_eq!(overdue, None, "only the grace ended it");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(engine.counters().executions().of_model(LINEAR).cancelled_batches > 0);
    engine.stop();
}

#[test]
fn an_executor_that_may_not_be_replaced_ends_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), 1, "hung_after_s = 0.5\nmax_hung_threads = 0");
    hang(&mut frontend);
    poll_until(&mut frontend, "its slot is free", |frontend| frontend.counts().held_slots.get() == 0);
    for _ in 0..10 {
        frontend.submit(&Ask::one(LINEAR), |_, input| input.fill(0)).unwrap();
        let outcome = answer(&mut frontend);
        assert!(matches!(outcome, Outcome::Bad(_) | Outcome::Overdue(_)), "{outcome:?}");
    }
    engine.stop();
}

#[test]
fn a_request_on_which_its_batch_fails_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), 1, "");
    let ask = Ask { due: Due::Never, ..Ask::one(EMBEDDING) };
    let send = |frontend: &mut Frontend, index: i64| -> Ticket {
        frontend
            .submit(&ask, |_, input| input.copy_from_slice(&[index.to_le_bytes(), [0; 8]].concat()))
            .unwrap()
    };
    let tickets: Vec<Ticket> =
        (0..24).map(|nth| send(&mut frontend, if nth % 8 == 5 { i64::MAX } else { 0 })).collect();
    answer_all(&mut frontend, |ticket, answer| {
        let nth = tickets.iter().position(|of| *of == ticket).unwrap();
        let expected = if nth % 8 == 5 { Outcome::Bad(Ending::Failed) } else { Outcome::Good };
        assert_eq!(answer.outcome, expected, "{nth}");
    });
    assert_eq!(engine.counters().executions().of_model(EMBEDDING).failed_rows, 3);
    engine.stop();
}

/// A place of an executor at which its thread panics, once, after it was named here.
type NextPanic = Arc<Mutex<Option<&'static str>>>;

/// Makes options with which an executor panics where it is told to.
fn panicking() -> (Options, NextPanic) {
    let next = NextPanic::default();
    let seen = Arc::clone(&next);
    let before: ThreadHook = Arc::new(move |place: &str| {
        let panics = seen.lock().unwrap().take_if(|next| *next == place).is_some();
        assert!(!panics, "a fault where {place}");
    });
    (Options { before_cycle: Some(before), ..Options::default() }, next)
}

#[test]
fn an_executor_whose_thread_dies_goes_on_in_another_and_a_model_that_kills_three_is_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    let (options, panic_at) = panicking();
    let (engine, mut frontend) = serve_with(folder.path(), 1, "", options);
    *panic_at.lock().unwrap() = Some("cpu-0");
    poll_until(&mut frontend, "it has died", |_| panic_at.lock().unwrap().is_none());
    serve_in_a_row(&mut frontend, LINEAR, 3);
    let counts = || engine.counters().executions().of_model(EMBEDDING);
    for time in 1..=3 {
        *panic_at.lock().unwrap() = Some("cpu-0 runs");
        let ask = Ask { due: Due::Never, ..Ask::one(EMBEDDING) };
        frontend.submit(&ask, |_, input| input.fill(0)).unwrap();
        assert_eq!(answer(&mut frontend), Outcome::Bad(Ending::Failed));
        poll_until(&mut frontend, "it is counted", |_| {
            (counts().hung_batches, counts().failed_rows) == (time, time)
        });
        serve_in_a_row(&mut frontend, if time < 3 { EMBEDDING } else { LINEAR }, 3);
    }
    poll_until(&mut frontend, "it is unloaded", |frontend| frontend.find_model("embedding").is_none());
    assert_eq!(engine.fault(), None);
    engine.stop();
}

#[test]
fn an_executor_whose_threads_die_again_and_again_without_a_model_is_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    let (options, panic_at) = panicking();
    let (engine, mut frontend) = serve_with(folder.path(), 1, "", options);
    for _ in 0..3 {
        *panic_at.lock().unwrap() = Some("cpu-0");
        poll_until(&mut frontend, "it has died", |_| panic_at.lock().unwrap().is_none());
    }
    poll_until(&mut frontend, "the fault is known", |_| engine.fault().is_some());
    let fault = engine.fault().unwrap().clone();
    assert!(fault.thread == "cpu-0" && fault.what.contains("3 times"), "{fault}");
    assert_eq!(engine.stop_within(PATIENCE), Err(fault));
}
