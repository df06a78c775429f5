//! Load on a server over any protocol. The calling thread is the pacer: it sleeps until a request's
//! time and hands it to one of the client threads, each of which sends, reads the answers and
//! counts, on connections of its own. So neither a slow answer nor a burst of them keeps the next
//! request from its time. What a protocol must do is [`Wire`].

use super::describe::Description;
use super::shared_memory::{FreeSlots, OutputSlots, Region};
use super::url::ServerUrl;
use super::{Call, Requests, SharedInputs, Target, Tensors, Watch};
use crate::loadgen::RunError;
use crate::loadgen::measure::{End, RequestRecord, ServerDetails, Tally};
use crate::loadgen::report::RunInfo;
use crate::loadgen::schedule::{ClosedLoopClient, Pace, Plan, PlannedModel, Schedule};
use bytes::Bytes;
use hyper::Uri;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// How long answers are waited for after the last request went out.
const GRACE: Nanos = Nanos::from_secs(10);
/// The same after Ctrl-C.
const GRACE_STOPPED: Nanos = Nanos::from_secs(2);
/// Connections that fail in a row before the server counts as gone.
const LOST_AFTER: u32 = 50;
/// Requests of one thread that wait for a connection; more are not sent, and count as failed.
const MAX_WAITING: usize = 65_536;
/// The longest wait without a look at Ctrl-C and the progress bar.
const NAP: Nanos = Nanos::from_millis(50);
/// Requests that a client thread takes from the pacer at once.
const JOBS_AT_ONCE: usize = 64;

/// A protocol, as one thread speaks it on its connections.
pub(super) trait Wire: Sized + 'static {
    /// Its name in reports.
    const NAME: &'static str;

    /// The connections that all threads together may have unless the user says otherwise.
    const CONNECTIONS: usize;

    /// Requests of one thread with this many connections that may be under way, if connections
    /// bound that.
    fn in_flight_limit(connections: usize) -> Option<usize>;

    /// Opens a first connection.
    async fn connect(server: &ServerUrl, connections: usize) -> Result<Self, RunError>;

    /// Opens more, so that the first requests need not wait for it.
    async fn open_ahead(&self);

    /// What of the protocol's extensions the server speaks.
    async fn extensions(&self) -> Result<Vec<String>, RunError>;

    /// Every model of the server.
    async fn model_names(&self) -> Result<Vec<String>, RunError>;

    /// What a model takes and gives.
    async fn describe(&self, model: &str) -> Result<Description, RunError>;

    /// Makes a shared memory region known to the server.
    async fn register(&self, region: &Region) -> Result<(), RunError>;

    /// Undoes that; a server that has gone needs no telling.
    async fn unregister(&self, region: &Region);

    /// Puts a request into the protocol's words.
    ///
    /// Errors: what it can't say.
    fn encode(server: &ServerUrl, call: &Call<'_>) -> Result<Message, String>;

    /// The message with its outputs going to a slot of a shared memory region.
    fn with_outputs(message: &Message, region: &str, slots: &OutputSlots, slot: usize) -> Message;

    /// Sends an infer request, calling `on_send` as it goes out, and reads the answer.
    async fn infer(&self, message: Message, on_send: impl FnOnce()) -> Result<Reply, Failure>;
}

/// An infer request in a protocol's words. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Where it goes.
    pub(super) uri: Uri,
    /// What is sent.
    pub(super) body: Bytes,
    /// HTTP: the length of the JSON that comes before raw tensors in the body.
    pub(super) json_length: Option<usize>,
    /// gRPC: the call's time limit.
    pub(super) limit: Option<Nanos>,
}

/// An answer to an infer request.
#[derive(Debug)]
pub(super) struct Reply {
    /// How the request ended.
    pub(super) end: End,
    /// What else the server told.
    pub(super) details: ServerDetails,
    /// What went wrong, of one that failed.
    pub(super) why: Option<String>,
}

/// Why a request got no answer.
#[derive(Debug)]
pub(super) struct Failure {
    /// In words.
    pub(super) reason: String,
    /// No connection could be made: the server is not there.
    pub(super) refused: bool,
}

/// How a server is spoken to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is.
    pub server: ServerUrl,
    /// Connections that may be open at once, of all threads together; `None` is the protocol's own
    /// default.
    pub connections: Option<usize>,
    /// Threads that send.
    pub threads: usize,
}

