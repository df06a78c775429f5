//! Models come and go while the engine serves, on real threads under load: every accepted request
//! is answered, a place is used again by another model, and nothing piles up.

mod harness;

use harness::engine::resident_kib;
use harness::process::PATIENCE;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use symphony::config::{Config, ExecutorKind, RepositoryConfig};
use symphony::runtime::frontend::{Ask, Due, ModelInfo, Outcome, Refusal, SlotState};
use symphony::runtime::{Engine, Frontend, LoadedModel, ModelSlotError, ModelSlots};
use symphony_transport::message::{Ending, ModelId};

/// An emulated model whose request takes so many bytes each way.
fn model_toml(bytes: usize) -> String {
    let tensor = |name| format!("[{{ name = \"{name}\", datatype = \"UINT8\", shape = [{bytes}] }}]");
    format!(
        "executor = \"emulated\"\nslo_ms = 60000\nprofile = {{ alpha_ms = 0.01, beta_ms = 0.05 }}\n\
         inputs = {}\noutputs = {}\n",
        tensor("x"),
        tensor("y")
    )
}

/// An engine with two emulated GPUs, model_slots for four models, and a repository of small models.
fn config(folder: &Path, models: &[(&str, usize)], extra: &str) -> Config {
    let text = format!(
        "policy = \"work-conserving\"\n[repository]\npath = \"models\"\ncontrol = \"explicit\"\nmax_versions = 4\n\
         max_row_kb = 4\nload = [\"{}\"]\n{extra}[[executors]]\nkind = \"emulated\"\ncount = 2\n[cores]\n\
         model_threads = 2\n",
        models[0].0
    );
    for (name, bytes) in models {
        let folder = folder.join("models").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model.toml"), model_toml(*bytes)).unwrap();
    }
    harness::engine::config(folder, &text)
}

fn start(config: &Config) -> (Engine, Frontend, ModelSlots) {
    let (mut engine, mut frontends) = Engine::start(config.clone(), 1, Arc::new(|_: &str| ())).unwrap();
    let model_slots = engine.take_model_slots().expect("explicit control keeps model_slots");
    (engine, frontends.pop().unwrap(), model_slots)
}

fn read(repository: &RepositoryConfig, name: &str) -> LoadedModel {
    let mut versions = repository.read_model(name, &[ExecutorKind::Emulated], None).unwrap().versions;
    LoadedModel::emulated(versions.pop().unwrap())
}

/// Serves on a thread of its own until told to stop: asks whatever is served, by name, as fast as
/// it is answered.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Frontend>,
}

