//! Runs the examples of documents, so that what they say is what happens. Each ```sh block is run
//! by bash in a folder that starts out with the repository's `examples`, and must succeed;
//! `symphony` and `loadgen` are those of this build, and a server of the quickstart, and one of
//! `loadgen echo`, run at addresses of their own in the place of the usual ones. A block of
//! ```text prints``` behind it is what it prints, to the letter; one of ```json prints``` has the same fields and texts, and numbers
//! of its own. Each ```toml block of a document about CONFIG is one that `symphony check` finds good.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

/// What documents write, and what stands for it here.
struct Stands(Vec<(&'static str, String)>);

/// A server, killed when the test is over.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // One that has ended already has said why.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The folder of this build's binaries, with `symphony` in it.
fn binaries() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_loadgen")).parent().unwrap().to_path_buf();
    let mut build = Command::new(env!("CARGO"));
    // A test of that binary has it built, and with the same features as this one: those of all
    // tests of the workspace.
    build.args(["test", "--quiet", "--workspace", "--test", "serve", "--no-run"]).current_dir(repository());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.stdout(Stdio::null()).status().unwrap().success());
    folder
}

/// Starts a command and reads the first line that it prints.
fn start(command: &mut Command) -> (Served, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Served(child), line.trim().to_owned())
}

/// A fenced block of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    /// Where it is: `docs/api.md:12`.
    place: String,
    /// What stands behind its first fence.
    kind: String,
    text: String,
}

/// The blocks of a document, `name`d so.
fn blocks(name: &str, document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (at, line) in (1..).zip(document.lines()) {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(kind) => {
                inside = true;
                let place = format!("{name}:{at}");
                blocks.push(Block { place, kind: kind.to_owned(), text: String::new() });
            }
            None if inside => {
                let text = &mut blocks.last_mut().expect("a block was begun").text;
                *text += line;
                text.push('\n');
            }
            None => {}
        }
    }
    blocks
}

fn blocks_of(document: &str) -> Vec<Block> {
    blocks(document, &std::fs::read_to_string(repository().join(document)).unwrap())
}

/// A folder with servers beside it, for examples to run in.
struct Bench {
    folder: tempfile::TempDir,
    path: String,
    stands: Stands,
    _servers: [Served; 2],
}

impl Bench {
    /// A `patient` one has a server whose models promise 400 times as much, for examples whose
    /// answers are looked at: the machine of a test is shared.
    fn new(patient: bool) -> Bench {
        let binaries = binaries();
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::os::unix::fs::symlink(repository().join("examples"), here.join("examples")).unwrap();
        // The machine of a test is shared: whether the generator is late there is not what
        // documents are about.
        let wrapper = here.join("bin");
        std::fs::create_dir(&wrapper).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in compare|echo) exec {0}/loadgen \"$@\";; esac\nexec {0}/loadgen --max-lateness 1e9 \"$@\"\n",
            binaries.display()
        );
        std::fs::write(wrapper.join("loadgen"), script).unwrap();
        let executable = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
        std::fs::set_permissions(wrapper.join("loadgen"), executable).unwrap();
        let usual = std::env::var("PATH").unwrap();
        let path = format!("{}:{}:{usual}", wrapper.display(), binaries.display());
        let mut serve = Command::new(binaries.join("symphony"));
        let config = if patient { patient_quickstart(here) } else { here.join("examples/quickstart") };
        serve.args(["serve", "--http", "127.0.0.1:0"]).arg(config).current_dir(here);
        let (server, ready) = start(&mut serve);
        let http = ready.strip_prefix("ready ").expect("the first line says where it serves").to_owned();
        let mut echo = Command::new(binaries.join("loadgen"));
        let (echo, ready) = start(echo.args(["echo", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]));
        let words: Vec<&str> = ready.split_whitespace().collect();
        let [secure, secure_grpc, admin] = free_addresses();
        let stands = Stands(vec![
            // All tests of a machine share these names.
            ("my-memory", format!("my-memory-{}", std::process::id())),
            ("\"timeout\": 40000", "\"timeout\": 40000000".into()),
            ("http://127.0.0.1:8000", http),
            ("http://127.0.0.1:9000", words[1].into()),
            ("http://127.0.0.1:9001", words[2].into()),
            ("127.0.0.1:8443", secure),
            ("127.0.0.1:8444", secure_grpc),
            ("127.0.0.1:8002", admin),
        ]);
        Bench { folder, path, stands, _servers: [server, echo] }
    }

    /// Runs a ```sh block, behind which `next` comes.
    fn run(&self, block: &Block, next: Option<&Block>) {
        let script = self
            .stands
            .0
            .iter()
            .fold(block.text.clone(), |script, (usual, ours)| script.replace(usual, ours));
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script])
            .current_dir(self.folder.path())
            .env("PATH", &self.path);
        let Output { status, stdout, stderr } = bash.output().unwrap();
        let (said, complaints) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{}: {status}\n{script}\n{said}\n{complaints}", block.place);
        match next.map(|next| (next.kind.as_str(), &next.text)) {
            Some(("text prints", text)) => assert_eq!(&said, text, "{}\n{complaints}", block.place),
            Some(("json prints", text)) => {
                let json = |text: &str| -> Value {
                    serde_json::from_str(text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", block.place))
                };
                assert_eq!(outline(json(&said)), outline(json(text)), "{}\n{said}", block.place);
            }
            _ => {}
        }
    }
}

