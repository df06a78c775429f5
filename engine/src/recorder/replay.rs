//! Feeds a recording through the state machines and compares every decision with the recorded one.
//! Called by `symphony replay` and by tests.

use super::description::{Description, ModelsDescription, RankDescription};
use super::explain::{Cause, Explanation};
use super::journal::Recording;
use super::record::{COUNT_RECORDS, Kind, Record, SCALAR_RECORDS};
use super::{RecordError, model_recorder, rank_recorder};
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use symphony_scheduler::deferral::QueueConfig;
use symphony_scheduler::limits;
use symphony_scheduler::model::{Dispatch, ModelEvent, ModelQueue, ModelSink};
use symphony_scheduler::profile::ScaledProfile;
use symphony_scheduler::rank::{RankInput, RankState};
use symphony_transport::Nanos;
use symphony_transport::message::{Class, Completion, Ending, GpuId, QueueId, Request};

pub use super::explain::{RequestBatch, Wanted, completed};

/// The instant, after a century, from which times count as damaged.
const LAST_INSTANT: Nanos = Nanos(1 << 61);

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// The path of the recording.
    pub path: PathBuf,
    /// The number of requests that came, for a ModelThread; 0 for a RankThread.
    pub requests: u64,
    /// The number of inputs of every kind, requests among them.
    pub inputs: u64,
    /// The number of decisions compared.
    pub decisions: u64,
    /// The number of states in the recording that replay had reached too.
    pub states: u64,
    /// The time at which the remaining history begins.
    pub from: Nanos,
    /// The time at which the history ends.
    pub to: Nanos,
    /// The number of segments of history that were overwritten.
    pub forgotten: u64,
    /// The first decision that replay did not reach; nothing after it was replayed.
    pub difference: Option<Difference>,
    /// The explanation of the request asked for, in lines.
    pub explanation: Vec<String>,
    /// The batches that the request was in.
    pub batches: Vec<RequestBatch>,
    /// The end of each batch, for a RankThread, if a request was asked for; GPUs are numbered as
    /// the engine does.
    pub completions: Vec<Completion>,
}

/// A decision that replay does not reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The position among the file's records.
    pub record: usize,
    /// The time of the event.
    pub now: Nanos,
    /// The record in the file.
    pub recorded: String,
    /// The decision of replay.
    pub replayed: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { record, now, recorded, replayed } = self;
        let now = super::record::Millis(now.0);
        write!(f, "record {record}, at {now}: recorded: {recorded}; replayed: {replayed}")
    }
}

/// Replays the recording at `path`. `wanted` is a request to explain.
///
/// Errors: the file can't be read or is no sound recording. A decision that differs is no error:
/// see [`Replayed::difference`].
pub fn replay(path: &Path, wanted: Option<Wanted>) -> Result<Replayed, RecordError> {
    let recording = Recording::read(path)?;
    let description: Description = serde_json::from_slice(&recording.description)
        .map_err(|error| corrupt(&recording, format!("its description is damaged: {error}")))?;
    let mut run = Run::new(&recording, wanted);
    match description {
        Description::Models(description) => replay_models(&recording, &description, &mut run)?,
        Description::Rank(description) => replay_rank(&recording, &description, &mut run)?,
    }
    run.done.explanation = run.explanation.lines;
    run.done.batches = run.explanation.batches;
    Ok(run.done)
}

fn corrupt(recording: &Recording, what: impl Into<String>) -> RecordError {
    RecordError::Corrupt(recording.path.clone(), what.into())
}

/// The reason why a replay goes no further.
enum Halt {
    Differs(Difference),
    Corrupt(String),
}

impl From<&str> for Halt {
    fn from(what: &str) -> Halt {
        Halt::Corrupt(what.to_owned())
    }
}

/// The state that both kinds of replay have.
struct Run {
    done: Replayed,
    explanation: Explanation,
    now: Nanos,
    /// The decisions and states that replay has reached and the file has yet to confirm.
    expected: VecDeque<Record>,
}

impl Run {
    fn new(recording: &Recording, wanted: Option<Wanted>) -> Run {
        let done = Replayed {
            path: recording.path.clone(),
            requests: 0,
            inputs: 0,
            decisions: 0,
            states: 0,
            from: Nanos::ZERO,
            to: Nanos::ZERO,
            forgotten: recording.forgotten,
            difference: None,
            explanation: Vec::new(),
            batches: Vec::new(),
            completions: Vec::new(),
        };
        let explanation = Explanation { wanted, ..Explanation::default() };
        Run { done, explanation, now: Nanos::ZERO, expected: VecDeque::new() }
    }

