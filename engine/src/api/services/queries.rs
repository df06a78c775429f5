//! The queries that a server has, and what their stages are at the moment: the models that are
//! served under the names in CONFIG, and where the bytes of each tensor come from.

use crate::config::{QueryConfig, StageConfig, TensorLink};
use crate::runtime::frontend::ModelInfo;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use symphony_gpu::{DataType, Signature, TensorSpec};
use symphony_scheduler::query::{StageReserves, outputs_of};
use symphony_transport::Nanos;

/// The place that a tensor of a query comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::api) enum TensorSource {
    /// The input of the query at this index.
    Client(usize),
    /// The output at index `output` of the model of a stage.
    Stage {
        /// The index of the stage.
        stage: usize,
        /// The index in the signature of its model.
        output: usize,
    },
    /// The model's default: elements with these bytes.
    Default(Vec<u8>),
}

impl TensorSource {
    /// Returns the stage that makes it.
    fn stage(&self) -> Option<usize> {
        match self {
            TensorSource::Stage { stage, .. } => Some(*stage),
            _ => None,
        }
    }
}

/// An input of a stage.
#[derive(Clone, Debug)]
pub(in crate::api) struct StageTensor {
    /// The place that it comes from.
    pub(in crate::api) source: TensorSource,
    /// True if the tensor's first dimension holds a value for each item.
    pub(in crate::api) by_item: bool,
}

/// A stage of a query whose model is served.
#[derive(Clone, Debug)]
pub(in crate::api) struct FoundStage {
    /// The index of its model in the table.
    slot: usize,
    /// The inputs, in the order of the model's signature.
    pub(in crate::api) inputs: Vec<StageTensor>,
    /// The stages that it waits for.
    pub(in crate::api) after: Vec<usize>,
    /// The number of items that each row has room for, where it fans out.
    fan: Option<usize>,
    /// The tensor that says how many items there are, and its type.
    pub(in crate::api) count: Option<(TensorSource, DataType)>,
}

impl FoundStage {
    /// Returns the number of items that each row has room for: 1 where it does not fan out.
    pub(in crate::api) fn room(&self) -> usize {
        self.fan.unwrap_or(1)
    }
}

/// A query all of whose models are served. They accept its requests for as long as it is held.
#[derive(Clone, Debug)]
pub(in crate::api) struct FoundQuery {
    queries: Arc<[QueryConfig]>,
    at: usize,
    table: Arc<[ModelInfo]>,
    /// The stages, in the order of the configuration's.
    pub(in crate::api) stages: Vec<FoundStage>,
    /// The source of each output.
    pub(in crate::api) outputs: Vec<TensorSource>,
    /// The shortest time that each stage can take: that of one item, or of a batch of all of them
    /// where their number is fixed.
    shortest: Vec<Nanos>,
}

impl FoundQuery {
    /// Finds the models of the query at `at`, and describes it as a model.
    ///
    /// Errors: the reason why it can't be served.
    fn new(
        queries: &Arc<[QueryConfig]>,
        at: usize,
        table: &Arc<[ModelInfo]>,
    ) -> Result<(ModelInfo, FoundQuery), String> {
        let config = &queries[at];
        let mut found = FoundQuery {
            queries: Arc::clone(queries),
            at,
            table: Arc::clone(table),
            stages: Vec::with_capacity(config.stages.len()),
            outputs: Vec::new(),
            shortest: Vec::new(),
        };
        // In topological order.
        for stage in &config.stages {
            let stage = found.stage(stage)?;
            found.stages.push(stage);
        }
        found.outputs = config.outputs.iter().map(|tensor| found.source(tensor)).collect::<Result<_, _>>()?;
        found.shortest = (0..found.stages.len()).map(|stage| found.shortest_of(stage)).collect();
        let info = found.described()?;
        if let Some(differs) = config.undeclared(&info.signature).first() {
            return Err(differs.to_string());
        }
        Ok((info, found))
    }

    /// Finds a stage all of whose inputs are found.
    ///
    /// Errors: the reason why it can't be served.
    fn stage(&self, stage: &StageConfig) -> Result<FoundStage, String> {
        let slot = slot_of(stage, &self.table)?;
        let ModelInfo { signature, defaults, .. } = &self.table[slot];
        check_links(stage, &stage.inputs, &signature.inputs, "input")?;
        check_links(stage, &stage.outputs, &signature.outputs, "output")?;
        let mut inputs = Vec::with_capacity(signature.inputs.len());
        for (at, spec) in signature.inputs.iter().enumerate() {
            let link = stage.inputs.iter().find(|link| link.of_model == spec.name);
            let by_item = link.is_some_and(|link| stage.fan_out.contains(&link.tensor));
            let source = match (link, defaults.get(at).and_then(Option::as_ref)) {
                (Some(link), _) => self.source(&link.tensor)?,
                (None, Some(element)) => TensorSource::Default(element.clone()),
                (None, None) => {
                    let (name, stage) = (&spec.name, &stage.name);
                    return Err(format!(
                        "its stage {stage:?} does not say what its model's input {name:?} takes"
                    ));
                }
            };
            inputs.push(StageTensor { source, by_item });
        }
        let count = stage.count.as_ref().map(|tensor| self.source(tensor)).transpose()?;
        let sources = inputs.iter().map(|input| &input.source).chain(&count);
        let mut after: Vec<usize> = sources.filter_map(TensorSource::stage).collect();
        after.sort_unstable();
        after.dedup();
        let fan = self.fan(stage, &inputs)?;
        let count = count.map(|count| self.counted(stage, count)).transpose()?;
        Ok(FoundStage { slot, inputs, after, fan, count })
    }

