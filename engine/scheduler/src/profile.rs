//! Latency profiles: l(b), the time that a batch of b takes. Owned by a model's queue and read at
//! every event, so a profile is a flat table: one load, no arithmetic.

use crate::limits;
use alloc::sync::Arc;
use alloc::vec::Vec;
use symphony_transport::Nanos;

/// The upper bounds of the batch sizes that are counted or measured together.
pub const SIZE_BOUNDS: [usize; 20] =
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, limits::MAX_BATCH];

/// The time that a batch takes beside its run, about: it is handed over, begun and told of.
const HANDOVER: Nanos = Nanos::from_micros(20);

/// The time for each request, as a multiple of the least, up to which a smaller batch is as good.
const AS_GOOD: f64 = 1.01;

/// The time for each request of larger batches, as a multiple of that of a batch, at which they are
/// slower where times were measured: less may be chance.
const MEASURED_RISE: f64 = 1.05;

/// The latency l(b) for b from 1 to the largest batch; it never falls as b grows. A clone shares
/// the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `table[b]` is l(b); `table[0]` is zero. One entry past the largest batch repeats "never".
    table: Arc<[Nanos]>,
    /// The table of [`Profile::worthwhile`]; `None` where that has all batches.
    worthwhile: Option<Arc<[Nanos]>>,
    /// See [`Profile::with_typical`]: `typical[b - 1]` is the time of a batch of b.
    typical: Option<Arc<[Nanos]>>,
    /// See [`Profile::at_best`].
    at_best: Nanos,
    /// See [`Profile::of_applications`].
    applications: Option<Arc<[Profile]>>,
}

/// The reason why a table is not a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// No batch size.
    #[error("a profile needs the latency of at least one batch size")]
    Empty,
    /// More batch sizes than [`limits::MAX_BATCH`].
    #[error("a profile of {0} batch sizes is too long: the limit is {max}", max = limits::MAX_BATCH)]
    TooLong(usize),
    /// The latency of this batch size is zero.
    #[error("the latency of a batch of {0} is zero; it must be positive")]
    Zero(usize),
    /// The latency of this batch size is under that of the size before.
    #[error("the latency of a batch of {0} is under that of {before}; it must not fall as batches grow", before = .0 - 1)]
    Falls(usize),
}

impl Profile {
    /// Returns the linear profile l(b) = alpha * b + beta, for batches up to `max_batch`.
    ///
    /// Errors: those of [`Profile::measured`].
    pub fn linear(alpha: Nanos, beta: Nanos, max_batch: usize) -> Result<Profile, ProfileError> {
        let latencies: Vec<Nanos> =
            (1..=max_batch as u64).map(|b| Nanos(alpha.0.saturating_mul(b)) + beta).collect();
        Profile::measured(&latencies)
    }

    /// Returns the profile whose l(b) is `latencies[b - 1]`.
    ///
    /// Errors: an empty or too long table, a latency of zero, or one that falls.
    pub fn measured(latencies: &[Nanos]) -> Result<Profile, ProfileError> {
        if latencies.is_empty() {
            return Err(ProfileError::Empty);
        }
        if latencies.len() > limits::MAX_BATCH {
            return Err(ProfileError::TooLong(latencies.len()));
        }
        let mut table = Vec::with_capacity(latencies.len() + 2);
        table.push(Nanos::ZERO);
        for (at, &latency) in latencies.iter().enumerate() {
            if latency == Nanos::ZERO {
                return Err(ProfileError::Zero(at + 1));
            }
            if latency < table[at] {
                return Err(ProfileError::Falls(at + 1));
            }
            table.push(latency);
        }
        table.push(Nanos::MAX);
        let at_best = table[1];
        let profile =
            Profile { table: table.into(), worthwhile: None, typical: None, at_best, applications: None };
        Ok(profile.judged(latencies.len()))
    }

    /// Has what is [worthwhile](Profile::worthwhile) follow from the times that batches typically
    /// take, `typical[b - 1]` for a batch of b and one for each size, as they were measured: l(b),
    /// which few exceed, follows the slowest runs, of which chance decides.
    pub fn with_typical(self, typical: Arc<[Nanos]>) -> Profile {
        let largest = self.max_batch();
        Profile { typical: Some(typical), ..self }.judged(largest)
    }

    /// Compares only batches that take no longer than `slo` when it says what is
    /// [worthwhile](Profile::worthwhile): no other can be in time.
    pub fn within(self, slo: Nanos) -> Profile {
        let in_time = self.largest_within(slo).max(1);
        self.judged(in_time)
    }

