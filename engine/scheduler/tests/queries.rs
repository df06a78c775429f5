//! Queries over random graphs and policies: each ends exactly once, no item of it runs after its
//! end, and no stage's deadline is past the query's. Beside these, single queries whose times are
//! known.

use proptest::prelude::*;
use std::collections::HashMap;
use symphony_scheduler::drop_rule::DropRule;
use symphony_scheduler::load_phases::{LoadPhase, LoadPhases};
use symphony_scheduler::policy::{POLICIES, Policy, PolicyOptions, by_name};
use symphony_scheduler::profile::Profile;
use symphony_scheduler::query::{DeadlineSplit, ItemDraw, QueryGraph, QueryStage, StageInput};
use symphony_scheduler::sim::report::Report;
use symphony_scheduler::sim::{Audit, Fault, Observer, QueryEnding, simulate, simulate_observed};
use symphony_scheduler::workload::{Arrival, Network, Workload, WorkloadModel, WorkloadQuery};
use symphony_transport::Nanos;
use symphony_transport::message::{BatchHeader, Ending, ModelId, Request};

/// What is known of a query that has arrived.
struct SeenQuery {
    deadline: Nanos,
    ended: Option<(QueryEnding, Nanos)>,
}

/// An audit of requests, and of the queries that they belong to.
struct QueryAudit {
    audit: Audit,
    queries: HashMap<u64, SeenQuery>,
    query_of: HashMap<u64, u64>,
    /// The starts of items whose batch has not started at the last event, and their finish.
    starts: HashMap<u64, (Nanos, Nanos)>,
}

impl QueryAudit {
    fn new(workload: &Workload) -> QueryAudit {
        QueryAudit {
            audit: Audit::new(workload),
            queries: HashMap::new(),
            query_of: HashMap::new(),
            starts: HashMap::new(),
        }
    }

    /// Checks what must hold at the simulation's end.
    fn check(&self) {
        assert_eq!(self.audit.check(), Ok(()));
        for (number, query) in &self.queries {
            assert!(query.ended.is_some(), "query {number} never ends");
        }
        for (id, (start, _)) in &self.starts {
            let (_, end) = self.queries[&self.query_of[id]].ended.unwrap();
            assert!(*start <= end, "request {id} starts after its query's end");
        }
    }
}

impl Observer for QueryAudit {
    fn arrived(&mut self, request: &Request) {
        self.audit.arrived(request);
    }

    fn ran(
        &mut self,
        now: Nanos,
        batch: &BatchHeader,
        requests: (&[Request], &[Request]),
        started: Option<Nanos>,
        finished: Nanos,
    ) {
        self.audit.ran(now, batch, requests, started, finished);
        for request in requests.0.iter().chain(requests.1) {
            let Some(number) = self.query_of.get(&request.id) else { continue };
            let query = &self.queries[number];
            assert!(query.ended.is_none(), "an item of query {number}, which has ended, is sent");
            if let Some(started) = started {
                self.starts.insert(request.id, (started, finished));
            }
        }
    }

    fn preempted(&mut self, batch: &BatchHeader, requests: &[Request], stopped: Nanos) {
        self.audit.preempted(batch, requests, stopped);
        for request in requests {
            self.starts.remove(&request.id);
        }
    }

    fn ended(&mut self, request: &Request, ending: Ending, now: Nanos) {
        self.audit.ended(request, ending, now);
    }

    fn query_arrived(&mut self, query: u64, _graph: usize, deadline: Nanos) {
        let seen = SeenQuery { deadline, ended: None };
        assert!(self.queries.insert(query, seen).is_none(), "query {query} arrives twice");
    }

    fn item_arrived(&mut self, query: u64, _stage: usize, request: &Request) {
        let seen = &self.queries[&query];
        assert!(seen.ended.is_none(), "an item arrives after its query's end");
        assert!(request.deadline <= seen.deadline, "a stage's deadline is past the query's");
        self.query_of.insert(request.id, query);
    }

    fn item_discarded(&mut self, request: u64, now: Nanos) {
        let (start, _) = self.starts.remove(&request).expect("only what was sent is discarded");
        assert!(start > now, "an item that has started is discarded");
    }

    fn query_ended(&mut self, query: u64, ending: QueryEnding, now: Nanos) {
        let starts = self.starts.iter().filter(|(id, _)| self.query_of[id] == query);
        let last = starts.map(|(_, &(_, finished))| finished).max();
        let seen = self.queries.get_mut(&query).unwrap();
        assert!(seen.ended.replace((ending, now)).is_none(), "query {query} ends twice");
        if ending != QueryEnding::Dropped {
            assert_eq!(last, Some(now), "a query is over when its last item is");
            assert_eq!(ending == QueryEnding::Good, now <= seen.deadline);
        }
    }
}

