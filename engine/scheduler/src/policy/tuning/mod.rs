//! The tuner: it replays a pool's recent arrivals under a few settings of the default rule, and
//! says which one to go on with. What a rule can't know in advance it can learn: whether waiting
//! costs, or dropping, shows in the last seconds' requests (docs/scheduling.md, "The tuner").
//!
//! It looks early and then at growing distances. What it finds adds up, and fades, until the load
//! changes. So its work is bounded: a look replays at most [`MOST_REPLAYED`] requests, twice for
//! each setting: as they came, and faster.

mod arrived;
mod contender;
mod load;
mod prior;
pub mod replay;

use crate::deferral::Deferral;
use crate::drop_rule::DropRule;
use crate::profile::Profile;
use crate::rule_setting::{Prefer, RuleSetting};
use crate::sim::goodput::ALLOWED_BAD_RATE;
use crate::workload::Workload;
use alloc::borrow::Cow;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use arrived::Arrived;
use contender::{Contender, DRAWN_BY, HOPELESS, STRESS, candidates};
use load::{KEPT, Load};
use prior::Limits;
use replay::{ReplayOutcome, ReplayedRequests, ReplayedRule, replay};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, NO_DEADLINE, Request};

/// The requests that a look replays at most: the last ones.
pub const MOST_REPLAYED: usize = 200_000;

/// The requests that a look replays where they are of more than [`REPLAYED_SLOS`].
const REPLAYED: usize = 20_000;

/// The largest SLOs for which requests are replayed: in less time an idle pool does not become
/// what it will be.
const REPLAYED_SLOS: u64 = 6;

/// The mean SLOs of requests in which they have to have come for a look to say anything. At rates
/// that bring [`MOST_REPLAYED`] in less, the setting stays as it is.
const LEAST_SLOS: f64 = 2.0;

/// The pause before the first look after the start or a change of the load, at least, and the
/// longest between two looks.
const PAUSES: [Nanos; 2] = [Nanos::from_millis(250), Nanos::from_secs(30)];

/// The largest SLOs that the first look waits for: before, little has ended.
const FIRST_LOOK_SLOS: u64 = 3;

/// The loads for which settings are charged: up to so many times the present one, and so many times
/// more by the square root of the independent requests that what was found is worth.
const NEAR: (f64, f64) = (1.25, 5.0);

/// Settings that are as bad as each other but for this are equally good.
const SAME: f64 = 0.002;

/// A setting that is no worse than this, under stress and with its handicap, may be taken for its
/// cost alone.
const HEADROOM: f64 = 0.0005;

/// The number of requests that a change of the setting must have saved for sure.
const GAIN: f64 = 1.0;

/// The number of requests that another setting has to have saved for sure for a setting to rest.
const RESTS: f64 = 50.0;

/// What has collapsed: a pool that loses more than this part of its requests, and a setting that
/// now loses so many times what it did, and [`HOPELESS`] more.
const COLLAPSED: (f64, f64) = (0.2, 1.5);

/// The share of the cost that is left where a setting is changed for its cost alone.
const CHEAPER: f64 = 0.97;

/// The share of a setting's GPU time for which another one may lose more, up to what a goodput
/// allows: the default is to take at most 1.25 times that of the rule that takes least.
const FRUGAL: f64 = 0.8;

/// What that one may lose now, with its handicap, whatever it would lose under stress. What it
/// loses once the load rises brings an early look.
const FRUGAL_LOSS: f64 = 0.5 * ALLOWED_BAD_RATE;

/// The part of the load that is left at most where requests follow answers, and a setting has them
/// wait: bursts change it by less, mostly.
const FELL: f64 = 0.5;

/// What a pool has to lose for an early look, of all requests or of one model's: so many, and of
/// those since the last look so many times the part that replays under the present setting lost,
/// and more.
const LOST: (u64, f64) = (50, 3.0);

/// The part that it has to lose more, of all requests.
const LOST_OF_ALL: f64 = 0.003;

/// The part that it has to lose more, of one model's: what a goodput allows.
const LOST_OF_ONE: f64 = ALLOWED_BAD_RATE;

/// The part of the pause, as one of so many, after which a look may be early.
const EARLY: u64 = 4;

