//! The plan of a run: its models, its times, and what makes the next request go out.

use super::arrivals::{Schedule, StreamTime};
use super::ramp::Ramp;
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
    /// The time after the warm-up in which requests count.
    pub duration: Nanos,
    /// Seed of arrivals and inputs.
    pub seed: u64,
    /// The trigger of the next request.
    pub pace: Pace,
}

/// A model of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedModel {
    /// The name at the server.
    pub name: String,
    /// The latency asked for: an answer after it is late. `None` leaves that to the server's own,
    /// and where it states none, to the server's answers.
    pub slo: Option<Nanos>,
    /// Requests per second, on average; in a closed loop, its weight among the models.
    pub rate_rps: f64,
    /// The arrival process; not used in a closed loop.
    pub arrival: Arrival,
}

/// The trigger of the next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: the request's time, whether or not those before are answered.
    Open {
        /// The rate of all models together changes; their `rate_rps` are only their shares of it.
        ramp: Option<Ramp>,
        /// Traces and counts per minute run this many times as fast.
        time_scale: f64,
    },
    /// Closed loop: the answer to the request before, at each client.
    Closed {
        /// The number of clients, at least 1.
        clients: usize,
        /// The time from an answer to the client's next request, on average; exponentially
        /// distributed.
        think: Nanos,
    },
}

impl Pace {
    /// An open loop at an even rate.
    pub const OPEN: Pace = Pace::Open { ramp: None, time_scale: 1.0 };
}

/// The reason for which there is no plan.
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
    pub(in crate::loadgen) fn checked(self) -> Result<Plan, PlanError> {
        match self.schedule() {
            Ok(_) => Ok(self),
            Err(error) => Err(PlanError(error.to_string())),
        }
    }

    /// Returns the times of requests and their models (indices into [`Plan::models`]), in order, up
    /// to [`Plan::end`]. It is empty for a closed loop, whose times depend on the answers: see
    /// [`super::ClosedLoopClient`].
    ///
    /// Errors: a trace that can't be read.
    pub fn schedule(&self) -> io::Result<Schedule> {
        let mut schedule = Schedule::new(self.end());
        let Pace::Open { ramp, time_scale } = self.pace else { return Ok(schedule) };
        let total_rps = self.total_rps();
        for (index, model) in self.models.iter().enumerate() {
            let seed = stream_seed(self.seed, index as u64);
            let time = match ramp {
                _ if model.arrival.has_own_rate() => StreamTime::Scaled(time_scale),
                Some(ramp) => StreamTime::Ramped { ramp, total_rps, warmup: self.warmup },
                None => StreamTime::Real,
            };
            let arrivals =
                Arrivals::new(&model.arrival, model.rate_rps, seed).map_err(std::io::Error::other)?;
            schedule.add(arrivals, time);
        }
        Ok(schedule)
    }
}