    /// Sets the time of what follows.
    fn set_now(&mut self, now: u64) -> Result<(), Halt> {
        self.now = Nanos(now);
        if self.now > LAST_INSTANT {
            return Err("a time that can't be".into());
        }
        if self.done.inputs == 0 {
            self.done.from = self.now;
        }
        self.done.to = self.now;
        Ok(())
    }

    /// Begins an input: all that replay expected must have been confirmed.
    fn begin_input(&mut self, at: usize) -> Result<(), Halt> {
        self.nothing_expected(at)?;
        self.done.inputs += 1;
        Ok(())
    }

    fn nothing_expected(&self, at: usize) -> Result<(), Halt> {
        match self.expected.front() {
            None => Ok(()),
            Some(missing) => Err(self.difference(at, "nothing more".to_owned(), missing.to_string())),
        }
    }

    /// Compares a decision, or a piece of a state, in the file with the expected one.
    fn confirm(&mut self, at: usize, record: &Record) -> Result<(), Halt> {
        match self.expected.pop_front() {
            Some(expected) if expected == *record => Ok(()),
            Some(expected) => Err(self.difference(at, record.to_string(), in_full(record, &expected))),
            None => Err(self.difference(at, record.to_string(), "nothing more".to_owned())),
        }
    }

    fn difference(&self, record: usize, recorded: String, replayed: String) -> Halt {
        Halt::Differs(Difference { record, now: self.now, recorded, replayed })
    }

    /// Ends the replay where it was halted.
    fn halt(&mut self, recording: &Recording, result: Result<(), Halt>) -> Result<(), RecordError> {
        match result {
            Ok(()) => Ok(()),
            Err(Halt::Differs(difference)) => {
                self.done.difference = Some(difference);
                Ok(())
            }
            Err(Halt::Corrupt(what)) => Err(corrupt(recording, what)),
        }
    }
}

/// Formats the expected record, with every field where the short form does not show the difference.
fn in_full(found: &Record, expected: &Record) -> String {
    let (short, other) = (expected.to_string(), found.to_string());
    if short == other { format!("{short} ({expected:?}, recorded {found:?})") } else { short }
}

type Records<'a> = dyn Iterator<Item = (usize, Record)> + 'a;

fn replay_models(
    recording: &Recording,
    description: &ModelsDescription,
    run: &mut Run,
) -> Result<(), RecordError> {
    let queue_configs = description.queue_configs().map_err(|what| corrupt(recording, what))?;
    let mut models = Models {
        index_of: queue_configs
            .iter()
            .enumerate()
            .map(|(index, queue_config)| (queue_config.queue, index))
            .collect(),
        queues: queue_configs.iter().map(|_| None).collect(),
        ready: vec![None; queue_configs.len()],
        names: description.models.iter().map(|model| model.name.clone()).collect(),
        lower: description.models.iter().map(|model| model.class > 0).collect(),
        queue_configs,
        next_batch: None,
    };
    let mut records = recording.records();
    let result = models.run(&mut records, run);
    run.halt(recording, result)
}

/// The replay of a ModelThread.
struct Models {
    queue_configs: Vec<QueueConfig>,
    names: Vec<String>,
    /// True for each queue that is of a lower class.
    lower: Vec<bool>,
    index_of: HashMap<QueueId, usize>,
    /// The queues whose state is known.
    queues: Vec<Option<ModelQueue>>,
    /// The time at which each queue's batch last became schedulable, and its cause.
    ready: Vec<Option<(Nanos, Cause)>>,
    /// The number of the thread's next batch, once one was seen.
    next_batch: Option<u64>,
}

