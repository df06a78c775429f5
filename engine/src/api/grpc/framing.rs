//! gRPC's envelope around messages: five bytes in front of each, and the headers of a call. A
//! message's tensors stay in the buffer that they came in.

use super::messages::ModelInferResponse;
use super::status::{GrpcCode, GrpcStatus};
use crate::api::net::compression::Coding;
use crate::api::net::large_buffers::{let_go, shared};
use crate::api::net::memory::ReadBounds;
use crate::api::net::response::{ApiResponse, ResponseBody};
use crate::api::net::slices::Slices;
use crate::api::problem::{Problem, quoted};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use symphony_transport::Nanos;

/// The length of a message's prefix: one byte for compression, four for the message's length.
pub(super) const PREFIX: usize = 5;

/// The number of `raw_output_contents` in a `ModelInferResponse`, its last field.
const RAW_OUTPUT: u32 = 6;

/// The number of `infer_response` in a `ModelStreamInferResponse`.
const INFER_RESPONSE: u32 = 2;

/// The path of every call, up to the call's name.
pub(super) const SERVICE: &str = "/inference.GRPCInferenceService/";

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const CODINGS: HeaderValue = HeaderValue::from_static("identity,deflate,gzip");
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const ACCEPT: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The compression of a call's messages, which answers share with requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope(Option<Coding>);

impl Envelope {
    /// Returns the envelope that a call's headers announce.
    ///
    /// Errors: 415 for an unknown compression.
    pub(super) fn of(headers: &HeaderMap) -> Result<Envelope, Problem> {
        headers.get(ENCODING).map_or(Ok(None), |name| Coding::named(name.as_bytes())).map(Envelope)
    }

    /// Returns the length of the first message in `bytes`, its prefix included; `None` while the
    /// prefix is incomplete.
    pub(super) fn length(bytes: &[u8]) -> Option<usize> {
        let (prefix, _) = bytes.split_first_chunk::<PREFIX>()?;
        let [_, a, b, c, d] = *prefix;
        Some(PREFIX + u32::from_be_bytes([a, b, c, d]) as usize)
    }

    /// Returns the one message that `bytes` must be, unpacked within `bounds`.
    ///
    /// Errors: 400 if they are not one message, 413 if it unpacks to more than the limit, 429.
    pub(super) async fn open(self, mut bytes: Bytes, bounds: &mut ReadBounds) -> Result<Bytes, Problem> {
        if Envelope::length(&bytes) != Some(bytes.len()) {
            let message =
                format!("the call's {} bytes are not one message with its length in front", bytes.len());
            return Err(Problem::bad(message));
        }
        let compressed = bytes.get_u8();
        bytes.advance(PREFIX - 1);
        match (compressed, self.0) {
            (0, _) => Ok(bytes),
            (1, Some(coding)) => coding.unpack(bytes, bounds).await,
            _ => Err(Problem::bad("the message says that it is compressed, but no grpc-encoding says how")),
        }
    }

    /// Returns a small message with its prefix.
    pub(super) fn seal(self, message: &impl Message) -> Bytes {
        match self.0 {
            None => plain(message),
            Some(coding) => packed(&coding.pack(&message.encode_to_vec())),
        }
    }

    /// Returns the answer of an infer request with its prefix, encoded and compressed in slices:
    /// as it is, or as the message of a stream.
    pub(super) async fn seal_answer(
        self,
        mut answer: ModelInferResponse,
        in_stream: bool,
        slices: &Slices,
    ) -> Bytes {
        let raw = std::mem::take(&mut answer.raw_output_contents);
        let of_raw =
            raw.iter().map(|raw| key_len(RAW_OUTPUT) + encoded_len_varint(raw.len() as u64) + raw.len());
        let length = answer.encoded_len() + of_raw.sum::<usize>();
        let mut sealed = Vec::with_capacity(length + 4 * PREFIX);
        sealed.extend([0; PREFIX]);
        if in_stream {
            encode_key(INFER_RESPONSE, WireType::LengthDelimited, &mut sealed);
            encode_varint(length as u64, &mut sealed);
        }
        answer.encode(&mut sealed).expect("a Vec has room for all");
        for raw in &raw {
            encode_key(RAW_OUTPUT, WireType::LengthDelimited, &mut sealed);
            encode_varint(raw.len() as u64, &mut sealed);
            slices.append(raw, &mut sealed).await;
        }
        if let Some(coding) = self.0 {
            let packed = coding.pack_in_slices(vec![1; PREFIX], &sealed[PREFIX..], slices).await;
            let_go(std::mem::replace(&mut sealed, packed));
        }
        let length = (sealed.len() - PREFIX) as u32;
        sealed[1..PREFIX].copy_from_slice(&length.to_be_bytes());
        shared(sealed)
    }
}

fn plain(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut sealed = BytesMut::with_capacity(PREFIX + length);
    sealed.put_u8(0);
    sealed.put_u32(length as u32);
    message.encode(&mut sealed).expect("a BytesMut has room for all");
    sealed.freeze()
}

