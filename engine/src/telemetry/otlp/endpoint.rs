//! Where the collector is.

use std::fmt;
use std::str::FromStr;

/// The path that OTLP over HTTP has for traces.
const PATH: &str = "/v1/traces";

/// The port that OTLP over HTTP has.
const PORT: u16 = 4318;

/// The address of a collector that speaks OTLP over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Host and port.
    pub(super) authority: String,
    /// From the slash on.
    pub(super) path: String,
}

impl FromStr for Endpoint {
    type Err = String;

    /// Reads `http://HOST[:PORT][/PATH]`: the port is 4318 and the path `/v1/traces` where they are
    /// left out. The error says what would be right.
    fn from_str(text: &str) -> Result<Endpoint, String> {
        let right = "it must be the address of a collector, like http://127.0.0.1:4318";
        if text.starts_with("https://") {
            return Err(format!(
                "{right}; what is sent to it is not encrypted here, so run one on this machine that passes it on"
            ));
        }
        let wrong = || right.to_owned();
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let plain =
            |part: &str| part.bytes().all(|byte| byte.is_ascii_graphic() && !b"@?#\\".contains(&byte));
        let host = authority.rsplit_once(':').filter(|(host, _)| !host.ends_with(':') && !host.contains('['));
        let (host, port) = match (authority.strip_prefix('['), host) {
            (Some(rest), _) => rest.split_once(']').ok_or_else(wrong)?,
            (None, Some((host, _))) => (host, &authority[host.len()..]),
            (None, None) => (authority, ""),
        };
        let has_port = match port.strip_prefix(':') {
            Some(port) => port.parse::<u16>().is_ok_and(|port| port > 0).then_some(true).ok_or_else(wrong)?,
            None if port.is_empty() => false,
            None => return Err(wrong()),
        };
        if host.is_empty() || !plain(authority) || !plain(path) {
            return Err(wrong());
        }
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{PORT}") };
        let path = if path.len() <= 1 { PATH } else { path }.to_owned();
        Ok(Endpoint { authority, path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_and_the_path_of_the_protocol_need_not_be_said() {
        for (given, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector/", "http://collector:4318/v1/traces"),
            ("http://collector:80/otlp/v1/traces", "http://collector:80/otlp/v1/traces"),
            ("http://[::1]:9", "http://[::1]:9/v1/traces"),
            ("http://[::1]", "http://[::1]:4318/v1/traces"),
        ] {
            assert_eq!(given.parse::<Endpoint>().unwrap().to_string(), expected);
        }
        for wrong in [
            "",
            "collector:4318",
            "http://",
            "http://:4318",
            "http://a:x",
            "http://a:0",
            "http://a b",
            "http://[::1",
        ] {
            assert!(wrong.parse::<Endpoint>().unwrap_err().contains("http://127.0.0.1:4318"), "{wrong}");
        }
        assert!("https://a".parse::<Endpoint>().unwrap_err().contains("not encrypted"));
    }
}
