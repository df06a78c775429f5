//! The keys of an etcd as this host has seen them: from a list, and the events that follow it.

use super::client::EtcdFault;
use super::messages::{EtcdPair, WatchEvent, WatchResponse};
use crate::config::Role;
use crate::runtime::discovery::update::{DirectoryUpdate, HostKey, RegisteredHost};
use std::collections::BTreeMap;

/// The roles that hosts have.
const ROLES: [Role; 3] = [Role::Frontend, Role::Scheduler, Role::Backend];

/// Why a watch is over.
#[derive(Debug)]
pub(super) enum WatchEnd {
    /// What it began with is compacted: the keys are listed anew.
    Compacted,
    Lost(EtcdFault),
}

impl From<EtcdFault> for WatchEnd {
    fn from(fault: EtcdFault) -> WatchEnd {
        WatchEnd::Lost(fault)
    }
}

/// The hosts that have registered below a prefix. It has no connection and no clock.
#[derive(Debug)]
pub(crate) struct Mirror {
    prefix: String,
    hosts: BTreeMap<HostKey, RegisteredHost>,
    revision: i64,
}

impl Mirror {
    /// Makes the mirror of the keys that begin with `prefix`, of which none is known.
    pub(crate) fn new(prefix: String) -> Mirror {
        Mirror { prefix, hosts: BTreeMap::new(), revision: 0 }
    }

    /// Returns what the keys begin with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of a host.
    pub(super) fn key_of(&self, (role, name): &HostKey) -> String {
        format!("{}{}/{name}", self.prefix, role.name())
    }

    /// Returns the host that a key is of; `None` if it is of none.
    fn host_of(&self, key: &[u8]) -> Option<HostKey> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(self.prefix.as_str())?;
        let (role, name) = rest.split_once('/')?;
        let role = ROLES.into_iter().find(|known| known.name() == role)?;
        (!name.is_empty()).then(|| (role, name.to_owned()))
    }

    /// Takes all keys, as they were at a revision.
    pub(crate) fn list(&mut self, keys: &[EtcdPair], revision: i64) {
        self.revision = revision;
        let host = |kv: &EtcdPair| Some((self.host_of(&kv.key)?, registered(kv)));
        self.hosts = keys.iter().filter_map(host).collect();
    }

    /// Takes an answer of a watch, and returns whether it has changed anything.
    ///
    /// Errors: the watch is over.
    pub(super) fn take(&mut self, answer: &WatchResponse) -> Result<bool, WatchEnd> {
        if answer.canceled {
            let why = format!("the watch was ended: {}", answer.cancel_reason);
            let is_compacted = answer.compact_revision > 0;
            return Err(if is_compacted { WatchEnd::Compacted } else { EtcdFault::Lost(why).into() });
        }
        let changes = answer.events.iter().filter(|event| self.apply(event)).count();
        let last = answer.events.iter().filter_map(|event| event.kv.as_ref()).map(|kv| kv.mod_revision).max();
        self.revision = self.revision.max(last.unwrap_or(0));
        Ok(changes > 0)
    }

    /// Takes an event, and returns whether it has changed anything. One that is older than the list
    /// has not.
    fn apply(&mut self, event: &WatchEvent) -> bool {
        let Some(kv) = &event.kv else { return false };
        if kv.mod_revision <= self.revision {
            return false;
        }
        let Some(host) = self.host_of(&kv.key) else { return false };
        // Several events may have one revision, of different keys.
        match event.kind {
            0 => self.hosts.insert(host, registered(kv)) != Some(registered(kv)),
            _ => self.hosts.remove(&host).is_some(),
        }
    }

    /// Returns the revision from which to watch.
    pub(super) fn watch_from(&self) -> i64 {
        self.revision + 1
    }

    /// Returns the hosts that have registered.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = (&HostKey, &RegisteredHost)> {
        self.hosts.iter()
    }

    pub(super) fn update(&self) -> DirectoryUpdate {
        DirectoryUpdate::Registered(self.hosts.clone())
    }
}

