//! Start-up: checks the configuration against the limits, loads and measures the models, and puts
//! an [`Engine`] together: its agents, the rings between them, and their threads.
//!
//! Invariant: a start that fails leaves no thread behind. Nothing of this room runs once the engine
//! does.

mod agents;
mod assembly;
mod builder;
mod digests;
mod error;
mod findings;
mod host_plan;
mod identity;
pub(crate) mod layout;
mod options;
mod policy;
pub(crate) mod rings;
mod roles;
mod sub_clusters;

pub(crate) use assembly::Assembly;
pub use error::StartError;
pub(crate) use host_plan::HostPlan;
pub use identity::HostIdentity;
pub use options::Options;

use crate::config::{Config, Role, TensorTransport};
use crate::recorder::RecordConfig;
use crate::runtime::backends::model_faults::ModelFaults;
use crate::runtime::backends::watchdog::Watchdog;
use crate::runtime::callbacks::{Progress, no_progress};
use crate::runtime::clock::Clock;
use crate::runtime::counters::Counters;
use crate::runtime::engine::{Engine, Stage};
use crate::runtime::frontend::model_table::{InFlightCounts, ModelTable};
use crate::runtime::frontend::{Frontend, FrontendPeer, FrontendSetup, QueryTable, largest_slot};
use crate::runtime::links::{LinkThreadPlan, OpenMemory, RunningLinks};
use crate::runtime::model_slots::{ChangeChannels, ModelSlots, SlotContext, sleep_for_a_change};
use crate::runtime::profiling::{KeeperPlan, LearnedProfiles, ProfileKeeper};
use crate::runtime::stall_watch;
use crate::runtime::threads::agent::{Agent, HookedAgent, Member, Placement};
use crate::runtime::threads::changes::{ChangeReceiver, ChangeSender, changes};
use crate::runtime::tuning::{TunedRule, TunerPlan, TunerThread};
use agents::CompositeAgents;
use assembly::{SIDE_CAPACITY, SchedulerAids};
use builder::EngineBuilder;
use findings::Findings;
use layout::{Layout, rank_role};
use rings::{EngineRings, RingPlan};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};
use sub_clusters::BackendSpec;
use symphony_gpu::{EmulatedExecutor, Executor};
use symphony_scheduler::limits;
use symphony_transport::Nanos;
use symphony_transport::message::BatchHeader;
use symphony_transport::ring::Consumer;
use symphony_transport::slab::{ClassAddresses, SlabPages, SlabView};
use symphony_transport::wire::GpuPresence;

/// The share of another frontend's memory for requests that a frontend of
/// [`Options::side_frontends`] has beside: one in this many.
const SIDE_SHARE: usize = 16;

impl Engine {
    /// Loads the models, measures where the configuration asks for it, and starts every thread,
    /// with `frontends` frontends.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start(
        config: Config,
        frontends: usize,
        progress: Progress,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        Engine::start_with(config, frontends, progress, Options::default())
    }

    /// Starts the process of one host of the engine: its role's threads, and the links to the other
    /// hosts. The last frontend is for its admin listener; without clients it is the only one, and
    /// has no models.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start_host(
        config: Config,
        identity: HostIdentity,
        progress: Progress,
        options: Options,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        let cores: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let plan = HostPlan {
            whole: Arc::new(config),
            identity,
            incarnation: (since.as_nanos() as u64).max(1),
            address: options.address.clone(),
        };
        plan.check()?;
        let side_frontends = usize::from(identity.role == Role::Frontend);
        let builder = EngineBuilder::of_host(&plan, &cores, progress, Options { side_frontends, ..options })?;
        let assembly = builder.assemble_host(&plan, |emulated| emulated)?;
        builder.run(assembly)
    }

    /// Starts an engine as [`Engine::start`] does, with these options. The frontends of
    /// [`Options::side_frontends`] come after the others.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    pub fn start_with(
        config: Config,
        frontends: usize,
        progress: Progress,
        options: Options,
    ) -> Result<(Engine, Vec<Frontend>), StartError> {
        let cores: Vec<usize> =
            core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect();
        let mut layout = Layout::new(&config, frontends, &cores);
        if let Some(idle) = options.idle {
            layout.ranks.iter_mut().chain(&mut layout.models).for_each(|placement| placement.idle = idle);
        }
        EngineBuilder::new(config, layout, progress, options)?.build(frontends)
    }
}

