//! `grpc.reflection.v1.ServerReflection`, and the same under its older name `v1alpha`: clients such
//! as grpcurl learn the services and their messages from it. What it answers is fixed at build
//! time.

use super::framing::{Envelope, decode};
use super::reflection_messages::server_reflection_request::MessageRequest;
use super::reflection_messages::server_reflection_response::MessageResponse;
use super::reflection_messages::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use super::status::{GrpcCode, GrpcStatus};
use crate::api::net::glommio_io::within;
use crate::api::net::memory::{MemoryLease, ReadBounds};
use crate::api::net::peer::Peer;
use crate::api::net::response::ResponseBody;
use crate::api::problem::{Problem, quoted};
use crate::api::services::CoreServices;
use bytes::{Bytes, BytesMut};
use futures_util::stream::unfold;
use http_body::{Body, Frame};
use http_body_util::StreamBody;
use hyper::StatusCode;
use hyper::body::Incoming;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

/// The paths of the calls, up to the call's name.
pub(super) const SERVICES: [&str; 2] =
    ["/grpc.reflection.v1.ServerReflection/", "/grpc.reflection.v1alpha.ServerReflection/"];

/// The largest request, in bytes: it holds a name.
pub(in crate::api) const MAX_REQUEST_BYTES: usize = 4_096;

/// A .proto file that defines services of this server.
struct DescribedFile {
    /// The path by which it is imported.
    name: &'static str,
    /// The FileDescriptorProto. No file imports another.
    descriptor: &'static [u8],
    /// The full names of its services.
    services: &'static [&'static str],
    /// The full names of all that it defines.
    symbols: &'static [&'static str],
}

/// The files of proto/.
static FILES: [DescribedFile; 4] = include!(concat!(env!("OUT_DIR"), "/described.rs"));

/// Returns the answer to one request.
fn answer(request: ServerReflectionRequest) -> ServerReflectionResponse {
    let file = |found: Option<&DescribedFile>, what: &str, name: &str| match found {
        Some(file) => MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
            file_descriptor_proto: vec![Bytes::from_static(file.descriptor)],
        }),
        None => not_found(format!("there is no {what} {}", quoted(name))),
    };
    let defining = |symbol: &str| FILES.iter().find(|file| file.symbols.contains(&symbol));
    let response = match &request.message_request {
        Some(MessageRequest::FileByFilename(name)) => {
            file(FILES.iter().find(|file| file.name == name), "file", name)
        }
        Some(MessageRequest::FileContainingSymbol(symbol)) => file(defining(symbol), "symbol", symbol),
        Some(MessageRequest::FileContainingExtension(extension)) => {
            not_found(format!("{} has no extensions", quoted(&extension.containing_type)))
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => match defining(name) {
            Some(_) => MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
                base_type_name: name.clone(),
                extension_number: Vec::new(),
            }),
            None => not_found(format!("there is no message {}", quoted(name))),
        },
        Some(MessageRequest::ListServices(_)) => {
            let names = FILES.iter().flat_map(|file| file.services);
            let service = names.map(|name| ServiceResponse { name: (*name).to_owned() }).collect();
            MessageResponse::ListServicesResponse(ListServiceResponse { service })
        }
        None => error(GrpcCode::InvalidArgument, "the request asks for nothing".to_owned()),
    };
    ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    }
}

fn not_found(message: String) -> MessageResponse {
    error(GrpcCode::NotFound, message)
}

fn error(code: GrpcCode, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

/// Returns the body of the response to a call, whose requests are `incoming`.
pub(super) fn body(
    services: Rc<CoreServices>,
    incoming: Incoming,
    envelope: Envelope,
    peer: &Peer,
) -> ResponseBody {
    let memory = services.bodies.lease(&peer.in_flight);
    let number = services.idle_streams.number();
    let buffer = BytesMut::new();
    let stream = ReflectionStream { services, number, incoming, buffer, memory, envelope, ended: false };
    ResponseBody::stream(Box::pin(StreamBody::new(unfold(stream, ReflectionStream::next))))
}

/// A call: each request is answered before the next is read.
struct ReflectionStream {
    services: Rc<CoreServices>,
    /// The call's number among the streams of the core.
    number: u64,
    incoming: Incoming,
    /// The bytes of the next request so far.
    buffer: BytesMut,
    /// Memory of its connection, of which each request takes a part.
    memory: MemoryLease,
    envelope: Envelope,
    ended: bool,
}

impl ReflectionStream {
    /// Returns the next frame of the response: an answer, or the end.
    async fn next(mut self) -> Option<(Result<Frame<Bytes>, Infallible>, ReflectionStream)> {
        if self.ended {
            return None;
        }
        let frame = match self.next_answer().await {
            Ok(Some(answer)) => Frame::data(answer),
            end => {
                self.ended = true;
                let good = GrpcStatus { code: GrpcCode::Ok, message: "", outcome: None, again: None };
                Frame::trailers(end.as_ref().err().map_or(good, GrpcStatus::of).trailers())
            }
        };
        Some((Ok(frame), self))
    }

    /// Returns the answer to the next request; `None` after the last.
    ///
    /// Errors: 400, 408 if none comes in the idle time-out of streams, 413, 503 if the server
    /// stops.
    async fn next_answer(&mut self) -> Result<Option<Bytes>, Problem> {
        loop {
            if let Some(length) = Envelope::length(&self.buffer) {
                if length > MAX_REQUEST_BYTES {
                    let message = format!(
                        "a message of {length} bytes was announced; the limit is {MAX_REQUEST_BYTES}"
                    );
                    return Err(Problem::invalid(StatusCode::PAYLOAD_TOO_LARGE, message));
                }
                if self.buffer.len() >= length {
                    let sealed = self.buffer.split_to(length).freeze();
                    let mut memory = self.memory.split(0);
                    memory.grow(length)?;
                    let mut bounds = ReadBounds::new(MAX_REQUEST_BYTES, memory);
                    let request = decode(self.envelope.open(sealed, &mut bounds).await?)?;
                    return Ok(Some(self.envelope.seal(&answer(request))));
                }
            }
            match self.read().await? {
                Some(data) => self.buffer.extend_from_slice(&data),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Problem::bad("the stream ends in the midst of a message")),
            }
        }
    }

    /// Returns the next bytes of the client; `None` if it has sent all.
    async fn read(&mut self) -> Result<Option<Bytes>, Problem> {
        let ended = |status, message: &str| Err(Problem::invalid(status, message));
        let (incoming, streams) = (&mut self.incoming, &self.services.idle_streams);
        let frame = poll_fn(|cx| match Pin::new(&mut *incoming).poll_frame(cx) {
            Poll::Pending if streams.is_stopping(self.number, cx) => Poll::Ready(None),
            frame => frame.map(Some),
        });
        match within(self.services.stream_idle_timeout, frame).await {
            None => ended(StatusCode::REQUEST_TIMEOUT, "nothing was asked for too long; open another stream"),
            Some(None) => ended(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down"),
            Some(Some(None)) => Ok(None),
            Some(Some(Some(Ok(frame)))) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Some(Some(Err(error)))) => Err(Problem::bad(format!("the stream broke off: {error}"))),
        }
    }
}

impl Drop for ReflectionStream {
    fn drop(&mut self) {
        self.services.idle_streams.forget(self.number);
    }
}