/// The time for which the least latency is preferred once requests have followed answers.
const FOLLOWED: Nanos = Nanos::from_secs(600);

/// The tuner of a pool. See the module's description.
///
/// It is told of arrivals by [`Tuner::note`], and asked by [`Tuner::look`] at [`Tuner::next_look`].
#[derive(Debug)]
pub struct Tuner {
    workload: Workload,
    drop: DropRule,
    deferral: &'static dyn Deferral,
    prefer: Prefer,
    /// The largest SLO.
    longest: Nanos,
    /// The last requests that came since the last look.
    recent: VecDeque<Request>,
    /// True if some before these were left out since the last look.
    has_left_out: bool,
    last_look: Nanos,
    /// The time by which the last look was held off if it was early, else zero: it was as long
    /// after the one before at least, and later if requests were lost only then.
    early_after: Nanos,
    pause: Nanos,
    load: Load,
    /// What has arrived under that load.
    arrived: Arrived,
    /// The settings that are compared, and the bad requests with which each is charged.
    charged: Vec<(RuleSetting, f64)>,
    /// The highest load that each of them serves.
    limits: Limits,
    contenders: Vec<Contender>,
    current: RuleSetting,
    /// True if the last look has changed the setting.
    has_changed: bool,
    /// The time until which clients count as ones that wait for an answer before they ask again.
    follows_until: Nanos,
}

impl Tuner {
    /// Replays the model of this index in the workload by another profile from now on.
    pub fn set_profile(&mut self, model: usize, profile: Profile) {
        self.workload.models[model].profile = profile;
    }

    /// A tuner of the pool of `workload`, whose scheduler starts with `setting` at time zero. The
    /// workload's rate, arrivals and seed are not read.
    pub fn new(
        workload: &Workload,
        drop: DropRule,
        deferral: &'static dyn Deferral,
        setting: RuleSetting,
        prefer: Prefer,
    ) -> Tuner {
        let slos = workload.models.iter().map(|model| model.slo);
        let longest = slos.filter(|&slo| slo < NO_DEADLINE).max().unwrap_or(Nanos::ZERO);
        let uncharged = candidates(workload).into_iter().map(|one| (one, 0.0)).collect();
        let mut tuner = Tuner {
            longest,
            workload: workload.clone(),
            drop,
            deferral,
            prefer,
            recent: VecDeque::with_capacity(REPLAYED),
            has_left_out: false,
            last_look: Nanos::ZERO,
            early_after: Nanos::ZERO,
            pause: Nanos::ZERO,
            load: Load::default(),
            arrived: Arrived::none_of(workload.models.len()),
            charged: uncharged,
            limits: Limits::default(),
            contenders: Vec::new(),
            current: setting,
            has_changed: false,
            follows_until: Nanos::ZERO,
        };
        tuner.begin();
        tuner
    }

    /// Searches the settings' limits, by what is known of arrivals.
    fn search_limits(&mut self) {
        let settings: Vec<_> = self.charged.iter().map(|one| one.0).collect();
        self.limits.search(&self.workload, &self.arrived, self.drop, self.deferral, &settings);
        self.charge();
    }

    /// Charges the settings for the loads up to the bound.
    fn charge(&mut self) {
        let bound = self.charged_up_to();
        for ((setting, charged), charge) in self.charged.iter_mut().zip(self.limits.charges(bound)) {
            *charged = charge;
            let contender = self.contenders.iter_mut().find(|one| one.setting == *setting);
            contender.into_iter().for_each(|one| one.handicap = *charged);
        }
    }

    /// Returns the highest load for which settings are charged, in requests per second: any before
    /// something has come. The count of requests whose gaps have a gamma shape of k varies as that
    /// of k times as many independent ones does, so they say as much as those.
    fn charged_up_to(&self) -> f64 {
        let found = self.contenders.first().map_or(0.0, Contender::offered);
        let independent = found * self.arrived.shape();
        let times = NEAR.0 + NEAR.1 / independent.sqrt();
        if found > 0.0 { times * self.load.highest() } else { f64::INFINITY }
    }

    /// Forgets what was found, and looks early again.
    fn begin(&mut self) {
        self.pause = PAUSES[0].max(self.slos(FIRST_LOOK_SLOS)).min(PAUSES[1]);
        self.contenders = Contender::all(self.current, &self.charged).collect();
    }

