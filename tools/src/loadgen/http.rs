//! Load on a server: KServe v2 infer requests with JSON bodies over HTTP/1.1. The calling thread is the pacer:
//! it sleeps until a request's time and hands it over. A second thread is the client: it sends, on a pool of
//! kept connections that grows as requests overlap, reads the answers and counts. So neither a slow answer nor
//! a burst of them keeps the next request from its time.

use super::inputs::{self, MAX_ELEMENTS, VARIANTS};
use super::plan::{Pace, Plan, PlannedModel, Schedule};
use super::tally::{End, Outcome, Tally};
use super::{RunError, Target, Watch};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use symphony::clock::{Clock, Nanos};
use symphony_gpu::{DataType, TensorSpec};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long answers are waited for after the last request went out.
const GRACE: Nanos = Nanos::from_secs(10);
/// The same after Ctrl-C.
const GRACE_STOPPED: Nanos = Nanos::from_secs(2);
/// Connections made before the first request, so that the first ones are not late for it.
const OPENED_AHEAD: usize = 16;
/// Connections that fail in a row before the server counts as gone.
const LOST_AFTER: u32 = 50;
/// Times that a request is sent again after a kept connection turned out to be closed.
const MAX_RESENDS: u32 = 3;
/// Requests that wait for a connection; more are not sent, and count as failed.
const MAX_WAITING: usize = 65_536;
/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// The longest wait without a look at Ctrl-C and the progress bar.
const NAP: Nanos = Nanos::from_millis(50);

/// Where a server listens: `http://HOST:PORT`, perhaps with a path that comes before `/v2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    host: String,
    port: u16,
    prefix: String,
}

impl ServerUrl {
    /// Reads `http://HOST[:PORT][/PREFIX]`; the port is 80 unless given.
    ///
    /// Errors: what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<ServerUrl, String> {
        const RIGHT: &str = "it must be like http://127.0.0.1:8000";
        if !text.contains("://") {
            return Err(format!("it has no scheme; write http://{text}"));
        }
        let uri: Uri = text.parse().map_err(|e| format!("it is no URL ({e}); {RIGHT}"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err("https is not in this version; use http".into()),
            _ => return Err(format!("its scheme is not http; {RIGHT}")),
        }
        if uri.query().is_some() {
            return Err(format!("it has a query; {RIGHT}"));
        }
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("it has no host; {RIGHT}"))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let port = match uri.port_u16() {
            Some(port) => port,
            None if authority == host => 80,
            None => return Err(format!("`{authority}` is not HOST or HOST:PORT; {RIGHT}")),
        };
        let prefix = uri.path().trim_end_matches('/').into();
        Ok(ServerUrl { host: host.into(), port, prefix })
    }

    fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        Ok((host, self.port).to_socket_addrs()?.collect())
    }

    fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The path of a model, with `rest` after it.
    fn model_path(&self, model: &str, rest: &str) -> String {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let encode = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
        format!("{}/v2/models/{}{rest}", self.prefix, model.bytes().map(encode).collect::<String>())
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.prefix)
    }
}

/// A server as a [`Target`].
#[derive(Debug)]
pub struct HttpTarget {
    url: ServerUrl,
    max_connections: usize,
}

impl HttpTarget {
    /// The server at `url`, over at most `max_connections` at once (or one per client of a closed loop).
    pub fn new(url: ServerUrl, max_connections: usize) -> HttpTarget {
        HttpTarget { url, max_connections }
    }
}

