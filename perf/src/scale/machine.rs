//! What the machine is, and what it takes away: its name and cores, time stolen by its host, threads kept waiting
//! for their core, and the longest gap that a thread sees which only looks at the clock.

use serde::Serialize;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony::clock::{Clock, Nanos};
use symphony::runtime::Seat;

/// A machine's name.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's model name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The load average over a minute, when the run began: what else ran.
    pub load_before: Option<f64>,
}

impl Machine {
    /// This machine, of which `cores` may be used.
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

/// Time that the host gave to others while a core of this machine wanted to run, in all, since the machine
/// started. `None` where the system does not tell.
pub fn stolen() -> Option<Nanos> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    // cpu user nice system idle iowait irq softirq steal …, in hundredths of a second
    let ticks: u64 = stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
    Some(Nanos::from_millis(10 * ticks))
}

/// How long a thread has waited for its core.
#[derive(Clone, Copy, Debug)]
pub struct ThreadDelay(Nanos);

impl ThreadDelay {
    /// The calling thread's. `None` where the system does not tell.
    pub fn of_this_thread() -> Option<ThreadDelay> {
        let stat = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        stat.split_whitespace().nth(1)?.parse().ok().map(|ns| ThreadDelay(Nanos(ns)))
    }

    /// How much longer than at an earlier time.
    pub fn since(self, earlier: ThreadDelay) -> Nanos {
        self.0 - earlier.0
    }
}

/// The longest time between two looks at the clock by a thread in `seat` that does nothing else, until `stop`.
pub fn longest_gap(seat: Seat, clock: &Clock, stop: &AtomicBool) -> Nanos {
    seat.take("the jitter measurement");
    let mut longest = Nanos::ZERO;
    let mut last = clock.now();
    while !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        longest = longest.max(now - last);
        last = now;
    }
    longest
}
