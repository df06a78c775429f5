//! Start-up: checks what is asked for against the limits, loads and measures the models, and puts an [`Engine`] together:
//! its threads' parts, the rings between them, the seats that they take.

use super::agenda::Agenda;
use super::agent::{Crew, Idle, Member, Seat, measure_lateness};
use super::counters::Counters;
use super::emulated_backend::EmulatedBackend;
use super::executors::{self, Found, Loading, Say, Setup, Wiring};
use super::frontend::{Frontend, FrontendPeer, FrontendSetup, ModelInfo};
use super::layout::{Layout, rank_role};
use super::model_thread::{ModelThread, Outbox, RingOutlets};
use super::plumbing::{Ends, ModelEnds, Plumbing};
use super::rank_thread::{Grants, RankThread, RankWatch, SubCluster};
use super::sub_clusters::{Division, Group};
use super::threads::{measures_from, slack_for};
use super::watch::ModelWatch;
use super::{Engine, Options, Stage, StartError};
use crate::clock::{Clock, Nanos};
use crate::config::{Config, ExecutorKind, Mistakes, ModelConfig, ModelSource, ProfileSource};
use crate::limits;
use crate::model::selection::DropRule;
use crate::model::{ModelQueue, Terms};
use crate::policy;
use crate::profile::Profile;
use crate::rank::RankState;
use crate::recorder::{ClusterTerms, ModelRecorder, RankRecorder, RecordConfig};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_gpu::Signature;
use symphony_transport::message::{BatchHeader, Completion, ModelId, Request};
use symphony_transport::ring::Consumer;

/// A lateness above this part of an SLO is not allowed for: on a machine as busy as that, allowing for it would leave
/// no time to wait for a batch to grow.
const LATENESS_IN_SLO: u64 = 50;

/// The crews of an engine: a thread each.
#[derive(Default)]
struct Crews(Vec<(Seat, Crew)>);

impl Crews {
    /// Adds a role: to the crew of its core if it shares that, else to one of its own.
    fn add(&mut self, seat: Seat, member: Member) {
        match self.0.iter_mut().find(|(taken, _)| *taken == seat && seat.idle == Idle::Nap) {
            Some((_, crew)) => crew.0.push(member),
            None => self.0.push((seat, Crew(vec![member]))),
        }
    }
}

/// What is known while an engine is put together.
pub(super) struct Builder {
    config: Arc<Config>,
    layout: Layout,
    clock: Clock,
    say: Say,
    division: Division,
    deferral: &'static dyn policy::Deferral,
    options: Options,
}

/// What start-up has found out about the models and the machine.
struct Findings {
    models: Arc<[ModelInfo]>,
    profiles: Vec<Profile>,
    /// How late threads see that a time has come.
    lateness: Nanos,
}

