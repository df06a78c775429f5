//! The merged stream of the times at which requests are meant to go out in an open loop.

use super::ramp::Ramp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use symphony_scheduler::sim::arrivals::Arrivals;
use symphony_transport::Nanos;

/// The mapping from a model's arrivals, as they are drawn, to the run's time.
pub(super) enum StreamTime {
    Real,
    /// Faster by this factor.
    Scaled(f64),
    /// Drawn at an even rate of all models together, and bent.
    Ramped {
        ramp: Ramp,
        total_rps: f64,
        warmup: Nanos,
    },
}

struct Stream {
    arrivals: Arrivals,
    time: StreamTime,
}

impl Iterator for Stream {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let at = self.arrivals.next()?;
        match &self.time {
            StreamTime::Real => Some(at),
            StreamTime::Scaled(factor) => Some(Nanos((at.0 as f64 / factor) as u64)),
            StreamTime::Ramped { ramp, total_rps, warmup } => {
                ramp.instant(total_rps * at.as_secs_f64(), *warmup)
            }
        }
    }
}

/// The merged arrivals of a plan's models. See [`Plan::schedule`](super::plan::Plan::schedule).
pub struct Schedule {
    streams: Vec<Stream>,
    next: BinaryHeap<Reverse<(Nanos, usize)>>,
    end: Nanos,
}

impl Schedule {
    /// A schedule without streams, which ends at `end`.
    pub(super) fn new(end: Nanos) -> Schedule {
        Schedule { streams: Vec::new(), next: BinaryHeap::new(), end }
    }

    /// Adds the arrivals of the next model.
    pub(super) fn add(&mut self, arrivals: Arrivals, time: StreamTime) {
        self.streams.push(Stream { arrivals, time });
        self.advance(self.streams.len() - 1);
    }

    fn advance(&mut self, index: usize) {
        if let Some(at) = self.streams[index].next().filter(|&at| at < self.end) {
            self.next.push(Reverse((at, index)));
        }
    }
}

impl Iterator for Schedule {
    type Item = (Nanos, usize);

    fn next(&mut self) -> Option<(Nanos, usize)> {
        let Reverse((at, index)) = self.next.pop()?;
        self.advance(index);
        Some((at, index))
    }
}
