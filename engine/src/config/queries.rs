//! The sections `[[queries]]`: graphs of models that a client calls as one model, with one SLO. The
//! words are those of a workload file's queries; how tensors pass from stage to stage is said as in
//! Triton's `ensemble_scheduling`: every tensor of the query has a name.

use super::diagnostics::{Diagnostic, Location};
use super::linear_profile;
use super::models::DeclaredTensors;
use super::toml_reader::{TomlTable, TomlValue, read_each};
use std::collections::{BTreeMap, BTreeSet};
use symphony_gpu::Signature;
use symphony_scheduler::query::{MAX_STAGES, topological_order};
use symphony_transport::Nanos;

/// The most queries that are served.
pub const MAX_SERVED_QUERIES: usize = 256;

/// The most tensors that a query, or a stage, takes or gives.
const MAX_TENSORS: usize = 64;

/// A query: a graph of models that is called as one model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryConfig {
    /// The name by which clients call it.
    pub name: String,
    /// The latency promised for the whole, from arrival to answer.
    pub slo: Nanos,
    /// The names of the tensors that a client gives.
    pub inputs: Vec<String>,
    /// The names of the tensors that a client gets: each is a stage's output.
    pub outputs: Vec<String>,
    /// The stages in topological order.
    pub stages: Vec<StageConfig>,
    /// The tensors that an ensemble's `config.pbtxt` declares, which those of its models must have.
    pub declared: DeclaredTensors,
    /// The location of its name.
    pub location: Location,
}

/// A stage of a query: one request of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageConfig {
    /// The name, unique in the query.
    pub name: String,
    /// The name of the model.
    pub model: String,
    /// The model's version; `None` for the newest.
    pub version: Option<u64>,
    /// The model's inputs, each with the query's tensor that it takes.
    pub inputs: Vec<TensorLink>,
    /// The outputs of the model that the query uses, each with the query's tensor that it makes.
    pub outputs: Vec<TensorLink>,
    /// The query's tensors whose first dimension holds items for each of which the stage runs. They
    /// are made by other stages.
    pub fan_out: Vec<String>,
    /// The query's tensor that says for how many items it runs, or whether at all. It is made by
    /// another stage.
    pub count: Option<String>,
    /// The location of its model.
    pub location: Location,
}

/// A tensor of a model, and the tensor of the query that it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorLink {
    /// The name of the model's input or output.
    pub of_model: String,
    /// The name of the query's tensor.
    pub tensor: String,
}

impl QueryConfig {
    /// Returns a diagnostic for each tensor that is declared otherwise than its models have it.
    pub fn undeclared(&self, signature: &Signature) -> Vec<Diagnostic> {
        self.declared.check(signature)
    }

    /// Returns the stage that makes a tensor; `None` if the client gives it.
    pub fn maker(&self, tensor: &str) -> Option<usize> {
        self.stages.iter().position(|stage| stage.makes(tensor))
    }
}

impl StageConfig {
    fn makes(&self, tensor: &str) -> bool {
        self.outputs.iter().any(|output| output.tensor == tensor)
    }

    /// Returns the tensors that it needs before it begins.
    fn needs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|input| &input.tensor).chain(&self.count).map(String::as_str)
    }
}

/// Reads `[[queries]]`; those that have diagnostics are left out.
pub(super) fn read_queries(root: &TomlTable<'_>) -> Vec<QueryConfig> {
    let queries = root.tables("queries", 0, read_query);
    if queries.len() > MAX_SERVED_QUERIES {
        let wrong = format!("{} queries are too many", queries.len());
        root.report("queries", wrong, format!("give at most {MAX_SERVED_QUERIES}"));
    }
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for QueryConfig { name, location, .. } in &queries {
        if let Some(line) = lines.insert(name, location.line) {
            let wrong = format!("\"{name}\" is already the name of the query at line {line}");
            root.add(location.diagnostic(wrong, "give each query a name of its own"));
        }
    }
    queries
}

