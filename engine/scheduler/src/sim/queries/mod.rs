//! The queries of a simulation: each arrival of a stage's item becomes a plain request of the
//! stage's model, with the stage's deadline, so any policy serves queries without knowing of them.
//! The end of an item gives the items of the next stages; one that is dropped ends its query
//! everywhere. Owned by [`super::gpus::VirtualGpus`]; workloads without queries have none of it.

mod report;
mod split;

pub use report::{QueryReport, StageReport};

use super::arrivals::stream_seed;
use super::observer::{Observer, QueryEnding};
use super::traffic::Traffic;
use crate::query::{QueryGraph, StageInput};
use crate::workload::{Workload, WorkloadModel};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use report::QueryReportBuilder;
use split::{ArrivingItem, Splitter};
use symphony_transport::Nanos;
use symphony_transport::message::Request;

/// The queries that have arrived and not ended, and their items.
pub(super) struct RunningQueries {
    graphs: Vec<GraphInUse>,
    splitter: Box<dyn Splitter>,
    running: BTreeMap<u64, RunningQuery>,
    /// The items that arrived as requests and are not over, by the requests' ids. Those of queries
    /// that have ended stay until their scheduler gives them up.
    items: BTreeMap<u64, QueryItem>,
    /// The requests of queries in each batch on a GPU or on its way, by the batch's number.
    batches: BTreeMap<u64, Vec<u64>>,
    /// Items that arrive now, or are tried again.
    due: VecDeque<DueItem>,
    next_query: u64,
    seed: u64,
    result_delay: Nanos,
    report: QueryReportBuilder,
}

/// A graph, and which stages each stage feeds.
struct GraphInUse {
    graph: QueryGraph,
    outputs: Vec<Vec<usize>>,
}

/// A query that has not ended.
struct RunningQuery {
    graph: usize,
    arrival: Nanos,
    deadline: Nanos,
    /// Draws the numbers of items: the same ones for a query of this number under every policy, as
    /// long as its items end in the same order.
    random: Pcg64Mcg,
    stages: Vec<StageProgress>,
    /// The requests of its items that are not over.
    open: Vec<u64>,
}

/// What of a stage has been done in one query.
#[derive(Clone, Copy, Debug, Default)]
struct StageProgress {
    /// Items that have arrived or are about to.
    arrived: u32,
    over: u32,
    /// True once no further item can arrive and all are over.
    complete: bool,
}

/// An item that is to be a request.
enum DueItem {
    /// One that arrives: the query and the stage.
    Arriving(u64, usize),
    /// One that was dropped for its goal, before its deadline.
    Again(QueryItem),
}

/// An item that arrived as a request.
#[derive(Clone, Copy, Debug)]
struct QueryItem {
    query: u64,
    stage: usize,
    arrival: Nanos,
    /// The deadline of the stage; that of its first request is the stage's goal.
    deadline: Nanos,
    /// The start of its batch, once it is in one.
    started: Option<Nanos>,
}

impl RunningQueries {
    /// Returns the state of a workload's queries before the first arrives; `None` where there are
    /// none.
    pub(super) fn new(workload: &Workload) -> Option<RunningQueries> {
        let graphs: Vec<GraphInUse> = workload
            .queries
            .iter()
            .map(|query| GraphInUse { outputs: query.graph.outputs(), graph: query.graph.clone() })
            .collect();
        (!graphs.is_empty()).then(|| RunningQueries {
            graphs,
            splitter: split::of(workload),
            running: BTreeMap::new(),
            items: BTreeMap::new(),
            batches: BTreeMap::new(),
            due: VecDeque::new(),
            next_query: 0,
            seed: workload.seed,
            result_delay: workload.network.result,
            report: QueryReportBuilder::new(workload),
        })
    }

