//! The bodies of all requests but infer requests, in the JSON of Triton's extensions.

use crate::api::problem::{Problem, quoted, shortened};
use crate::api::services::CoreServices;
use crate::api::services::access::Caller;
use crate::api::services::describe::{DescribedTensor, EnsembleStep};
use crate::api::services::models::FoundModel;
use crate::api::services::settings::{SettingValue, TRACE, update_trace as set_trace};
use crate::api::services::shared_memory::{Regions, SharedMemoryRegion};
use crate::api::services::statistics::{BatchStatistics, ModelStatistics, TimeSum};
use crate::api::services::{describe, models, repository};
use crate::control::State;
use crate::runtime::frontend::{ModelInfo, Withdrawal};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Reads a request's body; an empty one is read as `{}`.
///
/// Errors: 400 if it is no JSON object of that form; `what` names the form.
pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8], what: &str) -> Result<T, Problem> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| {
        Problem::bad(format!("the body is not {what}: {}", shortened(&error.to_string(), 300)))
    })
}

/// Returns the body of `GET /v2`.
pub(super) fn server_metadata() -> Vec<u8> {
    let (name, version) = (describe::NAME, describe::SERVER_VERSION);
    bytes(&json!({ "name": name, "version": version, "extensions": describe::EXTENSIONS }))
}

/// Returns the body of `GET /v2/models/NAME`.
pub(super) fn model_metadata(services: &CoreServices, model: &ModelInfo) -> Vec<u8> {
    let tensor = |of: DescribedTensor<'_>| json!({ "name": of.spec.name, "datatype": of.spec.datatype.name(), "shape": of.whole_shape() });
    bytes(&json!({
        "name": model.name,
        "versions": models::versions(services, &model.name),
        "platform": model.platform,
        "inputs": describe::inputs(model).into_iter().map(tensor).collect::<Vec<_>>(),
        "outputs": describe::outputs(model).into_iter().map(tensor).collect::<Vec<_>>(),
    }))
}

/// Returns the body of `GET /v2/models/NAME/config`.
pub(super) fn model_config(model: &FoundModel) -> Vec<u8> {
    let tensor = |of: DescribedTensor<'_>| json!({ "name": of.spec.name, "data_type": describe::config_type(of.spec), "dims": of.dimensions });
    let parameters: Map<String, Value> = describe::parameters(model)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!({ "string_value": value })))
        .collect();
    let mut config = json!({
        "name": model.name,
        "platform": model.platform,
        "backend": describe::NAME,
        "max_batch_size": describe::max_batch_size(model),
        "input": describe::inputs(model).into_iter().map(tensor).collect::<Vec<_>>(),
        "output": describe::outputs(model).into_iter().map(tensor).collect::<Vec<_>>(),
        "instance_group": [],
        "parameters": parameters,
    });
    let step = |step: EnsembleStep<'_>| json!({ "model_name": step.model, "model_version": step.version, "input_map": step.input_map, "output_map": step.output_map });
    match model.query() {
        None => config["dynamic_batching"] = json!({}),
        Some(query) => {
            let steps: Vec<Value> = describe::steps(query.config()).map(step).collect();
            config["ensemble_scheduling"] = json!({ "step": steps });
        }
    }
    bytes(&config)
}

/// Returns the body of `GET /v2/models[/NAME]/stats`.
///
/// Errors: 404 if the model does not exist.
pub(super) fn statistics(
    services: &CoreServices,
    caller: &Caller,
    name: &str,
    version: &str,
) -> Result<Vec<u8>, Problem> {
    let all = &services.shared.statistics;
    let table = services.engine.models();
    let models = models::find_all(services, caller, name, version)?.into_iter();
    let models: Vec<Value> =
        models.map(|model| model_statistics(&model, &all.of_model(&model, &table))).collect();
    Ok(bytes(&json!({ "model_stats": models })))
}

fn model_statistics(model: &ModelInfo, statistics: &ModelStatistics) -> Value {
    let span = |span: TimeSum| json!({ "count": span.count, "ns": span.ns });
    let none = span(TimeSum::default());
    let input = span(TimeSum { count: statistics.success.count, ns: 0 });
    let batch = |(size, batches): (&u32, &BatchStatistics)| {
        json!({
            "batch_size": size,
            "compute_input": span(TimeSum { count: batches.executions(), ns: 0 }),
            "compute_infer": span(batches.infer()),
            "compute_output": span(batches.output()),
        })
    };
    json!({
        "name": model.name,
        "version": model.version.to_string(),
        "last_inference": statistics.last_ms,
        "inference_count": statistics.rows,
        "execution_count": statistics.executions(),
        "inference_stats": {
            "success": span(statistics.success),
            "fail": span(statistics.fail),
            "queue": span(statistics.queue),
            "compute_input": input,
            "compute_infer": span(statistics.infer),
            "compute_output": span(statistics.output),
            "cache_hit": none,
            "cache_miss": none,
        },
        "batch_stats": statistics.batches.iter().map(batch).collect::<Vec<_>>(),
        "memory_usage": [],
        "response_stats": {},
    })
}

/// Returns what the server's readiness says of models: those that were withdrawn for a fault, if
/// there are any. Nobody needs a token to ask, so where tokens are required it names none.
pub(super) fn unavailable_models(services: &CoreServices) -> Value {
    let withdrawn = services.engine.withdrawn();
    if withdrawn.is_empty() || services.access.requires_tokens() {
        return json!({});
    }
    let entry = |Withdrawal { name, version, reason }| json!({ "name": name, "version": version.to_string(), "reason": reason });
    json!({ "unavailable": withdrawn.into_iter().map(entry).collect::<Vec<Value>>() })
}

