//! Traces of a server, as a small collector gets them: it speaks HTTP as far as the server does,
//! and reads OTLP by the messages of OpenTelemetry's own crate.

use super::{CONFIG, PATIENCE, Server, request, wait_until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use std::collections::{HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

const BODY: &str = r#"{"inputs":[{"name":"input","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}"#;

/// The tensors of a model that has the same number in and out.
const EMULATED: &str = "executor = \"emulated\"\n\
    inputs = [{ name = \"input\", datatype = \"FP32\", shape = [4] }]\n\
    outputs = [{ name = \"output\", datatype = \"FP32\", shape = [4] }]\n";

/// A collector, and what it was sent.
struct Collector {
    url: String,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    /// One that answers `503` so many times before it takes anything.
    fn start(mut refusals: usize) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let body = read_post(&mut stream);
                let status = if refusals > 0 { "503 Not yet" } else { "200 OK" };
                if refusals == 0 {
                    taken.lock().unwrap().push(ExportTraceServiceRequest::decode(&body[..]).unwrap());
                }
                refusals = refusals.saturating_sub(1);
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
        });
        Collector { url, requests }
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|of| &of.scope_spans).flat_map(|of| &of.spans).cloned().collect()
    }
}

/// Reads one POST of protobuf to where traces go, and returns its body.
fn read_post(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "the request breaks off");
        bytes.extend_from_slice(&part[..length]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: application/x-protobuf"), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        if bytes.len() == end + 4 + length.parse::<usize>().unwrap() {
            return bytes.split_off(end + 4);
        }
    }
}

fn serve(collector: &str, ratio: &str) -> Server {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("symphony.toml"),
        format!("{CONFIG}[trace]\nservice_name = \"shop\"\nsample_ratio = 0.5\n"),
    )
    .unwrap();
    Server::start_in(folder, &["--otlp", collector, "--trace-ratio", ratio], Stdio::null())
}

/// An infer request with these header lines, each ended; the answer's status.
fn infer(server: &Server, headers: &str) -> u16 {
    request(server.address, ("POST", "/v2/models/fast/infer"), headers, BODY).unwrap().0
}

/// Ends the server as Ctrl-C does.
fn interrupt(server: &mut Server) {
    assert_eq!(server.process.interrupt(), Some(0));
}

fn attribute(span: &Span, key: &str) -> Option<Value> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    found.value.as_ref()?.value.clone()
}

#[test]
fn requests_stages_and_batches_arrive_and_link_to_each_other() {
    let collector = Collector::start(0);
    let mut server = serve(&collector.url, "1");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert_eq!(infer(&server, ""), 200)));
        }
    });
    let parent =
        "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\ntracestate: a=b\r\n";
    assert_eq!(infer(&server, parent), 200);
    assert_eq!(server.ask("POST", "/v2/models/fast/infer", "{}").0, 400);
    interrupt(&mut server);
    let spans = collector.spans();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (requests, batches) = (named("infer fast"), named("batch fast"));
    assert_eq!(requests.len(), 42);
    let ids: HashSet<_> = spans.iter().map(|span| (&span.trace_id, &span.span_id)).collect();
    assert_eq!(ids.len(), spans.len(), "every span is sent once");
    let batch_of: HashMap<_, _> =
        batches.iter().map(|span| ((&span.trace_id, &span.span_id), *span)).collect();
    let mut rows = 0;
    for request in requests.iter().filter(|span| !span.links.is_empty()) {
        rows += 1;
        assert_eq!(request.kind(), SpanKind::Server);
        let batch = batch_of[&(&request.links[0].trace_id, &request.links[0].span_id)];
        let back = |link: &&opentelemetry_proto::tonic::trace::v1::span::Link| {
            (&link.trace_id, &link.span_id) == (&request.trace_id, &request.span_id)
        };
        assert_eq!(batch.links.iter().filter(back).count(), 1);
        assert_eq!(attribute(request, "symphony.gpu"), attribute(batch, "symphony.gpu"));
        assert_eq!(attribute(request, "symphony.outcome"), Some(Value::StringValue("good".into())));
        assert_eq!(attribute(request, "symphony.rows"), Some(Value::IntValue(1)));
        let mut stages: Vec<&Span> =
            spans.iter().filter(|span| span.parent_span_id == request.span_id).collect();
        stages.sort_by_key(|span| span.start_time_unix_nano);
        assert_eq!(stages.iter().map(|span| span.name.as_str()).collect::<HashSet<_>>().len(), 4);
        assert!(stages[0].start_time_unix_nano >= request.start_time_unix_nano);
        assert!(stages[3].end_time_unix_nano <= request.end_time_unix_nano);
        let run = stages.iter().find(|span| span.name == "run").unwrap();
        assert_eq!(
            (run.start_time_unix_nano, run.end_time_unix_nano),
            (batch.start_time_unix_nano, batch.end_time_unix_nano)
        );
        assert!(
            run.end_time_unix_nano - run.start_time_unix_nano >= 1_500_000,
            "a batch of one takes 1.5 ms"
        );
    }
    assert_eq!((rows, batches.iter().map(|batch| batch.links.len()).sum::<usize>()), (41, 41));
    let child = requests.iter().find(|span| !span.parent_span_id.is_empty()).unwrap();
    assert_eq!(child.parent_span_id, 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
    assert_eq!(child.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes());
    assert_eq!(child.trace_state, "a=b");
    let wrong = requests.iter().find(|span| span.links.is_empty()).unwrap();
    assert_eq!(attribute(wrong, "symphony.outcome"), Some(Value::StringValue("invalid".into())));
    let resource = collector.requests.lock().unwrap()[0].resource_spans[0].resource.clone().unwrap();
    let name = resource.attributes.iter().find(|attribute| attribute.key == "service.name").unwrap();
    assert_eq!(name.value.as_ref().unwrap().value, Some(Value::StringValue("shop".into())));
}

