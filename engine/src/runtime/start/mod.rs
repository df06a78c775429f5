//! Start-up: checks what is asked for against the limits, loads and measures the models, and puts
//! an [`Engine`] together: its threads' parts, the rings between them, the placements that they
//! take.

pub(crate) mod layout;
pub(crate) mod rings;
pub(crate) mod sub_clusters;

use super::counters::Counters;
use super::frontend::{Class, Frontend, FrontendPeer, FrontendSetup, ModelInfo, SlotState};
use super::threads::{measures_from, slack_for};
use super::{Engine, Options, Stage, StartError};
use crate::config::{
    Config, Diagnostics, ExecutorKind, ModelConfig, ModelSource, ProfileSource, RepositoryControl,
};
use crate::recorder::{ClusterTerms, ModelRecorder, RankRecorder, RecordConfig};
use crate::runtime::backends::emulated::EmulatedBackend;
use crate::runtime::backends::executors::{self, Found, Loading, Progress, Setup, Wiring};
use crate::runtime::clock::Clock;
use crate::runtime::frontend::model_table::{Held, ModelTable};
use crate::runtime::model_slots::{Common, ModelSlots, Ways};
use crate::runtime::queue_ids::QueueIds;
use crate::runtime::start::layout::{Layout, rank_role};
use crate::runtime::start::rings::{Ends, ModelEnds, Plumbing};
use crate::runtime::start::sub_clusters::{Division, Group};
use crate::runtime::threads::agenda::Agenda;
use crate::runtime::threads::agent::{CompositeAgent, Idle, Member, Placement, measure_lateness};
use crate::runtime::threads::changes::{Giver, Taker, changes};
use crate::runtime::threads::model_thread::{ModelThread, Outbox, ReservationProgress, RingOutlets};
use crate::runtime::threads::monitor::ModelMonitor;
use crate::runtime::threads::rank_thread::{BackfillPhase, Grants, RankMonitor, RankThread, SubCluster};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_gpu::Signature;
use symphony_scheduler::deferral::Deferral;
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::limits;
use symphony_scheduler::model::ModelQueue;
use symphony_scheduler::policy;
use symphony_scheduler::profile::Profile;
use symphony_scheduler::rank::RankState;
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Completion, ModelId, QueueId, Request};
use symphony_transport::ring::Consumer;

/// A lateness above this part of an SLO is not allowed for: on a machine as busy as that, allowing
/// for it would leave no time to wait for a batch to grow.
const LATENESS_IN_SLO: u64 = 50;

/// The composite agents of an engine: a thread each.
#[derive(Default)]
struct CompositeAgents(Vec<(Placement, CompositeAgent)>);

impl CompositeAgents {
    /// Adds a role: to the crew of its core if it shares that, else to one of its own.
    fn add(&mut self, placement: Placement, member: Member) {
        // Threads that spin need not be on one core where none is known.
        let may_share = placement.core.is_some() || placement.idle == Idle::Nap;
        match self.0.iter_mut().find(|(taken, _)| *taken == placement && may_share) {
            Some((_, crew)) => crew.0.push(member),
            None => self.0.push((placement, CompositeAgent(vec![member]))),
        }
    }
}

/// What is known while an engine is put together.
pub(crate) struct Builder {
    config: Arc<Config>,
    layout: Layout,
    clock: Clock,
    say: Progress,
    division: Division,
    deferral: &'static dyn Deferral,
    options: Options,
}

/// What start-up has found out about the models and the machine.
struct Findings {
    /// Every place for a model; those that have none come last.
    models: Arc<[ModelInfo]>,
    /// Of each model that there is.
    profiles: Vec<Profile>,
    /// How late threads see that a time has come.
    lateness: Nanos,
}

impl Builder {
    /// Takes in what is asked for.
    ///
    /// Errors: a limit would be exceeded, or the policy is none for pinned threads.
    pub(crate) fn new(
        config: Config,
        layout: Layout,
        say: Progress,
        options: Options,
    ) -> Result<Builder, StartError> {
        let gpus: usize = config.executors.iter().map(|executor| executor.count).sum();
        StartError::at_most("GPUs and other executors", gpus, limits::MAX_GPUS)?;
        StartError::at_most("models", config.model_slots().len(), limits::MAX_MODELS)?;
        StartError::at_most("ModelThreads", layout.models.len(), limits::MAX_MODEL_THREADS)?;
        let own = policy::by_name(config.policy).and_then(policy::Policy::deferral);
        let own =
            own.ok_or_else(|| StartError::Policy(config.policy.to_owned(), policy::served().join(", ")))?;
        let deferral = config.when.map_or(own, |rule| rule);
        let division = Division::new(&config, layout.ranks.len())?;
        Ok(Builder {
            config: Arc::new(config),
            layout,
            clock: Clock::start(),
            say,
            division,
            deferral,
            options,
        })
    }

