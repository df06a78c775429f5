//! The control thread's work: executes orders, polls the repository's folder, loads and unloads
//! models, and frees the slots of drained ones. Owned by the thread that
//! [`Repository::start`](super::Repository::start) starts.

use super::order::{ControlError, IndexEntry, Order, State};
use crate::config::{
    Config, Diagnostics, ExecutorKind, FileStamp, ModelConfig, QueryConfig, RepositoryConfig,
    RepositoryControl, StageConfig,
};
use crate::runtime::frontend::{QueryModels, SlotState};
use crate::runtime::{Libraries, LoadedModel, ModelSlotError, ModelSlots, Progress};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use symphony_gpu::ComputeThread;
use symphony_transport::message::ModelId;

/// The longest wait for an order before drained models are looked for.
const ORDER_TIMEOUT: Duration = Duration::from_millis(10);

/// The interval at which the index is made anew: the folder may have changed.
const INDEX_EVERY: Duration = Duration::from_secs(1);

/// The time for which changed files must have stayed the same before they are loaded: they may
/// still be being copied.
const SETTLED: Duration = Duration::from_secs(1);

/// The niceness of the control thread and of its compute thread: the lowest priority.
const NICE: i32 = 19;

/// A model of the repository, or an ensemble.
#[derive(Default)]
struct RepositoryEntry {
    /// The state of the model's files when it was loaded.
    loaded: FileStamp,
    /// The state of the files at the last attempt to load the model, whether it succeeded or not.
    tried: FileStamp,
    /// The state of the files at the last poll of the folder.
    seen: FileStamp,
    /// The served versions and their model slots: one, or one for each size class. None of an
    /// ensemble.
    versions: BTreeMap<u64, Vec<ModelId>>,
    /// The reason why the model could not be loaded; empty if it could.
    failure: String,
}

/// The work of the control thread. See the module's description.
pub(super) struct ControlThread {
    model_slots: ModelSlots,
    kinds: Vec<ExecutorKind>,
    progress: Progress,
    index: Arc<Mutex<Vec<IndexEntry>>>,
    models: BTreeMap<String, RepositoryEntry>,
    /// The models and queries of CONFIG itself, which come from no repository.
    own: BTreeSet<String>,
    /// True once models have come or gone: then ensembles that did not fit are tried again.
    retries: bool,
    /// The thread that loads and measures models, made when the first one is loaded.
    compute: Option<ComputeThread>,
    loading: Option<String>,
}

impl ControlThread {
    pub(super) fn new(
        config: &Config,
        model_slots: ModelSlots,
        kinds: Vec<ExecutorKind>,
        progress: Progress,
        index: Arc<Mutex<Vec<IndexEntry>>>,
    ) -> ControlThread {
        let (mut models, mut own) = (BTreeMap::<String, RepositoryEntry>::new(), BTreeSet::new());
        for (at, model) in config.models.iter().enumerate() {
            if model.locations.slo.file == config.file {
                own.insert(model.name.clone());
                continue;
            }
            let entry = models.entry(model.name.clone()).or_default();
            let slots = entry.versions.entry(model.version).or_default();
            // The slot of a size class that was not kept is vacant.
            slots
                .extend((model_slots.models()[at].state == SlotState::Serving).then_some(ModelId(at as u32)));
        }
        let in_config = |query: &&QueryConfig| query.location.file == config.file;
        let (of_config, of_repository): (Vec<&QueryConfig>, Vec<&QueryConfig>) =
            config.queries.iter().partition(in_config);
        own.extend(of_config.into_iter().map(|query| query.name.clone()));
        models
            .extend(of_repository.into_iter().map(|query| (query.name.clone(), RepositoryEntry::default())));
        if let Some(repository) = &config.repository {
            for (name, entry) in &mut models {
                entry.loaded = repository.stamp(name);
                (entry.tried, entry.seen) = (entry.loaded.clone(), entry.loaded.clone());
            }
        }
        let control_thread = ControlThread {
            model_slots,
            kinds,
            progress,
            index,
            models,
            own,
            retries: false,
            compute: None,
            loading: None,
        };
        if let Some(repository) = &config.repository {
            control_thread.write_index(repository);
        }
        control_thread
    }

