//! The keeper of rolling profiles: how true the models' profiles still are, and whom to tell. A
//! ratio far above 1 makes batches late, one far below 1 makes them smaller than they could be, so
//! the log says when it becomes large.

use super::learned_profiles::LearnedProfiles;
use crate::runtime::clock::Clock;
use crate::runtime::counters::executions::{Executed, Executions};
use crate::runtime::counters::rolling_profiles::RollingProfiles;
use crate::runtime::counters::run_times::RunTimeBoard;
use crate::runtime::frontend::model_table::ModelTable;
use crate::runtime::frontend::{ModelInfo, SlotState};
use crate::runtime::panics::catch;
use crate::runtime::threads::changes::{ChangeReceiver, ChangeSender, changes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_scheduler::profile::{Profile, ScaledProfile};
use symphony_scheduler::rolling_profile::{MOVE_INTERVAL, RollingProfile};
use symphony_scheduler::run_time::{AT_BEST_PERCENT, RunTimeHistogram, WITHIN_PERCENT};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The distance from 1, up or down, beyond which a drift is logged.
const LARGE: f64 = 0.25;

/// The distance from 1 within which a logged drift has ended: nearer than [`LARGE`], so that noise
/// at the border makes no lines.
const SMALL: f64 = 0.15;

/// The share of the SLO that a followed profile lets a batch of one take at most: a model of which
/// no request could be served any more would never be measured again.
const LONGEST_ALONE: f64 = 0.8;

/// The time between two turns.
const TURN: Duration = Duration::from_nanos(MOVE_INTERVAL.0);

/// The time between two savings of what was learnt.
const SAVE_INTERVAL: Nanos = Nanos::from_secs(60);

/// The niceness of the thread: whoever else wants the core has it.
const NICENESS: i32 = 19;

/// What became of a model's drift.
#[derive(Clone, Copy, PartialEq, Debug)]
enum DriftChange {
    /// Beyond [`LARGE`] from now on: the ratio.
    Began(f64),
    /// Within [`SMALL`] again: the ratio.
    Ended(f64),
}

/// The profile of one model.
#[derive(Debug)]
struct KeptProfile {
    /// The profile that the batches are compared with: another one means another model.
    profile: Arc<Profile>,
    rolling: RollingProfile,
    /// True from a logged drift to its end.
    is_large: bool,
    /// The profile that the model's queues have, and the one that is on its way to them.
    told: Profile,
    under_way: Option<Profile>,
}

impl KeptProfile {
    /// Begins with what an earlier engine had learnt, where the model is scheduled by it.
    fn new(model: &ModelInfo, learned: Option<&LearnedProfiles>) -> KeptProfile {
        let profile = Arc::clone(&model.profile);
        let start = Profile::clone(&profile);
        let longest_alone = Nanos::from_secs_f64(model.slo.as_secs_f64() * LONGEST_ALONE);
        let mut rolling = RollingProfile::new(start.clone()).with_longest_alone(longest_alone);
        if model.application.is_some() {
            // The times of its batches differ by their requests, and not by chance.
            rolling = rolling.with_percentile(WITHIN_PERCENT).with_best_percentile(AT_BEST_PERCENT);
        }
        if let Some(earlier) = learned.filter(|_| model.rolls).and_then(|learned| learned.of(model)) {
            rolling = rolling.with_earlier(earlier);
        }
        KeptProfile { profile, rolling, is_large: false, told: start, under_way: None }
    }

    /// Takes in a batch that a backend thread ran.
    fn note(&mut self, backend: usize, batch: &Executed) {
        if !batch.cancelled {
            self.rolling.note(backend, batch.size as usize, batch.started, batch.finished);
        }
    }

    /// Moves the rolling profile, and returns what became of the drift, if it is worth a line.
    fn update(&mut self, now: Nanos) -> Option<DriftChange> {
        self.rolling.update(now);
        let ratio = self.rolling.drift()?;
        let distance = (ratio - 1.0).abs();
        if !self.is_large && distance > LARGE {
            self.is_large = true;
            Some(DriftChange::Began(ratio))
        } else if self.is_large && distance < SMALL {
            self.is_large = false;
            Some(DriftChange::Ended(ratio))
        } else {
            None
        }
    }
}

/// What the keeper has to know of an engine.
pub(crate) struct KeeperPlan {
    pub(crate) clock: Clock,
    pub(crate) model_table: Arc<ModelTable>,
    pub(crate) executions: Executions,
    pub(crate) rolling: Arc<RollingProfiles>,
    /// What a policy learns, which is kept too.
    pub(crate) run_times: Arc<RunTimeBoard>,
    /// What earlier engines had learnt, where that is kept.
    pub(crate) learned: Option<LearnedProfiles>,
}

/// The keeper of an engine's rolling profiles. See the module's description.
pub(crate) struct ProfileKeeper {
    plan: KeeperPlan,
    models: BTreeMap<ModelId, KeptProfile>,
    /// How far the executed batches were read.
    cursor: Vec<u64>,
    /// The link to each ModelThread.
    links: Vec<ChangeSender<ScaledProfile>>,
    /// The number of the model table whose models were begun with what was learnt.
    begun: Option<u64>,
    next_save: Nanos,
    /// True while what was learnt can't be saved.
    is_save_failing: bool,
}

impl ProfileKeeper {
    pub(crate) fn new(plan: KeeperPlan) -> ProfileKeeper {
        ProfileKeeper {
            plan,
            models: BTreeMap::new(),
            cursor: Vec::new(),
            links: Vec::new(),
            begun: None,
            next_save: SAVE_INTERVAL,
            is_save_failing: false,
        }
    }

    /// Returns what an earlier engine had learnt of the run times of an application's requests.
    pub(crate) fn earlier_run_times(&self, model: &ModelInfo) -> Option<&RunTimeHistogram> {
        self.plan.learned.as_ref()?.run_times_of(model)
    }

    /// Makes a link to a ModelThread, and returns the thread's end. A change's index is the
    /// model's.
    pub(crate) fn link(&mut self) -> ChangeReceiver<ScaledProfile> {
        let (sender, receiver) = changes();
        self.links.push(sender);
        receiver
    }

    /// Starts the thread, which ends once `stop` is set, and has saved what was learnt then.
    ///
    /// Errors: the system gives no thread.
    pub(crate) fn spawn(mut self, stop: Arc<AtomicBool>) -> std::io::Result<JoinHandle<()>> {
        let live = move || {
            let own = Some(rustix::thread::gettid());
            if let Err(error) = rustix::process::setpriority_process(own, NICENESS) {
                tracing::debug!(%error, "the profile keeper has the priority of the others");
            }
            let lived = catch(|| {
                while !stop.load(Ordering::Relaxed) {
                    self.turn();
                    std::thread::park_timeout(TURN);
                }
                self.save();
            });
            if let Err(panic) = lived {
                tracing::error!(%panic, "the profile keeper died; profiles stay as they are");
            }
        };
        std::thread::Builder::new().name("profiles".into()).spawn(live)
    }

    /// Takes in the batches that ran since the last turn, moves the profiles, logs which have
    /// drifted far, and tells the ModelThreads.
    pub(crate) fn turn(&mut self) {
        let (number, models) = self.plan.model_table.read();
        self.take_back();
        self.follow_models(&models);
        if self.begun.replace(number) != Some(number) {
            self.begin_with_learned(&models);
        }
        self.take_batches(&models);
        let now = self.plan.clock.now();
        for (id, kept) in &mut self.models {
            let Some(model) = models.get(id.0 as usize) else { continue };
            let before = kept.rolling.measured().cloned();
            if let Some(change) = kept.update(now) {
                log(model, change);
            }
            if let (Some(profile), Some(drift)) = (kept.rolling.measured(), kept.rolling.drift())
                && before.is_none_or(|before| !before.is_same(profile))
            {
                self.plan.rolling.set(*id, profile, drift, model.rolls);
            }
            if model.rolls && kept.under_way.is_none() && !kept.told.is_same(kept.rolling.profile()) {
                tell(&mut self.links[model.thread], *id, kept);
            }
        }
        if now >= self.next_save {
            self.next_save = now + SAVE_INTERVAL;
            self.save();
        }
    }

    /// Begins to keep the profiles of the models of which an earlier engine had learnt something,
    /// before any of their batches has run.
    fn begin_with_learned(&mut self, models: &[ModelInfo]) {
        let Some(learned) = &self.plan.learned else { return };
        for model in models.iter().filter(|model| model.state != SlotState::Vacant && model.rolls) {
            if learned.of(model).is_some() {
                let kept =
                    self.models.entry(model.id).or_insert_with(|| KeptProfile::new(model, Some(learned)));
                if let (Some(profile), Some(drift)) = (kept.rolling.measured(), kept.rolling.drift()) {
                    self.plan.rolling.set(model.id, profile, drift, model.rolls);
                }
            }
        }
    }

    /// Saves what was learnt, where that is kept.
    fn save(&mut self) {
        let (_, models) = self.plan.model_table.read();
        let Some(learned) = &mut self.plan.learned else { return };
        for (id, kept) in &self.models {
            let model = running(&models, *id).filter(|model| Arc::ptr_eq(&model.profile, &kept.profile));
            if let (Some(model), Some(latencies)) =
                (model.filter(|model| model.rolls), kept.rolling.learned())
            {
                learned.set(model, latencies);
            }
        }
        for model in models.iter().filter(|model| model.state != SlotState::Vacant) {
            if let Some(run_times) = self.plan.run_times.of(model.id) {
                learned.set_run_times(model, run_times);
            }
        }
        let failed = learned.save().err();
        if let (Some(error), false) = (&failed, self.is_save_failing) {
            let file = learned.file().display();
            tracing::warn!(%file, %error, "learned profiles can't be saved; it is tried again every minute");
        }
        self.is_save_failing = failed.is_some();
    }

    /// Frees the profiles that no queue has any more.
    fn take_back(&mut self) {
        for link in &mut self.links {
            while let Some(change) = link.take_old() {
                let kept = self.models.get_mut(&ModelId(change.index as u32));
                if let Some(kept) = kept
                    && let Some(told) = kept.under_way.take()
                {
                    kept.told = told;
                }
            }
        }
    }

    /// Forgets the models that are no more, once no profile of theirs is on its way.
    fn follow_models(&mut self, models: &[ModelInfo]) {
        self.models.retain(|id, kept| {
            let is_same = |model: &ModelInfo| Arc::ptr_eq(&model.profile, &kept.profile);
            kept.under_way.is_some() || running(models, *id).is_some_and(is_same)
        });
        self.plan.rolling.retain(|model| self.models.contains_key(&model));
    }

    fn take_batches(&mut self, models: &[ModelInfo]) {
        let ProfileKeeper { plan: KeeperPlan { executions, learned, .. }, models: kept, cursor, .. } = self;
        executions.recent(executions.gpus(), cursor, |batch| {
            let Some(model) = running(models, batch.model) else { return };
            let kept = kept.entry(batch.model).or_insert_with(|| KeptProfile::new(model, learned.as_ref()));
            // Else its slot has another model already.
            if Arc::ptr_eq(&model.profile, &kept.profile) {
                kept.note(executions.backend_of(batch.gpu), &batch);
            }
        });
    }
}

/// Returns the model in a slot, if it has one.
fn running(models: &[ModelInfo], id: ModelId) -> Option<&ModelInfo> {
    models.get(id.0 as usize).filter(|model| model.state != SlotState::Vacant)
}

/// Sends a model's rolling profile to its ModelThread; at a later turn, if too many changes are
/// under way.
fn tell(link: &mut ChangeSender<ScaledProfile>, id: ModelId, kept: &mut KeptProfile) {
    let scaled = kept.rolling.scaled().clone();
    let profile = scaled.profile.clone();
    if link.send(id.0 as usize, scaled).is_ok() {
        kept.under_way = Some(profile);
    }
}

fn log(model: &ModelInfo, change: DriftChange) {
    let (name, version) = (&*model.label(), model.version);
    let next = if model.rolls { "it is scheduled by that" } else { "measure it again" };
    match change {
        DriftChange::Began(ratio) => {
            tracing::warn!(
                model = name,
                version,
                "batches take {ratio:.2} times what the profile says: {next}"
            );
        }
        DriftChange::Ended(ratio) => {
            tracing::info!(
                model = name,
                version,
                "batches take {ratio:.2} times what the profile says again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symphony_scheduler::rolling_profile::FLOOR;
    use symphony_transport::message::{BatchHeader, GpuId};

    /// l(b) = 1 ms * b + 4 ms.
    fn profile() -> Arc<Profile> {
        Arc::new(Profile::linear(Nanos::from_millis(1), Nanos::from_millis(4), 8).unwrap())
    }

    fn kept() -> KeptProfile {
        let model = ModelInfo { profile: profile(), slo: Nanos::MAX, ..ModelInfo::vacant(ModelId(0), 0) };
        KeptProfile::new(&model, None)
    }

    /// A batch of `size` that takes `factor` times what the profile says.
    fn batch(size: u32, factor: f64) -> Executed {
        let took = Nanos::from_secs_f64(profile().latency(size as usize).as_secs_f64() * factor);
        let started = Nanos::from_secs(1);
        Executed {
            started,
            finished: started + took,
            gpu: GpuId(0),
            model: ModelId(0),
            size,
            cancelled: false,
        }
    }

    /// Runs batches of all sizes for 20 s, and returns the lines that were worth it.
    fn run(kept: &mut KeptProfile, from: Nanos, factor: f64) -> Vec<DriftChange> {
        let said = (0..2_000_u32).filter_map(|n| {
            kept.note(0, &batch(1 + n % 8, factor));
            kept.update(from + Nanos::from_millis(10 * u64::from(n)))
        });
        said.collect()
    }

    #[test]
    fn cancelled_batches_say_nothing() {
        let mut kept = kept();
        let cancelled = Executed { cancelled: true, ..batch(4, 3.0) };
        (0..FLOOR).for_each(|_| kept.note(0, &cancelled));
        assert_eq!((kept.update(Nanos::from_secs(1)), kept.rolling.drift()), (None, None));
    }

    #[test]
    fn an_executor_that_becomes_slow_is_told_once_and_once_more_when_it_is_fast_again() {
        let mut kept = kept();
        let mut at = Nanos::ZERO;
        let mut run = |factor| {
            at += Nanos::from_secs(30);
            run(&mut kept, at, factor)
        };
        assert_eq!(run(1.0), []);
        assert!(matches!(run(1.5)[..], [DriftChange::Began(ratio)] if ratio > 1.0 + LARGE));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(1.1)[..], [DriftChange::Ended(ratio)] if ratio < 1.0 + SMALL));
        assert_eq!(run(1.2), [], "between the two borders");
        assert!(matches!(run(0.5)[..], [DriftChange::Began(ratio)] if ratio < 1.0 - LARGE));
    }

    #[test]
    fn a_model_that_rolls_is_told_a_step_at_a_time_and_the_old_profile_is_kept_until_it_is_back() {
        let executions = Executions::new(std::iter::once(0..1));
        let mut executing = executions.of_backend(0);
        let header = BatchHeader { size: 1, ..BatchHeader::default() };
        let (clock, time) = Clock::of_virtual_time();
        let rolling = Arc::new(RollingProfiles::default());
        let model = ModelInfo {
            state: SlotState::Serving,
            profile: profile(),
            slo: Nanos::from_millis(20),
            rolls: true,
            ..ModelInfo::vacant(ModelId(0), 0)
        };
        let table = ModelTable::new(Arc::new([model.clone()]));
        let mut keeper = ProfileKeeper::new(KeeperPlan {
            clock,
            model_table: Arc::clone(&table),
            executions: executions.clone(),
            rolling: Arc::clone(&rolling),
            run_times: Arc::default(),
            learned: None,
        });
        let mut thread = keeper.link();
        let mut told: Option<ScaledProfile> = None;
        for turn in 1..40 {
            let began = Nanos(turn * TURN.as_nanos() as u64);
            time.increment(TURN);
            (0..FLOOR).for_each(|_| executing.ran(&header, began, began + Nanos::from_millis(50)));
            keeper.turn();
            let came = thread.take(began, |change| {
                if let Some(told) = &told {
                    assert!(change.value.profile.latency(1) >= told.profile.latency(1));
                }
                assert!(change.index == 0 && change.value.base.is_same(&model.profile));
                told = Some(change.value.clone());
            });
            assert!(came <= 1);
        }
        let told = told.unwrap().profile;
        let ended = Nanos::from_secs_f64(0.02 * LONGEST_ALONE);
        assert!(
            told.latency(1) <= ended && told.latency(1) > Nanos::from_millis(15),
            "{:?}",
            told.latency(1)
        );
        assert_eq!(rolling.followed(ModelId(0)).as_ref(), Some(&told));
        assert!(rolling.drift(ModelId(0)).is_some_and(|ratio| ratio > 3.0));
        table.publish(Arc::new([ModelInfo { profile: profile(), ..model }]));
        keeper.turn();
        assert!(rolling.profile(ModelId(0)).is_none(), "another model begins anew");
    }

    #[test]
    fn an_engine_begins_with_what_the_one_before_had_learnt() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("learned.json");
        let of = |name: &str, rolls| ModelInfo {
            name: name.to_owned(),
            state: SlotState::Serving,
            slo: Nanos::from_secs(1),
            rolls,
            profile: profile(),
            ..ModelInfo::vacant(ModelId(u32::from(name == "kept")), 0)
        };
        // Runs batches of one that take 15 ms for 5, and returns what the threads were told.
        let run = |models: [ModelInfo; 2], batches: usize| {
            let executions = Executions::new(std::iter::once(0..1));
            let mut executing = executions.of_backend(0);
            let (clock, time) = Clock::of_virtual_time();
            let rolling = Arc::new(RollingProfiles::default());
            let mut keeper = ProfileKeeper::new(KeeperPlan {
                clock,
                model_table: ModelTable::new(Arc::new(models)),
                executions: executions.clone(),
                rolling: Arc::clone(&rolling),
                run_times: Arc::default(),
                learned: Some(LearnedProfiles::open(&file).unwrap()),
            });
            let mut thread = keeper.link();
            let mut told = Vec::new();
            for turn in 1..=40 {
                let began = Nanos(turn * TURN.as_nanos() as u64);
                time.increment(TURN);
                for id in [0, 1] {
                    let header = BatchHeader { size: 1, model: ModelId(id), ..BatchHeader::default() };
                    (0..batches).for_each(|_| executing.ran(&header, began, began + Nanos::from_millis(15)));
                }
                keeper.turn();
                thread.take(began, |change| told.push((change.index, change.value.profile.latency(1))));
            }
            keeper.save();
            (told, [0, 1].map(|id| rolling.drift(ModelId(id))))
        };
        let (told, _) = run([of("rolls", true), of("kept", false)], FLOOR);
        let learnt = told.last().unwrap().1;
        assert!(told.len() > 3 && told.iter().all(|(index, _)| *index == 0));
        assert!(learnt > Nanos::from_millis(14), "{learnt:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains("\"rolls\"") && !text.contains("\"kept\""), "{text}");
        let (told, drifts) = run([of("rolls", true), of("kept", true)], 0);
        let [(0, began)] = told[..] else { panic!("{told:?}") };
        assert!((began.0 as f64 / learnt.0 as f64 - 1.0).abs() < 0.02, "{began:?}");
        assert!(drifts[0].is_some_and(|drift| drift > 2.8) && drifts[1].is_none(), "{drifts:?}");
        let (told, drifts) = run([of("rolls", false), of("other", true)], 0);
        assert_eq!((told, drifts), (Vec::new(), [None, None]), "it does not follow, or is another model");
    }
}
