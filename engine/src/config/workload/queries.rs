//! Queries of a workload file: `[[queries]]`, each a graph of stages, each of which names a model
//! of the file (docs/workloads.md).

use super::arrivals::{read_arrival, read_phases};
use crate::config::diagnostics::Location;
use crate::config::linear_profile;
use crate::config::toml_reader::{Bounds, TomlTable, TomlValue, read_each};
use std::collections::HashMap;
use symphony_scheduler::load_phases::LoadPhases;
use symphony_scheduler::query::{
    DeadlineSplit, ItemDraw, MAX_ITEMS, MAX_QUERIES, MAX_STAGES, QueryGraph, QueryStage, StageInput,
    topological_order,
};
use symphony_scheduler::workload::{Arrival, WorkloadModel, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::{ModelId, NO_DEADLINE};

/// A query as it is written, before its models are looked up.
pub(super) struct QueryEntry {
    location: Location,
    slo_location: Location,
    name: String,
    slo: Nanos,
    share: f64,
    arrival: Arrival,
    stages: Vec<StageEntry>,
}

/// A stage as it is written.
struct StageEntry {
    location: Location,
    name: String,
    model: String,
    after: Vec<String>,
    /// The number of its items for each item of the stage before.
    items: ItemsEntry,
}

/// The number of a stage's items as it is written.
struct ItemsEntry {
    gamma: f64,
    draw: ItemDraw,
    phases: LoadPhases,
}

impl QueryEntry {
    /// Returns the names of the models of its stages.
    pub(super) fn models(&self) -> impl Iterator<Item = &str> {
        self.stages.iter().map(|stage| stage.model.as_str())
    }
}

/// Reads `[[queries]]`; those that have diagnostics are left out.
pub(super) fn read(root: &TomlTable<'_>) -> Vec<QueryEntry> {
    let entries = root.tables("queries", 0, read_query);
    if entries.len() > MAX_QUERIES {
        let wrong = format!("{} queries are too many", entries.len());
        root.report("queries", wrong, format!("give at most {MAX_QUERIES}"));
    }
    entries
}

/// Reads the root's `split`.
pub(super) fn read_split(root: &TomlTable<'_>) -> Option<DeadlineSplit> {
    let Some(value) = root.optional("split") else { return Some(DeadlineSplit::default()) };
    value.word(&DeadlineSplit::ALL.map(|split| split.1)).and_then(DeadlineSplit::parse)
}

fn read_query(table: &TomlTable<'_>) -> Option<QueryEntry> {
    let name = read_name(table, "name", "the query's name");
    let slo = table.required("slo_ms", "the latency promised for the whole query, in ms");
    let slo = slo.and_then(|value| value.number(linear_profile::SLO)).map(Nanos::from_millis_f64);
    let share = table.optional("share").map_or(Some(1.0), |value| value.number(Bounds::above(0.0, 1e9)));
    let arrival = read_arrival(table);
    let stages = table.required("stages", "a list of tables, each with the `model` of a stage");
    let stages = stages.and_then(|value| {
        let items = value.items("give a list of tables")?;
        if items.is_empty() || items.len() > MAX_STAGES {
            value.report(format!("has {} stages", items.len()), format!("give 1 to {MAX_STAGES}"));
            return None;
        }
        read_each(&items, |item| item.table(read_stage))
    });
    Some(QueryEntry {
        location: table.location("name"),
        slo_location: table.location("slo_ms"),
        name: name?,
        slo: slo?,
        share: share?,
        arrival: arrival?,
        stages: stages?,
    })
}

fn read_name(table: &TomlTable<'_>, field: &'static str, what: &str) -> Option<String> {
    table.required(field, what)?.name(what)
}

fn read_stage(table: &TomlTable<'_>) -> Option<StageEntry> {
    let model = read_name(table, "model", "the name of a model of this file");
    let name = table.optional("name").map_or_else(|| model.clone(), |value| value.name("the stage's name"));
    let after = table.optional("after").map_or(Some(Vec::new()), |value| read_after(&value));
    let items = read_items(table);
    let after = after?;
    let field = ["gamma", "draw", "phases"].into_iter().find(|field| table.has(field));
    if let Some(field) = field.filter(|_| after.len() != 1) {
        table.report(
            field,
            "is of a stage without exactly one stage in `after`",
            "leave it out: it has one item",
        );
        return None;
    }
    Some(StageEntry { location: table.location("model"), name: name?, model: model?, after, items: items? })
}

/// Reads `gamma`, `draw` and `phases` of a stage.
fn read_items(table: &TomlTable<'_>) -> Option<ItemsEntry> {
    let gamma = table.optional("gamma").map_or(Some(1.0), |v| v.number(Bounds::above(0.0, MAX_ITEMS)));
    let draw = table.optional("draw").map(|value| {
        let word = value.word(&ItemDraw::ALL.map(|draw| draw.1))?;
        ItemDraw::ALL.into_iter().find(|draw| draw.1 == word).map(|draw| draw.0)
    });
    let (gamma, phases) = (gamma?, read_phases(table)?);
    let highest = gamma * phases.highest();
    let draw = draw.unwrap_or(Some(ItemDraw::of_phases(gamma, &phases)))?;
    check_draw(table, gamma, highest, draw)?;
    Some(ItemsEntry { gamma, draw, phases })
}

/// Reports a distribution that can't have this mean, which is `highest` at times.
fn check_draw(table: &TomlTable<'_>, gamma: f64, highest: f64, draw: ItemDraw) -> Option<()> {
    let right = match draw {
        ItemDraw::Constant if gamma % 1.0 != 0.0 => "give a whole number, or draw = \"poisson\"",
        ItemDraw::Constant if gamma != highest => "leave out `phases`, or give draw = \"poisson\"",
        ItemDraw::Bernoulli if highest > 1.0 => "give a number up to 1, or draw = \"poisson\"",
        _ => return Some(()),
    };
    let (_, name) = ItemDraw::ALL.into_iter().find(|one| one.0 == draw)?;
    let at_times =
        if gamma == highest { String::new() } else { format!(", and up to {highest} by its `phases`") };
    table.report("gamma", format!("is {gamma}{at_times}, which draw \"{name}\" can't give"), right);
    None
}

/// Reads a stage's name, or a list of several.
fn read_after(value: &TomlValue<'_>) -> Option<Vec<String>> {
    const RIGHT: &str = "the name of a stage of this query, or a list of names";
    if value.is_text() {
        return Some(vec![value.text(RIGHT)?.to_owned()]);
    }
    let items = value.items(&format!("give {RIGHT}"))?;
    read_each(&items, |item| item.text(RIGHT).map(str::to_owned))
}

/// Makes the queries, whose models are among `models`. Their shares are as written.
pub(super) fn resolve(
    root: &TomlTable<'_>,
    entries: Vec<QueryEntry>,
    models: &[WorkloadModel],
) -> Option<Vec<WorkloadQuery>> {
    let by_name: HashMap<&str, usize> =
        models.iter().enumerate().map(|(at, model)| (model.name.as_str(), at)).collect();
    let mut lines: HashMap<String, usize> = HashMap::new();
    let mut queries = Vec::with_capacity(entries.len());
    for entry in entries {
        if let Some(line) = lines.insert(entry.name.clone(), entry.location.line) {
            let wrong = format!("\"{}\" is already the name of the query at line {line}", entry.name);
            root.add(entry.location.diagnostic(wrong, "give each query a name of its own"));
            continue;
        }
        match graph(&entry, &by_name, models) {
            Ok(graph) => {
                queries.push(WorkloadQuery { graph, share: entry.share, arrival: entry.arrival });
            }
            Err((location, wrong, right)) => root.add(location.diagnostic(wrong, right)),
        }
    }
    (queries.len() == lines.len()).then_some(queries)
}

/// Where a query is wrong, what is wrong, and what would be right.
type Wrong<'a> = (&'a Location, String, String);