impl Models {
    fn run(&mut self, records: &mut Records<'_>, run: &mut Run) -> Result<(), Halt> {
        let mut last = 0;
        while let Some((at, record)) = records.next() {
            last = at;
            match record.kind() {
                Some(Kind::Segment) => run.set_now(record.b)?,
                Some(Kind::Cycle) => run.set_now(record.a)?,
                Some(Kind::SavedModel) => self.state(at, &record, records, run)?,
                Some(Kind::Request) => self.request(at, &record, run)?,
                Some(Kind::Came) => self.came(at, &record, records, run)?,
                Some(
                    Kind::Grant
                    | Kind::Timer
                    | Kind::Stop
                    | Kind::Cancel
                    | Kind::Set
                    | Kind::Rescale
                    | Kind::Delays
                    | Kind::StartReserving,
                ) => self.input(at, &record, run)?,
                Some(
                    Kind::Ready
                    | Kind::Early
                    | Kind::Reserve
                    | Kind::Bounds
                    | Kind::Withdraw
                    | Kind::Report
                    | Kind::Dispatch
                    | Kind::DispatchTimes
                    | Kind::Ended,
                ) => self.decision(at, &record, run)?,
                _ => return Err(Halt::Corrupt(format!("record {at} has no place here: {record}"))),
            }
        }
        run.nothing_expected(last)
    }

    fn queue_index(&self, record: &Record) -> Result<usize, Halt> {
        self.index_of.get(&record.queue()).copied().ok_or_else(|| "a model that it does not list".into())
    }

    fn decision(&mut self, at: usize, record: &Record, run: &mut Run) -> Result<(), Halt> {
        if record.kind() == Some(Kind::Dispatch) {
            if self.next_batch.is_none()
                && let Some(expected) = run.expected.front_mut()
                && expected.kind() == Some(Kind::Dispatch)
            {
                expected.a = record.a;
            }
            self.next_batch = Some(record.a.wrapping_add(1));
        }
        run.done.decisions += 1;
        run.confirm(at, record)
    }

    fn request(&mut self, at: usize, record: &Record, run: &mut Run) -> Result<(), Halt> {
        run.begin_input(at)?;
        let index = self.queue_index(record)?;
        run.done.requests += 1;
        let request = record.as_request();
        let waiting = self.queues[index].as_ref().map_or(0, ModelQueue::len);
        run.explanation.came(&request, run.now, &self.names[index], waiting);
        self.event(index, ModelEvent::Enqueue(&request), run)
    }

    /// Applies requests that have come for a queue, which is then settled.
    fn came(
        &mut self,
        at: usize,
        record: &Record,
        records: &mut Records<'_>,
        run: &mut Run,
    ) -> Result<(), Halt> {
        for _ in 0..record.small {
            let (at, request) = records.next().ok_or("requests that are cut short")?;
            if request.kind() != Some(Kind::Request) || request.queue() != record.queue() {
                return Err("requests that are damaged".into());
            }
            self.request(at, &request, run)?;
        }
        run.nothing_expected(at)?;
        let index = self.queue_index(record)?;
        self.event(index, ModelEvent::Settle, run)
    }

    fn input(&mut self, at: usize, record: &Record, run: &mut Run) -> Result<(), Halt> {
        run.begin_input(at)?;
        let index = self.queue_index(record)?;
        let request = record.as_request();
        let scaled = (record.kind() == Some(Kind::Rescale))
            .then(|| ScaledProfile::new(&self.queue_configs[index].profile, record.as_scale()));
        let event = record.as_event(&request, scaled.as_ref()).ok_or("an event that is damaged")?;
        self.event(index, event, run)
    }

    /// Applies an event to a queue: its decisions are expected from the file.
    fn event(&mut self, index: usize, event: ModelEvent<'_>, run: &mut Run) -> Result<(), Halt> {
        let Models { queues, ready, queue_configs, next_batch, .. } = self;
        let queue = queues[index].as_mut().ok_or("an event of a model whose state it does not hold")?;
        let now = run.now;
        let cause = Cause::from(event);
        let mut ends = Vec::new();
        let mut sink = Collect {
            expected: &mut run.expected,
            next_batch: *next_batch,
            explanation: &mut run.explanation,
            ready: &mut ready[index],
            ends: &mut ends,
            now,
            cause,
        };
        queue.apply(now, event, &mut sink);
        for (request, ending) in ends {
            run.explanation.ended(&request, ending, now, cause, &queue_configs[index], queue.target());
        }
        Ok(())
    }

