//! GPUs that run no batch, in two halves: the ModelThread sends its batches to [`InstantGpus`],
//! which counts them, and the RankThread receives from [`InstantCompletions`] the completion of
//! each at the time that the schedule gives.

use super::delay_histogram::DelayHistogram;
use super::recovery::RequestTimes;
use super::stopwatch::{Disturbance, Interruptions, Window};
use std::collections::VecDeque;
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{Completions, Outlets, frames};
use symphony_scheduler::limits;
use symphony_scheduler::rank::GpuReport;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, Frame, GpuId, Request};

/// The counts and delays of the batches that a ModelThread sent.
#[derive(Clone, Debug, Default)]
pub struct BatchTally {
    /// The number of batches sent.
    pub batches: u64,
    /// The number of requests in them.
    pub requests: u64,
    /// The number of requests whose batch was sent after its latest: a backend would have cancelled
    /// it.
    pub late: u64,
    /// The number of requests that ended without a batch: dropped, or their queue was full.
    pub dropped: u64,
    /// The delays from the earliest time at which a batch could be sent until it was.
    pub decision: DelayHistogram,
    /// The delays of those batches during which the machine disturbed neither their ModelThread nor
    /// a RankThread.
    pub undisturbed: DelayHistogram,
}

impl BatchTally {
    /// Adds the counts and delays of another thread.
    pub fn merge(&mut self, other: &BatchTally) {
        self.batches += other.batches;
        self.requests += other.requests;
        self.late += other.late;
        self.dropped += other.dropped;
        self.decision.merge(&other.decision);
        self.undisturbed.merge(&other.undisturbed);
    }
}

/// A batch of the current duty cycle.
struct SentBatch {
    due: Nanos,
    lag: Nanos,
    requests: u32,
    is_late: bool,
}

/// The ModelThread's half, which accepts each batch's entries as a ring would.
pub struct InstantGpus {
    clock: Clock,
    window: Window,
    frames: Vec<Frame>,
    sent: Vec<SentBatch>,
    /// The disturbances of RankThreads.
    disturbances: Vec<Disturbance>,
    ran: BatchTally,
    times: RequestTimes,
}

impl InstantGpus {
    /// Makes GPUs that count the batches sent within `window`, of at most `largest` requests.
    /// `disturbances` are those of RankThreads.
    pub fn new(clock: Clock, window: Window, largest: usize, disturbances: Vec<Disturbance>) -> InstantGpus {
        InstantGpus {
            clock,
            window,
            frames: vec![Frame::default(); BatchHeader::frames(largest)],
            sent: Vec::with_capacity(limits::MAX_MODELS),
            disturbances,
            ran: BatchTally::default(),
            times: RequestTimes::none(window),
        }
    }

    /// Records the batches of the previous duty cycle, of a ModelThread with these interruptions.
    #[inline]
    pub fn book(&mut self, interruptions: Interruptions) {
        if self.sent.is_empty() {
            return;
        }
        let disturbances = self.disturbances.iter();
        let until = disturbances.map(Disturbance::until).fold(interruptions.disturbed_until, Nanos::max);
        for SentBatch { due, lag, requests, is_late } in self.sent.drain(..) {
            self.ran.decision.record(lag, 1);
            if due >= until {
                self.ran.undisturbed.record(lag, 1);
            }
            self.times.count(due, requests, if is_late { requests } else { 0 });
        }
    }

    /// Returns the counts and delays within the window.
    pub fn ran(&self) -> &BatchTally {
        &self.ran
    }

    /// Returns all requests, batched or dropped, by time; those that were late or dropped are bad.
    pub fn times(&self) -> &RequestTimes {
        &self.times
    }
}

impl Outlets for InstantGpus {
    #[inline]
    fn has_room(&mut self, _gpu: GpuId) -> bool {
        true
    }

