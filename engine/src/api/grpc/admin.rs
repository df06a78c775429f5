//! All gRPC calls but infer requests.

use super::framing::{Envelope, SERVICE, decode, unknown_call};
use super::messages::log_settings_request::setting_value::ParameterChoice as GivenSetting;
use super::messages::log_settings_response::setting_value::ParameterChoice as LogSetting;
use super::messages::model_config::SchedulingChoice;
use super::messages::model_ensembling::Step;
use super::messages::model_metadata_response::TensorMetadata;
use super::messages::model_repository_parameter::ParameterChoice as RepositoryParameter;
use super::messages::repository_index_response::ModelIndex;
use super::messages::system_shared_memory_status_response::RegionStatus;
use super::messages::*;
use crate::api::problem::{Problem, quoted};
use crate::api::services::CoreServices;
use crate::api::services::access::{Caller, Permission};
use crate::api::services::describe::{self, DescribedTensor, EnsembleStep};
use crate::api::services::models::{self, FoundModel, ModelState};
use crate::api::services::repository;
use crate::api::services::settings::{SettingValue, TRACE, update_trace};
use crate::api::services::shared_memory::no_cuda_memory;
use crate::api::services::statistics::{self, BatchStatistics, TimeSum};
use crate::control::State;
use crate::runtime::frontend::ModelInfo;
use bytes::Bytes;
use std::collections::BTreeMap;
use symphony_gpu::TensorSpec;

/// Returns the permission that a call needs, whatever its message. `TraceSetting` and `LogSettings`
/// are admin calls only if they bring settings.
pub(super) fn permission(method: &str) -> Permission {
    match method {
        "ServerLive" | "ServerReady" => Permission::Health,
        "RepositoryModelLoad" | "RepositoryModelUnload" => Permission::Admin,
        _ if method.contains("SharedMemory") => Permission::Admin,
        _ => Permission::Use,
    }
}

/// Makes the call named `method` with `message` and returns the answer in its envelope.
///
/// Errors: 501 for a call that does not exist, 400 for a message that is not the call's, or the
/// call's own.
pub(super) async fn call(
    services: &CoreServices,
    caller: &Caller,
    method: &str,
    message: Bytes,
    envelope: Envelope,
) -> Result<Bytes, Problem> {
    let regions = services.access.regions(caller, &services.shared);
    Ok(match method {
        "ServerLive" => envelope.seal(&ServerLiveResponse { live: true }),
        "ServerReady" => {
            envelope.seal(&ServerReadyResponse { ready: services.telemetry.readiness().is_ok() })
        }
        "ServerMetadata" => envelope.seal(&ServerMetadataResponse {
            name: describe::NAME.into(),
            version: describe::SERVER_VERSION.into(),
            extensions: describe::EXTENSIONS.map(String::from).into(),
        }),
        "ModelReady" => {
            let ModelReadyRequest { name, version } = decode(message)?;
            let ready = models::state(services, caller, &name, &version)? == ModelState::Ready;
            envelope.seal(&ModelReadyResponse { ready })
        }
        "ModelMetadata" => {
            let ModelMetadataRequest { name, version } = decode(message)?;
            let model = models::find(services, caller, &name, &version)?;
            envelope.seal(&metadata(services, &model))
        }
        "ModelConfig" => {
            let ModelConfigRequest { name, version } = decode(message)?;
            let model = models::find(services, caller, &name, &version)?;
            envelope.seal(&ModelConfigResponse { config: Some(config(&model)) })
        }
        "ModelStatistics" => {
            let ModelStatisticsRequest { name, version } = decode(message)?;
            let models = models::find_all(services, caller, &name, &version)?.into_iter();
            let (all, table) = (&services.shared.statistics, services.engine.models());
            let model_stats =
                models.map(|model| model_statistics(&model, &all.of_model(&model, &table))).collect();
            envelope.seal(&ModelStatisticsResponse { model_stats })
        }
        "RepositoryIndex" => envelope.seal(&index(services, caller, decode(message)?)),
        "RepositoryModelLoad" => {
            let request: RepositoryModelLoadRequest = decode(message)?;
            let parameters = request.parameters.into_iter().map(|(name, value)| {
                let text = match value.parameter_choice {
                    Some(RepositoryParameter::StringParam(text)) => Some(text),
                    _ => None,
                };
                (name, text)
            });
            let config = repository::load_config(parameters)?;
            repository::load(&services.shared, caller, &request.model_name, config).await?;
            envelope.seal(&RepositoryModelLoadResponse {})
        }
        "RepositoryModelUnload" => {
            let request: RepositoryModelUnloadRequest = decode(message)?;
            let parameters = request.parameters.into_iter().map(|(name, value)| {
                let also = match value.parameter_choice {
                    Some(RepositoryParameter::BoolParam(also)) => Some(also),
                    _ => None,
                };
                (name, also)
            });
            let dependents = repository::unload_dependents(parameters)?;
            repository::unload(&services.shared, caller, &request.model_name, dependents).await?;
            envelope.seal(&RepositoryModelUnloadResponse {})
        }
        "SystemSharedMemoryStatus" => {
            let SystemSharedMemoryStatusRequest { name } = decode(message)?;
            let regions = regions.list(&name)?.into_iter().map(|region| {
                let status = RegionStatus {
                    name: region.name.clone(),
                    key: region.key.clone(),
                    offset: region.offset,
                    byte_size: region.bytes,
                };
                (region.name.clone(), status)
            });
            envelope.seal(&SystemSharedMemoryStatusResponse { regions: regions.collect() })
        }
        "SystemSharedMemoryRegister" => {
            let request: SystemSharedMemoryRegisterRequest = decode(message)?;
            regions.register(&request.name, &request.key, request.offset, request.byte_size)?;
            envelope.seal(&SystemSharedMemoryRegisterResponse {})
        }
        "SystemSharedMemoryUnregister" => {
            let SystemSharedMemoryUnregisterRequest { name } = decode(message)?;
            regions.unregister(&name);
            envelope.seal(&SystemSharedMemoryUnregisterResponse {})
        }
        "CudaSharedMemoryStatus" => envelope.seal(&CudaSharedMemoryStatusResponse::default()),
        "CudaSharedMemoryRegister" => return Err(no_cuda_memory()),
        "CudaSharedMemoryUnregister" => envelope.seal(&CudaSharedMemoryUnregisterResponse {}),
        "TraceSetting" => envelope.seal(&trace(services, caller, decode(message)?)?),
        "LogSettings" => envelope.seal(&log(services, caller, decode(message)?)?),
        other => return Err(unknown_call(SERVICE, other)),
    })
}

