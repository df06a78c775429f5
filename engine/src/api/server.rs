//! One API core: a pinned thread with a glommio executor that accepts connections, serves them, and
//! polls its [`Frontend`]. `runtime` starts and stops it; everything else of the API runs inside.
//! More cores are more calls of [`start`] with the same address and `share_port`, each with a
//! frontend of its own.

use super::access::ListenerRules;
use super::connection;
use super::core::Core;
use super::glommio_io::{self, GlommioIo, Listener, MachineError};
use super::shared::Shared;
use super::tls::Tls;
use super::tokens::Tokens;
use crate::runtime::frontend::Frontend;
use crate::runtime::{Idle, Placement};
use crate::telemetry::Telemetry;
use futures_channel::oneshot;
use glommio::net::{TcpListener, TcpStream};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After an error of `accept` (out of file descriptors, most likely) this passes before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often a stopping core looks whether all is answered.
const STOP_LOOK: Duration = Duration::from_millis(2);

/// Clients over the limit that are told so at the same time; further ones are closed without a
/// word.
const REFUSED_AT_ONCE: usize = 64;

/// Limits and time-outs of an API core. The defaults are safe on an open port.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Where to listen. Port 0 takes any free port: see [`ApiHandle::local_addr`].
    pub addr: SocketAddr,
    /// Where to listen besides, if anywhere: gRPC's usual port. Both ports speak both protocols.
    pub grpc: Option<SocketAddr>,
    /// Where admin calls are answered; where there is none, the other ports answer them if they are
    /// on loopback, and nobody does if not. This port speaks both protocols too.
    pub admin: Option<SocketAddr>,
    /// The certificate by which clients are spoken to; on an admin port on loopback without it all
    /// the same.
    pub tls: Option<Tls>,
    /// Who may ask for what; without, everybody may.
    pub tokens: Option<Tokens>,
    /// Let other API cores listen at the same addresses; without, a port in use is an error.
    pub share_port: bool,
    /// Where the thread runs, and whether it looks for work all the time: [`Idle::Spin`] where the
    /// core is its own.
    pub placement: Placement,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// What all bodies that are being read may hold together, in bytes.
    pub max_bodies_bytes: usize,
    /// The largest request line with headers, in bytes.
    pub max_head_bytes: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// Requests at once on an HTTP/2 connection.
    pub max_requests_at_once: usize,
    /// From a head's first byte to its last.
    pub header_timeout: Duration,
    /// The longest pause in a body.
    pub read_timeout: Duration,
    /// The whole body.
    pub body_timeout: Duration,
    /// How long a client may take nothing of its response.
    pub write_timeout: Duration,
    /// How long a connection may stay open between requests.
    pub idle_timeout: Duration,
    /// An HTTP/2 connection from which nothing comes for this long is asked whether anybody is
    /// there; without an answer in as long again it is closed, with all its calls.
    pub keep_alive: Duration,
    /// How long [`ApiHandle::stop`] waits for requests at hand.
    pub stop_timeout: Duration,
    /// What all API cores of an engine count in and answer `/metrics` from; without, a core has one
    /// of its own.
    pub observatory: Option<Arc<Telemetry>>,
    /// What it shares with the other API cores of its server.
    pub shared: Shared,
}

impl ApiConfig {
    /// The defaults, listening at `addr`.
    pub fn at(addr: SocketAddr) -> ApiConfig {
        ApiConfig {
            addr,
            grpc: None,
            admin: None,
            tls: None,
            tokens: None,
            share_port: false,
            placement: Placement { core: None, idle: Idle::Nap },
            max_body_bytes: 64 << 20,
            max_bodies_bytes: 1 << 30,
            max_head_bytes: 32 << 10,
            max_connections: 4_096,
            max_requests_at_once: 1_024,
            header_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            keep_alive: Duration::from_secs(20),
            stop_timeout: Duration::from_secs(30),
            observatory: None,
            shared: Shared::new(),
        }
    }
}

/// Why an API core can't serve.
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
    /// No thread could be had.
    #[error("can't start the API's thread: {0}")]
    Thread(io::Error),
    /// The thread ended by a panic: a bug.
    #[error("the API's thread broke down; this is a bug, its message is on standard error")]
    Died,
}

