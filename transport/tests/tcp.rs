//! Connections over loopback, with each driver that this machine has: what is sent comes whole and
//! in order, whatever the peer does with its side, and everything is bounded and given back.

use cluster::Cluster;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use symphony_transport::Nanos;
use symphony_transport::tcp::{
    DriverChoice, EVENTS_PER_TURN, ListenerId, SendRefused, SocketEnd, SocketEvent, SocketId, SocketOptions,
    Sockets,
};

/// Far more than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[path = "cluster/mod.rs"]
mod cluster;

/// Sockets with what has happened to them.
struct Peer {
    sockets: Sockets,
    began: Instant,
    /// An instant that the test has moved forward by hand.
    skipped: Nanos,
    accepted: Vec<(ListenerId, SocketId, SocketAddr)>,
    connected: Vec<SocketId>,
    received: HashMap<SocketId, Vec<u8>>,
    ended: Vec<(SocketId, SocketEnd)>,
}

impl Peer {
    fn new(options: SocketOptions) -> Peer {
        Peer {
            sockets: Sockets::new(options).unwrap(),
            began: Instant::now(),
            skipped: Nanos::ZERO,
            accepted: Vec::new(),
            connected: Vec::new(),
            received: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// Returns a peer that listens, and where.
    fn listening(options: SocketOptions) -> (Peer, SocketAddr) {
        let mut peer = Peer::new(options);
        let listener = peer.sockets.listen(loopback()).unwrap();
        let address = peer.sockets.address(listener);
        (peer, address)
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64) + self.skipped
    }

    fn connect(&mut self, address: SocketAddr) -> SocketId {
        self.sockets.connect(self.now(), address).unwrap()
    }

    /// Takes the events of a turn, then flushes. Returns how many there were.
    fn turn(&mut self) -> usize {
        let now = self.now();
        let mut events = 0;
        while let Some(event) = self.sockets.next(now) {
            events += 1;
            match event {
                SocketEvent::Accepted { listener, socket, address } => {
                    self.accepted.push((listener, socket, address));
                }
                SocketEvent::Connected { socket, .. } => self.connected.push(socket),
                SocketEvent::Received { socket, bytes } => {
                    assert!(!bytes.is_empty());
                    self.received.entry(socket).or_default().extend_from_slice(bytes);
                }
                SocketEvent::Closed { socket, end } => self.ended.push((socket, end)),
                SocketEvent::AcceptFailed { error, .. } => panic!("{error}"),
            }
        }
        self.sockets.flush();
        events
    }

    fn received(&self, socket: SocketId) -> &[u8] {
        self.received.get(&socket).map_or(&[], |bytes| bytes)
    }

    fn has_ended(&self, socket: SocketId) -> bool {
        self.ended.iter().any(|(ended, _)| *ended == socket)
    }
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Runs turns of these peers until something holds.
fn until<const N: usize>(peers: [&mut Peer; N], holds: impl Fn(&[&mut Peer; N]) -> bool) {
    let mut peers = peers;
    let began = Instant::now();
    while !holds(&peers) {
        assert!(began.elapsed() < PATIENCE, "it does not come to hold");
        if peers.iter_mut().map(|peer| peer.turn()).sum::<usize>() == 0 {
            thread::yield_now();
        }
    }
}

/// Two peers and the two ends of a connection between them.
fn connected(options: SocketOptions) -> (Peer, SocketId, Peer, SocketId) {
    let (mut server, address) = Peer::listening(options);
    let mut client = Peer::new(options);
    if let Some(cluster) = CLUSTER.get() {
        client.sockets.protect(cluster.host());
        server.sockets.protect(cluster.host());
    }
    let dialled = client.connect(address);
    until([&mut client, &mut server], |[client, server]| {
        !client.connected.is_empty() && !server.accepted.is_empty()
    });
    assert_eq!(client.connected, [dialled]);
    let (_, accepted, _) = server.accepted[0];
    (client, dialled, server, accepted)
}

/// Bytes of which no piece can be mistaken for another.
fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

thread_local! {
    /// The cluster whose certificates the test's connections need; none where they are in clear.
    static CLUSTER: Cell<Option<&'static Cluster>> = const { Cell::new(None) };
    /// The driver that the test's thread tries.
    static DRIVER: Cell<DriverChoice> = const { Cell::new(DriverChoice::Best) };
}

fn options() -> SocketOptions {
    SocketOptions { driver: DRIVER.get(), ..SocketOptions::default() }
}

fn small() -> SocketOptions {
    SocketOptions { sockets: 4, outgoing_bytes: 4 << 10, ..options() }
}

/// Runs a test with a driver; not where this machine has none of its kind, and says so.
fn with(driver: DriverChoice, test: fn()) {
    DRIVER.set(driver);
    match Sockets::new(small()) {
        Ok(sockets) => {
            println!("driver: {}", sockets.driver());
            test();
        }
        Err(error) => println!("not run: {error}"),
    }
}

macro_rules! over_both_drivers {
    ($($test:ident,)+) => {
        mod poll {
            $(#[test]
            fn $test() {
                super::with(symphony_transport::tcp::DriverChoice::Poll, super::$test);
            })+
        }

        mod uring {
            $(#[test]
            fn $test() {
                super::with(symphony_transport::tcp::DriverChoice::Uring, super::$test);
            })+
        }
    };
}

over_both_drivers! {
    bytes_come_whole_and_in_order,
    over_tls_bytes_come_whole_and_in_order,
    a_stranger_is_refused_with_a_sentence_on_both_sides,
    one_who_speaks_the_protocol_in_clear_is_told_so_in_it,
    a_stranger_that_says_nothing_or_garbage_holds_no_socket,
    beyond_loopback_nothing_goes_in_clear,
    what_a_turn_queues_goes_in_one_send,
    large_sends_come_whole_and_end_with_a_peer_that_never_reads,
    where_io_uring_is_forbidden_it_is_epoll_and_says_so,
    a_peer_that_does_not_read_bounds_what_is_queued_until_it_reads,
    close_sends_what_was_queued_though_the_peer_has_sent_more_than_was_read,
    a_peer_that_never_closes_its_side_is_closed_in_time,
    a_peer_that_closes_or_resets_ends_the_connection_once,
    to_send_to_a_peer_that_was_reset_ends_the_connection_once,
    where_nobody_listens_the_connection_is_refused,
    a_connection_that_nobody_answers_is_given_up_in_time,
    thousands_of_connections_come_and_go_and_leave_nothing_behind,
    connections_beyond_the_bound_are_closed_at_once_and_counted,
    an_id_of_an_earlier_connection_reaches_no_later_one,
    a_turn_has_a_bounded_number_of_events_though_peers_send_without_end,
    a_thread_that_waits_is_woken_by_bytes_by_its_waker_and_by_the_time,
    a_port_in_use_is_an_error,
}

/// A step of the two ends of a connection.
#[derive(Clone, Copy, Debug)]
enum Step {
    Queue { end: usize, bytes: usize },
    Flush { end: usize },
    Turn { end: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let end = 0usize..2;
    prop_oneof![
        3 => (end.clone(), 0usize..3_000).prop_map(|(end, bytes)| Step::Queue { end, bytes }),
        1 => end.clone().prop_map(|end| Step::Flush { end }),
        2 => end.prop_map(|end| Step::Turn { end }),
    ]
}

fn bytes_come_whole_and_in_order() {
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&proptest::collection::vec(step(), 1..200), exchange).unwrap();
}

fn exchange(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (client, dialled, server, accepted) = connected(small());
    let (mut peers, ids) = ([client, server], [dialled, accepted]);
    let mut queued = [0; 2];
    for step in steps {
        match step {
            Step::Queue { end, bytes } => {
                let room = peers[end].sockets.room(ids[end]);
                let sent = peers[end].sockets.send(ids[end], &pattern(queued[end], bytes));
                match sent {
                    Ok(()) => queued[end] += bytes,
                    Err(refused) => {
                        prop_assert_eq!(refused, SendRefused::NoRoom { needed: bytes, room });
                        prop_assert!(bytes > room);
                    }
                }
            }
            Step::Flush { end } => peers[end].sockets.flush(),
            Step::Turn { end } => drop(peers[end].turn()),
        }
    }
    let [client, server] = &mut peers;
    until([client, server], |[client, server]| {
        client.received(dialled).len() == queued[1] && server.received(accepted).len() == queued[0]
    });
    prop_assert!(client.received(dialled) == pattern(0, queued[1]));
    prop_assert!(server.received(accepted) == pattern(0, queued[0]));
    prop_assert!(client.ended.is_empty() && server.ended.is_empty());
    Ok(())
}

fn over_tls_bytes_come_whole_and_in_order() {
    CLUSTER.set(Some(Box::leak(Box::new(Cluster::new()))));
    bytes_come_whole_and_in_order();
    large_sends_come_whole(&mut connected(SocketOptions { outgoing_bytes: 256 << 10, ..small() }));
}

fn a_stranger_is_refused_with_a_sentence_on_both_sides() {
    let (ours, other) = (Cluster::new(), Cluster::new());
    let (mut server, address) = Peer::listening(small());
    server.sockets.protect(ours.host());
    let mut stranger = Peer::new(small());
    stranger.sockets.protect(other.host());
    let dialled = stranger.connect(address);
    until([&mut stranger, &mut server], |[stranger, server]| {
        stranger.has_ended(dialled) && server.ended.len() == 1 && server.sockets.free() == 4
    });
    for (peer, sentence) in [(&stranger, "not of this cluster"), (&server, "refuses this host's certificate")]
    {
        let end = peer.ended[0].1.to_string();
        assert!(matches!(peer.ended[0].1, SocketEnd::Stranger { .. }) && end.contains(sentence), "{end}");
    }
    assert!(server.accepted.is_empty() && stranger.connected.is_empty());
    assert_eq!(server.sockets.counters().strangers, 1);
}

fn one_who_speaks_the_protocol_in_clear_is_told_so_in_it() {
    use symphony_transport::wire::{Alive, Payload, decode};
    let cluster = Cluster::new();
    let (mut server, address) = Peer::listening(small());
    server.sockets.protect(cluster.host());
    let mut stream = TcpStream::connect(address).unwrap();
    let mut frame = [0; 64];
    let length = Payload::Alive(Alive { number: 0, sent: Nanos::ZERO }).encode(&mut frame).unwrap();
    stream.write_all(&frame[..length]).unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    until([&mut server], |[server]| server.ended.len() == 1 && server.sockets.free() == 4);
    assert!(server.ended[0].1.to_string().contains("does not speak TLS"));
    let answer = reader.join().unwrap();
    let Some((Payload::Closing(closing), _)) = decode(&answer).unwrap() else { panic!("{answer:?}") };
    assert!(closing.sentence.to_string().contains("need TLS"), "{}", closing.sentence);
    assert!(server.accepted.is_empty());
}

fn a_stranger_that_says_nothing_or_garbage_holds_no_socket() {
    let cluster = Cluster::new();
    let (mut server, address) = Peer::listening(small());
    server.sockets.protect(cluster.host());
    let _silent = TcpStream::connect(address).unwrap();
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[22, 3, 1, 0, 5, 9, 9, 9, 9, 9]).unwrap();
    garbage.set_read_timeout(Some(PATIENCE)).unwrap();
    until([&mut server], |[server]| server.ended.len() == 1);
    drop(garbage);
    until([&mut server], |[server]| server.sockets.free() == 3);
    server.skipped = small().connect_within + Nanos(1);
    until([&mut server], |[server]| server.sockets.free() == 4);
    assert!(server.accepted.is_empty());
    assert_eq!(server.ended.len(), 1, "who never spoke is not spoken of");
}

fn beyond_loopback_nothing_goes_in_clear() {
    let mut peer = Peer::new(small());
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let error = peer.sockets.listen(everywhere).unwrap_err().to_string();
    assert!(error.contains("links that leave it need TLS"), "{error}");
    let far = "192.0.2.1:7000".parse().unwrap();
    let error = peer.sockets.connect(Nanos::ZERO, far).unwrap_err().to_string();
    assert!(error.contains("links that leave it need TLS"), "{error}");
    peer.sockets.protect(Cluster::new().host());
    assert_eq!(peer.sockets.free(), 4);
}

fn what_a_turn_queues_goes_in_one_send() {
    let (mut client, dialled, mut server, accepted) = connected(small());
    let before = client.sockets.counters();
    for at in 0..50 {
        client.sockets.send(dialled, &pattern(64 * at, 64)).unwrap();
    }
    client.sockets.flush();
    client.sockets.flush();
    let after = client.sockets.counters();
    assert_eq!((after.sends - before.sends, after.sent_bytes - before.sent_bytes), (1, 3_200));
    until([&mut client, &mut server], |[_, server]| server.received(accepted).len() == 3_200);
    assert_eq!(server.received(accepted), pattern(0, 3_200));
}

fn a_peer_that_does_not_read_bounds_what_is_queued_until_it_reads() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let mut client = Peer::new(small());
    let dialled = client.connect(listener.local_addr().unwrap());
    let (mut deaf, _) = listener.accept().unwrap();
    until([&mut client], |[client]| !client.connected.is_empty());
    // The system's own buffers take some megabytes, then nothing more.
    let (mut queued, mut refusals) = (0, 0);
    while refusals < 1_000 {
        match client.sockets.send(dialled, &pattern(queued, 1_000)) {
            Ok(()) => {
                queued += 1_000;
                refusals = 0;
            }
            Err(SendRefused::NoRoom { room, .. }) => {
                assert!(room < 1_000);
                refusals += 1;
            }
            Err(other) => panic!("{other}"),
        }
        client.turn();
        assert!(queued < 1 << 30, "a peer that does not read takes any number of bytes");
    }
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        deaf.read_to_end(&mut bytes).unwrap();
        bytes
    });
    until([&mut client], |[client]| client.sockets.room(dialled) >= 1_000);
    client.sockets.send(dialled, &pattern(queued, 1_000)).unwrap();
    let now = client.now();
    client.sockets.close(now, dialled);
    until([&mut client], |[client]| client.sockets.free() == 4);
    assert!(reader.join().unwrap() == pattern(0, queued + 1_000));
}

