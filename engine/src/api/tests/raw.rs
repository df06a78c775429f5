//! HTTP/2, frame by frame, for tests of what no client should do, and of when frames come.

use super::server::*;
use std::io::{Read, Write};
use std::net::TcpStream;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

// RFC 9113, section 6.
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

// RFC 9113, section 7.
pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const REFUSED_STREAM: u32 = 7;
pub(super) const COMPRESSION_ERROR: u32 = 9;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The head of a request for `path`, as HPACK has it without a table or Huffman's code.
pub(super) fn head(method: u8, path: &str) -> Vec<u8> {
    // Indexed: the method (2 GET, 3 POST), the scheme http. Literal, not indexed: the path, the
    // authority.
    let mut head = vec![0x80 | method, 0x86, 0x04, path.len() as u8];
    head.extend(path.bytes());
    head.extend([0x01, 1, b't']);
    head
}

/// The head of a gRPC call.
pub(super) fn call(method: &str) -> Vec<u8> {
    let content_type = "application/grpc";
    let mut head = head(3, &format!("/inference.GRPCInferenceService/{method}"));
    // Literal, not indexed, with name 31: content-type.
    head.extend([0x0f, 31 - 15, content_type.len() as u8]);
    head.extend(content_type.bytes());
    head
}

pub(super) fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head(2, "/v2/health/live"))
}

/// A client that says what it likes.
pub(super) struct Raw(TcpStream);

impl Raw {
    /// One that has said nothing yet.
    pub(super) fn silent(server: &TestServer) -> Raw {
        Raw(server.client().stream)
    }

    /// One that has begun as HTTP/2 does.
    pub(super) fn new(server: &TestServer) -> Raw {
        let mut raw = Raw::silent(server);
        raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat());
        raw
    }

    /// Sends as far as the server takes it: it may have had enough.
    pub(super) fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// The next frame: its kind, flags, stream and payload.
    pub(super) fn read(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }

    /// The reason by which the server ends the connection; `None` if it ends it without a word.
    pub(super) fn reason(&mut self) -> Option<u32> {
        let mut reason = None;
        while let Some((kind, _, _, payload)) = self.read() {
            if kind == GOAWAY {
                reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
            }
        }
        reason
    }
}