    /// Starts everything, with so many frontends.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub(crate) fn build(self, frontends: usize) -> Result<(Engine, Vec<Frontend>), StartError> {
        StartError::at_most("frontends", frontends, limits::MAX_FRONTENDS)?;
        self.options.record.iter().try_for_each(RecordConfig::prepare)?;
        let stop_executors = Arc::new(AtomicBool::new(false));
        let loading = self.start_executors(&stop_executors)?;
        let findings = self.find_out(&loading)?;
        let accepting = Arc::new(AtomicBool::new(true));
        let backends = self.backends(loading.len() as u32);
        let backend_threads = backends.len();
        let (mut ends, peers) = self.frontends(frontends, backend_threads, &findings, &accepting)?;
        let counters = Counters::new(self.layout.models.len(), self.layout.ranks.len(), backends);
        let mut plumbing = self.plumbing(&findings, backend_threads, peers, counters.clone());
        let mut ways =
            self.changes_later().then(|| Ways { queues: Vec::new(), executors: Vec::new(), emulated: None });
        let mut threads = Vec::new();
        for (at, loading) in loading.into_iter().enumerate() {
            let changes = ways.as_mut().map(|ways| taker(|giver| ways.executors.push(giver)));
            threads.push(loading.wire(plumbing.backend(at), changes));
        }
        let mut stages: [Stage; 3] = Default::default();
        let mut agents = CompositeAgents::default();
        for (at, &placement) in self.layout.models.iter().enumerate() {
            let mut thread = self.model_thread(at, &findings, &mut plumbing)?;
            thread.changes = ways.as_mut().map(|ways| taker(|giver| ways.queues.push(giver)));
            agents.add(placement, stages[0].member(format!("model-{at}"), thread));
        }
        for (at, &placement) in self.layout.ranks.iter().enumerate() {
            agents.add(placement, stages[1].member(rank_role(at), self.rank_thread(at, &mut plumbing)?));
        }
        if let Some(placement) = self.layout.emulated {
            let mut backend = self.emulated_backend(&findings.models, plumbing.backend(backend_threads - 1));
            backend.changes = ways.as_mut().map(|ways| taker(|giver| ways.emulated = Some(giver)));
            agents.add(placement, stages[2].member("emulated".to_owned(), backend));
        }
        for (placement, crew) in agents.0 {
            threads.push(crew.spawn(placement, self.clock.clone(), self.options.on_thread_start.clone())?);
        }
        let model_table = ModelTable::new(Arc::clone(&findings.models));
        let held: Vec<Held> =
            ends.iter_mut().map(|frontend| frontend.follow(Arc::clone(&model_table))).collect();
        let model_slots = ways.map(|ways| self.model_slots(ways, &findings, Arc::clone(&model_table), held));
        let Findings { models, profiles, lateness } = findings;
        let layout = self.layout;
        // A table of its own: nobody may hold one of those that frontends see for as long as the
        // engine runs.
        let models = models.iter().cloned().collect();
        let engine = Engine {
            models,
            model_table,
            profiles,
            layout,
            clock: self.clock,
            lateness,
            accepting,
            counters,
            model_slots,
            stages,
            stop_executors,
            threads,
        };
        Ok((engine, ends))
    }

    /// The backend threads: their roles and their GPUs' numbers. Those of CPU executors come first.
    fn backends(&self, executors: u32) -> Vec<(String, Range<u32>)> {
        let gpus = self.division.groups.iter().map(|group| group.gpus.end).max().unwrap_or_default();
        let cpus = (0..executors).map(|at| (format!("cpu-{at}"), at..at + 1));
        let emulated = self.layout.emulated.map(|_| ("emulated".to_owned(), executors..gpus));
        cpus.chain(emulated).collect()
    }

    /// Whether models may be loaded later. A flight recorder is told of the models once, as it
    /// begins.
    fn changes_later(&self) -> bool {
        let repository = self.config.repository.as_ref();
        self.options.record.is_none()
            && repository.is_some_and(|from| from.control != RepositoryControl::None)
    }

    /// The most bytes that a row of a model that is loaded later may have.
    fn later_row(&self) -> usize {
        let repository = self.config.repository.as_ref().filter(|_| self.changes_later());
        repository.map_or(0, |repository| repository.max_row_bytes)
    }

    /// The control thread's end of the engine.
    fn model_slots(
        &self,
        ways: Ways,
        findings: &Findings,
        model_table: Arc<ModelTable>,
        held: Vec<Held>,
    ) -> ModelSlots {
        let (terms, lateness) = (self.terms(), findings.lateness);
        let rows = ModelInfo::served(&findings.models).map(|model| output_range(&model.signature).end);
        let common = Common {
            clock: self.clock.clone(),
            terms: Box::new(move |lane, slo, profile| terms(lane, slo, profile, lateness)),
            lanes: self.lanes(),
            largest_row: rows.map(usize::next_power_of_two).fold(self.later_row(), usize::max),
        };
        ModelSlots::new(model_table, self.config.model_slots(), held, ways, common)
    }

    fn lanes(&self) -> QueueIds {
        QueueIds::new(self.division.model_slots())
    }

    /// The terms of a lane of a model of that SLO and profile, on a machine of that lateness.
    fn terms(&self) -> impl Fn(QueueId, Nanos, Profile, Nanos) -> QueueConfig + Send + 'static {
        let (network, drop, deferral) = (self.config.network, self.config.drop, self.deferral);
        let (division, lanes) = (self.division.clone(), self.lanes());
        move |queue, slo, profile, lateness: Nanos| QueueConfig {
            queue,
            profile,
            slo,
            network,
            drop,
            deferral,
            slack: slack_for(lateness.min(Nanos(slo.0 / LATENESS_IN_SLO))),
            gpus: division.gpus_for(lanes.model(queue).0 as usize),
        }
    }

    /// The frontends, and the engine's ends of them.
    fn frontends(
        &self,
        count: usize,
        backend_threads: usize,
        findings: &Findings,
        accepting: &Arc<AtomicBool>,
    ) -> Result<(Vec<Frontend>, Vec<FrontendPeer>), StartError> {
        let frontend = |id| {
            Frontend::new(FrontendSetup {
                id: id as u32,
                clock: self.clock.clone(),
                models: Arc::clone(&findings.models),
                later_row: self.later_row(),
                model_threads: self.layout.models.len(),
                answering_threads: self.layout.models.len() + backend_threads,
                capacity: self.config.http.max_in_flight,
                result_delay: self.config.network.result,
                lateness: findings.lateness,
                accepting: Arc::clone(accepting),
            })
        };
        let made: Result<Vec<_>, _> = (0..count).map(frontend).collect();
        Ok(made?.into_iter().unzip())
    }

    fn plumbing(
        &self,
        findings: &Findings,
        backend_threads: usize,
        peers: Vec<FrontendPeer>,
        counters: Counters,
    ) -> Plumbing {
        let batch = findings.profiles.iter().map(Profile::max_batch).max().unwrap_or(1);
        let batch = if self.changes_later() { limits::MAX_BATCH } else { batch };
        let ends = Ends {
            model_threads: self.layout.models.len(),
            rank_threads: self.layout.ranks.len(),
            backend_threads,
            division: &self.division,
            thread_of: {
                let of_models: Vec<u32> = findings.models.iter().map(|model| model.thread as u32).collect();
                self.lanes().each(&of_models)
            },
            largest_batch: BatchHeader::frames(batch),
        };
        Plumbing::new(&ends, peers, counters)
    }

    fn start_executors(&self, stop: &Arc<AtomicBool>) -> Result<Vec<Loading>, StartError> {
        let setup = Setup {
            config: Arc::clone(&self.config),
            clock: self.clock.clone(),
            stop: Arc::clone(stop),
            say: Arc::clone(&self.say),
        };
        let placements = self.layout.executors.iter().enumerate();
        Ok(placements
            .map(|(at, &placement)| executors::start(at, placement, setup.clone()))
            .collect::<Result<_, _>>()?)
    }

    /// What there is to know of every model, from the configuration and the executors; and of the
    /// machine.
    fn find_out(&self, loading: &[Loading]) -> Result<Findings, StartError> {
        let mut found: Vec<Option<Found>> = self.config.models.iter().map(|_| None).collect();
        for (at, executor) in loading.iter().enumerate().rev() {
            let report = executor.wait().ok_or(StartError::Died(at))?;
            found = report.map_err(|mistake| Diagnostics(vec![mistake]))?;
        }
        let mut infos = Vec::new();
        let mut profiles = Vec::new();
        for (at, (model, found)) in self.config.models.iter().zip(found).enumerate() {
            let Known { signature, profile } = settle(model, found)?;
            infos.push(ModelInfo {
                id: ModelId(at as u32),
                name: model.name.clone(),
                version: model.version,
                platform: platform(&model.source).to_owned(),
                signature,
                slo: model.slo,
                max_batch: profile.max_batch(),
                class: Class::new(model.priority).unwrap_or(Class::LOWEST),
                thread: at % self.layout.models.len(),
                state: SlotState::Serving,
            });
            profiles.push(profile);
        }
        let vacant = infos.len()..self.config.model_slots().len();
        infos.extend(vacant.map(|at| ModelInfo::vacant(ModelId(at as u32), at % self.layout.models.len())));
        let lateness =
            self.layout.ranks.iter().map(|&placement| measure_lateness(placement, &self.clock)).max();
        Ok(Findings { models: infos.into(), profiles, lateness: lateness.unwrap_or_default() })
    }

    fn emulated_backend(&self, models: &[ModelInfo], Wiring { inbox, answers }: Wiring) -> EmulatedBackend {
        let mut groups = self.division.groups.iter().filter(|group| group.kind == ExecutorKind::Emulated);
        // Their numbers follow each other.
        let first = groups.next().map_or(0..0, |group| group.gpus.clone());
        let end = groups.next_back().map_or(first.end, |last| last.gpus.end);
        let outputs = models.iter().map(|model| output_range(&model.signature)).collect();
        EmulatedBackend::new(inbox, answers, first.start, end - first.start, outputs, self.clock.now())
    }

    fn rank_thread(
        &self,
        at: usize,
        plumbing: &mut Plumbing,
    ) -> Result<RankThread<Consumer<Completion>>, StartError> {
        let lanes = self.lanes();
        let terms = |group: &Group| ClusterTerms {
            gpus: group.gpus.len(),
            keep_late: self.config.drop == DropRule::Fcfs,
            completion_delay: self.config.network.control,
            first_gpu: group.gpus.start,
        };
        let terms: Vec<ClusterTerms> = self.division.of_rank(at).map(terms).collect();
        let sub_cluster = |terms: &ClusterTerms| {
            let state = RankState::new(terms.gpus, lanes.count(), terms.keep_late, terms.completion_delay);
            SubCluster::new(state.among_classes(lanes.class_of_each()), terms.first_gpu)
        };
        let classes = lanes.class_of_each();
        let create = |to| RankRecorder::create(to, &rank_role(at), lanes.count(), &classes, &terms);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        let (links, completions) = plumbing.rank_thread(at);
        Ok(RankThread {
            monitor: RankMonitor { counting: plumbing.counters.of_rank(at), recorder },
            clusters: terms.iter().map(sub_cluster).collect(),
            cluster_of: lanes.each(&self.division.place_on_rank()),
            backfill: BackfillPhase::default(),
            messages: links.messages,
            completions,
            grants: Grants { thread_of: Arc::clone(&plumbing.thread_of), threads: links.grants },
        })
    }

    fn model_thread(
        &self,
        at: usize,
        Findings { models, profiles, lateness }: &Findings,
        plumbing: &mut Plumbing,
    ) -> Result<ModelThread<Consumer<Request>, RingOutlets>, StartError> {
        let (now, lanes) = (self.clock.now(), self.lanes());
        let own: Vec<&ModelInfo> = models.iter().filter(|model| model.thread == at).collect();
        let mut place = vec![None; models.len()];
        let (mut queues, mut names) = (Vec::new(), Vec::new());
        let make_terms = self.terms();
        for class in QueueIds::classes() {
            for (nth, model) in own.iter().enumerate() {
                let lane = lanes.of(model.id, class);
                place[model.id.0 as usize] = Some(nth as u32);
                names.push((name_of_lane(&model.name, class), class));
                let from = measures_from(now, nth, own.len());
                let terms = |slo, profile| make_terms(lane, slo, profile, *lateness);
                queues.push(match profiles.get(model.id.0 as usize) {
                    Some(profile) => {
                        queue_of_class(terms(model.slo, profile.clone()), class, model.class, from)
                    }
                    None => ModelQueue::of_nothing(terms(Nanos::ZERO, Profile::of_nothing()), from),
                });
            }
        }
        let largest_batch = if self.changes_later() { limits::MAX_BATCH } else { 1 };
        let largest_batch = own.iter().map(|model| model.max_batch).fold(largest_batch, usize::max);
        let ModelEnds { requests, links, frames, answers } = plumbing.model_thread(at);
        let outlets = RingOutlets {
            backends: frames,
            backend_of: Arc::clone(&plumbing.backend_of),
            frontends: answers,
            largest_batch_frames: BatchHeader::frames(largest_batch),
        };
        let outbox =
            Outbox::new(at, Arc::clone(&plumbing.rank_of), links.messages, outlets).of_classes(lanes);
        let named = names.iter().zip(&queues).map(|((name, class), queue)| (&**name, *class, queue.terms()));
        let (role, first_batch) = (format!("model-{at}"), outbox.next_batch());
        let create = |to| ModelRecorder::create(to, &role, named, first_batch);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        Ok(ModelThread {
            monitor: ModelMonitor { counting: plumbing.counters.of_models(at), recorder },
            agenda: Agenda::new(queues.len()),
            queues,
            place,
            requests,
            grants: links.grants,
            outbox,
            changes: None,
            reservations: ReservationProgress::new(own.len(), self.layout.ranks.len()),
        })
    }
}

