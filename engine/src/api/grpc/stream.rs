//! `ModelStreamInfer`: many requests and their answers over one call, in the order in which the
//! answers are ready or, where the client asks for it, in that of the requests. The whole call is
//! the response's body, so when the client resets the stream or disconnects, all its state is
//! dropped and its queued requests are withdrawn. Messages are unpacked and read one at a time,
//! while earlier requests run, and wait where there is no memory for them. No more requests are
//! read from a client that does not take its answers.

use super::framing::Envelope;
use super::infer::infer;
use super::message_reader::{InferMessage, infer_message};
use super::messages::infer_parameter::ParameterChoice;
use super::messages::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};
use super::status::{GrpcCode, GrpcStatus};
use crate::api::inference::RequestDeadline;
use crate::api::net::memory::{MemoryLease, ReadBounds};
use crate::api::net::peer::Peer;
use crate::api::net::response::ResponseBody;
use crate::api::net::slices::Slices;
use crate::api::problem::Problem;
use crate::api::services::CoreServices;
use crate::api::services::access::Caller;
use crate::telemetry::otlp::Parent;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesOrdered, FuturesUnordered, Stream as _};
use glommio::timer::Timer;
use http_body::{Body, Frame};
use hyper::StatusCode;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The parameter of a stream's first request, and in other form its metadata
/// ([`STREAM_ORDER`](crate::api::headers::STREAM_ORDER)), by which a client asks for answers in the
/// order of its requests.
const ORDERED: &str = "symphony_ordered";

/// A message that is being unpacked and read.
type Opening = Pin<Box<dyn Future<Output = Result<(InferMessage, ReadBounds), Problem>>>>;

/// The client of a stream, and the metadata that apply to each of its requests.
pub(super) struct StreamClient {
    /// The caller that opened it.
    pub(super) caller: Caller,
    /// The connection's client.
    pub(super) peer: Peer,
    /// True if answers come in the order of the requests.
    pub(super) ordered: bool,
    /// The deadline header, which applies to each request.
    pub(super) deadline: Option<Vec<u8>>,
    /// The header `X-Application`, which holds for each of its requests that names no other.
    pub(super) application: Option<Vec<u8>>,
    /// The span that the requests belong to.
    pub(super) span: Option<Parent>,
}

/// A request that runs, and ends with its message and the memory that counts it until it is taken.
type RunningRequest = Pin<Box<dyn Future<Output = (Bytes, Option<MemoryLease>)>>>;

/// The requests that run, by the order of their answers.
enum RunningRequests {
    /// Answers come as they are ready.
    AsReady(FuturesUnordered<RunningRequest>),
    /// Answers come in the order of the requests; those that are ready early count as running.
    InOrder(FuturesOrdered<RunningRequest>),
}

impl RunningRequests {
    fn new(ordered: bool) -> RunningRequests {
        match ordered {
            false => RunningRequests::AsReady(FuturesUnordered::new()),
            true => RunningRequests::InOrder(FuturesOrdered::new()),
        }
    }

    fn len(&self) -> usize {
        match self {
            RunningRequests::AsReady(all) => all.len(),
            RunningRequests::InOrder(all) => all.len(),
        }
    }

    fn push(&mut self, request: RunningRequest) {
        match self {
            RunningRequests::AsReady(all) => all.push(request),
            RunningRequests::InOrder(all) => all.push_back(request),
        }
    }

    /// Returns the next answer; `Ready(None)` if nothing runs.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = match self {
            RunningRequests::AsReady(all) => Pin::new(all).poll_next(cx),
            RunningRequests::InOrder(all) => Pin::new(all).poll_next(cx),
        };
        next.map(|answer| answer.map(|(message, _memory)| message))
    }
}