/// Makes the graph, its stages in topological order.
fn graph<'a>(
    entry: &'a QueryEntry,
    by_name: &HashMap<&str, usize>,
    models: &[WorkloadModel],
) -> Result<QueryGraph, Wrong<'a>> {
    let order = order(entry)?;
    let place = |name: &str| {
        order.iter().position(|&at| entry.stages[at].name == name).expect("the order has every stage")
    };
    let mut stages = Vec::with_capacity(order.len());
    for &at in &order {
        let stage = &entry.stages[at];
        let Some(&model) = by_name.get(stage.model.as_str()) else {
            let wrong = format!("\"{}\" is no model of this file", stage.model);
            return Err((&stage.location, wrong, "name one of `[[models]]`".to_owned()));
        };
        if models[model].slo == NO_DEADLINE {
            let wrong = format!("\"{}\" has no SLO, so its requests would wait", stage.model);
            return Err((&stage.location, wrong, "give the model an slo_ms".to_owned()));
        }
        let input = match &stage.after[..] {
            [] => StageInput::Root,
            [one] => {
                let ItemsEntry { gamma, draw, phases } = &stage.items;
                StageInput::Each { stage: place(one), gamma: *gamma, draw: *draw, phases: phases.clone() }
            }
            several => StageInput::All(several.iter().map(|name| place(name)).collect()),
        };
        stages.push(QueryStage { name: stage.name.clone(), model: ModelId(model as u32), input });
    }
    let graph = QueryGraph { name: entry.name.clone(), slo: entry.slo, stages };
    check_items(entry, &graph)?;
    check_time(entry, &graph, models)?;
    Ok(graph)
}

