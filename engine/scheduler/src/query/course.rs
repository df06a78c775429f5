//! The course of one query through its stages, as a state machine: which stage may begin, and when
//! the query is over. Whoever drives it runs the stages.

use alloc::vec::Vec;

/// The state of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageState {
    /// A stage that waits for this many of its inputs.
    Waits(usize),
    /// A stage that has begun.
    Runs,
    /// A stage that is over.
    Over,
}

/// What the end of a stage means for its query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CourseStep {
    /// The query goes on.
    GoesOn,
    /// The last stage is over, and so is the query.
    Done,
    /// Nothing: the query had ended before, or the stage had.
    Ignored,
}

/// The course of one query: stages in topological order, each of which begins once all of its
/// inputs are over, and once only. After the query's end none begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryCourse {
    stages: Vec<StageState>,
    /// The number of stages that are not over.
    left: usize,
    ended: bool,
}

impl QueryCourse {
    /// Begins a query whose stages wait for `inputs`, each a list of stages before it.
    pub fn new<'a>(inputs: impl Iterator<Item = &'a [usize]>) -> QueryCourse {
        let stages: Vec<StageState> = inputs.map(|inputs| StageState::Waits(inputs.len())).collect();
        QueryCourse { left: stages.len(), ended: stages.is_empty(), stages }
    }

    /// Begins the first stage that can begin and returns it; `None` if none can now.
    pub fn begin_next(&mut self) -> Option<usize> {
        if self.ended {
            return None;
        }
        let stage = self.stages.iter().position(|stage| *stage == StageState::Waits(0))?;
        self.stages[stage] = StageState::Runs;
        Some(stage)
    }

    /// Notes that a stage has its result, which the stages of `outputs` wait for.
    pub fn over(&mut self, stage: usize, outputs: &[usize]) -> CourseStep {
        if self.ended || self.stages[stage] != StageState::Runs {
            return CourseStep::Ignored;
        }
        self.stages[stage] = StageState::Over;
        self.left -= 1;
        for &output in outputs {
            if let StageState::Waits(inputs) = &mut self.stages[output] {
                *inputs = inputs.saturating_sub(1);
            }
        }
        self.ended = self.left == 0;
        if self.ended { CourseStep::Done } else { CourseStep::GoesOn }
    }

    /// Ends the query without a result, since a stage has none. Returns false if it had ended.
    pub fn end(&mut self) -> bool {
        !core::mem::replace(&mut self.ended, true)
    }

    /// Returns true once the query has ended, with a result or without.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::StageReserves;
    use proptest::prelude::*;
    use symphony_transport::Nanos;

    /// The stages before each stage, of any graph in topological order.
    fn graphs() -> impl Strategy<Value = Vec<Vec<usize>>> {
        proptest::collection::vec(any::<u64>(), 1..12).prop_map(|edges| {
            let inputs =
                |(at, edges): (usize, u64)| (0..at).filter(|of| edges >> (2 * of) & 3 == 0).collect();
            edges.into_iter().enumerate().map(inputs).collect()
        })
    }

    fn outputs_of(inputs: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let feeds = |stage| (0..inputs.len()).filter(|&of| inputs[of].contains(&stage)).collect();
        (0..inputs.len()).map(feeds).collect()
    }

    proptest! {
        /// Stages end in any order; one of them, perhaps, without a result.
        #[test]
        fn a_query_ends_once_and_no_stage_begins_after_its_end_or_before_its_inputs(
            inputs in graphs(),
            choices in proptest::collection::vec(any::<prop::sample::Index>(), 12),
            fails_at in 0_usize..24,
        ) {
            let outputs = outputs_of(&inputs);
            let mut course = QueryCourse::new(inputs.iter().map(Vec::as_slice));
            let (mut running, mut begun, mut over, mut ends) = (Vec::new(), vec![], vec![], 0);
            for (at, choice) in choices.iter().enumerate() {
                while let Some(stage) = course.begin_next() {
                    prop_assert_eq!(ends, 0);
                    prop_assert!(!begun.contains(&stage) && inputs[stage].iter().all(|of| over.contains(of)));
                    begun.push(stage);
                    running.push(stage);
                }
                if running.is_empty() {
                    break;
                }
                let stage = running.swap_remove(choice.index(running.len()));
                if at == fails_at {
                    ends += u32::from(course.end());
                    prop_assert_eq!(course.begin_next(), None);
                    continue;
                }
                match course.over(stage, &outputs[stage]) {
                    CourseStep::GoesOn => over.push(stage),
                    CourseStep::Done => {
                        over.push(stage);
                        ends += 1;
                    }
                    CourseStep::Ignored => prop_assert!(fails_at < at),
                }
                prop_assert_eq!(course.over(stage, &outputs[stage]), CourseStep::Ignored);
            }
            prop_assert!(running.is_empty() && course.has_ended() && !course.end());
            prop_assert_eq!(ends, 1);
            prop_assert!(fails_at < begun.len() || over.len() == inputs.len());
        }

        /// Whatever the stages took before.
        #[test]
        fn deadlines_of_stages_lie_within_the_querys_and_leave_the_rest_its_shortest_time(
            inputs in graphs(),
            shortest in proptest::collection::vec(1_u64..1_000_000, 12),
            took in proptest::collection::vec((0_usize..12, 0_u64..1_000_000_000), 0..400),
            slack in 1_u64..20,
        ) {
            let outputs = outputs_of(&inputs);
            let shortest: Vec<Nanos> = shortest[..inputs.len()].iter().map(|&ns| Nanos(ns)).collect();
            let slo = Nanos(shortest.iter().map(|time| time.0).sum::<u64>() * slack);
            let mut reserves = StageReserves::in_proportion(outputs.clone(), &shortest, slo);
            for &(stage, ns) in &took {
                reserves.came(Nanos(ns));
                reserves.took(stage % inputs.len(), Nanos(ns));
            }
            let due = Nanos(1 << 40);
            for (stage, outputs) in outputs.iter().enumerate() {
                let deadline = reserves.deadline(stage, due);
                prop_assert!(deadline <= due && deadline + slo >= due + shortest[stage]);
                let goal = reserves.goal(stage, due - slo, deadline);
                prop_assert!(goal <= deadline && (goal == deadline || !outputs.is_empty()));
                for &next in outputs {
                    prop_assert!(deadline + shortest[next] <= reserves.deadline(next, due));
                }
            }
        }
    }
}
