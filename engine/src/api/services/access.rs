//! Access control: a client's permissions follow from the listener that it connected to (its
//! [`ListenerRules`]) and from the token that it sent. Both protocol adapters ask
//! [`AccessControl::admit`] before they do anything for it.

use super::origin::AllowedHosts;
use super::shared::SharedState;
use super::shared_memory::Regions;
use super::tokens::{Token, Tokens};
use crate::api::net::peer::ListenerRules;
use crate::api::problem::{Problem, quoted};
use crate::config::TokenRole;
use crate::runtime::frontend::Class;
use crate::telemetry::InferOutcome;
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{StatusCode, Uri};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The permission that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::api) enum Permission {
    /// The permission that everybody has, with a token or without: to ask whether the server lives
    /// and is ready.
    Health,
    /// The permission to read the metrics.
    Metrics,
    /// The permission to use models.
    Use,
    /// The permission to change the server, or to see all that it does.
    Admin,
}

/// A token in use, and the version of the table in which it was found.
#[derive(Clone, Debug)]
struct HeldToken {
    tokens: Tokens,
    version: u64,
    token: Arc<Token>,
}

/// The client that makes a call.
#[derive(Clone, Debug)]
pub(in crate::api) struct Caller {
    listener: ListenerRules,
    /// The address at which admin calls are answered besides.
    admin_addr: Option<SocketAddr>,
    held: Option<HeldToken>,
}

impl Caller {
    fn token(&self) -> Option<&Token> {
        self.held.as_ref().map(|held| &*held.token)
    }

    /// Returns the caller as its token is now: it may have been revoked or changed since a stream
    /// was opened.
    ///
    /// Errors: 401 if the token is no longer valid, 403 if it no longer permits to use models.
    pub(in crate::api) fn renewed(&self) -> Result<Caller, Problem> {
        let mut caller = self.clone();
        let Some(held) = &mut caller.held else { return Ok(caller) };
        let version = held.tokens.version();
        if held.version != version {
            held.token = held.tokens.current(&held.token).ok_or_else(no_token)?;
            held.version = version;
            caller.check(Permission::Use)?;
        }
        Ok(caller)
    }

    /// Returns true if it may use the model of this name.
    pub(in crate::api) fn may_use(&self, model: &str) -> bool {
        self.token().is_none_or(|token| token.grant.is_for(model))
    }

