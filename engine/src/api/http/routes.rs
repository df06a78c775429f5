//! The routes: the meaning of each path, and its methods. Pure.

use crate::api::services::access::Permission;
use crate::api::services::dashboard;
use crate::control::weights::WeightsChange;
use hyper::Method;

/// The call that a path names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// `/v2`
    Server,
    /// `/v2/health/live`
    Live,
    /// `/v2/health/ready`
    Ready,
    /// `/metrics`
    Metrics,
    /// `/dashboard` and the paths below it.
    Dashboard(dashboard::DashboardPart),
    /// `/v2/models/stats`
    Statistics,
    /// `/v2/models/NAME[/versions/VERSION]` and the paths below it.
    Model {
        /// The model's name, percent-decoded.
        name: String,
        /// The version; empty if the path has none.
        version: String,
        /// The call.
        part: ModelPart,
    },
    /// `/v2/trace/setting`
    Trace,
    /// `/v2/logging`
    Log,
    /// `/v2/repository/index`
    Index,
    /// `/v2/repository/models/NAME/load`
    Load(String),
    /// `/v2/repository/models/NAME/unload`
    Unload(String),
    /// `/v2/gpus`
    Gpus,
    /// `/v2/gpus/models/NAME/load`, `/v2/gpus/models/NAME/unload`
    Weights(WeightsChange, String),
    /// `/v2/systemsharedmemory[/region/REGION]/…`, `/v2/cudasharedmemory[/region/REGION]/…`
    Memory {
        /// The kind of memory.
        kind: MemoryKind,
        /// The region's name; empty for all.
        region: String,
        /// The call.
        part: MemoryPart,
    },
}

/// The call to a model that a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelPart {
    /// The description of its tensors.
    Metadata,
    /// The readiness check.
    Ready,
    /// The configuration, in Triton's terms.
    Config,
    /// The counts and times.
    Statistics,
    /// The trace settings.
    Trace,
    /// An infer request.
    Infer,
}

/// A kind of shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryKind {
    /// POSIX shared memory.
    System,
    /// A GPU's memory.
    Cuda,
}

/// The call about shared memory that a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryPart {
    /// The list of registered regions.
    Status,
    /// The registration of a region.
    Register,
    /// The end of a registration.
    Unregister,
}

