//! A finished run, judged: its figures, its exit code and its notes.

use super::figures::{Figures, ModelFigures, RunInfo};
use crate::loadgen::measure::{ModelTally, Tally};
use crate::loadgen::schedule::Plan;
use std::time::SystemTime;
use symphony_transport::Nanos;

/// A finished run. Displayed, it is the table that people read.
pub struct Report {
    /// The figures that `--json` prints.
    pub figures: Figures,
    /// Everything that was counted.
    pub tally: Tally,
    /// The time at which the run, with its warm-up, began.
    pub began: SystemTime,
    /// True if the run fails where the generator itself was late.
    pub is_strict: bool,
}

/// The share of an SLO by which the generator may itself be late.
pub const ALLOWED_LATENESS: f64 = 0.01;

/// The criteria of a run that are not among its counts.
#[derive(Clone, Debug, Default)]
pub struct Criteria {
    /// The SLO of each model of the plan, the client's own or, without one, the server's.
    pub slos: Vec<Option<Nanos>>,
    /// The share of the tightest SLO by which the generator may be late, p99.
    pub allowed_lateness: f64,
    /// True if a run fails where the generator itself was later; else it is warned about.
    pub strict: bool,
}

/// A run that is over.
pub struct FinishedRun {
    /// The time at which it began.
    pub began: SystemTime,
    /// The counts.
    pub tally: Tally,
    /// The settings.
    pub info: RunInfo,
}

impl Report {
    /// Sums up. Requests that were offered and have not ended count as failed.
    pub fn new(plan: &Plan, ran: FinishedRun, criteria: &Criteria) -> Report {
        let FinishedRun { began, tally, info } = ran;
        let tightest = criteria.slos.iter().flatten().min();
        let limit_ms = tightest.map(|slo| slo.as_millis_f64() * criteria.allowed_lateness);
        let model = |((planned, slo), counted): ((&_, &Option<Nanos>), &ModelTally)| {
            ModelFigures::new(planned, *slo, counted)
        };
        let models = plan.models.iter().zip(&criteria.slos).zip(&tally.models).map(model).collect();
        let figures = Figures::new(&tally, models, limit_ms, info);
        Report { figures, tally, began, is_strict: criteria.strict }
    }

    /// True if the generator itself was later than it may be, beyond the machine's stalls, so that
    /// the figures are not the server's alone.
    pub fn generator_was_late(&self) -> bool {
        self.figures.lateness_limit_ms.is_some_and(|limit| self.figures.judged_lateness_ms() > limit)
    }

    /// True if that fails the run.
    pub fn failed_by_lateness(&self) -> bool {
        self.is_strict && self.generator_was_late()
    }

    /// 0, or 1 where the figures are of no use: nothing was answered, the server went away, or the
    /// generator of a strict run was late.
    pub fn exit_code(&self) -> u8 {
        let silent = self.figures.sent > 0 && self.tally.answered == 0;
        u8::from(silent || self.tally.lost || self.failed_by_lateness())
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.figures).expect("plain numbers and names can always be written")
    }

    fn lateness_note(&self) -> Option<String> {
        let limit = self.figures.lateness_limit_ms.filter(|_| self.generator_was_late())?;
        let (how, strict) =
            if self.is_strict { ("failed", "") } else { ("warning", "; --strict fails such a run") };
        let raised = self.figures.raised_by_lateness_ms().into_iter().flatten();
        let raised: Vec<String> = raised.map(|(name, ms)| format!("{name} {ms:.3}")).collect();
        Some(format!(
            "{how}: the generator itself was late: one request in a hundred went out {:.3} ms or more after its time, \
             over the limit of {limit:.3} ms (--max-lateness{strict}). That may have raised latency by up to {} ms. \
             Give it cores of its own, more --threads or --max-connections, or less to send",
            self.figures.judged_lateness_ms(),
            raised.join(", ")
        ))
    }

    /// Returns the remarks that a reader of the figures needs, for standard error.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let figures = &self.figures;
        notes.extend(self.lateness_note());
        if let Some(reason) = &self.tally.first_failure {
            notes.push(format!("the first request that failed: {reason}"));
        }
        if figures.unanswered > 0 {
            notes.push(format!(
                "{} requests were never sent or never answered; they count as failed",
                figures.unanswered
            ));
        }
        if self.tally.records.left_out() > 0 {
            notes.push(format!(
                "{} more requests are not in the file of requests",
                self.tally.records.left_out()
            ));
        }
        if self.tally.lost {
            notes.push("the server went away during the run".into());
        } else if figures.sent > 0 && self.tally.answered == 0 {
            notes.push("the server answered no request".into());
        }
        notes
    }
}
