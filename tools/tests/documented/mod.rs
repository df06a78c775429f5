//! Runs the examples of a document, so that what it says is what happens. Each of its ```sh blocks is run by bash, in
//! order, in one folder that starts out with the repository's `examples`, and must succeed. `symphony` and `loadgen`
//! are those of this build, and a server of the quickstart, and one of `loadgen echo`, run at addresses of their own in
//! the place of the usual ones.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What documents write, and what stands for it here.
struct Addresses(Vec<(&'static str, String)>);

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
    // The features of the whole workspace, so that nothing is built a second time.
    build.args(["build", "--quiet", "--workspace", "--bin", "symphony"]).current_dir(repository());
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    folder
}

/// Starts a command and reads the first line that it prints.
fn start(command: &mut Command) -> (Served, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (Served(child), line.trim().to_owned())
}

/// The ```sh blocks of a document, each with the line at which it begins.
fn blocks(document: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (at, line) in (1..).zip(document.lines()) {
        match line {
            "```sh" => {
                inside = true;
                blocks.push((at, String::new()));
            }
            "```" => inside = false,
            line if inside => {
                let block = &mut blocks.last_mut().expect("a block was begun").1;
                *block += line;
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

/// Runs every example of `document`, a path in the repository.
pub(crate) fn run_examples(document: &str) {
    let binaries = binaries();
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::os::unix::fs::symlink(repository().join("examples"), here.join("examples")).unwrap();
    // The machine of a test is shared: whether the generator is late there is not what documents are about.
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
    serve.args(["serve", "--http", "127.0.0.1:0", "examples/quickstart"]).current_dir(here);
    let (_server, ready) = start(&mut serve);
    let http = ready.strip_prefix("ready ").expect("the first line says where it serves").to_owned();
    let mut echo = Command::new(binaries.join("loadgen"));
    let (_echo, ready) = start(echo.args(["echo", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]));
    let words: Vec<&str> = ready.split_whitespace().collect();
    let addresses = Addresses(vec![
        ("http://127.0.0.1:8000", http),
        ("http://127.0.0.1:9000", words[1].into()),
        ("http://127.0.0.1:9001", words[2].into()),
    ]);

    let text = std::fs::read_to_string(repository().join(document)).unwrap();
    let blocks = blocks(&text);
    assert!(!blocks.is_empty(), "{document} has no example");
    for (line, block) in blocks {
        let script = addresses.0.iter().fold(block, |script, (usual, ours)| script.replace(usual, ours));
        let mut bash = Command::new("bash");
        let run =
            bash.args(["-euo", "pipefail", "-c", &script]).current_dir(here).env("PATH", &path).output();
        let run = run.unwrap();
        assert!(
            run.status.success(),
            "{document}:{line}: {}\n{script}\n{}\n{}",
            run.status,
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr)
        );
    }
}

#[test]
fn a_block_is_what_stands_between_its_fences() {
    let text = "a\n```sh\nb\nc\n```\n```json\n{}\n```\n```sh\nd\n```\n";
    assert_eq!(blocks(text), [(2, "b\nc\n".to_owned()), (9, "d\n".to_owned())]);
}
