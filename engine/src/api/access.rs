//! What a client may do: which listener it came in by (its [`ListenerRules`]), and which token it
//! brought. Both protocol adapters ask here before they do anything for it.

use super::core::Core;
use super::problem::{Problem, quoted};
use super::tokens::{Token, Tokens};
use crate::telemetry::InferOutcome;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A listener, as far as it says what its clients may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ListenerRules {
    /// Whether admin calls are answered.
    pub(super) admin: bool,
    /// Whether clients speak TLS.
    pub(super) tls: bool,
}

/// What is known of a connection's client.
#[derive(Clone)]
pub(super) struct Peer {
    /// Where it came in.
    pub(super) listener: ListenerRules,
    /// Cloned for each request of it at hand, until its answer is taken.
    pub(super) at_hand: Rc<()>,
}

impl Peer {
    /// How many requests of it are at hand.
    pub(super) fn requests_at_hand(&self) -> usize {
        // The connection has one for itself, and each task of it that asks this another at most.
        Rc::strong_count(&self.at_hand) - 1
    }
}

/// Who makes a call.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    listener: ListenerRules,
    /// Where admin calls are answered besides.
    admin_addr: Option<SocketAddr>,
    token: Option<(Tokens, Arc<Token>)>,
}

impl Caller {
    /// Whether it may use the model of this name.
    pub(super) fn may_use(&self, model: &str) -> bool {
        self.token.as_ref().is_none_or(|(_, token)| token.grant.is_for(model))
    }

    /// Sees to it that it may use the model of this name, which need not exist.
    ///
    /// Errors: 403.
    pub(super) fn see_model(&self, model: &str) -> Result<(), Problem> {
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

    /// Sees to it that it may make admin calls.
    ///
    /// Errors: 403, with where they are answered or which tokens are for them.
    pub(super) fn see_admin(&self) -> Result<(), Problem> {
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

    /// Counts a call, or one request of a stream.
    ///
    /// Errors: 429, with when there may be another.
    pub(super) fn count(&self) -> Result<(), Problem> {
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

impl Core {
    /// Who makes a call with these headers, which is not counted yet.
    ///
    /// Errors: 401 where tokens are asked for and it brings none that is valid.
    pub(super) fn identify(&self, listener: ListenerRules, headers: &HeaderMap) -> Result<Caller, Problem> {
        let token = match &self.config.tokens {
            None => None,
            Some(tokens) => {
                let token = bearer(headers).and_then(|sent| tokens.find(sent)).ok_or_else(no_token)?;
                Some((tokens.clone(), token))
            }
        };
        Ok(Caller { listener, admin_addr: self.config.admin, token })
    }

    /// Whoever asks whether the server lives: nobody has to say who that is.
    pub(super) fn anybody(&self, listener: ListenerRules) -> Caller {
        Caller { listener, admin_addr: self.config.admin, token: None }
    }
}

/// The token in `Authorization: Bearer TOKEN`.
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
    fn a_token_stands_behind_the_word_bearer() {
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