fn registered(kv: &EtcdPair) -> RegisteredHost {
    let address = String::from_utf8_lossy(&kv.value).into_owned();
    RegisteredHost { address, registration: kv.mod_revision, lease: kv.lease }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An etcd of a few keys, with its whole history.
    #[derive(Default)]
    struct Store {
        revision: i64,
        keys: BTreeMap<Vec<u8>, EtcdPair>,
        history: Vec<WatchEvent>,
    }

    impl Store {
        fn put(&mut self, key: &str, value: u8) {
            self.revision += 1;
            let (key, value) = (key.as_bytes().to_vec(), vec![b'0' + value]);
            let kv = EtcdPair { key: key.clone(), mod_revision: self.revision, value, lease: 0 };
            self.keys.insert(key, kv.clone());
            self.history.push(WatchEvent { kind: 0, kv: Some(kv) });
        }

        fn delete(&mut self, key: &str) {
            if self.keys.remove(key.as_bytes()).is_some() {
                self.revision += 1;
                let kv = EtcdPair { key: key.into(), mod_revision: self.revision, ..EtcdPair::default() };
                self.history.push(WatchEvent { kind: 1, kv: Some(kv) });
            }
        }

        fn listed(&self) -> Vec<EtcdPair> {
            self.keys.values().cloned().collect()
        }
    }

    fn mirror() -> Mirror {
        Mirror::new("/s/".to_owned())
    }

    #[test]
    fn keys_of_no_host_are_none() {
        let mut store = Store::default();
        for key in ["/s/frontend/a", "/s/frontend/", "/s/other/a", "/s/backend/b/c", "/t/frontend/a", "/s/x"]
        {
            store.put(key, 1);
        }
        let mut mirror = mirror();
        mirror.list(&store.listed(), store.revision);
        let hosts: Vec<&HostKey> = mirror.hosts().map(|(key, _)| key).collect();
        assert_eq!(hosts, [&(Role::Frontend, "a".to_owned()), &(Role::Backend, "b/c".to_owned())]);
        assert_eq!(mirror.key_of(hosts[0]), "/s/frontend/a");
    }

    proptest! {
        /// `changes` are puts and deletes of four keys. The list is taken after so many of them,
        /// the watch begins up to some events too early, as one that is resumed, breaks off once,
        /// and then there is a list again, as after a compaction.
        #[test]
        fn a_list_and_the_events_after_it_are_the_list_that_comes_later(
            changes in prop::collection::vec((0u8..4, prop::option::of(0u8..9)), 0..40),
            listed_at in 0usize..40,
            early in 0usize..4,
            breaks_at in 0usize..40,
        ) {
            let (mut store, mut mirror) = (Store::default(), mirror());
            let mut listed = None;
            for (at, (key, value)) in changes.iter().enumerate() {
                if at == listed_at {
                    listed = Some((store.listed(), store.revision, store.history.len()));
                }
                let key = format!("/s/frontend/{key}");
                match value {
                    Some(value) => store.put(&key, *value),
                    None => store.delete(&key),
                }
            }
            let (keys, revision, seen) = listed.unwrap_or((store.listed(), store.revision, store.history.len()));
            mirror.list(&keys, revision);
            let events = &store.history[seen.saturating_sub(early)..];
            let (before, after) = events.split_at(breaks_at.min(events.len()));
            // As etcd does, several events in an answer.
            for events in before.chunks(3) {
                let answer = WatchResponse { events: events.to_vec(), ..WatchResponse::default() };
                prop_assert!(mirror.take(&answer).is_ok());
            }
            if after.len() > 5 {
                let compacted = WatchResponse { canceled: true, compact_revision: 1, ..WatchResponse::default() };
                prop_assert!(matches!(mirror.take(&compacted), Err(WatchEnd::Compacted)));
                mirror.list(&store.listed(), store.revision);
            }
            let answer = WatchResponse { events: after.to_vec(), ..WatchResponse::default() };
            prop_assert!(mirror.take(&answer).is_ok());
            let mut fresh = Mirror::new("/s/".to_owned());
            fresh.list(&store.listed(), store.revision);
            prop_assert_eq!(mirror.update(), fresh.update());
        }
    }
}
