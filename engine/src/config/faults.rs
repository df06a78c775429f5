//! The table `[faults]` of CONFIG: what is done when a part of the engine does not do its work.

use super::toml_reader::{Bounds, TomlTable};
use symphony_transport::Nanos;

/// The bounds on what a fault may cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultConfig {
    /// The time after its deadline at which a request is ended if it has no answer.
    pub grace: Nanos,
}

impl Default for FaultConfig {
    fn default() -> FaultConfig {
        FaultConfig { grace: Nanos::from_millis(250) }
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
            Some(FaultConfig { grace: grace? })
        })
    }
}
