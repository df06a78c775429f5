//! The source of the numbers: GET /dashboard/data of a server, over a new connection each time.
//! docs/dashboard.md lists the fields; those here are the ones that a terminal shows.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The time that the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest answer that is read, in bytes: ten times what 64 models and two minutes come to.
const LARGEST: u64 = 16 << 20;

/// The optional parts of a query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Question {
    /// The id of the model whose profile is asked for.
    pub(super) profile_of: Option<u32>,
    /// True if the last two minutes are asked for.
    pub(super) history: bool,
}

/// The answer of a server: the dashboard's numbers.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct DashboardData {
    pub(super) version: String,
    pub(super) now_us: u64,
    pub(super) ready: bool,
    pub(super) reasons: Vec<String>,
    pub(super) gpus: GpusData,
    pub(super) lanes: Vec<LaneData>,
    pub(super) models: Vec<ModelData>,
    pub(super) models_left_out: usize,
    pub(super) size_bounds: Vec<u64>,
    pub(super) profile: Option<ProfileData>,
    pub(super) history: Option<HistoryData>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct GpusData {
    pub(super) count: usize,
    pub(super) busy_us: u64,
    pub(super) advised: Option<usize>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LaneData {
    pub(super) busy_us: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ModelData {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) slo_us: u64,
    pub(super) max_batch: u64,
    pub(super) platform: String,
    pub(super) in_flight: u64,
    pub(super) outcomes: BTreeMap<String, u64>,
    pub(super) ran: u64,
    pub(super) stages_us: Vec<u64>,
    pub(super) of_slo: Vec<u64>,
    pub(super) batches: u64,
    pub(super) rows: u64,
    pub(super) sizes: Vec<u64>,
    pub(super) drift: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ProfileData {
    pub(super) model: u32,
    pub(super) latency_us: Vec<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct HistoryData {
    pub(super) at_us: Vec<u64>,
    pub(super) outcomes: Vec<BTreeMap<String, u64>>,
}

/// The body of a server's error.
#[derive(Debug, Default, Deserialize)]
struct ErrorBody {
    error: String,
}

/// A server that is asked for the numbers.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    address: String,
    /// The bearer token; empty for none.
    token: String,
}

impl Feed {
    /// Makes the feed of the server at `http://HOST:PORT`, or `HOST:PORT`, which may require a
    /// bearer token.
    ///
    /// Errors: `url` is no such URL, or `token` no such token.
    pub(crate) fn new(url: &str, token: &str) -> Result<Feed, String> {
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let address = rest.split('/').next().unwrap_or_default();
        if rest.contains("://") || address.is_empty() || address.contains(char::is_whitespace) {
            return Err(format!("{url:?} is no address of a server; give one like http://127.0.0.1:8000"));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the token has characters that no token has; put it on a line of its own".to_owned());
        }
        let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { address.to_owned() } else { format!("{address}:80") };
        Ok(Feed { address, token: token.to_owned() })
    }

    /// Returns the server's host and port.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Asks the server for the numbers.
    ///
    /// Errors: the server can't be reached, or is no Symphony server.
    pub(super) fn ask(&self, question: Question) -> Result<DashboardData, String> {
        let mut path = format!("/dashboard/data?history={}", u8::from(question.history));
        if let Some(model) = question.profile_of {
            path += &format!("&model={model}");
        }
        let server = &self.address;
        let answer = self.get(&path).map_err(|error| {
            format!("no answer from http://{server}: {error}; is the server running there?")
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.lines().next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("200") {
            let body: ErrorBody = serde_json::from_str(body).unwrap_or_default();
            let why = if body.error.is_empty() { "is that a Symphony server?" } else { &body.error };
            return Err(format!("http://{server}/dashboard/data answered {status:?}: {why}"));
        }
        serde_json::from_str(body).map_err(|error| {
            format!("http://{server}/dashboard/data is not what this version of top expects: {error}")
        })
    }

    fn get(&self, path: &str) -> std::io::Result<String> {
        let address = self.address.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| std::io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let token = match self.token.as_str() {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{token}Connection: close\r\n\r\n", self.address);
        stream.write_all(head.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LARGEST).read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_its_url_or_its_address() {
        let address = |url| Feed::new(url, "").map(|feed| feed.address);
        assert_eq!(address("http://gpu-1:8000/dashboard").unwrap(), "gpu-1:8000");
        assert_eq!(address("127.0.0.1:8000").unwrap(), "127.0.0.1:8000");
        assert_eq!(address("http://[::1]:8000").unwrap(), "[::1]:8000");
        assert_eq!(address("gpu-1").unwrap(), "gpu-1:80");
        for wrong in ["https://x:1", "", "http://", "a b:1"] {
            assert!(address(wrong).unwrap_err().contains("give one like"), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_sent_and_a_refusal_is_told_in_the_servers_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let feed = Feed::new(&listener.local_addr().unwrap().to_string(), "a-token").unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\n\r\n{\"error\":\"not with this token\"}").unwrap();
            String::from_utf8(head).unwrap()
        });
        let error = feed.ask(Question { profile_of: Some(3), history: true }).unwrap_err();
        assert!(error.contains("403 Forbidden") && error.contains("not with this token"), "{error}");
        let head = server.join().unwrap();
        assert!(head.starts_with("GET /dashboard/data?history=1&model=3 HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nAuthorization: Bearer a-token\r\n"), "{head}");
        assert!(Feed::new("x", "two words").unwrap_err().contains("token"));
    }
}
