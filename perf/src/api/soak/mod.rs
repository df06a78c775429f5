//! Minutes of load at 80 % of the GPUs' capacity, with clients that connect, cancel and die all the
//! time. When all have gone, no resource may have leaked: memory does not grow after the first
//! part, no socket is open, every slot is free, and every counter adds up (`counters.rs`).
//!
//! ```text
//!  two runs of loadgen, HTTP and gRPC, from beginning to end ─────────┐
//!  runs of loadgen that are killed after two seconds, one by one ─────┼──▶ symphony serve
//!  faulty HTTP clients: disconnect in the middle of a request, … ─────┤      ▲
//!  faulty gRPC clients: reset calls, drop connections with calls ─────┘      │ each second
//!                                                    memory, sockets, counters
//! ```

mod faulty_clients;

use super::counters::CounterSnapshot;
use super::loadgen::{self, LoadgenRun, Protocol};
use super::process::{Binaries, CpuPriority, Server};
use super::{ApiPlacements, EmulatedModel, Spin, growth};
use crate::MeasureError;
use faulty_clients::{ClientActions, FaultyClients};
use indicatif::ProgressBar;
use serde::Serialize;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The models; the last gets requests at the end only.
const MODELS: [EmulatedModel; 3] = [
    EmulatedModel { name: "a", alpha_ms: 1.053, beta_ms: 5.072, slo_ms: 60.0 },
    EmulatedModel { name: "b", alpha_ms: 2.05, beta_ms: 5.378, slo_ms: 80.0 },
    EmulatedModel { name: "slow", alpha_ms: 0.5, beta_ms: 50.0, slo_ms: 10_000.0 },
];
/// The number of emulated GPUs.
const GPUS: usize = 2;
/// The number of slots for requests in the engine; at the end all of them are filled at once.
const SLOTS: usize = 512;
/// The rate of each of the two steady runs, requests per second. With the others' 190 the sum is
/// 80 % of the simulator's goodput for these models and GPUs, 1,011 per second.
const RATE: f64 = 310.0;
/// The rate of a run that is killed, requests per second.
const RATE_OF_KILLED_RUN: f64 = 60.0;
/// The limit of the memory's growth after the first part: less than a byte for each request, for
/// memory that allocators keep.
const GROWTH_BYTES: f64 = 1024.0 * 1024.0;
/// The time limit for the server to notice that all clients have gone.
const SILENCE: Duration = Duration::from_secs(30);
/// The time limit for the server to close the last connection.
const SETTLING: Duration = Duration::from_secs(2);

/// The figures of the soak.
#[derive(Debug, Serialize)]
pub struct SoakFigures {
    /// True if nothing leaked and every counter adds up.
    pub passed: bool,
    /// The leaks and the sums that do not add up.
    pub wrong: Vec<String>,
    /// The duration of the load in seconds.
    pub seconds: f64,
    /// The share of the GPUs' time that they ran batches, 0 to 1.
    pub gpu_busy: f64,
    /// The two steady runs.
    pub steady: Vec<LoadgenRun>,
    /// The number of runs of loadgen that were killed.
    pub killed: usize,
    /// The actions of the faulty clients.
    #[serde(rename = "deeds")]
    pub actions: ClientActions,
    /// The number of infer requests by outcome, as the server counted them.
    pub outcomes: std::collections::BTreeMap<String, u64>,
    /// The number of requests cancelled before they ran.
    pub withdrawn: u64,
    /// The number of connections opened.
    pub connections: u64,
    /// Bytes in use: when the first part was over, at the end, and the difference.
    pub memory_bytes: [f64; 3],
    /// Bytes in use, each second.
    pub memory_by_second: Vec<u64>,
}

/// Runs the soak for `seconds`; memory is compared after the first fifth.
///
/// Errors: a process failed. A leak is no error but among the figures.
pub fn run(
    binaries: &Binaries,
    placements: ApiPlacements,
    seconds: f64,
) -> Result<SoakFigures, MeasureError> {
    let config = format!("{}[http]\nmax_in_flight = {SLOTS}\n", placements.config(GPUS, Spin::No, &MODELS));
    let server = Server::symphony(binaries, &config, CpuPriority::Normal)?;
    let before = CounterSnapshot::read(&server)?;
    let files_before = open_files(&server, 0)?;
    let begun = Instant::now();
    let steady = Protocol::ALL.map(|protocol| steady(binaries, &server, protocol, seconds));
    let faulty_clients = FaultyClients::start(server.http, server.grpc);
    let (memory, killed) = watch(binaries, &server, seconds)?;
    let actions = faulty_clients.stop()?;
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
        wrong.push("no request was cancelled: the clients did not do their part".into());
    }
    let gpu_busy = (quiet.gpu_busy_s() - before.gpu_busy_s()) / GPUS as f64 / lasted;
    let figures = SoakFigures {
        passed: wrong.is_empty(),
        wrong,
        seconds: lasted,
        gpu_busy,
        steady: runs,
        killed,
        actions,
        outcomes: quiet.outcomes(),
        withdrawn: quiet.withdrawn(),
        connections: quiet.connections_opened(),
        memory_bytes,
        memory_by_second: memory,
    };
    server.stop()?;
    Ok(figures)
}

/// Starts a run of loadgen that lasts for the whole soak.
fn steady(
    binaries: &Binaries,
    server: &Server,
    protocol: Protocol,
    seconds: f64,
) -> Result<Child, MeasureError> {
    let mut command = loadgen::command(binaries, server, protocol);
    command.args(["--models", "a,b", "--threads", "1", "--max-lateness", "1000000"]);
    command.args(["--rate", &RATE.to_string(), "--duration", &seconds.to_string()]);
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Starts and kills runs of loadgen until the time is over. Returns the memory in use at each
/// second and the number of runs killed.
fn watch(binaries: &Binaries, server: &Server, seconds: f64) -> Result<(Vec<u64>, usize), MeasureError> {
    let bar = ProgressBar::new(seconds as u64).with_prefix("soak");
    let begun = Instant::now();
    let (mut memory, mut killed) = (Vec::new(), 0);
    while begun.elapsed().as_secs_f64() < seconds {
        let protocol = Protocol::ALL[killed % 2];
        let mut command = loadgen::command(binaries, server, protocol);
        command.args(["--models", "a,b", "--threads", "1", "--duration", "3600"]);
        command.args(["--rate", &RATE_OF_KILLED_RUN.to_string(), "--seed", &killed.to_string()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            memory.push(server.memory()?);
            bar.set_position(memory.len() as u64);
        }
        child.kill()?;
        child.wait()?;
        killed += 1;
    }
    bar.finish_and_clear();
    Ok((memory, killed))
}

/// Returns the counters once no client is left.
fn silence(server: &Server) -> Result<CounterSnapshot, MeasureError> {
    let begun = Instant::now();
    loop {
        let counters = CounterSnapshot::read(server)?;
        if counters.is_silent() || begun.elapsed() > SILENCE {
            return Ok(counters);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the number of open files and sockets once it has come down to `few`, or after
/// [`SETTLING`]: the connection by which the counters were read is closed a moment later.
fn open_files(server: &Server, few: usize) -> Result<usize, MeasureError> {
    let begun = Instant::now();
    let mut files = server.open_files()?;
    while files > few && begun.elapsed() < SETTLING {
        std::thread::sleep(Duration::from_millis(100));
        files = server.open_files()?;
    }
    Ok(files)
}

/// Sends as many requests at once as there are slots: a lost slot makes one of them fail.
fn fill_all_slots(binaries: &Binaries, server: &Server) -> Result<LoadgenRun, MeasureError> {
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
