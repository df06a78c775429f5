//! Ensembles: `ensemble_scheduling` of a `config.pbtxt`, whose steps are the stages of a query.
//! `triton.rs` reads the steps, `model.rs` makes the query of them.

use super::pbtxt::{PbtxtField, PbtxtValue, named};
use crate::config::diagnostics::{Diagnostic, Location};
use crate::config::models::DeclaredTensors;
use crate::config::queries::{QueryConfig, StageConfig, TensorLink};
use std::path::Path;
use symphony_scheduler::query::MAX_STAGES;
use symphony_transport::Nanos;

/// The shape of a step.
const STEP: &str = "{ model_name: \"m\" input_map { key: \"x\" value: \"image\" } output_map { key: \"y\" value: \"label\" } }";

/// Reads the steps of a field `ensemble_scheduling` of the file at `path`: the stages, in the order
/// of the file. A step is named after its model, and by a number where others have the same one.
/// `notes` gets a line for each field that is passed over.
///
/// Errors: the first diagnostic in it.
pub(super) fn read_steps(
    path: &Path,
    field: &PbtxtField<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<StageConfig>, Diagnostic> {
    let mut reader = StepReader { path, notes, stages: Vec::new() };
    let parts =
        field.value.fields().ok_or_else(|| reader.is_not(field, &format!("{{ step [ {STEP} ] }}")))?;
    for part in parts {
        match part.name {
            "step" => part.value.each().iter().try_for_each(|step| reader.step(part, step))?,
            _ => reader.pass_over(part, "no such field is known here"),
        }
    }
    let steps = reader.stages.len();
    if steps == 0 || steps > MAX_STAGES {
        let wrong = format!("has {steps} steps");
        return Err(field.location(path).diagnostic(wrong, format!("give 1 to {MAX_STAGES}")));
    }
    Ok(reader.stages)
}

struct StepReader<'r> {
    path: &'r Path,
    notes: &'r mut Vec<String>,
    stages: Vec<StageConfig>,
}

impl StepReader<'_> {
    fn is_not(&self, field: &PbtxtField<'_>, right: &str) -> Diagnostic {
        field.is_not(field.location(self.path), right)
    }

    fn pass_over(&mut self, field: &PbtxtField<'_>, why: &str) {
        let (path, PbtxtField { line, name, .. }) = (self.path.display(), field);
        self.notes.push(format!("{path}:{line}: {name} of ensemble_scheduling is passed over: {why}"));
    }

    fn step(&mut self, field: &PbtxtField<'_>, step: &PbtxtValue<'_>) -> Result<(), Diagnostic> {
        let parts = step.fields().ok_or_else(|| self.is_not(field, STEP))?;
        let (mut model, mut version) = (None, None);
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for part in parts {
            match part.name {
                "model_name" => {
                    let name = part.value.text().filter(|name| !name.is_empty());
                    model = Some(name.ok_or_else(|| self.is_not(part, "the name of a model"))?.into_owned());
                }
                // -1 is the newest, as no version is.
                "model_version" => {
                    version = match part.value.whole() {
                        Some(-1) => None,
                        Some(number) if number > 0 => Some(number as u64),
                        _ => return Err(self.is_not(part, "a version from 1, or -1 for the newest")),
                    };
                }
                "input_map" => self.links(part, &mut inputs)?,
                "output_map" => self.links(part, &mut outputs)?,
                _ => self.pass_over(part, "no such field is known here"),
            }
        }
        let Some(model) = model.filter(|_| !inputs.is_empty() && !outputs.is_empty()) else {
            let wrong = "has a step without a model_name, an input_map or an output_map";
            return Err(field
                .location(self.path)
                .diagnostic(wrong, format!("give each step all three, like {STEP}")));
        };
        let before = self.stages.iter().filter(|stage| stage.model == model).count();
        let mut name = model.clone();
        let mut number = before + 1;
        while self.stages.iter().any(|stage| stage.name == name) {
            name = format!("{model}-{number}");
            number += 1;
        }
        self.stages.push(StageConfig {
            name,
            model,
            version,
            inputs,
            outputs,
            fan_out: Vec::new(),
            count: None,
            location: field.location(self.path),
        });
        Ok(())
    }

    /// Reads entries of a map from a model's tensors to those of the ensemble.
    fn links(&self, field: &PbtxtField<'_>, links: &mut Vec<TensorLink>) -> Result<(), Diagnostic> {
        for entry in field.value.each() {
            let text = |key: &str| {
                named(entry.fields()?, key)?
                    .value
                    .text()
                    .filter(|name| !name.is_empty())
                    .map(|name| name.into_owned())
            };
            let (Some(of_model), Some(tensor)) = (text("key"), text("value")) else {
                return Err(
                    self.is_not(field, "{ key: \"the model's name\" value: \"the ensemble's name\" }")
                );
            };
            links.push(TensorLink { of_model, tensor });
        }
        Ok(())
    }
}

/// Makes the query of an ensemble's steps, whose tensors are those that its file declares.
///
/// Errors: what is wrong with the graph.
pub(super) fn query(
    name: &str,
    steps: &[StageConfig],
    declared: &DeclaredTensors,
    slo: Nanos,
) -> Result<QueryConfig, Diagnostic> {
    let first = &steps[0].location;
    let location = Location { field: "ensemble_scheduling".into(), line: 1, ..first.clone() };
    for (field, tensors) in [("input", &declared.inputs), ("output", &declared.outputs)] {
        if tensors.is_empty() {
            let location = Location { field: field.to_owned(), ..location };
            let right = format!("declare each {field} of the ensemble: its name, data_type and dims");
            return Err(location.diagnostic("is missing", right));
        }
    }
    let query = QueryConfig {
        name: name.to_owned(),
        slo,
        inputs: declared.inputs.iter().map(|tensor| tensor.name.clone()).collect(),
        outputs: declared.outputs.iter().map(|tensor| tensor.name.clone()).collect(),
        stages: steps.to_vec(),
        declared: declared.clone(),
        location,
    };
    query.checked()
}
