//! The KServe v2 protocol over gRPC: unary calls, multiplexed on a few HTTP/2 connections of hyper.
//! What gRPC adds to HTTP/2 for such calls is a frame of five bytes around each message, a header
//! with the time limit, and a status in the trailers.

pub(super) mod messages;

use super::call::Call;
use super::connection::{Failure, MAX_ANSWER_BYTES, MAX_RESENDS, broken, first_of, stream};
use super::describe::{DescribedTensor, Description};
use super::shared_memory::{OutputSlots, Region, RegionSlice};
use super::url::ServerUrl;
use super::wire::{Message, Reply, Wire, end_of};
use crate::loadgen::RunError;
use crate::loadgen::measure::{End, ServerDetails, StageTimes};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use hyper::{Method, Request, Uri};
use messages::*;
use prost::Message as _;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use symphony_transport::Nanos;
use tokio::task::spawn_local;

/// A frame's length of what comes before its message: whether it is compressed, and four bytes of
/// length.
const FRAME_HEAD: usize = 5;
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Flow control windows that no answer of a usual size has to wait for.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// gRPC's numbers for how a call ended.
mod code {
    pub(super) const OK: u32 = 0;
    pub(super) const DEADLINE_EXCEEDED: u32 = 4;
    pub(super) const NOT_FOUND: u32 = 5;
    pub(super) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(super) const UNIMPLEMENTED: u32 = 12;
    pub(super) const UNAVAILABLE: u32 = 14;
}

type GrpcSender = SendRequest<Full<Bytes>>;

/// Connections to the server, used in turn.
pub(super) struct Grpc {
    server: ServerUrl,
    address: SocketAddr,
    senders: RefCell<Vec<Option<GrpcSender>>>,
    /// The index of the connection for the next call.
    next: Cell<usize>,
}

impl Wire for Grpc {
    const NAME: &'static str = "grpc";
    const CONNECTIONS: usize = 8;

    fn in_flight_limit(_: usize) -> Option<usize> {
        None
    }

    async fn connect(server: &ServerUrl, connections: usize) -> Result<Grpc, RunError> {
        let (address, sender) = first_of(server, open).await?;
        let mut senders = vec![None; connections.max(1)];
        senders[0] = Some(sender);
        let (server, senders, next) = (server.clone(), RefCell::new(senders), Cell::new(0));
        Ok(Grpc { server, address, senders, next })
    }

    async fn open_ahead(&self) {
        let count = self.senders.borrow().len();
        for at in 0..count {
            // The run will meet what goes wrong again, and tell.
            drop(self.sender(at).await);
        }
    }

    async fn extensions(&self) -> Result<Vec<String>, RunError> {
        // Raw contents are part of the protocol itself.
        Ok(vec!["binary_tensor_data".into()])
    }

    async fn model_names(&self) -> Result<Vec<String>, RunError> {
        let answer = self.ask("RepositoryIndex", &RepositoryIndexRequest { ready: true }).await?;
        let index: RepositoryIndexResponse = answer.map_err(|status| {
            RunError::Usage(format!(
                "{} does not list its models ({status}); name them with --models",
                self.server
            ))
        })?;
        let mut names: Vec<String> = index.models.into_iter().map(|model| model.name).collect();
        names.dedup();
        Ok(names)
    }

    async fn describe(&self, model: &str) -> Result<Description, RunError> {
        let usage = |what| RunError::Usage(format!("model \"{model}\" of {}: {what}", self.server));
        let name = NameRequest { name: model.into() };
        let metadata: ModelMetadataResponse = self.ask("ModelMetadata", &name).await?.map_err(usage)?;
        let tensors = |list: Vec<TensorMetadata>| -> Vec<DescribedTensor> {
            let tensor = |TensorMetadata { name, datatype, shape }| DescribedTensor { name, datatype, shape };
            list.into_iter().map(tensor).collect()
        };
        let mut description =
            Description::new(&tensors(metadata.inputs), &tensors(metadata.outputs)).map_err(usage)?;
        if let Ok(ModelConfigResponse { config: Some(config) }) = self.ask("ModelConfig", &name).await? {
            let stated = config.parameters.get("slo_ms").and_then(|slo| slo.string_value.parse().ok());
            description.slo = stated.map(Nanos::from_millis_f64).filter(|&slo| slo > Nanos::ZERO);
        }
        Ok(description)
    }

    async fn register(&self, region: &Region) -> Result<(), RunError> {
        let request = SystemSharedMemoryRegisterRequest {
            name: region.name.clone(),
            key: region.key.clone(),
            offset: 0,
            byte_size: region.bytes as u64,
        };
        let answer: Result<Nothing, String> = self.ask("SystemSharedMemoryRegister", &request).await?;
        answer.map(drop).map_err(|status| {
            RunError::Usage(format!("{} does not take a shared memory region: {status}", self.server))
        })
    }

