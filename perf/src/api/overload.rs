//! Three times the capacity for minutes: the server must go on to answer as many requests in time
//! as at its peak, and its memory must stay flat.
//!
//! ```text
//!  1. peak       rates from 0.6 to 1.4 of the simulator's goodput: the most good answers a second
//!  2. overload   three times that rate, without a pause
//!                each window: good answers a second, resident memory
//! ```
//!
//! Good is what the server's own counters say, since a generator that shares its machine is late
//! itself. The generator has a core of its own, and the server all others; where that is only one,
//! its threads nap instead of spinning. Neither can take time from the other.

use super::counters::CounterSnapshot;
use super::goodput::simulated;
use super::loadgen::{self, LoadgenRun, Protocol};
use super::process::{Binaries, CpuPriority, Server};
use super::{ApiPlacements, EmulatedModel, Spin, growth};
use crate::MeasureError;
use indicatif::ProgressBar;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The least good rate under overload, as a part of the peak's.
pub const TARGET_OF_PEAK: f64 = 0.98;
/// The most growth of resident memory after the first fifth, as a part of what was in use then.
pub const MOST_GROWTH: f64 = 0.02;

/// The model, ResNet50 on a GTX 1080 Ti, and the number of its emulated GPUs.
const MODEL: EmulatedModel = EmulatedModel { name: "m", alpha_ms: 1.053, beta_ms: 5.072, slo_ms: 50.0 };
const GPUS: usize = 2;
/// The rates at which the peak is looked for, as parts of the simulator's goodput.
const PEAK_PARTS: [f64; 6] = [0.6, 0.8, 0.9, 1.0, 1.15, 1.4];
/// The part of the whole time that each of these takes, and the time of a window.
const PEAK_TIME: f64 = 0.05;
const WINDOW: Duration = Duration::from_secs(10);
/// The number of windows that there are at least.
const FEWEST_WINDOWS: u32 = 3;
/// The time for which a load is sent before it is measured.
const WARM_UP: Duration = Duration::from_millis(500);

/// The figures of the overload.
#[derive(Debug, Serialize)]
pub struct OverloadFigures {
    /// True if both promises were kept.
    pub passed: bool,
    /// The promises that were not kept.
    pub wrong: Vec<String>,
    /// The cores that the server may use.
    pub server_cores: Vec<usize>,
    /// The core of the generator, which the server may not use; `None` where there is only one.
    pub generator_core: Option<usize>,
    /// The rates at which the peak was looked for.
    pub peak_steps: Vec<PeakStep>,
    /// The most good answers per second, as the server counted.
    pub peak_good_per_s: f64,
    /// The rate asked for then, as a multiple of the peak, and requests per second.
    pub times: f64,
    /// See `times`.
    pub offered_per_s: f64,
    /// The good answers per second of the whole overload, as a part of the peak's.
    pub of_peak: f64,
    /// The same in its last fifth.
    pub of_peak_at_end: f64,
    /// The least of any window.
    pub of_peak_at_least: f64,
    /// Resident memory after the first fifth, at the end, and the difference.
    pub memory_bytes: [f64; 3],
    /// The windows of the overload.
    pub windows: Vec<OverloadWindow>,
    /// The number of requests by outcome, as the server counted them, of the whole overload.
    pub outcomes: std::collections::BTreeMap<String, u64>,
    /// The figures of the generator.
    pub generator: LoadgenRun,
}

/// A rate at which the peak was looked for.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PeakStep {
    /// Requests per second asked for.
    pub offered_per_s: f64,
    /// Good answers per second, as the server counted.
    pub good_per_s: f64,
}

/// A window of the overload.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OverloadWindow {
    /// The end of the window, from the beginning of the measurement.
    pub until_s: f64,
    /// Good answers per second, as the server counted.
    pub good_per_s: f64,
    /// The resident memory at its end.
    pub memory_bytes: u64,
}

/// The cores of the server and of the generator.
struct Cores {
    server: Vec<usize>,
    generator: Option<usize>,
}

impl Cores {
    /// Gives the generator the last of these cores, if there are two or more.
    fn of(cores: &[usize]) -> Cores {
        match cores {
            [server @ .., generator] if !server.is_empty() => {
                Cores { server: server.to_vec(), generator: Some(*generator) }
            }
            all => Cores { server: all.to_vec(), generator: None },
        }
    }

    /// Makes the server's configuration: cores for its threads where there are two or more.
    fn config(&self, placements: ApiPlacements) -> String {
        let named = placements.config(GPUS, Spin::No, &[MODEL]);
        match (&self.server[..], named.split_once("[[executors]]")) {
            ([_, _, ..], _) | (_, None) => named,
            (_, Some((_, rest))) => format!("[[executors]]{rest}"),
        }
    }
}

