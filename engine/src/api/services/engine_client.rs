//! The way from the connections of one API core to its [`Frontend`]: [`EngineClient::reserve`]
//! takes the slots of a request, which is then written, sent and waited for; one
//! [`EngineClient::pump`] task polls the frontend and wakes the waiting tasks. All run on one
//! thread.
//!
//! The engine answers through rings in memory, on which no task can sleep. On a core of its own the
//! pump polls them every microsecond, between polls of the sockets. Where threads share cores it
//! sleeps until a doorbell rings, and for at most 5 ms, as a request may be overdue. Where some
//! threads of the engine spin, which ring no bell, it polls every 10 us for a while after an event,
//! and then every 0.1 ms, which takes an eighth of a core. Between polls it sleeps on a timer, so
//! that sockets are served and other threads run. With no request in flight it sleeps until a
//! request is sent, for at most 50 ms, as the served models may change.

use crate::api::net::core_tasks::CoreTasks;
use crate::api::net::glommio_io::within;
use crate::api::net::handler_panics::VitalCell;
use crate::api::net::memory::MemoryLease;
use crate::api::net::slices::{COPIED_PER_PARSED, SLICE_BYTES, Slices};
use crate::runtime::Idle;
use crate::runtime::frontend::{
    Answer, Ask, Frontend, KeptOutput, ModelInfo, Outcome, Refusal, SlotReservation, Ticket, Timeline,
    Withdrawal,
};
use crate::telemetry::Metrics;
use futures_channel::oneshot;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;
use symphony_transport::Nanos;
use symphony_transport::doorbell::Sleeper;
use symphony_transport::message::{GpuId, ModelId};
use symphony_transport::slab::{SlabView, SlotGuard, SlotId};

/// Empty polls in a row before the pump slows down.
const FAST_POLLS: u32 = 20;

/// The pause between polls on a core of the thread's own.
const SPIN_POLL: Duration = Duration::from_micros(1);

/// The pause between fast polls.
const FAST_POLL: Duration = Duration::from_micros(10);

/// The pause between slow polls.
const SLOW_POLL: Duration = Duration::from_micros(100);

/// The longest sleep until a doorbell rings: requests that are overdue are ended this much later at
/// most.
const LONGEST_SLEEP: Duration = Duration::from_millis(5);

/// The pause between polls while no request is in flight: the frontend must refresh the served
/// models.
const IDLE_POLL: Duration = Duration::from_millis(50);

/// The most bytes of outputs that one poll copies; larger ones are copied by tasks in slices.
const COPIED_AT_ONCE: usize = SLICE_BYTES * COPIED_PER_PARSED;

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
    fn of(answer: &Answer<'_>, output: Vec<u8>) -> EngineReply {
        EngineReply {
            outcome: answer.outcome,
            output,
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
    waiting: RefCell<Vec<Option<WaitingTask>>>,
    pump: RefCell<Option<Waker>>,
    /// The slots' bytes.
    view: SlabView,
    /// The slots that no task holds any more, until the frontend takes them back.
    returned: Rc<RefCell<Vec<SlotId>>>,
    /// The longest sleep until a doorbell rings.
    longest_sleep: Duration,
    /// The number of requests sent: when it rises, the pump polls fast again.
    sent: Cell<u64>,
}

/// Slots that a task holds; they come back when this is dropped.
struct HeldSlots {
    slots: Vec<SlotId>,
    returned: Rc<RefCell<Vec<SlotId>>>,
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        self.returned.borrow_mut().append(&mut self.slots);
    }
}

/// A request whose slots are taken and whose rows are being written.
pub(in crate::api) struct ReservedRequest<'a> {
    client: &'a EngineClient,
    reservation: SlotReservation,
    held: HeldSlots,
}

/// A task that waits for an answer, and the budget that the answer's output counts against.
struct WaitingTask {
    sender: oneshot::Sender<CountedReply>,
    memory: MemoryLease,
}

