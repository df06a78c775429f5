//! The bodies of the calls about the memory of GPUs: which weights are where, loads and unloads.

use super::admin::{bytes, read};
use crate::api::problem::Problem;
use crate::api::services::CoreServices;
use crate::api::services::access::Caller;
use crate::control::weights::{DoneChange, WeightsChange, WeightsOrder};
use crate::runtime::gpu_memory::{GpuPages, WeightsPages};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest time for which an action waits, milliseconds.
const LONGEST_WAIT_MS: u64 = 3_600_000;

/// Returns the body of `GET /v2/gpus`, with the models that `caller` may use.
pub(super) fn list(services: &CoreServices, caller: &Caller) -> Vec<u8> {
    let table = services.engine.models();
    let model = |of: &WeightsPages| {
        let info = table.get(of.model.0 as usize).filter(|info| caller.may_use(&info.name))?;
        let (pages, held, state) = (of.needed, of.held, of.state_name());
        Some(
            json!({ "model": info.name, "version": info.version, "pages": pages, "held": held, "state": state }),
        )
    };
    let gpu = |of: &GpuPages| {
        json!({
            "gpu": of.gpu.0,
            "name": of.name,
            "page_bytes": of.counts.page_bytes,
            "pages": of.counts.total,
            "free": of.counts.free,
            "shared": of.shared,
            "lost": of.lost,
            "models": of.models.iter().filter_map(model).collect::<Vec<Value>>(),
        })
    };
    let gpus = services.telemetry.gpu_memory().pages();
    bytes(&json!({ "gpus": gpus.iter().map(gpu).collect::<Vec<Value>>() }))
}

/// The body of `POST /v2/gpus/models/NAME/load` and `/unload`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WeightsRequest {
    gpu: Option<u32>,
    version: Option<u64>,
    #[serde(default)]
    after_ms: u64,
    within_ms: Option<u64>,
}

/// Reads the body of an order.
///
/// Errors: 400.
pub(super) fn order(change: WeightsChange, model: String, body: &[u8]) -> Result<WeightsOrder, Problem> {
    let WeightsRequest { gpu, version, after_ms, within_ms } =
        read(body, "an object with gpu, version, after_ms and within_ms, each optional")?;
    for (name, given) in [("after_ms", after_ms), ("within_ms", within_ms.unwrap_or_default())] {
        if given > LONGEST_WAIT_MS {
            return Err(Problem::bad(format!("{name} is {given}; it must be at most {LONGEST_WAIT_MS}")));
        }
    }
    let (after, within) = (Duration::from_millis(after_ms), within_ms.map(Duration::from_millis));
    Ok(WeightsOrder { change, model, version, gpu, after, within })
}

/// Returns the answer to an order that was carried out.
pub(super) fn done(changes: &[DoneChange]) -> Vec<u8> {
    let action = |of: &DoneChange| {
        json!({
            "action": of.change.name(),
            "gpu": of.gpu.0,
            "model": of.model,
            "version": of.version,
            "pages": of.pages,
            "took_us": of.took.0 / 1_000,
            "predicted_us": of.predicted.map(|time| time.0 / 1_000),
        })
    };
    let lines: Vec<String> = changes.iter().map(ToString::to_string).collect();
    bytes(&json!({ "actions": changes.iter().map(action).collect::<Vec<Value>>(), "done": lines }))
}
