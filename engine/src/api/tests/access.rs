//! Access control: listeners for admin calls and tokens, over real sockets.

use super::grpc_client::*;
use super::server::*;
use super::tls::certificate;
use crate::api::grpc::messages::ServerLiveRequest;
use crate::api::tokens::Tokens;
use crate::api::{ApiConfig, SharedState, start_admin};
use crate::config::{Fingerprint, TokenGrant, TokenRate, TokenRole};
use crate::runtime::clock::Clock;
use hyper::Request;
use hyper::header::CONTENT_TYPE;
use serde_json::json;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn token(name: &str, models: &[&str], rate: Option<TokenRate>, role: TokenRole) -> TokenGrant {
    let fingerprint = Fingerprint::of(format!("token-of-{name}").as_bytes());
    let models = models.iter().map(|model| model.to_string()).collect();
    TokenGrant { name: name.into(), fingerprint, models, rate, role, priority: 0, application: None }
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
        ("GET", "/v2/gpus"),
        ("POST", "/v2/gpus/models/echo/load"),
        ("POST", "/v2/gpus/models/echo/unload"),
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
    let tokens = Tokens::new(vec![
        token("some", &["ec*", "late"], None, TokenRole::User),
        token("all", &["*"], None, TokenRole::Admin),
    ]);
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
    tokens.replace(vec![token("new", &["*"], None, TokenRole::User)]);
    assert_eq!(client.ask_as("all", "GET", "/v2", "").status, 401);
    assert_eq!(client.ask_as("new", "GET", "/v2", "").status, 200);
}

