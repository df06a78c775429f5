//! Access control: listeners for admin calls, tokens, TLS, over real sockets.

use super::server::*;
use crate::api::tls::Tls;
use crate::api::tokens::Tokens;
use crate::config::{Fingerprint, TokenGrant, TokenRate};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn token(name: &str, models: &[&str], rate: Option<TokenRate>, admin: bool) -> TokenGrant {
    let fingerprint = Fingerprint::of(format!("token-of-{name}").as_bytes());
    let models = models.iter().map(|model| model.to_string()).collect();
    TokenGrant { name: name.into(), fingerprint, models, rate, admin }
}

impl Client {
    /// A request with the token of that name.
    fn ask_as(&mut self, token: &str, method: &str, path: &str, body: &str) -> Answer {
        let (length, token) = (body.len(), format!("Bearer token-of-{token}"));
        let head = format!("{method} {path} HTTP/1.1\r\nhost: t\r\nauthorization: {token}\r\n");
        let request = format!("{head}content-length: {length}\r\n\r\n{body}");
        self.stream.write_all(request.as_bytes()).unwrap();
        self.answer()
    }
}

/// A client of another of the server's listeners.
fn client_at(addr: SocketAddr) -> Client {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    Client { stream, read: Vec::new() }
}

#[test]
fn admin_calls_are_answered_by_their_own_listener_alone_where_there_is_one() {
    let server = TestServer::new(|config| config.admin = Some(([127, 0, 0, 1], 0).into()));
    let admin = server.api.as_ref().unwrap().admin_addr().unwrap();
    for (method, path) in [
        ("GET", "/metrics"),
        ("GET", "/dashboard"),
        ("POST", "/v2/repository/models/echo/load"),
        ("POST", "/v2/repository/models/echo/unload"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/models/echo/trace/setting"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("POST", "/v2/systemsharedmemory/region/r/register"),
        ("POST", "/v2/cudasharedmemory/unregister"),
    ] {
        let answer = server.client().request(method, path, b"{}");
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.error().contains(&admin.to_string()), "{answer:?}");
        assert_ne!(client_at(admin).request(method, path, b"{}").status, 403, "{path}");
    }
    for path in ["/v2/logging", "/v2/trace/setting", "/v2/models/stats", "/v2/health/ready"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.infer("echo", &body()).status, 200);
    assert_eq!(client_at(admin).infer("echo", &body()).status, 200);
}

#[test]
fn without_an_admin_listener_only_loopback_answers_admin_calls() {
    let server = TestServer::new(|config| config.addr = ([0, 0, 0, 0], 0).into());
    assert_eq!(server.get("/metrics").status, 403);
    assert!(server.get("/metrics").error().contains("no listener"));
    assert_eq!(TestServer::new(|_| {}).get("/metrics").status, 200);
}

#[test]
fn a_token_is_needed_where_there_are_tokens_and_is_for_its_models_alone() {
    let tokens =
        Tokens::new(vec![token("some", &["ec*", "late"], None, false), token("all", &["*"], None, true)]);
    let given = tokens.clone();
    let server = TestServer::new(move |config| config.tokens = Some(given));
    let mut client = server.client();
    for path in ["/v2", "/v2/models/echo", "/metrics", "/v2/models/none"] {
        let refused = client.request("GET", path, b"");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")), "{path}");
        assert_eq!(client.ask_as("nobody", "GET", path, "").status, 401);
    }
    assert_eq!(client.request("GET", "/v2/health/live", b"").status, 200);
    assert_eq!(client.ask_as("some", "POST", "/v2/models/echo/infer", &body().to_string()).status, 200);
    for model in ["held", "none"] {
        let refused =
            client.ask_as("some", "POST", &format!("/v2/models/{model}/infer"), &body().to_string());
        assert_eq!(refused.status, 403);
        assert!(refused.error().contains("\"some\" is not for model"), "{refused:?}");
    }
    let names = |client: &mut Client, token: &str| -> Vec<String> {
        let index = client.ask_as(token, "POST", "/v2/repository/index", "").json();
        index.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(names(&mut client, "some"), ["echo", "late"]);
    assert_eq!(names(&mut client, "all").len(), MODELS.len());
    let statistics = client.ask_as("some", "GET", "/v2/models/stats", "").json();
    assert_eq!(statistics["model_stats"].as_array().unwrap().len(), 2);
    let refused = client.ask_as("some", "GET", "/metrics", "");
    assert_eq!((refused.status, refused.error().contains("admin = true")), (403, true));
    assert_eq!(client.ask_as("all", "GET", "/metrics", "").status, 200);
    assert_eq!(
        server.control.taken.load(Ordering::Relaxed),
        1,
        "nothing that was refused reached the engine"
    );
    tokens.replace(vec![token("new", &["*"], None, false)]);
    assert_eq!(client.ask_as("all", "GET", "/v2", "").status, 401);
    assert_eq!(client.ask_as("new", "GET", "/v2", "").status, 200);
}

#[test]
fn a_token_has_its_rate_and_says_when_to_come_again() {
    let rate = Some(TokenRate { rps: 0.01, burst: 2 });
    let tokens = Tokens::new(vec![token("slow", &["*"], rate, false), token("free", &["*"], None, false)]);
    let server = TestServer::new(|config| config.tokens = Some(tokens));
    let mut client = server.client();
    for _ in 0..2 {
        assert_eq!(client.ask_as("slow", "GET", "/v2", "").status, 200);
    }
    let refused = client.ask_as("slow", "POST", "/v2/models/echo/infer", &body().to_string());
    assert_eq!(refused.status, 429);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=100).contains(&wait), "{wait}");
    assert!(refused.error().contains("0.01 calls a second"), "{refused:?}");
    assert_eq!(client.ask_as("free", "GET", "/v2", "").status, 200);
}

/// A certificate for 127.0.0.1 and its key, as PEM files.
fn certificate() -> (tempfile::TempDir, Tls, RootCertStore) {
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
    let server = TestServer::new(move |config| {
        config.tls = Some(given);
        config.header_timeout = Duration::from_millis(300);
    });
    let mut stream = encrypted(server.addr, roots.clone(), &["h2", "http/1.1"]);
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut settings = [0; 9];
    stream.read_exact(&mut settings).unwrap();
    assert_eq!((settings[3], stream.conn.alpn_protocol()), (4, Some(&b"h2"[..])));
    let plain = server.get("/v2");
    assert_eq!(plain.status, 400);
    assert!(plain.error().contains("https://"), "{plain:?}");
    let mut silent = server.client();
    let mut half = server.client();
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
fn an_admin_listener_on_loopback_needs_no_certificate() {
    let (_folder, tls, _) = certificate();
    let server = TestServer::new(move |config| {
        config.tls = Some(tls);
        config.admin = Some(([127, 0, 0, 1], 0).into());
    });
    let admin = server.api.as_ref().unwrap().admin_addr().unwrap();
    assert_eq!(client_at(admin).request("GET", "/metrics", b"").status, 200);
}
