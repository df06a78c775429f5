//! The properties of the models and the machine that start-up finds out.

use super::builder::EngineBuilder;
use super::error::StartError;
use super::sub_clusters::BackendSpec;
use crate::config::Diagnostics;
use crate::runtime::backends::executors::{
    self, ExecutorIdentity, ExecutorSetup, LoadReport, LoadingExecutor,
};
use crate::runtime::frontend::{Class, ModelInfo, SlotState};
use crate::runtime::model_setup::{ServableModel, check_model, platform};
use crate::runtime::threads::agent::measure_lateness;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use symphony_scheduler::profile::Profile;
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The properties of the models and the machine that start-up has found out.
pub(super) struct Findings {
    /// Every model slot; vacant ones come last.
    pub(super) models: Arc<[ModelInfo]>,
    /// The profile of each model.
    pub(super) profiles: Vec<Profile>,
    /// The lateness with which threads see that a time has come.
    pub(super) lateness: Nanos,
}

impl EngineBuilder {
    /// Returns the parameters of every executor.
    pub(super) fn executor_setup(&self, stop: &Arc<AtomicBool>) -> ExecutorSetup {
        ExecutorSetup {
            config: Arc::clone(&self.config),
            clock: self.clock.clone(),
            stop: Arc::clone(stop),
            progress: Arc::clone(&self.progress),
            faults: self.faults.clone(),
            before_cycle: self.options.before_cycle.clone(),
        }
    }

    pub(super) fn start_executors(&self, stop: &Arc<AtomicBool>) -> Result<Vec<LoadingExecutor>, StartError> {
        let setup = self.executor_setup(stop);
        let backends = self.sub_clusters.backends();
        let threads = backends.iter().filter(|backend| backend.kind.has_own_thread());
        let placed = threads.zip(&self.layout.executors);
        let mut measured = BTreeSet::new();
        let identity = |of: &BackendSpec, measures| ExecutorIdentity {
            kind: of.kind,
            role: of.role(),
            gpu: of.gpus.start,
            measures,
        };
        let identified = placed.map(|(of, placement)| (identity(of, measured.insert(of.kind)), placement));
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
        let mut infos = Vec::new();
        let mut profiles = Vec::new();
        for (at, (model, found)) in self.config.models.iter().zip(found).enumerate() {
            let ServableModel { signature, profile } = check_model(model, found)?;
            infos.push(ModelInfo {
                id: ModelId(at as u32),
                name: model.name.clone(),
                version: model.version,
                platform: platform(&model.source).to_owned(),
                signature,
                slo: model.slo,
                max_batch: profile.max_batch(),
                profile: Arc::new(profile.clone()),
                class: Class::new(model.priority).unwrap_or(Class::LOWEST),
                thread: at % self.layout.models.len(),
                state: SlotState::Serving,
            });
            profiles.push(profile);
        }
        let vacant = infos.len()..self.config.model_slots().len();
        infos.extend(vacant.map(|at| ModelInfo::vacant(ModelId(at as u32), at % self.layout.models.len())));
        let measured = || self.layout.ranks.iter().map(|&placement| measure_lateness(placement, &self.clock));
        let lateness = self.lateness.or_else(|| measured().max()).unwrap_or_default();
        Ok(Findings { models: infos.into(), profiles, lateness })
    }

    /// Returns the error for an executor whose thread has died.
    fn death_of(&self, executor: &str) -> StartError {
        self.faults.report(executor, "ended");
        StartError::Died(self.faults.get().expect("one was just reported").clone())
    }
}
