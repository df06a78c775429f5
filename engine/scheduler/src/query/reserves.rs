//! What the stages after one are going to need: kept free of a query's deadline by the split
//! `carried`, in the simulator and in `symphony serve`.

use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The percentile of recent times that is kept free for a stage.
const PERCENTILE: usize = 95;

/// The number of recent times.
const RECENT: usize = 512;

/// The number of times after which the percentile is taken anew.
const REFRESH: usize = 64;

/// The part of the time that a stage may take by which it is to be over, where others come after
/// each of its items: the best of 0.85, 0.9, 0.95 and 1 on workloads made for the choice
/// (docs/queries.md).
const GOAL: f64 = 0.9;

/// The items of a stage after which those counted before count half.
const COUNTED: u32 = 1024;

/// The pairs of gaps between queries after which those counted before count half.
const GAPS: f64 = 512.0;

/// How evenly queries come, by the gaps between them: the *local variation*, which compares each
/// gap with the one before it. So a rate that goes up and down is no burst, and a pause counts as
/// one gap, however long it is.
#[derive(Clone, Debug)]
struct QueryGaps {
    last: Option<Nanos>,
    /// The gap before `last`.
    gap: Option<Nanos>,
    /// Pairs of gaps that followed each other.
    pairs: f64,
    /// The sum of ((one - other) / (one + other))^2 over these.
    differences: f64,
}

impl QueryGaps {
    /// Expects queries that come independently of each other, whose differences have a mean of a
    /// third, until it has seen some.
    fn new() -> QueryGaps {
        QueryGaps { last: None, gap: None, pairs: 48.0, differences: 16.0 }
    }

    /// Counts a query.
    fn came(&mut self, now: Nanos) {
        let Some(last) = self.last.replace(now) else { return };
        let gap = now - last;
        let Some(before) = self.gap.replace(gap) else { return };
        let [one, other] = [before, gap].map(|gap| gap.0 as f64);
        // Two gaps of nothing are of one burst.
        let differs = if one + other > 0.0 { (one - other) / (one + other) } else { 1.0 };
        self.pairs += 1.0;
        self.differences += differs * differs;
        if self.pairs >= GAPS {
            self.pairs /= 2.0;
            self.differences /= 2.0;
        }
    }

    /// Returns the shape k of the gamma distribution whose gaps differ as much, at most 1: a pair's
    /// mean is 1 / (2 k + 1). Queries that come independently of each other have 1, bursts of ten
    /// 0.1.
    fn evenness(&self) -> f64 {
        ((self.pairs / self.differences - 1.0) / 2.0).clamp(0.0, 1.0)
    }
}

/// The recent times of a stage.
#[derive(Clone, Debug)]
struct StageTimes {
    recent: Vec<Nanos>,
    next: usize,
    /// l(1).
    shortest: Nanos,
    /// The percentile of the recent times, once there are some.
    percentile: Option<Nanos>,
}

impl StageTimes {
    /// Adds a time. Returns true if the percentile was taken anew.
    fn add(&mut self, time: Nanos) -> bool {
        match self.recent.get_mut(self.next) {
            Some(slot) => *slot = time,
            None => self.recent.push(time),
        }
        self.next = (self.next + 1) % RECENT;
        let due = self.next.is_multiple_of(REFRESH);
        if due {
            let mut sorted = self.recent.clone();
            let at = (sorted.len() - 1) * PERCENTILE / 100;
            self.percentile = Some(*sorted.select_nth_unstable(at).1);
        }
        due
    }

    /// Returns the time to keep free for the stage, of which `budget` is planned.
    fn reserve(&self, budget: Nanos) -> Nanos {
        self.percentile.unwrap_or(budget).min(budget).max(self.shortest)
    }
}

/// The times that are kept free for the stages of a query: of each the 95th percentile of its last
/// 512 times, at least l(1) and at most the part of the SLO that is planned for it.
#[derive(Clone, Debug)]
pub struct StageReserves {
    outputs: Vec<Vec<usize>>,
    stages: Vec<StageTimes>,
    /// The part of the SLO that is planned for each stage.
    budgets: Vec<Nanos>,
    /// What the stages after each one need, along the longest path.
    after: Vec<Nanos>,
    /// The items of each stage that were over lately.
    over: Vec<u32>,
    gaps: QueryGaps,
}

