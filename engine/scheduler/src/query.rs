//! Queries: requests that pass through several models under one SLO (Nexus, sections 4.2 and 6.2).
//! A [`QueryGraph`] is a dataflow graph of stages in topological order, with one root. The crate
//! `symphony` reads them from workload files; the simulator runs them. `symphony serve` shares with
//! it the [reserves](StageReserves) by which the deadlines of stages follow from the query's, and
//! runs a query by its [course](QueryCourse) through its stages.

mod course;
mod reserves;

pub use course::{CourseStep, QueryCourse};
pub use reserves::StageReserves;
pub(crate) use reserves::longest_after;

use crate::load_phases::LoadPhases;
use alloc::string::String;
use alloc::vec::Vec;
use rand::{Rng, RngExt};
use rand_distr::{Distribution, Poisson};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// Stages of one query.
pub const MAX_STAGES: usize = 32;

/// Queries of a workload.
pub const MAX_QUERIES: usize = 1_024;

/// The largest gamma of an edge, and the largest expected number of a stage's items in one query.
pub const MAX_ITEMS: f64 = 1_000.0;

/// A dataflow graph of models with one SLO.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryGraph {
    /// The name, unique among the workload's queries.
    pub name: String,
    /// The SLO on the time from the query's arrival until every item of every stage is over.
    pub slo: Nanos,
    /// The stages in topological order. The first is the root, the only one without inputs.
    pub stages: Vec<QueryStage>,
}

/// One model's part of a query.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryStage {
    /// The name, unique in the query.
    pub name: String,
    /// The model that its items are requests of.
    pub model: ModelId,
    /// The source of its items.
    pub input: StageInput,
}

/// The source of a stage's items. Stages are named by their index.
#[derive(Clone, Debug, PartialEq)]
pub enum StageInput {
    /// The query's arrival is one item.
    Root,
    /// Each item of a stage gives a number of items once it is over.
    Each {
        /// The stage before.
        stage: usize,
        /// gamma, the mean number of items.
        gamma: f64,
        /// The distribution of that number.
        draw: ItemDraw,
        /// How gamma changes over time.
        phases: LoadPhases,
    },
    /// A join: one item, once all items of all these stages are over. None where they had none.
    All(Vec<usize>),
}

/// The distribution of the number of items that an item of the stage before gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemDraw {
    /// Always gamma, a whole number.
    Constant,
    /// A Poisson distribution of mean gamma.
    Poisson,
    /// One with the probability gamma, else none: a condition.
    Bernoulli,
}

impl ItemDraw {
    /// Every distribution, and its name in workload files.
    pub const ALL: [(ItemDraw, &str); 3] = [
        (ItemDraw::Constant, "constant"),
        (ItemDraw::Poisson, "poisson"),
        (ItemDraw::Bernoulli, "bernoulli"),
    ];

    /// Returns the one that has mean `gamma` with the least variance: a condition below 1, a
    /// constant for a whole number.
    pub fn of_mean(gamma: f64) -> ItemDraw {
        match gamma {
            _ if gamma < 1.0 => ItemDraw::Bernoulli,
            _ if gamma % 1.0 == 0.0 => ItemDraw::Constant,
            _ => ItemDraw::Poisson,
        }
    }

    /// Returns the one that has mean `gamma`, times what `phases` say, with the least variance.
    pub fn of_phases(gamma: f64, phases: &LoadPhases) -> ItemDraw {
        match ItemDraw::of_mean(gamma * phases.highest()) {
            // In the other phases it is no whole number.
            ItemDraw::Constant if !phases.is_steady() => ItemDraw::Poisson,
            draw => draw,
        }
    }

    /// Draws a number of mean `gamma`.
    pub(crate) fn draw(self, gamma: f64, random: &mut impl Rng) -> u32 {
        match self {
            ItemDraw::Constant => gamma as u32,
            ItemDraw::Bernoulli => u32::from(random.random::<f64>() < gamma),
            ItemDraw::Poisson => {
                // Infallible for the gammas that a workload can have.
                Poisson::new(gamma).map_or(0, |poisson| poisson.sample(random) as u32)
            }
        }
    }
}

