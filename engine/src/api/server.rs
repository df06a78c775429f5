//! One API core: a pinned thread with a glommio executor that accepts connections, serves them, and
//! polls its [`Frontend`]. `runtime` starts and stops it; everything else of the API runs inside.
//! More cores are more calls of [`start`] with the same address and `share_port`, each with a
//! frontend of its own.

use super::config::ApiConfig;
use super::dispatcher::Dispatcher;
use super::net::connection::{self, RequestHandler};
use super::net::glommio_io::{self, GlommioIo, Listener, MachineError};
use super::net::large_buffers;
use super::net::open_connections::{OpenConnections, OpenedConnection};
use super::net::peer::ListenerRules;
use super::services::SharedState;
use crate::runtime::frontend::Frontend;
use crate::runtime::panics::catch;
use crate::runtime::ports::once_free;
use futures_channel::oneshot;
use glommio::net::{TcpListener, TcpStream};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After an error of `accept` (out of file descriptors, most likely) this passes before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The longest time for which a stopping core waits until clients have taken the answers of the
/// requests that it cut off.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The interval at which a core shows that it does not hang.
const BEAT_EVERY: Duration = Duration::from_millis(100);

/// The interval at which a stopping core checks that all requests are answered.
const STOP_LOOK: Duration = Duration::from_millis(2);

/// The most clients over the limit that are answered 503 at the same time; further ones are closed
/// without an answer.
const REFUSED_AT_ONCE: usize = 64;

/// The reason that an API core can't serve.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The port is taken.
    #[error("can't listen on {0}: the port is in use; stop the process that has it or choose another port")]
    PortInUse(SocketAddr),
    /// The port is one that only a privileged process may have.
    #[error("can't listen on {0}: no permission; ports under 1024 need privileges, take a higher one")]
    PortForbidden(SocketAddr),
    /// No network interface has the address.
    #[error(
        "can't listen on {0}: no network interface of this machine has that address; try 127.0.0.1 or 0.0.0.0"
    )]
    NoSuchAddress(SocketAddr),
    /// Anything else about the port.
    #[error("can't listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// The machine lacks what the executor needs.
    #[error("can't start the API: {0}")]
    Machine(#[from] MachineError),
    /// The system refused to create the thread.
    #[error("can't start the API's thread: {0}")]
    Thread(io::Error),
    /// The thread ended by a panic, which is a bug.
    #[error("the API's thread died; this is a bug: {0}")]
    Died(String),
}

/// The thread of a core, which ends with the number of requests that it cut off.
type CoreThread = JoinHandle<Result<usize, ApiError>>;

/// A running API core. Dropping it stops the core as [`ApiHandle::stop`] does.
#[derive(Debug)]
pub struct ApiHandle {
    local_addr: SocketAddr,
    grpc_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<CoreThread>,
}

/// Starts an API core that serves `frontend`'s models. When this returns, its ports are open.
///
/// Errors: an [`ApiError`] that says what would help; nothing is left running then.
pub fn start(frontend: Frontend, mut config: ApiConfig) -> Result<ApiHandle, ApiError> {
    let mut listeners = Listeners::default();
    let share_port = config.share_port;
    let local_addr = listeners.open(config.addr, share_port, public_rules(&config, config.addr))?;
    let grpc = config.grpc.map(|addr| listeners.open(addr, share_port, public_rules(&config, addr)));
    let grpc_addr = grpc.transpose()?;
    if !config.admin_elsewhere {
        let admin = config.admin.map(|addr| listeners.open(addr, share_port, admin_rules(&config, addr)));
        config.admin = admin.transpose()?;
    }
    let admin_addr = config.admin;
    let (stop, thread) = spawn(role_of(frontend.id()), frontend, config, listeners)?;
    Ok(ApiHandle { local_addr, grpc_addr, admin_addr, stop: Some(stop), thread: Some(thread) })
}

/// Starts a core that listens at `addr` alone and answers admin calls there, and all others. Its
/// thread and its connections are its own, so that probes and operators are answered whatever the
/// clients of the other cores do; let `config` place it on no particular core.
///
/// Errors: as [`start`].
pub fn start_admin(
    frontend: Frontend,
    addr: SocketAddr,
    mut config: ApiConfig,
) -> Result<ApiHandle, ApiError> {
    let mut listeners = Listeners::default();
    let addr = listeners.open(addr, false, admin_rules(&config, addr))?;
    config.admin = Some(addr);
    let (stop, thread) = spawn("api-admin".to_owned(), frontend, config, listeners)?;
    let (stop, thread) = (Some(stop), Some(thread));
    Ok(ApiHandle { local_addr: addr, grpc_addr: None, admin_addr: Some(addr), stop, thread })
}

/// Returns the rules of a listener for all clients at `addr`.
fn public_rules(config: &ApiConfig, addr: SocketAddr) -> ListenerRules {
    let loopback = addr.ip().is_loopback();
    let admin = config.admin.is_none() && loopback;
    ListenerRules { admin, dedicated: false, loopback, tls: config.tls.is_some() }
}

