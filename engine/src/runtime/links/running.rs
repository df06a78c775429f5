//! The thread of the links: it sleeps in its sockets, until bytes come, a doorbell rings or a timer
//! is due.

use super::board::LinkBoard;
use super::link_thread::{LinkThread, first_views};
use super::resolver::{Resolver, resolve};
use crate::config::LinkTlsFiles;
use crate::runtime::clock::Clock;
use crate::runtime::discovery::{DiscoveryPlan, RunningDiscovery};
use crate::runtime::fault::FaultLatch;
use crate::runtime::hosts::HostLinks;
use crate::runtime::panics::{catch, install_hook};
use crate::runtime::ports::once_free;
use crate::runtime::threads::agent::{Agent, Idle, NAP, Placement};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use symphony_transport::Nanos;
use symphony_transport::doorbell::Doorbells;
use symphony_transport::tcp::{LinkTls, SocketEvent, SocketOptions, Sockets};

/// The name of the thread.
const ROLE: &str = "links";

/// The number of turns without work before it sleeps.
const TURNS_BEFORE_SLEEP: u32 = 2;

/// The longest sleep: what no doorbell tells of is seen a millisecond later at most.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The time that peers have to take the last bytes when the process ends.
const LAST_BYTES: Duration = Duration::from_millis(200);

/// Bytes that a socket queues.
const OUTGOING_BYTES: usize = 256 << 10;

/// Sockets beside one for each link: those whose peer has not said who it is, and those that close.
const SPARE_SOCKETS: usize = 96;

/// What the thread needs.
pub(crate) struct LinkThreadPlan {
    pub(crate) placement: Placement,
    pub(crate) clock: Clock,
    pub(crate) bells: Doorbells,
    pub(crate) faults: FaultLatch,
}

/// The links of a process, whose thread runs.
pub(crate) struct RunningLinks {
    pub(crate) board: Arc<LinkBoard>,
    stop: Arc<AtomicBool>,
    pub(crate) thread: JoinHandle<()>,
}

impl RunningLinks {
    /// Listens, and starts the thread.
    ///
    /// Errors: the host can't listen at its address, or the system gives no thread.
    pub(crate) fn start(links: HostLinks, plan: LinkThreadPlan) -> io::Result<RunningLinks> {
        let HostLinks { host, own, discovery, listens_at, tls, peers } = links;
        let options = SocketOptions {
            sockets: peers.len() + SPARE_SOCKETS,
            outgoing_bytes: OUTGOING_BYTES,
            ..SocketOptions::default()
        };
        let mut sockets = Sockets::new(options)?;
        tracing::info!("the links' sockets are driven by {}", sockets.driver());
        if let Some(files) = tls {
            sockets.protect(read_tls(&files)?);
        }
        let given = listens_at;
        let listens_at = given.as_ref().map(|name| listen(&mut sockets, name)).transpose()?;
        let address = given.zip(listens_at).map_or(String::new(), |(name, at)| advertised(&name, at));
        let discovery = DiscoveryPlan { config: discovery, own, address };
        let discovery = RunningDiscovery::start(discovery, sockets.waker())?;
        let board = Arc::new(LinkBoard::new(first_views(&peers), listens_at, discovery.board.clone()));
        let resolver = Resolver::start(sockets.waker())?;
        let agent = LinkThread::new(host, peers, sockets, (resolver, discovery), Arc::clone(&board));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        install_hook();
        let thread = std::thread::Builder::new().name(ROLE.to_owned()).spawn(move || {
            plan.placement.take(ROLE);
            let mut agent = agent;
            if let Err(panic) = catch(|| run(&mut agent, &plan, &stopped)) {
                plan.faults.report(ROLE, format_args!("died: {panic}"));
            }
        })?;
        Ok(RunningLinks { board, stop, thread })
    }

    /// Asks the thread to end.
    pub(crate) fn begin_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns what others are told to reach this host by: the name that it was given, with the real
/// port.
fn advertised(name: &str, listens_at: std::net::SocketAddr) -> String {
    match name.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{}", listens_at.port()),
        _ => name.to_owned(),
    }
}

/// Reads what makes this host one of the engine's.
fn read_tls(files: &LinkTlsFiles) -> io::Result<LinkTls> {
    let read = |path: &Path| {
        let failed = |error| io::Error::other(format!("{} can't be read: {error}", path.display()));
        std::fs::read(path).map_err(failed)
    };
    let (chain, key) = (read(&files.certificate)?, read(&files.key)?);
    LinkTls::new(&chain, &key, &read(&files.authorities)?, &files.name).map_err(io::Error::other)
}

fn listen(sockets: &mut Sockets, name: &str) -> io::Result<std::net::SocketAddr> {
    let failed = |error: String| io::Error::other(format!("can't listen for other hosts at {name}: {error}"));
    let address = resolve(name).map_err(failed)?;
    let listener =
        once_free(address, || sockets.listen(address)).map_err(|error| failed(error.to_string()))?;
    Ok(sockets.address(listener))
}

fn run(agent: &mut LinkThread, plan: &LinkThreadPlan, stop: &AtomicBool) {
    let LinkThreadPlan { placement, clock, bells, faults } = plan;
    let heartbeat = faults.watch(vec![ROLE.to_owned()]);
    let sleeper = bells.sleeper().zip(Some(agent.sockets_mut().waker().waker()));
    let mut idle = 0u32;
    while !stop.load(Ordering::Relaxed) {
        heartbeat.beat();
        if agent.poll(clock.now()) > 0 {
            if idle >= TURNS_BEFORE_SLEEP {
                sleeper.iter().for_each(|(sleeper, _)| sleeper.withdraw());
            }
            idle = 0;
            bells.ring();
            continue;
        }
        idle = idle.saturating_add(1);
        match &sleeper {
            _ if placement.idle == Idle::Spin => std::hint::spin_loop(),
            // The turn after this is the look at its rings before it sleeps.
            Some((sleeper, waker)) if idle == TURNS_BEFORE_SLEEP => sleeper.announce(waker),
            Some((sleeper, waker)) if idle > TURNS_BEFORE_SLEEP => {
                agent.wait(clock.now(), LONGEST_SLEEP);
                sleeper.announce(waker);
            }
            None if idle > TURNS_BEFORE_SLEEP => agent.wait(clock.now(), NAP),
            _ => {}
        }
    }
    agent.begin_leaving();
    agent.stop(clock.now());
    bells.ring();
    linger(agent.sockets_mut(), clock);
}

impl LinkThread {
    /// Sleeps until something may be there, for as long as nothing is due.
    fn wait(&mut self, now: Nanos, longest: Duration) {
        let left = self.next_due().0.saturating_sub(now.0);
        self.sockets_mut().wait(Duration::from_nanos(left).min(longest));
    }
}

/// Lets peers take the last bytes.
fn linger(sockets: &mut Sockets, clock: &Clock) {
    let until = clock.now() + Nanos(LAST_BYTES.as_nanos() as u64);
    while clock.now() < until {
        let now = clock.now();
        while let Some(event) = sockets.next(now) {
            if let SocketEvent::Accepted { socket, .. } = event {
                sockets.close(now, socket);
            }
        }
        sockets.flush();
        sockets.wait(Duration::from_millis(5));
    }
}
