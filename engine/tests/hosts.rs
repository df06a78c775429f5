//! An engine across hosts in virtual time, with faults: docs/design/hosts.md.

use symphony::runtime::simulation::{HostsReport, run_hosts_episode};

#[test]
fn a_million_rows_end_once_each_whatever_happens_to_hosts_and_their_links() {
    let mut all = HostsReport::default();
    let (mut rows, mut again, mut dropped) = (0, 0, 0);
    let mut found = Vec::new();
    for seed in 0.. {
        match run_hosts_episode(seed) {
            Ok(HostsReport { requests, repeated, killed, paused, cut, hung, .. }) => {
                rows += requests.rows;
                again += repeated;
                dropped += requests.dropped;
                for role in 0..3 {
                    all.killed[role] += killed[role];
                    all.paused[role] += paused[role];
                }
                all.cut += cut;
                all.hung += hung;
            }
            Err(what) => found.push(what),
        }
        if rows >= 1_000_000 || found.len() >= 10 {
            break;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(again > 0 && dropped > 0, "no loss was felt: {again} were sent again, {dropped} dropped");
    let faults = all.killed.into_iter().chain(all.paused).chain([all.cut, all.hung]);
    assert!(faults.into_iter().all(|count| count > 0), "not every fault: {all:?}");
}

#[test]
fn a_seed_of_hosts_repeats_exactly() {
    assert_eq!(run_hosts_episode(3).unwrap(), run_hosts_episode(3).unwrap());
}
