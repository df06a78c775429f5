//! The settings that the tuner compares, and how bad each one is: what became of recent requests
//! under it, as they came and under stress (docs/scheduling.md, "The tuner").

use super::replay::{ReplayOutcome, SLICES};
use crate::rule_setting::{Prefer, RuleSetting};
use crate::workload::Workload;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE};

/// The factors by which recent requests are replayed faster than they came. A setting that loses
/// nothing now may be about to: what it does under more load shows that before it costs anything.
pub(super) const STRESS: [f64; 2] = [1.0, 1.15];

/// The bad rate under stress from which on it counts less: what does not fit, fits under no
/// setting.
const STRESSED: f64 = 0.05;

/// The part that it counts from there on. It tells a setting under which goodput stays from one
/// under which it collapses.
const BEYOND: f64 = 0.02;

/// The bad rate under stress up to which all that is lost says which setting saves more. What is
/// beyond is lost under any setting, and its noise would hide what is saved now.
const TELLING: f64 = 0.1;

/// The bad rate of a replay from which on those under more stress are left out: nothing that is
/// better there makes up for it.
pub(super) const HOPELESS: f64 = 0.04;

/// The number of requests by which a model's bad rate is drawn to that of all.
pub(super) const DRAWN_BY: f64 = 200.0;

/// The standard errors by which a setting has to be better. With more, the tuner stays too long
/// with what is worse where bursts are rare.
const ERRORS: f64 = 0.5;

/// The part of the slices in which a setting has to lose more than another one to lose steadily,
/// and the part of the requests that it has to lose then without any stress: that is a reason to
/// leave it, whatever is lost under stress.
const STEADY: (f64, f64) = (0.9, 0.003);

/// The looks whose slices are kept.
const LOOKS: usize = 8;

/// The bad requests of a slice of a replay, under all stresses.
#[derive(Clone, Copy, Debug, Default)]
struct SliceLosses {
    /// All of them.
    all: f64,
    /// Bad requests without stress, and of those under stress as many as [`TELLING`] leaves.
    telling: f64,
    /// Bad requests without stress.
    now: f64,
}

/// A setting, and what was found under it.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    /// The setting.
    pub(super) setting: RuleSetting,
    /// Bad requests that it is charged with.
    pub(super) handicap: f64,
    /// What became of requests at each of [`STRESS`].
    found: AtEachStress,
    /// The bad requests of each slice of the last looks, under all stresses.
    slices: VecDeque<SliceLosses>,
    /// True if it was not tried at the last look: it surely loses too much.
    pub(super) rests: bool,
}

/// What a replay finds at each of [`STRESS`].
type AtEachStress = [ReplayOutcome; STRESS.len()];

impl Contender {
    /// All settings that are compared, `current` among them, without findings. `charged` has the
    /// others, with the bad requests with which each is charged.
    pub(super) fn all(
        current: RuleSetting,
        charged: &[(RuleSetting, f64)],
    ) -> impl Iterator<Item = Contender> {
        let other = (!charged.iter().any(|one| one.0 == current)).then_some((current, 0.0));
        other.into_iter().chain(charged.iter().copied()).map(|(setting, handicap)| Contender {
            setting,
            handicap,
            found: Default::default(),
            slices: VecDeque::new(),
            rests: false,
        })
    }

    /// Leaves `kept` of what was found, and adds what `replay` finds at each of [`STRESS`], by its
    /// index, which is returned too.
    pub(super) fn find(
        &mut self,
        kept: f64,
        mut replay: impl FnMut(RuleSetting, usize) -> ReplayOutcome,
    ) -> AtEachStress {
        let mut found = AtEachStress::default();
        for stress in 0..STRESS.len() {
            let less = stress.checked_sub(1).map(|less| &found[less]);
            let hopeless = less.filter(|less| less.bad_rate() > HOPELESS).cloned();
            found[stress] = hopeless.unwrap_or_else(|| replay(self.setting, stress));
        }
        self.add(kept, &found);
        found
    }