    /// Checks that it may use the model of this name, which need not exist.
    ///
    /// Errors: 403.
    pub(in crate::api) fn check_model(&self, model: &str) -> Result<(), Problem> {
        match self.token() {
            Some(token) if !token.grant.is_for(model) => {
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

    /// Returns the highest class in which its requests are served.
    pub(in crate::api) fn highest_class(&self) -> Class {
        let of_token = self.token().and_then(|token| Class::new(token.grant.priority));
        of_token.unwrap_or(Class::HIGHEST)
    }

    /// Returns the application of its requests that name none.
    pub(in crate::api) fn application(&self) -> Option<Arc<str>> {
        self.token().and_then(|token| token.grant.application.clone())
    }

    /// Checks that it may make calls that need this permission.
    ///
    /// Errors: 403, with the address that answers them or the tokens that permit them.
    pub(in crate::api) fn check(&self, needed: Permission) -> Result<(), Problem> {
        let role = self.token().map(|token| token.grant.role);
        match (needed, role) {
            (Permission::Health, _) | (Permission::Metrics, Some(TokenRole::Metrics)) => Ok(()),
            (Permission::Metrics | Permission::Admin, _) if !self.listener.admin => self.elsewhere(),
            (_, None | Some(TokenRole::Admin)) | (Permission::Use, Some(TokenRole::User)) => Ok(()),
            (_, Some(role)) => self.not_for(needed, role),
        }
    }

    /// Checks that it may make admin calls.
    ///
    /// Errors: as [`Caller::check`].
    pub(in crate::api) fn check_admin(&self) -> Result<(), Problem> {
        self.check(Permission::Admin)
    }

    /// Refuses an admin call that its listener does not answer.
    fn elsewhere(&self) -> Result<(), Problem> {
        let message = match self.admin_addr {
            Some(addr) => {
                format!(
                    "this is an admin call, which is answered at {addr} only: see --admin and docs/security.md"
                )
            }
            None => "this is an admin call, which no listener of this server answers".to_owned(),
        };
        Err(Problem::invalid(StatusCode::FORBIDDEN, message))
    }

    /// Refuses a call that its token's role does not permit.
    fn not_for(&self, needed: Permission, role: TokenRole) -> Result<(), Problem> {
        let (kind, right) = match needed {
            Permission::Use => ("a call of models", "role = \"user\""),
            Permission::Metrics => ("a call for metrics", "role = \"metrics\" or admin = true"),
            _ => ("an admin call", "admin = true"),
        };
        let name = self.token().map_or("", |token| &token.grant.name);
        let message = format!(
            "this is {kind}, and token {name:?} has the role {:?}: {right} would permit it",
            role.name()
        );
        Err(Problem::invalid(StatusCode::FORBIDDEN, message))
    }

    /// Counts a call, or one request of a stream, against the token's rate.
    ///
    /// Errors: 429, with the time until the next call may be made.
    pub(in crate::api) fn count(&self) -> Result<(), Problem> {
        let Some(HeldToken { tokens, token, .. }) = &self.held else { return Ok(()) };
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
    hosts: AllowedHosts,
    /// The shared memory of clients without any.
    no_regions: Regions,
}

impl AccessControl {
    /// Creates the rules: every client may make every call if there are no `tokens`, if it is none
    /// that a web page makes.
    pub(in crate::api) fn new(
        tokens: Option<Tokens>,
        admin_addr: Option<SocketAddr>,
        hosts: AllowedHosts,
    ) -> AccessControl {
        let at = admin_addr.map_or_else(|| "not on this server".to_owned(), |addr| format!("at {addr}"));
        let no_regions = Regions::closed(format!(
            "shared memory can't be used here: without a token it is used where it is registered, {at} \
             (docs/security.md)"
        ));
        AccessControl { tokens, admin_addr, hosts, no_regions }
    }

    /// Returns true if calls of models need a token.
    pub(in crate::api) fn requires_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Returns the caller of a call that needs this permission, and counts the call.
    ///
    /// Errors: 401 if a token is needed and the headers have no valid one, 403 if this listener,
    /// its token or its `Host` or `Origin` does not permit the call, 429 if its token is used up.
    pub(in crate::api) fn admit(
        &self,
        listener: ListenerRules,
        uri: &Uri,
        headers: &HeaderMap,
        needed: Permission,
    ) -> Result<Caller, Problem> {
        if self.tokens.is_none() && listener.loopback {
            self.hosts.check_host(uri, headers)?;
        }
        if self.tokens.is_none() && (listener.loopback || listener.admin) {
            self.hosts.check_origin(uri, headers)?;
        }
        let held = match (&self.tokens, needed) {
            (None, _) | (_, Permission::Health) => None,
            (Some(tokens), _) => {
                // Before the search: a table that is replaced meanwhile makes it look stale.
                let version = tokens.version();
                let token = bearer(headers).and_then(|sent| tokens.find(sent)).ok_or_else(no_token)?;
                Some(HeldToken { tokens: tokens.clone(), version, token })
            }
        };
        let caller = Caller { listener, admin_addr: self.admin_addr, held };
        caller.check(needed)?;
        caller.count()?;
        Ok(caller)
    }

    /// Returns the regions of shared memory that belong to `caller`: those of its token, or where
    /// there are no tokens those of all who may register some.
    pub(in crate::api) fn regions<'a>(&'a self, caller: &'a Caller, shared: &'a SharedState) -> &'a Regions {
        match caller.token() {
            Some(token) => &token.regions,
            None if caller.listener.admin => &shared.regions,
            None => &self.no_regions,
        }
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