impl StageInput {
    /// Returns the input of a stage that has `gamma` items on average for each item of `stage`, at
    /// all times, drawn by [`ItemDraw::of_mean`].
    pub fn each(stage: usize, gamma: f64) -> StageInput {
        StageInput::Each { stage, gamma, draw: ItemDraw::of_mean(gamma), phases: LoadPhases::default() }
    }
}

impl QueryStage {
    /// Returns the stages whose items it waits for.
    pub fn inputs(&self) -> &[usize] {
        match &self.input {
            StageInput::Root => &[],
            StageInput::Each { stage, .. } => core::slice::from_ref(stage),
            StageInput::All(stages) => stages,
        }
    }

    /// Returns true if it waits for all items of all of its inputs.
    pub fn is_join(&self) -> bool {
        matches!(self.input, StageInput::All(_))
    }
}

impl QueryGraph {
    /// Returns the expected number of each stage's items in one query.
    pub fn expected_items(&self) -> Vec<f64> {
        let mut items: Vec<f64> = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            items.push(match &stage.input {
                StageInput::Root => 1.0,
                StageInput::Each { stage, gamma, .. } => items[*stage] * gamma,
                // At most one: where every input may have no items, fewer.
                StageInput::All(stages) => {
                    stages.iter().map(|&stage| items[stage]).fold(0.0, f64::max).min(1.0)
                }
            });
        }
        items
    }

    /// Returns the stages that each stage feeds.
    pub fn outputs(&self) -> Vec<Vec<usize>> {
        outputs_of(self.stages.iter().map(QueryStage::inputs))
    }
}

/// Returns the stages that each stage feeds, of a graph given by the inputs of each.
pub fn outputs_of<'a>(inputs: impl ExactSizeIterator<Item = &'a [usize]>) -> Vec<Vec<usize>> {
    let mut outputs = vec![Vec::new(); inputs.len()];
    for (at, inputs) in inputs.enumerate() {
        inputs.iter().for_each(|&input| outputs[input].push(at));
    }
    outputs
}

/// Returns the stages of a graph in topological order, given the inputs of each: of those that
/// could be next, the first.
///
/// Errors: the first stage that is in a cycle, or after one.
pub fn topological_order(inputs: &[Vec<usize>]) -> Result<Vec<usize>, usize> {
    let mut order: Vec<usize> = Vec::with_capacity(inputs.len());
    while order.len() < inputs.len() {
        let mut left = (0..inputs.len()).filter(|at| !order.contains(at));
        let stuck = left.clone().next().expect("there are stages left");
        let next = left.find(|&at| inputs[at].iter().all(|input| order.contains(input)));
        order.push(next.ok_or(stuck)?);
    }
    Ok(order)
}

/// How a query's SLO is divided over its stages (docs/queries.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadlineSplit {
    /// The query's deadline less what the rest is going to take at today's queueing.
    #[default]
    Carried,
    /// The latency split that needs the fewest GPUs (Nexus, section 6.2).
    Nexus,
    /// The same part for each stage of the longest path.
    Even,
}

impl DeadlineSplit {
    /// Every split with its name and a line on what it does, the default first.
    pub const ALL: [(DeadlineSplit, &str, &str); 3] = [
        (
            DeadlineSplit::Carried,
            "carried",
            "what the query's deadline leaves, less the rest's recent times (default)",
        ),
        (
            DeadlineSplit::Nexus,
            "nexus",
            "the parts of the SLO that need the fewest GPUs (Nexus, section 6.2)",
        ),
        (DeadlineSplit::Even, "even", "the same part of the SLO for each stage of the longest path"),
    ];

    /// Returns the split of this name.
    pub fn parse(name: &str) -> Option<DeadlineSplit> {
        DeadlineSplit::ALL.into_iter().find(|split| split.1 == name).map(|split| split.0)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        DeadlineSplit::ALL.iter().find(|split| split.0 == self).map_or("", |split| split.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_ordered_after_their_inputs_or_the_first_in_a_cycle_is_named() {
        assert_eq!(topological_order(&[vec![2], vec![], vec![1], vec![1]]), Ok(vec![1, 2, 0, 3]));
        assert_eq!(topological_order(&[vec![], vec![3], vec![1], vec![1]]), Err(1));
        assert_eq!(topological_order(&[vec![0]]), Err(0));
    }
}