/// Large sends may leave the copy out: their memory is the kernel's until the peer has the bytes.
fn large_sends_come_whole((client, dialled, server, accepted): &mut (Peer, SocketId, Peer, SocketId)) {
    let (dialled, accepted) = (*dialled, *accepted);
    let mut queued = 0;
    while queued < 8 << 20 {
        if client.sockets.send(dialled, &pattern(queued, 100_000)).is_ok() {
            queued += 100_000;
        }
        client.turn();
        server.turn();
    }
    until([client, server], |[_, server]| server.received(accepted).len() == queued);
    assert!(server.received(accepted) == pattern(0, queued));
}

fn large_sends_come_whole_and_end_with_a_peer_that_never_reads() {
    let mut ends = connected(SocketOptions { outgoing_bytes: 256 << 10, ..small() });
    large_sends_come_whole(&mut ends);
    let (mut client, ..) = ends;
    let listener = TcpListener::bind(loopback()).unwrap();
    let dialled = client.connect(listener.local_addr().unwrap());
    let (deaf, _) = listener.accept().unwrap();
    until([&mut client], |[client]| client.connected.contains(&dialled));
    let mut refusals = 0;
    while refusals < 1_000 {
        let sent = client.sockets.send(dialled, &[7; 100_000]);
        refusals = if sent.is_ok() { 0 } else { refusals + 1 };
        client.turn();
    }
    let now = client.now();
    client.sockets.close(now, dialled);
    client.skipped = small().close_within;
    until([&mut client], |[client]| client.sockets.free() == 3);
    drop(deaf);
}

