//! A client thread of a run over the network: it sends what the pacer hands to it, or what its
//! closed-loop clients send next, reads the answers and counts them.

use super::connection::{Failure, runtime};
use super::pacer::{Job, NAP};
use super::shared_memory::{FreeSlots, Region};
use super::url::ServerUrl;
use super::wire::{Message, Reply, Wire};
use crate::loadgen::RunError;
use crate::loadgen::measure::{End, RequestRecord, ServerDetails, Tally};
use crate::loadgen::schedule::{ClosedLoopClient, Pace, Plan};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use symphony::runtime::clock::Clock;
use symphony_transport::Nanos;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

/// The time to wait for answers after the last request went out.
const GRACE: Nanos = Nanos::from_secs(10);
/// The time to wait for answers after Ctrl-C.
const GRACE_STOPPED: Nanos = Nanos::from_secs(2);
/// Connections that fail in a row before the server counts as gone.
const LOST_AFTER: u32 = 50;
/// Requests of one thread that wait for a connection; more are not sent, and count as failed.
const MAX_WAITING: usize = 65_536;
/// Requests that a client thread takes from the pacer at once.
const JOBS_AT_ONCE: usize = 64;

/// A model that is ready to be asked.
pub(super) struct PreparedModel {
    pub(super) messages: Vec<Message>,
    pub(super) region: Option<Region>,
}

/// A client thread, before it starts.
pub(super) struct ClientThread<'a, W> {
    pub(super) server: &'a ServerUrl,
    pub(super) connections: usize,
    pub(super) thread: usize,
    pub(super) threads: usize,
    pub(super) plan: &'a Plan,
    pub(super) models: Arc<Vec<PreparedModel>>,
    pub(super) tally: Tally,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) lost: Arc<AtomicBool>,
    pub(super) wire: std::marker::PhantomData<fn() -> W>,
}

impl<W: Wire> ClientThread<'_, W> {
    pub(super) fn run(
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
            next_messages: self
                .models
                .iter()
                .map(|model| Cell::new(self.thread % model.messages.len()))
                .collect(),
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
    /// The index of each model's next message.
    next_messages: Vec<Cell<usize>>,
    /// The output slots of each model in shared memory.
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

    /// Sends what the pacer hands over, until the run ends.
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

    /// Waits for what is in flight, up to [`GRACE`].
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
        let next = self.next_messages[model].get();
        self.next_messages[model].set((next + 1) % messages.len());
        let message = &messages[next];
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