impl Target for HttpTarget {
    fn run(&mut self, plan: &Plan, watch: &mut Watch) -> Result<(), RunError> {
        let schedule = plan.schedule().map_err(|e| RunError::Usage(e.to_string()))?;
        let connections = match plan.pace {
            Pace::Open => self.max_connections,
            Pace::Closed { clients } => clients.max(self.max_connections),
        };
        let (jobs, due) = unbounded_channel();
        let (started, start) = mpsc::channel();
        let over = Arc::clone(&watch.stop);
        let lost = Arc::new(AtomicBool::new(false));
        let client =
            Client { url: self.url.clone(), connections, plan, watch, due, started, lost: Arc::clone(&lost) };
        thread::scope(|scope| {
            let client = scope.spawn(|| client.run());
            // No clock comes from a client that could not start.
            if let Ok(clock) = start.recv()
                && plan.pace == Pace::Open
            {
                pace(schedule, plan.end(), &clock, &jobs, || {
                    over.load(Ordering::Relaxed) || lost.load(Ordering::Relaxed)
                });
            }
            drop(jobs);
            client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// What the pacer tells the client.
enum Job {
    /// It is time for a request.
    Send { model: usize, intended: Nanos },
    /// The run ends early; no more will come.
    Stopped { at: Nanos },
}

/// Hands each request over at its time, up to the end of the run.
fn pace(schedule: Schedule, end: Nanos, clock: &Clock, jobs: &UnboundedSender<Job>, over: impl Fn() -> bool) {
    let jobs_and_end = schedule.map(|(at, model)| (at, Some(model))).chain([(end, None)]);
    for (at, model) in jobs_and_end {
        loop {
            let now = clock.now();
            if over() {
                // The client hears of it, or has ended itself.
                let _ = jobs.send(Job::Stopped { at: now });
                return;
            }
            if now >= at {
                break;
            }
            thread::sleep((at - now).min(NAP).into());
        }
        if let Some(model) = model
            && jobs.send(Job::Send { model, intended: at }).is_err()
        {
            return;
        }
    }
}

/// What the client's thread starts with.
struct Client<'a> {
    url: ServerUrl,
    connections: usize,
    plan: &'a Plan,
    watch: &'a mut Watch,
    due: UnboundedReceiver<Job>,
    /// Tells the pacer that the run's time has begun.
    started: mpsc::Sender<Clock>,
    /// Tells the pacer that the server has gone.
    lost: Arc<AtomicBool>,
}

impl Client<'_> {
    fn run(self) -> Result<(), RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|e| RunError::Machine(format!("can't start the client's thread: {e}")))?;
        LocalSet::new().block_on(&runtime, self.run_here())
    }

    async fn run_here(self) -> Result<(), RunError> {
        let Client { url, connections, plan, watch, due, started, lost } = self;
        let pool = Pool::connect(url, connections).await?;
        let mut models = Vec::with_capacity(plan.models.len());
        for (index, model) in (0..).zip(&plan.models) {
            models.push(prepare(&pool, model, index, plan.seed).await?);
        }
        pool.open_ahead().await;
        let run = Rc::new(Run {
            pool,
            models,
            clock: Clock::start(),
            tally: RefCell::new(Tally::new(plan)),
            in_flight: Cell::new(0),
            stop: Arc::clone(&watch.stop),
            lost,
            refused_in_a_row: Cell::new(0),
        });
        // The pacer waits for it.
        let _ = started.send(run.clock.clone());
        match plan.pace {
            Pace::Open => run.open_loop(due, watch).await,
            Pace::Closed { clients } => run.closed_loop(plan, clients),
        }
        run.drain(plan, watch).await;
        watch.tally = run.tally.replace(Tally::new(plan));
        Ok(())
    }
}

/// A model that is ready to be asked.
struct Prepared {
    infer: Uri,
    bodies: Vec<Bytes>,
    next: Cell<usize>,
}

/// Asks the server what the model takes, and makes bodies for it.
async fn prepare(pool: &Pool, model: &PlannedModel, index: u64, seed: u64) -> Result<Prepared, RunError> {
    let name = &model.name;
    let usage = |what: String| RunError::Usage(format!("model \"{name}\" of {}: {what}", pool.url));
    let uri =
        |rest| pool.url.model_path(name, rest).parse().map_err(|e| usage(format!("no path for it: {e}")));
    let request = pool.request(Method::GET, uri("")?, Bytes::new());
    let answer = pool.send(request, || ()).await;
    let answer = answer.map_err(|e| RunError::Unreachable(format!("{}: {}", pool.url, e.reason)))?;
    if !answer.status.is_success() {
        return Err(usage(answer.error_text()));
    }
    let inputs = read_metadata(&answer.body).map_err(usage)?;
    let body = |variant| Bytes::from(inputs::json_body(&inputs, model.slo, seed, index, variant));
    let bodies = (0..VARIANTS).map(body).collect();
    Ok(Prepared { infer: uri("/infer")?, bodies, next: Cell::new(0) })
}

#[derive(Deserialize)]
struct Metadata {
    inputs: Vec<TensorMetadata>,
}