fn input(at: usize, choice: (usize, usize, f64, usize)) -> StageInput {
    let (kind, from, gamma, other) = choice;
    let (stage, other) = (from % at, other % at);
    let phase = |seconds, factor| LoadPhase { lasts: Nanos::from_secs(seconds), factor };
    let phases = LoadPhases::new(&[phase(1, 0.2), phase(1, 1.0)]).unwrap();
    match kind {
        0 => StageInput::each(stage, gamma.ceil()),
        1 => StageInput::Each { stage, gamma, draw: ItemDraw::Poisson, phases },
        2 => StageInput::Each { stage, gamma: gamma / 3.0, draw: ItemDraw::Bernoulli, phases },
        _ if stage == other => StageInput::All(vec![stage]),
        _ => StageInput::All(vec![stage, other]),
    }
}

const MODELS: usize = 3;

fn graphs() -> impl Strategy<Value = QueryGraph> {
    let stage = (0usize..MODELS, (0usize..4, 0usize..8, 0.1f64..3.0, 0usize..8));
    (prop::collection::vec(stage, 1..6), 10.0f64..200.0).prop_map(|(stages, slo_ms)| {
        let stage = |(at, (model, choice)): (usize, (usize, _))| QueryStage {
            name: format!("stage-{at}"),
            model: ModelId(model as u32),
            input: if at == 0 { StageInput::Root } else { input(at, choice) },
        };
        QueryGraph {
            name: "query".to_owned(),
            slo: Nanos::from_millis_f64(slo_ms),
            stages: stages.into_iter().enumerate().map(stage).collect(),
        }
    })
}

fn workloads() -> impl Strategy<Value = Workload> {
    let models = prop::collection::vec((0.0f64..3.0, 0.1f64..8.0, 1usize..40, 0.0f64..0.3), MODELS);
    let split = prop::sample::select(DeadlineSplit::ALL.map(|split| split.0).to_vec());
    let network = prop_oneof![Just((0, 0, 0)), (0u64..1_000, 0u64..200, 0u64..2_000)];
    let graphs = prop::collection::vec(graphs(), 1..3);
    (models, graphs, split, network, 1usize..6, any::<u64>(), 1.0f64..800.0).prop_map(
        |(models, graphs, split, (control, data, result), gpus, seed, rate_rps)| {
            let model = |(alpha, beta, max_batch, share): (f64, f64, usize, f64)| {
                let (alpha, beta) = (Nanos::from_millis_f64(alpha), Nanos::from_millis_f64(beta));
                let profile = Profile::linear(alpha, beta, max_batch).unwrap();
                let slo = Nanos(profile.latency(1).0 * 4);
                WorkloadModel { share, ..WorkloadModel::new("model", profile, slo) }
            };
            let count = graphs.len() as f64;
            let query = |graph| WorkloadQuery { graph, share: 1.0 / count, arrival: Arrival::Poisson };
            Workload {
                seed,
                warmup: Nanos::from_millis(100),
                duration: Nanos::from_millis(500),
                network: Network {
                    control: Nanos::from_micros(control),
                    data_per_request: Nanos::from_micros(data),
                    result: Nanos::from_micros(result),
                },
                models: models.into_iter().map(model).collect(),
                queries: graphs.into_iter().map(query).collect(),
                split,
                ..Workload::of_models(gpus, rate_rps, Vec::new())
            }
        },
    )
}

/// Runs a workload and checks its queries.
fn audited(workload: &Workload, policy: &dyn Policy, fault: Fault) -> Report {
    let mut audit = QueryAudit::new(workload);
    let report = simulate_observed(workload, policy, &PolicyOptions::default(), fault, &mut audit).unwrap();
    audit.check();
    report
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_query_ends_exactly_once_and_nothing_of_it_runs_after_its_end(
        workload in workloads(),
        policy in prop::sample::select(POLICIES.to_vec()),
        slowdown in prop_oneof![Just(0.0), Just(0.3)],
    ) {
        let report = audited(&workload, policy, Fault { slowdown });
        for query in &report.queries {
            prop_assert_eq!(query.offered, query.good + query.dropped + query.late);
        }
    }
}

/// l(b) = 1 ms * b + 4 ms.
fn model(name: &str) -> WorkloadModel {
    let profile = Profile::linear(Nanos::from_millis(1), Nanos::from_millis(4), 16).unwrap();
    WorkloadModel { share: 0.0, ..WorkloadModel::new(name, profile, Nanos::from_millis(100)) }
}

fn stage(name: &str, model: u32, input: StageInput) -> QueryStage {
    QueryStage { name: name.to_owned(), model: ModelId(model), input }
}

fn each(stage: usize, gamma: f64) -> StageInput {
    StageInput::each(stage, gamma)
}

