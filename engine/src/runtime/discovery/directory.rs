//! Where to dial each peer: [`Directory`]. It has no socket, no thread and no clock: updates of a
//! source and what handshakes have found out go in, addresses come out.

use super::update::{DirectoryUpdate, HostKey, RegisteredHost};
use crate::config::Role;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The peer of a link that this host dials, or not.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryPeer {
    pub(crate) role: Role,
    /// The number among the hosts of its role.
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) dials: bool,
    /// The address of CONFIG, which holds where nothing else says where hosts are.
    pub(crate) address: Option<String>,
}

/// A link's peer, with what is known of its place.
struct PeerEntry {
    peer: DirectoryPeer,
    /// The host as it has registered.
    registered: Option<RegisteredHost>,
    /// The host has registered since it was dialled last.
    has_news: bool,
}

/// An address of some host of a role.
struct PoolEntry {
    role: Role,
    address: SocketAddr,
    /// The number of the host that was found there.
    is: Option<u32>,
    /// The link that dials it, or has its connection there.
    used_by: Option<usize>,
    /// The count of dials at which it was tried last.
    tried_at: u64,
}

/// Where to dial each peer. See the module's description.
pub(crate) struct Directory {
    /// The peers, by link.
    peers: Vec<PeerEntry>,
    is_fixed: bool,
    registered: BTreeMap<HostKey, RegisteredHost>,
    pool: Vec<PoolEntry>,
    dials: u64,
}

impl Directory {
    /// Makes the directory of these peers, by link. Where it `is_fixed`, their addresses in CONFIG
    /// hold.
    pub(crate) fn new(peers: impl Iterator<Item = DirectoryPeer>, is_fixed: bool) -> Directory {
        let entry = |peer| PeerEntry { peer, registered: None, has_news: false };
        let peers = peers.map(entry).collect();
        Directory { peers, is_fixed, registered: BTreeMap::new(), pool: Vec::new(), dials: 0 }
    }

    /// Returns true if who is at an address has to be found out by the handshake.
    pub(crate) fn is_discovered(&self) -> bool {
        !self.is_fixed
    }

    /// Returns the number of hosts, or of addresses, that are known.
    pub(crate) fn known(&self) -> usize {
        self.registered.len() + self.pool.len()
    }

    /// Takes what a source knows, and returns a sentence for each change.
    pub(crate) fn update(&mut self, update: DirectoryUpdate) -> Vec<String> {
        match update {
            DirectoryUpdate::Registered(hosts) => self.take_registered(hosts),
            DirectoryUpdate::Addresses(role, addresses) => self.take_addresses(role, &addresses),
        }
    }

    fn take_registered(&mut self, hosts: BTreeMap<HostKey, RegisteredHost>) -> Vec<String> {
        let before = std::mem::replace(&mut self.registered, hosts);
        let mut changes = Vec::new();
        for ((role, name), host) in &self.registered {
            let at = if host.address.is_empty() { String::new() } else { format!(" at {}", host.address) };
            match before.get(&(*role, name.clone())) {
                None => changes.push(format!("{} {name} has joined{at}", role.name())),
                Some(old) if old != host => {
                    changes.push(format!("{} {name} has registered again{at}", role.name()));
                }
                Some(_) => {}
            }
        }
        let gone = before.keys().filter(|key| !self.registered.contains_key(*key));
        changes.extend(gone.map(|(role, name)| format!("{} {name} has left", role.name())));
        for entry in &mut self.peers {
            let now = self.registered.get(&(entry.peer.role, entry.peer.name.clone()));
            if entry.registered.as_ref() != now {
                entry.has_news = now.is_some();
                entry.registered = now.cloned();
            }
        }
        changes
    }

    fn take_addresses(&mut self, role: Role, addresses: &[SocketAddr]) -> Vec<String> {
        let hosts = format!("{}s", role.name());
        let mut changes = Vec::new();
        self.pool.retain(|entry| {
            let stays = entry.role != role || addresses.contains(&entry.address);
            if !stays {
                changes.push(format!("{} is no address of {hosts} any more", entry.address));
            }
            stays
        });
        for &address in addresses {
            if !self.pool.iter().any(|entry| (entry.role, entry.address) == (role, address)) {
                changes.push(format!("{address} is an address of {hosts}"));
                self.pool.push(PoolEntry { role, address, is: None, used_by: None, tried_at: 0 });
            }
        }
        changes
    }

    /// Returns true if the peer of a link has registered since it was dialled last: it may have
    /// been started anew, or elsewhere.
    pub(crate) fn has_news(&self, link: usize) -> bool {
        self.peers[link].has_news
    }

