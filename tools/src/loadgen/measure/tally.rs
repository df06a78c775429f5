//! Counting: what was offered, what was sent, how each request ended, and how long it took. Each
//! thread that sends owns a [`Tally`]; the targets record into it, merge them when the run is over,
//! and [`super::super::report`] sums up.

use super::histogram::{nanoseconds, record};
use super::outcome::{End, RequestRecord};
use super::records::Records;
use super::seconds::Seconds;
use super::stages::StageTally;
use super::stalls::Stalls;
use crate::loadgen::schedule::Plan;
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use symphony_transport::Nanos;

/// The state of a run under way that all its threads share: the counts that a progress bar shows,
/// and the machine's stalls.
#[derive(Debug, Default)]
pub struct Live {
    sent: AtomicU64,
    good: AtomicU64,
    bad: AtomicU64,
    /// The machine's stalls.
    pub stalls: Arc<Stalls>,
}

impl Live {
    /// Requests sent, good and bad so far, the warm-up's too.
    pub fn so_far(&self) -> (u64, u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (read(&self.sent), read(&self.good), read(&self.bad))
    }
}

/// The counts of one model.
#[derive(Clone, Debug)]
pub struct ModelTally {
    /// Requests whose time came.
    pub offered: u64,
    /// Ended requests, by [`End`].
    pub ends: [u64; End::COUNT],
    /// Latency from the intended send time to the answer, of requests that ran, ns; exact to 1 %.
    pub latency: Histogram<u32>,
    /// Ended requests that no stall of the machine disturbed, and the good ones among them.
    pub undisturbed: [u64; 2],
}

impl ModelTally {
    fn new() -> ModelTally {
        ModelTally { offered: 0, ends: [0; End::COUNT], latency: nanoseconds(2), undisturbed: [0; 2] }
    }

    /// Returns the share of requests offered that were not good; 0 if none were offered.
    pub fn bad_rate(&self) -> f64 {
        let good = self.ends[End::Good as usize];
        if self.offered == 0 { 0.0 } else { (self.offered - good) as f64 / self.offered as f64 }
    }

    /// Returns the number of requests offered that have no end.
    pub fn unanswered(&self) -> u64 {
        self.offered.saturating_sub(self.ends.iter().sum())
    }

    /// Returns the undisturbed requests and the bad ones among them. A request without an end is
    /// both: no stall lasts until the end of a run.
    pub fn undisturbed(&self) -> [u64; 2] {
        let ([ended, good], unanswered) = (self.undisturbed, self.unanswered());
        [ended + unanswered, ended - good + unanswered]
    }
}

/// The counts of a run, or of one thread's part of it. Only requests that were meant to be sent
/// after the warm-up count.
pub struct Tally {
    /// The time from which requests count.
    pub from: Nanos,
    /// The time from which requests no longer count.
    pub to: Nanos,
    slos: Vec<Option<Nanos>>,
    live: Arc<Live>,
    /// Requests that went out.
    pub sent: u64,
    /// The counts of each model of the plan.
    pub models: Vec<ModelTally>,
    /// Latency from the intended send time to the answer, of requests that ran, ns.
    pub latency: Histogram<u64>,
    /// Lateness from the intended to the real send time, ns.
    pub lateness: Histogram<u64>,
    /// Latency from the real send time to the answer, of requests that ran, ns.
    pub latency_from_sent: Histogram<u64>,
    /// Latency and lateness of the requests that no stall of the machine disturbed.
    pub undisturbed: [Histogram<u64>; 2],
    /// The durations of each stage.
    pub stages: StageTally,
    /// The run second by second.
    pub seconds: Seconds,
    /// Every request, if asked for.
    pub records: Records,
    /// Requests by the size of their batch, where that is known.
    pub batch_sizes: BTreeMap<u32, u64>,
    /// Requests that the server answered at all, those of the warm-up included.
    pub answered: u64,
    /// The reason of the first failure.
    pub first_failure: Option<String>,
    /// The server went away during the run.
    pub lost: bool,
}

impl Tally {
    /// The counts of a run that has not begun; `keep_records` keeps every single request too.
    pub fn new(plan: &Plan, live: Arc<Live>, keep_records: bool) -> Tally {
        Tally {
            from: plan.warmup,
            to: plan.end(),
            slos: plan.models.iter().map(|model| model.slo).collect(),
            live,
            sent: 0,
            models: plan.models.iter().map(|_| ModelTally::new()).collect(),
            latency: nanoseconds(3),
            lateness: nanoseconds(3),
            latency_from_sent: nanoseconds(3),
            undisturbed: [nanoseconds(3), nanoseconds(3)],
            stages: StageTally::new(),
            seconds: Seconds::default(),
            records: Records::new(keep_records),
            batch_sizes: BTreeMap::new(),
            answered: 0,
            first_failure: None,
            lost: false,
        }
    }