/// The call, as its response's body.
struct InferStream {
    services: Rc<CoreServices>,
    /// The stream's number among those of the core.
    number: u64,
    envelope: Envelope,
    client: Rc<StreamClient>,
    /// The bytes to come; `None` once the client has sent all, or something invalid.
    incoming: Option<Incoming>,
    /// The bytes of the next message so far.
    buffer: BytesMut,
    /// The memory of the buffer.
    memory: MemoryLease,
    /// Bytes that wait for memory until a running request ends.
    waiting: Option<Bytes>,
    /// The message that is being read; one at a time.
    opening: Option<Opening>,
    running: RunningRequests,
    /// True until the first request has been read.
    first: bool,
    /// The problem that ends the call, if any.
    problem: Option<Problem>,
    idle: Option<Timer>,
    ended: bool,
}

/// Returns the body of a call's response.
pub(super) fn body(
    services: Rc<CoreServices>,
    incoming: Incoming,
    envelope: Envelope,
    client: StreamClient,
) -> ResponseBody {
    ResponseBody::stream(Box::pin(InferStream {
        memory: services.bodies.lease(&client.peer.in_flight),
        waiting: None,
        opening: None,
        number: services.idle_streams.number(),
        services,
        envelope,
        running: RunningRequests::new(client.ordered),
        first: true,
        client: Rc::new(client),
        incoming: Some(incoming),
        buffer: BytesMut::new(),
        problem: None,
        idle: None,
        ended: false,
    }))
}

impl InferStream {
    /// Reads the bytes that have come, as far as another request may run and there is memory, and
    /// starts the requests in them.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<(), Problem> {
        loop {
            if let Some(opening) = &mut self.opening {
                let Poll::Ready(opened) = opening.as_mut().poll(cx) else { return Ok(()) };
                self.opening = None;
                let (message, bounds) = opened?;
                if std::mem::take(&mut self.first) && asks_for_order(&message.request)? {
                    self.running = RunningRequests::new(true);
                }
                self.start(message, bounds);
            }
            if !self.has_room() {
                return Ok(());
            }
            if self.next_message()? {
                continue;
            }
            let Poll::Ready(data) = self.poll_data(cx)? else { return Ok(()) };
            let Some(data) = data else { return Ok(()) };
            self.services.bodies.check_length(self.buffer.len(), data.len())?;
            match self.memory.grow(data.len()) {
                Ok(()) => self.buffer.extend_from_slice(&data),
                Err(problem) if self.running.len() == 0 => return Err(problem),
                Err(_) => {
                    self.waiting = Some(data);
                    return Ok(());
                }
            }
        }
    }

    /// Returns the next bytes, none at the end of the client's side.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Result<Poll<Option<Bytes>>, Problem> {
        if let Some(data) = self.waiting.take() {
            return Ok(Poll::Ready(Some(data)));
        }
        let Some(incoming) = &mut self.incoming else { return Ok(Poll::Ready(None)) };
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(cx) else { return Ok(Poll::Pending) };
        match frame {
            Some(Ok(frame)) => Ok(Poll::Ready(Some(frame.into_data().unwrap_or_default()))),
            Some(Err(error)) => Err(Problem::bad(format!("the stream broke off: {error}"))),
            None if self.buffer.is_empty() => {
                self.incoming = None;
                Ok(Poll::Ready(None))
            }
            None => Err(Problem::bad("the stream ends in the midst of a message")),
        }
    }

    /// Returns true if another request may run. Each stream may have one, whatever the other
    /// streams of its connection have.
    fn has_room(&self) -> bool {
        let limit = self.services.max_requests_at_once;
        self.running.len() == 0 || self.running.len().max(self.client.peer.requests_in_flight()) < limit
    }

    /// Begins to read the first message in the buffer if it is complete, and returns true if it
    /// was.
    fn next_message(&mut self) -> Result<bool, Problem> {
        let limit = self.services.bodies.max_body_bytes();
        let Some(length) = Envelope::length(&self.buffer) else { return Ok(false) };
        if length > limit {
            let message = format!("a message of {length} bytes was announced; the limit is {limit}");
            return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        if self.buffer.len() < length {
            return Ok(false);
        }
        let packed = self.buffer.split_to(length).freeze();
        let mut bounds = ReadBounds::new(limit, self.memory.split(length));
        let envelope = self.envelope;
        self.opening = Some(Box::pin(async move {
            let message = envelope.open(packed, &mut bounds).await?;
            let message = infer_message(message, &mut bounds).await?;
            Ok((message, bounds))
        }));
        Ok(true)
    }

    /// Starts the request of a message.
    fn start(&mut self, message: InferMessage, bounds: ReadBounds) {
        let (services, envelope, client) = (self.services.clone(), self.envelope, self.client.clone());
        let in_flight = client.peer.in_flight.clone();
        self.running.push(Box::pin(async move {
            let id = message.request.id.clone();
            let _until_answered = in_flight;
            match run(&services, &client, message, bounds).await {
                Ok((response, memory)) => {
                    (envelope.seal_answer(response, true, &Slices::on_core()).await, Some(memory))
                }
                Err(problem) => {
                    let infer_response = Some(ModelInferResponse { id, ..ModelInferResponse::default() });
                    let error_message = problem.message;
                    (envelope.seal(&ModelStreamInferResponse { error_message, infer_response }), None)
                }
            }
        }));
    }

    /// Stops reading; the requests in flight are still answered.
    fn give_up(&mut self, problem: Problem) {
        self.incoming = None;
        self.waiting = None;
        self.opening = None;
        self.buffer = BytesMut::new();
        self.memory.shrink(self.memory.held());
        self.problem = Some(problem);
    }

    fn trailers(&self) -> Frame<Bytes> {
        let good = GrpcStatus { code: GrpcCode::Ok, message: "", outcome: None, again: None };
        let status = self.problem.as_ref().map_or(good, GrpcStatus::of);
        Frame::trailers(status.trailers())
    }
}