/// Addresses for servers that examples start themselves: free a moment ago.
fn free_addresses<const N: usize>() -> [String; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().to_string())
}

/// The quickstart with SLOs that any machine keeps, in a folder of `here`.
fn patient_quickstart(here: &Path) -> PathBuf {
    let (from, to) = (repository().join("examples/quickstart"), here.join("patient"));
    std::fs::create_dir(&to).unwrap();
    for file in ["shapes.onnx", "wide.onnx"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let config = std::fs::read_to_string(from.join("symphony.toml")).unwrap();
    std::fs::write(to.join("symphony.toml"), config.replace("slo_ms = 50.0", "slo_ms = 20000.0")).unwrap();
    to
}

/// A value without its numbers, and without how many there are of them.
fn outline(value: Value) -> Value {
    match value {
        Value::Number(_) => Value::Null,
        Value::Array(items) => {
            let mut items: Vec<Value> = items.into_iter().map(outline).collect();
            items.dedup();
            Value::Array(items)
        }
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, outline(value))).collect(),
        other => other,
    }
}

/// Runs every example of `documents`, paths in the repository, so many at a time. With several at a
/// time none may look at answers.
pub(crate) fn run_examples(documents: &[&str], at_once: usize) {
    let bench = Bench::new(at_once == 1);
    let blocks: Vec<Block> = documents
        .iter()
        .flat_map(|document| {
            let blocks = blocks_of(document);
            assert!(blocks.iter().any(|block| block.kind == "sh"), "{document} has no example");
            blocks
        })
        .collect();
    let left = Mutex::new(blocks.iter().zip(blocks.iter().skip(1).map(Some).chain([None])));
    let work = || {
        loop {
            let next = left.lock().unwrap().find(|(block, _)| block.kind == "sh");
            let Some((block, next)) = next else { return };
            bench.run(block, next);
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
}

/// Lets `symphony check` read every ```toml block of a document about CONFIG. One that is a part of
/// a CONFIG gets what it lacks: an executor, a model.
pub(crate) fn check_configs(document: &str) {
    let symphony = binaries().join("symphony");
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let example = repository().join("examples/repository/models/shapes");
    std::fs::copy(repository().join("examples/quickstart/shapes.onnx"), here.join("digits.onnx")).unwrap();
    let version = here.join("models/shapes/1");
    std::fs::create_dir_all(&version).unwrap();
    std::fs::copy(example.join("1/model.onnx"), version.join("model.onnx")).unwrap();
    std::fs::copy(example.join("model.toml"), here.join("models/shapes/model.toml")).unwrap();
    let blocks = blocks_of(document);
    let configs: Vec<&Block> = blocks.iter().filter(|block| block.kind == "toml").collect();
    assert!(!configs.is_empty(), "{document} has no CONFIG");
    for block in configs {
        let mut text = block.text.clone();
        if !text.contains("[[executors]]") {
            text += "[[executors]]\nkind = \"emulated\"\n";
        }
        if !text.contains("[[models]]") && !text.contains("[repository]") {
            // As many as there may be RankThreads.
            for name in ["a", "b"] {
                text += &format!(
                    "[[models]]\nname = {name:?}\nexecutor = \"emulated\"\nslo_ms = 50\nprofile = {{ alpha_ms = 1, beta_ms = 5 }}\n"
                );
            }
        }
        std::fs::write(here.join("symphony.toml"), text).unwrap();
        let output = Command::new(&symphony).arg("check").arg(here).output().unwrap();
        assert!(output.status.success(), "{}: {}", block.place, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_block_is_what_stands_between_its_fences() {
    let text = "a\n```sh\nb\nc\n```\n```json prints\n{}\n```\n```sh\nd\n```\n";
    let found = blocks("x", text).into_iter().map(|block| (block.place, block.kind, block.text));
    let expected = [("x:2", "sh", "b\nc\n"), ("x:6", "json prints", "{}\n"), ("x:9", "sh", "d\n")];
    let expected = expected.map(|(place, kind, text)| (place.into(), kind.into(), text.into()));
    assert_eq!(found.collect::<Vec<(String, String, String)>>(), expected);
}

#[test]
fn an_outline_has_fields_and_texts_and_no_numbers() {
    let of = |text: &str| outline(serde_json::from_str(text).unwrap());
    assert_eq!(of(r#"{"a": [1, 2], "b": "x"}"#), of(r#"{"a": [3], "b": "x"}"#));
    assert_ne!(of(r#"{"a": [1], "b": "x"}"#), of(r#"{"a": [1], "b": "y"}"#));
    assert_ne!(of(r#"{"a": 1}"#), of(r#"{"a": 1, "b": 1}"#));
}
