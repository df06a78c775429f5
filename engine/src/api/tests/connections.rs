//! Connections: heads, time-outs, their number, several requests on one.

use super::raw::{Raw, SETTINGS};
use super::server::*;
use crate::api::net::connection::ConnectionRefusal;
use crate::api::net::open_connections::{ConnectionBudget, OpenConnections};
use crate::api::net::peer::ListenerRules;
use crate::runtime::clock::Clock;
use crate::telemetry::Telemetry;
use futures_channel::oneshot;
use std::cell::RefCell;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

#[test]
fn what_is_no_http_gets_a_400_and_too_large_a_head_a_431() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    client.stream.write_all(b"\x16\x03\x01 tls?\r\n\r\n").unwrap();
    assert_eq!(client.answer().status, 400);
    let mut client = server.client();
    let head = format!("GET /v2 HTTP/1.1\r\nhost: t\r\nx: {}\r\n\r\n", "y".repeat(40_000));
    client.stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(client.answer().status, 431);
    assert_eq!(server.get("/v2").status, 200);
}

#[test]
fn a_head_that_does_not_end_is_closed_with_a_408() {
    let server = TestServer::new(|config| config.limits.header_timeout = Duration::from_millis(150));
    let mut client = server.client();
    client.stream.write_all(b"GET /v2 HTTP/1.1\r\nhost").unwrap();
    let answer = client.answer();
    assert_eq!(answer.status, 408);
    assert!(answer.error().contains("too slowly"));
    assert!(client.is_closed());
}

#[test]
fn a_head_that_drips_does_not_keep_its_connection() {
    let server = TestServer::new(|config| config.limits.header_timeout = Duration::from_millis(150));
    let mut client = server.client();
    let mut drip = client.stream.try_clone().unwrap();
    let dripping = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < PATIENCE && drip.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(client.answer().status, 408);
    drop(client);
    dripping.join().unwrap();
}

#[test]
fn a_connection_without_requests_is_closed_without_an_answer() {
    // Long enough for a request on a machine that is busy.
    let server = TestServer::new(|config| config.limits.idle_timeout = Duration::from_secs(3));
    let mut silent = server.client();
    let mut used = server.client();
    assert_eq!(used.request("GET", "/v2", b"").status, 200);
    assert!(silent.is_closed());
    assert!(used.is_closed());
    server.wait_until("both are forgotten", || server.metric("symphony_http_connections").ends_with(" 1"));
}

#[test]
fn half_open_connections_do_not_hold_up_others() {
    let server = TestServer::new(|_| {});
    let half_open: Vec<Client> = (0..200)
        .map(|_| {
            let mut client = server.client();
            client.stream.write_all(b"POST /v2/models/echo/infer HTTP/1.1\r\ncontent-le").unwrap();
            client
        })
        .collect();
    assert_eq!(server.infer("echo", &body()).status, 200);
    drop(half_open);
    server.wait_until("all are forgotten", || server.metric("symphony_http_connections").ends_with(" 1"));
}

#[test]
fn a_connection_over_the_limit_is_answered_503_and_closed() {
    let server = TestServer::new(|config| config.limits.max_connections = 1);
    let mut first = server.client();
    assert_eq!(first.request("GET", "/v2", b"").status, 200);
    let refused = server.client().answer();
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    drop(first);
    server.wait_until("there is room again", || server.client().request("GET", "/v2", b"").status == 200);
}

#[test]
fn one_connection_serves_many_requests_also_when_they_are_pipelined() {
    let server = TestServer::new(|_| {});
    let mut client = server.client();
    for _ in 0..20 {
        assert_eq!(client.infer("echo", &body()).status, 200);
    }
    for _ in 0..20 {
        client.send("POST", "/v2/models/echo/infer", body().to_string().as_bytes());
        client.send("GET", "/v2/health/live", b"");
    }
    for _ in 0..20 {
        assert!(client.answer().text.contains("outputs"));
        assert!(client.answer().text.contains("live"));
    }
    assert!(server.metric("symphony_http_responses_total{code=\"200\"}").ends_with(" 60"));
}

#[test]
fn one_address_takes_no_more_than_its_share_of_the_connections() {
    let server = TestServer::new(|config| {
        config.limits.max_connections_per_peer = 2;
        config.limits.unlimited_peers = Vec::new();
    });
    let mut first = server.client();
    let mut second = server.client();
    for client in [&mut first, &mut second] {
        assert_eq!(client.request("GET", "/v2", b"").status, 200);
    }
    let refused = server.client().answer();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    drop(first);
    server.wait_until("there is room again", || server.client().request("GET", "/v2", b"").status == 200);
    let unlimited = TestServer::new(|config| config.limits.max_connections_per_peer = 1);
    let mut clients = [unlimited.client(), unlimited.client()];
    for client in &mut clients {
        assert_eq!(client.request("GET", "/v2", b"").status, 200, "loopback has no limit by default");
    }
}