/// Returns the stages in topological order, the root first.
fn order(entry: &QueryEntry) -> Result<Vec<usize>, Wrong<'_>> {
    let stages = &entry.stages;
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (at, stage) in stages.iter().enumerate() {
        if by_name.insert(&stage.name, at).is_some() {
            let wrong = format!("\"{}\" is already the name of a stage of this query", stage.name);
            return Err((&stage.location, wrong, "give each stage a `name` of its own".to_owned()));
        }
    }
    for stage in stages {
        let twice = stage.after.iter().enumerate().find(|(at, name)| stage.after[..*at].contains(name));
        if let Some((_, name)) = twice {
            let wrong = format!("stage \"{}\" is after \"{name}\" twice", stage.name);
            return Err((&stage.location, wrong, "name each stage once".to_owned()));
        }
        if let Some(name) = stage.after.iter().find(|name| !by_name.contains_key(name.as_str())) {
            let wrong =
                format!("stage \"{}\" is after \"{name}\", which is no stage of this query", stage.name);
            return Err((&stage.location, wrong, "name a stage of the same query".to_owned()));
        }
    }
    let mut roots = stages.iter().filter(|stage| stage.after.is_empty());
    if let (Some(first), Some(second)) = (roots.next(), roots.next()) {
        let wrong = format!("stages \"{}\" and \"{}\" are both without `after`", first.name, second.name);
        return Err((
            &second.location,
            wrong,
            "a query has one root: say what the other is after".to_owned(),
        ));
    }
    let inputs = |stage: &StageEntry| stage.after.iter().map(|name| by_name[name.as_str()]).collect();
    let inputs: Vec<Vec<usize>> = stages.iter().map(inputs).collect();
    topological_order(&inputs).map_err(|stuck| {
        let stage = &stages[stuck];
        let wrong = format!("stage \"{}\" is in a cycle, or after one", stage.name);
        (&stage.location, wrong, "a query's graph has no cycle: change `after`".to_owned())
    })
}

/// Reports a stage of which a query would have too many items.
fn check_items<'a>(entry: &'a QueryEntry, graph: &QueryGraph) -> Result<(), Wrong<'a>> {
    let items = graph.expected_items();
    match items.iter().position(|&items| items > MAX_ITEMS) {
        Some(at) => {
            let stage = &graph.stages[at].name;
            let wrong = format!("stage \"{stage}\" has {} items in a query on average", items[at]);
            Err((&entry.location, wrong, format!("make it at most {MAX_ITEMS} with smaller gammas")))
        }
        None => Ok(()),
    }
}

/// Reports an SLO in which no query could be over.
fn check_time<'a>(
    entry: &'a QueryEntry,
    graph: &QueryGraph,
    models: &[WorkloadModel],
) -> Result<(), Wrong<'a>> {
    let mut until: Vec<Nanos> = Vec::with_capacity(graph.stages.len());
    for stage in &graph.stages {
        let before = stage.inputs().iter().map(|&input| until[input]).max().unwrap_or(Nanos::ZERO);
        until.push(before + models[stage.model.0 as usize].profile.latency(1));
    }
    let longest = until.into_iter().max().unwrap_or(Nanos::ZERO);
    if longest <= graph.slo {
        return Ok(());
    }
    let (slo, least) = (graph.slo.as_millis_f64(), longest.as_millis_f64());
    let wrong = format!("is {slo} ms, but the longest path takes {least} ms in batches of one");
    Err((
        &entry.slo_location,
        wrong,
        format!("give an SLO of {least} ms at the very least, twice that to batch"),
    ))
}