    /// Finds out which batches of up to `largest` are worthwhile: all are if all of those are.
    fn judged(self, largest: usize) -> Profile {
        let most = match &self.typical {
            None => largest_worthwhile(&self.table[1..=largest], 1.0),
            Some(typical) => largest_worthwhile(&typical[..largest], MEASURED_RISE),
        };
        let whole = self.max_batch();
        self.worthwhile_up_to(if most < largest { most } else { whole })
    }

    /// Has the batches of up to `most` requests, from 1 to the largest batch, be those that are
    /// [worthwhile](Profile::worthwhile).
    pub fn worthwhile_up_to(self, most: usize) -> Profile {
        let up_to = || self.table[..=most].iter().copied().chain([Nanos::MAX]).collect();
        Profile { worthwhile: (most < self.max_batch()).then(up_to), ..self }
    }

    /// Returns this profile without the batches that take longer for each request than smaller ones
    /// do: where so many wait, two of those serve them sooner. All batches of a linear profile are
    /// worthwhile. Nothing is allocated. A profile that is [scaled](Profile::scaled) keeps the
    /// size: what is not run would never be found to have become faster.
    pub fn worthwhile(&self) -> Profile {
        match &self.worthwhile {
            None => self.clone(),
            Some(table) => Profile { table: Arc::clone(table), worthwhile: None, ..self.clone() },
        }
    }

    /// Returns the profile of a model slot without a model, which never runs a batch.
    pub fn of_nothing() -> Profile {
        Profile::measured(&[Nanos(1)]).expect("one positive latency is a profile")
    }

    /// Returns the largest batch.
    #[inline]
    pub fn max_batch(&self) -> usize {
        self.table.len() - 2
    }

    /// Returns the largest batch that takes no longer than `time`; 0 if none does.
    pub fn largest_within(&self, time: Nanos) -> usize {
        self.table[1..=self.max_batch()].partition_point(|&latency| latency <= time)
    }

    /// Returns l(`size`): zero for an empty batch, [`Nanos::MAX`] for one that is too large.
    #[inline]
    pub fn latency(&self, size: usize) -> Nanos {
        self.table[size.min(self.table.len() - 1)]
    }

    /// Returns the time that a batch of one takes at best, where run times differ: l(1) says what
    /// it does not exceed, and with less time than this a request can't be helped. l(1) where
    /// batches take what the profile says.
    #[inline]
    pub fn at_best(&self) -> Nanos {
        self.at_best
    }

    /// Has a batch of one take this at best, and l(1) at most.
    pub fn with_best(self, at_best: Nanos) -> Profile {
        Profile { at_best: at_best.clamp(Nanos(1), self.latency(1)), ..self }
    }

    /// Returns this profile, of batches of any requests of a model, with those of the model's
    /// applications, by their index: what batches of requests of each one alone take. A batch of
    /// several takes as long as that of the slowest of them.
    pub fn of_applications(self, applications: Arc<[Profile]>) -> Profile {
        Profile { applications: Some(applications), ..self }
    }

    /// Returns the profiles of the applications, by their index, if requests are told apart by
    /// them.
    #[inline]
    pub fn applications(&self) -> Option<&[Profile]> {
        self.applications.as_deref()
    }

    /// Returns this profile with each latency multiplied by the ratio of its size's range, and no
    /// less than that of the size before.
    pub fn scaled(&self, scale: ProfileScale) -> Profile {
        let ratios = scale.0.map(ratio_of);
        let at_best = Nanos((self.latency(1).0 as f64 * ratios[SIZE_BOUNDS.len()]) as u64);
        let scaled = self.multiplied(|size| ratios[range_of(size)]).with_best(at_best);
        Profile { applications: self.each_application(|own| own.scaled(scale)), ..scaled }
    }

    /// Returns the profile of batches that take `factor` times as long.
    pub fn times(&self, factor: f64) -> Profile {
        let at_best = Nanos((self.at_best.0 as f64 * factor) as u64);
        let times = self.multiplied(|_| factor).with_best(at_best);
        let each = |typical: &Nanos| Nanos((typical.0 as f64 * factor) as u64);
        let typical = self.typical.as_ref().map(|times| times.iter().map(each).collect());
        Profile { applications: self.each_application(|own| own.times(factor)), typical, ..times }
    }

    fn each_application(&self, change: impl Fn(&Profile) -> Profile) -> Option<Arc<[Profile]>> {
        self.applications.as_ref().map(|own| own.iter().map(change).collect())
    }

