//! The results of a run: the figures that others read as JSON (docs/design/specification.md,
//! "Command lines"), and the forms in which they are given out.

mod chart;
mod compare;
mod csv;
mod figures;
mod files;
mod hdr;
mod html;
mod run_report;
mod saved;
mod text;

pub use compare::{Change, Comparison, Verdict};
pub use figures::{
    Figures, Latency, Lateness, MachineStalls, ModelFigures, Quantiles, RunInfo, StageFigures, Step,
    WithoutStalls,
};
pub use files::{Files, Form};
pub use run_report::{ALLOWED_LATENESS, Criteria, FinishedRun, Report};
pub use saved::{Saved, SavedSecond};

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::loadgen::measure::Tally;
    use crate::loadgen::measure::{End, RequestRecord, ServerDetails, StageTimes};
    use crate::loadgen::schedule::Plan;
    use crate::loadgen::schedule::tests::open;
    use std::sync::Arc;
    use std::time::SystemTime;
    use symphony_transport::Nanos;

    pub(in crate::loadgen) fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// The report of `tally` under a plan's own SLOs.
    pub(in crate::loadgen) fn report(plan: &Plan, tally: Tally) -> Report {
        let slos = plan.models.iter().map(|model| model.slo).collect();
        let ran = FinishedRun { began: SystemTime::UNIX_EPOCH, tally, info: RunInfo::default() };
        Report::new(plan, ran, &Criteria { slos, allowed_lateness: ALLOWED_LATENESS, strict: false })
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
            let details = ServerDetails { batch_size, gpu: ran.then_some(3), times };
            tally.ended(RequestRecord { model: 0, intended, sent, ended: intended + at(ms), end, details });
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
            let details = ServerDetails::default();
            tally.ended(RequestRecord {
                model: 0,
                intended,
                sent: intended,
                ended: intended + at(1),
                end: End::Good,
                details,
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
    fn a_generator_that_was_late_is_warned_about_and_fails_a_strict_run() {
        // 0.2 ms of lateness, against an SLO of 100 ms and then of 10 ms.
        for (slo, late) in [(Some(at(100)), false), (Some(at(10)), true), (None, false)] {
            let (mut plan, tally) = recorded();
            plan.models[0].slo = slo;
            let mut report = report(&plan, tally);
            let noted = |report: &Report, how: &str| {
                let what = format!("{how}: the generator itself was late");
                report.notes().iter().any(|note| note.starts_with(&what))
            };
            assert_eq!((noted(&report, "warning"), report.exit_code()), (late, 0), "{:?}", report.notes());
            report.is_strict = true;
            assert_eq!((noted(&report, "failed"), report.exit_code()), (late, u8::from(late)));
        }
    }

    #[test]
    fn a_warning_says_by_how_much_lateness_may_have_raised_each_percentile() {
        let (mut plan, tally) = recorded();
        plan.models[0].slo = Some(at(10));
        let report = report(&plan, tally);
        let raised = report.figures.raised_by_lateness_ms().unwrap();
        assert!(raised.iter().all(|(_, ms)| (ms - 0.2).abs() < 0.1), "{raised:?}");
        let said = raised.map(|(name, ms)| format!("{name} {ms:.3}")).join(", ");
        assert!(report.notes()[0].contains(&format!("up to {said} ms")), "{:?}", report.notes());
    }

    #[test]
    fn a_stall_of_the_machine_fails_neither_a_rate_nor_a_strict_run_and_both_figures_are_kept() {
        let mut plan = open("m", 100.0, Nanos::from_secs(10));
        plan.models[0].slo = Some(at(100));
        let live = Arc::<crate::loadgen::measure::Live>::default();
        let mut tally = Tally::new(&plan, Arc::clone(&live), false);
        for k in 0..1_000 {
            let intended = at(k * 10);
            // The machine stands still from 5 s to 5.2 s: 20 requests are sent late, and are late.
            let sent = if (500..520).contains(&k) { at(5_200) } else { intended };
            if k == 500 {
                live.stalls.woke(at(5_000), at(5_200));
            }
            tally.offered(0, intended);
            tally.sent(intended, sent);
            let (ended, details) = (sent + at(20), ServerDetails::default());
            live.stalls.woke(ended, ended);
            tally.ended(RequestRecord { model: 0, intended, sent, ended, end: End::Good, details });
        }
        let mut report = report(&plan, tally);
        report.is_strict = true;
        let figures = &report.figures;
        assert_eq!((figures.machine_stalls.count, figures.machine_stalls.longest_ms), (1, 200.0));
        // Those of the last 80 ms were in time.
        assert!((figures.worst_bad_rate - 0.012).abs() < 0.002 && figures.lateness_ms.p99 > 50.0);
        let without = figures.without_stalls.unwrap();
        assert!((without.bad_rate, without.lateness_ms.max) == (0.0, 0.0), "{without:?}");
        assert!((880..=910).contains(&without.offered), "{without:?}");
        assert_eq!((figures.judged_bad_rate(), report.exit_code()), (0.0, 0));
        let text = report.to_string();
        assert!(text.contains("machine   1 stalls, longest 200.000 ms"), "{text}");
    }

    #[test]
    fn where_most_requests_met_a_stall_the_run_is_judged_as_it_was() {
        let (mut plan, _) = recorded();
        plan.models[0].slo = Some(at(100));
        let live = Arc::<crate::loadgen::measure::Live>::default();
        live.stalls.woke(Nanos::ZERO, Nanos::from_secs(9));
        let mut tally = Tally::new(&plan, live, false);
        tally.offered(0, Nanos::from_secs(2));
        let (intended, details) = (Nanos::from_secs(2), ServerDetails::default());
        let ended = Nanos::from_secs(3);
        tally.ended(RequestRecord { model: 0, intended, sent: intended, ended, end: End::Good, details });
        let figures = report(&plan, tally).figures;
        assert_eq!((figures.without_stalls, figures.judged_bad_rate()), (None, 1.0));
    }
}