#[test]
fn a_token_has_its_rate_and_says_when_to_come_again() {
    let rate = Some(TokenRate { rps: 0.01, burst: 2 });
    let tokens = Tokens::new(vec![
        token("slow", &["*"], rate, TokenRole::User),
        token("free", &["*"], None, TokenRole::User),
    ]);
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

#[test]
fn public_connections_leave_those_of_the_admin_listener_alone() {
    let server = TestServer::new(|config| {
        config.limits.max_connections = 3;
        config.limits.max_admin_connections = 2;
        config.admin = Some(([127, 0, 0, 1], 0).into());
    });
    let admin = server.api.as_ref().unwrap().admin_addr().unwrap();
    let mut public: Vec<Client> = (0..3).map(|_| server.client()).collect();
    for client in &mut public {
        assert_eq!(client.request("GET", "/v2/health/live", b"").status, 200);
    }
    assert_eq!(server.client().answer().status, 503);
    let mut probe = client_at(admin);
    assert_eq!(probe.request("GET", "/v2/health/live", b"").status, 200);
    let mut second = client_at(admin);
    assert_eq!(second.request("GET", "/metrics", b"").status, 200);
    assert_eq!(client_at(admin).answer().status, 503, "its own budget is bounded too");
    drop(public.pop());
    server.wait_until("there is room again", || {
        server.client().request("GET", "/v2/health/live", b"").status == 200
    });
}

#[test]
fn an_api_core_that_does_not_get_on_leaves_probes_and_metrics_to_the_admin_listener() {
    let shared = SharedState::new();
    let regions = Arc::clone(&shared.regions);
    let (admin_frontend, _peer) = frontend(4, Clock::start(), Arc::new(AtomicBool::new(true)));
    let config = ApiConfig {
        shared: shared.clone(),
        allowed_hosts: vec!["test".into()],
        ..ApiConfig::at(([127, 0, 0, 1], 0).into())
    };
    let core = start_admin(admin_frontend, config.addr, config).unwrap();
    let server = TestServer::new(|config| config.shared = shared);
    let mut stuck = server.client();
    let held = regions.table();
    stuck.send("GET", "/v2/systemsharedmemory/status", b"");
    for path in ["/v2/health/live", "/v2/health/ready", "/metrics"] {
        assert_eq!(client_at(core.local_addr()).request("GET", path, b"").status, 200, "{path}");
    }
    drop(held);
    assert_eq!(stuck.answer().status, 200);
}

/// A shared memory object of 64 bytes, removed when the test ends.
struct Memory(String);

impl Memory {
    fn new(name: &str) -> Memory {
        let key = format!("/symphony-access-{name}-{}", std::process::id());
        std::fs::write(format!("/dev/shm{key}"), [0; 64]).unwrap();
        Memory(key)
    }

    /// The body that registers it.
    fn body(&self) -> String {
        json!({ "key": self.0, "byte_size": 64 }).to_string()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/dev/shm{}", self.0));
    }
}

/// `body()` with its image in region `r`.
fn body_in_region() -> String {
    let mut body = body();
    let image = body["inputs"][0].as_object_mut().unwrap();
    image.remove("data");
    image.insert("parameters".into(), json!({ "shared_memory_region": "r", "shared_memory_byte_size": 16 }));
    body.to_string()
}

const REGISTER: &str = "/v2/systemsharedmemory/region/r/register";
const STATUS: &str = "/v2/systemsharedmemory/status";
const INFER: &str = "/v2/models/echo/infer";

#[test]
fn without_tokens_shared_memory_is_used_where_it_is_registered() {
    let memory = Memory::new("listeners");
    let server = TestServer::new(|config| config.admin = Some(([127, 0, 0, 1], 0).into()));
    let admin = server.api.as_ref().unwrap().admin_addr().unwrap();
    let registered = client_at(admin).request("POST", REGISTER, memory.body().as_bytes());
    assert_eq!(registered.status, 200, "{registered:?}");
    let (mut output, body) = (body(), body_in_region());
    assert_eq!(client_at(admin).request("POST", INFER, body.as_bytes()).status, 200);
    let refused = server.client().request("POST", INFER, body.as_bytes());
    assert_eq!(refused.status, 403);
    assert!(refused.error().contains(&admin.to_string()), "{refused:?}");
    output["outputs"] = json!([{
        "name": "same",
        "parameters": { "shared_memory_region": "r", "shared_memory_byte_size": 16 },
    }]);
    assert_eq!(server.infer("echo", &output).status, 403);
    assert_eq!(client_at(admin).infer("echo", &output).status, 200);
    // Where all is on loopback, both happen at the same port.
    let alone = TestServer::new(|_| {});
    assert_eq!(alone.client().request("POST", REGISTER, memory.body().as_bytes()).status, 200);
    assert_eq!(alone.client().request("POST", INFER, body.as_bytes()).status, 200);
}

#[test]
fn shared_memory_belongs_to_the_token_that_registered_it() {
    let memory = Memory::new("tokens");
    let admin = |name: &str| token(name, &["*"], None, TokenRole::Admin);
    let user = token("user", &["*"], None, TokenRole::User);
    let tokens = Tokens::new(vec![admin("mine"), admin("other"), user.clone()]);
    let given = tokens.clone();
    let server = TestServer::new(move |config| {
        config.tokens = Some(given);
        config.admin = Some(([127, 0, 0, 1], 0).into());
    });
    let admin_addr = server.api.as_ref().unwrap().admin_addr().unwrap();
    let (mut public, mut at_admin) = (server.client(), client_at(admin_addr));
    assert_eq!(at_admin.ask_as("mine", "POST", REGISTER, &memory.body()).status, 200);
    let body = body_in_region();
    for client in [&mut public, &mut at_admin] {
        assert_eq!(client.ask_as("mine", "POST", INFER, &body).status, 200);
        for name in ["other", "user"] {
            let refused = client.ask_as(name, "POST", INFER, &body);
            assert_eq!(refused.status, 400);
            assert!(refused.error().ends_with("yours are []"), "{refused:?}");
        }
    }
    assert_eq!(at_admin.ask_as("other", "GET", STATUS, "").json(), json!([]));
    // A name is taken by nobody else, and all of one's own are not those of others.
    assert_eq!(at_admin.ask_as("other", "POST", REGISTER, &memory.body()).status, 200);
    assert_eq!(at_admin.ask_as("other", "POST", "/v2/systemsharedmemory/unregister", "").status, 200);
    assert_eq!(at_admin.ask_as("mine", "GET", STATUS, "").json()[0]["name"], "r");
    // A token whose entry changes keeps its memory; one that is gone for a while does not.
    tokens.replace(vec![token("mine", &["e*"], None, TokenRole::Admin)]);
    assert_eq!(public.ask_as("mine", "POST", INFER, &body).status, 200);
    tokens.replace(vec![user]);
    tokens.replace(vec![admin("mine")]);
    assert_eq!(public.ask_as("mine", "POST", INFER, &body).status, 400);
}

#[test]
fn a_token_for_metrics_reads_them_on_every_listener_and_does_nothing_else() {
    let tokens = Tokens::new(vec![token("prometheus", &["*"], None, TokenRole::Metrics)]);
    let server = TestServer::new(|config| {
        config.tokens = Some(tokens);
        config.admin = Some(([127, 0, 0, 1], 0).into());
    });
    let admin = server.api.as_ref().unwrap().admin_addr().unwrap();
    for mut client in [server.client(), client_at(admin)] {
        for path in ["/metrics", "/v2/health/live", "/v2/health/ready"] {
            assert_eq!(client.ask_as("prometheus", "GET", path, "").status, 200, "{path}");
        }
        for (method, path) in [
            ("GET", "/dashboard"),
            ("GET", "/dashboard/data"),
            ("GET", "/v2"),
            ("GET", "/v2/models/echo"),
            ("POST", INFER),
            ("POST", "/v2/repository/index"),
            ("POST", "/v2/repository/models/echo/unload"),
            ("GET", STATUS),
        ] {
            assert_eq!(client.ask_as("prometheus", method, path, "").status, 403, "{path}");
        }
    }
}

/// Asks with these header lines, the first of which is a `host`.
fn ask_with(addr: SocketAddr, method: &str, path: &str, headers: &str) -> Answer {
    let mut client = client_at(addr);
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}\r\ncontent-length: 0\r\n\r\n");
    client.stream.write_all(request.as_bytes()).unwrap();
    client.answer()
}

