//! Everything that is counted, as Prometheus text. The names are listed in docs/metrics.md.

mod discovery;
mod engine;
mod exposition;
mod gpu_pages;
mod links;

use super::metrics::{CoreTurns, ModelRequests, STAGES};
use super::outcome::InferOutcome;
use super::registry::Telemetry;
use crate::runtime::counters::executions::ModelExecutions;
use crate::runtime::frontend::{ModelInfo, SlotState};
use crate::telemetry::otlp::TraceCounts;
use exposition::{Exposition, MetricKind};
use symphony_scheduler::profile::SIZE_BOUNDS;
use symphony_transport::Nanos;

/// The number of GPUs with numbers of their own in the text; all of them are in the sums.
const GPUS_LISTED: usize = 1_024;

/// The counts of one model.
struct ModelSample<'a> {
    model: &'a ModelInfo,
    version: String,
    /// The sizes of a size class; empty for a model without.
    sizes: String,
    requests: ModelRequests,
    executions: ModelExecutions,
}

impl ModelSample<'_> {
    /// Returns the labels of a sample of the model, with one more.
    fn with<'a>(&'a self, name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
        let mut labels = self.labels();
        labels.insert(1, (name, value));
        labels
    }

    /// Returns the labels of a sample of the model.
    fn labels(&self) -> Vec<(&str, &str)> {
        let mut labels = vec![("model", self.model.name.as_str()), ("version", self.version.as_str())];
        labels.extend((!self.sizes.is_empty()).then_some(("sizes", self.sizes.as_str())));
        labels.extend(self.model.application.as_ref().map(|of| ("application", &*of.name)));
        labels
    }
}