    /// Takes a query that arrives: its root's item is due.
    pub(super) fn arrive(&mut self, graph: usize, now: Nanos, observer: &mut dyn Observer) {
        let number = self.next_query;
        self.next_query += 1;
        let shape = &self.graphs[graph].graph;
        let deadline = now + shape.slo - self.result_delay;
        let mut stages = vec![StageProgress::default(); shape.stages.len()];
        stages[0].arrived = 1;
        let random = Pcg64Mcg::seed_from_u64(stream_seed(!self.seed, number));
        let query = RunningQuery { graph, arrival: now, deadline, random, stages, open: Vec::new() };
        self.running.insert(number, query);
        self.report.query_arrived(graph, now);
        observer.query_arrived(number, graph, deadline);
        self.due.push_back(DueItem::Arriving(number, 0));
    }

    /// Makes the request of the next item that is due, if there is one.
    pub(super) fn next_due(
        &mut self,
        now: Nanos,
        workload: &Workload,
        traffic: &mut Traffic,
        observer: &mut dyn Observer,
    ) -> Option<Request> {
        loop {
            let due = self.due.pop_front()?;
            let number = match due {
                DueItem::Arriving(query, _) | DueItem::Again(QueryItem { query, .. }) => query,
            };
            // The query may have ended since, by another item.
            let Some(query) = self.running.get_mut(&number) else { continue };
            let is_again = matches!(due, DueItem::Again(_));
            let (item, deadline) = match due {
                DueItem::Arriving(_, stage) => {
                    let RunningQuery { graph, deadline: query_deadline, .. } = *query;
                    let arriving = ArrivingItem { graph, stage, now, query_deadline };
                    let deadline = self.splitter.deadline(arriving).min(query_deadline);
                    let goal = self.splitter.goal(arriving, deadline);
                    (QueryItem { query: number, stage, arrival: now, deadline, started: None }, goal)
                }
                DueItem::Again(item) => (item, item.deadline),
            };
            let model = self.graphs[query.graph].graph.stages[item.stage].model;
            let request = Request {
                is_again: u8::from(is_again),
                again_us: Request::again_us(item.deadline - deadline),
                ..traffic.request(workload, model, now, deadline)
            };
            query.open.push(request.id);
            self.items.insert(request.id, item);
            observer.item_arrived(number, item.stage, &request);
            return Some(request);
        }
    }

    /// Returns true if the request is a query's.
    pub(super) fn has(&self, request: &Request) -> bool {
        self.items.contains_key(&request.id)
    }

    /// Takes a request of a query that has ended out, if it is one.
    pub(super) fn take_ended(&mut self, request: &Request) -> bool {
        let ended = self.items.get(&request.id).is_some_and(|item| !self.running.contains_key(&item.query));
        if ended {
            self.items.remove(&request.id);
        }
        ended
    }

    /// Takes a batch that was sent and starts at `started`.
    pub(super) fn sent(&mut self, batch: u64, requests: &[Request], started: Nanos) {
        let mut ids = Vec::new();
        for request in requests {
            if let Some(item) = self.items.get_mut(&request.id) {
                item.started = Some(started);
                ids.push(request.id);
            }
        }
        if !ids.is_empty() {
            self.batches.insert(batch, ids);
        }
    }

    /// Takes a batch back: its requests wait again.
    pub(super) fn preempted(&mut self, batch: u64) {
        for id in self.batches.remove(&batch).into_iter().flatten() {
            if let Some(item) = self.items.get_mut(&id) {
                item.started = None;
            }
        }
    }

    /// Takes the completion of a batch. The items that its items give are due.
    pub(super) fn completed(&mut self, batch: u64, now: Nanos, observer: &mut dyn Observer) {
        for id in self.batches.remove(&batch).into_iter().flatten() {
            let Some(item) = self.items.remove(&id) else { continue };
            let Some(query) = self.running.get_mut(&item.query) else { continue };
            query.open.retain(|&open| open != id);
            let time = now - item.arrival;
            self.splitter.took(query.graph, item.stage, time);
            self.report.item_over(query.graph, item.stage, query.arrival, time);
            let graph = &self.graphs[query.graph];
            let arriving = query.over(graph, item.stage, now).into_iter();
            self.due.extend(arriving.map(|stage| DueItem::Arriving(item.query, stage)));
            if query.is_over() {
                let ending = if now <= query.deadline { QueryEnding::Good } else { QueryEnding::Late };
                self.end(item.query, ending, now, observer);
            }
        }
    }

