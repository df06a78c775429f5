//! Loads, unloads and lists the models of the repository, through the control plane.

use super::CoreServices;
use super::access::Caller;
use super::shared::SharedState;
use crate::api::problem::{Problem, quoted};
use crate::control::{ControlError, Done, IndexEntry, Repository, State};
use crate::runtime::frontend::{ModelInfo, QueryModels, Withdrawal};
use futures_channel::oneshot;
use hyper::StatusCode;

/// Returns every version of every model, and every query, that `caller` may use: those of the
/// repository and those that the server started with.
pub(in crate::api) fn index(services: &CoreServices, caller: &Caller) -> Vec<IndexEntry> {
    let engine = &services.engine;
    let repository = services.shared.repository.as_ref();
    let mut index = repository.map(|repository| repository.index()).unwrap_or_default();
    let models = engine.models();
    for model in ModelInfo::served_once(&models) {
        if !index.iter().any(|of| of.name == model.name && of.version == Some(model.version)) {
            let (name, version) = (model.name.clone(), Some(model.version));
            index.push(IndexEntry { name, version, state: State::Ready, reason: String::new() });
        }
    }
    for Withdrawal { name, version, reason } in engine.withdrawn() {
        if !index.iter().any(|of| of.name == name && of.state != State::Ready) {
            index.push(IndexEntry { name, version: Some(version), state: State::Unavailable, reason });
        }
    }
    index.extend(services.queries.all().iter().map(|query| {
        let ready = QueryModels::find(&query.config, &models);
        let state = if ready.is_ok() { State::Ready } else { State::Unavailable };
        let reason = ready.err().map_or(String::new(), |wrong| wrong.to_string());
        IndexEntry { name: query.config.name.clone(), version: Some(query.info.version), state, reason }
    }));
    index.retain(|entry| caller.may_use(&entry.name));
    index
}

/// Returns the configuration that the parameters of a load bring, if any. A parameter's value is
/// `None` if it is no string.
///
/// Errors: 400 for any other parameter, such as files, which come from the repository's folder.
pub(in crate::api) fn load_config(
    parameters: impl Iterator<Item = (String, Option<String>)>,
) -> Result<Option<String>, Problem> {
    let mut config = None;
    for (name, value) in parameters {
        match (&*name, value) {
            ("config", Some(json)) => config = Some(json),
            ("config", None) => {
                return Err(Problem::bad(
                    "parameter \"config\" must be a string of JSON: the model's configuration",
                ));
            }
            _ => {
                return Err(Problem::bad(format!(
                    "parameter {} is not taken, only \"config\" is: a model's files come from the \
                     repository's folder",
                    quoted(&name)
                )));
            }
        }
    }
    Ok(config)
}

/// Returns true if the parameters of an unload ask for the models of an ensemble to be unloaded
/// too. A parameter's value is `None` if it is neither true nor false.
///
/// Errors: 400 for any other parameter.
pub(in crate::api) fn unload_dependents(
    parameters: impl Iterator<Item = (String, Option<bool>)>,
) -> Result<bool, Problem> {
    let mut dependents = false;
    for (name, value) in parameters {
        match (&*name, value) {
            ("unload_dependents", Some(also)) => dependents = also,
            ("unload_dependents", None) => {
                return Err(Problem::bad("parameter \"unload_dependents\" must be true or false"));
            }
            _ => {
                let name = quoted(&name);
                return Err(Problem::bad(format!(
                    "parameter {name} is not taken, only \"unload_dependents\" is"
                )));
            }
        }
    }
    Ok(dependents)
}

/// Loads a model of the repository, with this configuration in JSON instead of its `config.pbtxt`
/// if there is one.
///
/// Errors: the repository's own; 403 if `caller` may not use the model, 503 if the server has no
/// repository.
pub(in crate::api) async fn load(
    shared: &SharedState,
    caller: &Caller,
    name: &str,
    config: Option<String>,
) -> Result<(), Problem> {
    caller.check_model(name)?;
    order(shared, |repository, done| repository.load(name, config, done)).await
}

/// Unloads a model, or an ensemble; of this its models as well if `dependents` is true.
///
/// Errors: as [`load`].
pub(in crate::api) async fn unload(
    shared: &SharedState,
    caller: &Caller,
    name: &str,
    dependents: bool,
) -> Result<(), Problem> {
    caller.check_model(name)?;
    order(shared, |repository, done| repository.unload(name, dependents, done)).await
}

async fn order(shared: &SharedState, order: impl FnOnce(&Repository, Done)) -> Result<(), Problem> {
    const OFF: ControlError = ControlError::Off("explicit control is off: start with a model repository");
    let Some(repository) = &shared.repository else { return Err(OFF.into()) };
    let (done, ended) = oneshot::channel();
    // The client may have left before the order is done.
    order(repository, Box::new(|result| drop(done.send(result))));
    const GONE: ControlError = ControlError::Off("the control of the repository has ended");
    Ok(ended.await.unwrap_or(Err(GONE))?)
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Problem {
        let status = match &error {
            ControlError::Off(_) => StatusCode::SERVICE_UNAVAILABLE,
            ControlError::Unknown(_) => StatusCode::NOT_FOUND,
            ControlError::Wrong(_) => StatusCode::BAD_REQUEST,
            ControlError::Busy => StatusCode::TOO_MANY_REQUESTS,
        };
        Problem::invalid(status, error.to_string())
    }
}