impl StageReserves {
    /// Makes the reserves of stages in topological order. `outputs` are the stages that each one
    /// feeds, `shortest` is the time that each takes at least, and `budgets` what is planned for
    /// it.
    pub fn new(outputs: Vec<Vec<usize>>, shortest: &[Nanos], budgets: Vec<Nanos>) -> StageReserves {
        let times = |&shortest| StageTimes { recent: Vec::new(), next: 0, shortest, percentile: None };
        let stages = shortest.iter().map(times).collect();
        let over = vec![0; shortest.len()];
        let mut reserves =
            StageReserves { outputs, stages, budgets, after: Vec::new(), over, gaps: QueryGaps::new() };
        reserves.refresh();
        reserves
    }

    /// Makes the reserves of stages that are planned to take parts of `slo` in proportion to their
    /// shortest times, so that no path takes more than all of it.
    pub fn in_proportion(outputs: Vec<Vec<usize>>, shortest: &[Nanos], slo: Nanos) -> StageReserves {
        let after = longest_after(&outputs, shortest);
        let longest = after.iter().zip(shortest).map(|(after, own)| *after + *own).max();
        let longest = u128::from(longest.unwrap_or(Nanos::ZERO).0.max(1));
        let part = |own: &Nanos| Nanos((u128::from(own.0) * u128::from(slo.0) / longest) as u64);
        let budgets = shortest.iter().map(part).collect();
        StageReserves::new(outputs, shortest, budgets)
    }

    /// Returns true if they were made of these shortest times.
    pub fn is_of(&self, shortest: &[Nanos]) -> bool {
        self.stages.iter().map(|stage| &stage.shortest).eq(shortest)
    }

    /// Plans other parts of the SLO for the stages.
    pub fn plan(&mut self, budgets: &[Nanos]) {
        self.budgets.clear();
        self.budgets.extend_from_slice(budgets);
        self.refresh();
    }

    /// Counts a query that comes at `now`.
    pub fn came(&mut self, now: Nanos) {
        self.gaps.came(now);
    }

    /// Counts an item of a stage that took `time` from its arrival to its end.
    pub fn took(&mut self, stage: usize, time: Nanos) {
        self.over[stage] += 1;
        if self.over[stage] >= COUNTED {
            self.over.iter_mut().for_each(|items| *items /= 2);
        }
        if self.stages[stage].add(time) {
            self.refresh();
        }
    }

    /// Returns the time that the stages after this one need, along the longest path.
    pub fn after(&self, stage: usize) -> Nanos {
        self.after[stage]
    }

    /// Returns the deadline of a stage of a query that must be over by `due`.
    pub fn deadline(&self, stage: usize, due: Nanos) -> Nanos {
        due - self.after[stage]
    }

    /// Returns the time by which a stage that begins at `now` is to be over, whose deadline is
    /// `deadline`. A stage that others come after is not held back until its deadline, so that
    /// these have time too: the less, the fewer of its items have any after them, and the less, the
    /// more queries come in bursts. In a burst items wait for GPUs, and a goal makes batches
    /// smaller when they should be large. One that is dropped for its goal is tried again until its
    /// deadline.
    pub fn goal(&self, stage: usize, now: Nanos, deadline: Nanos) -> Nanos {
        let left = (1.0 - GOAL) * self.followed(stage) * self.gaps.evenness();
        let part = Nanos(((deadline - now).0 as f64 * (1.0 - left)) as u64);
        deadline.min(now + part.max(self.stages[stage].shortest))
    }

    /// Returns the part of a stage's items that others come after: all, until some are over.
    fn followed(&self, stage: usize) -> f64 {
        let after = self.outputs[stage].iter().map(|&next| self.over[next]).max();
        match (after, self.over[stage]) {
            (None, _) => 0.0,
            (Some(_), 0) => 1.0,
            (Some(after), items) => f64::from(after.min(items)) / f64::from(items),
        }
    }

    fn refresh(&mut self) {
        let both = self.stages.iter().zip(&self.budgets);
        let reserves: Vec<Nanos> = both.map(|(stage, &budget)| stage.reserve(budget)).collect();
        self.after = longest_after(&self.outputs, &reserves);
    }
}