    /// Adds what another thread of the same run counted.
    pub fn merge(&mut self, other: Tally) {
        let grows = "a histogram that grows takes what another has";
        self.to = self.to.min(other.to);
        self.sent += other.sent;
        for (ours, theirs) in self.models.iter_mut().zip(&other.models) {
            ours.offered += theirs.offered;
            ours.ends.iter_mut().zip(theirs.ends).for_each(|(a, b)| *a += b);
            ours.latency.add(&theirs.latency).expect(grows);
            ours.undisturbed.iter_mut().zip(theirs.undisturbed).for_each(|(a, b)| *a += b);
        }
        self.latency.add(&other.latency).expect(grows);
        self.lateness.add(&other.lateness).expect(grows);
        self.latency_from_sent.add(&other.latency_from_sent).expect(grows);
        for (ours, theirs) in self.undisturbed.iter_mut().zip(&other.undisturbed) {
            ours.add(theirs).expect(grows);
        }
        self.stages.merge(&other.stages);
        self.seconds.merge(&other.seconds);
        self.records.merge(other.records);
        self.records.sort();
        other.batch_sizes.iter().for_each(|(&size, n)| *self.batch_sizes.entry(size).or_default() += n);
        self.answered += other.answered;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.lost |= other.lost;
    }

    fn counts(&self, intended: Nanos) -> bool {
        intended >= self.from && intended < self.to
    }

    /// The time of a request has come, whether or not it can be sent.
    pub fn offered(&mut self, model: usize, intended: Nanos) {
        if self.counts(intended) {
            self.models[model].offered += 1;
            self.seconds.at(intended - self.from).offered += 1;
        }
    }

    /// A request goes out.
    pub fn sent(&mut self, intended: Nanos, at: Nanos) {
        self.live.sent.fetch_add(1, Ordering::Relaxed);
        if self.counts(intended) {
            self.sent += 1;
            record(&mut self.lateness, at - intended);
            self.seconds.at(intended - self.from).sent += 1;
        }
    }

    /// A request has ended.
    pub fn ended(&mut self, mut request: RequestRecord) {
        let latency = request.ended - request.intended;
        if let (End::Good, Some(slo)) = (request.end, self.slos[request.model])
            && latency > slo
        {
            request.end = End::Late;
        }
        let live = if request.end == End::Good { &self.live.good } else { &self.live.bad };
        live.fetch_add(1, Ordering::Relaxed);
        self.answered += u64::from(request.end != End::Failed);
        if self.counts(request.intended) {
            self.count(&request, latency);
            self.records.push(request);
        }
    }

    fn count(&mut self, request: &RequestRecord, latency: Nanos) {
        let RequestRecord { model, intended, sent, ended, end, details } = *request;
        let model = &mut self.models[model];
        let second = self.seconds.at(intended - self.from);
        model.ends[end as usize] += 1;
        second.ends[end as usize] += 1;
        let ran = matches!(end, End::Good | End::Late);
        if !self.live.stalls.disturbed(intended, ended) {
            model.undisturbed[0] += 1;
            model.undisturbed[1] += u64::from(end == End::Good);
            let [latencies, latenesses] = &mut self.undisturbed;
            record(latenesses, sent - intended);
            if ran {
                record(latencies, latency);
            }
        }
        if ran {
            record(&mut self.latency, latency);
            record(&mut self.latency_from_sent, ended - sent);
            record(&mut model.latency, latency);
            record(&mut second.latency, latency);
        }
        if let Some(times) = details.times {
            self.stages.record(times.durations(ended - sent));
        }
        if details.batch_size > 0 {
            *self.batch_sizes.entry(details.batch_size).or_default() += 1;
        }
    }

    /// Keeps the first reason for a failure, for the report.
    pub fn failed_since(&mut self, reason: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(reason);
    }

    /// The server went away while requests were sent.
    pub fn lost(&mut self) {
        self.lost = true;
    }

    /// The machine's stalls so far.
    pub fn stalls(&self) -> &Stalls {
        &self.live.stalls
    }

    /// The run ended early: requests meant for later are not missed.
    pub fn stopped(&mut self, at: Nanos) {
        self.to = self.to.min(at.max(self.from));
    }
}
