//! A ModelThread and the RankThread allocate nothing between start and stop, with the flight
//! recorder on: counted by an allocator of this test's own, on these threads only.

mod harness;

use harness::engine::{EmulatedModel, emulated_gpus, start_with};
use harness::process::PATIENCE;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use symphony::config::{Config, ExecutorKind};
use symphony::recorder::RecordConfig;
use symphony::runtime::frontend::{Ask, Class, Due, Frontend, Refusal};
use symphony::runtime::{Engine, Idle, LoadedModel, Options};
use symphony_transport::message::ModelId;

thread_local! {
    /// True if this thread must not allocate.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// True while allocations of watched threads count.
static ARMED: AtomicBool = AtomicBool::new(false);

/// The number of allocations and releases by watched threads while [`ARMED`].
static COUNTED: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Counting {
    fn count() {
        if ARMED.load(Ordering::Relaxed) && WATCHED.try_with(Cell::get).unwrap_or(false) {
            COUNTED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MODELS: u32 = 5;

const MODEL: EmulatedModel = EmulatedModel { slo_ms: 200.0, alpha_ms: 0.2, beta_ms: 1.0, more: "" };

/// Returns the `nth` request: the models take turns, and with `classes` so do the classes, with and
/// without a deadline.
fn ask(nth: u32, classes: bool) -> Ask {
    let class = if classes { Class::new((nth % 4) as u8).unwrap() } else { Class::HIGHEST };
    let due = if classes && nth.is_multiple_of(3) { Due::Never } else { Due::Slo };
    Ask { class, due, ..Ask::one(ModelId(nth % MODELS)) }
}

/// Sends `count` requests to all models and waits for their answers.
fn pump(frontend: &mut Frontend, count: u32, classes: bool) {
    let began = Instant::now();
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        assert!(began.elapsed() < PATIENCE, "{answered} of {count} answered");
        for _ in 0..64.min(count - sent) {
            match frontend.submit(&ask(sent, classes), |_, input| input.fill(0)) {
                Ok(_) => sent += 1,
                Err(Refusal::Overloaded) => break,
                Err(refusal) => panic!("{refusal}"),
            }
        }
        answered += frontend.poll(|_, _| ()) as u32;
        std::thread::yield_now();
    }
}

/// An engine's configuration, in `folder`, with `extra` in its file.
fn config(folder: &Path, extra: &str) -> Config {
    let models = MODEL.sections(MODELS as usize);
    harness::engine::config(folder, &format!("{extra}{}{models}", emulated_gpus(20)))
}

/// Serves thousands of requests, does `meanwhile`, and checks that ModelThreads and the RankThread
/// allocate nothing in that time.
fn serve(config: Config, record: Option<RecordConfig>, meanwhile: impl FnOnce(&mut Engine, &mut Frontend)) {
    let seen = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let roles = Arc::clone(&seen);
    let options = Options {
        record,
        on_thread_start: Some(Arc::new(move |role: &str| {
            // The emulated GPUs stand for machines beyond the dataplane.
            if role != "emulated" {
                roles.lock().unwrap().insert(role.to_owned());
                WATCHED.set(true);
            }
        })),
        idle: Some(Idle::Spin),
        ..Options::default()
    };
    let (mut engine, mut frontend) = start_with(config, options);
    // Once these requests are answered, every thread is past its start.
    pump(&mut frontend, 2_000, false);
    let before = engine.counters().snapshot();
    ARMED.store(true, Ordering::SeqCst);
    pump(&mut frontend, 50_000, true);
    meanwhile(&mut engine, &mut frontend);
    ARMED.store(false, Ordering::SeqCst);
    let after = engine.counters().snapshot();
    let counted = COUNTED.load(Ordering::SeqCst);
    let batches = |counters: &symphony::runtime::counters::CountersSnapshot| -> u64 {
        counters.models.iter().map(|tally| tally.batches).sum()
    };
    engine.stop();
    assert_eq!(*seen.lock().unwrap(), HashSet::from(["model-0".to_owned(), "rank".to_owned()]));
    assert!(batches(&after) > batches(&before), "batches were sent meanwhile");
    assert_eq!(counted, 0, "allocations on a ModelThread or the RankThread");
}

#[test]
fn model_threads_and_the_rank_thread_allocate_nothing_between_start_and_stop() {
    let folder = tempfile::tempdir().unwrap();
    let record = RecordConfig { folder: folder.path().join("record"), mib: 8 };
    serve(config(folder.path(), ""), Some(record), |_, _| ());

    // Nor do they while models are loaded and unloaded: the control plane makes and frees what they
    // take and give back.
    let models = folder.path().join("models/later");
    std::fs::create_dir_all(&models).unwrap();
    std::fs::write(models.join("model.toml"), MODEL.keys()).unwrap();
    let changing = config(folder.path(), "[repository]\npath = \"models\"\ncontrol = \"explicit\"\n");
    let repository = changing.repository.clone().unwrap();
    serve(changing, None, |engine, frontend| {
        let mut model_slots = engine.take_model_slots().unwrap();
        for _ in 0..20 {
            let mut versions =
                repository.read_model("later", &[ExecutorKind::Emulated], None).unwrap().versions;
            let model = LoadedModel::emulated(versions.remove(0));
            let id = model_slots.prepare(model).unwrap_or_else(|error| panic!("{error}"));
            model_slots.switch(&[id], &[]);
            frontend.poll(|_, _| ());
            frontend.submit(&Ask::one(id), |_, input| input.fill(0)).unwrap();
            model_slots.switch(&[], &[id]);
            pump(frontend, 100, true);
            while model_slots.reclaim().unwrap() > 0 {
                frontend.poll(|_, _| ());
            }
        }
    });

    // The check can fail: an allocation on a watched thread is counted.
    ARMED.store(true, Ordering::SeqCst);
    std::thread::spawn(|| {
        WATCHED.set(true);
        drop(std::hint::black_box(Box::new(1u64)));
        WATCHED.set(false);
    })
    .join()
    .unwrap();
    ARMED.store(false, Ordering::SeqCst);
    assert!(COUNTED.load(Ordering::SeqCst) >= 2);
}
