//! The groups of models that share their first layers: each model's number, and what its tables of
//! CONFIG have to agree on. What the files share only loading them shows.

use super::model::ModelConfig;
use super::profile::ProfileSource;
use super::source::ModelSource;
use crate::config::diagnostics::Diagnostic;
use crate::config::executors::ExecutorKind;
use std::sync::Arc;
use symphony_gpu::TensorSpec;

/// The most models of a group.
pub const MAX_PREFIX_GROUP: usize = 64;

/// Numbers the models of each group, and returns what is wrong with the groups. `are_all` is false
/// if there are models that could not be read, of which some may be in a group.
pub(in crate::config) fn check_prefix_groups(models: &mut [ModelConfig], are_all: bool) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let mut groups: Vec<(Arc<str>, Vec<usize>)> = Vec::new();
    for (at, model) in models.iter_mut().enumerate() {
        let Some(member) = &mut model.prefix else { continue };
        match groups.iter_mut().find(|(group, _)| *group == member.group) {
            Some((_, all)) => {
                member.number = all.len();
                all.push(at);
            }
            None => groups.push((Arc::clone(&member.group), vec![at])),
        }
    }
    for (group, all) in groups {
        let members: Vec<&ModelConfig> = all.iter().map(|&at| &models[at]).collect();
        let wrong = wrong_group(&group, &members, are_all);
        // A batch may have a request of the shortest SLO, by which a given profile ends.
        let shortest = members.iter().min_by_key(|model| model.max_batch);
        if let Some((profile, max_batch)) =
            shortest.filter(|_| wrong.is_empty()).map(|model| (model.profile.clone(), model.max_batch))
        {
            for &at in &all {
                let model = &mut models[at];
                (model.profile, model.max_batch) = (profile.clone(), max_batch);
                if let ModelSource::Emulated { signature } = &mut model.source {
                    signature.has_variant = true;
                }
            }
        }
        diagnostics.extend(wrong);
    }
    diagnostics
}

/// Returns what is wrong with a group, of which `are_all` says whether all models could be read.
fn wrong_group(group: &str, members: &[&ModelConfig], are_all: bool) -> Vec<Diagnostic> {
    let Some(first) = members.first() else { return Vec::new() };
    let mut wrong: Vec<Diagnostic> = members.iter().filter_map(|model| wrong_member(model, first)).collect();
    // Size classes and applications of one model have one location.
    wrong.dedup();
    let at_first =
        |wrong: String, right: String| first.prefix.as_ref().map(|of| of.location.diagnostic(wrong, right));
    wrong.extend(match members.len() {
        1 if are_all => at_first(
            format!("\"{group}\" has this model alone"),
            "give it to the others of the group too".to_owned(),
        ),
        1..=MAX_PREFIX_GROUP => None,
        many => {
            at_first(format!("\"{group}\" has {many} models"), format!("give at most {MAX_PREFIX_GROUP}"))
        }
    });
    wrong
}

/// Returns why a model can't be run as one with the first of its group.
fn wrong_member(model: &ModelConfig, first: &ModelConfig) -> Option<Diagnostic> {
    let location = &model.prefix.as_ref()?.location;
    let kind = model.source.kind();
    if kind == ExecutorKind::Cuda {
        let wrong = format!("the executor \"{}\" runs no models as one", kind.name());
        return Some(location.diagnostic(wrong, "run them on \"cpu\" or \"onnxruntime\", or leave it out"));
    }
    if model.variable.is_some() || model.application.is_some() {
        let wrong = "the model has buckets of sizes or applications, each of which is scheduled by itself";
        return Some(location.diagnostic(wrong, "leave these out, or the group"));
    }
    let differs = if kind != first.source.kind() {
        "executor"
    } else if !is_same_profile(&model.profile, &first.profile) {
        "profile"
    } else if model.profile == ProfileSource::Measure && model.max_batch != first.max_batch {
        "max_batch"
    } else if model.rolling != first.rolling {
        "rolling"
    } else if text_bytes(model) != text_bytes(first) {
        "max_bytes"
    } else if emulated_inputs(model) != emulated_inputs(first) {
        "inputs"
    } else {
        return None;
    };
    let wrong =
        format!("`{differs}` is another than that of \"{}\", with which it is run as one", first.name);
    Some(location.diagnostic(wrong, "give all models of a group the same"))
}

/// Returns true if two profiles agree on the batches that both have: one that is given ends where
/// batches take longer than the model's SLO.
fn is_same_profile(one: &ProfileSource, other: &ProfileSource) -> bool {
    match (one, other) {
        (ProfileSource::Given(one), ProfileSource::Given(other)) => {
            let mut common = 1..=one.max_batch().min(other.max_batch());
            common.all(|batch| one.latency(batch) == other.latency(batch))
        }
        (one, other) => one == other,
    }
}

/// Returns the inputs of a model that has no file; those of one that has are known once it is
/// loaded.
fn emulated_inputs(model: &ModelConfig) -> Option<&[TensorSpec]> {
    match &model.source {
        ModelSource::Emulated { signature } => Some(&signature.inputs),
        ModelSource::File { .. } => None,
    }
}

fn text_bytes(model: &ModelConfig) -> Option<u32> {
    match &model.source {
        ModelSource::File { contents, .. } => Some(contents.text_bytes),
        ModelSource::Emulated { .. } => None,
    }
}