    /// Returns so many of the largest SLOs.
    fn slos(&self, count: u64) -> Nanos {
        Nanos(self.longest.0.saturating_mul(count))
    }

    /// Returns true if a request counts. Those of lower classes say nothing: they take what is
    /// left.
    #[inline]
    pub fn counts(&self, request: &Request) -> bool {
        self.workload.models[request.queue.0 as usize].class == Class::HIGHEST
    }

    /// Notes a request that has arrived, if it [counts](Tuner::counts). Those that are made once
    /// more are left out: a replay makes its own. Returns true if it was noted.
    #[inline]
    pub fn note(&mut self, request: &Request) -> bool {
        if !self.counts(request) || request.is_again != 0 {
            return false;
        }
        if self.recent.len() >= REPLAYED {
            self.leave_out(request.arrival);
        }
        self.recent.push_back(*request);
        true
    }

    /// Leaves out what a look at `now` would not replay.
    fn leave_out(&mut self, now: Nanos) {
        let span = self.slos(REPLAYED_SLOS);
        let is_old = |first: &Request| first.arrival.0.saturating_add(span.0) < now.0;
        while self.recent.len() >= MOST_REPLAYED
            || (self.recent.len() >= REPLAYED && self.recent.front().is_some_and(is_old))
        {
            self.recent.pop_front();
            self.has_left_out = true;
        }
    }

    /// Returns the number of requests that a look replays at this rate, in requests per second.
    pub fn replayed(&self, rate_rps: f64) -> usize {
        ((rate_rps * self.slos(REPLAYED_SLOS).as_secs_f64()) as usize).clamp(REPLAYED, MOST_REPLAYED)
    }

    /// Returns when to look next; [`Nanos::MAX`] if nothing has come since the last look.
    pub fn next_look(&self) -> Nanos {
        if self.recent.is_empty() { Nanos::MAX } else { self.last_look + self.pause }
    }

    /// Returns from when on to look, before the next look is due, where since the last one `came`
    /// requests that [count](Tuner::counts) have come and so many of each model were lost, if that
    /// is far more than replays of those before say, of one model or of all: the load is not what
    /// it was then. Before the first look replays say that nothing is lost. A pool that has
    /// collapsed is looked at in twice the time by which the early look before was held off: if it
    /// takes longer to collapse than that, no replay shows it.
    pub fn early_look(&self, came: u64, lost: &[u64]) -> Option<Nanos> {
        let present = self.contenders.iter().find(|one| one.setting == self.current)?;
        let exceeds = |lost: u64, came: f64, expected: f64, part: f64| {
            lost >= LOST.0 && lost as f64 > (part + LOST.1 * expected) * came
        };
        let (all, came) = (lost.iter().sum(), came as f64);
        let of_one = |found: &ReplayOutcome| {
            // The model's part of the requests is that in the replays.
            let share = came / found.offered();
            let mut of_models = lost.iter().zip(&found.models).zip(found.bad_rates(DRAWN_BY));
            of_models
                .any(|((&lost, model), expected)| exceeds(lost, share * model.offered, expected, LOST_OF_ONE))
        };
        let found = present.found_now();
        let expected = found.map_or(0.0, ReplayOutcome::bad_rate);
        let is_far_more =
            came > 0.0 && (exceeds(all, came, expected, LOST_OF_ALL) || found.is_some_and(of_one));
        is_far_more.then(|| match found {
            Some(_) => self.last_look + self.held_off(all as f64 > COLLAPSED.0 * came),
            None => self.last_look + self.first_held_off(lost),
        })
    }

    /// Returns for how long the first look is held off where so many requests of each model were
    /// lost before: until what is as long as their SLOs has ended, in place of the largest ones.
    fn first_held_off(&self, lost: &[u64]) -> Nanos {
        let slos = lost.iter().zip(&self.workload.models);
        let slos: f64 = slos.map(|(&lost, model)| lost as f64 * model.slo.as_secs_f64()).sum();
        let mean = slos / lost.iter().sum::<u64>() as f64;
        let ended = Nanos::from_secs_f64(FIRST_LOOK_SLOS as f64 * mean);
        self.held_off(false).max(PAUSES[0]).max(ended).min(self.pause)
    }