    /// Returns true if there is an address at which to dial the peer of a link.
    pub(crate) fn has_address(&self, link: usize) -> bool {
        let PeerEntry { peer, registered, .. } = &self.peers[link];
        match (peer.dials, self.is_fixed) {
            (false, _) => false,
            (true, true) => peer.address.is_some(),
            (true, false) => {
                registered.as_ref().is_some_and(|host| !host.address.is_empty())
                    || self.candidate(link).is_some()
            }
        }
    }

    /// Returns where to dial the peer of a link now, if it is known. [`Directory::found`] or
    /// [`Directory::failed`] has to follow.
    pub(crate) fn dial(&mut self, link: usize) -> Option<String> {
        if !self.has_address(link) {
            return None;
        }
        let entry = &mut self.peers[link];
        entry.has_news = false;
        if self.is_fixed {
            return entry.peer.address.clone();
        }
        if let Some(host) = entry.registered.as_ref().filter(|host| !host.address.is_empty()) {
            return Some(host.address.clone());
        }
        self.dials += 1;
        let (dials, at) = (self.dials, self.candidate(link)?);
        let tried = &mut self.pool[at];
        (tried.used_by, tried.tried_at) = (Some(link), dials);
        Some(tried.address.to_string())
    }

    /// Returns the address at which the peer of a link may be: where it was found before, else the
    /// one that was not tried for the longest time, of those where nobody was found yet.
    fn candidate(&self, link: usize) -> Option<usize> {
        let DirectoryPeer { role, number, .. } = self.peers[link].peer;
        let mut of_role = (0..self.pool.len()).filter(|&at| self.pool[at].role == role);
        let own = of_role.clone().find(|&at| self.pool[at].is == Some(number));
        let is_open = |&at: &usize| {
            let PoolEntry { is, used_by, .. } = self.pool[at];
            is.is_none() && used_by.is_none_or(|other| other == link)
        };
        own.or_else(|| {
            let open = of_role.by_ref().filter(is_open);
            open.min_by_key(|&at| self.pool[at].tried_at)
        })
    }

    /// Notes which host was found where the peer of a link was dialled, and returns whether it is
    /// this peer. If it is, the link stays there until [`Directory::failed`].
    pub(crate) fn found(&mut self, link: usize, (role, number): (Role, u32)) -> bool {
        let DirectoryPeer { role: own_role, number: own_number, .. } = self.peers[link].peer;
        let is_meant = (own_role, own_number) == (role, number);
        let Some(at) = self.pool.iter().position(|entry| entry.used_by == Some(link)) else {
            return is_meant;
        };
        if !is_meant {
            self.pool[at].used_by = None;
            // It may have moved here from where it was found before.
            let moved = |entry: &&mut PoolEntry| {
                entry.role == role && entry.is == Some(number) && entry.used_by.is_none()
            };
            self.pool.iter_mut().filter(moved).for_each(|entry| entry.is = None);
        }
        self.pool[at].is = (own_role == role).then_some(number);
        is_meant
    }

