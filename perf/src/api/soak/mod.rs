//! Minutes of load at 80 % of what the GPUs can do, with clients that connect, cancel and die all
//! the time; then silence, and the question what is left. Nothing may be: no memory that grows once
//! the first part is over, no open socket, no slot, and every counter adds up (`ledger`).
//!
//! ```text
//!  two runs of loadgen, HTTP and gRPC, from the beginning to the end ─────┐
//!  runs of loadgen that are killed after a second or so, one by one ──────┼──▶ symphony serve ◀── memory, sockets,
//!  `unruly` HTTP: leaves in the middle of a head, a body, an answer … ────┤                        counters, each second
//!  `unruly` gRPC: resets calls, drops connections with calls under way ───┘
//! ```

mod ledger;
mod unruly;

use super::loadgen::{self, Protocol, Run};
use super::process::{Binaries, Server, Share};
use super::{EmulatedModel, Seats, Spin, Stop, median};
use indicatif::ProgressBar;
use ledger::Ledger;
use serde::Serialize;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use unruly::{Deeds, Unruly};

/// The models; the last is asked at the end only.
const MODELS: [EmulatedModel; 3] = [
    EmulatedModel { name: "a", alpha_ms: 1.053, beta_ms: 5.072, slo_ms: 60.0 },
    EmulatedModel { name: "b", alpha_ms: 2.05, beta_ms: 5.378, slo_ms: 80.0 },
    EmulatedModel { name: "slow", alpha_ms: 0.5, beta_ms: 50.0, slo_ms: 10_000.0 },
];
/// Emulated GPUs.
const GPUS: usize = 2;
/// Slots for requests in the engine; at the end all of them are filled at once.
const SLOTS: usize = 512;
/// Requests per second of each of the two runs that last. With the others' 190 it is 80 % of what
/// the simulator finds for these models and GPUs, 1,011 per second.
const RATE: f64 = 310.0;
/// Requests per second of a run that is killed.
const RATE_OF_THE_DYING: f64 = 60.0;
/// The memory may grow by so much after the first part: less than a byte for each request, and what
/// allocators keep.
const GROWTH_BYTES: f64 = 1024.0 * 1024.0;
/// How long the server may take to notice that all clients have gone.
const SILENCE: Duration = Duration::from_secs(30);
/// How long it may take to close the last connection.
const SETTLING: Duration = Duration::from_secs(2);

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Figures {
    /// Whether nothing leaked and everything adds up.
    pub passed: bool,
    /// What does not.
    pub wrong: Vec<String>,
    /// Seconds of load.
    pub seconds: f64,
    /// How busy the GPUs were, 0 to 1.
    pub gpu_busy: f64,
    /// The two runs that lasted.
    pub steady: Vec<Run>,
    /// Runs of loadgen that were killed.
    pub killed: usize,
    /// What the unruly clients did.
    pub deeds: Deeds,
    /// Infer requests by how the server says they ended.
    pub outcomes: std::collections::BTreeMap<String, u64>,
    /// Requests taken back before they ran.
    pub withdrawn: u64,
    /// Connections that there were.
    pub connections: u64,
    /// Bytes in use: when the first part was over, at the end, and the difference.
    pub memory_bytes: [f64; 3],
    /// Bytes in use, each second.
    pub memory_by_second: Vec<u64>,
}

/// Runs it for `seconds`, of which the first fifth is not judged for memory.
///
/// Errors: something broke down; what leaks is no error but in the figures.
pub fn run(binaries: &Binaries, placements: Seats, seconds: f64) -> Result<Figures, Stop> {
    let config = format!("{}[http]\nmax_in_flight = {SLOTS}\n", placements.config(GPUS, Spin::No, &MODELS));
    let server = Server::symphony(binaries, &config, Share::Whole)?;
    let before = Ledger::read(&server)?;
    let files_before = open_files(&server, 0)?;
    let begun = Instant::now();
    let steady = Protocol::ALL.map(|protocol| steady(binaries, &server, protocol, seconds));
    let unruly = Unruly::start(server.http, server.grpc);
    let (memory, killed) = watch(binaries, &server, seconds)?;
    let deeds = unruly.stop()?;
    let mut runs = Vec::new();
    for child in steady {
        runs.push(loadgen::read(&child?.wait_with_output()?)?);
    }
    let lasted = begun.elapsed().as_secs_f64();
    let quiet = silence(&server)?;
    let files = open_files(&server, files_before)?;
    let full = fill_all_slots(binaries, &server)?;
    let after_full = silence(&server)?;
    let mut wrong = quiet.wrong();
    wrong.extend(after_full.wrong());
    if files > files_before {
        wrong
            .push(format!("{files} files and sockets are open; {files_before} were before the first client"));
    }
    if full.bad > 0 {
        wrong.push(format!(
            "of {SLOTS} requests at a time, as many as there are slots, {} were refused",
            full.bad
        ));
    }
    let memory_bytes = growth(&memory);
    if memory_bytes[2] > GROWTH_BYTES {
        wrong.push(format!("the memory in use grew by {:.0} bytes after the first part", memory_bytes[2]));
    }
    for (run, protocol) in runs.iter().zip(Protocol::ALL) {
        if run.good == 0 {
            wrong.push(format!("no request by {} was answered in time", protocol.name()));
        }
    }
    let answered: u64 = runs.iter().map(|run| run.good).sum();
    if answered > quiet.ended("good") {
        wrong.push(format!("{answered} good answers came, and {} were sent", quiet.ended("good")));
    }
    if quiet.withdrawn() == 0 || quiet.ended("gone") == 0 {
        wrong.push("no request was taken back: nothing was tried".into());
    }
    let gpu_busy = (quiet.gpu_busy_s() - before.gpu_busy_s()) / GPUS as f64 / lasted;
    let figures = Figures {
        passed: wrong.is_empty(),
        wrong,
        seconds: lasted,
        gpu_busy,
        steady: runs,
        killed,
        deeds,
        outcomes: quiet.outcomes(),
        withdrawn: quiet.withdrawn(),
        connections: quiet.connections_opened(),
        memory_bytes,
        memory_by_second: memory,
    };
    server.stop()?;
    Ok(figures)
}