/// A server as a [`Target`].
pub(super) struct NetworkTarget<W: Wire> {
    settings: Settings,
    /// The connection for what is not load.
    control: Option<Control<W>>,
    models: Arc<Vec<PreparedModel>>,
    tensors: Tensors,
    rows: usize,
}

struct Control<W> {
    runtime: tokio::runtime::Runtime,
    tasks: LocalSet,
    wire: W,
}

/// A model that is ready to be asked.
struct PreparedModel {
    messages: Vec<Message>,
    region: Option<Region>,
}

/// The event loop of one thread.
///
/// Errors: the machine has none left.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| RunError::Machine(format!("can't start a thread's event loop: {e}")))
}

impl<W: Wire> NetworkTarget<W> {
    /// A server, which is not spoken to yet.
    pub(super) fn new(settings: Settings) -> NetworkTarget<W> {
        NetworkTarget {
            settings,
            control: None,
            models: Arc::new(Vec::new()),
            tensors: Tensors::Best,
            rows: 1,
        }
    }

    fn control(&mut self) -> Result<&Control<W>, RunError> {
        if self.control.is_none() {
            let (runtime, tasks) = (runtime()?, LocalSet::new());
            let wire = tasks.block_on(&runtime, W::connect(&self.settings.server, 1))?;
            self.control = Some(Control { runtime, tasks, wire });
        }
        Ok(self.control.as_ref().expect("just made"))
    }

    fn connections(&self, pace: Pace) -> usize {
        let asked = self.settings.connections.unwrap_or(W::CONNECTIONS);
        match pace {
            Pace::Open { .. } => asked,
            Pace::Closed { clients, .. } if self.settings.connections.is_none() => clients.max(asked),
            Pace::Closed { .. } => asked,
        }
    }

    /// The tensors' way that this server takes.
    fn choose(&mut self, asked: Tensors) -> Result<Tensors, RunError> {
        let Tensors::Best = asked else { return Ok(asked) };
        let control = self.control()?;
        let extensions = control.tasks.block_on(&control.runtime, control.wire.extensions())?;
        let binary = extensions.iter().any(|name| name == "binary_tensor_data");
        Ok(if binary { Tensors::Binary } else { Tensors::Json })
    }

    fn prepare_one(
        &mut self,
        index: u64,
        model: &PlannedModel,
        requests: &Requests,
    ) -> Result<(PreparedModel, Option<Nanos>), RunError> {
        let server = self.settings.server.clone();
        let usage = |what: String| RunError::Usage(format!("model \"{}\" of {server}: {what}", model.name));
        let tensors = self.tensors;
        let slots = self.connections(Pace::OPEN);
        let slots = W::in_flight_limit(slots).unwrap_or(SLOTS_WITHOUT_LIMIT);
        let control = self.control()?;
        let description = control.tasks.block_on(&control.runtime, control.wire.describe(&model.name))?;
        let inputs = &requests.inputs;
        let rows = inputs.rows_for(&model.name, index, &description.inputs).map_err(usage)?;
        let all = inputs.requests(&rows, &description.inputs, description.batched).map_err(usage)?;
        let region = match tensors {
            Tensors::Shared => {
                let outputs = output_sizes(&description, inputs.rows).map_err(usage)?;
                let region = Region::create(&all, &outputs, slots)
                    .map_err(|what| RunError::Machine(format!("model \"{}\": {what}", model.name)))?;
                control.tasks.block_on(&control.runtime, control.wire.register(&region))?;
                Some(region)
            }
            _ => None,
        };
        let message = |(at, tensors): (usize, &Vec<_>)| {
            let shared = region.as_ref();
            let shared = shared.map(|r| SharedInputs { region: &r.name, slices: &r.inputs[at] });
            let call = Call {
                model: &model.name,
                tensors,
                limit: requests.limit(model),
                class: requests.class,
                json: self.tensors == Tensors::Json,
                shared,
            };
            W::encode(&server, &call).map_err(usage)
        };
        let messages = all.iter().enumerate().map(message).collect::<Result<_, _>>()?;
        Ok((PreparedModel { messages, region }, description.slo))
    }
}

/// Slots for outputs in shared memory where connections do not bound what is under way.
const SLOTS_WITHOUT_LIMIT: usize = 1_024;

fn output_sizes(description: &Description, rows: usize) -> Result<Vec<(String, usize)>, String> {
    let size = |(name, spec): &(String, Option<crate::loadgen::inputs::InputSpec>)| {
        let bytes = spec.as_ref().and_then(crate::loadgen::inputs::InputSpec::row_bytes);
        let bytes = bytes.ok_or_else(|| {
            format!("the size of output \"{name}\" is not known before, so it can't go to shared memory")
        })?;
        Ok((name.clone(), bytes.saturating_mul(rows)))
    };
    description.outputs.iter().map(size).collect()
}

