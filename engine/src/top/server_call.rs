//! Calls of a server's HTTP API by a command, each over a new connection.

use serde::Deserialize;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// The largest answer that is read, in bytes: ten times what 64 models and two minutes come to.
const LARGEST: u64 = 16 << 20;

/// The time within which a server takes a connection.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

/// A server, and the token that it requires.
#[derive(Clone, Debug)]
pub(crate) struct ServerAddress {
    address: String,
    /// The bearer token; empty for none.
    token: String,
}

/// The answer to a call.
pub(crate) struct ServerAnswer {
    /// The first line.
    status: String,
    /// The body.
    pub(crate) body: String,
}

/// The body of a server's error.
#[derive(Debug, Default, Deserialize)]
struct ErrorBody {
    error: String,
}

impl ServerAnswer {
    /// Returns why the server has refused, in its words; `None` if it has not.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.status.split(' ').nth(1) == Some("200") {
            return None;
        }
        let body: ErrorBody = serde_json::from_str(&self.body).unwrap_or_default();
        Some(if body.error.is_empty() { "is that a Symphony server?".to_owned() } else { body.error })
    }

    /// Returns the first line of the answer.
    pub(crate) fn status(&self) -> &str {
        &self.status
    }
}

impl ServerAddress {
    /// Makes the address of the server at `http://HOST:PORT`, or `HOST:PORT`, which may require a
    /// bearer token.
    ///
    /// Errors: `url` is no such URL, or `token` no such token.
    pub(crate) fn new(url: &str, token: &str) -> Result<ServerAddress, String> {
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
        Ok(ServerAddress { address, token: token.to_owned() })
    }

    /// Returns the server's host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Makes a call, which the server may take `patience` to answer.
    ///
    /// Errors: the server can't be reached.
    pub(crate) fn call(
        &self,
        (method, path): (&str, &str),
        body: &str,
        patience: Duration,
    ) -> Result<ServerAnswer, String> {
        let answer = self.send((method, path), body, patience).map_err(|error| {
            format!("no answer from http://{}: {error}; is the server running there?", self.address)
        })?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
        let status = head.lines().next().unwrap_or_default();
        Ok(ServerAnswer { status: status.to_owned(), body: body.to_owned() })
    }

    fn send(&self, (method, path): (&str, &str), body: &str, patience: Duration) -> std::io::Result<String> {
        let address = self.address.to_socket_addrs()?.next();
        let address = address.ok_or_else(|| std::io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, CONNECTS_WITHIN)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(CONNECTS_WITHIN))?;
        let token = match self.token.as_str() {
            "" => String::new(),
            token => format!("Authorization: Bearer {token}\r\n"),
        };
        let length = match method {
            "GET" => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        let call = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{token}{length}Connection: close\r\n\r\n{body}",
            self.address
        );
        stream.write_all(call.as_bytes())?;
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
        let address = |url| ServerAddress::new(url, "").map(|server| server.address);
        assert_eq!(address("http://gpu-1:8000/dashboard").unwrap(), "gpu-1:8000");
        assert_eq!(address("127.0.0.1:8000").unwrap(), "127.0.0.1:8000");
        assert_eq!(address("http://[::1]:8000").unwrap(), "[::1]:8000");
        assert_eq!(address("gpu-1").unwrap(), "gpu-1:80");
        for wrong in ["https://x:1", "", "http://", "a b:1"] {
            assert!(address(wrong).unwrap_err().contains("give one like"), "{wrong}");
        }
    }
}
