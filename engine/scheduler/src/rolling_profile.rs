//! The profile that follows from the batches that ran last: a rolling high percentile of what each
//! executor took, in place of one measurement at start-up (Clockwork, section 5.3). Owned by
//! whoever reads the executed batches, off the data path; time comes with the batches and the
//! calls.

use crate::profile::{
    LARGEST_RATIO, Profile, ProfileScale, SIZE_BOUNDS, ScaledProfile, TOP_LEVEL, level_of, range_of, ratio_of,
};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The number of last batches of an executor that are kept for each range of sizes.
pub const WINDOW: usize = 64;

/// The number of batches of a range before which it counts as not measured.
pub const FLOOR: usize = 16;

/// The share of the kept batches, in percent, that took no longer than what is measured, where no
/// other is asked for.
pub const PERCENTILE: usize = 95;

/// The time without a batch after which a range of an executor is measured anew. It counts up to
/// the model's last batch, so that a model which nobody asks for keeps its profile.
pub const LONGEST_GAP: Nanos = Nanos::from_secs(600);

/// The levels by which the profile must be off before it moves: 5 %.
const TOLERANCE: u8 = 5;

/// The levels by which it moves at once: a ninth.
const STEP: i8 = 10;

/// The time between two moves.
pub const MOVE_INTERVAL: Nanos = Nanos::from_millis(250);

/// The number of ranges of sizes. A range ends at one of [`SIZE_BOUNDS`].
const RANGES: usize = SIZE_BOUNDS.len();

/// What was measured, as ratios to start-up's profile.
#[derive(Clone, Copy, Debug)]
struct MeasuredRatios {
    ranges: [f64; RANGES],
    /// The ratio of a batch of one at best to l(1).
    at_best: f64,
}

/// What a rolling profile had learnt, from which it can be made again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedLatencies {
    /// The latency of the largest batch of each range of sizes.
    pub by_size: BTreeMap<usize, Nanos>,
    /// [`Profile::at_best`].
    pub at_best: Option<Nanos>,
}

/// The last batches of one range of sizes on one executor.
#[derive(Clone, Debug, Default)]
struct SizeRange {
    /// The time of each batch as a ratio to start-up's profile, oldest first.
    ratios: VecDeque<f64>,
    /// The time at which the last of them finished.
    newest: Nanos,
}

impl SizeRange {
    fn is_old(&self, now: Nanos) -> bool {
        now.0.saturating_sub(self.newest.0) > LONGEST_GAP.0
    }

    fn note(&mut self, ratio: f64, finished: Nanos) {
        if self.is_old(finished) {
            self.ratios.clear();
        }
        if self.ratios.len() == WINDOW {
            self.ratios.pop_front();
        }
        self.ratios.push_back(ratio);
        self.newest = self.newest.max(finished);
    }

    /// Returns the ratio that `percentile` percent of the batches did not exceed; `None` if too few
    /// are kept, or all are old.
    fn measured(&self, percentile: usize, now: Nanos) -> Option<f64> {
        if self.ratios.len() < FLOOR || self.is_old(now) {
            return None;
        }
        let mut sorted: Vec<f64> = self.ratios.iter().copied().collect();
        let rank = (sorted.len() * percentile).div_ceil(100) - 1;
        let (_, ratio, _) = sorted.select_nth_unstable_by(rank, f64::total_cmp);
        Some(*ratio)
    }
}

/// A model's rolling profile on one sub-cluster.
///
/// [`RollingProfile::note`] takes the batches in, [`RollingProfile::update`] moves the profile, a
/// step at a time, towards what they measure. What it returns is a [`Profile`] whatever was noted.
#[derive(Clone, Debug)]
pub struct RollingProfile {
    current: ScaledProfile,
    /// The highest level of a batch of one.
    most_alone: i8,
    /// The share of the batches, in percent, that take no longer than what is measured.
    percentile: usize,
    /// The share of batches of one, in percent, that take no longer than those at best; `None`
    /// where they all are to take what is measured.
    best_percentile: Option<usize>,
    executors: BTreeMap<usize, [SizeRange; RANGES]>,
    /// The time at which the last batch finished.
    newest: Nanos,
    next_move: Nanos,
    /// True from the first step of a move to its last.
    is_moving: bool,
    /// True once anything was measured.
    is_measured: bool,
}