/// A running API core. Dropping it stops the core as [`ApiHandle::stop`] does.
#[derive(Debug)]
pub struct ApiHandle {
    local_addr: SocketAddr,
    grpc_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Starts an API core that serves `frontend`'s models. When this returns, its ports are open.
///
/// Errors: an [`ApiError`] that says what would help; nothing is left running then.
pub fn start(frontend: Frontend, config: ApiConfig) -> Result<ApiHandle, ApiError> {
    let mut config = config;
    let mut listeners = Vec::new();
    let mut open = |addr: SocketAddr, rules: ListenerRules| {
        let (listener, addr) = listen(addr, config.share_port)?;
        listeners.push((listener, rules));
        Ok::<SocketAddr, ApiError>(addr)
    };
    let (alone, has_tls) = (config.admin.is_none(), config.tls.is_some());
    let rules = |addr: SocketAddr| ListenerRules { admin: alone && addr.ip().is_loopback(), tls: has_tls };
    let local_addr = open(config.addr, rules(config.addr))?;
    let grpc_addr = config.grpc.map(|addr| open(addr, rules(addr))).transpose()?;
    let admin_rules =
        |addr: SocketAddr| ListenerRules { admin: true, tls: has_tls && !addr.ip().is_loopback() };
    let admin_addr = config.admin.map(|addr| open(addr, admin_rules(addr))).transpose()?;
    config.admin = admin_addr;
    let (stop, stopped) = oneshot::channel();
    let (started, start) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("api".into())
        .spawn(move || run(frontend, config, listeners, stopped, started))
        .map_err(ApiError::Thread)?;
    match start.recv() {
        Ok(Ok(())) => {
            Ok(ApiHandle { local_addr, grpc_addr, admin_addr, stop: Some(stop), thread: Some(thread) })
        }
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(ApiError::Died),
    }
}

fn listen(addr: SocketAddr, share_port: bool) -> Result<(Listener, SocketAddr), ApiError> {
    let listener = glommio_io::listen(addr, share_port).map_err(|error| no_port(addr, error))?;
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
    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Where it listens besides, with the real port.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.grpc_addr
    }

    /// Where admin calls are answered besides, with the real port.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// Stops accepting, lets the requests at hand be answered (by the engine, which must still
    /// run), closes the connections and ends the thread. Takes at most [`ApiConfig::stop_timeout`]
    /// and a little.
    ///
    /// Errors: [`ApiError::Died`].
    pub fn stop(mut self) -> Result<(), ApiError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), ApiError> {
        drop(self.stop.take());
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(ApiError::Died),
            _ => Ok(()),
        }
    }
}

impl Drop for ApiHandle {
    fn drop(&mut self) {
        // The panic's own message is on standard error already.
        let _ = self.end();
    }
}

fn run(
    frontend: Frontend,
    config: ApiConfig,
    listeners: Vec<(Listener, ListenerRules)>,
    stop: oneshot::Receiver<()>,
    started: mpsc::SyncSender<Result<(), MachineError>>,
) {
    let executor = match glommio_io::local_executor(config.placement) {
        Ok(executor) => executor,
        Err(error) => return started.send(Err(error)).unwrap_or_default(),
    };
    executor.run(async move {
        let core = Rc::new(Core::new(frontend, config));
        let pumped = core.clone();
        glommio::spawn_local(async move { pumped.answers.pump().await }).detach();
        let mut accepting = Vec::new();
        for (listener, rules) in listeners {
            let (core, listener) = (core.clone(), listener.into_local());
            let (stop, stopped) = oneshot::channel::<()>();
            let task = glommio::spawn_local(async move { accept(&core, listener, rules, stopped).await });
            accepting.push((stop, task));
        }
        // Whoever called `start` is waiting for this.
        let _ = started.send(Ok(()));
        // It is never sent, only dropped.
        let _ = stop.await;
        for (stop, ended) in accepting {
            drop(stop);
            ended.await;
        }
        finish(&core).await;
    });
}

/// Accepts connections until `stop` is dropped; then the port is closed.
async fn accept(
    core: &Rc<Core>,
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
            Some(Ok(stream)) if core.connections.borrow().len() < core.config.max_connections => {
                serve(core, stream, rules);
            }
            Some(Ok(stream)) if Rc::strong_count(&refusing) <= REFUSED_AT_ONCE => {
                let counted = refusing.clone();
                glommio::spawn_local(async move {
                    connection::refuse(GlommioIo::new(stream)).await;
                    drop(counted);
                })
                .detach();
            }
            Some(Ok(_)) => {}
        }
    }
}

fn serve(core: &Rc<Core>, stream: TcpStream, rules: ListenerRules) {
    let (stop, stopped) = oneshot::channel();
    let number = core.opened(stop);
    let core = core.clone();
    glommio::spawn_local(async move {
        connection::serve(core.clone(), GlommioIo::new(stream), rules, stopped).await;
        core.closed(number);
    })
    .detach();
}

async fn finish(core: &Core) {
    let end = Instant::now() + core.config.stop_timeout;
    core.ask_connections_to_end();
    while !core.is_quiet() && Instant::now() < end {
        glommio::timer::sleep(STOP_LOOK).await;
    }
}
