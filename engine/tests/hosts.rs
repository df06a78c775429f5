//! An engine across hosts in virtual time, with faults: docs/design/hosts.md.

use symphony::runtime::simulation::{HostsReport, run_hosts_episode};

#[test]
fn a_million_rows_end_once_each_whatever_happens_to_backends_and_their_links() {
    let (mut rows, mut again, mut dropped) = (0, 0, 0);
    let mut faults = [0; 3];
    let mut found = Vec::new();
    for seed in 0.. {
        match run_hosts_episode(seed) {
            Ok(HostsReport { rows: counts, killed, paused, cut, .. }) => {
                rows += counts.sent;
                again += counts.again;
                dropped += counts.dropped;
                faults = [faults[0] + killed, faults[1] + paused, faults[2] + cut];
            }
            Err(what) => found.push(what),
        }
        if rows >= 1_000_000 || found.len() >= 10 {
            break;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(again > 0 && dropped > 0, "no loss was felt: {again} rows were queued again, {dropped} dropped");
    assert!(faults.iter().all(|&count| count > 0), "not every fault: {faults:?}");
}

#[test]
fn a_seed_of_hosts_repeats_exactly() {
    assert_eq!(run_hosts_episode(3).unwrap(), run_hosts_episode(3).unwrap());
}