impl<W: Wire> Drop for NetworkTarget<W> {
    fn drop(&mut self) {
        let Some(control) = &self.control else { return };
        for region in self.models.iter().filter_map(|model| model.region.as_ref()) {
            control.tasks.block_on(&control.runtime, control.wire.unregister(region));
        }
    }
}

impl<W: Wire> Target for NetworkTarget<W> {
    fn model_names(&mut self) -> Result<Vec<String>, RunError> {
        let control = self.control()?;
        control.tasks.block_on(&control.runtime, control.wire.model_names())
    }

    fn prepare(
        &mut self,
        models: &[PlannedModel],
        requests: &Requests,
    ) -> Result<Vec<Option<Nanos>>, RunError> {
        self.tensors = self.choose(requests.tensors)?;
        self.rows = requests.inputs.rows;
        let prepare = |(index, model)| self.prepare_one(index, model, requests);
        let prepared = (0..).zip(models).map(prepare).collect::<Result<Vec<_>, _>>()?;
        let (models, slos) = prepared.into_iter().unzip();
        self.models = Arc::new(models);
        Ok(slos)
    }

    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError> {
        let schedule = plan.schedule().map_err(|e| RunError::Usage(e.to_string()))?;
        let threads = match plan.pace {
            Pace::Closed { clients, .. } => self.settings.threads.min(clients),
            Pace::Open { .. } => self.settings.threads,
        };
        let lost = Arc::new(AtomicBool::new(false));
        let connections = self.connections(plan.pace).div_ceil(threads);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            for thread in 0..threads {
                let (jobs, due) = unbounded_channel();
                let (go, start) = mpsc::channel();
                let (ready, is_ready) = mpsc::channel();
                let worker = ClientThread::<W> {
                    server: &self.settings.server,
                    connections,
                    thread,
                    threads,
                    plan,
                    models: Arc::clone(&self.models),
                    tally: watch.part(plan),
                    stop: Arc::clone(&watch.stop),
                    lost: Arc::clone(&lost),
                    wire: std::marker::PhantomData,
                };
                let handle = scope.spawn(move || worker.run(&ready, &start, due));
                workers.push(ClientHandle { jobs, go, is_ready, handle });
            }
            let pacer = Pacer { plan, watch: &mut *watch, lost: &lost };
            let tallies = pacer.run(schedule, workers)?;
            tallies.into_iter().for_each(|tally| watch.tally.merge(tally));
            Ok(())
        })
    }

    fn info(&self) -> RunInfo {
        let tensors = match self.tensors {
            Tensors::Best | Tensors::Json => "json",
            Tensors::Binary => "binary",
            Tensors::Shared => "shared memory",
        };
        RunInfo {
            target: self.settings.server.to_string(),
            protocol: W::NAME.into(),
            tensors: tensors.into(),
            rows: self.rows,
            threads: self.settings.threads,
            ..RunInfo::default()
        }
    }
}

/// What the pacer tells a client thread.
enum Job {
    /// It is time for a request.
    Send { model: usize, intended: Nanos },
    /// The run ends early; no more will come.
    Stopped { at: Nanos },
}

/// A client thread as the pacer knows it.
struct ClientHandle<'scope> {
    jobs: UnboundedSender<Job>,
    go: mpsc::Sender<Clock>,
    is_ready: mpsc::Receiver<()>,
    handle: thread::ScopedJoinHandle<'scope, Result<Tally, RunError>>,
}

/// The thread that started the run.
struct Pacer<'a> {
    plan: &'a Plan,
    watch: &'a mut Watch,
    lost: &'a AtomicBool,
}

