//! The state machine of mutual TLS, without a socket: however its bytes are cut, what is sent comes
//! whole; what was changed on the way does not come at all.

use cluster::Cluster;
use proptest::prelude::*;
use std::sync::LazyLock;
use symphony_transport::tcp::{LinkTls, TlsChannel};
use symphony_transport::wire::HostRole;

mod cluster;

static HOSTS: LazyLock<[LinkTls; 2]> = LazyLock::new(|| {
    let cluster = Cluster::new();
    [cluster.host(), cluster.host()]
});

/// Where one direction is within its records (RFC 8446, sections 5.1, 5.2 and D.4): a type and two
/// bytes of a version, which of an encrypted record say nothing (the authenticated ones are
/// inside), two of the length, then as many bytes. Records of the type `change_cipher_spec` are for
/// boxes on the way: no host protects them or acts on them.
#[derive(Default)]
struct Records {
    header: Vec<u8>,
    left: usize,
}

impl Records {
    const CHANGE_CIPHER_SPEC: u8 = 20;

    /// Takes the next byte as it was sent; says whether it may come changed and do no harm.
    fn is_unprotected(&mut self, byte: u8) -> bool {
        if self.left == 0 && self.header.len() == 5 {
            self.header.clear();
        }
        if self.header.len() < 5 {
            self.header.push(byte);
            if let [_, _, _, high, low] = self.header[..] {
                self.left = usize::from(high) << 8 | usize::from(low);
            }
            self.header.len() <= 3 || self.header[0] == Self::CHANGE_CIPHER_SPEC
        } else {
            self.left -= 1;
            self.header[0] == Self::CHANGE_CIPHER_SPEC
        }
    }
}

/// Passes all that is under way, in pieces of these sizes, each byte changed by `change`, which
/// is told the byte's sender. Returns what came at each side.
fn pass(
    sides: &mut [TlsChannel; 2],
    pieces: &[usize],
    mut change: impl FnMut(usize, u8) -> u8,
) -> Result<[Vec<u8>; 2], String> {
    let mut came = [Vec::new(), Vec::new()];
    let mut sizes = pieces.iter().cycle();
    while sides.iter().any(TlsChannel::wants_write) {
        for from in 0..2 {
            let mut piece = vec![0; *sizes.next().unwrap()];
            let length = sides[from].write(&mut piece);
            piece[..length].iter_mut().for_each(|byte| *byte = change(from, *byte));
            came[1 - from].extend_from_slice(sides[1 - from].read(&piece[..length])?);
        }
    }
    Ok(came)
}

fn sides() -> [TlsChannel; 2] {
    [TlsChannel::new(&HOSTS[0], true).unwrap(), TlsChannel::new(&HOSTS[1], false).unwrap()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn however_bytes_are_cut_what_is_sent_comes_whole(
        pieces in proptest::collection::vec(1usize..5_000, 1..9),
        messages in proptest::collection::vec((0usize..2, 1usize..40_000), 0..9),
    ) {
        let mut sides = sides();
        pass(&mut sides, &pieces, |_, byte| byte).unwrap();
        prop_assert!(sides.iter().all(|side| !side.is_handshaking()));
        let mut sent = [Vec::new(), Vec::new()];
        for (from, bytes) in messages {
            let message: Vec<_> = (0..bytes).map(|at| (at * 7 + from) as u8).collect();
            sides[from].queue(&message);
            sent[1 - from].extend_from_slice(&message);
        }
        let came = pass(&mut sides, &pieces, |_, byte| byte).unwrap();
        prop_assert!(came == sent);
    }

    #[test]
    fn a_byte_that_was_changed_on_the_way_ends_the_connection(
        pieces in proptest::collection::vec(1usize..2_000, 1..9),
        at in 0usize..12_000,
        bit in 0u32..8,
    ) {
        let mut sides = sides();
        let message = [5; 9_000];
        let mut records = [Records::default(), Records::default()];
        let (mut passed, mut harmless) = (0, true);
        let mut change = |from: usize, byte: u8| {
            let unprotected = records[from].is_unprotected(byte);
            passed += 1;
            if passed != at + 1 {
                return byte;
            }
            harmless = unprotected || from == 1;
            byte ^ 1 << bit
        };
        let result = pass(&mut sides, &pieces, &mut change).and_then(|_| {
            sides[0].queue(&message);
            pass(&mut sides, &pieces, &mut change)
        });
        match result {
            Err(sentence) => prop_assert!(!sentence.is_empty()),
            // The change was in a length, and the rest of a record never comes, which delays
            // nothing that the other direction carries; or in what nothing protects; or behind the
            // end.
            Ok([_, came]) => prop_assert!(came.is_empty() || (came == message && harmless)),
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_pass_as_a_host(bytes in proptest::collection::vec(any::<u8>(), 0..400), first: bool) {
        for mut side in sides() {
            let mut bytes = bytes.clone();
            if let (true, Some(byte)) = (first, bytes.first_mut()) {
                *byte = 22;
            }
            if let Ok(came) = side.read(&bytes) {
                prop_assert!(came.is_empty());
            }
            prop_assert!(side.is_handshaking());
        }
    }
}

#[test]
fn a_certificate_that_names_roles_is_of_hosts_of_these_only() {
    let cluster = Cluster::new();
    for (named, may) in [
        (&[][..], [true, true, true]),
        (&["backend"], [false, false, true]),
        (&["frontend", "scheduler"], [true, true, false]),
        (&["*"], [true, true, true]),
    ] {
        let hosts = [cluster.host(), cluster.host_of(named)];
        for dials in [true, false] {
            let mut sides =
                [TlsChannel::new(&hosts[0], dials).unwrap(), TlsChannel::new(&hosts[1], !dials).unwrap()];
            assert!(!sides[0].peer_may_be(&hosts[0], HostRole::Backend), "nobody is there yet");
            pass(&mut sides, &[1_000], |_, byte| byte).unwrap();
            let is_allowed = HostRole::ALL.map(|role| sides[0].peer_may_be(&hosts[0], role));
            assert_eq!(is_allowed, may, "{named:?}");
        }
    }
}