/// A family of one number per model: its name, its kind, its help, and its value.
type ModelFamily = (&'static str, MetricKind, &'static str, fn(&ModelSample<'_>) -> f64);

const OF_MODELS: [ModelFamily; 8] = [
    (
        "symphony_requests_in_flight",
        MetricKind::Gauge,
        "Requests accepted and not yet answered by the engine.",
        |of| of.requests.in_flight() as f64,
    ),
    ("symphony_model_rows_total", MetricKind::Counter, "Rows of the requests that ran.", |of| {
        of.requests.rows as f64
    }),
    ("symphony_model_batches_total", MetricKind::Counter, "Batches run.", |of| of.executions.batches as f64),
    (
        "symphony_model_cancelled_batches_total",
        MetricKind::Counter,
        "Batches that could not start in time.",
        |of| of.executions.cancelled_batches as f64,
    ),
    (
        "symphony_model_failed_rows_total",
        MetricKind::Counter,
        "Rows on which the model failed or hung.",
        |of| of.executions.failed_rows as f64,
    ),
    (
        "symphony_model_hung_batches_total",
        MetricKind::Counter,
        "Batches in which the model made its executor hang.",
        |of| of.executions.hung_batches as f64,
    ),
    (
        "symphony_model_gpu_busy_seconds_total",
        MetricKind::Counter,
        "How long GPUs ran the model's batches.",
        |of| of.executions.busy.as_secs_f64(),
    ),
    ("symphony_model_slo_seconds", MetricKind::Gauge, "The latency promised.", |of| {
        of.model.slo.as_secs_f64()
    }),
];

/// The names that Triton has for metrics that this server has too. Durations are of all successful
/// requests together.
const AS_TRITON: [ModelFamily; 9] = [
    ("nv_inference_request_success", MetricKind::Counter, "Infer requests answered in time.", |of| {
        of.requests.ended(InferOutcome::Good) as f64
    }),
    ("nv_inference_count", MetricKind::Counter, "Rows inferred.", |of| of.requests.rows as f64),
    ("nv_inference_exec_count", MetricKind::Counter, "Batches run.", |of| of.executions.batches as f64),
    (
        "nv_inference_pending_request_count",
        MetricKind::Gauge,
        "Infer requests accepted and not yet answered by the engine.",
        |of| of.requests.in_flight() as f64,
    ),
    ("nv_inference_request_duration_us", MetricKind::Counter, "Time from queued to answered.", |of| {
        in_us(of.requests.whole.sum)
    }),
    ("nv_inference_queue_duration_us", MetricKind::Counter, "Time from queued to batched.", |of| {
        in_us(of.requests.stages[0].sum)
    }),
    ("nv_inference_compute_input_duration_us", MetricKind::Counter, "Time from batched to started.", |of| {
        in_us(of.requests.stages[1].sum)
    }),
    ("nv_inference_compute_infer_duration_us", MetricKind::Counter, "Time from started to finished.", |of| {
        in_us(of.requests.stages[2].sum)
    }),
    (
        "nv_inference_compute_output_duration_us",
        MetricKind::Counter,
        "Time from finished to answered.",
        |of| in_us(of.requests.stages[3].sum),
    ),
];

fn in_us(time: Nanos) -> f64 {
    (time.0 / 1_000) as f64
}

impl Telemetry {
    /// Returns everything that is counted as Prometheus text.
    pub fn metrics(&self) -> String {
        exposition_of(self)
    }
}

fn exposition_of(telemetry: &Telemetry) -> String {
    let mut text = Exposition::default();
    let (table, queries) = (telemetry.models(), telemetry.queries());
    let models: Vec<ModelSample<'_>> = table
        .iter()
        .filter(|model| model.state != SlotState::Vacant)
        .chain(queries.iter().map(|query| &query.info))
        .filter_map(|model| {
            let executions = telemetry.counters().executions().of_model(model.id);
            // On a host without clients batches run, and no requests are counted.
            let ran = || (executions.batches > 0).then(ModelRequests::default);
            let requests = telemetry.requests(model.id).or_else(ran)?;
            let sizes = model.sizes.as_ref().map_or(String::new(), |sizes| sizes.text(model.id));
            Some(ModelSample { model, version: model.version.to_string(), sizes, requests, executions })
        })
        .collect();
    server(&mut text, telemetry);
    if let Some(counts) = telemetry.traces() {
        traces(&mut text, counts);
    }
    links::write(&mut text, &telemetry.links());
    links::write_allowed(&mut text, &telemetry.counters().allowed_delays().read(), &table);
    discovery::write(&mut text, telemetry.discovery().as_ref());
    outcomes(&mut text, &models);
    for (name, kind, help, value) in OF_MODELS {
        text.family(name, kind, help);
        for of in &models {
            text.sample(&of.labels(), value(of));
        }
    }
    drifts(&mut text, telemetry, &models);
    run_times(&mut text, telemetry, &models);
    latencies(&mut text, &models);
    sizes(&mut text, &models);
    gpus(&mut text, telemetry);
    gpu_pages::write(&mut text, &telemetry.gpu_memory().pages(), &table);
    triton(&mut text, &models);
    engine::write(&mut text, &telemetry.counters().snapshot());
    engine::frontends(&mut text, telemetry.counters().frontends());
    engine::tuning(&mut text, telemetry.counters().tuning().read());
    text.finish()
}

fn server(text: &mut Exposition, telemetry: &Telemetry) {
    text.family("symphony_build_info", MetricKind::Gauge, "1, with the server's version.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family("symphony_uptime_seconds", MetricKind::Gauge, "Since the engine's clock was started.");
    text.sample(&[], telemetry.now().as_secs_f64());
    text.family(
        "symphony_ready",
        MetricKind::Gauge,
        "1 if requests can be served, as /v2/health/ready answers.",
    );
    text.sample(&[], u8::from(telemetry.readiness().is_ok()));
    text.family("symphony_http_responses_total", MetricKind::Counter, "HTTP responses by status code.");
    for (status, count) in telemetry.responses() {
        text.sample(&[("code", &status.to_string())], count);
    }
    let (opened, open) = telemetry.connections();
    text.family("symphony_http_connections", MetricKind::Gauge, "Open connections.");
    text.sample(&[], open);
    text.family("symphony_http_connections_total", MetricKind::Counter, "Connections opened.");
    text.sample(&[], opened);
    let help = "Panics of the handlers of requests and connections, each a defect.";
    text.family("symphony_handler_panics_total", MetricKind::Counter, help);
    text.sample(&[], telemetry.handler_panics());
    turns(text, &telemetry.turns());
}

/// Adds the turns of the tasks of API cores.
fn turns(text: &mut Exposition, cores: &[CoreTurns]) {
    let help = "The longest turn of a task, in which its API core serves nobody else.";
    text.family("symphony_api_longest_turn_seconds", MetricKind::Gauge, help);
    for CoreTurns { thread, longest, .. } in cores {
        text.sample(&[("thread", thread)], longest.as_secs_f64());
    }
    let help = "Turns of tasks that took more than 2 ms.";
    text.family("symphony_api_long_turns_total", MetricKind::Counter, help);
    for CoreTurns { thread, long, .. } in cores {
        text.sample(&[("thread", thread)], long);
    }
}

/// Adds the counts of traces, where requests are traced.
fn traces(text: &mut Exposition, counts: &TraceCounts) {
    text.family("symphony_trace_spans_total", MetricKind::Counter, "Spans by what became of them.");
    for (result, count) in [("sent", counts.sent()), ("failed", counts.failed())] {
        text.sample(&[("result", result)], count);
    }
    let help = "Traced requests of which nothing was sent, since too many waited to be.";
    text.family("symphony_trace_requests_dropped_total", MetricKind::Counter, help);
    text.sample(&[], counts.overflowed());
    text.family("symphony_trace_retries_total", MetricKind::Counter, "Times that spans were sent again.");
    text.sample(&[], counts.retries());
}

fn outcomes(text: &mut Exposition, models: &[ModelSample<'_>]) {
    let help = "Infer requests by model and how they ended.";
    text.family("symphony_requests_total", MetricKind::Counter, help);
    for of in models {
        for outcome in InferOutcome::ALL {
            text.sample(&of.with("outcome", outcome.name()), of.requests.ended(outcome));
        }
    }
}

/// Adds how true profiles are, of the models of which enough batches ran.
fn drifts(text: &mut Exposition, telemetry: &Telemetry, models: &[ModelSample<'_>]) {
    let help = "The rolling profile of the last batches, as the largest ratio to the profile.";
    text.family("symphony_model_profile_drift", MetricKind::Gauge, help);
    for of in models {
        if let Some(ratio) = telemetry.profile_drift(of.model.id) {
            text.sample(&of.labels(), ratio);
        }
    }
}

/// Adds how long requests of each application run, where the policy learns that.
fn run_times(text: &mut Exposition, telemetry: &Telemetry, models: &[ModelSample<'_>]) {
    let help = "The run time of an application's request that a part of them does not exceed, as learnt.";
    text.family("symphony_application_run_time_seconds", MetricKind::Gauge, help);
    for of in models {
        let Some(learned) = telemetry.run_times(of.model.id) else { continue };
        for (name, share) in [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99)] {
            text.sample(&of.with("quantile", name), learned.quantile(share) / 1e3);
        }
    }
}

fn latencies(text: &mut Exposition, models: &[ModelSample<'_>]) {
    let help = "From queued to answered, of requests that ran.";
    text.family("symphony_request_latency_seconds", MetricKind::Histogram, help);
    for of in models {
        text.latencies(&of.labels(), &of.requests.whole);
    }
    let stages: Vec<String> = STAGES.iter().map(|(name, what)| format!("{name}, {what}")).collect();
    let help = format!("How long the stages of requests that ran took: {}.", stages.join("; "));
    text.family("symphony_request_stage_seconds", MetricKind::Histogram, &help);
    for of in models {
        for ((stage, _), latencies) in STAGES.iter().zip(&of.requests.stages) {
            text.latencies(&of.with("stage", stage), latencies);
        }
    }
}

fn sizes(text: &mut Exposition, models: &[ModelSample<'_>]) {
    text.family("symphony_batch_size", MetricKind::Histogram, "Rows in the batches that ran.");
    for of in models {
        let mut below = 0;
        let up_to = SIZE_BOUNDS.iter().zip(&of.executions.sizes).map(|(&bound, count)| {
            below += count;
            (bound as f64, below)
        });
        let count = of.executions.sizes.iter().sum();
        text.buckets(&of.labels(), up_to, count, of.executions.rows);
    }
}

fn gpus(text: &mut Exposition, telemetry: &Telemetry) {
    let executions = telemetry.counters().executions();
    text.family("symphony_gpus", MetricKind::Gauge, "GPUs and other executors.");
    text.sample(&[], executions.gpus());
    let busy: u64 = executions.of_gpus().map(|gpu| gpu.busy.0).sum();
    text.family(
        "symphony_gpus_busy_seconds_total",
        MetricKind::Counter,
        "How long all GPUs together ran batches.",
    );
    text.sample(&[], Nanos(busy).as_secs_f64());
    let listed = || executions.of_gpus().take(GPUS_LISTED).enumerate();
    text.family("symphony_gpu_busy_seconds_total", MetricKind::Counter, "How long a GPU ran batches.");
    for (gpu, executions) in listed() {
        text.sample(&[("gpu", &gpu.to_string())], executions.busy.as_secs_f64());
    }
    text.family("symphony_gpu_batches_total", MetricKind::Counter, "Batches that a GPU ran.");
    for (gpu, executions) in listed() {
        text.sample(&[("gpu", &gpu.to_string())], executions.batches);
    }
    let help = "The share of the last seconds in which a GPU ran batches, 0 to 1.";
    text.family("nv_gpu_utilization", MetricKind::Gauge, help);
    for (gpu, share) in telemetry.utilization().into_iter().take(GPUS_LISTED).enumerate() {
        text.sample(&[("gpu_uuid", &gpu.to_string())], share);
    }
}

fn triton(text: &mut Exposition, models: &[ModelSample<'_>]) {
    for (name, kind, help, value) in AS_TRITON {
        text.family(name, kind, help);
        for of in models {
            text.sample(&of.labels(), value(of));
        }
    }
    let help = "Infer requests that got no result in time, by reason.";
    text.family("nv_inference_request_failure", MetricKind::Counter, help);
    for of in models {
        for reason in ["REJECTED", "CANCELED", "BACKEND", "OTHER"] {
            let of_reason =
                InferOutcome::ALL.iter().filter(|outcome| outcome.triton_reason() == Some(reason));
            let count: u64 = of_reason.map(|&outcome| of.requests.ended(outcome)).sum();
            text.sample(&of.with("reason", reason), count);
        }
    }
}