    /// Works until `stop` is set or the engine no longer answers.
    pub(super) fn run(mut self, repository: &RepositoryConfig, orders: &Receiver<Order>, stop: &AtomicBool) {
        if rustix::process::setpriority_process(None, NICE).is_err() {
            (self.progress)("warning: models are loaded at no lower priority than they are served");
        }
        let (mut poll_at, mut index_at) = (Instant::now() + repository.poll, Instant::now());
        while !stop.load(Ordering::Relaxed) {
            match orders.recv_timeout(ORDER_TIMEOUT) {
                Ok(order) => {
                    self.execute(repository, order);
                    index_at = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if repository.control == RepositoryControl::Poll && now >= poll_at {
                let settling = self.poll_folder(repository);
                poll_at = now + if settling { SETTLED.min(repository.poll) } else { repository.poll };
                index_at = now;
            }
            if self.unload_condemned() {
                index_at = now;
            }
            match self.model_slots.reclaim() {
                Ok(draining) if draining > 0 => index_at = now,
                Ok(_) => {}
                Err(error) => {
                    return (self.progress)(&format!("models are not loaded and unloaded any more: {error}"));
                }
            }
            if now >= index_at {
                self.write_index(repository);
                index_at = now + INDEX_EVERY;
            }
        }
    }

    fn execute(&mut self, repository: &RepositoryConfig, order: Order) {
        match order {
            Order::Load(name, config, done) => {
                let result = match self.fixed(&name) {
                    Some(why) => Err(ControlError::Wrong(why)),
                    None if !repository.has(&name) => Err(ControlError::Unknown(unknown(&name))),
                    None => {
                        self.load_ordered(repository, &name, config.as_deref()).map_err(ControlError::Wrong)
                    }
                };
                self.write_index(repository);
                done(result);
            }
            Order::Unload(name, dependents, done) => {
                let result = match self.fixed(&name) {
                    Some(why) => Err(ControlError::Wrong(why)),
                    None => self.unload_ordered(&name, dependents),
                };
                self.write_index(repository);
                done(result);
            }
        }
    }

    /// Returns why a model is neither loaded nor unloaded, if it never is.
    fn fixed(&self, name: &str) -> Option<String> {
        self.own.contains(name).then(|| of_config(name))
    }

    /// Loads and unloads what has changed in the folder. Returns true if something has changed that
    /// may still be changing.
    fn poll_folder(&mut self, repository: &RepositoryConfig) -> bool {
        let names: BTreeSet<String> = match repository.names(&mut |_| ()) {
            Ok(names) => names.into_iter().collect(),
            Err(error) => {
                (self.progress)(&format!("the repository is left as it is: {error}"));
                return false;
            }
        };
        let gone: Vec<String> = self.models.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            // Its folder may have gone before anything of it was loaded.
            let _ = self.unload(&name);
            self.models.remove(&name);
            self.retries = true;
        }
        let (mut settling, mut changed) = (false, BTreeSet::new());
        for name in &names {
            if self.fixed(name).is_some() {
                continue;
            }
            let stamp = repository.stamp(name);
            let entry = self.models.entry(name.clone()).or_default();
            if entry.tried == stamp {
                continue;
            }
            if entry.seen != stamp {
                entry.seen = stamp;
                settling = true;
                continue;
            }
            changed.insert(name.clone());
        }
        let is_ensemble = |name: &String| self.ensemble_of(repository, name, None).is_some();
        let (mut ensembles, models): (BTreeSet<String>, BTreeSet<String>) =
            changed.into_iter().partition(is_ensemble);
        self.retries |= !models.is_empty();
        self.follow(repository, models);
        // What may still be being copied may be a model that an ensemble names.
        if settling {
            return true;
        }
        if std::mem::take(&mut self.retries) {
            let failed = self.models.iter().filter(|(_, entry)| !entry.failure.is_empty());
            let failed = failed.map(|(name, _)| name.clone());
            ensembles.extend(failed.filter(|name| self.ensemble_of(repository, name, None).is_some()));
        }
        self.follow(repository, ensembles);
        false
    }

    /// Loads models or ensembles whose folders have changed.
    fn follow(&mut self, repository: &RepositoryConfig, names: BTreeSet<String>) {
        for name in names {
            if let Err(why) = self.load(repository, &name, None) {
                (self.progress)(&format!("model {name} is left as it is: {why}"));
            }
        }
    }

    /// Returns the ensemble that the folder of this name has, or `config`.
    fn ensemble_of(
        &self,
        repository: &RepositoryConfig,
        name: &str,
        config: Option<&str>,
    ) -> Option<QueryConfig> {
        repository.read_model(name, &self.kinds, config).ok()?.query
    }

    /// Returns true if a model or an ensemble of the repository is served.
    fn is_loaded(&self, name: &str) -> bool {
        let has_versions = self.models.get(name).is_some_and(|entry| !entry.versions.is_empty());
        has_versions || (!self.own.contains(name) && self.model_slots.queries().has(name))
    }

    /// Loads a model, or an ensemble and before it the models of the repository that it names.
    ///
    /// Errors: as [`ControlThread::load`]; models that were not loaded before are not then either.
    fn load_ordered(
        &mut self,
        repository: &RepositoryConfig,
        name: &str,
        config: Option<&str>,
    ) -> Result<(), String> {
        let mut loaded = Vec::new();
        let mut result = Ok(());
        if let Some(ensemble) = self.ensemble_of(repository, name, config) {
            result = self.load_models(repository, &ensemble, &mut loaded);
        }
        let result = match result {
            Ok(()) => self.load(repository, name, config),
            Err(why) => {
                self.models.entry(name.to_owned()).or_default().failure.clone_from(&why);
                Err(why)
            }
        };
        if result.is_err() {
            for model in loaded {
                // It was loaded just now.
                let _ = self.unload(&model);
            }
        }
        result
    }

    /// Loads the models of the repository that an ensemble names, as their folders have them now.
    /// `loaded` gets those that were not loaded before.
    ///
    /// Errors: the reason that one is not loaded.
    fn load_models(
        &mut self,
        repository: &RepositoryConfig,
        ensemble: &QueryConfig,
        loaded: &mut Vec<String>,
    ) -> Result<(), String> {
        for StageConfig { model, location, .. } in &ensemble.stages {
            if self.own.contains(model) || loaded.contains(model) || !repository.has(model) {
                continue;
            }
            if self.ensemble_of(repository, model, None).is_some() {
                let wrong = format!("\"{model}\" is an ensemble");
                return Err(location.diagnostic(wrong, "name the models that it has").to_string());
            }
            let is_new = !self.is_loaded(model);
            self.load(repository, model, None).map_err(|why| format!("its model {model}: {why}"))?;
            loaded.extend(is_new.then(|| model.clone()));
        }
        Ok(())
    }

    /// Unloads a model, or an ensemble; with `dependents`, then those of its models that are the
    /// repository's and that no other query names.
    ///
    /// Errors: as [`ControlThread::unload`].
    fn unload_ordered(&mut self, name: &str, dependents: bool) -> Result<(), ControlError> {
        let ensemble = self.model_slots.queries().find(name).filter(|_| dependents);
        self.unload(name)?;
        let queries = self.model_slots.queries().served();
        let is_named = |model: &String| {
            queries.iter().flat_map(|query| &query.config.stages).any(|stage| stage.model == *model)
        };
        let stages = ensemble.iter().flat_map(|ensemble| &ensemble.config.stages);
        let models: BTreeSet<String> =
            stages.map(|stage| &stage.model).filter(|model| !is_named(model)).cloned().collect();
        for model in models {
            // CONFIG's own have no entry, and another order may have unloaded it.
            let _ = self.unload(&model);
        }
        Ok(())
    }

    /// Loads the versions of a model that are new or have changed, and unloads those that its
    /// folder no longer has served. With a `config`, every version is loaded, and again at the next
    /// load, which goes by the folder's.
    ///
    /// Errors: the reason; nothing has changed then.
    fn load(
        &mut self,
        repository: &RepositoryConfig,
        name: &str,
        config: Option<&str>,
    ) -> Result<(), String> {
        self.loading = Some(name.to_owned());
        self.write_index(repository);
        let stamp = repository.stamp(name);
        let result = self.load_changed(repository, name, &stamp, config).map_err(|error| error.to_string());
        self.loading = None;
        let entry = self.models.entry(name.to_owned()).or_default();
        (entry.tried, entry.seen) = (stamp.clone(), stamp.clone());
        match &result {
            Ok(()) => {
                entry.loaded = if config.is_some() { FileStamp::default() } else { stamp };
                entry.failure = String::new();
            }
            Err(why) => entry.failure.clone_from(why),
        }
        result
    }

    fn load_changed(
        &mut self,
        repository: &RepositoryConfig,
        name: &str,
        stamp: &FileStamp,
        config: Option<&str>,
    ) -> Result<(), ModelSlotError> {
        let model = repository.read_model(name, &self.kinds, config)?;
        model.notes.iter().for_each(|note| (self.progress)(note));
        if let Some(ensemble) = model.query {
            return self.load_ensemble(name, ensemble);
        }
        let entry = self.models.entry(name.to_owned()).or_default();
        let (mut next, mut add) = (BTreeMap::new(), Vec::new());
        let mut failure = None;
        for classes in model.versions.chunk_by(ModelConfig::is_class_beside) {
            let (number, kind) = (classes[0].version, classes[0].source.kind());
            let unchanged = config.is_none() && entry.loaded.agrees_on(stamp, number);
            let as_loaded = entry.versions.get(&number).filter(|_| unchanged);
            if let Some(ids) = as_loaded {
                next.insert(number, ids.clone());
                continue;
            }
            let executors = self.model_slots.copies_for(kind);
            let libraries = self.model_slots.libraries();
            let (compute, progress) = (&mut self.compute, &self.progress);
            let loaded = load_classes(compute, classes, libraries, executors, progress);
            let prepared = loaded.map_err(ModelSlotError::from);
            match prepared.and_then(|loaded| self.model_slots.prepare_classes(loaded, progress)) {
                Ok(ids) => {
                    add.extend(&ids);
                    next.insert(number, ids);
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failure {
            for id in add {
                self.model_slots.release(id)?;
            }
            return Err(error);
        }
        let is_kept = |id: &ModelId| next.values().flatten().any(|other| other == id);
        let remove: Vec<ModelId> =
            entry.versions.values().flatten().filter(|id| !is_kept(id)).copied().collect();
        self.model_slots.switch(&add, &remove);
        for id in &add {
            let info = &self.model_slots.models()[id.0 as usize];
            let (slo, batch) = (info.slo.as_millis_f64(), info.max_batch);
            let (label, number) = (info.label(), info.version);
            (self.progress)(&format!(
                "loaded model {label}, version {number}: SLO {slo} ms, batches up to {batch}"
            ));
        }
        if !remove.is_empty() {
            (self.progress)(&format!("unloading {} of model {name}", versions(entry, &remove)));
        }
        entry.versions = next;
        // Its folder may have been an ensemble's.
        self.model_slots.queries().remove(name);
        Ok(())
    }

    /// Serves an ensemble, instead of what its folder had before.
    ///
    /// Errors: its models are not served, or do not fit; nothing has changed then.
    fn load_ensemble(&mut self, name: &str, ensemble: QueryConfig) -> Result<(), ModelSlotError> {
        QueryModels::find(&ensemble, self.model_slots.models())?;
        let (slo, stages) = (ensemble.slo.as_millis_f64(), ensemble.stages.len());
        let added = self.model_slots.queries().add(ensemble);
        added.map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
        (self.progress)(&format!("loaded ensemble {name}: SLO {slo} ms, stages {stages}"));
        let entry = self.models.entry(name.to_owned()).or_default();
        let remove: Vec<ModelId> = std::mem::take(&mut entry.versions).into_values().flatten().collect();
        if !remove.is_empty() {
            self.model_slots.switch(&[], &remove);
        }
        Ok(())
    }

    /// Unloads all versions of a model, or an ensemble.
    fn unload(&mut self, name: &str) -> Result<(), ControlError> {
        let is_loaded = self.is_loaded(name);
        let Some(entry) = self.models.get_mut(name).filter(|_| is_loaded) else {
            return Err(ControlError::Unknown(format!("no version of model {name:?} is loaded")));
        };
        if self.model_slots.queries().remove(name) {
            (self.progress)(&format!("unloading ensemble {name}"));
        }
        let remove: Vec<ModelId> = entry.versions.values().flatten().copied().collect();
        if !remove.is_empty() {
            (self.progress)(&format!("unloading {} of model {name}", versions(entry, &remove)));
            self.model_slots.switch(&[], &remove);
        }
        // A model that is loaded again is loaded anew; an earlier failure no longer applies.
        *entry = RepositoryEntry {
            tried: entry.tried.clone(),
            seen: entry.seen.clone(),
            ..RepositoryEntry::default()
        };
        Ok(())
    }

    /// Unloads the versions that were found at fault. Returns true if there were any.
    fn unload_condemned(&mut self) -> bool {
        let condemned = self.model_slots.take_condemned();
        for (id, reason) in &condemned {
            let has = |entry: &&mut RepositoryEntry| entry.versions.values().flatten().any(|of| of == id);
            for entry in self.models.values_mut().filter(has) {
                entry.versions.values_mut().for_each(|slots| slots.retain(|of| of != id));
                entry.versions.retain(|_, slots| !slots.is_empty());
                entry.failure.clone_from(reason);
            }
            let model = &self.model_slots.models()[id.0 as usize];
            (self.progress)(&format!("model {}, version {}, is {reason}", model.label(), model.version));
            self.model_slots.switch(&[], &[*id]);
        }
        !condemned.is_empty()
    }

    fn write_index(&self, repository: &RepositoryConfig) {
        let mut entries = Vec::new();
        for model in self.model_slots.models().iter().filter(|model| model.state != SlotState::Vacant) {
            let state = match model.state {
                SlotState::Serving => State::Ready,
                _ if self.model_slots.is_draining(model.id) => State::Unloading,
                _ => State::Loading,
            };
            let line = IndexEntry {
                name: model.name.clone(),
                version: Some(model.version),
                state,
                reason: String::new(),
            };
            // The classes of a model are one line.
            if !entries.contains(&line) {
                entries.push(line);
            }
        }
        let folder = repository.names(&mut |_| ()).unwrap_or_default();
        let known: BTreeSet<&String> = folder.iter().chain(self.models.keys()).collect();
        for name in known {
            let entry = self.models.get(name);
            let failure = entry.map_or("", |entry| entry.failure.as_str());
            // A query's state follows from its models': those who read the index add it.
            let is_served =
                entries.iter().any(|entry| entry.name == *name) || self.model_slots.queries().has(name);
            if is_served && failure.is_empty() {
                continue;
            }
            let (state, reason) = match &self.loading {
                Some(loading) if loading == name => (State::Loading, String::new()),
                _ if !failure.is_empty() => (State::Unavailable, failure.to_owned()),
                _ => (State::Unavailable, "not loaded".to_owned()),
            };
            entries.push(IndexEntry { name: name.clone(), version: None, state, reason });
        }
        entries.sort_by(|a, b| (&a.name, a.version).cmp(&(&b.name, b.version)));
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = entries;
    }
}

/// Loads the classes of a model on a compute thread of the lowest priority, which is made when it
/// is first needed.
fn load_classes(
    compute: &mut Option<ComputeThread>,
    classes: &[ModelConfig],
    libraries: &Libraries,
    executors: usize,
    progress: &Progress,
) -> Result<Vec<LoadedModel>, Diagnostics> {
    let compute = compute.get_or_insert_with(|| {
        let compute = ComputeThread::new();
        // The new thread inherits the priority of its maker on most systems; this makes sure of it.
        let _ = compute.run(|| rustix::process::setpriority_process(None, NICE));
        compute
    });
    let mut loaded: Vec<LoadedModel> = Vec::new();
    for class in classes {
        let one = match loaded.last() {
            Some(before) if class.shares_file() => before.for_application(class.clone(), compute)?,
            _ => LoadedModel::load(class.clone(), libraries, executors, compute, progress)?,
        };
        loaded.push(one);
    }
    Ok(loaded)
}

/// Returns `version 2` or `versions 1, 2`.
fn versions(entry: &RepositoryEntry, ids: &[ModelId]) -> String {
    let numbers = entry
        .versions
        .iter()
        .filter(|(_, slots)| slots.iter().any(|id| ids.contains(id)))
        .map(|(number, _)| number.to_string());
    let numbers: Vec<String> = numbers.collect();
    format!("version{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

fn of_config(name: &str) -> String {
    format!(
        "model {name:?} is one of CONFIG's own, served from start to stop; only those of the repository come and go"
    )
}

fn unknown(name: &str) -> String {
    const LONGEST: usize = 80;
    let name: String = name.chars().take(LONGEST).collect();
    format!("the repository has no model {name:?}")
}
