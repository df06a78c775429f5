//! The machine, and the time that it takes from threads: its name and cores, time stolen by its
//! host, waiting for a core, CPU time against the clock, and the longest gap between two readings
//! of the clock.

pub mod busy_process;
pub mod gaps;

use serde::Serialize;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony::runtime::Placement;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;

/// A description of the machine, for reports.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The load average over a minute when the run began, of other programs.
    pub load_before: Option<f64>,
}

impl Machine {
    /// Describes this machine, of which `cores` may be used.
    pub fn this(cores: usize) -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = cpuinfo.lines().find(|line| line.starts_with("model name"));
        let name = name.and_then(|line| line.split_once(": ")).map(|(_, name)| name.to_owned());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            cpu: name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            load_before: load.split(' ').next().and_then(|load| load.parse().ok()),
        }
    }
}

/// Returns the total time since the machine started in which a core of this machine was ready to
/// run and the host ran other machines. `None` where the system does not count it.
pub fn stolen() -> Option<Nanos> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // cpu user nice system idle iowait irq softirq steal …, in hundredths of a second
    let ticks: u64 = stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(Nanos::from_millis(10 * ticks))
}

/// The time that a thread has waited for its core.
#[derive(Clone, Copy, Debug)]
pub struct ThreadDelay(Nanos);

impl ThreadDelay {
    /// Returns the calling thread's delay. `None` where the system does not count it.
    pub fn of_this_thread() -> Option<ThreadDelay> {
        let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        stat.split_whitespace().nth(1)?.parse().ok().map(|ns| ThreadDelay(Nanos(ns)))
    }

    /// Returns the delay since an earlier time.
    pub fn since(self, earlier: ThreadDelay) -> Nanos {
        self.0 - earlier.0
    }
}

/// The longest time between two readings of a thread's CPU time while it runs.
const CPU_TIME_READ_EVERY: Nanos = Nanos::from_millis(1);

/// The error of measurement: a thread that falls behind by no more has not lost its core.
const BEHIND: Nanos = Nanos::from_micros(1);

/// The calling thread's CPU time against the clock: the difference is time without its core. CPU
/// time excludes other threads and, where the system accounts for them, interrupts and the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    read_at: Nanos,
    /// The clock less the CPU time at `read_at`.
    behind: i64,
}

impl CpuTime {
    /// Returns true if the last reading is old.
    #[inline]
    pub fn is_stale(&self, now: Nanos) -> bool {
        now - self.read_at > CPU_TIME_READ_EVERY
    }

    /// Returns the time for which the thread was without its core since the last call; zero if that
    /// was at most a microsecond.
    #[cold]
    pub fn lost(&mut self, now: Nanos) -> Nanos {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let behind = now.0 as i64 - (cpu.tv_sec * 1_000_000_000 + cpu.tv_nsec);
        let since = behind - std::mem::replace(&mut self.behind, behind);
        let is_first = std::mem::replace(&mut self.read_at, now) == Nanos::ZERO;
        let lost = Nanos(since.max(0) as u64);
        if is_first || lost <= BEHIND { Nanos::ZERO } else { lost }
    }
}

/// Returns the longest time between two readings of the clock by a thread in `placement` that does
/// nothing else, until `stop`.
pub fn longest_gap(placement: Placement, clock: &Clock, stop: &AtomicBool) -> Nanos {
    placement.take("the jitter measurement");
    let mut longest = Nanos::ZERO;
    let mut last = clock.now();
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}