    /// Returns the number of items that each row of a stage has room for, if it fans out.
    fn fan(&self, stage: &StageConfig, inputs: &[StageTensor]) -> Result<Option<usize>, String> {
        let mut fan = None;
        for input in inputs.iter().filter(|input| input.by_item) {
            let spec = self.made(&input.source).expect("the configuration was checked: a stage makes it");
            let room = spec.shape.first().copied().filter(|&room| room > 0).ok_or_else(|| {
                format!("its stage {:?} fans out over a tensor of shape {:?}", stage.name, spec.shape)
            })?;
            if fan.is_some_and(|fan| fan != room) {
                return Err(format!(
                    "its stage {:?} fans out over tensors of {fan:?} and of {room} items",
                    stage.name
                ));
            }
            fan = Some(room);
        }
        Ok(fan)
    }

    /// Returns a stage's tensor `count` with its type.
    ///
    /// Errors: it is not one whole number for each row.
    fn counted(&self, stage: &StageConfig, count: TensorSource) -> Result<(TensorSource, DataType), String> {
        let spec = self.made(&count).expect("the configuration was checked: a stage makes it");
        if spec.datatype.whole_number(&[0; 8][..spec.datatype.size_bytes().min(8)]).is_some()
            && spec.elements() == 1
        {
            return Ok((count, spec.datatype));
        }
        Err(format!(
            "its stage {:?} counts items by a tensor {} of shape {:?} a row; it must be one whole number or BOOL",
            stage.name, spec.datatype, spec.shape
        ))
    }

    /// Returns a tensor that a stage makes, a row of it; `None` for others.
    fn made(&self, source: &TensorSource) -> Option<TensorSpec> {
        let TensorSource::Stage { stage, output } = source else { return None };
        let mut spec = self.model(*stage).signature.outputs[*output].clone();
        if let Some(room) = self.stages[*stage].fan {
            spec.shape.insert(0, room);
        }
        Some(spec)
    }

    /// Returns the place that a tensor comes from: the client, or a stage that is found.
    fn source(&self, tensor: &str) -> Result<TensorSource, String> {
        let config = self.config();
        if let Some(at) = config.inputs.iter().position(|input| input == tensor) {
            return Ok(TensorSource::Client(at));
        }
        let made = config.maker(tensor).and_then(|stage| {
            let link = config.stages[stage].outputs.iter().find(|output| output.tensor == tensor)?;
            let outputs = &self.model(stage).signature.outputs;
            let output = outputs.iter().position(|spec| spec.name == link.of_model)?;
            Some(TensorSource::Stage { stage, output })
        });
        made.ok_or_else(|| format!("no model of its stages has an output for tensor {tensor:?}"))
    }

    /// Returns its description as a model.
    ///
    /// Errors: two tensors that should be the same are not.
    fn described(&self) -> Result<ModelInfo, String> {
        let config = self.config();
        let base = ModelInfo::of_query(self.at, &config.name, config.slo);
        let mut signature = Signature {
            has_batch: (0..self.stages.len()).all(|stage| self.model(stage).signature.has_batch),
            ..Signature::default()
        };
        for (at, name) in config.inputs.iter().enumerate() {
            let spec = self.given(at).expect("the configuration was checked: each input is taken");
            signature.inputs.push(TensorSpec { name: name.clone(), ..spec.clone() });
        }
        for stage in 0..self.stages.len() {
            self.check_inputs(stage, &signature)?;
        }
        for (name, source) in config.outputs.iter().zip(&self.outputs) {
            let spec = self.made(source).expect("the configuration was checked: outputs are made by stages");
            signature.outputs.push(TensorSpec { name: name.clone(), ..spec });
        }
        let models = || (0..self.stages.len()).map(|stage| self.model(stage));
        let defaults = signature.inputs.iter().map(|_| None).collect();
        let max_batch = models().map(|model| model.max_batch).min().unwrap_or_default();
        Ok(ModelInfo { signature, defaults, max_batch, class: self.model(0).class, ..base })
    }

