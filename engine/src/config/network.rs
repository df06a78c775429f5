//! The table `[network]` of CONFIG and of workload files: delays of the network.

use super::toml_reader::{Bounds, TomlTable};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;

/// Reads the table `[network]`; every delay is optional, and 0 by default.
pub(super) fn read_network(root: &TomlTable<'_>) -> Option<Network> {
    root.section("network", |table| {
        let delay = |name| match table.optional(name) {
            Some(value) => value.number(Bounds::from(0.0, 1e9)).map(|us| Nanos::from_millis_f64(us / 1e3)),
            None => Some(Nanos::ZERO),
        };
        let (control, data, result) = (delay("control_us"), delay("data_us_per_request"), delay("result_us"));
        Some(Network { control: control?, data_per_request: data?, result: result? })
    })
}
