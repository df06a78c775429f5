//! An engine spread over processes whose tensors go by RDMA, over whatever device the host has:
//! `.ci/rdma` runs it over soft-RoCE in a virtual machine, whose processor may be an emulated one.
//! So all times are long ones.
#![cfg(feature = "rdma")]

mod harness;

use harness::cluster::{Clients, Cluster, ClusterSetup, NAMES, wait_until_good};
use harness::process::{PATIENCE, request, wait_until};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time that requests have.
const SLO: Duration = Duration::from_secs(5);

/// The time between two heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(6);

/// The time for which a process stands still that its peers take for dead.
const AWAY: Duration = Duration::from_secs(14);

/// The time for which a process stands still that its peers do not miss: its requests have ended
/// meanwhile, with the time after which their slots are others'.
const STILL: Duration = Duration::from_secs(10);

/// The places of the frontend and the backend that die and stand still.
const FRONTEND: usize = 1;
const BACKEND: usize = 4;

/// The sections of a CONFIG for hosts whose tensors go by `tensors`, and whose slots may be locked.
fn links(tensors: &str) -> String {
    let heartbeat = HEARTBEAT.as_millis();
    format!("[memory]\nslab_mb = 64\n[links]\nheartbeat_ms = {heartbeat}\ntensors = \"{tensors}\"\n")
}

/// A cluster of which each host, by its place, moves tensors by what this returns.
fn start(tensors: fn(usize) -> &'static str) -> Cluster {
    let more = Box::new(move |_: &_, at| links(tensors(at)));
    Cluster::start(ClusterSetup { slo: SLO, back_within: PATIENCE, more, ..ClusterSetup::default() })
}

/// Returns the sum of the numbers before `what` in a log.
fn counted(log: &str, what: &str) -> u64 {
    let before = log.match_indices(what).map(|(at, _)| log[..at].trim_end());
    before.filter_map(|text| text.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Has a process of the cluster stand still.
fn stop(cluster: &mut Cluster, at: usize, pause: Duration) {
    cluster.process(at).signal("-STOP");
    std::thread::sleep(pause);
    cluster.process(at).signal("-CONT");
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn inputs_are_read_and_outputs_written_past_the_links_whichever_host_dies_or_stops() {
    let mut cluster = start(|_| "rdma");
    cluster.check_answers();
    let clients = cluster.http.map(Clients::start);
    wait_until_good(&cluster, &clients, "at the start");
    for at in [BACKEND, FRONTEND] {
        let name = NAMES[at];
        cluster.process(at).signal("-KILL");
        cluster.process(at).kill();
        cluster.start_one(at);
        wait_until_good(&cluster, &clients, &format!("{name} was killed"));
        stop(&mut cluster, at, AWAY);
        wait_until_good(&cluster, &clients, &format!("{name} was stopped"));
    }
    // What the backend reads then may be another request's. Whether a read comes that late is a
    // matter of time, so not of this test: of the simulation of hosts, and of transport's.
    stop(&mut cluster, BACKEND, STILL);
    wait_until_good(&cluster, &clients, "the backend stood still");
    let [living, other] = clients.map(Clients::end);
    println!("answers {:?} {:?}", living.counts(), other.counts());
    for answers in [&living, &other] {
        assert_eq!(*answers.wrong.lock().unwrap(), None);
    }
    let [good, bad, unanswered] = living.counts();
    assert_eq!((unanswered, good + bad), (0, living.sent.load(Ordering::Relaxed)), "{}", cluster.logs());
    // No slot is lost: a frontend has them all back, and a backend ends well only then.
    wait_until("the frontends have all slots back", || {
        cluster.http.iter().all(|address| {
            let metrics = request(*address, ("GET", "/metrics"), "", "").unwrap().2;
            ["symphony_slots_held 0\n", "symphony_slots_lost_total 0\n"].iter().all(|of| metrics.contains(of))
        })
    });
    cluster.interrupt_all();
    for (backend, at_least) in [("gpus", 2), ("cpu", 42)] {
        let log = cluster.log(backend);
        let [reads, writes] = ["one-sided reads", "writes of outputs"].map(|what| counted(&log, what));
        assert!(reads >= at_least && writes >= at_least, "{backend}: {reads} reads, {writes} writes\n{log}");
    }
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn hosts_of_which_one_moves_tensors_otherwise_say_so_on_both_sides() {
    let cluster = start(|at| if at == 3 { "rdma" } else { "tcp" });
    let says = |name: &str| {
        let log = cluster.log(name);
        log.contains("do not fit") && log.contains("give `tensors` of [links] the same value on both")
    };
    wait_until("both say why", || says("front-a") && says("gpus"));
}