impl Builder {
    /// Takes in what is asked for.
    ///
    /// Errors: a limit would be exceeded, or the policy is none for pinned threads.
    pub(super) fn new(
        config: Config,
        layout: Layout,
        say: Say,
        options: Options,
    ) -> Result<Builder, StartError> {
        let gpus: usize = config.executors.iter().map(|executor| executor.count).sum();
        StartError::at_most("GPUs and other executors", gpus, limits::MAX_GPUS)?;
        StartError::at_most("models", config.models.len(), limits::MAX_MODELS)?;
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
    pub(super) fn build(self, frontends: usize) -> Result<(Engine, Vec<Frontend>), StartError> {
        StartError::at_most("frontends", frontends, limits::MAX_FRONTENDS)?;
        self.options.record.iter().try_for_each(RecordConfig::prepare)?;
        let stop_executors = Arc::new(AtomicBool::new(false));
        let loading = self.start_executors(&stop_executors)?;
        let findings = self.find_out(&loading)?;
        let accepting = Arc::new(AtomicBool::new(true));
        let backends = self.backends(loading.len() as u32);
        let backend_threads = backends.len();
        let (ends, peers) = self.frontends(frontends, backend_threads, &findings, &accepting)?;
        let counters = Counters::new(self.layout.models.len(), self.layout.ranks.len(), backends);
        let mut plumbing = self.plumbing(&findings, backend_threads, peers, counters.clone());
        let mut threads = Vec::new();
        for (at, loading) in loading.into_iter().enumerate() {
            threads.push(loading.wire(plumbing.backend(at)));
        }
        let mut stages: [Stage; 3] = Default::default();
        let mut crews = Crews::default();
        for (at, &seat) in self.layout.models.iter().enumerate() {
            let thread = self.model_thread(at, &findings, &mut plumbing)?;
            crews.add(seat, stages[0].member(format!("model-{at}"), thread));
        }
        for (at, &seat) in self.layout.ranks.iter().enumerate() {
            crews.add(seat, stages[1].member(rank_role(at), self.rank_thread(at, &mut plumbing)?));
        }
        if let Some(seat) = self.layout.emulated {
            let backend = self.emulated_backend(&findings.models, plumbing.backend(backend_threads - 1));
            crews.add(seat, stages[2].member("emulated".to_owned(), backend));
        }
        for (seat, crew) in crews.0 {
            threads.push(crew.spawn(seat, self.clock.clone(), self.options.seated.clone())?);
        }
        let Findings { models, profiles, lateness } = findings;
        let layout = self.layout;
        let engine = Engine {
            models,
            profiles,
            layout,
            clock: self.clock,
            lateness,
            accepting,
            counters,
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
        let ends = Ends {
            model_threads: self.layout.models.len(),
            rank_threads: self.layout.ranks.len(),
            backend_threads,
            division: &self.division,
            thread_of: findings.models.iter().map(|model| model.thread as u32).collect(),
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
        let seats = self.layout.executors.iter().enumerate();
        Ok(seats.map(|(at, &seat)| executors::start(at, seat, setup.clone())).collect::<Result<_, _>>()?)
    }

    /// What there is to know of every model, from the configuration and the executors; and of the machine.
    fn find_out(&self, loading: &[Loading]) -> Result<Findings, StartError> {
        let mut found: Vec<Option<Found>> = self.config.models.iter().map(|_| None).collect();
        for (at, executor) in loading.iter().enumerate().rev() {
            let report = executor.wait().ok_or(StartError::Died(at))?;
            found = report.map_err(|mistake| Mistakes(vec![mistake]))?;
        }
        let mut infos = Vec::new();
        let mut profiles = Vec::new();
        for (at, (model, found)) in self.config.models.iter().zip(found).enumerate() {
            let (signature, profile) = settle(model, found)?;
            infos.push(ModelInfo {
                id: ModelId(at as u32),
                name: model.name.clone(),
                version: model.version,
                platform: platform(&model.source).to_owned(),
                signature,
                slo: model.slo,
                max_batch: profile.max_batch(),
                thread: at % self.layout.models.len(),
            });
            profiles.push(profile);
        }
        let lateness = self.layout.ranks.iter().map(|&seat| measure_lateness(seat, &self.clock)).max();
        Ok(Findings { models: infos.into(), profiles, lateness: lateness.unwrap_or_default() })
    }

    fn emulated_backend(&self, models: &[ModelInfo], Wiring { inbox, answers }: Wiring) -> EmulatedBackend {
        let mut groups = self.division.groups.iter().filter(|group| group.kind == ExecutorKind::Emulated);
        // Their numbers follow each other.
        let first = groups.next().map_or(0..0, |group| group.gpus.clone());
        let end = groups.next_back().map_or(first.end, |last| last.gpus.end);
        let outputs: Arc<[Range<usize>]> =
            models.iter().map(|model| output_range(&model.signature)).collect();
        EmulatedBackend::new(inbox, answers, first.start, end - first.start, outputs, self.clock.now())
    }

    fn rank_thread(
        &self,
        at: usize,
        plumbing: &mut Plumbing,
    ) -> Result<RankThread<Consumer<Completion>>, StartError> {
        let models = self.config.models.len();
        let terms = |group: &Group| ClusterTerms {
            gpus: group.gpus.len(),
            keep_late: self.config.drop == DropRule::Fcfs,
            completion_delay: self.config.network.control,
            first_gpu: group.gpus.start,
        };
        let terms: Vec<ClusterTerms> = self.division.of_rank(at).map(terms).collect();
        let sub_cluster = |terms: &ClusterTerms| {
            let state = RankState::new(terms.gpus, models, terms.keep_late, terms.completion_delay);
            SubCluster::new(state, terms.first_gpu)
        };
        let create = |to| RankRecorder::create(to, &rank_role(at), models, &terms);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        let (links, completions) = plumbing.rank_thread(at);
        Ok(RankThread {
            watch: RankWatch { counting: plumbing.counters.of_rank(at), recorder },
            clusters: terms.iter().map(sub_cluster).collect(),
            cluster_of: self.division.place_on_rank(),
            words: links.words,
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
        let now = self.clock.now();
        let mut place = vec![None; models.len()];
        let mut queues = Vec::new();
        let mut largest_batch = 1;
        let own = models.len().div_ceil(self.layout.models.len());
        for model in models.iter().filter(|model| model.thread == at) {
            let index = model.id.0 as usize;
            place[index] = Some(queues.len() as u32);
            largest_batch = largest_batch.max(model.max_batch);
            let terms = Terms {
                model: model.id,
                profile: profiles[index].clone(),
                slo: model.slo,
                network: self.config.network,
                drop: self.config.drop,
                deferral: self.deferral,
                slack: slack_for((*lateness).min(Nanos(model.slo.0 / LATENESS_IN_SLO))),
                gpus: self.division.gpus_for(index),
            };
            queues.push(ModelQueue::new(terms, measures_from(now, queues.len(), own)));
        }
        let ModelEnds { requests, links, frames, answers } = plumbing.model_thread(at);
        let outlets = RingOutlets {
            backends: frames,
            backend_of: Arc::clone(&plumbing.backend_of),
            frontends: answers,
            largest_batch_frames: BatchHeader::frames(largest_batch),
        };
        let outbox = Outbox::new(at, Arc::clone(&plumbing.rank_of), links.words, outlets);
        let names = models.iter().filter(|model| model.thread == at).map(|model| model.name.as_str());
        let named = names.zip(queues.iter().map(ModelQueue::terms));
        let (role, first_batch) = (format!("model-{at}"), outbox.next_batch());
        let create = |to| ModelRecorder::create(to, &role, named, first_batch);
        let recorder = self.options.record.as_ref().map(create).transpose()?;
        Ok(ModelThread {
            watch: ModelWatch { counting: plumbing.counters.of_models(at), recorder },
            agenda: Agenda::new(queues.len()),
            queues,
            place,
            requests,
            grants: links.grants,
            outbox,
        })
    }
}

/// A model's signature and profile, or what is wrong with them.
fn settle(model: &ModelConfig, found: Option<Found>) -> Result<(Signature, Profile), Mistakes> {
    let measured = found.as_ref().and_then(|found| found.measured.as_ref());
    let profile = match (&model.profile, measured) {
        (ProfileSource::Given(profile), _) => profile.clone(),
        (ProfileSource::Measure, Some(table)) => Profile::measured(&table.latencies())
            .map_err(|error| Mistakes(vec![model.places.max_batch.mistake(error, "lower max_batch")]))?,
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
        return Err(Mistakes(vec![model.places.slo.mistake(wrong, right)]));
    }
    let signature = match (&model.source, found) {
        (ModelSource::Emulated { signature }, _) => signature.clone(),
        (ModelSource::Cpu { .. }, Some(found)) => found.signature,
        (ModelSource::Cpu { .. }, None) => unreachable!("an executor has loaded every CPU model"),
    };
    let undeclared = model.declared.check(&signature);
    if !undeclared.is_empty() {
        return Err(Mistakes(undeclared));
    }
    Ok((signature, profile))
}

fn platform(source: &ModelSource) -> &'static str {
    match source {
        ModelSource::Cpu { .. } => "onnx_rten",
        ModelSource::Emulated { .. } => "emulated",
    }
}

/// Where a row's outputs lie in its slot: behind its inputs.
fn output_range(signature: &Signature) -> Range<usize> {
    signature.input_bytes()..signature.input_bytes() + signature.output_bytes()
}
