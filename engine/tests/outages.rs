//! Outages of an engine spread over processes that find each other by etcd: a backend, a frontend,
//! the scheduler and etcd are killed (SIGKILL) or stopped (SIGSTOP, then SIGCONT) under load, in
//! every order. Each request is answered at most once and, where its frontend lives, exactly once.
//! `cargo test` runs a few orders; `perf/outages` all of them, and notes how long the good rate
//! took to be back. Where the machine has no etcd, the test says so and passes.

mod harness;

use harness::cluster::{Clients, Cluster, ClusterSetup, wait_until_good};
use harness::etcd::Etcd;
use harness::process::request;
use std::time::{Duration, Instant};

/// The parts that are put out, by their place in `harness::cluster::NAMES`; the last is etcd.
const PARTS: [Part; 4] = [Part::Process(3), Part::Process(1), Part::Process(2), Part::Etcd];

/// The names of the parts in what is printed.
const NAMES: [&str; 4] = ["backend", "frontend", "scheduler", "etcd"];

/// The time between two outages, and from the last of them to the first restart.
const BETWEEN: Duration = Duration::from_millis(150);
const AWAY: Duration = Duration::from_millis(500);

/// A part of the cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Process(usize),
    Etcd,
}

/// The way in which parts are put out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outage {
    Kill,
    Stop,
}

/// What became of one order.
struct Recovery {
    outage: Outage,
    order: [usize; 4],
    /// The time from the last part's restart, before it is there, to when the good rate was back.
    back: Duration,
}

/// Returns the order with this number, below 24.
fn order(mut number: usize) -> [usize; 4] {
    let mut left = vec![0, 1, 2, 3];
    [4, 3, 2, 1].map(|count| {
        let at = number % count;
        number /= count;
        left.remove(at)
    })
}

/// A cluster with its etcd, under load.
struct Engine {
    etcd: Etcd,
    cluster: Cluster,
    clients: [Clients; 2],
}

impl Engine {
    fn start() -> Option<Engine> {
        let etcd = Etcd::start("http", &[])?;
        let discovery = etcd.config("");
        let more = Box::new(move |_: &std::path::Path, _| discovery.clone());
        let cluster = Cluster::start(ClusterSetup { in_config: false, more, ..ClusterSetup::default() });
        let clients = cluster.http.map(Clients::start);
        wait_until_good(&cluster, &clients, "at the start");
        Some(Engine { etcd, cluster, clients })
    }

    fn put_out(&mut self, part: Part, outage: Outage) {
        match (part, outage) {
            (Part::Etcd, Outage::Kill) => self.etcd.kill(),
            (Part::Etcd, Outage::Stop) => self.etcd.signal("-STOP"),
            (Part::Process(at), Outage::Kill) => self.cluster.process(at).kill(),
            (Part::Process(at), Outage::Stop) => self.cluster.process(at).signal("-STOP"),
        }
    }

    fn bring_back(&mut self, part: Part, outage: Outage) {
        match (part, outage) {
            (Part::Etcd, Outage::Kill) => self.etcd.start_again(),
            (Part::Etcd, Outage::Stop) => self.etcd.signal("-CONT"),
            (Part::Process(at), Outage::Kill) => self.cluster.start_one(at),
            (Part::Process(at), Outage::Stop) => self.cluster.process(at).signal("-CONT"),
        }
    }

    /// Puts all parts out in an order, brings them back in the same, and waits until the good rate
    /// is back. Checks that a frontend that lived has answered all.
    fn suffer(&mut self, outage: Outage, number: usize) -> Recovery {
        let order = order(number);
        let unanswered = self.clients[1].counts()[2];
        for part in order {
            self.put_out(PARTS[part], outage);
            std::thread::sleep(BETWEEN);
        }
        std::thread::sleep(AWAY);
        let mut restarted = Instant::now();
        for part in order {
            restarted = Instant::now();
            self.bring_back(PARTS[part], outage);
        }
        let what = format!("{outage:?} of {}", order.map(|part| NAMES[part]).join(", "));
        wait_until_good(&self.cluster, &self.clients, &what);
        let back = self.clients.iter().map(|clients| clients.good_again(restarted)).max().unwrap_or_default();
        if outage == Outage::Stop {
            assert_eq!(self.clients[1].counts()[2], unanswered, "{what}: of the frontend that stood still");
        }
        println!("{what}: the good rate was back within {back:?} of the last restart");
        Recovery { outage, order, back }
    }

    /// Ends the load, and checks that each request was answered at most once, and by the frontend
    /// that lived exactly once, by both sides' counts.
    fn end(self) -> [u64; 3] {
        let Engine { cluster, clients: [living, other], .. } = self;
        let (living, other) = (living.end(), other.end());
        for answers in [&living, &other] {
            assert_eq!(*answers.wrong.lock().unwrap(), None);
            assert_eq!(answers.counts().iter().sum::<u64>(), answers.sent());
        }
        let counts = living.counts();
        assert_eq!(counts[2], 0, "of the frontend that lived: {counts:?}");
        let (_, _, metrics) = request(cluster.http[0], ("GET", "/metrics"), "", "").unwrap();
        let outcomes = metrics.lines().filter(|line| line.starts_with("symphony_requests_total{"));
        let ended: f64 = outcomes.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        assert_eq!(ended as u64, living.sent(), "what the frontend has ended, once each:\n{metrics}");
        counts
    }
}

#[test]
fn every_request_is_answered_once_whatever_is_killed_and_stopped() {
    let Some(mut engine) = Engine::start() else { return };
    // A different pair of orders in each run; it is printed.
    let seed = std::process::id() as usize;
    for (outage, number) in [(Outage::Stop, seed % 24), (Outage::Kill, seed / 24 % 24), (Outage::Stop, 23)] {
        engine.suffer(outage, number);
    }
    engine.end();
}

/// Runs all orders, and writes what they took into the file that `SYMPHONY_OUTAGES` names.
#[test]
#[ignore = "takes some minutes: perf/outages runs it"]
fn every_order_of_outages() {
    let file = std::env::var("SYMPHONY_OUTAGES").expect("SYMPHONY_OUTAGES names the file for the figures");
    let mut engine = Engine::start().expect("it needs an etcd");
    let mut recoveries = Vec::new();
    for outage in [Outage::Kill, Outage::Stop] {
        recoveries.extend((0..24).map(|number| engine.suffer(outage, number)));
    }
    let [good, bad, unanswered] = engine.end();
    let row = |Recovery { outage, order, back }: &Recovery| {
        let order = order.map(|part| NAMES[part]);
        let outage = format!("{outage:?}").to_lowercase();
        serde_json::json!({ "outage": outage, "order": order, "good_again_s": back.as_secs_f64() })
    };
    let slowest = recoveries.iter().map(|recovery| recovery.back.as_secs_f64()).fold(0.0, f64::max);
    let within = recoveries.iter().filter(|recovery| recovery.back <= Duration::from_secs(2)).count();
    let figures = serde_json::json!({
        "orders": recoveries.len(),
        "slowest_good_again_s": slowest,
        "good_again_within_2_s": within,
        "living_frontend": { "good": good, "bad": bad, "unanswered": unanswered },
        "each": recoveries.iter().map(row).collect::<Vec<_>>(),
    });
    std::fs::write(file, figures.to_string()).unwrap();
}
