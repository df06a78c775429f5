//! The adapter between glommio and hyper: [`GlommioIo`] lets hyper read and write a glommio socket,
//! [`local_executor`] makes a pinned executor or explains what the machine lacks, [`listen`] and
//! [`Listener::into_local`] bring a bound port into one. The API's cores and benchmarks use it.

use super::turn;
use crate::runtime::{Idle, Placement};
use futures_io::{AsyncRead, AsyncWrite};
use glommio::net::{TcpListener, TcpStream};
use glommio::{GlommioError, LocalExecutor, LocalExecutorBuilder, ReactorErrorKind};
use hyper::rt::ReadBufCursor;
use io_uring::{IoUring, Probe, opcode};
use send_wrapper::SendWrapper;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// Locked memory that glommio asks for, in bytes.
pub const MEMLOCK_NEEDED: u64 = 512 * 1024;

/// One read takes at most this many bytes, so that little is zeroed in vain.
const READ_AT_MOST: usize = 64 * 1024;

/// One write takes at most this many bytes: while the other end makes room, the system call goes on
/// with all that it is given, at a millisecond a megabyte or two, or ten times as long where the
/// system has no page ready.
const WRITE_AT_MOST: usize = 64 * 1024;

/// The bytes that a socket takes or gives before its task pauses. Where the other end keeps up, a
/// large body would go through in one turn.
const TURN_AT_MOST: usize = 512 * 1024;

/// Never, in effect. glommio 0.9 goes to sleep with tasks ready to run if this timer fires after it
/// looked at its sockets and before it ran the first task: on a loaded machine, sooner or later,
/// with its default too. So no task here may keep itself runnable: one that polls must sleep
/// between polls.
const PREEMPT_EVERY: Duration = Duration::from_secs(3_600);

/// The time that a spinning executor polls before it sleeps: longer than the longest pause of a
/// server's own timers, so it never sleeps.
const SPIN: Duration = Duration::from_secs(3_600);

/// The memory for registered buffers, which only files use: the least that glommio accepts.
const IO_MEMORY: usize = 64 * 1024;

/// The most connections that wait for `accept`.
const BACKLOG: i32 = 1024;

/// The feature that the machine lacks for an executor, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The limit on locked memory, in bytes, is under [`MEMLOCK_NEEDED`].
    #[error(
        "the limit on locked memory is {0} bytes, and io_uring needs {MEMLOCK_NEEDED}; raise it with \
         `ulimit -l 512`, LimitMEMLOCK=512K in a systemd unit, or --ulimit memlock=524288 for a container"
    )]
    Memlock(u64),
    /// The kernel or its sandbox refuses io_uring.
    #[error(
        "io_uring is not permitted ({0}); a container's seccomp profile often forbids it (allow \
         io_uring_setup, io_uring_enter and io_uring_register), and so does the sysctl \
         kernel.io_uring_disabled when it is not 0"
    )]
    Forbidden(io::Error),
    /// The kernel has no io_uring, or one that lacks what is needed.
    #[error("the kernel's io_uring lacks {0}; Linux 5.8 or later is needed")]
    TooOld(&'static str),
    /// The core to pin to does not exist, or this process may not use it.
    #[error("can't pin a thread to core {0}; it must be one of the cores that this process may use: {1:?}")]
    Core(usize, Vec<usize>),
    /// Anything else.
    #[error("can't start an io_uring executor: {0}")]
    Other(String),
}

