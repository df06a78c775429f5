//! Runs the examples of documents, so that they show what happens. Each block of `sh` is run by
//! bash in a folder that begins with the repository's `examples`, and must succeed; `symphony` and
//! `loadgen` are those of this build. A server of the quickstart and one of `loadgen echo` run at
//! addresses of their own, which replace the usual ones in a script. A block of `text prints`
//! behind a script is its exact output; one of `json prints` has the output's fields and texts, and
//! other numbers. Each block of `toml` in a document about CONFIG passes `symphony check`.

use crate::binaries::build_beside;
use crate::process::ServerProcess;
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;

/// Texts of documents, each with its replacement in a test.
struct Substitutions(Vec<(&'static str, String)>);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The folder of this build's binaries, with `symphony` in it.
fn binaries() -> PathBuf {
    build_beside(env!("CARGO_BIN_EXE_loadgen"), &["serve"])
}

/// A fenced block of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Block {
    /// The file and the line of its first fence: `docs/api.md:12`.
    location: String,
    /// The text behind its first fence.
    kind: String,
    text: String,
}

/// Returns the blocks of a document, whose locations begin with `name`.
fn blocks(name: &str, document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (at, line) in (1..).zip(document.lines()) {
        match line.strip_prefix("```") {
            Some(_) if inside => inside = false,
            Some(kind) => {
                inside = true;
                let location = format!("{name}:{at}");
                blocks.push(Block { location, kind: kind.to_owned(), text: String::new() });
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
    substitutions: Substitutions,
    _servers: [ServerProcess; 2],
}

impl Bench {
    /// Starts the servers. With `patient`, the SLOs are 400 times as long, for examples whose
    /// answers are compared: the machine of a test is shared.
    fn new(patient: bool) -> Bench {
        let binaries = binaries();
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        std::os::unix::fs::symlink(repository().join("examples"), here.join("examples")).unwrap();
        let usual = std::env::var("PATH").unwrap();
        let path = format!("{}:{usual}", binaries.display());
        let mut serve = Command::new(binaries.join("symphony"));
        let config = if patient { patient_quickstart(here) } else { here.join("examples/quickstart") };
        serve.args(["serve", "--http", "127.0.0.1:0"]).arg(config).current_dir(here);
        let server = ServerProcess::start(&mut serve, Stdio::null());
        let mut echo = Command::new(binaries.join("loadgen"));
        echo.args(["echo", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]);
        let echo = ServerProcess::start(&mut echo, Stdio::null());
        let [secure, secure_grpc, admin] = free_addresses();
        let substitutions = Substitutions(vec![
            // All tests of a machine share these names.
            ("my-memory", format!("my-memory-{}", std::process::id())),
            ("\"timeout\": 40000", "\"timeout\": 40000000".into()),
            ("http://127.0.0.1:8000", server.urls()[0].clone()),
            ("http://127.0.0.1:9000", echo.urls()[0].clone()),
            ("http://127.0.0.1:9001", echo.urls()[1].clone()),
            ("127.0.0.1:8443", secure),
            ("127.0.0.1:8444", secure_grpc),
            ("127.0.0.1:8002", admin),
        ]);
        Bench { folder, path, substitutions, _servers: [server, echo] }
    }

    /// Runs a block of `sh`, and compares its output with `next`, the block behind it.
    fn run(&self, block: &Block, next: Option<&Block>) {
        let script = self
            .substitutions
            .0
            .iter()
            .fold(block.text.clone(), |script, (usual, ours)| script.replace(usual, ours));
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script])
            .current_dir(self.folder.path())
            .env("PATH", &self.path);
        let Output { status, stdout, stderr } = bash.output().unwrap();
        let (said, complaints) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{}: {status}\n{script}\n{said}\n{complaints}", block.location);
        match next.map(|next| (next.kind.as_str(), &next.text)) {
            Some(("text prints", text)) => assert_eq!(&said, text, "{}\n{complaints}", block.location),
            Some(("json prints", text)) => {
                let json = |text: &str| -> Value {
                    serde_json::from_str(text).unwrap_or_else(|e| panic!("{}: {e}\n{text}", block.location))
                };
                assert_eq!(outline(json(&said)), outline(json(text)), "{}\n{said}", block.location);
            }
            _ => {}
        }
    }
}

/// Addresses for servers that examples start themselves; each was free a moment ago.
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

/// Returns a value without its numbers, in which equal neighbours of an array are one.
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

/// Runs every example of `documents`, paths in the repository, `at_once` at a time. If that is more
/// than one, no example may depend on answers being in time.
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

/// Runs `symphony check` on every block of `toml` in a document about CONFIG. One that is a part of
/// a CONFIG gets what it lacks: an executor, a model.
pub(crate) fn check_configs(document: &str) {
    let symphony = binaries().join("symphony");
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let example = repository().join("examples/repository/models/shapes");
    std::fs::copy(repository().join("examples/quickstart/shapes.onnx"), here.join("digits.onnx")).unwrap();
    std::fs::copy(repository().join("gpu/tests/data/dynamic_width.onnx"), here.join("strip.onnx")).unwrap();
    std::fs::copy(repository().join("gpu/tests/data/stateful.onnx"), here.join("voice.onnx")).unwrap();
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
        assert!(output.status.success(), "{}: {}", block.location, String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_block_is_the_text_between_its_fences() {
    let text = "a\n```sh\nb\nc\n```\n```json prints\n{}\n```\n```sh\nd\n```\n";
    let found = blocks("x", text).into_iter().map(|block| (block.location, block.kind, block.text));
    let expected = [("x:2", "sh", "b\nc\n"), ("x:6", "json prints", "{}\n"), ("x:9", "sh", "d\n")];
    let expected = expected.map(|(location, kind, text)| (location.into(), kind.into(), text.into()));
    assert_eq!(found.collect::<Vec<(String, String, String)>>(), expected);
}

#[test]
fn an_outline_has_fields_and_texts_and_no_numbers() {
    let of = |text: &str| outline(serde_json::from_str(text).unwrap());
    assert_eq!(of(r#"{"a": [1, 2], "b": "x"}"#), of(r#"{"a": [3], "b": "x"}"#));
    assert_ne!(of(r#"{"a": [1], "b": "x"}"#), of(r#"{"a": [1], "b": "y"}"#));
    assert_ne!(of(r#"{"a": 1}"#), of(r#"{"a": 1, "b": 1}"#));
}