    async fn unregister(&self, region: &Region) {
        let request = NameRequest { name: region.name.clone() };
        drop(self.ask::<Nothing>("SystemSharedMemoryUnregister", &request).await);
    }

    fn encode(server: &ServerUrl, call: &Call<'_>) -> Result<Message, String> {
        let mut parameters = Parameters::new();
        if let Some(limit) = call.limit {
            let us = limit.0.div_ceil(1_000).max(1);
            parameters
                .insert("timeout".into(), InferParameter::integer(i64::try_from(us).unwrap_or(i64::MAX)));
        }
        if let Some(priority) = call.priority() {
            parameters.insert("priority".into(), InferParameter::integer(priority.into()));
        }
        let input = |(at, tensor): (usize, &crate::loadgen::inputs::Tensor)| InferInputTensor {
            name: tensor.name.clone(),
            datatype: tensor.element.name().into(),
            shape: tensor.shape.iter().map(|&dimension| dimension as i64).collect(),
            parameters: match &call.shared {
                Some(shared) => slice_parameters(shared.region, shared.slices[at]),
                None => HashMap::new(),
            },
        };
        let raw = if call.shared.is_none() { call.tensors } else { &[] };
        let request = ModelInferRequest {
            model_name: call.model.into(),
            parameters,
            inputs: call.tensors.iter().enumerate().map(input).collect(),
            outputs: Vec::new(),
            raw_input_contents: raw.iter().map(|tensor| tensor.data.clone()).collect(),
        };
        let uri = uri(server, "ModelInfer")?;
        Ok(Message { uri, body: framed(&[], &request), json_length: None, limit: call.limit })
    }

    fn with_outputs(message: &Message, region: &str, slots: &OutputSlots, slot: usize) -> Message {
        let output = |(name, slice): (&str, RegionSlice)| InferRequestedOutputTensor {
            name: name.into(),
            parameters: slice_parameters(region, slice),
        };
        let more = ModelInferRequest {
            outputs: slots.slices(slot).map(output).collect(),
            ..ModelInferRequest::default()
        };
        // Protocol buffers one after another are read as one message with the fields of both.
        Message { body: framed(&message.body[FRAME_HEAD..], &more), ..message.clone() }
    }

    async fn infer(&self, message: Message, on_send: impl FnOnce()) -> Result<Reply, Failure> {
        let answer = self.call(message, on_send).await?;
        let status = answer.status();
        let end = end_of(answer.outcome.as_deref(), || end_of_code(answer.code));
        let why = (end == End::Failed).then(|| status.err().unwrap_or_default());
        let details = if end == End::Good { details(&answer.body) } else { ServerDetails::default() };
        Ok(Reply { end, details, why })
    }
}

/// The parameters that name the slice of a shared memory region which holds a tensor.
fn slice_parameters(region: &str, RegionSlice { offset, bytes }: RegionSlice) -> Parameters {
    HashMap::from([
        ("shared_memory_region".into(), InferParameter::text(region)),
        ("shared_memory_offset".into(), InferParameter::integer(offset as i64)),
        ("shared_memory_byte_size".into(), InferParameter::integer(bytes as i64)),
    ])
}

fn uri(server: &ServerUrl, method: &str) -> Result<Uri, String> {
    let path = server.path(&format!("/inference.GRPCInferenceService/{method}"));
    format!("http://{}{path}", server.authority()).parse().map_err(|e| format!("no path for it: {e}"))
}

/// A frame of a message that is encoded already, and one more message merged into it.
pub(super) fn framed(encoded: &[u8], message: &impl prost::Message) -> Bytes {
    let length = encoded.len() + message.encoded_len();
    let mut frame = BytesMut::with_capacity(FRAME_HEAD + length);
    frame.put_u8(0);
    // What is longer than this is refused by every server long before.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.extend_from_slice(encoded);
    message.encode(&mut frame).expect("a buffer that grows has room");
    frame.freeze()
}

/// `grpc-timeout`: at most eight digits and a unit. Rounded up, but never to nothing.
fn timeout(limit: Nanos) -> HeaderValue {
    let us = limit.0.div_ceil(1_000).max(1);
    let text = match us {
        ..100_000_000 => format!("{us}u"),
        100_000_000..100_000_000_000 => format!("{}m", us.div_ceil(1_000)),
        _ => format!("{}S", us.div_ceil(1_000_000).min(99_999_999)),
    };
    HeaderValue::try_from(text).expect("digits and a letter are a header's value")
}