    /// Reads a queue's state, which begins with `first`: restores it, or compares it with the one
    /// that replay has reached.
    fn state(
        &mut self,
        at: usize,
        first: &Record,
        records: &mut Records<'_>,
        run: &mut Run,
    ) -> Result<(), Halt> {
        run.nothing_expected(at)?;
        let index = self.queue_index(first)?;
        let mut pieces = vec![*first];
        let queued = usize::from(first.small);
        for step in 1..SCALAR_RECORDS + COUNT_RECORDS + queued {
            let kind = match step {
                ..SCALAR_RECORDS => Kind::SavedModel,
                _ if step < SCALAR_RECORDS + COUNT_RECORDS => Kind::SavedCounts,
                _ => Kind::SavedRequest,
            };
            let (_, piece) = records.next().ok_or("a model's state that is cut short")?;
            if piece.kind() != Some(kind) || piece.queue() != first.queue() {
                return Err("a model's state that is damaged".into());
            }
            pieces.push(piece);
        }
        if let Some(queue) = &self.queues[index] {
            model_recorder::for_each_saved(queue, run.now, 0, |record| run.expected.push_back(record));
            run.done.states += 1;
            return pieces.iter().try_for_each(|piece| run.confirm(at, piece));
        }
        let (scalars, rest) = pieces.split_first_chunk().ok_or("a model's state that is cut short")?;
        let (counts, waiting) = rest.split_at(COUNT_RECORDS);
        let saved = Record::as_saved(scalars, counts);
        let waiting: Vec<Request> = waiting.iter().map(Record::as_request).collect();
        for request in &waiting {
            run.explanation.waited(request, run.now, &self.names[index]);
        }
        let restored =
            ModelQueue::restore(self.queue_configs[index].clone(), self.lower[index], &saved, &waiting);
        self.queues[index] = Some(restored.map_err(|error| Halt::Corrupt(error.to_string()))?);
        Ok(())
    }
}

/// Collects a queue's decisions as records.
struct Collect<'a> {
    expected: &'a mut VecDeque<Record>,
    next_batch: Option<u64>,
    explanation: &'a mut Explanation,
    ready: &'a mut Option<(Nanos, Cause)>,
    ends: &'a mut Vec<(Request, Ending)>,
    now: Nanos,
    cause: Cause,
}

impl ModelSink for Collect<'_> {
    fn to_rank(&mut self, message: RankInput) {
        match message {
            RankInput::Ready { .. } => *self.ready = Some((self.now, self.cause)),
            RankInput::Withdraw(_) => *self.ready = None,
            _ => {}
        }
        self.expected.push_back(Record::from(message));
    }

    fn dispatch(&mut self, dispatch: Dispatch, requests: (&[Request], &[Request])) {
        let size = requests.0.len() + requests.1.len();
        let batch = self.next_batch.unwrap_or(0);
        self.expected.extend(Record::dispatch(dispatch, batch, size));
        for request in requests.0.iter().chain(requests.1) {
            self.explanation.batched(request, dispatch, batch, size, *self.ready);
        }
    }

    fn end(&mut self, request: &Request, ending: Ending, _now: Nanos) {
        self.expected.push_back(Record::ended(request, ending));
        if self.explanation.wanted.is_some() {
            self.ends.push((*request, ending));
        }
    }
}

fn replay_rank(
    recording: &Recording,
    description: &RankDescription,
    run: &mut Run,
) -> Result<(), RecordError> {
    let classes: Option<Vec<Class>> = description.classes.iter().map(|&number| Class::new(number)).collect();
    let classes = classes.filter(|classes| classes.is_empty() || classes.len() == description.models);
    let Some(classes) = classes else {
        return Err(corrupt(recording, "its description has classes that can't be"));
    };
    let sound = description.models <= limits::MAX_QUEUES
        && description.clusters.len() < usize::from(u8::MAX)
        && description.clusters.iter().all(|cluster| cluster.gpus <= limits::MAX_GPUS);
    if !sound {
        return Err(corrupt(recording, "its description names more than this program's limits allow"));
    }
    let states = description.clusters.iter().map(|cluster| {
        let delay = Nanos(cluster.completion_delay_ns);
        let state = RankState::new(cluster.gpus, description.models, cluster.keep_late, delay)
            .sending_ahead(Nanos(cluster.ahead_ns));
        if classes.is_empty() { state } else { state.among_classes(classes.clone()) }
    });
    let mut rank = Rank {
        states: states.collect(),
        first_gpu: description.clusters.iter().map(|cluster| cluster.first_gpu).collect(),
        known: false,
    };
    let result = rank.run(&mut recording.records(), run);
    run.halt(recording, result)
}

