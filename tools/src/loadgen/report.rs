//! What a run comes to: the JSON object that others read (DESIGN.md, section 9), and a table for people.

use serde::Serialize;
use std::fmt;
use symphony::clock::Nanos;

/// The figures, under the names that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Requests whose time came.
    pub offered: u64,
    /// Requests that went out.
    pub sent: u64,
    /// Answered in time.
    pub good: u64,
    /// All others: late + dropped + rejected + failed.
    pub bad: u64,
    /// Answered too late.
    pub late: u64,
    /// Given up by the server, since they could not be in time.
    pub dropped: u64,
    /// Not taken by the server.
    pub rejected: u64,
    /// Ended in an error, or without an answer, or never sent.
    pub failed: u64,
    /// Requests offered per second.
    pub offered_rps: f64,
    /// Good requests per second.
    pub good_rps: f64,
    /// bad / offered.
    pub bad_rate: f64,
    /// From the intended send time to the answer, of good and late requests.
    pub latency_ms: Latency,
    /// Requests per batch, as far as the server tells; 0 if it does not.
    pub mean_batch: f64,
    /// How late the generator itself sent.
    pub lateness_ms: Lateness,
}

/// Quantiles of latency, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the quantiles")]
pub struct Latency {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Quantiles of lateness, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the names are the quantiles")]
pub struct Lateness {
    pub p99: f64,
    pub max: f64,
}

/// The counts of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFigures {
    /// Its name.
    pub name: String,
    /// Its requests whose time came.
    pub offered: u64,
    /// Those answered in time.
    pub good: u64,
}

impl ModelFigures {
    fn bad_rate(&self) -> f64 {
        if self.offered == 0 { 0.0 } else { (self.offered - self.good) as f64 / self.offered as f64 }
    }
}

/// A finished run. Displayed, it is the table that people read.
#[derive(Clone, Debug)]
pub struct Report {
    /// What `--json` prints.
    pub figures: Figures,
    /// Seconds over which requests counted.
    pub window_s: f64,
    /// How many of the failed ones were never sent or never answered.
    pub unanswered: u64,
    /// Requests that the server answered at all, those of the warm-up included.
    pub answered: u64,
    /// The server went away during the run.
    pub lost: bool,
    /// Why the first request that failed did.
    pub first_failure: Option<String>,
    /// What lateness is measured against.
    pub tightest_slo: Option<Nanos>,
    /// Every model of the plan.
    pub models: Vec<ModelFigures>,
}

/// Models listed under the table, the worst first.
const MODELS_SHOWN: usize = 10;