impl Load {
    fn on(mut frontend: Frontend, names: Vec<String>) -> Load {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            let mut sent = 0;
            while !until.load(Ordering::Relaxed) || frontend.in_flight() > 0 {
                if !until.load(Ordering::Relaxed) && frontend.in_flight() < 200 {
                    let name = &names[sent % names.len()];
                    // Held while it is asked, as a handler of the API does.
                    let models = Arc::clone(frontend.models());
                    let model = ModelInfo::find(&models, name, None).map(|model| model.id);
                    match model.map(|id| frontend.submit(&Ask::one(id), |_, input| input.fill(1))) {
                        // Not served at the moment: the test says when that may be.
                        None | Some(Err(Refusal::Overloaded)) => {}
                        Some(Ok(_)) => sent += 1,
                        Some(Err(other)) => panic!("{name}: {other}"),
                    }
                    sent += usize::from(model.is_none());
                }
                let delivered = frontend.poll(|_, answer| {
                    assert_eq!(answer.outcome, Outcome::Good, "of model {:?}", answer.model);
                    assert!(answer.row(0).iter().all(|&byte| byte == 0), "an emulated model answers zeros");
                });
                count.fetch_add(delivered as u64, Ordering::Relaxed);
                if delivered == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            frontend
        });
        Load { stop, answered, thread }
    }

    /// Waits until so many more requests are answered.
    fn wait_for(&self, more: u64) {
        let (began, from) = (Instant::now(), self.answered.load(Ordering::Relaxed));
        while self.answered.load(Ordering::Relaxed) < from + more {
            assert!(began.elapsed() < PATIENCE, "no answers come");
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn stop(self) -> (Frontend, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let frontend = self.thread.join().unwrap();
        (frontend, self.answered.load(Ordering::Relaxed))
    }
}

fn reclaim_all(model_slots: &mut ModelSlots) {
    let began = Instant::now();
    while model_slots.reclaim().unwrap() > 0 {
        assert!(began.elapsed() < PATIENCE, "a model that was unloaded does not go");
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn load(model_slots: &mut ModelSlots, model: LoadedModel) -> ModelId {
    let id = model_slots.prepare(model).unwrap_or_else(|error| panic!("{error}"));
    model_slots.switch(&[id], &[]);
    id
}

#[test]
fn a_version_is_replaced_a_thousand_times_under_load_and_no_request_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &[("m", 16)], "");
    let repository = config.repository.clone().unwrap();
    let (engine, frontend, mut model_slots) = start(&config);
    let load = Load::on(frontend, vec!["m".to_owned()]);
    let mut serving = ModelId(0);
    let replace = |model_slots: &mut ModelSlots, serving: &mut ModelId, version: u64| {
        let mut model = read(&repository, "m");
        model.config.version = version;
        let next = model_slots.prepare(model).unwrap_or_else(|error| panic!("{error}"));
        model_slots.switch(&[next], &[*serving]);
        *serving = next;
        reclaim_all(model_slots);
    };
    for version in 2..=100 {
        replace(&mut model_slots, &mut serving, version);
        load.wait_for(1);
    }
    let before = resident_kib();
    for version in 101..=1_000 {
        replace(&mut model_slots, &mut serving, version);
    }
    // A queue alone has 512 KiB: had any been left behind, it would be seen.
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB are left behind");
    let (mut frontend, answered) = load.stop();
    assert!(answered > 100);
    frontend.poll(|_, _| ());
    let versions: Vec<u64> = ModelInfo::served(frontend.models()).map(|model| model.version).collect();
    assert_eq!(versions, [1_000]);
    // What was counted of the versions before, in the same place, is not this one's.
    let of_newest = engine.counters().executions().of_model(serving);
    assert!(of_newest.rows < answered, "{of_newest:?} of {answered}");
    assert!(frontend.take_replaced_models().count() <= 4, "each place once");
    let counted = engine.counters().clone();
    engine.stop();
    let ended: u64 = counted.snapshot().models.iter().map(|thread| thread.batched_requests).sum();
    assert_eq!(ended, answered);
}

#[test]
fn models_of_all_sizes_come_and_go_and_their_places_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [("a", 16), ("b", 400), ("c", 1), ("d", 2_000), ("e", 70)];
    let config = config(folder.path(), &sizes, "");
    let repository = config.repository.clone().unwrap();
    let (engine, frontend, mut model_slots) = start(&config);
    let names = sizes.iter().map(|(name, _)| (*name).to_owned()).collect();
    let serving = Load::on(frontend, names);
    let mut loaded = vec![("a", ModelId(0))];
    for turn in 0..400 {
        let (name, _) = sizes[turn % sizes.len()];
        match loaded.iter().position(|(other, _)| *other == name) {
            Some(at) => {
                let (_, id) = loaded.swap_remove(at);
                model_slots.switch(&[], &[id]);
                assert!(model_slots.is_draining(id) && model_slots.models()[id.0 as usize].name == name);
            }
            None if loaded.len() < 3 => loaded.push((name, load(&mut model_slots, read(&repository, name)))),
            None => {}
        }
        reclaim_all(&mut model_slots);
        if turn % 20 == 0 && !loaded.is_empty() {
            serving.wait_for(10);
        }
    }
    let (_frontend, answered) = serving.stop();
    assert!(answered > 0);
    engine.stop();
}

#[test]
fn a_full_engine_and_a_row_too_large_say_what_would_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &[("m", 16), ("wide", 3_000)], "");
    let repository = config.repository.clone().unwrap();
    let (engine, _frontend, mut model_slots) = start(&config);
    for _ in 0..3 {
        load(&mut model_slots, read(&repository, "m"));
    }
    let told = model_slots.prepare(read(&repository, "m")).unwrap_err();
    assert!(matches!(told, ModelSlotError::Full(4, "emulated")), "{told}");
    let told = model_slots.prepare(read(&repository, "wide")).unwrap_err().to_string();
    let expected = "one request takes 6000 bytes, inputs and outputs together, and the largest slots of this engine \
                    hold 4096; set max_row_kb in [repository] to 6 and start again";
    assert_eq!(told, expected);
    engine.stop();
}

