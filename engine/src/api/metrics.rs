//! What one API core counts, as Prometheus text. Plain numbers: the core's thread owns them, and the one
//! who asks for `/metrics` is a connection of the same thread.

use super::kserve::InferOutcome;
use crate::runtime::frontend::ModelInfo;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use symphony_transport::message::ModelId;

/// The counters of one API core.
pub(super) struct Metrics {
    /// By model, then by [`InferOutcome`].
    requests: RefCell<Vec<[u64; InferOutcome::ALL.len()]>>,
    /// By HTTP status.
    responses: RefCell<BTreeMap<u16, u64>>,
}

impl Metrics {
    /// All zero.
    pub(super) fn new(models: usize) -> Metrics {
        let requests = vec![[0; InferOutcome::ALL.len()]; models];
        Metrics { requests: RefCell::new(requests), responses: RefCell::default() }
    }

    /// An infer request for `model` ended so.
    pub(super) fn count_request(&self, model: ModelId, outcome: InferOutcome) {
        self.requests.borrow_mut()[model.0 as usize][outcome as usize] += 1;
    }

    /// A response of any kind went out with this status.
    pub(super) fn count_response(&self, status: u16) {
        *self.responses.borrow_mut().entry(status).or_default() += 1;
    }

    /// The Prometheus text, with these two gauges of the same core.
    pub(super) fn text(&self, models: &[ModelInfo], in_flight: usize, connections: usize) -> String {
        let mut out = String::from(
            "# HELP symphony_requests_total Infer requests by model and how they ended.\n\
             # TYPE symphony_requests_total counter\n",
        );
        for (model, counts) in models.iter().zip(&*self.requests.borrow()) {
            for (outcome, count) in InferOutcome::ALL.into_iter().zip(counts) {
                let (model, outcome) = (escaped(&model.name), outcome.name());
                let _ = writeln!(
                    out,
                    "symphony_requests_total{{model=\"{model}\",outcome=\"{outcome}\"}} {count}"
                );
            }
        }
        out.push_str(
            "# HELP symphony_http_responses_total HTTP responses by status code.\n\
             # TYPE symphony_http_responses_total counter\n",
        );
        for (status, count) in &*self.responses.borrow() {
            let _ = writeln!(out, "symphony_http_responses_total{{code=\"{status}\"}} {count}");
        }
        let _ = write!(
            out,
            "# HELP symphony_requests_in_flight Requests accepted and not yet answered by the engine.\n\
             # TYPE symphony_requests_in_flight gauge\n\
             symphony_requests_in_flight {in_flight}\n\
             # HELP symphony_http_connections Open HTTP connections.\n\
             # TYPE symphony_http_connections gauge\n\
             symphony_http_connections {connections}\n"
        );
        out
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