fn read_query(table: &TomlTable<'_>) -> Option<QueryConfig> {
    const STAGES: &str = "a list of tables, each with the `model` of a stage";
    const INPUTS: &str = "the names of the tensors that a client gives, like [\"image\"]";
    const OUTPUTS: &str = "the names of the tensors that a client gets, like [\"label\"]";
    let name = table.required("name", "the query's name").and_then(|value| value.name("the query's name"));
    let slo = table.required("slo_ms", "the latency promised for the whole query, in ms");
    let slo = slo.and_then(|value| value.number(linear_profile::SLO)).map(Nanos::from_millis_f64);
    let names = |field, right: &str| {
        let items = bounded(&table.required(field, right)?, right, MAX_TENSORS)?;
        read_each(&items, |item| item.name("the name of a tensor"))
    };
    let (inputs, outputs) = (names("inputs", INPUTS), names("outputs", OUTPUTS));
    let stages = table.required("stages", STAGES).and_then(|value| {
        let items = bounded(&value, STAGES, MAX_STAGES)?;
        read_each(&items, |item| item.table(read_stage))
    });
    let query = QueryConfig {
        name: name?,
        slo: slo?,
        inputs: inputs?,
        outputs: outputs?,
        stages: stages?,
        declared: DeclaredTensors::default(),
        location: table.location("name"),
    };
    match query.checked() {
        Ok(query) => Some(query),
        Err(diagnostic) => {
            table.add(diagnostic);
            None
        }
    }
}

/// Returns the items of a list of 1 to `most`.
fn bounded<'d>(value: &TomlValue<'d>, right: &str, most: usize) -> Option<Vec<TomlValue<'d>>> {
    let items = value.items(&format!("give {right}"))?;
    if items.is_empty() || items.len() > most {
        value.report(format!("has {} items", items.len()), format!("give 1 to {most}"));
        return None;
    }
    Some(items)
}

fn read_stage(table: &TomlTable<'_>) -> Option<StageConfig> {
    const MODEL: &str = "the name of a model";
    let model = table.required("model", MODEL).and_then(|value| value.name(MODEL));
    let name = table.optional("name").map(|value| value.name("the stage's name"));
    let version = table.optional("version").map(|value| value.integer(1..=u64::MAX));
    let inputs = read_links(table, "inputs", "input");
    let outputs = read_links(table, "outputs", "output");
    let fan_out = table.optional("fan_out").map_or(Some(Vec::new()), |value| {
        let right = "the names of tensors whose first dimension holds items, like [\"crops\"]";
        read_each(&bounded(&value, right, MAX_TENSORS)?, |item| item.name("the name of a tensor"))
    });
    let count = table.optional("count").map(|value| value.name("the name of a tensor"));
    let model = model?;
    Some(StageConfig {
        name: name.unwrap_or_else(|| Some(model.clone()))?,
        model,
        version: version.map_or(Some(None), |version| version.map(Some))?,
        inputs: inputs?,
        outputs: outputs?,
        fan_out: fan_out?,
        count: count.map_or(Some(None), |count| count.map(Some))?,
        location: table.location("model"),
    })
}

/// Reads a list of tables `{ KIND = "NAME", tensor = "NAME" }`, or of names where both are the
/// same.
fn read_links(table: &TomlTable<'_>, field: &'static str, kind: &'static str) -> Option<Vec<TensorLink>> {
    let right = format!("a list like [{{ {kind} = \"X\", tensor = \"image\" }}], or [\"X\"] for a tensor X");
    let items = bounded(&table.required(field, &right)?, &right, MAX_TENSORS)?;
    read_each(&items, |item| {
        if item.is_text() {
            let name = item.name("the name of a tensor")?;
            return Some(TensorLink { of_model: name.clone(), tensor: name });
        }
        item.table(|link| {
            let read = |field, what: &str| link.required(field, what)?.name(what);
            let of_model = read(kind, "the name that it has in the model");
            let tensor = read("tensor", "the name that it has in the query");
            Some(TensorLink { of_model: of_model?, tensor: tensor? })
        })
    })
}

impl QueryConfig {
    /// Puts the stages into topological order.
    ///
    /// Errors: what is wrong with the graph, at its first fault.
    pub(super) fn checked(mut self) -> Result<QueryConfig, Diagnostic> {
        self.check_stages()?;
        self.check_tensors()?;
        let inputs = |stage: &StageConfig| stage.needs().filter_map(|tensor| self.maker(tensor)).collect();
        let inputs: Vec<Vec<usize>> = self.stages.iter().map(inputs).collect();
        let order = topological_order(&inputs).map_err(|stuck| {
            let stage = &self.stages[stuck];
            let wrong = format!("stage \"{}\" is in a cycle, or after one", stage.name);
            stage.location.diagnostic(wrong, "no stage may need what follows from its own outputs")
        })?;
        self.stages = order.into_iter().map(|at| self.stages[at].clone()).collect();
        Ok(self)
    }

