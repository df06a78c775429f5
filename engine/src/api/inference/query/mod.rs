//! Runs a query: each stage is a request of its own to the engine, sent as soon as the stages that
//! it waits for are over, with a deadline that follows from the query's. All rows of the query go
//! through the stages together; a stage that fans out has a row for each item of them. A tensor
//! passes from a stage's answer into the next one's slots; it does not leave the process, nor the
//! API core.
//!
//! Invariant: where one stage has no result the query ends at once. The stages under way are then
//! withdrawn, as all are when the client leaves, and no other begins.

mod items;

use super::answer::InferAnswer;
use super::deadline::RequestDeadline;
use super::ending::problem_of;
use super::inputs::{Inputs, Rows, pad};
use super::outputs::StageParameters;
use super::request::Inference;
use crate::api::net::memory::MemoryLease;
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use crate::api::services::CoreServices;
use crate::api::services::accounting::InferRecord;
use crate::api::services::engine_client::EngineReply;
use crate::api::services::queries::FoundQuery;
use crate::config::{StageTensor, StageTensors, TensorSource};
use crate::runtime::frontend::{Ask, Due, ModelInfo, Outcome, Refusal, Timeline};
use crate::telemetry::{InferOutcome, Metrics};
use futures_util::stream::{FuturesUnordered, StreamExt};
use items::Items;
use std::ops::Range;
use std::rc::Rc;
use symphony_scheduler::query::{CourseStep, QueryCourse};
use symphony_transport::Nanos;
use symphony_transport::message::{Ending, GpuId, ModelId};

/// Rows of tensors: what a client gave, or what a stage has made.
type Tensors = Rc<Vec<u8>>;

/// Runs a checked request for `query` and adds the result to `record`. `memory` counts the
/// request's bytes, and then those of all tensors of the query.
///
/// Errors: the reason that a stage has no result in time.
pub(super) async fn run<'m: 'r, 'r>(
    services: &CoreServices,
    query: &'m FoundQuery,
    inference: Inference<'m>,
    mut memory: MemoryLease,
    record: &mut InferRecord<'r>,
) -> Result<InferAnswer<'m>, Problem> {
    let ask = inference.ask();
    let Inference { id, inputs, chosen, deadline } = inference;
    let (rows, target) = (inputs.rows, inputs.target.clone());
    let info = target.model;
    let began = services.engine.now();
    let due = match ask.due {
        Due::Never => Nanos::MAX,
        Due::Slo => began + info.slo,
        Due::Within(time) | Due::Carried { within: time, .. } => began + time.min(info.slo),
    };
    if due < Nanos::MAX {
        services.queries.came(query, began);
    }
    let given = given(&inputs, &mut memory).await?;
    drop(inputs);
    memory.shrink(memory.held().saturating_sub(given.len()));
    let run = QueryRun { services, query, info, rows, deadline, began, due, given };
    let _in_flight = InFlightQuery::new(&services.metrics, info.id);
    let stages = run.stages(&mut memory, record).await?;
    let reply = run.reply(&stages, &mut memory).await;
    services.metrics.query_ran(info.id, rows.count, &reply.timeline, info.slo);
    record.answered(&ask, &reply);
    let times = run.times(&stages);
    Ok(InferAnswer::new(id, target, chosen, rows, reply, memory).with_stages(times))
}

/// Returns the rows of the client's inputs, in the layout of the query's signature.
///
/// Errors: 429 if there is no memory for them.
async fn given(inputs: &Inputs<'_>, memory: &mut MemoryLease) -> Result<Tensors, Problem> {
    let row_bytes = inputs.target.model.signature.input_bytes();
    let bytes = inputs.rows.count * row_bytes;
    memory.grow(bytes)?;
    let slices = Slices::on_core();
    let mut given = vec![0; bytes];
    for (row, to) in given.chunks_mut(row_bytes.max(1)).enumerate() {
        inputs.fill(row, to, &slices).await;
    }
    Ok(Rc::new(given))
}

/// A query that counts as in flight until this is dropped.
struct InFlightQuery<'a> {
    metrics: &'a Metrics,
    query: ModelId,
}