fn end_of_code(code: u32) -> End {
    match code {
        code::OK => End::Good,
        code::DEADLINE_EXCEEDED => End::Dropped,
        code::RESOURCE_EXHAUSTED | code::UNAVAILABLE => End::Rejected,
        _ => End::Failed,
    }
}

/// Returns the server's statements about the execution, from the answer's parameters.
fn details(body: &Bytes) -> ServerDetails {
    let Ok(response) = ModelInferResponse::decode(body.clone()) else { return ServerDetails::default() };
    let number = |name: &str| response.parameters.get(name).and_then(InferParameter::number);
    let instant = |name: &str| number(name).map(|us| Nanos((us * 1e3) as u64));
    let times = || {
        Some(StageTimes {
            queued: instant("queued_us")?,
            batched: instant("batched_us")?,
            started: instant("started_us")?,
            finished: instant("finished_us")?,
            answered: instant("answered_us")?,
        })
    };
    let batch_size = number("batch_size").map_or(0, |size| size as u32);
    ServerDetails { batch_size, gpu: number("gpu").map(|gpu| gpu as u32), times: times() }
}

/// The end of a call.
struct GrpcAnswer {
    code: u32,
    message: String,
    outcome: Option<String>,
    /// The message without its frame.
    body: Bytes,
}

impl GrpcAnswer {
    /// Returns the server's error where the call failed.
    fn status(&self) -> Result<(), String> {
        match self.code {
            code::OK => Ok(()),
            code::NOT_FOUND => Err(self.message.clone()),
            code::UNIMPLEMENTED => Err(format!("the server has no such call: {}", self.message)),
            code => Err(format!("gRPC status {code}: {}", self.message)),
        }
    }
}

impl Grpc {
    /// Asks for something that is not load. The inner error is the server's.
    async fn ask<A: prost::Message + Default>(
        &self,
        method: &str,
        request: &impl prost::Message,
    ) -> Result<Result<A, String>, RunError> {
        let uri = uri(&self.server, method).map_err(RunError::Usage)?;
        let message = Message { uri, body: framed(&[], request), json_length: None, limit: None };
        let answer = self.call(message, || ()).await;
        let answer = answer.map_err(|e| RunError::Unreachable(format!("{}: {}", self.server, e.reason)))?;
        Ok(answer.status().and_then(|()| {
            A::decode(answer.body).map_err(|e| format!("its answer to {method} makes no sense ({e})"))
        }))
    }

    /// Returns connection number `at`, opened if it is not.
    async fn sender(&self, at: usize) -> Result<GrpcSender, Failure> {
        let open_one = self.senders.borrow()[at].clone().filter(|sender| !sender.is_closed());
        if let Some(sender) = open_one {
            return Ok(sender);
        }
        let sender = open(self.address).await?;
        self.senders.borrow_mut()[at] = Some(sender.clone());
        Ok(sender)
    }

    async fn call(&self, message: Message, on_send: impl FnOnce()) -> Result<GrpcAnswer, Failure> {
        let mut next = request(message);
        let mut on_send = Some(on_send);
        for _ in 0..MAX_RESENDS {
            let connection = self.next.get();
            self.next.set((connection + 1) % self.senders.borrow().len());
            let mut sender = self.sender(connection).await?;
            if sender.ready().await.is_err() {
                continue;
            }
            on_send.take().into_iter().for_each(|on_send| on_send());
            match sender.try_send_request(next).await {
                Ok(response) => return read(response).await,
                // Nothing of it went out: the server had closed the connection. It goes over
                // another one.
                Err(mut error) => match error.take_message() {
                    Some(request) => next = request,
                    None => return Err(broken(error.error())),
                },
            }
        }
        Err(Failure { reason: "the server closes each connection at once".into(), refused: false })
    }
}

fn request(message: Message) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(message.body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = message.uri;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    if let Some(limit) = message.limit {
        headers.insert(TIMEOUT, timeout(limit));
    }
    request
}

