//! An engine spread over processes whose tensors go by RDMA, over whatever device the host has:
//! `.ci/rdma` runs it over soft-RoCE in a virtual machine, whose processor may be an emulated one.
//! So all times are long ones.
#![cfg(feature = "rdma")]

mod harness;

use harness::cluster::{Cluster, ClusterSetup};
use harness::process::wait_until;
use std::time::Duration;

/// The sections of a CONFIG for hosts whose tensors go by `tensors`, and whose slots may be locked.
fn links(tensors: &str) -> String {
    format!("[memory]\nslab_mb = 64\n[links]\nheartbeat_ms = 5000\ntensors = \"{tensors}\"\n")
}

/// A cluster of which each host, by its place, moves tensors by what this returns.
fn start(tensors: fn(usize) -> &'static str) -> Cluster {
    let more = Box::new(move |_: &_, at| links(tensors(at)));
    Cluster::start(ClusterSetup { slo: Duration::from_secs(20), more, ..ClusterSetup::default() })
}

/// Returns the sum of the numbers before `what` in a log.
fn counted(log: &str, what: &str) -> u64 {
    let before = log.match_indices(what).map(|(at, _)| log[..at].trim_end());
    before.filter_map(|text| text.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[test]
#[ignore = "needs an RDMA device: .ci/rdma"]
fn inputs_are_read_and_outputs_written_past_the_links() {
    let mut cluster = start(|_| "rdma");
    cluster.check_answers();
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
        log.contains("do not fit") && log.contains("one of the two hosts moves tensors by RDMA")
    };
    wait_until("both say why", || says("front-a") && says("gpus"));
}