/// An answer, with the memory that counts its output.
pub(in crate::api) type CountedReply = (EngineReply, MemoryLease);

/// A large output that is still in its slots, and the task that waits for it.
struct LargeOutput {
    held: HeldSlots,
    range: Range<usize>,
    reply: EngineReply,
    waiter: WaitingTask,
}

impl WaitingTask {
    /// Hands over the answer. That fails only if the task was dropped, which needs none.
    fn answer(self, reply: EngineReply) {
        let _ = self.sender.send((reply, self.memory));
    }
}

/// A request in flight, which is withdrawn when this is dropped.
pub(in crate::api) struct PendingRequest<'a> {
    client: &'a EngineClient,
    ticket: Ticket,
    reply: oneshot::Receiver<CountedReply>,
}

impl<'a> ReservedRequest<'a> {
    /// Returns the slot of row `at`, whose old content is undefined.
    pub(in crate::api) fn row(&mut self, at: usize) -> SlotGuard<'_> {
        self.client.view.claim(self.held.slots[at]).expect("a slot just taken has no other holder")
    }

    /// Sends the request, whose rows are written. `memory` counts the answer's output from the time
    /// at which it comes.
    ///
    /// Errors: a [`Refusal`].
    pub(in crate::api) fn send(mut self, memory: MemoryLease) -> Result<PendingRequest<'a>, Refusal> {
        let client = self.client;
        let ticket = client.frontend.borrow().send_reserved(&self.reservation)?;
        self.held.slots.clear();
        client.metrics.accepted(self.reservation.model());
        let (sender, reply) = oneshot::channel();
        client.waiting.borrow_mut()[ticket.index] = Some(WaitingTask { sender, memory });
        client.sent.set(client.sent.get() + 1);
        client.wake_pump();
        Ok(PendingRequest { client, ticket, reply })
    }
}