/// A run of loadgen that lasts.
fn steady(binaries: &Binaries, server: &Server, protocol: Protocol, seconds: f64) -> Result<Child, Stop> {
    let mut command = loadgen::command(binaries, server, protocol);
    command.args(["--models", "a,b", "--threads", "1", "--max-lateness", "1000000"]);
    command.args(["--rate", &RATE.to_string(), "--duration", &seconds.to_string()]);
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Until the time is over: the memory in use each second, and how many runs of loadgen were killed
/// meanwhile.
fn watch(binaries: &Binaries, server: &Server, seconds: f64) -> Result<(Vec<u64>, usize), Stop> {
    let bar = ProgressBar::new(seconds as u64).with_prefix("soak");
    let begun = Instant::now();
    let (mut memory, mut killed) = (Vec::new(), 0);
    while begun.elapsed().as_secs_f64() < seconds {
        let protocol = Protocol::ALL[killed % 2];
        let mut command = loadgen::command(binaries, server, protocol);
        command.args(["--models", "a,b", "--threads", "1", "--duration", "3600"]);
        command.args(["--rate", &RATE_OF_THE_DYING.to_string(), "--seed", &killed.to_string()]);
        let mut dying = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            memory.push(server.memory()?);
            bar.set_position(memory.len() as u64);
        }
        dying.kill()?;
        dying.wait()?;
        killed += 1;
    }
    bar.finish_and_clear();
    Ok((memory, killed))
}

/// The counters once no client is left.
fn silence(server: &Server) -> Result<Ledger, Stop> {
    let begun = Instant::now();
    loop {
        let ledger = Ledger::read(server)?;
        if ledger.is_silent() || begun.elapsed() > SILENCE {
            return Ok(ledger);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// How many files and sockets are open once that has come down to `few`, or does not change any
/// more: the connection by which the counters were read is closed a moment later.
fn open_files(server: &Server, few: usize) -> Result<usize, Stop> {
    let begun = Instant::now();
    let mut files = server.open_files()?;
    while files > few && begun.elapsed() < SETTLING {
        std::thread::sleep(Duration::from_millis(100));
        files = server.open_files()?;
    }
    Ok(files)
}

/// As many requests at once as there are slots: one that is lost is missed now.
fn fill_all_slots(binaries: &Binaries, server: &Server) -> Result<Run, Stop> {
    let mut command = loadgen::command(binaries, server, Protocol::Grpc);
    command.args([
        "--model",
        "slow",
        "--threads",
        "1",
        "--concurrency",
        &SLOTS.to_string(),
        "--duration",
        "2",
    ]);
    loadgen::run(command)
}

/// The memory in use after the first fifth and in the last, medians of a tenth of the time each,
/// and their difference.
fn growth(memory: &[u64]) -> [f64; 3] {
    let (fifth, tenth) = (memory.len() / 5, memory.len().div_ceil(10));
    let of = |part: &[u64]| median(part.iter().map(|&bytes| bytes as f64));
    let first = of(&memory[fifth..memory.len().min(fifth + tenth)]);
    let last = of(&memory[memory.len() - tenth.min(memory.len())..]);
    [first, last, last - first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_between_the_end_of_the_first_part_and_the_end() {
        let memory: Vec<u64> = (0..100).map(|second| if second < 15 { 10 * second } else { 150 }).collect();
        assert_eq!(growth(&memory), [150.0, 150.0, 0.0]);
        let rising: Vec<u64> = (0..100).collect();
        assert_eq!(growth(&rising), [24.0, 94.0, 70.0]);
    }
}