/// An empty queue for requests of this class, of a model that is of class `own` itself.
pub(crate) fn queue_of_class(terms: QueueConfig, class: Class, own: Class, from: Nanos) -> ModelQueue {
    let queue = ModelQueue::new(terms, from);
    match class {
        Class::HIGHEST if own == class => queue,
        Class::HIGHEST => queue.unexpected(),
        _ => queue.below_others(),
    }
}

/// What a recording calls a model's lane of this class.
fn name_of_lane(model: &str, class: Class) -> String {
    match class {
        Class::HIGHEST => model.to_owned(),
        lower => format!("{model} (class {})", lower.number()),
    }
}

/// Both ends of a way for changes: the control thread's goes to `keep`.
fn taker<T>(keep: impl FnOnce(Giver<T>)) -> Taker<T> {
    let (giver, taker) = changes();
    keep(giver);
    taker
}

/// What there is to know of a model before it is served.
pub(crate) struct Known {
    pub(crate) signature: Signature,
    pub(crate) profile: Profile,
}

/// What is known of a model from its words and from loading it, or what is wrong with it.
pub(crate) fn settle(model: &ModelConfig, found: Option<Found>) -> Result<Known, Diagnostics> {
    let measured = found.as_ref().and_then(|found| found.measured.as_ref());
    let profile = match (&model.profile, measured) {
        (ProfileSource::Given(profile), _) => profile.clone(),
        (ProfileSource::Measure, Some(table)) => Profile::measured(&table.latencies()).map_err(|error| {
            Diagnostics(vec![model.locations.max_batch.diagnostic(error, "lower max_batch")])
        })?,
        (ProfileSource::Measure, None) => unreachable!("the first executor measures what has to be"),
    };
    let alone = profile.latency(1);
    if alone > model.slo {
        let wrong = format!(
            "{:.3} ms is less than one request takes, {:.3} ms",
            model.slo.as_millis_f64(),
            alone.as_millis_f64()
        );
        let right = "give the time that a batch of a few takes, and as much again for waiting";
        return Err(Diagnostics(vec![model.locations.slo.diagnostic(wrong, right)]));
    }
    let signature = match (&model.source, found) {
        (ModelSource::Emulated { signature }, _) => signature.clone(),
        (ModelSource::Cpu { .. }, Some(found)) => found.signature,
        (ModelSource::Cpu { .. }, None) => unreachable!("an executor has loaded every CPU model"),
    };
    let undeclared = model.declared.check(&signature);
    if !undeclared.is_empty() {
        return Err(Diagnostics(undeclared));
    }
    Ok(Known { signature, profile })
}

/// What runs a model, in the API's words.
pub(crate) fn platform(source: &ModelSource) -> &'static str {
    match source {
        ModelSource::Cpu { .. } => "onnx_rten",
        ModelSource::Emulated { .. } => "emulated",
    }
}

/// Where a row's outputs lie in its slot: behind its inputs.
pub(crate) fn output_range(signature: &Signature) -> Range<usize> {
    signature.input_bytes()..signature.input_bytes() + signature.output_bytes()
}