fn rules(dedicated: bool) -> ListenerRules {
    ListenerRules { admin: dedicated, dedicated, loopback: false, tls: false }
}

fn connections() -> OpenConnections {
    let (frontend, _peer) = frontend(1, Clock::start(), Arc::new(AtomicBool::new(true)));
    let metrics = Telemetry::through(&frontend).add_core("api");
    let unlimited_peers = vec!["10.0.0.0/8".parse().unwrap()];
    let budget = ConnectionBudget { public: 5, admin: 1, of_peer: 2, unlimited_peers };
    OpenConnections::new(Rc::new(metrics), budget)
}

#[test]
fn no_address_has_more_than_its_share_and_none_takes_the_admins() {
    let connections = connections();
    let open = |dedicated, peer: &str| {
        connections.open(rules(dedicated), Some(peer.parse().unwrap()), oneshot::channel().0)
    };
    let first = open(false, "192.0.2.1").unwrap().number;
    open(false, "::ffff:192.0.2.1").unwrap();
    assert_eq!(open(false, "192.0.2.1"), Err(ConnectionRefusal::PeerFull));
    open(false, "2001:db8::1").unwrap();
    open(false, "2001:db8::2").unwrap();
    assert_eq!(open(false, "2001:db8::3"), Err(ConnectionRefusal::PeerFull), "they share a network");
    open(false, "10.0.0.1").unwrap();
    assert_eq!(open(false, "10.0.0.1"), Err(ConnectionRefusal::ServerFull));
    open(true, "192.0.2.1").unwrap();
    assert_eq!(open(true, "192.0.2.1"), Err(ConnectionRefusal::ServerFull));
    connections.closed(first);
    connections.closed(first);
    assert_eq!(connections.len(), 5);
    open(false, "192.0.2.1").unwrap();
}

/// A client whose address is this one of loopback.
fn client_at(server: &TestServer, address: [u8; 4]) -> Client {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&server.addr.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client { stream, read: Vec::new() }
}

#[test]
fn an_address_that_takes_all_its_memory_leaves_the_others_theirs() {
    let server = TestServer::new(|config| {
        config.limits.max_peer_bytes = 10 << 20;
        config.limits.unlimited_peers = Vec::new();
        config.limits.read_timeout = 10 * PATIENCE;
    });
    let (one, two) = ([127, 0, 0, 1], [127, 0, 0, 2]);
    let head = "POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: 9999999\r\n\r\n";
    // A body that does not end, of which 9 MiB have come.
    let greedy = || {
        let mut client = client_at(&server, one);
        // It may be refused meanwhile.
        let _ = client.stream.write_all(&[head.as_bytes(), &vec![b' '; 9 << 20]].concat());
        client.stream.set_nonblocking(true).unwrap();
        client
    };
    let is_held = |client: &Client| {
        client.stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let holder = RefCell::new(greedy());
    let text = body().to_string() + &" ".repeat(1 << 20);
    let ask = |address| client_at(&server, address).request("POST", "/v2/models/echo/infer", text.as_bytes());
    server.wait_until("its address has no more", || {
        // In their time the server reads the rest of the body.
        let mut small = client_at(&server, one);
        (0..200).for_each(|_| assert_eq!(small.request("GET", "/v2", b"").status, 200));
        let answer = ask(one);
        // If it came in between, the body was refused.
        if !is_held(&holder.borrow()) {
            holder.replace(greedy());
        }
        answer.status == 429 && answer.error().contains("its address's requests and answers fill their")
    });
    for _ in 0..3 {
        assert_eq!(ask(two).status, 200);
    }
    drop(holder);
    server.wait_until("it has memory again", || ask(one).status == 200);
}

#[test]
fn a_connection_is_told_its_window() {
    let server = TestServer::new(|config| config.limits.max_bodies_bytes = 128 << 20);
    let window = || {
        let mut raw = Raw::new(&server);
        loop {
            let (kind, flags, _, settings) = raw.read().unwrap();
            if (kind, flags) == (SETTINGS, 0) {
                // RFC 9113, section 6.5.2: SETTINGS_INITIAL_WINDOW_SIZE is 4.
                let of = settings.chunks_exact(6).find(|setting| setting[..2] == [0, 4]).unwrap();
                return (raw, u32::from_be_bytes(of[2..].try_into().unwrap()));
            }
        }
    };
    let all: Vec<(Raw, u32)> = (0..200).map(|_| window()).collect();
    assert_eq!((all[0].1, all[199].1), (512 << 10, 240_609), "a 256th of what the others leave");
    assert!(all.windows(2).all(|two| two[1].1 < two[0].1));
}