/// An executor on the current thread, in this placement. With [`Idle::Spin`] it looks at its
/// sockets and timers all the time and never goes to sleep, so that no wake-up delays a request.
///
/// Errors: [`MachineError`], instead of the panics and exits by which glommio itself says some of
/// it.
pub fn local_executor(placement: Placement) -> Result<LocalExecutor, MachineError> {
    check_io_uring()?;
    if let Some(core) = placement.core {
        pin(core)?;
    }
    // Pinned already, and glommio would say less of what is wrong with a core; but it spins only if
    // it has pinned itself.
    let builder = match placement {
        Placement { core: Some(core), idle: Idle::Spin } => {
            LocalExecutorBuilder::new(glommio::Placement::Fixed(core)).spin_before_park(SPIN)
        }
        _ => LocalExecutorBuilder::new(glommio::Placement::Unbound),
    };
    builder.io_memory(IO_MEMORY).preempt_timer(PREEMPT_EVERY).make().map_err(|error| match error {
        GlommioError::ReactorError(ReactorErrorKind::MemLockLimit(limit, _)) => MachineError::Memlock(limit),
        GlommioError::IoError(e) if e.kind() == io::ErrorKind::OutOfMemory => {
            MachineError::Other(format!("{e}; the limit on locked memory may be used up: raise it"))
        }
        other => MachineError::Other(other.to_string()),
    })
}

/// Asks the kernel for a small ring and for the operations that glommio uses.
///
/// Errors: [`MachineError::Forbidden`], [`MachineError::TooOld`] or [`MachineError::Other`].
pub fn check_io_uring() -> Result<(), MachineError> {
    let ring = IoUring::new(2).map_err(|e| match e.raw_os_error() {
        Some(ENOSYS) => MachineError::TooOld("io_uring itself (or a seccomp profile hides it)"),
        Some(EPERM | EACCES) => MachineError::Forbidden(e),
        Some(ENOMEM) => {
            MachineError::Other(format!("{e}; the limit on locked memory may be used up: raise it"))
        }
        _ => MachineError::Other(e.to_string()),
    })?;
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|_| MachineError::TooOld("the list of its operations"))?;
    for (code, name) in [
        (opcode::Accept::CODE, "accept"),
        (opcode::Connect::CODE, "connect"),
        (opcode::Fallocate::CODE, "fallocate"),
        (opcode::OpenAt::CODE, "openat"),
        (opcode::Statx::CODE, "statx"),
        (opcode::LinkTimeout::CODE, "linked time-outs"),
        (opcode::Read::CODE, "read"),
        (opcode::Recv::CODE, "recv"),
        (opcode::Send::CODE, "send"),
    ] {
        if !probe.is_supported(code) {
            return Err(MachineError::TooOld(name));
        }
    }
    Ok(())
}

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const ENOSYS: i32 = 38;

fn pin(core: usize) -> Result<(), MachineError> {
    let ours: Vec<usize> =
        core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|c| c.id).collect();
    if ours.contains(&core) && core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        return Ok(());
    }
    Err(MachineError::Core(core, ours))
}

/// A bound and listening port that no executor owns yet: it can be sent to the thread that will.
#[derive(Debug)]
pub struct Listener(std::net::TcpListener);

/// Binds `addr` and listens. With `share_port`, further listeners (one per API core) may bind the
/// same address and the kernel spreads connections over them; without, a port in use is an error.
///
/// Errors: the system's own, such as [`io::ErrorKind::AddrInUse`].
pub fn listen(addr: SocketAddr, share_port: bool) -> io::Result<Listener> {
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(addr),
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if share_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(Listener(socket.into()))
}

impl Listener {
    /// The address bound, with the real port where port 0 was asked for.
    ///
    /// Errors: the system's own.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Hands it to the executor of the current thread. Panics outside of one.
    pub fn into_local(self) -> TcpListener {
        let fd = self.0.into_raw_fd();
        // SAFETY: the descriptor is a listening TCP socket, open, and owned by this alone:
        // `into_raw_fd` gave it up, and the new listener closes it when dropped.
        unsafe { TcpListener::from_raw_fd(fd) }
    }
}

/// A glommio TCP connection that hyper can drive. It belongs to its executor's thread.
#[derive(Debug)]
pub struct GlommioIo {
    stream: TcpStream,
    bytes_read: u64,
    /// The bytes that went through since its task last waited.
    since_wait: usize,
    pause: Option<glommio::timer::Timer>,
}

