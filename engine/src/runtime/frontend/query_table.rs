//! The table of queries: those that are served at the moment, by name. The control thread adds and
//! removes queries of a repository; API cores look a query up anew for each request, and hold what
//! they found until the request has ended. So a query that is replaced or removed meanwhile ends
//! its requests as they began.
//!
//! Each query has a slot of its own, by which it is counted. A slot gets another query only once no
//! request of the one before is left.

use super::model_info::ModelInfo;
use crate::config::{Diagnostic, Diagnostics, MAX_SERVED_QUERIES, QueryConfig};
use crate::config::{QueryTensors, StageConfig, StageModel};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use symphony_transport::message::ModelId;

/// A query that is served, or was when a request of it began.
#[derive(Debug)]
pub struct ServedQuery {
    /// The description of it as a model, without tensors. The id is that of no model slot.
    pub info: ModelInfo,
    /// The configuration.
    pub config: QueryConfig,
    /// The number of it among all that were ever served.
    pub number: u64,
}

/// The queries of a server. See the module's description.
#[derive(Debug, Default)]
pub struct QueryTable {
    /// The number of queries that were ever served.
    number: AtomicU64,
    queries: Mutex<QuerySlots>,
}

#[derive(Debug, Default)]
struct QuerySlots {
    served: BTreeMap<String, Arc<ServedQuery>>,
    /// The query that each slot has, or had last. Nobody else holds one that is gone.
    slots: Vec<Arc<ServedQuery>>,
}

impl QueryTable {
    /// Makes the table of a server's first queries, at most [`MAX_SERVED_QUERIES`].
    pub fn new(queries: &[QueryConfig]) -> QueryTable {
        let table = QueryTable::default();
        for query in queries {
            table.add(query.clone()).expect("the configuration was checked: there are not too many");
        }
        table
    }

    fn lock(&self) -> MutexGuard<'_, QuerySlots> {
        self.queries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of queries that were ever served.
    #[inline]
    pub fn number(&self) -> u64 {
        // Relaxed: a reader that sees a new number takes the lock, which orders the rest.
        self.number.load(Ordering::Relaxed)
    }

