//! The KServe v2 protocol over HTTP/1.1: a pool of kept connections that grows as requests overlap.
//! What goes into bodies and comes out of them is `body`.

mod body;

use super::call::Call;
use super::connection::{Failure, MAX_ANSWER_BYTES, MAX_RESENDS, broken, first_of, stream};
use super::describe::Description;
use super::shared_memory::{OutputSlots, Region};
use super::url::ServerUrl;
use super::wire::{Message, Reply, Wire};
use crate::loadgen::RunError;
use body::HttpAnswer;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use std::cell::RefCell;
use std::net::SocketAddr;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

/// Connections of one thread made before the first request, so that the first ones are not late for
/// it.
const OPENED_AHEAD: usize = 16;
/// The header with the length of the JSON that precedes raw tensors in a body.
const JSON_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

type HttpSender = SendRequest<Full<Bytes>>;

/// Connections to the server: kept ones are used again, the last one first; new ones are made as
/// needed.
pub(super) struct Http {
    server: ServerUrl,
    host: Option<HeaderValue>,
    address: SocketAddr,
    /// Connections that there may be.
    size: usize,
    permits: Semaphore,
    idle: RefCell<Vec<HttpSender>>,
}

impl Wire for Http {
    const NAME: &'static str = "http";
    const CONNECTIONS: usize = 512;

    fn in_flight_limit(connections: usize) -> Option<usize> {
        Some(connections)
    }

    async fn connect(server: &ServerUrl, connections: usize) -> Result<Http, RunError> {
        let (address, sender) = first_of(server, open).await?;
        Ok(Http {
            host: server.authority().parse().ok(),
            server: server.clone(),
            address,
            size: connections,
            permits: Semaphore::new(connections),
            idle: RefCell::new(vec![sender]),
        })
    }

    async fn open_ahead(&self) {
        let mut senders = Vec::new();
        for _ in 1..OPENED_AHEAD.min(self.size) {
            match open(self.address).await {
                Ok(sender) => senders.push(sender),
                // The run will meet it again, and tell.
                Err(_) => break,
            }
        }
        self.idle.borrow_mut().append(&mut senders);
    }

    async fn extensions(&self) -> Result<Vec<String>, RunError> {
        let answer = self.ask(Method::GET, &self.server.path("/v2"), Bytes::new()).await?;
        // A server without this page speaks no extension.
        Ok(if answer.status.is_success() { answer.extensions() } else { Vec::new() })
    }

    async fn model_names(&self) -> Result<Vec<String>, RunError> {
        let path = self.server.path("/v2/repository/index");
        let answer = self.ask(Method::POST, &path, Bytes::from_static(b"{}")).await?;
        let names = if answer.status.is_success() { answer.model_names() } else { None };
        names.ok_or_else(|| {
            let reason = answer.error_text();
            RunError::Usage(format!(
                "{} does not list its models ({reason}); name them with --models",
                self.server
            ))
        })
    }

    async fn describe(&self, model: &str) -> Result<Description, RunError> {
        let usage = |what| RunError::Usage(format!("model \"{model}\" of {}: {what}", self.server));
        let answer = self.ask(Method::GET, &self.server.model_path(model, ""), Bytes::new()).await?;
        if !answer.status.is_success() {
            return Err(usage(answer.error_text()));
        }
        let mut description = answer.description().map_err(usage)?;
        let config = self.ask(Method::GET, &self.server.model_path(model, "/config"), Bytes::new()).await?;
        if config.status.is_success() {
            description.slo = config.slo();
        }
        Ok(description)
    }

    async fn register(&self, region: &Region) -> Result<(), RunError> {
        let path = format!("/v2/systemsharedmemory/region/{}/register", region.name);
        let body = body::register(region);
        let answer = self.ask(Method::POST, &self.server.path(&path), body).await?;
        if answer.status.is_success() {
            return Ok(());
        }
        let reason = answer.error_text();
        Err(RunError::Usage(format!("{} does not take a shared memory region: {reason}", self.server)))
    }

    async fn unregister(&self, region: &Region) {
        let path = format!("/v2/systemsharedmemory/region/{}/unregister", region.name);
        drop(self.ask(Method::POST, &self.server.path(&path), Bytes::new()).await);
    }

    fn encode(server: &ServerUrl, call: &Call<'_>) -> Result<Message, String> {
        let path = server.model_path(call.model, "/infer");
        let uri = path.parse().map_err(|e| format!("no path for it: {e}"))?;
        let (body, json_length) = body::infer(call)?;
        Ok(Message { uri, body, json_length, limit: None })
    }

    fn with_outputs(message: &Message, region: &str, slots: &OutputSlots, slot: usize) -> Message {
        Message { body: body::with_outputs(&message.body, region, slots.slices(slot)), ..message.clone() }
    }

    async fn infer(&self, message: Message, on_send: impl FnOnce()) -> Result<Reply, Failure> {
        let Message { uri, body, json_length, .. } = message;
        let mut request = self.request(Method::POST, uri, body);
        if let Some(length) = json_length {
            request.headers_mut().insert(JSON_LENGTH, length.into());
        }
        self.send(request, on_send).await.map(|answer| answer.reply())
    }
}

impl Http {
    /// Asks for something that is not load.
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<HttpAnswer, RunError> {
        let uri = path.parse().map_err(|e| RunError::Usage(format!("{path} is no path: {e}")))?;
        let answer = self.send(self.request(method, uri, body), || ()).await;
        answer.map_err(|e| RunError::Unreachable(format!("{}: {}", self.server, e.reason)))
    }

    fn request(&self, method: Method, uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(host) = &self.host {
            headers.insert(HOST, host.clone());
        }
        request
    }

    /// Sends a request when a connection is free, calling `on_send` as it goes out, and reads the
    /// answer.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        on_send: impl FnOnce(),
    ) -> Result<HttpAnswer, Failure> {
        let closed = |_| Failure { reason: "the pool of connections is closed".into(), refused: false };
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let mut sender = self.ready().await?;
        on_send();
        let mut next = request;
        for _ in 0..MAX_RESENDS {
            match sender.try_send_request(next).await {
                Ok(response) => return self.read(response, sender).await,
                // Nothing of it went out: the server had closed a kept connection. It goes over
                // another one.
                Err(mut error) => match error.take_message() {
                    Some(request) => next = request,
                    None => return Err(broken(error.error())),
                },
            }
            sender = self.ready().await?;
        }
        Err(Failure { reason: "the server closes each connection at once".into(), refused: false })
    }

    /// A connection that takes a request.
    async fn ready(&self) -> Result<HttpSender, Failure> {
        loop {
            let idle = self.idle.borrow_mut().pop();
            let Some(mut sender) = idle else { return open(self.address).await };
            if sender.ready().await.is_ok() {
                return Ok(sender);
            }
        }
    }

    async fn read(
        &self,
        response: hyper::Response<hyper::body::Incoming>,
        sender: HttpSender,
    ) -> Result<HttpAnswer, Failure> {
        let status = response.status();
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let outcome = text("symphony-outcome").map(str::to_owned);
        let json_length = text(JSON_LENGTH.as_str()).and_then(|length| length.parse().ok());
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(broken)?;
        self.idle.borrow_mut().push(sender);
        Ok(HttpAnswer { status, outcome, json_length, body: body.to_bytes() })
    }
}

async fn open(address: SocketAddr) -> Result<HttpSender, Failure> {
    let (sender, connection) = handshake(stream(address).await?).await.map_err(broken)?;
    // A connection that breaks fails the requests that wait for an answer on it.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}
