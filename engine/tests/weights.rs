//! LOADs and UNLOADs of weights under an engine, on a fake driver: what is refused, what is late,
//! what becomes of requests, and what of everything when the driver fails or hangs.

mod harness;

use harness::engine::{answer_all, config};
use harness::process::PATIENCE;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use symphony::control::weights::{GpuLoaders, WeightsChange, WeightsEnd, WeightsError, WeightsOrder};
use symphony::runtime::frontend::{Ask, Due, Frontend, Outcome};
use symphony::runtime::gpu_memory::GpuPages;
use symphony::runtime::{Engine, Options, no_progress};
use symphony_fake_driver::{FakeDriver, Fault, driver_error, ecc_error};
use symphony_gpu::CudaModel;
use symphony_gpu::cuda::WeightsState;
use symphony_gpu::plan::CompileOptions;
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, ModelId};

use WeightsChange::{Load, Unload};

/// The memory of a fake GPU.
const MEMORY: u64 = 256 << 20;

fn linear() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu/tests/data/linear.onnx")
}

/// An engine with GPUs, and their loaders.
struct Rig {
    driver: Arc<FakeDriver>,
    engine: Engine,
    frontend: Frontend,
    loaders: GpuLoaders,
}

impl Rig {
    /// Starts an engine whose GPUs have so much memory, for as many models as there are names. Each
    /// has one page of weights.
    fn start(gpus: usize, models: &[&str], memory_mb: usize, hung_after_s: f64) -> Rig {
        let driver = FakeDriver::new(&vec![MEMORY; gpus]);
        let mut text = format!(
            "policy = \"work-conserving\"\n[faults]\ngrace_ms = 20\nhung_after_s = {hung_after_s}\n\
             [[executors]]\nkind = \"cuda\"\ncount = {gpus}\npage_mb = 1\nmemory_mb = {memory_mb}\n"
        );
        for name in models {
            text += &format!(
                "[[models]]\nname = \"{name}\"\nfile = \"{}\"\nslo_ms = 20000\nmax_batch = 4\n\
                 profile = {{ alpha_ms = 0.1, beta_ms = 1 }}\n",
                linear().display()
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), &text);
        let hung_after = config.faults.hung_after;
        let options = Options { cuda: Some(driver.clone()), ..Options::default() };
        let (engine, mut frontends) = Engine::start_with(config, 1, no_progress(), options).unwrap();
        let loaders = GpuLoaders::start(&engine, hung_after, &no_progress()).unwrap();
        Rig { driver, engine, frontend: frontends.pop().unwrap(), loaders }
    }

    fn begin(&self, change: WeightsChange, model: &str, gpu: Option<u32>) -> Receiver<WeightsEnd> {
        self.begin_within(change, (model, gpu), None)
    }

    fn begin_within(
        &self,
        change: WeightsChange,
        (model, gpu): (&str, Option<u32>),
        within: Option<Duration>,
    ) -> Receiver<WeightsEnd> {
        let model = model.to_owned();
        let order = WeightsOrder { change, model, version: None, gpu, after: Duration::ZERO, within };
        let (done, ended) = channel();
        // Whoever was answered twice would send twice.
        self.loaders.order(&order, Box::new(move |end| done.send(end).unwrap()));
        ended
    }

    /// Carries an order out, and returns how it ends.
    fn order(&self, change: WeightsChange, model: &str, gpu: Option<u32>) -> WeightsEnd {
        ended(&self.begin(change, model, gpu))
    }

    /// Sends requests for a model and returns how each has ended.
    fn ask(&mut self, model: u32, count: usize) -> Vec<Outcome> {
        self.send(model, count);
        let mut outcomes = Vec::new();
        answer_all(&mut self.frontend, |_, answer| outcomes.push(answer.outcome));
        assert_eq!(outcomes.len(), count);
        outcomes
    }

    fn send(&mut self, model: u32, count: usize) {
        let ask = Ask { due: Due::Within(Nanos::from_secs(20)), ..Ask::one(ModelId(model)) };
        for _ in 0..count {
            self.frontend.submit(&ask, |_, input| input.fill(0)).unwrap();
        }
    }

    fn pages(&self, gpu: usize) -> GpuPages {
        self.engine.gpu_memory().pages().swap_remove(gpu)
    }