#[derive(Deserialize)]
struct TensorMetadata {
    name: String,
    datatype: String,
    shape: Vec<i64>,
}

/// The inputs that a model's metadata tells, without the batch dimension; other open dimensions become 1.
fn read_metadata(body: &[u8]) -> Result<Vec<TensorSpec>, String> {
    let metadata: Metadata = serde_json::from_slice(body)
        .map_err(|e| format!("its metadata is not of the KServe v2 protocol ({e})"))?;
    metadata.inputs.into_iter().map(tensor_spec).collect()
}

fn tensor_spec(tensor: TensorMetadata) -> Result<TensorSpec, String> {
    let TensorMetadata { name, datatype, shape } = tensor;
    let known = DataType::parse(&datatype);
    let datatype = known
        .ok_or_else(|| format!("input \"{name}\" is of type {datatype}, for which no input can be made"))?;
    let shape = shape.iter().skip(1).map(|&d| usize::try_from(d).unwrap_or(1)).collect();
    let spec = TensorSpec { name, datatype, shape };
    if spec.elements() > MAX_ELEMENTS {
        return Err(format!("input \"{}\" has over {MAX_ELEMENTS} elements: too many to send", spec.name));
    }
    Ok(spec)
}

/// A run under way, on the client's thread. Every request is a task that holds it.
struct Run {
    pool: Pool,
    models: Vec<Prepared>,
    clock: Clock,
    tally: RefCell<Tally>,
    in_flight: Cell<usize>,
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicBool>,
    refused_in_a_row: Cell<u32>,
}