    /// Leaves `kept` of what was found, and adds what was found now.
    pub(super) fn add(&mut self, kept: f64, now: &AtEachStress) {
        let mut slices = [SliceLosses::default(); SLICES];
        for (stress, (found, more)) in self.found.iter_mut().zip(now).enumerate() {
            found.fade(kept);
            found.add(more);
            let is_now = STRESS[stress] == 1.0;
            let telling = if is_now { 1.0 } else { TELLING / more.bad_rate().max(TELLING) };
            for (sum, bad) in slices.iter_mut().zip(more.bad_in) {
                sum.all += bad;
                sum.telling += telling * bad;
                sum.now += if is_now { bad } else { 0.0 };
            }
        }
        if self.slices.len() == SLICES * LOOKS {
            self.slices.drain(..SLICES);
        }
        for slice in &mut self.slices {
            slice.all *= kept;
            slice.telling *= kept;
            slice.now *= kept;
        }
        self.slices.extend(slices);
    }

    /// Returns how bad the setting is: the worst model's bad rate, and that under stress as far as
    /// it says something.
    pub(super) fn badness(&self) -> f64 {
        let stressed = self.found[1].worst_bad_rate(DRAWN_BY);
        self.loss_now() + stressed.min(STRESSED) + BEYOND * stressed
    }

    /// Returns the worst model's bad rate without stress, and what the setting is charged with.
    pub(super) fn loss_now(&self) -> f64 {
        self.found[0].worst_bad_rate(DRAWN_BY) + self.handicap / self.offered().max(1.0)
    }

    /// Returns the number of bad requests that this setting saves of those under `other`, charges
    /// included: see [`Contender::found_to_save`].
    pub(super) fn surely_saves(&self, other: &Contender) -> f64 {
        other.handicap - self.handicap + self.found_to_save(other)
    }

    /// Returns the number of bad requests that this setting was found to save of those under
    /// `other`, less the part of the standard error that the differences of the slices show. Bad
    /// requests come in bursts, so one burst says less than as many bad requests that are spread.
    /// What is lost under much stress is left out beyond a part if more is saved for sure without
    /// it, and all that is lost under stress if `other` loses more steadily.
    pub(super) fn found_to_save(&self, other: &Contender) -> f64 {
        let saves = |of: fn(&SliceLosses) -> f64| {
            let saved = self.saved(other, of);
            let squares: f64 = saved.clone().map(|saved| saved * saved).sum();
            saved.sum::<f64>() - ERRORS * squares.sqrt()
        };
        let sure = saves(|slice| slice.all).max(saves(|slice| slice.telling));
        sure.max(self.steadily_saves(other))
    }

    /// Returns the number of bad requests without stress that this setting saves of those under
    /// `other`, less those that are no reason to change, if it saves some in nearly every slice.
    fn steadily_saves(&self, other: &Contender) -> f64 {
        let saved = self.saved(other, |slice| slice.now);
        let steady = saved.clone().filter(|&saved| saved > 0.0).count() as f64;
        let is_steady = steady >= STEADY.0 * self.slices.len() as f64;
        if is_steady { saved.sum::<f64>() - STEADY.1 * self.offered() } else { f64::NEG_INFINITY }
    }

    /// Returns the losses of each slice under `other`, less those under this setting.
    fn saved(&self, other: &Contender, of: fn(&SliceLosses) -> f64) -> impl Iterator<Item = f64> + Clone {
        other.slices.iter().zip(&self.slices).map(move |(theirs, own)| of(theirs) - of(own))
    }

    /// Returns what serving took, without stress.
    pub(super) fn cost(&self, prefer: Prefer) -> f64 {
        match prefer {
            Prefer::Efficiency => self.found[0].busy_s,
            Prefer::Latency => self.found[0].latency_s,
        }
    }

    /// Returns what was found without stress; `None` before any request was tried.
    pub(super) fn found_now(&self) -> Option<&ReplayOutcome> {
        Some(&self.found[0]).filter(|found| found.offered() > 0.0)
    }

    /// Returns the number of requests that it was tried with.
    pub(super) fn offered(&self) -> f64 {
        self.found[0].offered()
    }
}

