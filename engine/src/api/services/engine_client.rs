//! Between the connections of one API core and its [`Frontend`]: [`EngineClient::ask`] submits a request
//! and waits, one [`EngineClient::pump`] task polls the frontend and wakes whoever waits. All on one
//! thread.
//!
//! The engine client through rings in memory, which nobody can sleep on, so the pump polls. Where
//! the core is its own it polls every microsecond, between looks at the sockets. Where threads
//! share cores it polls every 10 us for a while after anything happened, as an answer may be about
//! to come, and after that every 0.1 ms: requests wait milliseconds for their batch, and a busy
//! pump would take the time of the very thread that it waits for (every 0.1 ms takes an eighth of a
//! core). Between polls it sleeps on a timer, so that sockets are served and other threads run;
//! with nothing in flight it sleeps until a request is sent, and looks up every 50 ms, for what is
//! served may change.

use crate::api::net::glommio_io::within;
use crate::runtime::Idle;
use crate::runtime::frontend::{Answer, Ask, Frontend, ModelInfo, Outcome, Refusal, Ticket};
use crate::telemetry::Metrics;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use symphony_transport::Nanos;
use symphony_transport::message::{GpuId, ModelId};

/// Empty polls in a row before the pump slows down.
const FAST_POLLS: u32 = 20;

/// The pause between polls where the core is this thread's own.
const SPIN_POLL: Duration = Duration::from_micros(1);

/// The pause between fast polls.
const FAST_POLL: Duration = Duration::from_micros(10);

/// The pause between slow polls.
const SLOW_POLL: Duration = Duration::from_micros(100);

/// The pause between polls while nothing is in flight: the frontend must see now and then what is
/// served.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// An [`Answer`] that the handler may keep.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::api) struct EngineReply {
    /// How it ended.
    pub(in crate::api) outcome: Outcome,
    /// The output rows, one after another; empty unless it ran.
    pub(in crate::api) output: Vec<u8>,
    /// When the request was accepted.
    pub(in crate::api) arrival: Nanos,
    /// When the answer was due.
    pub(in crate::api) due: Nanos,
    /// When its batch was put together; zero where it did not come to that. So for the next two.
    pub(in crate::api) batched: Nanos,
    /// When its batch started.
    pub(in crate::api) started: Nanos,
    /// When its batch finished, or when the request was dropped.
    pub(in crate::api) finished: Nanos,
    /// When the answer reached the frontend.
    pub(in crate::api) answered: Nanos,
    /// Its batch's size.
    pub(in crate::api) batch_size: u32,
    /// The GPU that its batch was sent to.
    pub(in crate::api) gpu: GpuId,
}

impl EngineReply {
    fn keep(answer: Answer<'_>) -> EngineReply {
        EngineReply {
            outcome: answer.outcome,
            output: (0..answer.rows).flat_map(|row| answer.row(row)).copied().collect(),
            arrival: answer.arrival,
            due: answer.due,
            batched: answer.batched,
            started: answer.started,
            finished: answer.finished,
            answered: answer.answered,
            batch_size: answer.batch_size,
            gpu: answer.gpu,
        }
    }
}

/// The frontend of an API core with everybody who waits for an answer from it.
pub(in crate::api) struct EngineClient {
    frontend: RefCell<Frontend>,
    recorder: Rc<Metrics>,
    idle: Idle,
    /// By ticket index. A waiter that has gone leaves a sender whose receiver is dropped: the
    /// answer is still taken from the frontend, once, and forgotten.
    waiting: RefCell<Vec<Option<oneshot::Sender<EngineReply>>>>,
    pump: RefCell<Option<Waker>>,
    /// Counts up when a request is sent, so that the pump is fast again.
    sent: Cell<u64>,
}

/// Somebody waits for an answer.
struct PendingRequest<'a> {
    client: &'a EngineClient,
    ticket: Ticket,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.client.frontend.borrow_mut().cancel(self.ticket);
    }
}

