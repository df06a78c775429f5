//! Counting: what was offered, what was sent, how each request ended, and how long it took. One thread owns a
//! [`Tally`]; the targets record into it and [`Tally::report`] sums it up.

use super::plan::Plan;
use super::report::{Figures, Latency, Lateness, ModelFigures, Report};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use symphony::clock::Nanos;

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Answered in time.
    Good,
    /// It ran, and was answered too late.
    Late,
    /// The server gave it up since it could not be in time.
    Dropped,
    /// The server would not take it: it was full, or shutting down.
    Rejected,
    /// No answer, an error, or an answer that makes no sense.
    Failed,
}

impl End {
    const COUNT: usize = End::Failed as usize + 1;
}

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The model asked, an index into the plan's.
    pub model: usize,
    /// When it was meant to be sent.
    pub intended: Nanos,
    /// When the answer, or the error, was there.
    pub ended: Nanos,
    /// How it ended, as the server says. The tally makes [`End::Late`] of an answer after the SLO.
    pub end: End,
    /// The size of the batch that it ran in; 0 where that is not known.
    pub batch_size: u32,
}

/// The counts of a run. Only requests that were meant to be sent after the warm-up count.
pub struct Tally {
    from: Nanos,
    to: Nanos,
    slos: Vec<Option<Nanos>>,
    sent: u64,
    ends: [u64; End::COUNT],
    models: Vec<ModelFigures>,
    /// From the intended send time to the answer, of requests that ran, ns.
    latency: Histogram<u64>,
    /// From the intended to the real send time, ns.
    lateness: Histogram<u64>,
    /// Requests by the size of their batch, where that is known.
    batch_sizes: BTreeMap<u32, u64>,
    answered: u64,
    first_failure: Option<String>,
    lost: bool,
}

impl Tally {
    /// The counts of a run that has not begun.
    pub fn new(plan: &Plan) -> Tally {
        let histogram = || {
            let hour = Nanos::from_secs(3_600).0;
            Histogram::new_with_bounds(1, hour, 3).expect("these bounds are ones that it takes")
        };
        Tally {
            from: plan.warmup,
            to: plan.end(),
            slos: plan.models.iter().map(|model| model.slo).collect(),
            sent: 0,
            ends: [0; End::COUNT],
            models: plan
                .models
                .iter()
                .map(|m| ModelFigures { name: m.name.clone(), offered: 0, good: 0 })
                .collect(),
            latency: histogram(),
            lateness: histogram(),
            batch_sizes: BTreeMap::new(),
            answered: 0,
            first_failure: None,
            lost: false,
        }
    }

    fn counts(&self, intended: Nanos) -> bool {
        intended >= self.from && intended < self.to
    }

    /// The time of a request has come, whether or not it can be sent.
    pub fn offered(&mut self, model: usize, intended: Nanos) {
        if self.counts(intended) {
            self.models[model].offered += 1;
        }
    }

    /// A request goes out.
    pub fn sent(&mut self, intended: Nanos, at: Nanos) {
        if self.counts(intended) {
            self.sent += 1;
            self.lateness.saturating_record((at - intended).0);
        }
    }

    /// A request has ended.
    pub fn ended(&mut self, outcome: Outcome) {
        let Outcome { model, intended, ended, end, batch_size } = outcome;
        if end != End::Failed {
            self.answered += 1;
        }
        if !self.counts(intended) {
            return;
        }
        let latency = ended - intended;
        let end = match (end, self.slos[model]) {
            (End::Good, Some(slo)) if latency > slo => End::Late,
            _ => end,
        };
        self.ends[end as usize] += 1;
        self.models[model].good += u64::from(end == End::Good);
        if matches!(end, End::Good | End::Late) {
            self.latency.saturating_record(latency.0);
        }
        if batch_size > 0 {
            *self.batch_sizes.entry(batch_size).or_default() += 1;
        }
    }

    /// Keeps the first reason for a failure, to be told at the end.
    pub fn failed_since(&mut self, reason: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(reason);
    }

    /// The server went away while requests were sent.
    pub fn lost(&mut self) {
        self.lost = true;
    }

    /// The run ended early: requests meant for later are not missed.
    pub fn stopped(&mut self, at: Nanos) {
        self.to = self.to.min(at.max(self.from));
    }

    /// Requests that ended well, and badly, so far.
    pub fn so_far(&self) -> (u64, u64) {
        let good = self.ends[End::Good as usize];
        (good, self.ends.iter().sum::<u64>() - good)
    }