impl<'a> InFlightQuery<'a> {
    fn new(metrics: &'a Metrics, query: ModelId) -> InFlightQuery<'a> {
        metrics.accepted(query);
        InFlightQuery { metrics, query }
    }
}

impl Drop for InFlightQuery<'_> {
    fn drop(&mut self) {
        self.metrics.query_ended(self.query);
    }
}

/// A query under way.
struct QueryRun<'m, 's> {
    services: &'s CoreServices,
    query: &'m FoundQuery,
    /// The description of it as a model.
    info: &'m ModelInfo,
    rows: Rows,
    deadline: RequestDeadline,
    began: Nanos,
    /// The time by which it must be over; [`Nanos::MAX`] if never.
    due: Nanos,
    given: Tensors,
}

/// A stage that is over.
struct StageResult {
    stage: usize,
    /// The number of rows that its model had.
    rows: usize,
    /// The reply of the engine; `None` if the stage had nothing to run for.
    reply: Option<EngineReply>,
    output: Tensors,
    /// Count its bytes.
    _memory: [MemoryLease; 2],
}

/// The bytes of a tensor of a query.
enum TensorBytes {
    /// A part of each row.
    Rows { rows: Tensors, stride: usize, part: Range<usize> },
    /// An element that is repeated.
    Repeated(Vec<u8>),
}

impl TensorBytes {
    /// Returns those of a row, if they are not an element that is repeated.
    fn row(&self, row: usize) -> Option<&[u8]> {
        match self {
            TensorBytes::Rows { rows, stride, part } => Some(&rows[row * stride..][part.clone()]),
            TensorBytes::Repeated(_) => None,
        }
    }

    /// Copies to `to` those of a row, or of one of its items, in slices.
    async fn copy(&self, row: usize, item: Option<usize>, to: &mut [u8], slices: &Slices) {
        match self {
            TensorBytes::Rows { .. } => {
                let start = item.map_or(0, |item| item * to.len());
                let from = self.row(row).expect("there are rows");
                slices.copy(&from[start..][..to.len()], to).await;
            }
            TensorBytes::Repeated(element) => pad(to, element, slices).await,
        }
    }
}

/// An input of a stage that has begun.
struct InputBytes {
    bytes: TensorBytes,
    /// True if a row of them holds a value for each item.
    by_item: bool,
}

/// A stage that has begun: its request, and the bytes that go into it.
struct StageRequest<'m> {
    stage: usize,
    model: &'m ModelInfo,
    /// What is asked for at first: a result by the stage's goal.
    ask: Ask,
    /// The stage's deadline; [`Nanos::MAX`] if it has none.
    deadline: Nanos,
    items: Items,
    inputs: Vec<InputBytes>,
    /// Counts the bytes that its rows become where they are put together of items.
    gathered: MemoryLease,
    memory: MemoryLease,
}

impl<'m> StageRequest<'m> {
    /// Sends the stage's request and waits for its answer. If it is dropped for its goal it is sent
    /// again, with what is left until its deadline.
    ///
    /// Errors: the stage has no result.
    async fn run(mut self, services: &CoreServices) -> Result<StageResult, (usize, Problem)> {
        let (stage, signature) = (self.stage, &self.model.signature);
        let failed = |refusal| (stage, Problem::from(refusal));
        let mut reply = None;
        if self.ask.rows > 0 {
            let mut first = self.reply(services).await.map_err(failed)?;
            let now = services.engine.now();
            if self.is_before_deadline(&first, now) {
                let within = self.deadline - now;
                self.ask.due = Due::Carried { within, more: Nanos::ZERO, is_again: true };
                let began = first.timeline.arrival;
                first = self.reply(services).await.map_err(failed)?;
                first.timeline.arrival = began;
            }
            reply = Some(first);
        }
        let StageRequest { ask, items, gathered, memory, .. } = self;
        let made = reply.as_mut().map_or_else(Vec::new, |reply| std::mem::take(&mut reply.output));
        let output = Rc::new(items.gathered(signature, made, &Slices::on_core()).await);
        Ok(StageResult { stage, rows: ask.rows, reply, output, _memory: [gathered, memory] })
    }

