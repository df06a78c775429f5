//! `ModelStreamInfer` at the server's end.

use super::raw::*;
use super::server::*;
use crate::api::ApiConfig;
use std::time::Instant;

#[test]
fn a_stop_ends_a_stream_that_has_nothing_to_do_at_once() {
    let mut server = TestServer::new(|_| {});
    let mut raw = Raw::new(&server);
    raw.send(&frame(HEADERS, END_HEADERS, 1, &call("ModelStreamInfer")));
    let is_open = |(kind, flags, stream, _): (u8, u8, u32, Vec<u8>)| {
        (kind, stream) == (HEADERS, 1) && flags & END_STREAM == 0
    };
    while !is_open(raw.read().expect("the stream is opened")) {}
    let begun = Instant::now();
    let api = server.api.take().unwrap();
    let stopping = std::thread::spawn(move || api.stop());
    let mut trailers = false;
    while let Some((kind, flags, stream, payload)) = raw.read() {
        trailers |= (kind, stream) == (HEADERS, 1) && flags & END_STREAM != 0;
        // A client acknowledges a PING. The flag ACK is 1, as END_STREAM is.
        if kind == PING && flags & END_STREAM == 0 {
            raw.send(&frame(PING, END_STREAM, 0, &payload));
        }
    }
    assert!(trailers, "the call ends with a status");
    stopping.join().unwrap().unwrap();
    let limit = ApiConfig::at(([127, 0, 0, 1], 0).into()).stop_timeout;
    assert!(begun.elapsed() < limit / 3, "{:?}", begun.elapsed());
}
