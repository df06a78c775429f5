//! The links to other hosts, as Prometheus text. The names are listed in docs/metrics.md.

use super::exposition::{Exposition, MetricKind};
use crate::runtime::frontend::{ModelInfo, SlotState};
use crate::runtime::links::{LinkState, LinkView};
use symphony_scheduler::workload::Network;
use symphony_transport::Nanos;

/// A family of one number per link: its name, its kind, its help, and its value where it is known.
type LinkFamily = (&'static str, MetricKind, &'static str, fn(&LinkView) -> Option<f64>);

const OF_LINKS: [LinkFamily; 11] = [
    ("symphony_link_up", MetricKind::Gauge, "1 if messages can be sent.", |link| {
        Some(f64::from(u8::from(link.state == LinkState::Up)))
    }),
    ("symphony_link_connections_total", MetricKind::Counter, "Connections that came up.", |link| {
        Some(link.connections as f64)
    }),
    ("symphony_link_received_bytes_total", MetricKind::Counter, "Bytes received.", |link| {
        Some(link.bytes[0] as f64)
    }),
    ("symphony_link_sent_bytes_total", MetricKind::Counter, "Bytes sent.", |link| Some(link.bytes[1] as f64)),
    (
        "symphony_link_round_trip_seconds",
        MetricKind::Gauge,
        "How long the last probe and its answer were under way.",
        |link| link.round_trip.map(Nanos::as_secs_f64),
    ),
    (
        "symphony_link_delay_seconds",
        MetricKind::Gauge,
        "The delay that 99 % of the peer's frames do not exceed on their way here.",
        |link| link.delay.map(Nanos::as_secs_f64),
    ),
    (
        "symphony_link_fetch_seconds",
        MetricKind::Gauge,
        "The time in which the peer fetches 99 % of its batches' inputs, however few their bytes.",
        |link| link.fetch.map(Nanos::as_secs_f64),
    ),
    (
        "symphony_link_fetch_per_kib_seconds",
        MetricKind::Gauge,
        "How much longer the peer's fetches take for each KiB.",
        |link| link.fetch_per_kib.map(Nanos::as_secs_f64),
    ),
    (
        "symphony_link_clock_offset_seconds",
        MetricKind::Gauge,
        "How much more the peer's clock reads than this host's.",
        |link| link.clock_offset_ns.map(|offset| offset as f64 / 1e9),
    ),
    (
        "symphony_link_clock_error_seconds",
        MetricKind::Gauge,
        "The most by which the offset is wrong.",
        |link| link.clock_error.map(Nanos::as_secs_f64),
    ),
    (
        "symphony_link_clock_drift_ratio",
        MetricKind::Gauge,
        "How much faster the peer's clock is than this host's, in seconds a second.",
        |link| link.clock_drift_ppb.map(|drift| drift as f64 / 1e9),
    ),
];

type DelayOf = fn(&Network) -> Nanos;

/// The ways whose delays a model's queues allow for.
const WAYS: [(&str, DelayOf); 3] = [
    ("control", |network| network.control),
    ("data_per_request", |network| network.data_per_request),
    ("result", |network| network.result),
];

/// Adds the delays that the queues of these models allow for, at the scheduler of several hosts.
pub(super) fn write_allowed(text: &mut Exposition, delays: &[Network], models: &[ModelInfo]) {
    if delays.is_empty() {
        return;
    }
    let help = "The delays of the network that the policy allows for, as measured.";
    text.family("symphony_allowed_delay_seconds", MetricKind::Gauge, help);
    let served = models.iter().zip(delays).filter(|(model, _)| model.state == SlotState::Serving);
    for (model, network) in served {
        for (way, delay) in WAYS {
            let labels =
                [("model", model.name.as_str()), ("version", &model.version.to_string()), ("way", way)];
            text.sample(&labels, delay(network).as_secs_f64());
        }
    }
}

/// Adds the links to `text`; nothing where there are none.
pub(super) fn write(text: &mut Exposition, links: &[LinkView]) {
    if links.is_empty() {
        return;
    }
    for (name, kind, help, value) in OF_LINKS {
        text.family(name, kind, help);
        for link in links {
            if let Some(value) = value(link) {
                text.sample(&[("peer", &link.peer), ("role", link.role.name())], value);
            }
        }
    }
}