#[test]
fn a_web_page_can_do_nothing_on_loopback_without_tokens() {
    let server = TestServer::new(|config| config.allowed_hosts = vec!["models.example".into()]);
    let port = server.addr.port();
    for (headers, status) in [
        (format!("host: 127.0.0.1:{port}"), 200),
        (format!("host: localhost:{port}"), 200),
        ("host: models.example".to_owned(), 200),
        (format!("host: evil.example:{port}"), 403),
        (format!("host: 127.0.0.1:{port}\r\norigin: https://evil.example"), 403),
        (format!("host: 127.0.0.1:{port}\r\norigin: null"), 403),
        (format!("host: 127.0.0.1:{port}\r\norigin: http://127.0.0.1:{port}"), 200),
        ("host: localhost\r\norigin: https://models.example".to_owned(), 200),
    ] {
        for path in ["/v2", "/v2/health/live", "/metrics"] {
            let answer = ask_with(server.addr, "GET", path, &headers);
            assert_eq!(answer.status, status, "{path} {headers}");
        }
        let unload = ask_with(server.addr, "POST", "/v2/repository/models/echo/unload", &headers).status;
        assert_eq!(unload, if status == 403 { 403 } else { 503 }, "{headers}");
    }
    // With tokens nobody gets far whom a page could send.
    let tokens = Tokens::new(vec![token("all", &["*"], None, TokenRole::Admin)]);
    let guarded = TestServer::new(|config| config.tokens = Some(tokens));
    let headers = "host: evil.example\r\norigin: null\r\nauthorization: Bearer token-of-all";
    assert_eq!(ask_with(guarded.addr, "GET", "/v2", headers).status, 200);
    // A port that others reach has names that nobody has listed.
    let open = TestServer::new(|config| config.addr = ([0, 0, 0, 0], 0).into());
    let loopback = SocketAddr::from(([127, 0, 0, 1], open.addr.port()));
    assert_eq!(ask_with(loopback, "GET", "/v2", "host: models.example").status, 200);
}

#[test]
fn a_foreign_authority_of_grpc_is_refused() {
    let server = TestServer::new(|config| config.allowed_hosts = vec!["models.example".into()]);
    with_client(&server, async |mut client| {
        for (authority, status) in [("evil.example", Some("7")), ("models.example", None)] {
            let call = format!("http://{authority}/inference.GRPCInferenceService/ServerLive");
            let request = Request::post(call).header(CONTENT_TYPE, "application/grpc");
            let (send, response) = client.request(request).await;
            send.unbounded_send(sealed(&ServerLiveRequest::default())).unwrap();
            drop(send);
            let response = response.await;
            // A refusal has its status in the headers, an answer behind its message.
            let given = response.headers().get("grpc-status").map(|status| status.to_str().unwrap());
            assert_eq!(given, status, "{authority}: {response:?}");
            let message = response.headers().get("grpc-message").map(|message| message.to_str().unwrap());
            assert_eq!(message.is_some_and(|message| message.contains("--allowed-host")), status.is_some());
        }
    });
}

#[test]
fn an_admin_token_loads_and_unloads_its_own_models_alone() {
    let tokens = Tokens::new(vec![token("some", &["ec*"], None, TokenRole::Admin)]);
    let server = TestServer::new(|config| config.tokens = Some(tokens));
    for call in ["load", "unload"] {
        let ask = |model: &str| {
            let path = format!("/v2/repository/models/{model}/{call}");
            server.client().ask_as("some", "POST", &path, "")
        };
        let refused = ask("held");
        assert_eq!(refused.status, 403);
        assert!(refused.error().contains("\"some\" is not for model \"held\""), "{refused:?}");
        assert_eq!(ask("echo").status, 503, "permitted, but there is no repository");
    }
}

#[test]
fn a_token_caps_the_class_of_its_requests() {
    let low = TokenGrant { priority: 3, ..token("low", &["*"], None, TokenRole::User) };
    let tokens = Tokens::new(vec![low, token("all", &["*"], None, TokenRole::User)]);
    // The lowest class may take a quarter of the slots: two rows.
    let server = TestServer::with_capacity(8, |config| config.tokens = Some(tokens));
    let mut rows = body();
    rows["inputs"][0]["shape"] = json!([3, 2, 2]);
    rows["inputs"][0]["data"] = json!(vec![0; 12]);
    rows["inputs"][1]["shape"] = json!([3]);
    rows["inputs"][1]["data"] = json!([true, true, true]);
    rows["parameters"] = json!({ "priority": 1 });
    let mut client = server.client();
    assert_eq!(client.ask_as("all", "POST", INFER, &rows.to_string()).status, 200);
    assert_eq!(client.ask_as("low", "POST", INFER, &rows.to_string()).status, 400);
    assert_eq!(client.ask_as("low", "POST", INFER, &body().to_string()).status, 200);
}