    /// Returns for how long the next look is held off where it is early.
    fn held_off(&self, has_collapsed: bool) -> Nanos {
        let twice = if has_collapsed { self.early_after + self.early_after } else { Nanos::ZERO };
        Nanos(self.pause.0 / EARLY).max(twice.min(self.pause))
    }

    /// Returns when the last look was.
    pub fn last_look(&self) -> Nanos {
        self.last_look
    }

    /// Returns when an early look may be, at the earliest.
    pub fn earliest_look(&self) -> Nanos {
        self.last_look + self.held_off(false)
    }

    /// Returns the time from one look to the next.
    pub fn pause(&self) -> Nanos {
        self.pause
    }

    /// Looks at what has come since the last look, and forgets it. Returns another setting if one
    /// is better. Pauses grow by looks that are not early, and what was found before fades by the
    /// part of the pause that has passed.
    pub fn look(&mut self, now: Nanos) -> Option<RuleSetting> {
        let change = self.load.add(&self.recent);
        if change.is_some() {
            self.arrived = Arrived::none_of(self.workload.models.len());
            self.begin();
        }
        let follow = !core::mem::take(&mut self.has_left_out);
        if self.arrived.add(&self.recent, follow) || self.limits.are_unknown() {
            self.search_limits();
        }
        if self.has_changed && change.is_some_and(|times| times < FELL) {
            self.follows_until = now + FOLLOWED;
        }
        let passed = now - self.last_look;
        let is_early = passed < self.pause;
        let kept = KEPT.powf((passed.as_secs_f64() / self.pause.as_secs_f64()).min(1.0));
        self.early_after = if is_early { passed.min(self.held_off(true)) } else { Nanos::ZERO };
        self.last_look = now;
        if !is_early {
            self.pause = Nanos(self.pause.0 * 2).min(PAUSES[1]);
        }
        let before = self.current;
        if self.is_long_enough() {
            let prefer = if now < self.follows_until { Prefer::Latency } else { self.prefer };
            self.replay_all(kept, prefer);
            self.charge();
            self.current = self.best(prefer);
        }
        self.recent.clear();
        self.has_changed = self.current != before;
        self.has_changed.then_some(self.current)
    }

    /// Returns true if the requests came in a time that shows what the pool would do.
    fn is_long_enough(&self) -> bool {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else { return false };
        if self.recent.len() < MOST_REPLAYED {
            return true;
        }
        let with_deadline = self.recent.iter().filter(|request| request.deadline < NO_DEADLINE);
        let budgets = with_deadline.map(|request| (request.deadline - request.arrival).as_secs_f64());
        let mean = budgets.sum::<f64>() / self.recent.len() as f64;
        (last.arrival - first.arrival).as_secs_f64() >= LEAST_SLOS * mean
    }

    /// Adds up what becomes of the recent requests under each setting, with `kept` of what was
    /// found before.
    fn replay_all(&mut self, kept: f64, prefer: Prefer) {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else { return };
        let (start, last) = (first.arrival, last.arrival);
        let span = last - start;
        let mut rates = vec![0.0; self.workload.models.len()];
        self.recent.iter().for_each(|request| rates[request.queue.0 as usize] += 1.0);
        rates.iter_mut().for_each(|rate| *rate /= span.as_secs_f64().max(1e-3));
        // The first batches are those of an idle pool.
        let budgets = self.recent.iter().map(|request| request.deadline - request.arrival);
        let longest = budgets.filter(|&budget| budget < NO_DEADLINE).max().unwrap_or(Nanos::ZERO);
        let from = start + Nanos(longest.0.saturating_mul(2)).min(Nanos(span.0 / 4));
        // In less time than many take, an idle pool would not become what it is under overload.
        let amid = self.recent.len() >= MOST_REPLAYED;
        let Tuner { workload, recent, drop, deferral, .. } = self;
        let came = ReplayedRequests {
            requests: Cow::from(&*recent.make_contiguous()),
            rates: rates.into(),
            counted: from..last,
            amid,
        };
        let under_stress = STRESS.map(|stress| came.faster(stress));
        // A setting that surely loses more than the best one is not tried again until what is known
        // of that has faded, unless it may be taken for the GPU time that it saves: it counts as if
        // it had done now as the best one does. That says nothing where the best one has lost
        // little before and now loses far more.
        let least = self.contenders.iter().min_by(|a, b| a.badness().total_cmp(&b.badness()));
        let Some(best) = least.cloned() else { return };
        for one in &mut self.contenders {
            one.rests = one.setting != self.current
                && best.found_to_save(one) > RESTS
                && !is_frugal(one, &best, prefer);
        }
        let replayed = |one: &mut Contender| {
            one.find(kept, |setting, stress| {
                let rule = ReplayedRule { drop: *drop, deferral: *deferral, setting };
                replay(workload, &rule, &under_stress[stress], |_| false)
            })
        };
        let mut of_best = Default::default();
        for one in self.contenders.iter_mut().filter(|one| !one.rests) {
            let found = replayed(one);
            if one.setting == best.setting {
                of_best = found;
            }
        }
        let has_collapsed = of_best[0].bad_rate()
            > HOPELESS + COLLAPSED.1 * best.found_now().map_or(0.0, ReplayOutcome::bad_rate);
        for one in self.contenders.iter_mut().filter(|one| one.rests) {
            if has_collapsed {
                one.rests = false;
                replayed(one);
            } else {
                one.add(kept, &of_best);
            }
        }
    }