/// The replay of a RankThread.
struct Rank {
    states: Vec<RankState>,
    first_gpu: Vec<u32>,
    /// True from the second segment on: states are no longer restored but compared.
    known: bool,
}

impl Rank {
    fn run(&mut self, records: &mut Records<'_>, run: &mut Run) -> Result<(), Halt> {
        let mut last = 0;
        for (at, record) in records {
            last = at;
            match record.kind() {
                Some(Kind::Segment) => {
                    run.nothing_expected(at)?;
                    run.set_now(record.b)?;
                    self.begin_segment(run);
                }
                Some(Kind::Cycle) => run.set_now(record.a)?,
                Some(
                    Kind::SavedCluster
                    | Kind::SavedGpu
                    | Kind::SavedCandidate
                    | Kind::SavedBounds
                    | Kind::SavedReservation
                    | Kind::SavedLooks
                    | Kind::SavedDelay
                    | Kind::SavedLongest
                    | Kind::SavedShare,
                ) => {
                    if self.known {
                        run.confirm(at, &record)?;
                    } else {
                        self.restore(&record)?;
                    }
                }
                Some(Kind::Granted) => {
                    run.done.decisions += 1;
                    run.confirm(at, &record)?;
                }
                Some(
                    Kind::Ready
                    | Kind::Early
                    | Kind::Reserve
                    | Kind::Bounds
                    | Kind::AllReserved
                    | Kind::Withdraw
                    | Kind::Report
                    | Kind::Completion
                    | Kind::Presence
                    | Kind::CompletionDelay
                    | Kind::Match,
                ) => {
                    self.known = true;
                    run.begin_input(at)?;
                    self.input(&record, run)?;
                }
                _ => return Err(Halt::Corrupt(format!("record {at} has no place here: {record}"))),
            }
        }
        run.nothing_expected(last)
    }

    fn begin_segment(&self, run: &mut Run) {
        if self.known {
            for (cluster, state) in self.states.iter().enumerate() {
                rank_recorder::for_each_saved(cluster, state, |record| run.expected.push_back(record));
                run.done.states += 1;
            }
        }
    }

    fn restore(&mut self, record: &Record) -> Result<(), Halt> {
        let state = self.states.get_mut(usize::from(record.flag)).ok_or("a sub-cluster too many")?;
        let there = match record.kind() {
            Some(Kind::SavedLooks) => state.restore_looks_paid_by(record.as_saved_looks()),
            Some(Kind::SavedLongest) => {
                state.restore_longest(record.as_saved_longest());
                true
            }
            Some(Kind::SavedGpu) => state.restore_gpu(record.as_saved_gpu()),
            Some(Kind::SavedCandidate) => state.restore_model(record.as_saved_candidate()),
            Some(Kind::SavedShare) => state.restore_share(record.as_saved_share()),
            Some(Kind::SavedBounds | Kind::SavedReservation | Kind::SavedDelay) => {
                let input = record.as_rank_input().filter(|_| (record.queue().0 as usize) < state.models());
                input.map(|input| state.handle(input)).is_some()
            }
            _ => {
                let (horizon, packing, all_reserved) = record.as_saved_cluster();
                state.restore_pool(horizon, packing, all_reserved);
                true
            }
        };
        if there { Ok(()) } else { Err("a state of a GPU or model that it does not list".into()) }
    }

    fn input(&mut self, record: &Record, run: &mut Run) -> Result<(), Halt> {
        let cluster = usize::from(record.flag);
        let state = self.states.get_mut(cluster).ok_or("a sub-cluster too many")?;
        if record.queue().0 as usize >= state.models() {
            return Err("a model that it does not list".into());
        }
        let Some(input) = record.as_rank_input() else {
            let expected = &mut run.expected;
            state.on_timer(run.now, &mut |grant| expected.push_back(Record::granted(cluster, grant)));
            return Ok(());
        };
        match input {
            RankInput::Report(report) if !state.is_taken(report.gpu) => {
                return Err("a report of a GPU that was not granted".into());
            }
            RankInput::Completion(completion) => {
                if completion.gpu.0 as usize >= state.gpus() {
                    return Err("a GPU that it does not list".into());
                }
                if run.explanation.wanted.is_some() {
                    let gpu = GpuId(completion.gpu.0 + self.first_gpu[cluster]);
                    run.done.completions.push(Completion { gpu, ..completion });
                }
            }
            _ => {}
        }
        state.handle(input);
        Ok(())
    }
}