impl RollingProfile {
    /// Returns the rolling profile that begins with start-up's.
    pub fn new(start: Profile) -> RollingProfile {
        RollingProfile {
            current: ScaledProfile::new(&start, ProfileScale::default()),
            most_alone: TOP_LEVEL,
            percentile: PERCENTILE,
            best_percentile: None,
            executors: BTreeMap::new(),
            newest: Nanos::ZERO,
            next_move: Nanos::ZERO,
            is_moving: false,
            is_measured: false,
        }
    }

    /// Lets a batch of one take this long at most, or as long as at start-up: whoever schedules by
    /// the profile goes on to run batches that are measured.
    pub fn with_longest_alone(self, longest: Nanos) -> RollingProfile {
        let fits = |level: &i8| self.start().latency(1).0 as f64 * ratio_of(*level) <= longest.0 as f64;
        let most_alone = (0..=TOP_LEVEL).rev().find(fits).unwrap_or(0);
        RollingProfile { most_alone, ..self }
    }

    /// Has the profile say what `percentile` percent of the batches, 1 to 100, do not exceed.
    pub fn with_percentile(self, percentile: usize) -> RollingProfile {
        RollingProfile { percentile: percentile.clamp(1, 100), ..self }
    }

    /// Has the profile say, too, what `percentile` percent of the batches of one, 1 to 100, take
    /// [at best](Profile::at_best).
    pub fn with_best_percentile(self, percentile: usize) -> RollingProfile {
        RollingProfile { best_percentile: Some(percentile.clamp(1, 100)), ..self }
    }

    /// Begins with what an earlier rolling profile had learnt, as [`RollingProfile::learned`]
    /// returned it, kept within the bounds of this one. The first measurements replace it. To be
    /// called after [`RollingProfile::with_longest_alone`].
    pub fn with_earlier(mut self, earlier: &LearnedLatencies) -> RollingProfile {
        let mut known = [None; RANGES];
        for (&size, latency) in earlier.by_size.range(1..=self.start().max_batch()) {
            known[range_of(size)] = Some(latency.0 as f64 / self.start().latency(size).0 as f64);
        }
        if let Some(ranges) = filled(&known) {
            let alone = self.start().latency(1).0 as f64;
            let best = earlier.at_best.filter(|_| self.best_percentile.is_some());
            let at_best = best.map_or(ranges[0], |best| best.0 as f64 / alone);
            self.current =
                ScaledProfile::new(self.start(), self.scale_of(MeasuredRatios { ranges, at_best }));
            self.is_measured = true;
        }
        self
    }

    /// Returns what the profile can be made of again; `None` before anything was measured.
    pub fn learned(&self) -> Option<LearnedLatencies> {
        let profile = self.measured()?;
        let largest = self.start().max_batch();
        let sizes = SIZE_BOUNDS[..=range_of(largest)].iter().map(|&bound| bound.min(largest));
        Some(LearnedLatencies {
            by_size: sizes.map(|size| (size, profile.latency(size))).collect(),
            at_best: self.best_percentile.map(|_| profile.at_best()),
        })
    }

    /// Takes in a batch of `size` rows that ran on `executor`, a number that the caller gives. A
    /// size that start-up's profile lacks says nothing.
    pub fn note(&mut self, executor: usize, size: usize, started: Nanos, finished: Nanos) {
        if size == 0 || size > self.start().max_batch() {
            return;
        }
        let took = finished.0.saturating_sub(started.0) as f64;
        let ratio = took / self.start().latency(size).0 as f64;
        let ranges = self.executors.entry(executor).or_default();
        ranges[range_of(size)].note(ratio.clamp(LARGEST_RATIO.recip(), LARGEST_RATIO), finished);
        self.newest = self.newest.max(finished);
    }