async fn read(response: hyper::Response<hyper::body::Incoming>) -> Result<GrpcAnswer, Failure> {
    let (head, mut body) = response.into_parts();
    if !head.status.is_success() {
        let reason = format!("{} instead of a gRPC answer: is this a gRPC port?", head.status);
        return Err(Failure { reason, refused: false });
    }
    let mut frame = BytesMut::new();
    let mut trailers = HeaderMap::new();
    while let Some(part) = body.frame().await {
        match part.map_err(broken)?.into_data() {
            Ok(data) if frame.len() + data.len() > MAX_ANSWER_BYTES => {
                return Err(broken(format!("it has over {MAX_ANSWER_BYTES} bytes")));
            }
            Ok(data) => frame.extend_from_slice(&data),
            Err(part) => trailers = part.into_trailers().unwrap_or_default(),
        }
    }
    // A call that fails at once has its status in the headers.
    let text = |name: &str| trailers.get(name).or(head.headers.get(name))?.to_str().ok();
    let code = text("grpc-status").and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| broken("it has no grpc-status: is this a gRPC port?"))?;
    let body = frame.freeze();
    let body = if body.len() > FRAME_HEAD { body.slice(FRAME_HEAD..) } else { Bytes::new() };
    let message = percent_decoded(text("grpc-message").unwrap_or_default());
    Ok(GrpcAnswer { code, message, outcome: text("symphony-outcome").map(str::to_owned), body })
}

/// `grpc-message` has `%XX` for every byte that a header can't hold.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs HTTP/2's own tasks on the thread that sends.
#[derive(Clone, Copy)]
pub(super) struct OnThisThread;

impl<F: Future + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        spawn_local(async move { drop(task.await) });
    }
}

async fn open(address: SocketAddr) -> Result<GrpcSender, Failure> {
    let mut builder = http2::Builder::new(OnThisThread);
    builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
    let (sender, connection) = builder.handshake(stream(address).await?).await.map_err(broken)?;
    // A connection that breaks fails the requests that wait for an answer on it.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loadgen::inputs::{Element, Tensor};
    use symphony_gpu::DataType;

    #[test]
    fn a_time_limit_has_eight_digits_at_most_and_is_never_nothing() {
        for (limit, text) in [
            (Nanos(1), "1u"),
            (Nanos::from_millis(25), "25000u"),
            (Nanos::from_secs(100), "100000m"),
            (Nanos::from_secs(1_000_000), "1000000S"),
        ] {
            assert_eq!(timeout(limit), text);
        }
    }

    fn tensor() -> Tensor {
        let element = Element::Fixed(DataType::Uint8);
        Tensor { name: "x".into(), element, shape: vec![2, 3], data: Bytes::from_static(b"abcdef") }
    }

    #[test]
    fn a_request_is_a_frame_with_raw_contents_and_parameters() {
        let server = ServerUrl::parse("http://h:8001").unwrap();
        let tensors = [tensor()];
        let limit = Some(Nanos::from_millis(5));
        let call = Call { model: "m", tensors: &tensors, limit, class: Some(1), json: false, shared: None };
        let message = Grpc::encode(&server, &call).unwrap();
        assert_eq!(message.uri, "http://h:8001/inference.GRPCInferenceService/ModelInfer");
        assert_eq!(message.body[..FRAME_HEAD], [0, 0, 0, 0, (message.body.len() - FRAME_HEAD) as u8]);
        let request = ModelInferRequest::decode(&message.body[FRAME_HEAD..]).unwrap();
        assert_eq!(
            (request.model_name.as_str(), request.inputs[0].shape.as_slice()),
            ("m", [2, 3].as_slice())
        );
        assert_eq!(request.raw_input_contents, [tensors[0].data.clone()]);
        assert_eq!(request.parameters["timeout"].number(), Some(5_000.0));
        assert_eq!(request.parameters["priority"].number(), Some(2.0));
    }

    #[test]
    fn outputs_in_shared_memory_are_merged_into_a_request() {
        let server = ServerUrl::parse("http://h").unwrap();
        let tensors = [tensor()];
        let region = Region::create(&[tensors.to_vec()], &[("y".into(), 16)], 4).unwrap();
        let shared =
            Some(super::super::call::SharedInputs { region: &region.name, slices: &region.inputs[0] });
        let call = Call { model: "m", tensors: &tensors, limit: None, class: None, json: false, shared };
        let message = Grpc::encode(&server, &call).unwrap();
        let message = Grpc::with_outputs(&message, &region.name, &region.slots, 2);
        let request = ModelInferRequest::decode(&message.body[FRAME_HEAD..]).unwrap();
        assert_eq!((request.model_name.as_str(), request.raw_input_contents.len()), ("m", 0));
        let output = &request.outputs[0];
        assert_eq!(output.parameters["shared_memory_offset"].number(), Some(64.0 + 2.0 * 64.0));
        assert_eq!(output.parameters["shared_memory_byte_size"].number(), Some(16.0));
        assert_eq!(request.inputs[0].parameters["shared_memory_byte_size"].number(), Some(6.0));
    }

    #[test]
    fn a_message_of_a_status_is_decoded() {
        assert_eq!(percent_decoded("no model %22m%22, 5%"), "no model \"m\", 5%");
    }
}
