//! The source of the numbers: GET /dashboard/data of a server, over a new connection each time.
//! docs/dashboard.md lists the fields; those here are the ones that a terminal shows.

use super::server_call::ServerAddress;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The time that the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

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
    pub(super) memory: Vec<PagesData>,
    pub(super) models: Vec<ModelData>,
    pub(super) models_left_out: usize,
    #[serde(default)]
    pub(super) links: Vec<LinkData>,
    pub(super) size_bounds: Vec<u64>,
    pub(super) profile: Option<ProfileData>,
    pub(super) history: Option<HistoryData>,
}

/// A link of a frontend to another host.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct LinkData {
    pub(super) peer: String,
    pub(super) state: String,
    pub(super) connections: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) round_trip_us: Option<f64>,
    pub(super) delay_us: Option<f64>,
    pub(super) fetch_us: Option<f64>,
    pub(super) clock_offset_us: Option<f64>,
    pub(super) clock_drift_ppm: Option<f64>,
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

/// The pages of a GPU.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PagesData {
    pub(super) gpu: u32,
    pub(super) pages: u32,
    pub(super) free: u32,
    pub(super) models: Vec<ModelPagesData>,
}

/// The pages of a model's weights on a GPU.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct ModelPagesData {
    pub(super) id: u32,
    pub(super) held: u32,
    pub(super) state: String,
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

/// A server that is asked for the numbers.
#[derive(Clone, Debug)]
pub(crate) struct Feed(ServerAddress);

impl Feed {
    /// Makes the feed of a server.
    pub(crate) fn of(server: ServerAddress) -> Feed {
        Feed(server)
    }

    /// Returns the server's host and port.
    pub(super) fn address(&self) -> &str {
        self.0.address()
    }

    /// Asks the server for the numbers.
    ///
    /// Errors: the server can't be reached, or is no Symphony server.
    pub(super) fn ask(&self, question: Question) -> Result<DashboardData, String> {
        let mut path = format!("/dashboard/data?history={}", u8::from(question.history));
        if let Some(model) = question.profile_of {
            path += &format!("&model={model}");
        }
        let server = self.address();
        let answer = self.0.call(("GET", &path), "", PATIENCE)?;
        if let Some(why) = answer.refusal() {
            let status = answer.status();
            return Err(format!("http://{server}/dashboard/data answered {status:?}: {why}"));
        }
        serde_json::from_str(&answer.body).map_err(|error| {
            format!("http://{server}/dashboard/data is not what this version of top expects: {error}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_token_is_sent_and_a_refusal_is_told_in_the_servers_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let feed = Feed::of(ServerAddress::new(&address, "a-token").unwrap());
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
        assert!(ServerAddress::new("x", "two words").unwrap_err().contains("token"));
    }
}
