//! Prometheus text, version 0.0.4: families with their help and kind, then their samples.

use crate::telemetry::histogram::Latencies;
use std::fmt::{Display, Write as _};

/// The kind of a family's numbers.
#[derive(Clone, Copy)]
pub(super) enum MetricKind {
    /// A number that only rises.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A histogram.
    Histogram,
}

impl MetricKind {
    const fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        }
    }
}

/// The labels of a sample.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text so far.
#[derive(Default)]
pub(super) struct Exposition {
    out: String,
    family: String,
}

impl Exposition {
    /// Begins a family: the samples that follow are of it.
    pub(super) fn family(&mut self, name: &str, kind: MetricKind, help: &str) {
        name.clone_into(&mut self.family);
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
    }

    /// Adds a sample of the family.
    pub(super) fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, &[], value);
    }

    /// Adds a histogram of the family: the number up to each bound, in seconds, then the number of
    /// all and their sum.
    pub(super) fn buckets(
        &mut self,
        labels: Labels<'_>,
        up_to: impl Iterator<Item = (f64, u64)>,
        count: u64,
        sum: impl Display,
    ) {
        for (bound, below) in up_to {
            self.line("_bucket", labels, &[("le", &bound.to_string())], below);
        }
        self.line("_bucket", labels, &[("le", "+Inf")], count);
        self.line("_sum", labels, &[], sum);
        self.line("_count", labels, &[], count);
    }

    /// Adds latencies as a histogram of the family.
    pub(super) fn latencies(&mut self, labels: Labels<'_>, latencies: &Latencies) {
        let up_to = latencies.up_to().map(|(bound, below)| (bound.as_secs_f64(), below));
        self.buckets(labels, up_to, latencies.count(), latencies.sum.as_secs_f64());
    }

    /// Returns the whole text.
    pub(super) fn finish(self) -> String {
        self.out
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, more: Labels<'_>, value: impl Display) {
        let out = &mut self.out;
        let _ = write!(out, "{}{suffix}", self.family);
        for (at, (name, value)) in labels.iter().chain(more).enumerate() {
            let _ = write!(out, "{}{name}=\"", if at == 0 { '{' } else { ',' });
            escape(out, value);
            out.push('"');
        }
        let _ = writeln!(out, "{} {value}", if labels.len() + more.len() > 0 { "}" } else { "" });
    }
}

fn escape(out: &mut String, label: &str) {
    for character in label.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            _ => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_announced_and_its_labels_are_escaped() {
        let mut text = Exposition::default();
        text.family("x_total", MetricKind::Counter, "Things.");
        text.sample(&[], 7);
        text.sample(&[("name", "a\\b\"c\nd"), ("n", "1")], 0.5);
        text.family("y_seconds", MetricKind::Histogram, "Times.");
        text.buckets(&[("of", "z")], [(0.1, 2)].into_iter(), 3, 1.5);
        assert_eq!(
            text.finish(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total 7\n\
             x_total{name=\"a\\\\b\\\"c\\nd\",n=\"1\"} 0.5\n\
             # HELP y_seconds Times.\n# TYPE y_seconds histogram\n\
             y_seconds_bucket{of=\"z\",le=\"0.1\"} 2\ny_seconds_bucket{of=\"z\",le=\"+Inf\"} 3\n\
             y_seconds_sum{of=\"z\"} 1.5\ny_seconds_count{of=\"z\"} 3\n"
        );
    }
}
