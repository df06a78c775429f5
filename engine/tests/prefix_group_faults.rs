//! Models that are run as one, when their shared layers or one's own fail or hang, or the executor
//! dies: each request is answered once, and what can run gives the right answer.

mod harness;

use harness::engine::{answer_all, config, poll_until, start_with};
use harness::onnx::{BOOL, FLOAT, INT64, constant, file, graph, graph_attribute, node, number_attribute};
use harness::onnx::{numbers, tensor};
use harness::process::PATIENCE;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;
use symphony::runtime::frontend::{Ask, Due, Frontend, Outcome, Refusal};
use symphony::runtime::{Engine, Options, ThreadHook};
use symphony_transport::message::{Ending, ModelId};

/// The models of the group, in their order, and what each adds to the shared layers' output.
const GROUP: [(&str, f32); 3] = [("calm", 10.0), ("picks", 20.0), ("loops", 30.0)];
const CALM: ModelId = ModelId(0);
const PICKS: ModelId = ModelId(1);
const LOOPS: ModelId = ModelId(2);

/// A model by itself.
const OTHER: ModelId = ModelId(3);

/// The elements of the tables that rows pick from: an index beyond them fails.
const TABLE: [f32; 4] = [0.0, 1.0, 2.0, 3.0];

/// Writes a model: the shared layers give max(2 x, 0) and what `k` picks; of the own ones those of
/// `picks` add what `n` picks, and those of `loops` add 0 for `n` times.
fn write_model(folder: &Path, name: &str, add: f32) {
    let shared = [
        node("Mul", &["x", "two"], &["twice"], &[]),
        node("Relu", &["twice"], &["positive"], &[]),
        node("Gather", &["table", "k"], &["picked"], &[]),
        node("Add", &["positive", "picked"], &["shared"], &[]),
    ];
    let body = graph(
        &[node("Identity", &["go"], &["go_on"], &[]), node("Add", &["sum", "nothing"], &["same"], &[])],
        &[constant("nothing", 0.0)],
        &[tensor("at", INT64, &[]), tensor("go", BOOL, &[]), tensor("sum", FLOAT, &[1])],
        &[tensor("go_on", BOOL, &[]), tensor("same", FLOAT, &[1])],
    );
    let own = match name {
        "picks" => vec![node("Gather", &["table", "n"], &["more"], &[])],
        "loops" => vec![
            node("ReduceMax", &["n"], &["most"], &[number_attribute("keepdims", 0)]),
            node("Loop", &["most", "", "zero"], &["more"], &[graph_attribute("body", &body)]),
        ],
        _ => vec![node("Identity", &["zero"], &["more"], &[])],
    };
    let last = [node("Add", &["shared", "more"], &["sum"], &[]), node("Add", &["sum", "c"], &["y"], &[])];
    let nodes = [shared.to_vec(), own, last.to_vec()].concat();
    let constants = [
        constant("two", 2.0),
        numbers("table", &[TABLE.len() as u64], &TABLE),
        constant("zero", 0.0),
        constant("c", add),
    ];
    let inputs = [tensor("x", FLOAT, &[0, 1]), tensor("n", INT64, &[0, 1]), tensor("k", INT64, &[0, 1])];
    let content = file(&graph(&nodes, &constants, &inputs, &[tensor("y", FLOAT, &[0, 1])]));
    std::fs::write(folder.join(format!("{name}.onnx")), content).unwrap();
}

/// Starts an engine of one executor with the group, and a model by itself.
fn serve(folder: &Path, faults: &str, options: Options) -> (Engine, Frontend) {
    let keys = "max_batch = 8\nprofile = { alpha_ms = 0.1, beta_ms = 1 }\n";
    let mut text = format!("[faults]\ngrace_ms = 20\n{faults}\n[[executors]]\nkind = \"cpu\"\ncount = 1\n");
    for (name, add) in GROUP {
        write_model(folder, name, add);
        text += &format!(
            "[[models]]\nname = \"{name}\"\nfile = \"{name}.onnx\"\nprefix_group = \"g\"\nslo_ms = 1000\n{keys}"
        );
    }
    text += &format!("[[models]]\nname = \"other\"\nfile = \"calm.onnx\"\nslo_ms = 1000\n{keys}");
    start_with(config(folder, &text), options)
}

