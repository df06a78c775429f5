//! What a run sends and when: the models, and the merged stream of the times at which requests are meant to
//! go out. Targets walk it; nothing here knows where requests go.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use symphony::clock::Nanos;
use symphony::sim::arrivals::{Arrivals, stream_seed};
use symphony::workload::Arrival;

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The models asked, at least one.
    pub models: Vec<PlannedModel>,
    /// Requests meant for this first time are sent and not counted.
    pub warmup: Nanos,
    /// How long requests count after it.
    pub duration: Nanos,
    /// Seed of arrivals and inputs.
    pub seed: u64,
    /// What makes the next request go out.
    pub pace: Pace,
}

/// A model of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedModel {
    /// Its name at the server.
    pub name: String,
    /// The latency asked for; `None` leaves it to the server.
    pub slo: Option<Nanos>,
    /// Requests per second, on average; not used by [`Pace::Closed`].
    pub rate_rps: f64,
    /// How they come; not used by [`Pace::Closed`].
    pub arrival: Arrival,
}

/// What makes the next request go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Its time, whatever became of those before.
    Open,
    /// The answer to the one before, at each of this many clients. They all ask the first model.
    Closed {
        /// At least 1.
        clients: usize,
    },
}

/// Why there is no plan: a file with mistakes, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

impl Plan {
    /// The time after which nothing is sent.
    pub fn end(&self) -> Nanos {
        self.warmup + self.duration
    }

    /// The tightest SLO of its models.
    pub fn tightest_slo(&self) -> Option<Nanos> {
        self.models.iter().filter_map(|model| model.slo).min()
    }

    /// The plan, after a look at what only shows when it is run.
    ///
    /// Errors: a trace that can't be read.
    pub(super) fn checked(self) -> Result<Plan, PlanError> {
        match self.schedule() {
            Ok(_) => Ok(self),
            Err(error) => Err(PlanError(error.to_string())),
        }
    }

    /// When to send to which model (an index into [`Plan::models`]), in order, up to [`Plan::end`].
    ///
    /// Errors: a trace that can't be read.
    pub fn schedule(&self) -> io::Result<Schedule> {
        let mut schedule = Schedule { streams: Vec::new(), next: BinaryHeap::new(), end: self.end() };
        for (index, model) in self.models.iter().enumerate() {
            let seed = stream_seed(self.seed, index as u64);
            schedule.streams.push(Arrivals::new(&model.arrival, model.rate_rps, seed)?);
            schedule.advance(index);
        }
        Ok(schedule)
    }
}

/// The merged arrivals of a plan's models. See [`Plan::schedule`].
pub struct Schedule {
    streams: Vec<Arrivals>,
    next: BinaryHeap<Reverse<(Nanos, usize)>>,
    end: Nanos,
}

impl Schedule {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A plan for one model at a rate, without warm-up.
    pub(in crate::loadgen) fn open(name: &str, rate_rps: f64, duration: Nanos) -> Plan {
        let model = PlannedModel { name: name.into(), slo: None, rate_rps, arrival: Arrival::Uniform };
        Plan { models: vec![model], warmup: Nanos::ZERO, duration, seed: 1, pace: Pace::Open }
    }

    #[test]
    fn the_schedule_merges_the_models_in_order_and_ends() {
        let mut plan = open("a", 100.0, Nanos::from_secs(9));
        plan.warmup = Nanos::from_secs(1);
        plan.models.push(PlannedModel { name: "b".into(), rate_rps: 300.0, ..plan.models[0].clone() });
        let all: Vec<(Nanos, usize)> = plan.schedule().unwrap().collect();
        assert!(all.is_sorted_by_key(|(at, _)| *at));
        assert!(all.iter().all(|(at, _)| *at < Nanos::from_secs(10)));
        let of = |index| all.iter().filter(|(_, model)| *model == index).count();
        assert_eq!((of(0), of(1)), (1_000, 3_000));
        assert_eq!(plan.schedule().unwrap().collect::<Vec<_>>(), all);
    }
}