/// Puts an engine together that runs in virtual time, on whoever polls its members: see
/// [`EngineBuilder::assemble`]. Its threads are late by `lateness` at most, as its scheduler
/// assumes.
///
/// Errors: [`StartError`].
pub(crate) fn assemble_in_virtual_time(
    config: Config,
    frontends: usize,
    (clock, lateness): (Clock, Nanos),
    connect: impl FnOnce(&mut EngineRings),
) -> Result<Assembly, StartError> {
    let layout = Layout::new(&config, frontends, &[]);
    let builder = EngineBuilder::new(config, layout, no_progress(), Options::default())?;
    EngineBuilder { clock, lateness: Some(lateness), ..builder }.assemble(frontends, connect)
}

/// Puts the process of one host together that runs in virtual time; `emulate` makes the executor of
/// its GPUs of the engine's, `devices` stands in place of its RDMA device.
///
/// Errors: [`StartError`].
pub(crate) fn assemble_host_in_virtual_time<E: Executor<Model = Range<usize>> + 'static>(
    plan: &HostPlan,
    (clock, lateness): (Clock, Nanos),
    devices: Option<OpenMemory>,
    emulate: impl FnOnce(EmulatedExecutor) -> E,
) -> Result<Assembly, StartError> {
    let builder = EngineBuilder::of_host(plan, &[], no_progress(), Options::default())?;
    let open_memory = devices.unwrap_or(builder.open_memory);
    let builder = EngineBuilder { clock, lateness: Some(lateness), open_memory, ..builder };
    builder.assemble_host(plan, emulate)
}