fn metadata(services: &CoreServices, model: &ModelInfo) -> ModelMetadataResponse {
    let tensors = |of: Vec<DescribedTensor<'_>>| {
        let tensor = |of: DescribedTensor<'_>| TensorMetadata {
            name: of.spec.name.clone(),
            datatype: of.spec.datatype.name().into(),
            shape: of.whole_shape(),
        };
        of.into_iter().map(tensor).collect()
    };
    ModelMetadataResponse {
        name: model.name.clone(),
        versions: models::versions(services, &model.name),
        platform: model.platform.clone(),
        inputs: tensors(describe::inputs(model)),
        outputs: tensors(describe::outputs(model)),
    }
}

fn step(step: EnsembleStep<'_>) -> Step {
    let map = |names: BTreeMap<&str, &str>| {
        names.into_iter().map(|(name, tensor)| (name.to_owned(), tensor.to_owned())).collect()
    };
    Step {
        model_name: step.model.to_owned(),
        model_version: step.version,
        input_map: map(step.input_map),
        output_map: map(step.output_map),
    }
}

fn config(model: &FoundModel) -> ModelConfig {
    let data_type = |spec: &TensorSpec| {
        DataType::from_str_name(&describe::config_type(spec)).unwrap_or(DataType::TypeInvalid) as i32
    };
    let input = |of: DescribedTensor<'_>| ModelInput {
        name: of.spec.name.clone(),
        data_type: data_type(of.spec),
        dims: of.dimensions,
    };
    let output = |of: DescribedTensor<'_>| ModelOutput {
        name: of.spec.name.clone(),
        data_type: data_type(of.spec),
        dims: of.dimensions,
        label_filename: String::new(),
    };
    let parameters = describe::parameters(model).into_iter();
    ModelConfig {
        name: model.name.clone(),
        platform: model.platform.clone(),
        backend: describe::NAME.into(),
        max_batch_size: i32::try_from(describe::max_batch_size(model)).unwrap_or(i32::MAX),
        input: describe::inputs(model).into_iter().map(input).collect(),
        output: describe::outputs(model).into_iter().map(output).collect(),
        instance_group: Vec::new(),
        scheduling_choice: Some(match model.query() {
            None => SchedulingChoice::DynamicBatching(ModelDynamicBatching::default()),
            Some(query) => SchedulingChoice::EnsembleScheduling(ModelEnsembling {
                step: describe::steps(query.config()).map(step).collect(),
            }),
        }),
        parameters: parameters
            .map(|(name, string_value)| (name.to_owned(), ModelParameter { string_value }))
            .collect(),
    }
}

