//! The control thread on a running engine: orders and a polled folder, emulated models and real
//! ones.

mod harness;

use harness::process::PATIENCE;
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use symphony::config::Config;
use symphony::control::{ControlError, IndexEntry, Repository, State};
use symphony::runtime::frontend::{Ask, ModelInfo, Outcome};
use symphony::runtime::{Engine, Frontend, Progress};

const EMULATED: &str =
    "executor = \"emulated\"\nslo_ms = 60000\nprofile = { alpha_ms = 0.01, beta_ms = 0.05 }\n";

/// A real model whose time is given.
const SHAPES: &str = "slo_ms = 60000\nmax_batch = 4\nprofile = { alpha_ms = 5, beta_ms = 5 }\n";

/// What `control` says, and what the repository's other keys are.
fn config(folder: &Path, control: &str) -> Config {
    let text = format!(
        "policy = \"work-conserving\"\n[repository]\npath = \"models\"\nmax_versions = 4\nmax_row_kb = 64\n\
         control = \"{control}\"\npoll_seconds = 1\n[[executors]]\nkind = \"cpu\"\n[[executors]]\n\
         kind = \"emulated\"\n[[models]]\nname = \"own\"\n{EMULATED}"
    );
    std::fs::create_dir_all(folder.join("models")).unwrap();
    harness::engine::config(folder, &text)
}

fn put(folder: &Path, file: &str, content: &str) {
    let file = folder.join("models").join(file);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, content).unwrap();
}

fn put_shapes(folder: &Path, version: u64) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/shapes.onnx");
    let to = folder.join("models/shapes").join(version.to_string());
    std::fs::create_dir_all(&to).unwrap();
    std::fs::copy(from, to.join("model.onnx")).unwrap();
}

struct Served {
    engine: Engine,
    frontend: Frontend,
    repository: Repository,
    said: Arc<Mutex<Vec<String>>>,
}

fn serve(folder: &Path, control: &str) -> Served {
    let config = config(folder, control);
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let say: Progress = Arc::new(move |line: &str| heard.lock().unwrap().push(line.to_owned()));
    let (mut engine, mut frontends) = Engine::start(config.clone(), 1, Arc::clone(&say)).unwrap();
    let model_slots = engine.take_model_slots().unwrap();
    let repository = Repository::start(&config, model_slots, say).unwrap();
    Served { engine, frontend: frontends.pop().unwrap(), repository, said }
}

impl Served {
    /// Orders and waits for the end, polling as a frontend's thread does.
    fn order(&mut self, load: bool, name: &str) -> Result<(), ControlError> {
        let (sender, ended) = channel();
        let done = Box::new(move |result| sender.send(result).unwrap());
        if load {
            self.repository.load(name, None, done)
        } else {
            self.repository.unload(name, false, done)
        }
        let began = Instant::now();
        loop {
            if let Ok(result) = ended.recv_timeout(Duration::from_millis(5)) {
                self.frontend.poll(|_, _| ());
                return result;
            }
            self.frontend.poll(|_, _| ());
            assert!(began.elapsed() < PATIENCE, "an order for {name} does not end");
        }
    }

    fn load(&mut self, name: &str) {
        self.order(true, name).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until it is so, polling as a frontend's thread does.
    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&Served) -> bool) {
        let began = Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}, {:?}", self.repository.index(), self.said);
            self.frontend.poll(|_, _| ());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, name: &str, version: Option<u64>) {
        let models = Arc::clone(self.frontend.models());
        let id = ModelInfo::find(&models, name, version).unwrap_or_else(|| panic!("{name} is not served")).id;
        self.frontend.submit(&Ask::one(id), |_, input| input.fill(0)).unwrap();
        let (began, mut answered) = (Instant::now(), 0);
        while answered == 0 {
            assert!(began.elapsed() < PATIENCE);
            answered += self.frontend.poll(|_, answer| assert_eq!(answer.outcome, Outcome::Good));
        }
    }

    fn versions(&self, name: &str) -> Vec<u64> {
        let models = self.frontend.models();
        let named = ModelInfo::served(models).filter(|model| model.name == name);
        let mut versions: Vec<u64> = named.map(|model| model.version).collect();
        versions.sort_unstable();
        versions
    }

    fn entry(&self, name: &str) -> Vec<IndexEntry> {
        self.repository.index().into_iter().filter(|entry| entry.name == name).collect()
    }

    fn stop(self) {
        drop(self.frontend);
        self.repository.stop();
        self.engine.stop();
    }
}

fn ready(name: &str, version: u64) -> IndexEntry {
    IndexEntry { name: name.into(), version: Some(version), state: State::Ready, reason: String::new() }
}