    fn multiplied(&self, ratio: impl Fn(usize) -> f64) -> Profile {
        let mut before = 1;
        let latencies: Vec<Nanos> = (1..=self.max_batch())
            .map(|size| {
                before = before.max((self.latency(size).0 as f64 * ratio(size)) as u64);
                Nanos(before)
            })
            .collect();
        let multiplied =
            Profile::measured(&latencies).expect("positive latencies that do not fall are a profile");
        multiplied.worthwhile_up_to(self.worthwhile().max_batch())
    }

    /// Returns true if both are clones of one profile.
    pub fn is_same(&self, other: &Profile) -> bool {
        Arc::ptr_eq(&self.table, &other.table)
    }

    /// Returns the profile without its batches over `max_batch` (at least 1).
    pub fn truncated(&self, max_batch: usize) -> Profile {
        let keep = self.max_batch().min(max_batch.max(1));
        let kept = Profile::measured(&self.table[1..=keep]).expect("a part of a profile is one");
        let kept = match &self.typical {
            None => kept,
            Some(typical) => kept.with_typical(typical[..keep].into()),
        };
        let applications = self.each_application(|own| own.truncated(max_batch));
        Profile { applications, ..kept.with_best(self.at_best) }
    }
}

/// Returns the size of the largest batch that is worthwhile among those that take `times`, from one
/// request on: of the sizes behind which the time for each request comes to `rise` times theirs
/// before it is down at theirs again, the smallest that is about as good as the best; that of all
/// if there is none.
fn largest_worthwhile(times: &[Nanos], rise: f64) -> usize {
    let each = |size: usize| (times[size - 1].0 as f64 + HANDOVER.0 as f64) / size as f64;
    let limit = AS_GOOD * (1..=times.len()).map(each).fold(f64::INFINITY, f64::min);
    let is_last = |&size: &usize| {
        let own = each(size);
        let mut larger = (size + 1..=times.len()).map(each);
        own <= limit && larger.find(|&each| each <= own || each >= rise * own).is_some_and(|each| each > own)
    };
    (1..=times.len()).find(is_last).unwrap_or(times.len())
}

/// The ratios of a profile to the one that it was made of: a level for each range of batch sizes
/// that ends at one of [`SIZE_BOUNDS`], and behind these one for [`Profile::at_best`], compared
/// with l(1). It is plain data, so that a recording can hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileScale(pub [i8; SIZE_BOUNDS.len() + 1]);

/// The largest ratio of a [`ProfileScale`]; the least is one over it.
pub const LARGEST_RATIO: f64 = 4.0;

/// The highest level: that of [`LARGEST_RATIO`]. Zero is that of the ratio 1.
pub const TOP_LEVEL: i8 = 127;

/// The ratio of a level to the level below: the 127th root of [`LARGEST_RATIO`], about 1.1 %.
const LEVEL: f64 = 1.010_975_497_288_978_8;

/// Returns the ratio of a level.
pub fn ratio_of(level: i8) -> f64 {
    let ratio = (0..level.unsigned_abs()).fold(1.0, |ratio, _| ratio * LEVEL);
    if level < 0 { 1.0 / ratio } else { ratio }
}

/// Returns the level whose ratio is the nearest, in proportion; the highest or the lowest where the
/// ratio is beyond them.
pub fn level_of(ratio: f64) -> i8 {
    let size = if ratio < 1.0 { 1.0 / ratio } else { ratio };
    let (mut level, mut of_level) = (0, 1.0);
    // A level is the nearest to what lies within half a level of it.
    while level < TOP_LEVEL && size * size >= of_level * of_level * LEVEL {
        level += 1;
        of_level *= LEVEL;
    }
    if ratio < 1.0 { -level } else { level }
}

/// Returns the range of [`SIZE_BOUNDS`] that a size is in.
pub fn range_of(size: usize) -> usize {
    SIZE_BOUNDS.partition_point(|&bound| bound < size)
}

/// A profile that was made of another by a scale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledProfile {
    /// The profile that it was made of.
    pub base: Profile,
    /// The ratios.
    pub scale: ProfileScale,
    /// The profile.
    pub profile: Profile,
}

