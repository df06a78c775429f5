//! The properties of the models and the machine that start-up finds out.

use super::builder::EngineBuilder;
use super::error::StartError;
use super::sub_clusters::BackendSpec;
use crate::config::{Diagnostics, ExecutorKind, ModelConfig};
use crate::runtime::backends::executors::{
    self, ExecutorIdentity, ExecutorSetup, LoadReport, LoadingExecutor,
};
use crate::runtime::frontend::{Class, ModelInfo, SlotState, Variant};
use crate::runtime::model_setup::{ServableModel, check_model, kept_of, platform, size_classes};
use crate::runtime::threads::agent::measure_lateness;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The properties of the models and the machine that start-up has found out.
pub(super) struct Findings {
    /// Every model slot; those for later models come last, and are vacant.
    pub(super) models: Arc<[ModelInfo]>,
    /// The profile of each model.
    pub(super) profiles: Vec<Profile>,
    /// The lateness with which threads see that a time has come.
    pub(super) lateness: Nanos,
}

impl Findings {
    /// Returns the most rows in a batch of any model.
    pub(super) fn largest_batch(&self) -> usize {
        self.profiles.iter().map(Profile::max_batch).max().unwrap_or(1)
    }

    /// Returns the slots of size classes that are not kept.
    pub(super) fn merged(&self) -> Vec<usize> {
        let of_config = self.models.iter().take(self.profiles.len()).enumerate();
        of_config.filter(|(_, model)| model.state == SlotState::Vacant).map(|(at, _)| at).collect()
    }
}

impl EngineBuilder {
    /// Returns the parameters of every executor.
    pub(super) fn executor_setup(&self, stop: &Arc<AtomicBool>) -> ExecutorSetup {
        ExecutorSetup {
            config: Arc::clone(&self.config),
            clock: self.clock.clone(),
            bells: self.bells.clone(),
            stop: Arc::clone(stop),
            progress: Arc::clone(&self.progress),
            faults: self.faults.clone(),
            before_cycle: self.options.before_cycle.clone(),
            libraries: self.libraries.clone(),
            gpu_memory: Arc::clone(&self.gpu_memory),
        }
    }

    pub(super) fn start_executors(&self, stop: &Arc<AtomicBool>) -> Result<Vec<LoadingExecutor>, StartError> {
        let setup = self.executor_setup(stop);
        let backends = self.sub_clusters.backends();
        let threads = backends.iter().filter(|backend| backend.kind.has_own_thread());
        let placed = threads.zip(&self.layout.executors);
        let mut started: BTreeMap<ExecutorKind, u32> = BTreeMap::new();
        let identified = placed.map(|(of, placement)| {
            let BackendSpec { kind, gpus } = of;
            let count = started.entry(*kind).or_default();
            let (device, measures) = (*count, *count == 0);
            *count += 1;
            (ExecutorIdentity { kind: *kind, role: of.role(), gpu: gpus.start, device, measures }, placement)
        });
        Ok(identified
            .map(|(identity, &placement)| executors::start(identity, placement, setup.clone()))
            .collect::<Result<_, _>>()?)
    }

    /// Returns the properties of every model, from the configuration and the executors, and those
    /// of the machine.
    pub(super) fn find_out(&self, loading: &[LoadingExecutor]) -> Result<Findings, StartError> {
        let mut found: Vec<Option<LoadReport>> = self.config.models.iter().map(|_| None).collect();
        for executor in loading.iter().rev() {
            let report = executor.wait().ok_or_else(|| self.death_of(executor.role()))?;
            let report = report.map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
            // Of each kind the first executor's counts, which has measured.
            found.iter_mut().zip(report).for_each(|(found, own)| *found = own.or_else(|| found.take()));
        }
        let mut infos: Vec<ModelInfo> = Vec::new();
        let mut profiles = Vec::new();
        let mut found = found.into_iter();
        for models in self.config.models.chunk_by(ModelConfig::is_class_beside) {
            let loaded = models.iter().zip(&mut found);
            let servable =
                loaded.map(|(model, found)| check_model(model, found)).collect::<Result<Vec<_>, _>>()?;
            infos.extend(self.slots_of(models, &servable, infos.len())?);
            profiles.extend(servable.into_iter().map(|of| of.profile));
        }
        let vacant = infos.len()..self.config.model_slots().len();
        infos.extend(vacant.map(|at| ModelInfo::vacant(ModelId(at as u32), at % self.model_threads())));
        let placements = || self.layout.ranks.iter().chain(&self.layout.links);
        let measured = || placements().map(|&placement| measure_lateness(placement, &self.clock));
        let lateness = self.lateness.or_else(|| measured().max()).unwrap_or_default();
        Ok(Findings { models: infos.into(), profiles, lateness })
    }

    /// Returns the slots, from `first` on, of a model, or of its size classes; those of classes
    /// that are not kept are vacant.
    fn slots_of(
        &self,
        models: &[ModelConfig],
        servable: &[ServableModel],
        first: usize,
    ) -> Result<Vec<ModelInfo>, Diagnostics> {
        let id = |at: usize| ModelId((first + at) as u32);
        let thread = |at: usize| (first + at) % self.model_threads();
        let kept = kept_of(models, servable, &self.progress);
        let with_slots: Vec<_> = kept.iter().map(|&at| (at, id(at))).collect();
        let sizes = size_classes(models, servable, &with_slots, &self.progress)?;
        let slot = |(at, (model, servable)): (usize, (&ModelConfig, &ServableModel))| match kept.contains(&at)
        {
            false => ModelInfo::vacant(id(at), thread(at)),
            true => ModelInfo {
                id: id(at),
                name: model.name.clone(),
                version: model.version,
                platform: platform(&model.source).to_owned(),
                signature: servable.signature.clone(),
                defaults: Arc::clone(&servable.defaults),
                sizes: sizes.clone(),
                application: model.application.clone(),
                variant: self.variant_of(model),
                slo: model.slo,
                max_batch: servable.profile.max_batch(),
                profile: Arc::new(servable.profile.clone()),
                // A policy that schedules as a whole keeps the profiles that it is told at the
                // start.
                rolls: model.rolls() && self.config.whole_policy().is_none(),
                class: Class::new(model.priority).unwrap_or(Class::LOWEST),
                thread: thread(at),
                state: SlotState::Serving,
            },
        };
        Ok(models.iter().zip(servable).enumerate().map(slot).collect())
    }

    /// Returns the place of a model among those that it is run as one with.
    fn variant_of(&self, model: &ModelConfig) -> Option<Variant> {
        let own = model.prefix.as_ref()?;
        let is_first = |of: &ModelConfig| {
            of.prefix.as_ref().is_some_and(|prefix| prefix.group == own.group && prefix.number == 0)
        };
        let first = self.config.models.iter().position(is_first)?;
        Some(Variant { slot: ModelId(first as u32), number: own.number as u32 })
    }

    /// Returns the error for an executor whose thread has died.
    fn death_of(&self, executor: &str) -> StartError {
        self.faults.report(executor, "ended");
        StartError::Died(self.faults.get().expect("one was just reported").clone())
    }
}
