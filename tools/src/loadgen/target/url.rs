//! The URL of a server.

use hyper::Uri;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The URL of a server: `http://HOST:PORT`, perhaps with a path that comes before `/v2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    host: String,
    port: u16,
    prefix: String,
}

impl ServerUrl {
    /// Reads `http://HOST[:PORT][/PREFIX]`; the port is 80 unless given. `grpc://` means the same.
    ///
    /// Errors: what is wrong and what would be right.
    pub fn parse(text: &str) -> Result<ServerUrl, String> {
        const RIGHT: &str = "it must be like http://127.0.0.1:8000";
        if !text.contains("://") {
            return Err(format!("it has no scheme; write http://{text}"));
        }
        let uri: Uri = text.parse().map_err(|e| format!("it is no URL ({e}); {RIGHT}"))?;
        match uri.scheme_str() {
            Some("http" | "grpc") => {}
            Some("https" | "grpcs") => return Err("https is not in this version; use http".into()),
            _ => return Err(format!("its scheme is not http; {RIGHT}")),
        }
        if uri.query().is_some() {
            return Err(format!("it has a query; {RIGHT}"));
        }
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("it has no host; {RIGHT}"))?;
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let port = match uri.port_u16() {
            Some(port) => port,
            None if authority == host => 80,
            None => return Err(format!("`{authority}` is not HOST or HOST:PORT; {RIGHT}")),
        };
        let prefix = uri.path().trim_end_matches('/').into();
        Ok(ServerUrl { host: host.into(), port, prefix })
    }

    /// The addresses that the host's name stands for.
    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        Ok((host, self.port).to_socket_addrs()?.collect())
    }

    /// `HOST:PORT`.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// A path of the protocol, such as `/v2/models`.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// The path of a model, with `rest` after it.
    pub(super) fn model_path(&self, model: &str, rest: &str) -> String {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
        let encode = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
        self.path(&format!("/v2/models/{}{rest}", model.bytes().map(encode).collect::<String>()))
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}{}", self.host, self.port, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_host_a_port_and_perhaps_a_prefix() {
        let url = ServerUrl::parse("http://localhost:8000/").unwrap();
        assert_eq!(
            (url.to_string(), url.model_path("m", "/infer")),
            ("http://localhost:8000".into(), "/v2/models/m/infer".into())
        );
        let url = ServerUrl::parse("http://[::1]/a/b").unwrap();
        assert_eq!((url.port, url.model_path("a/b c", "")), (80, "/a/b/v2/models/a%2Fb%20c".into()));
        assert_eq!(url.addresses().unwrap(), ["[::1]:80".parse().unwrap()]);
        for bad in [
            "localhost:8000",
            "ftp://h",
            "https://h",
            "http://",
            "http://h?x=1",
            "http://h:99999",
            "http:// h",
        ] {
            assert!(ServerUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