impl Pacer<'_> {
    /// Starts the clock when all threads are ready, paces them, and gathers what they counted.
    fn run(mut self, schedule: Schedule, workers: Vec<ClientHandle<'_>>) -> Result<Vec<Tally>, RunError> {
        // A thread that ends before it is ready tells why when it is joined.
        if workers.iter().all(|worker| worker.is_ready.recv().is_ok()) {
            let clock = Clock::start();
            workers.iter().for_each(|worker| drop(worker.go.send(clock.clone())));
            let jobs: Vec<&UnboundedSender<Job>> = workers.iter().map(|worker| &worker.jobs).collect();
            self.pace(schedule, &clock, &jobs);
            self.wait(&clock, &workers);
        }
        let join = |worker: ClientHandle<'_>| {
            drop((worker.go, worker.jobs));
            worker.handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        workers.into_iter().map(join).collect()
    }

    fn over(&self) -> bool {
        self.watch.stopped() || self.lost.load(Ordering::Relaxed)
    }

    /// Hands each request over at its time, to the threads in turn, up to the end of the run.
    fn pace(&mut self, schedule: Schedule, clock: &Clock, jobs: &[&UnboundedSender<Job>]) {
        let end = [(self.plan.end(), None)];
        for (turn, (at, model)) in schedule.map(|(at, model)| (at, Some(model))).chain(end).enumerate() {
            loop {
                let now = clock.now();
                self.watch.progress.update(now);
                if self.over() {
                    // A thread that has ended needs no telling.
                    jobs.iter().for_each(|jobs| drop(jobs.send(Job::Stopped { at: now })));
                    return;
                }
                if now >= at {
                    break;
                }
                thread::sleep((at - now).min(NAP).into());
            }
            if let Some(model) = model
                && jobs[turn % jobs.len()].send(Job::Send { model, intended: at }).is_err()
            {
                return;
            }
        }
    }

    /// Shows the progress until all threads are through.
    fn wait(&mut self, clock: &Clock, workers: &[ClientHandle<'_>]) {
        workers.iter().for_each(|worker| drop(worker.jobs.send(Job::Stopped { at: Nanos::MAX })));
        while !workers.iter().all(|worker| worker.handle.is_finished()) {
            self.watch.progress.update(clock.now());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// What a client thread starts with.
struct ClientThread<'a, W> {
    server: &'a ServerUrl,
    connections: usize,
    thread: usize,
    threads: usize,
    plan: &'a Plan,
    models: Arc<Vec<PreparedModel>>,
    tally: Tally,
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    wire: std::marker::PhantomData<fn() -> W>,
}

impl<W: Wire> ClientThread<'_, W> {
    fn run(
        self,
        ready: &mpsc::Sender<()>,
        start: &mpsc::Receiver<Clock>,
        due: UnboundedReceiver<Job>,
    ) -> Result<Tally, RunError> {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, self.run_here(ready, start, due))
    }

    async fn run_here(
        self,
        ready: &mpsc::Sender<()>,
        start: &mpsc::Receiver<Clock>,
        due: UnboundedReceiver<Job>,
    ) -> Result<Tally, RunError> {
        let wire = W::connect(self.server, self.connections).await?;
        wire.open_ahead().await;
        // The pacer waits for it, and sends a clock unless another thread could not start.
        let _ = ready.send(());
        let Ok(clock) = start.recv() else { return Ok(self.tally) };
        let slots = |model: &PreparedModel| {
            let slots = model.region.as_ref().map(|region| &region.slots);
            slots.map(|slots| FreeSlots::of(slots, self.thread, self.threads))
        };
        let run = Rc::new(ClientRun {
            wire,
            turns: self.models.iter().map(|model| Cell::new(self.thread % model.messages.len())).collect(),
            slots: self.models.iter().map(slots).collect(),
            models: self.models,
            in_flight_limit: self.connections + MAX_WAITING,
            clock,
            tally: RefCell::new(self.tally),
            in_flight: Cell::new(0),
            stop: self.stop,
            lost: self.lost,
            refused_in_a_row: Cell::new(0),
        });
        match self.plan.pace {
            Pace::Open { .. } => run.open_loop(due).await,
            Pace::Closed { clients, .. } => {
                let ours = (self.thread..clients).step_by(self.threads);
                ours.for_each(|client| run.start_client(self.plan, client));
            }
        }
        run.drain(self.plan).await;
        let empty = Tally::new(self.plan, Arc::default(), false);
        Ok(run.tally.replace(empty))
    }
}

/// A run under way, on one client thread. Every request is a task that holds it.
struct ClientRun<W> {
    wire: W,
    models: Arc<Vec<PreparedModel>>,
    /// For each model, which of its messages goes out next.
    turns: Vec<Cell<usize>>,
    /// For each model, where outputs go in shared memory.
    slots: Vec<Option<FreeSlots>>,
    in_flight_limit: usize,
    clock: Clock,
    tally: RefCell<Tally>,
    in_flight: Cell<usize>,
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    refused_in_a_row: Cell<u32>,
}

