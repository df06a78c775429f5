//! A run as CSV: a line a second, or a line a request.

use super::Report;
use crate::loadgen::measure::{End, RequestRecord};
use std::io::{self, Write};
use symphony_transport::Nanos;

impl Report {
    /// Writes a line for each second of the run, by the time at which requests were meant to be
    /// sent.
    ///
    /// Errors: those of `out`.
    pub fn write_seconds(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = csv::Writer::from_writer(out);
        lines.write_record([
            "second", "offered", "sent", "good", "late", "dropped", "rejected", "failed", "p50_ms", "p90_ms",
            "p99_ms", "max_ms",
        ])?;
        for (at, second) in self.tally.seconds.iter().enumerate() {
            let unanswered = second.offered.saturating_sub(second.ends.iter().sum());
            let mut ends = second.ends;
            ends[End::Failed as usize] += unanswered;
            let counts = [at as u64, second.offered, second.sent].into_iter().chain(ends);
            let ms = |q: f64| format!("{:.3}", second.latency.value_at_quantile(q) as f64 / 1e6);
            lines.write_record(counts.map(|n| n.to_string()).chain([0.5, 0.9, 0.99, 1.0].map(ms)))?;
        }
        lines.flush()
    }

    /// Writes a line for each request that ended, by the time at which it was meant to be sent.
    /// Times are microseconds; stages are empty where the server does not send them.
    ///
    /// Errors: those of `out`.
    pub fn write_requests(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut lines = csv::Writer::from_writer(out);
        lines.write_record([
            "intended_us",
            "sent_us",
            "ended_us",
            "model",
            "end",
            "batch_size",
            "gpu",
            "queue_us",
            "wait_us",
            "execution_us",
            "answer_us",
            "network_and_client_us",
        ])?;
        for record in self.tally.records.kept() {
            let RequestRecord { model, intended, sent, ended, end, details } = record;
            let us = |at: Nanos| format!("{:.1}", (at - self.tally.from).as_micros_f64());
            let name = self.figures.models[*model].name.clone();
            let batch = if details.batch_size > 0 { details.batch_size.to_string() } else { String::new() };
            let gpu = details.gpu.map_or(String::new(), |gpu| gpu.to_string());
            let stages = details.times.map(|times| times.durations(*ended - *sent));
            let stages = match stages {
                Some(stages) => stages.map(|stage| format!("{:.1}", stage.as_micros_f64())),
                None => Default::default(),
            };
            let first = [us(*intended), us(*sent), us(*ended), name, end.name().into(), batch, gpu];
            lines.write_record(first.into_iter().chain(stages))?;
        }
        lines.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};

    #[test]
    fn a_second_and_a_request_are_a_line_each() {
        let (plan, tally) = recorded();
        let report = report(&plan, tally);
        let (mut seconds, mut requests) = (Vec::new(), Vec::new());
        report.write_seconds(&mut seconds).unwrap();
        report.write_requests(&mut requests).unwrap();
        let seconds = String::from_utf8(seconds).unwrap();
        let lines: Vec<&str> = seconds.lines().collect();
        assert_eq!(lines.len(), 11);
        assert!(lines[1].starts_with("0,1,1,1,0,0,0,0,10.0"), "{}", lines[1]);
        assert!(lines[10].starts_with("9,1,0,0,0,0,0,1,0.000"), "offered and never sent: {}", lines[10]);
        let requests = String::from_utf8(requests).unwrap();
        let lines: Vec<&str> = requests.lines().collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[1], "0.0,200.0,10000.0,m,good,4,3,2000.0,1000.0,4000.0,1000.0,1800.0");
        assert_eq!(lines[9], "8000000.0,8000200.0,8002000.0,m,failed,,,,,,,");
    }
}
