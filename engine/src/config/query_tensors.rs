//! The tensors of a query whose models are known: where each comes from, and whether it is what its
//! taker wants. Served queries and `symphony check` are compared with their models here.

use super::diagnostics::{Diagnostic, Diagnostics};
use super::queries::{QueryConfig, StageConfig, TensorLink};
use symphony_gpu::{DataType, Signature, TensorSpec};

/// The place that a tensor of a query comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TensorSource {
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageTensor {
    /// The place that it comes from.
    pub source: TensorSource,
    /// True if the tensor's first dimension holds a value for each item.
    pub by_item: bool,
}

/// The tensors of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageTensors {
    /// The inputs, in the order of the model's signature.
    pub inputs: Vec<StageTensor>,
    /// The stages that it waits for.
    pub after: Vec<usize>,
    /// The number of items that each row has room for, where it fans out.
    fan: Option<usize>,
    /// The tensor that says how many items there are, and its type.
    pub count: Option<(TensorSource, DataType)>,
}

impl StageTensors {
    /// Returns the number of items that each row has room for: 1 where it does not fan out.
    pub fn room(&self) -> usize {
        self.fan.unwrap_or(1)
    }
}

/// The model of a stage, as far as its query's tensors depend on it.
#[derive(Clone, Copy, Debug)]
pub struct StageModel<'m> {
    /// The tensors of one row.
    pub signature: &'m Signature,
    /// The element of each input that may be left out, in the signature's order; may be shorter.
    pub defaults: &'m [Option<Vec<u8>>],
}

/// The tensors of a query, which fit its models.
#[derive(Clone, Debug)]
pub struct QueryTensors {
    /// The tensors of each stage, in the order of the configuration.
    pub stages: Vec<StageTensors>,
    /// The source of each output.
    pub outputs: Vec<TensorSource>,
    /// The tensors of one row that a client gives and gets. Without a batch dimension where a model
    /// has none.
    pub signature: Signature,
}

impl QueryTensors {
    /// Finds the tensors of a query whose stages run `models`, in the order of the stages.
    ///
    /// Errors: the first tensor that does not fit, or each that an ensemble declares otherwise than
    /// its models have it.
    pub fn of(query: &QueryConfig, models: &[StageModel<'_>]) -> Result<QueryTensors, Diagnostics> {
        let found = TensorFinder { query, models, stages: Vec::with_capacity(models.len()) }.found();
        let found = found.map_err(|diagnostic| Diagnostics(vec![diagnostic]))?;
        let undeclared = query.undeclared(&found.signature);
        if undeclared.is_empty() { Ok(found) } else { Err(Diagnostics(undeclared)) }
    }
}

/// The finder of a query's tensors, with the stages found so far.
struct TensorFinder<'q> {
    query: &'q QueryConfig,
    models: &'q [StageModel<'q>],
    stages: Vec<StageTensors>,
}

