//! The way from the connections of one API core to its [`Frontend`]: [`EngineClient::ask`] submits
//! a request and waits, one [`EngineClient::pump`] task polls the frontend and wakes the waiting
//! tasks. All run on one thread.
//!
//! The engine answers through rings in memory, on which no task can sleep, so the pump polls. On a
//! core of its own it polls every microsecond, between polls of the sockets. Where threads share
//! cores it polls every 10 us for a while after an event, as an answer may be about to come, and
//! then every 0.1 ms: requests wait milliseconds for their batch, and a busy pump would take the
//! time of the thread that it waits for (every 0.1 ms takes an eighth of a core). Between polls it
//! sleeps on a timer, so that sockets are served and other threads run. With no request in flight
//! it sleeps until a request is sent, for at most 50 ms, as the served models may change.

use crate::api::net::glommio_io::within;
use crate::api::net::handler_panics::VitalCell;
use crate::runtime::Idle;
use crate::runtime::frontend::{
    Answer, Ask, Frontend, ModelInfo, Outcome, Refusal, Ticket, Timeline, Withdrawal,
};
use crate::telemetry::Metrics;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use symphony_transport::message::{GpuId, ModelId};

/// Empty polls in a row before the pump slows down.
const FAST_POLLS: u32 = 20;

/// The pause between polls on a core of the thread's own.
const SPIN_POLL: Duration = Duration::from_micros(1);

/// The pause between fast polls.
const FAST_POLL: Duration = Duration::from_micros(10);

/// The pause between slow polls.
const SLOW_POLL: Duration = Duration::from_micros(100);

/// The pause between polls while no request is in flight: the frontend must refresh the served
/// models.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// A copy of an [`Answer`], which outlives the frontend's slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::api) struct EngineReply {
    /// The outcome of the request.
    pub(in crate::api) outcome: Outcome,
    /// The output rows, one after another; empty unless it ran.
    pub(in crate::api) output: Vec<u8>,
    /// The times of the request.
    pub(in crate::api) timeline: Timeline,
    /// The size of its batch.
    pub(in crate::api) batch_size: u32,
    /// The GPU that its batch was sent to.
    pub(in crate::api) gpu: GpuId,
}

impl EngineReply {
    fn keep(answer: Answer<'_>) -> EngineReply {
        EngineReply {
            outcome: answer.outcome,
            output: answer.to_vec(),
            timeline: answer.timeline,
            batch_size: answer.batch_size,
            gpu: answer.gpu,
        }
    }
}

/// The frontend of an API core with the tasks that wait for its answers.
pub(in crate::api) struct EngineClient {
    frontend: VitalCell<Frontend>,
    metrics: Rc<Metrics>,
    idle: Idle,
    /// The waiting tasks, by ticket index. A task that was dropped leaves a sender without
    /// receiver: its answer is still taken from the frontend, once, and discarded.
    waiting: RefCell<Vec<Option<oneshot::Sender<EngineReply>>>>,
    pump: RefCell<Option<Waker>>,
    /// The number of requests sent: when it rises, the pump polls fast again.
    sent: Cell<u64>,
}

/// A request in flight, which is withdrawn when this is dropped.
struct PendingRequest<'a> {
    client: &'a EngineClient,
    ticket: Ticket,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.client.frontend.borrow().cancel(self.ticket);
    }
}

impl EngineClient {
    /// Takes over `frontend`; `metrics` counts requests and answers. One task must run
    /// [`EngineClient::pump`], on a thread that waits as `idle` says.
    pub(in crate::api) fn new(frontend: Frontend, metrics: Rc<Metrics>, idle: Idle) -> EngineClient {
        let waiting = (0..frontend.capacity()).map(|_| None).collect();
        EngineClient {
            frontend: VitalCell::new(frontend),
            metrics,
            idle,
            waiting: RefCell::new(waiting),
            pump: RefCell::new(None),
            sent: Cell::new(0),
        }
    }

    /// Returns the flag that is set once a panic has left the frontend half changed.
    pub(in crate::api) fn broken(&self) -> Rc<Cell<bool>> {
        self.frontend.broken()
    }

    /// Returns the served models. Each accepts requests for as long as the result is held.
    pub(in crate::api) fn models(&self) -> Arc<[ModelInfo]> {
        let mut frontend = self.frontend.borrow();
        let models = Arc::clone(frontend.newest_models());
        frontend.take_replaced_models().for_each(|model| self.metrics.forget(model));
        models
    }

    /// Returns the reason for which this model is not served, if it was withdrawn for a fault; of
    /// any version if none is given.
    pub(in crate::api) fn withdrawal(&self, name: &str, version: &str) -> Option<String> {
        let withdrawn = self.frontend.borrow().model_table().withdrawn();
        let is_meant = |of: &Withdrawal| {
            of.name == name && (version.is_empty() || version.parse::<u64>() == Ok(of.version))
        };
        withdrawn.into_iter().find(is_meant).map(|of| of.reason)
    }

    /// Returns the versions that were withdrawn for a fault.
    pub(in crate::api) fn withdrawn(&self) -> Vec<Withdrawal> {
        self.frontend.borrow().model_table().withdrawn()
    }

    /// Returns the number of requests sent and not yet answered, withdrawn ones included.
    pub(in crate::api) fn in_flight(&self) -> usize {
        self.frontend.borrow().in_flight()
    }

    /// Returns the most rows that a request for this model may have.
    pub(in crate::api) fn most_rows(&self, model: ModelId) -> usize {
        self.frontend.borrow().most_rows(model)
    }

    /// Submits a request as [`Frontend::submit`] does and waits for its answer. Dropping the
    /// future, as when the client has left, withdraws the request.
    ///
    /// Errors: a [`Refusal`], at once, or when requests are cut off.
    pub(in crate::api) async fn ask(
        &self,
        ask: &Ask,
        fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<EngineReply, Refusal> {
        let ticket = {
            let mut frontend = self.frontend.borrow();
            let ticket = frontend.submit(ask, fill);
            frontend.take_replaced_models().for_each(|model| self.metrics.forget(model));
            ticket?
        };
        self.metrics.accepted(ask.model);
        let (sender, receiver) = oneshot::channel();
        self.waiting.borrow_mut()[ticket.index] = Some(sender);
        self.sent.set(self.sent.get() + 1);
        self.wake_pump();
        // After the answer, a withdrawal has no effect.
        let _cancelled_if_dropped = PendingRequest { client: self, ticket };
        // The pump answers every request; only a cut-off lets go of a sender before.
        receiver.await.map_err(|_| self.frontend.borrow().refusal())
    }

    /// Delivers answers until it is dropped. One task of the core runs it.
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

    /// Ends the waiting for all answers with a [`Refusal`], and returns the number of requests.
    pub(in crate::api) fn cut_off(&self) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        waiting.iter_mut().filter_map(Option::take).filter(|waiter| !waiter.is_canceled()).count()
    }

    /// Returns true if the engine can't go on.
    pub(in crate::api) fn has_fault(&self) -> bool {
        self.frontend.borrow().faults().get().is_some()
    }

    fn deliver(&self) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let mut frontend = self.frontend.borrow();
        let delivered = frontend.poll(|ticket, answer| {
            self.metrics.answered(&answer, answer.slo);
            let waiter = waiting[ticket.index].take();
            if let Some(waiter) = waiter.filter(|w| !w.is_canceled()) {
                // Sending fails only if the receiver was dropped, which needs no answer.
                let _ = waiter.send(EngineReply::keep(answer));
            }
        });
        frontend.take_replaced_models().for_each(|model| self.metrics.forget(model));
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