    /// Returns the setting to go on with: of those under which as few are bad as under the best,
    /// but for noise, the one that costs least; the current one, unless that gains something; where
    /// that loses many, the best of those that surely save some of them. In its place the cheapest
    /// of those that take far less GPU time and lose no more than a goodput allows.
    fn best(&self, prefer: Prefer) -> RuleSetting {
        let cheapest = |may_be: &dyn Fn(&Contender) -> bool| {
            let tried = self.contenders.iter().filter(|one| !one.rests && may_be(one));
            tried.min_by(|a, b| a.cost(prefer).total_cmp(&b.cost(prefer)))
        };
        let least_bad = |may_be: &dyn Fn(&Contender) -> bool| {
            let all = self.contenders.iter().filter(|one| may_be(one));
            let least = all.map(Contender::badness).fold(f64::INFINITY, f64::min);
            cheapest(&|one| may_be(one) && one.badness() <= least + SAME)
        };
        let current = self.contenders.iter().find(|one| one.setting == self.current);
        let (Some(best), Some(current)) = (least_bad(&|_| true), current) else { return self.current };
        let saves = |one: &Contender| {
            current.badness() - one.badness() > SAME / 2.0 && one.surely_saves(current) >= GAIN
        };
        let is_safe = best.badness() <= current.badness().max(HEADROOM);
        let is_cheaper = best.cost(prefer) < CHEAPER * current.cost(prefer);
        let chosen = if saves(best) || (is_safe && is_cheaper) {
            best
        } else if current.loss_now() > HOPELESS {
            least_bad(&saves).unwrap_or(current)
        } else {
            current
        };
        cheapest(&|one| is_frugal(one, chosen, prefer)).unwrap_or(chosen).setting
    }
}

/// Returns true if a setting may be taken in place of this one for the GPU time that it saves.
fn is_frugal(one: &Contender, other: &Contender, prefer: Prefer) -> bool {
    prefer == Prefer::Efficiency
        && one.cost(prefer) < FRUGAL * other.cost(prefer)
        && (one.badness() <= ALLOWED_BAD_RATE || one.loss_now() <= FRUGAL_LOSS)
}

#[cfg(test)]
mod tests {
    use super::replay::{ReplayTally, SLICES};
    use super::*;
    use crate::policy::{self, Policy};
    use crate::workload::WorkloadModel;
    use symphony_transport::message::ModelId;

    /// A tuner of GPUs that a model with long batches shares with others that are in a hurry: some
    /// settings break down before others do.
    fn tuner() -> Tuner {
        let models = [(2.0, 104.0, 455.0), (0.25, 0.2, 0.9), (0.27, 0.5, 2.2), (0.07, 0.4, 1.1)];
        let models = models.map(|(alpha, beta, slo)| {
            let [alpha, beta, slo] = [alpha, beta, slo].map(Nanos::from_millis_f64);
            WorkloadModel::new("m", Profile::linear(alpha, beta, 256).unwrap(), slo)
        });
        let workload = Workload::of_models(7, 1.0, models.into());
        let deferral = policy::by_name("symphony").and_then(Policy::deferral).unwrap();
        Tuner::new(&workload, DropRule::Exchange, deferral, RuleSetting::default(), Prefer::Efficiency)
    }