    /// Checks that what each input of a stage takes is what its model wants. `signature` has the
    /// inputs of the query.
    fn check_inputs(&self, stage: usize, signature: &Signature) -> Result<(), String> {
        let (found, name) = (&self.stages[stage], &self.config().stages[stage].name);
        for (input, from) in self.model(stage).signature.inputs.iter().zip(&found.inputs) {
            let given = match &from.source {
                TensorSource::Client(at) => signature.inputs[*at].clone(),
                TensorSource::Default(_) => continue,
                made => self.made(made).expect("a stage makes it"),
            };
            let shape = &given.shape[usize::from(from.by_item)..];
            if (given.datatype, shape) != (input.datatype, &input.shape) {
                let of = if from.by_item { "an item" } else { "a row" };
                return Err(format!(
                    "input {:?} of stage {name:?} is {} of shape {:?}, and the tensor that it takes {} of shape {shape:?} {of}",
                    input.name, input.datatype, input.shape, given.datatype
                ));
            }
        }
        Ok(())
    }

    /// Returns the first input of a model that takes the query's input at `at`.
    fn given(&self, at: usize) -> Option<&TensorSpec> {
        let of_stage = |(stage, found): (usize, &FoundStage)| {
            let is_it = |input: &StageTensor| input.source == TensorSource::Client(at);
            self.model(stage).signature.inputs.get(found.inputs.iter().position(is_it)?)
        };
        self.stages.iter().enumerate().find_map(of_stage)
    }

    /// Returns the shortest time that a stage can take.
    fn shortest_of(&self, stage: usize) -> Nanos {
        let (found, model) = (&self.stages[stage], self.model(stage));
        let items = if found.count.is_some() { 1 } else { found.room() };
        model.profile.latency(items.min(model.max_batch).max(1))
    }

    /// Returns its configuration.
    pub(in crate::api) fn config(&self) -> &QueryConfig {
        &self.queries[self.at]
    }

    /// Returns the model of a stage.
    pub(in crate::api) fn model(&self, stage: usize) -> &ModelInfo {
        &self.table[self.stages[stage].slot]
    }

    /// Returns the stages that wait for each stage.
    pub(in crate::api) fn outputs_of_stages(&self) -> Vec<Vec<usize>> {
        outputs_of(self.stages.iter().map(|stage| &stage.after[..]))
    }
}

/// Returns the slot of a stage's model: of its first application, where it has several.
fn slot_of(stage: &StageConfig, table: &[ModelInfo]) -> Result<usize, String> {
    let model = ModelInfo::find(table, &stage.model, stage.version).ok_or_else(|| {
        let version = stage.version.map_or(String::new(), |version| format!(" of version {version}"));
        format!("the model {:?}{version} of its stage {:?} is not served", stage.model, stage.name)
    })?;
    if model.sizes.is_some() {
        return Err(format!(
            "the model {:?} of its stage {:?} is served in size classes; give its dimensions one size each",
            stage.model, stage.name
        ));
    }
    let first = model.application_named(table, None);
    Ok(model.class_for(table, &[], first).unwrap_or(model).id.0 as usize)
}

/// Checks that a stage's model has the tensors that the stage names.
fn check_links(
    stage: &StageConfig,
    links: &[TensorLink],
    specs: &[TensorSpec],
    kind: &str,
) -> Result<(), String> {
    let is_unknown = |link: &&TensorLink| specs.iter().all(|spec| spec.name != link.of_model);
    links.iter().find(is_unknown).map_or(Ok(()), |link| {
        let StageConfig { name, model, .. } = stage;
        Err(format!("the model {model:?} of its stage {name:?} has no {kind} {:?}", link.of_model))
    })
}

/// The queries as one API core knows them, with the recent times of their stages.
#[derive(Debug)]
pub(in crate::api) struct CoreQueries {
    all: Arc<[QueryConfig]>,
    by_name: HashMap<String, usize>,
    reserves: RefCell<Vec<Option<StageReserves>>>,
}

impl CoreQueries {
    /// Takes over the queries of a server.
    pub(in crate::api) fn new(all: Arc<[QueryConfig]>) -> CoreQueries {
        let by_name = all.iter().enumerate().map(|(at, query)| (query.name.clone(), at)).collect();
        let reserves = RefCell::new(vec![None; all.len()]);
        CoreQueries { all, by_name, reserves }
    }

    /// Returns true if there is a query of this name, which may not be ready.
    pub(in crate::api) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Returns the query of this name with its models of `table`; `None` if there is none.
    ///
    /// Errors: the reason why it can't be served.
    pub(in crate::api) fn find(
        &self,
        name: &str,
        table: &Arc<[ModelInfo]>,
    ) -> Option<Result<(ModelInfo, FoundQuery), String>> {
        Some(FoundQuery::new(&self.all, *self.by_name.get(name)?, table))
    }