#[test]
fn a_query_has_a_span_with_a_child_for_each_stage() {
    let collector = Collector::start(0);
    let folder = tempfile::tempdir().unwrap();
    let tensors = "inputs = [\"input\"], outputs = [{ output = \"output\", tensor = \"half\" }]";
    let again = "inputs = [{ input = \"input\", tensor = \"half\" }], outputs = [\"output\"]";
    let query = format!(
        "[[queries]]\nname = \"twice\"\nslo_ms = 20000\ninputs = [\"input\"]\noutputs = [\"output\"]\n\
         stages = [{{ model = \"fast\", {tensors} }}, {{ model = \"idle\", name = \"again\", {again} }}]\n"
    );
    let config = [CONFIG, &query].concat().replace("executor = \"emulated\"\n", EMULATED);
    std::fs::write(folder.path().join("symphony.toml"), config).unwrap();
    let flags = ["--otlp", &collector.url, "--trace-ratio", "1"];
    let mut server = Server::start_in(folder, &flags, Stdio::null());
    assert_eq!(request(server.address, ("POST", "/v2/models/twice/infer"), "", BODY).unwrap().0, 200);
    interrupt(&mut server);
    let spans = collector.spans();
    let named = |name: &str| {
        let mut named = spans.iter().filter(|span| span.name == name);
        named.next().unwrap_or_else(|| panic!("no span {name:?}"))
    };
    assert_eq!(spans.len(), 1 + 2 * (1 + 4 + 1));
    let query = named("infer twice");
    assert!(query.links.is_empty() && attribute(query, "symphony.gpu").is_none());
    for (stage, model) in [("fast", "fast"), ("again", "idle")] {
        let span = named(&format!("stage {stage}"));
        assert_eq!((&span.parent_span_id, span.kind()), (&query.span_id, SpanKind::Internal));
        assert_eq!(attribute(span, "symphony.model.name"), Some(Value::StringValue(model.into())));
        assert_eq!(span.links[0].span_id, named(&format!("batch {model}")).span_id);
        assert_eq!(spans.iter().filter(|of| of.parent_span_id == span.span_id).count(), 4);
    }
    let (first, last) = (named("stage fast"), named("stage again"));
    assert!(first.end_time_unix_nano <= last.start_time_unix_nano);
    assert!(last.end_time_unix_nano <= query.end_time_unix_nano);
}

#[test]
fn clients_decide_what_is_traced_and_a_collector_that_is_away_for_a_while_gets_it_later() {
    let collector = Collector::start(1);
    let server = serve(&collector.url, "0");
    let parent = |flags: &str| {
        format!("traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}\r\n")
    };
    for headers in ["".to_owned(), parent("00"), parent("01"), parent("zz")] {
        assert_eq!(infer(&server, &headers), 200);
    }
    wait_until("the spans of the one request are there", || collector.spans().len() == 6);
    wait_until("the counts say so", || {
        let metrics = server.metrics();
        metrics.get("symphony_trace_spans_total", &[("result", "sent")]) == Some(6.0)
            && metrics.get("symphony_trace_retries_total", &[]).is_some_and(|retries| retries >= 1.0)
    });
    let metrics = server.metrics();
    assert_eq!(metrics.get("symphony_trace_spans_total", &[("result", "failed")]), Some(0.0));
    assert_eq!(metrics.get("symphony_trace_requests_dropped_total", &[]), Some(0.0));
}

#[test]
fn without_a_collector_requests_are_served_and_the_server_stops() {
    let mut server = serve("http://127.0.0.1:1", "1");
    for _ in 0..20 {
        assert_eq!(infer(&server, ""), 200);
    }
    interrupt(&mut server);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("symphony.toml"), CONFIG).unwrap();
    let plain = Server::start_in(folder, &[], Stdio::null());
    assert_eq!(infer(&plain, ""), 200);
    assert_eq!(plain.metrics().get("symphony_trace_retries_total", &[]), None, "nothing is traced unasked");
}
