//! The deadlines of infer requests.

use super::server::*;
use serde_json::json;
use std::io::Write;
use std::sync::atomic::Ordering;
use symphony_transport::Nanos;

#[test]
fn a_client_may_shorten_its_deadline() {
    let server = TestServer::new(|_| {});
    for timeout in [json!(2_500), json!("2500")] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": timeout });
        let error = server.infer("dropped", &request).error();
        assert!(error.contains("2.500 ms after arrival"), "{error}");
    }
    for none in [json!(0), json!(null), json!(u64::MAX)] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": none });
        assert!(server.infer("dropped", &request).error().contains("100000.000 ms after arrival"));
    }
    for wrong in [json!(-1), json!(1.5), json!("soon"), json!([1])] {
        let mut request = body();
        request["parameters"] = json!({ "timeout": wrong });
        let answer = server.infer("dropped", &request);
        assert!(answer.status == 400 && answer.error().contains("parameters.timeout"), "{answer:?}");
    }
}

#[test]
fn a_deadline_may_come_in_a_header_and_the_tightest_counts() {
    let server = TestServer::new(|_| {});
    let mut request = body();
    request["parameters"] = json!({ "timeout": 60_000_000 });
    let send = |header: &str| {
        let mut client = server.client();
        let body = request.to_string();
        let head = format!(
            "POST /v2/models/dropped/infer HTTP/1.1\r\nhost: t\r\n{header}content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.stream.write_all(head.as_bytes()).unwrap();
        client.answer()
    };
    assert!(send("").error().contains("60000.000 ms after arrival"));
    let budget = send("x-request-deadline-ms: 30000\r\n").error();
    assert!(budget.contains(" 29") && budget.contains("ms after arrival"), "{budget}");
    let contradiction = send("x-request-deadline-ms: none\r\n");
    assert!(contradiction.status == 400 && contradiction.error().contains("leave one of them out"));
    let wrong = send("x-request-deadline-ms: soon\r\n");
    assert!(wrong.status == 400 && wrong.error().contains("X-Request-Deadline-Ms"), "{wrong:?}");
    request["parameters"] = json!({ "deadline": "none" });
    assert!(server.infer("dropped", &request).error().contains("no limit"));
    request["parameters"] = json!({ "priority": 9 });
    assert!(server.infer("echo", &request).error().contains("parameters.priority"));
}

#[test]
fn a_request_that_the_engine_does_not_end_is_answered_after_its_deadline_and_the_grace() {
    let server = TestServer::with_grace(2, Nanos::from_millis(20), |_| {});
    let mut request = body();
    request["parameters"] = json!({ "timeout": 5_000 });
    for _ in 0..2 {
        let answer = server.infer("held", &request);
        assert_eq!((answer.status, answer.header("symphony-outcome")), (504, Some("late")), "{answer:?}");
        assert!(
            answer.error().contains("after the deadline, which was 5.000 ms after arrival"),
            "{answer:?}"
        );
    }
    // Both slots are the engine's until it lets go.
    assert_eq!(server.infer("echo", &body()).status, 429);
    assert_eq!(server.metric("symphony_slots_held"), "symphony_slots_held 2");
    server.control.release.store(true, Ordering::Relaxed);
    server.wait_until("the slots are back", || server.infer("echo", &body()).status == 200);
    let count = |name: &str| server.metric(name);
    assert_eq!(count("symphony_requests_abandoned_total"), "symphony_requests_abandoned_total 2");
    assert_eq!(count("symphony_late_answers_discarded_total"), "symphony_late_answers_discarded_total 2");
    assert_eq!(count("symphony_slots_held"), "symphony_slots_held 0");
}