/// Returns the body of `POST /v2/repository/index`; `request` may ask for ready models only.
///
/// Errors: 400 if `request` is wrong.
pub(super) fn index(services: &CoreServices, caller: &Caller, request: &[u8]) -> Result<Vec<u8>, Problem> {
    #[derive(Deserialize)]
    struct IndexRequest {
        #[serde(default)]
        ready: bool,
    }
    let request: IndexRequest = read(request, "a request for the repository's index")?;
    let all = repository::index(services, caller).into_iter();
    let entries = all.filter(|entry| !request.ready || entry.state == State::Ready).map(|entry| {
        let (version, state) = describe::index_terms(&entry);
        json!({ "name": entry.name, "version": version, "state": state, "reason": entry.reason })
    });
    Ok(bytes(&entries.collect()))
}

/// Returns the model's configuration, if a request to load a model brings one.
///
/// Errors: 400 if it is wrong, or brings files, which this server takes from its repository only.
pub(super) fn load_config(request: &[u8]) -> Result<Option<String>, Problem> {
    #[derive(Deserialize)]
    struct LoadRequest {
        #[serde(default)]
        parameters: Map<String, Value>,
    }
    let request: LoadRequest = read(request, "a request to load a model")?;
    let text = |value: Value| match value {
        Value::String(text) => Some(text),
        _ => None,
    };
    repository::load_config(request.parameters.into_iter().map(|(name, value)| (name, text(value))))
}

/// Returns true if a request to unload an ensemble asks for its models to be unloaded too.
///
/// Errors: 400 if it is wrong.
pub(super) fn unload_dependents(request: &[u8]) -> Result<bool, Problem> {
    #[derive(Deserialize)]
    struct UnloadRequest {
        #[serde(default)]
        parameters: Map<String, Value>,
    }
    let request: UnloadRequest = read(request, "a request to unload a model")?;
    let parameters = request.parameters.into_iter();
    repository::unload_dependents(parameters.map(|(name, value)| (name, value.as_bool())))
}

/// Returns the body of `…/trace/setting`.
pub(super) fn trace() -> Vec<u8> {
    let all = TRACE.map(|(name, value)| match name {
        // Triton has this one as a list.
        "trace_level" => (name.to_owned(), json!([value])),
        _ => (name.to_owned(), json!(value)),
    });
    bytes(&Value::Object(all.into_iter().collect()))
}

/// Applies the body of `POST …/trace/setting`: each setting a string, a number, a list of strings,
/// or null for the default.
///
/// Errors: 400.
pub(super) fn update_trace(_: &CoreServices, body: &[u8]) -> Result<(), Problem> {
    let given: Map<String, Value> = read(body, "an object of trace settings")?;
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let texts = |value: Value| match value {
        Value::Null => Vec::new(),
        Value::Array(values) => values.into_iter().map(text).collect(),
        value => vec![text(value)],
    };
    let given: Vec<_> = given.into_iter().map(|(name, value)| (name, texts(value))).collect();
    set_trace(&given)
}

/// Returns the body of `/v2/logging`.
pub(super) fn log(services: &CoreServices) -> Vec<u8> {
    let all = services.shared.log.all().map(|(name, value)| {
        let value = match value {
            SettingValue::Bool(on) => json!(on),
            SettingValue::Number(number) => json!(number),
            SettingValue::Text(text) => json!(text),
        };
        (name.to_owned(), value)
    });
    bytes(&Value::Object(all.into_iter().collect()))
}

/// Applies the body of `POST /v2/logging`.
///
/// Errors: 400.
pub(super) fn update_log(services: &CoreServices, body: &[u8]) -> Result<(), Problem> {
    let given: Map<String, Value> = read(body, "an object of log settings")?;
    let setting = |(name, value): (String, Value)| {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let value = match value {
            Value::Bool(on) => SettingValue::Bool(on),
            Value::String(text) => SettingValue::Text(text),
            _ => SettingValue::Number(number.ok_or_else(|| {
                let message =
                    format!("log setting {} must be true or false, a number or a string", quoted(&name));
                Problem::bad(message)
            })?),
        };
        Ok((name, value))
    };
    let given: Vec<(String, SettingValue)> =
        given.into_iter().map(setting).collect::<Result<_, Problem>>()?;
    services.shared.log.update(&given)
}

/// Returns the body of `GET /v2/systemsharedmemory/…/status`.
pub(super) fn regions(regions: &[Arc<SharedMemoryRegion>]) -> Vec<u8> {
    let region = |region: &Arc<SharedMemoryRegion>| {
        json!({
            "name": region.name,
            "key": region.key,
            "offset": region.offset,
            "byte_size": region.bytes,
        })
    };
    bytes(&regions.iter().map(region).collect())
}

/// Applies the body of `POST /v2/systemsharedmemory/region/NAME/register`.
///
/// Errors: 400 if it is wrong, and as [`Regions::register`].
pub(super) fn register(regions: &Regions, name: &str, body: &[u8]) -> Result<(), Problem> {
    #[derive(Deserialize)]
    struct RegisterRequest {
        key: String,
        #[serde(default)]
        offset: u64,
        byte_size: u64,
    }
    let request: RegisterRequest = read(body, "a request to register system shared memory")?;
    regions.register(name, &request.key, request.offset, request.byte_size)
}