impl ScaledProfile {
    /// Returns a profile made of `base`.
    pub fn new(base: &Profile, scale: ProfileScale) -> ScaledProfile {
        let is_same = scale == ProfileScale::default();
        let profile = if is_same { base.clone() } else { base.scaled(scale) };
        ScaledProfile { base: base.clone(), scale, profile }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_profile_is_alpha_b_plus_beta_and_ends_at_its_largest_batch() {
        let profile = Profile::linear(Nanos(3), Nanos(10), 4).unwrap();
        assert_eq!(profile.latency(0), Nanos::ZERO);
        assert_eq!(profile.latency(4), Nanos(22));
        assert_eq!(profile.latency(5), Nanos::MAX);
        assert_eq!(profile.latency(5_000_000), Nanos::MAX);
        assert_eq!(profile.max_batch(), 4);
        assert_eq!(profile.truncated(2).latency(3), Nanos::MAX);
        assert_eq!([12, 13, 21, 22, 99].map(|time| profile.largest_within(Nanos(time))), [0, 1, 3, 4, 4]);
    }

    #[test]
    fn a_table_that_is_no_profile_is_refused() {
        assert_eq!(Profile::measured(&[]), Err(ProfileError::Empty));
        assert_eq!(Profile::measured(&[Nanos(0)]), Err(ProfileError::Zero(1)));
        assert_eq!(Profile::measured(&[Nanos(2), Nanos(1)]), Err(ProfileError::Falls(2)));
        assert_eq!(Profile::linear(Nanos(1), Nanos(1), 5_000), Err(ProfileError::TooLong(5_000)));
    }

    #[test]
    fn batches_that_take_longer_for_each_request_than_smaller_ones_are_not_worthwhile() {
        let sizes = |profile: &Profile| (profile.worthwhile().max_batch(), profile.max_batch());
        let measured = |latencies: &[u64]| {
            let ms = |&ms: &u64| Nanos::from_millis(ms);
            Profile::measured(&latencies.iter().map(ms).collect::<Vec<_>>()).unwrap()
        };
        for beta_us in [0, 1, 5_000] {
            let linear = Profile::linear(Nanos::from_micros(1_053), Nanos::from_micros(beta_us), 64).unwrap();
            assert_eq!(sizes(&linear), (64, 64));
        }
        let knee = measured(&[10, 10, 10, 10, 16, 22]);
        assert_eq!(sizes(&knee), (4, 6));
        assert_eq!(knee.worthwhile().latency(5), Nanos::MAX);
        assert_eq!(knee.worthwhile(), knee.worthwhile().worthwhile());
        // Steps: a better size further on counts, and of sizes that are as good the smallest.
        assert_eq!(sizes(&measured(&[100, 100, 190, 190, 270, 270, 350])), (6, 7));
        assert_eq!(sizes(&measured(&[100, 100, 200, 200, 300, 300])), (2, 6));
        assert_eq!(sizes(&measured(&[100, 210, 330])), (1, 3));
        // What takes no longer than to be handed over is better together.
        let brief: Vec<_> = (1..=8).map(|size| Nanos(11_000 * size)).collect();
        assert_eq!(sizes(&Profile::measured(&brief).unwrap()), (8, 8));
        assert_eq!(sizes(&Profile::measured(&[Nanos(u64::MAX - 2), Nanos(u64::MAX - 1)]).unwrap()), (2, 2));
        // What is cut off or multiplied.
        assert_eq!(sizes(&knee.truncated(3)), (3, 3));
        assert_eq!(sizes(&knee.truncated(5)), (4, 5));
        assert_eq!(sizes(&knee.times(3.0)), (4, 6));
        let mut levels = [0; SIZE_BOUNDS.len() + 1];
        levels[2..5].fill(level_of(3.0));
        let scaled = ScaledProfile::new(&knee, ProfileScale(levels)).profile;
        assert_eq!(sizes(&scaled), (4, 6), "a size that takes long for a while is not forgotten");
        assert_eq!(scaled.worthwhile().latency(4), scaled.latency(4));
        // What is in time.
        let later = measured(&[10, 10, 10, 20, 20, 20, 20, 20, 20]);
        assert_eq!(sizes(&later), (9, 9));
        assert_eq!(
            [15, 10, 20, 30, 1].map(|ms| sizes(&later.clone().within(Nanos::from_millis(ms))).0),
            [9; 5]
        );
        let later = measured(&[10, 10, 10, 18, 25, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40]);
        let within = [40, 30, 18, 10].map(|ms| sizes(&later.clone().within(Nanos::from_millis(ms))));
        assert_eq!(within, [(16, 16), (3, 16), (3, 16), (16, 16)]);
        let of_two = knee.clone().of_applications([knee.clone(), knee.times(0.5)].into());
        assert_eq!(of_two.worthwhile().applications(), of_two.applications());
    }

    #[test]
    fn what_is_worthwhile_follows_from_typical_times_in_time_where_they_were_measured() {
        let ms = |times: &[f64]| times.iter().map(|&ms| Nanos::from_millis_f64(ms)).collect::<Vec<_>>();
        let size = |profile: &Profile| profile.worthwhile().max_batch();
        let by = |latencies: &[f64], typical: &[f64], slo: f64| {
            let profile = Profile::measured(&ms(latencies)).unwrap();
            profile.with_typical(ms(typical).into()).within(Nanos::from_millis_f64(slo))
        };
        // One slow run of a batch of two: by l(b) a batch of one would be the best.
        let slow = [0.96, 4.0, 4.0, 4.5, 5.0, 6.5];
        let even = [0.95, 1.9, 2.81, 3.8, 4.69, 5.7];
        assert_eq!(size(&Profile::measured(&ms(&slow)).unwrap()), 1);
        assert_eq!(size(&by(&slow, &even, 100.0)), 6, "a rise by less than a twentieth may be chance");
        // A rise that goes on counts, where batches come to it in time.
        let rising = [0.95, 1.8, 2.7, 3.75, 5.0, 6.3];
        let size_by = |slo: f64| size(&by(&rising, &rising, slo));
        assert_eq!([100.0, 5.0, 3.75, 2.7, 0.1].map(size_by), [3, 3, 6, 6, 6]);
        // It stays so where the profile is cut off or multiplied.
        let knee = by(&slow, &rising, 100.0);
        assert_eq!([3, 4, 5, 6, 9].map(|keep| size(&knee.truncated(keep))), [3, 4, 3, 3, 3]);
        assert_eq!(size(&knee.times(2.0)), 3);
        assert_eq!(size(&knee.times(2.0).truncated(5)), 3);
        // A smaller batch that is about as good as a later one.
        assert_eq!(size(&by(&[10.0; 9], &[10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0], 30.0)), 9);
    }

    #[test]
    fn levels_are_about_a_percent_apart_and_reach_a_quarter_and_four_times() {
        assert_eq!(
            (ratio_of(0), level_of(1.0), level_of(0.0), level_of(9.0)),
            (1.0, 0, -TOP_LEVEL, TOP_LEVEL)
        );
        assert!((ratio_of(TOP_LEVEL) - LARGEST_RATIO).abs() < 1e-9);
        for level in -TOP_LEVEL..=TOP_LEVEL {
            let ratio = ratio_of(level);
            assert_eq!([ratio, ratio * 1.005, ratio / 1.005].map(level_of), [level; 3]);
        }
    }

    #[test]
    fn a_scaled_profile_never_falls_and_never_is_zero() {
        let base = Profile::linear(Nanos(1_000), Nanos(4_000), 12).unwrap();
        let mut levels = [0; SIZE_BOUNDS.len() + 1];
        (levels[1], levels[3], levels[4]) = (level_of(2.0), -TOP_LEVEL, level_of(1.5));
        levels[SIZE_BOUNDS.len()] = level_of(0.6);
        let scaled = ScaledProfile::new(&base, ProfileScale(levels));
        let latency = |size| scaled.profile.latency(size).0;
        assert_eq!((latency(1), scaled.profile.max_batch()), (5_000, 12));
        assert!(latency(2).abs_diff(12_000) < 100 && latency(6).abs_diff(15_000) < 150);
        assert!((3..=5).all(|size| latency(size) >= latency(2)) && latency(12) == 16_000);
        assert!(scaled.profile.at_best().0.abs_diff(3_000) < 30);
        assert_eq!(scaled.profile.truncated(1).at_best(), scaled.profile.at_best());
        assert_eq!(base.times(2.0).at_best(), Nanos(10_000));
        let of_two = base.clone().of_applications([base.times(0.5), base.clone()].into());
        let own = |profile: Profile, at: usize| profile.applications().unwrap()[at].clone();
        let scale = ProfileScale(levels);
        assert_eq!(own(of_two.scaled(scale), 0), base.times(0.5).scaled(scale));
        assert_eq!(own(of_two.times(3.0), 1), base.times(3.0));
        assert_eq!(own(of_two.truncated(2), 1), base.truncated(2));
        let least = Profile::linear(Nanos(1), Nanos(0), 2).unwrap();
        let lowest = least.scaled(ProfileScale([-TOP_LEVEL; SIZE_BOUNDS.len() + 1]));
        assert_eq!((lowest.latency(2), lowest.at_best()), (Nanos(1), Nanos(1)));
        assert_eq!(least.with_best(Nanos(9)).at_best(), Nanos(1), "never more than l(1)");
    }
}