impl GlommioIo {
    /// Wraps a connection and turns Nagle's delay off: messages are written whole.
    pub fn new(stream: TcpStream) -> GlommioIo {
        // A connection that the peer has closed already says so at its first read.
        let _ = stream.set_nodelay(true);
        GlommioIo { stream, bytes_read: 0, since_wait: 0, pause: None }
    }

    /// Connects to `addr` from the current executor.
    ///
    /// Errors: the system's own; [`io::ErrorKind::TimedOut`] after `timeout`.
    pub async fn connect(addr: SocketAddr, timeout: Duration) -> io::Result<GlommioIo> {
        let stream = TcpStream::connect_timeout(addr, timeout).await.map_err(io::Error::from)?;
        Ok(GlommioIo::new(stream))
    }

    /// Returns the number of bytes that have come so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Sets the time after which a write without progress fails with [`io::ErrorKind::TimedOut`].
    ///
    /// Errors: a zero `timeout`.
    pub fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.stream.set_write_timeout(Some(timeout)).map_err(io::Error::from)
    }

    /// Has the task wait for a moment after [`TURN_AT_MOST`] bytes, or in a long turn.
    #[inline]
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.pause.is_some() || self.since_wait >= TURN_AT_MOST || turn::is_long() {
            let pause = self.pause.get_or_insert_with(|| glommio::timer::Timer::new(turn::PAUSE));
            ready!(Pin::new(pause).poll(cx));
            (self.pause, self.since_wait) = (None, 0);
            // A read that waits for the same pause would not hear of its end from a write.
            cx.waker().wake_by_ref();
        }
        Poll::Ready(())
    }

    /// Notes the bytes that went through in a poll of the socket, or that its task waits.
    #[inline]
    fn polled(&mut self, bytes: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &bytes {
            Poll::Ready(Ok(bytes)) => self.since_wait += bytes,
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.since_wait = 0,
        }
        bytes
    }
}

impl hyper::rt::Read for GlommioIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_pause(cx));
        let room = buf.remaining().min(READ_AT_MOST);
        let read = Pin::new(&mut self.stream).poll_read(cx, buf.initialize_unfilled_to(room));
        let read = ready!(self.polled(read))?;
        // SAFETY: `read` is at most `room`, and these bytes were initialised just above.
        unsafe { buf.advance(read) };
        self.bytes_read += read as u64;
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for GlommioIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_pause(cx));
        let written = Pin::new(&mut self.stream).poll_write(cx, &buf[..buf.len().min(WRITE_AT_MOST)]);
        self.polled(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// Time as hyper asks for it, on the current thread's executor.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlommioTimer;

impl hyper::rt::Timer for GlommioTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Sleep(SendWrapper::new(glommio::timer::Timer::new(duration))))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        self.sleep(deadline.saturating_duration_since(Instant::now()))
    }
}

/// hyper asks for what may go to other threads. This does not, since its connection does not; if it
/// did, it would panic.
struct Sleep(SendWrapper<glommio::timer::Timer>);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.0).poll(cx).map(drop)
    }
}

impl hyper::rt::Sleep for Sleep {}

/// Returns the result of `future`, or `None` if it takes longer than `limit`. A future that is
/// ready costs no timer.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut timer = None;
    poll_fn(|cx| {
        if let Poll::Ready(value) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(value));
        }
        let timer = timer.get_or_insert_with(|| glommio::timer::Timer::new(limit));
        Pin::new(timer).poll(cx).map(|_| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_an_error_unless_it_is_shared() {
        let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
        let alone = listen(loopback, false).unwrap();
        let taken = alone.local_addr().unwrap();
        assert_eq!(listen(taken, false).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(listen(taken, true).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let first = listen(loopback, true).unwrap();
        listen(first.local_addr().unwrap(), true).unwrap();
    }

    #[test]
    fn a_core_that_is_not_there_is_named_with_those_that_are() {
        let error = std::thread::spawn(|| {
            local_executor(Placement { core: Some(99_999), idle: Idle::Nap }).unwrap_err()
        })
        .join()
        .unwrap();
        assert!(error.to_string().contains("core 99999"), "{error}");
    }
}
