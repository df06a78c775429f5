//! The guard against browsers: a web page of another site makes the user's browser send requests to
//! loopback, where no token is asked for. A browser names the site in `Origin`; and where the
//! site's name was made to resolve to loopback (DNS rebinding), the name is in `Host`.

use crate::api::problem::{Problem, quoted};
use hyper::header::{HOST, HeaderMap, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{StatusCode, Uri};
use std::net::IpAddr;

/// Returns true if a name, an address in brackets or not, is one of this machine on loopback.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// The names by which clients may address a listener that asks for no token.
#[derive(Clone, Default, Debug)]
pub(in crate::api) struct AllowedHosts(pub(in crate::api) Vec<String>);

impl AllowedHosts {
    fn contains(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        is_loopback(host) || self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Checks the name by which a client addresses the server: `Host`, and `:authority` over
    /// HTTP/2. A client that gives none is no browser.
    ///
    /// Errors: 403 for one that is neither of loopback nor in the list.
    pub(in crate::api) fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let given = headers.get_all(HOST).iter().map(|value| value.as_bytes());
        for host in uri.authority().map(|authority| authority.as_str().as_bytes()).into_iter().chain(given) {
            let known = Authority::try_from(host).is_ok_and(|authority| self.contains(authority.host()));
            if !known {
                let message = format!(
                    "requests for host {} are not answered here: without tokens, only those for localhost, \
                     127.0.0.1, [::1] and the names of --allowed-host are (docs/security.md)",
                    quoted(&String::from_utf8_lossy(host))
                );
                return Err(Problem::invalid(StatusCode::FORBIDDEN, message));
            }
        }
        Ok(())
    }

    /// Checks that no web page but the server's own makes the request. Its own have the `Origin`
    /// that the browser addresses in `Host`.
    ///
    /// Errors: 403.
    pub(in crate::api) fn check_origin(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
        let addressed = uri.authority().map(|authority| authority.as_str().as_bytes());
        let addressed = addressed.or_else(|| headers.get(HOST).map(|value| value.as_bytes()));
        for origin in headers.get_all(ORIGIN) {
            let site = origin.as_bytes().splitn(3, |&byte| byte == b'/').nth(2).unwrap_or_default();
            let own = addressed.is_some_and(|addressed| addressed.eq_ignore_ascii_case(site));
            let listed = || {
                let site = Authority::try_from(site);
                site.is_ok_and(|site| self.0.iter().any(|name| name.eq_ignore_ascii_case(site.host())))
            };
            if !own && !listed() {
                let message = format!(
                    "a web page of {} asks, and without tokens only those of --allowed-host may (docs/security.md)",
                    quoted(&String::from_utf8_lossy(origin.as_bytes()))
                );
                return Err(Problem::invalid(StatusCode::FORBIDDEN, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(host: &str, origin: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        origin.into_iter().for_each(|origin| {
            headers.insert(ORIGIN, HeaderValue::from_str(origin).unwrap());
        });
        headers
    }

    #[test]
    fn names_of_loopback_and_listed_ones_are_answered_and_no_others() {
        let hosts = AllowedHosts(vec!["Models.example".into()]);
        for (host, known) in [
            ("localhost:8000", true),
            ("LOCALHOST", true),
            ("localhost.", true),
            ("127.0.0.1:8000", true),
            ("127.1.2.3", true),
            ("[::1]:8000", true),
            ("models.example:80", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:8000", false),
            ("192.168.0.1", false),
            ("user@evil.example", false),
            ("", false),
        ] {
            let by_header = hosts.check_host(&Uri::from_static("/v2"), &headers(host, None));
            assert_eq!(by_header.is_ok(), known, "{host}");
        }
        let none = HeaderMap::new();
        assert!(hosts.check_host(&Uri::from_static("/v2"), &none).is_ok());
        assert!(hosts.check_host(&Uri::from_static("http://localhost:1/v2"), &none).is_ok());
        assert!(hosts.check_host(&Uri::from_static("http://evil.example/v2"), &none).is_err());
        let both = headers("evil.example", None);
        assert!(hosts.check_host(&Uri::from_static("http://localhost:1/v2"), &both).is_err());
    }

    #[test]
    fn a_page_of_the_server_itself_or_of_a_listed_site_may_ask() {
        let hosts = AllowedHosts(vec!["models.example".into()]);
        for (origin, allowed) in [
            (None, true),
            (Some("http://127.0.0.1:8000"), true),
            (Some("https://models.example"), true),
            (Some("http://127.0.0.1:9000"), false),
            (Some("http://localhost:8000"), false),
            (Some("https://evil.example"), false),
            (Some("null"), false),
            (Some(""), false),
        ] {
            let headers = headers("127.0.0.1:8000", origin);
            assert_eq!(hosts.check_origin(&Uri::from_static("/"), &headers).is_ok(), allowed, "{origin:?}");
        }
    }
}
