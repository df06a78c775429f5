//! The table `[trace]` of CONFIG, and the flags that override it; docs/tracing.md is for users.

use super::toml_reader::{Bounds, TomlTable};
use std::fmt;
use std::str::FromStr;

/// The requests that are traced, and the collector of their traces.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceConfig {
    /// The collector; there are no traces without one.
    pub endpoint: Option<Endpoint>,
    /// The fraction of requests that are traced, 0 to 1, among those whose client does not decide.
    pub sample_ratio: f64,
    /// The server's name in traces.
    pub service_name: String,
}

impl Default for TraceConfig {
    fn default() -> TraceConfig {
        TraceConfig { endpoint: None, sample_ratio: 0.01, service_name: "symphony".to_owned() }
    }
}

/// Command-line flags that override [`TraceConfig`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TraceFlags {
    /// The collector.
    pub endpoint: Option<Endpoint>,
    /// The fraction of requests that are traced, 0 to 1.
    pub sample_ratio: Option<f64>,
}

impl TraceConfig {
    /// Reads the table `[trace]`.
    pub(super) fn read(root: &TomlTable<'_>) -> Option<TraceConfig> {
        root.section("trace", |table| {
            let default = TraceConfig::default();
            let endpoint = table.optional("endpoint").map_or(Some(None), |value| {
                let text = value.text("the address of a collector")?;
                let endpoint = text.parse().map_err(|right| value.report(format!("is {text:?}"), right));
                endpoint.ok().map(Some)
            });
            let ratio = table.optional("sample_ratio");
            let ratio =
                ratio.map_or(Some(default.sample_ratio), |value| value.number(Bounds::from(0.0, 1.0)));
            let name = table.optional("service_name").map_or(Some(default.service_name), |value| {
                value.text("what the server is called in traces").map(str::to_owned)
            });
            Some(TraceConfig { endpoint: endpoint?, sample_ratio: ratio?, service_name: name? })
        })
    }

    /// Returns this configuration, overridden by the flags.
    pub fn with(self, flags: &TraceFlags) -> TraceConfig {
        TraceConfig {
            endpoint: flags.endpoint.clone().or(self.endpoint),
            sample_ratio: flags.sample_ratio.unwrap_or(self.sample_ratio),
            ..self
        }
    }
}

/// The path of traces in OTLP over HTTP.
const PATH: &str = "/v1/traces";

/// The port of OTLP over HTTP.
const PORT: u16 = 4318;

/// The address of a collector that speaks OTLP over HTTP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    authority: String,
    path: String,
}

impl Endpoint {
    /// The host and the port.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The path, which begins with a slash.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// Reads `http://HOST[:PORT][/PATH]`: the port is 4318 and the path `/v1/traces` where they are
    /// left out.
    ///
    /// Errors: what a valid address looks like.
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
