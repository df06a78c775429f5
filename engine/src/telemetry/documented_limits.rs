//! The documents give each limit and time-out of telemetry as it is here.

use super::failures::LINES_A_SECOND;
use super::health::{SLOWER_THAN_PROFILED, STUCK_AFTER};
use super::history::{HISTORY_MODELS, SAMPLES, SECONDS};
use super::memory_view::LANES;
use super::otlp::post::LONGEST_PAUSE;
use super::otlp::sender::{AT_ONCE, ATTEMPTS, EVERY, FIRST_PAUSE, FLUSH, LAST_PATIENCE, PATIENCE, REQUESTS};
use super::view::SHOWN_FOR;
use symphony_transport::Nanos;

/// A document on one line.
fn document(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn seconds(time: Nanos) -> f64 {
    time.as_secs_f64()
}

/// A number with a comma before its thousands.
fn grouped(number: usize) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", number / 1_000, number % 1_000),
    }
}

#[test]
fn the_documents_have_the_limits_of_health_and_the_dashboard() {
    let (api, configuration, dashboard, metrics) = (
        document(include_str!("../../../docs/api.md")),
        document(include_str!("../../../docs/configuration.md")),
        document(include_str!("../../../docs/dashboard.md")),
        document(include_str!("../../../docs/metrics.md")),
    );
    let stuck = seconds(STUCK_AFTER);
    for (document, said) in [
        (&api, format!("made no progress for {stuck} s, or")),
        (&api, format!("made progress for {stuck} s plus {SLOWER_THAN_PROFILED} times its longest batch")),
        (&configuration, format!("as `debug`, at most {LINES_A_SECOND} a second per API core")),
        (&dashboard, format!("of the first {LANES} GPUs")),
        (&dashboard, format!("of the first {HISTORY_MODELS} that were requested")),
        (&dashboard, format!("batches of the last {} s", seconds(SHOWN_FOR))),
        (&dashboard, format!("a sample a second for {} s", SECONDS - 1)),
        (&dashboard, format!("the load of the last {} s", SAMPLES - 1)),
        (&metrics, format!("the share of the last {} s in which the GPU ran batches", SAMPLES - 1)),
    ] {
        assert!(document.contains(&said), "no document says \"{said}\"");
    }
}

#[test]
fn the_documents_have_the_limits_of_traces() {
    let tracing = document(include_str!("../../../docs/tracing.md"));
    for said in [
        format!("sends {} spans at once, or what it has after {EVERY:?}", grouped(AT_ONCE)),
        format!("it makes {ATTEMPTS} attempts, with a pause of {FIRST_PAUSE:?} after the first"),
        format!("as `Retry-After` says, up to {LONGEST_PAUSE:?}"),
        format!("A collector has {PATIENCE:?} to answer, and {LAST_PATIENCE:?} while the server stops"),
        format!("{} requests can wait", grouped(REQUESTS)),
        format!("the rest is sent, within {FLUSH:?}"),
    ] {
        assert!(tracing.contains(&said), "docs/tracing.md does not say \"{said}\"");
    }
}