/// A sandbox that forbids io_uring, as containers' often do.
fn where_io_uring_is_forbidden_it_is_epoll_and_says_so() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let forbid = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
    let errno = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(forbid, SeccompAction::Allow, errno, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        let sockets = Sockets::new(SocketOptions::default()).unwrap();
        assert!(sockets.driver().starts_with("epoll: io_uring is not permitted"), "{}", sockets.driver());
        let forced = SocketOptions { driver: DriverChoice::Uring, ..SocketOptions::default() };
        assert!(Sockets::new(forced).is_err());
    })
    .join()
    .unwrap();
}

fn close_sends_what_was_queued_though_the_peer_has_sent_more_than_was_read() {
    let (mut server, address) = Peer::listening(small());
    let mut stream = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| !server.accepted.is_empty());
    let (_, accepted, _) = server.accepted[0];
    stream.write_all(&pattern(0, 200_000)).unwrap();
    server.sockets.send(accepted, &pattern(7, 4_000)).unwrap();
    let now = server.now();
    server.sockets.close(now, accepted);
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    until([&mut server], |[server]| server.sockets.free() == 4);
    assert!(reader.join().unwrap() == pattern(7, 4_000));
    assert!(server.received.is_empty() && server.ended.is_empty(), "nothing is seen after `close`");
}

