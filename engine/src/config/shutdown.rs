//! The keys `shutdown_timeout_s` and `thread_timeout_s` of CONFIG: the bounds on a shutdown, and on
//! a thread that does not move.

use super::toml_reader::TomlTable;
use std::time::Duration;

/// The bounds on the end of a process, and on a thread's standing still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownConfig {
    /// The time after which a process that was asked to end does, whatever it still does.
    pub timeout: Duration,
    /// The time without a duty cycle after which a pinned thread hangs.
    pub thread_timeout: Duration,
}

impl Default for ShutdownConfig {
    fn default() -> ShutdownConfig {
        ShutdownConfig { timeout: Duration::from_secs(30), thread_timeout: Duration::from_secs(10) }
    }
}

impl ShutdownConfig {
    /// Reads the keys.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<ShutdownConfig> {
        let seconds = |name, default| {
            let Some(value) = root.optional(name) else { return Some(default) };
            value.count(1..=86_400).map(|seconds| Duration::from_secs(seconds as u64))
        };
        let default = ShutdownConfig::default();
        let timeout = seconds("shutdown_timeout_s", default.timeout);
        let thread_timeout = seconds("thread_timeout_s", default.thread_timeout);
        Some(ShutdownConfig { timeout: timeout?, thread_timeout: thread_timeout? })
    }
}