impl Report {
    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.figures).expect("plain numbers can always be written")
    }

    /// What a reader of the figures must know, in words, for standard error.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let lateness = self.figures.lateness_ms.p99;
        if let Some(slo) = self.tightest_slo.map(Nanos::as_millis_f64)
            && lateness > slo / 100.0
        {
            notes.push(format!(
                "the generator itself was late: one request in a hundred went out {lateness:.3} ms or more after \
                 its time, over 1 % of the SLO of {slo} ms. Latencies include that. Give it a core of its own, \
                 more connections, or less to send"
            ));
        }
        if let Some(reason) = &self.first_failure {
            notes.push(format!("the first request that failed: {reason}"));
        }
        if self.unanswered > 0 {
            notes.push(format!(
                "{} requests were never sent or never answered; they count as failed",
                self.unanswered
            ));
        }
        if self.lost {
            notes.push("the server went away during the run".into());
        } else if self.figures.sent > 0 && self.answered == 0 {
            notes.push("the server answered no request".into());
        }
        notes
    }

    fn worst_models(&self) -> Vec<&ModelFigures> {
        let mut models: Vec<&ModelFigures> = self.models.iter().collect();
        models.sort_by(|a, b| b.bad_rate().total_cmp(&a.bad_rate()));
        models
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let x = &self.figures;
        let percent = |part: f64| 100.0 * part;
        writeln!(f, "offered   {:>9}   {:.1}/s over {:.1} s", x.offered, x.offered_rps, self.window_s)?;
        writeln!(f, "sent      {:>9}", x.sent)?;
        writeln!(f, "good      {:>9}   {:.1}/s", x.good, x.good_rps)?;
        writeln!(
            f,
            "bad       {:>9}   {:.2} %: late {}, dropped {}, rejected {}, failed {}",
            x.bad,
            percent(x.bad_rate),
            x.late,
            x.dropped,
            x.rejected,
            x.failed
        )?;
        let Latency { p50, p90, p99, p999, max } = x.latency_ms;
        writeln!(
            f,
            "latency   p50 {p50:.3}   p90 {p90:.3}   p99 {p99:.3}   p99.9 {p999:.3}   max {max:.3} ms"
        )?;
        match x.mean_batch {
            0.0 => writeln!(f, "batch     not told by the server")?,
            mean => writeln!(f, "batch     mean {mean:.2}")?,
        }
        let Lateness { p99, max } = x.lateness_ms;
        writeln!(f, "generator sent p99 {p99:.3}, max {max:.3} ms after the intended time")?;
        if self.models.len() < 2 {
            return Ok(());
        }
        writeln!(f, "\nmodels, the worst first                    offered       good    bad %")?;
        let models = self.worst_models();
        for model in models.iter().take(MODELS_SHOWN) {
            let ModelFigures { name, offered, good } = model;
            writeln!(f, "{name:<40} {offered:>9}  {good:>9}   {:>6.2}", percent(model.bad_rate()))?;
        }
        match models.len().saturating_sub(MODELS_SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figures = Figures {
            offered: 1_000,
            sent: 1_000,
            good: 990,
            bad: 10,
            late: 4,
            dropped: 3,
            rejected: 2,
            failed: 1,
            offered_rps: 100.0,
            good_rps: 99.0,
            bad_rate: 0.01,
            latency_ms: Latency { p50: 10.0, p90: 20.0, p99: 24.0, p999: 30.0, max: 31.5 },
            mean_batch: 5.25,
            lateness_ms: Lateness { p99: 0.1, max: 0.5 },
        };
        Report {
            figures,
            window_s: 10.0,
            unanswered: 0,
            answered: 999,
            lost: false,
            first_failure: None,
            tightest_slo: Some(Nanos::from_millis(25)),
            models: vec![ModelFigures { name: "m".into(), offered: 1_000, good: 990 }],
        }
    }

    #[test]
    fn the_json_has_the_names_that_others_rely_on_and_nothing_else() {
        let json: serde_json::Value = serde_json::from_str(&report().json()).unwrap();
        let expected = serde_json::json!({
            "offered": 1000, "sent": 1000, "good": 990, "bad": 10, "late": 4, "dropped": 3, "rejected": 2,
            "failed": 1, "offered_rps": 100.0, "good_rps": 99.0, "bad_rate": 0.01,
            "latency_ms": { "p50": 10.0, "p90": 20.0, "p99": 24.0, "p999": 30.0, "max": 31.5 },
            "mean_batch": 5.25, "lateness_ms": { "p99": 0.1, "max": 0.5 },
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn the_table_says_the_same_in_words() {
        let text = report().to_string();
        assert_eq!(
            text,
            "offered        1000   100.0/s over 10.0 s\n\
             sent           1000\n\
             good            990   99.0/s\n\
             bad              10   1.00 %: late 4, dropped 3, rejected 2, failed 1\n\
             latency   p50 10.000   p90 20.000   p99 24.000   p99.9 30.000   max 31.500 ms\n\
             batch     mean 5.25\n\
             generator sent p99 0.100, max 0.500 ms after the intended time\n"
        );
    }

    #[test]
    fn many_models_are_listed_with_the_worst_first() {
        let mut many = report();
        many.models =
            (0..15).map(|k| ModelFigures { name: format!("m{k}"), offered: 100, good: 85 + k }).collect();
        let text = many.to_string();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("models")).collect();
        assert!(lines[1].starts_with("m0 ") && lines[1].ends_with("15.00"), "{text}");
        assert_eq!((lines.len(), lines[11]), (12, "and 5 more"), "{text}");
    }

    #[test]
    fn a_generator_that_was_late_says_so_and_one_in_time_does_not() {
        let mut late = report();
        assert_eq!(late.notes(), [""; 0]);
        late.figures.lateness_ms.p99 = 0.3;
        assert_eq!(late.notes().len(), 1);
        assert!(late.notes()[0].starts_with("the generator itself was late"), "{:?}", late.notes());
        late.tightest_slo = None;
        assert_eq!(late.notes(), [""; 0]);
    }
}
