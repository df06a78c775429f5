//! The numbers of the dashboard, as JSON: docs/dashboard.md lists the fields. Numbers count from
//! the start of the process; the reader takes differences. Everything in it is bounded, whatever
//! the engine's size.

use super::history::HISTORY_MODELS;
use super::memory_view::{self, LANES, PagesView};
use super::metrics::STAGES;
use super::outcome::InferOutcome;
use super::registry::Telemetry;
use crate::runtime::counters::executions::GpuExecutions;
use crate::runtime::frontend::{ModelInfo, ServedQuery};
use crate::runtime::links::LinkView;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;
use symphony_scheduler::profile::{Profile, SIZE_BOUNDS};
use symphony_transport::Nanos;
use symphony_transport::message::ModelId;

/// The age from which ended batches are no longer shown.
pub(super) const SHOWN_FOR: Nanos = Nanos::from_secs(6);

/// The most batches in one answer, the newest.
const BATCHES: usize = 4_096;

/// The parameters of a client's query.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Query {
    /// The batches that the client has seen: `batches.cursor` of the answer before.
    since: Vec<u64>,
    /// The model whose profile is asked for.
    model: Option<u32>,
    /// True if the last minutes are asked for.
    history: bool,
}

impl Query {
    /// Reads a URL's query: `since=CURSOR&model=ID&history=1`, each optional. Unknown parameters
    /// are ignored.
    ///
    /// Errors: the value that is wrong, and what would be right.
    pub fn parse(query: &str) -> Result<Query, String> {
        let mut parsed = Query::default();
        for (name, value) in query.split('&').filter_map(|part| part.split_once('=')) {
            match name {
                "since" => {
                    let numbers: Result<Vec<u64>, _> = value.split('-').map(str::parse).collect();
                    parsed.since = numbers
                        .map_err(|_| "since must be batches.cursor of an answer before, such as 12-0")?;
                    parsed.since.truncate(LANES);
                }
                "model" => {
                    parsed.model = Some(value.parse().map_err(|_| "model must be a model's id, such as 0")?);
                }
                "history" => parsed.history = value == "1",
                _ => {}
            }
        }
        Ok(parsed)
    }
}

#[derive(Serialize)]
struct View<'a> {
    version: &'static str,
    now_us: u64,
    ready: bool,
    reasons: Vec<String>,
    gpus: GpusView,
    /// The first GPUs, [`LANES`] at most.
    lanes: Vec<LaneView>,
    /// The pages of the first GPUs, [`LANES`] at most, and of the models on them.
    memory: Vec<PagesView>,
    /// The models, and then the queries.
    models: Vec<ModelView<'a>>,
    /// The number of further models that were asked for.
    models_left_out: usize,
    /// The links to other hosts, where the engine is spread over several.
    links: Vec<LinkRow>,
    size_bounds: &'static [usize],
    stages: [&'static str; STAGES.len()],
    batches: Batches,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<ProfileView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryView>,
}

#[derive(Serialize)]
struct GpusView {
    count: usize,
    busy_us: u64,
    /// The number of GPUs that would serve the load of the last seconds.
    advised: Option<usize>,
}

#[derive(Serialize)]
struct LaneView {
    gpu: usize,
    busy_us: u64,
    batches: u64,
}

/// A link to another host. What is not known is null.
#[derive(Serialize)]
struct LinkRow {
    peer: String,
    role: &'static str,
    state: &'static str,
    connections: u64,
    received_bytes: u64,
    sent_bytes: u64,
    round_trip_us: Option<f64>,
    /// The delay of the peer's frames on their way here that 99 % do not exceed.
    delay_us: Option<f64>,
    /// The time in which a backend, the peer, fetches 99 % of its batches' inputs, and what it
    /// takes longer for each KiB.
    fetch_us: Option<f64>,
    fetch_per_kib_us: Option<f64>,
    clock_offset_us: Option<f64>,
    clock_error_us: Option<f64>,
    clock_drift_ppm: Option<f64>,
    last_end: String,
}

impl From<LinkView> for LinkRow {
    fn from(link: LinkView) -> LinkRow {
        let us = |nanos: Nanos| nanos.0 as f64 / 1e3;
        LinkRow {
            peer: link.peer,
            role: link.role.name(),
            state: link.state.name(),
            connections: link.connections,
            received_bytes: link.bytes[0],
            sent_bytes: link.bytes[1],
            round_trip_us: link.round_trip.map(us),
            delay_us: link.delay.map(us),
            fetch_us: link.fetch.map(us),
            fetch_per_kib_us: link.fetch_per_kib.map(us),
            clock_offset_us: link.clock_offset_ns.map(|offset| offset as f64 / 1e3),
            clock_error_us: link.clock_error.map(us),
            clock_drift_ppm: link.clock_drift_ppb.map(|drift| drift as f64 / 1e3),
            last_end: link.last_end,
        }
    }
}