impl<W: Wire> ClientRun<W> {
    fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.lost.load(Ordering::Relaxed)
    }

    /// Sends what the pacer says, until it says that there is no more.
    async fn open_loop(self: &Rc<ClientRun<W>>, mut due: UnboundedReceiver<Job>) {
        let mut jobs = Vec::with_capacity(JOBS_AT_ONCE);
        while due.recv_many(&mut jobs, JOBS_AT_ONCE).await > 0 {
            for job in jobs.drain(..) {
                match job {
                    Job::Send { model, intended } => {
                        self.tally.borrow_mut().offered(model, intended);
                        if self.in_flight.get() < self.in_flight_limit {
                            self.spawn(async move |run| run.infer(model, intended).await);
                        }
                    }
                    Job::Stopped { at } => {
                        self.tally.borrow_mut().stopped(at);
                        return;
                    }
                }
            }
        }
    }

    /// Starts one client of a closed loop.
    fn start_client(self: &Rc<ClientRun<W>>, plan: &Plan, client: usize) {
        let end = plan.end();
        let mut client = ClosedLoopClient::new(plan, client);
        self.spawn(async move |run| {
            while !run.over() && run.clock.now() < end {
                let intended = run.clock.now();
                let model = client.model();
                run.tally.borrow_mut().offered(model, intended);
                run.infer(model, intended).await;
                run.think(client.pause(), end).await;
            }
        });
    }

    /// Waits, but not past the end of the run or a Ctrl-C.
    async fn think(&self, pause: Nanos, end: Nanos) {
        let until = (self.clock.now() + pause).min(end);
        while pause > Nanos::ZERO && !self.over() && self.clock.now() < until {
            sleep((until - self.clock.now()).min(NAP).into()).await;
        }
    }

    /// Runs a task that counts as in flight.
    fn spawn(self: &Rc<ClientRun<W>>, task: impl AsyncFnOnce(Rc<ClientRun<W>>) + 'static) {
        let run = Rc::clone(self);
        run.in_flight.set(run.in_flight.get() + 1);
        spawn_local(async move {
            task(Rc::clone(&run)).await;
            run.in_flight.set(run.in_flight.get() - 1);
        });
    }

    /// Waits for what is in flight, but not for ever.
    async fn drain(&self, plan: &Plan) {
        let mut stopped_at = None;
        while self.in_flight.get() > 0 {
            let now = self.clock.now();
            if self.over() && stopped_at.is_none() {
                self.tally.borrow_mut().stopped(now);
                stopped_at = Some(now);
            }
            if now > stopped_at.map_or(plan.end() + GRACE, |at| at + GRACE_STOPPED) {
                break;
            }
            sleep(Duration::from_millis(1)).await;
        }
        if self.lost.load(Ordering::Relaxed) || self.refused_in_a_row.get() > 0 {
            self.tally.borrow_mut().lost();
        }
    }

    async fn infer(&self, model: usize, intended: Nanos) {
        let messages = &self.models[model].messages;
        let turn = self.turns[model].get();
        self.turns[model].set((turn + 1) % messages.len());
        let message = &messages[turn];
        match (&self.slots[model], &self.models[model].region) {
            (Some(free), Some(region)) => {
                free.with(async |slot| {
                    let message = W::with_outputs(message, &region.name, &region.slots, slot);
                    self.exchange(model, intended, message).await;
                })
                .await;
            }
            _ => self.exchange(model, intended, message.clone()).await,
        }
    }

    async fn exchange(&self, model: usize, intended: Nanos, message: Message) {
        let sent = Cell::new(intended);
        let on_send = || {
            sent.set(self.clock.now());
            self.tally.borrow_mut().sent(intended, sent.get());
        };
        let answer = self.wire.infer(message, on_send).await;
        let ended = self.clock.now();
        let mut tally = self.tally.borrow_mut();
        let (end, details) = match answer {
            Ok(Reply { end, details, why }) => {
                if let Some(why) = why {
                    tally.failed_since(|| why);
                }
                self.refused_in_a_row.set(0);
                (end, details)
            }
            Err(Failure { reason, refused }) => {
                tally.failed_since(|| reason);
                self.refused_in_a_row.set(if refused { self.refused_in_a_row.get() + 1 } else { 0 });
                (End::Failed, ServerDetails::default())
            }
        };
        if self.refused_in_a_row.get() >= LOST_AFTER {
            self.lost.store(true, Ordering::Relaxed);
        }
        tally.ended(RequestRecord { model, intended, sent: sent.get(), ended, end, details });
    }
}
