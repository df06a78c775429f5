//! GPUs as objects in place, in two halves: the ModelThread hands its batches to [`Gpus`], which
//! counts them, and the RankThread learns from [`Instant`] that each is over when the schedule says
//! so.

use super::lags::Lags;
use super::measured::{Disturbance, Window};
use std::collections::VecDeque;
use symphony::runtime::clock::Clock;
use symphony::runtime::threads::{Completions, Outlets, frames};
use symphony_scheduler::limits;
use symphony_scheduler::rank::GpuReport;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, Ending, Frame, GpuId, Request};

/// What became of requests.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Batches sent.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Requests whose batch was sent after its latest: a backend would have cancelled it.
    pub late: u64,
    /// Requests that ended without a batch: dropped, or their queue was full.
    pub dropped: u64,
    /// From when a batch could have been sent to when it was.
    pub decision: Lags,
    /// The same, of batches meanwhile neither their ModelThread nor a RankThread was disturbed by
    /// the machine.
    pub undisturbed: Lags,
}

impl Ran {
    /// Adds what another thread's requests came to.
    pub fn merge(&mut self, other: &Ran) {
        self.batches += other.batches;
        self.requests += other.requests;
        self.late += other.late;
        self.dropped += other.dropped;
        self.decision.merge(&other.decision);
        self.undisturbed.merge(&other.undisturbed);
    }
}

/// The ModelThread's half: takes each batch's entries as a ring would.
pub struct Gpus {
    clock: Clock,
    window: Window,
    frames: Vec<Frame>,
    /// When each batch of this turn was due, and how much later it was sent.
    sent: Vec<(Nanos, Nanos)>,
    /// Of RankThreads.
    disturbances: Vec<Disturbance>,
    ran: Ran,
}

impl Gpus {
    /// Counts what ends within `window`; batches are of at most `largest`. `disturbances`: those of
    /// RankThreads.
    pub fn new(clock: Clock, window: Window, largest: usize, disturbances: Vec<Disturbance>) -> Gpus {
        Gpus {
            clock,
            window,
            frames: vec![Frame::default(); BatchHeader::frames(largest)],
            sent: Vec::with_capacity(limits::MAX_MODELS),
            disturbances,
            ran: Ran::default(),
        }
    }

    /// Books the batches of the turn before, of a ModelThread that was last disturbed until then.
    #[inline]
    pub fn book(&mut self, disturbed_until: Nanos) {
        if self.sent.is_empty() {
            return;
        }
        let until = self.disturbances.iter().map(Disturbance::until).fold(disturbed_until, Nanos::max);
        for (due, lag) in self.sent.drain(..) {
            self.ran.decision.record(lag, 1);
            if due >= until {
                self.ran.undisturbed.record(lag, 1);
            }
        }
    }

    /// What ended within the window.
    pub fn ran(&self) -> &Ran {
        &self.ran
    }
}

impl Outlets for Gpus {
    #[inline]
    fn has_room(&mut self, _gpu: GpuId) -> bool {
        true
    }

    #[inline]
    fn run(&mut self, due: Nanos, batch: BatchHeader, requests: (&[Request], &[Request])) {
        for (place, frame) in self.frames.iter_mut().zip(frames(batch, requests)) {
            *place = frame;
        }
        std::hint::black_box(&mut self.frames);
        let sent = self.clock.now();
        if !self.window.holds(sent) {
            return;
        }
        let size = u64::from(batch.size);
        self.ran.batches += 1;
        self.ran.requests += size;
        self.ran.late += if sent > batch.latest { size } else { 0 };
        self.sent.push((due, sent - due));
    }

    #[inline]
    fn end(&mut self, _request: &Request, _ending: Ending, now: Nanos) {
        self.ran.dropped += u64::from(self.window.holds(now));
    }
}

/// The RankThread's half: a batch's completion is told one turn after the batch is, with the time
/// at which the schedule ends it. So the RankThread works as much for each batch as with real GPUs.
#[derive(Default)]
pub struct Instant {
    done: VecDeque<Completion>,
}

impl Completions for Instant {
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
    use super::*;
    use symphony_transport::message::QueueId;

    #[test]
    fn a_batch_sent_after_its_latest_is_late_whole() {
        let mut gpus = Gpus::new(Clock::start(), Window::ALL, 4, Vec::new());
        let batch = BatchHeader { size: 3, latest: Nanos::MAX, ..BatchHeader::default() };
        let requests = [Request::default(); 3];
        gpus.run(Nanos::ZERO, batch, (&requests[..1], &requests[1..]));
        gpus.run(Nanos::ZERO, BatchHeader { latest: Nanos::ZERO, ..batch }, (&requests, &[]));
        gpus.end(&requests[0], Ending::DroppedInQueue, Nanos(1));
        let ran = gpus.ran();
        assert_eq!((ran.batches, ran.requests, ran.late, ran.dropped), (2, 6, 3, 1));
    }

    #[test]
    fn a_batch_that_was_due_in_a_disturbance_is_left_out_of_what_was_not_disturbed() {
        let rank = Disturbance::default();
        let mut gpus = Gpus::new(Clock::start(), Window::ALL, 4, vec![rank]);
        let batch = BatchHeader { size: 1, latest: Nanos::MAX, ..BatchHeader::default() };
        for due in [5, 9] {
            gpus.run(Nanos(due), batch, (&[Request::default()], &[]));
        }
        gpus.book(Nanos(7));
        gpus.book(Nanos::MAX);
        assert_eq!((gpus.ran().decision.count(), gpus.ran().undisturbed.count()), (2, 1));
    }

    #[test]
    fn a_completion_follows_each_batch_and_no_unused_grant() {
        let mut gpus = Instant::default();
        let report =
            GpuReport { queue: QueueId(1), gpu: GpuId(2), exec_at: Some(Nanos(3)), free_at: Nanos(9) };
        gpus.sent(&GpuReport { exec_at: None, ..report });
        gpus.sent(&report);
        let done = gpus.next().unwrap();
        assert_eq!((done.gpu, done.started, done.finished), (GpuId(2), Nanos(3), Nanos(9)));
        assert_eq!(gpus.next(), None);
    }
}