    /// Moves the profile by a step towards what is measured. Returns it if it has moved, and `None`
    /// if it is close enough, has moved within [`MOVE_INTERVAL`], or nothing is measured.
    pub fn update(&mut self, now: Nanos) -> Option<&ScaledProfile> {
        if now < self.next_move {
            return None;
        }
        let target = self.target()?;
        self.is_measured = true;
        let levels = self.current.scale.0;
        let is_off = levels.iter().zip(&target.0).any(|(from, to)| from.abs_diff(*to) >= TOLERANCE);
        if !self.is_moving && !is_off {
            return None;
        }
        let next = core::array::from_fn(|at| {
            let from = levels[at];
            target.0[at].clamp(from.saturating_sub(STEP), from.saturating_add(STEP))
        });
        self.is_moving = next != target.0;
        self.next_move = now + MOVE_INTERVAL;
        if next == levels {
            return None;
        }
        self.current = ScaledProfile::new(self.start(), ProfileScale(next));
        Some(&self.current)
    }

    /// Returns the profile as it is, with the scale by which it was made of start-up's.
    pub fn scaled(&self) -> &ScaledProfile {
        &self.current
    }

    /// Returns start-up's profile.
    pub fn start(&self) -> &Profile {
        &self.current.base
    }

    /// Returns the profile as it is: start-up's before anything was measured.
    pub fn profile(&self) -> &Profile {
        &self.current.profile
    }

    /// Returns the profile as it is; `None` before anything was measured.
    pub fn measured(&self) -> Option<&Profile> {
        self.is_measured.then_some(&self.current.profile)
    }

    /// Returns the largest ratio of the profile to start-up's, over all batch sizes; `None` before
    /// anything was measured.
    pub fn drift(&self) -> Option<f64> {
        let of = |size| self.profile().latency(size).0 as f64 / self.start().latency(size).0 as f64;
        self.measured().map(|_| (1..=self.start().max_batch()).map(of).fold(0.0, f64::max))
    }

    /// Returns the scale that is measured: of each range the worst executor's.
    fn target(&self) -> Option<ProfileScale> {
        let worst = self.executors.values().filter_map(|executor| self.measured_on(executor)).reduce(
            |one, other| MeasuredRatios {
                ranges: core::array::from_fn(|at| f64::max(one.ranges[at], other.ranges[at])),
                at_best: one.at_best.max(other.at_best),
            },
        )?;
        Some(self.scale_of(worst))
    }

    /// Returns what is measured on one executor.
    fn measured_on(&self, executor: &[SizeRange; RANGES]) -> Option<MeasuredRatios> {
        let ranges = filled(&core::array::from_fn(|at| executor[at].measured(self.percentile, self.newest)))?;
        let best = self.best_percentile.and_then(|percent| executor[0].measured(percent, self.newest));
        Some(MeasuredRatios { ranges, at_best: best.unwrap_or(ranges[0]) })
    }

    /// Returns the scale of these ratios, with a batch of one within its bound.
    fn scale_of(&self, ratios: MeasuredRatios) -> ProfileScale {
        let mut levels = [0; RANGES + 1];
        levels[..RANGES].copy_from_slice(&ratios.ranges.map(level_of));
        levels[0] = levels[0].min(self.most_alone);
        levels[RANGES] = level_of(ratios.at_best).min(levels[0]);
        ProfileScale(levels)
    }
}