/// Returns the settings that are compared for the models and GPUs of a workload. A model that has
/// the only GPU to itself drops requests by what the next batch would drop: that is better than to
/// drop none or all that are in the way, so only batches' starts are left to compare.
pub(super) fn candidates(workload: &Workload) -> Vec<RuleSetting> {
    if workload.gpus == 1 && workload.models.len() == 1 {
        return ALONE.into();
    }
    let reserves = reserves(workload);
    let waiting = reserves.filter(|_| workload.gpus > 1);
    let waiting = waiting.map(|of| RESERVING.map(|one| RuleSetting { reserve: of.least, ..one }));
    let is_seldom_free =
        |of: &Reserves| FREE_SOON * of.batch.as_secs_f64() > of.brief.as_secs_f64() * workload.gpus as f64;
    let brief = reserves.filter(is_seldom_free);
    let brief = brief.map(|of| BRIEF.map(|one| RuleSetting { reserve: of.brief, brief: true, ..one }));
    CANDIDATES.into_iter().chain(waiting.into_iter().flatten()).chain(brief.into_iter().flatten()).collect()
}

/// The number of GPUs that become free, while all run the longest batches, in the time that models
/// in a hurry can wait, from which on they find one anyway: to make batches brief only costs GPU
/// time there.
const FREE_SOON: f64 = 4.0;

/// The times for which batches may take the last GPU.
#[derive(Clone, Copy)]
struct Reserves {
    /// What a request of the model in the greatest hurry can wait for a GPU.
    least: Nanos,
    /// What one can wait of the model in the greatest hurry among those that can wait for any
    /// batch of one: for the others, batches that become brief do nothing.
    brief: Nanos,
    /// What the longest batch takes.
    batch: Nanos,
}

/// Returns the reserves of the settings with one. None where no model is in a greater hurry than
/// another.
fn reserves(workload: &Workload) -> Option<Reserves> {
    let network = &workload.network;
    let highest = workload.models.iter().filter(|model| model.class == Class::HIGHEST);
    let waits = highest
        .clone()
        .filter(|model| model.slo < NO_DEADLINE)
        .map(|model| model.slo - network.result - network.delay(1) - model.profile.latency(1));
    let [least, most] = [waits.clone().min()?, waits.clone().max()?];
    let longest_one = highest.clone().map(|model| model.profile.latency(1)).max()?;
    let brief = waits.filter(|&wait| wait >= longest_one).min().unwrap_or(most);
    let batches = highest.map(|model| {
        let profile = model.profile.worthwhile();
        profile.latency(profile.max_batch()).min(model.slo)
    });
    (least < most).then_some(Reserves { least, brief, batch: batches.max()? })
}

/// The settings that are compared with batches that become brief too.
const BRIEF: [RuleSetting; 2] = [of(0.0, 3.0, 1.0), RuleSetting { spread: true, ..of(0.0, 0.0, 0.0) }];

/// The settings that are compared with a reserve too.
const RESERVING: [RuleSetting; 2] = [of(1.0, 1.0, 1.0), of(0.0, 3.0, 1.0)];

/// The settings that are compared for any models and GPUs.
pub(super) const CANDIDATES: [RuleSetting; 9] = [
    of(1.0, 1.0, 1.0),
    of(0.0, 3.0, 1.0),
    of(0.0, 1.0, 0.0),
    of(1.0, 10.0, 0.3),
    of(f32::INFINITY, 10.0, 1.0),
    of(0.0, f32::INFINITY, 1.0),
    of(f32::INFINITY, f32::INFINITY, 0.0),
    RuleSetting { spread: true, ..of(0.0, 0.0, 0.0) },
    RuleSetting { spread: true, ..of(f32::INFINITY, 0.0, 0.0) },
];

/// The settings that are compared for a model that has the only GPU to itself: the starts of
/// batches of [`CANDIDATES`].
const ALONE: [RuleSetting; 8] = [
    of(1.0, 1.0, 1.0),
    of(1.0, 3.0, 1.0),
    of(1.0, 1.0, 0.0),
    of(1.0, 10.0, 0.3),
    of(1.0, 10.0, 1.0),
    of(1.0, f32::INFINITY, 1.0),
    of(1.0, f32::INFINITY, 0.0),
    RuleSetting { spread: true, ..of(1.0, 0.0, 0.0) },
];