    /// Serves a query, instead of the one of the same name if there is one.
    ///
    /// Errors: every slot is taken.
    pub fn add(&self, config: QueryConfig) -> Result<(), Diagnostic> {
        let mut queries = self.lock();
        let QuerySlots { served, slots } = &mut *queries;
        let free = slots.iter_mut().position(|slot| Arc::get_mut(slot).is_some());
        let at = free.unwrap_or(slots.len());
        if at == MAX_SERVED_QUERIES {
            let wrong = format!("all {MAX_SERVED_QUERIES} slots for queries and ensembles are taken");
            return Err(config.location.diagnostic(wrong, "unload an ensemble"));
        }
        let number = self.number() + 1;
        let info = ModelInfo::of_query(at, &config.name, config.slo);
        let query = Arc::new(ServedQuery { info, config, number });
        served.insert(query.config.name.clone(), Arc::clone(&query));
        match slots.get_mut(at) {
            Some(slot) => *slot = query,
            None => slots.push(query),
        }
        self.number.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// Serves a query no more. Returns true if it was served.
    pub fn remove(&self, name: &str) -> bool {
        self.lock().served.remove(name).is_some()
    }

    /// Returns the query of this name. It must be held until its request has ended, and no longer.
    pub fn find(&self, name: &str) -> Option<Arc<ServedQuery>> {
        self.lock().served.get(name).cloned()
    }

    /// Returns true if there is a query of this name.
    pub fn has(&self, name: &str) -> bool {
        self.lock().served.contains_key(name)
    }

    /// Returns all queries in the order of their ids. They must not be held for long.
    pub fn served(&self) -> Vec<Arc<ServedQuery>> {
        let mut served: Vec<Arc<ServedQuery>> = self.lock().served.values().cloned().collect();
        served.sort_unstable_by_key(|query| query.info.id);
        served
    }

    /// Returns the ids of the queries that came after the first `number`, and the number of all.
    pub(super) fn since(&self, number: u64) -> (Vec<ModelId>, u64) {
        let queries = self.lock();
        let new = queries.slots.iter().filter(|query| query.number > number);
        (new.map(|query| query.info.id).collect(), self.number())
    }
}

/// The models of a query's stages in a table of models, whose tensors fit each other.
#[derive(Clone, Debug)]
pub struct QueryModels {
    /// The slot of each stage's model.
    pub slots: Vec<usize>,
    /// The tensors of the query.
    pub tensors: QueryTensors,
}

impl QueryModels {
    /// Finds the models of a query in `table`.
    ///
    /// Errors: a model that is not served, or tensors that do not fit.
    pub fn find(query: &QueryConfig, table: &[ModelInfo]) -> Result<QueryModels, Diagnostics> {
        let slots = query.stages.iter().map(|stage| slot_of(stage, table)).collect::<Result<Vec<_>, _>>();
        let slots = slots.map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
        let model = |&slot: &usize| {
            let ModelInfo { signature, defaults, .. } = &table[slot];
            StageModel { signature, defaults }
        };
        let models: Vec<StageModel<'_>> = slots.iter().map(model).collect();
        Ok(QueryModels { tensors: QueryTensors::of(query, &models)?, slots })
    }
}

/// Returns the slot of a stage's model: of its first application, where it has several.
fn slot_of(stage: &StageConfig, table: &[ModelInfo]) -> Result<usize, Diagnostic> {
    let StageConfig { name, model, version, location, .. } = stage;
    let found = ModelInfo::find(table, model, *version).ok_or_else(|| {
        let version = version.map_or(String::new(), |version| format!(" of version {version}"));
        let wrong = format!("the model \"{model}\"{version} of stage \"{name}\" is not served");
        location.diagnostic(wrong, "load it, or name one that is served")
    })?;
    if found.sizes.is_some() {
        let wrong = format!("the model \"{model}\" of stage \"{name}\" is served in size classes");
        return Err(location.diagnostic(wrong, "give its dimensions one size each"));
    }
    let first = found.application_named(table, None);
    Ok(found.class_for(table, &[], first).unwrap_or(found).id.0 as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{TensorSource, parse_config};
    use crate::runtime::frontend::SlotState;
    use symphony_gpu::{DataType, Signature, TensorSpec};

    /// A chain of two stages, `a` and then `b`, as CONFIG has it: in the other order.
    fn chain(name: &str) -> QueryConfig {
        let text = format!(
            "[[executors]]\nkind = \"emulated\"\n[repository]\npath = \".\"\ncontrol = \"explicit\"\n\
             [[queries]]\nname = \"{name}\"\nslo_ms = 100\ninputs = [\"x\"]\noutputs = [\"z\"]\n\
             stages = [{{ model = \"b\", inputs = [{{ input = \"IN\", tensor = \"y\" }}], outputs = [{{ output = \"OUT\", tensor = \"z\" }}] }},\n\
             {{ model = \"a\", inputs = [{{ input = \"IN\", tensor = \"x\" }}], outputs = [{{ output = \"OUT\", tensor = \"y\" }}] }}]\n",
        );
        parse_config(&text).unwrap().queries.remove(0)
    }

    fn served(at: u32, name: &str, from: &[usize], to: &[usize]) -> ModelInfo {
        let tensor = |name: &str, shape: &[usize]| TensorSpec {
            name: name.to_owned(),
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
        };
        ModelInfo {
            name: name.to_owned(),
            version: 1,
            signature: Signature::of_rows(vec![tensor("IN", from)], vec![tensor("OUT", to)]),
            state: SlotState::Serving,
            ..ModelInfo::vacant(ModelId(at), 0)
        }
    }

    #[test]
    fn a_query_has_the_tensors_that_go_in_and_out_of_its_stages() {
        let models = [served(0, "a", &[3], &[2]), served(1, "b", &[2], &[5])];
        let QueryModels { slots, tensors } = QueryModels::find(&chain("q"), &models).unwrap();
        let Signature { inputs, outputs, has_batch, .. } = &tensors.signature;
        assert_eq!((inputs[0].name.as_str(), &inputs[0].shape[..]), ("x", &[3][..]));
        assert_eq!((outputs[0].name.as_str(), &outputs[0].shape[..]), ("z", &[5][..]));
        // The configuration's order does not matter.
        assert_eq!((slots, *has_batch), (vec![0, 1], true));
        assert_eq!([0, 1].map(|stage: usize| &tensors.stages[stage].after[..]), [&[][..], &[0]]);
        let last = TensorSource::Stage { stage: 1, output: 0 };
        assert_eq!(tensors.outputs, [last]);
    }

    #[test]
    fn a_query_is_not_ready_without_its_models_or_with_tensors_that_do_not_fit() {
        let reason = |models: &[ModelInfo]| {
            let Diagnostics(all) = QueryModels::find(&chain("q"), models).unwrap_err();
            let [Diagnostic { line, wrong, right, .. }] = &all[..] else { panic!("{all:?}") };
            (*line, format!("{wrong}; {right}"))
        };
        assert_eq!(
            reason(&[served(0, "a", &[3], &[2])]),
            (
                11,
                "the model \"b\" of stage \"b\" is not served; load it, or name one that is served"
                    .to_owned()
            )
        );
        assert_eq!(
            reason(&[served(0, "a", &[3], &[2]), served(1, "b", &[4], &[5])]),
            (
                11,
                "input \"IN\" of stage \"b\" takes a tensor FP32 of shape [2] a row; its model \"b\" takes FP32 of shape [4]"
                    .to_owned()
            )
        );
        let mut other = served(0, "a", &[3], &[2]);
        other.signature.inputs[0].name = "OTHER".to_owned();
        assert_eq!(
            reason(&[other, served(1, "b", &[2], &[5])]),
            (12, "the model \"a\" of stage \"a\" has no input \"IN\"; its inputs are [\"OTHER\"]".to_owned())
        );
    }

    #[test]
    fn a_slot_gets_another_query_once_nobody_holds_the_one_before() {
        let table = QueryTable::new(&[chain("q")]);
        let first = table.find("q").unwrap();
        table.add(chain("q")).unwrap();
        let second = table.find("q").unwrap();
        assert_ne!(first.info.id, second.info.id, "a request of the first is under way");
        assert_eq!((first.number, second.number, table.since(1)), (1, 2, (vec![second.info.id], 2)));
        let slot = first.info.id;
        drop(first);
        table.add(chain("other")).unwrap();
        assert_eq!(table.find("other").unwrap().info.id, slot);
        assert!(table.remove("q") && !table.remove("q") && !table.has("q"));
        assert_eq!(
            table.served().iter().map(|query| query.config.name.as_str()).collect::<Vec<_>>(),
            ["other"]
        );
    }

    #[test]
    fn there_are_as_many_queries_as_slots() {
        let table = QueryTable::default();
        for at in 0..MAX_SERVED_QUERIES {
            table.add(chain(&at.to_string())).unwrap();
        }
        assert!(table.add(chain("more")).unwrap_err().to_string().contains("all 256 slots"));
        assert!(table.remove("7"));
        table.add(chain("more")).unwrap();
    }
}
