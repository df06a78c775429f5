//! What a run comes to: the figures that others read as JSON (docs/design/specification.md,
//! "Command lines"), and the forms in which they are given out.

mod chart;
mod compare;
mod csv;
mod figures;
mod files;
mod hdr;
mod html;
mod saved;
mod text;

pub use compare::{Change, Comparison, Verdict};
pub use figures::{Figures, Latency, Lateness, ModelFigures, Quantiles, RunInfo, StageFigures, Step};
pub use files::{Files, Form};
pub use saved::{Saved, SavedSecond};

use crate::loadgen::measure::{ModelTally, Tally};
use crate::loadgen::schedule::Plan;
use std::time::SystemTime;
use symphony_transport::Nanos;

/// A finished run. Displayed, it is the table that people read.
pub struct Report {
    /// What `--json` prints.
    pub figures: Figures,
    /// Everything that was counted.
    pub tally: Tally,
    /// When the run began, its warm-up included.
    pub began: SystemTime,
}

/// The share of an SLO by which the generator may itself be late.
pub const ALLOWED_LATENESS: f64 = 0.01;

/// What a run is judged by that its counts do not tell.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// The SLO of each model of the plan, the client's own or, without one, the server's.
    pub slos: Vec<Option<Nanos>>,
    /// The share of the tightest SLO by which the generator may be late, p99.
    pub allowed_lateness: f64,
}

/// A run that is over.
pub struct Ran {
    /// When it began.
    pub began: SystemTime,
    /// What was counted.
    pub tally: Tally,
    /// What it was.
    pub info: RunInfo,
}

impl Report {
    /// Sums up. Requests that were offered and have not ended count as failed.
    pub fn new(plan: &Plan, ran: Ran, terms: &Terms) -> Report {
        let Ran { began, tally, info } = ran;
        let tightest = terms.slos.iter().flatten().min();
        let limit_ms = tightest.map(|slo| slo.as_millis_f64() * terms.allowed_lateness);
        let model = |((planned, slo), counted): ((&_, &Option<Nanos>), &ModelTally)| {
            ModelFigures::new(planned, *slo, counted)
        };
        let models = plan.models.iter().zip(&terms.slos).zip(&tally.models).map(model).collect();
        let figures = Figures::new(&tally, models, limit_ms, info);
        Report { figures, tally, began }
    }

    /// Whether the generator itself was later than it may be, so that the figures are not the
    /// server's.
    pub fn generator_was_late(&self) -> bool {
        self.figures.lateness_limit_ms.is_some_and(|limit| self.figures.lateness_ms.p99 > limit)
    }

    /// 0, or 1 where the figures are of no use: nothing was answered, the server went away, or the
    /// generator was late.
    pub fn exit_code(&self) -> u8 {
        let silent = self.figures.sent > 0 && self.tally.answered == 0;
        u8::from(silent || self.tally.lost || self.generator_was_late())
    }

    /// One JSON object on one line.
    pub fn json(&self) -> String {
        serde_json::to_string(&self.figures).expect("plain numbers and names can always be written")
    }

    /// What a reader of the figures must know, in words, for standard error.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let figures = &self.figures;
        if let Some(limit) = figures.lateness_limit_ms
            && self.generator_was_late()
        {
            notes.push(format!(
                "failed: the generator itself was late, so the figures are not the server's: one request in a hundred \
                 went out {:.3} ms or more after its time, and {limit:.3} ms is what it may be (--max-lateness). Give it \
                 cores of its own, more --threads or --max-connections, or less to send",
                figures.lateness_ms.p99
            ));
        }
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::loadgen::measure::{End, Outcome, StageTimes, Told};
    use crate::loadgen::schedule::tests::open;
    use std::sync::Arc;

    pub(in crate::loadgen) fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// The report of `tally` under a plan's own SLOs.
    pub(in crate::loadgen) fn report(plan: &Plan, tally: Tally) -> Report {
        let slos = plan.models.iter().map(|model| model.slo).collect();
        let ran = Ran { began: SystemTime::UNIX_EPOCH, tally, info: RunInfo::default() };
        Report::new(plan, ran, &Terms { slos, allowed_lateness: ALLOWED_LATENESS })
    }