fn packed(message: &[u8]) -> Bytes {
    let mut sealed = BytesMut::with_capacity(PREFIX + message.len());
    sealed.put_u8(1);
    sealed.put_u32(message.len() as u32);
    sealed.extend_from_slice(message);
    sealed.freeze()
}

/// Reads a message.
///
/// Errors: 400 if the bytes are no such message.
pub(super) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Problem> {
    M::decode(bytes).map_err(|error| Problem::bad(format!("the call's message can't be read: {error}")))
}

/// Returns the response to a call that ends well, with its one message.
pub(super) fn answered(message: &impl Message, envelope: Envelope) -> ApiResponse {
    let status = GrpcStatus { code: GrpcCode::Ok, message: "", outcome: None, again: None };
    headers(ResponseBody::with_trailers(envelope.seal(message), status.trailers()), envelope)
}

/// Returns the refusal of a call that the service does not have.
pub(super) fn unknown_call(service: &str, method: &str) -> Problem {
    let message = format!("there is no call {} at {service}", quoted(method));
    Problem::invalid(StatusCode::NOT_IMPLEMENTED, message)
}

/// Returns the response to a call that ends with a status alone.
pub(super) fn without_message(status: &GrpcStatus<'_>) -> ApiResponse {
    let mut response = headers(ResponseBody::whole(Bytes::new()), Envelope(None));
    status.write(response.headers_mut());
    response
}

/// Returns the response to a call, with its headers.
pub(super) fn headers(body: ResponseBody, envelope: Envelope) -> ApiResponse {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC);
    headers.insert(ACCEPT, CODINGS);
    if let Some(coding) = envelope.0 {
        headers.insert(ENCODING, HeaderValue::from_static(coding.name()));
    }
    response
}

/// Returns the time in a `grpc-timeout`: at most eight digits and a unit.
///
/// Errors: 400.
pub(super) fn timeout(value: &[u8]) -> Result<Nanos, Problem> {
    let parsed = || {
        let (unit, digits) = value.split_last()?;
        let digits = std::str::from_utf8(digits).ok().filter(|d| (1..=8).contains(&d.len()))?;
        let number: u64 = digits.bytes().all(|d| d.is_ascii_digit()).then(|| digits.parse().ok())??;
        let unit: u64 = match unit {
            b'H' => 3_600_000_000_000,
            b'M' => 60_000_000_000,
            b'S' => 1_000_000_000,
            b'm' => 1_000_000,
            b'u' => 1_000,
            b'n' => 1,
            _ => return None,
        };
        Some(Nanos(number.saturating_mul(unit)))
    };
    parsed().ok_or_else(|| {
        let is = quoted(&String::from_utf8_lossy(value));
        Problem::bad(format!("grpc-timeout is {is}; it must be up to 8 digits and one of H, M, S, m, u, n"))
    })
}

#[cfg(test)]
mod tests {
    use super::super::messages::ServerMetadataResponse;
    use super::*;
    use crate::api::net::memory::CoreMemory;
    use crate::api::net::slices::ready_now;
    use std::rc::Rc;

    fn open(coding: Option<Coding>, bytes: Bytes, limit: usize) -> Result<Bytes, Problem> {
        let mut memory = CoreMemory::new(1 << 20, 1 << 20).lease(&Rc::default());
        memory.grow(bytes.len()).unwrap();
        ready_now(Envelope(coding).open(bytes, &mut ReadBounds { limit, memory, slices: Slices::alone() }))
    }

    #[test]
    fn a_message_survives_its_envelope_compressed_or_not() {
        let message = ServerMetadataResponse { name: "x".repeat(1_000), ..Default::default() };
        for coding in [None, Some(Coding::Gzip), Some(Coding::Deflate)] {
            let sealed = Envelope(coding).seal(&message);
            assert_eq!(Envelope::length(&sealed), Some(sealed.len()));
            let opened = open(coding, sealed.clone(), 10_000).unwrap();
            assert_eq!(decode::<ServerMetadataResponse>(opened).unwrap(), message);
            assert!(open(coding, sealed.slice(..sealed.len() - 1), 10_000).is_err());
        }
        let sealed = Envelope(Some(Coding::Gzip)).seal(&message);
        assert!(open(Some(Coding::Gzip), sealed.clone(), 999).is_err());
        assert!(open(None, sealed, 10_000).unwrap_err().message.contains("grpc-encoding"));
    }

    #[test]
    fn time_outs_have_up_to_eight_digits_and_a_unit() {
        assert_eq!(timeout(b"25m").unwrap(), Nanos::from_millis(25));
        assert_eq!(timeout(b"99999999H").unwrap(), Nanos(u64::MAX));
        for wrong in [&b""[..], b"m", b"25", b"-1m", b"+1m", b"123456789n", b"1s", b"\xffm"] {
            assert!(timeout(wrong).unwrap_err().message.contains("grpc-timeout"));
        }
    }
}
