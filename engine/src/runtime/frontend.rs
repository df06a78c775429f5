//! The frontend's end of the engine: a [`Frontend`] puts a request's input into its slab, sends the request
//! to the thread that owns its model, and hands each answer out once. It is owned by one thread (an API
//! core, a load generator) and never blocks: what does not fit is refused at once.

use super::reserve::Reserve;
use crate::clock::{Clock, Nanos};
use crate::limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use symphony_gpu::signature::Signature;
use symphony_transport::message::{Ending, GpuId, ModelId, Request, Response};
use symphony_transport::ring::{Consumer, Producer, ring};
use symphony_transport::slab::{Slab, SlabError, SlabOwner, SlabView, SlotClass};

/// Hops of an answer on its way back: the frontend's poll, and what its thread does before it sends.
const HOPS_OF_AN_ANSWER: u64 = 2;

/// What a frontend knows of a model that it may send requests to.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Its index in the engine.
    pub id: ModelId,
    /// Its name in the configuration.
    pub name: String,
    /// Which version of that name it is.
    pub version: u64,
    /// What runs it, in the API's words: `onnx_rten` or `emulated`.
    pub platform: String,
    /// Its tensors, one row of each.
    pub signature: Signature,
    /// The latency promised, arrival to answer.
    pub slo: Nanos,
    /// The largest batch it runs.
    pub max_batch: usize,
    /// Which ModelThread owns it.
    pub thread: usize,
}

/// Names a request between [`Frontend::submit`] and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket {
    /// Below [`Frontend::capacity`], no two requests in flight share it: an index for side tables.
    pub index: usize,
    /// Unique in the frontend's life.
    pub id: u64,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Every slot, or the ring to the model's thread, is full.
    #[error("the engine is overloaded: every slot for requests in flight is taken; try again later")]
    Overloaded,
    /// The engine is shutting down.
    #[error("the engine is shutting down and accepts no more requests")]
    Draining,
}

/// How an accepted request ended, as its client should see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// In time.
    Good,
    /// It ran, but the answer came this long after the deadline.
    Late(Nanos),
    /// It did not run, or failed; never [`Ending::Done`].
    Bad(Ending),
}

/// An answer, on loan while it is handed out.
#[derive(Debug)]
pub struct Answer<'a> {
    /// How it ended.
    pub outcome: Outcome,
    /// The output row in the layout of [`Signature`]; empty unless it ran.
    pub output: &'a [u8],
    /// The model it was for.
    pub model: ModelId,
    /// When it was accepted.
    pub arrival: Nanos,
    /// When the answer was due: arrival + the tighter of SLO and the client's own time-out.
    pub due: Nanos,
    /// When its batch was put together, started and finished; zero where it did not come to that.
    pub batched: Nanos,
    /// See `batched`.
    pub started: Nanos,
    /// See `batched`; for a dropped request, when it was dropped.
    pub finished: Nanos,
    /// When the answer reached this frontend.
    pub answered: Nanos,
    /// Its batch's size, zero if it was in none.
    pub batch_size: u32,
    /// The GPU that its batch was sent to.
    pub gpu: GpuId,
}

/// The engine's ends of a frontend's rings and slab: [`Frontend::new`] makes them, the engine's threads take them.
pub struct FrontendPeer {
    /// One per ModelThread: the requests for its models.
    pub requests: Vec<Consumer<Request>>,
    /// One per thread that can end a request. Each holds as many as can be in flight, so it is never full.
    pub responses: Vec<Producer<Response>>,
    /// Access to the slots that requests name.
    pub slab: SlabView,
}

/// What a new [`Frontend`] needs to know.
pub struct FrontendSetup {
    /// Its number: the index that requests carry and answers are routed by.
    pub id: u32,
    /// The engine's clock.
    pub clock: Clock,
    /// Every model of the engine, by id.
    pub models: Arc<[ModelInfo]>,
    /// How many ModelThreads there are.
    pub model_threads: usize,
    /// How many threads can end a request: ModelThreads and backends.
    pub answering_threads: usize,
    /// Requests that may be in flight at once.
    pub capacity: usize,
    /// What an answer takes back to the client, d_resp, at the least; the frontend measures what it really takes.
    pub result_delay: Nanos,
    /// How late this machine's threads see that a time has come, as measured at start-up.
    pub lateness: Nanos,
    /// Cleared when the engine drains.
    pub accepting: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Default)]
struct InFlight {
    id: u64,
    model: ModelId,
    arrival: Nanos,
    due: Nanos,
    /// The deadline that the scheduler was given.
    deadline: Nanos,
}

/// The frontend's end. See the module's description.
pub struct Frontend {
    id: u32,
    clock: Clock,
    models: Arc<[ModelInfo]>,
    /// For each model, what is taken off its deadlines.
    reserves: Vec<Reserve>,
    accepting: Arc<AtomicBool>,
    slab: SlabOwner,
    view: SlabView,
    requests: Vec<Producer<Request>>,
    responses: Vec<Consumer<Response>>,
    in_flight: Vec<InFlight>,
    next_id: u64,
}

