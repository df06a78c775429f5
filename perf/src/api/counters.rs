//! The server's counters, and the check that they add up once no client is left.

use crate::MeasureError;
use crate::api::process::Server;
use std::collections::BTreeMap;

/// The samples of `/metrics`, by name with labels.
pub(super) struct CounterSnapshot {
    samples: BTreeMap<String, f64>,
}

impl CounterSnapshot {
    /// Reads the server's counters.
    ///
    /// Errors: it does not answer, or not with Prometheus text.
    pub(super) fn read(server: &Server) -> Result<CounterSnapshot, MeasureError> {
        CounterSnapshot::of(&server.get("/metrics")?)
    }

    fn of(text: &str) -> Result<CounterSnapshot, MeasureError> {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples: Option<BTreeMap<String, f64>> = lines.map(sample).collect();
        samples
            .map(|samples| CounterSnapshot { samples })
            .ok_or_else(|| MeasureError::Failed("/metrics is no Prometheus text".into()))
    }

    /// Returns the sum of a family over all labels.
    fn sum(&self, family: &str) -> f64 {
        let of = |name: &str| {
            name == family || name.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'))
        };
        self.samples.iter().filter(|(name, _)| of(name)).map(|(_, value)| value).sum()
    }

    /// Returns the sum of a family over the samples with this label.
    fn sum_with(&self, family: &str, label: &str) -> f64 {
        let has = |name: &str| {
            name.strip_prefix(family).is_some_and(|rest| rest.starts_with('{') && rest.contains(label))
        };
        self.samples.iter().filter(|(name, _)| has(name)).map(|(_, value)| value).sum()
    }

    /// Returns the number of infer requests with this outcome.
    pub(super) fn ended(&self, outcome: &str) -> u64 {
        self.sum_with("symphony_requests_total", &format!("outcome=\"{outcome}\"")) as u64
    }

    /// Returns the number of infer requests by outcome.
    pub(super) fn outcomes(&self) -> BTreeMap<String, u64> {
        let mut outcomes = BTreeMap::new();
        for (name, value) in &self.samples {
            let labels = name.strip_prefix("symphony_requests_total{");
            let outcome = labels.and_then(|labels| labels.split_once("outcome=\"")?.1.split('"').next());
            if let Some(outcome) = outcome {
                *outcomes.entry(outcome.to_owned()).or_default() += *value as u64;
            }
        }
        outcomes
    }

    /// Returns the number of requests that were cancelled before they ran.
    pub(super) fn withdrawn(&self) -> u64 {
        self.sum("symphony_model_thread_withdrawn_total") as u64
    }

    /// Returns the number of connections opened.
    pub(super) fn connections_opened(&self) -> u64 {
        self.sum("symphony_http_connections_total") as u64
    }

    /// Returns the time that all GPUs together ran batches, seconds.
    pub(super) fn gpu_busy_s(&self) -> f64 {
        self.sum("symphony_gpus_busy_seconds_total")
    }

    /// Returns true if the only connection is the one of this reading, and no request is in flight.
    pub(super) fn is_silent(&self) -> bool {
        self.sum("symphony_http_connections") == 1.0
            && self.sum("symphony_requests_in_flight") == 0.0
            && self.sum("symphony_rank_thread_gpus_busy") == 0.0
    }

    /// Returns the sums that do not add up although no client is left.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut equal = |what: &str, left: f64, right: f64| {
            if left != right {
                wrong.push(format!("{what}: {left} and {right}"));
            }
        };
        let model = |name: &str| self.sum(&format!("symphony_model_thread_{name}_total"));
        let rank = |name: &str| self.sum(&format!("symphony_rank_thread_{name}_total"));
        let backend = |name: &str| self.sum(&format!("symphony_backend_{name}_total"));
        equal("open connections, and that of this reading", self.sum("symphony_http_connections"), 1.0);
        equal("requests in flight, and none", self.sum("symphony_requests_in_flight"), 0.0);
        let ways_to_end = ["batched_requests", "dropped_in_queue", "overloaded", "withdrawn", "stopped"];
        let ended = ways_to_end.iter().map(|name| model(name)).sum();
        equal("requests that ModelThreads took, and those that they ended", model("requests"), ended);
        equal("GPUs granted, as counted by RankThreads and by ModelThreads", rank("grants"), model("grants"));
        equal(
            "GPUs granted and used, and batches",
            model("grants") - model("grants_unused"),
            model("batches"),
        );
        equal("batches sent, and those that left their GPUs", model("batches"), rank("completions"));
        let left = backend("batches") + backend("cancelled_batches");
        equal("batches sent, and those run or cancelled", model("batches"), left);
        equal(
            "batches run, by thread and by model",
            backend("batches"),
            self.sum("symphony_model_batches_total"),
        );
        equal("batches run, by model and by GPU", backend("batches"), self.sum("symphony_gpu_batches_total"));
        let rows = self.sum("symphony_batch_size_sum");
        equal("rows that ran, by batch and by request", rows, self.sum("symphony_model_rows_total"));
        let latencies = self.sum("symphony_request_latency_seconds_count");
        equal("requests of one row that ran, and their latencies", rows, latencies);
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP x y\nsymphony_http_connections 1\nsymphony_http_connections_total 7\n\
        symphony_requests_total{model=\"a\",outcome=\"good\",version=\"1\"} 5\n\
        symphony_requests_total{model=\"b\",outcome=\"good\",version=\"1\"} 2\n\
        symphony_requests_total{model=\"b\",outcome=\"gone\",version=\"1\"} 1\n\
        symphony_model_thread_requests_total{thread=\"model-0\"} 8\n\
        symphony_model_thread_batched_requests_total{thread=\"model-0\"} 8\n\
        symphony_batch_size_sum{model=\"a\",version=\"1\"} 8\nsymphony_model_rows_total{model=\"a\",version=\"1\"} 8\n\
        symphony_request_latency_seconds_count{model=\"a\",version=\"1\"} 8\n";

    #[test]
    fn samples_are_summed_by_family_and_label() {
        let counters = CounterSnapshot::of(TEXT).unwrap();
        assert_eq!((counters.ended("good"), counters.ended("gone"), counters.ended("late")), (7, 1, 0));
        assert_eq!(counters.connections_opened(), 7);
        assert!(counters.is_silent() && counters.wrong().is_empty(), "{:?}", counters.wrong());
    }

    #[test]
    fn sums_that_do_not_add_up_are_reported() {
        let lost = TEXT.replace(
            "batched_requests_total{thread=\"model-0\"} 8",
            "batched_requests_total{thread=\"model-0\"} 7",
        );
        assert_eq!(CounterSnapshot::of(&lost).unwrap().wrong().len(), 1);
        let open = TEXT.replace("connections 1", "connections 2");
        assert!(!CounterSnapshot::of(&open).unwrap().is_silent());
        assert!(CounterSnapshot::of("no number").is_err());
    }
}