#[derive(Serialize)]
struct ModelView<'a> {
    id: u32,
    /// The name, with the sizes of a size class.
    name: Cow<'a, str>,
    version: u64,
    platform: &'a str,
    slo_us: u64,
    max_batch: usize,
    in_flight: u64,
    /// The requests by outcome, with the names of the `symphony-outcome` header.
    outcomes: Outcomes,
    ran: u64,
    whole_us: u64,
    stages_us: [u64; STAGES.len()],
    /// The requests that ran, by latency in fortieths of the SLO.
    #[serde(serialize_with = "as_slice")]
    of_slo: [u64; super::SLO_BUCKETS],
    batches: u64,
    rows: u64,
    busy_us: u64,
    cancelled_batches: u64,
    /// The batches by size: up to each of `size_bounds`.
    sizes: [u64; SIZE_BOUNDS.len()],
    /// The largest ratio of the rolling profile to the profile, once it is measured.
    drift: Option<f64>,
    /// The median and the 99th percentile of the run times of an application's requests, where the
    /// policy learns them.
    run_time_us: Option<[u64; 2]>,
}

fn as_slice<S: serde::Serializer>(numbers: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    numbers.serialize(serializer)
}

struct Outcomes([u64; InferOutcome::COUNT]);

impl Serialize for Outcomes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_map(InferOutcome::ALL.iter().zip(self.0).map(|(outcome, count)| (outcome.name(), count)))
    }
}

#[derive(Serialize)]
struct Batches {
    /// The value of `since` for the batches that come after these.
    cursor: String,
    /// GPU, model, start and finish in microseconds, size, and 1 if it was cancelled.
    list: Vec<(u32, u32, u64, u64, u32, u8)>,
}

#[derive(Serialize)]
struct ProfileView {
    model: u32,
    /// The latencies l(1), l(2), …
    latency_us: Vec<u64>,
    /// Latencies of the rolling profile, once it is measured.
    rolling_us: Option<Vec<u64>>,
}

#[derive(Serialize)]
struct HistoryView {
    at_us: Vec<u64>,
    models: Vec<ModelHistory>,
    /// The requests of all models together up to each moment.
    outcomes: Vec<Outcomes>,
    busy_us: Vec<u64>,
}

#[derive(Serialize)]
struct ModelHistory {
    id: u32,
    /// The requests answered in time up to each moment.
    good: Vec<u64>,
    /// The bad requests up to each moment.
    bad: Vec<u64>,
}

impl Telemetry {
    /// Returns the numbers of the dashboard, as JSON: docs/dashboard.md lists the fields.
    pub fn view(&self, query: &Query) -> String {
        json(self, query)
    }
}

/// Returns the JSON of a query.
fn json(telemetry: &Telemetry, query: &Query) -> String {
    let reasons = telemetry.readiness().err().unwrap_or_default();
    let (table, queries) = (telemetry.models(), telemetry.queries());
    let (models, models_left_out) = models(telemetry, &table, &queries);
    let executions = telemetry.counters().executions();
    let lane = |(gpu, ran): (usize, GpuExecutions)| LaneView {
        gpu,
        busy_us: ran.busy.0 / 1_000,
        batches: ran.batches,
    };
    let view = View {
        version: env!("CARGO_PKG_VERSION"),
        now_us: telemetry.now().0 / 1_000,
        ready: reasons.is_empty(),
        reasons: reasons.iter().map(ToString::to_string).collect(),
        gpus: GpusView {
            count: executions.gpus(),
            busy_us: executions.of_gpus().map(|ran| ran.busy.0).sum::<u64>() / 1_000,
            advised: telemetry.advised_gpus(),
        },
        lanes: executions.of_gpus().take(LANES).enumerate().map(lane).collect(),
        memory: memory_view::pages(&telemetry.gpu_memory().pages(), |slot| {
            table.get(slot as usize).map(|model| model.label().into_owned())
        }),
        models,
        models_left_out,
        links: telemetry.links().into_iter().map(LinkRow::from).collect(),
        size_bounds: &SIZE_BOUNDS,
        stages: STAGES.map(|(name, _)| name),
        batches: batches(telemetry, query.since.clone()),
        profile: query.model.and_then(|model| profile(telemetry, ModelId(model))),
        history: query.history.then(|| history(telemetry)),
    };
    serde_json::to_string(&view).expect("numbers and text have a JSON form")
}

