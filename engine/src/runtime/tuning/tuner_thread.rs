//! The tuner's thread: see the description of the folder.

use super::link::{TunedLink, TunerLink, TuningOrder, tuning_link};
use super::processor_budget::ProcessorBudget;
use super::tuned_pool::{TunedModel, TunedPool, TunedRule};
use crate::runtime::clock::{Clock, thread_cpu_time};
use crate::runtime::counters::rolling_profiles::RollingProfiles;
use crate::runtime::counters::tuning::TuningCounts;
use crate::runtime::frontend::ModelInfo;
use crate::runtime::frontend::model_table::ModelTable;
use crate::runtime::panics::catch;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use symphony_scheduler::rule_setting::RuleSetting;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The time between two turns: the room for arrivals lasts for it at millions a second.
const TURN: Duration = Duration::from_millis(5);

/// The niceness of the thread: whoever else wants the core has it.
const NICENESS: i32 = 19;

/// What the tuner has to know of an engine.
pub(crate) struct TunerPlan {
    pub(crate) rule: TunedRule,
    /// The GPUs of each sub-cluster.
    pub(crate) gpus: Vec<usize>,
    /// The sub-cluster of each model slot.
    pub(crate) group_of: Arc<[u32]>,
    pub(crate) clock: Clock,
    pub(crate) model_table: Arc<ModelTable>,
    pub(crate) counts: Arc<TuningCounts>,
    pub(crate) rolling: Arc<RollingProfiles>,
}

/// The tuners of an engine. See the module's description.
pub(crate) struct TunerThread {
    plan: TunerPlan,
    /// The link to each ModelThread.
    links: Vec<TunerLink>,
    pools: Vec<Option<TunedPool>>,
    /// The number of the model table that the pools are of.
    table: Option<u64>,
    /// The number of the rolling profiles that the pools have.
    profiles: u64,
    /// What the thread may take of a core.
    budget: ProcessorBudget,
}

impl TunerThread {
    pub(crate) fn new(plan: TunerPlan) -> TunerThread {
        TunerThread {
            plan,
            links: Vec::new(),
            pools: Vec::new(),
            table: None,
            profiles: 0,
            budget: ProcessorBudget::default(),
        }
    }

    /// Makes a link to a ModelThread, and returns the thread's end.
    pub(crate) fn link(&mut self) -> TunedLink {
        let (tuner, tuned) = tuning_link(self.plan.gpus.len(), Arc::clone(&self.plan.group_of));
        self.links.push(tuner);
        tuned
    }

