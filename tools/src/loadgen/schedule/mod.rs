//! The requests of a run and their times: the models, and the merged stream of the times at which
//! requests are meant to go out. Targets walk it; nothing here depends on where requests go.

mod arrivals;
mod clients;
mod plan;
mod ramp;

pub use arrivals::Schedule;
pub use clients::ClosedLoopClient;
pub use plan::{Pace, Plan, PlanError, PlannedModel};
pub use ramp::Ramp;

#[cfg(test)]
pub(in crate::loadgen) mod tests {
    use super::*;
    use symphony_scheduler::workload::Arrival;
    use symphony_transport::Nanos;

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
