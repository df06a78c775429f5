//! The start of one host of an engine that is spread over several: its role's threads as in one
//! process, and a [`Host`] at the ends of the rings whose other threads are elsewhere.

use super::assembly::{Assembly, SIDE_CAPACITY, SchedulerAids};
use super::builder::EngineBuilder;
use super::error::StartError;
use super::findings::Findings;
use super::host_plan::HostPlan;
use super::identity::HostIdentity;
use super::rings::EngineRings;
use super::sub_clusters::BackendSpec;
use crate::config::{ExecutorKind, Role};
use crate::runtime::backends::executors::{self, ExecutorIdentity, LoadingExecutor};
use crate::runtime::backends::model_faults::ModelFaults;
use crate::runtime::backends::watchdog::Watchdog;
use crate::runtime::counters::Counters;
use crate::runtime::frontend::model_table::ModelTable;
use crate::runtime::frontend::{
    FirstIds, Frontend, FrontendPeer, FrontendSetup, ModelInfo, QueryTable, largest_slot, slot_classes,
};
use crate::runtime::hosts::{
    BackendHost, BackendOfFrontend, BackendParts, BackendPlace, DelayFeed, DelayWays, DirectMemory, FedModel,
    FrontendHost, FrontendOfBackend, FrontendPlace, FrontendRings, HostedRings, LocalFrontend, PresenceRings,
    RowBytes, SchedulerHost,
};
use crate::runtime::links::SlotUse;
use crate::runtime::profiling::LearnedProfiles;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_gpu::{EmulatedExecutor, Executor};
use symphony_scheduler::limits;
use symphony_transport::message::{Request, Response};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::{MAX_SLOTS_PER_CLASS, Slab, SlabOwner, SlabPages, SlabView, SlotClass};
use symphony_transport::wire::GpuPresence;

/// The presences that a ring to a RankThread holds for each GPU: more than come in a duty cycle.
const PRESENCES_PER_GPU: usize = 8;