    /// Starts the thread, which ends by itself once `stop` is set: nobody waits for it, as a look
    /// that has begun may take a second.
    ///
    /// Errors: the system gives no thread.
    pub(crate) fn spawn(mut self, stop: Arc<AtomicBool>) -> std::io::Result<()> {
        let live = move || {
            let own = Some(rustix::thread::gettid());
            if let Err(error) = rustix::process::setpriority_process(own, NICENESS) {
                tracing::debug!(%error, "the tuner's thread has the priority of the others");
            }
            let lived = catch(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.turn();
                    std::thread::park_timeout(TURN);
                }
            });
            if let Err(panic) = lived {
                tracing::error!(%panic, "the tuner died; the default rule keeps the settings that it has");
            }
        };
        std::thread::Builder::new().name("tuner".into()).spawn(live).map(drop)
    }

    /// Takes arrivals in, orders more, and looks at those of a sub-cluster whose time has come.
    pub(crate) fn turn(&mut self) {
        self.follow_models();
        self.follow_profiles();
        self.take_arrivals();
        let now = self.plan.clock.now();
        for group in 0..self.pools.len() {
            let Some(pool) = &mut self.pools[group] else { continue };
            pool.note_lost(now, |model| lost(&self.links, model));
            if let Some(count) = pool.wanted(now) {
                order(&mut self.links, TuningOrder::Sample { group, count });
            }
            if self.budget.allows(now) && self.pools[group].as_ref().is_some_and(|pool| pool.is_due(now)) {
                self.look(group, now);
            }
        }
    }

    /// Makes another tuner for each sub-cluster that serves other models. It goes on from the
    /// setting that the sub-cluster has.
    fn follow_models(&mut self) {
        if self.table == Some(self.plan.model_table.number()) {
            return;
        }
        let (number, models) = self.plan.model_table.read();
        let is_first = self.table.replace(number).is_none();
        let TunerPlan { rule, gpus, group_of, clock, rolling, .. } = &self.plan;
        self.pools.resize_with(gpus.len(), || None);
        for (group, pool) in self.pools.iter_mut().enumerate() {
            let own =
                ModelInfo::served(&models).filter(|model| group_of[model.id.0 as usize] as usize == group);
            let own = TunedModel::all(own);
            if !pool.as_ref().is_some_and(|pool| pool.is_of(&own)) {
                let setting = pool.as_ref().map_or_else(RuleSetting::default, TunedPool::setting);
                let lost = |model| lost(&self.links, model);
                *pool = TunedPool::new(gpus[group], own, *rule, setting, clock.now(), lost);
                if let Some(pool) = pool {
                    pool.set_profiles(|model| rolling.followed(model));
                }
            }
            // A model that was loaded has the setting of the start.
            if let Some(pool) = pool
                && !is_first
            {
                order(&mut self.links, TuningOrder::Set { group, setting: pool.setting() });
            }
        }
    }

    /// Takes over the profiles by which models are scheduled from now on.
    fn follow_profiles(&mut self) {
        let number = self.plan.rolling.number();
        if std::mem::replace(&mut self.profiles, number) == number {
            return;
        }
        for pool in self.pools.iter_mut().flatten() {
            pool.set_profiles(|model| self.plan.rolling.followed(model));
        }
    }

    fn take_arrivals(&mut self) {
        for link in &mut self.links {
            while let Some(arrival) = link.next_arrival() {
                let group = self.plan.group_of[arrival.model.0 as usize] as usize;
                if let Some(pool) = &mut self.pools[group] {
                    pool.note(arrival);
                }
            }
        }
    }

    fn look(&mut self, group: usize, now: Nanos) {
        let Some(pool) = &mut self.pools[group] else { return };
        // What is still on its way belongs to no look.
        order(&mut self.links, TuningOrder::Sample { group, count: 0 });
        let began = thread_cpu_time();
        let changed = pool.look(now);
        let took = thread_cpu_time() - began;
        self.plan.counts.looked(took.0, changed.is_some());
        self.budget.spend(self.plan.clock.now(), took);
        if let Some((old, new)) = changed {
            order(&mut self.links, TuningOrder::Set { group, setting: new });
            tracing::info!(sub_cluster = group, %old, %new, "the default rule goes on with another setting");
        }
    }
}

/// Returns the number of requests of a model that ModelThreads have dropped.
fn lost(links: &[TunerLink], model: ModelId) -> u64 {
    links.iter().map(|link| link.lost(model)).sum()
}

