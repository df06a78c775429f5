//! An engine spread over processes whose links are mutual TLS: every role speaks it with every
//! other, and a host is no more than its certificate says; docs/security.md.

mod harness;

use harness::certificates::LinkAuthority;
use harness::cluster::{Cluster, ClusterSetup, ROLES, ask};
use harness::process::{request, wait_until};
use std::path::Path;

/// A cluster on loopback whose hosts have certificates of these roles.
fn with_certificates(roles: [&'static str; 5]) -> Cluster {
    let authority = LinkAuthority::new();
    let more = move |folder: &Path, at: usize| authority.write(folder, roles[at]);
    Cluster::start(ClusterSetup { more: Box::new(more), ..ClusterSetup::default() })
}

#[test]
fn requests_pass_links_of_all_roles_over_mutual_tls() {
    let mut cluster = with_certificates(ROLES);
    cluster.check_answers();
    // What the links have measured is allowed for, and shown.
    wait_until("the policy has measured delays", || {
        cluster.log("scheduler").contains("the policy allows for measured delays")
    });
    let (_, _, metrics) = request(cluster.http[0], ("GET", "/metrics"), "", "").unwrap();
    for (peer, role) in [("scheduler", "scheduler"), ("gpus", "backend"), ("cpu", "backend")] {
        let labels = format!("{{peer=\"{peer}\",role=\"{role}\"}}");
        assert!(metrics.contains(&format!("symphony_link_up{labels} 1\n")), "{metrics}");
        let delay = format!("symphony_link_delay_seconds{labels} ");
        let delay = metrics.lines().find_map(|line| line.strip_prefix(&delay)).unwrap();
        assert!(delay.parse::<f64>().unwrap() > 0.0, "{peer}: {delay}");
    }
    cluster.interrupt_all();
}

#[test]
fn a_host_whose_certificate_is_of_another_role_is_refused() {
    // The second backend has that of a frontend.
    let cluster = with_certificates(["frontend", "frontend", "scheduler", "backend", "frontend"]);
    let [address, _] = cluster.http;
    wait_until("the backend with the right one serves", || {
        ask(address, "emulated", 7).is_ok_and(|(status, _)| status == 200)
    });
    let sentence = "the peer's certificate is of another role than backend";
    wait_until("both sides say why", || {
        ["scheduler", "front-a", "cpu"].iter().all(|name| cluster.log(name).contains(sentence))
    });
    assert!(!cluster.log("scheduler").contains("the link to backend cpu is up"), "{}", cluster.logs());
    assert!(ask(address, "increment", 7).is_ok_and(|(status, _)| status != 200));
}
