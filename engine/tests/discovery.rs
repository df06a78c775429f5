//! Hosts that find each other by an etcd or by DNS, and not by addresses in CONFIG: they join late,
//! leave, come back elsewhere, and lose what they find each other by. Where the machine has no
//! etcd, or the test can't have a name server, it says so and passes.

mod harness;

use harness::certificates::LinkAuthority;
use harness::cluster::{Clients, Cluster, ClusterSetup, ask, free_ports, wait_until_good};
use harness::etcd::Etcd;
use harness::name_server::NameServer;
use harness::process::{request, wait_until};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The keys of all hosts.
const KEYS: [&str; 5] = [
    "/symphony/backend/cpu",
    "/symphony/backend/gpus",
    "/symphony/frontend/front-a",
    "/symphony/frontend/front-b",
    "/symphony/scheduler/scheduler",
];

/// A cluster of which nothing runs yet, whose hosts find each other as `discovery` says.
fn prepare(discovery: String) -> Cluster {
    let more = Box::new(move |_: &std::path::Path, _| discovery.clone());
    Cluster::prepare(ClusterSetup { in_config: false, more, ..ClusterSetup::default() })
}

fn is_answered(cluster: &Cluster, frontend: usize, model: &str) -> bool {
    ask(cluster.http[frontend], model, 7).is_ok_and(|(status, _)| status == 200)
}

fn metric(address: SocketAddr, name: &str) -> f64 {
    let (_, _, text) = request(address, ("GET", "/metrics"), "", "").unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
    value.trim().parse().unwrap()
}

#[test]
fn hosts_of_an_etcd_join_late_leave_and_come_back_elsewhere() {
    let Some(etcd) = Etcd::start("http", &[]) else { return };
    let mut cluster = prepare(etcd.config(""));
    // Backends before those that they connect to.
    [4, 3, 0, 2].into_iter().for_each(|at| cluster.start_one(at));
    wait_until("the first frontend serves", || is_answered(&cluster, 0, "emulated"));
    cluster.start_one(1);
    wait_until("one that joined late serves both models", || {
        is_answered(&cluster, 1, "emulated") && is_answered(&cluster, 1, "increment")
    });
    wait_until("all have registered", || etcd.keys() == KEYS);
    // One that ends takes its key back at once, not when its lease is over.
    assert_eq!(cluster.process(1).interrupt(), Some(0), "{}", cluster.logs());
    assert_eq!(etcd.keys().len(), KEYS.len() - 1);
    wait_until("others log it", || cluster.log("gpus").contains("discovery: frontend front-b has left"));
    // Those that die come back elsewhere.
    for at in [0, 2] {
        cluster.process(at).kill();
        cluster.addresses[at].set_port(free_ports::<1>()[0]);
        cluster.start_one(at);
        wait_until("it serves from its new place", || is_answered(&cluster, 0, "increment"));
    }
    cluster.start_one(1);
    wait_until("one that had left serves again", || is_answered(&cluster, 1, "emulated"));
    assert_eq!(metric(cluster.http[0], "symphony_discovery_up{source=\"etcd\"} "), 1.0);
    wait_until("all are known", || {
        metric(cluster.http[0], "symphony_discovery_known{source=\"etcd\"} ") == KEYS.len() as f64
    });
    let doctor = Command::new(env!("CARGO_BIN_EXE_symphony")).arg("doctor").arg(cluster.config(0)).output();
    let said = String::from_utf8(doctor.unwrap().stdout).unwrap();
    let expected =
        format!("ok    etcd: {} answers, with frontend front-a at {}", etcd.url(), cluster.addresses[0]);
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn an_etcd_that_is_lost_stops_changes_and_nothing_else() {
    let Some(mut etcd) = Etcd::start("http", &[]) else { return };
    let mut cluster = prepare(etcd.config(""));
    (0..5).for_each(|at| cluster.start_one(at));
    let clients = cluster.http.map(Clients::start);
    wait_until_good(&cluster, &clients, "at the start");
    etcd.kill();
    // All leases would be over.
    std::thread::sleep(Duration::from_secs(3));
    wait_until_good(&cluster, &clients, "without etcd");
    let before = clients.iter().map(Clients::counts).collect::<Vec<_>>();
    wait_until("it is logged", || cluster.log("front-a").contains("hosts that are known stay in use"));
    // Links that break come back: where their peers are is known.
    cluster.process(2).signal("-STOP");
    std::thread::sleep(Duration::from_secs(1));
    cluster.process(2).signal("-CONT");
    wait_until_good(&cluster, &clients, "the scheduler stood still without etcd");
    // One that starts now knows nobody, until etcd is back, which has even lost all keys.
    cluster.process(3).kill();
    cluster.start_one(3);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!cluster.log("gpus").lines().last().unwrap().contains("is up"), "{}", cluster.logs());
    etcd.forget();
    etcd.start_again();
    wait_until_good(&cluster, &clients, "with etcd again");
    wait_until("all have registered again", || etcd.keys() == KEYS);
    assert_eq!(metric(cluster.http[0], "symphony_discovery_losses_total{source=\"etcd\"} "), 1.0);
    for (answers, [good, ..]) in clients.map(Clients::end).iter().zip(before) {
        assert!(good > 0, "there was traffic without etcd");
        assert_eq!(*answers.wrong.lock().unwrap(), None);
        assert_eq!(answers.counts()[2], 0, "frontends lived: {:?}", answers.counts());
    }
}

