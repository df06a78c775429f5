//! An engine in the test's process: configurations as text, emulated models, a frontend that the
//! test polls, and recordings that must replay.

use super::process::PATIENCE;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use symphony::config::{Config, read_config};
use symphony::recorder::replay::{Replayed, replay};
use symphony::runtime::frontend::{Answer, Frontend, Ticket};
use symphony::runtime::{Engine, Options};

/// A model that an emulated GPU runs in l(b) = `alpha_ms` * b + `beta_ms`.
#[derive(Clone, Copy)]
pub(crate) struct EmulatedModel {
    pub(crate) slo_ms: f64,
    pub(crate) alpha_ms: f64,
    pub(crate) beta_ms: f64,
    /// Further keys, a line each.
    pub(crate) more: &'static str,
}

impl EmulatedModel {
    /// The keys of a `model.toml`, which are those of a `[[models]]` section but for the name.
    pub(crate) fn keys(&self) -> String {
        let EmulatedModel { slo_ms, alpha_ms, beta_ms, more } = self;
        format!(
            "executor = \"emulated\"\nslo_ms = {slo_ms}\n\
             profile = {{ alpha_ms = {alpha_ms}, beta_ms = {beta_ms} }}\n{more}"
        )
    }

    /// `count` sections `[[models]]`, whose names are m0, m1, ...
    pub(crate) fn sections(&self, count: usize) -> String {
        let section = |nth| format!("[[models]]\nname = \"m{nth}\"\n{}", self.keys());
        (0..count).map(section).collect()
    }
}

/// The section of `count` emulated GPUs.
pub(crate) fn emulated_gpus(count: usize) -> String {
    format!("[[executors]]\nkind = \"emulated\"\ncount = {count}\n")
}

/// Writes `text` to `folder/symphony.toml` and reads it as `symphony serve` does.
pub(crate) fn config(folder: &Path, text: &str) -> Config {
    let file = folder.join("symphony.toml");
    std::fs::write(&file, text).unwrap();
    read_config(&file).unwrap_or_else(|diagnostics| panic!("{diagnostics}"))
}

/// Starts an engine with one frontend.
pub(crate) fn start(config: Config) -> (Engine, Frontend) {
    start_with(config, Options::default())
}

/// Starts an engine with one frontend and these options.
pub(crate) fn start_with(config: Config, options: Options) -> (Engine, Frontend) {
    let (engine, mut frontends) = Engine::start_with(config, 1, Arc::new(|_: &str| ()), options).unwrap();
    (engine, frontends.pop().unwrap())
}

/// Polls until nothing is in flight. An engine that takes longer than [`PATIENCE`] has lost a
/// request.
pub(crate) fn answer_all(frontend: &mut Frontend, mut on_answer: impl FnMut(Ticket, Answer<'_>)) {
    let began = Instant::now();
    while frontend.in_flight() > 0 {
        assert!(began.elapsed() < PATIENCE, "{} requests have no answer", frontend.in_flight());
        frontend.poll(&mut on_answer);
        std::thread::yield_now();
    }
}

/// Polls until the engine has found out by itself what is to hold.
pub(crate) fn poll_until(frontend: &mut Frontend, what: &str, holds: impl Fn(&mut Frontend) -> bool) {
    let began = Instant::now();
    while !holds(frontend) {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        frontend.poll(|_, _| ());
        std::thread::yield_now();
    }
}

/// Replays a recording and checks that the same decisions come out.
pub(crate) fn replay_exactly(recording: &Path) -> Replayed {
    let replayed = replay(recording, None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(replayed.difference, None, "{}", recording.display());
    replayed
}

/// The resident memory of this process, in KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