    /// Has the tuner look at so many requests, of all models in turn, at this rate. Returns what
    /// settings are charged with then, all together, and what they would be for all loads.
    fn charged_after(tuner: &mut Tuner, count: u64, rate_rps: f64) -> [f64; 2] {
        let (start, models) = (tuner.last_look, tuner.workload.models.len() as u64);
        let mut now = start;
        for id in 0..count {
            now = start + Nanos::from_secs_f64(id as f64 / rate_rps);
            let model = (id % models) as usize;
            let deadline = now + tuner.workload.models[model].slo;
            let queue = ModelId(model as u32).only_queue();
            tuner.note(&Request { id, arrival: now, deadline, queue, ..Request::default() });
        }
        tuner.look(now);
        let charged = tuner.charged.iter().map(|one| one.1).sum();
        [charged, tuner.limits.charges(f64::INFINITY).sum()]
    }

    /// Splits lost requests evenly among the models of [`tuner`].
    fn evenly(lost: u64) -> [u64; 4] {
        [lost / 4; 4]
    }

    #[test]
    fn a_pool_that_loses_far_more_than_replays_is_looked_at_early() {
        let mut tuner = tuner();
        // Nothing was replayed yet, so any loss is far more.
        assert_eq!(tuner.early_look(1_000, &evenly(LOST.0 - 2)), None);
        assert_eq!(tuner.early_look(100_000, &evenly(290)), None);
        let first = |lost| tuner.early_look(100_000, lost);
        assert_eq!(first(&[0, 310, 0, 0]), Some(Nanos(tuner.pause().0 / EARLY)));
        assert_eq!(first(&[310, 0, 0, 0]), Some(tuner.pause()), "few of their SLOs have ended");
        charged_after(&mut tuner, 400, 100.0);
        let (last, pause) = (tuner.last_look, tuner.pause());
        // Replays lose nothing at this rate.
        assert_eq!(tuner.early_look(1_000, &evenly(LOST.0 - 2)), None);
        assert_eq!(tuner.early_look(100_000, &evenly(290)), None);
        assert_eq!(tuner.early_look(0, &evenly(290)), None, "they came before the look");
        let early = tuner.early_look(100_000, &evenly(310)).unwrap();
        assert_eq!((early, early), (last + Nanos(pause.0 / EARLY), tuner.earliest_look()));
        tuner.look(early);
        assert_eq!((tuner.pause(), tuner.earliest_look() > early), (pause, true), "pauses stay as long");
        tuner.look(early + pause);
        assert!(tuner.pause() > pause);
    }

    #[test]
    fn one_model_that_loses_far_more_than_replays_is_a_reason_to_look_early() {
        let mut tuner = tuner();
        charged_after(&mut tuner, 400, 100.0);
        // A fourth of the requests are of each model.
        assert_eq!(tuner.early_look(100_000, &[0, 0, 240, 0]), None, "0.96 % of its own");
        assert_eq!(tuner.early_look(100_000, &[0, 0, 260, 0]), Some(tuner.earliest_look()), "1.04 %");
        assert_eq!(tuner.early_look(10_000, &[0, 0, LOST.0 - 1, 0]), None, "they are too few");
        assert_eq!(tuner.early_look(0, &[0, 0, 260, 0]), None, "they came before the look");
    }

    #[test]
    fn what_was_found_fades_by_an_early_look_as_little_as_time_has_passed() {
        let mut tuner = tuner();
        let mut look = |quarters| {
            tuner.pause = Nanos::from_secs(4);
            let before = tuner.contenders[0].offered();
            let seconds = quarters as f64 * tuner.pause.as_secs_f64() / EARLY as f64;
            charged_after(&mut tuner, 1 + (100.0 * seconds) as u64, 100.0);
            // A quarter of the time does not count, or two of the largest SLOs.
            let counted = 100.0 * (seconds - (0.25 * seconds).min(0.91));
            (tuner.contenders[0].offered() - counted) / before.max(1.0)
        };
        look(4);
        let kept = [4, 1, 2, 8].map(look);
        let expected = [KEPT, KEPT.powf(0.25), KEPT.powf(0.5), KEPT];
        for (kept, expected) in kept.into_iter().zip(expected) {
            assert!((kept - expected).abs() < 0.02, "{kept} for {expected}");
        }
    }