    /// Takes the drop of a request. It ends its query, unless it was for the item's goal: the item
    /// is then tried again. Returns false if it is no query's.
    pub(super) fn dropped(&mut self, request: &Request, now: Nanos, observer: &mut dyn Observer) -> bool {
        let Some(item) = self.items.remove(&request.id) else { return false };
        let Some(query) = self.running.get_mut(&item.query) else { return true };
        if request.again().is_some() {
            query.open.retain(|&open| open != request.id);
            self.due.push_back(DueItem::Again(QueryItem { started: None, ..item }));
        } else {
            self.report.item_dropped(query.graph, item.stage, query.arrival);
            self.end(item.query, QueryEnding::Dropped, now, observer);
        }
        true
    }

    fn end(&mut self, number: u64, ending: QueryEnding, now: Nanos, observer: &mut dyn Observer) {
        let Some(query) = self.running.remove(&number) else { return };
        for id in query.open {
            let started = self.items.get(&id).and_then(|item| item.started);
            if started.is_some_and(|started| started > now) {
                observer.item_discarded(id, now);
            }
        }
        let latency = now + self.result_delay - query.arrival;
        self.report.query_ended(query.graph, query.arrival, ending, latency);
        observer.query_ended(number, ending, now);
    }

    /// Returns the workload as a scheduler of plain requests expects it: each model with its part
    /// of the queries' items, and with the shortest time that one of its requests is planned to
    /// have.
    pub(super) fn scheduled(&self, workload: &Workload) -> Workload {
        let shares = workload.request_shares();
        let whole: f64 = shares.iter().sum();
        let slo = |at: usize, model: &WorkloadModel| {
            let own = (model.share > 0.0).then_some(model.slo);
            let stages = self.graphs.iter().enumerate().flat_map(|(number, GraphInUse { graph, .. })| {
                let budgets = self.splitter.budgets(number).iter();
                graph.stages.iter().zip(budgets).filter(move |(stage, _)| stage.model.0 as usize == at)
            });
            stages.map(|(_, &budget)| budget).chain(own).min().unwrap_or(model.slo)
        };
        let models = workload.models.iter().zip(shares).enumerate().map(|(at, (model, share))| {
            WorkloadModel { slo: slo(at, model), share: share / whole, ..model.clone() }
        });
        Workload { models: models.collect(), rate_rps: workload.rate_rps * whole, ..workload.clone() }
    }

    /// Returns what has become of the queries of each graph.
    pub(super) fn finish(self, workload: &Workload) -> Vec<QueryReport> {
        self.report.finish(workload)
    }
}

impl RunningQuery {
    /// Counts an item of `stage` that is over. Returns the stages of the items that arrive by it.
    fn over(&mut self, graph: &GraphInUse, stage: usize, now: Nanos) -> Vec<usize> {
        self.stages[stage].over += 1;
        let mut arriving = Vec::new();
        for &next in &graph.outputs[stage] {
            if let StageInput::Each { gamma, draw, phases, .. } = &graph.graph.stages[next].input {
                let items = draw.draw(gamma * phases.factor(now), &mut self.random);
                self.stages[next].arrived += items;
                arriving.extend(core::iter::repeat_n(next, items as usize));
            }
        }
        self.complete(graph, &mut arriving);
        arriving
    }

    /// Marks the stages that are complete now, and adds the joins that they release. Stages are in
    /// topological order, so one pass finds all.
    fn complete(&mut self, graph: &GraphInUse, arriving: &mut Vec<usize>) {
        for (at, stage) in graph.graph.stages.iter().enumerate() {
            let inputs = stage.inputs();
            if self.stages[at].complete || !inputs.iter().all(|&input| self.stages[input].complete) {
                continue;
            }
            if stage.is_join()
                && self.stages[at].arrived == 0
                && inputs.iter().any(|&input| self.stages[input].arrived > 0)
            {
                self.stages[at].arrived = 1;
                arriving.push(at);
            }
            self.stages[at].complete = self.stages[at].over == self.stages[at].arrived;
        }
    }

    fn is_over(&self) -> bool {
        self.stages.iter().all(|stage| stage.complete)
    }
}