    /// Returns the descriptions of all queries that can be served.
    pub(in crate::api) fn served(&self, table: &Arc<[ModelInfo]>) -> impl Iterator<Item = ModelInfo> {
        (0..self.all.len()).filter_map(|at| Some(FoundQuery::new(&self.all, at, table).ok()?.0))
    }

    /// Returns the deadline of a stage of a query that must be over by `due`.
    pub(in crate::api) fn deadline(&self, query: &FoundQuery, stage: usize, due: Nanos) -> Nanos {
        self.with_reserves(query, |reserves| reserves.deadline(stage, due))
    }

    /// Counts a stage that took `time` from its begin to its end.
    pub(in crate::api) fn took(&self, query: &FoundQuery, stage: usize, time: Nanos) {
        self.with_reserves(query, |reserves| reserves.took(stage, time));
    }

    /// Calls `run` with the reserves of a query, which are new where its models are.
    fn with_reserves<T>(&self, query: &FoundQuery, run: impl FnOnce(&mut StageReserves) -> T) -> T {
        let mut all = self.reserves.borrow_mut();
        let kept = &mut all[query.at];
        match kept {
            Some(reserves) if reserves.is_of(&query.shortest) => run(reserves),
            _ => {
                let slo = query.config().slo;
                run(kept.insert(StageReserves::in_proportion(
                    query.outputs_of_stages(),
                    &query.shortest,
                    slo,
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_config;
    use crate::runtime::frontend::SlotState;
    use symphony_transport::message::ModelId;

    /// A chain of two stages, as CONFIG has it.
    fn queries() -> Arc<[QueryConfig]> {
        let model = |name: &str| {
            format!(
                "[[models]]\nname = \"{name}\"\nslo_ms = 50\nexecutor = \"emulated\"\ninputs = [{{ name = \"IN\", datatype = \"FP32\", shape = [1] }}]\noutputs = [{{ name = \"OUT\", datatype = \"FP32\", shape = [1] }}]\nprofile = {{ alpha_ms = 1, beta_ms = 1 }}\nmax_batch = 8\n"
            )
        };
        let text = format!(
            "[[executors]]\nkind = \"emulated\"\n{}{}[[queries]]\nname = \"q\"\nslo_ms = 100\ninputs = [\"x\"]\noutputs = [\"z\"]\n\
             stages = [{{ model = \"b\", inputs = [{{ input = \"IN\", tensor = \"y\" }}], outputs = [{{ output = \"OUT\", tensor = \"z\" }}] }},\n\
             {{ model = \"a\", inputs = [{{ input = \"IN\", tensor = \"x\" }}], outputs = [{{ output = \"OUT\", tensor = \"y\" }}] }}]\n",
            model("a"),
            model("b")
        );
        parse_config(&text).unwrap().queries.into()
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

    fn found(models: Vec<ModelInfo>) -> Result<(ModelInfo, FoundQuery), String> {
        CoreQueries::new(queries()).find("q", &models.into()).unwrap()
    }

    #[test]
    fn a_query_has_the_tensors_that_go_in_and_out_of_its_stages() {
        let (info, query) = found(vec![served(0, "a", &[3], &[2]), served(1, "b", &[2], &[5])]).unwrap();
        assert_eq!(
            (info.signature.inputs[0].name.as_str(), &info.signature.inputs[0].shape[..]),
            ("x", &[3][..])
        );
        assert_eq!(
            (info.signature.outputs[0].name.as_str(), &info.signature.outputs[0].shape[..]),
            ("z", &[5][..])
        );
        assert!(info.is_query() && info.signature.has_batch);
        // The configuration's order does not matter.
        assert_eq!([query.model(0), query.model(1)].map(|model| model.name.as_str()), ["a", "b"]);
        assert_eq!(query.outputs_of_stages(), [vec![1], vec![]]);
        assert_eq!(query.outputs, [TensorSource::Stage { stage: 1, output: 0 }]);
    }

    #[test]
    fn a_query_is_not_ready_without_its_models_or_with_tensors_that_do_not_fit() {
        let missing = found(vec![served(0, "a", &[3], &[2])]).unwrap_err();
        assert!(missing.contains("model \"b\"") && missing.contains("is not served"), "{missing}");
        let differs = found(vec![served(0, "a", &[3], &[2]), served(1, "b", &[4], &[5])]).unwrap_err();
        assert!(differs.contains("stage \"b\"") && differs.contains("[4]"), "{differs}");
        let mut other = served(1, "b", &[2], &[5]);
        other.signature.inputs[0].name = "OTHER".to_owned();
        let unknown = found(vec![served(0, "a", &[3], &[2]), other]).unwrap_err();
        assert!(unknown.contains("has no input \"IN\""), "{unknown}");
    }
}