/// Runs `start` on a thread that may use these cores only, which its children inherit.
fn on_cores<T: Send>(
    cores: &[usize],
    start: impl FnOnce() -> Result<T, MeasureError> + Send,
) -> Result<T, MeasureError> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    std::thread::scope(|scope| {
        let started = scope.spawn(move || {
            sched_setaffinity(None, &set)
                .map_err(|error| MeasureError::Machine(format!("cores can't be chosen: {error}")))?;
            start()
        });
        started.join().unwrap_or_else(|_| Err(MeasureError::Failed("a child could not be started".into())))
    })
}

/// Measures the peak, then `times` its rate for `seconds`.
///
/// Errors: a process failed. A promise that was not kept is no error but among the figures.
pub fn measure(
    binaries: &Binaries,
    placements: ApiPlacements,
    cores: &[usize],
    seconds: f64,
    times: f64,
) -> Result<OverloadFigures, MeasureError> {
    let cores = Cores::of(cores);
    let config = cores.config(placements);
    let server = on_cores(&cores.server, || Server::symphony(binaries, &config, CpuPriority::Normal))?;
    let load = Load { binaries, server: &server, cores: &cores };
    let peak_steps = load.peak_steps(simulated(binaries, MODEL, GPUS, 0.0)?, seconds)?;
    let peak_good_per_s = peak_steps.iter().map(|step| step.good_per_s).fold(0.0, f64::max);
    let offered_per_s = times * peak_good_per_s;
    if offered_per_s == 0.0 {
        return Err(MeasureError::Failed("the server answered no request in time".into()));
    }
    let before = CounterSnapshot::read(&server)?.outcomes();
    let (windows, memory, generator) = load.overload(offered_per_s, seconds)?;
    let mut outcomes = CounterSnapshot::read(&server)?.outcomes();
    outcomes.iter_mut().for_each(|(name, count)| *count -= before.get(name).unwrap_or(&0));
    server.stop()?;
    let of_peak = |part: &[OverloadWindow]| {
        part.iter().map(|window| window.good_per_s).sum::<f64>() / part.len() as f64 / peak_good_per_s
    };
    let least = windows.iter().map(|window| window.good_per_s).fold(f64::INFINITY, f64::min);
    let mut figures = OverloadFigures {
        passed: false,
        wrong: Vec::new(),
        server_cores: cores.server,
        generator_core: cores.generator,
        peak_steps,
        peak_good_per_s,
        times,
        offered_per_s,
        of_peak: of_peak(&windows),
        of_peak_at_end: of_peak(&windows[windows.len() - windows.len().div_ceil(5)..]),
        of_peak_at_least: least / peak_good_per_s,
        memory_bytes: growth(&memory),
        windows,
        outcomes,
        generator,
    };
    figures.wrong = figures.broken_promises();
    figures.passed = figures.wrong.is_empty();
    Ok(figures)
}

impl OverloadFigures {
    fn broken_promises(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (part, when) in [(self.of_peak, "the whole time"), (self.of_peak_at_end, "the last fifth")] {
            if part < TARGET_OF_PEAK {
                let (is, right) = (100.0 * part, 100.0 * TARGET_OF_PEAK);
                wrong
                    .push(format!("the good rate of {when} was {is:.1} % of the peak's; at least {right} %"));
            }
        }
        let [first, last, grown] = self.memory_bytes;
        if grown > MOST_GROWTH * first {
            wrong.push(format!("memory grew from {first:.0} to {last:.0} bytes; by at most 2 %"));
        }
        wrong
    }

    /// Formats the two promises as lines to read.
    pub fn summary(&self) -> String {
        let [first, last, _] = self.memory_bytes.map(|bytes| bytes / 1024.0 / 1024.0);
        format!(
            "peak {:.0} good/s; at {:.0}/s, {} times that: {:.1} % of the peak's good rate, {:.1} % in the last fifth, \
             {:.1} % in the worst window\nmemory {first:.1} MiB after the first fifth, {last:.1} MiB at the end\n{}",
            self.peak_good_per_s,
            self.offered_per_s,
            self.times,
            100.0 * self.of_peak,
            100.0 * self.of_peak_at_end,
            100.0 * self.of_peak_at_least,
            if self.passed { "passed".to_owned() } else { format!("failed: {}", self.wrong.join("; ")) }
        )
    }
}

/// Load on a server by a generator on a core of its own.
struct Load<'a> {
    binaries: &'a Binaries,
    server: &'a Server,
    cores: &'a Cores,
}