/// A request of one row.
#[derive(Clone, Copy)]
struct Row {
    model: ModelId,
    x: f32,
    n: i64,
    k: i64,
}

impl Row {
    fn of(model: ModelId) -> Row {
        Row { model, x: 1.0, n: 1, k: 2 }
    }

    /// Returns what its model gives for it; `None` if it fails.
    fn expected(self) -> Option<f32> {
        let pick = |at: i64| usize::try_from(at).ok().and_then(|at| TABLE.get(at)).copied();
        let shared = (2.0 * self.x).max(0.0) + pick(self.k)?;
        let more = if self.model == PICKS { pick(self.n)? } else { 0.0 };
        Some(shared + more + if self.model == OTHER { GROUP[0].1 } else { GROUP[self.model.0 as usize].1 })
    }
}

/// Sends rows at once; returns the outcome of each, and what it was answered with. Each is answered
/// once. One for a model that was taken out is refused, which counts as failed.
fn ask(frontend: &mut Frontend, rows: &[Row], due: Due) -> Vec<(Outcome, Option<f32>)> {
    let (mut places, mut answers) = (HashMap::new(), vec![None; rows.len()]);
    for (at, row) in rows.iter().enumerate() {
        let fill = |_: usize, input: &mut [u8]| {
            input[..4].copy_from_slice(&row.x.to_le_bytes());
            input[8..16].copy_from_slice(&row.n.to_le_bytes());
            input[16..24].copy_from_slice(&row.k.to_le_bytes());
        };
        match frontend.submit(&Ask { due, ..Ask::one(row.model) }, fill) {
            Ok(ticket) => assert!(places.insert(ticket, at).is_none()),
            Err(Refusal::Unloaded) => answers[at] = Some((Outcome::Bad(Ending::Failed), None)),
            Err(refusal) => panic!("{refusal}"),
        }
    }
    answer_all(frontend, |ticket, answer| {
        let output = answer.row(0).first_chunk().map(|y| f32::from_le_bytes(*y));
        let before = answers[places[&ticket]].replace((answer.outcome, output));
        assert!(before.is_none(), "it was answered before");
    });
    answers.into_iter().map(|answer| answer.expect("it is answered")).collect()
}

/// Sends a request to each of these models until all of them are answered well at once.
fn wait_until_served(frontend: &mut Frontend, models: &[ModelId]) {
    let began = Instant::now();
    let rows: Vec<Row> = models.iter().map(|&model| Row::of(model)).collect();
    loop {
        assert!(began.elapsed() < PATIENCE, "{models:?} are not served any more");
        let answers = ask(frontend, &rows, Due::Slo);
        for (row, (outcome, output)) in rows.iter().zip(&answers) {
            assert!(*outcome != Outcome::Good || *output == row.expected(), "{:?}: {output:?}", row.model);
        }
        if answers.iter().all(|(outcome, _)| *outcome == Outcome::Good) {
            return;
        }
    }
}

#[test]
fn a_row_on_which_the_shared_layers_or_its_own_fail_fails_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), "", Options::default());
    let beyond = TABLE.len() as i64;
    let rows: Vec<Row> = (0..48)
        .map(|nth| Row {
            x: nth as f32 - 8.0,
            k: if nth % 7 == 3 { beyond } else { nth % 4 },
            n: if nth % 5 == 2 { beyond } else { nth % 3 },
            ..Row::of(ModelId(nth as u32 % 3))
        })
        .collect();
    let failing = rows.iter().filter(|row| row.expected().is_none()).count();
    assert!(failing > 7, "some fail in the shared layers, some in their own");
    for (row, (outcome, output)) in rows.iter().zip(ask(&mut frontend, &rows, Due::Never)) {
        match row.expected() {
            Some(expected) => assert_eq!((outcome, output), (Outcome::Good, Some(expected))),
            None => assert_eq!(outcome, Outcome::Bad(Ending::Failed)),
        }
    }
    // The executor's counts are those of the first model.
    assert_eq!(engine.counters().executions().of_model(CALM).failed_rows, failing as u64);
    engine.stop();
}

