//! What has become of queries, as a part of the [`Report`](crate::sim::report::Report): how many
//! were over in time, and what each stage took. Its builder counts while the simulation runs.

use crate::sim::observer::QueryEnding;
use crate::workload::Workload;
use alloc::string::String;
use alloc::vec::Vec;
use hdrhistogram::Histogram;
use serde::Serialize;
use symphony_transport::Nanos;

/// The queries of one graph. Those count that arrived in [warm-up, warm-up + duration).
#[derive(Clone, Debug, Serialize)]
pub struct QueryReport {
    /// The query's name.
    pub name: String,
    /// Queries that arrived.
    pub offered: u64,
    /// Queries whose items were all over in time.
    pub good: u64,
    /// Queries that ended since an item was dropped.
    pub dropped: u64,
    /// Queries whose last item was late.
    pub late: u64,
    /// Good queries per second.
    pub good_rps: f64,
    /// Dropped and late queries over offered ones.
    pub bad_rate: f64,
    /// Median of the time from arrival to the last result, of queries that were over, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of that time, milliseconds.
    pub p99_ms: f64,
    /// The stages, in topological order.
    pub stages: Vec<StageReport>,
}

/// The items of one stage, of queries that count.
#[derive(Clone, Debug, Serialize)]
pub struct StageReport {
    /// The stage's name.
    pub name: String,
    /// Items that were over before their query ended.
    pub over: u64,
    /// Queries that this stage ended: it dropped an item.
    pub ended_queries: u64,
    /// Median of the time from an item's arrival at the stage until it is over, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of that time, milliseconds.
    pub p99_ms: f64,
}

/// The longest time that is recorded; longer ones count as this.
const LONGEST: Nanos = Nanos::from_secs(3_600);

/// The reports under construction.
pub(super) struct QueryReportBuilder {
    from: Nanos,
    to: Nanos,
    graphs: Vec<GraphCounts>,
}

struct GraphCounts {
    offered: u64,
    good: u64,
    dropped: u64,
    late: u64,
    latency: Histogram<u64>,
    stages: Vec<StageCounts>,
}

struct StageCounts {
    ended_queries: u64,
    time: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.0, 3)
        .expect("three significant digits of up to an hour are supported")
}

fn ms(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e6
}

impl QueryReportBuilder {
    pub(super) fn new(workload: &Workload) -> QueryReportBuilder {
        let stage = || StageCounts { ended_queries: 0, time: histogram() };
        let counts = |stages: usize| GraphCounts {
            offered: 0,
            good: 0,
            dropped: 0,
            late: 0,
            latency: histogram(),
            stages: core::iter::repeat_with(stage).take(stages).collect(),
        };
        QueryReportBuilder {
            from: workload.warmup,
            to: workload.warmup + workload.duration,
            graphs: workload.queries.iter().map(|query| counts(query.graph.stages.len())).collect(),
        }
    }

    /// Returns the counts of a graph, if a query that arrived then counts.
    fn counts(&mut self, graph: usize, arrival: Nanos) -> Option<&mut GraphCounts> {
        (self.from..self.to).contains(&arrival).then(|| &mut self.graphs[graph])
    }

    pub(super) fn query_arrived(&mut self, graph: usize, arrival: Nanos) {
        if let Some(counts) = self.counts(graph, arrival) {
            counts.offered += 1;
        }
    }

    pub(super) fn item_over(&mut self, graph: usize, stage: usize, query_arrival: Nanos, time: Nanos) {
        if let Some(counts) = self.counts(graph, query_arrival) {
            counts.stages[stage].time.saturating_record(time.0);
        }
    }

    pub(super) fn item_dropped(&mut self, graph: usize, stage: usize, query_arrival: Nanos) {
        if let Some(counts) = self.counts(graph, query_arrival) {
            counts.stages[stage].ended_queries += 1;
        }
    }

    pub(super) fn query_ended(&mut self, graph: usize, arrival: Nanos, ending: QueryEnding, latency: Nanos) {
        let Some(counts) = self.counts(graph, arrival) else { return };
        match ending {
            QueryEnding::Good => counts.good += 1,
            QueryEnding::Late => counts.late += 1,
            QueryEnding::Dropped => counts.dropped += 1,
        }
        if ending != QueryEnding::Dropped {
            counts.latency.saturating_record(latency.0);
        }
    }

    pub(super) fn finish(self, workload: &Workload) -> Vec<QueryReport> {
        let seconds = (self.to - self.from).as_secs_f64();
        let both = workload.queries.iter().zip(self.graphs);
        both.map(|(query, counts)| QueryReport {
            name: query.graph.name.clone(),
            offered: counts.offered,
            good: counts.good,
            dropped: counts.dropped,
            late: counts.late,
            good_rps: counts.good as f64 / seconds,
            bad_rate: (counts.dropped + counts.late) as f64 / counts.offered.max(1) as f64,
            p50_ms: ms(&counts.latency, 0.5),
            p99_ms: ms(&counts.latency, 0.99),
            stages: (query.graph.stages.iter().zip(&counts.stages))
                .map(|(stage, counts)| StageReport {
                    name: stage.name.clone(),
                    over: counts.time.len(),
                    ended_queries: counts.ended_queries,
                    p50_ms: ms(&counts.time, 0.5),
                    p99_ms: ms(&counts.time, 0.99),
                })
                .collect(),
        })
        .collect()
    }
}
