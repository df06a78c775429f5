//! The state of discovery, as Prometheus text. The names are listed in docs/metrics.md.

use super::exposition::{Exposition, MetricKind};
use crate::runtime::discovery::DiscoveryView;

/// A family of one number: its name, its kind, its help, and its value.
type DiscoveryFamily = (&'static str, MetricKind, &'static str, fn(&DiscoveryView) -> f64);

const OF_DISCOVERY: [DiscoveryFamily; 4] = [
    ("symphony_discovery_up", MetricKind::Gauge, "1 if the source answered when last asked.", |view| {
        f64::from(u8::from(view.is_up))
    }),
    ("symphony_discovery_known", MetricKind::Gauge, "Hosts or addresses that are known.", |view| {
        view.known as f64
    }),
    (
        "symphony_discovery_changes_total",
        MetricKind::Counter,
        "Joins, leaves and moves of hosts that were seen.",
        |view| view.changes as f64,
    ),
    ("symphony_discovery_losses_total", MetricKind::Counter, "How often the source was lost.", |view| {
        view.losses as f64
    }),
];

/// Adds the state to `text`; nothing where there is none.
pub(super) fn write(text: &mut Exposition, view: Option<&DiscoveryView>) {
    let Some(view) = view else { return };
    for (name, kind, help, value) in OF_DISCOVERY {
        text.family(name, kind, help);
        text.sample(&[("source", view.source)], value(view));
    }
}