    /// Ten requests a second apart from 0 s on, of which those from 1 s on count, with an SLO of
    /// 100 ms.
    pub(in crate::loadgen) fn recorded() -> (Plan, Tally) {
        let mut plan = open("m", 1.0, Nanos::from_secs(10));
        plan.warmup = Nanos::from_secs(1);
        plan.models[0].slo = Some(at(100));
        let mut tally = Tally::new(&plan, Arc::default(), true);
        let answers = [
            (End::Good, 50, 9),
            (End::Good, 10, 4),
            (End::Good, 20, 4),
            (End::Good, 30, 4),
            (End::Good, 40, 4),
            (End::Good, 150, 1),
            (End::Late, 200, 0),
            (End::Dropped, 60, 0),
            (End::Rejected, 1, 0),
            (End::Failed, 2, 0),
        ];
        for (second, (end, ms, batch_size)) in (0..).zip(answers) {
            let intended = Nanos::from_secs(second);
            let sent = intended + Nanos::from_micros(200);
            tally.offered(0, intended);
            tally.sent(intended, sent);
            let ran = batch_size > 0;
            let times = ran.then(|| StageTimes {
                queued: at(1_000),
                batched: at(1_002),
                started: at(1_003),
                finished: at(1_007),
                answered: at(1_008),
            });
            let told = Told { batch_size, gpu: ran.then_some(3), times };
            tally.ended(Outcome { model: 0, intended, sent, ended: intended + at(ms), end, told });
        }
        tally.offered(0, Nanos::from_secs(10));
        (plan, tally)
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.002 * b
    }

    #[test]
    fn a_recorded_list_of_answers_gives_the_figures_worked_out_by_hand() {
        let (plan, tally) = recorded();
        let report = report(&plan, tally);
        let f = &report.figures;
        assert_eq!((f.offered, f.sent, f.good, f.bad), (10, 9, 4, 6));
        // The answer after 150 ms is late though the server thought it good; one was never sent.
        assert_eq!((f.late, f.dropped, f.rejected, f.failed, f.unanswered), (2, 1, 1, 2, 1));
        assert_eq!(f.bad, f.late + f.dropped + f.rejected + f.failed);
        assert_eq!((f.offered_rps, f.good_rps, f.bad_rate), (1.0, 0.4, 0.6));
        assert!(
            close(f.latency_ms.p50, 30.0) && close(f.latency_ms.p90, 200.0) && close(f.latency_ms.max, 200.0)
        );
        // Four requests were one batch, and one was another.
        assert_eq!((f.mean_batch, f.batch_sizes.as_slice()), (2.5, [(1, 1), (4, 4)].as_slice()));
        assert!(close(f.lateness_ms.p99, 0.2) && close(f.lateness_ms.max, 0.2));
        let stages = f.stages_ms.as_ref().unwrap();
        assert!(
            close(stages.queue.p50, 2.0) && close(stages.wait.max, 1.0) && close(stages.execution.p99, 4.0)
        );
        assert!(close(stages.answer.p50, 1.0) && close(stages.network_and_client.max, 141.8), "{stages:?}");
        assert_eq!((f.models[0].bad_rate, f.worst_bad_rate), (0.6, 0.6));
    }

    #[test]
    fn threads_that_share_a_run_count_together_what_one_would() {
        let (plan, one) = recorded();
        let (_, mut two) = recorded();
        two.merge(recorded().1);
        let (one, two) = (report(&plan, one).figures, report(&plan, two).figures);
        assert_eq!(
            (two.offered, two.good, two.unanswered),
            (2 * one.offered, 2 * one.good, 2 * one.unanswered)
        );
        assert_eq!((two.latency_ms, two.mean_batch), (one.latency_ms, one.mean_batch));
    }

    #[test]
    fn a_run_that_ends_early_counts_what_was_meant_to_be_sent_by_then() {
        let plan = open("m", 10.0, Nanos::from_secs(10));
        let mut tally = Tally::new(&plan, Arc::default(), false);
        for k in 0..20 {
            let intended = at(k * 100);
            tally.offered(0, intended);
            tally.sent(intended, intended);
            let told = Told::default();
            tally.ended(Outcome {
                model: 0,
                intended,
                sent: intended,
                ended: intended + at(1),
                end: End::Good,
                told,
            });
        }
        tally.stopped(Nanos::from_secs(2));
        let figures = report(&plan, tally).figures;
        assert_eq!((figures.offered, figures.offered_rps, figures.bad), (20, 10.0, 0));
    }

    #[test]
    fn a_run_without_a_request_has_figures_of_zero() {
        let plan = open("m", 1.0, Nanos::from_secs(1));
        let mut tally = Tally::new(&plan, Arc::default(), false);
        tally.stopped(Nanos::ZERO);
        let figures = report(&plan, tally).figures;
        assert_eq!((figures.offered, figures.bad_rate, figures.offered_rps), (0, 0.0, 0.0));
        assert_eq!((figures.latency_ms.max, figures.mean_batch), (0.0, 0.0));
    }

    #[test]
    fn a_generator_that_was_late_fails_the_run_and_one_in_time_does_not() {
        // 0.2 ms of lateness, against an SLO of 100 ms and then of 10 ms.
        for (slo, late) in [(Some(at(100)), false), (Some(at(10)), true), (None, false)] {
            let (mut plan, tally) = recorded();
            plan.models[0].slo = slo;
            let report = report(&plan, tally);
            let told = report.notes().iter().any(|note| note.contains("the generator itself was late"));
            assert_eq!((told, report.exit_code()), (late, u8::from(late)), "{:?}", report.notes());
        }
    }
}