fn a_peer_that_never_closes_its_side_is_closed_in_time() {
    let (mut server, address) = Peer::listening(small());
    let _stream = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| !server.accepted.is_empty());
    let (_, accepted, _) = server.accepted[0];
    let now = server.now();
    server.sockets.close(now, accepted);
    for _ in 0..10 {
        server.turn();
    }
    assert_eq!(server.sockets.free(), 3);
    assert!(server.sockets.next_timer() <= server.now() + small().close_within);
    server.skipped = small().close_within;
    until([&mut server], |[server]| server.sockets.free() == 4);
    assert_eq!(server.sockets.next_timer(), Nanos::MAX);
}

fn a_peer_that_closes_or_resets_ends_the_connection_once() {
    for resets in [false, true] {
        let (mut server, address) = Peer::listening(small());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"half of a fra").unwrap();
        until([&mut server], |[server]| !server.received.is_empty());
        let (_, accepted, _) = server.accepted[0];
        if resets {
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        drop(stream);
        until([&mut server], |[server]| server.has_ended(accepted) && server.sockets.free() == 4);
        assert_eq!(server.received(accepted), b"half of a fra");
        assert_eq!(server.ended.len(), 1);
        let (_, end) = &server.ended[0];
        assert_eq!(matches!(end, SocketEnd::ClosedByPeer), !resets, "{end}");
        assert_eq!(server.sockets.send(accepted, b"x"), Err(SendRefused::NotOpen));
    }
}