impl TensorFinder<'_> {
    fn found(mut self) -> Result<QueryTensors, Diagnostic> {
        let (query, models) = (self.query, self.models);
        // In topological order.
        for stage in &query.stages {
            let tensors = self.stage(stage)?;
            self.stages.push(tensors);
        }
        let outputs: Vec<TensorSource> = query.outputs.iter().map(|tensor| self.source(tensor)).collect();
        let has_batch = models.iter().all(|model| model.signature.has_batch);
        let mut signature = Signature { has_batch, ..Signature::default() };
        for (at, name) in query.inputs.iter().enumerate() {
            let spec = self.given(at).expect("the configuration was checked: each input is taken");
            signature.inputs.push(TensorSpec { name: name.clone(), ..spec.clone() });
        }
        (0..self.stages.len()).try_for_each(|stage| self.check_inputs(stage, &signature))?;
        for (name, source) in query.outputs.iter().zip(&outputs) {
            let spec = self.made(source).expect("the configuration was checked: outputs are made by stages");
            signature.outputs.push(TensorSpec { name: name.clone(), ..spec });
        }
        Ok(QueryTensors { stages: self.stages, outputs, signature })
    }

    /// Finds the tensors of a stage; those before it are found.
    fn stage(&self, stage: &StageConfig) -> Result<StageTensors, Diagnostic> {
        let StageModel { signature, defaults } = self.models[self.stages.len()];
        check_links(stage, &stage.inputs, &signature.inputs, "input")?;
        check_links(stage, &stage.outputs, &signature.outputs, "output")?;
        let mut inputs = Vec::with_capacity(signature.inputs.len());
        for (at, spec) in signature.inputs.iter().enumerate() {
            let link = stage.inputs.iter().find(|link| link.of_model == spec.name);
            let by_item = link.is_some_and(|link| stage.fan_out.contains(&link.tensor));
            let source = match (link, defaults.get(at).and_then(Option::as_ref)) {
                (Some(link), _) => self.source(&link.tensor),
                (None, Some(element)) => TensorSource::Default(element.clone()),
                (None, None) => {
                    let (name, model) = (&stage.name, &stage.model);
                    let wrong =
                        format!("stage \"{name}\" gives its model \"{model}\" no input \"{}\"", spec.name);
                    let right = "name the tensor that it takes among the stage's inputs";
                    return Err(stage.location.diagnostic(wrong, right));
                }
            };
            inputs.push(StageTensor { source, by_item });
        }
        let count = stage.count.as_ref().map(|tensor| self.source(tensor));
        let sources = inputs.iter().map(|input| &input.source).chain(&count);
        let mut after: Vec<usize> = sources.filter_map(TensorSource::stage).collect();
        after.sort_unstable();
        after.dedup();
        let fan = self.fan(stage, &inputs)?;
        let count = count.map(|count| self.counted(stage, count)).transpose()?;
        Ok(StageTensors { inputs, after, fan, count })
    }

    /// Returns the number of items that each row of a stage has room for, if it fans out.
    fn fan(&self, stage: &StageConfig, inputs: &[StageTensor]) -> Result<Option<usize>, Diagnostic> {
        let mut fan = None;
        for input in inputs.iter().filter(|input| input.by_item) {
            let spec = self.made(&input.source).expect("the configuration was checked: a stage makes it");
            let room = spec.shape.first().copied().filter(|&room| room > 0).ok_or_else(|| {
                let wrong =
                    format!("stage \"{}\" fans out over a tensor of shape {:?}", stage.name, spec.shape);
                stage.location.diagnostic(wrong, "the first dimension of a row must hold its items")
            })?;
            if let Some(other) = fan.filter(|&fan| fan != room) {
                let wrong =
                    format!("stage \"{}\" fans out over tensors of {other} and of {room} items", stage.name);
                return Err(stage.location.diagnostic(wrong, "name tensors of as many items"));
            }
            fan = Some(room);
        }
        Ok(fan)
    }

    /// Returns a stage's tensor `count` with its type.
    ///
    /// Errors: it is not one whole number for each row.
    fn counted(
        &self,
        stage: &StageConfig,
        count: TensorSource,
    ) -> Result<(TensorSource, DataType), Diagnostic> {
        let TensorSpec { datatype, shape, .. } =
            &self.made(&count).expect("the configuration was checked: a stage makes it");
        let is_whole = datatype.whole_number(&[0; 8][..datatype.size_bytes().min(8)]).is_some();
        if is_whole && shape.iter().product::<usize>() == 1 {
            return Ok((count, *datatype));
        }
        let wrong = format!(
            "stage \"{}\" counts its items by a tensor {datatype} of shape {shape:?} a row",
            stage.name
        );
        Err(stage.location.diagnostic(wrong, "it must be one whole number or BOOL"))
    }

    /// Returns a tensor that a stage makes, a row of it; `None` for others.
    fn made(&self, source: &TensorSource) -> Option<TensorSpec> {
        let TensorSource::Stage { stage, output } = source else { return None };
        let mut spec = self.models[*stage].signature.outputs[*output].clone();
        if let Some(room) = self.stages[*stage].fan {
            spec.shape.insert(0, room);
        }
        Some(spec)
    }

    /// Returns the place that a tensor comes from: the client, or a stage that is found.
    fn source(&self, tensor: &str) -> TensorSource {
        if let Some(at) = self.query.inputs.iter().position(|input| input == tensor) {
            return TensorSource::Client(at);
        }
        let made = self.query.maker(tensor).and_then(|stage| {
            let outputs = &self.query.stages[stage].outputs;
            let link = outputs.iter().find(|output| output.tensor == tensor)?;
            let specs = &self.models[stage].signature.outputs;
            let output = specs.iter().position(|spec| spec.name == link.of_model)?;
            Some(TensorSource::Stage { stage, output })
        });
        made.expect("the configuration was checked, and the outputs of the stage that makes it")
    }

    /// Checks that what each input of a stage takes is what its model wants. `signature` has the
    /// inputs of the query.
    fn check_inputs(&self, stage: usize, signature: &Signature) -> Result<(), Diagnostic> {
        let (tensors, StageConfig { name, model, location, .. }) =
            (&self.stages[stage], &self.query.stages[stage]);
        for (input, from) in self.models[stage].signature.inputs.iter().zip(&tensors.inputs) {
            let given = match &from.source {
                TensorSource::Client(at) => signature.inputs[*at].clone(),
                TensorSource::Default(_) => continue,
                made => self.made(made).expect("a stage makes it"),
            };
            let shape = &given.shape[usize::from(from.by_item)..];
            if (given.datatype, shape) != (input.datatype, &input.shape) {
                let of = if from.by_item { "an item" } else { "a row" };
                let wrong = format!(
                    "input \"{}\" of stage \"{name}\" takes a tensor {} of shape {shape:?} {of}",
                    input.name, given.datatype
                );
                let right =
                    format!("its model \"{model}\" takes {} of shape {:?}", input.datatype, input.shape);
                return Err(location.diagnostic(wrong, right));
            }
        }
        Ok(())
    }

    /// Returns the first input of a model that takes the query's input at `at`.
    fn given(&self, at: usize) -> Option<&TensorSpec> {
        self.stages.iter().zip(self.models).find_map(|(stage, model)| {
            let is_it = |input: &StageTensor| input.source == TensorSource::Client(at);
            model.signature.inputs.get(stage.inputs.iter().position(is_it)?)
        })
    }
}

/// Checks that a stage's model has the tensors that the stage names.
fn check_links(
    stage: &StageConfig,
    links: &[TensorLink],
    specs: &[TensorSpec],
    kind: &str,
) -> Result<(), Diagnostic> {
    let is_unknown = |link: &&TensorLink| specs.iter().all(|spec| spec.name != link.of_model);
    links.iter().find(is_unknown).map_or(Ok(()), |link| {
        let StageConfig { name, model, .. } = stage;
        let wrong = format!("the model \"{model}\" of stage \"{name}\" has no {kind} \"{}\"", link.of_model);
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        Err(stage.location.diagnostic(wrong, format!("its {kind}s are {names:?}")))
    })
}
