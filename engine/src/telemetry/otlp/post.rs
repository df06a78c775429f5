//! One POST over HTTP/1.1, on a connection of its own, within a time.

use crate::config::Endpoint;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The largest answer that is read, in bytes: a collector's answers are small.
const LARGEST: usize = 64 << 10;

/// The longest time that a collector may ask for before the next attempt.
pub(in crate::telemetry) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The reason why a collector did not take what was sent.
#[derive(Debug)]
pub(super) enum Failure {
    /// The collector may take it later, after this time at the earliest if it gave one.
    Later(String, Option<Duration>),
    /// The collector will never take it.
    Never(String),
}

/// Sends `body` and returns the answer.
///
/// Errors: no answer, or none of success.
pub(super) fn post(endpoint: &Endpoint, body: &[u8], patience: Duration) -> Result<Vec<u8>, Failure> {
    let answer =
        exchange(endpoint, body, patience).map_err(|error| Failure::Later(error.to_string(), None))?;
    let end = head_end(&answer).unwrap_or(answer.len());
    let head = String::from_utf8_lossy(&answer[..end]);
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()) {
        Some(200..=299) => Ok(answer[end..].to_vec()),
        // The statuses that the protocol calls retryable.
        Some(429 | 502 | 503 | 504) => {
            let after = field(&head, "retry-after").and_then(|seconds| seconds.parse().ok());
            let after = after.map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE));
            Err(Failure::Later(format!("it answered {status:?}"), after))
        }
        Some(_) => Err(Failure::Never(format!("it answered {status:?}"))),
        None => Err(Failure::Later("its answer is not HTTP".to_owned(), None)),
    }
}

fn exchange(endpoint: &Endpoint, body: &[u8], patience: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + patience;
    let left = || match until.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
        left => Ok(left),
    };
    let address = endpoint.authority().to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the host has no address"))?;
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: symphony/{}\r\nContent-Type: application/x-protobuf\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        endpoint.path(),
        endpoint.authority(),
        env!("CARGO_PKG_VERSION"),
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while answer.len() < LARGEST && !is_whole(&answer) {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut part)? {
            0 => break,
            length => answer.extend_from_slice(&part[..length]),
        }
    }
    Ok(answer)
}

/// Returns the position at which the body begins, if the head is complete.
fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns true if the answer is complete, for one that gives its length; others end with their
/// connection.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = head_end(answer) else { return false };
    let head = String::from_utf8_lossy(&answer[..end]);
    let length = field(&head, "content-length").and_then(|length| length.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() - end >= length)
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Returns the result of `post` with a server that gives this answer to any request.
    fn answered(answer: &'static str) -> Result<Vec<u8>, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut sent = Vec::new();
            while !sent.ends_with(b"the body") {
                let mut part = [0; 64];
                let length = stream.read(&mut part).unwrap();
                sent.extend_from_slice(&part[..length]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            (stream, String::from_utf8(sent).unwrap())
        });
        let answer = post(&endpoint, b"the body", Duration::from_secs(60));
        let (_stream, sent) = server.join().unwrap();
        assert!(
            sent.starts_with("POST /v1/traces HTTP/1.1\r\n") && sent.contains("Content-Length: 8\r\n"),
            "{sent}"
        );
        answer
    }

    #[test]
    fn an_answer_says_taken_later_or_never() {
        // The connection stays open: the length says where the answer ends.
        assert_eq!(answered("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap(), b"ok");
        let busy = answered("HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
        assert!(matches!(busy, Err(Failure::Later(_, Some(after))) if after == Duration::from_secs(7)));
        let wrong = answered("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        assert!(matches!(wrong, Err(Failure::Never(why)) if why.contains("400 Bad Request")));
    }

    #[test]
    fn nobody_there_is_later() {
        let endpoint = "http://127.0.0.1:1".parse().unwrap();
        assert!(matches!(post(&endpoint, b"", Duration::from_secs(60)), Err(Failure::Later(_, None))));
    }
}
