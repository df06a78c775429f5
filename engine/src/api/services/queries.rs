//! The queries as one API core serves them: the models that run their stages at the moment, and the
//! recent times of these.

use crate::config::QueryConfig;
use crate::runtime::frontend::{ModelInfo, ModelTable, QueryModels, ServedQuery};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use symphony_scheduler::query::{StageReserves, outputs_of};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// A query all of whose models are served. They accept its requests for as long as it is held.
#[derive(Clone, Debug)]
pub(in crate::api) struct FoundQuery {
    query: Arc<ServedQuery>,
    table: Arc<[ModelInfo]>,
    /// The models of its stages in `table`, and its tensors.
    pub(in crate::api) models: QueryModels,
    /// The shortest time that each stage can take: that of one item, or of a batch of all of them
    /// where their number is fixed.
    shortest: Vec<Nanos>,
}

impl FoundQuery {
    /// Finds the models of a query in `table`, and describes it as a model.
    ///
    /// Errors: the reason why it can't be served.
    fn new(query: Arc<ServedQuery>, table: Arc<[ModelInfo]>) -> Result<(ModelInfo, FoundQuery), String> {
        let models = QueryModels::find(&query.config, &table).map_err(|wrong| wrong.to_string())?;
        let mut found = FoundQuery { query, table, models, shortest: Vec::new() };
        found.shortest = (0..found.stages()).map(|stage| found.shortest_of(stage)).collect();
        let signature = found.models.tensors.signature.clone();
        let defaults = signature.inputs.iter().map(|_| None).collect();
        let of_stages = (0..found.stages()).map(|stage| found.model(stage).max_batch);
        let max_batch = of_stages.min().unwrap_or_default();
        let (class, base) = (found.model(0).class, found.query.info.clone());
        Ok((ModelInfo { signature, defaults, max_batch, class, ..base }, found))
    }

    /// Returns the shortest time that a stage can take.
    fn shortest_of(&self, stage: usize) -> Nanos {
        let (tensors, model) = (&self.models.tensors.stages[stage], self.model(stage));
        let items = if tensors.count.is_some() { 1 } else { tensors.room() };
        model.profile.latency(items.min(model.max_batch).max(1))
    }

    /// Returns its configuration.
    pub(in crate::api) fn config(&self) -> &QueryConfig {
        &self.query.config
    }

    /// Returns the number of its stages.
    pub(in crate::api) fn stages(&self) -> usize {
        self.models.slots.len()
    }

    /// Returns the model of a stage.
    pub(in crate::api) fn model(&self, stage: usize) -> &ModelInfo {
        &self.table[self.models.slots[stage]]
    }

    /// Returns the stages that each stage waits for.
    pub(in crate::api) fn inputs_of_stages(&self) -> impl ExactSizeIterator<Item = &[usize]> {
        self.models.tensors.stages.iter().map(|stage| &stage.after[..])
    }

    /// Returns the stages that wait for each stage.
    pub(in crate::api) fn outputs_of_stages(&self) -> Vec<Vec<usize>> {
        outputs_of(self.inputs_of_stages())
    }
}

/// The queries as one API core knows them, with the recent times of their stages.
#[derive(Debug)]
pub(in crate::api) struct CoreQueries {
    table: Arc<ModelTable>,
    /// The reserves of each query by its slot, with the number of the query that they are of.
    reserves: RefCell<BTreeMap<ModelId, (u64, StageReserves)>>,
}

impl CoreQueries {
    /// Makes the core's view of the queries beside `table`.
    pub(in crate::api) fn new(table: Arc<ModelTable>) -> CoreQueries {
        CoreQueries { table, reserves: RefCell::default() }
    }

    /// Returns true if there is a query of this name, which may not be ready.
    pub(in crate::api) fn has(&self, name: &str) -> bool {
        self.table.queries().has(name)
    }

    /// Returns all queries, whether ready or not. They must not be held for long.
    pub(in crate::api) fn all(&self) -> Vec<Arc<ServedQuery>> {
        self.table.queries().served()
    }

    /// Returns the query of this name with its models, which `models` gives; `None` if there is no
    /// query.
    ///
    /// Errors: the reason why it can't be served.
    pub(in crate::api) fn find(
        &self,
        name: &str,
        models: impl FnOnce() -> Arc<[ModelInfo]>,
    ) -> Option<Result<(ModelInfo, FoundQuery), String>> {
        let query = self.table.queries().find(name)?;
        Some(FoundQuery::new(query, models()))
    }

    /// Returns the descriptions of all queries that can be served.
    pub(in crate::api) fn ready(&self, models: &Arc<[ModelInfo]>) -> impl Iterator<Item = ModelInfo> {
        let found = |query| Some(FoundQuery::new(query, Arc::clone(models)).ok()?.0);
        self.all().into_iter().filter_map(found)
    }

    /// Counts a query with a deadline that comes at `now`.
    pub(in crate::api) fn came(&self, query: &FoundQuery, now: Nanos) {
        self.with_reserves(query, |reserves| reserves.came(now));
    }

    /// Returns the deadline of a stage of a query that must be over by `due`.
    pub(in crate::api) fn deadline(&self, query: &FoundQuery, stage: usize, due: Nanos) -> Nanos {
        self.with_reserves(query, |reserves| reserves.deadline(stage, due))
    }

    /// Returns the time by which a stage that begins at `now` is to be over, of this deadline.
    pub(in crate::api) fn goal(
        &self,
        query: &FoundQuery,
        stage: usize,
        now: Nanos,
        deadline: Nanos,
    ) -> Nanos {
        self.with_reserves(query, |reserves| reserves.goal(stage, now, deadline))
    }

    /// Counts a stage that took `time` from its begin to its end.
    pub(in crate::api) fn took(&self, query: &FoundQuery, stage: usize, time: Nanos) {
        self.with_reserves(query, |reserves| reserves.took(stage, time));
    }

    /// Calls `run` with the reserves of a query, which are new where it or its models are.
    fn with_reserves<T>(&self, found: &FoundQuery, run: impl FnOnce(&mut StageReserves) -> T) -> T {
        let ServedQuery { info, number, .. } = &*found.query;
        let new = || {
            let slo = found.config().slo;
            StageReserves::in_proportion(found.outputs_of_stages(), &found.shortest, slo)
        };
        let mut all = self.reserves.borrow_mut();
        let (of, reserves) = all.entry(info.id).or_insert_with(|| (*number, new()));
        if of != number || !reserves.is_of(&found.shortest) {
            (*of, *reserves) = (*number, new());
        }
        run(reserves)
    }
}