impl Load<'_> {
    /// Starts the generator.
    fn start(&self, rate: f64, seconds: f64) -> Result<Child, MeasureError> {
        let mut command: Command = loadgen::command(self.binaries, self.server, Protocol::Grpc);
        command.args(["--model", MODEL.name, "--threads", "1", "--rate", &rate.to_string()]);
        command.args(["--duration", &seconds.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        match self.cores.generator {
            Some(core) => on_cores(&[core], || Ok(command.spawn()?)),
            None => Ok(command.spawn()?),
        }
    }

    fn good(&self) -> Result<(u64, Instant), MeasureError> {
        let good = CounterSnapshot::read(self.server)?.ended("good");
        Ok((good, Instant::now()))
    }

    /// Sends at rates around the simulator's goodput and counts the good answers.
    fn peak_steps(&self, simulated: f64, seconds: f64) -> Result<Vec<PeakStep>, MeasureError> {
        let time = Duration::from_secs_f64((seconds * PEAK_TIME).clamp(1.0, 30.0));
        let step = |part: f64| {
            let offered_per_s = part * simulated;
            let child = self.start(offered_per_s, (time + 2 * WARM_UP).as_secs_f64())?;
            std::thread::sleep(WARM_UP);
            let before = self.good()?;
            std::thread::sleep(time);
            let good_per_s = per_s(before, self.good()?);
            loadgen::read(&child.wait_with_output()?)?;
            eprintln!("{offered_per_s:.0}/s: {good_per_s:.0} good/s");
            Ok(PeakStep { offered_per_s, good_per_s })
        };
        PEAK_PARTS.into_iter().map(step).collect()
    }

    /// Sends at `rate` for `seconds`. Returns the windows, the memory in use each second, and the
    /// generator's figures.
    fn overload(
        &self,
        rate: f64,
        seconds: f64,
    ) -> Result<(Vec<OverloadWindow>, Vec<u64>, LoadgenRun), MeasureError> {
        let all = Duration::from_secs_f64(seconds);
        let window = WINDOW.min(all / FEWEST_WINDOWS);
        let child = self.start(rate, (all + 2 * WARM_UP).as_secs_f64())?;
        std::thread::sleep(WARM_UP);
        let bar = ProgressBar::new(seconds as u64).with_prefix("overload");
        let begun = Instant::now();
        let (mut windows, mut memory) = (Vec::new(), Vec::new());
        let mut before = self.good()?;
        while begun.elapsed() + window / 2 < all {
            let until = before.1 + window;
            while let left = until.saturating_duration_since(Instant::now())
                && !left.is_zero()
            {
                std::thread::sleep(left.min(Duration::from_secs(1)));
                memory.push(self.server.memory()?);
                bar.set_position(begun.elapsed().as_secs());
            }
            let now = self.good()?;
            windows.push(OverloadWindow {
                until_s: begun.elapsed().as_secs_f64(),
                good_per_s: per_s(before, now),
                memory_bytes: self.server.memory()?,
            });
            before = now;
        }
        bar.finish_and_clear();
        Ok((windows, memory, loadgen::read(&child.wait_with_output()?)?))
    }
}

fn per_s((before, since): (u64, Instant), (after, now): (u64, Instant)) -> f64 {
    (after - before) as f64 / (now - since).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_has_a_core_of_its_own_where_there_are_two() {
        let placements = |cores: &[usize]| ApiPlacements::of(cores).unwrap();
        let cores = Cores::of(&[4, 5, 6]);
        assert_eq!((&cores.server[..], cores.generator), (&[4, 5][..], Some(6)));
        assert!(cores.config(placements(&[4, 5, 6])).starts_with("[cores]\nmodel = 5\n"));
        let cores = Cores::of(&[0, 1]);
        assert_eq!((&cores.server[..], cores.generator), (&[0][..], Some(1)));
        assert!(
            cores.config(placements(&[0, 1])).starts_with("[[executors]]\nkind = \"emulated\"\ncount = 2\n")
        );
        assert_eq!(Cores::of(&[3]).generator, None);
    }

    #[test]
    fn a_good_rate_below_98_percent_and_growing_memory_break_promises() {
        let mut figures = OverloadFigures {
            passed: true,
            wrong: Vec::new(),
            server_cores: vec![0],
            generator_core: Some(1),
            peak_steps: Vec::new(),
            peak_good_per_s: 1000.0,
            times: 3.0,
            offered_per_s: 3000.0,
            of_peak: 0.99,
            of_peak_at_end: 0.985,
            of_peak_at_least: 0.9,
            memory_bytes: [100.0, 101.0, 1.0],
            windows: Vec::new(),
            outcomes: std::collections::BTreeMap::new(),
            generator: serde_json::from_str(
                r#"{"good":1,"bad":0,"good_rps":1,"bad_rate":0,"latency_ms":{"p50":1,"p99":1,"max":1},
                    "mean_batch":1,"lateness_ms":{"p99":0,"max":0}}"#,
            )
            .unwrap(),
        };
        assert!(figures.broken_promises().is_empty() && figures.summary().ends_with("\npassed"));
        (figures.of_peak_at_end, figures.memory_bytes) = (0.97, [100.0, 103.0, 3.0]);
        let wrong = figures.broken_promises();
        assert_eq!(wrong[0], "the good rate of the last fifth was 97.0 % of the peak's; at least 98 %");
        assert_eq!(wrong[1], "memory grew from 100 to 103 bytes; by at most 2 %");
    }
}