/// Returns the models and the queries that were asked for, [`HISTORY_MODELS`] at most, and the
/// number of those left out.
fn models<'a>(
    telemetry: &Telemetry,
    table: &'a [ModelInfo],
    queries: &'a [Arc<ServedQuery>],
) -> (Vec<ModelView<'a>>, usize) {
    let asked_for = telemetry.models_asked_for();
    let shown = asked_for.len().min(HISTORY_MODELS);
    let of = |model: &ModelId| {
        let query = || queries.iter().map(|query| &query.info).find(|query| query.id == *model);
        let model = table.get(model.0 as usize).or_else(query)?;
        Some(of_model(telemetry, model))
    };
    (asked_for[..shown].iter().filter_map(of).collect(), asked_for.len() - shown)
}

fn of_model<'a>(telemetry: &Telemetry, model: &'a ModelInfo) -> ModelView<'a> {
    let requests = telemetry.requests(model.id).unwrap_or_default();
    let ran = telemetry.counters().executions().of_model(model.id);
    let learned = telemetry.run_times(model.id);
    let us = |share| learned.as_ref().map(|of| (of.quantile(share) * 1e3) as u64);
    ModelView {
        id: model.id.0,
        name: model.label(),
        version: model.version,
        platform: &model.platform,
        slo_us: model.slo.0 / 1_000,
        max_batch: model.max_batch,
        in_flight: requests.in_flight(),
        outcomes: Outcomes(requests.outcomes),
        ran: requests.whole.count(),
        whole_us: requests.whole.sum.0 / 1_000,
        stages_us: requests.stages.each_ref().map(|stage| stage.sum.0 / 1_000),
        of_slo: requests.of_slo,
        batches: ran.batches,
        rows: ran.rows,
        busy_us: ran.busy.0 / 1_000,
        cancelled_batches: ran.cancelled_batches,
        sizes: ran.sizes,
        drift: telemetry.profile_drift(model.id),
        run_time_us: us(0.5).zip(us(0.99)).map(<[u64; 2]>::from),
    }
}

fn batches(telemetry: &Telemetry, mut cursor: Vec<u64>) -> Batches {
    let mut list = Vec::new();
    let from = telemetry.now() - SHOWN_FOR;
    telemetry.counters().executions().recent(LANES, &mut cursor, |batch| {
        if batch.finished >= from {
            let (started, finished) = (batch.started.0 / 1_000, batch.finished.0 / 1_000);
            let cancelled = u8::from(batch.cancelled);
            list.push((batch.gpu.0, batch.model.0, started, finished, batch.size, cancelled));
        }
    });
    list.drain(..list.len().saturating_sub(BATCHES));
    let cursor: Vec<String> = cursor.iter().map(u64::to_string).collect();
    Batches { cursor: cursor.join("-"), list }
}

fn profile(telemetry: &Telemetry, model: ModelId) -> Option<ProfileView> {
    let profile = telemetry.profile(model)?;
    let rolling = telemetry.rolling_profile(model);
    Some(ProfileView {
        model: model.0,
        latency_us: latencies_us(&profile),
        rolling_us: rolling.as_ref().map(latencies_us),
    })
}

fn latencies_us(profile: &Profile) -> Vec<u64> {
    (1..=profile.max_batch()).map(|size| profile.latency(size).0 / 1_000).collect()
}

fn history(telemetry: &Telemetry) -> HistoryView {
    telemetry.history(|past| {
        let seconds = past.seconds();
        let of = |model: ModelId| ModelHistory {
            id: model.0,
            good: seconds.iter().map(|second| second.of(model).good).collect(),
            bad: seconds.iter().map(|second| second.of(model).bad).collect(),
        };
        let last = seconds.back().map(|second| second.models.as_slice()).unwrap_or_default();
        HistoryView {
            at_us: seconds.iter().map(|second| second.at.0 / 1_000).collect(),
            models: last.iter().map(|&(model, _)| of(model)).collect(),
            outcomes: seconds.iter().map(|second| Outcomes(second.outcomes)).collect(),
            busy_us: seconds.iter().map(|second| second.busy.0 / 1_000).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_its_mistakes_are_named() {
        let query = Query::parse("since=12-0-7&model=3&history=1&x=y&z").unwrap();
        assert_eq!(query, Query { since: vec![12, 0, 7], model: Some(3), history: true });
        assert_eq!(Query::parse("").unwrap(), Query::default());
        assert!(Query::parse("since=12-x").unwrap_err().contains("since must be"));
        assert!(Query::parse("model=resnet").unwrap_err().contains("model must be"));
    }
}