impl Frontend {
    /// A frontend and the engine's ends of it.
    ///
    /// Slots come in one class per distinct row size (input and output together, rounded up to a power of
    /// two); each class has `setup.capacity` slots or as many as its share of
    /// [`crate::limits::MAX_SLAB_BYTES`] holds.
    ///
    /// Errors: the machine has no memory for the slots.
    pub fn new(setup: FrontendSetup) -> Result<(Frontend, FrontendPeer), SlabError> {
        let (slab, view) = Slab::new(&slot_classes(&setup.models, setup.capacity), setup.id as u16)?;
        let (request_producers, request_consumers) =
            (0..setup.model_threads).map(|_| ring(limits::REQUEST_RING)).unzip();
        let (response_producers, response_consumers) =
            (0..setup.answering_threads).map(|_| ring(slab.capacity())).unzip();
        let least_reserve = setup.result_delay + Nanos(setup.lateness.0 * HOPS_OF_AN_ANSWER);
        let frontend = Frontend {
            id: setup.id,
            clock: setup.clock,
            reserves: setup.models.iter().map(|model| Reserve::new(least_reserve, model.slo)).collect(),
            models: setup.models,
            accepting: setup.accepting,
            in_flight: vec![InFlight::default(); slab.capacity()],
            slab,
            view: view.clone(),
            requests: request_producers,
            responses: response_consumers,
            next_id: 0,
        };
        Ok((
            frontend,
            FrontendPeer { requests: request_consumers, responses: response_producers, slab: view },
        ))
    }

    /// Every model of the engine, by id.
    pub fn models(&self) -> &Arc<[ModelInfo]> {
        &self.models
    }

    /// The engine's time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// Tickets' indices are below this.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Requests accepted and not yet answered.
    pub fn in_flight(&self) -> usize {
        self.slab.in_use()
    }

    /// Whether new requests are taken.
    pub fn accepting(&self) -> bool {
        self.accepting.load(Ordering::Relaxed)
    }

    /// Sends one request. `fill` writes the input row, in the layout of the model's [`Signature`], straight
    /// into the slot (`signature.input_bytes()` long, its old content undefined). The answer is due after the
    /// model's SLO or after `timeout`, whichever is less.
    ///
    /// Errors: a [`Refusal`]; the request then leaves no trace.
    pub fn submit(
        &mut self,
        model: ModelId,
        timeout: Option<Nanos>,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Ticket, Refusal> {
        if !self.accepting() {
            return Err(Refusal::Draining);
        }
        let info = &self.models[model.0 as usize];
        let input_bytes = info.signature.input_bytes();
        let row_bytes = input_bytes + info.signature.output_bytes();
        let ring = &mut self.requests[info.thread];
        if !ring.has_room(1) {
            return Err(Refusal::Overloaded);
        }
        let slot = self.slab.alloc(row_bytes).ok_or(Refusal::Overloaded)?;
        {
            let mut guard = self.view.claim(slot).expect("a slot just taken is held by nobody else");
            fill(&mut guard[..input_bytes]);
        }
        let arrival = self.clock.now();
        let due = arrival + timeout.map_or(info.slo, |t| t.min(info.slo));
        let id = self.next_id;
        self.next_id += 1;
        let index = self.slab.index(slot);
        let deadline = due - self.reserves[model.0 as usize].get();
        let reserve = due - deadline;
        self.in_flight[index] = InFlight { id, model, arrival, due, deadline };
        let request =
            Request { id, slot, arrival, deadline, reserve, model, frontend: self.id, ..Request::default() };
        ring.push(request).expect("room was seen, and this is the only producer");
        Ok(Ticket { index, id })
    }

    /// Hands out every answer that has come, each exactly once, and returns how many there were.
    pub fn poll(&mut self, mut deliver: impl FnMut(Ticket, Answer<'_>)) -> usize {
        let mut delivered = 0;
        for at in 0..self.responses.len() {
            while let Some(response) = self.responses[at].pop() {
                self.deliver(response, &mut deliver);
                delivered += 1;
            }
        }
        delivered
    }

    fn deliver(&mut self, response: Response, deliver: &mut impl FnMut(Ticket, Answer<'_>)) {
        let index = self.slab.index(response.slot);
        let InFlight { id, model, arrival, due, deadline } = self.in_flight[index];
        debug_assert_eq!(id, response.id, "an answer for a request that is not in flight");
        let answered = self.clock.now();
        let ending = Ending::from_code(response.ending).unwrap_or(Ending::Failed);
        let outcome = match ending {
            Ending::Done if answered <= due => Outcome::Good,
            Ending::Done => Outcome::Late(answered - due),
            other => Outcome::Bad(other),
        };
        let reserve = &mut self.reserves[model.0 as usize];
        match ending {
            Ending::Done => reserve.observe(answered - deadline),
            // The backend tells by when it should have started: as late as it was, its answer would have been.
            Ending::DroppedAtBackend => {
                reserve.observe((due - deadline) + (response.finished - response.started));
            }
            _ => {}
        }
        {
            let signature = &self.models[model.0 as usize].signature;
            let (from, to) = (signature.input_bytes(), signature.input_bytes() + signature.output_bytes());
            let guard = self.view.claim(response.slot).expect("the backend let go of the slot");
            let output = if ending == Ending::Done { &guard[from..to] } else { &[] };
            let answer = Answer {
                outcome,
                output,
                model,
                arrival,
                due,
                batched: response.batched,
                started: if ending == Ending::Done { response.started } else { Nanos::ZERO },
                finished: response.finished,
                answered,
                batch_size: response.batch_size,
                gpu: response.gpu,
            };
            deliver(Ticket { index, id }, answer);
        }
        self.slab.free(response.slot);
    }
}

fn slot_classes(models: &[ModelInfo], capacity: usize) -> Vec<SlotClass> {
    let mut sizes: Vec<usize> = models
        .iter()
        .map(|m| (m.signature.input_bytes() + m.signature.output_bytes()).next_power_of_two().max(64))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let share = limits::MAX_SLAB_BYTES / sizes.len().max(1);
    sizes
        .into_iter()
        .map(|slot_bytes| SlotClass { slot_bytes, count: capacity.min(share / slot_bytes).max(1) })
        .collect()
}