fn to_send_to_a_peer_that_was_reset_ends_the_connection_once() {
    let (mut server, address) = Peer::listening(small());
    let stream = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| !server.accepted.is_empty());
    let (_, accepted, _) = server.accepted[0];
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    // Before any turn that would see the end.
    server.sockets.send(accepted, &pattern(0, 4_000)).unwrap();
    server.sockets.flush();
    until([&mut server], |[server]| server.sockets.free() == 4);
    assert_eq!(server.ended.len(), 1);
}

fn where_nobody_listens_the_connection_is_refused() {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut client = Peer::new(small());
    let dialled = client.connect(address);
    until([&mut client], |[client]| client.has_ended(dialled) && client.sockets.free() == 4);
    let sentence = client.ended[0].1.to_string();
    assert!(sentence.starts_with(&format!("can't connect to {address}: ")), "{sentence}");
}

fn a_connection_that_nobody_answers_is_given_up_in_time() {
    use rustix::net::{AddressFamily, SocketType};
    // A full queue of connections drops what asks to be connected.
    let deaf = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&deaf, &loopback()).unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let address = SocketAddr::try_from(rustix::net::getsockname(&deaf).unwrap()).unwrap();
    let mut client = Peer::new(SocketOptions { sockets: 16, ..small() });
    for _ in 0..16 {
        client.connect(address);
    }
    assert!(matches!(
        client.sockets.connect(Nanos::ZERO, address),
        Err(SocketEnd::TooMany { limit: 16, .. })
    ));
    for _ in 0..100 {
        client.turn();
    }
    assert!(client.connected.len() < 16);
    client.skipped = small().connect_within + Nanos(1);
    until([&mut client], |[client]| client.ended.len() + client.connected.len() == 16);
    assert!(client.ended.iter().all(|(_, end)| matches!(end, SocketEnd::NotConnected { .. })));
}

fn thousands_of_connections_come_and_go_and_leave_nothing_behind() {
    let options = SocketOptions { sockets: 32, outgoing_bytes: 1 << 10, ..options() };
    let (mut server, address) = Peer::listening(options);
    let mut client = Peer::new(options);
    for round in 0..150 {
        let dialled: Vec<_> = (0..16).map(|_| client.connect(address)).collect();
        until([&mut client, &mut server], |[client, server]| {
            client.connected.len() == 16 && server.accepted.len() == 16
        });
        for &socket in &dialled {
            client.sockets.send(socket, b"request").unwrap();
        }
        let accepted: Vec<_> = server.accepted.drain(..).map(|(_, socket, _)| socket).collect();
        until([&mut client, &mut server], |[_, server]| {
            accepted.iter().all(|&socket| server.received(socket) == b"request")
        });
        // Either side closes; the other sees the end.
        let (closer, other, sockets) = match round % 2 {
            0 => (&mut client, &mut server, &dialled),
            _ => (&mut server, &mut client, &accepted),
        };
        for &socket in sockets {
            closer.sockets.close(closer.now(), socket);
        }
        until([closer, other], |[closer, other]| {
            closer.sockets.free() == 32 && other.sockets.free() == 32 && other.ended.len() == 16
        });
        for peer in [&mut client, &mut server] {
            peer.ended.clear();
            peer.received.clear();
            peer.connected.clear();
        }
    }
    assert_eq!(server.sockets.counters().accepted, 2_400);
    assert_eq!(server.sockets.counters().turned_away, 0);
}