impl EngineBuilder {
    /// Starts everything, with this number of frontends.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    fn build(self, frontends: usize) -> Result<(Engine, Vec<Frontend>), StartError> {
        let assembly = self.assemble(frontends + self.options.side_frontends, |_| ())?;
        self.run(assembly)
    }

    /// Starts the threads of an engine that was put together.
    fn run(self, assembly: Assembly) -> Result<(Engine, Vec<Frontend>), StartError> {
        let Assembly { findings, mut threads, frontends, links, .. } = assembly;
        let mut agents = CompositeAgents::default();
        let stages = assembly.stages.map(|members| {
            let stage = Stage::of(members.iter().map(|(_, member)| member));
            members.into_iter().for_each(|(placement, member)| agents.add(placement, member));
            stage
        });
        for (placement, composite) in agents.0 {
            threads.push(composite.spawn(
                placement,
                self.bells.clone(),
                self.clock.clone(),
                self.options.on_thread_start.clone(),
                self.faults.clone(),
            )?);
        }
        let links = links.zip(self.layout.links).map(|(links, placement)| {
            let (clock, bells, faults) = (self.clock.clone(), self.bells.clone(), self.faults.clone());
            RunningLinks::start(links, LinkThreadPlan { placement, clock, bells, faults })
        });
        let links = links.transpose().map_err(StartError::Links)?;
        let (watching, stop) = (self.faults.clone(), Arc::clone(&assembly.stop_executors));
        threads.push(stall_watch::start(watching, self.config.shutdown.thread_timeout, stop)?);
        if let Some(tuner) = assembly.tuner {
            tuner.spawn(Arc::clone(&assembly.stop_executors))?;
        }
        let keeper = assembly.profiles;
        let spawn = |keeper: ProfileKeeper| keeper.spawn(Arc::clone(&assembly.stop_executors));
        let profile_keeper = keeper.map(spawn).transpose()?;
        let Findings { models, profiles, lateness } = findings;
        // A table of its own: one that frontends read must not be held for as long as the engine
        // runs.
        let models = models.iter().cloned().collect();
        let engine = Engine {
            models,
            model_table: assembly.model_table,
            profiles,
            layout: self.layout,
            clock: self.clock,
            lateness,
            accepting: self.accepting,
            faults: self.faults,
            counters: assembly.counters,
            gpu_memory: self.gpu_memory,
            model_slots: assembly.model_slots,
            stages,
            shutdown_timeout: self.config.shutdown.timeout,
            stop_executors: assembly.stop_executors,
            threads,
            profile_keeper,
            links,
        };
        Ok((engine, frontends))
    }

    /// Puts an engine together: loads its models, and makes its roles with their ends of the rings.
    /// Of its threads only the CPU executors' run. `connect` may put something between the ends of
    /// the rings.
    ///
    /// Errors: [`StartError`]; nothing runs then.
    fn assemble(
        &self,
        frontends: usize,
        connect: impl FnOnce(&mut EngineRings),
    ) -> Result<Assembly, StartError> {
        StartError::at_most("frontends", frontends, limits::MAX_FRONTENDS)?;
        self.options.record.iter().try_for_each(RecordConfig::prepare)?;
        let learned = self.config.learned_profiles.as_deref().map(LearnedProfiles::open).transpose()?;
        let stop_executors = Arc::new(AtomicBool::new(false));
        let loading = self.start_executors(&stop_executors)?;
        let findings = self.find_out(&loading)?;
        let backends = self.sub_clusters.backends();
        let (mut frontends, peers) = self.frontends(frontends, backends.len(), &findings)?;
        let roles = backends.iter().map(|backend| (backend.role(), backend.gpus.clone())).collect();
        let counters = Counters::new(self.layout.models.len(), self.layout.ranks.len(), roles)
            .with_frontends(frontends.iter().map(|frontend| Arc::clone(frontend.counts())));
        let mut rings = self.rings(&findings, &backends, peers, counters.clone());
        connect(&mut rings);
        let mut channels = self.changes_later().then(|| ChangeChannels {
            queues: Vec::new(),
            executors: Vec::new(),
            emulated: None,
        });
        let queries = QueryTable::new(&self.config.queries);
        let model_table = ModelTable::with_queries(Arc::clone(&findings.models), queries);
        let model_faults = Arc::new(ModelFaults::new(Arc::clone(&model_table), self.changes_later()));
        let mut executors = Vec::new();
        for (at, loading) in loading.into_iter().enumerate() {
            let changes = channels.as_mut().map(|channels| {
                change_channel(|sender| channels.executors.push((backends[at].kind, sender)))
            });
            executors.push(loading.wire(rings.backend(at), changes, &model_faults, &findings.merged()));
        }
        let mut threads = Vec::new();
        if !executors.is_empty() {
            let setup = self.executor_setup(&stop_executors);
            threads.push(Watchdog::spawn(executors, setup, Arc::clone(&model_faults))?);
        }
        let mut stages: [Vec<(Placement, Member)>; 3] = Default::default();
        let mut tuner = self.tuner(&model_table, &counters);
        let mut profiles = self.profile_keeper(&model_table, &counters, learned);
        let aids = SchedulerAids {
            profiles: &mut profiles,
            tuner: &mut tuner,
            channels: channels.as_mut(),
            delays: None,
        };
        let [models, ranks] = self.scheduler_threads(&findings, &mut rings, aids, Vec::new())?;
        (stages[0], stages[1]) = (models, ranks);
        if let Some(placement) = self.layout.emulated {
            let (at, spec) = (backends.len() - 1, &backends[backends.len() - 1]);
            let changes =
                channels.as_mut().map(|channels| change_channel(|sender| channels.emulated = Some(sender)));
            let backend = self.emulated_backend(
                spec,
                &findings.models,
                rings.backend(at),
                changes,
                &model_faults,
                |of| of,
            );
            stages[2].push((placement, self.member(spec.role(), backend)));
        }
        let held: Vec<InFlightCounts> =
            frontends.iter_mut().map(|frontend| frontend.follow(Arc::clone(&model_table))).collect();
        let model_slots = channels.map(|channels| {
            self.model_slots(channels, &findings, Arc::clone(&model_table), model_faults, held)
        });
        Ok(Assembly {
            findings,
            stages,
            threads,
            stop_executors,
            frontends,
            model_table,
            model_slots,
            tuner,
            profiles: Some(profiles),
            counters,
            links: None,
        })
    }

    /// Makes the ModelThreads and RankThreads, or the thread of a policy that schedules as a whole,
    /// which stands in place of the first. RankThreads are told by `presence`, one ring each, which
    /// GPUs are there, where these are on other hosts.
    fn scheduler_threads(
        &self,
        findings: &Findings,
        rings: &mut EngineRings,
        mut aids: SchedulerAids<'_>,
        presence: Vec<Consumer<GpuPresence>>,
    ) -> Result<[Vec<(Placement, Member)>; 2], StartError> {
        let (mut models, mut ranks) = (Vec::new(), Vec::new());
        if let Some(policy) = self.config.whole_policy() {
            let thread = self.policy_thread(policy, findings, rings, aids.profiles);
            models.push((self.layout.models[0], self.member("policy".to_owned(), thread)));
            return Ok([models, ranks]);
        }
        for (at, &placement) in self.layout.models.iter().enumerate() {
            let mut thread = self.model_thread(at, findings, rings)?;
            thread.profiles = Some(aids.profiles.link());
            if let Some(tuner) = &mut aids.tuner {
                thread.tune_by(tuner.link());
            }
            thread.changes =
                aids.channels.as_mut().map(|channels| change_channel(|sender| channels.queues.push(sender)));
            let delays = aids.delays.as_mut();
            thread.delays = delays.map(|ways| change_channel(|sender| ways.models.push(sender)));
            models.push((placement, self.member(format!("model-{at}"), thread)));
        }
        let mut presence = presence.into_iter();
        for (at, &placement) in self.layout.ranks.iter().enumerate() {
            let mut thread = self.rank_thread(at, findings, rings)?;
            thread.presence = presence.next();
            let delays = aids.delays.as_mut();
            thread.delays = delays.map(|ways| change_channel(|sender| ways.ranks.push(sender)));
            ranks.push((placement, self.member(rank_role(at), thread)));
        }
        Ok([models, ranks])
    }

    /// Returns the keeper of the rolling profiles, which begin with what was `learned` earlier.
    fn profile_keeper(
        &self,
        model_table: &Arc<ModelTable>,
        counters: &Counters,
        learned: Option<LearnedProfiles>,
    ) -> ProfileKeeper {
        ProfileKeeper::new(KeeperPlan {
            clock: self.clock.clone(),
            model_table: Arc::clone(model_table),
            executions: counters.executions().clone(),
            rolling: Arc::clone(counters.rolling_profiles()),
            run_times: Arc::clone(counters.run_times()),
            learned,
        })
    }

    /// Returns the tuner of the default rule, without links to ModelThreads; `None` where nothing
    /// is tuned.
    fn tuner(&self, model_table: &Arc<ModelTable>, counters: &Counters) -> Option<TunerThread> {
        let Config { drop, network, tuning, .. } = *self.config;
        Some(TunerThread::new(TunerPlan {
            rule: TunedRule { drop, deferral: self.deferral, prefer: tuning?, network },
            gpus: self.sub_clusters.groups.iter().map(|group| group.gpus.len()).collect(),
            group_of: self.sub_clusters.group_of(),
            clock: self.clock.clone(),
            model_table: Arc::clone(model_table),
            counts: Arc::clone(counters.tuning()),
            rolling: Arc::clone(counters.rolling_profiles()),
        }))
    }

    /// Gives an agent its role, with the callback of the options.
    fn member(&self, role: String, agent: impl Agent + Send + 'static) -> Member {
        match self.options.before_cycle.clone() {
            Some(before) => Member::new(role.clone(), HookedAgent { before, role, agent }),
            None => Member::new(role, agent),
        }
    }

    /// Makes the frontends and the engine's ends of them.
    fn frontends(
        &self,
        count: usize,
        backend_threads: usize,
        findings: &Findings,
    ) -> Result<(Vec<Frontend>, Vec<FrontendPeer>), StartError> {
        let side = count - self.options.side_frontends;
        let capacity = self.config.http.max_in_flight;
        let slab_bytes = self.config.memory.slab_bytes() / side.max(1);
        let pages = self.slot_pages();
        let frontend = |id| {
            Frontend::new(FrontendSetup {
                id: self.first_frontend + id as u32,
                first_ids: self.first_ids,
                clock: self.clock.clone(),
                bells: self.bells.clone(),
                models: Arc::clone(&findings.models),
                later_row: self.later_row(),
                model_threads: self.model_threads(),
                answering_threads: self.model_threads() + backend_threads,
                capacity: if id < side { capacity } else { capacity.min(SIDE_CAPACITY) },
                slab_bytes: if id < side { slab_bytes } else { slab_bytes / SIDE_SHARE },
                pages,
                result_delay: self.config.network.result,
                lateness: findings.lateness,
                grace: self.config.faults.grace,
                accepting: Arc::clone(&self.accepting),
                faults: self.faults.clone(),
            })
        };
        let made: Result<Vec<_>, _> = (0..count).map(frontend).collect();
        let made = made?;
        self.log_pages(made.iter().map(|(_, peer)| &peer.slab));
        Ok(made.into_iter().unzip())
    }

    /// Returns the pages for slots: a device that moves tensors reaches them.
    fn slot_pages(&self) -> SlabPages {
        match self.config.links.tensors {
            TensorTransport::Tcp => SlabPages::Plain,
            TensorTransport::Rdma => SlabPages::HugeIfReserved,
        }
    }

    /// Logs on which pages slots lie.
    fn log_pages<'v>(&self, slabs: impl IntoIterator<Item = &'v SlabView>) {
        if self.slot_pages() == SlabPages::Plain {
            return tracing::info!("slots of tensors lie on pages of the system's usual size");
        }
        let classes: Vec<ClassAddresses> = slabs.into_iter().flat_map(SlabView::addresses).collect();
        let mib = |is_huge| {
            let of_kind = classes.iter().filter(|class| class.is_huge == is_huge);
            of_kind.map(|class| class.slot_bytes * class.count).sum::<usize>() >> 20
        };
        let (huge, plain) = (mib(true), mib(false));
        let mend = if plain > 0 { ": `symphony doctor` says how to reserve more" } else { "" };
        tracing::info!("{huge} MiB of slots lie on huge pages of 2 MiB, {plain} MiB on usual ones{mend}");
    }

    fn rings(
        &self,
        findings: &Findings,
        backends: &[BackendSpec],
        peers: Vec<FrontendPeer>,
        counters: Counters,
    ) -> EngineRings {
        let batch = if self.changes_later() { limits::MAX_BATCH } else { findings.largest_batch() };
        let plan = RingPlan {
            model_threads: self.model_threads(),
            rank_threads: self.layout.ranks.len().max(1),
            backends,
            sub_clusters: &self.sub_clusters,
            thread_of: {
                let of_models: Vec<u32> = findings.models.iter().map(|model| model.thread as u32).collect();
                self.queue_ids().each(&of_models)
            },
            largest_batch: BatchHeader::frames(batch),
        };
        EngineRings::new(&plan, peers, counters)
    }

    /// Returns the control thread's end of the engine.
    fn model_slots(
        &self,
        channels: ChangeChannels,
        findings: &Findings,
        model_table: Arc<ModelTable>,
        faults: Arc<ModelFaults>,
        held: Vec<InFlightCounts>,
    ) -> ModelSlots {
        let (queue_config, lateness) = (self.queue_config(), findings.lateness);
        let common = SlotContext {
            clock: self.clock.clone(),
            queue_config: Box::new(move |queue_id, slo, profile| {
                queue_config(queue_id, slo, profile, lateness)
            }),
            queue_ids: self.queue_ids(),
            faults,
            libraries: self.libraries.clone(),
            largest_row: largest_slot(&findings.models, self.later_row()),
            pause: Box::new(sleep_for_a_change),
        };
        ModelSlots::new(model_table, self.config.model_slots(), held, channels, common)
    }
}

/// Makes a channel for changes, passes its sending end to `keep` and returns the receiving one.
fn change_channel<T>(keep: impl FnOnce(ChangeSender<T>)) -> ChangeReceiver<T> {
    let (sender, receiver) = changes();
    keep(sender);
    receiver
}
