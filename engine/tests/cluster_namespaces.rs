//! An engine spread over hosts that are network namespaces, made by the test, on a bridge: their
//! links leave loopback, so they are mutual TLS. Links of the network are cut and mended under
//! load. Where the test is not root, or the system has no namespaces, it says so and passes.

mod harness;

use harness::certificates::LinkAuthority;
use harness::cluster::{Clients, Cluster, ClusterSetup, NAMES, ROLES, wait_until_good};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time for which a host's network is down: longer than two heartbeats.
const CUT: Duration = Duration::from_millis(1_000);

/// What names of namespaces and of network devices begin with: of this process, since others may
/// run the test too.
fn prefix() -> String {
    format!("sy{:x}", std::process::id() & 0xffff)
}

/// The third byte of the addresses: of this process.
fn subnet() -> u8 {
    (std::process::id() % 251) as u8
}

fn namespace(at: usize) -> String {
    format!("{}-{at}", prefix())
}

/// The address of a host; 254 is the test's.
fn address(last: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 211, subnet(), last as u8))
}

/// Runs `ip` with these words; the error is what it says.
fn ip(words: &str) -> Result<(), String> {
    let ran = Command::new("ip").args(words.split(' ')).output().map_err(|error| error.to_string())?;
    if ran.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&ran.stderr).into_owned()) }
}

/// The namespaces of all hosts, and the bridge between them; gone when it is dropped.
struct Namespaces;

impl Namespaces {
    fn new() -> Result<Namespaces, String> {
        let made = Namespaces;
        let bridge = prefix();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {}/24 dev {bridge}", address(254)))?;
        ip(&format!("link set {bridge} up"))?;
        for at in 0..NAMES.len() {
            let (name, outside) = (namespace(at), namespace(at));
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {outside} type veth peer name eth0 netns {name}"))?;
            ip(&format!("link set {outside} master {bridge} up"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", address(at + 1)))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(made)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        // What was not made is not there.
        for at in 0..NAMES.len() {
            let _ = ip(&format!("netns del {}", namespace(at)));
            let _ = ip(&format!("link del {}", namespace(at)));
        }
        let _ = ip(&format!("link del {}", prefix()));
    }
}

#[test]
fn a_cut_of_the_network_ends_no_request_twice_and_the_rate_is_good_again_when_it_is_mended() {
    let _namespaces = match Namespaces::new() {
        Ok(made) => made,
        Err(why) => return println!("no network namespaces can be made here: {why}"),
    };
    let authority = LinkAuthority::new();
    let cluster = Cluster::start(ClusterSetup {
        addresses: [1, 2, 3].map(address),
        before: Box::new(|at| ["ip", "netns", "exec", &namespace(at)].map(str::to_owned).into()),
        more: Box::new(move |folder: &Path, at| authority.write(folder, ROLES[at])),
        ..ClusterSetup::default()
    });
    let clients = cluster.http.map(Clients::start);
    wait_until_good(&cluster, &clients, "at the start");
    let mut slowest = Duration::ZERO;
    // All but one frontend: its clients' way to it is whole.
    for (at, name) in NAMES.iter().enumerate().skip(1) {
        let device = namespace(at);
        ip(&format!("link set {device} down")).unwrap();
        std::thread::sleep(CUT);
        ip(&format!("link set {device} up")).unwrap();
        let what = format!("the network of {name} was cut");
        slowest = slowest.max(wait_until_good(&cluster, &clients, &what));
    }
    println!("the good rate was back within {slowest:?} of the mending");
    for (at, answers) in clients.map(Clients::end).into_iter().enumerate() {
        let [good, bad, unanswered] = answers.counts();
        assert_eq!(*answers.wrong.lock().unwrap(), None);
        assert!(at > 0 || unanswered == 0, "{} lived, and its clients' way to it was whole", NAMES[at]);
        assert_eq!(good + bad + unanswered, answers.sent.load(Ordering::Relaxed), "each is answered, once");
        assert!(bad + unanswered < good, "{bad} of {} requests were bad", good + bad + unanswered);
    }
    let scheduler = cluster.log("scheduler");
    assert!(scheduler.contains("the link to frontend front-b is down: "), "{scheduler}");
    for name in NAMES.into_iter().take(2) {
        assert!(cluster.log(name).contains("is down: "), "{name} has felt no cut: {}", cluster.logs());
    }
}
