//! Finds the served models that requests name.

use super::CoreServices;
use super::access::Caller;
use super::queries::FoundQuery;
use crate::api::problem::{Problem, names, quoted};
use crate::config::ServedApplication;
use crate::runtime::frontend::ModelInfo;
use hyper::StatusCode;
use std::ops::Deref;
use std::sync::Arc;

/// A served model, or a query, that a request is for. The model accepts requests for as long as
/// this is held, even if it is unloaded meanwhile; so it is held for no longer than the request.
#[derive(Clone, Debug)]
pub(in crate::api) struct FoundModel {
    table: Arc<[ModelInfo]>,
    at: usize,
    /// The application of the caller's requests that name none.
    application: Option<Arc<str>>,
    query: Option<Box<FoundQuery>>,
}

impl FoundModel {
    /// Returns a model in a table of its own.
    pub(in crate::api) fn alone(model: ModelInfo) -> FoundModel {
        FoundModel { table: [model].into(), at: 0, application: None, query: None }
    }

    /// Returns the application that a request is of which asks for `asked`: for none, the caller's,
    /// or the model's first. `None` where the model has no applications.
    ///
    /// Errors: 400 if the model has others.
    pub(in crate::api) fn application(
        &self,
        asked: Option<&str>,
    ) -> Result<Option<&ServedApplication>, Problem> {
        if self.model().application.is_none() {
            return Ok(None);
        }
        let named = |name| self.model().application_named(&self.table, name);
        let Some(asked) = asked else {
            let of_caller = self.application.as_deref().and_then(|name| named(Some(name)));
            return Ok(of_caller.or_else(|| named(None)));
        };
        named(Some(asked)).map(Some).ok_or_else(|| {
            let known = names(self.applications().into_iter().map(|of| &*of.name));
            Problem::bad(format!(
                "model {:?} has no application {}; it has {known}",
                self.name,
                quoted(asked)
            ))
        })
    }

    /// Returns the applications of the model in their order; none where it has none.
    pub(in crate::api) fn applications(&self) -> Vec<&ServedApplication> {
        let mut all: Vec<&ServedApplication> =
            self.model().classes(&self.table).filter_map(|of| of.application.as_ref()).collect();
        all.sort_by_key(|of| of.at);
        all.dedup_by_key(|of| of.at);
        all
    }

    fn model(&self) -> &ModelInfo {
        &self.table[self.at]
    }

    /// Returns the query that it is, if it is one.
    pub(in crate::api) fn query(&self) -> Option<&FoundQuery> {
        self.query.as_deref()
    }

    /// Returns the table that the model is in.
    pub(in crate::api) fn table(&self) -> &[ModelInfo] {
        &self.table
    }
}

impl Deref for FoundModel {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        self.model()
    }
}

/// The only version of a query.
const QUERY_VERSION: &str = "1";

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
    match find(services, caller, name, version) {
        Ok(model) if services.telemetry.gpu_memory().is_unloaded(model.id) => Ok(ModelState::NotReady),
        Ok(_) if services.telemetry.readiness().is_ok() => Ok(ModelState::Ready),
        Ok(_) => Ok(ModelState::NotReady),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            let is_known = services.engine.withdrawal(name, version).is_some() || services.queries.has(name);
            Ok(if is_known { ModelState::NotReady } else { ModelState::Unknown })
        }
        Err(problem) => Err(problem),
    }
}

/// Returns the served versions of the model of this name, oldest first.
pub(in crate::api) fn versions(services: &CoreServices, name: &str) -> Vec<String> {
    if services.queries.has(name) {
        return vec![QUERY_VERSION.to_owned()];
    }
    let models = services.engine.models();
    let named = ModelInfo::served_once(&models).filter(|model| model.name == name);
    let mut versions: Vec<u64> = named.map(|model| model.version).collect();
    versions.sort_unstable();
    versions.iter().map(u64::to_string).collect()
}

/// Returns the model of this name and version; the newest version if `version` is empty.
///
/// Errors: 403 if `caller` may not use it, 404 with the names or versions that exist.
pub(in crate::api) fn find(
    services: &CoreServices,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<FoundModel, Problem> {
    caller.check_model(name)?;
    let engine = &services.engine;
    let table = engine.models();
    let model = match version {
        "" => ModelInfo::find(&table, name, None),
        _ => version.parse().ok().and_then(|version| ModelInfo::find(&table, name, Some(version))),
    };
    if let Some(model) = model {
        let at = model.id.0 as usize;
        return Ok(FoundModel { table, at, application: caller.application(), query: None });
    }
    // The models are read after the query was found: what this core counted of another one in its
    // slot is cleared then.
    if let Some(found) = services.queries.find(name, || engine.models()) {
        return query(name, version, found);
    }
    if let Some(reason) = engine.withdrawal(name, version) {
        let message = format!("model {name:?} is {reason}");
        return Err(Problem::invalid(StatusCode::NOT_FOUND, message));
    }
    let served_versions = versions(services, name);
    let message = if served_versions.is_empty() {
        let served = ModelInfo::served_once(&table).map(|model| model.name.as_str());
        let queries = services.queries.all();
        let queries = queries.iter().map(|query| query.config.name.as_str());
        let known: Vec<&str> = served.chain(queries).filter(|name| caller.may_use(name)).collect();
        format!("there is no model {}; the models are {}", quoted(name), names(known.into_iter()))
    } else {
        let known = names(served_versions.iter().map(String::as_str));
        format!("model {name:?} has no version {}; it has {known}", quoted(version))
    };
    Err(Problem::invalid(StatusCode::NOT_FOUND, message))
}

/// Returns a query that was found in the version that a request names.
///
/// Errors: 404 if the query has no such version, or can't be served.
fn query(
    name: &str,
    version: &str,
    found: Result<(ModelInfo, FoundQuery), String>,
) -> Result<FoundModel, Problem> {
    let not_found = |message| Problem::invalid(StatusCode::NOT_FOUND, message);
    if !matches!(version, "" | QUERY_VERSION) {
        let is = quoted(version);
        return Err(not_found(format!("query {name:?} has no version {is}; it has {QUERY_VERSION:?}")));
    }
    let (info, query) =
        found.map_err(|reason| not_found(format!("query {name:?} is not ready: {reason}")))?;
    Ok(FoundModel { table: [info].into(), at: 0, application: None, query: Some(Box::new(query)) })
}

/// Returns the most rows that a request for this model, or query, may have.
pub(in crate::api) fn most_rows(services: &CoreServices, found: &FoundModel) -> usize {
    match found.query() {
        None => services.engine.most_rows(found.id),
        Some(query) => {
            let models = (0..query.stages()).map(|stage| query.model(stage));
            models.map(|model| services.engine.most_rows(model.id)).min().unwrap_or(1)
        }
    }
}

/// Returns the models that a request for several names: all models if `name` is empty, all versions
/// if `version` is empty.
///
/// Errors: as [`find`].
pub(in crate::api) fn find_all(
    services: &CoreServices,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<Vec<ModelInfo>, Problem> {
    if !name.is_empty() {
        let found = find(services, caller, name, version)?;
        if !version.is_empty() || found.is_query() {
            return Ok(vec![(*found).clone()]);
        }
    }
    let table = services.engine.models();
    let wanted = ModelInfo::served_once(&table)
        .filter(|model| caller.may_use(&model.name) && (name.is_empty() || model.name == name));
    let mut all: Vec<ModelInfo> = wanted.cloned().collect();
    if name.is_empty() {
        all.extend(services.queries.ready(&table).filter(|query| caller.may_use(&query.name)));
    }
    Ok(all)
}