impl PendingRequest<'_> {
    /// Waits for the answer. Dropping the request, as when the client has left, withdraws it; after
    /// the answer that has no effect.
    ///
    /// Errors: a [`Refusal`] when requests are cut off.
    pub(in crate::api) async fn answer(mut self) -> Result<CountedReply, Refusal> {
        // The pump answers every request; only a cut-off lets go of a sender before.
        (&mut self.reply).await.map_err(|_| self.client.frontend.borrow().refusal())
    }
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
            view: frontend.slab_view().clone(),
            returned: Rc::default(),
            frontend: VitalCell::new(frontend),
            metrics,
            idle,
            waiting: RefCell::new(waiting),
            pump: RefCell::new(None),
            longest_sleep: LONGEST_SLEEP,
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

    /// Returns the engine's time.
    pub(in crate::api) fn now(&self) -> Nanos {
        self.frontend.borrow().clock().now()
    }

    /// Returns the number of requests sent and not yet answered, withdrawn ones included.
    pub(in crate::api) fn in_flight(&self) -> usize {
        self.frontend.borrow().in_flight()
    }

    /// Returns the most rows that a request for this model may have.
    pub(in crate::api) fn most_rows(&self, model: ModelId) -> usize {
        self.frontend.borrow().most_rows(model)
    }

    /// Takes the slots for a request, whose rows the caller then writes. It holds the model
    /// ([`EngineClient::models`]) until the request is sent.
    ///
    /// Errors: a [`Refusal`].
    pub(in crate::api) fn reserve(&self, ask: &Ask) -> Result<ReservedRequest<'_>, Refusal> {
        let mut reservation = {
            let mut frontend = self.frontend.borrow();
            frontend.release(self.returned.borrow_mut().drain(..));
            let reservation = frontend.reserve(ask);
            frontend.take_replaced_models().for_each(|model| self.metrics.forget(model));
            reservation?
        };
        let held = self.held(std::mem::take(&mut reservation.slots));
        Ok(ReservedRequest { client: self, reservation, held })
    }

    fn held(&self, slots: Vec<SlotId>) -> HeldSlots {
        HeldSlots { slots, returned: self.returned.clone() }
    }

    /// Delivers answers until it is dropped. One task of the core runs it, and `tasks` those that
    /// copy large outputs.
    pub(in crate::api) async fn pump(&self, tasks: &Rc<CoreTasks>) {
        let (mut empty, mut sent, mut large) = (0, 0, Vec::new());
        let sleeper = self.frontend.borrow().bells().sleeper();
        loop {
            if self.in_flight() == 0 {
                let _ = within(IDLE_POLL, self.request_sent(&mut sent)).await;
                empty = 0;
            }
            if let Some(sleeper) = &sleeper {
                announce(sleeper).await;
            }
            let delivered = self.deliver(&mut large);
            large.drain(..).for_each(|output| self.copy(output, tasks));
            if let Some(sleeper) = &sleeper {
                let _ = within(self.longest_sleep, rung(sleeper)).await;
                continue;
            }
            if delivered > 0 || sent != self.sent.get() {
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
        waiting.iter_mut().filter_map(Option::take).filter(|waiter| !waiter.sender.is_canceled()).count()
    }

    /// Returns true if the engine can't go on.
    pub(in crate::api) fn has_fault(&self) -> bool {
        self.frontend.borrow().faults().get().is_some()
    }

    /// Takes the answers that have come and returns their number. The tasks that wait for them get
    /// them, but for those with outputs that are still to be copied, which go to `large`.
    fn deliver(&self, large: &mut Vec<LargeOutput>) -> usize {
        let mut waiting = self.waiting.borrow_mut();
        let mut frontend = self.frontend.borrow();
        frontend.release(self.returned.borrow_mut().drain(..));
        let mut copied = 0;
        let delivered = frontend.poll(|ticket, answer| {
            self.metrics.answered(&answer, answer.slo);
            let waiter = waiting[ticket.index].take();
            let Some(mut waiter) = waiter.filter(|waiter| !waiter.sender.is_canceled()) else { return };
            waiter.memory.charge(answer.output_bytes());
            copied += answer.output_bytes();
            let kept = if copied > COPIED_AT_ONCE { answer.keep() } else { None };
            if let Some(KeptOutput { slots, range }) = kept {
                copied -= answer.output_bytes();
                let reply = EngineReply::of(&answer, Vec::new());
                return large.push(LargeOutput { held: self.held(slots), range, reply, waiter });
            }
            waiter.answer(EngineReply::of(&answer, answer.to_vec()));
        });
        frontend.take_replaced_models().for_each(|model| self.metrics.forget(model));
        delivered
    }

    /// Has a task of its own copy a large output in slices, whether the client reads or not, and
    /// answer then.
    #[cold]
    fn copy(&self, output: LargeOutput, tasks: &Rc<CoreTasks>) {
        let LargeOutput { held, range, mut reply, waiter } = output;
        let view = self.view.clone();
        let task = async move {
            reply.output = copied(&view, &held.slots, range, &Slices::on_core()).await;
            drop(held);
            waiter.answer(reply);
        };
        // A panic of it is one of the core.
        glommio::spawn_local(tasks.clone().measured(task)).detach();
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

/// Announces that the current task is about to sleep until a doorbell rings.
async fn announce(sleeper: &Sleeper) {
    poll_fn(|cx| {
        sleeper.announce(cx.waker());
        Poll::Ready(())
    })
    .await;
}

/// Waits until a doorbell has rung since the task was announced.
async fn rung(sleeper: &Sleeper) {
    poll_fn(|_| if sleeper.is_announced() { Poll::Pending } else { Poll::Ready(()) }).await;
}

/// Copies this part of each slot, in slices.
async fn copied(view: &SlabView, slots: &[SlotId], part: Range<usize>, slices: &Slices) -> Vec<u8> {
    let mut output = Vec::with_capacity(slots.len() * part.len());
    for &slot in slots {
        let row = view.claim(slot).expect("the backend has released the slot");
        slices.append(&row[part.clone()], &mut output).await;
    }
    output
}

#[cfg(test)]
mod tests;