#[test]
fn own_layers_that_hang_take_their_group_out_after_the_third_time_and_no_other_model() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, mut frontend) = serve(folder.path(), "hung_after_s = 0.5", Options::default());
    let hung = || engine.counters().executions().of_model(CALM).hung_batches;
    let all = [CALM, PICKS, LOOPS, OTHER];
    for time in 1..=3 {
        wait_until_served(&mut frontend, if time > 1 { &all } else { &all[..3] });
        let began = Instant::now();
        // A machine with much else to do drops the one that loops.
        while hung() < time {
            assert!(began.elapsed() < PATIENCE, "no executor hangs");
            let endless = Row { n: i64::MAX, ..Row::of(LOOPS) };
            ask(&mut frontend, &[Row::of(CALM), endless, Row::of(PICKS), Row::of(OTHER)], Due::Slo);
            poll_until(&mut frontend, "no slot is held", |frontend| frontend.counts().held_slots.get() == 0);
        }
    }
    let is_there = |frontend: &mut Frontend, name: &str| frontend.find_model(name).is_some();
    poll_until(&mut frontend, "the group is taken out", |frontend| {
        GROUP.iter().all(|(name, _)| !is_there(frontend, name))
    });
    wait_until_served(&mut frontend, &[OTHER]);
    let mut withdrawn = engine.model_table().withdrawn();
    withdrawn.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<&str> = withdrawn.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["calm", "loops", "picks"]);
    assert!(withdrawn.iter().all(|of| of.reason.contains("hang or die 3 times")), "{withdrawn:?}");
    engine.stop();
}

/// What an executor does at the next batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextBatch {
    Runs,
    Dies,
    Hangs,
}

#[test]
fn an_executor_that_dies_or_hangs_in_a_batch_of_a_group_goes_on_with_it() {
    for fault in [NextBatch::Dies, NextBatch::Hangs] {
        let folder = tempfile::tempdir().unwrap();
        let next = Arc::new((Mutex::new(NextBatch::Runs), Condvar::new()));
        let (seen, hung) = (Arc::clone(&next), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&hung);
        let before: ThreadHook = Arc::new(move |place: &str| {
            if place != "cpu-0 runs" {
                return;
            }
            let (next, over) = &*seen;
            let fault = std::mem::replace(&mut *next.lock().unwrap(), NextBatch::Runs);
            assert!(fault != NextBatch::Dies, "a fault in a batch");
            if fault == NextBatch::Hangs {
                counted.fetch_add(1, Ordering::Relaxed);
                let hung = next.lock().unwrap();
                drop(over.wait_while(hung, |next| *next != NextBatch::Hangs).unwrap());
            }
        });
        let options = Options { before_cycle: Some(before), ..Options::default() };
        let (engine, mut frontend) = serve(folder.path(), "hung_after_s = 0.5", options);
        wait_until_served(&mut frontend, &[CALM, PICKS, LOOPS, OTHER]);
        *next.0.lock().unwrap() = fault;
        let began = Instant::now();
        while engine.counters().executions().of_model(CALM).hung_batches == 0 {
            assert!(began.elapsed() < PATIENCE, "{fault:?}: no batch runs");
            ask(&mut frontend, &[CALM, PICKS, LOOPS].map(Row::of), Due::Slo);
        }
        // Another thread has the same group, of the graphs that were loaded.
        wait_until_served(&mut frontend, &[CALM, PICKS, LOOPS, OTHER]);
        // What hung comes back to nothing of it.
        *next.0.lock().unwrap() = NextBatch::Hangs;
        next.1.notify_all();
        assert_eq!(hung.load(Ordering::Relaxed), usize::from(fault == NextBatch::Hangs));
        engine.stop();
    }
}