    /// Checks names of stages, that no tensor of a model is named twice, and what fans out.
    fn check_stages(&self) -> Result<(), Diagnostic> {
        for (at, stage) in self.stages.iter().enumerate() {
            if self.stages[..at].iter().any(|before| before.name == stage.name) {
                let wrong = format!("\"{}\" is already the name of a stage of this query", stage.name);
                return Err(stage.location.diagnostic(wrong, "give each stage a `name` of its own"));
            }
            for links in [&stage.inputs, &stage.outputs] {
                if let Some(twice) = repeated(links.iter().map(|link| link.of_model.as_str())) {
                    let wrong = format!("stage \"{}\" names its model's \"{twice}\" twice", stage.name);
                    return Err(stage.location.diagnostic(wrong, "name each input and each output once"));
                }
            }
            let is_input = |tensor: &String| stage.inputs.iter().any(|input| input.tensor == *tensor);
            if let Some(tensor) = stage.fan_out.iter().find(|tensor| !is_input(tensor)) {
                let wrong =
                    format!("stage \"{}\" fans out over \"{tensor}\", which it does not take", stage.name);
                return Err(stage.location.diagnostic(wrong, "name tensors of its `inputs`"));
            }
            let of_client = |tensor: &&String| self.inputs.contains(tensor);
            if let Some(tensor) = stage.fan_out.iter().chain(&stage.count).find(of_client) {
                let wrong = format!("stage \"{}\" has items by the client's \"{tensor}\"", stage.name);
                return Err(stage.location.diagnostic(wrong, "name the tensor of a stage's output"));
            }
        }
        Ok(())
    }

    /// Checks that each tensor comes from one place, and is used.
    fn check_tensors(&self) -> Result<(), Diagnostic> {
        let made = self.stages.iter().flat_map(|stage| &stage.outputs).map(|output| output.tensor.as_str());
        let given = self.inputs.iter().map(String::as_str);
        let wrong = |wrong: String, right: &str| Err(self.location.diagnostic(wrong, right));
        if let Some(twice) = repeated(given.chain(made)) {
            let what = format!("tensor \"{twice}\" comes from two places in query \"{}\"", self.name);
            return wrong(what, "a tensor is one of `inputs`, or the output of one stage");
        }
        if let Some(twice) = repeated(self.outputs.iter().map(String::as_str)) {
            return wrong(format!("output \"{twice}\" is listed twice"), "list each output once");
        }
        for stage in &self.stages {
            let is_given = |tensor: &str| self.inputs.iter().any(|input| input == tensor);
            if let Some(tensor) = stage.needs().find(|of| self.maker(of).is_none() && !is_given(of)) {
                let wrong =
                    format!("stage \"{}\" takes tensor \"{tensor}\", which nothing makes", stage.name);
                let right = "name one of the query's `inputs`, or the tensor of a stage's output";
                return Err(stage.location.diagnostic(wrong, right));
            }
            let is_needed =
                |tensor: &str| self.stages.iter().any(|stage| stage.needs().any(|of| of == tensor));
            let is_used = |of: &TensorLink| self.outputs.contains(&of.tensor) || is_needed(&of.tensor);
            if !stage.outputs.iter().any(is_used) {
                let wrong = format!("nothing takes what stage \"{}\" makes", stage.name);
                let right = "leave the stage out, or name a tensor of it among `outputs`";
                return Err(stage.location.diagnostic(wrong, right));
            }
        }
        if let Some(output) = self.outputs.iter().find(|output| self.maker(output).is_none()) {
            let right = "name the tensor of a stage's output";
            return wrong(format!("output \"{output}\" is made by no stage"), right);
        }
        let takes = |stage: &StageConfig, input: &str| stage.inputs.iter().any(|of| of.tensor == input);
        let unused = |input: &&String| !self.stages.iter().any(|stage| takes(stage, input));
        match self.inputs.iter().find(unused) {
            Some(input) => wrong(format!("no stage takes input \"{input}\""), "leave it out"),
            None => Ok(()),
        }
    }
}

/// Returns the first name that was there before.
fn repeated<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.find(|name| !seen.insert(*name))
}