    #[inline]
    fn run(&mut self, due: Nanos, batch: BatchHeader, requests: (&[Request], &[Request])) {
        for (slot, frame) in self.frames.iter_mut().zip(frames(batch, requests)) {
            *slot = frame;
        }
        std::hint::black_box(&mut self.frames);
        let sent = self.clock.now();
        if !self.window.holds(sent) {
            return;
        }
        let size = u64::from(batch.size);
        self.ran.batches += 1;
        self.ran.requests += size;
        let is_late = sent > batch.latest;
        self.ran.late += if is_late { size } else { 0 };
        self.sent.push(SentBatch { due, lag: sent - due, requests: batch.size, is_late });
    }

    #[inline]
    fn end(&mut self, _request: &Request, _ending: Ending, now: Nanos) {
        if !self.window.holds(now) {
            return;
        }
        self.ran.dropped += 1;
        self.times.count(now, 1, 1);
    }
}

/// The RankThread's half: a batch's completion is received one duty cycle after its report, with
/// the time at which the schedule ends it. So each batch costs the RankThread as much as with real
/// GPUs.
#[derive(Default)]
pub struct InstantCompletions {
    done: VecDeque<Completion>,
}

impl Completions for InstantCompletions {
    #[inline]
    fn next(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    #[inline]
    fn sent(&mut self, report: &GpuReport) {
        if let Some(started) = report.exec_at {
            let GpuReport { queue, gpu, free_at, .. } = *report;
            let model = queue.only_model();
            self.done.push_back(Completion { batch: 0, started, finished: free_at, model, gpu });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::recovery::RecoveryTimes;
    use super::*;
    use symphony_transport::message::QueueId;

    #[test]
    fn a_batch_sent_after_its_latest_is_late_whole() {
        let mut gpus = InstantGpus::new(Clock::start(), Window::ALL, 4, Vec::new());
        let batch = BatchHeader { size: 3, latest: Nanos::MAX, ..BatchHeader::default() };
        let requests = [Request::default(); 3];
        gpus.run(Nanos::ZERO, batch, (&requests[..1], &requests[1..]));
        gpus.run(Nanos::ZERO, BatchHeader { latest: Nanos::ZERO, ..batch }, (&requests, &[]));
        gpus.end(&requests[0], Ending::DroppedInQueue, Nanos(1));
        let ran = gpus.ran();
        assert_eq!((ran.batches, ran.requests, ran.late, ran.dropped), (2, 6, 3, 1));
        gpus.book(Interruptions::default());
        assert_eq!(gpus.times().without(&RecoveryTimes::none(Window::ALL)), (7, 4));
    }

    #[test]
    fn a_batch_that_was_due_in_a_disturbance_is_left_out_of_what_was_not_disturbed() {
        let rank = Disturbance::default();
        let mut gpus = InstantGpus::new(Clock::start(), Window::ALL, 4, vec![rank]);
        let batch = BatchHeader { size: 1, latest: Nanos::MAX, ..BatchHeader::default() };
        for due in [5, 9] {
            gpus.run(Nanos(due), batch, (&[Request::default()], &[]));
        }
        gpus.book(Interruptions { disturbed_until: Nanos(7), ..Interruptions::default() });
        gpus.book(Interruptions { disturbed_until: Nanos::MAX, ..Interruptions::default() });
        assert_eq!((gpus.ran().decision.count(), gpus.ran().undisturbed.count()), (2, 1));
    }

    #[test]
    fn a_completion_follows_each_batch_and_no_unused_grant() {
        let mut gpus = InstantCompletions::default();
        let report =
            GpuReport { queue: QueueId(1), gpu: GpuId(2), exec_at: Some(Nanos(3)), free_at: Nanos(9) };
        gpus.sent(&GpuReport { exec_at: None, ..report });
        gpus.sent(&report);
        let done = gpus.next().unwrap();
        assert_eq!((done.gpu, done.started, done.finished), (GpuId(2), Nanos(3), Nanos(9)));
        assert_eq!(gpus.next(), None);
    }
}
