//! What a run sends and when: the models, and the merged stream of the times at which requests are
//! meant to go out. Targets walk it; nothing here knows where requests go.

mod clients;
mod ramp;

pub use clients::Clients;
pub use ramp::Ramp;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use symphony_scheduler::sim::arrivals::{Arrivals, stream_seed};
use symphony_scheduler::workload::Arrival;
use symphony_transport::Nanos;

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
    /// The latency asked for: an answer after it is late. `None` leaves that to the server.
    pub slo: Option<Nanos>,
    /// Requests per second, on average; in a closed loop, its weight among the models.
    pub rate_rps: f64,
    /// How they come; not used in a closed loop.
    pub arrival: Arrival,
}

/// What makes the next request go out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Its time, whatever became of those before.
    Open {
        /// The rate of all models together changes; their `rate_rps` say only how they share it.
        ramp: Option<Ramp>,
        /// Traces and counts per minute run this many times as fast.
        time_scale: f64,
    },
    /// The answer to the one before, at each of some clients.
    Closed {
        /// At least 1.
        clients: usize,
        /// From an answer to the client's next request, on average; exponentially distributed.
        think: Nanos,
    },
}

impl Pace {
    /// An open loop at an even rate.
    pub const OPEN: Pace = Pace::Open { ramp: None, time_scale: 1.0 };
}

/// Why there is no plan: a file with diagnostics, in words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub String);

impl Plan {
    /// The time after which nothing is sent.
    pub fn end(&self) -> Nanos {
        self.warmup + self.duration
    }

    /// The rates of all models together.
    pub fn total_rps(&self) -> f64 {
        self.models.iter().map(|model| model.rate_rps).sum()
    }

    /// The same run at another rate, of all models together.
    pub fn at_rate(&self, total_rps: f64) -> Plan {
        let factor = total_rps / self.total_rps();
        let mut plan = self.clone();
        plan.models.iter_mut().for_each(|model| model.rate_rps *= factor);
        plan
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
    /// Nothing in a closed loop, whose times nobody knows before: see [`Clients`].
    ///
    /// Errors: a trace that can't be read.
    pub fn schedule(&self) -> io::Result<Schedule> {
        let mut schedule = Schedule { streams: Vec::new(), next: BinaryHeap::new(), end: self.end() };
        let Pace::Open { ramp, time_scale } = self.pace else { return Ok(schedule) };
        let total_rps = self.total_rps();
        for (index, model) in self.models.iter().enumerate() {
            let seed = stream_seed(self.seed, index as u64);
            let time = match ramp {
                _ if model.arrival.has_own_rate() => Time::Scaled(time_scale),
                Some(ramp) => Time::Ramped { ramp, total_rps, warmup: self.warmup },
                None => Time::Real,
            };
            let arrivals =
                Arrivals::new(&model.arrival, model.rate_rps, seed).map_err(std::io::Error::other)?;
            schedule.streams.push(Stream { arrivals, time });
            schedule.advance(index);
        }
        Ok(schedule)
    }
}

/// What a model's arrivals, as they are drawn, are in the run's time.
enum Time {
    Real,
    /// So many times as fast.
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
    time: Time,
}

impl Iterator for Stream {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let at = self.arrivals.next()?;
        match &self.time {
            Time::Real => Some(at),
            Time::Scaled(factor) => Some(Nanos((at.0 as f64 / factor) as u64)),
            Time::Ramped { ramp, total_rps, warmup } => ramp.instant(total_rps * at.as_secs_f64(), *warmup),
        }
    }
}

/// The merged arrivals of a plan's models. See [`Plan::schedule`].
pub struct Schedule {
    streams: Vec<Stream>,
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
pub(in crate::loadgen) mod tests {
    use super::*;

    /// A plan for one model at a rate, without warm-up.
    pub(in crate::loadgen) fn open(name: &str, rate_rps: f64, duration: Nanos) -> Plan {
        let model = PlannedModel { name: name.into(), slo: None, rate_rps, arrival: Arrival::Uniform };
        Plan { models: vec![model], warmup: Nanos::ZERO, duration, seed: 1, pace: Pace::OPEN }
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

    #[test]
    fn a_ramp_bends_every_models_stream_and_keeps_their_shares() {
        let mut plan = open("a", 1.0, Nanos::from_secs(10));
        plan.models.push(PlannedModel { name: "b".into(), rate_rps: 3.0, ..plan.models[0].clone() });
        plan.pace = Pace::Open { ramp: Some(Ramp::parse("0:800:10").unwrap()), time_scale: 1.0 };
        let all: Vec<(Nanos, usize)> = plan.schedule().unwrap().collect();
        let of = |index, from, to| {
            let within = |at: &Nanos| (from..to).contains(&at.as_secs_f64());
            all.iter().filter(|(at, model)| *model == index && within(at)).count() as i64
        };
        assert!((of(0, 0.0, 10.0) - 1_000).abs() <= 1 && (of(1, 0.0, 10.0) - 3_000).abs() <= 1);
        assert!((of(1, 0.0, 5.0) - 750).abs() <= 1, "a quarter comes in the first half");
    }

    #[test]
    fn a_trace_runs_faster_by_the_time_scale() {
        let mut plan = open("a", 1.0, Nanos::from_secs(1));
        plan.models[0].arrival = Arrival::Trace([1, 2, 30].map(Nanos::from_secs).into());
        plan.pace = Pace::Open { ramp: None, time_scale: 10.0 };
        let times: Vec<Nanos> = plan.schedule().unwrap().map(|(at, _)| at).collect();
        assert_eq!(times, [100, 200].map(Nanos::from_millis));
    }

    #[test]
    fn another_rate_keeps_the_shares() {
        let mut plan = open("a", 100.0, Nanos::from_secs(1));
        plan.models.push(PlannedModel { name: "b".into(), rate_rps: 300.0, ..plan.models[0].clone() });
        let rates: Vec<f64> = plan.at_rate(8.0).models.iter().map(|m| m.rate_rps).collect();
        assert_eq!(rates, [2.0, 6.0]);
    }
}