/// Returns the rules of an admin listener at `addr`.
fn admin_rules(config: &ApiConfig, addr: SocketAddr) -> ListenerRules {
    let loopback = addr.ip().is_loopback();
    ListenerRules { admin: true, dedicated: true, loopback, tls: config.tls.is_some() && !loopback }
}

/// The open ports of a core that is about to start.
#[derive(Default)]
struct Listeners(Vec<(Listener, ListenerRules)>);

impl Listeners {
    /// Opens a port and returns its address, with the real port.
    fn open(
        &mut self,
        addr: SocketAddr,
        share_port: bool,
        rules: ListenerRules,
    ) -> Result<SocketAddr, ApiError> {
        let (listener, addr) = listen(addr, share_port)?;
        self.0.push((listener, rules));
        Ok(addr)
    }
}

/// Starts the core's thread, and waits until it accepts connections.
fn spawn(
    role: String,
    frontend: Frontend,
    config: ApiConfig,
    listeners: Listeners,
) -> Result<(oneshot::Sender<()>, CoreThread), ApiError> {
    large_buffers::map_apart();
    let (stop, stopped) = oneshot::channel();
    let (started, start) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(role.clone())
        .spawn(move || {
            let faults = frontend.faults().clone();
            let lived = catch(|| run(&role, frontend, config, listeners.0, stopped, started));
            lived.map_err(|panic| {
                faults.report(&role, format_args!("died: {panic}"));
                ApiError::Died(panic)
            })
        })
        .map_err(ApiError::Thread)?;
    match start.recv() {
        Ok(Ok(())) => Ok((stop, thread)),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(joined(thread).err().unwrap_or_else(|| ApiError::Died("it has ended".into()))),
    }
}

/// Returns the name of the thread of the API core that owns the frontend of this number.
fn role_of(frontend: u32) -> String {
    if frontend == 0 { "api".to_owned() } else { format!("api-{frontend}") }
}

fn listen(addr: SocketAddr, share_port: bool) -> Result<(Listener, SocketAddr), ApiError> {
    let listening = once_free(addr, || glommio_io::listen(addr, share_port));
    let listener = listening.map_err(|error| no_port(addr, error))?;
    let local_addr = listener.local_addr().map_err(|error| no_port(addr, error))?;
    Ok((listener, local_addr))
}

fn no_port(addr: SocketAddr, error: io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::AddrInUse => ApiError::PortInUse(addr),
        io::ErrorKind::PermissionDenied => ApiError::PortForbidden(addr),
        io::ErrorKind::AddrNotAvailable => ApiError::NoSuchAddress(addr),
        _ => ApiError::Listen(addr, error),
    }
}

impl ApiHandle {
    /// Returns the address that it listens at, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the second address that it listens at, with the real port.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc_addr
    }

    /// Returns the address for admin calls, with the real port.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// Asks the core to stop, and returns at once: so several stop at the same time.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Stops accepting, lets the requests in flight be answered (by the engine, which must still
    /// run), closes the connections and ends the thread. Takes at most [`ApiConfig::stop_timeout`]
    /// and half a second; requests without an answer by then are answered 503. Returns their
    /// number.
    ///
    /// Errors: [`ApiError::Died`].
    pub fn stop(mut self) -> Result<usize, ApiError> {
        self.end()
    }

    fn end(&mut self) -> Result<usize, ApiError> {
        self.begin_stop();
        self.thread.take().map_or(Ok(0), joined)
    }
}

/// Waits for the end of a core's thread, and returns the number of requests that it cut off.
fn joined(thread: CoreThread) -> Result<usize, ApiError> {
    thread.join().unwrap_or_else(|_| Err(ApiError::Died("its message is on standard error".into())))
}

impl Drop for ApiHandle {
    fn drop(&mut self) {
        // A panic was reported as a fault already.
        let _ = self.end();
    }
}

/// Runs a core until it is stopped, and returns the number of requests that it cut off.
fn run(
    role: &str,
    frontend: Frontend,
    config: ApiConfig,
    listeners: Vec<(Listener, ListenerRules)>,
    stop: oneshot::Receiver<()>,
    started: mpsc::SyncSender<Result<(), MachineError>>,
) -> usize {
    let executor = match glommio_io::local_executor(config.placement) {
        Ok(executor) => executor,
        Err(error) => {
            // The caller of `start` is waiting for this.
            let _ = started.send(Err(error));
            return 0;
        }
    };
    executor.run(async move {
        glommio::spawn_local(beat(role.to_owned(), &frontend, config.shared.clone())).detach();
        let core = Rc::new(ApiCore::new(role, frontend, config));
        let dispatcher = core.dispatcher.clone();
        let tasks = dispatcher.tasks().clone();
        let pump = async move { dispatcher.services.engine.pump(dispatcher.tasks()).await };
        // A panic of it is one of the core.
        glommio::spawn_local(tasks.measured(pump)).detach();
        let mut accepting = Vec::new();
        for (listener, rules) in listeners {
            let (core, listener) = (core.clone(), listener.into_local());
            let (stop, stopped) = oneshot::channel::<()>();
            let task = glommio::spawn_local(async move { core.accept(listener, rules, stopped).await });
            accepting.push((stop, task));
        }
        // The caller of `start` is waiting for this.
        let _ = started.send(Ok(()));
        // Nothing is ever sent on it: it ends when the sender is dropped.
        let _ = stop.await;
        for (stop, ended) in accepting {
            drop(stop);
            ended.await;
        }
        core.finish().await
    })
}