/// Returns, for each stage in topological order, the largest sum of `weights` along a path of
/// stages after it. `outputs` are the stages that each one feeds.
pub(crate) fn longest_after(outputs: &[Vec<usize>], weights: &[Nanos]) -> Vec<Nanos> {
    let mut after = vec![Nanos::ZERO; weights.len()];
    for stage in (0..weights.len()).rev() {
        let of = |&next: &usize| weights[next] + after[next];
        after[stage] = outputs[stage].iter().map(of).max().unwrap_or(Nanos::ZERO);
    }
    after
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    #[test]
    fn budgets_in_proportion_fill_the_slo_along_the_longest_path() {
        // 0 feeds 1 and 2, which both feed 3.
        let outputs = vec![vec![1, 2], vec![3], vec![3], vec![]];
        let reserves = StageReserves::in_proportion(outputs, &[ms(1), ms(5), ms(2), ms(4)], ms(100));
        assert_eq!(reserves.budgets, [ms(10), ms(50), ms(20), ms(40)]);
        let deadlines: Vec<Nanos> = (0..4).map(|stage| reserves.deadline(stage, ms(1_100))).collect();
        assert_eq!(deadlines, [ms(1_010), ms(1_060), ms(1_060), ms(1_100)]);
    }

    #[test]
    fn a_stage_before_others_has_a_goal_before_its_deadline_that_one_batch_fits_into() {
        let reserves = StageReserves::in_proportion(vec![vec![1], vec![]], &[ms(5), ms(5)], ms(100));
        let goals = [100, 6, 4].map(|within| reserves.goal(0, ms(1_000), ms(1_000 + within)));
        assert_eq!(goals, [ms(1_090), Nanos(1_005_400_000), ms(1_004)]);
        assert_eq!(reserves.goal(1, ms(1_000), ms(1_100)), ms(1_100));
    }

    #[test]
    fn the_fewer_items_others_come_after_the_less_time_a_goal_leaves() {
        let mut reserves = StageReserves::in_proportion(vec![vec![1], vec![]], &[ms(5), ms(5)], ms(100));
        for item in 0..10_000 {
            reserves.took(0, ms(10));
            if item % 4 == 0 {
                reserves.took(1, ms(10));
            }
        }
        let goal = reserves.goal(0, ms(1_000), ms(1_100)).as_millis_f64();
        assert!((goal - 1_097.5).abs() < 0.1, "{goal}");
        (0..5_000).for_each(|_| reserves.took(1, ms(10)));
        assert_eq!(reserves.goal(0, ms(1_000), ms(1_100)), ms(1_090), "three for each of its own");
    }

    /// Returns the goal of a first stage that has 100 ms, in ms, after so many queries; `gap` has
    /// the gap before each, in ns.
    fn goal_after(queries: u64, gap: impl Fn(u64) -> u64) -> f64 {
        let mut reserves = StageReserves::in_proportion(vec![vec![1], vec![]], &[ms(5), ms(5)], ms(100));
        let mut now = ms(1_000);
        for query in 0..queries {
            now += Nanos(gap(query));
            reserves.came(now);
        }
        reserves.goal(0, now, now + ms(100)).as_millis_f64() - now.as_millis_f64()
    }

    #[test]
    fn the_more_queries_come_in_bursts_the_less_time_a_goal_leaves() {
        use rand::SeedableRng;
        use rand_distr::{Distribution, Gamma};
        let of_shape = |shape: f64| {
            let gaps = Gamma::new(shape, 5e6 / shape).unwrap();
            let mut random = rand_pcg::Pcg64Mcg::seed_from_u64(1);
            let gaps: Vec<u64> = (0..5_000).map(|_| gaps.sample(&mut random) as u64).collect();
            goal_after(5_000, |query| gaps[query as usize])
        };
        for (shape, expected) in [(0.1, 99.0), (0.5, 95.0), (1.0, 90.0), (10.0, 90.0)] {
            let goal = of_shape(shape);
            assert!((goal - expected).abs() < 1.0, "shape {shape}: {goal}");
        }
        assert!((goal_after(5_000, |_| 0) - 100.0).abs() < 0.1, "all at once");
    }

    #[test]
    fn pauses_and_a_rate_that_changes_are_no_bursts() {
        let pause = |query: u64| if query == 500 { 3_600_000_000_000 } else { 5_000_000 };
        assert!((goal_after(1_000, pause) - 90.0).abs() < 0.1);
        let halves = |query: u64| if (query / 1_000).is_multiple_of(2) { 1_000_000 } else { 8_000_000 };
        assert!((goal_after(5_000, halves) - 90.0).abs() < 0.1);
    }

    #[test]
    fn what_later_stages_leave_is_carried_to_the_first() {
        let mut reserves = StageReserves::in_proportion(vec![vec![1], vec![]], &[ms(5), ms(5)], ms(100));
        assert_eq!(reserves.after(0), ms(50));
        (0..REFRESH).for_each(|_| reserves.took(1, ms(12)));
        assert_eq!(reserves.after(0), ms(12));
        (0..RECENT).for_each(|_| reserves.took(1, ms(1)));
        assert_eq!(reserves.after(0), ms(5), "never less than a batch of one takes");
        (0..RECENT).for_each(|_| reserves.took(1, ms(400)));
        assert_eq!(reserves.after(0), ms(50), "nor more than is planned");
    }
}