/// Returns the ratio of every range: where it is not known, on the line between those of the next
/// known ranges on both sides, or that of the next on one side. `None` if no range is known.
fn filled(known: &[Option<f64>; RANGES]) -> Option<[f64; RANGES]> {
    let at = |at: usize| known[at].map(|ratio| (at, ratio));
    let mut ratios = [0.0; RANGES];
    for (range, ratio) in ratios.iter_mut().enumerate() {
        let (below, above) = ((0..=range).rev().find_map(at), (range..RANGES).find_map(at));
        let ((low, from), (high, to)) = (below.or(above)?, above.or(below)?);
        let part = (range.saturating_sub(low)) as f64 / (high - low).max(1) as f64;
        *ratio = from + (to - from) * part;
    }
    Some(ratios)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// l(b) = 1 ms * b + 4 ms, up to 64.
    fn start() -> Profile {
        Profile::linear(Nanos::from_millis(1), Nanos::from_millis(4), 64).unwrap()
    }

    /// A rolling profile and the time, which passes as batches run.
    struct Run {
        rolling: RollingProfile,
        now: Nanos,
    }

    impl Run {
        fn new() -> Run {
            Run { rolling: RollingProfile::new(start()), now: Nanos::from_secs(1) }
        }

        /// Runs a batch that takes `ratio` times start-up's latency, and updates. Returns true if
        /// the profile has moved.
        fn batch(&mut self, executor: usize, size: usize, ratio: f64) -> bool {
            let began = self.now;
            self.now = began + Nanos((start().latency(size).0 as f64 * ratio) as u64);
            self.rolling.note(executor, size, began, self.now);
            self.rolling.update(self.now).is_some()
        }

        /// Runs batches of sizes 1 to `sizes` in turn, for 20 s. Returns the number of moves.
        fn for_a_while(&mut self, executor: usize, sizes: usize, ratio: f64) -> usize {
            let until = self.now + Nanos::from_secs(20);
            let (mut turn, mut moves) = (0, 0);
            while self.now < until {
                moves += usize::from(self.batch(executor, 1 + turn % sizes, ratio));
                turn += 1;
            }
            moves
        }

        fn ratio(&self, size: usize) -> f64 {
            self.rolling.profile().latency(size).0 as f64 / start().latency(size).0 as f64
        }
    }

    /// Returns true if they are within a level of each other.
    fn close(ratio: f64, expected: f64) -> bool {
        (ratio / expected - 1.0).abs() < ratio_of(1) - 1.0
    }

    #[test]
    fn an_executor_that_becomes_slow_is_followed_and_again_when_it_is_fast() {
        let mut run = Run::new();
        assert_eq!(run.for_a_while(0, 8, 1.0), 0);
        assert!(run.rolling.drift().is_some_and(|drift| close(drift, 1.0)));
        for ratio in [1.5, 1.0, 0.6] {
            assert!(run.for_a_while(0, 8, ratio) >= 3, "a step at a time");
            assert!(
                run.rolling.drift().is_some_and(|drift| close(drift, ratio)),
                "{:?}",
                run.rolling.drift()
            );
            assert_eq!(run.for_a_while(0, 8, ratio), 0);
        }
    }

    #[test]
    fn nothing_moves_before_the_floor() {
        let mut run = Run::new();
        assert!(!(1..FLOOR).any(|_| run.batch(0, 4, 2.0)));
        run.rolling.note(0, 0, Nanos::ZERO, run.now);
        run.rolling.note(0, 65, Nanos::ZERO, run.now);
        assert_eq!((run.rolling.drift(), run.rolling.measured()), (None, None));
        assert!(run.batch(0, 4, 2.0));
        assert!(close(run.ratio(4), ratio_of(STEP)), "a ninth at once");
        assert!(run.rolling.update(run.now).is_none(), "and then not for an interval");
    }

    #[test]
    fn a_batch_of_one_takes_no_longer_than_it_may() {
        let mut run = Run::new();
        run.rolling = run.rolling.with_longest_alone(Nanos::from_millis(8));
        run.for_a_while(0, 1, 3.0);
        let alone = run.rolling.profile().latency(1);
        assert!(alone <= Nanos::from_millis(8) && alone > Nanos::from_micros(7_800), "{alone:?}");
        run.rolling = RollingProfile::new(start()).with_longest_alone(Nanos::from_millis(2));
        run.for_a_while(0, 1, 3.0);
        assert_eq!(run.rolling.profile().latency(1), start().latency(1));
    }

    #[test]
    fn a_rare_outlier_moves_nothing() {
        let mut run = Run::new();
        run.for_a_while(0, 1, 1.0);
        assert!(!(0..4 * WINDOW).any(|n| run.batch(0, 1, if n % 32 == 0 { 3.0 } else { 1.0 })));
    }

    #[test]
    fn sizes_that_were_not_seen_are_between_those_that_were() {
        let mut run = Run::new();
        for _ in 0..20 * WINDOW {
            run.batch(0, 4, 1.0);
            run.batch(0, 16, 2.0);
        }
        assert!(close(run.ratio(1), 1.0) && close(run.ratio(4), 1.0));
        // Ranges end at 4, 6, 8, 12 and 16.
        assert!(close(run.ratio(6), 1.25) && close(run.ratio(8), 1.5) && close(run.ratio(12), 1.75));
        assert!(close(run.ratio(16), 2.0) && close(run.ratio(64), 2.0));
    }

    #[test]
    fn the_slowest_executor_counts_until_it_is_long_gone() {
        let mut run = Run::new();
        run.for_a_while(0, 8, 1.0);
        run.for_a_while(1, 8, 1.5);
        run.for_a_while(0, 8, 1.0);
        assert!(run.rolling.drift().is_some_and(|drift| close(drift, 1.5)));
        run.now += LONGEST_GAP;
        run.for_a_while(0, 8, 1.0);
        assert!(run.rolling.drift().is_some_and(|drift| close(drift, 1.0)));
    }

    #[test]
    fn what_was_learnt_is_where_the_next_one_begins_until_batches_say_otherwise() {
        let mut run = Run::new();
        assert_eq!(run.rolling.learned(), None);
        for _ in 0..20 * WINDOW {
            run.batch(0, 4, 1.5);
            run.batch(0, 48, 2.5);
        }
        let (learned, before) = (run.rolling.learned().unwrap(), run.rolling.profile().clone());
        let mut next = Run { rolling: RollingProfile::new(start()).with_earlier(&learned), ..run };
        assert_eq!(next.rolling.measured(), Some(&before));
        assert!(next.rolling.update(next.now).is_none(), "nothing is measured yet");
        next.for_a_while(0, 64, 1.0);
        assert!(close(next.ratio(4), 1.0) && close(next.ratio(48), 1.0));
        // The profile that it is compared with is another one; the latencies are the same.
        let other = Profile::linear(Nanos::from_micros(1_500), Nanos::from_millis(4), 48).unwrap();
        let next = RollingProfile::new(other).with_earlier(&learned);
        for size in [1, 4, 8, 16, 48] {
            let [now, then] = [next.profile(), &before].map(|of| of.latency(size).0 as f64);
            assert!((now / then - 1.0).abs() < 0.02, "{size}: {now} {then}");
        }
        // Beyond all bounds, or of no size that there is.
        let known = |size, ms| LearnedLatencies {
            by_size: BTreeMap::from([(size, Nanos::from_millis(ms))]),
            at_best: Some(Nanos::from_millis(2)),
        };
        let of = |size, ms| RollingProfile::new(start()).with_earlier(&known(size, ms));
        assert!(close(of(1, 1_000).drift().unwrap(), LARGEST_RATIO));
        assert_eq!((of(0, 7).drift(), of(65, 7).drift()), (None, None));
        let bounded = RollingProfile::new(start()).with_longest_alone(Nanos::from_millis(8));
        let bounded = bounded.with_earlier(&known(1, 20));
        assert!(bounded.profile().latency(1) <= Nanos::from_millis(8));
        assert_eq!(bounded.profile().at_best(), bounded.profile().latency(1), "nobody asked for it");
    }

    #[test]
    fn where_run_times_differ_what_a_batch_of_one_takes_at_best_is_measured_and_learnt() {
        let differing = || RollingProfile::new(start()).with_percentile(85).with_best_percentile(33);
        let mut run = Run::new();
        run.rolling = differing();
        for turn in 0..20 * WINDOW {
            run.batch(0, 1, [0.5, 0.5, 1.5, 2.0][turn % 4]);
        }
        let (alone, best) = (run.rolling.profile().latency(1), run.rolling.profile().at_best());
        let ratios = [alone, best].map(|time| time.0 as f64 / start().latency(1).0 as f64);
        assert!(close(ratios[0], 2.0) && close(ratios[1], 0.5), "{ratios:?}");
        let learned = run.rolling.learned().unwrap();
        let next = differing().with_earlier(&learned);
        assert!(next.profile().at_best().0.abs_diff(best.0) < best.0 / 50, "{next:?}");
        // Batches of one are not measured any more: at best is as long as at most.
        let mut run = Run { rolling: differing(), ..run };
        let moves = (0..20 * WINDOW).filter(|_| run.batch(0, 4, 1.0)).count();
        assert_eq!(moves, 0);
        assert_eq!(run.rolling.profile().at_best(), run.rolling.profile().latency(1));
    }

    proptest! {
        #[test]
        fn whatever_ran_every_move_is_a_bounded_step_to_a_profile(
            batches in proptest::collection::vec(
                (0_usize..3, 0_usize..70, 0_u64..400_000_000, 0_u64..100_000_000), 0..2_000),
        ) {
            let start = start();
            let mut rolling = RollingProfile::new(start.clone());
            let (mut now, mut moved_at) = (Nanos::ZERO, None::<Nanos>);
            for (executor, size, took, pause) in batches {
                let (before, began) = (rolling.profile().clone(), now);
                now = began + Nanos(took);
                rolling.note(executor, size, began, now);
                now += Nanos(pause);
                let Some(ScaledProfile { profile, .. }) = rolling.update(now) else {
                    prop_assert_eq!(rolling.profile(), &before);
                    continue;
                };
                prop_assert!(moved_at.is_none_or(|at| now >= at + MOVE_INTERVAL));
                moved_at = Some(now);
                prop_assert_eq!(profile.max_batch(), start.max_batch());
                for size in 1..=start.max_batch() {
                    let [is, was, began] =
                        [profile, &before, &start].map(|profile| profile.latency(size).0 as f64);
                    prop_assert!(profile.latency(size) >= profile.latency(size - 1));
                    prop_assert!(is.max(was) <= is.min(was) * ratio_of(STEP) + 2.0);
                    prop_assert!(is >= began / LARGEST_RATIO - 1.0 && is <= began * LARGEST_RATIO + 1.0);
                }
            }
        }

        #[test]
        fn noise_within_the_tolerance_moves_nothing(
            ratios in proptest::collection::vec(0.96_f64..1.04, 1..1_000),
        ) {
            let mut run = Run::new();
            let moves = ratios.iter().enumerate().filter(|(n, ratio)| run.batch(n % 2, 1 + n % 8, **ratio));
            prop_assert_eq!(moves.count(), 0);
        }

        #[test]
        fn a_steady_ratio_is_reached_and_then_kept(ratio in 0.26_f64..3.9, sizes in 1_usize..=8) {
            let mut run = Run::new();
            run.for_a_while(0, sizes, ratio);
            let drift = run.rolling.drift().unwrap();
            prop_assert!((drift / ratio - 1.0).abs() < ratio_of(TOLERANCE as i8) - 1.0, "{}", drift);
            prop_assert_eq!(run.for_a_while(0, sizes, ratio), 0);
        }
    }
}