fn model_statistics(model: &ModelInfo, statistics: &statistics::ModelStatistics) -> ModelStatistics {
    let span = |span: TimeSum| Some(StatisticDuration { count: span.count, ns: span.ns });
    let batch = |(size, batches): (&u32, &BatchStatistics)| InferBatchStatistics {
        batch_size: (*size).into(),
        compute_input: span(TimeSum { count: batches.executions(), ns: 0 }),
        compute_infer: span(batches.infer()),
        compute_output: span(batches.output()),
    };
    ModelStatistics {
        name: model.name.clone(),
        version: model.version.to_string(),
        last_inference: statistics.last_ms,
        inference_count: statistics.rows,
        execution_count: statistics.executions(),
        inference_stats: Some(InferStatistics {
            success: span(statistics.success),
            fail: span(statistics.fail),
            queue: span(statistics.queue),
            compute_input: span(TimeSum { count: statistics.success.count, ns: 0 }),
            compute_infer: span(statistics.infer),
            compute_output: span(statistics.output),
            cache_hit: span(TimeSum::default()),
            cache_miss: span(TimeSum::default()),
        }),
        batch_stats: statistics.batches.iter().map(batch).collect(),
    }
}

fn index(
    services: &CoreServices,
    caller: &Caller,
    request: RepositoryIndexRequest,
) -> RepositoryIndexResponse {
    let all = repository::index(services, caller).into_iter();
    let models = all.filter(|entry| !request.ready || entry.state == State::Ready).map(|entry| {
        let (version, state) = describe::index_terms(&entry);
        ModelIndex { name: entry.name, version, state: state.into(), reason: entry.reason }
    });
    RepositoryIndexResponse { models: models.collect() }
}

fn trace(
    services: &CoreServices,
    caller: &Caller,
    request: TraceSettingRequest,
) -> Result<TraceSettingResponse, Problem> {
    if !request.settings.is_empty() {
        caller.check_admin()?;
    }
    if !request.model_name.is_empty() {
        models::find(services, caller, &request.model_name, "")?;
    }
    let given: Vec<_> = request.settings.into_iter().map(|(name, setting)| (name, setting.value)).collect();
    update_trace(&given)?;
    let setting = |value: &str| trace_setting_response::SettingValue { value: vec![value.to_owned()] };
    let settings = TRACE.iter().map(|(name, value)| (String::from(*name), setting(value)));
    Ok(TraceSettingResponse { settings: settings.collect() })
}

fn log(
    services: &CoreServices,
    caller: &Caller,
    request: LogSettingsRequest,
) -> Result<LogSettingsResponse, Problem> {
    if !request.settings.is_empty() {
        caller.check_admin()?;
    }
    let given = request.settings.into_iter().map(|(name, setting)| {
        let value = match setting.parameter_choice {
            Some(GivenSetting::BoolParam(on)) => SettingValue::Bool(on),
            Some(GivenSetting::Uint32Param(number)) => SettingValue::Number(number),
            Some(GivenSetting::StringParam(text)) => SettingValue::Text(text),
            None => return Err(Problem::bad(format!("log setting {} has no value", quoted(&name)))),
        };
        Ok((name, value))
    });
    let given: Vec<(String, SettingValue)> = given.collect::<Result<_, Problem>>()?;
    let log = &services.shared.log;
    log.update(&given)?;
    let settings = log.all().map(|(name, value)| {
        let choice = match value {
            SettingValue::Bool(on) => LogSetting::BoolParam(on),
            SettingValue::Number(number) => LogSetting::Uint32Param(number),
            SettingValue::Text(text) => LogSetting::StringParam(text),
        };
        (name.to_owned(), log_settings_response::SettingValue { parameter_choice: Some(choice) })
    });
    Ok(LogSettingsResponse { settings: settings.into() })
}