    #[test]
    fn a_pool_that_has_collapsed_is_looked_at_with_twice_as_many_requests_each_time() {
        let mut tuner = tuner();
        charged_after(&mut tuner, 400, 100.0);
        let quarter = Nanos(tuner.pause().0 / EARLY);
        for quarters in [1, 2, 4, 4] {
            let last = tuner.last_look();
            let early = last + Nanos(quarter.0 * quarters);
            assert_eq!(tuner.early_look(1_000, &evenly(204)), Some(early), "{quarters}");
            assert_eq!(tuner.early_look(1_000, &evenly(196)), Some(last + quarter), "the load has changed");
            if quarters < 4 {
                tuner.look(early);
            }
        }
        // One that is due is not early.
        tuner.look(tuner.next_look().min(tuner.last_look() + tuner.pause()));
        assert_eq!(tuner.early_look(1_000, &evenly(204)), Some(tuner.earliest_look()));
    }

    #[test]
    fn that_a_pool_collapsed_late_does_not_put_the_next_look_off() {
        let mut tuner = tuner();
        charged_after(&mut tuner, 400, 100.0);
        let pause = tuner.pause();
        tuner.look(tuner.last_look() + Nanos(pause.0 / 8 * 7));
        let early = tuner.early_look(1_000, &evenly(204)).unwrap();
        assert_eq!((tuner.pause(), early), (pause, tuner.last_look() + Nanos(pause.0 / EARLY * 2)));
    }

    #[test]
    fn what_surely_loses_more_rests_until_that_has_faded() {
        let mut tuner = tuner();
        let mut rested = vec![0; tuner.charged.len()];
        for look in 0..12 {
            charged_after(&mut tuner, 4_000, 2_000.0);
            let best = tuner.contenders.iter().map(Contender::badness).fold(f64::INFINITY, f64::min);
            for (one, rested) in tuner.contenders.iter().zip(&mut rested) {
                assert!(
                    !one.rests || (one.setting != tuner.current && one.badness() > best),
                    "{look}: {one:?}"
                );
                *rested += usize::from(one.rests);
            }
            assert!(look > 0 || rested.iter().all(|&times| times == 0), "nothing was found yet");
        }
        assert!(
            rested.iter().any(|&times| times > 3) && rested.iter().all(|&times| times < 11),
            "{rested:?}"
        );
    }

    #[test]
    fn far_less_gpu_time_is_worth_what_a_goodput_allows() {
        let [starts_early, waits] = [0.0, 3.0].map(|patience| RuleSetting { patience, ..Default::default() });
        let mut tuner = tuner();
        let mut best = |bad, busy_s, prefer| {
            let early = Contender::tried(starts_early, [0.0, 5.0], 1.0);
            tuner.contenders = vec![early, Contender::tried(waits, bad, busy_s)];
            tuner.current = starts_early;
            tuner.best(prefer)
        };
        assert_eq!(best([60.0, 30.0], 0.79, Prefer::Efficiency), waits, "0.9 % with that under stress");
        assert_eq!(best([60.0, 30.0], 0.81, Prefer::Efficiency), starts_early, "not for less than a fifth");
        assert_eq!(best([60.0, 50.0], 0.50, Prefer::Efficiency), starts_early, "over 1 % with that");
        assert_eq!(best([45.0, 900.0], 0.79, Prefer::Efficiency), waits, "whatever is lost under stress");
        assert_eq!(best([45.0, 90.0], 2.00, Prefer::Latency), starts_early, "only GPU time is worth it");
        assert_eq!(best([0.0, 0.0], 0.81, Prefer::Efficiency), waits, "it loses nothing");
    }