    /// The sums. Requests that were offered and have not ended count as failed.
    pub fn report(self, plan: &Plan) -> Report {
        let window_s = (self.to - self.from).as_secs_f64();
        let offered: u64 = self.models.iter().map(|model| model.offered).sum();
        let [good, late, dropped, rejected, failed] = self.ends;
        let unanswered = offered.saturating_sub(self.ends.iter().sum());
        let bad = offered - good;
        let ms = |histogram: &Histogram<u64>, q: f64| histogram.value_at_quantile(q) as f64 / 1e6;
        let per_second = |count: u64| if window_s > 0.0 { count as f64 / window_s } else { 0.0 };
        let figures = Figures {
            offered,
            sent: self.sent,
            good,
            bad,
            late,
            dropped,
            rejected,
            failed: failed + unanswered,
            offered_rps: per_second(offered),
            good_rps: per_second(good),
            bad_rate: if offered == 0 { 0.0 } else { bad as f64 / offered as f64 },
            latency_ms: Latency {
                p50: ms(&self.latency, 0.5),
                p90: ms(&self.latency, 0.9),
                p99: ms(&self.latency, 0.99),
                p999: ms(&self.latency, 0.999),
                max: ms(&self.latency, 1.0),
            },
            mean_batch: mean_batch(&self.batch_sizes),
            lateness_ms: Lateness { p99: ms(&self.lateness, 0.99), max: ms(&self.lateness, 1.0) },
        };
        Report {
            figures,
            window_s,
            unanswered,
            answered: self.answered,
            lost: self.lost,
            first_failure: self.first_failure,
            tightest_slo: plan.tightest_slo(),
            models: self.models,
        }
    }
}

/// Requests per batch, each of the b requests of a batch being 1/b of it; 0 where no batch is known.
fn mean_batch(requests_by_size: &BTreeMap<u32, u64>) -> f64 {
    let requests: u64 = requests_by_size.values().sum();
    let batches: f64 = requests_by_size.iter().map(|(&size, &n)| n as f64 / f64::from(size)).sum();
    if requests > 0 { requests as f64 / batches } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::open;
    use super::*;

    fn at(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Ten requests a second apart from 0 s on, of which those from 1 s on count, with an SLO of 100 ms.
    fn recorded() -> (Plan, Tally) {
        let mut plan = open("m", 1.0, Nanos::from_secs(10));
        plan.warmup = Nanos::from_secs(1);
        plan.models[0].slo = Some(at(100));
        let mut tally = Tally::new(&plan);
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
            tally.offered(0, intended);
            tally.sent(intended, intended + Nanos::from_micros(200));
            tally.ended(Outcome { model: 0, intended, ended: intended + at(ms), end, batch_size });
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
        let report = tally.report(&plan);
        let f = &report.figures;
        assert_eq!((f.offered, f.sent, f.good, f.bad), (10, 9, 4, 6));
        // The answer after 150 ms is late though the server thought it good; one was never sent.
        assert_eq!((f.late, f.dropped, f.rejected, f.failed, report.unanswered), (2, 1, 1, 2, 1));
        assert_eq!(f.bad, f.late + f.dropped + f.rejected + f.failed);
        assert_eq!((f.offered_rps, f.good_rps, f.bad_rate), (1.0, 0.4, 0.6));
        assert!(
            close(f.latency_ms.p50, 30.0) && close(f.latency_ms.p90, 200.0) && close(f.latency_ms.max, 200.0)
        );
        // Four requests were one batch, and one was another.
        assert_eq!(f.mean_batch, 2.5);
        assert!(close(f.lateness_ms.p99, 0.2) && close(f.lateness_ms.max, 0.2));
    }

    #[test]
    fn a_run_that_ends_early_counts_what_was_meant_to_be_sent_by_then() {
        let plan = open("m", 10.0, Nanos::from_secs(10));
        let mut tally = Tally::new(&plan);
        for k in 0..20 {
            tally.offered(0, at(k * 100));
            tally.sent(at(k * 100), at(k * 100));
            tally.ended(Outcome {
                model: 0,
                intended: at(k * 100),
                ended: at(k * 100 + 1),
                end: End::Good,
                batch_size: 1,
            });
        }
        tally.stopped(Nanos::from_secs(2));
        let report = tally.report(&plan);
        assert_eq!((report.figures.offered, report.figures.offered_rps, report.figures.bad), (20, 10.0, 0));
    }

    #[test]
    fn a_run_without_a_request_has_figures_of_zero() {
        let plan = open("m", 1.0, Nanos::from_secs(1));
        let mut tally = Tally::new(&plan);
        tally.stopped(Nanos::ZERO);
        let figures = tally.report(&plan).figures;
        assert_eq!((figures.offered, figures.bad_rate, figures.offered_rps), (0, 0.0, 0.0));
        assert_eq!((figures.latency_ms.max, figures.mean_batch), (0.0, 0.0));
    }
}