    /// Sends a request for the stage and waits for its answer.
    ///
    /// Errors: it was refused.
    async fn reply(&mut self, services: &CoreServices) -> Result<EngineReply, Refusal> {
        let (signature, slices) = (&self.model.signature, Slices::on_core());
        let mut slots = services.engine.reserve(&self.ask)?;
        for (at, (row, item)) in self.items.places().enumerate() {
            let mut slot = slots.row(at);
            for (index, InputBytes { bytes, by_item }) in self.inputs.iter().enumerate() {
                let to = &mut slot[signature.input_range(index)];
                bytes.copy(row, by_item.then_some(item), to, &slices).await;
            }
        }
        let pending = slots.send(self.memory.split(0))?;
        let (reply, memory) = pending.answer().await?;
        self.memory = memory;
        Ok(reply)
    }

    /// Returns true if the request was dropped for the stage's goal, and its deadline is to come.
    fn is_before_deadline(&self, reply: &EngineReply, now: Nanos) -> bool {
        let dropped = [Ending::DroppedInQueue, Ending::DroppedAtBackend].map(Outcome::Bad);
        let due = reply.timeline.due;
        dropped.contains(&reply.outcome) && due < self.deadline && now < self.deadline
    }
}

impl<'m> QueryRun<'m, '_> {
    /// Runs all stages and returns their results, in the order in which they came.
    ///
    /// Errors: one of them has no result in time.
    async fn stages(
        &self,
        memory: &mut MemoryLease,
        record: &mut InferRecord<'_>,
    ) -> Result<Vec<StageResult>, Problem> {
        let (query, services) = (self.query, self.services);
        let outputs = query.outputs_of_stages();
        let mut course = QueryCourse::new(query.inputs_of_stages());
        let mut results: Vec<StageResult> = Vec::with_capacity(query.stages());
        // Dropping it withdraws the stages that are under way.
        let mut running = FuturesUnordered::new();
        let failed = |(stage, problem): (usize, Problem)| {
            let name = &query.config().stages[stage].name;
            Problem { message: format!("stage {name:?}: {}", problem.message), ..problem }
        };
        loop {
            while let Some(stage) = course.begin_next() {
                let request =
                    self.begin(stage, &results, memory).map_err(|problem| failed((stage, problem)))?;
                running.push(request.run(services));
            }
            let ended = running.next().await.expect("a query that has not ended has a stage under way");
            let result = ended.and_then(|result| self.checked(result, record)).map_err(failed)?;
            let stage = result.stage;
            results.push(result);
            if course.over(stage, &outputs[stage]) == CourseStep::Done {
                return Ok(results);
            }
        }
    }

    /// Makes the request of a stage whose inputs are among `results`.
    ///
    /// Errors: 429 if there is no memory for what its items become.
    fn begin(
        &self,
        stage: usize,
        results: &[StageResult],
        memory: &mut MemoryLease,
    ) -> Result<StageRequest<'m>, Problem> {
        let (model, tensors) = (self.query.model(stage), self.tensors(stage));
        let (due, deadline) = match self.due {
            Nanos::MAX => (Due::Never, Nanos::MAX),
            due => {
                let (queries, now) = (&self.services.queries, self.services.engine.now());
                let deadline = queries.deadline(self.query, stage, due);
                let goal = queries.goal(self.query, stage, now, deadline);
                let (within, more) = (goal - now, deadline - goal);
                (Due::Carried { within, more, is_again: false }, deadline)
            }
        };
        let items = self.items(stage, results);
        let mut gathered = memory.split(0);
        gathered.grow(items.gathered_bytes(&model.signature))?;
        let ask = Ask { model: model.id, rows: items.total(), due, class: self.deadline.class(model) };
        let input = |input: &StageTensor| InputBytes {
            bytes: self.bytes(&input.source, results),
            by_item: input.by_item,
        };
        let inputs = tensors.inputs.iter().map(input).collect();
        Ok(StageRequest { stage, model, ask, deadline, items, inputs, gathered, memory: memory.split(0) })
    }

    fn tensors(&self, stage: usize) -> &'m StageTensors {
        &self.query.models.tensors.stages[stage]
    }

    /// Returns the items that a stage runs for.
    fn items(&self, stage: usize, results: &[StageResult]) -> Items {
        let (rows, tensors) = (self.rows.count, self.tensors(stage));
        let Some((source, datatype)) = &tensors.count else { return Items::all(rows, tensors.room()) };
        let counts = self.bytes(source, results);
        let of_row = |row| counts.row(row).and_then(|element| datatype.whole_number(element));
        Items::counted(tensors.room(), (0..rows).map(|row| of_row(row).unwrap_or_default()))
    }

    /// Returns the bytes of a tensor.
    fn bytes(&self, source: &TensorSource, results: &[StageResult]) -> TensorBytes {
        match source {
            TensorSource::Client(at) => {
                let signature = &self.info.signature;
                TensorBytes::Rows {
                    rows: Rc::clone(&self.given),
                    stride: signature.input_bytes(),
                    part: signature.input_range(*at),
                }
            }
            TensorSource::Stage { stage, output } => {
                let signature = &self.query.model(*stage).signature;
                let made = results.iter().find(|result| result.stage == *stage);
                let made = made.expect("a stage begins once those that it waits for are over");
                let room = self.tensors(*stage).room();
                TensorBytes::Rows {
                    rows: Rc::clone(&made.output),
                    stride: room * signature.output_bytes(),
                    part: items::range_of_row(signature, *output, room),
                }
            }
            TensorSource::Default(element) => TensorBytes::Repeated(element.clone()),
        }
    }

    /// Counts a stage's answer, and checks that the query can go on with it. A stage may be later
    /// than its own deadline where its query still has time.
    ///
    /// Errors: it has no result in time.
    fn checked(
        &self,
        result: StageResult,
        record: &mut InferRecord<'_>,
    ) -> Result<StageResult, (usize, Problem)> {
        let StageResult { stage, rows, reply: Some(reply), .. } = &result else { return Ok(result) };
        let model = self.query.model(*stage);
        let in_time = match reply.outcome {
            Outcome::Good => true,
            Outcome::Late(_) => reply.timeline.answered <= self.due,
            _ => false,
        };
        if reply.timeline.has_run() {
            self.services.queries.took(self.query, *stage, reply.timeline.total());
        }
        let problem = problem_of(model, reply).filter(|_| !in_time);
        let outcome = problem.as_ref().map_or(InferOutcome::Good, |problem| problem.outcome);
        let name = &self.query.config().stages[*stage].name;
        record.stage_over((name, model), (*rows, self.deadline.class(model)), reply, outcome);
        match problem {
            Some(problem) => Err((*stage, problem)),
            None => Ok(result),
        }
    }

    /// Puts the query's outputs together, in slices. `memory` counts them from here on.
    async fn reply(&self, stages: &[StageResult], memory: &mut MemoryLease) -> EngineReply {
        let (signature, slices) = (&self.info.signature, Slices::on_core());
        let bytes = self.rows.count * signature.output_bytes();
        memory.charge(bytes);
        let sources: Vec<TensorBytes> =
            self.query.models.tensors.outputs.iter().map(|source| self.bytes(source, stages)).collect();
        let mut output = vec![0; bytes];
        for (row, to) in output.chunks_mut(signature.output_bytes().max(1)).enumerate() {
            for (at, source) in sources.iter().enumerate() {
                source.copy(row, None, &mut to[signature.output_range(at)], &slices).await;
            }
        }
        memory.shrink(self.given.len());
        let now = self.services.engine.now();
        let replies = || stages.iter().filter_map(|stage| stage.reply.as_ref());
        let timelines = || replies().map(|reply| reply.timeline);
        let timeline = Timeline {
            arrival: self.began,
            due: self.due,
            batched: timelines().map(|of| of.batched).min().unwrap_or(now),
            started: timelines().map(|of| of.started).min().unwrap_or(now),
            finished: timelines().map(|of| of.finished).max().unwrap_or(now),
            answered: timelines().map(|of| of.answered).max().unwrap_or(now),
        };
        let gpu = replies().next_back().map_or(GpuId(0), |reply| reply.gpu);
        EngineReply { outcome: Outcome::Good, output, timeline, batch_size: self.rows.count as u32, gpu }
    }

    /// Returns the times of the stages that have run, in the configuration's order.
    fn times(&self, results: &[StageResult]) -> Vec<StageParameters> {
        let mut results: Vec<&StageResult> = results.iter().collect();
        results.sort_unstable_by_key(|result| result.stage);
        let of = |result: &StageResult| {
            let name = &self.query.config().stages[result.stage].name;
            Some(StageParameters::of(name, self.began, result.reply.as_ref()?))
        };
        results.into_iter().filter_map(of).collect()
    }
}