    #[test]
    fn gpu_time_is_saved_whatever_is_in_use_where_the_best_setting_is_not_taken() {
        let settings = [0.0, 1.0, 2.0].map(|patience| RuleSetting { patience, ..Default::default() });
        let mut tuner = tuner();
        tuner.current = settings[0];
        let mut best = |busy_s| {
            let of = |at: usize, stressed, busy_s| Contender::tried(settings[at], [0.0, stressed], busy_s);
            tuner.contenders = vec![of(0, 0.0, 1.0), of(1, 10.0, 0.9), of(2, 60.0, busy_s)];
            tuner.best(Prefer::Efficiency)
        };
        assert_eq!(best(0.79), settings[2], "a fifth less than the one in use");
        assert_eq!(best(0.81), settings[0], "the cheaper of two equally good ones is not safe");
    }

    #[test]
    fn where_many_are_lost_the_best_of_those_that_save_some_is_taken() {
        let settings = [0.0, 1.0, 2.0].map(|patience| RuleSetting { patience, ..Default::default() });
        let mut tuner = tuner();
        tuner.current = settings[0];
        let mut best = |lost: [[f64; 2]; 3]| {
            let of = |(&setting, lost): (&RuleSetting, [f64; 2])| {
                let mut one = Contender::all(setting, &[]).next().unwrap();
                one.find(1.0, |_, _| ReplayOutcome {
                    models: lost.map(|bad| ReplayTally { offered: 5_000.0, bad }).into(),
                    busy_s: 1.0,
                    bad_in: [(lost[0] + lost[1]) / SLICES as f64; SLICES],
                    ..ReplayOutcome::default()
                });
                one
            };
            tuner.contenders = settings.iter().zip(lost).map(of).collect();
            tuner.best(Prefer::Efficiency)
        };
        assert_eq!(best([[4_500.0, 500.0], [2_500.0, 2_600.0], [3_000.0, 1_000.0]]), settings[2]);
        assert_eq!(best([[4_500.0, 500.0], [2_500.0, 2_600.0], [3_000.0, 2_500.0]]), settings[0]);
        let few = [[150.0, 10.0], [75.0, 90.0], [100.0, 20.0]];
        assert_eq!(best(few), settings[0], "that the best one saves none is a reason to stay");
    }

    #[test]
    fn what_may_be_taken_for_its_gpu_time_does_not_rest() {
        let mut tuner = tuner();
        let [best, other] = [0, 1].map(|at| tuner.charged[at].0);
        let mut rests = |bad, busy_s, prefer| {
            tuner.prefer = prefer;
            tuner.current = best;
            tuner.contenders =
                vec![Contender::tried(best, [0.0, 5.0], 1.0), Contender::tried(other, bad, busy_s)];
            charged_after(&mut tuner, 400, 100.0);
            tuner.contenders[1].rests
        };
        assert!(rests([45.0, 900.0], 0.81, Prefer::Efficiency));
        assert!(!rests([45.0, 900.0], 0.79, Prefer::Efficiency));
        assert!(rests([60.0, 900.0], 0.79, Prefer::Efficiency));
        assert!(rests([45.0, 900.0], 0.79, Prefer::Latency));
    }

    #[test]
    fn a_load_that_is_known_is_no_charge_for_those_far_above_it() {
        let mut tuner = tuner();
        let [charged, for_all] = charged_after(&mut tuner, 0, 100.0);
        assert!((charged - for_all).abs() < 1e-6 && charged > 0.0, "nothing says what the load is");
        charged_after(&mut tuner, 50, 100.0);
        assert!(tuner.charged_up_to() > 180.0, "few requests don't say it: {}", tuner.charged_up_to());
        let [charged, for_all] = charged_after(&mut tuner, 2_000, 100.0);
        assert!((125.0..150.0).contains(&tuner.charged_up_to()), "{}", tuner.charged_up_to());
        assert!(charged == 0.0 && for_all > 0.0, "{charged} of {for_all}");
        assert!(tuner.contenders.iter().all(|one| one.handicap == 0.0));
        let [charged, _] = charged_after(&mut tuner, 4_000, 4_000.0);
        assert!(charged > 0.0, "it is near a load that some settings lose");
        let [charged, _] = charged_after(&mut tuner, 2_000, 100.0);
        assert!(charged > 0.0, "what was the load a look ago may come back");
    }
}