#[test]
fn an_etcd_with_tls_and_users_lets_those_in_who_have_both() {
    let files = tempfile::tempdir().unwrap();
    LinkAuthority::new().issue(files.path(), vec!["127.0.0.1".to_owned()]);
    let path = |name: &str| files.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("password"), "sesame\n").unwrap();
    let [ca, cert, key] = ["cluster.pem", "host.pem", "host.key"].map(path);
    let flags = ["--cert-file", &cert, "--key-file", &key, "--trusted-ca-file", &ca, "--client-cert-auth"];
    let Some(etcd) = Etcd::start("https", &flags) else { return };
    let tls = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    let ctl = |words: &[&str]| etcd.ctl(&[&tls[..], words].concat());
    wait_until("etcd answers", || ctl(&["endpoint", "health"]).is_ok());
    for words in ["user add root:root", "user grant-role root root", "user add symphony:sesame", "role add r"]
    {
        ctl(&words.split(' ').collect::<Vec<_>>()).unwrap();
    }
    ctl(&["role", "grant-permission", "r", "--prefix=true", "readwrite", "/symphony/"]).unwrap();
    ctl(&["user", "grant-role", "symphony", "r"]).unwrap();
    ctl(&["auth", "enable"]).unwrap();
    let secrets = |password: &str| {
        let password = path(password);
        format!(
            "tls_ca = {ca:?}\ntls_cert = {cert:?}\ntls_key = {key:?}\nuser = \"symphony\"\npassword_file = {password:?}\n"
        )
    };
    let mut cluster = prepare(etcd.config(&secrets("password")));
    (0..5).for_each(|at| cluster.start_one(at));
    wait_until("it serves", || is_answered(&cluster, 0, "increment"));
    drop(cluster);
    std::fs::write(path("wrong"), "mellon").unwrap();
    let mut cluster = prepare(etcd.config(&secrets("wrong")));
    cluster.start_one(2);
    wait_until("a wrong password is logged", || cluster.log("scheduler").contains("authentication failed"));
}

#[test]
fn hosts_of_a_headless_service_are_told_apart_by_their_handshake() {
    let server = match NameServer::start() {
        Ok(server) => server,
        Err(why) => return println!("there can be no name server here: {why}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let before = server.before(folder.path());
    let tried = Command::new(&before[0]).args(&before[1..]).arg("true").output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        return println!("there are no mount namespaces here");
    }
    let place = |last: u8| Ipv4Addr::new(127, 0, 7, last);
    let [frontends, scheduler] = free_ports();
    let discovery = format!(
        "[discovery]\nsource = \"dns\"\nfrontends = \"front.test:{frontends}\"\n\
         scheduler = \"scheduler.test:{scheduler}\"\nevery_s = 0.2\n"
    );
    let mut cluster = Cluster::prepare(ClusterSetup {
        addresses: [1, 2, 3].map(|last| IpAddr::V4(place(last))),
        ports: Some([frontends, frontends, scheduler]),
        in_config: false,
        before: Box::new(move |_| before.clone()),
        more: Box::new(move |_, _| discovery.clone()),
        ..ClusterSetup::default()
    });
    [4, 3, 0, 2].into_iter().for_each(|at| cluster.start_one(at));
    // A name without an address is like one that can't be resolved: something known is better.
    server.set("scheduler.test", &[place(3)]);
    server.set("front.test", &[place(1)]);
    wait_until("the first frontend serves", || is_answered(&cluster, 0, "emulated"));
    cluster.start_one(1);
    server.set("front.test", &[place(1), place(2)]);
    wait_until("one that joined late serves", || is_answered(&cluster, 1, "increment"));
    // It comes back elsewhere, where the other one was, which comes back elsewhere too.
    cluster.process(0).kill();
    cluster.process(1).kill();
    cluster.addresses[1].set_ip(IpAddr::V4(place(1)));
    cluster.addresses[0].set_ip(IpAddr::V4(place(4)));
    cluster.start_one(1);
    cluster.start_one(0);
    server.set("front.test", &[place(4), place(1)]);
    let clients = cluster.http.map(Clients::start);
    wait_until_good(&cluster, &clients, "both have moved");
    server.answers.store(false, Ordering::Relaxed);
    wait_until("it is logged", || cluster.log("cpu").contains("hosts that are known stay in use"));
    wait_until_good(&cluster, &clients, "without a name server");
    let doctor = Command::new(env!("CARGO_BIN_EXE_symphony")).arg("doctor").arg(cluster.config(0)).output();
    let said = String::from_utf8(doctor.unwrap().stdout).unwrap();
    assert!(said.contains("FAIL  dns: scheduler.test does not answer"), "{said}");
    for answers in clients.map(Clients::end) {
        assert_eq!(*answers.wrong.lock().unwrap(), None);
    }
}