impl EngineBuilder {
    /// Puts the process of one host together. `emulate` makes the executor of its emulated GPUs of
    /// the engine's.
    ///
    /// Errors: [`StartError`].
    pub(super) fn assemble_host<E: Executor<Model = std::ops::Range<usize>> + 'static>(
        &self,
        plan: &HostPlan,
        emulate: impl FnOnce(EmulatedExecutor) -> E,
    ) -> Result<Assembly, StartError> {
        let stop_executors = Arc::new(AtomicBool::new(false));
        let own = match plan.identity.role {
            Role::Backend => self.start_executors(&stop_executors)?,
            Role::Frontend | Role::Scheduler => Vec::new(),
        };
        let probes = self.start_probes(plan, &stop_executors)?;
        let loading: Vec<LoadingExecutor> = own.into_iter().chain(probes).collect();
        let findings = self.find_out(&loading)?;
        match plan.identity.role {
            Role::Frontend => self.assemble_frontends(plan, findings, stop_executors),
            Role::Scheduler => self.assemble_scheduler(plan, findings, stop_executors),
            Role::Backend => self.assemble_backend(plan, findings, (stop_executors, loading), emulate),
        }
    }

    /// Starts an executor of each kind that the host has none of, to load the models of that kind:
    /// each host finds out itself what its models take and give. They run nothing.
    fn start_probes(
        &self,
        plan: &HostPlan,
        stop: &Arc<AtomicBool>,
    ) -> Result<Vec<LoadingExecutor>, StartError> {
        let runs =
            |kind: ExecutorKind| plan.identity.role == Role::Backend && self.config.kinds().contains(&kind);
        let kinds: BTreeSet<ExecutorKind> =
            self.config.models.iter().map(|model| model.source.kind()).collect();
        let kinds = kinds.into_iter().filter(|kind| kind.has_own_thread() && !runs(*kind));
        let Some(placement) = self.layout.links else { return Ok(Vec::new()) };
        let probe = |kind: ExecutorKind| {
            let role = format!("{}-probe", kind.name());
            let identity = ExecutorIdentity { kind, role, gpu: 0, device: 0, measures: true };
            Ok(executors::start(identity, placement, self.executor_setup(stop))?)
        };
        kinds.map(probe).collect()
    }

    fn assemble_frontends(
        &self,
        plan: &HostPlan,
        findings: Findings,
        stop_executors: Arc<AtomicBool>,
    ) -> Result<Assembly, StartError> {
        let numbers = plan.identity.frontends(&plan.whole);
        let (mut frontends, peers) = self.frontends(numbers.len(), 0, &findings)?;
        let counters = Counters::new(0, 0, Vec::new());
        let counters =
            counters.with_frontends(frontends.iter().map(|frontend| Arc::clone(frontend.counts())));
        let model_table = self.model_table(&findings);
        frontends.iter_mut().for_each(|frontend| drop(frontend.follow(Arc::clone(&model_table))));
        let local = |FrontendPeer { requests, responses, slab }| {
            let ends = requests.into_iter().zip(responses).map(|(requests, responses)| LocalFrontend {
                requests,
                responses,
                slab: slab.clone(),
            });
            ends.collect::<Vec<_>>()
        };
        let slabs: Vec<SlabView> = peers.iter().map(|peer| peer.slab.clone()).collect();
        let local = peers.into_iter().flat_map(local).collect();
        let terms = plan.terms(&findings.models);
        let [scheduler, backends] = plan.split(&terms);
        let scheduler = scheduler.into_iter().next().expect("there is one scheduler");
        let (grace, now) = (self.config.faults.grace, self.clock.now());
        let outputs = findings.models.iter().map(|model| model.signature.output_bytes()).max();
        let slots = SlotUse::Serves { outputs: outputs.unwrap_or(0) };
        let memories = self.open_memory(plan, slots, &slabs, backends.len())?;
        let backends = backends.into_iter().zip(memories);
        let backends = backends.map(|(terms, memory)| BackendOfFrontend { terms, memory }).collect();
        let host = FrontendHost::new(scheduler, backends, (numbers.start, local), grace, now);
        Ok(Assembly {
            findings,
            stages: Default::default(),
            threads: Vec::new(),
            stop_executors,
            frontends,
            model_table,
            model_slots: None,
            tuner: None,
            profiles: None,
            counters,
            links: Some(plan.links(host)),
        })
    }

    fn assemble_scheduler(
        &self,
        plan: &HostPlan,
        findings: Findings,
        stop_executors: Arc<AtomicBool>,
    ) -> Result<Assembly, StartError> {
        let whole = &plan.whole;
        let learned = self.config.learned_profiles.as_deref().map(LearnedProfiles::open).transpose()?;
        let backend =
            |host: HostIdentity| BackendSpec { kind: host.executors(whole).kind, gpus: host.gpus(whole) };
        // Rings are made in the order of GPUs.
        let mut hosts: Vec<HostIdentity> = HostIdentity::all(whole, Role::Backend).collect();
        hosts.sort_by_key(|host| host.gpus(whole).start);
        let backends: Vec<BackendSpec> = hosts.iter().map(|host| backend(*host)).collect();
        let name = |host: &HostIdentity| host.host(whole).name.clone();
        let roles = hosts.iter().map(|host| (name(host), host.gpus(whole))).collect();
        let counters = Counters::new(self.layout.models.len(), self.layout.ranks.len(), roles);
        let frontends: u32 =
            HostIdentity::all(whole, Role::Frontend).map(|of| of.frontends(whole).end).max().unwrap_or(0);
        let (peers, mut ends): (Vec<FrontendPeer>, Vec<Option<FrontendRings>>) =
            (0..frontends).map(|_| self.remote_peer()).map(|(peer, rings)| (peer, Some(rings))).unzip();
        let mut rings = self.rings(&findings, &backends, peers, counters.clone());
        let model_table = self.model_table(&findings);
        let mut tuner = self.tuner(&model_table, &counters);
        let mut profiles = self.profile_keeper(&model_table, &counters, learned);
        let (presence, from_links) = self.presence_rings(&rings);
        let mut delays = DelayWays::default();
        let aids = SchedulerAids {
            profiles: &mut profiles,
            tuner: &mut tuner,
            channels: None,
            delays: Some(&mut delays),
        };
        let [models, ranks] = self.scheduler_threads(&findings, &mut rings, aids, from_links)?;
        let (terms, now) = (plan.terms(&findings.models), self.clock.now());
        let frontend_places = HostIdentity::all(whole, Role::Frontend).map(|host| {
            let numbers = host.frontends(whole);
            let rings = ends[numbers.start as usize..numbers.end as usize].iter_mut();
            let rings = rings.filter_map(Option::take).collect();
            FrontendPlace { terms: terms.with(host), first: numbers.start, rings }
        });
        let backend_places = HostIdentity::all(whole, Role::Backend).map(|host| {
            let gpus = host.gpus(whole);
            let at = hosts.iter().position(|other| *other == host).expect("it is one of them");
            let (first_gpu, gpus) = (gpus.start, gpus.len());
            BackendPlace { terms: terms.with(host), first_gpu, gpus, rings: rings.backend(at) }
        });
        let (frontends, backends) = (frontend_places.collect(), backend_places.collect());
        let fed = findings.models.iter().map(|model| FedModel {
            thread: model.thread,
            input_bytes: model.signature.input_bytes(),
            spare: model.slo - model.profile.latency(1),
        });
        let shown = Arc::clone(counters.allowed_delays());
        let feed = DelayFeed::new(self.config.network, fed.collect(), delays, shown);
        let host = SchedulerHost::new(frontends, backends, &rings.thread_of, presence, feed, now);
        Ok(Assembly {
            stages: [models, ranks, Vec::new()],
            threads: Vec::new(),
            stop_executors,
            frontends: vec![self.observer(&findings)?],
            model_table,
            model_slots: None,
            tuner,
            profiles: Some(profiles),
            counters,
            links: Some(plan.links(host)),
            findings,
        })
    }

    /// Makes the rings of a frontend on another host, and their other ends.
    fn remote_peer(&self) -> (FrontendPeer, FrontendRings) {
        // Those of a connection that is over may still be inside when as many come again.
        let room = 2 * self.config.http.max_in_flight.max(SIDE_CAPACITY);
        let threads = self.layout.models.len();
        let (to_threads, requests): (Vec<Producer<Request>>, Vec<Consumer<Request>>) =
            (0..threads).map(|_| ring(limits::REQUEST_RING)).unzip();
        let (responses, from_threads): (Vec<Producer<Response>>, Vec<Consumer<Response>>) =
            (0..threads).map(|_| ring(room)).unzip();
        let (_, slab) =
            Slab::new(&[SlotClass { slot_bytes: 1, count: 1 }], 0).expect("a slot of a cache line");
        let rings = FrontendRings { requests: to_threads, responses: from_threads, room };
        (FrontendPeer { requests, responses, slab }, rings)
    }

    /// Makes the rings by which RankThreads are told which GPUs are there.
    fn presence_rings(&self, rings: &EngineRings) -> (PresenceRings, Vec<Consumer<GpuPresence>>) {
        let gpus = rings.gpu_backends.len();
        let mut rank_of = vec![0; gpus];
        for group in &self.sub_clusters.groups {
            rank_of[group.gpus.start as usize..group.gpus.end as usize].fill(group.rank as u32);
        }
        let ring = |_| ring(PRESENCES_PER_GPU * gpus.max(1));
        let (to_ranks, from_links) = self.layout.ranks.iter().map(ring).unzip();
        (PresenceRings { rank_of: rank_of.into(), rings: to_ranks }, from_links)
    }

    fn assemble_backend<E: Executor<Model = std::ops::Range<usize>> + 'static>(
        &self,
        plan: &HostPlan,
        findings: Findings,
        (stop_executors, loading): (Arc<AtomicBool>, Vec<LoadingExecutor>),
        emulate: impl FnOnce(EmulatedExecutor) -> E,
    ) -> Result<Assembly, StartError> {
        let backends = self.sub_clusters.backends();
        let roles = backends.iter().map(|backend| (backend.role(), backend.gpus.clone())).collect();
        let counters = Counters::new(0, 0, roles);
        let gpus = plan.identity.gpus(&plan.whole);
        let (owner, view) = self.local_slab(&findings, gpus.len())?;
        let (answers, responses): (Vec<Producer<Response>>, Vec<Consumer<Response>>) =
            (0..=backends.len()).map(|_| ring(owner.capacity())).unzip();
        let (_, unused) = ring(1);
        let peer = FrontendPeer { requests: vec![unused], responses: answers, slab: view };
        let mut rings = self.rings(&findings, &backends, vec![peer], counters.clone());
        let model_table = self.model_table(&findings);
        let model_faults = Arc::new(ModelFaults::new(Arc::clone(&model_table), false));
        let mut threads = Vec::new();
        let mut watched = Vec::new();
        // The probes come behind, and end when they are dropped.
        let with_threads = backends.iter().filter(|backend| backend.kind.has_own_thread()).count();
        for (at, loading) in loading.into_iter().take(with_threads).enumerate() {
            watched.push(loading.wire(rings.backend(at), None, &model_faults, &findings.merged()));
        }
        if !watched.is_empty() {
            let setup = self.executor_setup(&stop_executors);
            threads.push(Watchdog::spawn(watched, setup, Arc::clone(&model_faults))?);
        }
        let mut emulated = Vec::new();
        if let (Some(placement), Some(spec)) = (self.layout.emulated, backends.last()) {
            let ends = rings.backend(backends.len() - 1);
            let backend = self.emulated_backend(spec, &findings.models, ends, None, &model_faults, emulate);
            emulated.push((placement, self.member(spec.role(), backend)));
        }
        let to_backends = rings.model_thread(0, findings.largest_batch()).outlets;
        let hosted = HostedRings {
            batches: to_backends.backends,
            gpu_backends: to_backends.gpu_backends,
            // The first is a ModelThread's, of which there is none.
            responses: responses.into_iter().skip(1).collect(),
            completions: rings.rank_thread(0).1,
        };
        let terms = plan.terms(&findings.models);
        let [scheduler, frontends] = plan.split(&terms);
        let memories =
            self.open_memory(plan, SlotUse::Fetches, std::slice::from_ref(owner.view()), frontends.len())?;
        let of_frontend =
            HostIdentity::all(&plan.whole, Role::Frontend).zip(frontends.into_iter().zip(memories));
        let bytes = |model: &ModelInfo| RowBytes {
            inputs: model.signature.input_bytes(),
            outputs: model.signature.output_bytes(),
        };
        let parts = BackendParts {
            scheduler: scheduler.into_iter().next().expect("there is one scheduler"),
            frontends: of_frontend
                .map(|(host, (terms, memory))| FrontendOfBackend {
                    terms,
                    frontends: host.frontends(&plan.whole).len() as u32,
                    memory,
                })
                .collect(),
            rings: hosted,
            slab: owner,
            row_bytes: findings.models.iter().map(bytes).collect(),
            first_gpu: gpus.start,
            gpus: gpus.len(),
        };
        let host = BackendHost::new(parts, self.clock.now());
        Ok(Assembly {
            frontends: vec![self.observer(&findings)?],
            findings,
            stages: [Vec::new(), Vec::new(), emulated],
            threads,
            stop_executors,
            model_table,
            model_slots: None,
            tuner: None,
            profiles: None,
            counters,
            links: Some(plan.links(host)),
        })
    }

    /// Opens the device that moves tensors, if CONFIG asks for one.
    ///
    /// Errors: [`StartError::Tensors`].
    fn open_memory(
        &self,
        plan: &HostPlan,
        slots: SlotUse,
        slabs: &[SlabView],
        links: usize,
    ) -> Result<Vec<Option<Box<dyn DirectMemory>>>, StartError> {
        (self.open_memory)(&plan.whole.links, slots, slabs, links).map_err(StartError::Tensors)
    }

    /// Makes the frontend of a host without clients, behind which its metrics are read: it has no
    /// models, and no way to a thread.
    fn observer(&self, findings: &Findings) -> Result<Frontend, StartError> {
        let setup = FrontendSetup {
            id: 0,
            first_ids: FirstIds::default(),
            clock: self.clock.clone(),
            bells: self.bells.clone(),
            models: Arc::new([]),
            later_row: 1,
            model_threads: 0,
            answering_threads: 0,
            capacity: 1,
            slab_bytes: 0,
            pages: SlabPages::Plain,
            result_delay: self.config.network.result,
            lateness: findings.lateness,
            grace: self.config.faults.grace,
            accepting: Arc::clone(&self.accepting),
            faults: self.faults.clone(),
        };
        Ok(Frontend::new(setup)?.0)
    }

    /// Makes the slots of a backend: for all rows that its GPUs can have, within the memory that
    /// CONFIG allows.
    fn local_slab(&self, findings: &Findings, gpus: usize) -> Result<(SlabOwner, SlabView), StartError> {
        let batch = findings.models.iter().map(|model| model.max_batch).max().unwrap_or(1).max(1);
        let slots = (gpus * limits::MAX_OUTSTANDING_BATCHES * batch).min(MAX_SLOTS_PER_CLASS);
        let largest = largest_slot(&findings.models, 0);
        let bytes = self.config.memory.slab_bytes().max(largest);
        let pages = self.slot_pages();
        let classes = slot_classes(&findings.models, 0, slots, bytes, pages);
        let (owner, view) = Slab::on_pages(&classes, 0, pages, 0)?;
        self.log_pages([&view]);
        Ok((owner.limited_to(slots, bytes), view))
    }

    fn model_table(&self, findings: &Findings) -> Arc<ModelTable> {
        ModelTable::with_queries(Arc::clone(&findings.models), QueryTable::new(&self.config.queries))
    }
}