fn connections_beyond_the_bound_are_closed_at_once_and_counted() {
    let (mut server, address) = Peer::listening(small());
    let mut streams: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
    until([&mut server], |[server]| server.sockets.counters().turned_away == 6);
    assert_eq!((server.accepted.len(), server.sockets.free()), (4, 0));
    let local: Vec<_> = server.accepted.iter().map(|(_, _, address)| *address).collect();
    for stream in &mut streams {
        if !local.contains(&stream.local_addr().unwrap()) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let read = stream.read(&mut [0; 8]);
            assert!(
                matches!(&read, Ok(0)) || read.is_err_and(|e| e.kind() != std::io::ErrorKind::WouldBlock)
            );
        }
    }
    // One that leaves makes room for another.
    streams.retain(|stream| stream.local_addr().unwrap() != local[0]);
    until([&mut server], |[server]| server.sockets.free() == 1);
    let _another = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| server.accepted.len() == 5);
}

fn an_id_of_an_earlier_connection_reaches_no_later_one() {
    let options = SocketOptions { sockets: 1, ..small() };
    let (mut server, address) = Peer::listening(options);
    let first = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| !server.accepted.is_empty());
    let (_, old, _) = server.accepted[0];
    drop(first);
    until([&mut server], |[server]| server.sockets.free() == 1);
    let mut second = TcpStream::connect(address).unwrap();
    until([&mut server], |[server]| server.accepted.len() == 2);
    let (_, new, _) = server.accepted[1];
    assert_ne!(old, new);
    assert_eq!(server.sockets.send(old, b"x"), Err(SendRefused::NotOpen));
    assert_eq!(server.sockets.room(old), 0);
    let now = server.now();
    server.sockets.close(now, old);
    server.sockets.send(new, b"y").unwrap();
    server.turn();
    let mut byte = [0];
    second.set_read_timeout(Some(PATIENCE)).unwrap();
    second.read_exact(&mut byte).unwrap();
    assert_eq!(&byte, b"y");
}

fn a_turn_has_a_bounded_number_of_events_though_peers_send_without_end() {
    let (mut server, address) = Peer::listening(small());
    let senders: Vec<_> = (0..3)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            thread::spawn(move || while stream.write_all(&[7; 100]).is_ok() {})
        })
        .collect();
    until([&mut server], |[server]| server.accepted.len() == 3);
    let began = Instant::now();
    // Many times the memory of all receive buffers.
    while server.sockets.counters().received_bytes < 16 << 20 {
        assert!(server.turn() <= EVENTS_PER_TURN);
        assert!(began.elapsed() < PATIENCE);
        server.received.clear();
    }
    drop(server);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

fn a_thread_that_waits_is_woken_by_bytes_by_its_waker_and_by_the_time() {
    let (mut server, address) = Peer::listening(small());
    // By the time.
    server.sockets.wait(Duration::from_millis(1));
    // By its waker, also if that was called before.
    let waker = server.sockets.waker();
    waker.wake();
    let began = Instant::now();
    server.sockets.wait(PATIENCE);
    let wakes = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        waker.waker().wake();
    });
    server.turn();
    server.sockets.wait(PATIENCE);
    wakes.join().unwrap();
    // By a connection, and by bytes.
    let client = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        thread::sleep(Duration::from_millis(20));
        stream.write_all(b"x").unwrap();
        stream
    });
    loop {
        server.turn();
        if !server.received.is_empty() {
            break;
        }
        server.sockets.wait(PATIENCE);
    }
    assert!(began.elapsed() < PATIENCE / 2, "a wait went on to its end");
    drop(client.join().unwrap());
}

fn a_port_in_use_is_an_error() {
    let (_server, address) = Peer::listening(small());
    let mut other = Peer::new(small());
    assert_eq!(other.sockets.listen(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
}
