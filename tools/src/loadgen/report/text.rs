//! A report as the table that people read in a terminal.

use super::{Figures, Latency, Lateness, MachineStalls, ModelFigures, Report};
use std::fmt;

/// Models listed under the table, the worst first.
const MODELS_SHOWN: usize = 10;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures.fmt(f)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(goodput) = self.goodput_rps {
            writeln!(f, "goodput   {goodput:>9.1}/s   the figures below are those of that run\n")?;
        }
        writeln!(f, "offered   {:>9}   {:.1}/s over {:.1} s", self.offered, self.offered_rps, self.window_s)?;
        writeln!(f, "sent      {:>9}", self.sent)?;
        writeln!(f, "good      {:>9}   {:.1}/s", self.good, self.good_rps)?;
        writeln!(
            f,
            "bad       {:>9}   {:.2} %: late {}, dropped {}, rejected {}, failed {}",
            self.bad,
            percent(self.bad_rate),
            self.late,
            self.dropped,
            self.rejected,
            self.failed
        )?;
        let Latency { p50, p90, p99, p999, max } = self.latency_ms;
        writeln!(
            f,
            "latency   p50 {p50:.3}   p90 {p90:.3}   p99 {p99:.3}   p99.9 {p999:.3}   max {max:.3} ms"
        )?;
        for (name, stage) in self.stages_ms.iter().flat_map(|stages| stages.named()) {
            writeln!(
                f,
                "  {name:<18} p50 {:>8.3}   p99 {:>8.3}   max {:>8.3} ms",
                stage.p50, stage.p99, stage.max
            )?;
        }
        match self.mean_batch {
            0.0 => writeln!(f, "batch     not stated by the server")?,
            mean => writeln!(f, "batch     mean {mean:.2}")?,
        }
        let Lateness { p99, max } = self.lateness_ms;
        write!(f, "generator sent p99 {p99:.3}, max {max:.3} ms after the intended time")?;
        match self.lateness_limit_ms {
            Some(limit) => writeln!(f, "; p99 may be {limit:.3}")?,
            None => writeln!(f)?,
        }
        write_stalls(f, self)?;
        write_models(f, &self.models)
    }
}

/// Writes the machine's stalls, if there were any, and the figures without them.
fn write_stalls(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let MachineStalls { count, total_ms, longest_ms } = figures.machine_stalls;
    if count == 0 {
        return Ok(());
    }
    writeln!(f, "machine   {count} stalls, longest {longest_ms:.3} ms, {total_ms:.3} ms in all")?;
    let Some(without) = figures.without_stalls else {
        return writeln!(f, "  they disturbed most requests, so the figures say little about the server");
    };
    let Latency { p50, p99, max, .. } = without.latency_ms;
    let (offered, bad) = (without.offered, percent(without.bad_rate));
    writeln!(
        f,
        "  without them       {offered} requests, bad {bad:.2} %   latency p50 {p50:.3}   p99 {p99:.3}   max {max:.3} ms"
    )
}

fn percent(part: f64) -> f64 {
    100.0 * part
}

fn write_models(f: &mut fmt::Formatter<'_>, models: &[ModelFigures]) -> fmt::Result {
    if models.len() < 2 {
        return Ok(());
    }
    writeln!(f, "\nmodels, the worst first                    offered       good    bad %    p99 ms")?;
    let mut worst: Vec<&ModelFigures> = models.iter().collect();
    worst.sort_by(|a, b| b.bad_rate.total_cmp(&a.bad_rate));
    for model in worst.iter().take(MODELS_SHOWN) {
        let ModelFigures { name, offered, good, bad_rate, latency_ms, .. } = model;
        let p99 = latency_ms.p99;
        writeln!(f, "{name:<40} {offered:>9}  {good:>9}   {:>6.2}  {p99:>8.3}", percent(*bad_rate))?;
    }
    match models.len().saturating_sub(MODELS_SHOWN) {
        0 => Ok(()),
        more => writeln!(f, "and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{recorded, report};
    use super::*;

    #[test]
    fn the_table_has_the_figures() {
        let (plan, tally) = recorded();
        let text = report(&plan, tally).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "offered          10   1.0/s over 10.0 s",
                "sent              9",
                "good              4   0.4/s",
                "bad               6   60.00 %: late 2, dropped 1, rejected 1, failed 2",
            ]
        );
        assert!(lines[4].starts_with("latency   p50 30.0") && lines[4].ends_with(" ms"), "{text}");
        assert!(lines[5].starts_with("  queue              p50    2.0"), "{text}");
        assert_eq!(lines[10], "batch     mean 2.50");
        assert!(lines[11].ends_with("ms after the intended time; p99 may be 1.000"), "{text}");
        assert_eq!(lines.len(), 12, "one model needs no table");
    }

    #[test]
    fn many_models_are_listed_with_the_worst_first() {
        let (plan, tally) = recorded();
        let mut many = report(&plan, tally);
        let model = |k: u64| ModelFigures {
            name: format!("m{k}"),
            offered: 100,
            good: 85 + k,
            bad_rate: 0.15 - k as f64 / 100.0,
            ..ModelFigures::default()
        };
        many.figures.models = (0..15).map(model).collect();
        let text = many.to_string();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("models")).collect();
        assert!(lines[1].starts_with("m0 ") && lines[1].contains(" 15.00 "), "{text}");
        assert_eq!((lines.len(), lines[11]), (12, "and 5 more"), "{text}");
    }
}
