//! A TCP proxy that adds a delay to a connection, the same in both directions: what comes in is
//! handed on when it has waited for so long, in its order. It limits no bandwidth.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// The bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// The most pieces that are under way in a direction; a sender waits beyond.
const MOST_UNDER_WAY: usize = 8_192;

/// The pause between two looks for connections.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A proxy of an address. Its connections end with those behind it.
#[derive(Debug)]
pub(super) struct DelayProxy {
    /// Where to connect to instead.
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl DelayProxy {
    /// Starts a proxy, on a free port of loopback, of `target`, which need not be there yet.
    ///
    /// Errors: no port is free.
    pub(super) fn start(target: SocketAddr, delay: Duration) -> io::Result<DelayProxy> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let accepting = spawn(move || {
            while !is_stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    // One that can't be carried is closed, which its client sees.
                    Ok((client, _)) => drop(connect(client, target, delay)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(LOOK_EVERY),
                    Err(_) => sleep(LOOK_EVERY),
                }
            }
        });
        Ok(DelayProxy { address, stop, accepting: Some(accepting) })
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.accepting.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Connects a client with the target.
fn connect(client: TcpStream, target: SocketAddr, delay: Duration) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let server = TcpStream::connect(target)?;
    for end in [&client, &server] {
        end.set_nodelay(true)?;
    }
    carry(client.try_clone()?, server.try_clone()?, delay);
    carry(server, client, delay);
    Ok(())
}

/// Carries what comes from one end to the other, and its end, each `delay` later.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (way, arrivals) = sync_channel::<(Instant, Vec<u8>)>(MOST_UNDER_WAY);
    spawn(move || {
        let mut piece = vec![0; PIECE];
        loop {
            let read = from.read(&mut piece).unwrap_or(0);
            // No bytes are the end.
            if way.send((Instant::now() + delay, piece[..read].to_vec())).is_err() || read == 0 {
                return;
            }
        }
    });
    spawn(move || {
        for (due, bytes) in arrivals {
            sleep(due.saturating_duration_since(Instant::now()));
            let how = match bytes.is_empty() {
                true => Shutdown::Write,
                false if to.write_all(&bytes).is_err() => Shutdown::Both,
                false => continue,
            };
            // It may be closed already.
            let _ = to.shutdown(how);
            return;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_their_order_after_the_delay_and_so_does_the_end() {
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let delay = Duration::from_millis(30);
        let proxy = DelayProxy::start(target.local_addr().unwrap(), delay).unwrap();
        let mut client = TcpStream::connect(proxy.address).unwrap();
        let (mut server, _) = target.accept().unwrap();
        let began = Instant::now();
        let sent: Vec<u8> = (0..200_000u32).map(|at| at as u8).collect();
        let to_send = sent.clone();
        let writer = spawn(move || {
            client.write_all(&to_send).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut answer = [0; 2];
            client.read_exact(&mut answer).unwrap();
            answer
        });
        let mut first = [0; 1];
        server.read_exact(&mut first).unwrap();
        assert!(began.elapsed() >= delay, "{:?}", began.elapsed());
        server.write_all(b"ok").unwrap();
        let mut came = first.to_vec();
        server.read_to_end(&mut came).unwrap();
        assert_eq!(came, sent);
        assert_eq!(&writer.join().unwrap(), b"ok");
        assert!(began.elapsed() >= 2 * delay, "{:?}", began.elapsed());
    }
}