const fn of(price: f32, patience: f32, lead: f32) -> RuleSetting {
    RuleSetting { price, patience, lead, spread: false, reserve: Nanos::MAX, brief: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tuning::replay::ReplayTally;
    use crate::profile::Profile;
    use crate::workload::WorkloadModel;

    impl Contender {
        /// A setting under which so many of 10,000 requests, evenly, are bad without and with
        /// stress, and GPUs are busy for so long: the longer, the less their latency.
        pub(in super::super) fn tried(setting: RuleSetting, bad: [f64; 2], busy_s: f64) -> Contender {
            let mut contender = Contender::all(setting, &[]).next().unwrap();
            contender.find(1.0, |_, stress| ReplayOutcome {
                models: vec![ReplayTally { offered: 10_000.0, bad: bad[stress] }],
                busy_s,
                latency_s: 1.0 / busy_s,
                bad_in: [bad[stress] / SLICES as f64; SLICES],
            });
            contender
        }
    }

    fn found(bad: [f64; 2]) -> Contender {
        Contender::tried(RuleSetting::default(), bad, 1.0)
    }

    #[test]
    fn headroom_counts_while_nothing_is_bad_and_a_collapse_counts_more() {
        let order = [[0.0, 0.0], [0.0, 50.0], [0.0, 300.0], [10.0, 300.0], [0.0, 8_000.0], [600.0, 600.0]];
        let badness = order.map(|bad| found(bad).badness());
        assert!(badness.is_sorted() && badness[0] < badness[1], "{badness:?}");
        // Overloaded in any case: what is lost now decides, not what more load would do.
        assert!(found([300.0, 8_000.0]).badness() < found([600.0, 700.0]).badness());
    }

    #[test]
    fn few_requests_of_one_model_say_little() {
        let tally = |offered, bad| ReplayTally { offered, bad };
        let mut outcome =
            ReplayOutcome { models: vec![tally(5.0, 1.0), tally(9_995.0, 0.0)], ..Default::default() };
        assert!(outcome.worst_bad_rate(DRAWN_BY) < 0.01);
        outcome.models[0] = tally(5_000.0, 1_000.0);
        assert!(outcome.worst_bad_rate(DRAWN_BY) > 0.19);
    }

    #[test]
    fn what_is_hopeless_is_not_replayed_under_stress() {
        let mut contender = Contender::all(RuleSetting::default(), &[]).next().unwrap();
        let mut replays = 0;
        contender.find(1.0, |_, _| {
            replays += 1;
            ReplayOutcome { models: vec![ReplayTally { offered: 100.0, bad: 50.0 }], ..Default::default() }
        });
        assert_eq!(replays, 1);
        assert!(contender.badness() > 0.5);
    }

    #[test]
    fn one_burst_says_less_than_what_is_spread() {
        let found = |bad_in: [f64; SLICES]| {
            let mut contender = Contender::all(RuleSetting::default(), &[]).next().unwrap();
            contender.find(1.0, |_, _| ReplayOutcome { bad_in, ..Default::default() });
            contender
        };
        let none = found([0.0; SLICES]);
        let burst = found(core::array::from_fn(|slice| if slice == 3 { 500.0 } else { 0.0 }));
        let spread = found([500.0 / SLICES as f64; SLICES]);
        let saves = [none.surely_saves(&burst), none.surely_saves(&spread)];
        // As many in either stress.
        assert!(saves[0] < 0.51 * 1_000.0 && saves[1] > 0.8 * 1_000.0, "{saves:?}");
        assert!(burst.surely_saves(&none) < 0.0 && spread.surely_saves(&none) < 0.0);
        // Charges are not found, so they have no error.
        let charged = Contender { handicap: 7.0, ..none.clone() };
        assert!((none.surely_saves(&charged) - 7.0).abs() < 1e-9);
    }

    #[test]
    fn what_counts_as_if_it_had_done_as_another_one_is_as_far_behind_by_less() {
        let mut behind = found([900.0, 2_000.0]);
        let mut best = found([300.0, 500.0]);
        let apart = behind.badness() - best.badness();
        for _ in 0..8 {
            let now = best.find(0.8, |_, _| ReplayOutcome {
                models: vec![ReplayTally { offered: 10_000.0, bad: 100.0 }],
                ..Default::default()
            });
            behind.add(0.8, &now);
        }
        let left = behind.badness() - best.badness();
        assert!(0.0 < left && left < 0.3 * apart, "{left} of {apart}");
    }

    #[test]
    fn what_is_lost_under_much_stress_does_not_hide_what_is_saved_now() {
        let found = |now: f64, stressed: f64| {
            let mut contender = Contender::all(RuleSetting::default(), &[]).next().unwrap();
            contender.find(1.0, |_, stress| {
                // Under stress, what is lost in a slice goes up and down.
                let of = |slice: usize| {
                    let noise = if slice % 2 == (now > 0.0) as usize { 1.0 } else { -1.0 };
                    [now, stressed * (1.0 + 0.2 * noise)][stress]
                };
                let bad_in: [f64; SLICES] = core::array::from_fn(of);
                let tally = ReplayTally { offered: 10_000.0, bad: bad_in.iter().sum() };
                ReplayOutcome { models: vec![tally], bad_in, ..Default::default() }
            });
            contender
        };
        assert!(found(0.0, 200.0).surely_saves(&found(4.0, 200.0)) > 0.0, "a third is lost in any case");
        assert!(found(0.0, 25.0).surely_saves(&found(0.5, 25.0)) < 0.0, "all that is lost counts");
    }

    #[test]
    fn what_is_lost_steadily_is_saved_whatever_is_lost_under_stress() {
        let found = |now: fn(usize) -> f64, stressed: f64| {
            let mut contender = Contender::all(RuleSetting::default(), &[]).next().unwrap();
            contender.find(1.0, |_, stress| {
                let bad_in = core::array::from_fn(|slice| [now(slice), stressed][stress]);
                let tally = ReplayTally { offered: 10_000.0, bad: bad_in.iter().sum() };
                ReplayOutcome { models: vec![tally], bad_in, ..Default::default() }
            });
            contender
        };
        let collapses = found(|_| 0.0, 300.0);
        let saved_of = |now| collapses.surely_saves(&found(now, 20.0));
        assert!(saved_of(|_| 5.0) > 0.0, "a setting that loses 0.8 % all the time");
        assert!(saved_of(|slice| if slice < 8 { 10.0 } else { 0.0 }) < 0.0, "as much in half of the time");
        assert!(saved_of(|_| 1.0) < 0.0, "0.16 %");
    }

    #[test]
    fn who_is_in_a_hurry_has_a_reserve_beside_others() {
        let model = |slo_ms: u64| {
            let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 64).unwrap();
            WorkloadModel::new("m", profile, Nanos::from_millis(slo_ms))
        };
        let reserves = |gpus, slos: &[u64]| {
            let workload = Workload::of_models(gpus, 1.0, slos.iter().copied().map(model).collect());
            let all = candidates(&workload);
            assert_eq!(all[..CANDIDATES.len()], CANDIDATES);
            all[CANDIDATES.len()..].iter().map(|one| (one.reserve, one.brief)).collect::<Vec<_>>()
        };
        let both = |least, brief| {
            let of = |ms, is_brief| (Nanos::from_millis(ms), is_brief);
            [[of(least, false); RESERVING.len()], [of(brief, true); BRIEF.len()]].concat()
        };
        assert_eq!(reserves(2, &[100, 25]), both(19, 19));
        // A request that can wait for 5 ms can't wait for a batch of one, which takes 6 ms.
        assert_eq!(reserves(2, &[100, 11, 25]), both(5, 19));
        assert_eq!(reserves(1, &[100, 25]), both(19, 19)[RESERVING.len()..]);
        // Of 20 GPUs that run batches of 69 ms, more than four become free in 19 ms.
        assert_eq!(reserves(20, &[100, 25]), both(19, 19)[..RESERVING.len()]);
        assert_eq!(reserves(2, &[25, 25]), []);
        assert_eq!(reserves(2, &[]), []);
    }

    #[test]
    fn the_current_setting_is_compared_once() {
        for current in [RuleSetting::default(), of(0.5, 2.0, 2.0), CANDIDATES[7]] {
            let all: Vec<_> =
                Contender::all(current, &CANDIDATES.map(|one| (one, 0.0))).map(|one| one.setting).collect();
            assert_eq!(all.iter().filter(|&&one| one == current).count(), 1);
            assert!(CANDIDATES.iter().all(|one| all.contains(one)));
        }
    }
}