impl EngineClient {
    /// Takes over `frontend`; what it takes and client is told to `recorder`. Someone must run
    /// [`EngineClient::pump`], on a thread that is `idle` in this way.
    pub(in crate::api) fn new(frontend: Frontend, recorder: Rc<Metrics>, idle: Idle) -> EngineClient {
        let waiting = (0..frontend.capacity()).map(|_| None).collect();
        EngineClient {
            frontend: RefCell::new(frontend),
            recorder,
            idle,
            waiting: RefCell::new(waiting),
            pump: RefCell::new(None),
            sent: Cell::new(0),
        }
    }

    /// What is served at the moment: who holds it may ask any of it.
    pub(in crate::api) fn models(&self) -> Arc<[ModelInfo]> {
        let mut frontend = self.frontend.borrow_mut();
        let models = Arc::clone(frontend.newest_models());
        frontend.take_newcomers().for_each(|model| self.recorder.forget(model));
        models
    }

    /// Requests sent and not yet answered, with or without someone who waits.
    pub(in crate::api) fn in_flight(&self) -> usize {
        self.frontend.borrow().in_flight()
    }

    /// The most rows that a request for this model may have.
    pub(in crate::api) fn most_rows(&self, model: ModelId) -> usize {
        self.frontend.borrow().most_rows(model)
    }

    /// Sends a request as [`Frontend::submit`] does and waits for its answer. Dropping the future,
    /// as when the client has left, takes the request back.
    ///
    /// Errors: a [`Refusal`], at once.
    pub(in crate::api) async fn ask(
        &self,
        ask: &Ask,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<EngineReply, Refusal> {
        let ticket = {
            let mut frontend = self.frontend.borrow_mut();
            let ticket = frontend.submit(ask, fill);
            frontend.take_newcomers().for_each(|model| self.recorder.forget(model));
            ticket?
        };
        self.recorder.accepted(ask.model);
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut()[ticket.index] = Some(sender);
        self.sent.set(self.sent.get() + 1);
        self.wake_pump();
        // Once there is an answer, to take the request back does nothing.
        let _cancelled_if_dropped = PendingRequest { client: self, ticket };
        Ok(receiver.await.expect("the pump client every request before it lets go of the sender"))
    }

    /// Delivers client until it is dropped. One task of the core runs it.
    pub(in crate::api) async fn pump(&self) {
        let (mut empty, mut sent) = (0, 0);
        loop {
            if self.in_flight() == 0 {
                let _ = within(IDLE_POLL, self.request_sent(&mut sent)).await;
                empty = 0;
            }
            if self.deliver() > 0 || sent != self.sent.get() {
                sent = self.sent.get();
                empty = 0;
            } else {
                empty += 1;
            }
            let pause = match self.idle {
                Idle::Spin => SPIN_POLL,
                Idle::Nap if empty < FAST_POLLS => FAST_POLL,
                Idle::Nap => SLOW_POLL,
            };
            glommio::timer::sleep(pause).await;
        }
    }

    fn deliver(&self) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let mut frontend = self.frontend.borrow_mut();
        let delivered = frontend.poll(|ticket, answer| {
            self.recorder.answered(&answer, answer.slo);
            let waiter = waiting[ticket.index].take();
            if let Some(waiter) = waiter.filter(|w| !w.is_canceled()) {
                // A waiter that leaves between the check and here is gone all the same.
                let _ = waiter.send(EngineReply::keep(answer));
            }
        });
        frontend.take_newcomers().for_each(|model| self.recorder.forget(model));
        delivered
    }

    fn wake_pump(&self) {
        if let Some(waker) = self.pump.borrow_mut().take() {
            waker.wake();
        }
    }

    async fn request_sent(&self, seen: &mut u64) {
        poll_fn(|cx| {
            if *seen != self.sent.get() {
                *seen = self.sent.get();
                return Poll::Ready(());
            }
            *self.pump.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