/// Returns true if the first request of a stream asks for answers in the order of the requests.
///
/// Errors: 400 if the parameter is neither true nor false.
fn asks_for_order(first: &ModelInferRequest) -> Result<bool, Problem> {
    let Some(parameter) = first.parameters.get(ORDERED) else { return Ok(false) };
    match parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(ordered)) => Ok(ordered),
        _ => Err(Problem::bad(format!("parameters.{ORDERED} must be true or false, a bool_param"))),
    }
}

async fn run(
    services: &CoreServices,
    client: &StreamClient,
    message: InferMessage,
    bounds: ReadBounds,
) -> Result<(ModelInferResponse, MemoryLease), Problem> {
    let caller = client.caller.renewed()?;
    caller.count()?;
    let mut deadline = RequestDeadline::new();
    client.deadline.as_ref().map_or(Ok(()), |value| deadline.deadline_header(value))?;
    client.application.as_ref().map_or(Ok(()), |value| deadline.application_header(value))?;
    infer(services, &caller, message, deadline, client.span.clone(), bounds).await
}

impl Drop for InferStream {
    fn drop(&mut self) {
        self.services.idle_streams.forget(self.number);
    }
}

impl Body for InferStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        if this.ended {
            return Poll::Ready(None);
        }
        if let Err(problem) = this.read(cx) {
            this.give_up(problem);
        }
        if let Poll::Ready(Some(message)) = this.running.poll_next(cx) {
            this.idle = None;
            // Another request may run now.
            cx.waker().wake_by_ref();
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if this.running.len() > 0 || this.opening.is_some() {
            this.idle = None;
            return Poll::Pending;
        }
        if this.incoming.is_some() {
            let message = if this.services.idle_streams.is_stopping(this.number, cx) {
                "the server is shutting down".to_owned()
            } else {
                let limit = this.services.stream_idle_timeout;
                let idle = this.idle.get_or_insert_with(|| Timer::new(limit));
                ready!(Pin::new(idle).poll(cx));
                format!("nothing was asked on the stream for {limit:?}; open another")
            };
            this.give_up(Problem::invalid(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        this.ended = true;
        Poll::Ready(Some(Ok(this.trailers())))
    }
}
