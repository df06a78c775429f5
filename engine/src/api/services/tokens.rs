//! Bearer tokens: the models that each permits, and the rate of its calls. All API cores share one
//! [`Tokens`]. The token that a client sends is hashed and compared with the stored hashes in
//! constant time, so that neither the comparison nor this process's memory reveals a token.

use super::shared_memory::{RegionCount, Regions};
use crate::config::{Fingerprint, TokenGrant, TokenRate};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// A token in use.
#[derive(Debug)]
pub(in crate::api) struct Token {
    /// The permissions.
    pub(in crate::api) grant: TokenGrant,
    /// The shared memory that was registered with it, or with the token that had its name before.
    pub(in crate::api) regions: Arc<Regions>,
    bucket: Option<Bucket>,
}

/// A token bucket, as the time at which it would be full again: one atomic integer, which all API
/// cores share.
#[derive(Debug)]
struct Bucket {
    /// The time between two calls in the long run, in nanoseconds.
    interval: u64,
    /// The time by which a call may be early, in nanoseconds.
    tolerance: u64,
    full_at: AtomicU64,
}

impl Bucket {
    fn new(rate: TokenRate) -> Bucket {
        let interval = (1e9 / rate.rps) as u64;
        let tolerance = interval.saturating_mul(u64::from(rate.burst.saturating_sub(1)));
        Bucket { interval, tolerance, full_at: AtomicU64::new(0) }
    }

    /// Takes one call out at `now`, in nanoseconds.
    ///
    /// Errors: the time until the next call may be made.
    fn take(&self, now: u64) -> Result<(), Duration> {
        let mut full_at = self.full_at.load(Ordering::Relaxed);
        loop {
            let ahead = full_at.saturating_sub(now);
            if ahead > self.tolerance {
                return Err(Duration::from_nanos(ahead - self.tolerance));
            }
            let next = full_at.max(now).saturating_add(self.interval);
            // No other memory is published through it, so Relaxed suffices.
            match self.full_at.compare_exchange_weak(full_at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(other) => full_at = other,
            }
        }
    }
}

type TokenTable = HashMap<u64, Arc<Token>>;

/// The valid tokens. Clones share them.
#[derive(Clone)]
pub struct Tokens {
    table: Arc<RwLock<TokenTable>>,
    /// The number of times that the table was replaced: it tells whether a token that was found may
    /// be another by now.
    version: Arc<AtomicU64>,
    regions: RegionCount,
    start: Instant,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

impl Tokens {
    /// Creates the table of these tokens, no two of which are equal.
    pub fn new(grants: Vec<TokenGrant>) -> Tokens {
        let tokens = Tokens {
            table: Arc::default(),
            version: Arc::default(),
            regions: RegionCount::default(),
            start: Instant::now(),
        };
        tokens.replace(grants);
        tokens
    }

    /// Replaces the valid tokens, from the next call on and from the next request of each stream.
    /// A token whose grant did not change keeps its count of calls; one whose name is still there
    /// keeps its shared memory.
    pub fn replace(&self, grants: Vec<TokenGrant>) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::take(&mut *table);
        let regions: HashMap<&str, &Arc<Regions>> =
            old.values().map(|token| (token.grant.name.as_str(), &token.regions)).collect();
        let token = |grant: TokenGrant| {
            let key = grant.fingerprint.key();
            let same = old.get(&key).filter(|token| token.grant == grant).cloned();
            let make = || {
                let of_name = regions.get(grant.name.as_str()).map(|&regions| Arc::clone(regions));
                let regions = of_name.unwrap_or_else(|| Arc::new(Regions::counted(&self.regions)));
                let bucket = grant.rate.map(Bucket::new);
                Arc::new(Token { grant, regions, bucket })
            };
            (key, same.unwrap_or_else(make))
        };
        *table = grants.into_iter().map(token).collect();
        // Under the lock: whoever sees the new version and then takes the lock finds the new table.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of the table, which each replacement raises.
    pub(in crate::api) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the token with this hash as it is now, if it is still valid.
    pub(in crate::api) fn current(&self, token: &Token) -> Option<Arc<Token>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let now = table.get(&token.grant.fingerprint.key())?;
        (now.grant.fingerprint == token.grant.fingerprint).then(|| now.clone())
    }

    /// Returns the token that a client sent, if it is valid.
    pub(in crate::api) fn find(&self, sent: &[u8]) -> Option<Arc<Token>> {
        let fingerprint = Fingerprint::of(sent);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let token = table.get(&fingerprint.key())?;
        bool::from(token.grant.fingerprint.0.ct_eq(&fingerprint.0)).then(|| token.clone())
    }

    /// Counts a call with this token.
    ///
    /// Errors: the time until the next call may be made.
    pub(in crate::api) fn count(&self, token: &Token) -> Result<(), Duration> {
        let Some(bucket) = &token.bucket else { return Ok(()) };
        bucket.take(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(name: &str, token: &str, rate: Option<TokenRate>) -> TokenGrant {
        let fingerprint = Fingerprint::of(token.as_bytes());
        TokenGrant { name: name.into(), fingerprint, models: vec!["*".into()], rate, ..TokenGrant::default() }
    }

    #[test]
    fn a_bucket_gives_its_burst_at_once_and_its_rate_in_the_long_run() {
        let bucket = Bucket::new(TokenRate { rps: 10.0, burst: 3 });
        const START: u64 = 1_000_000_000_000;
        for _ in 0..3 {
            bucket.take(START).unwrap();
        }
        assert_eq!(bucket.take(START), Err(Duration::from_millis(100)));
        assert_eq!(bucket.take(START + 60_000_000), Err(Duration::from_millis(40)));
        let in_ten_seconds = (0..10_000).filter(|ms| bucket.take(START + ms * 1_000_000).is_ok()).count();
        assert!((99..=100).contains(&in_ten_seconds), "{in_ten_seconds}");
    }

    #[test]
    fn a_token_is_found_by_its_bytes_alone_until_it_is_replaced() {
        let slow = Some(TokenRate { rps: 0.001, burst: 1 });
        let tokens = Tokens::new(vec![grant("a", "token-of-a", slow), grant("b", "token-of-b", None)]);
        let a = tokens.find(b"token-of-a").unwrap();
        assert_eq!(a.grant.name, "a");
        assert!(tokens.find(b"token-of-").is_none() && tokens.find(b"").is_none());
        tokens.count(&a).unwrap();
        assert!(tokens.count(&a).unwrap_err() > Duration::from_secs(900));
        tokens.replace(vec![grant("a", "token-of-a", slow), grant("c", "token-of-c", None)]);
        assert!(tokens.find(b"token-of-b").is_none() && tokens.find(b"token-of-c").is_some());
        assert!(tokens.count(&tokens.find(b"token-of-a").unwrap()).is_err(), "its count stays");
        tokens.replace(vec![grant("a", "new-token-of-a", None)]);
        assert!(tokens.current(&a).is_none());
        let renewed = tokens.find(b"new-token-of-a").unwrap();
        assert!(Arc::ptr_eq(&renewed.regions, &a.regions), "memory belongs to the name");
        assert!(!format!("{tokens:?} {a:?}").contains("token-of-a"));
    }
}