#[test]
fn models_are_loaded_and_unloaded_by_orders() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "gpu/model.toml", EMULATED);
    put(folder.path(), "shapes/model.toml", SHAPES);
    put_shapes(folder.path(), 1);
    let mut served = serve(folder.path(), "explicit");
    assert!(served.versions("gpu").is_empty() && served.versions("shapes").is_empty());
    assert_eq!(served.entry("own"), [ready("own", 1)]);
    assert_eq!(served.entry("gpu")[0].state, State::Unavailable);
    served.load("gpu");
    served.load("shapes");
    assert_eq!(served.entry("shapes"), [ready("shapes", 1)]);
    served.ask("gpu", None);
    served.ask("shapes", None);
    // A second version: the newest is served, the old one goes.
    put_shapes(folder.path(), 2);
    served.load("shapes");
    assert_eq!(served.versions("shapes"), [2]);
    served.ask("shapes", None);
    served.wait("version 1 leaves", |served| served.entry("shapes") == [ready("shapes", 2)]);
    put(folder.path(), "shapes/config.pbtxt", "version_policy { all { } }");
    served.load("shapes");
    assert_eq!(served.versions("shapes"), [1, 2]);
    served.ask("shapes", Some(1));
    served.order(false, "shapes").unwrap();
    assert!(served.versions("shapes").is_empty());
    served.wait("all of it leaves", |served| served.entry("shapes")[0].state == State::Unavailable);
    served.load("shapes");
    served.ask("shapes", Some(1));
    served.stop();
}

#[test]
fn an_order_that_can_not_be_obeyed_says_why_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "gpu/model.toml", EMULATED);
    let mut served = serve(folder.path(), "explicit");
    let unknown = served.order(true, "../models/gpu").unwrap_err();
    assert!(matches!(&unknown, ControlError::Unknown(_)), "{unknown}");
    let unknown = served.order(false, "gpu").unwrap_err();
    assert_eq!(unknown, ControlError::Unknown("no version of model \"gpu\" is loaded".into()));
    let own = served.order(false, "own").unwrap_err();
    assert!(matches!(&own, ControlError::Wrong(why) if why.contains("one of CONFIG's own")), "{own}");
    served.load("gpu");
    // What is loaded stays, whatever becomes of its files.
    put(folder.path(), "gpu/model.toml", "executor = \"emulated\"\n");
    let wrong = served.order(true, "gpu").unwrap_err().to_string();
    assert!(wrong.contains("gpu/model.toml:1: slo_ms: is missing"), "{wrong}");
    served.ask("gpu", None);
    assert_eq!(served.entry("gpu")[0].reason, wrong);
    put(folder.path(), "gpu/1/model.onnx", "no model");
    put(folder.path(), "gpu/model.toml", "slo_ms = 50\n");
    let wrong = served.order(true, "gpu").unwrap_err().to_string();
    assert!(wrong.contains("is not an ONNX model"), "{wrong}");
    served.ask("gpu", None);
    // Another kind of executor takes over from one request to the next.
    let shapes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/quickstart/shapes.onnx");
    std::fs::copy(shapes, folder.path().join("models/gpu/1/model.onnx")).unwrap();
    put(folder.path(), "gpu/model.toml", SHAPES);
    served.load("gpu");
    served.ask("gpu", None);
    assert_eq!(ModelInfo::find(served.frontend.models(), "gpu", None).unwrap().platform, "onnx_rten");
    served.stop();
}

#[test]
fn a_polled_folder_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "first/model.toml", EMULATED);
    let mut served = serve(folder.path(), "poll");
    assert_eq!(served.versions("first"), [1]);
    let refused = served.order(true, "first").unwrap_err();
    assert!(matches!(&refused, ControlError::Off(why) if why.contains("polled")), "{refused}");
    put(folder.path(), "second/model.toml", EMULATED);
    served.wait("the second is loaded", |served| served.versions("second") == [1]);
    served.ask("second", None);
    let slo = |served: &Served| ModelInfo::find(served.frontend.models(), "second", None).map(|m| m.slo);
    let before = slo(&served);
    put(folder.path(), "second/model.toml", &EMULATED.replace("60000", "50000.0"));
    served.wait("its new words hold", |served| slo(served) != before);
    served.ask("second", None);
    put(folder.path(), "second/model.toml", "slo_ms = \"soon\"\n");
    served.wait("its diagnostic is told", |served| {
        served.said.lock().unwrap().iter().any(|line| line.contains("slo_ms: \"soon\" is a string"))
    });
    served.ask("second", None);
    std::fs::remove_dir_all(folder.path().join("models/second")).unwrap();
    served.wait("it is unloaded", |served| served.versions("second").is_empty());
    served.wait("nothing tells of it", |served| served.entry("second").is_empty());
    served.ask("first", None);
    served.stop();
}

#[test]
fn a_model_is_measured_while_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "shapes/model.toml", "slo_ms = 60000\nmax_batch = 2\n");
    put_shapes(folder.path(), 1);
    let mut served = serve(folder.path(), "explicit");
    let (sender, ended) = channel();
    served.repository.load("shapes", None, Box::new(move |result| sender.send(result).unwrap()));
    let began = Instant::now();
    let mut meanwhile = 0;
    let result = loop {
        if let Ok(result) = ended.try_recv() {
            break result;
        }
        served.ask("own", None);
        meanwhile += 1;
        assert!(began.elapsed() < PATIENCE);
    };
    assert_eq!(result, Ok(()));
    assert!(meanwhile > 0);
    served.frontend.poll(|_, _| ());
    served.ask("shapes", None);
    assert!(served.said.lock().unwrap().iter().any(|line| line.starts_with("measured shapes: l(1) = ")));
    served.stop();
}