    /// Stops everything; nothing is left on these GPUs then.
    fn stop(self, sound: &[usize]) {
        let Rig { driver, engine, frontend, loaders } = self;
        loaders.stop_within(PATIENCE);
        drop(loaders);
        engine.stop();
        drop(frontend);
        for &gpu in sound {
            assert!(driver.live(gpu).is_empty(), "{:?} are left on GPU {gpu}", driver.live(gpu));
        }
    }
}

/// Waits for the end of an order, which comes once.
fn ended(order: &Receiver<WeightsEnd>) -> WeightsEnd {
    order.recv_timeout(PATIENCE).expect("an order ends")
}

fn wrong(end: WeightsEnd) -> String {
    match end {
        Err(WeightsError::Wrong(why) | WeightsError::Unknown(why)) => why,
        other => panic!("{other:?}"),
    }
}

const UNLOADED: Outcome = Outcome::Bad(Ending::Stopped);

#[test]
fn weights_come_and_go_on_one_gpu_or_on_all_and_requests_are_answered_accordingly() {
    let mut rig = Rig::start(2, &["a", "b"], 64, 5.0);
    let free = rig.pages(0).counts.free;
    let done = rig.order(Unload, "a", None).unwrap();
    assert_eq!(done.iter().map(|of| (of.gpu.0, of.pages)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    assert_eq!([rig.pages(0).counts.free, rig.pages(1).counts.free], [free + 1; 2]);
    assert!(rig.ask(0, 6).iter().all(|outcome| *outcome == UNLOADED));
    assert!(rig.ask(1, 6).iter().all(|outcome| *outcome == Outcome::Good), "the other model runs");
    let done = rig.order(Load, "a", Some(1)).unwrap();
    assert_eq!(done.len(), 1);
    assert!(done[0].predicted.is_some(), "a model's weights are loaded once when it is made");
    let said = done[0].to_string();
    assert!(
        said.starts_with("loaded a, version 1, GPU 1: 1 page in ") && said.contains("predicted"),
        "{said}"
    );
    let states = |gpu: usize| rig.pages(gpu).models.iter().map(|of| of.state).collect::<Vec<_>>();
    assert_eq!(states(0), [WeightsState::Unloaded, WeightsState::Loaded]);
    assert_eq!(states(1), [WeightsState::Loaded; 2]);
    // All GPUs on which there is something to do.
    assert_eq!(rig.order(Load, "a", None).unwrap()[0].gpu.0, 0);
    assert!(rig.ask(0, 6).iter().all(|outcome| *outcome == Outcome::Good));
    rig.stop(&[0, 1]);
}

#[test]
fn what_can_not_be_done_is_refused_with_the_reason() {
    let rig = Rig::start(1, &["a", "b"], 64, 5.0);
    for (change, model, gpu, expected) in [
        (Load, "x", None, "no model \"x\" is served; there are \"a\", \"b\""),
        (Load, "a", Some(7), "there is no GPU 7 of kind \"cuda\" here; there are 0"),
        (Load, "a", None, "model \"a\" is loaded on GPU 0 already"),
    ] {
        assert_eq!(wrong(rig.order(change, model, gpu)), expected);
    }
    rig.order(Unload, "a", None).unwrap();
    assert_eq!(wrong(rig.order(Unload, "a", Some(0))), "model \"a\" is unloaded on GPU 0 already");
    let late = rig.begin_within(Load, ("a", None), Some(Duration::ZERO));
    match ended(&late) {
        Err(WeightsError::Late(why)) => assert!(why.contains("could not begin in its window"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.pages(0).models[0].state, WeightsState::Unloaded);
    // Only as much memory as is in use now: another model takes the page.
    let used = rig.pages(0).counts.total - rig.pages(0).counts.free;
    rig.stop(&[0]);
    let rig = Rig::start(1, &["a"], used as usize, 5.0);
    rig.order(Unload, "a", None).unwrap();
    let other = another_model(&rig);
    let said = wrong(rig.order(Load, "a", None));
    assert_eq!(
        said,
        "model \"a\" needs 1 page, 0 are free on GPU 0; no model is loaded there; give it more memory"
    );
    drop(other);
    rig.order(Load, "a", None).unwrap();
    rig.stop(&[0]);
}

/// Puts a model on GPU 0 that is not served.
fn another_model(rig: &Rig) -> CudaModel {
    let gpu = rig.engine.gpu_memory().gpus().swap_remove(0);
    let options = CompileOptions { max_batch: 4, precision: Default::default() };
    CudaModel::load(linear().as_path(), options, gpu.device()).unwrap()
}

#[test]
fn an_unload_waits_for_the_batch_that_runs() {
    let mut rig = Rig::start(1, &["a"], 64, 60.0);
    rig.driver.plan_fault(0, "launch_graph", 0, Fault::Hang);
    rig.send(0, 1);
    let began = Instant::now();
    while !rig.driver.calls(0).contains_key("launch_graph") {
        assert!(began.elapsed() < PATIENCE, "no batch is launched");
        rig.frontend.poll(|_, _| panic!("it is answered"));
    }
    let unload = rig.begin(Unload, "a", None);
    assert!(unload.recv_timeout(Duration::from_millis(100)).is_err(), "the batch still runs");
    assert_eq!(rig.pages(0).models[0].held, 1);
    rig.driver.resume(0);
    let mut outcomes = Vec::new();
    answer_all(&mut rig.frontend, |_, answer| outcomes.push(answer.outcome));
    assert_eq!(outcomes, [Outcome::Good]);
    ended(&unload).unwrap();
    assert_eq!(rig.pages(0).models[0].held, 0);
    rig.stop(&[0]);
}

#[test]
fn a_refused_call_fails_the_change_and_leaks_no_page() {
    let mut rig = Rig::start(1, &["a"], 64, 5.0);
    let loaded = rig.pages(0);
    for (change, call) in
        [(Load, "map"), (Load, "allow"), (Load, "copy_in"), (Load, "elapsed"), (Unload, "unmap")]
    {
        if change == Load {
            rig.order(Unload, "a", None).unwrap();
        }
        let before = rig.pages(0);
        let error = driver_error(call, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
        rig.driver.plan_fault(0, call, 0, Fault::Refuse(error));
        match rig.order(change, "a", None) {
            Err(WeightsError::Failed(why)) => {
                assert!(why.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{call}: {why}")
            }
            other => panic!("{call}: {other:?}"),
        }
        let after = rig.pages(0);
        assert_eq!((after.counts, after.lost.as_deref()), (before.counts, None), "{call}");
        if change == Unload {
            // What could not be taken away is taken away the next time.
            assert_eq!(rig.order(Unload, "a", None).unwrap()[0].pages, 1);
        }
        rig.order(Load, "a", None).unwrap();
        assert_eq!(rig.pages(0).counts, loaded.counts, "{call}");
        assert_eq!(rig.ask(0, 3), [Outcome::Good; 3], "{call}");
    }
    rig.stop(&[0]);
}

#[test]
fn a_gpu_that_is_lost_or_hangs_in_a_change_is_taken_out_and_the_other_one_serves() {
    let lost = |call| driver_error(call, 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure");
    for (change, call, fault, reason) in [
        (Load, "copy_in", Fault::Break(ecc_error("copy_in")), "CUDA_ERROR_ECC_UNCORRECTABLE"),
        (Load, "map", Fault::Break(lost("map")), "CUDA_ERROR_LAUNCH_FAILED"),
        (Load, "copy_in", Fault::Hang, "it has not answered for"),
        (Load, "map", Fault::Hang, "the load of a has not ended after"),
        (Unload, "unmap", Fault::Break(ecc_error("unmap")), "CUDA_ERROR_ECC_UNCORRECTABLE"),
        (Unload, "unmap", Fault::Hang, "the unload of a has not ended after"),
    ] {
        let mut rig = Rig::start(2, &["a", "b"], 64, 2.0);
        if change == Load {
            rig.order(Unload, "a", Some(0)).unwrap();
        }
        rig.driver.plan_fault(0, call, 0, fault);
        let waiting = rig.begin(change, "a", Some(0));
        let behind = rig.begin(Unload, "b", Some(0));
        for order in [&waiting, &behind] {
            match ended(order) {
                Err(WeightsError::Lost(why)) => {
                    assert!(why.starts_with("GPU 0 is taken out: ") && why.contains(reason), "{call}: {why}");
                }
                other => panic!("{call}: {other:?}"),
            }
        }
        assert!(rig.pages(0).lost.is_some_and(|why| why.contains(reason)), "{call}");
        assert!(matches!(rig.order(Load, "b", Some(0)), Err(WeightsError::Lost(_))), "{call}");
        // What was sent to the lost GPU has failed; the other one answers.
        let began = Instant::now();
        while !(0..2).all(|model| rig.ask(model, 4).contains(&Outcome::Good)) {
            assert!(began.elapsed() < PATIENCE, "{call}: the other GPU does not serve");
        }
        assert_eq!(rig.order(Unload, "b", Some(1)).unwrap()[0].pages, 1, "{call}");
        assert!(rig.engine.fault().is_none(), "the engine goes on");
        for order in [waiting, behind] {
            assert!(order.try_recv().is_err(), "{call}: an order ends once");
        }
        rig.driver.resume(0);
        rig.stop(&[1]);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Load(usize),
    Unload(usize),
    /// Requests of each model, while an UNLOAD or LOAD of one is under way.
    Ask(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let model = 0..3usize;
    prop_oneof![
        model.clone().prop_map(Step::Load),
        model.clone().prop_map(Step::Unload),
        model.prop_map(Step::Ask),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    /// Two of three models have room.
    #[test]
    fn with_memory_short_every_order_and_every_request_ends_once_and_every_page_is_accounted(
        steps in prop::collection::vec(step(), 1..30),
    ) {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let first = Rig::start(1, &NAMES, 64, 5.0);
        let counts = first.pages(0).counts;
        let shared = first.pages(0).shared;
        first.stop(&[0]);
        let mut rig = Rig::start(1, &NAMES, (counts.total - counts.free) as usize, 5.0);
        for name in NAMES {
            rig.order(Unload, name, None).unwrap();
        }
        let other = another_model(&rig);
        let mut is_there = [false; 3];
        for step in steps {
            let loaded = is_there.iter().filter(|is_there| **is_there).count();
            match step {
                Step::Load(at) => {
                    let end = rig.order(Load, NAMES[at], None);
                    let expected = match (is_there[at], loaded) {
                        (true, _) => Some("loaded on GPU 0 already"),
                        (false, 2) => Some("needs 1 page, 0 are free on GPU 0; unload one of "),
                        _ => None,
                    };
                    match expected {
                        Some(why) => prop_assert!(wrong(end.clone()).contains(why), "{end:?}"),
                        None => is_there[at] = end.is_ok(),
                    }
                    prop_assert!(is_there[at] || expected.is_some());
                }
                Step::Unload(at) => {
                    let end = rig.order(Unload, NAMES[at], None);
                    prop_assert_eq!(end.is_ok(), is_there[at]);
                    is_there[at] = false;
                }
                Step::Ask(at) => {
                    // The change comes between the requests.
                    (0..3).for_each(|model| rig.send(model, 2));
                    let change = if is_there[at] { Unload } else { Load };
                    let order = rig.begin(change, NAMES[at], None);
                    (0..3).for_each(|model| rig.send(model, 2));
                    let mut outcomes: [Vec<Outcome>; 3] = Default::default();
                    answer_all(&mut rig.frontend, |_, answer| {
                        outcomes[answer.model.0 as usize].push(answer.outcome);
                    });
                    let end = ended(&order);
                    prop_assert_eq!(end.is_ok(), change == Unload || loaded < 2);
                    for (model, outcomes) in outcomes.iter().enumerate() {
                        prop_assert_eq!(outcomes.len(), 4);
                        let steady = if is_there[model] { Outcome::Good } else { UNLOADED };
                        let sound = |outcome: &Outcome| {
                            *outcome == steady || (model == at && [Outcome::Good, UNLOADED].contains(outcome))
                        };
                        prop_assert!(outcomes.iter().all(sound), "model {}: {:?}", model, outcomes);
                    }
                    if end.is_ok() {
                        is_there[at] = change == Load;
                    }
                }
            }
            let pages = rig.pages(0);
            let loaded = is_there.iter().filter(|is_there| **is_there).count() as u32;
            // The other model's page counts among those that no served model has.
            prop_assert_eq!((pages.counts.free, pages.shared), (2 - loaded, shared + 1));
            prop_assert_eq!(rig.driver.live(0)["mapped"] as u32, pages.counts.total - pages.counts.free);
        }
        drop(other);
        rig.stop(&[0]);
    }
}
