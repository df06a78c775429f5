//! An engine spread over processes on loopback: two frontends, a scheduler, a backend with emulated
//! GPUs and one that computes an ONNX model. Under load, each is killed and stopped, alone and in
//! every order of two; docs/design/hosts.md.

mod harness;

use harness::cluster::{
    Clients, Cluster, ClusterSetup, NAMES, ask, free_ports, wait_until_good, write_config,
};
use harness::process::{ServerProcess, request, wait_until};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time for which a process is away.
const AWAY: Duration = Duration::from_millis(1_000);

/// The processes that are killed and stopped: all but one frontend.
const KILLED: [usize; 4] = [1, 2, 3, 4];

#[test]
fn a_request_passes_all_hosts_and_its_tensors_are_right() {
    let mut cluster = Cluster::start(ClusterSetup::default());
    cluster.check_answers();
    check_fetches(&mut cluster);
    check_operators_calls(&mut cluster);
    cluster.interrupt_all();
}

#[cfg(not(feature = "rdma"))]
#[test]
fn a_program_that_was_built_without_rdma_refuses_to_run_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let addresses = [7401, 7402, 7403].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    write_config(folder.path(), addresses, &ClusterSetup::default(), "[links]\ntensors = \"rdma\"\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
    let output = command.arg("backend").arg(folder.path()).args(["--name", "gpus"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("build it with `--features rdma`"), "{said}");
}

/// Checks that the scheduler shows what the backend that has run batches takes to fetch their
/// inputs.
fn check_fetches(cluster: &mut Cluster) {
    let scheduler = cluster.process(2).admin_address().unwrap();
    let shown = "symphony_link_fetch_seconds{peer=\"cpu\",role=\"backend\"} ";
    wait_until("the scheduler was told of fetches", || {
        let metrics = request(scheduler, ("GET", "/metrics"), "", "").unwrap().2;
        metrics.lines().any(|line| {
            let seconds = line.strip_prefix(shown).and_then(|value| value.parse::<f64>().ok());
            seconds.is_some_and(|seconds| seconds > 0.0)
        })
    });
}

/// Checks that the scheduler and the backends answer operators, and no request for a model.
fn check_operators_calls(cluster: &mut Cluster) {
    for (at, name) in NAMES.into_iter().enumerate().skip(2) {
        let address = cluster.process(at).admin_address().unwrap();
        let get = |path: &str| request(address, ("GET", path), "", "").unwrap();
        for path in ["/v2/health/live", "/v2/health/ready", "/dashboard", "/dashboard/data"] {
            let (status, _, body) = get(path);
            assert_eq!(status, 200, "{} {path}: {body}", name);
        }
        let (status, body) = ask(address, "increment", 1).unwrap();
        assert_eq!(status, 404, "{}: {body}", name);
        let metrics = get("/metrics").2;
        let families: &[&str] = match name {
            "scheduler" => &[
                "symphony_link_up{peer=\"front-b\",role=\"frontend\"} 1",
                "symphony_link_up{peer=\"gpus\",role=\"backend\"} 1",
                "symphony_rank_thread_completions_total{thread=\"rank\"} ",
                "symphony_allowed_delay_seconds{model=\"increment\",version=\"1\",way=\"control\"} ",
                "symphony_model_batches_total{model=\"increment\",version=\"1\"} ",
            ],
            "cpu" => &[
                "symphony_link_up{peer=\"scheduler\",role=\"scheduler\"} 1",
                "symphony_backend_batches_total{thread=\"cpu-0\"} ",
                "symphony_model_batches_total{model=\"increment\",version=\"1\"} ",
                "symphony_gpus 1",
            ],
            _ => &["symphony_link_up{peer=\"front-a\",role=\"frontend\"} 1", "symphony_gpus 2"],
        };
        for family in families {
            assert!(metrics.contains(family), "{}: no {family} in\n{metrics}", name);
        }
    }
}

#[test]
fn every_request_of_a_frontend_that_lives_is_answered_whichever_host_dies_or_stops() {
    let mut cluster = Cluster::start(ClusterSetup::default());
    let clients = cluster.http.map(Clients::start);
    wait_until_good(&cluster, &clients, "at the start");
    let mut slowest = Duration::ZERO;
    for at in KILLED {
        cluster.process(at).signal("-KILL");
        std::thread::sleep(AWAY);
        cluster.process(at).kill();
        cluster.start_one(at);
        slowest = slowest.max(wait_until_good(&cluster, &clients, &format!("{} was killed", NAMES[at])));
        cluster.process(at).signal("-STOP");
        std::thread::sleep(AWAY);
        cluster.process(at).signal("-CONT");
        slowest = slowest.max(wait_until_good(&cluster, &clients, &format!("{} was stopped", NAMES[at])));
    }
    for first in KILLED {
        for second in KILLED.into_iter().filter(|second| *second != first) {
            let what = format!("{} was killed, and {} stopped", NAMES[first], NAMES[second]);
            cluster.process(first).signal("-KILL");
            cluster.process(second).signal("-STOP");
            std::thread::sleep(AWAY);
            cluster.process(first).kill();
            // One that stands still does not keep another from starting.
            cluster.start_one(first);
            cluster.process(second).signal("-CONT");
            slowest = slowest.max(wait_until_good(&cluster, &clients, &what));
        }
    }
    let [living, other] = clients.map(Clients::end);
    println!("the good rate was back within {slowest:?}; answers {:?} {:?}", living.counts(), other.counts());
    for answers in [&living, &other] {
        assert_eq!(*answers.wrong.lock().unwrap(), None);
    }
    let [good, bad, unanswered] = living.counts();
    assert_eq!(unanswered, 0, "of the frontend that lived");
    assert_eq!(good + bad, living.sent.load(Ordering::Relaxed));
    assert!(bad < good, "{bad} of {} requests were bad", good + bad);
}

#[test]
fn hosts_that_do_not_fit_say_so_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let ports: [u16; 3] = free_ports();
    let addresses = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let start = |role: &str, name: &str, gpus| {
        write_config(folder.path(), addresses, &ClusterSetup { gpus, ..ClusterSetup::default() }, "");
        let log = File::create(folder.path().join(format!("{role}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_symphony"));
        command.arg(role).arg(folder.path()).args(["--name", name]);
        ServerProcess::start(&mut command, Stdio::from(log))
    };
    let _scheduler = start("scheduler", "scheduler", 2);
    let backend = start("backend", "gpus", 3);
    let says = |role: &str| {
        let log = std::fs::read_to_string(folder.path().join(format!("{role}.log"))).unwrap();
        log.contains("do not fit") && log.contains("have different configurations")
    };
    wait_until("both say why", || says("scheduler") && says("backend"));
    // One that was started anew with the same configuration is accepted.
    drop(backend);
    let _backend = start("backend", "gpus", 2);
    let log = || std::fs::read_to_string(folder.path().join("scheduler.log")).unwrap();
    wait_until("the link is up", || log().contains("the link to backend gpus is up"));
    let driven = |by: &str| log().contains(&format!("the links' sockets are driven by {by}"));
    assert!(driven("io_uring") || driven("epoll: "), "{}", log());
}

#[test]
fn the_example_serves_by_one_command_and_ends_at_ctrl_c() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let folder = tempfile::tempdir().unwrap();
    let [scheduler, a, b] = free_ports::<3>();
    let shapes = examples.join("quickstart/shapes.onnx");
    let text = std::fs::read_to_string(examples.join("cluster/symphony.toml")).unwrap();
    let text = text.replace("../quickstart/shapes.onnx", shapes.to_str().unwrap());
    let text = text.replace(":7400", &format!(":{scheduler}")).replace(":7401", &format!(":{a}"));
    std::fs::write(folder.path().join("symphony.toml"), text.replace(":7402", &format!(":{b}"))).unwrap();
    // It takes the next port as well, and two that are ten further.
    let http = free_ports::<12>()[0];
    let log = File::create(folder.path().join("log")).unwrap();
    // Where tests run behind a script, Ctrl-C is ignored, and a shell can't undo that.
    let mut example = Command::new("env");
    example
        .args(["--default-signal=INT", "sh"])
        .arg(examples.join("cluster/run"))
        .arg(env!("CARGO_BIN_EXE_symphony"))
        .arg(folder.path());
    let mut example = example.arg(http.to_string()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let sample = std::fs::read_to_string(examples.join("quickstart/samples/shapes.json")).unwrap();
    let ask = |port: u16| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        request(address, ("POST", "/v2/models/shapes/infer"), "", &sample)
            .is_ok_and(|(status, ..)| status == 200)
    };
    wait_until("both frontends answer", || ask(http) && ask(http + 10));
    let interrupted = Command::new("kill").args(["-INT", &example.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    wait_until("the example has ended", || example.try_wait().unwrap().is_some());
    wait_until("its frontends have ended", || !ask(http) && !ask(http + 10));
}
