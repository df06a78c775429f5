//! Access control: a client's permissions follow from the listener that it connected to (its
//! [`ListenerRules`]) and from the token that it sent. Both protocol adapters check them before
//! they do anything for it.

use super::tokens::{Token, Tokens};
use crate::api::net::peer::ListenerRules;
use crate::api::problem::{Problem, quoted};
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The client that makes a call.
#[derive(Clone, Debug)]
pub(in crate::api) struct Caller {
    listener: ListenerRules,
    /// The address at which admin calls are answered besides.
    admin_addr: Option<SocketAddr>,
    token: Option<(Tokens, Arc<Token>)>,
}

impl Caller {
    /// Returns true if it may use the model of this name.
    pub(in crate::api) fn may_use(&self, model: &str) -> bool {
        self.token.as_ref().is_none_or(|(_, token)| token.grant.is_for(model))
    }

    /// Checks that it may use the model of this name, which need not exist.
    ///
    /// Errors: 403.
    pub(in crate::api) fn check_model(&self, model: &str) -> Result<(), Problem> {
        match &self.token {
            Some((_, token)) if !token.grant.is_for(model) => {
                let message = format!(
                    "token {:?} is not for model {}; it is for {:?}",
                    token.grant.name,
                    quoted(model),
                    token.grant.models
                );
                Err(Problem::invalid(StatusCode::FORBIDDEN, message))
            }
            _ => Ok(()),
        }
    }

    /// Checks that it may make admin calls.
    ///
    /// Errors: 403, with the address that answers them or the tokens that permit them.
    pub(in crate::api) fn check_admin(&self) -> Result<(), Problem> {
        let refused = |message: String| Err(Problem::invalid(StatusCode::FORBIDDEN, message));
        match (&self.token, self.admin_addr) {
            _ if self.listener.admin => {}
            (_, Some(addr)) => {
                return refused(format!(
                    "this is an admin call, which is answered at {addr} only: see --admin and docs/security.md"
                ));
            }
            (_, None) => {
                return refused("this is an admin call, which no listener of this server answers".into());
            }
        }
        match &self.token {
            Some((_, token)) if !token.grant.admin => refused(format!(
                "this is an admin call, and token {:?} is not for those: admin = true would make it so",
                token.grant.name
            )),
            _ => Ok(()),
        }
    }

    /// Counts a call, or one request of a stream, against the token's rate.
    ///
    /// Errors: 429, with the time until the next call may be made.
    pub(in crate::api) fn count(&self) -> Result<(), Problem> {
        let Some((tokens, token)) = &self.token else { return Ok(()) };
        tokens.count(token).map_err(|wait: Duration| {
            let rate = token.grant.rate.map_or(0.0, |rate| rate.rps);
            let message = format!(
                "token {:?} has used up its {rate} calls a second; wait {wait:.1?}",
                token.grant.name
            );
            let (status, outcome) = (StatusCode::TOO_MANY_REQUESTS, InferOutcome::Overloaded);
            Problem { status, message, outcome, again: Some(wait) }
        })
    }
}

/// The rules about which client may make which call.
#[derive(Debug)]
pub(in crate::api) struct AccessControl {
    tokens: Option<Tokens>,
    /// The address at which admin calls are answered besides.
    admin_addr: Option<SocketAddr>,
}

impl AccessControl {
    /// Creates the rules: every client may make every call if there are no `tokens`.
    pub(in crate::api) fn new(tokens: Option<Tokens>, admin_addr: Option<SocketAddr>) -> AccessControl {
        AccessControl { tokens, admin_addr }
    }

    /// Returns the caller that these headers identify. The call is not counted yet.
    ///
    /// Errors: 401 if tokens are required and the headers have no valid one.
    pub(in crate::api) fn identify(
        &self,
        listener: ListenerRules,
        headers: &HeaderMap,
    ) -> Result<Caller, Problem> {
        let token = match &self.tokens {
            None => None,
            Some(tokens) => {
                let token = bearer(headers).and_then(|sent| tokens.find(sent)).ok_or_else(no_token)?;
                Some((tokens.clone(), token))
            }
        };
        Ok(Caller { listener, admin_addr: self.admin_addr, token })
    }

    /// Returns an unidentified caller, for health checks, which need no token.
    pub(in crate::api) fn anonymous(&self, listener: ListenerRules) -> Caller {
        Caller { listener, admin_addr: self.admin_addr, token: None }
    }
}

/// Returns the token in `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn no_token() -> Problem {
    let message = "a valid token is needed: send the header `Authorization: Bearer TOKEN`";
    Problem::invalid(StatusCode::UNAUTHORIZED, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_token_follows_the_scheme_bearer() {
        for (header, token) in [
            ("Bearer abc", Some(&b"abc"[..])),
            ("bearer  abc ", Some(b"abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("Bearerabc", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(header));
            assert_eq!(bearer(&headers), token, "{header:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