impl Route {
    /// Returns the route of a path without its query; `None` if there is none.
    pub(super) fn of(path: &str) -> Option<Route> {
        let segments: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match segments[..] {
            ["metrics"] => Route::Metrics,
            ["dashboard", ref rest @ ..] => Route::Dashboard(dashboard::DashboardPart::of(rest)?),
            ["v2"] => Route::Server,
            ["v2", "health", "live"] => Route::Live,
            ["v2", "health", "ready"] => Route::Ready,
            ["v2", "models", "stats"] => Route::Statistics,
            ["v2", "models", name, "versions", version, ref rest @ ..] => {
                Route::Model { name: decoded(name)?, version: decoded(version)?, part: model_part(rest)? }
            }
            ["v2", "models", name, ref rest @ ..] => {
                Route::Model { name: decoded(name)?, version: String::new(), part: model_part(rest)? }
            }
            ["v2", "trace", "setting"] => Route::Trace,
            ["v2", "logging"] => Route::Log,
            ["v2", "repository", "index"] => Route::Index,
            ["v2", "repository", "models", name, "load"] => Route::Load(decoded(name)?),
            ["v2", "repository", "models", name, "unload"] => Route::Unload(decoded(name)?),
            ["v2", "gpus"] => Route::Gpus,
            ["v2", "gpus", "models", name, "load"] => Route::Weights(WeightsChange::Load, decoded(name)?),
            ["v2", "gpus", "models", name, "unload"] => Route::Weights(WeightsChange::Unload, decoded(name)?),
            ["v2", kind, "region", region, part] => Route::memory(kind, decoded(region)?, part)?,
            ["v2", kind, part] => Route::memory(kind, String::new(), part)?,
            _ => return None,
        })
    }

    fn memory(kind: &str, region: String, part: &str) -> Option<Route> {
        let kind = match kind {
            "systemsharedmemory" => MemoryKind::System,
            "cudasharedmemory" => MemoryKind::Cuda,
            _ => return None,
        };
        let part = match part {
            "status" => MemoryPart::Status,
            "register" if !region.is_empty() => MemoryPart::Register,
            "unregister" => MemoryPart::Unregister,
            _ => return None,
        };
        Some(Route::Memory { kind, region, part })
    }

    /// Returns the permission that it needs.
    pub(super) fn permission(&self, method: &Method) -> Permission {
        match self {
            Route::Live | Route::Ready => Permission::Health,
            Route::Metrics => Permission::Metrics,
            Route::Dashboard(_)
            | Route::Load(_)
            | Route::Unload(_)
            | Route::Gpus
            | Route::Weights(..)
            | Route::Memory { .. } => Permission::Admin,
            Route::Trace | Route::Log | Route::Model { part: ModelPart::Trace, .. }
                if method == Method::POST =>
            {
                Permission::Admin
            }
            _ => Permission::Use,
        }
    }

    /// Returns the methods that it answers, as an `Allow` header lists them.
    pub(super) fn allowed(&self) -> &'static str {
        match self {
            Route::Model { part: ModelPart::Infer, .. }
            | Route::Index
            | Route::Load(_)
            | Route::Unload(_)
            | Route::Weights(..) => "POST",
            Route::Memory { part: MemoryPart::Register | MemoryPart::Unregister, .. } => "POST",
            Route::Trace | Route::Log | Route::Model { part: ModelPart::Trace, .. } => "GET, POST",
            _ => "GET, HEAD",
        }
    }
}

fn model_part(rest: &[&str]) -> Option<ModelPart> {
    match rest {
        [] => Some(ModelPart::Metadata),
        ["ready"] => Some(ModelPart::Ready),
        ["config"] => Some(ModelPart::Config),
        ["stats"] => Some(ModelPart::Statistics),
        ["trace", "setting"] => Some(ModelPart::Trace),
        ["infer"] => Some(ModelPart::Infer),
        _ => None,
    }
}

fn decoded(segment: &str) -> Option<String> {
    let text = percent_encoding::percent_decode_str(segment).decode_utf8().ok()?;
    (!text.is_empty()).then(|| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_of_the_protocol_is_known_and_no_other() {
        let model = |version: &str, part| Route::Model { name: "a b".into(), version: version.into(), part };
        for (path, route) in [
            ("/v2/models/a%20b/config", model("", ModelPart::Config)),
            ("/v2/models/a%20b/versions/2/stats", model("2", ModelPart::Statistics)),
            ("/v2/models/a%20b/trace/setting", model("", ModelPart::Trace)),
            ("/v2/models/stats", Route::Statistics),
            ("/v2/repository/models/m/load", Route::Load("m".into())),
            ("/v2/gpus", Route::Gpus),
            ("/v2/gpus/models/a%20b/unload", Route::Weights(WeightsChange::Unload, "a b".into())),
            (
                "/v2/systemsharedmemory/region/r/register",
                Route::Memory { kind: MemoryKind::System, region: "r".into(), part: MemoryPart::Register },
            ),
            (
                "/v2/cudasharedmemory/unregister",
                Route::Memory { kind: MemoryKind::Cuda, region: String::new(), part: MemoryPart::Unregister },
            ),
        ] {
            assert_eq!(Route::of(path), Some(route), "{path}");
        }
        for path in
            ["", "/", "/v1", "/v2/", "/v2/models", "/v2/models//ready", "/v2/systemsharedmemory/register"]
        {
            assert_eq!(Route::of(path), None, "{path}");
        }
    }
}