impl Run {
    fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.lost.load(Ordering::Relaxed)
    }

    /// Sends what the pacer says, until it says no more.
    async fn open_loop(self: &Rc<Run>, mut due: UnboundedReceiver<Job>, watch: &mut Watch) {
        loop {
            watch.progress.update(self.clock.now(), &self.tally.borrow());
            match timeout(NAP.into(), due.recv()).await {
                Ok(Some(Job::Send { model, intended })) => {
                    self.tally.borrow_mut().offered(model, intended);
                    if self.in_flight.get() < self.pool.size + MAX_WAITING {
                        self.spawn(async move |run| run.infer(model, intended).await);
                    }
                }
                Ok(Some(Job::Stopped { at })) => self.tally.borrow_mut().stopped(at),
                Ok(None) => return,
                Err(_) => {}
            }
        }
    }

    fn closed_loop(self: &Rc<Run>, plan: &Plan, clients: usize) {
        let end = plan.end();
        for _ in 0..clients {
            self.spawn(async move |run| {
                while !run.over() && run.clock.now() < end {
                    let intended = run.clock.now();
                    run.tally.borrow_mut().offered(0, intended);
                    run.infer(0, intended).await;
                }
            });
        }
    }

    /// Runs a task that counts as in flight.
    fn spawn(self: &Rc<Run>, task: impl AsyncFnOnce(Rc<Run>) + 'static) {
        let run = Rc::clone(self);
        run.in_flight.set(run.in_flight.get() + 1);
        spawn_local(async move {
            task(Rc::clone(&run)).await;
            run.in_flight.set(run.in_flight.get() - 1);
        });
    }

    /// Waits for what is in flight, but not for ever.
    async fn drain(&self, plan: &Plan, watch: &mut Watch) {
        let mut stopped_at = None;
        while self.in_flight.get() > 0 {
            let now = self.clock.now();
            watch.progress.update(now, &self.tally.borrow());
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

    async fn infer(&self, index: usize, intended: Nanos) {
        let model = &self.models[index];
        let variant = model.next.replace((model.next.get() + 1) % model.bodies.len());
        let request = self.pool.request(Method::POST, model.infer.clone(), model.bodies[variant].clone());
        let on_send = || self.tally.borrow_mut().sent(intended, self.clock.now());
        let answer = self.pool.send(request, on_send).await;
        let ended = self.clock.now();
        let mut tally = self.tally.borrow_mut();
        let (end, batch_size) = match &answer {
            Ok(answer) => (answer.end(), answer.batch_size()),
            Err(_) => (End::Failed, 0),
        };
        if end == End::Failed {
            tally.failed_since(|| match &answer {
                Ok(answer) => answer.error_text(),
                Err(failure) => failure.reason.clone(),
            });
        }
        let refused = matches!(&answer, Err(failure) if failure.refused);
        self.refused_in_a_row.set(if refused { self.refused_in_a_row.get() + 1 } else { 0 });
        if self.refused_in_a_row.get() >= LOST_AFTER {
            self.lost.store(true, Ordering::Relaxed);
        }
        tally.ended(Outcome { model: index, intended, ended, end, batch_size });
    }
}

type Sender = SendRequest<Full<Bytes>>;

/// Connections to the server: kept ones are used again, the last one first; new ones are made as needed.
struct Pool {
    url: ServerUrl,
    address: SocketAddr,
    /// Connections that there may be.
    size: usize,
    permits: Semaphore,
    idle: RefCell<Vec<Sender>>,
}

/// Why a request got no answer.
struct Failure {
    reason: String,
    /// No connection could be made: the server is not there.
    refused: bool,
}

impl Pool {
    /// A pool with one connection, to the first of the server's addresses that takes it.
    async fn connect(url: ServerUrl, size: usize) -> Result<Pool, RunError> {
        let unreachable = |what: String| RunError::Unreachable(format!("{url}: {what}"));
        let addresses =
            url.addresses().map_err(|e| unreachable(format!("no address is known for it ({e})")))?;
        let mut last = None;
        for address in addresses {
            match open(address).await {
                Ok(sender) => {
                    let permits = Semaphore::new(size);
                    return Ok(Pool { url, address, size, permits, idle: RefCell::new(vec![sender]) });
                }
                Err(failure) => last = Some(failure.reason),
            }
        }
        let reason = last.unwrap_or_else(|| "it has no address".into());
        Err(unreachable(format!("{reason}; is the server running there?")))
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

    fn request(&self, method: Method, uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        if let Ok(host) = self.url.authority().parse() {
            headers.insert(HOST, host);
        }
        request
    }

    /// Sends a request when a connection is free, calling `on_send` as it goes out, and reads the answer.
    async fn send(&self, request: Request<Full<Bytes>>, on_send: impl FnOnce()) -> Result<Answer, Failure> {
        let closed = |_| Failure { reason: "the pool of connections is closed".into(), refused: false };
        let _permit = self.permits.acquire().await.map_err(closed)?;
        let mut sender = self.ready().await?;
        on_send();
        let mut next = request;
        for _ in 0..MAX_RESENDS {
            match sender.try_send_request(next).await {
                Ok(response) => return self.read(response, sender).await,
                // Nothing of it went out: the server had closed a kept connection. It goes over another one.
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
    async fn ready(&self) -> Result<Sender, Failure> {
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
        sender: Sender,
    ) -> Result<Answer, Failure> {
        let status = response.status();
        let outcome = response.headers().get("symphony-outcome");
        let outcome = outcome.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await.map_err(broken)?;
        self.idle.borrow_mut().push(sender);
        Ok(Answer { status, outcome, body: body.to_bytes() })
    }
}

fn broken(error: impl fmt::Display) -> Failure {
    Failure { reason: format!("the connection broke before the answer was whole ({error})"), refused: false }
}

async fn open(address: SocketAddr) -> Result<Sender, Failure> {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut};
    let connected = timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
    let stream = connected.unwrap_or_else(|_| Err(TimedOut.into())).map_err(|e| Failure {
        reason: format!("can't connect to {address}: {e}"),
        refused: matches!(e.kind(), ConnectionRefused | ConnectionReset | TimedOut),
    })?;
    // A connection that the server has closed already says so at its first read.
    let _ = stream.set_nodelay(true);
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // A connection that breaks says so to whoever waits for an answer on it.
    spawn_local(async move { drop(connection.await) });
    Ok(sender)
}

/// An answer, read whole.
struct Answer {
    status: StatusCode,
    /// Symphony's own word for how the request ended; other servers have none.
    outcome: Option<String>,
    body: Bytes,
}

impl Answer {
    fn end(&self) -> End {
        match self.outcome.as_deref() {
            Some("good") => End::Good,
            Some("late") => End::Late,
            Some("dropped" | "cancelled") => End::Dropped,
            Some("overloaded" | "draining") => End::Rejected,
            Some("failed" | "invalid") => End::Failed,
            _ => match self.status {
                status if status.is_success() => End::Good,
                StatusCode::GATEWAY_TIMEOUT => End::Dropped,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => End::Rejected,
                _ => End::Failed,
            },
        }
    }

    /// The size of the batch that it ran in, as Symphony tells it; 0 if it does not.
    fn batch_size(&self) -> u32 {
        #[derive(Deserialize)]
        struct Body {
            parameters: Option<Parameters>,
        }
        #[derive(Deserialize)]
        struct Parameters {
            batch_size: Option<u32>,
        }
        if self.end() != End::Good {
            return 0;
        }
        let body: Option<Body> = serde_json::from_slice(&self.body).ok();
        body.and_then(|body| body.parameters?.batch_size).unwrap_or(0)
    }

    /// What the server says is wrong.
    fn error_text(&self) -> String {
        const LONGEST: usize = 300;
        #[derive(Deserialize)]
        struct Body {
            error: String,
        }
        let said = match serde_json::from_slice::<Body>(&self.body) {
            Ok(body) => body.error,
            Err(_) => String::from_utf8_lossy(&self.body).into_owned(),
        };
        let said: String = said.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
        format!("{}: {said}", self.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_a_port_and_perhaps_a_prefix() {
        let url = ServerUrl::parse("http://localhost:8000/").unwrap();
        assert_eq!(
            (url.to_string(), url.model_path("m", "/infer")),
            ("http://localhost:8000".into(), "/v2/models/m/infer".into())
        );
        let url = ServerUrl::parse("http://[::1]/a/b").unwrap();
        assert_eq!((url.port, url.model_path("a/b c", "")), (80, "/a/b/v2/models/a%2Fb%20c".into()));
        assert_eq!(url.addresses().unwrap(), ["[::1]:80".parse().unwrap()]);
        for bad in [
            "localhost:8000",
            "ftp://h",
            "https://h",
            "http://",
            "http://h?x=1",
            "http://h:99999",
            "http:// h",
        ] {
            assert!(ServerUrl::parse(bad).is_err(), "{bad}");
        }
    }

    fn answer(status: u16, outcome: Option<&str>, body: &'static str) -> Answer {
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, outcome: outcome.map(Into::into), body: Bytes::from_static(body.as_bytes()) }
    }

    #[test]
    fn symphonys_own_word_says_how_a_request_ended_and_else_the_status_does() {
        for (status, outcome, end) in [
            (200, Some("good"), End::Good),
            (504, Some("late"), End::Late),
            (504, Some("dropped"), End::Dropped),
            (504, Some("cancelled"), End::Dropped),
            (429, Some("overloaded"), End::Rejected),
            (503, Some("draining"), End::Rejected),
            (500, Some("failed"), End::Failed),
            (400, Some("invalid"), End::Failed),
            (200, None, End::Good),
            (504, None, End::Dropped),
            (429, None, End::Rejected),
            (503, None, End::Rejected),
            (404, None, End::Failed),
            (500, Some("a new word"), End::Failed),
        ] {
            assert_eq!(answer(status, outcome, "").end(), end, "{status} {outcome:?}");
        }
    }

    #[test]
    fn the_batch_size_is_read_where_the_server_tells_it() {
        assert_eq!(answer(200, None, r#"{"parameters":{"batch_size":7},"outputs":[]}"#).batch_size(), 7);
        assert_eq!(answer(200, None, r#"{"outputs":[]}"#).batch_size(), 0);
        assert_eq!(answer(200, None, "no JSON").batch_size(), 0);
    }

    #[test]
    fn metadata_that_no_input_can_be_made_for_is_refused_in_words() {
        let inputs =
            read_metadata(br#"{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,3,-1]}]}"#).unwrap();
        assert_eq!((inputs[0].name.as_str(), inputs[0].shape.as_slice()), ("x", [3, 1].as_slice()));
        for (body, part) in [
            ("{}", "not of the KServe v2 protocol"),
            (r#"{"inputs":[{"name":"x","datatype":"BYTES","shape":[-1,1]}]}"#, "of type BYTES"),
            (r#"{"inputs":[{"name":"x","datatype":"FP32","shape":[-1,999999,999999]}]}"#, "too many to send"),
        ] {
            let error = read_metadata(body.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
