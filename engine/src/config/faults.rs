//! The table `[faults]` of CONFIG: what is done when a part of the engine does not do its work.

use super::toml_reader::{Bounds, TomlTable};
use symphony_transport::Nanos;

/// The bounds on what a fault may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// The time after its deadline at which a request is ended if it has no answer.
    pub grace: Nanos,
    /// The least time that a batch may take before its CPU executor counts as hung.
    pub hung_after: Nanos,
    /// The most threads that may hang at once: beyond, an executor is not replaced.
    pub max_hung_threads: usize,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig { grace: Nanos::from_millis(250), hung_after: Nanos::from_secs(5), max_hung_threads: 8 }
    }
}

impl FaultConfig {
    /// Reads the table `[faults]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<FaultConfig> {
        root.section("faults", |table| {
            let default = FaultConfig::default();
            let grace = table.optional("grace_ms").map_or(Some(default.grace), |value| {
                value.number(Bounds::from(0.0, 60_000.0)).map(Nanos::from_millis_f64)
            });
            let hung_after = table.optional("hung_after_s").map_or(Some(default.hung_after), |value| {
                value.number(Bounds::from(0.1, 3_600.0)).map(|s| Nanos::from_millis_f64(s * 1e3))
            });
            let most = table.optional("max_hung_threads");
            let most = most.map_or(Some(default.max_hung_threads), |value| value.count(0..=1_024));
            Some(FaultConfig { grace: grace?, hung_after: hung_after?, max_hung_threads: most? })
        })
    }
}