    /// Notes that a link has no connection any more, or that nobody answered where its peer was
    /// dialled. One that was found there is looked for there first.
    pub(crate) fn failed(&mut self, link: usize, was_found: bool) {
        if let Some(used) = self.pool.iter_mut().find(|entry| entry.used_by == Some(link)) {
            used.used_by = None;
            used.is = used.is.filter(|_| was_found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOSTS: usize = 3;

    fn peer(number: usize) -> DirectoryPeer {
        let name = format!("front-{number}");
        DirectoryPeer { role: Role::Frontend, number: number as u32, name, dials: true, address: None }
    }

    fn directory() -> Directory {
        Directory::new((0..HOSTS).map(peer), false)
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 7_400))
    }

    fn registered(hosts: &[(usize, u8, i64)]) -> DirectoryUpdate {
        let host = |&(number, last, registration): &(usize, u8, i64)| {
            let host = RegisteredHost { address: address(last).to_string(), registration, lease: 0 };
            ((Role::Frontend, peer(number).name), host)
        };
        DirectoryUpdate::Registered(hosts.iter().map(host).collect())
    }

    #[test]
    fn a_fixed_directory_has_the_addresses_of_config_and_no_others() {
        let dialled = DirectoryPeer { address: Some("here:1".into()), ..peer(0) };
        let mut directory =
            Directory::new([dialled, DirectoryPeer { dials: false, ..peer(1) }].into_iter(), true);
        assert_eq!((directory.dial(0), directory.dial(1)), (Some("here:1".to_owned()), None));
        assert!(!directory.is_discovered());
    }

    #[test]
    fn a_host_is_dialled_where_it_has_registered_last_and_not_once_it_has_left() {
        let mut directory = directory();
        assert_eq!(directory.dial(1), None);
        let changes = directory.update(registered(&[(1, 7, 1)]));
        assert_eq!(changes, ["frontend front-1 has joined at 10.0.0.7:7400"]);
        assert!(directory.has_news(1) && !directory.has_news(0));
        assert_eq!(directory.dial(1), Some("10.0.0.7:7400".to_owned()));
        assert!(!directory.has_news(1));
        assert!(directory.update(registered(&[(1, 7, 1)])).is_empty(), "the same again is no change");
        let changes = directory.update(registered(&[(1, 8, 2)]));
        assert_eq!(changes, ["frontend front-1 has registered again at 10.0.0.8:7400"]);
        assert_eq!(directory.dial(1), Some("10.0.0.8:7400".to_owned()));
        assert_eq!(directory.update(registered(&[])), ["frontend front-1 has left"]);
        assert_eq!((directory.dial(1), directory.has_news(1), directory.known()), (None, false, 0));
    }

    #[test]
    fn who_is_at_an_address_is_found_out_once() {
        let mut directory = directory();
        directory.update(DirectoryUpdate::Addresses(Role::Frontend, vec![address(1), address(2)]));
        assert_eq!(directory.dial(0), Some(address(1).to_string()));
        assert_eq!(directory.dial(1), Some(address(2).to_string()), "two links do not try one address");
        assert_eq!(directory.dial(2), None);
        assert!(!directory.found(0, (Role::Frontend, 1)), "another one is there");
        directory.failed(1, false);
        assert_eq!(directory.dial(1), Some(address(1).to_string()), "where it was found");
        assert!(directory.found(1, (Role::Frontend, 1)));
        assert_eq!(directory.dial(0), Some(address(2).to_string()));
        assert!(directory.found(0, (Role::Frontend, 0)));
        assert_eq!(directory.dial(2), None, "both are others'");
    }

    /// What happens to a small engine, step by step.
    #[derive(Clone, Debug)]
    enum Step {
        /// A host starts, or is started elsewhere, at an address.
        Start(usize, u8),
        Kill(usize),
        /// The source is asked, or it is not there.
        Look(bool),
        /// A link is dialled.
        Dial(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..HOSTS, 1u8..6).prop_map(|(host, at)| Step::Start(host, at)),
            (0..HOSTS).prop_map(Step::Kill),
            any::<bool>().prop_map(Step::Look),
            (0..HOSTS).prop_map(Step::Dial),
        ];
        prop::collection::vec(step, 0..60)
    }

    /// An engine in steps: which host is where, and which link has found its peer.
    struct Model {
        directory: Directory,
        by_name: bool,
        places: [Option<u8>; HOSTS],
        linked: [bool; HOSTS],
        registrations: [i64; HOSTS],
        listed: Vec<u8>,
    }

    impl Model {
        fn cut(&mut self, link: usize) {
            if std::mem::take(&mut self.linked[link]) {
                self.directory.failed(link, true);
            }
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Start(host, at) => {
                    if !self.places.contains(&Some(at)) {
                        self.cut(host);
                        self.places[host] = Some(at);
                        self.registrations[host] += 1;
                    }
                }
                Step::Kill(host) => {
                    self.cut(host);
                    self.places[host] = None;
                }
                Step::Look(true) => self.look(),
                Step::Look(false) => {}
                Step::Dial(link) => self.dial(link),
            }
        }

        fn look(&mut self) {
            let there = self.places.iter().enumerate();
            let there: Vec<_> =
                there.filter_map(|(host, at)| at.map(|at| (host, at, self.registrations[host]))).collect();
            self.listed = there.iter().map(|(_, at, _)| *at).collect();
            let addresses = self.listed.iter().map(|at| address(*at)).collect();
            self.directory.update(match self.by_name {
                true => registered(&there),
                false => DirectoryUpdate::Addresses(Role::Frontend, addresses),
            });
        }

        fn dial(&mut self, link: usize) {
            if self.linked[link] {
                return;
            }
            let Some(at) = self.directory.dial(link) else { return };
            let listed = self.listed.iter().find(|last| address(**last).to_string() == at);
            let listed = *listed.expect("what the source does not list is not dialled");
            match self.places.iter().position(|place| *place == Some(listed)) {
                None => self.directory.failed(link, false),
                Some(there) => {
                    let is_meant = self.directory.found(link, (Role::Frontend, there as u32));
                    assert_eq!(is_meant, there == link);
                    self.linked[link] = is_meant;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn every_host_that_is_there_is_found_once_the_source_has_said_so(
            steps in steps(),
            by_name in any::<bool>(),
        ) {
            let mut model = Model {
                directory: directory(),
                by_name,
                places: [None; HOSTS],
                linked: [false; HOSTS],
                registrations: [0; HOSTS],
                listed: Vec::new(),
            };
            steps.into_iter().for_each(|step| model.step(step));
            model.look();
            // Each round finds out who is at one address more, at least.
            for _ in 0..2 * HOSTS {
                (0..HOSTS).for_each(|link| model.dial(link));
            }
            let there: Vec<bool> = model.places.iter().map(Option::is_some).collect();
            prop_assert_eq!(&model.linked[..], &there[..]);
        }
    }
}