/// Returns the task by which a core shows that it does not hang. It calls the hook of tests first.
fn beat(role: String, frontend: &Frontend, shared: SharedState) -> impl Future<Output = ()> + use<> {
    let heartbeat = frontend.faults().watch(vec![role.clone()]);
    async move {
        loop {
            shared.call_hook(&role);
            heartbeat.beat();
            glommio::timer::sleep(BEAT_EVERY).await;
        }
    }
}

/// A connection, which is counted as open until this is dropped.
struct OpenUntilDropped {
    core: Rc<ApiCore>,
    number: u64,
}

impl Drop for OpenUntilDropped {
    fn drop(&mut self) {
        self.core.connections.closed(self.number);
    }
}

/// The state of a core's thread.
struct ApiCore {
    dispatcher: Rc<Dispatcher>,
    connections: OpenConnections,
    stop_timeout: Duration,
}

impl ApiCore {
    fn new(role: &str, frontend: Frontend, config: ApiConfig) -> ApiCore {
        let dispatcher = Rc::new(Dispatcher::new(role, frontend, &config));
        let metrics = Rc::clone(&dispatcher.services.metrics);
        let connections = OpenConnections::new(metrics, config.connection_budget());
        ApiCore { dispatcher, connections, stop_timeout: config.stop_timeout }
    }

    /// Accepts connections until `stop` is dropped; then the port is closed.
    async fn accept(
        self: &Rc<ApiCore>,
        listener: TcpListener,
        rules: ListenerRules,
        mut stop: oneshot::Receiver<()>,
    ) {
        let refusing = Rc::new(());
        loop {
            let mut next = pin!(listener.accept());
            let accepted = poll_fn(|cx| {
                if Pin::new(&mut stop).poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                next.as_mut().poll(cx).map(Some)
            })
            .await;
            match accepted {
                None => return,
                Some(Err(_)) => glommio::timer::sleep(ACCEPT_PAUSE).await,
                Some(Ok(stream)) => self.serve(stream, rules, &refusing),
            }
        }
    }

    /// Serves a connection, or refuses it where there are too many; `refusing` counts those that
    /// are being refused.
    fn serve(self: &Rc<ApiCore>, stream: TcpStream, rules: ListenerRules, refusing: &Rc<()>) {
        let (stop, stopped) = oneshot::channel();
        let peer = stream.peer_addr().ok().map(|peer| peer.ip());
        let OpenedConnection { number, memory } = match self.connections.open(rules, peer, stop) {
            Ok(opened) => opened,
            Err(reason) => {
                if Rc::strong_count(refusing) <= REFUSED_AT_ONCE {
                    let counted = refusing.clone();
                    self.dispatcher.tasks().spawn(async move {
                        connection::refuse(GlommioIo::new(stream), reason).await;
                        drop(counted);
                    });
                }
                return;
            }
        };
        let core = self.clone();
        self.dispatcher.tasks().spawn(async move {
            let _until_closed = OpenUntilDropped { core: core.clone(), number };
            let (handler, io) = (core.dispatcher.clone(), GlommioIo::new(stream));
            connection::serve(handler, io, rules, memory, stopped).await;
        });
    }

    /// Lets the requests in flight end, for `stop_timeout` at most and while the engine can go on;
    /// cuts off those that are left then, and returns their number.
    async fn finish(&self) -> usize {
        let end = Instant::now() + self.stop_timeout;
        let engine = &self.dispatcher.services.engine;
        self.dispatcher.services.idle_streams.stop();
        self.connections.ask_to_end();
        while !self.is_quiet() && !engine.has_fault() && Instant::now() < end {
            glommio::timer::sleep(STOP_LOOK).await;
        }
        let cut_off = engine.cut_off();
        let end = Instant::now() + LAST_ANSWERS;
        while self.connections.len() > 0 && Instant::now() < end {
            glommio::timer::sleep(STOP_LOOK).await;
        }
        cut_off
    }

    /// Returns true if no connection is open and no request is with the engine.
    fn is_quiet(&self) -> bool {
        self.connections.len() == 0 && self.dispatcher.services.engine.in_flight() == 0
    }
}