#[test]
fn a_model_that_somebody_may_still_ask_keeps_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &[("m", 16)], "");
    let (engine, mut frontend, mut model_slots) = start(&config);
    let held = Arc::clone(frontend.models());
    let id = held[0].id;
    model_slots.switch(&[], &[id]);
    frontend.poll(|_, _| ());
    assert!(ModelInfo::find(frontend.models(), "m", None).is_none(), "nobody finds it any more");
    assert_eq!(model_slots.reclaim().unwrap(), 1);
    // Who has looked it up before may ask it, and is answered.
    frontend.submit(&Ask::one(id), |_, input| input.fill(0)).unwrap();
    drop(held);
    // Whoever holds the newest table alone has not.
    let newest = Arc::clone(frontend.models());
    assert_eq!(newest[id.0 as usize].state, SlotState::Draining);
    assert_eq!(frontend.submit(&Ask::one(id), |_, _| ()), Err(Refusal::NotServing));
    assert_eq!(frontend.reserve(&Ask::one(id)), Err(Refusal::NotServing));
    drop(newest);
    let began = Instant::now();
    let mut answered = 0;
    while answered == 0 {
        assert!(began.elapsed() < PATIENCE);
        // With the request in flight it stays; once that has ended it goes.
        let draining = model_slots.reclaim().unwrap();
        answered += frontend.poll(|_, answer| assert_eq!(answer.outcome, Outcome::Good));
        assert!(answered > 0 || draining == 1);
    }
    reclaim_all(&mut model_slots);
    frontend.poll(|_, _| ());
    assert_eq!(frontend.submit(&Ask::one(id), |_, _| ()), Err(Refusal::Unloaded));
    engine.stop();
}

#[test]
fn a_model_that_is_prepared_and_in_no_table_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &[("m", 16), ("n", 16)], "");
    let (engine, mut frontend, mut model_slots) = start(&config);
    let prepared = model_slots.prepare(read(config.repository.as_ref().unwrap(), "n")).unwrap();
    let served = frontend.models()[0].id;
    model_slots.switch(&[], &[served]);
    for model in [prepared, served] {
        assert_eq!(frontend.submit(&Ask::one(model), |_, _| ()), Err(Refusal::NotServing));
    }
    engine.stop();
}

#[test]
fn what_waits_without_a_deadline_for_a_model_that_leaves_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), &[("a", 4), ("slow", 4)], "");
    let toml = "executor = \"emulated\"\nslo_ms = 600000\nmax_batch = 1\nprofile = { alpha_ms = 1, beta_ms = 300000 }\n";
    std::fs::write(folder.path().join("models/slow/model.toml"), toml).unwrap();
    let (engine, mut frontend, mut model_slots) = start(&config);
    let id = model_slots.prepare(read(config.repository.as_ref().unwrap(), "slow")).unwrap();
    model_slots.switch(&[id], &[]);
    frontend.poll(|_, _| ());
    // Two run for five minutes on the two GPUs, the rest waits.
    for _ in 0..2 {
        frontend.submit(&Ask::one(id), |_, _| ()).unwrap();
    }
    for _ in 0..50 {
        frontend.submit(&Ask { due: Due::Never, ..Ask::one(id) }, |_, _| ()).unwrap();
    }
    model_slots.switch(&[], &[id]);
    let (began, mut stopped) = (Instant::now(), 0);
    while stopped < 50 {
        assert!(began.elapsed() < PATIENCE, "{stopped} are answered");
        assert_eq!(model_slots.reclaim().unwrap(), 1, "what runs is waited for");
        frontend.poll(|_, answer| {
            assert_eq!(answer.outcome, Outcome::Bad(Ending::Stopped));
            stopped += 1;
        });
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(frontend.in_flight(), 2);
    drop(model_slots);
    engine.stop();
}