/// Sends an order to all ModelThreads. A thread that takes none has ended, or will have the next
/// one: the tuner never waits.
fn order(links: &mut [TunerLink], order: TuningOrder) {
    for link in links {
        if !link.order(order) {
            tracing::debug!(?order, "a ModelThread took no order of the tuner");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;
    use crate::runtime::frontend::{Ask, Outcome, SlotState};
    use crate::runtime::{Engine, no_progress};
    use std::time::Instant;
    use symphony_scheduler::profile::Profile;
    use symphony_transport::message::Request;

    /// A served model in this slot.
    fn model(slot: u32, slo_ms: u64) -> ModelInfo {
        let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(5), 16).unwrap();
        ModelInfo {
            name: format!("model-{slot}"),
            slo: Nanos::from_millis(slo_ms),
            max_batch: 16,
            profile: profile.into(),
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(slot), 0)
        }
    }

    /// The tuner's thread of two sub-clusters in virtual time, of which the second has two slots.
    fn of_two_sub_clusters(table: &Arc<ModelTable>) -> (TunerThread, Arc<quanta::Mock>) {
        let (clock, mock) = Clock::of_virtual_time();
        let plan = TunerPlan {
            rule: TunedRule::of_default(),
            gpus: vec![1, 2],
            group_of: [0, 1, 1].into(),
            clock,
            model_table: Arc::clone(table),
            counts: Arc::default(),
            rolling: Arc::default(),
        };
        (TunerThread::new(plan), mock)
    }

    /// True for each sub-cluster whose tuner is new: it wants arrivals at once.
    fn are_new(thread: &mut TunerThread) -> Vec<bool> {
        let now = thread.plan.clock.now();
        thread
            .pools
            .iter_mut()
            .map(|pool| pool.as_mut().is_some_and(|pool| pool.wanted(now).is_some()))
            .collect()
    }

    #[test]
    fn a_model_that_is_loaded_leaves_tuners_of_others_and_the_setting_as_they_are() {
        let vacant = ModelInfo::vacant(ModelId(2), 0);
        let table = ModelTable::new([model(0, 25), model(1, 50), vacant].into());
        let (mut thread, _) = of_two_sub_clusters(&table);
        thread.follow_models();
        assert_eq!(are_new(&mut thread), [true, true]);
        let setting = RuleSetting { price: 0.0, ..RuleSetting::default() };
        let own = TunedModel::all([model(1, 50)].iter());
        thread.pools[1] = TunedPool::new(2, own, thread.plan.rule, setting, Nanos::ZERO, |_| 0);
        assert_eq!(are_new(&mut thread), [false, true]);
        let mut tuned = thread.link();
        table.publish([model(0, 25), model(1, 50), model(2, 100)].into());
        thread.follow_models();
        assert_eq!(are_new(&mut thread), [false, true]);
        // Queues of the model that was loaded may have another setting.
        for (model, expected) in [(0, RuleSetting::default()), (2, setting)] {
            let applying = tuned.applying(Nanos::from_millis(1)).unwrap();
            assert!(tuned.is_for(&applying, ModelId(model)) && applying.setting == expected);
            tuned.applied(None);
        }
        assert!(tuned.applying(Nanos::from_millis(1)).is_none());
        thread.follow_models();
        assert!(tuned.applying(Nanos::from_secs(1)).is_none(), "the table is the same");
    }

    #[test]
    fn a_pool_that_loses_requests_is_looked_at_early() {
        let table = ModelTable::new([model(0, 25), model(1, 50), model(2, 50)].into());
        let (mut thread, mock) = of_two_sub_clusters(&table);
        let mut tuned = thread.link();
        // Model 0 has 100 requests a second; of each, so many are dropped.
        let mut live_on = |ms: u64, dropped: u64| {
            for at in 0..ms {
                mock.increment(Duration::from_millis(1));
                let now = thread.plan.clock.now();
                if tuned.applying(now).is_some() {
                    tuned.applied(None);
                }
                if at % 10 == 0 {
                    let request = Request {
                        queue: ModelId(0).only_queue(),
                        arrival: now,
                        deadline: now + Nanos::from_millis(25),
                        ..Request::default()
                    };
                    if tuned.is_sampling() {
                        tuned.sample(&request);
                    }
                    (0..dropped).for_each(|_| tuned.losses().count(&request));
                }
                thread.turn();
            }
            thread.plan.counts.read().looks
        };
        assert_eq!(live_on(2_000, 0), 3, "at 0.25, 0.75 and 1.75 s; the next is at 3.75 s");
        assert_eq!(live_on(200, 4), 3, "a quarter of the pause is 0.5 s");
        assert_eq!(live_on(60, 4), 4);
        assert_eq!(live_on(1_900, 0), 4, "the next is 2 s later");
        assert_eq!(live_on(200, 0), 5);
    }

    /// An engine of eight GPUs that a trickle of requests can't fill.
    const CONFIG: &str = "[[executors]]\nkind = \"emulated\"\ncount = 8\n[[models]]\nname = \"m\"\n\
                          executor = \"emulated\"\nslo_ms = 400\nprofile = { alpha_ms = 0.2, beta_ms = 4 }\n";

    /// Serves a trickle until `until`, or for a minute, and returns the requests that were good.
    fn serve(text: &str, until: impl Fn(&Engine) -> bool) -> (u64, Engine) {
        let (engine, mut frontends) = Engine::start(parse_config(text).unwrap(), 1, no_progress()).unwrap();
        let frontend = &mut frontends[0];
        let (began, mut good) = (Instant::now(), 0);
        while !until(&engine) && began.elapsed() < Duration::from_secs(60) {
            if frontend.in_flight() < 40 {
                frontend.submit(&Ask::one(ModelId(0)), |_, _| ()).unwrap();
            }
            frontend.poll(|_, answer| good += u64::from(answer.outcome == Outcome::Good));
            std::thread::sleep(Duration::from_millis(1));
        }
        (good, engine)
    }

    #[test]
    fn requests_are_replayed_and_served_while_the_default_is_tuned() {
        let text = format!("tuning = \"on\"\n{CONFIG}");
        let (good, engine) = serve(&text, |engine| engine.counters().tuning().read().looks >= 2);
        let tally = engine.counters().tuning().read();
        assert!(tally.looks >= 2 && tally.busy_ns > 0 && good > 0, "{tally:?}, {good} good");
        engine.stop();
    }
}