/// Four GPUs, and a query every 100 ms.
fn workload(slo_ms: u64, stages: Vec<QueryStage>) -> Workload {
    let graph = QueryGraph { name: "query".to_owned(), slo: Nanos::from_millis(slo_ms), stages };
    Workload {
        queries: vec![WorkloadQuery { graph, share: 1.0, arrival: Arrival::Uniform }],
        warmup: Nanos::ZERO,
        duration: Nanos::from_secs(2),
        models: ["a", "b", "c"].map(model).into(),
        ..Workload::of_models(4, 10.0, Vec::new())
    }
}

fn run(workload: &Workload) -> Report {
    simulate(workload, by_name("work-conserving").unwrap(), &PolicyOptions::default()).unwrap()
}

#[test]
fn a_fan_and_its_join_take_the_sum_of_the_longest_path() {
    let stages = vec![
        stage("a", 0, StageInput::Root),
        stage("b", 1, each(0, 3.0)),
        stage("c", 2, each(0, 1.0)),
        stage("join", 0, StageInput::All(vec![1, 2])),
    ];
    let report = run(&workload(60, stages));
    let query = &report.queries[0];
    assert_eq!((query.offered, query.good), (20, 20));
    let over: Vec<u64> = query.stages.iter().map(|stage| stage.over).collect();
    assert_eq!(over, [20, 60, 20, 20]);
    // 5 ms for the root, at least 5 and at most 12 for the fan of three, and 5 for the join.
    assert!((15.0..22.1).contains(&query.p50_ms), "{} ms", query.p50_ms);
}

#[test]
fn a_condition_is_met_as_often_as_gamma_says() {
    let stages = vec![stage("a", 0, StageInput::Root), stage("b", 1, each(0, 0.25))];
    let mut workload = workload(60, stages);
    (workload.rate_rps, workload.duration) = (100.0, Nanos::from_secs(20));
    let query = &run(&workload).queries[0];
    assert_eq!(query.good, query.offered);
    let met = query.stages[1].over as f64 / query.stages[0].over as f64;
    // 2,000 draws: five standard deviations.
    assert!((met - 0.25).abs() < 0.05, "{met}");
}

#[test]
fn a_query_whose_last_stage_cannot_be_in_time_is_dropped_at_its_first() {
    let stages = vec![stage("a", 0, StageInput::Root), stage("b", 1, each(0, 1.0))];
    let query = &run(&workload(9, stages)).queries[0];
    assert_eq!((query.offered, query.good, query.stages[0].over), (20, 0, 0));
    assert_eq!(query.stages[0].ended_queries, 20);
}

/// The deadlines of the root's requests and the ending of each query.
#[derive(Default)]
struct RootTries {
    queries: HashMap<u64, (Vec<Nanos>, Option<QueryEnding>)>,
}

impl Observer for RootTries {
    fn item_arrived(&mut self, query: u64, stage: usize, request: &Request) {
        if stage == 0 {
            self.queries.entry(query).or_default().0.push(request.deadline);
        }
    }

    fn query_ended(&mut self, query: u64, ending: QueryEnding, _now: Nanos) {
        self.queries.entry(query).or_default().1 = Some(ending);
    }
}

#[test]
fn a_stage_that_is_dropped_for_its_goal_is_tried_once_more_until_its_deadline() {
    let stages = vec![stage("a", 0, StageInput::Root), stage("b", 1, each(0, 1.0))];
    let workload = Workload { rate_rps: 3_000.0, ..workload(60, stages) };
    let mut tries = RootTries::default();
    let policy = by_name("work-conserving").unwrap();
    let options = PolicyOptions::from(DropRule::Timeout);
    simulate_observed(&workload, policy, &options, Fault::default(), &mut tries).unwrap();
    let again: Vec<_> = tries.queries.values().filter(|query| query.0.len() > 1).collect();
    assert!(again.iter().all(|(deadlines, _)| deadlines.len() == 2 && deadlines[0] < deadlines[1]));
    assert!(again.iter().any(|(_, ending)| *ending == Some(QueryEnding::Good)), "{}", again.len());
}

#[test]
fn a_chain_of_sixteen_stages_with_a_condition_that_is_never_true_ends_at_it() {
    let stages = (0..16).map(|at| {
        let gamma = if at == 9 { 1e-12 } else { 1.0 };
        let input = if at == 0 { StageInput::Root } else { each(at - 1, gamma) };
        stage(&format!("stage-{at}"), at as u32 % 3, input)
    });
    let query = &run(&workload(200, stages.collect())).queries[0];
    assert_eq!((query.offered, query.good), (20, 20));
    let over: Vec<u64> = query.stages.iter().map(|stage| stage.over).collect();
    assert_eq!(over, [[20; 9].as_slice(), &[0; 7]].concat());
}
