//! Finds the served models that requests name.

use super::CoreServices;
use super::access::Caller;
use super::engine_client::EngineClient;
use crate::api::problem::{Problem, names, quoted};
use crate::runtime::frontend::ModelInfo;
use hyper::StatusCode;
use std::ops::Deref;
use std::sync::Arc;

/// A served model that a request is for. The model accepts requests for as long as this is held,
/// even if it is unloaded meanwhile; so it is held for no longer than the request.
#[derive(Clone, Debug)]
pub(in crate::api) struct FoundModel {
    table: Arc<[ModelInfo]>,
    at: usize,
}

impl FoundModel {
    /// Returns a model in a table of its own.
    pub(in crate::api) fn alone(model: ModelInfo) -> FoundModel {
        FoundModel { table: [model].into(), at: 0 }
    }

    /// Returns the table that the model is in.
    pub(in crate::api) fn table(&self) -> &[ModelInfo] {
        &self.table
    }
}

impl Deref for FoundModel {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        &self.table[self.at]
    }
}

/// The answer to the question whether a model can serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum ModelState {
    /// A model that can.
    Ready,
    /// A model that is loaded, while requests would not be served now; or one that was withdrawn
    /// for a fault.
    NotReady,
    /// A model or version that is not served.
    Unknown,
}

/// Returns the state of the model of this name and version, which need not exist.
///
/// Errors: 403 if `caller` may not use it.
pub(in crate::api) fn state(
    services: &CoreServices,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<ModelState, Problem> {
    match find(&services.engine, caller, name, version) {
        Ok(_) if services.telemetry.readiness().is_ok() => Ok(ModelState::Ready),
        Ok(_) => Ok(ModelState::NotReady),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            let withdrawn = services.engine.withdrawal(name, version).is_some();
            Ok(if withdrawn { ModelState::NotReady } else { ModelState::Unknown })
        }
        Err(problem) => Err(problem),
    }
}

/// Returns the served versions of the model of this name, oldest first.
pub(in crate::api) fn versions(engine: &EngineClient, name: &str) -> Vec<String> {
    let models = engine.models();
    let named = ModelInfo::served_once(&models).filter(|model| model.name == name);
    let mut versions: Vec<u64> = named.map(|model| model.version).collect();
    versions.sort_unstable();
    versions.iter().map(u64::to_string).collect()
}

/// Returns the model of this name and version; the newest version if `version` is empty.
///
/// Errors: 403 if `caller` may not use it, 404 with the names or versions that exist.
pub(in crate::api) fn find(
    engine: &EngineClient,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<FoundModel, Problem> {
    caller.check_model(name)?;
    let table = engine.models();
    let model = match version {
        "" => ModelInfo::find(&table, name, None),
        _ => version.parse().ok().and_then(|version| ModelInfo::find(&table, name, Some(version))),
    };
    if let Some(model) = model {
        let at = model.id.0 as usize;
        return Ok(FoundModel { table, at });
    }
    if let Some(reason) = engine.withdrawal(name, version) {
        let message = format!("model {name:?} is {reason}");
        return Err(Problem::invalid(StatusCode::NOT_FOUND, message));
    }
    let served_versions = versions(engine, name);
    let message = if served_versions.is_empty() {
        let served = ModelInfo::served_once(&table).map(|model| model.name.as_str());
        let known: Vec<&str> = served.filter(|name| caller.may_use(name)).collect();
        format!("there is no model {}; the models are {}", quoted(name), names(known.into_iter()))
    } else {
        let known = names(served_versions.iter().map(String::as_str));
        format!("model {name:?} has no version {}; it has {known}", quoted(version))
    };
    Err(Problem::invalid(StatusCode::NOT_FOUND, message))
}

/// Returns the models that a request for several names: all models if `name` is empty, all versions
/// if `version` is empty.
///
/// Errors: as [`find`].
pub(in crate::api) fn find_all(
    engine: &EngineClient,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<Vec<ModelInfo>, Problem> {
    if !name.is_empty() {
        let found = find(engine, caller, name, version)?;
        if !version.is_empty() {
            return Ok(vec![(*found).clone()]);
        }
    }
    let table = engine.models();
    let wanted = ModelInfo::served_once(&table)
        .filter(|model| caller.may_use(&model.name) && (name.is_empty() || model.name == name));
    Ok(wanted.cloned().collect())
}
