//! TLS over real sockets: handshakes, certificates, and requests and answers of any size.

use super::server::*;
use crate::api::net::glommio_io::{GlommioIo, listen, local_executor, within};
use crate::api::net::tls::TlsIo;
use crate::api::net::turn;
use crate::api::tls::Tls;
use crate::runtime::{Idle, Placement};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A certificate for 127.0.0.1 and its key, as PEM files.
pub(super) fn certificate() -> (tempfile::TempDir, Tls, RootCertStore) {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&cert).unwrap()).unwrap();
    (folder, Tls::load(&cert, &key).unwrap(), roots)
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

fn encrypted(addr: SocketAddr, roots: RootCertStore, protocols: &[&str]) -> Encrypted {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(tls, stream)
}

/// The status and the body of the next answer.
fn read_answer(stream: &mut Encrypted) -> (u16, Vec<u8>) {
    let mut read = Vec::new();
    let mut part = [0; 8192];
    loop {
        if let Some(at) = find(&read, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..at]).into_owned();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if read.len() >= at + 4 + length.parse::<usize>().unwrap() {
                return (head[9..12].parse().unwrap(), read.split_off(at + 4));
            }
        }
        let more = stream.read(&mut part).unwrap();
        assert!(more > 0, "the connection ended in the midst of an answer");
        read.extend(&part[..more]);
    }
}

#[test]
fn requests_and_answers_of_any_size_go_through_tls() {
    let (_folder, tls, roots) = certificate();
    let server = TestServer::new(move |config| config.tls = Some(tls));
    let mut stream = encrypted(server.addr, roots, &["http/1.1"]);
    // As much as is more than one record, in one body: JSON may have any number of spaces.
    for spaces in [0, 300_000] {
        let body = body().to_string() + &" ".repeat(spaces);
        let head = format!(
            "POST /v2/models/echo/infer HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let (status, text) = read_answer(&mut stream);
        let answer: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((status, &answer["outputs"][0]["data"]), (200, &json!([0.1, 2.0, -3e5, 4.5])));
    }
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
    let (status, metrics) = read_answer(&mut stream);
    assert_eq!(status, 200);
    assert!(metrics.len() > 4_096, "more than one piece");
}

#[test]
fn tls_offers_http_2_and_turns_away_what_is_no_tls() {
    let (folder, tls, roots) = certificate();
    let given = tls.clone();
    let server = TestServer::new(move |config| config.tls = Some(given));
    let given = tls.clone();
    let impatient = TestServer::new(move |config| {
        config.tls = Some(given);
        config.limits.header_timeout = Duration::from_millis(300);
    });
    let mut stream = encrypted(server.addr, roots.clone(), &["h2", "http/1.1"]);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut settings = [0; 9];
    stream.read_exact(&mut settings).unwrap();
    assert_eq!((settings[3], stream.conn.alpn_protocol()), (4, Some(&b"h2"[..])));
    let plain = server.get("/v2");
    assert_eq!(plain.status, 400);
    assert!(plain.error().contains("https://"), "{plain:?}");
    let mut silent = impatient.client();
    let mut half = impatient.client();
    half.stream.write_all(&[22, 3, 1, 0]).unwrap();
    assert!(silent.is_closed() && half.is_closed(), "nobody is waited for longer than for a head");
    let mut noise = server.client();
    noise.stream.write_all(&[0xff; 64]).unwrap();
    // An alert may come first.
    noise.fill_until(|_| None);
    // A new certificate counts for new connections; one that is wrong changes nothing.
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let (other, _, new_roots) = certificate();
    assert!(tls.reload(&cert, &other.path().join("key.pem")).unwrap_err().to_string().contains("cert.pem:1"));
    assert!(tls.reload(&key, &key).unwrap_err().to_string().contains("no certificate"));
    tls.reload(&other.path().join("cert.pem"), &other.path().join("key.pem")).unwrap();
    let mut stream = encrypted(server.addr, new_roots, &[]);
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: t\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut stream).0, 200);
}

#[test]
fn a_handshake_whose_every_turn_is_long_succeeds() {
    let (_folder, tls, roots) = certificate();
    let listener = listen(([127, 0, 0, 1], 0).into(), false).unwrap();
    let addr = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || {
        let mut client = encrypted(addr, roots, &[]);
        client.conn.complete_io(&mut client.sock).map(drop)
    });
    let executor = local_executor(Placement { core: None, idle: Idle::Nap }).unwrap();
    let handshake = executor.run(async move {
        let socket = listener.into_local().accept().await.unwrap();
        let mut io = TlsIo::new(&tls, GlommioIo::new(socket)).unwrap();
        let handshake = poll_fn(|cx| {
            turn::begin();
            // So whatever it reads or writes in this turn waits for the next one.
            while !turn::is_long() {}
            io.poll_handshake(cx)
        });
        within(PATIENCE, handshake).await
    });
    handshake.expect("it gets on in turns that are long").unwrap();
    client.join().unwrap().unwrap();
}
