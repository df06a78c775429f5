//! The division of a query's SLO over its stages, one file a splitter ([`DeadlineSplit`] names
//! them). Owned by [`super::RunningQueries`], which asks for each item's deadline when it arrives.

mod carried;
mod even;
mod nexus;
mod splitter;

pub(super) use splitter::{ArrivingItem, Splitter};

use crate::query::DeadlineSplit;
use crate::workload::Workload;
use alloc::boxed::Box;

/// Returns the splitter of a workload.
pub(super) fn of(workload: &Workload) -> Box<dyn Splitter> {
    match workload.split {
        DeadlineSplit::Even => Box::new(even::EvenSplit::new(workload)),
        DeadlineSplit::Nexus => Box::new(nexus::NexusSplit::new(workload)),
        DeadlineSplit::Carried => Box::new(carried::CarriedSplit::new(workload)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;
    use crate::query::{QueryGraph, QueryStage, StageInput, longest_after};
    use crate::workload::{Arrival, WorkloadModel, WorkloadQuery};
    use alloc::string::ToString;
    use symphony_transport::Nanos;
    use symphony_transport::message::ModelId;

    #[test]
    fn the_parts_of_the_slo_fit_into_it_along_every_path() {
        let each = |stage| StageInput::each(stage, 2.0);
        let inputs = [StageInput::Root, each(0), each(1), each(0), StageInput::All(vec![2, 3]), each(4)];
        for count in 1..=inputs.len() {
            let stage = |(at, input): (usize, &StageInput)| QueryStage {
                name: at.to_string(),
                model: ModelId(at as u32 % 2),
                input: input.clone(),
            };
            let stages = inputs[..count].iter().enumerate().map(stage).collect();
            let graph = QueryGraph { name: "query".to_string(), slo: Nanos::from_millis(100), stages };
            let profile =
                |beta| Profile::linear(Nanos::from_millis(1), Nanos::from_millis(beta), 64).unwrap();
            let model = |beta| WorkloadModel::new("model", profile(beta), graph.slo);
            let mut workload = Workload::of_models(1, 1.0, vec![model(3), model(9)]);
            workload.queries =
                vec![WorkloadQuery { graph: graph.clone(), share: 1.0, arrival: Arrival::Poisson }];
            for (split, name, _) in DeadlineSplit::ALL {
                workload.split = split;
                let splitter = of(&workload);
                let budgets = splitter.budgets(0);
                let longest = budgets[0] + longest_after(&graph.outputs(), budgets)[0];
                assert!(longest <= graph.slo, "{name}: {budgets:?}");
                assert!(budgets.iter().all(|&budget| budget >= Nanos::from_millis(4)), "{name}: {budgets:?}");
            }
        }
    }
}
